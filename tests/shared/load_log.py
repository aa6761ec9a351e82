"""What writers note of each attempt, one JSON object for each line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

__all__ = ["ACKNOWLEDGED", "Attempt", "Outcome", "line_of", "read_log"]

Outcome = Literal["acked", "already", "unknown", "failed"]
"""``"already"``: it was told that an earlier attempt has committed, but not
with which id; ``"unknown"``: its COMMIT may have been done."""

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
    """Return the line that :func:`read_log` reads."""
    return json.dumps(asdict(attempt)) + "\n"


def read_log(path: Path) -> Iterator[Attempt]:
    """Yield the attempts of a file that may be written at this moment."""
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        if line.endswith("\n"):
            yield Attempt(**json.loads(line))
