"""Run with ``make bench``; arguments choose the parts by name."""

from __future__ import annotations

import platform
import sys

import sqlalchemy

from tests.benchmarks import ids
from tests.benchmarks import lists
from tests.benchmarks import reading
from tests.benchmarks import sessions

PARTS = {
    "ids": ids.run,
    "sessions": sessions.run,
    "reading": reading.run,
    "lists": lists.run,
}


def main(names: list[str]) -> int:
    """Run the parts named, or all."""
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        print(f"no part {unknown[0]!r}; there are {', '.join(PARTS)}")
        return 2
    print(
        f"Python {platform.python_version()}, "
        f"SQLAlchemy {sqlalchemy.__version__}; times are medians, ratios "
        "medians of the ratios of each turn"
    )
    for name in names or PARTS:
        PARTS[name]()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
