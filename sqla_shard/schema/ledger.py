"""The ledger of this package, and the mark of provisioned databases.

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
from dataclasses import dataclass
from datetime import datetime, UTC
from functools import lru_cache
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
from sqla_shard.exc import InDoubtError
from sqla_shard.outbox.tables import LEDGER, PREFIX
from sqla_shard.schema.effects import Effect, read
from sqla_shard.schema.selection import Shard
from sqla_shard.util.sqlalchemy_helpers import stop_listening

#: The version table of the tables of this package, which have their own
#: revisions; each command that changes a shard upgrades them first.
VERSION_TABLE = "sqla_shard_version"


@lru_cache(maxsize=1)
def _scripts() -> ScriptDirectory:
    return ScriptDirectory(str(Path(__file__).parent / "migrations"))


def own_head() -> str:
    """Return the newest revision of these tables."""
    found = _scripts().get_current_head()
    assert found is not None  # noqa: S101 - there is one, as shipped
    return found


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

    The ledger has no entries for these revisions, so each is one statement
    that can be repeated.

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

    The server would sync its log for each version.  If the statements do not
    run to their end there is no version, and alembic repeats them all.
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
class Entry:
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


_COLUMNS = [LEDGER.c[name] for name in Entry.__dataclass_fields__]
_OPEN = select(*_COLUMNS).where(LEDGER.c.is_open.is_(True)).order_by(LEDGER.c.id)


def open_entries(connection: Connection) -> list[Entry]:
    """Return the entries of the unfinished revision, in order."""
    return [Entry(**row._mapping) for row in connection.execute(_OPEN)]


def last_sent(entries: Sequence[Entry]) -> Sequence[Entry]:
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


def took_effect(connection: Connection, ddl: DDL, sent: Sequence[Entry]) -> bool:
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
            f"{last.step} was interrupted in its statement "
            f"{last.number + 1}, and of the tables that it names only "
            f"{', '.join(sorted(changed))} has changed: "
            f"{one_line(last.statement)}",
            statement=last.statement,
        )
    # The server creates all or nothing, but an operator may have created the
    # table by hand, or dropped an index, and the table may be another one.
    missing = ddl.missing_indexes(connection, [entry.statement for entry in joined])
    if missing:
        raise InDoubtError(
            f"{last.step} was interrupted in its statement "
            f"{last.number + 1}, which creates {', '.join(before)} with "
            f"{len(joined)} index(es), and the table exists without "
            f"{len(missing)} of them: {'; '.join(map(one_line, missing))}. "
            "Create what is missing, or remove the table if it is another "
            "one, and repeat the command; an answer about the statement is "
            "about the table with all of these indexes",
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
