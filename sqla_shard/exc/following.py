"""Topologies that change: sources, publishing, servers that leave."""

from __future__ import annotations

from collections.abc import Iterable

from sqla_shard.exc.base import ShardError
from sqla_shard.exc.definitions import Problem
from sqla_shard.masking import redact

__all__ = [
    "ServerRetiredError",
    "StaleTopologyError",
    "TopologyConflictError",
    "TopologyRefusedError",
    "TopologyUnavailableError",
]


class TopologyUnavailableError(ShardError):
    """Raised when a source cannot be asked, or has no topology.

    :ivar source: where it should have come from.
    :ivar reason: what is the matter there.
    """

    def __init__(self, *, source: str, reason: str) -> None:
        self.source = redact(source)
        super().__init__(f"{self.source}: no topology: {reason}")
        self.reason = reason


class StaleTopologyError(ShardError):
    """Raised when a topology is not newer than the one in use.

    :ivar source: where it came from.
    :ivar epoch: its epoch.
    :ivar current: the epoch in use.
    :ivar resets: how often epochs were reset; 0 where that is not what makes
        the one in use newer.
    """

    def __init__(
        self, *, source: str, epoch: int, current: int, resets: int = 0
    ) -> None:
        found = (
            f"has epoch {epoch} too, and other contents"
            if epoch == current
            else f"has epoch {epoch}, which is older"
        )
        remedy = f"an epoch above {current}"
        if resets:
            found = f"has epoch {epoch} of before the epochs were reset"
            remedy = f"resets = {resets} and {remedy}"
        super().__init__(
            f"{source}: the topology {found}; epoch {current} stays in use. "
            f"Publish it with {remedy}"
        )
        self.resets = resets
        self.source = source
        self.epoch = epoch
        self.current = current


class TopologyRefusedError(ShardError):
    """Raised when a topology would lose what the one in use has.

    :ivar source: where it came from.
    :ivar epoch: its epoch.
    :ivar current: the epoch in use; None where there is none yet.
    :ivar problems: each thing that would be lost, or must not be published.
    """

    def __init__(
        self,
        problems: Iterable[Problem],
        *,
        source: str,
        epoch: int,
        current: int | None,
    ) -> None:
        self.problems = tuple(problems)
        self.source = source
        self.epoch = epoch
        self.current = current
        lines = "".join(f"\n  - {problem}" for problem in self.problems)
        what = (
            "be published"
            if current is None
            else f"follow that of epoch {current}"
        )
        super().__init__(
            f"{source}: the topology of epoch {epoch} cannot {what}{lines}"
        )


class TopologyConflictError(ShardError):
    """Raised when somebody else has published in the meantime.

    :ivar source: where the topologies are.
    :ivar expected: the epoch that was to be replaced; None for none.
    :ivar found: the epoch that is there; None where that is not known.
    """

    def __init__(
        self, *, source: str, expected: int | None, found: int | None
    ) -> None:
        was = "none was" if expected is None else f"epoch {expected} was"
        there = "another one" if found is None else f"epoch {found}"
        super().__init__(
            f"{source}: {was} to be replaced, but {there} is there by now; "
            "nothing was published. Look at it, and publish again"
        )
        self.source = source
        self.expected = expected
        self.found = found


class ServerRetiredError(ShardError):
    """Raised when a session needs a server that has left the topology.

    Its transaction began before that; repeated, it takes the new topology.

    :ivar server: its name in the topology, or its names.
    """

    def __init__(self, *, server: str) -> None:
        super().__init__(
            f"server {server} has left the topology since this transaction "
            "began; roll back and repeat it, as Cluster.run() does"
        )
        self.server = server
