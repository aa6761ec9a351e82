"""One command of alembic, on the virtual shards of a keyspace."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from alembic.runtime.migration import RevisionStep
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection
from sqlalchemy import MetaData

from sqla_shard.cluster import Cluster
from sqla_shard.exc import MigrationFailedError
from sqla_shard.exc import SchemaError
from sqla_shard.exc import SchemaOptionError
from sqla_shard.following import load_location
from sqla_shard.schema.emptied import marked
from sqla_shard.schema.emptied import others_of
from sqla_shard.schema.emptied import without_tables
from sqla_shard.schema.newer import Newer
from sqla_shard.schema.options import RunOptions
from sqla_shard.schema.printing import databases
from sqla_shard.schema.printing import printable
from sqla_shard.schema.progress import Progress
from sqla_shard.schema.progress import progress_on
from sqla_shard.schema.reports import RunReport
from sqla_shard.schema.revisions.autogenerate import comparing
from sqla_shard.schema.running.applying import Applier
from sqla_shard.schema.running.waves import check_target
from sqla_shard.schema.running.waves import run
from sqla_shard.schema.selecting import as_ranges
from sqla_shard.schema.selecting import Shard
from sqla_shard.schema.selecting import shards_of
from sqla_shard.schema.settings import is_portable
from sqla_shard.schema.settings import merged
from sqla_shard.schema.versions import read_versions
from sqla_shard.schema.versions import Version
from sqla_shard.topology import Keyspace
from sqla_shard.topology import Topology

__all__ = ["ATTRIBUTE", "Environment"]

#: Where commands of this package leave what they need in alembic's
#: ``Config.attributes``.
ATTRIBUTE = "sqla_shard"
_EVERYWHERE = frozenset(
    {"upgrade", "downgrade", "do_stamp", "do_ensure_version"}
)
#: What makes tables in a database without a revision, or says it has them.
_FILLING = frozenset({"upgrade", "stamp"})
_ON_REFERENCE = frozenset({"retrieve_migrations", "edit_current"})


class Environment:
    """One command of alembic, on the shards of a keyspace.

    :ivar places: where the shards are.
    :ivar keyspace: whose shards they are.
    :ivar newer: compares with the topology that is published by now.
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
        self.places = self._cluster.places
        self.keyspace = self._keyspace()
        self.newer = Newer(self.places.topology, self.keyspace.name, read)
        self.version_table = settings.get("version_table", "alembic_version")
        ours = comparing(
            metadata,
            keyspace=self.keyspace.name,
            topology=self.places.topology,
            portable=is_portable(
                self._option("portable"), self._config.config_ini_section
            ),
        )
        self.settings = merged(ours, settings)

    def _option(self, name: str) -> str | None:
        section = self._config.config_ini_section
        found: str | None = self._config.get_section_option(section, name)
        return found

    def _from_config(self) -> Cluster:
        # Without the last good topology: what is changed must be what is
        # there, so that a source that cannot be asked is an error here.
        # Nor do processes inherit a thread that follows it.
        return Cluster(load_location(self._location()))

    def _location(self) -> str:
        path = self._option("topology")
        if path is None:
            raise SchemaOptionError(
                "alembic.ini names no topology; write topology = "
                "%(here)s/topology.toml below "
                f"[{self._config.config_ini_section}], or give run_env() a "
                "cluster",
                option="topology",
                value="",
            )
        return path

    def _reader(self) -> Callable[[], Topology]:
        """Return what reads the topology that is there by now."""
        if self._closes:
            return partial(load_location, self._location())
        # One that follows its topology has a newer one as soon as it comes.
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
        """The revisions of the application."""
        found: ScriptDirectory = self._context.script
        return found

    def is_newest(self, heads: tuple[str, ...]) -> bool:
        """Tell whether a shard at some revisions needs no upgrade.

        Alembic notes none that another one depends on, so they need not be
        the newest of the scripts.
        """
        if heads not in self._newest:
            try:
                revisions: Any = heads  # alembic's annotation has one
                steps = self.script._upgrade_revs("heads", revisions)
            except CommandError:
                # A revision that no script has.
                self._newest[heads] = False
            else:
                self._newest[heads] = not steps
        return self._newest[heads]

    # -- what is asked for

    def shards(self) -> list[Shard]:
        """Return the shards that the command is for."""
        return shards_of(
            self.places,
            self.keyspace,
            self.options.shards,
            self.options.servers,
        )

    def reference(self) -> Shard:
        """Return the shard that models are compared with."""
        number = self.options.reference or 0
        return shards_of(self.places, self.keyspace, [number])[0]

    def versions(self, shards: list[Shard] | None = None) -> list[Version]:
        """Return where shards are, by default all that it is for."""
        return read_versions(
            self.places,
            self.shards() if shards is None else shards,
            self.version_table,
        )

    def judged(self, versions: list[Version]) -> list[Version]:
        """Return versions again, with what was lost there.

        :raises UnknownShardError: when a shard is said to be new that is
            not open.
        """
        new = self.options.new or ()
        if new:
            shards_of(self.places, self.keyspace, new)
        every = shards_of(self.places, self.keyspace)
        others = self.versions(others_of(versions, every))
        return marked(versions, others, new)

    def run(self) -> None:
        """Do what the command does."""
        try:
            self._check_scripts()
            if self._context.is_offline_mode():
                self._print_sql()
                return
            # Without a connection: only to learn the command.
            self._configure(dialect_name=self._dialect())
            opts = self._context.get_context().opts
            fn = opts["fn"]
            own = self._given.get("command")
            if own is not None:
                own(self, fn)
            elif fn.__name__ in _EVERYWHERE:
                self.everywhere(fn, _shown(opts.get("destination_rev")))
            elif fn.__name__ == "display_version":
                self._current(fn)
            elif fn.__name__ in _ON_REFERENCE:
                self._on_reference()
            else:
                raise SchemaError(
                    f"{fn.__name__!r} is no command that is known to work on "
                    "many databases; use upgrade, downgrade, stamp, current, "
                    "check or revision"
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
                "depends_on, and no script is that revision; bring its file "
                "back, or put down_revision right"
            ) from error

    def _configure(self, **more: Any) -> None:
        self._context.configure(**{**self.settings, **more})

    def _dialect(self) -> str:
        engine = self.reference().place.engine
        return engine.url.get_backend_name()

    # -- on every shard

    def everywhere(self, fn: Callable[..., Any], target: str) -> RunReport:
        """Change every shard that needs it.

        :raises MigrationFailedError: when one could not be changed.
        """
        command = fn.__name__.removeprefix("do_")
        versions = self.versions()
        check_target(target, versions)
        if command in _FILLING:
            versions = self.judged(versions)
        if command == "stamp":
            versions = without_tables(self.places, versions)
        report = self.change(
            versions,
            fn,
            command=command,
            target=target,
            moves=self.newer.moves,
        )
        chosen = self.options.shards or self.options.servers
        report = self.newer.judged(report, all_shards=chosen is None)
        self.tell(report)
        return report

    def change(
        self,
        versions: Sequence[Version],
        fn: Callable[..., Any],
        *,
        command: str,
        target: str,
        steps: Callable[[tuple[str, ...]], Iterable[Any]] | None = None,
        applier: Callable[..., Applier] = Applier,
        moves: Callable[[Collection[int]], bool] | None = None,
    ) -> RunReport:
        """Change those shards that need it, and return what became of all.

        :param versions: where each shard is.
        :param fn: the steps of a database, as alembic's commands give them.
        :param steps: what there is to do for a shard at some revisions; by
            default the steps of ``fn``.
        :param applier: makes what does it, in each process.
        :param moves: tells before each wave whether one of some shards is
            elsewhere by now, and the run ends; by default nothing does.
        """
        unwritten = self._write("", "a")
        if unwritten is not None:
            # Known before anything is changed, rather than after it.
            raise unwritten
        context = self._context.get_context()
        purges = context.opts.get("purge", False)
        report = run(
            versions,
            command=command,
            target=target,
            steps=steps
            or (lambda heads: fn(() if purges else heads, context)),
            applier=partial(
                applier,
                self._context,
                fn,
                self.places,
                self.options,
                self.settings,
            ),
            options=self.options,
            progress=self._progress(),
            moves=moves or _stays,
        )
        # Servers may have ended what was idle for as long as that took.
        for engine in {version.shard.place.engine for version in versions}:
            engine.dispose()
        return report

    def _progress(self) -> Progress:
        given: Progress | None = self._given.get("progress")
        return given or progress_on(sys.stderr)

    def tell(self, report: RunReport) -> None:
        """Print and write the report, where that is asked for.

        :raises MigrationFailedError: when not every shard is as it should
            be.
        :raises SchemaOptionError: when it cannot be written any more.
        """
        if "progress" not in self._given:
            self._config.print_stdout("%s", report)
        text = json.dumps(report.to_mapping(), indent=2)
        unwritten = self._write(f"{text}\n", "w")
        if not report.ok:
            bad = [o for o in report.outcomes if not o.state.is_good]
            raise MigrationFailedError(
                str(report),
                report=report.to_mapping(),
                shards=[one.shard_id for one in bad],
            ) from unwritten
        if unwritten is not None:
            raise unwritten

    def _write(self, text: str, mode: str) -> SchemaOptionError | None:
        """Write to the file of the report, where that is asked for.

        :returns: why that is not possible.
        """
        path = self.options.report
        if path is None:
            return None
        try:
            with Path(path).open(mode, encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            return SchemaOptionError(
                f"the report cannot be written: {error.strerror}; name "
                "another file",
                option="report",
                value=path,
            )
        return None

    # -- on one, or none

    def stamp(
        self, connection: Connection, shard: Shard, direction: str, to: str
    ) -> None:
        """Write down that a revision was applied to a shard, or undone.

        :param connection: on the shard; it is left to be committed.
        :param direction: ``"upgrade"`` or ``"downgrade"``.
        :param to: the revision that was applied, or undone.
        """
        script = self.script.get_revision(to)
        step = RevisionStep(
            self.script.revision_map, script, direction == "upgrade"
        )
        step.migration_fn = _nothing

        def steps(heads: Any, context: Any) -> Any:
            return [step]

        self._configure(connection=connection, fn=steps, sqla_shard=shard)
        self._context.get_context().run_migrations()

    def _on_reference(self) -> None:
        version = self.versions([self.reference()])[0]
        shard = version.shard
        if not version.is_known:
            raise SchemaError(
                f"the models are compared with {shard}, which "
                f"{version.error or 'is missing'}; choose another with -x "
                "reference=N, or make the databases with: sqla-shard schema "
                "provision"
            )
        with self.places.engines.visit(shard.place.engine) as connection:
            shard.place.backend.ddl.enter(connection, shard.schema)
            self._configure(connection=connection, sqla_shard=shard)
            with self._context.begin_transaction():
                self._context.run_migrations()

    def _current(self, fn: Callable[..., Any]) -> None:
        groups: dict[tuple[str, ...], list[Version]] = {}
        lost = []
        for version in self.versions():
            if version.is_known:
                groups.setdefault(version.heads, []).append(version)
            else:
                lost.append(version)
        for heads, versions in groups.items():
            ids = as_ranges(version.shard.shard_id for version in versions)
            self._config.print_stdout(
                "%s",
                f"{len(versions)} of {self.keyspace.name}"
                f"{'' if heads else ', at no revision'}: {ids}",
            )
            # Alembic itself prints the revision, as its options want it.
            shard = versions[0].shard
            with self.places.engines.visit(shard.place.engine) as connection:
                shard.place.backend.ddl.enter(connection, shard.schema)
                self._configure(connection=connection)
                self._context.run_migrations()
        if lost:
            raise SchemaError(
                "; ".join(
                    f"{v.shard}: {v.error or 'no such database'}" for v in lost
                )
            )

    def _print_sql(self) -> None:
        shards = self.shards()
        url = shards[0].place.engine.url
        # Without the rest: only to learn the steps.
        self._configure(dialect_name=url.get_backend_name())
        self._configure(
            dialect_name=url.get_backend_name(),
            literal_binds=True,
            dialect_opts={"paramstyle": "named"},
            fn=printable(self._context.get_context().opts["fn"]),
        )
        context = self._context.get_context()
        context.impl.static_output(
            f"-- The same for each of {len(shards)} databases: "
            f"{databases(shards)}"
        )
        with self._context.begin_transaction():
            self._context.run_migrations()


def _shown(target: Any) -> str:
    if target is None:
        return "head"
    return target if isinstance(target, str) else ", ".join(target)


def _stays(shard_ids: Collection[int]) -> bool:
    return False


def _nothing(**kwargs: Any) -> None:
    """Stand for a revision whose work is done."""


def _x_arguments(context: Any) -> dict[str, list[str]]:
    """Return what ``-x`` has given; alembic would keep the last of a name."""
    found: dict[str, list[str]] = {}
    for argument in context.get_x_argument():
        name, _, value = argument.partition("=")
        found.setdefault(name, []).append(value)
    return found
