"""Statements and locks of a mapping class, and its cached lists.

Every change of a list first locks the row of its source, so that changes of
one list wait for one another instead of deadlocking.  The rows that a change
reads are locked as well: on MySQL only a locking read sees rows committed
after the transaction's snapshot.  If the source has no row, these locks
separate two writers, one of which may be the victim of a deadlock.

One statement, a SELECT of scalar subqueries, takes the lock and reads the
rows.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import (
    and_,
    BigInteger,
    bindparam,
    delete,
    func,
    inspect,
    Integer,
    or_,
    Select,
    select,
    Update,
    update,
)
from sqlalchemy.sql.elements import ColumnElement

from sqla_shard.dialects.sql import InsertAdding
from sqla_shard.engine.rendering import Place
from sqla_shard.models.class_checks import built_once
from sqla_shard.models.list_positions import reach
from sqla_shard.models.mapping_definition import End, link
from sqla_shard.planning import spec_of
from sqla_shard.session import ShardSession
from sqla_shard.session.commit import invalidate_list
from sqla_shard.session.execute import OUR_OWN
from sqla_shard.session.get import cache_in_transaction, CacheMismatch
from sqla_shard.util import sqlalchemy_private as private


class MappingStatements:
    """The statements of a mapping class.

    Their parameters: ``source`` and ``row`` (ids), ``owner`` (the source
    again, if its own row is locked), ``before`` and ``after`` (ids of
    neighbours), ``at`` (a sequence, or an id for ``ids``), ``low``, ``high``
    and ``until`` (bounds of sequences), ``ids``, and ``number`` (number of
    rows).

    :ivar source: the attribute with the source's id.
    :ivar target: the attribute with the target's id.
    :ivar table: the table.
    """

    def __init__(self, cls: Any) -> None:
        definition = link(cls)
        self.entity = cls
        self.definition = definition
        self.source: Any = getattr(cls, definition.source.column)
        self.target: Any = getattr(cls, definition.target.column)
        self.table: Any = inspect(cls).local_table
        self.counts: CountStatements | None = None
        self._build_reads()
        self._build_locks()

    def _build_reads(self) -> None:
        cls, source, target = self.entity, self.source, self.target
        here = source == bindparam("source")
        keys = target, cls.sequence
        self.count: Select[Any] = select(func.count()).select_from(cls).where(here)
        counts = self.definition.counts
        if counts is not None:
            self.counts = CountStatements(counts, self.count)
        row: Any = bindparam("row")
        self.position: Select[Any] = select(cls.sequence).where(here, target == row)
        self.present: Select[Any] = select(*keys).where(
            here, target.in_(bindparam("ids", expanding=True))
        )
        self.present_locked: Select[Any] = self.present.with_for_update()
        self.first_page: dict[bool, Any] = {
            newest: self._page(newest).where(here) for newest in (True, False)
        }
        later = {
            newest: self._page(newest).where(
                here,
                _beyond(
                    cls.sequence, target, bindparam("at"), bindparam("cut"), newest
                ),
            )
            for newest in (True, False)
        }
        until = cls.sequence <= bindparam("until")
        self.later_page: dict[bool, Any] = {
            newest: page.add_columns(self._sequence("row", lock=False).label("the_now"))
            for newest, page in later.items()
        }
        self.later_spread: dict[bool, Any] = {
            newest: page.where(until) for newest, page in later.items()
        }
        self.first_bounded: dict[bool, Any]
        self.later_bounded: dict[bool, Any]
        self.first_bounded, self.later_bounded = (
            {newest: page.where(until) for newest, page in pages.items()}
            for pages in (self.first_page, self.later_page)
        )
        self.top: Select[Any] = select(func.max(cls.sequence)).where(here)
        self.ids: dict[bool, Select[Any]] = {
            descending: select(target)
            .where(
                here,
                target <= bindparam("at") if descending else target >= bindparam("at"),
            )
            .order_by(_directed(target, descending))
            .limit(bindparam("number", type_=Integer()))
            for descending in (True, False)
        }
        self.window: Select[Any] = (
            select(*keys)
            .where(
                here,
                cls.sequence >= bindparam("low"),
                cls.sequence <= bindparam("high"),
                target != bindparam("row"),
            )
            .order_by(cls.sequence, target)
            .limit(bindparam("number", type_=Integer()))
            .with_for_update()
        )
        self.whole: Select[Any] = (
            select(*keys).where(here).order_by(cls.sequence, target).with_for_update()
        )

    def _page(self, newest: bool) -> Any:
        cls, target = self.entity, self.target
        # Select the keys in addition to the rows: an object of the session has
        # the values of an earlier read, but bookmarks need the server's
        # values.
        return (
            select(cls, target.label("the_id"), cls.sequence.label("the_sequence"))
            .order_by(_directed(cls.sequence, newest))
            .order_by(_directed(target, newest))
            .limit(bindparam("number", type_=Integer()))
        )

    def _build_locks(self) -> None:
        moved = self._sequence("row")
        self.lock_row: Any = self._locking(row=moved)
        self.lock_top: Any = self._locking(row=moved, top=self._top())
        # The lock of a piece is another statement, see Piece.locked().
        self.lock_list: Any = self._locking()
        self.lock_many: Any = self._locking(top=self._top())
        self.lock_source: Any = self._source_lock()
        before = self._sequence("before")
        after = self._sequence("after")
        behind = self._neighbour("before", below=True)
        ahead = self._neighbour("after", below=False)
        self.lock_before: Any = self._locking(row=moved, before=before, **behind)
        self.lock_after: Any = self._locking(row=moved, after=after, **ahead)
        both = {"before": before, "after": after}
        self.lock_both: Any = self._locking(row=moved, **both, **behind)

    # -- parts

    def rows_beside(self, table: Any) -> Any:
        """Return the number of rows of the list of each row of a table.

        :param table: a table whose first column has sources.
        """
        rows = self.table.alias()
        source = rows.c[self.definition.source.column]
        return (
            select(func.count())
            .select_from(rows)
            .where(source == table.columns[0])
            .scalar_subquery()
        )

    def _locking(self, **parts: Any) -> Any:
        """Return a SELECT of subqueries: a lock, the parts, the lock again.

        Servers evaluate subqueries in the order of the statement or, as
        MariaDB does, in the reverse; in both cases the lock is first.
        """
        if self.definition.spread > 1:
            named = (part.label(f"the_{name}") for name, part in parts.items())
            return select(*named).with_for_update() if parts else None
        return select(
            self._source_lock().scalar_subquery().label("the_lock"),
            *(part.label(f"the_{name}") for name, part in parts.items()),
            self._source_lock().scalar_subquery().label("the_lock_again"),
        ).with_for_update()

    def _source_lock(self) -> Any:
        entity: Any = self.definition.source.entity
        owner: Any = inspect(entity).local_table
        own = owner.primary_key.columns[0]
        return (
            select(own)
            # Do not use ``source``: a parameter has one type, and this column
            # contains local ids.
            .where(own == bindparam("owner", type_=own.type))
            .with_for_update()
        )

    def _columns(self) -> tuple[Any, Any, Any]:
        # Use an alias for each subquery: otherwise it would be correlated with
        # the enclosing statement.
        table = self.table.alias()
        definition = self.definition
        return (
            table.c[definition.source.column],
            table.c[definition.target.column],
            table.c.sequence,
        )

    def _sequence(self, name: str, *, lock: bool = True) -> Any:
        """Return the sequence of the row whose id is a parameter."""
        source, target, sequence = self._columns()
        statement = select(sequence).where(
            source == bindparam("source", type_=source.type),
            target == bindparam(name, type_=target.type),
        )
        if lock:
            statement = statement.with_for_update()
        return statement.scalar_subquery()

    def _top(self) -> Any:
        source, target, sequence = self._columns()
        return (
            select(sequence)
            .where(source == bindparam("source", type_=source.type))
            .order_by(sequence.desc(), target.desc())
            .limit(1)
            .with_for_update()
            .scalar_subquery()
        )

    def _neighbour(self, anchor: str, *, below: bool) -> dict[str, Any]:
        """Return id and sequence of the row next to an anchor.

        The moved row, ``row``, is not its own neighbour.
        """
        return {
            "next": self._next_to(anchor, 1, below),
            "next_at": self._next_to(anchor, 2, below),
        }

    def _next_to(self, anchor: str, shown: int, below: bool) -> Any:
        columns = self._columns()
        source, target, sequence = columns
        at = self._sequence(anchor)
        name = bindparam(anchor, type_=target.type)
        return (
            select(columns[shown])
            .where(
                source == bindparam("source", type_=source.type),
                _beyond(sequence, target, at, name, below),
                target != bindparam("row", type_=target.type),
            )
            .order_by(_directed(sequence, below), _directed(target, below))
            .limit(1)
            .with_for_update()
            .scalar_subquery()
        )


def _directed(column: Any, newest: bool) -> Any:
    return column.desc() if newest else column.asc()


def _beyond(
    sequence: Any, target: Any, at: Any, row: Any, newest: bool
) -> ColumnElement[bool]:
    """Return the condition of the rows that follow a key.

    A comparison of tuples is avoided: MySQL does not use the index for it.

    :param at: sequence of the key.
    :param row: target id of the key.
    """
    if newest:
        return and_(sequence <= at, or_(sequence < at, target < row))
    return and_(sequence >= at, or_(sequence > at, target > row))


def statements_of(cls: Any) -> MappingStatements:
    """Return the statements of a mapping class.

    :raises ClassDefinitionError: if a class given by name is not found.
    """
    return built_once(cls, MappingStatements)


#: Maximum number of ids in a statement.  MariaDB makes a table of 1,000 values,
#: and may join it with all rows of a list, which are then locked.
_CHUNK = 900


class List:
    """One list: a mapping class, a session and the id of a source.

    :ivar statements: the statements of the mapping class.
    :ivar place: the virtual shard of the source.
    :ivar slot: number of the row with the stored count.
    :raises WrongTypeError: if the id is of another class than the source.
    :raises InvalidIdError: if it is not an object id.
    :raises UnknownShardError: if its shard is not open.
    """

    slot = 0

    def __init__(self, cls: Any, session: ShardSession, source_id: int) -> None:
        self.cls = cls
        self.session = session
        self.source_id = source_id
        self.statements: MappingStatements = statements_of(cls)
        source = self.statements.definition.source
        self.place: Place = place_of(cls, session, source, source_id)

    @property
    def name(self) -> str:
        """Name of the mapping class."""
        return str(self.cls.__name__)

    @property
    def places(self) -> Sequence[Place]:
        """The virtual shards of the rows that are read."""
        return (self.place,)

    def part_of(self, target_id: int) -> List:
        """Return the list, or the piece of it that may have a target."""
        return self

    def parts(self) -> Sequence[List]:
        """Return the pieces of the list; the list itself if it has none."""
        return (self,)

    @property
    def holders(self) -> Sequence[List]:
        """The pieces with the row that was locked last."""
        return (self,)

    def settle(self, target_id: int) -> None:
        """Prepare the removal of a target, before the list is locked."""

    def grouped(
        self, target_ids: Sequence[int]
    ) -> Sequence[tuple[List, Sequence[int]]]:
        """Return targets with the pieces that may have them."""
        return ((self, target_ids),)

    def most(self, number: int) -> int:
        """Return the number of rows among which there are as many targets."""
        return number

    def limited_to(self, target_ids: Iterable[int]) -> List:
        """Return a list that reads only the pieces that may have targets."""
        return self

    def check_target(self, target_id: int) -> int:
        """Return the id of a target.

        :raises WrongTypeError: if it is the id of another class.
        :raises InvalidIdError: if it is not an object id.
        """
        self.statements.definition.target.shard_of(self.cls, target_id)
        return target_id

    def readable(self, target_id: int) -> int:
        """Return the id of a target that is added to the list.

        A page with a target on a shard that is not open could not be read.

        :raises WrongTypeError: if it is the id of another class.
        :raises InvalidIdError: if it is not an object id.
        :raises UnknownShardError: if its shard is not open.
        """
        target = self.statements.definition.target
        place_of(self.cls, self.session, target, target_id)
        return target_id

    def execute(self, statement: Any, **parameters: Any) -> Any:
        """Run one of the statements on the list's shard."""
        return self.session.execute(
            statement,
            {"source": self.source_id, **parameters},
            bind_arguments={"place": self.place},
        )

    def locked(self, statement: Any, **parameters: Any) -> Any:
        """Run one of the locking statements; return its parts.

        Pending changes of the session are flushed first, so that the statement
        sees them, and the source is locked before any other row.
        """
        if self.session.autoflush:
            self.session.flush()
        _, *parts, _ = self.execute(statement, owner=self.source_id, **parameters).one()
        return parts

    def lock(self) -> None:
        """Lock the list for a change."""
        self.locked(self.statements.lock_list)

    def present(self, target_ids: Sequence[int]) -> set[int]:
        """Return the targets with a row, which are locked."""
        return {
            target_id
            for some in chunked(target_ids)
            for target_id, _ in self.execute(self.statements.present_locked, ids=some)
        }

    def discard(self, target_id: int) -> None:
        """Delete the row of a target of the list, which is locked."""
        self.delete(self.statements.target == target_id)
        add_to_count(self, -1)

    def forget_copies(self) -> int:
        """Set the number of copies to 0; return the number before."""
        return 0

    def invalidate(self) -> None:
        """Invalidate the list in the cache."""
        table = self.statements.table
        invalidate_list(self.session, self.place, table, self.source_id)

    def delete(self, *conditions: Any) -> int:
        """Delete rows of the list that match; return their number."""
        is_spread = self.statements.definition.spread > 1
        result: Any = self.session.execute(
            delete(self.cls).where(
                self.statements.source == self.source_id, *conditions
            ),
            bind_arguments={"place": self.place} if is_spread else None,
            execution_options=OUR_OWN,
        )
        return int(result.rowcount)

    def cache_appended(self, rows: Sequence[tuple[int, int]]) -> None:
        """Add rows to the top of the cached list.

        :param rows: target id and sequence of each row, ascending.
        """
        caching = self.session.cluster.cache
        table = self.statements.table
        if caching is not None and caching.is_cached(table):
            caching.record_append(self.session, table, self.source_id, rows)

    def key(self, target_id: int) -> Any:
        """Return the identity key of a row."""
        return inspect(self.cls).identity_key_from_primary_key(
            (self.source_id, target_id)
        )

    def forget(self, target_ids: Iterable[int]) -> None:
        """Expire the sequences of rows in the session."""
        held = self.session.identity_map
        for target_id in target_ids:
            row = held.get(self.key(target_id))
            if row is not None:
                self.session.expire(row, ["sequence"])
                # Otherwise the rollback of a savepoint, which expires only the
                # changes made in it, would leave the new sequence.
                private.register_altered(self.session, [inspect(row)])


def place_of(cls: Any, session: ShardSession, end: End, object_id: int) -> Place:
    """Return the virtual shard of a source or a target.

    :raises WrongTypeError: if the id is of another class.
    """
    shard_id = end.shard_of(cls, object_id)
    places = session.places
    spec = spec_of(inspect(end.entity).local_table)
    keyspace = places.keyspace(spec.keyspace, "objects", spec.layout)
    return places.place(keyspace, shard_id)


def chunked(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    """Yield the ids in chunks for one statement each."""
    for start in range(0, len(ids), _CHUNK):
        yield ids[start : start + _CHUNK]


# -- cached lists


class NotCached(Exception):  # noqa: N818 - no error
    """The cached rows do not contain the answer; read the database."""


class CachedRows:
    """The first rows of a list, from the cache.

    A key is a sequence and a target's id; rows are numbered newest first.

    :ivar max_shift: upper bound of the distance by which a re-spacing moves a
        row.
    """

    def __init__(self, rows: List, prefix: Any) -> None:
        self._list = rows
        self._prefix = prefix
        # bisect_left() requires ascending keys.
        self._ascending = prefix.keys[::-1]
        self.max_shift: int = reach(rows.statements.definition.respace_to)

    def first(self, number: int, newest_first: bool) -> Sequence[int]:
        """Return the numbers of the rows of the first page.

        :raises NotCached: if more rows are needed.
        """
        return self._slice(0, number, newest_first)

    def rows_after(
        self, cut: tuple[int, int], number: int, newest_first: bool
    ) -> Sequence[int]:
        """Return the numbers of the rows after a key.

        :raises NotCached: if more rows are needed.
        """
        count = len(self._ascending)
        below = bisect_left(self._ascending, cut)
        if newest_first:
            return self._slice(count - below, number, True)
        is_there = self._ascending[below : below + 1] == [cut]
        return self._slice(below + is_there, number, False)

    def _slice(self, start: int, number: int, newest_first: bool) -> Sequence[int]:
        count = len(self._ascending)
        if not self._prefix.is_whole and (not newest_first or start + number > count):
            raise NotCached
        numbers = range(start, min(start + number, count))
        return numbers if newest_first else [count - 1 - i for i in numbers]

    @property
    def keys(self) -> Sequence[tuple[int, int]]:
        """The keys of the rows."""
        keys: Sequence[tuple[int, int]] = self._prefix.keys
        return keys

    def sequence(self, target_id: int) -> int | None:
        """Return the sequence of a target; None if it is not in the list.

        :raises NotCached: if the target may be further down the list.
        """
        sequence: int | None = self._prefix.sequences.get(target_id)
        if sequence is None and not self._prefix.is_whole:
            raise NotCached
        return sequence

    def present(self, target_ids: Iterable[int]) -> set[int]:
        """Return the targets that are in the list.

        :raises NotCached: if a target may be further down the list.
        """
        return {i for i in target_ids if self.sequence(i) is not None}

    def count(self) -> int:
        """Return the length of the list.

        :raises NotCached: if the list is longer than the cached rows.
        """
        if not self._prefix.is_whole:
            raise NotCached
        return len(self._ascending)

    def objects(self, numbers: Sequence[int]) -> list[Any]:
        """Return the rows with the given numbers as objects of the session.

        :raises NotCached: if the statement needs other rows.
        """
        rows = [self._prefix.rows[number] for number in numbers]
        own = self._list
        caching = own.session.cluster.cache
        if not rows or caching is None:
            return []
        table = own.statements.table
        try:
            objects = caching.rows(own.session, table, own.place, own.source_id, rows)
        except CacheMismatch:
            raise NotCached from None
        if objects is None:
            raise NotCached
        return objects


def cached_rows(lists: Iterable[List]) -> Mapping[int, CachedRows]:
    """Return the cached rows of lists of one class, by source.

    :returns: an empty mapping if the class is not read from the cache.
    """
    by_source = {rows.source_id: rows for rows in lists}
    if not by_source:
        return {}
    any_of_them = next(iter(by_source.values()))
    session, table = any_of_them.session, any_of_them.statements.table
    caching = cache_in_transaction(session, table)
    if caching is None:
        return {}
    places = {i: rows.place for i, rows in by_source.items()}
    prefixes = caching.read(session, table, places)
    return {i: CachedRows(rows, prefixes[i]) for i, rows in by_source.items()}


def cached_count(rows: List, ask: Callable[[Any], int]) -> int | None:
    """Return the length of a list; None if it is not read from the cache.

    :param ask: reads the length from the database, in a session.
    """
    session, table = rows.session, rows.statements.table
    caching = cache_in_transaction(session, table)
    if caching is None:
        return None
    return caching.count(session, table, rows.place, rows.source_id, ask)


class CountStatements:
    """The statements on the numbers of a class.

    :param table: the table of the numbers.
    :param rows: a SELECT of the number of rows, for a parameter ``source``.
    """

    def __init__(self, table: Any, rows: Any) -> None:
        self.table = table
        source = table.columns[0]
        self.source: Any = source
        here = (
            source == bindparam("source", type_=source.type),
            table.c.slot == bindparam("the_slot", type_=Integer()),
        )
        self.read: Select[Any] = select(table.c.number).where(*here)
        self.total: Select[Any] = select(func.sum(table.c.number)).where(here[0])
        self.read_locked: Select[Any] = self.read.with_for_update()
        self.add: InsertAdding = InsertAdding(table).values(
            {
                source: bindparam("source", type_=source.type),
                table.c.slot: bindparam("the_slot", type_=Integer()),
                table.c.number: bindparam("delta", type_=BigInteger()),
            }
        )
        #: The transaction may have an older snapshot, so read locked rows.
        self.rows: Any = rows.with_for_update(read=True)
        self.set: Update = (
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
    number: int | None = session.execute(
        counts.read,
        {"source": rows.source_id, "the_slot": rows.slot},
        bind_arguments={"place": rows.place},
    ).scalar()
    return number


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
