"""Verification of lookups, and the open claims of keys."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from sqlalchemy import BigInteger, bindparam, or_, type_coerce

from sqla_shard.cluster.cluster import Cluster
from sqla_shard.dialects.sql import ServerTime
from sqla_shard.engine import by_server, Places
from sqla_shard.engine.rendering import Place
from sqla_shard.engine.unreachable import complete, for_each_shard, UnreachableServer
from sqla_shard.models import LookupMixin
from sqla_shard.models.lookup_table import (
    link,
    LookupAccess,
    NormalizedKey,
    read_keys,
    statements_of,
)
from sqla_shard.session import ShardSession
from sqla_shard.topology import Keyspace
from sqla_shard.upkeep import lookup_repair as kinds
from sqla_shard.upkeep.check import Check
from sqla_shard.upkeep.findings import Finding, FindingKind, Outcome, VerifyReport
from sqla_shard.upkeep.lookup_repair import forms_of, KeyRepair
from sqla_shard.upkeep.run import Run, VerifyProgress
from sqla_shard.upkeep.targets import classes_of, Objects
from sqla_shard.util.pace import Pace

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
        after a run with unreachable shards, the next run reads these.  It is
        removed at the end.
    :param batch: maximum number of rows that one transaction reads.
    :param on_progress: called after each batch.
    :returns: the report; ``str()`` of it is readable.  Shards that could not
        be read are in ``unreachable``.
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
    if report.unreachable and run.error is not None:
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
) -> tuple[list[OpenClaim], list[UnreachableServer]]:
    """Return the open claims, and the shards that could not be read."""
    if type(batch) is not int or batch < 1:
        raise ValueError(f"batch={batch!r} must be an integer, 1 or more")
    found: list[OpenClaim] = []
    unreachable: list[UnreachableServer] = []
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
            unreachable += failed
        found += sorted(claims, key=lambda one: (one.shard_id, one.key))
    return found, unreachable


def _on_server(
    cluster: Cluster, check: ClaimCheck, places: Sequence[Place], batch: int
) -> tuple[list[OpenClaim], list[UnreachableServer]]:
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


# -- Checks of lookups: the rows, and the objects with a key field.


class _LookupCheck(Check):
    """A check of a lookup class.

    :param cls: the lookup class.
    :param keep: retention time of expired claims.
    """

    def __init__(self, cls: Any, keep: timedelta) -> None:
        super().__init__(cls)
        self._keep = keep
        self._definition = definition = link(cls)
        self._targets = Objects(definition.target, definition.field)
        self._repairs = KeyRepair(cls, self._targets, keep)
        self.kinds = {kind.name: kind for kind in self._kinds()}

    def _kinds(self) -> Iterable[FindingKind]:
        raise NotImplementedError

    def repair(self, cluster: Cluster, finding: Finding) -> Outcome:
        """Repair a row, or add the key of an object."""
        return self._repairs.repair(cluster, finding)


class RowCheck(_LookupCheck):
    """Checks the rows of a lookup class."""

    def __init__(self, cls: Any, keep: timedelta) -> None:
        super().__init__(cls, keep)
        statements = statements_of(cls)
        self._table: Any = cls.__table__
        self._target = self._table.c[self._definition.column]
        self._rows = statements.rows
        if self._definition.unique:
            # Use the server's clock, which also determines when claims expire.
            self._rows = self._rows.add_columns(ServerTime().label("now"))

    def _kinds(self) -> Iterable[FindingKind]:
        yield kinds.DANGLING
        if self._definition.field is not None:
            yield kinds.STALE
        yield kinds.MISPLACED
        # A repair can find these kinds.
        yield kinds.CONFLICTING
        yield kinds.UNFIT
        yield kinds.FOREIGN
        yield kinds.UNKNOWN_POLICY
        if self._definition.unique:
            yield kinds.ABANDONED
        yield kinds.OUTDATED

    def keyspace(self, places: Places) -> Keyspace:
        """Return the keyspace of the keys."""
        return places.keyspace(self._definition.keyspace, "mod")

    def page(
        self, session: ShardSession, shard_id: int, after: Any, limit: int
    ) -> Sequence[Any]:
        """Return the next rows of a shard."""
        key, target = self._table.c.key, self._target
        statement = self._rows.limit(limit)
        if self._definition.unique:
            statement = statement.order_by(key)
            if after is not None:
                statement = statement.where(key > after)
        else:
            statement = statement.order_by(key, target)
            if after is not None:
                # Compare it as a number: an invalid id must not stop the scan.
                number = type_coerce(target, BigInteger())
                there = (key == after[0]) & (number > after[1])
                statement = statement.where(or_(key > after[0], there))
        return self._read(session, shard_id, statement)

    def position(self, row: Any) -> Any:
        """Return the primary key."""
        if self._definition.unique:
            return row.key
        return [row.key, row.target_id]

    def again(
        self, session: ShardSession, shard_id: int, findings: Sequence[Finding]
    ) -> Sequence[Any]:
        """Return the rows of the same keys and ids."""
        keys = [one.row["key"] for one in findings]
        ids = [one.row["target_id"] for one in findings]
        statement = self._rows.where(self._table.c.key.in_(keys), self._target.in_(ids))
        return self._read(session, shard_id, statement)

    def judge(
        self, session: ShardSession, shard_id: int, rows: Sequence[Any]
    ) -> list[Finding]:
        """Return the findings of the given rows."""
        table = LookupAccess(self._cls, session)
        found: list[tuple[FindingKind, Any, str]] = []
        valid = []
        for row in rows:
            kind, detail = self._judge_row(session, row)
            if kind is not None:
                found.append((kind, row, detail))
            elif row.target_id is not None:
                valid.append(row)
        there = self._targets.existing(session, [row.target_id for row in valid])
        for row in valid:
            kind = self._judge_target(table, shard_id, row, there)
            if kind is not None:
                found.append((kind, row, ""))
        return [
            self._finding(
                session,
                kind,
                shard_id,
                {"key": row.key, "target_id": row.target_id},
                detail,
            )
            for kind, row, detail in found
        ]

    def _judge_row(
        self, session: ShardSession, row: Any
    ) -> tuple[FindingKind | None, str]:
        """Return the kind and the detail of a finding from the row alone."""
        if row.target_id is None:
            ended = row.expires_at is not None and (
                row.now - row.expires_at > self._keep
            )
            if not ended:
                return None, ""
            return kinds.ABANDONED, f"it expired at {row.expires_at}"
        if row.policy not in self._definition.labels:
            return (kinds.UNKNOWN_POLICY, f"its policy is {row.policy!r}")
        refusal = self._targets.refusal(session, row.target_id)
        return (None, "") if refusal is None else (kinds.FOREIGN, refusal)

    def _judge_target(
        self, table: LookupAccess, shard_id: int, row: Any, there: dict[int, Any]
    ) -> FindingKind | None:
        """Return the kind of a finding that depends on the object, or None."""
        if row.target_id not in there:
            return kinds.DANGLING
        if self._is_stale(table, row, there[row.target_id]):
            return kinds.STALE
        if table.shard_of(row.key) != shard_id:
            return kinds.MISPLACED
        if row.policy != self._definition.labels[0]:
            return kinds.OUTDATED
        return None

    def _is_stale(self, table: LookupAccess, row: Any, one: Any) -> bool:
        if self._targets.field is None:
            return False
        forms, unfit = forms_of(table, self._targets.keys_of(one))
        # An invalid key is reported with the object; this row may have the
        # former key of the object, or another key.
        return not unfit and not any(
            form.text == row.key for _, given in forms for form in given
        )


class ClaimCheck(RowCheck):
    """Checks rows for abandoned claims only."""

    unit = "claims"

    def __init__(self, cls: Any, keep: timedelta) -> None:
        super().__init__(cls, keep)
        self._rows = self._rows.where(self._target.is_(None))

    def _kinds(self) -> Iterable[FindingKind]:
        return (kinds.ABANDONED,)


class ObjectCheck(_LookupCheck):
    """Checks that the objects of a lookup with ``field=`` have their keys."""

    unit = "objects"

    def __init__(self, cls: Any, keep: timedelta) -> None:
        super().__init__(cls, keep)
        target = cls.__table__.c[self._definition.column]
        wanted: Any = bindparam("the_ids", expanding=True)
        self._pairs = statements_of(cls).read.where(target.in_(wanted))

    def _kinds(self) -> Iterable[FindingKind]:
        return kinds.MISSING, kinds.CONFLICTING, kinds.UNFIT

    def keyspace(self, places: Places) -> Keyspace:
        """Return the keyspace of the objects."""
        return self._targets.keyspace(places)

    def page(
        self, session: ShardSession, shard_id: int, after: Any, limit: int
    ) -> Sequence[Any]:
        """Return the next objects of a shard."""
        return self._targets.page(session, shard_id, after, limit)

    def position(self, row: Any) -> Any:
        """Return the id."""
        return self._targets.id_of(row)

    def again(
        self, session: ShardSession, shard_id: int, findings: Sequence[Finding]
    ) -> Sequence[Any]:
        """Return the objects of the same ids."""
        ids = [one.row["target_id"] for one in findings]
        return list(self._targets.existing(session, ids).values())

    def judge(
        self, session: ShardSession, shard_id: int, rows: Sequence[Any]
    ) -> list[Finding]:
        """Return the findings of the given objects."""
        table = LookupAccess(self._cls, session)
        found: list[tuple[FindingKind, int, object, str]] = []
        wanted = []
        for one in rows:
            if not self._targets.is_active(one):
                continue
            object_id = self._targets.id_of(one)
            forms, unfit = forms_of(table, self._targets.keys_of(one))
            wanted += [(object_id, key, given) for key, given in forms]
            found += [(kinds.UNFIT, object_id, key, reason) for key, reason in unfit]
        owners = self._owners(table, wanted)
        for object_id, key, given in wanted:
            kind, detail = self._judge(table, object_id, given, owners)
            if kind is not None:
                found.append((kind, object_id, key, detail))
        return [
            self._finding(
                session,
                kind,
                shard_id,
                {
                    "key": key if isinstance(key, str) else repr(key),
                    "target_id": object_id,
                },
                detail,
            )
            for kind, object_id, key, detail in found
        ]

    def _owners(
        self,
        table: LookupAccess,
        wanted: Iterable[tuple[int, str, tuple[NormalizedKey, ...]]],
    ) -> dict[str, list[Any]]:
        """Return the rows of keys, by key.

        For shared keys, only the rows of the given objects are returned.
        """
        texts: dict[str, None] = {}
        ids: dict[int, None] = {}
        for object_id, _, given in wanted:
            texts.update((form.text, None) for form in given)
            ids[object_id] = None
        rows: Iterable[Any] = (
            read_keys(table, texts)
            if self._definition.unique
            else read_keys(table, texts, self._pairs, the_ids=list(ids))
        )
        owners: dict[str, list[Any]] = {}
        for row in rows:
            owners.setdefault(row.key, []).append(row)
        return owners

    def _judge(
        self,
        table: LookupAccess,
        object_id: int,
        given: Sequence[NormalizedKey],
        owners: dict[str, list[Any]],
    ) -> tuple[FindingKind | None, str]:
        """Return the kind and the detail of a finding for an object's key."""
        rows = [row for form in given for row in owners.get(form.text, ())]
        if any(row.target_id == object_id for row in rows):
            return None, ""
        if not self._definition.unique:
            return kinds.MISSING, ""
        if any(row.policy not in self._definition.labels for row in rows):
            # Reported with the rows: the policy of the key is unknown.
            return None, ""
        for row in rows:
            if row.target_id is not None:
                return (kinds.CONFLICTING, f"{row.key!r} belongs to {row.target_id}")
        if any(not row.expired for row in rows):
            # A sign-up is in progress, perhaps of this object.
            return None, ""
        return kinds.MISSING, ""
