"""Retry policies: the pauses between the attempts of a job."""

from __future__ import annotations

from dataclasses import dataclass

from sqla_shard.exc import JobOptionError
from sqla_shard.util.pace import jittered

#: The largest part of a pause that is added or subtracted at random: jobs
#: that failed together must not be retried together.
_SPREAD = 0.1
_MOST_RETRIES = 1000
#: Seconds.
_LONGEST = 7 * 24 * 3600.0


class RetryPolicy:
    """Base of the retry policies.

    :ivar retries: number of retries: one less than the attempts.
    """

    retries: int

    def pause(self, retry: int) -> float:
        """Return the seconds before a retry.

        :param retry: its number, from 1.
        """
        raise NotImplementedError

    def delay(self, retry: int) -> float:
        """Return the seconds before a retry, with a random part.

        Retries that the policy does not have, of a job with a higher
        ``max_attempts``, have the pause of the last one.

        :param retry: its number, from 1.
        """
        return jittered(self.pause(max(1, min(retry, self.retries))), _SPREAD)

    def then(self, other: RetryPolicy) -> RetryPolicy:
        """Return a policy with the retries of this one, then of another."""
        return _Chain(self, other)


@dataclass(frozen=True, repr=False)
class _Chain(RetryPolicy):
    first: RetryPolicy
    second: RetryPolicy

    @property
    def retries(self) -> int:  # type: ignore[override]  # computed here
        return self.first.retries + self.second.retries

    def pause(self, retry: int) -> float:
        if retry <= self.first.retries:
            return self.first.pause(retry)
        return self.second.pause(retry - self.first.retries)

    def __repr__(self) -> str:
        return f"{self.first!r}.then({self.second!r})"


@dataclass(frozen=True)
class Linear(RetryPolicy):
    """Retries whose pauses grow by the same time: 10, 20, 30 seconds.

    :param retries: number of retries; 0 for none.
    :param step: seconds before the first retry, and by which each pause is
        longer than the one before.
    :raises JobOptionError: if an argument is not valid.
    """

    retries: int
    step: float = 10.0

    def __post_init__(self) -> None:
        _check(self.retries, step=self.step)

    def pause(self, retry: int) -> float:
        """Return the seconds before a retry."""
        return min(self.step * retry, _LONGEST)


@dataclass(frozen=True)
class Exponential(RetryPolicy):
    """Retries whose pauses are multiplied: 1, 2, 4, 8 minutes.

    :param retries: number of retries; 0 for none.
    :param first: seconds before the first retry.
    :param factor: each pause is this many times as long as the one before.
    :param longest: maximum pause in seconds.
    :raises JobOptionError: if an argument is not valid.
    """

    retries: int
    first: float = 60.0
    factor: float = 2.0
    longest: float = 3600.0

    def __post_init__(self) -> None:
        _check(self.retries, first=self.first, factor=self.factor, longest=self.longest)
        if self.factor < 1:
            raise JobOptionError(
                "must be 1 or more", option="factor", value=self.factor
            )

    def pause(self, retry: int) -> float:
        """Return the seconds before a retry."""
        pause = min(self.first, self.longest)
        for _ in range(retry - 1):
            if pause >= self.longest:
                break
            pause *= self.factor
        return min(pause, self.longest)


def _check(retries: object, **seconds: object) -> None:
    if type(retries) is not int or not 0 <= retries <= _MOST_RETRIES:
        raise JobOptionError(
            f"must be an int from 0 to {_MOST_RETRIES}", option="retries", value=retries
        )
    for name, value in seconds.items():
        if not isinstance(value, int | float) or not 0 <= value <= _LONGEST:
            raise JobOptionError(
                f"must be a number from 0 to {_LONGEST:g}", option=name, value=value
            )


#: Ten retries in about half an hour, five linear and five exponential.
DEFAULT = Linear(5).then(Exponential(5))
