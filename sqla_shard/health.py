"""What a cluster says of itself to those who monitor it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import fields
from time import monotonic
from typing import Any

from sqla_shard.following import SourceReport

__all__ = ["Health", "deadline", "health_of"]

#: Seconds for which a cluster may be asked how it is.
_LONGEST = 3600.0


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
    :ivar last_error: what is the matter with the source; None once it has
        confirmed the topology again.
    :ivar from_snapshot: whether the topology was read from the snapshot,
        and the source has said nothing good since the process began.
    :ivar servers: for each server None, or what is wrong with it, such as
        ``"TimeoutError: no answer within 2 s"``.
    :ivar process_id: of the process that was asked, one of many that serve an
        application.
    """

    servers: Mapping[str, str | None]
    process_id: int

    @property
    def down(self) -> list[str]:
        """The names of the servers that do not answer."""
        return [name for name, wrong in self.servers.items() if wrong]

    @property
    def is_good(self) -> bool:
        """Whether every server answers, and the topology is no stale one."""
        return self.state in ("current", "fixed") and not self.down

    def to_mapping(self) -> dict[str, Any]:
        """Return the attributes, and :attr:`down`, as JSON can hold them."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return {
            **values,
            "age": round(self.age, 3),
            "servers": dict(self.servers),
            "down": self.down,
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
        process_id=os.getpid(),
        servers={
            name: None if error is None else f"{type(error).__name__}: {error}"
            for name, error in answers.items()
        },
    )


def deadline(timeout: float) -> float:
    """Return when a time is over that begins now.

    :param timeout: seconds.
    :raises ValueError: when they cannot be waited for.
    """
    if not 0 < timeout <= _LONGEST:
        raise ValueError(
            f"timeout={timeout!r}; give seconds, more than 0 and at most "
            f"{_LONGEST:g}"
        )
    return monotonic() + timeout
