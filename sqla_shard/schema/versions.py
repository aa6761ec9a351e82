"""The revisions of all virtual shards, with a few queries per server.

A database that has lost its tables, because the shard was moved or its
database dropped, looks like a new one.  An upgrade must not create empty
tables there: ids would begin with 1 again, and two objects would have the same
id.  So a database without a revision, where other shards of the keyspace have
one, is changed only if the mark of provision, its own ledger, or an option of
the command shows that it is new.  Where none has one, the keyspace is new, or
all shards have moved and the topology is an old one: then the servers are
searched for databases that the topology places elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from sqlalchemy.exc import DBAPIError

from sqla_shard.engine import Places
from sqla_shard.exc import ServerUnreachableError
from sqla_shard.exc.base import shortened_list
from sqla_shard.outbox.tables import LEDGER, PREFIX
from sqla_shard.schema.ledger import UNDONE, VERSION_TABLE
from sqla_shard.schema.selection import misplaced_on, Shard, shard_on
from sqla_shard.topology import Keyspace, Server
from sqla_shard.topology.keyspaces import as_ranges


@dataclass(frozen=True, kw_only=True)
class Open:
    """An unfinished revision on a shard.

    :ivar number: position of the last statement that was sent.
    """

    direction: str
    revision: str
    number: int

    @property
    def step(self) -> str:
        """The name of the revision in messages."""
        return f"{self.direction} of {self.revision}"


@dataclass(frozen=True, kw_only=True)
class Version:
    """The revisions of a virtual shard, and the state of its ledger.

    :ivar heads: the current revisions of the shard; empty if it has no
        tables.
    :ivar internal: the revision of this package's own tables, or None.
    :ivar open: the revision that was interrupted there, or None.
    :ivar closed: direction and state of the last closed entry of its ledger,
        for a database without revisions; None if there is no such entry.
    :ivar has_ledger: False if the ledger is missing, although other tables
        of this package exist.
    :ivar is_missing: whether its server has no such database.
    :ivar lost: reason to assume that it has lost its tables, or None.
    :ivar error: error of reading from its server, or None.
    :ivar cause: the exception of ``error``, or None.
    """

    shard: Shard
    heads: tuple[str, ...] = ()
    internal: str | None = None
    open: Open | None = None
    closed: tuple[str, str] | None = None
    has_ledger: bool = True
    is_missing: bool = False
    lost: str | None = None
    error: str | None = None
    cause: Exception | None = None

    @property
    def is_known(self) -> bool:
        """Whether the database was found and read."""
        return not self.is_missing and self.error is None


def without_ledger(version: Version) -> str:
    """Return the error for a missing ledger."""
    return (
        f"{version.shard.database} has lost its table {LEDGER.name}, so an "
        "unfinished revision would not be noticed. Compare its tables with "
        "those of other shards (sqla-shard schema verify) and correct them; "
        f"then DROP TABLE {VERSION_TABLE} there, and the next upgrade "
        "creates the ledger again"
    )


def revisions_text(heads: Sequence[str]) -> str:
    """Return the revisions of a shard for a message."""
    return ", ".join(heads) or "no revision"


def read_versions(
    places: Places, shards: Sequence[Shard], version_table: str
) -> list[Version]:
    """Return the version of every shard, in the order given.

    All servers are queried at the same time; the error of a server that
    does not respond is in the versions of its shards.

    :param version_table: the name of alembic's table.
    """
    servers: dict[str, list[Shard]] = {}
    for shard in shards:
        servers.setdefault(shard.server, []).append(shard)
    answers = places.engines.in_parallel(
        [partial(_on_server, on_one, version_table) for on_one in servers.values()],
        "versions",
    )
    found = {
        version.shard.shard_id: version for versions in answers for version in versions
    }
    return [found[shard.shard_id] for shard in shards]


def read_misplaced(
    places: Places, keyspace: Keyspace, version_table: str
) -> list[Version]:
    """Return versions of databases where the topology does not place them.

    The error of a server that cannot be read is in the version of a shard
    there.
    """
    answers = places.engines.in_parallel(
        [
            partial(_misplaced, places, keyspace, server, version_table)
            for server in keyspace.servers
        ],
        "versions",
    )
    return [version for versions in answers for version in versions]


def _misplaced(
    places: Places, keyspace: Keyspace, server: Server, version_table: str
) -> list[Version]:
    try:
        shards = misplaced_on(places, keyspace, server)
        return _read_server(shards, version_table) if shards else []
    except (DBAPIError, ServerUnreachableError, OSError) as error:
        return [_unread(shard_on(places, keyspace, server, 0), error)]


def _on_server(shards: Sequence[Shard], version_table: str) -> list[Version]:
    try:
        return _read_server(shards, version_table)
    except (DBAPIError, ServerUnreachableError, OSError) as error:
        # OSError: the directory of SQLite files cannot be read.
        return [_unread(shard, error) for shard in shards]


def _unread(shard: Shard, error: Exception) -> Version:
    return Version(shard=shard, error=str(error), cause=error)


def _read_server(shards: Sequence[Shard], version_table: str) -> list[Version]:
    place = shards[0].place
    names = place.backend.catalogue.databases(place.engine)
    versions = {
        shard.shard_id: Version(shard=shard, is_missing=shard.database not in names)
        for shard in shards
    }
    there = [v.shard for v in versions.values() if not v.is_missing]
    by_engine: dict[Any, list[Shard]] = {}
    for shard in there:
        by_engine.setdefault(shard.place.engine, []).append(shard)
    for on_one in by_engine.values():
        for version in _read(on_one, versions, version_table):
            versions[version.shard.shard_id] = version
    return list(versions.values())


def _read(
    shards: Sequence[Shard], versions: dict[int, Version], version_table: str
) -> list[Version]:
    engine, ddl = shards[0].place.engine, shards[0].place.backend.ddl
    schemas = [shard.schema for shard in shards]
    heads = ddl.read_table(engine, schemas, version_table, ["version_num"])
    internal = ddl.read_table(engine, schemas, VERSION_TABLE, ["version_num"])
    columns = list(Open.__dataclass_fields__)
    opened = ddl.read_table(
        engine,
        [schema for schema in schemas if internal.get(schema)],
        LEDGER.name,
        columns,
        "is_open",
    )
    without = [s for s in schemas if not heads.get(s) and internal.get(s)]
    closed: dict[str, list[tuple[Any, ...]]] = {}
    if without:
        names = ["id", "direction", "state"]
        closed = ddl.read_table(engine, without, LEDGER.name, names, "NOT is_open")
    return [
        replace(
            versions[shard.shard_id],
            closed=_newest(closed.get(shard.schema, ())),
            heads=tuple(sorted(row[0] for row in heads.get(shard.schema, ()))),
            internal=next((row[0] for row in internal.get(shard.schema, ())), None),
            has_ledger=(shard.schema in opened or not internal.get(shard.schema)),
            open=_last(opened.get(shard.schema, ()), columns),
        )
        for shard in shards
    ]


def _last(rows: Sequence[tuple[Any, ...]], columns: list[str]) -> Open | None:
    found = [Open(**dict(zip(columns, row, strict=True))) for row in rows]
    return max(found, key=lambda one: one.number, default=None)


def _newest(rows: Sequence[tuple[Any, ...]]) -> tuple[str, str] | None:
    if not rows:
        return None
    _, direction, state = max(rows)
    return direction, state


_ADVICE = (
    "Its objects may be on another server, or lost. Compare the topology of "
    "this command with the published one, and find the objects; with empty "
    "tables here their ids would be used again. If the shard was never in "
    "use: sqla-shard schema upgrade --new NUMBERS, or alembic -x "
    "new=NUMBERS; for the shards of a new topology: sqla-shard schema "
    "provision"
)


def others_of(versions: Sequence[Version], shards: Sequence[Shard]) -> list[Shard]:
    """Return the other shards to read, to recognize lost databases.

    :param shards: all shards of the keyspace.
    """
    if not any(_is_blank(version) for version in versions) or any(
        version.heads for version in versions
    ):
        return []
    asked = {version.shard.shard_id for version in versions}
    return [shard for shard in shards if shard.shard_id not in asked]


def has_no_version(versions: Sequence[Version]) -> bool:
    """Return whether every database was read, and none has a revision.

    The keyspace is new, or the topology is an old one and its shards have
    moved: see :func:`read_misplaced`.
    """
    return any(_is_blank(version) for version in versions) and not any(
        version.heads or version.error is not None for version in versions
    )


def mark_lost(
    versions: Sequence[Version],
    others: Sequence[Version],
    new: Sequence[int] = (),
    misplaced: Sequence[Version] = (),
) -> list[Version]:
    """Return versions with :attr:`Version.lost` set.

    :param others: versions of the other shards, see :func:`others_of`.
    :param new: numbers of the shards that are new.
    :param misplaced: versions of databases on other servers than in the
        topology, see :func:`read_misplaced`.
    """
    reason = _reason([*versions, *others]) or _reason_of_misplaced(misplaced)
    if reason is None:
        return list(versions)
    return [
        replace(version, lost=f"it has no revision, and {reason}. {_ADVICE}")
        if _is_blank(version) and version.shard.shard_id not in new
        else version
        for version in versions
    ]


def without_tables(places: Places, versions: Sequence[Version]) -> list[Version]:
    """Return versions with :attr:`Version.lost` reset if tables exist.

    ``stamp`` needs it: it sets the revision of existing tables.
    """
    found = []
    for version in versions:
        shard = version.shard
        if version.lost is not None:
            with places.engines.visit(shard.place.engine) as connection:
                shard.place.backend.ddl.enter(connection, shard.schema)
                names = shard.place.backend.ddl.names(connection)
            if any(not name.startswith(PREFIX) for name in names):
                version = replace(version, lost=None)
        found.append(version)
    return found


def _is_blank(version: Version) -> bool:
    """Return whether a database has no revision for an unknown reason."""
    if not version.is_known or version.heads or version.open is not None:
        return False
    if version.closed is None:
        return True
    # The mark of provision is an entry older than those of revisions.  After
    # a finished upgrade there was a version, which was removed.
    direction, state = version.closed
    return direction == "upgrade" and state != UNDONE


def _reason(versions: Sequence[Version]) -> str | None:
    """Return the reason why a database without a revision is not new."""
    for version in versions:
        if version.heads:
            ids = [one.shard.shard_id for one in versions if one.heads == version.heads]
            return (
                f"others have one: {revisions_text(version.heads)} on shard "
                f"{as_ranges(ids, 4)}"
            )
    silent = [one for one in versions if one.error is not None]
    if silent:
        ids = [one.shard.shard_id for one in silent]
        return (
            "it is not known whether others have one: shard "
            f"{as_ranges(ids, 4)} could not be read"
        )
    return None


def _reason_of_misplaced(versions: Sequence[Version]) -> str | None:
    """Return the reason if shards have moved since the topology was read."""
    found = [one.shard for one in versions if one.heads]
    if found:
        return (
            "servers have databases with one that this topology places "
            f"elsewhere: {shortened_list(found)}"
        )
    silent = {one.shard.server for one in versions if one.error is not None}
    if silent:
        return (
            "it is not known whether another server has it: "
            f"{shortened_list(sorted(silent))} could not be read"
        )
    return None
