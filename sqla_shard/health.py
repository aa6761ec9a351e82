"""What a cluster says of itself to who watches over it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import fields
from typing import Any

from sqla_shard.following import SourceReport

__all__ = ["Health", "health_of"]


@dataclass(frozen=True, kw_only=True)
class Health(SourceReport):
    """The state of a cluster in one process.

    :ivar source: where the topology comes from.
    :ivar state: ``"current"``: the source has confirmed the topology;
        ``"stale"``: it cannot be asked, has nothing that may be used, or
        is not asked because a listener of ``topology_changed`` has not
        returned, and the last good topology is in use; ``"fixed"``: none is
        followed;
        ``"closed"``.
    :ivar epoch: of the topology in use.
    :ivar age: seconds since the source has last confirmed it.
    :ivar last_error: what was the matter with the source last; it may be
        over.
    :ivar from_snapshot: whether the topology was read from the snapshot,
        and the source has said nothing good since the process began.
    :ivar servers: for each server None, or what is wrong with it.
    """

    servers: Mapping[str, str | None]

    @property
    def is_good(self) -> bool:
        """Whether every server answers, and the topology is no stale one."""
        return self.state in ("current", "fixed") and not any(
            self.servers.values()
        )

    def to_mapping(self) -> dict[str, Any]:
        """Return the attributes as JSON can hold them."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return {
            **values,
            "age": round(self.age, 3),
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
        **vars(report),
        servers={
            name: None if error is None else f"{type(error).__name__}: {error}"
            for name, error in answers.items()
        },
    )
