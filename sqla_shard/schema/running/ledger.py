"""The ledger: what a shard has kept of a revision that has not ended."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection
from sqlalchemy import select

from sqla_shard.dialects import DDL
from sqla_shard.exc import InDoubtError
from sqla_shard.internal import LEDGER
from sqla_shard.schema.statements import Effect
from sqla_shard.schema.statements import read

__all__ = [
    "DONE",
    "FAILED",
    "FINISHED",
    "STARTED",
    "UNDONE",
    "Entry",
    "changed_tables",
    "open_entries",
    "said",
    "settled",
]

#: States of a statement.
STARTED = "started"
FAILED = "failed"
FINISHED = "finished"
#: What an operator has said of a statement in doubt.
DONE = "done"
UNDONE = "undone"

_SHOWN = 300


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One statement in the ledger, of a revision that has not ended.

    :ivar direction: ``"upgrade"`` or ``"downgrade"``.
    :ivar number: position of the statement in its revision, from 0.
    :ivar tables_before: what the tables it names were like before it; None
        where that tells nothing, or nothing more, since they were the same
        when it had failed.
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
        """The revision, as messages name it."""
        return f"{self.direction} of {self.revision}"


_COLUMNS = [LEDGER.c[name] for name in Entry.__dataclass_fields__]
_OPEN = (
    select(*_COLUMNS).where(LEDGER.c.is_open.is_(True)).order_by(LEDGER.c.id)
)


def open_entries(connection: Connection) -> list[Entry]:
    """Return the entries of the revision that has not ended, in order."""
    return [Entry(**row._mapping) for row in connection.execute(_OPEN)]


def said(statement: str) -> str:
    """Return a statement on one line, cut to what a message can show."""
    line = " ".join(statement.split())
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}..."


def settled(connection: Connection, ddl: DDL, last: Entry) -> bool:
    """Tell whether the last entry of a revision has taken effect.

    :param last: the entry that has no successor.
    :raises InDoubtError: when that cannot be told.
    """
    if last.state in (DONE, UNDONE, FINISHED):
        return last.state != UNDONE
    if not last.statement:
        return False  # The revision failed between two statements.
    if last.tables_before is None:
        if last.state == FAILED and _is_without_effect(connection, ddl, last):
            return False
        raise InDoubtError(
            f"{last.step} was interrupted in its statement "
            f"{last.number + 1}, and no look at the tables tells whether it "
            f"took effect: {said(last.statement)}",
            statement=last.statement,
        )
    before = json.loads(last.tables_before)
    changed = changed_tables(connection, ddl, before)
    if not changed:
        return False
    if last.state == FAILED:
        raise InDoubtError(
            f"{last.step} has failed in its statement {last.number + 1}, and "
            f"{', '.join(sorted(changed))} is not as it was before that: "
            f"{said(last.statement)}",
            statement=last.statement,
        )
    if len(changed) < len(before):
        raise InDoubtError(
            f"{last.step} was interrupted in its statement "
            f"{last.number + 1}, and of the tables that it names only "
            f"{', '.join(sorted(changed))} changed: {said(last.statement)}",
            statement=last.statement,
        )
    return True


def _is_without_effect(connection: Connection, ddl: DDL, last: Entry) -> bool:
    """Tell whether nothing is left of a statement that failed."""
    reading = read(last.statement)
    if reading.effect is Effect.ROWS:
        return ddl.rolls_back(connection)
    # Tables were looked at when it failed.
    return reading.effect is Effect.TABLES or reading.is_whole


def changed_tables(
    connection: Connection, ddl: DDL, before: dict[str, Any]
) -> set[str]:
    """Return the tables that are not as they were.

    :param before: their definitions then.
    """
    now = ddl.definitions(connection, before)
    return {table for table in before if before[table] != now[table]}
