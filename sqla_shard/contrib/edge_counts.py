"""Numbers of edges of each kind, changed in the transaction of the edges.

A counted table of edges has a second one, ``<table>_count``.  A transaction
that writes edges reads, under their locks, which of them it changes: an edge
of an older version is not written, and one of the same version again is of the
kind that it had, so operations that are late, repeated or in any order leave
the numbers of those that were applied once.

A number is spread over several rows by the targets of the edges, so that those
who follow one user at once do not all wait for each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, TYPE_CHECKING

from sqlalchemy import (
    BigInteger,
    bindparam,
    Column,
    delete,
    func,
    insert,
    select,
    SmallInteger,
    Table,
    type_coerce,
    union,
)

from sqla_shard.dialects.sql import COUNTING, InsertAdding
from sqla_shard.engine.rendering import Place
from sqla_shard.ids import unpack
from sqla_shard.routing import declare, spec_of
from sqla_shard.session import ShardSession
from sqla_shard.types import ObjectRef

if TYPE_CHECKING:
    from sqla_shard.contrib.edges import EdgeTable

#: A source, a target, and the kinds of the edge before and after.
Move = tuple[int, int, int, int]


class EdgeCounts:
    """The numbers of the edges of a table.

    :param edges: the table.
    :param slots: number of rows that a number is spread over.
    """

    def __init__(self, edges: EdgeTable, slots: int) -> None:
        self._edges = edges
        self._slots = slots
        key = (edges.source_id.name, "kind", "slot")
        fixed: Any = {"primary_key": True, "autoincrement": False}
        self.table = Table(
            f"{edges.name}_count",
            edges.table.metadata,
            Column(key[0], ObjectRef(colocated=True), **fixed),
            Column("kind", SmallInteger, **fixed),
            Column("slot", SmallInteger, **fixed),
            Column("number", BigInteger, nullable=False),
            info={COUNTING: (key, "number")},
        )
        declare(self.table, spec_of(edges.table))
        self._names = (*key, "number")
        self._source: Any = self.table.columns[0]
        own = self.table.c
        self._add = InsertAdding(self.table)
        self._read = (
            select(own.kind, func.sum(own.number))
            .where(self._source == bindparam("source"))
            .group_by(own.kind)
        )

    def read(
        self, session: ShardSession, place: Place, source_id: int
    ) -> dict[int, int]:
        """Return the stored number of edges of each kind."""
        rows = session.execute(
            self._read, {"source": source_id}, bind_arguments={"place": place}
        )
        return {kind: int(number) for kind, number in rows}

    def move(self, session: ShardSession, place: Place, moves: Iterable[Move]) -> None:
        """Change the numbers by edges that have changed their kind.

        The edges are locked by the transaction.
        """
        changes: Counter[tuple[int, int, int]] = Counter()
        for source_id, target_id, before, after in moves:
            slot = unpack(target_id).local_id % self._slots
            for kind, delta in ((before, -1), (after, 1)):
                if kind:
                    changes[source_id, kind, slot] += delta
        # All transactions lock the rows in this order.
        rows = [
            dict(zip(self._names, (*key, delta), strict=True))
            for key, delta in sorted(changes.items())
            if delta
        ]
        if rows:
            session.execute(self._add, rows, bind_arguments={"place": place})

    # -- repairing

    def sources(
        self, session: ShardSession, place: Place, after: int, limit: int
    ) -> list[int]:
        """Return the next objects of a shard with edges or numbers."""
        parts = []
        for column in (self._edges.source_id, self._source):
            # As a number: the first one is not an id.
            number: Any = type_coerce(column, BigInteger())
            part = (
                select(number.label("source"))
                .where(number > after)
                .distinct()
                .order_by(number)
                .limit(limit)
                .subquery()
            )
            parts.append(select(part.c.source))
        both = union(*parts).subquery()
        return list(
            session.scalars(
                select(both.c.source).order_by(both.c.source).limit(limit),
                bind_arguments={"place": place},
            )
        )

    def differing(
        self, session: ShardSession, place: Place, source_ids: list[int]
    ) -> list[int]:
        """Return those of some objects whose numbers are not those of edges.

        This takes two statements.
        """
        edges, own = self._edges, self.table.c
        found: list[dict[tuple[int, int], int]] = []
        for source, kind, number in (
            (edges.source_id, edges.kind, func.count()),
            (self._source, own.kind, func.sum(own.number)),
        ):
            rows = session.execute(
                select(source, kind, number)
                .where(source.in_(source_ids), kind != 0)
                .group_by(source, kind),
                bind_arguments={"place": place},
            )
            found.append({(row[0], row[1]): int(row[2]) for row in rows})
        counted, stored = found
        return sorted(
            {
                key[0]
                for key in counted.keys() | stored.keys()
                if counted.get(key, 0) != stored.get(key, 0)
            }
        )

    def recount(self, session: ShardSession, place: Place, source_id: int) -> bool:
        """Count the edges of an object again, and correct the numbers.

        Call it at the beginning of a transaction.

        :returns: whether they have differed.
        """
        bind: Any = {"place": place}
        # Transactions that have changed edges wait until the edges are
        # counted, and those that have not are not seen in the snapshot.
        session.execute(
            select(self.table).where(self._source == source_id).with_for_update(),
            bind_arguments=bind,
        ).all()
        if not self.differing(session, place, [source_id]):
            return False
        edges = self._edges
        rows = session.execute(
            select(edges.kind, func.count())
            .where(edges.source_id == source_id, edges.kind != 0)
            .group_by(edges.kind),
            bind_arguments=bind,
        ).all()
        session.execute(
            delete(self.table).where(self._source == source_id), bind_arguments=bind
        )
        if rows:
            session.execute(
                insert(self.table),
                [
                    dict(zip(self._names, (source_id, kind, 0, number), strict=True))
                    for kind, number in rows
                ],
                bind_arguments=bind,
            )
        return True
