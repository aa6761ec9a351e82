"""What a cluster says of itself to who watches over it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqla_shard.following import SourceReport
from sqla_shard.following import State

__all__ = ["Health", "health_of"]


@dataclass(frozen=True, kw_only=True)
class Health:
    """The state of a cluster in one process.

    :ivar source: where the topology comes from.
    :ivar state: ``"current"``: the source has confirmed the topology;
        ``"stale"``: it cannot be asked, or has nothing that may be used,
        and the last good topology is in use; ``"fixed"``: none is followed;
        ``"closed"``.
    :ivar epoch: of the topology in use.
    :ivar age: seconds since the source has last confirmed it.
    :ivar last_error: what was the matter with the source last; it may be
        over.
    :ivar from_snapshot: whether the topology was read from the snapshot,
        and the source has said nothing good since the process began.
    :ivar servers: for each server None, or what is wrong with it.
    """

    source: str
    state: State
    epoch: int
    age: float
    last_error: str | None
    from_snapshot: bool
    servers: Mapping[str, str | None]

    @property
    def is_good(self) -> bool:
        """Whether every server answers, and the topology is no stale one."""
        return self.state in ("current", "fixed") and not any(
            self.servers.values()
        )

    def to_mapping(self) -> dict[str, Any]:
        """Return the attributes as JSON can hold them."""
        return {
            "source": self.source,
            "state": self.state,
            "epoch": self.epoch,
            "age": round(self.age, 3),
            "last_error": self.last_error,
            "from_snapshot": self.from_snapshot,
            "servers": dict(self.servers),
        }


def health_of(
    report: SourceReport, answers: Mapping[str, Exception | None]
) -> Health:
    """Return the health of a cluster.

    :param report: of its source.
    :param answers: of its servers: None, or what was wrong.
    """
    return Health(
        source=report.source,
        state=report.state,
        epoch=report.epoch,
        age=report.age,
        last_error=report.last_error,
        from_snapshot=report.from_snapshot,
        servers={
            name: None if error is None else f"{type(error).__name__}: {error}"
            for name, error in answers.items()
        },
    )
