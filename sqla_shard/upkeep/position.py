"""The file with the position of a run, from which the next run resumes.

The file is replaced after each batch, and removed at the end of the run.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from sqla_shard.engine.unreachable import Cause
from sqla_shard.exc import VerifyPositionError
from sqla_shard.upkeep.findings import Finding, Tally
from sqla_shard.util.files import replace_file
from sqla_shard.util.json_values import parsed_json

_FORMAT = 2
#: Mode of the file, since lookup keys may be e-mail addresses.
_MODE = 0o600


@dataclass(frozen=True, kw_only=True)
class Suspect:
    """A finding that is to be checked a second time.

    :ivar check: index of the check.
    :ivar finding: the finding of the first check.
    :ivar seen: time of the first check, in seconds since 1970.
    """

    check: int
    finding: Finding
    seen: float


@dataclass(frozen=True, kw_only=True)
class UnreachableShard:
    """A shard that could not be read completely.

    :ivar check: index of the check.
    :ivar shard_id: the shard.
    :ivar after: position of the last row that was read, or None.
    :ivar server: the server that did not respond or lacks the shard.
    :ivar cause: the error.
    """

    check: int
    shard_id: int
    after: Any
    server: str
    cause: Cause


@dataclass(kw_only=True)
class State:
    """The position and the findings of a run.

    :ivar check: index of the next check.
    :ivar shard_id: the next shard.
    :ivar after: position of the last row that was read on this shard; None at
        its start.
    :ivar suspects: findings to check a second time, the oldest first.
    :ivar unreachable: shards that could not be read, to retry at the end.
    :ivar tallies: the findings so far.
    :ivar seconds: duration so far in seconds.
    """

    check: int = 0
    shard_id: int = 0
    after: Any = None
    suspects: list[Suspect] = field(default_factory=list)
    unreachable: list[UnreachableShard] = field(default_factory=list)
    tallies: dict[str, Tally] = field(default_factory=dict)
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes as JSON values, for :meth:`from_dict`."""
        return {
            "check": self.check,
            "shard_id": self.shard_id,
            "after": self.after,
            "suspects": [
                {**vars(one), "finding": vars(one.finding)} for one in self.suspects
            ],
            "unreachable": [vars(one) for one in self.unreachable],
            "tallies": {
                name: {**vars(tally), "findings": [vars(one) for one in tally.findings]}
                for name, tally in self.tallies.items()
            },
            "seconds": self.seconds,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> State:
        """Return a state from the result of :meth:`as_dict`.

        :raises TypeError: for other data.
        :raises KeyError: for other data.
        """
        return cls(
            check=data["check"],
            shard_id=data["shard_id"],
            after=data["after"],
            suspects=[
                Suspect(**{**one, "finding": Finding(**one["finding"])})
                for one in data["suspects"]
            ],
            unreachable=[
                UnreachableShard(**{**one, "cause": Cause(*one["cause"])})
                for one in data["unreachable"]
            ],
            tallies={name: _tally(one) for name, one in data["tallies"].items()},
            seconds=data["seconds"],
        )


def _tally(data: Mapping[str, Any]) -> Tally:
    return Tally(
        looked=Counter(data["looked"]),
        found=Counter(data["found"]),
        repaired=Counter(data["repaired"]),
        findings=[Finding(**one) for one in data["findings"]],
    )


class AnyState(Protocol):
    """The state of a run."""

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes as JSON values."""
        ...


S = TypeVar("S", bound=AnyState)


class PositionFile(Generic[S]):
    """The position file of one run.

    :param path: the file; its directory is created if needed.
    :param run: JSON values that identify the run.
    :param read: returns the state of a run for the result of its
        ``as_dict()``; for other data, it raises an error of a built-in type.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        run: Mapping[str, Any],
        read: Callable[[Mapping[str, Any]], S],
    ) -> None:
        self.path = Path(path)
        self._run = {"format": _FORMAT, **run}
        self._read = read

    def load(self) -> S | None:
        """Return the state of the run, or None if there is no file.

        :raises VerifyPositionError: if it is the file of another run.
        :raises OSError: if it cannot be read.
        """
        try:
            text = self.path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            data = parsed_json(text)
            found = dict(data["run"])
            state = self._read(data["state"])
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise self._refusal("it is not the position file of a run") from error
        for name, wanted in self._run.items():
            if found.get(name) != wanted:
                raise self._refusal(
                    f"{name} was {found.get(name)!r} and is {wanted!r} now"
                )
        return state

    def save(self, state: S) -> None:
        """Write the state of the run.

        :raises OSError: if it cannot be written; the old file remains.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        data = {"run": self._run, "state": state.as_dict()}
        replace_file(self.path, json.dumps(data).encode(), _MODE)

    def remove(self) -> None:
        """Remove the file."""
        self.path.unlink(missing_ok=True)

    def _refusal(self, reason: str) -> VerifyPositionError:
        return VerifyPositionError(path=str(self.path), reason=reason)
