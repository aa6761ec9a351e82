"""How far a run has come, in a file, so that the next goes on from there.

The file is replaced after each batch.  When the run is over it is removed.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path
from typing import Any

from sqla_shard.exc import VerifyPositionError
from sqla_shard.files import replace_file
from sqla_shard.verifying.findings import Finding
from sqla_shard.verifying.report import Tally

__all__ = ["PositionFile", "State", "Suspect", "Unread"]

_FORMAT = 2
#: Of the file: it has keys, which may be addresses of people.
_MODE = 0o600


@dataclass(frozen=True, kw_only=True)
class Suspect:
    """What looked wrong once.

    :ivar check: number of the check that has seen it.
    :ivar finding: what it looked like.
    :ivar seen: when, in seconds since 1970.
    """

    check: int
    finding: Finding
    seen: float


@dataclass(frozen=True, kw_only=True)
class Unread:
    """A shard that could not be read, or not all of it.

    :ivar check: number of the check that has met it.
    :ivar shard_id: the shard.
    :ivar after: position of the last row that was read; None for none.
    :ivar server: the server that did not answer, which another shard may
        need; or lacks the shard.
    :ivar reason: what is wrong.
    """

    check: int
    shard_id: int
    after: Any
    server: str
    reason: str


@dataclass(kw_only=True)
class State:
    """How far a run has come.

    :ivar check: number of the check that is next.
    :ivar shard_id: the shard that is next.
    :ivar after: position of the last row of it; None at its beginning.
    :ivar suspects: what is to be looked at again, the first to come first.
    :ivar unread: what could not be read, and is next when the rest is done.
    :ivar tallies: what was found so far.
    :ivar seconds: how long it took so far.
    """

    check: int = 0
    shard_id: int = 0
    after: Any = None
    suspects: list[Suspect] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)
    tallies: dict[str, Tally] = field(default_factory=dict)
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return what JSON can hold, for :meth:`from_dict`."""
        return {
            "check": self.check,
            "shard_id": self.shard_id,
            "after": self.after,
            "suspects": [
                {**vars(one), "finding": vars(one.finding)}
                for one in self.suspects
            ],
            "unread": [vars(one) for one in self.unread],
            "tallies": {
                name: {
                    **vars(tally),
                    "findings": [vars(one) for one in tally.findings],
                }
                for name, tally in self.tallies.items()
            },
            "seconds": self.seconds,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> State:
        """Return what was written.

        :raises TypeError: when it is something else; KeyError likewise.
        """
        return cls(
            check=data["check"],
            shard_id=data["shard_id"],
            after=data["after"],
            suspects=[
                Suspect(**{**one, "finding": Finding(**one["finding"])})
                for one in data["suspects"]
            ],
            unread=[Unread(**one) for one in data["unread"]],
            tallies={
                name: _tally(one) for name, one in data["tallies"].items()
            },
            seconds=data["seconds"],
        )


def _tally(data: Mapping[str, Any]) -> Tally:
    return Tally(
        looked=Counter(data["looked"]),
        found=Counter(data["found"]),
        repaired=Counter(data["repaired"]),
        findings=[Finding(**one) for one in data["findings"]],
    )


class PositionFile:
    """Where the state of one run is kept.

    :param path: the file; its directory is made if need be.
    :param run: what tells this run from others; JSON can hold it.
    """

    def __init__(
        self, path: str | os.PathLike[str], run: Mapping[str, Any]
    ) -> None:
        self.path = Path(path)
        self._run = {"format": _FORMAT, **run}

    def load(self) -> State | None:
        """Return how far the run has come; None where it has not begun.

        :raises VerifyPositionError: when it is the file of another run.
        :raises OSError: when it cannot be read.
        """
        try:
            text = self.path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            data = json.loads(text)
            found = dict(data["run"])
            state = State.from_dict(data["state"])
        except (
            ValueError,
            TypeError,
            LookupError,
            AttributeError,
            RecursionError,
        ) as error:
            raise self._refusal("it has no position of a run") from error
        for name, wanted in self._run.items():
            if found.get(name) != wanted:
                raise self._refusal(
                    f"{name} was {found.get(name)!r} and is {wanted!r} now"
                )
        return state

    def save(self, state: State) -> None:
        """Write how far the run has come.

        :raises OSError: when it cannot be written; the old one stays.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        data = {"run": self._run, "state": state.as_dict()}
        replace_file(self.path, json.dumps(data).encode(), _MODE)

    def remove(self) -> None:
        """Forget the run: it is over."""
        self.path.unlink(missing_ok=True)

    def _refusal(self, reason: str) -> VerifyPositionError:
        return VerifyPositionError(path=str(self.path), reason=reason)
