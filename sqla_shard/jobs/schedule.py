"""The shards that a worker claims from next, and the time of its next look.

Shards are taken in a random order.  On a shard the queues are taken in a
random order, and the priority that comes first is drawn: 1 in seven of ten
claims, 2 in two, 3 in one.  So an urgent job seldom waits, and no backlog of
urgent jobs can hold back the others for ever.

Without work the pauses between two surveys grow, to a time that depends on
the number of statements of a survey: for any number of shards an idle worker
sends at most a few statements a second.  A busy one looks as often as one that
has found nothing for long: otherwise urgent jobs, other queues and retries
would wait until the backlog is done.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from time import monotonic

from sqla_shard.engine import by_server, Places
from sqla_shard.engine.rendering import MOST_BRANCHES
from sqla_shard.jobs.survey import DueGroup
from sqla_shard.outbox.apply import Address
from sqla_shard.util.pace import jittered

#: How often each priority comes first.
_CHANCES = {1: 7, 2: 2, 3: 1}
_FIRST_PAUSE = 0.05
#: Maximum pause in seconds, unless there are many shards.
_LONGEST_PAUSE = 1.0
#: Maximum statements a second of an idle worker, on average.
_STATEMENTS = 4.0


class Schedule:
    """The shards that are known to have work.

    :param rng: random number generator.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._groups: dict[Address, list[DueGroup]] = {}
        self.is_empty = False  #: whether the last survey has found nothing
        self._pause = _FIRST_PAUSE
        self._next_survey = 0.0
        self._next_look = 0.0  # while there is work

    def reset(self) -> None:
        """Look for work again now."""
        self.is_empty = False
        self._pause = _FIRST_PAUSE
        self._next_survey = 0.0

    def look_now(self) -> None:
        """Look for work now, also while there is some."""
        self.reset()
        self._next_look = 0.0

    def add(self, groups: Iterable[DueGroup]) -> None:
        """Take over groups that are said to have a due job."""
        for group in groups:
            its = self._groups.setdefault(group.address, [])
            if group not in its:
                its.append(group)
                self.is_empty = False

    @property
    def has_work(self) -> bool:
        """Whether any shard is known to have work."""
        return bool(self._groups)

    def is_survey_due(self) -> bool:
        """Return whether it is time to look for work."""
        due = self._next_look if self._groups else self._next_survey
        return monotonic() >= due

    def until_survey(self) -> float:
        """Return the seconds until the next survey."""
        return max(0.0, self._next_survey - monotonic())

    def surveyed(self, groups: Iterable[DueGroup], places: Places) -> None:
        """Take over the result of a survey."""
        found: dict[Address, list[DueGroup]] = {}
        for group in groups:
            found.setdefault(group.address, []).append(group)
        addresses = list(found)
        self._rng.shuffle(addresses)
        self._groups = {address: found[address] for address in addresses}
        self.is_empty = not found
        longest = max(_LONGEST_PAUSE, _statements(places) / _STATEMENTS)
        if found:
            self._pause = _FIRST_PAUSE
        else:
            self._pause = min(self._pause * 2, longest)
        now = monotonic()
        self._next_survey = now + jittered(self._pause, 0.2)
        self._next_look = now + jittered(longest, 0.2)

    def next_shard(self) -> Address | None:
        """Return the next shard that has work; None if there is none."""
        for address in self._groups:
            return address
        return None

    def groups(self, address: Address) -> list[DueGroup]:
        """Return the groups of a shard, in the order of the next claim."""
        groups = list(self._groups.get(address, ()))
        self._rng.shuffle(groups)
        names = list(_CHANCES)
        (first,) = self._rng.choices(names, list(_CHANCES.values()))
        # Then the most urgent first.
        groups.sort(key=lambda one: (one.priority != first, one.priority))
        return groups

    def emptied(self, address: Address, groups: Sequence[DueGroup]) -> None:
        """Forget groups without due jobs; the other shards come first."""
        left = [one for one in self._groups.pop(address, ()) if one not in groups]
        if left:
            self._groups[address] = left

    def drop(self, address: Address) -> None:
        """Forget a shard until the next survey, which is not made soon."""
        self._groups.pop(address, None)
        self._next_survey = monotonic() + jittered(_LONGEST_PAUSE, 0.2)


def _statements(places: Places) -> int:
    """Return the number of statements of a survey."""
    return sum(
        -(-len(group) // MOST_BRANCHES) if group[0].backend.waits else 0
        for space in places.topology.keyspaces.values()
        if space.kind == "objects"
        for group in by_server(places.all_places(space))
    )
