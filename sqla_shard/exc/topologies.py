"""Errors of topologies: documents, names in them, sources and publications."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sqla_shard.exc.base import bullets, field, MessageError, ShardError
from sqla_shard.util.masking import redact


@dataclass(frozen=True)
class Problem:
    """A problem of a topology, and its place.

    :ivar place: path into the document, such as
        ``keyspaces.objects.servers[1].shards``.
    :ivar message: the problem, with the value and the remedy.
    """

    place: str
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {self.message}"


class TopologyError(ShardError):
    """Raised when a topology is not valid; it lists every problem.

    :ivar source: where the topology came from, such as a file name.
    :ivar problems: all problems, in the order of the document.
    """

    source: str
    problems: tuple[Problem, ...]

    def __init__(self, problems: Iterable[Problem], *, source: str) -> None:
        super().__init__(problems=problems, source=redact(source))

    def _describe(self) -> str:
        count = len(self.problems)
        return (
            f"{self.source}: {count} problem{'' if count == 1 else 's'}"
            f"{bullets(self.problems)}"
        )


class UnknownKeyspaceError(MessageError):
    """Raised when a keyspace is not, or not uniquely, in the topology.

    :ivar keyspace: the name; None if not given.
    :ivar known: the names that could be used instead.
    """

    keyspace: str | None
    known: tuple[str, ...]


class UnknownServerError(ShardError):
    """Raised when the topology has no server of a name.

    :ivar server: the name.
    :ivar known: the names of the servers of the topology.
    """

    server: str
    known: tuple[str, ...]

    def _describe(self) -> str:
        return (
            f"there is no server {self.server!r} in the topology; it has "
            f"{', '.join(self.known)}"
        )


class UnknownShardError(ShardError):
    """Raised when a virtual shard is not open in the topology.

    :ivar shard_id: the shard.
    :ivar keyspace: the keyspace.
    :ivar opened: number of open shards of the keyspace; ids run from 0 to
        ``opened - 1``.
    """

    shard_id: int
    keyspace: str
    opened: int

    def _describe(self) -> str:
        return (
            f"shard {self.shard_id} is not open in keyspace "
            f"{self.keyspace!r}, whose shards run from 0 to "
            f"{self.opened - 1}. Either the id belongs to another cluster, "
            "or this process has an older topology"
        )


class TopologyUnavailableError(ShardError):
    """Raised when a topology source cannot be read, or has no topology.

    :ivar source: the source; passwords are masked.
    :ivar reason: why the source could not be read.
    """

    source: str
    reason: str
    _text = "{source}: no topology: {reason}"

    def __init__(self, *, source: str, reason: str) -> None:
        super().__init__(source=redact(source), reason=reason)


class StaleTopologyError(ShardError):
    """Raised when a topology is not newer than the one in use.

    :ivar source: where it came from.
    :ivar epoch: its epoch.
    :ivar current: the epoch in use.
    :ivar resets: number of resets of epochs; 0 if the one in use is not newer
        because of a reset.
    """

    source: str
    epoch: int
    current: int
    resets: int = 0

    def _describe(self) -> str:
        found = (
            f"has epoch {self.epoch} too, but different contents"
            if self.epoch == self.current
            else f"has epoch {self.epoch}, which is older"
        )
        remedy = f"an epoch above {self.current}"
        if self.resets:
            found = f"has epoch {self.epoch} from before the epochs were reset"
            remedy = f"resets = {self.resets} and {remedy}"
        return (
            f"{self.source}: the topology {found}; epoch {self.current} "
            f"stays in use. Publish it with {remedy}"
        )


class TopologyRefusedError(ShardError):
    """Raised when a topology would lose shards or data of the one in use.

    :ivar source: where it came from.
    :ivar epoch: its epoch.
    :ivar current: the epoch in use; None if there is none.
    :ivar problems: each change that is refused.
    """

    source: str
    epoch: int
    current: int | None
    problems: tuple[Problem, ...] = field(kw_only=False)

    def _describe(self) -> str:
        what = (
            "be published"
            if self.current is None
            else f"follow that of epoch {self.current}"
        )
        return (
            f"{self.source}: the topology of epoch {self.epoch} cannot {what}"
            f"{bullets(self.problems)}"
        )


class TopologyConflictError(ShardError):
    """Raised when another process has published in the meantime.

    :ivar source: the source of the topologies.
    :ivar expected: the epoch that was to be replaced; None if none was
        published.
    :ivar found: the published epoch; None if it is unknown.
    """

    source: str
    expected: int | None
    found: int | None

    def _describe(self) -> str:
        was, now = "no topology", "another topology"
        if self.expected is not None:
            was = f"epoch {self.expected}"
        if self.found is not None:
            now = f"epoch {self.found}"
        return (
            f"{self.source}: {was} was to be replaced, but {now} has been "
            "published meanwhile; nothing was written. Review it, and "
            "publish again"
        )


class ServerRetiredError(ShardError):
    """Raised when a session needs a server that has left the topology.

    Its transaction began before that; repeated, it uses the new topology.

    :ivar server: its name in the topology, or its names.
    """

    server: str
    _text = (
        "server {server} has left the topology since this transaction "
        "began; roll back and repeat it, as Cluster.run() does"
    )
