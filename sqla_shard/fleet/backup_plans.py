"""Dry runs of backups and of copies of binary logs.

Making such a plan only reads.  Sizes of databases are those that the server
has for rows and indexes; the files are compressed, and smaller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sqla_shard.exc import Problem


@dataclass(frozen=True, kw_only=True)
class ServerPlan:
    """The part of a plan that is read from one server.

    :ivar server: name of the server in the topology.
    :ivar source: role and address of the server that is read; None if it
        cannot be connected to.
    :ivar databases: bytes of each database, by its name.
    """

    server: str
    source: str | None
    databases: Mapping[str, int]

    def __str__(self) -> str:
        size = mebibytes(sum(self.databases.values()))
        source = self.source or "a server that is not known"
        first = f"{self.server}: {len(self.databases)} databases, {size}, from {source}"
        return _lines(first, self.databases)


@dataclass(frozen=True, kw_only=True)
class BackupPlan:
    """Plan of a backup.

    :ivar storage: where it would be written.
    :ivar servers: what it would read; each has a backup of its own.
    :ivar problems: why it would be refused.
    """

    storage: str
    servers: tuple[ServerPlan, ...]
    problems: tuple[Problem, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the plan in JSON values."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [f"backup into {self.storage}"]
        lines += [str(one) for one in self.servers]
        lines += [f"refused: {problem}" for problem in self.problems]
        return "\n".join(lines)


@dataclass(frozen=True, kw_only=True)
class BinlogPlan:
    """Plan of a copy of binary logs.

    :ivar address: ``host:port`` of the server.
    :ivar place: folder of the logs of that server.
    :ivar copied: number of logs that the folder has.
    :ivar new: bytes of each log that would be copied, by its name; the server
        would close the last one first.
    """

    address: str
    place: str
    copied: int
    new: Mapping[str, int]

    def as_dict(self) -> dict[str, Any]:
        """Return the plan in JSON values."""
        return asdict(self)

    def __str__(self) -> str:
        size = mebibytes(sum(self.new.values()))
        first = (
            f"{self.address}: {len(self.new)} logs, {size}, into "
            f"{self.place}, which has {self.copied}"
        )
        return _lines(first, self.new)


def _lines(first: str, sizes: Mapping[str, int]) -> str:
    rest = (f"  {name}: {mebibytes(size)}" for name, size in sizes.items())
    return "\n".join([first, *rest])


def mebibytes(size: int) -> str:
    """Return a number of bytes in MiB."""
    return f"{size / 2**20:.1f} MiB"
