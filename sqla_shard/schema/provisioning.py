"""Creation of the databases of virtual shards that a new topology opens.

``alembic upgrade`` creates no database: a missing database is lost, or the
topology is wrong.  :func:`provision` creates databases, for shards that no
application uses yet.  After all checks it creates the databases, upgrades them
to the newest revision and compares them with a virtual shard that is in use.
Only then may the topology be published.

Run it again after an interruption; it recognizes its databases by a mark
(:mod:`~sqla_shard.schema.ledger`).  It also uses empty databases: an
administrator can create them, with a default character set of their own, if
the account of the topology may not.

Limits: it only finds databases that are visible to the accounts of the
topology.  Two names or addresses of one server count as two servers.  Tables
of this package are not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import unified_diff
from functools import lru_cache, partial
from typing import Any

from alembic.config import Config
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from sqla_shard.cluster.cluster import Cluster
from sqla_shard.dialects.base import DATABASE
from sqla_shard.engine import Engines, Places
from sqla_shard.engine.rendering import Place
from sqla_shard.engine.unreachable import cause_of
from sqla_shard.exc import (
    Problem,
    ProvisionError,
    SchemaError,
    SchemaOptionError,
    ServerUnreachableError,
)
from sqla_shard.exc.base import shortened_list
from sqla_shard.outbox.tables import PREFIX
from sqla_shard.schema import ledger
from sqla_shard.schema.applier import Applier
from sqla_shard.schema.commands import in_environment
from sqla_shard.schema.environment import Environment
from sqla_shard.schema.journal import Journal
from sqla_shard.schema.ledger import (
    begin_mark,
    DatabaseMark,
    finish_mark,
    read_marks,
    read_versions,
    revisions_text,
    Version,
    written_since,
)
from sqla_shard.schema.reports import CommandProgress, Outcome, RunReport, State
from sqla_shard.schema.selection import (
    by_engine,
    RunOptions,
    Shard,
    shards_of,
    template_of,
)
from sqla_shard.topology import diff, Keyspace, Server, Topology
from sqla_shard.topology.changes import refusals
from sqla_shard.topology.keyspaces import as_ranges
from sqla_shard.topology.urls import Address, address_of

# -- Checks of a new topology, before and after its databases are created.
#
# First the two topologies are compared, without a query.  Then the names of
# the databases are read from all servers of both topologies: a database
# with the name of a new shard on another server may hold the objects of
# that shard, and an empty one on the right server would hide them.  New
# databases are compared with one that is in use.
#
# The checks only find databases that are visible to the accounts of the
# topologies.


def unsupported_changes(current: Topology, new: Topology) -> Iterator[Problem]:
    """Yield the changes of a topology that require more than new databases.

    :param current: the topology that is published.
    :param new: the topology to publish next.
    """
    if new.version <= current.version:
        yield Problem(
            "epoch",
            f"{new.epoch} must be higher than {current.epoch}, the epoch of "
            "the current topology, or no process would follow it; raise it",
        )
    yield from refusals(current, new)
    yield from _moves(current, new)


def _moves(current: Topology, new: Topology) -> Iterator[Problem]:
    """Yield shards that change their server, by address and not by name."""
    for name, before in current.keyspaces.items():
        after = new.keyspaces.get(name)
        moved: dict[tuple[str, str], list[int]] = {}
        common = min(before.shards, after.shards) if after else 0
        for shard_id in range(common):
            old = before.server_for(shard_id)
            now = after.server_for(shard_id) if after else old
            if old != now and _address(old.primary) != _address(now.primary):
                moved.setdefault((_server_text(old), _server_text(now)), []).append(
                    shard_id
                )
        for (here, there), ids in moved.items():
            yield Problem(
                f"keyspaces.{name}.servers",
                f"shards {as_ranges(ids)} would be on {there} instead of "
                f"{here}: their data needs a move or a failover, not new "
                "databases; leave them where they are",
            )


_address = lru_cache(maxsize=1024)(address_of)


def _server_text(server: Server) -> str:
    return f"{server.name!r} ({_address(server.primary)})"


@dataclass(frozen=True, kw_only=True)
class ServerDatabases:
    """A physical server, and the databases on it.

    :ivar label: name of the server, for messages.
    :ivar names: names of the databases, in lower case; on a standby only the
        databases that its primary does not have.
    :ivar error: error of reading them, or None.
    """

    label: str
    address: Address
    names: Collection[str] = field(repr=False)
    error: str | None = None


def server_databases(
    engines: Engines, topologies: Iterable[Topology]
) -> dict[Address, ServerDatabases]:
    """Return the databases of every server of the given topologies.

    All primaries and standbys are queried at the same time; the result for
    a server that does not respond is its error.
    """
    primaries: dict[Address, Callable[[], ServerDatabases]] = {}
    pairs: dict[Address, set[Address]] = {}
    standbys: dict[Address, Callable[[], ServerDatabases]] = {}
    for keyspace, server in _servers(topologies):
        address = _address(server.primary)
        assert address is not None  # noqa: S101 - the topology was checked
        primaries.setdefault(address, partial(_ask, engines, keyspace, server, address))
        other = server.standby and _address(server.standby)
        if other:
            pairs.setdefault(other, set()).add(address)
            standbys.setdefault(
                other, partial(_ask, engines, keyspace, server, other, standby=True)
            )
    jobs = [*primaries.values()]
    jobs += [job for one, job in standbys.items() if one not in primaries]
    databases = {
        server.address: server for server in engines.in_parallel(jobs, "databases")
    }
    return {
        address: server
        if address in primaries
        else _without_copies(server, [databases[one] for one in pairs[address]])
        for address, server in databases.items()
    }


def _servers(topologies: Iterable[Topology]) -> Iterator[tuple[Keyspace, Server]]:
    for topology in topologies:
        for keyspace in topology.keyspaces.values():
            for server in keyspace.servers:
                yield keyspace, server


def _ask(
    engines: Engines,
    keyspace: Keyspace,
    server: Server,
    address: Address,
    *,
    standby: bool = False,
) -> ServerDatabases:
    engine, _, backend = engines.locate(
        server, keyspace.database_for(0), standby=standby
    )
    label = f"{server.name} (standby)" if standby else server.name
    try:
        names = {name.lower() for name in backend.catalogue.databases(engine)}
    except (DBAPIError, ServerUnreachableError, OSError) as error:
        return ServerDatabases(label=label, address=address, names=(), error=str(error))
    return ServerDatabases(label=label, address=address, names=names)


def _without_copies(
    standby: ServerDatabases, primaries: Iterable[ServerDatabases]
) -> ServerDatabases:
    """Return the standby without the databases of its primaries."""
    copies = {name for primary in primaries for name in primary.names}
    return replace(standby, names=set(standby.names) - copies)


def misplaced_databases(
    shards: Sequence[Shard],
    keyspace: Keyspace,
    found: dict[Address, ServerDatabases],
    topologies: Sequence[Topology],
) -> Iterator[Problem]:
    """Yield the databases of shards on servers other than their own.

    :param found: the result of :func:`server_databases`.
    :param topologies: topologies whose other keyspaces may have databases of
        the same names on other servers.
    """
    for server in found.values():
        if server.error is not None:
            yield Problem(
                server.label,
                "its databases could not be listed, so one of the new "
                f"databases may already exist there: {server.error}",
            )
    for shard in shards:
        own = _address(keyspace.server_for(shard.shard_id).primary)
        name = shard.database.lower()
        for address, server in found.items():
            if (
                address != own
                and name in server.names
                and not _is_listed(name, address, topologies)
            ):
                yield Problem(
                    f"{shard.database} on {server.label}",
                    "already exists, where no topology places it; it may hold the "
                    f"objects of shard {shard.shard_id}, which the new topology places "
                    f"on {shard.server}. Check it, then rename or drop it",
                )


def _is_listed(name: str, address: Address, topologies: Iterable[Topology]) -> bool:
    """Return whether a topology places a database on a server."""
    return any(
        shard_id in held
        for keyspace, server in _servers(topologies)
        if _address(server.primary) == address
        for shard_id in [template_of(keyspace).shard_of(name)]
        if shard_id is not None
        for held in server.shards
    )


#: Number of tables, and of lines of each, that a message shows.
_TABLES = 3

_LINES = 8


def compare(
    places: Places,
    shards: Sequence[Shard],
    outcomes: Sequence[Outcome],
    reference: Shard,
    version_table: str,
) -> list[Outcome]:
    """Compare new databases with a reference, and finish their marks.

    :param outcomes: one successful outcome for each shard.
    :param reference: the shard to compare with.
    :param version_table: the name of alembic's table.
    :returns: the outcomes; shards that differ have failed.
    """
    # Read it separately: another server may have the same name in the
    # current topology.
    [wanted] = read_versions(places, [reference], version_table)
    errors: dict[int, dict[str, Any]] = {}
    equal = []
    for version in read_versions(places, shards, version_table):
        error = _revision_error(version, wanted)
        if error is None:
            equal.append(version.shard)
        else:
            errors[version.shard.shard_id] = {"state": State.FAILED, "error": error}
    work = partial(_on_engine, places, reference, version_table)
    for parts in places.engines.in_parallel(
        [partial(work, some) for some in by_engine(equal)], "compare", 8
    ):
        errors.update(parts)
    return [replace(one, **errors.get(one.shard_id, {})) for one in outcomes]


def _revision_error(version: Version, wanted: Version) -> str | None:
    for one in (version, wanted):
        if not one.is_known:
            return f"{one.shard}: {one.error or 'no such database'}"
        if one.open is not None:
            return f"{one.open.step} is unfinished on {one.shard}"
    if set(version.heads) != set(wanted.heads):
        return (
            f"it is at {revisions_text(version.heads)}, and {wanted.shard} "
            f"is at {revisions_text(wanted.heads)} now; run provision again"
        )
    return None


def _read(connection: Connection, shards: Sequence[Shard]) -> dict[str, dict[str, str]]:
    catalogue = shards[0].place.backend.catalogue
    digests = catalogue.digests(connection, [shard.schema for shard in shards])
    return {
        # The reference gets newer tables of this package with its next
        # revision.
        schema: {
            name: digest
            for name, digest in tables.items()
            if not name.startswith(PREFIX)
        }
        for schema, tables in digests.items()
    }


def _on_engine(
    places: Places, reference: Shard, version_table: str, shards: Sequence[Shard]
) -> dict[int, dict[str, Any]]:
    """Return the changes of the outcomes of shards that differ, by shard."""
    try:
        with reference.place.engine.connect() as connection:
            wanted = _read(connection, [reference]).get(reference.schema, {})
        with shards[0].place.engine.connect() as connection:
            digests = _read(connection, shards)
        errors = {}
        equal = {}
        for shard in shards:
            tables = digests.get(shard.schema, {})
            if tables == wanted:
                equal[shard] = [name for name in tables if name != DATABASE]
                continue
            text = "\n".join(_differences(shard, reference, tables, wanted))
            errors[shard.shard_id] = {"state": State.FAILED, "error": text}
        _finish(places, equal, version_table)
    except (DBAPIError, ServerUnreachableError, OSError) as error:
        lost = {
            "state": State.UNREACHABLE,
            "error": str(error),
            "cause": cause_of(error, responds=False),
        }
        return {shard.shard_id: lost for shard in shards}
    return errors


def _finish(
    places: Places, tables: Mapping[Shard, Collection[str]], version_table: str
) -> None:
    if not tables:
        return
    first = next(iter(tables)).place
    with places.engines.visit(first.engine) as connection:
        for shard, names in tables.items():
            first.backend.ddl.enter(connection, shard.schema)
            finish_mark(connection, names, version_table)
            connection.commit()


def _differences(
    shard: Shard, reference: Shard, found: Mapping[str, str], wanted: Mapping[str, str]
) -> Iterator[str]:
    yield f"its definitions differ from those of {reference}:"
    names = sorted(
        name for name in {*found, *wanted} if found.get(name) != wanted.get(name)
    )
    for name in names[:_TABLES]:
        shown = f"table {name}"
        if name == DATABASE:
            shown = "defaults of the database"
        if name not in found:
            yield f"{shown}: missing"
        elif name not in wanted:
            yield f"{shown}: not in the reference"
        else:
            yield f"{shown}: the reference (-), and this database (+)"
            lines = unified_diff(
                _definition(reference.place, reference, name),
                _definition(shard.place, shard, name),
                lineterm="",
                n=0,
            )
            changed = [ln for ln in lines if ln[:2] not in ("--", "++", "@@")]
            yield from changed[:_LINES]
    if len(names) > _TABLES:
        yield f"and {len(names) - _TABLES} other tables"


def _definition(place: Place, shard: Shard, name: str) -> list[str]:
    with place.engine.connect() as connection:
        text = place.backend.catalogue.definition(connection, shard.schema, name)
    return text.splitlines()


_SHOWN = 5


def unusable(
    engines: Engines, shards: Sequence[Shard], version_table: str
) -> list[Problem]:
    """Return existing databases that provision cannot use for new shards.

    A database of an interrupted provision can be used.  Any other one may
    hold the objects of the shard, and is not changed.

    :param shards: the shards whose databases exist.
    :param version_table: the name of alembic's table.
    """
    work = partial(_in_use_on_engine, engines, version_table)
    answers = engines.in_parallel(
        [partial(work, some) for some in by_engine(shards)], "look", 8
    )
    return [problem for problems in answers for problem in problems]


def check_unused(connection: Connection, shard: Shard) -> None:
    """Check that a database has no tables, or the mark of provision.

    :param connection: connection to the database, which holds its lock.
    :raises SchemaError: if it has tables of another origin.
    """
    reason = _unprovisioned(shard.place.backend.ddl.names(connection))
    if reason is not None and not read_marks([shard]):
        raise SchemaError(f"{shard.database} {reason}")


def _in_use_on_engine(
    engines: Engines, version_table: str, shards: Sequence[Shard]
) -> list[Problem]:
    try:
        with engines.visit(shards[0].place.engine) as connection:
            return _read_server(connection, version_table, shards)
    except (DBAPIError, OSError) as error:
        return [Problem(shards[0].server, f"could not be read: {error}")]


def _read_server(
    connection: Connection, version_table: str, shards: Sequence[Shard]
) -> list[Problem]:
    ddl = shards[0].place.backend.ddl
    names = {}
    for shard in shards:
        ddl.enter(connection, shard.schema)
        names[shard.shard_id] = ddl.names(connection)
    # Read them after the names: another run of provision writes the mark
    # before it creates a table.
    marks = read_marks(shards)
    problems = []
    for shard in shards:
        mark = marks.get(shard.shard_id)
        tables = names[shard.shard_id]
        if mark is None:
            reason = _unprovisioned(tables)
        elif mark.rows is None:
            reason = None
        else:
            ddl.enter(connection, shard.schema)
            written = written_since(connection, tables, mark.rows, version_table)
            reason = _unexpected_rows(mark, written)
        if reason is not None:
            where = f"{shard.database} on {shard.server}"
            problems.append(Problem(where, reason))
    return problems


def _unprovisioned(names: Collection[str]) -> str | None:
    tables = sorted(one for one in names if not one.startswith(PREFIX))
    if not tables:
        return None
    return (
        f"already exists, with tables that provision has not created: "
        f"{shortened_list(tables, _SHOWN)}. It may hold the objects of the "
        "shard; check it, then rename or drop it.  If create_all() has "
        "created them, record their revision instead: alembic stamp"
    )


def _unexpected_rows(mark: DatabaseMark, tables: Sequence[str]) -> str | None:
    if not tables:
        return None
    return (
        f"was provisioned for {mark.epoch}, and has rows that no revision "
        f"has inserted, in {shortened_list(tables, _SHOWN)}; it may be in use"
    )


_ACCESS_DENIED = 1044


@dataclass(frozen=True, kw_only=True)
class ProvisionReport(RunReport):
    """The outcomes of the virtual shards that a topology opens.

    Databases of an earlier run are reported as ``nothing to do``.

    :ivar epoch: the epoch of the topology.
    :ivar others: other keyspaces in which the topology opens virtual shards;
        each is provisioned separately.
    """

    epoch: int
    others: tuple[str, ...] = ()

    @property
    def may_be_published(self) -> bool:
        """Whether this keyspace does not prevent publishing the topology."""
        return self.ok

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes as JSON values."""
        return {
            **super().as_dict(),
            "epoch": self.epoch,
            "may_be_published": self.may_be_published,
            "others": list(self.others),
        }

    def _lines(self) -> Iterator[str]:
        yield from super()._lines()
        which = f"the topology of epoch {self.epoch}"
        if not self.may_be_published:
            yield (
                f"{which} must not be published; correct the errors above, "
                "then provision again"
            )
        elif self.others:
            yield (
                f"{which} may be published if these keyspaces are provisioned too: "
                f"{', '.join(self.others)} (sqla-shard schema --name SECTION "
                "provision, with the section of each in alembic.ini)"
            )
        else:
            yield f"{which} may be published"


def provision(
    config: Config,
    topology: Topology | None = None,
    *,
    initial: bool = False,
    options: RunOptions | None = None,
    cluster: Cluster | None = None,
    progress: CommandProgress | None = None,
    published: Callable[[], Topology] | None = None,
) -> ProvisionReport:
    """Create the databases of virtual shards that a new topology opens.

    :param topology: the new topology; that of ``env.py`` is the current one.
    :param initial: create all databases of the keyspace in the topology of
        ``env.py``, if no application uses it yet.
    :param options: the options of the run, such as the number of shards at a
        time; ``shards``, ``servers`` and ``new`` must not be set.
        ``reference`` is the shard to compare with.
    :param cluster: locates the current shards; by default that of ``env.py``.
    :param progress: receives the outcome of each shard.
    :param published: returns the published topology, as for
        :func:`~sqla_shard.schema.upgrade`.
    :returns: the outcome of each shard; the topology may be published.
    :raises ProvisionError: if a check fails; nothing was created.
    :raises MigrationFailedError: if a database could not be created, or
        differs from the reference; the topology must not be published.
    """
    return in_environment(
        config,
        lambda environment, fn: _Provisioning(environment, topology, initial).run(fn),
        options=options,
        cluster=cluster,
        progress=progress,
        published=published,
    )


class _Provisioning:
    """One run of :func:`provision`."""

    def __init__(
        self, environment: Environment, topology: Topology | None, initial: bool
    ) -> None:
        self._environment = environment
        self._options = environment.options
        self._current = environment.places.topology
        self._initial = initial
        self._new = self._chosen(topology)
        self._engines = environment.places.engines
        self._places = Places(self._new, self._engines)
        self._name = environment.keyspace.name
        self._problems: list[Problem] = []
        self._unread: list[str] = []

    def _chosen(self, topology: Topology | None) -> Topology:
        for name in ("shards", "servers", "new"):
            value = getattr(self._options, name)
            if value is not None:
                raise SchemaOptionError(
                    "provision creates all databases that the topology opens: with one "
                    "missing, it could not be published; leave the option out",
                    option=name,
                    value=",".join(map(str, value)),
                )
        if topology is None and not self._initial:
            raise SchemaOptionError(
                "give the new topology; or initial=True, to create the "
                "databases of the topology of env.py",
                option="topology",
                value="",
            )
        if self._initial and topology not in (None, self._current):
            raise SchemaOptionError(
                "with initial=True the databases of the topology of env.py are "
                "created, and this is another one; leave one of the two out",
                option="topology",
                value=repr(topology),
            )
        return topology or self._current

    def run(self, fn: Callable[..., Any]) -> ProvisionReport:
        """Check, create and compare."""
        if not self._initial:
            self._problems += unsupported_changes(self._current, self._new)
            self._check()
        shards = self._opened_shards()
        reference = self._environment.reference()
        if not self._initial:
            self._check_reference(reference)
        versions = self._check_free(shards)
        self._check()
        report = self._make(versions, fn)
        if report.ok:
            outcomes = compare(
                self._places,
                shards,
                report.outcomes,
                reference,
                self._environment.version_table,
            )
            report = replace(report, outcomes=tuple(outcomes))
        report = self._environment.topology_changes.with_publication_check(
            report, self._new
        )
        self._environment.write_report(report)
        return report

    def _check(self) -> None:
        if self._problems:
            raise ProvisionError(
                tuple(self._problems),
                keyspace=self._name,
                epoch=self._new.epoch,
                unreachable=tuple(dict.fromkeys(self._unread)),
            )

    def _opened_shards(self) -> list[Shard]:
        keyspace = self._new.keyspace(self._name)
        before = 0 if self._initial else self._environment.keyspace.shards
        opened = range(before, keyspace.shards)
        if not opened:
            return []
        return shards_of(self._places, keyspace, opened)

    def _check_reference(self, shard: Shard) -> None:
        [version] = self._environment.versions([shard])
        error = _not_newest(self._environment, version)
        if not version.is_known:
            self._unread.append(shard.server)
        if error is not None:
            self._problems.append(
                Problem(str(shard), f"new databases are compared with it, but {error}")
            )

    def _check_free(self, shards: Sequence[Shard]) -> list[Version]:
        """Return the versions of the shards, and record their problems."""
        if not shards:
            return []
        topologies = [self._current, self._new]
        databases = server_databases(self._engines, topologies)
        self._unread += [one.label for one in databases.values() if one.error]
        self._problems += misplaced_databases(
            shards, self._new.keyspace(self._name), databases, topologies
        )
        versions = read_versions(self._places, shards, self._environment.version_table)
        self._problems += unusable(
            self._engines,
            [version.shard for version in versions if version.is_known],
            self._environment.version_table,
        )
        return versions

    def _others(self) -> tuple[str, ...]:
        changes = diff(self._current, self._new)
        opened = {one.keyspace for one in changes.opened}
        names = {*changes.added_keyspaces, *opened}
        if self._initial:
            names = set(self._new.keyspaces)
        return tuple(sorted(names - {self._name}))

    def _make(
        self, versions: Sequence[Version], fn: Callable[..., Any]
    ) -> ProvisionReport:
        report = RunReport(
            command="provision",
            target="head",
            keyspace=self._name,
            outcomes=(),
            seconds=0.0,
        )
        if versions:
            missing = {v.shard.shard_id for v in versions if v.is_missing}
            has_revisions = bool(self._environment.script.get_heads())
            report = self._environment.change(
                [replace(version, is_missing=False) for version in versions],
                fn,
                command=report.command,
                target=report.target,
                # Without revisions, too, they are created and marked.
                always=missing if has_revisions else missing | _unfinished(versions),
                applier=partial(Provisioner, epoch=self._new.epoch, missing=missing),
            )
        return ProvisionReport(
            **vars(report), epoch=self._new.epoch, others=self._others()
        )


def _unfinished(versions: Iterable[Version]) -> set[int]:
    """Return the shards with databases that no run has finished."""
    there = {v.shard.shard_id: v.shard for v in versions if v.is_known}
    for shards in by_engine(there.values()):
        for shard_id, mark in read_marks(shards).items():
            if mark.rows is not None:
                del there[shard_id]
    return {*there}


class Provisioner(Applier):
    """Creates the database of a virtual shard, and its mark, before revisions.

    :param epoch: the epoch of the topology that opens the shards.
    :param missing: the shards without a database.
    """

    # Each database gets a mark before its revisions.
    replays = False

    def __init__(self, *args: Any, epoch: int, missing: Collection[int]) -> None:
        super().__init__(*args)
        self._epoch = epoch
        self._missing = missing

    def _connected(self, shard: Shard) -> tuple[Connection, Journal]:
        if shard.shard_id in self._missing:
            shard.place.backend.create_file(shard.place.engine)
        return super()._connected(shard)

    def _attempt(
        self, version: Version, connection: Connection, journal: Journal
    ) -> dict[str, Any]:
        shard = version.shard
        if shard.shard_id in self._missing:
            try:
                shard.place.backend.create_database(connection, shard.schema)
                connection.commit()
            except DBAPIError as error:
                if self._is_lost(shard, error):
                    self.close()
                    return {
                        "state": State.UNREACHABLE,
                        "error": str(error.orig),
                        "cause": cause_of(error, responds=False),
                    }
                connection.rollback()
                return {"state": State.FAILED, "error": _error_text(shard, error)}
        found = super()._attempt(version, connection, journal)
        if found["state"] is State.CURRENT:
            found["state"] = State.CHANGED
        return found

    def _migrate(
        self, version: Version, connection: Connection, journal: Journal
    ) -> None:
        # The database may have been created, or restored, since the check.
        check_unused(connection, version.shard)
        if version.internal != ledger.own_head():
            ledger.upgrade_own_tables(connection, version.internal)
        begin_mark(connection, self._epoch)
        version = replace(version, internal=ledger.own_head())
        super()._migrate(version, connection, journal)


def _error_text(shard: Shard, error: DBAPIError) -> str:
    text = f"{shard.database} could not be created: {error.orig}"
    if error.orig is not None and error.orig.args[:1] == (_ACCESS_DENIED,):
        text += (
            f"\nGRANT the account of {shard.server} in the topology the "
            f"privilege to create {shard.database} and its tables; or let an "
            "administrator create the database, empty: provision uses it"
        )
    return text


def _not_newest(environment: Environment, version: Version) -> str | None:
    if version.error is not None:
        return f"its server could not be read: {version.error}"
    if version.is_missing:
        return (
            "it is missing; if no shard is in use yet, create all databases "
            "with initial=True, or --initial"
        )
    if version.open is not None:
        return f"its {version.open.step} is unfinished; run alembic upgrade head"
    if not environment.is_newest(version.heads):
        newest = environment.script.get_heads()
        return (
            f"it is at {revisions_text(version.heads)}, not at "
            f"{', '.join(newest)}; run alembic upgrade head first"
        )
    return None
