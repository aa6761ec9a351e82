"""The log of writers: one JSON object per line and attempt."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

Outcome = Literal["acked", "already", "unknown", "abandoned", "missing", "failed"]
"""The outcome of an attempt.

``"already"``
    An earlier attempt has committed, with an id that is not known.
``"unknown"``
    Its COMMIT may have been done; the token is written again.
``"abandoned"``
    Its COMMIT may have been done; the token is not written again.
``"missing"``
    A pin that was acknowledged before was read, and not found.
"""

ACKNOWLEDGED = ("acked", "already")


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One attempt to write one token.

    :ivar t0: seconds of the machine's monotonic clock, the same for all
        processes.
    :ivar local_id: of the pin, where the outcome is ``"acked"``.
    """

    token: str
    shard: int
    t0: float
    t1: float
    outcome: Outcome
    local_id: int | None = None
    error: str | None = None


def line_of(attempt: Attempt) -> str:
    """Return the line that :class:`LogReader` reads."""
    return json.dumps(asdict(attempt)) + "\n"


class LogReader:
    """Reads a file that may be written at this moment.

    :param path: it need not be there yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0

    def more(self) -> Iterator[Attempt]:
        """Yield the attempts that are new since the last call."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._offset += len(line)
                yield Attempt(**json.loads(line))
