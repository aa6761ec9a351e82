"""The four tables of a follow graph, and their statements.

Each edge is one row on the shard of the follower, which is authoritative, and
one row on the shard of the user or board that is followed, with the same
content.  A row is never deleted when an edge ends, but gets the kind 0, so
that a delayed write of an earlier state is recognized by its version.

A version is the time of the change in microseconds since 1970, increased if
that is needed to exceed the version before.
"""

from __future__ import annotations

import struct
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from enum import IntEnum
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import (
    and_,
    BigInteger,
    bindparam,
    Column,
    delete,
    func,
    Index,
    insert,
    inspect,
    Integer,
    or_,
    select,
    SmallInteger,
    Table,
    tuple_,
    type_coerce,
    union,
    union_all,
)
from sqlalchemy.orm import mapped_column

from sqla_shard.dialects.sql import (
    COUNTING,
    InsertAdding,
    InsertMissing,
    UpsertNewer,
    VERSION,
)
from sqla_shard.engine.rendering import Place
from sqla_shard.exc import InvalidBookmarkError
from sqla_shard.ids import unpack
from sqla_shard.models.deletion import IS_FOUND
from sqla_shard.planning import declare, spec_of
from sqla_shard.session import ShardSession
from sqla_shard.session.paging import check_limit, Page, Seal, Subject
from sqla_shard.types import ObjectRef

#: Most targets whose SELECT is built for their number.
_LISTED = 50
#: Most edges that a statement locks.  MariaDB makes a join of a list of 1,000,
#: which locks all rows.
_LOCKED = 250


class FollowKind(IntEnum):
    """The meaning of an edge between two users."""

    NONE = 0
    """Nothing: it has ended."""
    EXPLICIT = 1
    """All boards of the user are followed, now and later."""
    IMPLICIT = 2
    """One or more boards of the user are followed."""
    BLOCKED = 3
    """The user has blocked the one on whose shard the edge is."""


class BoardChoice(IntEnum):
    """The meaning of an edge between a user and a board."""

    NONE = 0
    """Nothing: the relation of the user to the owner decides."""
    FOLLOWED = 1
    """The board is followed, without its owner."""
    UNFOLLOWED = 2
    """The board is not followed, although its owner is."""


class Edge(NamedTuple):
    """The content of an edge, which both of its rows have.

    :ivar kind: a :class:`FollowKind` or a :class:`BoardChoice`.
    :ivar number: number of followed boards of an implicit relation, else 0;
        of a board, the id of its owner.
    :ivar sequence: when the relation began, in microseconds since 1970.
    :ivar version: the time of the last change.
    """

    kind: int = 0
    number: int = 0
    sequence: int = 0
    version: int = 0

    def changed(self, kind: int, number: int = 0, *, begins: bool = True) -> Edge:
        """Return the next state.

        :param begins: whether another relation begins, with a new position.
        """
        version = max(now(), self.version + 1)
        # A plain number: operations have JSON values as arguments.
        return Edge(int(kind), number, version if begins else self.sequence, version)


class Related(NamedTuple):
    """One entry of a list of followers, followed users or boards.

    :ivar id: id of the user or board.
    :ivar kind: as of :class:`Edge`.
    :ivar number: as of :class:`Edge`.
    :ivar sequence: when the relation began, in microseconds since 1970.
    """

    id: int
    kind: int
    number: int
    sequence: int


#: Identifies an edge: the ids in the order of the columns.
Pair = tuple[int, int]

#: A table, and rows of one shard that a transaction has written there.
EdgeListener = Callable[[ShardSession, "EdgeTable", Sequence[tuple[Pair, Edge]]], None]

#: The time and the id of a bound before all edges.
_NEWEST = (1 << 62, 0)
#: What a bookmark of a list contains: the bound of the next page.
MARK = struct.Struct(">QQ")


def unsealed(seal: Seal, bookmark: str, subject: Subject) -> tuple[int, int]:
    """Return the bound that a bookmark contains.

    :raises InvalidBookmarkError: if it is not a bookmark of this list.
    """
    payload = seal.unseal(bookmark, subject)
    if len(payload) != MARK.size:
        raise InvalidBookmarkError(
            "the bookmark is not of this list", bookmark=bookmark
        )
    sequence, target_id = MARK.unpack(payload)
    return sequence, target_id


def now() -> int:
    """Return the time in microseconds since 1970."""
    return time.time_ns() // 1000


class EdgeTable:
    """One of the tables, on the shard of its first column.

    :param base: the declarative base.
    :param name: name of the table.
    :param source: class of the objects whose shard has the row.
    :param columns: names of the columns with the two ids.
    :param number: name of the column with the number of boards or the owner.
    :param by_number: whether rows are searched by that column.
    :param count_slots: number of rows that each number of edges is spread
        over; 0 if the server counts edges when they are asked for.
    :ivar cls: the mapped class, for statements of the application.
    :ivar listeners: functions that are called in each transaction that has
        written rows.
    """

    def __init__(
        self,
        base: Any,
        name: str,
        source: Any,
        columns: tuple[str, str],
        number: str,
        *,
        by_number: bool = False,
        count_slots: int = 0,
    ) -> None:
        first, second = columns
        options: dict[str, Any] = {"nullable": False, "autoincrement": False}
        indexes = [Index(f"ix_{name}", first, "kind", "sequence", second)]
        if by_number:
            indexes.append(Index(f"ix_{name}_{number}", first, number))
        self.name = name
        self.source = source
        self.listeners: list[EdgeListener] = []
        self.cls: Any = type(
            "".join(part.title() for part in name.split("_")),
            (base,),
            {
                "__module__": base.__module__,
                "__tablename__": name,
                "__table_args__": tuple(indexes),
                first: mapped_column(
                    ObjectRef(colocated=True), primary_key=True, **options
                ),
                second: mapped_column(ObjectRef(), primary_key=True, **options),
                "kind": mapped_column(SmallInteger, nullable=False),
                number: mapped_column(BigInteger, nullable=False),
                "sequence": mapped_column(BigInteger, nullable=False),
                "version": mapped_column(BigInteger, nullable=False),
            },
        )
        self.table: Any = inspect(self.cls).local_table
        self.table.info.update({VERSION: "version", IS_FOUND: True})
        theirs = spec_of(inspect(source).local_table).keyspace
        declare(self.table, replace(spec_of(self.table), keyspace=theirs))
        self._names = (first, second, "kind", number, "sequence", "version")
        own: Any = self.table.c
        self.source_id: Any = own[first]
        self.target_id: Any = own[second]
        self.kind: Any = own.kind
        self.number: Any = own[number]
        self.sequence: Any = own.sequence
        self.version: Any = own.version
        self.counts: EdgeCounts | None = (
            EdgeCounts(self, count_slots) if count_slots else None
        )
        self._put = UpsertNewer(self.table)
        self._missing = InsertMissing(self.table)
        self._edge = (self.kind, self.number, self.sequence, self.version)
        self._one = select(*self._edge).where(
            self.source_id == bindparam("source"), self.target_id == bindparam("target")
        )
        self._kinds = select(self.target_id, self.kind).where(
            self.source_id == bindparam("source"),
            self.target_id.in_(bindparam("targets", expanding=True)),
        )
        self._pairs_locked = (
            select(self.source_id, self.target_id, *self._edge)
            .where(
                tuple_(self.source_id, self.target_id).in_(
                    bindparam("pairs", expanding=True)
                )
            )
            .with_for_update()
        )
        for server in ("mysql", "mariadb"):
            # Of a table of a few rows the server would read, and lock, all.
            self._pairs_locked = self._pairs_locked.with_hint(
                self.table, "FORCE INDEX (PRIMARY)", server
            )

    def place(self, session: ShardSession, source_id: int) -> Place:
        """Return the location of the rows of an object."""
        spec = spec_of(self.table)
        places = session.places
        keyspace = places.keyspace(spec.keyspace, spec.kind)
        return places.place(keyspace, unpack(source_id).shard_id)

    # -- writing

    def put(self, session: ShardSession, rows: Sequence[tuple[Pair, Edge]]) -> None:
        """Write edges of one shard that are not older than those there."""
        if rows:
            place = self.place(session, rows[0][0][0])
            moves = self._moves(session, place, rows) if self.counts else []
            self._execute(session, place, self._put, rows)
            if self.counts:
                self.counts.move(session, place, moves)
            self.announce(session, rows)

    def _execute(
        self,
        session: ShardSession,
        place: Place,
        statement: Any,
        rows: Iterable[tuple[Pair, Edge]],
    ) -> None:
        session.execute(
            statement,
            [
                dict(zip(self._names, (*pair, *edge), strict=True))
                for pair, edge in rows
            ],
            bind_arguments={"place": place},
        )

    def _moves(
        self, session: ShardSession, place: Place, rows: Sequence[tuple[Pair, Edge]]
    ) -> list[Move]:
        """Return the changes of kinds by rows that are to be written."""
        # A lock of a row that does not exist would be one of a gap, in which
        # two transactions could not insert without a deadlock.
        self._execute(
            session, place, self._missing, [(pair, Edge()) for pair, _ in rows]
        )
        pairs = [pair for pair, _ in rows]
        before: dict[Pair, Edge] = {}
        for start in range(0, len(pairs), _LOCKED):
            for row in session.execute(
                self._pairs_locked,
                {"pairs": pairs[start : start + _LOCKED]},
                bind_arguments={"place": place},
            ):
                before[row[0], row[1]] = Edge(*row[2:])
        moves = []
        for pair, edge in rows:
            if edge.version >= before[pair].version:
                moves.append((*pair, before[pair].kind, edge.kind))
                before[pair] = edge
        return moves

    def announce(
        self, session: ShardSession, rows: Sequence[tuple[Pair, Edge]]
    ) -> None:
        """Call the listeners with rows that a transaction has written."""
        for listener in self.listeners:
            listener(session, self, rows)

    # -- reading

    def current(self, session: ShardSession, source_id: int, target_id: int) -> Edge:
        """Return the latest state of an edge, of which a lock is held."""
        place = self.place(session, source_id)
        statement = self._one
        if not session.reads_latest(place):
            statement = statement.with_for_update()
        row = session.execute(
            statement,
            {"source": source_id, "target": target_id},
            bind_arguments={"place": place},
        ).one_or_none()
        return Edge() if row is None else Edge(*row)

    def current_by_number(
        self, session: ShardSession, source_id: int, number: int
    ) -> dict[int, Edge]:
        """Return the latest edges with a number that have not ended."""
        place = self.place(session, source_id)
        statement = select(self.target_id, *self._edge).where(
            self.source_id == source_id, self.number == number, self.kind != 0
        )
        if not session.reads_latest(place):
            statement = statement.with_for_update()
        rows = session.execute(statement, bind_arguments={"place": place})
        return {row[0]: Edge(*row[1:]) for row in rows.all()}

    def kinds(
        self, session: ShardSession, source_id: int, target_ids: Iterable[int]
    ) -> dict[int, int]:
        """Return the kinds of edges to given targets, with one statement.

        :returns: the kind by target, in the given order; without those that
            have no edge.
        """
        wanted = list(target_ids)
        if not wanted:
            return {}
        statement: Any = self._kinds
        values: dict[str, Any] = {"source": source_id, "targets": wanted}
        if len(wanted) <= _LISTED:
            # A list of any length is written into the SQL at each execution,
            # which takes a third of the time of SQLAlchemy.
            statement = _listed(self, len(wanted))
            values = {"source": source_id, **_numbered("target", wanted)}
        rows = session.execute(
            statement, values, bind_arguments={"place": self.place(session, source_id)}
        )
        # Not one after another, which takes as long as the rest.
        kinds = dict(map(tuple, rows.all()))
        return {one: kinds[one] for one in wanted if kinds.get(one)}

    def count(
        self, session: ShardSession, source_id: int, kinds: Iterable[int]
    ) -> dict[int, int]:
        """Return the number of edges of each kind."""
        wanted = list(kinds)
        if self.counts:
            place = self.place(session, source_id)
            stored = self.counts.read(session, place, source_id)
            return {kind: stored.get(kind, 0) for kind in wanted}
        rows = session.execute(
            _count(self, len(wanted)),
            {"source": source_id, **_numbered("kind", wanted)},
            bind_arguments={"place": self.place(session, source_id)},
        )
        return {row[0]: row[1] for row in rows}

    def page(
        self,
        session: ShardSession,
        source_id: int,
        kinds: Sequence[int],
        limit: int,
        after: str | None,
    ) -> Page[Related]:
        """Return a page of edges of some kinds, the newest first.

        :raises InvalidBookmarkError: if ``after`` is not a bookmark of this
            list.
        """
        check_limit(limit)
        subject = Subject(f"{self.name} of {source_id} {sorted(kinds)}")
        seal = session.cluster.seal
        bound = _NEWEST if after is None else unsealed(seal, after, subject)
        found = self.newest(session, source_id, kinds, bound, limit + 1)
        shown, following = found[:limit], None
        if len(found) > limit:
            mark = MARK.pack(shown[-1].sequence, shown[-1].id)
            following = seal.seal(mark, subject)
        return Page(shown, following)

    def newest(
        self,
        session: ShardSession,
        source_id: int,
        kinds: Sequence[int],
        bound: tuple[int, int],
        number: int,
    ) -> list[Related]:
        """Return the newest edges of some kinds before a bound.

        :param bound: the time and the target of the edge before them.
        """
        rows = session.execute(
            _newest(self, len(kinds)),
            {
                "source": source_id,
                "at": bound[0],
                "before": bound[1],
                "number": number,
                **_numbered("kind", kinds),
            },
            bind_arguments={"place": self.place(session, source_id)},
        )
        return [Related._make(row) for row in rows.all()]

    def after(
        self,
        session: ShardSession,
        place: Place,
        pair: Pair,
        limit: int,
        *conditions: Any,
    ) -> list[tuple[Pair, Edge]]:
        """Return the next edges of a shard, by primary key."""
        # As numbers: the first pair is not one of ids.
        source, target = (
            type_coerce(column, BigInteger())
            for column in (self.source_id, self.target_id)
        )
        there = and_(source == pair[0], target > pair[1])
        rows = session.execute(
            select(self.source_id, self.target_id, *self._edge)
            .where(source >= pair[0], or_(source > pair[0], there), *conditions)
            .order_by(source, target)
            .limit(limit),
            bind_arguments={"place": place},
        )
        return [((row[0], row[1]), Edge(*row[2:])) for row in rows.all()]

    def lasting(
        self, session: ShardSession, place: Place, source_ids: Sequence[int]
    ) -> list[tuple[Pair, Edge]]:
        """Return the edges of objects of a shard that have not ended."""
        rows = session.execute(
            select(self.source_id, self.target_id, *self._edge)
            .where(self.source_id.in_(source_ids), self.kind != 0)
            .order_by(self.source_id, self.target_id),
            bind_arguments={"place": place},
        )
        return [((row[0], row[1]), Edge(*row[2:])) for row in rows.all()]

    def pairs(self, session: ShardSession, pairs: Iterable[Pair]) -> dict[Pair, Edge]:
        """Return edges of any shards, with one statement for each server."""
        wanted = set(pairs)
        if not wanted:
            return {}
        rows = session.execute(
            select(self.source_id, self.target_id, *self._edge).where(
                self.source_id.in_({pair[0] for pair in wanted}),
                self.target_id.in_({pair[1] for pair in wanted}),
            )
        )
        found = {(row[0], row[1]): Edge(*row[2:]) for row in rows.all()}
        return {pair: found[pair] for pair in wanted & found.keys()}


def _numbered(name: str, values: Sequence[int]) -> dict[str, int]:
    return {f"{name}_{index}": one for index, one in enumerate(values)}


@lru_cache(maxsize=4 * _LISTED)
def _listed(edges: EdgeTable, targets: int) -> Any:
    """Return a SELECT of the kinds of edges to a number of targets."""
    wanted: Any = [bindparam(f"target_{index}") for index in range(targets)]
    return select(edges.target_id, edges.kind).where(
        edges.source_id == bindparam("source"), edges.target_id.in_(wanted)
    )


@lru_cache(maxsize=64)
def _count(edges: EdgeTable, kinds: int) -> Any:
    wanted: Any = [bindparam(f"kind_{index}") for index in range(kinds)]
    return (
        select(edges.kind, func.count())
        .where(edges.source_id == bindparam("source"), edges.kind.in_(wanted))
        .group_by(edges.kind)
    )


@lru_cache(maxsize=64)
def _newest(edges: EdgeTable, kinds: int) -> Any:
    """Return a SELECT of the newest edges of a number of kinds.

    There is a branch for each kind, since one index range has one kind.
    """
    columns: Any = (*(edges.target_id, edges.kind), *(edges.number, edges.sequence))
    at = bindparam("at", type_=BigInteger())
    before = bindparam("before", type_=BigInteger())
    number = bindparam("number", type_=Integer())
    target: Any = type_coerce(edges.target_id, BigInteger())
    branches = []
    for index in range(kinds):
        newest = (
            select(*columns)
            .where(
                edges.source_id == bindparam("source"),
                edges.kind == bindparam(f"kind_{index}"),
                edges.sequence <= at,
                or_(edges.sequence < at, target < before),
            )
            .order_by(edges.sequence.desc(), edges.target_id.desc())
            .limit(number)
            .subquery()
        )
        branches.append(select(*newest.c))
    rows: Any = union_all(*branches).subquery()
    first, _, _, sequence = rows.c
    return select(*rows.c).order_by(sequence.desc(), first.desc()).limit(number)


# -- Numbers of edges of each kind, changed in the transaction of the edges.
#
# A counted table of edges has a second one, ``<table>_count``.  A transaction
# that writes edges reads, under their locks, which of them it changes: an edge
# of an older version is not written, and one of the same version again is of the
# kind that it had, so operations that are late, repeated or in any order leave
# the numbers of those that were applied once.
#
# A number is spread over several rows by the targets of the edges, so that those
# who follow one user at once do not all wait for each other.


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
        self.table: Table = Table(
            f"{edges.name}_count",
            edges.table.metadata,
            Column(key[0], ObjectRef(colocated=True), **fixed),
            Column("kind", SmallInteger, **fixed),
            Column("slot", SmallInteger, **fixed),
            Column("number", BigInteger, nullable=False),
            info={COUNTING: (key, "number"), IS_FOUND: True},
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

    def forget_empty(
        self, session: ShardSession, place: Place, source_ids: Iterable[int]
    ) -> None:
        """Delete the numbers of some objects that are 0."""
        session.execute(
            delete(self.table).where(
                self._source.in_(source_ids), self.table.c.number == 0
            ),
            bind_arguments={"place": place},
        )

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
        sides: list[dict[tuple[int, int], int]] = []
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
            sides.append({(row[0], row[1]): int(row[2]) for row in rows})
        counted, stored = sides
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
