"""Checks that reads of a set return its written members.

Ids are added, and removed for good.  One that is known to be there must be
found until its removal begins; one that is known to be gone, or whose addition
has not begun, must not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.servers.cache_events import Event, Moment, Stale

WRONG_LENGTH = -1
"""Stands for the ids of a read that has reported their number only."""

_Ids = frozenset[int]


def stale_sets(
    moments: Sequence[Moment], judged: Callable[[Event], bool], reads_tell: bool = True
) -> list[Stale]:
    """Check the events of one set.

    :param moments: beginnings and ends of events, in their order.
    :param judged: tells which reads are judged.
    :param reads_tell: whether what one has found is known to the next.
    """
    known = _Known()
    found = []
    for _, begins, event in moments:
        if event.kind == "read" and begins:
            known.began(event)
        elif event.kind == "read":
            is_judged = judged(event)
            wrong = known.ended(event, learns=is_judged and reads_tell)
            if wrong and is_judged:
                found.append(Stale(read=event, ids=wrong))
        elif event.ids is not None:
            known.wrote(event, frozenset(event.ids))
    return found


class _Known:
    """Knowledge of a set at some time.

    :ivar there: have been there, and are not known to be gone.
    :ivar maybe: their addition has begun.
    :ivar leaving: their removal has begun.
    :ivar gone: known to be gone.
    """

    def __init__(self) -> None:
        self.there: set[int] = set()
        self.maybe: set[int] = set()
        self.leaving: set[int] = set()
        self.gone: set[int] = set()
        self._begun: dict[int, tuple[_Ids, _Ids, _Ids]] = {}

    def wrote(self, event: Event, ids: _Ids) -> None:
        """Record members that were added or removed, or are going to be."""
        if event.kind == "adding":
            self.maybe |= ids
        elif event.kind == "add":
            self.there |= ids - self.gone
        elif event.kind == "removing":
            self.leaving |= ids
        elif event.kind == "remove":
            self._go(ids)

    def _go(self, ids: _Ids) -> None:
        self.gone |= ids
        self.there -= ids

    def began(self, read: Event) -> None:
        """Record the members that a read has to find, and must not find."""
        there = frozenset(self.there if read.asked is None else read.asked)
        there &= self.there
        gone = frozenset(self.gone if read.ids is None else read.ids)
        gone &= self.gone
        self._begun[id(read)] = there, there - self.leaving, gone

    def ended(self, read: Event, *, learns: bool) -> _Ids:
        """Return the members that it should have found, or should not have.

        :param learns: whether what it has found is known from now on.
        """
        there, must, gone = self._begun.pop(id(read))
        must -= self.leaving
        if read.ids is None:
            count = read.count or 0
            fits = len(must) <= count <= len(self.maybe - gone)
            return frozenset() if fits else must | {WRONG_LENGTH}
        ids = frozenset(read.ids)
        wrong = (must - ids) | (ids & gone) | (ids - self.maybe)
        if learns:
            # Others must not know less from now on.
            self._go((there & self.leaving) - ids)
            self.there |= ids - self.gone
        return wrong
