"""Changes of lists: rows appended, removed, moved, re-spaced; targets of many lists."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TYPE_CHECKING

from sqlalchemy import case, insert, literal, select, update

from sqla_shard.engine import scatter as everywhere
from sqla_shard.exc import (
    InvalidMoveError,
    MissingTargetError,
    SequenceExhaustedError,
    StaleNeighbourError,
)
from sqla_shard.ids.layout import ids_in, invalid_id_error
from sqla_shard.models.inverse_mapping import write_inverse
from sqla_shard.models.list_pages import position, PositionKey
from sqla_shard.models.list_positions import (
    middle,
    moves_in,
    next_on_top,
    push_up,
    STEP,
    windows,
)
from sqla_shard.models.mapping_definition import link
from sqla_shard.models.mapping_list import add_to_count, chunked, List, statements_of
from sqla_shard.models.spread_list import is_moving, list_of
from sqla_shard.session import ShardSession
from sqla_shard.session.execute import OUR_OWN
from sqla_shard.types.columns import MAX_SEQUENCE

if TYPE_CHECKING:
    from sqla_shard import Cluster


# -- append and remove


def append(rows: List, target_id: int) -> bool:
    """Add a target to the top of a list; False if it is in the list."""
    rows = rows.part_of(rows.readable(target_id))
    current, top = rows.locked(rows.statements.lock_top, row=target_id)
    if current is not None:
        return False
    first = next_on_top(top)
    _check_room(rows, first)
    _insert(rows, {target_id: first})
    return True


def append_many(rows: List, target_ids: Iterable[int]) -> list[int]:
    """Add targets to the top of the list; return the added targets."""
    wanted = list(
        dict.fromkeys(map(rows.readable, ids_in("append_many()", target_ids)))
    )
    if not wanted:
        return []
    statements = rows.statements
    parts = rows.grouped(wanted)
    tops: list[int] = []
    present: set[int] = set()
    for part, ids in parts:
        (top,) = part.locked(statements.lock_many)
        tops += [] if top is None else [top]
        present |= part.present(ids)
    added = [i for i in wanted if i not in present]
    first = next_on_top(max(tops, default=None))
    _check_room(rows, first + max(len(added) - 1, 0) * STEP)
    placed = {i: first + index * STEP for index, i in enumerate(added)}
    for part, ids in parts:
        for some in chunked([i for i in ids if i in placed]):
            _insert(part, {i: placed[i] for i in some})
    return added


def put(rows: List, target_id: int, sequence: int) -> bool:
    """Put a target at a position; False if it is there.

    :param rows: the list, invalidated in the cache.
    """
    part = rows.part_of(rows.readable(target_id))
    (current,) = part.locked(part.statements.lock_row, row=target_id)
    if current == sequence:
        return False
    _check_room(part, sequence)
    if current is not None:
        remove(rows, target_id)
    _insert(part, {target_id: sequence})
    # Not on top of the cached list.
    part.invalidate()
    return True


def put_many(rows: List, sequences: Mapping[int, int]) -> list[int]:
    """Put targets at positions; return those that were not there.

    :param rows: the list, invalidated in the cache.
    :param sequences: the positions by target.
    """
    if not isinstance(sequences, Mapping):
        raise invalid_id_error(
            "put_many() takes a dict of positions by target, not {}", sequences
        )
    changed = []
    wanted = [rows.readable(target_id) for target_id in sequences]
    for part, ids in rows.grouped(wanted):
        part.lock()
        present = part.present(ids)
        new = [target_id for target_id in ids if target_id not in present]
        for some in chunked(new):
            placed = {target_id: sequences[target_id] for target_id in some}
            _check_room(part, max(placed.values()))
            _insert(part, placed)
        # Not on top of the cached list.
        part.invalidate()
        changed += new
        for target_id in filter(present.__contains__, ids):
            if put(rows, target_id, sequences[target_id]):
                changed.append(target_id)
    return changed


def _check_room(rows: List, sequence: int) -> None:
    if sequence > MAX_SEQUENCE:
        raise SequenceExhaustedError(
            mapping=rows.name, source_id=rows.source_id, rows=1
        )


def _insert(rows: List, placed: Mapping[int, int]) -> None:
    """Insert rows into a list, or a piece of one, whose lock is held.

    :param placed: sequences by target.
    """
    statements = rows.statements
    definition = statements.definition
    # The rows of a piece are not on the shard that their ids name.
    table = rows.cls if definition.spread == 1 else statements.table
    at = None if definition.spread == 1 else {"place": rows.place}
    try:
        rows.session.execute(
            insert(table),
            [
                {
                    definition.source.column: rows.source_id,
                    definition.target.column: target_id,
                    "sequence": sequence,
                }
                for target_id, sequence in placed.items()
            ],
            bind_arguments=at,
            execution_options=OUR_OWN,
        )
    except BaseException:
        # A part of the rows may have been inserted.
        rows.invalidate()
        raise
    add_to_count(rows, len(placed))
    rows.cache_appended(list(placed.items()))
    write_inverse(rows, placed)


def remove(rows: List, target_id: int) -> bool:
    """Remove a target from a list; False if it is not in the list."""
    rows = rows.part_of(rows.check_target(target_id))
    rows.settle(target_id)
    (current,) = rows.locked(rows.statements.lock_row, row=target_id)
    if current is None:
        return False
    rows.discard(target_id)
    write_inverse(rows, {target_id: None})
    return True


def clear(rows: List) -> int:
    """Remove all rows; return their number."""
    return sum(map(_clear, rows.parts())) - rows.forget_copies()


def _clear(rows: List) -> int:
    rows.locked(rows.statements.lock_many)
    removed: dict[int, int | None] = {}
    if rows.statements.definition.inverse_class is not None:
        rows_there = rows.execute(rows.statements.whole)
        removed = {target_id: None for target_id, _ in rows_there}
    number = rows.delete()
    add_to_count(rows, -number)
    write_inverse(rows, removed)
    return number


@dataclass(frozen=True)
class NarrowGap:
    """A gap next to a moved row with room for few further moves.

    :ivar mapping: the mapping class.
    :ivar source_id: the source of the list.
    :ivar target_id: the target that was moved.
    :ivar moves_left: number of moves that the gap has room for.
    """

    mapping: type[Any]
    source_id: int
    target_id: int
    moves_left: int


@dataclass(frozen=True)
class _Gap:
    """The new position of a row.

    :ivar above: the row ahead of the position in newest-first order; None on
        top.
    :ivar below: the row after the position; None at the end.
    """

    above: PositionKey | None
    below: PositionKey | None

    @property
    def high(self) -> int | None:
        """The sequence of the row above."""
        return None if self.above is None else self.above.sequence

    @property
    def low(self) -> int | None:
        """The sequence of the row below."""
        return None if self.below is None else self.below.sequence


def move(rows: List, target_id: int, before: int | None, after: int | None) -> int:
    """Move a row between two others; return its new sequence."""
    _check(rows, target_id, before, after)
    _refuse_spread(rows, target_id, before, after)
    current, gap = _locked_gap(rows, target_id, before, after)
    own = PositionKey(current, target_id)
    if (gap.above is None or own < gap.above) and (
        gap.below is None or own > gap.below
    ):
        return current
    sequence = middle(gap.low, gap.high)
    if sequence is None:
        return _squeeze_in(rows, target_id, gap)
    _write(rows, {target_id: sequence})
    if _report(rows, target_id, sequence, gap):
        # A callback may have re-spaced the rows.
        return position(rows, target_id) or sequence
    return sequence


def _check(rows: List, target_id: int, before: int | None, after: int | None) -> None:
    given = [rows.check_target(i) for i in (before, after) if i is not None]
    rows.check_target(target_id)
    problem = None
    if not given:
        problem = (
            f"the new position of {target_id} is missing: before= is the row "
            "ahead of it, after= the row after it, newest first"
        )
    elif target_id in given:
        problem = f"{target_id} cannot be its own neighbour"
    elif before == after:
        problem = f"{before} cannot be on both sides of {target_id}"
    if problem is not None:
        raise InvalidMoveError(problem, target_id=target_id, before=before, after=after)


def _refuse_spread(
    rows: List, target_id: int, before: int | None, after: int | None
) -> None:
    """Refuse a move in a spread list: no lock covers the neighbours."""
    if rows.statements.definition.spread > 1:
        raise InvalidMoveError(
            f"{rows.name} is spread over several shards, and its rows are in "
            "the order of their append; remove the target and append it "
            "again to put it on top",
            target_id=target_id,
            before=before,
            after=after,
        )


def _locked_gap(
    rows: List, target_id: int, before: int | None, after: int | None
) -> tuple[int, _Gap]:
    """Return the row's sequence and its new neighbours, all locked."""
    lock = rows.statements
    ahead: int | None = None
    behind: int | None = None
    if after is None:
        current, ahead, neighbour, at = rows.locked(
            lock.lock_before, row=target_id, before=before
        )
    elif before is None:
        current, behind, neighbour, at = rows.locked(
            lock.lock_after, row=target_id, after=after
        )
    else:
        current, ahead, behind, neighbour, at = rows.locked(
            lock.lock_both, row=target_id, before=before, after=after
        )
    if current is None:
        raise MissingTargetError(
            mapping=rows.name, source_id=rows.source_id, target_id=target_id
        )
    above = _key(ahead, before)
    below = _key(behind, after)
    missing = [
        i
        for i, key in ((before, above), (after, below))
        if i is not None and key is None
    ]
    reversed_ = above is not None and below is not None and above < below
    if missing or reversed_:
        raise StaleNeighbourError(
            mapping=rows.name,
            source_id=rows.source_id,
            target_id=target_id,
            before=before,
            after=after,
            missing=tuple(missing),
        )
    found = _key(at, neighbour)
    if above is None:
        return current, _Gap(above=found, below=below)
    return current, _Gap(above=above, below=found)


def _key(sequence: int | None, target_id: int | None) -> PositionKey | None:
    if sequence is None or target_id is None:
        return None
    return PositionKey(sequence, target_id)


def _report(rows: List, target_id: int, sequence: int, gap: _Gap) -> bool:
    """Call the callbacks if the gap on one side of the row is narrow.

    :returns: whether a callback was called.
    """
    definition = rows.statements.definition
    room = [abs(at - sequence) for at in (gap.low, gap.high) if at is not None]
    moves = min(map(moves_in, room))
    if moves >= definition.narrow_below or not definition.callbacks:
        return False
    narrow = NarrowGap(rows.cls, rows.source_id, target_id, moves)
    for callback in definition.callbacks:
        callback(rows.session, narrow)
    return True


# -- re-spacing


def _squeeze_in(rows: List, target_id: int, gap: _Gap) -> int:
    """Re-space the rows around a gap, and insert a row into it."""
    center = gap.low if gap.high is None else gap.high
    assert center is not None  # noqa: S101  # a gap has at least one side
    placed = _spread(rows, center, PositionKey(center, target_id), gap)
    return placed[target_id]


def respace(rows: List, target_id: int) -> int:
    """Re-space the rows around a target; return the number of changes."""
    rows = rows.part_of(rows.check_target(target_id))
    (current,) = rows.locked(rows.statements.lock_row, row=target_id)
    if current is None:
        raise MissingTargetError(
            mapping=rows.name, source_id=rows.source_id, target_id=target_id
        )
    if rows.statements.definition.spread > 1:
        return 0  # without moves, all gaps are wide
    return len(_spread(rows, current, None, None))


def _spread(
    rows: List, center: int, added: PositionKey | None, gap: _Gap | None
) -> dict[int, int]:
    """Spread the rows around a position; return the changed sequences.

    :param added: a row to move into ``gap``.
    :raises SequenceExhaustedError: if there is no room for the rows.
    """
    moves = rows.statements.definition.respace_to
    most = 0
    for window in windows(center, moves):
        most = window.capacity
        window_rows = rows.execute(
            rows.statements.window,
            low=window.low,
            high=window.high,
            # No row has the id 0.
            row=0 if added is None else added.target_id,
            number=max(most, 0) + 1,
        )
        keys = [PositionKey(sequence, target_id) for target_id, sequence in window_rows]
        if added is not None and gap is not None:
            keys = _with_moved_row(keys, added, gap)
        if len(keys) <= most:
            break
    else:
        raise SequenceExhaustedError(
            mapping=rows.name, source_id=rows.source_id, rows=most
        )
    new = window.spread(len(keys))
    changed = {
        key.target_id: sequence
        for key, sequence in zip(keys, new, strict=True)
        if key is added or key.sequence != sequence
    }
    _write(rows, changed)
    return changed


def _with_moved_row(
    keys: list[PositionKey], added: PositionKey, gap: _Gap
) -> list[PositionKey]:
    """Return rows, lowest first, with a row inserted between neighbours."""
    if gap.below is not None:
        index = bisect_right(keys, gap.below)
    else:
        assert gap.above is not None  # noqa: S101  # a gap has a side
        index = bisect_left(keys, gap.above)
    return [*keys[:index], added, *keys[index:]]


def respace_all(rows: List) -> int:
    """Widen the narrow gaps of a list; return the number of changed rows."""
    if rows.statements.definition.spread > 1:
        return 0  # without moves, all gaps are wide
    rows.locked(rows.statements.lock_many)
    moves = rows.statements.definition.respace_to
    keys = [
        PositionKey(sequence, target_id)
        for target_id, sequence in rows.execute(rows.statements.whole)
    ]
    changed = {}
    for key, sequence in zip(
        keys, push_up((key.sequence for key in keys), moves), strict=True
    ):
        if sequence > MAX_SEQUENCE:
            raise SequenceExhaustedError(
                mapping=rows.name, source_id=rows.source_id, rows=len(keys)
            )
        if sequence != key.sequence:
            changed[key.target_id] = sequence
    _write(rows, changed)
    return len(changed)


def _write(rows: List, sequences: dict[int, int]) -> None:
    """Write new sequences, many with one statement."""
    cls, statements = rows.cls, rows.statements
    kind = cls.sequence.type
    for part in chunked(list(sequences)):
        if len(part) == 1:
            new: Any = sequences[part[0]]
            chosen = statements.target == part[0]
        else:
            new = case(
                {i: literal(sequences[i], kind) for i in part}, value=statements.target
            )
            chosen = statements.target.in_(part)
        rows.session.execute(
            update(cls)
            .where(statements.source == rows.source_id, chosen)
            .values(sequence=new),
            execution_options={**OUR_OWN, "synchronize_session": False, **_cache(part)},
        )
    rows.forget(sequences)


def _cache(part: Sequence[int]) -> dict[str, Any]:
    # Do not cache the statement: a re-spacing is rare, and its statement has a
    # branch per row, so that each number of rows would be another entry of the
    # statement cache.
    return {} if len(part) == 1 else {"compiled_cache": None}


def intersect(one: List, other: List, descending: bool, batch: int) -> Iterator[int]:
    """Return an iterator of the targets that are in both lists.

    :raises ValueError: if their targets are of different classes.
    """
    ours, theirs = (rows.statements.definition.target for rows in (one, other))
    if (ours.type_id, ours.layout) != (theirs.type_id, theirs.layout):
        raise ValueError(
            f"other={other.name} has targets of {theirs.entity_name}, and "
            f"{one.name} of {ours.entity_name}: they have no common ids"
        )
    return _common(one, other, descending, batch)


def _common(one: List, other: List, descending: bool, batch: int) -> Iterator[int]:
    nearest, step = (max, -1) if descending else (min, 1)
    highest = one.statements.definition.target.layout.max_id
    at: int | None = highest if descending else 0
    while at is not None:
        ours = _ids(one, at, descending, batch)
        if not ours:
            return
        theirs = _ids(other, ours[0], descending, batch)
        if not theirs:
            return
        present = set(theirs)
        yield from (i for i in ours if i in present)
        ends = ours[-1], theirs[-1]
        end = nearest(ends)
        is_last = any(len(ids) < batch and ids[-1] == end for ids in (ours, theirs))
        at = None if is_last else end + step
        if nearest(ours[-1], theirs[0]) == ours[-1] != theirs[0]:
            # No id of the second list is before its first one.
            at = None if len(ours) < batch else theirs[0]


def _ids(rows: List, at: int, descending: bool, number: int) -> list[int]:
    """Return targets from an id on, by id."""
    statement = rows.statements.ids[descending]
    result = rows.execute(statement, at=at, number=rows.most(number))
    return list(dict.fromkeys(result.scalars()))[:number]


def clear_target(
    cls: Any, cluster: Cluster, target_id: int, scatter: bool, batch: int
) -> int:
    """Remove a target from all lists; return the number of lists."""
    definition = link(cls)
    if definition.inverse_class is not None:
        chunks = _holders(definition.inverse_class, cluster, target_id, batch)
    elif scatter:
        chunks = _scattered(cls, cluster, target_id, batch)
    else:
        raise ValueError(
            f"scatter=False, and {cls.__name__} has no inverse, in which the "
            "lists with a target are found; pass scatter=True to read all "
            "shards"
        )
    return sum(
        cluster.run(partial(_remove, cls, target_id, part))
        for chunk in chunks
        for part in _by_place(cls, cluster, target_id, chunk)
    )


def _remove(
    cls: Any, target_id: int, source_ids: Sequence[int], session: ShardSession
) -> int:
    return sum(cls.remove(session, i, target_id) for i in source_ids)


def _holders(
    inverse: Any, cluster: Cluster, target_id: int, batch: int
) -> Iterator[list[int]]:
    """Yield the sources of the lists with a target, by id.

    A reverse row may exist until its operation is applied, so each chunk
    begins after the one before.
    """
    at = 0
    while True:
        with cluster.session() as session:
            source_ids = _ids(list_of(inverse, session, target_id), at, False, batch)
        if source_ids:
            yield source_ids
        if len(source_ids) < batch:
            return
        at = source_ids[-1] + 1


def _scattered(
    cls: Any, cluster: Cluster, target_id: int, batch: int
) -> Iterator[list[int]]:
    statements = statements_of(cls)
    there = (
        select(statements.source)
        .where(statements.target == target_id)
        .order_by(statements.source)
        .options(everywhere())
    )
    with cluster.session() as session:
        source_ids = list(session.scalars(there))
    for start in range(0, len(source_ids), batch):
        yield source_ids[start : start + batch]


def _by_place(
    cls: Any, cluster: Cluster, target_id: int, source_ids: Sequence[int]
) -> Iterator[list[int]]:
    """Yield the sources whose rows are on one shard."""
    grouped: dict[Any, list[int]] = {}
    with cluster.session() as session:
        for source_id in source_ids:
            part = list_of(cls, session, source_id).part_of(target_id)
            # Of moving rows, two lists may be written on different shards.
            key = source_id if is_moving(cls) else part.place
            grouped.setdefault(key, []).append(source_id)
    yield from grouped.values()
