"""Verification of lookups, and the open claims of keys."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from sqla_shard.cluster.cluster import Cluster
from sqla_shard.engine import by_server
from sqla_shard.engine.rendering import Place
from sqla_shard.engine.unread import complete, for_each_shard, UnreadServer
from sqla_shard.models import LookupMixin
from sqla_shard.models.lookup_definition import link
from sqla_shard.util.pace import Pace
from sqla_shard.verify import lookup_repair as kinds
from sqla_shard.verify.check import Check
from sqla_shard.verify.findings import VerifyReport
from sqla_shard.verify.lookup_checks import ClaimCheck, ObjectCheck, RowCheck
from sqla_shard.verify.run import Run, VerifyProgress
from sqla_shard.verify.targets import classes_of

#: Retention time of expired claims.
KEEP = timedelta(days=1)

_NO_FIELD = "not checked: stale, missing and conflicting keys; the class has no field="


def verify_lookups(
    cluster: Cluster,
    classes: Iterable[type[Any]] | None = None,
    *,
    repair: bool = False,
    rekey: bool = False,
    rate: float | None = None,
    grace: float = 60.0,
    keep: timedelta = KEEP,
    position: str | os.PathLike[str] | None = None,
    batch: int = 500,
    on_progress: Callable[[VerifyProgress], object] | None = None,
) -> VerifyReport:
    """Verify that keys have their objects, and objects have their keys.

    The application can run meanwhile: primaries are read, one batch per
    transaction, and a finding counts only after a second check.  Without
    ``repair`` and ``rekey`` nothing is written.

    :param classes: the lookup classes; by default all lookup classes of this
        process.
    :param repair: repair rows that need no decision, and delete abandoned
        claims.
    :param rekey: rewrite the rows of ``previous`` policies under the current
        one.
    :param rate: maximum number of rows per second.
    :param grace: seconds between the two checks; must be longer than a
        sign-up or a change of a key takes.
    :param keep: retention time of expired claims.
    :param position: the position file.  An interrupted run is resumed from it;
        after a run with unread shards, the next run reads these.  It is
        removed at the end.
    :param batch: maximum number of rows that one transaction reads.
    :param on_progress: called after each batch.
    :returns: the report; ``str()`` of it is readable.  Shards that could not
        be read are in ``unread``.
    :raises VerifyPositionError: if the file belongs to another run.
    :raises ValueError: for an invalid argument.
    """
    found = classes_of(LookupMixin, classes)
    _check_age("keep", keep)
    checks: list[Check] = []
    for cls in found:
        checks.append(RowCheck(cls, keep))
        if link(cls).field is not None:
            checks.append(ObjectCheck(cls, keep))
    wanted = set(kinds.REPAIRABLE) if repair else set()
    if rekey:
        wanted.add(kinds.OUTDATED.name)
    return Run(
        cluster,
        checks,
        repair=wanted,
        pace=Pace(rate=rate, grace=grace, batch=batch),
        command="lookups",
        position=position,
        on_progress=on_progress,
    ).run({c.__name__: _NO_FIELD for c in found if link(c).field is None})


def delete_abandoned(
    cluster: Cluster,
    classes: Iterable[type[Any]] | None = None,
    *,
    older_than: timedelta = KEEP,
    rate: float | None = None,
    batch: int = 500,
) -> int:
    """Delete claims that expired long ago, without other checks.

    An expired claim can be confirmed until it is deleted, so ``older_than``
    must be longer than a confirmation may take.

    :param classes: the lookup classes; by default all lookup classes of this
        process.
    :param older_than: minimum time since the expiry of the claims, by the
        clocks of the servers.
    :param rate: maximum number of claims per second.
    :param batch: maximum number of claims that one transaction reads.
    :returns: number of deleted claims.
    :raises ValueError: for an invalid argument.
    :raises SQLAlchemyError: if a server does not respond; claims on the other
        servers are deleted.
    """
    _check_age("older_than", older_than)
    run = Run(
        cluster,
        [
            ClaimCheck(cls, older_than)
            for cls in classes_of(LookupMixin, classes)
            if link(cls).unique
        ],
        repair={kinds.ABANDONED.name},
        pace=Pace(rate=rate, grace=0.0, batch=batch),
        command="abandoned",
        position=None,
    )
    report = run.run()
    if report.unread and run.error is not None:
        raise run.error
    return report.repaired(kinds.ABANDONED.name)


def _check_age(name: str, value: object) -> None:
    if not isinstance(value, timedelta) or value < timedelta(0):
        raise ValueError(f"{name}={value!r} must be a timedelta, 0 or more")


_PARALLEL = 8


@dataclass(frozen=True, kw_only=True)
class OpenClaim:
    """A claim that was neither confirmed nor released.

    :ivar lookup: name of the lookup class.
    :ivar key: the normalized key.
    :ivar keyspace: keyspace of its row.
    :ivar shard_id: shard of its row.
    :ivar server: server of that shard.
    :ivar expires_at: expiry of the claim, by the clock of the server.
    :ivar has_ended: whether it has expired; it can still be confirmed until
        the key is claimed again.
    """

    lookup: str
    key: str
    keyspace: str
    shard_id: int
    server: str
    expires_at: datetime
    has_ended: bool

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes as JSON values."""
        return {**asdict(self), "expires_at": self.expires_at.isoformat()}

    def __str__(self) -> str:
        expires = "expired" if self.has_ended else "expires"
        return (
            f"{self.lookup} {self.key!r}, on shard {self.shard_id} of "
            f"{self.keyspace}, {expires} at "
            f"{self.expires_at:%Y-%m-%d %H:%M:%S} UTC"
        )


def open_claims(
    cluster: Cluster, classes: Iterable[type[Any]] | None = None, *, batch: int = 500
) -> list[OpenClaim]:
    """Return the claims that were neither confirmed nor released.

    In a healthy cluster these are sign-ups in progress.  Whole tables are
    read without locks, on all servers at the same time.

    :param classes: the lookup classes with unique keys; by default all
        of them in this process.
    :param batch: maximum number of claims that one transaction reads.
    :returns: the claims, ordered by class, shard and key.
    :raises ValueError: for an invalid argument.
    :raises SQLAlchemyError: if a server does not respond.
    """
    return complete(claims_on_all(cluster, classes, batch=batch))


def claims_on_all(
    cluster: Cluster, classes: Iterable[type[Any]] | None = None, *, batch: int = 500
) -> tuple[list[OpenClaim], list[UnreadServer]]:
    """Return the open claims, and the shards that could not be read."""
    if type(batch) is not int or batch < 1:
        raise ValueError(f"batch={batch!r} must be an integer, 1 or more")
    found: list[OpenClaim] = []
    unread: list[UnreadServer] = []
    for cls in classes_of(LookupMixin, classes):
        if not link(cls).unique:
            continue
        check, places = ClaimCheck(cls, KEEP), cluster.places
        jobs = [
            partial(_on_server, cluster, check, group, batch)
            for group in by_server(places.all_places(check.keyspace(places)))
        ]
        claims: list[OpenClaim] = []
        for read, failed in places.engines.in_parallel(jobs, "claims", _PARALLEL):
            claims += read
            unread += failed
        found += sorted(claims, key=lambda one: (one.shard_id, one.key))
    return found, unread


def _on_server(
    cluster: Cluster, check: ClaimCheck, places: Sequence[Place], batch: int
) -> tuple[list[OpenClaim], list[UnreadServer]]:
    found: list[OpenClaim] = []

    def read(place: Place) -> None:
        found.extend(
            [
                OpenClaim(
                    lookup=check.subject,
                    key=row.key,
                    keyspace=place.keyspace,
                    shard_id=place.shard_id,
                    server=place.server,
                    expires_at=row.expires_at,
                    has_ended=row.expired,
                )
                for row in _rows(cluster, check, place.shard_id, batch)
            ]
        )

    return found, for_each_shard(places, read)


def _rows(
    cluster: Cluster, check: ClaimCheck, shard_id: int, batch: int
) -> Iterator[Any]:
    after = None
    while True:
        # Use a new transaction: a long one prevents the purge of old rows.
        with cluster.session() as session:
            page = check.page(session, shard_id, after, batch)
        yield from page
        if len(page) < batch:
            return
        after = check.position(page[-1])
