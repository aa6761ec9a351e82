"""Processes that follow the topology in ZooKeeper, and the epoch of each.

They register themselves, see
:mod:`sqla_shard.topology.zookeeper.registration`: agents, and clusters that
follow ZooKeeper directly.  A process that reads the file of an agent is known
by the agent, which is on the same machine.  Unknown are processes without
permission, with ``register=False``, of older releases, and those without a
session with ZooKeeper at the moment.

What a node says is a statement of that process, not more: it is shown, and
nothing is decided by it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any, TYPE_CHECKING

from sqla_shard.exc import TopologyUnavailableError
from sqla_shard.fleet.fleet import Fleet
from sqla_shard.topology import Topology
from sqla_shard.topology.follow import is_zookeeper, zookeeper_options
from sqla_shard.util.json_values import parsed_object

if TYPE_CHECKING:
    from sqla_shard.topology.zookeeper.store import ZooKeeperStore

#: Greatest size of a node in bytes, and of a text in it.
_BYTES = 10_000
_TEXT = 200
#: Most clients in the note of a step, and in a text.
_MOST = 100
#: Most nodes that are read: whoever may write below them may write many.
_NODES = 5_000


@dataclass(frozen=True, kw_only=True)
class Client:
    """A process that has registered.

    :ivar role: ``"cluster"``, or ``"agent"``.
    :ivar host: name of its machine.
    :ivar pid: number of the process there.
    :ivar program: name of its program.
    :ivar epoch: epoch of the topology that it uses.
    :ivar resets: resets of that topology.
    :ivar file: file that an agent writes; None for others.
    :ivar behind: seconds since a newer topology was published; None if it
        uses the newest, or if it is not known.
    """

    role: str
    host: str
    pid: int
    program: str
    epoch: int
    resets: int
    file: str | None = None
    behind: float | None = None

    @property
    def version(self) -> tuple[int, int]:
        """Resets and epoch; a newer topology has a higher one."""
        return self.resets, self.epoch

    def __str__(self) -> str:
        what = f"{self.program} on {self.host}, pid {self.pid}"
        if self.file is not None:
            what = f"agent {what}, and the processes that read {self.file}"
        return what

    @property
    def remedy(self) -> str:
        """The remedy if it goes on using an old topology."""
        if self.file is not None:
            return (
                f"look at the log of the agent on {self.host} and whether "
                f"{self.file} can be written, then restart it"
            )
        return (
            f"look at health() and the log of that process on {self.host}: "
            "it says why it does not use the newer topology; restart it"
        )


@dataclass(frozen=True, kw_only=True)
class Clients:
    """The registered processes of a fleet.

    :ivar epoch: epoch of the topology.
    :ivar known: the processes, those with the oldest topology first.
    :ivar late: those of them that use an older topology.
    :ivar invalid: names of nodes that cannot be read as a process.
    :ivar unread: why nodes could not be read; None if all were.
    """

    epoch: int
    known: tuple[Client, ...]
    late: tuple[Client, ...]
    invalid: tuple[str, ...] = ()
    unread: str | None = None

    @property
    def epochs(self) -> dict[int, int]:
        """The number of processes by epoch, the highest first."""
        counts = Counter(one.epoch for one in self.known)
        return dict(sorted(counts.items(), reverse=True))

    def as_dict(self) -> dict[str, Any]:
        """Return it in JSON values."""
        return {
            "epochs": {str(key): value for key, value in self.epochs.items()},
            "known": [asdict(one) for one in self.known],
            "late": [asdict(one) for one in self.late],
            "invalid": list(self.invalid),
            "unread": self.unread,
        }

    def __str__(self) -> str:
        if not self.known:
            if self.unread is not None:
                return f"clients are unknown: {self.unread}"
            return "clients: none has registered"
        counts = ", ".join(
            f"{count} with epoch {epoch}" for epoch, count in self.epochs.items()
        )
        lines = [f"clients: {counts}"]
        if self.unread is not None:
            lines.append(f"other clients are unknown: {self.unread}")
        for one in self.late[:_MOST]:
            lines += [f"old epoch: {late_line(one)}", f"    {one.remedy}"]
        if len(self.late) > _MOST:
            lines.append(f"old epoch: {len(self.late) - _MOST:,} others; see --json")
        return "\n".join(lines)


def late_line(one: Client) -> str:
    """Return a line about a process with an old topology."""
    since = ""
    if one.behind is not None:
        since = f", {one.behind:,.0f} s after a newer one was published"
    return f"epoch {one.epoch} is used by {one}{since}"


def known_clients(fleet: Fleet, topology: Topology) -> Clients | None:
    """Return the processes that have registered.

    :param topology: the newest topology of the fleet.
    :returns: None if the topology is a file.
    """
    if not is_zookeeper(fleet.location):
        return None
    try:
        return _read(fleet, topology)
    except TopologyUnavailableError as error:
        # The rest of the report does not depend on them.
        return Clients(epoch=topology.epoch, known=(), late=(), unread=str(error))


def _read(fleet: Fleet, topology: Topology) -> Clients:
    # kazoo is needed for this alone.
    from sqla_shard.topology.zookeeper.publications import CLIENTS
    from sqla_shard.topology.zookeeper.store import ZooKeeperStore

    hosts, options = zookeeper_options(fleet.location)
    with closing(ZooKeeperStore(hosts, options=options)) as store:
        every = sorted(store.names(CLIENTS))
        names = every[:_NODES]
        nodes = store.read_all(f"{CLIENTS}/{name}" for name in names)
        found: list[Client] = []
        invalid: list[str] = []
        for name, node in zip(names, nodes, strict=True):
            # One that has ended meanwhile has no node any more.
            if node is not None:
                try:
                    found.append(_client(node.data))
                except ValueError:
                    invalid.append(_text(name))
        found.sort(key=lambda one: (one.version, one.host, one.pid))
        late = [one for one in found if one.version < topology.version]
        published = _published(store, topology, late)
    return Clients(
        epoch=topology.epoch,
        known=tuple(found),
        late=tuple(_behind(one, topology, published) for one in late),
        invalid=tuple(invalid),
        unread=(
            f"{len(every):,} nodes are registered, of which {_NODES:,} were read; "
            f"remove those below {CLIENTS} that are no processes"
            if len(every) > _NODES
            else None
        ),
    )


def _published(
    store: ZooKeeperStore, topology: Topology, late: Iterable[Client]
) -> dict[int, float]:
    """Return when the epochs after the oldest were published."""
    from sqla_shard.topology.zookeeper.publications import node_of

    oldest = min(
        (one.epoch for one in late if one.resets == topology.resets),
        default=topology.epoch - 1,
    )
    # A longer history is not asked for.
    first = max(oldest + 1, topology.epoch - _MOST)
    epochs = range(first, topology.epoch + 1)
    stats = store.stats([node_of(epoch) for epoch in epochs])
    return {
        epoch: stat.created
        for epoch, stat in zip(epochs, stats, strict=True)
        if stat is not None
    }


def _behind(one: Client, topology: Topology, published: Mapping[int, float]) -> Client:
    """Return a late client with the time since it is late."""
    is_same = one.resets == topology.resets
    later = [
        when for epoch, when in published.items() if not is_same or epoch > one.epoch
    ]
    behind = max(0.0, time.time() - min(later)) if later else None
    return Client(**{**asdict(one), "behind": behind})


def _client(data: bytes) -> Client:
    """Return the process of a node.

    :raises ValueError: if it is not valid.
    """
    document = parsed_object(data, _BYTES)
    file = document.get("file")
    return Client(
        role=_text(document.get("role", "?")),
        host=_text(document.get("host", "?")),
        pid=_number(document, "pid"),
        program=_text(document.get("program", "?")),
        epoch=_number(document, "epoch"),
        resets=_number(document, "resets"),
        file=None if file is None else _text(file),
    )


def _number(document: Mapping[str, Any], name: str) -> int:
    value = document.get(name)
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"{name} is no number of a process or a topology")
    return value


def _text(value: object) -> str:
    """Return the printable part of a text that others have written."""
    return "".join(
        letter if letter.isprintable() else "?" for letter in str(value)[:_TEXT]
    )


# -- the note of the last step of an operation -----------------------------


def late_note(fleet: Fleet) -> dict[str, Any]:
    """Return the processes with an older topology, for the note of a step.

    Does not wait: a process needs some milliseconds to follow.
    """
    try:
        found = known_clients(fleet, fleet.topology())
    except TopologyUnavailableError as error:
        # The purpose of the operation is achieved.
        return {"clients_unknown": str(error)}
    if found is None or not (found.known or found.unread):
        return {}
    if found.unread is not None:
        return {"clients_unknown": found.unread}
    return {
        "clients": len(found.known),
        "late_clients": [asdict(one) for one in found.late[:_MOST]],
        "late": len(found.late),
    }


def late_lines(note: Mapping[str, Any]) -> list[str]:
    """Return the lines about a note of :func:`late_note`."""
    lines = [
        f"old epoch: {late_line(Client(**one))}" for one in note.get("late_clients", ())
    ]
    if note.get("late", 0) > len(lines):
        lines.append(f"old epoch: {note['late'] - len(lines)} more processes")
    if "clients_unknown" in note:
        lines.append(f"clients are unknown: {note['clients_unknown']}")
    return lines
