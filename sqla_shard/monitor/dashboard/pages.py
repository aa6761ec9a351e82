"""The pages: their data and templates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flask import (
    abort,
    Blueprint,
    flash,
    redirect,
    render_template,
    request,
    Response,
    url_for,
)
from flask.typing import ResponseReturnValue
from sqlalchemy.exc import SQLAlchemyError
from werkzeug.exceptions import NotFound, ServiceUnavailable

from sqla_shard.engine.unreachable import cause_of, unreachable_lines
from sqla_shard.exc import ShardError, UnknownKeyspaceError, UnknownShardError
from sqla_shard.jobs import (
    ChangeReport,
    delete_jobs,
    delete_of,
    JobState,
    retry_failed,
    retry_jobs,
)
from sqla_shard.monitor.dashboard.live import Streams
from sqla_shard.monitor.dashboard.maps import Colouring, COLOURINGS, FleetMaps, sizes_of
from sqla_shard.monitor.dashboard.observer import Observer, PATIENCE
from sqla_shard.monitor.dashboard.readings import waiting
from sqla_shard.monitor.dashboard.security import check_form, check_site
from sqla_shard.monitor.dashboard.servers import PairState
from sqla_shard.monitor.dashboard.sql_text import is_sql
from sqla_shard.topology import Keyspace

FOLDER = "sqla_shard_dashboard"
"""Folder of the templates; an application may have a ``base.html``, too."""

#: Number of shards of a server on a page.
_SHARDS = 128


class Pages:
    """The views of a blueprint.

    :param changes: whether jobs may be changed.
    """

    def __init__(self, observer: Observer, streams: Streams, *, changes: bool) -> None:
        self._observer = observer
        self._streams = streams
        self._maps = FleetMaps(observer)
        self.changes = changes

    def add_to(self, blueprint: Blueprint) -> None:
        """Add the routes to a blueprint.

        The routes that change something exist only if that is allowed.
        """
        get: Mapping[str, Callable[..., ResponseReturnValue]] = {
            "/": self.fleet,
            "/servers/<path:name>": self.server,
            "/shard": self.find_shard,
            "/shards/<keyspace>/<int:shard_id>": self.shard,
            "/history": self.history,
            "/schema": self.schema,
            "/jobs": self.jobs,
            "/jobs/<queue>": self.queue,
            "/cache": self.cache,
            "/pools": self.pools,
            "/explain": self.explain,
            "/events": self.events,
        }
        if self._observer.fleet is not None:
            get = {**get, "/operations": self.operations}
        for rule, view in get.items():
            blueprint.add_url_rule(rule, view.__name__, self._patient(view))
        if self.changes:
            for change in (self.retry, self.delete):
                blueprint.add_url_rule(
                    f"/jobs/<queue>/{change.__name__}",
                    change.__name__,
                    change,
                    methods=["POST"],
                )

    def _patient(
        self, view: Callable[..., ResponseReturnValue]
    ) -> Callable[..., ResponseReturnValue]:
        """Return a view that waits no longer than one value may take."""

        def patient(**values: Any) -> ResponseReturnValue:
            with waiting(PATIENCE):
                # Begin to read all values that it shows at the same time.
                self._observer.states(0.0)
                self._observer.digest(view.__name__)
                return view(**values)

        return patient

    def _page(self, page: str, *, topic: str | None = None, **values: Any) -> str:
        """Return a page.

        :param topic: topic of its events; by default its name.
        """
        topology = self._observer.cluster.topology
        states = self._observer.states()
        return render_template(
            f"{FOLDER}/{page}.html",
            page=page,
            topic=topic or page,
            # After the values were read, or it would be drawn twice.
            digest=self._observer.digest(topic or page),
            topology=topology,
            source=self._observer.cluster.source_report(),
            states=states,
            problems=[
                (one, problem)
                for pair in states.value or ()
                for one in pair.servers
                for problem in one.problems
            ],
            has_fleet=self._observer.fleet is not None,
            has_changes=self.changes,
            **values,
        )

    # -- the fleet --------------------------------------------------------

    def fleet(self) -> ResponseReturnValue:
        """Show servers, and their shards drawn to scale."""
        by: Colouring = "size"
        choices = dict(COLOURINGS)
        if not self._observer.has_load:
            del choices["load"]
        for name in choices:
            if request.args.get("by") == name:
                by = name
        sizes = self._observer.sizes().value
        return self._page(
            "fleet",
            topic=f"fleet-{by}",
            drawing=self._maps.draw(by),
            by=by,
            colourings=choices,
            load=self._observer.load(),
            totals=None if sizes is None else sizes.totals,
            pair_of={
                member: pair
                for pair in self._observer.states().value or ()
                for member in pair.members
            },
        )

    def server(self, name: str) -> ResponseReturnValue:
        """Show a server, and the shards on it."""
        pair = self._pair(name)
        topology = self._observer.cluster.topology
        first = max(0, request.args.get("first", 0, int))
        sizes = self._observer.sizes()
        revisions = self._revisions()
        shards = []
        for space, server_name in pair.members:
            keyspace = topology.keyspace(space)
            known = sizes_of(keyspace, sizes.value)
            shards += [
                (
                    space,
                    shard_id,
                    keyspace.database_for(shard_id),
                    known.get(shard_id),
                    revisions.get((space, shard_id)),
                )
                for part, server in keyspace.placements()
                if server.name == server_name
                for shard_id in part
            ]
        return self._page(
            "server",
            pair=pair,
            shards=shards[first : first + _SHARDS],
            count=len(shards),
            first=first,
            step=_SHARDS,
            sizes=sizes,
        )

    def find_shard(self) -> ResponseReturnValue:
        """Go to the shard that was entered."""
        keyspace = request.args.get("keyspace", "")
        number = request.args.get("number", "")
        if not (number.isascii() and number.isdecimal()):
            abort(400, f"{number!r} is not the number of a shard.")
        return redirect(url_for(".shard", keyspace=keyspace, shard_id=int(number[:20])))

    def shard(self, keyspace: str, shard_id: int) -> ResponseReturnValue:
        """Show one virtual shard."""
        space = self._keyspace(keyspace)
        try:
            server = space.server_for(shard_id)
        except UnknownShardError as error:
            abort(404, str(error))
        # Before all others: it is what the page is about.
        tables = self._observer.tables(space, shard_id)
        rollouts = self._observer.rollouts().value or ()
        status = next(
            (
                one
                for rollout in rollouts
                if rollout.keyspace == keyspace
                for one in rollout.shards
                if one.shard_id == shard_id
            ),
            None,
        )
        pairs = self._observer.states().value or ()
        return self._page(
            "shard",
            space=space,
            shard_id=shard_id,
            server=server,
            pair=next((p for p in pairs if (keyspace, server.name) in p.members), None),
            database=space.database_for(shard_id),
            tables=tables,
            has_load=self._observer.has_load,
            load=self._observer.load_of(keyspace, shard_id),
            status=status,
        )

    def history(self) -> ResponseReturnValue:
        """Show the versions of the topology."""
        return self._page(
            "history",
            changes=self._observer.changes(),
            is_published=self._observer.history.is_published,
        )

    def schema(self) -> ResponseReturnValue:
        """Show the revisions of all shards."""
        return self._page("schema", rollouts=self._observer.rollouts())

    def operations(self) -> ResponseReturnValue:
        """Show the operations of the fleet."""
        return self._page("operations", operations=self._observer.operations())

    # -- processes --------------------------------------------------------

    def cache(self) -> ResponseReturnValue:
        """Show the row cache."""
        return self._page(
            "cache",
            cache=self._observer.cache(),
            has_cache=self._observer.cluster.cache is not None,
        )

    def pools(self) -> ResponseReturnValue:
        """Show the connections of servers and of this process."""
        cluster = self._observer.cluster
        return self._page(
            "pools", pools=cluster.stats(), lanes=cluster.places.engines.lanes.usage()
        )

    def explain(self) -> ResponseReturnValue:
        """Show the way of an id or a statement; nothing is run."""
        text = request.args.get("q", "").strip()
        keyspace = request.args.get("keyspace") or None
        found, error = None, None
        if text:
            # It may take seconds.
            check_site(links=False)
            try:
                found = self._observer.explain(text, keyspace)
            except ShardError as raised:
                error = str(raised)
        page = self._page(
            "explain",
            text=text,
            found=found,
            error=error,
            is_sql=is_sql(text),
            models=self._observer.models,
            keyspace=keyspace,
            keyspaces=[
                space.name
                for space in self._observer.cluster.topology.keyspaces.values()
                if space.kind == "objects"
            ],
        )
        return page, 200 if error is None else 400

    def events(self) -> ResponseReturnValue:
        """Stream events about one page."""
        stream = self._streams.open(request.args.get("topic", ""))
        if stream is None:
            abort(503, "Too many browsers listen; pages do not update.")
        return Response(
            stream,
            mimetype="text/event-stream",
            # nginx would buffer it.
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )

    # -- jobs -------------------------------------------------------------

    def jobs(self) -> ResponseReturnValue:
        """Show the queues."""
        return self._page("jobs", queues=self._observer.queues())

    def queue(self, queue: str) -> ResponseReturnValue:
        """Show the jobs of a queue with a state."""
        states = {state.name.lower(): state for state in JobState}
        state = request.args.get("state", "failed")
        if state not in states:
            abort(404, f"{state!r} is not a state of jobs.")
        jobs = self._observer.jobs(queue, states[state])
        tasks = self._observer.tasks(queue)
        return self._page(
            "queue",
            queue=queue,
            state=state,
            job_states=list(states),
            jobs=jobs,
            tasks=tasks,
            unreachable=unreachable_lines(tasks.value[1] if tasks.value else ()),
        )

    def retry(self, queue: str) -> ResponseReturnValue:
        """Run failed jobs again: one, or all of the queue."""
        check_form()
        job_id = request.form.get("job")
        cluster = self._observer.cluster
        if job_id is None:
            return self._changed(queue, retry_failed, cluster, queue)
        return self._changed(queue, retry_jobs, cluster, [job_id])

    def delete(self, queue: str) -> ResponseReturnValue:
        """Delete jobs: one, or all failed ones of the queue."""
        check_form()
        job_id = request.form.get("job")
        cluster = self._observer.cluster
        if job_id is None:
            return self._changed(queue, delete_of, cluster, queue, [JobState.FAILED])
        return self._changed(queue, delete_jobs, cluster, [job_id])

    def _changed(
        self, queue: str, change: Callable[..., ChangeReport], *arguments: Any
    ) -> ResponseReturnValue:
        """Change jobs, and return to the page that the form was on."""
        try:
            report = change(*arguments)
        except SQLAlchemyError as error:
            abort(400, cause_of(error).reason)
        self._observer.expire_jobs()
        verb = "retried" if change in (retry_jobs, retry_failed) else "deleted"
        plural = "job" if report.changed == 1 else "jobs"
        flash(f"{report.changed:,} {plural} {verb}.")
        for line in (*report.skipped[:5], *unreachable_lines(report.unreachable)[:5]):
            flash(line)
        state = request.form.get("state", "failed")
        return redirect(url_for(".queue", queue=queue, state=state), 303)

    # -- shared helpers ---------------------------------------------------

    def _pair(self, name: str) -> PairState:
        states = self._observer.states().value
        for pair in states or ():
            if pair.name == name:
                return pair
        if states is None:
            raise ServiceUnavailable("The servers are being read; reload.")
        raise NotFound(f"The topology has no server {name!r}.")

    def _keyspace(self, name: str) -> Keyspace:
        try:
            return self._observer.cluster.topology.keyspace(name)
        except UnknownKeyspaceError as error:
            raise NotFound(str(error)) from error

    def _revisions(self) -> dict[tuple[str, int], str]:
        return {
            (rollout.keyspace, one.shard_id): ", ".join(one.revisions)
            for rollout in self._observer.rollouts().value or ()
            for one in rollout.shards
        }
