"""A clock of lists that the test owns.

A row gets the present millisecond as its position, or one above the top row of
its piece.  Rows that are appended to two pieces of a spread list within some
milliseconds may therefore be in another order, on a fast machine.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import pytest

from sqla_shard.models.list_positions import STEP


def list_clock() -> Any:
    """Return a fixture in which each look at the clock is 1 s later."""

    # Rows of a class's fixtures are ordered, too.
    @pytest.fixture(scope="class", autouse=True)
    def clock() -> Iterator[None]:
        times = itertools.count(time.time_ns() // 1_000_000, 1000)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                "sqla_shard.models.list_positions.now", lambda: next(times) * STEP
            )
            yield

    return clock
