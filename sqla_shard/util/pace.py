"""The rate of a run, the times of its reports, and random pauses of processes."""

from __future__ import annotations

import random
from dataclasses import dataclass
from math import inf
from threading import Event
from time import monotonic


class Throttle:
    """Limits the number of rows per second.

    For one thread.  Time that the work itself takes counts; a late run does
    not catch up, since the rate limits the load of the servers at any moment.

    :param rate: maximum number of rows per second; None for no limit.
    :raises ValueError: if the rate is not above 0.
    """

    def __init__(self, rate: float | None) -> None:
        if rate is not None and not rate > 0:
            raise ValueError(f"rate={rate!r} must be above 0, or None")
        self._rate = rate
        self._next = monotonic()
        self._never = Event()

    def take(self, rows: int) -> None:
        """Wait as long as a number of rows takes."""
        if self._rate is not None:
            now = monotonic()
            self._next = max(self._next + rows / self._rate, now)
            self._never.wait(self._next - now)


class Interval:
    """Tells when some seconds have passed again, as for a report of progress.

    For one thread, or under a lock.

    :param seconds: the first ones begin now.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._began = monotonic()

    def is_over(self) -> bool:
        """Return whether they have passed; if so, the next ones begin."""
        now = monotonic()
        if now < self._began + self._seconds:
            return False
        self._began = now
        return True


@dataclass(frozen=True, kw_only=True)
class Pace:
    """The limits of a run.

    :ivar rate: maximum number of rows per second; None for no limit.
    :ivar batch: maximum number of rows that one transaction reads.
    :ivar grace: seconds between the two steps of a row: the checks of a
        finding, or its copy and its deletion.
    :raises ValueError: for an invalid value.
    """

    rate: float | None
    batch: int
    grace: float = 0.0

    def __post_init__(self) -> None:
        self.throttle()
        if not 0 <= self.grace < inf:
            raise ValueError(f"grace={self.grace!r} must be 0 or more")
        if type(self.batch) is not int or self.batch < 1:
            raise ValueError(f"batch={self.batch!r} must be an integer, 1 or more")

    @property
    def limit(self) -> int:
        """Maximum number of rows to read in one statement."""
        if self.rate is None:
            return self.batch
        return max(1, min(self.batch, int(self.rate)))

    def throttle(self) -> Throttle:
        """Return a throttle that begins now."""
        return Throttle(self.rate)


# Not the generator of the module: its use here would change the random
# numbers of a seeded program, and forked processes would repeat those of
# their parent.
_random = random.SystemRandom()


def jittered(seconds: float, spread: float) -> float:
    """Return a random time around another.

    :param spread: the largest part that is added or subtracted.
    """
    return seconds * _random.uniform(1 - spread, 1 + spread)
