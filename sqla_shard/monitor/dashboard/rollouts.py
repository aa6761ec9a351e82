"""The schema revision of every shard, and rollouts in progress.

With the ``alembic.ini`` of the application a shard is compared with the newest
revision, as ``sqla-shard schema status`` does.  Without it the revisions that
shards have are shown, and which of them were interrupted or are running.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy.exc import SQLAlchemyError

from sqla_shard.cluster.cluster import Cluster
from sqla_shard.engine.unreachable import short
from sqla_shard.schema.commands import (
    BEHIND,
    CURRENT,
    MISSING,
    NO_LEDGER,
    NOT_READ,
    RUNNING,
    ShardStatus,
    status,
    UNFINISHED,
    UNREACHABLE,
)
from sqla_shard.schema.ledger import read_versions, Version
from sqla_shard.schema.selection import shards_of
from sqla_shard.topology.keyspaces import as_ranges

AT_REVISION = "at this revision"
"""Condition of a shard if the newest revision is not known."""

OPEN_REVISION = "running or interrupted"
"""Condition of a shard with an unfinished revision, without the scripts."""

#: The proxies of alembic are global: one status at a time.
_alembic = threading.Lock()


@dataclass(frozen=True, kw_only=True)
class RevisionGroup:
    """Shards with the same revision and condition.

    :ivar level: its class in the style sheet.
    :ivar revisions: the current revisions; empty for none.
    :ivar condition: see :class:`~sqla_shard.schema.ShardStatus`.
    :ivar count: number of shards.
    :ivar shards: the shards, as ``0-511,600``.
    :ivar detail: details of the first of them; None if there are none.
    """

    level: str
    revisions: tuple[str, ...]
    condition: str
    count: int
    shards: str
    detail: str | None

    @property
    def text(self) -> str:
        """The revision and the condition in a few words."""
        name = ", ".join(self.revisions) or "no revision"
        if self.condition in (AT_REVISION, CURRENT):
            return name
        return f"{name}, {self.condition}"


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """The revisions of the shards of a keyspace.

    :ivar heads: the newest revisions; None if they are not known.
    :ivar shards: the status of each shard, in order; empty if unread.
    :ivar error: why they could not be read; None if they were.
    """

    keyspace: str
    heads: tuple[str, ...] | None
    shards: tuple[ShardStatus, ...]
    error: str | None = None

    @property
    def is_running(self) -> bool:
        """Whether a revision is on some shards, or unfinished on one."""
        return self.error is None and (
            len({one.revisions for one in self.shards}) > 1
            or any(
                one.condition in (RUNNING, UNFINISHED, OPEN_REVISION)
                for one in self.shards
            )
        )

    @property
    def share(self) -> float | None:
        """The share of shards at the newest revision; None if unknown."""
        if self.heads is None or not self.shards:
            return None
        current = sum(one.condition == CURRENT for one in self.shards)
        return current / len(self.shards)

    def conditions(self) -> list[RevisionGroup]:
        """Return the shards by revision and condition, the most first."""
        groups: dict[tuple[tuple[str, ...], str], list[ShardStatus]] = {}
        for one in self.shards:
            groups.setdefault((one.revisions, one.condition), []).append(one)
        found = []
        hues: dict[tuple[str, ...], int] = {}
        for (revisions, condition), shards in sorted(
            groups.items(), key=lambda item: -len(item[1])
        ):
            hue = hues.setdefault(revisions, len(hues))
            details = [one.detail for one in shards if one.detail]
            found.append(
                RevisionGroup(
                    level=_level(condition, hue),
                    revisions=revisions,
                    condition=condition,
                    count=len(shards),
                    shards=as_ranges((one.shard_id for one in shards), 6),
                    detail=details[0] if details else None,
                )
            )
        return found

    def levels(self) -> dict[int, str]:
        """Return the class in the style sheet of each shard."""
        level_of = {
            (one.revisions, one.condition): one.level for one in self.conditions()
        }
        return {
            one.shard_id: level_of[one.revisions, one.condition] for one in self.shards
        }


def _level(condition: str, hue: int) -> str:
    if condition in (CURRENT, AT_REVISION):
        return f"r{min(hue, 4)}"
    if condition == BEHIND:
        return "behind"
    if condition in (RUNNING, OPEN_REVISION):
        return "running"
    return "unread" if condition in NOT_READ else "failed"


def read_rollouts(cluster: Cluster, configs: Sequence[Config]) -> tuple[Rollout, ...]:
    """Return the revisions of every keyspace.

    :param configs: alembic's configuration of some keyspaces.
    """
    found: dict[str, Rollout] = {}
    for config in configs:
        name = config.get_section_option(config.config_ini_section, "keyspace")
        try:
            with _alembic:
                report = status(config, cluster=cluster)
        except (CommandError, SQLAlchemyError, OSError) as error:
            name = name or config.config_ini_section
            found[name] = Rollout(
                keyspace=name, heads=None, shards=(), error=short(error)
            )
        else:
            found[report.keyspace] = Rollout(
                keyspace=report.keyspace, heads=report.heads, shards=report.shards
            )
    places = cluster.places
    for keyspace in places.topology.keyspaces.values():
        if keyspace.name not in found:
            versions = read_versions(
                places, shards_of(places, keyspace), "alembic_version"
            )
            found[keyspace.name] = Rollout(
                keyspace=keyspace.name, heads=None, shards=tuple(map(_status, versions))
            )
    return tuple(found[name] for name in places.topology.keyspaces if name in found)


def _status(version: Version) -> ShardStatus:
    condition, detail = AT_REVISION, None
    if version.is_missing:
        condition = MISSING
    elif version.error is not None:
        condition = UNREACHABLE
        detail = short(version.cause) if version.cause else version.error
    elif not version.has_ledger:
        condition = NO_LEDGER
    elif version.open is not None:
        condition, detail = OPEN_REVISION, version.open.step
    return ShardStatus(
        shard_id=version.shard.shard_id,
        server=version.shard.server,
        database=version.shard.database,
        revisions=version.heads,
        condition=condition,
        detail=detail,
    )
