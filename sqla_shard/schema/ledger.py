"""The ledger of a shard: revisions, and the mark of provisioned databases.

An existing database may hold the objects of a virtual shard.  So before
:func:`~sqla_shard.schema.provision` runs the first revision in a new database,
it inserts an entry into its ledger: ``provision`` of an epoch.  After the
database was compared with others, the entry is finished, with the number of
rows that revisions have inserted into each table; all further rows are
rows of the application.

Between CREATE DATABASE and that entry there is no mark, but a database without
tables other than those of this package has no data.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, UTC
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import (
    Connection,
    event,
    func,
    insert,
    literal,
    select,
    table,
    union_all,
    update,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import DBAPIError

from sqla_shard.dialects import Batch, DDL
from sqla_shard.engine import Places
from sqla_shard.exc import InDoubtError, ServerUnreachableError
from sqla_shard.exc.base import shortened_list
from sqla_shard.outbox.tables import LEDGER, PREFIX
from sqla_shard.schema.effects import Effect, read
from sqla_shard.schema.selection import misplaced_on, Shard, shard_on
from sqla_shard.topology import Keyspace, Server
from sqla_shard.topology.keyspaces import as_ranges
from sqla_shard.util.sqlalchemy_helpers import stop_listening

#: The version table of the tables of this package, which have their own
#: revisions; each command that changes a shard upgrades them first.
VERSION_TABLE = "sqla_shard_version"


@lru_cache(maxsize=1)
def _scripts() -> ScriptDirectory:
    return ScriptDirectory(str(Path(__file__).parent / "migrations"))


def own_head() -> str:
    """Return the newest revision of these tables."""
    head = _scripts().get_current_head()
    assert head is not None  # noqa: S101 - there is one, as shipped
    return head


#: By dialect, the statements that create these tables.
_sent: dict[type[Dialect], Sequence[str]] = {}


def creating_own_tables(dialect: Dialect) -> Sequence[str]:
    """Return what this process sends to create these tables.

    :returns: empty if it has not created them yet.
    """
    return _sent.get(type(dialect), ())


def upgrade_own_tables(
    connection: Connection,
    version: str | None,
    batch: Batch | None = None,
    example: Sequence[str] = (),
) -> None:
    """Upgrade the tables of this package in the database of a connection.

    The ledger has no entries for these revisions, so their statements have
    to be such as can be repeated.

    :param version: current revision of the tables; None if they do not
        exist.
    :param batch: the batches of the connection, to send new tables at once.
    :param example: :func:`creating_own_tables` of another process.
    """
    kind = type(connection.dialect)
    known = (_sent.get(kind) or example) if version is None else ()
    if known and _repeat(connection, known, batch):
        return
    sent: list[str] = []

    def record(
        connection: Connection, cursor: Any, statement: str, *details: object
    ) -> None:
        # SQLAlchemy reflects with PRAGMA, which is Effect.SESSION.
        if read(statement).effect not in (Effect.READS, Effect.SESSION):
            sent.append(statement)

    try:
        event.listen(connection, "before_cursor_execute", record)
        _run(connection)
    finally:
        stop_listening(connection, "before_cursor_execute", record)
    # After a killed or another runner, only some of the statements were sent,
    # or none.
    if sent and read(sent[0]).tables == (VERSION_TABLE,):
        _sent[kind] = _with_one_version(sent)


def _with_one_version(sent: Iterable[str]) -> list[str]:
    """Return statements that write the version after the last table.

    The server would sync its log for each version, and MySQL refuses the
    RETURNING with which a version is inserted on MariaDB.  If the statements do
    not run to their end there is no version, and alembic repeats them all.
    """
    version = f"INSERT INTO {VERSION_TABLE} VALUES ('{own_head()}')"  # noqa: S608 - constants
    tables = [one for one in sent if read(one).effect is not Effect.ROWS]
    return [*tables, version]


def _repeat(
    connection: Connection, statements: Iterable[str], batch: Batch | None
) -> bool:
    """Send statements; return False if one of them fails."""
    try:
        if batch is not None:
            texts = [(text, ()) for text in (*statements, "COMMIT")]
            return len(list(batch.send(texts))) == len(texts)
        for statement in statements:
            connection.exec_driver_sql(statement).close()
    except DBAPIError:
        # A killed or another runner has created some of the tables since the
        # version was read: alembic reads the version again.
        connection.rollback()
        connection.connection.rollback()
        return False
    connection.commit()
    return True


def _run(connection: Connection) -> None:

    def steps(heads: Any, _: MigrationContext) -> Any:
        return _scripts()._upgrade_revs("head", heads)

    context = MigrationContext.configure(
        connection, opts={"version_table": VERSION_TABLE, "fn": steps}
    )
    with Operations.context(context):
        context.run_migrations()
    connection.commit()


#: States of a statement.
STARTED = "started"

#: Of an index that was created by the CREATE TABLE of the entry before it.
JOINED = "joined"

FAILED = "failed"

FINISHED = "finished"

#: States that an operator has set for a statement in doubt.
DONE = "done"

UNDONE = "undone"

_SHOWN = 300


@dataclass(frozen=True, kw_only=True)
class LedgerEntry:
    """One statement of an unfinished revision, as a row of the ledger.

    :ivar direction: ``"upgrade"`` or ``"downgrade"``.
    :ivar number: position of the statement in its revision, from 0.
    :ivar tables_before: definitions, before the statement, of the tables it
        names, as JSON; None if they prove nothing.  An object without tables
        if it has failed and done nothing.
    """

    id: int
    direction: str
    revision: str
    number: int
    state: str
    statement: str
    digest: str
    tables_before: str | None
    error: str | None

    @property
    def step(self) -> str:
        """The name of the revision in messages."""
        return f"{self.direction} of {self.revision}"


_COLUMNS = [LEDGER.c[name] for name in LedgerEntry.__dataclass_fields__]

_OPEN = select(*_COLUMNS).where(LEDGER.c.is_open.is_(True)).order_by(LEDGER.c.id)


def open_entries(connection: Connection) -> list[LedgerEntry]:
    """Return the entries of the unfinished revision, in order."""
    return [LedgerEntry(**row._mapping) for row in connection.execute(_OPEN)]


def kept_by(connection: Connection, direction: str, revision: str) -> str | None:
    """Return what the last entry of a finished revision has kept.

    :returns: None if it was undone since, or not finished.
    """
    last = connection.execute(
        select(LEDGER.c.direction, LEDGER.c.state, LEDGER.c.tables_before)
        .where(LEDGER.c.revision == revision, LEDGER.c.is_open.is_(False))
        .order_by(LEDGER.c.id.desc())
        .limit(1)
    ).first()
    if last is None or last[:2] != (direction, FINISHED):
        return None
    kept: str | None = last[2]
    return kept


def last_sent(entries: Sequence[LedgerEntry]) -> Sequence[LedgerEntry]:
    """Return the entries of the statement that was sent last.

    They are several if it was a CREATE TABLE with indexes.

    :param entries: the open entries, in order; at least one.
    """
    first = len(entries) - 1
    while first and entries[first].state == JOINED:
        first -= 1
    return entries[first:]


def one_line(statement: str) -> str:
    """Return a statement on one line, shortened for a message."""
    line = " ".join(statement.split())
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}..."


def took_effect(connection: Connection, ddl: DDL, sent: Sequence[LedgerEntry]) -> bool:
    """Return whether the last statement of a revision has taken effect.

    :param sent: its entries, of :func:`last_sent`.
    :raises InDoubtError: if the database proves neither.
    """
    last, *joined = sent
    if last.state in (DONE, UNDONE, FINISHED):
        return last.state != UNDONE
    if not last.statement:
        return False  # The revision failed between two statements.
    if last.tables_before is None:
        is_rows = read(last.statement).effect is Effect.ROWS
        if last.state == FAILED and is_rows and ddl.rolls_back(connection):
            return False
        raise InDoubtError(
            f"{last.step} was interrupted in its statement "
            f"{last.number + 1}, and the definitions of the tables do not "
            f"show whether it took effect: {one_line(last.statement)}",
            statement=last.statement,
        )
    before = json.loads(last.tables_before)
    now = ddl.definitions(connection, before)
    if any(_is_foreign(before[table], now[table]) for table in before):
        raise InDoubtError(
            f"{last.step} was interrupted in its statement "
            f"{last.number + 1} on another kind of server, which writes the "
            "definitions of tables differently, so they do not show whether "
            f"it took effect: {one_line(last.statement)}",
            statement=last.statement,
        )
    changed = {table for table in before if before[table] != now[table]}
    if not changed:
        return False
    if last.state == FAILED:
        raise InDoubtError(
            f"{last.step} failed in its statement {last.number + 1}, and the "
            f"definition of {', '.join(sorted(changed))} has changed since: "
            f"{one_line(last.statement)}",
            statement=last.statement,
        )
    if len(changed) < len(before):
        raise InDoubtError(
            f"{last.step} was interrupted in its statement {last.number + 1}, and of "
            f"the tables that it names only {', '.join(sorted(changed))} has changed: "
            f"{one_line(last.statement)}",
            statement=last.statement,
        )
    # The server creates all or nothing, but an operator may have created the
    # table by hand, or dropped an index, and the table may be another one.
    missing = ddl.missing_indexes(connection, [entry.statement for entry in joined])
    if missing:
        raise InDoubtError(
            f"{last.step} was interrupted in its statement {last.number + 1}, which "
            f"creates {', '.join(before)} with {len(joined)} index(es), and the table "
            f"exists without {len(missing)} of them: "
            f"{'; '.join(map(one_line, missing))}. Create what is missing, or remove "
            "the table if it is another one, and repeat the command; an answer about "
            "the statement is about the table with all of these indexes",
            statement=last.statement,
        )
    return True


def _is_foreign(before: str | None, now: str | None) -> bool:
    """Return whether two kinds of servers have written the definitions."""
    if before is None or now is None:
        return False
    return before.split(" ")[:-1] != now.split(" ")[:-1]


def changed_tables(
    connection: Connection, ddl: DDL, before: dict[str, Any]
) -> set[str]:
    """Return the tables whose definitions have changed.

    :param before: definitions of the tables before the statement.
    """
    now = ddl.definitions(connection, before)
    return {table for table in before if before[table] != now[table]}


_DIRECTION = "provision"

_IS_MARK = LEDGER.c.direction == _DIRECTION


@dataclass(frozen=True, kw_only=True)
class DatabaseMark:
    """The mark of a database that provision has created.

    :ivar epoch: epoch of the topology, such as ``"epoch 2"``.
    :ivar rows: number of rows that revisions have inserted, for each table
        that has rows; None until the database was compared with others.
    """

    epoch: str
    rows: Mapping[str, int] | None


def read_marks(shards: Sequence[Shard]) -> dict[int, DatabaseMark]:
    """Return the marks of databases that share an engine, by shard."""
    place = shards[0].place
    found = place.backend.ddl.read_table(
        place.engine,
        [shard.schema for shard in shards],
        LEDGER.name,
        ["revision", "state", "tables_before"],
        f"direction = '{_DIRECTION}'",
    )
    return {
        shard.shard_id: DatabaseMark(
            epoch=epoch, rows=json.loads(rows) if state == FINISHED else None
        )
        for shard in shards
        for epoch, state, rows in found.get(shard.schema, ())
    }


def begin_mark(connection: Connection, epoch: int) -> None:
    """Write and commit the mark of a database before its first revision.

    :param connection: connection to the database, which has a ledger.
    """
    values = {
        "revision": f"epoch {epoch}",
        "state": STARTED,
        "runner": runner_name(),
        "started_at": now(),
        "ended_at": None,
        "tables_before": None,
    }
    done = connection.execute(update(LEDGER).where(_IS_MARK).values(values))
    if not done.rowcount:
        connection.execute(
            insert(LEDGER).values(
                direction=_DIRECTION,
                number=0,
                statement="",
                digest="",
                # The journal reads open entries only.
                is_open=False,
                **values,
            )
        )
    connection.commit()


def finish_mark(
    connection: Connection, names: Collection[str], version_table: str
) -> None:
    """Record that a database equals its reference, and its numbers of rows.

    :param connection: connection to the database; the caller commits.
    :param names: names of the tables of the database.
    :param version_table: the name of alembic's table.
    """
    rows = _count_rows(connection, dict.fromkeys(names), version_table)
    connection.execute(
        update(LEDGER)
        .where(_IS_MARK)
        .values(
            state=FINISHED,
            ended_at=now(),
            tables_before=json.dumps(
                {name: count for name, count in rows.items() if count}
            ),
        )
    )


def written_since(
    connection: Connection,
    names: Collection[str],
    rows: Mapping[str, int],
    version_table: str,
) -> list[str]:
    """Return the tables with rows that no revision has inserted.

    :param connection: connection to the database.
    :param names: names of the tables of the database.
    :param rows: number of rows that revisions have inserted, by table.
    """
    limits = {name: rows.get(name, 0) + 1 for name in names}
    found = _count_rows(connection, limits, version_table)
    return sorted(name for name in found if found[name] > rows.get(name, 0))


def _count_rows(
    connection: Connection, limits: Mapping[str, int | None], version_table: str
) -> dict[str, int]:
    """Count the rows of tables of the application.

    :param limits: the number at which counting stops, by table; or None.
    """
    counts = [
        select(
            literal(name),
            select(func.count())
            .select_from(
                select(literal(1).label("one"))
                .select_from(table(name))
                .limit(limit)
                .subquery()
            )
            .scalar_subquery(),
        )
        for name, limit in sorted(limits.items())
        if name != version_table and not name.startswith(PREFIX)
    ]
    if not counts:
        return {}
    return {row[0]: row[1] for row in connection.execute(union_all(*counts))}


def runner_name() -> str:
    """Return the host and the process id, for the column ``runner``."""
    return f"{socket.gethostname()} {os.getpid()}"[:255]


def now() -> datetime:
    """Return the current time in UTC, for DATETIME columns."""
    return datetime.now(UTC).replace(tzinfo=None)


# -- The revisions of all virtual shards, with a few queries per server.
#
# A database that has lost its tables, because the shard was moved or its
# database dropped, looks like a new one.  An upgrade must not create empty
# tables there: ids would begin with 1 again, and two objects would have the
# same id.  So a database without a revision, where other shards of the
# keyspace have one, is changed only if the mark of provision, its own
# ledger, or an option of the command shows that it is new.  Where none has
# one, the keyspace is new, or all shards have moved and the topology is an
# old one: then the servers are searched for databases that the topology
# places elsewhere.


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
        f"{version.shard.database} has lost its table {LEDGER.name}, so an unfinished "
        "revision would not be noticed. Compare its tables with those of other shards "
        f"(sqla-shard schema verify) and correct them; then DROP TABLE {VERSION_TABLE} "
        "there, and the next upgrade creates the ledger again"
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
    entries = [Open(**dict(zip(columns, row, strict=True))) for row in rows]
    return max(entries, key=lambda one: one.number, default=None)


def _newest(rows: Sequence[tuple[Any, ...]]) -> tuple[str, str] | None:
    if not rows:
        return None
    _, direction, state = max(rows)
    return direction, state


_ADVICE = (
    "Its objects may be on another server, or lost. Compare the topology of this "
    "command with the published one, and find the objects; with empty tables here "
    "their ids would be used again. If the shard was never in use: sqla-shard schema "
    "upgrade --new NUMBERS, or alembic -x new=NUMBERS; for the shards of a new "
    "topology: sqla-shard schema provision"
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
    versions_without = []
    for version in versions:
        shard = version.shard
        if version.lost is not None:
            with places.engines.visit(shard.place.engine) as connection:
                shard.place.backend.ddl.enter(connection, shard.schema)
                names = shard.place.backend.ddl.names(connection)
            if any(not name.startswith(PREFIX) for name in names):
                version = replace(version, lost=None)
        versions_without.append(version)
    return versions_without


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
    shards = [one.shard for one in versions if one.heads]
    if shards:
        return (
            "servers have databases with one that this topology places "
            f"elsewhere: {shortened_list(shards)}"
        )
    silent = {one.shard.server for one in versions if one.error is not None}
    if silent:
        return (
            "it is not known whether another server has it: "
            f"{shortened_list(sorted(silent))} could not be read"
        )
    return None
