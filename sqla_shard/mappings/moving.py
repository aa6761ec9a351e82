"""Moving a row to another place, and making room where there is none."""

from __future__ import annotations

from bisect import bisect_left
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import case
from sqlalchemy import literal
from sqlalchemy import update

from sqla_shard.exc import InvalidMoveError
from sqla_shard.exc import MissingTargetError
from sqla_shard.exc import SequenceExhaustedError
from sqla_shard.exc import StaleNeighbourError
from sqla_shard.mappings.bookmarks import Key
from sqla_shard.mappings.lists import chunked
from sqla_shard.mappings.lists import List
from sqla_shard.mappings.ordering import middle
from sqla_shard.mappings.ordering import moves_in
from sqla_shard.mappings.ordering import push_up
from sqla_shard.mappings.ordering import windows
from sqla_shard.mappings.pages import position
from sqla_shard.session.contract import OUR_OWN
from sqla_shard.types.sequences import MAX_SEQUENCE

__all__ = ["NarrowGap", "move", "respace", "respace_all"]


@dataclass(frozen=True)
class NarrowGap:
    """A gap beside a moved row that does not take many moves any more.

    :ivar mapping: the mapping class.
    :ivar source_id: whose list it is.
    :ivar target_id: the row that was moved.
    :ivar moves_left: how many moves the gap takes.
    """

    mapping: type[Any]
    source_id: int
    target_id: int
    moves_left: int


@dataclass(frozen=True)
class _Gap:
    """Where a row is to go.

    :ivar above: the row ahead of it in newest-first order; None on top.
    :ivar below: the row behind it; None at the end.
    """

    above: Key | None
    below: Key | None

    @property
    def high(self) -> int | None:
        """The position above."""
        return None if self.above is None else self.above.sequence

    @property
    def low(self) -> int | None:
        """The position below."""
        return None if self.below is None else self.below.sequence


def move(
    rows: List, target_id: int, before: int | None, after: int | None
) -> int:
    """Move a row between two others; return its new sequence."""
    _check(rows, target_id, before, after)
    current, gap = _locked_gap(rows, target_id, before, after)
    own = Key(current, target_id)
    if (gap.above is None or own < gap.above) and (
        gap.below is None or own > gap.below
    ):
        return current
    sequence = middle(gap.low, gap.high)
    if sequence is None:
        return _squeeze_in(rows, target_id, gap)
    _write(rows, {target_id: sequence})
    if _report(rows, target_id, sequence, gap):
        # Whoever was called may have re-spaced the rows.
        return position(rows, target_id) or sequence
    return sequence


def _check(
    rows: List, target_id: int, before: int | None, after: int | None
) -> None:
    given = [rows.checked(i) for i in (before, after) if i is not None]
    rows.checked(target_id)
    problem = None
    if not given:
        problem = (
            f"say where {target_id} goes: before= is the row ahead of it, "
            "after= the row behind it, newest first"
        )
    elif target_id in given:
        problem = f"{target_id} cannot be its own neighbour"
    elif before == after:
        problem = f"{before} cannot be on both sides of {target_id}"
    if problem is not None:
        raise InvalidMoveError(
            problem, target_id=target_id, before=before, after=after
        )


def _locked_gap(
    rows: List, target_id: int, before: int | None, after: int | None
) -> tuple[int, _Gap]:
    """Return the row's sequence and its new neighbours, all locked."""
    lock = rows.statements
    ahead: int | None = None
    behind: int | None = None
    if after is None:
        current, ahead, beside, at = rows.locked(
            lock.lock_before, row=target_id, before=before
        )
    elif before is None:
        current, behind, beside, at = rows.locked(
            lock.lock_after, row=target_id, after=after
        )
    else:
        current, ahead, behind, beside, at = rows.locked(
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
            missing=missing,
        )
    found = _key(at, beside)
    if above is None:
        return current, _Gap(above=found, below=below)
    return current, _Gap(above=above, below=found)


def _key(sequence: int | None, target_id: int | None) -> Key | None:
    if sequence is None or target_id is None:
        return None
    return Key(sequence, target_id)


def _report(rows: List, target_id: int, sequence: int, gap: _Gap) -> bool:
    """Call back when the row has little room on one side.

    :returns: whether anybody was called.
    """
    definition = rows.statements.definition
    room = [abs(at - sequence) for at in (gap.low, gap.high) if at is not None]
    left = min(map(moves_in, room))
    if left >= definition.narrow_below or not definition.callbacks:
        return False
    narrow = NarrowGap(rows.cls, rows.source_id, target_id, left)
    for callback in definition.callbacks:
        callback(rows.session, narrow)
    return True


# -- re-spacing


def _squeeze_in(rows: List, target_id: int, gap: _Gap) -> int:
    """Re-space the rows around a gap, with one more row in it."""
    center = gap.low if gap.high is None else gap.high
    assert center is not None  # noqa: S101  # a gap has at least one side
    placed = _spread(rows, center, Key(center, target_id), gap)
    return placed[target_id]


def respace(rows: List, target_id: int) -> int:
    """Re-space the rows around one; return how many have changed."""
    (current,) = rows.locked(
        rows.statements.lock_row, row=rows.checked(target_id)
    )
    if current is None:
        raise MissingTargetError(
            mapping=rows.name, source_id=rows.source_id, target_id=target_id
        )
    return len(_spread(rows, current, None, None))


def _spread(
    rows: List, center: int, added: Key | None, gap: _Gap | None
) -> dict[int, int]:
    """Spread the rows around a position; return the sequences changed.

    :param added: a row that goes into ``gap``, wherever it is now.
    :raises SequenceExhaustedError: when too many rows are too close.
    """
    moves = rows.statements.definition.respace_to
    most = 0
    for window in windows(center, moves):
        most = window.capacity
        found = rows.execute(
            rows.statements.window,
            low=window.low,
            high=window.high,
            # No row has the id 0.
            row=0 if added is None else added.target_id,
            number=max(most, 0) + 1,
        )
        keys = [Key(sequence, target_id) for target_id, sequence in found]
        if added is not None and gap is not None:
            keys = _with(keys, added, gap)
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


def _with(keys: list[Key], added: Key, gap: _Gap) -> list[Key]:
    """Return rows, lowest first, with one more between its neighbours."""
    if gap.below is not None:
        index = bisect_right(keys, gap.below)
    else:
        assert gap.above is not None  # noqa: S101  # a gap has a side
        index = bisect_left(keys, gap.above)
    return [*keys[:index], added, *keys[index:]]


def respace_all(rows: List) -> int:
    """Give every gap of a list some room; return how many have changed."""
    rows.locked(rows.statements.lock_many)
    moves = rows.statements.definition.respace_to
    keys = [
        Key(sequence, target_id)
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
                {i: literal(sequences[i], kind) for i in part},
                value=statements.target,
            )
            chosen = statements.target.in_(part)
        rows.session.execute(
            update(cls)
            .where(statements.source == rows.source_id, chosen)
            .values(sequence=new),
            execution_options={
                **OUR_OWN,
                "synchronize_session": False,
                **_cache(part),
            },
        )
    rows.forget(sequences)


def _cache(part: Sequence[int]) -> dict[str, Any]:
    # A re-spacing is rare, and its statement has as many branches as rows:
    # each number of them would be a statement of its own in the cache.
    return {} if len(part) == 1 else {"compiled_cache": None}
