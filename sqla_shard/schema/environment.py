"""A command of alembic on the virtual shards of a keyspace.

``env.py`` of a sharded application calls :func:`run_env`.  ``upgrade``,
``downgrade`` and ``stamp`` then change every shard, ``current`` shows the
revisions of all shards; ``revision --autogenerate`` and ``check`` compare the
models with one shard; ``--sql`` prints the statements once, since they are the
same for all shards.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial, wraps
from pathlib import Path
from typing import Any, TypeVar

from alembic import op
from alembic.runtime.migration import MigrationStep, RevisionStep
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, MetaData

from sqla_shard.cluster.cluster import Cluster
from sqla_shard.engine import Places
from sqla_shard.exc import (
    MigrationFailedError,
    SchemaError,
    SchemaOptionError,
    ShardError,
)
from sqla_shard.schema.applier import Applier, ordered_indexes
from sqla_shard.schema.ledger import (
    has_no_version,
    mark_lost,
    others_of,
    read_misplaced,
    read_versions,
    Version,
    without_tables,
)
from sqla_shard.schema.reports import Outcome, progress_on, RunReport, State
from sqla_shard.schema.revisions.autogenerate import comparing, is_portable, merged
from sqla_shard.schema.selection import RunOptions, Shard, shards_of
from sqla_shard.schema.waves import check_target, run
from sqla_shard.topology import Keyspace, Topology
from sqla_shard.topology.follow import load_location
from sqla_shard.topology.keyspaces import as_ranges
from sqla_shard.topology.urls import address_of
from sqla_shard.util.logs import careful_log
from sqla_shard.util.masking import printable, redact

R = TypeVar("R", bound=RunReport)


class TopologyChanges:
    """Compares the topology of a run with the published one.

    A run takes minutes or hours and reads the topology once.  A shard that was
    moved meanwhile was copied with its old or its new tables; a shard that was
    opened was provisioned with an unknown revision.  The report shows that the
    revision of such a shard is unknown.

    :param old: the topology of the run.
    :param keyspace: the name of the run's keyspace.
    :param read: returns the published topology.
    """

    def __init__(
        self, old: Topology, keyspace: str, read: Callable[[], Topology]
    ) -> None:
        self._old = old
        self._name = keyspace
        self._read = read

    def has_moved(self, shard_ids: Collection[int]) -> bool:
        """Return whether any of the given shards was moved.

        False if the topology cannot be read; :meth:`with_moved_shards`
        reports that.
        """
        try:
            elsewhere = self._elsewhere(self._read())
        except ShardError:
            return False
        return not elsewhere.isdisjoint(shard_ids)

    def with_moved_shards(self, report: RunReport, *, all_shards: bool) -> RunReport:
        """Return the report with the shards that were moved or opened since.

        :param all_shards: whether the run was for all shards of the keyspace.
        """
        try:
            new = self._read()
        except ShardError as error:
            return _with_read_error(report, error)
        changed = self._elsewhere(new)
        had = {one.shard_id for one in report.outcomes}
        outcomes = [
            replace(one, state=State.MOVED, error=self._reason(new, one))
            if one.shard_id in changed
            else one
            for one in report.outcomes
        ]
        after = new.keyspaces.get(self._name)
        if all_shards and after is not None:
            outcomes += [
                _outcome_of_opened(new, after, shard_id)
                for shard_id in sorted(changed - had)
            ]
        return replace(report, outcomes=tuple(outcomes))

    def with_publication_check(self, report: R, new: Topology) -> R:
        """Return the report, with an error if another topology was published.

        :param new: the topology that may be published.
        """
        try:
            published = self._read()
        except ShardError as error:
            return _with_read_error(report, error)
        if published in (self._old, new):
            return report
        return replace(
            report,
            topology_error=f"the topology of epoch {published.epoch} was "
            "published during this run",
        )

    def _elsewhere(self, new: Topology) -> set[int]:
        """Return the shards that were moved, opened or closed."""
        before = self._old.keyspace(self._name)
        after = new.keyspaces.get(self._name)
        if new == self._old:
            return set()
        if after is None:
            return set(before.shard_ids)
        common = min(before.shards, after.shards)
        shards = set(range(common, max(before.shards, after.shards)))
        return shards | {
            shard_id
            for shard_id in range(common)
            if _place(before, shard_id) != _place(after, shard_id)
        }

    def _reason(self, new: Topology, outcome: Outcome) -> str:
        after = new.keyspaces.get(self._name)
        where = "is closed"
        if after is not None and outcome.shard_id < after.shards:
            server = after.server_for(outcome.shard_id)
            where = f"is on {server.name} ({address_of(server.primary)})"
        text = (
            f"the topology of epoch {new.epoch} was published during this "
            f"run, in which the shard {where}; repeat the command"
        )
        return text if outcome.error is None else f"{text}\n{outcome.error}"


def _with_read_error(report: R, error: ShardError) -> R:
    return replace(
        report,
        topology_error="whether a topology was published during this run is "
        f"unknown: {error}",
    )


def _place(keyspace: Keyspace, shard_id: int) -> tuple[object, str]:
    server = keyspace.server_for(shard_id)
    return address_of(server.primary), keyspace.database_for(shard_id)


def _outcome_of_opened(new: Topology, keyspace: Keyspace, shard_id: int) -> Outcome:
    return Outcome(
        shard_id=shard_id,
        server=keyspace.server_for(shard_id).name,
        database=keyspace.database_for(shard_id),
        state=State.MOVED,
        error=f"the topology of epoch {new.epoch}, published during this "
        "run, has opened the shard; repeat the command",
    )


_log = careful_log(__name__)

#: The topology of sqla-shard; alembic can have another one on purpose, such as
#: one with a database to compare with.
_VARIABLE = "SQLA_SHARD_TOPOLOGY"

_Steps = Callable[..., Iterable[MigrationStep]]


def _printable(fn: _Steps) -> _Steps:
    """Return steps whose errors name the revision that cannot be printed."""

    def steps(heads: Any, context: Any) -> Iterator[MigrationStep]:
        for step in fn(heads, context):
            if isinstance(step, RevisionStep):
                step.migration_fn = _with_named_errors(step)
            yield step

    return steps


def _with_named_errors(step: RevisionStep) -> Callable[..., None]:
    run = step.migration_fn
    direction = "upgrade" if step.is_upgrade else "downgrade"

    # Alembic prints the name of the function that it runs.
    @wraps(run)
    def named(**kwargs: Any) -> None:
        try:
            run(**kwargs)
        # A query returns None here, which may cause any error in the
        # revision.
        except Exception as error:
            raise SchemaError(
                f"{direction} of {step.revision.revision} cannot be printed "
                "with --sql, which has no connection; does it run a query? "
                f"{type(error).__name__}: {error}. Print the revisions "
                "before and after it, and write this one by hand"
            ) from error

    return named


def _databases(shards: Sequence[Shard]) -> str:
    """Return the names of the databases, with runs as ``first to last``."""
    runs: list[list[Shard]] = []
    for shard in shards:
        if runs and runs[-1][-1].shard_id + 1 == shard.shard_id:
            runs[-1].append(shard)
        else:
            runs.append([shard])
    return ", ".join(
        run[0].database if len(run) == 1 else f"{run[0].database} to {run[-1].database}"
        for run in runs
    )


#: Key in alembic's ``Config.attributes`` for the arguments of the commands of
#: this package.
ATTRIBUTE = "sqla_shard"

_EVERYWHERE = frozenset({"upgrade", "downgrade", "do_stamp", "do_ensure_version"})

#: Commands after which a database that lost its tables would look complete.
_FILLING = frozenset({"upgrade", "stamp"})

_ON_REFERENCE = frozenset({"retrieve_migrations", "edit_current"})


class Environment:
    """One command of alembic, on the shards of a keyspace.

    :ivar places: the locations of the shards.
    :ivar keyspace: the keyspace.
    :ivar topology_changes: compares the topology with the published one.
    """

    def __init__(
        self,
        context: Any,
        metadata: MetaData,
        cluster: Cluster | None,
        settings: dict[str, Any],
    ) -> None:
        self._context = context
        self._config = context.config
        given = self._config.attributes.get(ATTRIBUTE, {})
        self._given: dict[str, Any] = given
        self.options: RunOptions = given.get("options") or RunOptions.parse(
            _x_arguments(context)
        )
        self._cluster = given.get("cluster") or cluster or self._from_config()
        self._closes = cluster is None and "cluster" not in given
        read = given.get("published") or self._reader()
        self._newest: dict[tuple[str, ...], bool] = {}
        self.places: Places = self._cluster.places
        self.keyspace: Keyspace = self._keyspace()
        self.topology_changes: TopologyChanges = TopologyChanges(
            self.places.topology, self.keyspace.name, read
        )
        self.version_table: Any = settings.get("version_table", "alembic_version")
        ours = comparing(
            metadata,
            keyspace=self.keyspace.name,
            topology=self.places.topology,
            portable=is_portable(
                self._option("portable"), self._config.config_ini_section
            ),
        )
        self.settings: Any = merged(ours, settings)

    def _option(self, name: str) -> str | None:
        section = self._config.config_ini_section
        value: str | None = self._config.get_section_option(section, name)
        return value

    def _from_config(self) -> Cluster:
        # Use no snapshot, since an outdated topology would migrate the wrong
        # databases, and no follower thread, since processes are forked.
        location, other = self._location(), os.environ.get(_VARIABLE)
        if other and Path(other).resolve() != Path(location).resolve():
            _log.warning(
                "the topology is %s of alembic.ini, not %s of %s, which the "
                "other commands use",
                *(redact(location), redact(other), _VARIABLE),
                extra={"action": "choose a topology"},
            )
        return Cluster(load_location(location))

    def _location(self) -> str:
        path = self._option("topology")
        if path is None:
            raise SchemaOptionError(
                "alembic.ini has no topology; write topology = %(here)s/topology.toml "
                f"below [{self._config.config_ini_section}], or pass run_env() a "
                "cluster",
                option="topology",
                value="",
            )
        return path

    def _reader(self) -> Callable[[], Topology]:
        """Return a function that reads the published topology."""
        if self._closes:
            return partial(load_location, self._location())
        # A cluster that follows its topology has the newest topology.
        cluster = self._cluster
        return lambda: cluster.topology

    def _keyspace(self) -> Keyspace:
        name = self._option("keyspace")
        topology = self.places.topology
        if name is None and len(topology.keyspaces) == 1:
            return next(iter(topology.keyspaces.values()))
        if name is None:
            raise SchemaOptionError(
                "the topology has several keyspaces; write keyspace = NAME "
                f"below [{self._config.config_ini_section}] of alembic.ini, "
                f"one of {', '.join(topology.keyspaces)}",
                option="keyspace",
                value="",
            )
        return topology.keyspace(name)

    @property
    def script(self) -> ScriptDirectory:
        """The revision scripts of the application."""
        directory: ScriptDirectory = self._context.script
        return directory

    def is_newest(self, heads: tuple[str, ...]) -> bool:
        """Return whether a shard at the given revisions needs no upgrade.

        Alembic does not store a revision that another one depends on, so
        the revisions can differ from the heads of the scripts.
        """
        if heads not in self._newest:
            try:
                revisions: Any = heads  # alembic annotates a single one
                steps = self.script._upgrade_revs("heads", revisions)
            except CommandError:
                # A revision has no script.
                self._newest[heads] = False
            else:
                self._newest[heads] = not steps
        return self._newest[heads]

    def shards(self) -> list[Shard]:
        """Return the selected shards."""
        return shards_of(
            self.places, self.keyspace, self.options.shards, self.options.servers
        )

    def reference(self) -> Shard:
        """Return the shard with which models are compared."""
        number = self.options.reference or 0
        return shards_of(self.places, self.keyspace, [number])[0]

    def versions(self, shards: list[Shard] | None = None) -> list[Version]:
        """Return the revisions of the given or of the selected shards."""
        return read_versions(
            self.places, self.shards() if shards is None else shards, self.version_table
        )

    def with_lost_marked(self, versions: list[Version]) -> list[Version]:
        """Return versions with :attr:`Version.lost` set.

        :raises UnknownShardError: if a shard of the option ``new`` is not
            open.
        """
        new = self.options.new or ()
        if new:
            shards_of(self.places, self.keyspace, new)
        every = shards_of(self.places, self.keyspace)
        others = self.versions(others_of(versions, every))
        misplaced: list[Version] = []
        if has_no_version([*versions, *others]):
            misplaced = read_misplaced(self.places, self.keyspace, self.version_table)
        return mark_lost(versions, others, new, misplaced)

    def run(self) -> None:
        """Run the command."""
        try:
            self._check_scripts()
            if self._context.is_offline_mode():
                self._print_sql()
                return
            # No connection is needed: this only determines the command.
            url = self.reference().place.engine.url
            self._configure(dialect_name=url.get_backend_name())
            opts = self._context.get_context().opts
            fn = opts["fn"]
            own = self._given.get("command")
            if own is not None:
                own(self, fn)
            elif fn.__name__ in _EVERYWHERE:
                self.everywhere(fn, _text(opts.get("destination_rev")))
            elif fn.__name__ == "display_version":
                self._print_current()
            elif fn.__name__ in _ON_REFERENCE:
                self._run_on_reference()
            else:
                raise SchemaError(
                    f"{fn.__name__!r} is not supported on virtual shards; use "
                    "upgrade, downgrade, stamp, current, check or revision"
                )
        finally:
            if self._closes:
                self._cluster.close()

    def _check_scripts(self) -> None:
        try:
            self.script.get_heads()
        except KeyError as error:
            raise SchemaError(
                f"a script has {error} as its down_revision, or in "
                "depends_on, but there is no script of that revision; restore "
                "its file, or correct down_revision"
            ) from error

    def _configure(self, **more: Any) -> None:
        self._context.configure(**{**self.settings, **more})

    def everywhere(self, fn: Callable[..., Any], target: str) -> RunReport:
        """Change every shard that is not at the target.

        :raises MigrationFailedError: if a shard could not be changed.
        """
        command = fn.__name__.removeprefix("do_")
        versions = self.versions()
        check_target(target, versions)
        if command in _FILLING:
            versions = self.with_lost_marked(versions)
        if command == "stamp":
            versions = without_tables(self.places, versions)
        chosen = self.options.shards or self.options.servers
        every = versions
        if chosen is not None and self.options.compare:
            every = self.versions(shards_of(self.places, self.keyspace))
        report = self.change(
            versions,
            fn,
            command=command,
            target=target,
            has_moved=self.topology_changes.has_moved,
            every=every,
        )
        report = self.topology_changes.with_moved_shards(
            report, all_shards=chosen is None
        )
        self.write_report(report)
        return report

    def change(
        self,
        versions: Sequence[Version],
        fn: Callable[..., Any],
        *,
        command: str,
        target: str,
        always: Collection[int] = (),
        applier: Callable[..., Applier] = Applier,
        has_moved: Callable[[Collection[int]], bool] | None = None,
        every: Sequence[Version] | None = None,
    ) -> RunReport:
        """Change the shards that are not at the target; return the report.

        :param versions: the revisions of each shard.
        :param fn: returns the migration steps of a database, as alembic's
            commands define it.
        :param always: shards that are visited even if there are no steps.
        :param applier: the class of the :class:`Applier` of a process.
        :param has_moved: is called before each wave and returns whether any of
            the given shards was moved, which ends the run; by default this
            is not checked.
        :param every: the revisions of all shards, one of which may have finished
            a revision in an earlier run; by default ``versions``.
        """
        unwritten = self._write("", "a")
        if unwritten is not None:
            # Raise the error before anything is changed.
            raise unwritten
        context = self._context.get_context()
        purges = context.opts.get("purge", False)
        report = run(
            versions,
            command=command,
            target=target,
            steps=lambda heads: fn(() if purges else heads, context),
            always=always,
            applier=partial(
                applier,
                self._context,
                fn,
                self.places,
                self.options,
                self.settings,
                versions if every is None else every,
            ),
            options=self.options,
            progress=self._given.get("progress") or progress_on(sys.stderr),
            has_moved=has_moved or (lambda shard_ids: False),
        )
        # Servers may have closed connections that were idle during the run.
        for engine in {version.shard.place.engine for version in versions}:
            engine.dispose()
        return report

    def write_report(self, report: RunReport) -> None:
        """Print the report, and write it to the file of the option.

        :raises MigrationFailedError: if a shard is not at the target.
        :raises SchemaOptionError: if the file cannot be written.
        """
        if "progress" not in self._given:
            self._config.print_stdout("%s", printable(str(report)))
        unwritten = None
        if self.options.report is not None:
            text = json.dumps(report.as_dict(), indent=2)
            unwritten = self._write(f"{text}\n", "w")
        if not report.ok:
            bad = [o for o in report.outcomes if not o.state.is_good]
            raise MigrationFailedError(
                str(report),
                report=report.as_dict(),
                shards=tuple(one.shard_id for one in bad),
            ) from unwritten
        if unwritten is not None:
            raise unwritten

    def _write(self, text: str, mode: str) -> SchemaOptionError | None:
        """Write to the file of the option ``report``, if any.

        :returns: the error, or None.
        """
        path = self.options.report
        if path is None:
            return None
        try:
            with Path(path).open(mode, encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            return SchemaOptionError(
                f"the report cannot be written: {error.strerror}; choose another file",
                option="report",
                value=path,
            )
        return None

    def stamp(
        self, connection: Connection, shard: Shard, direction: str, to: str
    ) -> None:
        """Record that a revision was applied to a shard, or undone.

        :param connection: on the shard; the caller commits.
        :param direction: ``"upgrade"`` or ``"downgrade"``.
        :param to: the revision that was applied, or undone.
        """
        script = self.script.get_revision(to)
        step = RevisionStep(self.script.revision_map, script, direction == "upgrade")
        step.migration_fn = lambda **kwargs: None

        def steps(heads: Any, context: Any) -> Any:
            return [step]

        self._configure(connection=connection, fn=steps, sqla_shard=shard)
        self._context.get_context().run_migrations()

    def _run_on_reference(self) -> None:
        version = self.versions([self.reference()])[0]
        shard = version.shard
        if not version.is_known:
            raise SchemaError(
                f"the models are compared with {shard}, but "
                f"{version.error or 'its database was not found'}; choose "
                "another with -x reference=N, or create the databases with: "
                "sqla-shard schema provision"
            )
        with self.places.engines.visit(shard.place.engine) as connection:
            shard.place.backend.ddl.enter(connection, shard.schema)
            self._configure(connection=connection, sqla_shard=shard)
            with self._context.begin_transaction():
                self._context.run_migrations()

    def _print_current(self) -> None:
        groups: dict[tuple[str, ...], list[Version]] = {}
        unreachable = []
        for version in self.versions():
            if version.is_known:
                groups.setdefault(version.heads, []).append(version)
            else:
                unreachable.append(version)
        for heads, versions in groups.items():
            ids = as_ranges(version.shard.shard_id for version in versions)
            self._config.print_stdout(
                "%s",
                f"{len(versions)} of {self.keyspace.name}"
                f"{'' if heads else ', at no revision'}: {ids}",
            )
            # Alembic prints the revision according to its options.
            shard = versions[0].shard
            with self.places.engines.visit(shard.place.engine) as connection:
                shard.place.backend.ddl.enter(connection, shard.schema)
                self._configure(connection=connection)
                self._context.run_migrations()
        if unreachable:
            raise SchemaError(
                "; ".join(
                    f"{one.shard}: {one.error or 'no such database'}"
                    for one in unreachable
                )
            )

    def _print_sql(self) -> None:
        shards = self.shards()
        url = shards[0].place.engine.url
        # This is needed to get the steps only.
        self._configure(dialect_name=url.get_backend_name())
        self._configure(
            dialect_name=url.get_backend_name(),
            literal_binds=True,
            dialect_opts={"paramstyle": "named"},
            fn=_printable(self._context.get_context().opts["fn"]),
        )
        context = self._context.get_context()
        context.impl.static_output(
            f"-- The same for each of {len(shards)} databases: {_databases(shards)}"
        )
        with self._context.begin_transaction(), ordered_indexes():
            self._context.run_migrations()


def _text(target: Any) -> str:
    if target is None:
        return "head"
    return target if isinstance(target, str) else ", ".join(target)


def _x_arguments(context: Any) -> dict[str, list[str]]:
    """Return all values of each ``-x`` name; alembic returns the last one."""
    arguments: dict[str, list[str]] = {}
    for argument in context.get_x_argument():
        name, _, value = argument.partition("=")
        arguments.setdefault(name, []).append(value)
    return arguments


def run_env(
    context: Any, metadata: MetaData, *, cluster: Cluster | None = None, **settings: Any
) -> None:
    """Run alembic's command on every virtual shard of a keyspace.

    This is the whole ``env.py``::

        from alembic import context
        from myapp.models import Base
        from sqla_shard.schema import run_env

        run_env(context, Base.metadata)

    The options ``topology`` and ``keyspace`` in ``alembic.ini`` name the file
    of the topology, and the keyspace.

    :param context: ``alembic.context``.
    :param metadata: the tables of the models.
    :param cluster: the cluster, if the application creates it.
    :param settings: further arguments of alembic's ``context.configure()``,
        such as ``include_object``, which is called for the tables of the
        keyspace; see :mod:`sqla_shard.schema.revisions.autogenerate`.
    :raises SchemaOptionError: if a setting, or an option of alembic.ini,
        cannot be used.
    :raises MigrationFailedError: if not every shard could be changed;
        alembic's own command line prints the report and exits with status 1
        instead.
    :raises SchemaError: if the command cannot be run.
    """
    by_command_line = context.config.cmd_opts is not None
    try:
        Environment(context, metadata, cluster, settings).run()
    except MigrationFailedError as error:
        if by_command_line:
            # A traceback through alembic would bury the report.
            raise SystemExit(1) from error
        raise
    except ShardError as error:
        if by_command_line:
            raise CommandError(printable(str(error))) from error
        raise


def current_shard() -> Shard:
    """Return the virtual shard on which a revision is running.

    Use it in revisions that differ on one shard.  All shards must
    have the same tables afterwards, or queries fail on some of them.

    :raises SchemaError: outside a revision, and with ``--sql``.
    """
    with suppress(NameError):
        options = op.get_context().opts
        if isinstance(shard := options.get("sqla_shard"), Shard):
            options["sqla_shard_differs"]()
            return shard
    raise SchemaError(
        "no revision is running on a virtual shard: current_shard() is for upgrade() "
        "and downgrade(), but not with --sql, which is printed once for all shards"
    )
