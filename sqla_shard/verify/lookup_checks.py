"""Checks of lookups: the rows, and the objects with a key field."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import BigInteger, bindparam, or_, type_coerce

from sqla_shard.cluster.cluster import Cluster
from sqla_shard.dialects.sql import ServerTime
from sqla_shard.engine import Places
from sqla_shard.models.lookup_definition import link
from sqla_shard.models.lookup_table import (
    LookupAccess,
    NormalizedKey,
    read_keys,
    statements_of,
)
from sqla_shard.session import ShardSession
from sqla_shard.topology import Keyspace
from sqla_shard.verify import lookup_repair as kinds
from sqla_shard.verify.check import Check
from sqla_shard.verify.findings import Finding, FindingKind, Outcome
from sqla_shard.verify.lookup_repair import forms_of, KeyRepair
from sqla_shard.verify.targets import Objects


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
