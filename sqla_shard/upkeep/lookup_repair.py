"""Repair of lookup keys, one at a time, while the application runs.

Each repair checks the row again under locks, which it holds until COMMIT: it
locks first the object, if needed, then the row.

A repair in two transactions adds a row before it deletes the other one: after
an interruption there is one row too many, which the next run deletes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from secrets import token_bytes
from typing import Any

from sqlalchemy import select

from sqla_shard.cluster.cluster import Cluster
from sqla_shard.dialects.sql import ServerTime
from sqla_shard.exc import InvalidKeyError, KeyTakenError, LookupPolicyError
from sqla_shard.models.lookup_mixin import add_key, claim, give_key, LIFETIME, locked
from sqla_shard.models.lookup_table import (
    LookupAccess,
    NormalizedKey,
    statements_of,
    TOKEN_BYTES,
)
from sqla_shard.session import ShardSession
from sqla_shard.upkeep.findings import Finding, FindingKind, Outcome
from sqla_shard.upkeep.targets import Objects

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

    def repair(self, cluster: Cluster, finding: Finding) -> Outcome:
        """Repair one row; see :class:`~sqla_shard.upkeep.check.Check`."""
        try:
            if finding.kind in self._single:
                repaired = cluster.run(self._single[finding.kind], finding)
            elif finding.kind in self._double:
                repaired = self._double[finding.kind](cluster, finding)
            else:
                return Outcome.needs_decision(finding)
        except (_GoneError, LookupPolicyError):
            # The row was changed since; the next run checks it.
            return Outcome.not_needed()
        except InvalidKeyError as error:
            return self._not_repaired(finding, UNFIT.name, error.reason)
        except KeyTakenError as error:
            if error.target_id is None:
                if finding.kind == MISSING.name:
                    # The claim is in progress, possibly for this object.
                    return Outcome.not_needed()
                return self._not_repaired(
                    finding, finding.kind, f"claimed until {error.expires_at}"
                )
            return self._not_repaired(
                finding, CONFLICTING.name, f"{error.key!r} belongs to {error.target_id}"
            )
        return Outcome.succeeded() if repaired else Outcome.not_needed()

    def _not_repaired(self, finding: Finding, kind: str, detail: str) -> Outcome:
        return Outcome.needs_decision(replace(finding, kind=kind, detail=detail))

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
