"""Sets of GTIDs of MySQL, such as ``3e11fa47-...:1-5:7``."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping

_ORIGIN = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_INTERVAL = re.compile(r"([1-9]\d*)(?:-([1-9]\d*))?")


class GtidSet:
    """A set of GTIDs: numbers of transactions, by the server of their origin.

    :param intervals: first and last number of each interval, in order, by
        origin.
    """

    def __init__(
        self, intervals: Mapping[str, Iterable[tuple[int, int]]] | None = None
    ) -> None:
        self._intervals = {
            origin: list(each) for origin, each in (intervals or {}).items()
        }

    @classmethod
    def parsed(cls, text: str) -> GtidSet:
        """Return the set of a text.

        :raises ValueError: if it is not one, or has tags.
        """
        found = cls()
        for part in re.sub(r"\s", "", text).split(","):
            if not part:
                continue
            origin, *intervals = part.lower().split(":")
            if not _ORIGIN.fullmatch(origin) or not intervals:
                raise ValueError(f"{part!r} is not a set of GTIDs")
            for interval in intervals:
                match = _INTERVAL.fullmatch(interval)
                if match is None:
                    raise ValueError(
                        f"{interval!r} is not an interval of numbers; GTIDs "
                        "with tags are not supported"
                    )
                first = int(match[1])
                found._insert(origin, first, int(match[2] or first))
        return found

    def __bool__(self) -> bool:
        return any(self._intervals.values())

    def __contains__(self, gtid: tuple[str, int]) -> bool:
        origin, number = gtid
        each = self._intervals.get(origin, [])
        index = bisect_right(each, (number, float("inf")))
        return bool(index) and each[index - 1][1] >= number

    def __iter__(self) -> Iterator[tuple[str, int, int]]:
        """Yield origin, first and last number of each interval."""
        for origin, each in sorted(self._intervals.items()):
            for first, last in each:
                yield origin, first, last

    def __len__(self) -> int:
        return sum(last - first + 1 for _, first, last in self)

    def __str__(self) -> str:
        return ",".join(
            ":".join([origin, *map(_interval, each)])
            for origin, each in sorted(self._intervals.items())
        )

    def __sub__(self, other: GtidSet) -> GtidSet:
        found = GtidSet()
        for origin, first, last in self:
            for begin, end in other._intervals.get(origin, []):
                if end < first or begin > last:
                    continue
                if begin > first:
                    found._insert(origin, first, begin - 1)
                first = end + 1
            if first <= last:
                found._insert(origin, first, last)
        return found

    def __or__(self, other: GtidSet) -> GtidSet:
        found = GtidSet(self._intervals)
        for origin, first, last in other:
            found._insert(origin, first, last)
        return found

    def add(self, gtid: tuple[str, int]) -> None:
        """Add a GTID."""
        origin, number = gtid
        self._insert(origin, number, number)

    def lasts(self) -> set[tuple[str, int]]:
        """Return the last GTID of each origin."""
        return {
            (origin, each[-1][1]) for origin, each in self._intervals.items() if each
        }

    def _insert(self, origin: str, first: int, last: int) -> None:
        each = self._intervals.setdefault(origin, [])
        if each and each[-1][1] + 1 == first:
            # The usual one: the next transaction.
            each[-1] = each[-1][0], last
            return
        each.append((first, last))
        each.sort()
        merged: list[tuple[int, int]] = []
        for begin, end in each:
            if merged and begin <= merged[-1][1] + 1:
                merged[-1] = merged[-1][0], max(merged[-1][1], end)
            else:
                merged.append((begin, end))
        each[:] = merged


def _interval(interval: tuple[int, int]) -> str:
    first, last = interval
    return str(first) if first == last else f"{first}-{last}"
