"""Verification and repair of lookups, and the open claims of keys."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from secrets import token_bytes
from typing import Any

from sqlalchemy import BigInteger, bindparam, or_, select, type_coerce

from sqla_shard.cluster.cluster import Cluster
from sqla_shard.dialects.sql import ServerTime
from sqla_shard.engine import by_server, Places
from sqla_shard.engine.rendering import Place
from sqla_shard.engine.unreachable import complete, for_each_shard, UnreachableServer
from sqla_shard.exc import InvalidKeyError, KeyTakenError, LookupPolicyError
from sqla_shard.models import LookupMixin
from sqla_shard.models.claims import add_key, claim, give_key, LIFETIME, locked
from sqla_shard.models.lookup_table import (
    link,
    LookupAccess,
    NormalizedKey,
    read_keys,
    statements_of,
    TOKEN_BYTES,
)
from sqla_shard.session import ShardSession
from sqla_shard.topology import Keyspace
from sqla_shard.upkeep.checks import (
    Check,
    classes_of,
    Finding,
    FindingKind,
    Objects,
    RepairOutcome,
    VerifyReport,
)
from sqla_shard.upkeep.run import Run, VerifyProgress
from sqla_shard.util.json_values import JsonObject
from sqla_shard.util.pace import Pace

DANGLING = FindingKind(name="dangling", meaning="the object does not exist")

STALE = FindingKind(name="stale", meaning="the object has another key now")

MISPLACED = FindingKind(
    name="misplaced", meaning="the row is on another shard than that of its key"
)

MISSING = FindingKind(name="missing", meaning="the object cannot be found by its key")

CONFLICTING = FindingKind(
    name="conflicting", meaning="the key belongs to another object"
)

FOREIGN = FindingKind(
    name="foreign", meaning="the id is not an id of the class", settled=True
)

UNKNOWN_POLICY = FindingKind(
    name="unknown-policy",
    meaning="the class does not know the policy of the row",
    settled=True,
)

UNFIT = FindingKind(name="unfit", meaning="a value of the object cannot be a key")

ABANDONED = FindingKind(
    name="abandoned",
    meaning="a claim that expired long ago; the key can be claimed",
    harmless=True,
    settled=True,
)

OUTDATED = FindingKind(
    name="outdated",
    meaning="written under a policy of previous=; it is still found",
    harmless=True,
    settled=True,
)

#: The kinds that ``repair=True`` repairs.
REPAIRABLE = frozenset(
    one.name for one in (DANGLING, STALE, MISPLACED, MISSING, ABANDONED)
)


def forms_of(
    table: LookupAccess, keys: Iterable[object]
) -> tuple[list[tuple[str, tuple[NormalizedKey, ...]]], list[tuple[object, str]]]:
    """Return the normalized forms of keys.

    :returns: the keys with their forms, and the invalid keys with the reason.
    """
    forms: list[tuple[str, tuple[NormalizedKey, ...]]] = []
    unfit: list[tuple[object, str]] = []
    seen: set[str] = set()
    for key in keys:
        try:
            if not isinstance(key, str):
                raise InvalidKeyError(key=key, reason="it is not text")
            if key not in seen:
                seen.add(key)
                forms.append((key, table.forms(key)))
        except InvalidKeyError as error:
            unfit.append((key, error.reason))
    return forms, unfit


class _GoneError(Exception):
    """Raised to roll back the repair of a row that was changed since."""


class KeyRepair:
    """Repairs the keys of one class.

    Each repair checks the row again under locks, which it holds until COMMIT: it
    locks first the object, if needed, then the row.

    A repair in two transactions adds a row before it deletes the other one: after
    an interruption there is one row too many, which the next run deletes.

    :param cls: the lookup class.
    :param targets: the objects of the class.
    :param keep: retention time of expired claims.
    """

    def __init__(self, cls: Any, targets: Objects, keep: timedelta) -> None:
        self._cls = cls
        self._targets = targets
        self._keep = keep
        self._statements = statements_of(cls)
        #: Repairs in one transaction, and in two.
        self._single = {
            DANGLING.name: self._delete_dangling,
            STALE.name: self._delete_stale,
            ABANDONED.name: self._delete_abandoned,
            MISSING.name: self._add_missing,
        }
        self._double = {MISPLACED.name: self._move, OUTDATED.name: self._rewrite}

    def repair(self, cluster: Cluster, finding: Finding) -> RepairOutcome:
        """Repair one row; see :class:`~sqla_shard.upkeep.checks.Check`."""
        try:
            if finding.kind in self._single:
                repaired = cluster.run(self._single[finding.kind], finding)
            elif finding.kind in self._double:
                repaired = self._double[finding.kind](cluster, finding)
            else:
                return RepairOutcome.needs_decision(finding)
        except (_GoneError, LookupPolicyError):
            # The row was changed since; the next run checks it.
            return RepairOutcome.not_needed()
        except InvalidKeyError as error:
            return self._not_repaired(finding, UNFIT.name, error.reason)
        except KeyTakenError as error:
            if error.target_id is None:
                if finding.kind == MISSING.name:
                    # The claim is in progress, possibly for this object.
                    return RepairOutcome.not_needed()
                return self._not_repaired(
                    finding, finding.kind, f"claimed until {error.expires_at}"
                )
            return self._not_repaired(
                finding, CONFLICTING.name, f"{error.key!r} belongs to {error.target_id}"
            )
        return RepairOutcome.succeeded() if repaired else RepairOutcome.not_needed()

    def _not_repaired(self, finding: Finding, kind: str, detail: str) -> RepairOutcome:
        return RepairOutcome.needs_decision(replace(finding, kind=kind, detail=detail))

    def _delete_dangling(self, session: ShardSession, finding: Finding) -> bool:
        # Lock the row before reading the object: otherwise the object could
        # be inserted, and its key confirmed, in between.
        if self._lock_row(session, finding) is None:
            return False
        if not self._targets.is_gone(session, finding.row["target_id"]):
            return False
        return self._delete(session, finding)

    def _delete_stale(self, session: ShardSession, finding: Finding) -> bool:
        key = finding.row["key"]
        forms = self._lock_object(session, finding)
        if forms is None or any(key in texts for texts in forms.values()):
            return False
        if self._lock_row(session, finding) is None:
            return False
        return self._delete(session, finding)

    def _delete_abandoned(self, session: ShardSession, finding: Finding) -> bool:
        row = self._lock_row(session, finding)
        if row is None or row.expires_at is None:
            return False
        place = self._place(session, finding)
        now = session.scalar(select(ServerTime()), bind_arguments={"place": place})
        assert now is not None  # noqa: S101  # a row, always
        if now - row.expires_at <= self._keep:
            return False
        # Compare token and expiry, so that even without row locks a key that
        # was confirmed or claimed again is not deleted.
        result: Any = session.execute(
            self._statements.discard,
            {"the_key": row.key, "old_token": row.token, "old_end": row.expires_at},
            bind_arguments={"place": place},
        )
        return bool(result.rowcount)

    def _add_missing(self, session: ShardSession, finding: Finding) -> bool:
        forms = self._lock_object(session, finding, active=True)
        key, target_id = finding.row["key"], finding.row["target_id"]
        if forms is None or key not in forms:
            return False
        self._add(LookupAccess(self._cls, session), key, target_id)
        return True

    def _add(self, table: LookupAccess, key: str, target_id: int) -> None:
        if table.definition.unique:
            claim(table, key, target_id, LIFETIME)
        else:
            add_key(table, key, target_id)

    def _move(self, cluster: Cluster, finding: Finding) -> bool:
        cluster.run(self._copy, finding)
        return cluster.run(self._delete, finding)

    def _copy(self, session: ShardSession, finding: Finding) -> None:
        table = LookupAccess(self._cls, session)
        row = self._lock_rows(table, finding, finding.row["key"])
        if row is None:
            raise _GoneError
        form = NormalizedKey(text=row.key, label=row.policy)
        if not table.definition.unique:
            table.execute(
                form.text,
                self._statements.add,
                the_key=form.text,
                the_id=row.target_id,
                the_policy=form.label,
            )
            return
        there = locked(table, form.text)
        # The other row may have been rewritten under a newer policy.
        if there is None or there.target_id != row.target_id:
            give_key(table, form, row.target_id, token_bytes(TOKEN_BYTES))

    def _rewrite(self, cluster: Cluster, finding: Finding) -> bool:
        if cluster.run(self._rewrite_or_copy, finding):
            return True
        if cluster.run(self._delete, finding):
            return True
        raise _GoneError

    def _rewrite_or_copy(self, session: ShardSession, finding: Finding) -> bool:
        """Rewrite a row under the current policy; False if it was copied."""
        table = LookupAccess(self._cls, session)
        key = self._original_key(session, table, finding)
        form = table.form(key)
        text, target_id = finding.row["key"], finding.row["target_id"]
        row = self._lock_rows(table, finding, form.text)
        if row is None or row.policy not in table.definition.labels[1:]:
            raise _GoneError
        if form.text != text:
            self._add(table, key, target_id)
            return False
        table.execute(
            text,
            self._statements.rewrite,
            the_key=text,
            the_id=target_id,
            the_policy=form.label,
        )
        return True

    def _original_key(
        self, session: ShardSession, table: LookupAccess, finding: Finding
    ) -> str:
        """Return the key of a row before it was normalized.

        This is the value of the field, or the key of the row if the lookup
        has no field.
        """
        text: str = finding.row["key"]
        forms = self._lock_object(session, finding)
        if self._targets.field is None:
            return text
        for key, texts in (forms or {}).items():
            if text in texts:
                return key
        raise _GoneError

    def _lock_object(
        self, session: ShardSession, finding: Finding, *, active: bool = False
    ) -> dict[str, set[str]] | None:
        """Lock an object, and return its keys, each with its normalized forms.

        :param active: whether an inactive object has no keys.
        :returns: None if the object does not exist, or has invalid keys.
        """
        if self._targets.field is None:
            return None
        one = self._targets.locked(session, finding.row["target_id"])
        if one is None or (active and not self._targets.is_active(one)):
            return None
        table = LookupAccess(self._cls, session)
        forms, unfit = forms_of(table, self._targets.keys_of(one))
        if unfit:
            return None
        return {key: {form.text for form in given} for key, given in forms}

    def _place(self, session: ShardSession, finding: Finding) -> Any:
        # Do not use the shard of its key: the row may be misplaced.
        keyspace = session.places.keyspace(finding.keyspace, "mod")
        return session.places.place(keyspace, finding.shard_id)

    def _lock_row(self, session: ShardSession, finding: Finding) -> Any:
        """Lock the row of a finding and return it, or None if not found."""
        target_id = finding.row["target_id"]
        statement = self._statements.of_object_locked
        parameters = {"the_key": finding.row["key"], "the_id": target_id}
        if target_id is None:
            statement = self._statements.locked
            del parameters["the_id"]
        row = session.execute(
            statement,
            parameters,
            bind_arguments={"place": self._place(session, finding)},
        ).one_or_none()
        if row is None or row.target_id != target_id:
            return None
        return row

    def _lock_rows(self, table: LookupAccess, finding: Finding, text: str) -> Any:
        """Lock the row of a finding, and one on the shard of a key.

        Rows are locked in the order of their shards, as in release(): SQLite
        locks whole files, so two transactions could deadlock.
        """
        lock = partial(
            table.execute,
            text,
            self._statements.of_object_locked,
            the_key=text,
            the_id=finding.row["target_id"],
        )
        if table.shard_of(text) < finding.shard_id:
            lock().first()
            return self._lock_row(table.session, finding)
        row = self._lock_row(table.session, finding)
        if table.shard_of(text) > finding.shard_id:
            lock().first()
        return row

    def _delete(self, session: ShardSession, finding: Finding) -> bool:
        result: Any = session.execute(
            self._statements.delete,
            {"the_key": finding.row["key"], "the_id": finding.row["target_id"]},
            bind_arguments={"place": self._place(session, finding)},
        )
        return bool(result.rowcount)


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
    lookups = classes_of(LookupMixin, classes)
    _check_age("keep", keep)
    checks: list[Check] = []
    for cls in lookups:
        checks.append(RowCheck(cls, keep))
        if link(cls).field is not None:
            checks.append(ObjectCheck(cls, keep))
    wanted = set(REPAIRABLE) if repair else set()
    if rekey:
        wanted.add(OUTDATED.name)
    return Run(
        cluster,
        checks,
        repair=wanted,
        pace=Pace(rate=rate, grace=grace, batch=batch),
        command="lookups",
        position=position,
        on_progress=on_progress,
    ).run({c.__name__: _NO_FIELD for c in lookups if link(c).field is None})


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
        repair={ABANDONED.name},
        pace=Pace(rate=rate, grace=0.0, batch=batch),
        command="abandoned",
        position=None,
    )
    report = run.run()
    if report.unreachable and run.error is not None:
        raise run.error
    return report.repaired(ABANDONED.name)


def _check_age(name: str, value: object) -> None:
    if not isinstance(value, timedelta) or value < timedelta(0):
        raise ValueError(f"{name}={value!r} must be a timedelta, 0 or more")


_PARALLEL = 8


@dataclass(frozen=True, kw_only=True)
class OpenClaim(JsonObject):
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

    def __str__(self) -> str:
        expires = "expired" if self.has_ended else "expires"
        return (
            f"{self.lookup} {self.key!r}, on shard {self.shard_id} of {self.keyspace}, "
            f"{expires} at {self.expires_at:%Y-%m-%d %H:%M:%S} UTC"
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
    open_claims: list[OpenClaim] = []
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
        open_claims += sorted(claims, key=lambda one: (one.shard_id, one.key))
    return open_claims, unreachable


def _on_server(
    cluster: Cluster, check: ClaimCheck, places: Sequence[Place], batch: int
) -> tuple[list[OpenClaim], list[UnreachableServer]]:
    open_claims: list[OpenClaim] = []

    def read(place: Place) -> None:
        open_claims.extend(
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

    return open_claims, for_each_shard(places, read)


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
        self.kinds: dict[str, FindingKind] = {kind.name: kind for kind in self._kinds()}

    def _kinds(self) -> Iterable[FindingKind]:
        raise NotImplementedError

    def repair(self, cluster: Cluster, finding: Finding) -> RepairOutcome:
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
        yield DANGLING
        if self._definition.field is not None:
            yield STALE
        yield MISPLACED
        # A repair can find these kinds.
        yield CONFLICTING
        yield UNFIT
        yield FOREIGN
        yield UNKNOWN_POLICY
        if self._definition.unique:
            yield ABANDONED
        yield OUTDATED

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
        problems: list[tuple[FindingKind, Any, str]] = []
        valid = []
        for row in rows:
            kind, detail = self._judge_row(session, row)
            if kind is not None:
                problems.append((kind, row, detail))
            elif row.target_id is not None:
                valid.append(row)
        there = self._targets.existing(session, [row.target_id for row in valid])
        for row in valid:
            kind = self._judge_target(table, shard_id, row, there)
            if kind is not None:
                problems.append((kind, row, ""))
        return [
            self._finding(
                session,
                kind,
                shard_id,
                {"key": row.key, "target_id": row.target_id},
                detail,
            )
            for kind, row, detail in problems
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
            return ABANDONED, f"it expired at {row.expires_at}"
        if row.policy not in self._definition.labels:
            return (UNKNOWN_POLICY, f"its policy is {row.policy!r}")
        refusal = self._targets.refusal(session, row.target_id)
        return (None, "") if refusal is None else (FOREIGN, refusal)

    def _judge_target(
        self, table: LookupAccess, shard_id: int, row: Any, there: dict[int, Any]
    ) -> FindingKind | None:
        """Return the kind of a finding that depends on the object, or None."""
        if row.target_id not in there:
            return DANGLING
        if self._is_stale(table, row, there[row.target_id]):
            return STALE
        if table.shard_of(row.key) != shard_id:
            return MISPLACED
        if row.policy != self._definition.labels[0]:
            return OUTDATED
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
        return (ABANDONED,)


class ObjectCheck(_LookupCheck):
    """Checks that the objects of a lookup with ``field=`` have their keys."""

    unit = "objects"

    def __init__(self, cls: Any, keep: timedelta) -> None:
        super().__init__(cls, keep)
        target = cls.__table__.c[self._definition.column]
        wanted: Any = bindparam("the_ids", expanding=True)
        self._pairs = statements_of(cls).read.where(target.in_(wanted))

    def _kinds(self) -> Iterable[FindingKind]:
        return MISSING, CONFLICTING, UNFIT

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
        problems: list[tuple[FindingKind, int, object, str]] = []
        wanted = []
        for one in rows:
            if not self._targets.is_active(one):
                continue
            object_id = self._targets.id_of(one)
            forms, unfit = forms_of(table, self._targets.keys_of(one))
            wanted += [(object_id, key, given) for key, given in forms]
            problems += [(UNFIT, object_id, key, reason) for key, reason in unfit]
        owners = self._owners(table, wanted)
        for object_id, key, given in wanted:
            kind, detail = self._judge(table, object_id, given, owners)
            if kind is not None:
                problems.append((kind, object_id, key, detail))
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
            for kind, object_id, key, detail in problems
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
            return MISSING, ""
        if any(row.policy not in self._definition.labels for row in rows):
            # Reported with the rows: the policy of the key is unknown.
            return None, ""
        for row in rows:
            if row.target_id is not None:
                return (CONFLICTING, f"{row.key!r} belongs to {row.target_id}")
        if any(not row.expired for row in rows):
            # A sign-up is in progress, perhaps of this object.
            return None, ""
        return MISSING, ""
