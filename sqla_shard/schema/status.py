"""At which revision every virtual shard is, and which need somebody."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

from sqlalchemy.exc import DBAPIError

from sqla_shard.exc import InDoubtError
from sqla_shard.schema.environment import Environment
from sqla_shard.schema.running.ledger import FAILED
from sqla_shard.schema.running.ledger import open_entries
from sqla_shard.schema.running.ledger import said
from sqla_shard.schema.running.ledger import settled
from sqla_shard.schema.selecting import as_ranges
from sqla_shard.schema.versions import listed
from sqla_shard.schema.versions import Version
from sqla_shard.schema.versions import without_ledger

__all__ = ["ShardStatus", "StatusReport", "status_of"]

#: Conditions of a shard, worst last.
CURRENT = "current"
BEHIND = "behind"
UNKNOWN_REVISION = "unknown revision"
RUNNING = "a runner is at work"
UNFINISHED = "interrupted"
FAILED_STEP = "failed"
IN_DOUBT = "in doubt"
EMPTIED = "no revision, where others have one"
NO_LEDGER = "no ledger"
MISSING = "no such database"
UNREACHABLE = "server not reached"
#: Those of shards of which nothing is known.
NOT_READ = (MISSING, UNREACHABLE)


@dataclass(frozen=True, kw_only=True)
class ShardStatus:
    """What is known of one virtual shard.

    :ivar revisions: those that it is at; none for one without tables.
    :ivar condition: ``"current"``, ``"behind"``, ``"unknown revision"``,
        ``"a runner is at work"``, ``"interrupted"`` (the next run goes on),
        ``"failed"`` (likewise), ``"in doubt"`` (somebody has to look), ``"no
        revision, where others have one"`` (its objects may be elsewhere, or
        lost), ``"no ledger"`` (whether a revision is unfinished is not
        known), ``"no such database"`` or ``"server not reached"``.
    :ivar detail: more of it, or None.
    """

    shard_id: int
    server: str
    database: str
    revisions: tuple[str, ...]
    condition: str
    detail: str | None = None


@dataclass(frozen=True, kw_only=True)
class StatusReport:
    """At which revision every virtual shard is.

    ``str()`` is a histogram of the revisions, and what needs attention.

    :ivar keyspace: whose shards they are.
    :ivar heads: the newest revisions of the scripts.
    :ivar shards: one for each shard, in order.
    :ivar seconds: how long it took.
    """

    keyspace: str
    heads: tuple[str, ...]
    shards: tuple[ShardStatus, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether every shard is at the newest revisions."""
        return all(one.condition == CURRENT for one in self.shards)

    @property
    def unread(self) -> list[ShardStatus]:
        """The shards of which nothing is known."""
        return [one for one in self.shards if one.condition in NOT_READ]

    def histogram(self) -> dict[tuple[str, ...], list[int]]:
        """Return the shards by the revisions that they are at."""
        found: dict[tuple[str, ...], list[int]] = {}
        for one in self.shards:
            if one.condition not in NOT_READ:
                found.setdefault(one.revisions, []).append(one.shard_id)
        return found

    def to_mapping(self) -> dict[str, Any]:
        """Return what JSON can hold."""
        return {
            "keyspace": self.keyspace,
            "heads": list(self.heads),
            "ok": self.ok,
            "seconds": round(self.seconds, 3),
            "revisions": [
                {"revisions": list(revisions), "shards": ids}
                for revisions, ids in self.histogram().items()
            ],
            "shards": [
                {
                    "shard_id": one.shard_id,
                    "server": one.server,
                    "database": one.database,
                    "revisions": list(one.revisions),
                    "condition": one.condition,
                    "detail": one.detail,
                }
                for one in self.shards
            ],
        }

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield (
            f"{self.keyspace}: {len(self.shards)} virtual shards, newest "
            f"revision {', '.join(self.heads) or 'none'}"
        )
        newest = {
            one.revisions for one in self.shards if one.condition == CURRENT
        }
        # A shard stands in one line: one where the revision after head has
        # failed is not among those that are well.
        well: dict[str, list[int]] = {}
        others: dict[str, list[ShardStatus]] = {}
        for one in self.shards:
            revisions = one.revisions
            is_head = revisions in newest or set(revisions) == set(self.heads)
            name = f"at {listed(revisions)}{' (head)' if is_head else ''}"
            if one.condition in (CURRENT, BEHIND):
                well.setdefault(name, []).append(one.shard_id)
                continue
            where = f", {name}" if revisions else ""
            others.setdefault(f"{one.condition}{where}", []).append(one)
        for name, ids in well.items():
            yield f"  {len(ids):6} {name}: {as_ranges(ids)}"
        for name, found in others.items():
            ids = [one.shard_id for one in found]
            yield f"  {len(ids):6} {name}: {as_ranges(ids)}"
            yield from _details(found)


def _details(found: Sequence[ShardStatus]) -> Iterator[str]:
    """Yield what is the matter with shards of one condition."""
    if found[0].condition not in NOT_READ:
        for one in found[:5]:
            if one.detail:
                yield f"         {one.database}: {one.detail}"
        return
    # One outage is one line.
    by_server: dict[str, list[ShardStatus]] = {}
    for one in found:
        by_server.setdefault(one.server, []).append(one)
    for server, its in by_server.items():
        ids = as_ranges(one.shard_id for one in its)
        detail = " ".join((its[0].detail or "").split())
        yield f"         {server}: {ids}{': ' if detail else ''}{detail}"


def status_of(environment: Environment, steps: Any) -> StatusReport:
    """Return the status of the shards that the command is for."""
    began = monotonic()
    script = environment.script
    heads = tuple(sorted(script.get_heads()))
    known = {one.revision for one in script.walk_revisions()}
    return StatusReport(
        keyspace=environment.keyspace.name,
        heads=heads,
        shards=tuple(
            _status(environment, version, known)
            for version in environment.judged(environment.versions())
        ),
        seconds=monotonic() - began,
    )


def _status(
    environment: Environment, version: Version, known: set[str]
) -> ShardStatus:
    condition, detail = _condition(environment, version, known)
    shard = version.shard
    return ShardStatus(
        shard_id=shard.shard_id,
        server=shard.server,
        database=shard.database,
        revisions=version.heads,
        condition=condition,
        detail=detail,
    )


def _condition(
    environment: Environment, version: Version, known: set[str]
) -> tuple[str, str | None]:
    if version.is_missing:
        return MISSING, None
    if version.error is not None:
        return UNREACHABLE, version.error
    if not version.has_ledger:
        return NO_LEDGER, without_ledger(version)
    if version.open is not None:
        return _unfinished(environment, version)
    if version.lost is not None:
        return EMPTIED, version.lost
    strange = [one for one in version.heads if one not in known]
    if strange:
        return UNKNOWN_REVISION, f"no script has {', '.join(strange)}"
    is_newest = environment.is_newest(version.heads)
    return (CURRENT if is_newest else BEHIND), None


def _unfinished(
    environment: Environment, version: Version
) -> tuple[str, str | None]:
    """Look at one of the few shards where a revision has not ended."""
    shard = version.shard
    ddl = shard.place.backend.ddl
    engines = environment.places.engines
    try:
        with engines.visit(shard.place.engine) as connection:
            ddl.enter(connection, shard.schema)
            if ddl.hold(connection, shard.database, 0) is not None:
                return RUNNING, None
            try:
                return _told(connection, version)
            finally:
                ddl.release(connection, shard.database)
    except DBAPIError as error:
        return UNREACHABLE, str(error.orig)


def _told(connection: Any, version: Version) -> tuple[str, str | None]:
    shard = version.shard
    entries = open_entries(connection)
    if not entries:
        return BEHIND, None  # It has ended since.
    last = entries[-1]
    try:
        settled(connection, shard.place.backend.ddl, last)
    except InDoubtError as error:
        return IN_DOUBT, str(error)
    if last.error is not None:
        condition = FAILED_STEP if last.state == FAILED else IN_DOUBT
        return condition, f"{last.step}: {said(last.error)}"
    return UNFINISHED, (
        f"{last.step}, in its statement {last.number + 1}: "
        f"{said(last.statement)}"
    )
