"""The pages of the dashboard: headers, events, views, and the application."""

from __future__ import annotations

import ipaddress
import re
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from time import monotonic
from typing import Any

from flask import (
    abort,
    Blueprint,
    current_app,
    flash,
    Flask,
    redirect,
    render_template,
    request,
    Response,
    session,
    url_for,
)
from flask.typing import ResponseReturnValue
from sqlalchemy.exc import SQLAlchemyError
from werkzeug.exceptions import (
    HTTPException,
    NotFound,
    SecurityError,
    ServiceUnavailable,
)
from werkzeug.serving import BaseWSGIServer, make_server, WSGIRequestHandler

from sqla_shard.engine.unreachable import cause_of, unreachable_lines
from sqla_shard.exc import (
    ExtensionSetupError,
    ShardError,
    UnknownKeyspaceError,
    UnknownShardError,
)
from sqla_shard.jobs import (
    ChangeReport,
    delete_jobs,
    delete_of,
    JobState,
    retry_failed,
    retry_jobs,
)
from sqla_shard.monitor.cached_reading import waiting
from sqla_shard.monitor.dashboard.maps import (
    bytes_text,
    Colouring,
    COLOURINGS,
    FleetMaps,
    number_text,
    sizes_of,
)
from sqla_shard.monitor.dashboard.observer import Observer, PATIENCE
from sqla_shard.monitor.dashboard.readings import PairState
from sqla_shard.monitor.dashboard.statements import is_sql
from sqla_shard.topology import Keyspace
from sqla_shard.util.masking import host_and_port
from sqla_shard.util.processes import in_children

# -- The headers of every response, and the tokens of forms.
#
# Scripts, styles and pictures come from this server only, so a text that
# got past the escaping would do nothing.  Forms that change something have
# a token in the signed session; browsers also say where a request comes
# from, and one from another site is refused.

_TOKEN = "sqla_shard_dashboard_token"  # noqa: S105  # the name of a key

_FIELD = "token"

_POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    ]
)

_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

#: Headers of browsers for a request of the page itself, or of its user.
_SAME_SITES = (None, "same-origin", "none")


def add_headers(response: Response) -> Response:
    """Add the security headers to a response."""
    for name, value in _HEADERS.items():
        response.headers[name] = value
    if not (request.endpoint or "").endswith(".static"):
        response.headers.setdefault("Cache-Control", "no-store")
    return response


def check_site(*, links: bool = True) -> None:
    """End a request that a page of another site makes, as for a picture.

    It cannot read the answer, but would keep this process busy.

    :param links: whether a link of another site may be followed.
    :raises werkzeug.exceptions.Forbidden: if it comes from there.
    """
    headers = request.headers
    site, origin = headers.get("Sec-Fetch-Site"), headers.get("Origin", "")
    # Old browsers, and all over plain HTTP.  A GET of the page itself has no
    # Origin; a form has one, of the host that a proxy shows, and a token.
    if site is None and origin and request.method in ("GET", "HEAD"):
        is_own = origin.partition("://")[2] == request.host.lower()
        site = None if is_own else "cross-site"
    is_link = request.method == "GET" and (
        headers.get("Sec-Fetch-Mode") == "navigate"
        and headers.get("Sec-Fetch-Dest") == "document"
    )
    if site not in _SAME_SITES and not (links and is_link):
        abort(403, "The request comes from another site.")


def form_token() -> str:
    """Return the token for forms of this session."""
    token: str | None = session.get(_TOKEN)
    if token is None:
        session[_TOKEN] = token = secrets.token_urlsafe(32)
    return token


def check_form() -> None:
    """End a request that does not come from a form of these pages.

    :raises werkzeug.exceptions.Forbidden: if it does not.
    """
    check_site(links=False)
    expected: str = session.get(_TOKEN, "")
    given = request.form.get(_FIELD, "")
    if not expected or not secrets.compare_digest(expected.encode(), given.encode()):
        abort(403, "The token of the form is missing or outdated; reload the page.")


# -- Server-sent events: browsers learn that a page should be drawn again.
#
# An event has a digest of what the page shows, and the browser requests the
# page when that differs from its own.  A stream ends after some minutes,
# and browsers reconnect, so one whose browser is gone does not hold a
# thread for ever.

#: Seconds between two looks at the values.
_INTERVAL = 1.0

#: Seconds between two events without a change; a closed connection is noticed
#: when something is sent.
_QUIET = 15.0

#: Seconds after which a stream ends.
_LONGEST = 600.0


class Streams:
    """The open streams of a process.

    :param most: maximum number: each holds a thread of the server.
    """

    def __init__(self, observer: Observer, *, most: int = 24) -> None:
        self._observer = observer
        self._most = most
        self._open = 0
        self._closed = threading.Event()
        self.after_fork()
        in_children(self)

    def after_fork(self) -> None:
        """Replace the lock, which a thread of the parent may hold."""
        self._lock = threading.Lock()
        self._open = 0

    def close(self) -> None:
        """End all streams."""
        self._closed.set()

    def open(self, topic: str) -> Iterator[str] | None:
        """Return the events of a page.

        :returns: None if there are too many streams.
        """
        with self._lock:
            if self._open >= self._most:
                return None
            self._open += 1
        return _Stream(self, topic)

    def release(self) -> None:
        """Count a stream as closed."""
        with self._lock:
            self._open -= 1

    def events(self, topic: str) -> Iterator[str]:
        """Yield the digest of a page when it changes."""
        # The browser waits this long before it reconnects.
        yield "retry: 2000\n\n"
        end = monotonic() + _LONGEST
        last, sent = "", 0.0
        while monotonic() < end:
            digest = self._observer.digest(topic)
            if digest != last:
                yield f"data: {digest}\n\n"
            elif monotonic() - sent > _QUIET:
                yield ": no change\n\n"
            if digest != last or monotonic() - sent > _QUIET:
                last, sent = digest, monotonic()
            if self._closed.wait(_INTERVAL):
                return


class _Stream(Iterator[str]):
    """The events of one browser, which are counted until it is closed.

    A generator that was never started would not run its ``finally``.
    """

    def __init__(self, streams: Streams, topic: str) -> None:
        self._streams = streams
        self._events = streams.events(topic)
        self._is_open = True

    def __next__(self) -> str:
        return next(self._events)

    def close(self) -> None:
        """Release the stream; the WSGI server calls this in any case."""
        if self._is_open:
            self._is_open = False
            self._streams.release()


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
        if sizes is not None and sizes.unread and not sizes.databases:
            sizes = None  # zero bytes would look like an empty fleet
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
        revisions = {
            (rollout.keyspace, one.shard_id): ", ".join(one.revisions)
            for rollout in self._observer.rollouts().value or ()
            for one in rollout.shards
        }
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
        explanation, error = None, None
        if text:
            # It may take seconds.
            check_site(links=False)
            try:
                explanation = self._observer.explain(text, keyspace)
            except ShardError as raised:
                error = str(raised)
        page = self._page(
            "explain",
            text=text,
            found=explanation,
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


# -- The blueprint, the application of its own, and its server.

_MOST_BYTES = 64 * 1024  # of a request

_NAMES = ("127.0.0.1", "localhost", "[::1]")

_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^:\[\]]+)(?::[0-9]+)?")


class DashboardBlueprint(Blueprint):
    """The pages, which an application mounts.

    :ivar streams: the open streams of events.
    """

    streams: Streams


def dashboard_blueprint(
    observer: Observer, *, allow_changes: bool = False
) -> DashboardBlueprint:
    """Return the pages, to be mounted by a Flask application.

    The pages have no login of their own; add one::

        blueprint = dashboard_blueprint(Observer(db.cluster))

        @blueprint.before_request
        def only_operators():
            if not current_user.is_operator:
                abort(403)

        app.register_blueprint(blueprint, url_prefix="/shards")

    :param observer: what the pages show.
    :param allow_changes: whether failed jobs may be retried and deleted; the
        application then needs a ``SECRET_KEY``.
    :raises ExtensionSetupError: when it is registered without a secret key,
        although changes are allowed.
    """
    blueprint = DashboardBlueprint(
        FOLDER, __name__, static_folder="static", template_folder="templates"
    )
    blueprint.streams = Streams(observer)
    pages = Pages(observer, blueprint.streams, changes=allow_changes)
    pages.add_to(blueprint)
    blueprint.before_request(check_site)
    blueprint.after_request(add_headers)
    blueprint.register_error_handler(HTTPException, _show_error)
    blueprint.add_app_template_filter(_when, "sqla_shard_when")
    blueprint.add_app_template_filter(_duration, "sqla_shard_duration")
    blueprint.add_app_template_filter(_percent, "sqla_shard_percent")
    blueprint.add_app_template_filter(bytes_text, "sqla_shard_bytes")
    blueprint.add_app_template_filter(number_text, "sqla_shard_number")

    @blueprint.context_processor
    def _values() -> dict[str, Any]:
        return {"form_token": form_token}

    @blueprint.record
    def _check(state: Any) -> None:
        if allow_changes and not state.app.secret_key:
            raise ExtensionSetupError(
                "has no SECRET_KEY, which signs the tokens of forms; set it, "
                "or do not allow changes",
                app=state.app.name,
            )

    return blueprint


def create_app(
    observer: Observer, *, allow_changes: bool = False, hosts: Sequence[str] = _NAMES
) -> Flask:
    """Return an application with the pages only.

    It has no login: serve it on the loopback interface.

    :param hosts: names by which browsers may call it; others are refused,
        since a page elsewhere could have given itself this address.
    """
    return _app_of(dashboard_blueprint(observer, allow_changes=allow_changes), hosts)


def _app_of(blueprint: Blueprint, hosts: Sequence[str]) -> Flask:
    app = Flask(__name__, static_folder=None)
    app.config.update(
        SECRET_KEY=secrets.token_bytes(32),
        MAX_CONTENT_LENGTH=_MOST_BYTES,
        SESSION_COOKIE_NAME="sqla_shard_dashboard",
        SESSION_COOKIE_HTTPONLY=True,
        SESSION_COOKIE_SAMESITE="Strict",
    )
    names = {host.strip("[]").lower() for host in hosts}

    @app.before_request
    def _check_host() -> None:
        # Flask's TRUSTED_HOSTS would refuse each IPv6 address.
        match = _HOST.fullmatch(request.host.lower())
        if match is None or match[1].strip("[]") not in names:
            raise SecurityError(f"Host {request.host!r} is not trusted.")

    app.register_blueprint(blueprint)
    # Of addresses that no page has.
    app.register_error_handler(HTTPException, _show_error)
    app.after_request(add_headers)
    return app


class _Quiet(WSGIRequestHandler):
    """Logs errors only."""

    #: Seconds.  Otherwise half a request would hold a thread for ever.
    timeout = 30.0

    def log_request(self, code: object = "-", size: object = "-") -> None:
        pass


class DashboardServer:
    """Serves the application on the loopback interface.

    :param host: an address of it.
    :param port: 0 for a free one.
    :raises ExtensionSetupError: if the address is not one of the loopback
        interface.
    :raises OSError: if the port is in use.
    """

    def __init__(
        self,
        observer: Observer,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        allow_changes: bool = False,
    ) -> None:
        if not ipaddress.ip_address(host).is_loopback:
            raise ExtensionSetupError(
                f"would be served at {host} without a login; use an address "
                "of the loopback interface and ssh -L, or mount "
                "dashboard_blueprint() in an application with a login",
                app="sqla-shard dashboard",
            )
        blueprint = dashboard_blueprint(observer, allow_changes=allow_changes)
        self._streams = blueprint.streams
        self.app: Flask = _app_of(blueprint, (*_NAMES, host))
        self._server: BaseWSGIServer = make_server(
            host, port, self.app, threaded=True, request_handler=_Quiet
        )
        # A browser that reads slowly must not keep the process alive.
        self._server.daemon_threads = True  # type: ignore[attr-defined]  # of ThreadingMixIn
        shown = host_and_port(host, self._server.server_port)
        self.address: str = f"http://{shown}"

    def serve(self) -> None:
        """Serve until :meth:`close` is called in another thread."""
        self._server.serve_forever()

    def close(self) -> None:
        """End :meth:`serve`, and all streams."""
        self._streams.close()
        self._server.shutdown()
        self._server.server_close()


def _show_error(error: HTTPException) -> ResponseReturnValue:
    if request.path.endswith("/events") or isinstance(error, SecurityError):
        # A page would have links with the name that was refused.
        return error.get_response()
    page = render_template(
        f"{FOLDER}/error.html",
        error=error,
        page="error",
        has_fleet=f"{request.blueprint or FOLDER}.operations"
        in current_app.view_functions,
    )
    return page, error.code or 500


def _when(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S")


def _percent(part: float) -> str:
    """Return a part of 1 in per cent."""
    if 0 < part < 0.00001:
        return "< 0.001 %"
    return f"{100 * part:.3g} %"


def _duration(seconds: float | timedelta | None) -> str:
    """Return a duration in its two largest units."""
    if seconds is None:
        return "–"
    if isinstance(seconds, timedelta):
        seconds = seconds.total_seconds()
    rest = int(seconds)
    parts: list[str] = []
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)):
        if rest >= size or (unit == "s" and not parts):
            parts.append(f"{rest // size} {unit}")
            rest %= size
    return " ".join(parts[:2])
