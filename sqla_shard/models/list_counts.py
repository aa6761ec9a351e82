"""Stored lengths of lists.

The rows of a counted mapping class have a second table, ``<table>_count``,
with the number of rows of each list.  Every change of a list adds the number
of rows that it has inserted or deleted, in its own transaction and under the
lock of the list, so the number is never behind the rows.

A list without a stored number is counted by its first change.  So a class
with existing rows may be declared as counted at any time.
"""

from __future__ import annotations

from functools import partial
from typing import Any, TYPE_CHECKING

from sqlalchemy import (
    BigInteger,
    bindparam,
    Column,
    delete,
    func,
    Integer,
    select,
    Table,
    update,
)

from sqla_shard.dialects.sql import COUNTING, InsertAdding
from sqla_shard.exc import KeptMappingError
from sqla_shard.planning import declare, TableSpec
from sqla_shard.types import ObjectRef

if TYPE_CHECKING:
    from sqla_shard.models.mapping_definition import MappingDefinition
    from sqla_shard.models.mapping_list import List


def create_counts(cls: Any, table: Any, definition: MappingDefinition) -> None:
    """Create the table with the lengths of the lists of a class.

    :param table: the table of the class.
    """
    column = definition.source.column
    definition.counts = Table(
        f"{table.name}_count",
        table.metadata,
        Column(
            column,
            ObjectRef(colocated=definition.spread == 1),
            primary_key=True,
            autoincrement=False,
        ),
        Column("slot", Integer, primary_key=True, autoincrement=False),
        Column("number", BigInteger, nullable=False),
        info={COUNTING: ((column, "slot"), "number")},
    )
    declare_counts(cls, definition)


def declare_counts(cls: Any, definition: MappingDefinition) -> None:
    """Declare the table of the lengths to routing."""
    layout = definition.source.layout
    kind: Any = definition.counts.columns[0].type
    kind.layout = layout
    declare(
        definition.counts,
        TableSpec(
            kind="objects",
            keyspace=definition.keyspace,
            id_index=0 if definition.spread == 1 else None,
            type_id=definition.source.type_id,
            layout=layout,
            commits_late=True,
            guard=partial(_refuse, cls),
        ),
    )


def _refuse(cls: Any, statement: Any) -> None:
    """Refuse a statement of the application on the lengths.

    :raises KeptMappingError: always.
    """
    name = cls.__name__
    raise KeptMappingError(mapping=name, kept_by=name, reason="count")


class CountStatements:
    """The statements on the numbers of a class.

    :param table: the table of the numbers.
    :param rows: a SELECT of the number of rows, for a parameter ``source``.
    """

    def __init__(self, table: Any, rows: Any) -> None:
        self.table = table
        self.source = source = table.columns[0]
        here = (
            source == bindparam("source", type_=source.type),
            table.c.slot == bindparam("the_slot", type_=Integer()),
        )
        self.read = select(table.c.number).where(*here)
        self.total = select(func.sum(table.c.number)).where(here[0])
        self.read_locked = self.read.with_for_update()
        self.add = InsertAdding(table).values(
            {
                source: bindparam("source", type_=source.type),
                table.c.slot: bindparam("the_slot", type_=Integer()),
                table.c.number: bindparam("delta", type_=BigInteger()),
            }
        )
        #: The transaction may have an older snapshot, so read locked rows.
        self.rows = rows.with_for_update(read=True)
        self.set = (
            update(table)
            .where(*here)
            .values(number=bindparam("the_number", type_=BigInteger()))
        )


def add_to_count(rows: List, delta: int) -> None:
    """Add to the number of rows of a list, whose lock is held.

    :param delta: number of rows that were inserted; negative for deleted
        ones.
    """
    counts = rows.statements.counts
    if counts is None or not delta:
        return
    result = rows.execute(counts.add, the_slot=rows.slot, delta=delta)
    if rows.place.backend.counts_upserts:
        is_new = result.rowcount == 1
    else:
        stored = rows.execute(counts.read, the_slot=rows.slot).scalar_one()
        is_new = stored == delta
    if is_new:
        # Rows may be older than the table of lengths.
        number: int = rows.execute(counts.rows).scalar_one()
        rows.execute(counts.set, the_slot=rows.slot, the_number=number)


def stored_count(rows: List, session: Any) -> int | None:
    """Return the stored number; None if the list has none."""
    counts = rows.statements.counts
    if counts is None:
        return None
    found: int | None = session.execute(
        counts.read,
        {"source": rows.source_id, "the_slot": rows.slot},
        bind_arguments={"place": rows.place},
    ).scalar()
    return found


def stored_sum(rows: List) -> int:
    """Return the length of a spread list, whose pieces are all counted."""
    counts: Any = rows.statements.counts
    return int(rows.execute(counts.total).scalar_one() or 0)


def recount_all(rows: List) -> int:
    """Count all rows of a list again; return their number."""
    number = sum(recount(part)[1] for part in rows.parts())
    if rows.statements.definition.spread_before:
        return stored_sum(rows)  # without copies
    return number


def recount(rows: List) -> tuple[int | None, int]:
    """Count the rows of a piece of a list again, and correct its number.

    :returns: the number that was stored, None without one; and the number of
        rows.
    """
    counts = rows.statements.counts
    if counts is None:
        number: int = rows.execute(rows.statements.count).scalar_one()
        return None, number
    rows.lock()
    before: int | None = rows.execute(counts.read_locked, the_slot=rows.slot).scalar()
    now: int = rows.execute(counts.rows).scalar_one()
    if before is None:
        rows.execute(counts.add, the_slot=rows.slot, delta=now)
    elif before != now:
        rows.execute(counts.set, the_slot=rows.slot, the_number=now)
    if before != now:
        rows.invalidate()
    return before, now


def forget_counts(
    session: Any, statements: Any, place: Any, ids: Any, *, only_empty: bool = False
) -> None:
    """Delete the numbers of lists of one shard, whose rows are deleted.

    :param ids: ids of the sources.
    :param only_empty: whether to delete only numbers that are 0.
    """
    counts = statements.counts
    if counts is not None:
        there = delete(counts.table).where(counts.source.in_(ids))
        if only_empty:
            there = there.where(counts.table.c.number == 0)
        session.execute(there, bind_arguments={"place": place})
