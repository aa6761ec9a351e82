"""Inclusive ranges of virtual shards, and the arithmetic on them.

Everything here costs by the number of ranges, never by the number of
shards: 65,536 shards on 128 servers are 128 ranges.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter

from sqla_shard.exc import Problem
from sqla_shard.exc import TopologyError

__all__ = ["MAX_SHARDS", "ShardRange", "bounds", "common", "gaps", "joined"]

MAX_SHARDS = 65_536
"""How many virtual shards the 16 shard bits of an id can name."""

bounds = attrgetter("first", "last")
"""What ranges sort by: far quicker than to compare the ranges themselves."""


@dataclass(frozen=True, slots=True, order=True)
class ShardRange:
    """Virtual shards ``first`` to ``last``, both included.

    Ranges sort by their first shard.  ``len``, ``in`` and iteration work
    on the shard ids.

    :param first: the lowest shard id, 0 or more.
    :param last: the highest shard id, ``first`` or more.
    :raises TopologyError: for a negative or reversed range.
    """

    first: int
    last: int

    def __post_init__(self) -> None:
        if not 0 <= self.first <= self.last:
            raise TopologyError(
                [
                    Problem(
                        "shards",
                        f"[{self.first}, {self.last}] is no range; write "
                        "[first, last], both included, from 0 upwards",
                    )
                ],
                source="ShardRange",
            )

    def __contains__(self, shard_id: object) -> bool:
        return (
            isinstance(shard_id, int) and self.first <= shard_id <= self.last
        )

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.first, self.last + 1))

    def __len__(self) -> int:
        return self.last - self.first + 1

    def __str__(self) -> str:
        if self.first == self.last:
            return f"shard {self.first}"
        return f"shards {self.first} to {self.last}"


def joined(ranges: Iterable[ShardRange]) -> tuple[ShardRange, ...]:
    """Return the ranges sorted, with neighbours made one.

    Overlapping ranges are left as they are: they are a mistake to report,
    and joining would hide it.

    :param ranges: any order.
    """
    result: list[ShardRange] = []
    for item in sorted(ranges, key=bounds):
        if result and item.first == result[-1].last + 1:
            item = ShardRange(result.pop().first, item.last)
        result.append(item)
    return tuple(result)


def common(
    one: Iterable[ShardRange], other: Iterable[ShardRange]
) -> Iterator[ShardRange]:
    """Yield the shards that are in both, as ranges, ascending.

    :param one: any order; they may overlap, and what is then yielded may.
    :param other: likewise.
    """
    ours, theirs = (sorted(ranges, key=bounds) for ranges in (one, other))
    begin = 0
    for item in ours:
        while begin < len(theirs) and theirs[begin].last < item.first:
            begin += 1
        at = begin
        while at < len(theirs) and theirs[at].first <= item.last:
            first = max(item.first, theirs[at].first)
            last = min(item.last, theirs[at].last)
            if first <= last:
                yield ShardRange(first, last)
            at += 1


def gaps(ranges: Iterable[ShardRange], count: int) -> Iterator[ShardRange]:
    """Yield what the ranges leave out of shards 0 to ``count - 1``.

    :param ranges: any order; they may overlap and run past the end.
    :param count: how many shards are open.
    """
    expected = 0
    for item in sorted(ranges, key=bounds):
        if item.first >= count:
            break
        if item.first > expected:
            yield ShardRange(expected, item.first - 1)
        expected = max(expected, item.last + 1)
    if expected < count:
        yield ShardRange(expected, count - 1)
