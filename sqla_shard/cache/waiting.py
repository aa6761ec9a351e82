"""Which keys wait to be taken out of a cache, on all shards."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence
from dataclasses import asdict
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import func
from sqlalchemy import select
from sqlalchemy import type_coerce

from sqla_shard.dialects.sql import Moment
from sqla_shard.engines.troubles import Trouble
from sqla_shard.intents.reading import read_all
from sqla_shard.internal import OUTBOX
from sqla_shard.session.contract import Home
from sqla_shard.types import UTCTimestamp

__all__ = [
    "MADE",
    "NONE",
    "WHICH",
    "DrainReport",
    "Waiting",
    "by_region",
    "outbox_size",
]

NONE = timedelta(0)
"""The age of what is newer than the clock says."""


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """Keys that are to be taken out of a region.

    :ivar region: its name.
    :ivar rows: how many.
    :ivar oldest: how long the oldest has been waiting, by the clock of its
        server.
    :ivar keyspace: of the shard that has them; None for all shards.
    :ivar shard_id: its number; None for all shards.
    """

    region: str
    rows: int
    oldest: timedelta
    keyspace: str | None = None
    shard_id: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON has it, with the age in seconds."""
        return {**asdict(self), "oldest": self.oldest.total_seconds()}


#: When a row was written.
MADE = type_coerce(OUTBOX.c.created_at, UTCTimestamp())
_SIZE = select(
    OUTBOX.c.shard_id,
    OUTBOX.c.region,
    func.count().label("rows"),
    type_coerce(func.min(OUTBOX.c.created_at), UTCTimestamp()).label("made"),
    Moment().label("now"),
).group_by(OUTBOX.c.shard_id, OUTBOX.c.region)

_one = OUTBOX.alias("one")
#: The number of a shard that has some, from one row by its primary key:
#: hundreds are asked at once.
WHICH = select(OUTBOX.c.shard_id).where(
    OUTBOX.c.token == select(func.min(_one.c.token)).scalar_subquery()
)


def outbox_size(home: Home) -> tuple[list[Waiting], list[Trouble]]:
    """Return how many keys wait, by shard and region.

    :param home: the cluster.
    :returns: that, without what has none; and the servers that did not say,
        or that have shards without the table: there a transaction whose node
        does not answer is rolled back.
    """
    found, troubles = read_all(home, WHICH, _SIZE, is_missed=True)
    sizes = [
        Waiting(
            region=row.region,
            rows=row.rows,
            oldest=max(row.now - row.made, NONE),
            keyspace=keyspace,
            shard_id=row.shard_id,
        )
        for keyspace, row in found
    ]
    sizes.sort(key=lambda one: (one.region, one.keyspace, one.shard_id))
    return sizes, troubles


def by_region(sizes: Iterable[Waiting]) -> dict[str, Waiting]:
    """Return the sum of each region, in the order of their names."""
    sums: dict[str, Waiting] = {}
    for one in sorted(sizes, key=lambda one: one.region):
        before = sums.get(one.region)
        sums[one.region] = Waiting(
            region=one.region,
            rows=one.rows + (before.rows if before else 0),
            oldest=max(one.oldest, before.oldest if before else NONE),
        )
    return sums


@dataclass(frozen=True, kw_only=True)
class DrainReport:
    """What one pass has done.

    :ivar removed: how many keys were taken out, and their rows deleted.
    :ivar left: those of nodes that do not answer, by region.
    :ivar unknown: those of regions that are not configured here.
    :ivar troubles: servers that could not be asked or written, and why.
    """

    removed: int
    left: tuple[Waiting, ...]
    unknown: tuple[Waiting, ...]
    troubles: tuple[str, ...]

    @property
    def is_clean(self) -> bool:
        """Whether nothing is left, and every server was asked."""
        return not (self.left or self.unknown or self.troubles)

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""

        def sums(waiting: Sequence[Waiting]) -> list[dict[str, Any]]:
            return [
                {
                    "region": one.region,
                    "rows": one.rows,
                    "oldest": one.oldest.total_seconds(),
                }
                for one in waiting
            ]

        return {
            "removed": self.removed,
            "left": sums(self.left),
            "unknown": sums(self.unknown),
            "troubles": list(self.troubles),
        }

    def __str__(self) -> str:
        left = sum(one.rows for one in self.left)
        unknown = sum(one.rows for one in self.unknown)
        return (
            f"{self.removed} removed, {left} left, {unknown} of unknown "
            "regions"
        )
