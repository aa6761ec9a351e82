"""The rows of a lookup: whether what they lead to is there."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import BigInteger
from sqlalchemy import or_
from sqlalchemy import type_coerce

from sqla_shard.cluster import Cluster
from sqla_shard.dialects.sql import Moment
from sqla_shard.engines import Places
from sqla_shard.lookup.definition import link
from sqla_shard.lookup.keys import Table
from sqla_shard.lookup.statements import statements_of
from sqla_shard.session import ShardSession
from sqla_shard.topology import Keyspace
from sqla_shard.verifying.contract import read
from sqla_shard.verifying.findings import Finding
from sqla_shard.verifying.findings import Kind
from sqla_shard.verifying.findings import Outcome
from sqla_shard.verifying.lookups import kinds
from sqla_shard.verifying.lookups.forms import forms_of
from sqla_shard.verifying.lookups.mending import Mender
from sqla_shard.verifying.objects import Objects

__all__ = ["ClaimCheck", "RowCheck"]


class RowCheck:
    """Looks through the rows of a lookup class; see ``Check``.

    :param cls: the class.
    :param keep: how long claims are left alone after their end.
    """

    unit = "rows"

    def __init__(self, cls: Any, keep: timedelta) -> None:
        self.subject = cls.__name__
        self._cls = cls
        self._keep = keep
        self._definition = definition = link(cls)
        self._targets = Objects(definition.target, definition.field)
        self._mender = Mender(cls, self._targets, keep)
        self.kinds = kinds.by_name(self._kinds())
        statements = statements_of(cls)
        self._table: Any = cls.__table__
        self._target = self._table.c[definition.column]
        self._rows = statements.rows
        if definition.unique:
            # By the same clock as the ends of claims.
            self._rows = self._rows.add_columns(Moment().label("now"))

    def _kinds(self) -> Iterator[Kind]:
        yield kinds.DANGLING
        if self._definition.field is not None:
            yield kinds.STALE
        yield kinds.MISPLACED
        # What may come of mending them.
        yield kinds.CONFLICTING
        yield kinds.UNFIT
        yield kinds.FOREIGN
        yield kinds.UNKNOWN_POLICY
        if self._definition.unique:
            yield kinds.ABANDONED
        yield kinds.OUTDATED

    def keyspace(self, places: Places) -> Keyspace:
        """Return that of the keys."""
        return places.keyspace(self._definition.keyspace, "mod")

    # -- reading

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
                # As a number: what is no id must not stop the walk.
                number = type_coerce(target, BigInteger())
                there = (key == after[0]) & (number > after[1])
                statement = statement.where(or_(key > after[0], there))
        return read(self, session, shard_id, statement)

    def position(self, row: Any) -> Any:
        """Return the primary key."""
        if self._definition.unique:
            return row.key
        return [row.key, row.target_id]

    def again(
        self,
        session: ShardSession,
        shard_id: int,
        findings: Sequence[Finding],
    ) -> Sequence[Any]:
        """Return the rows of the same keys and ids."""
        keys = [one.row["key"] for one in findings]
        ids = [one.row["target_id"] for one in findings]
        statement = self._rows.where(
            self._table.c.key.in_(keys), self._target.in_(ids)
        )
        return read(self, session, shard_id, statement)

    # -- judging

    def judge(
        self, session: ShardSession, shard_id: int, rows: Sequence[Any]
    ) -> list[Finding]:
        """Return the rows that do not fit."""
        table = Table(self._cls, session)
        found, whole = [], []
        for row in rows:
            kind, detail = self._at_sight(session, row)
            if kind is not None:
                found.append(self._finding(kind, table, shard_id, row, detail))
            elif row.target_id is not None:
                whole.append(row)
        there = self._targets.there(session, [row.target_id for row in whole])
        for row in whole:
            kind = self._among(table, shard_id, row, there)
            if kind is not None:
                found.append(self._finding(kind, table, shard_id, row, ""))
        return found

    def _at_sight(
        self, session: ShardSession, row: Any
    ) -> tuple[Kind | None, str]:
        """Return what is wrong with a row by itself, and more about it."""
        if row.target_id is None:
            ended = row.expires_at is not None and (
                row.now - row.expires_at > self._keep
            )
            if not ended:
                return None, ""
            return kinds.ABANDONED, f"it ended at {row.expires_at}"
        if row.policy not in self._definition.labels:
            return kinds.UNKNOWN_POLICY, f"its policy is {row.policy!r}"
        refusal = self._targets.refusal(session, row.target_id)
        return (None, "") if refusal is None else (kinds.FOREIGN, refusal)

    def _among(
        self, table: Table, shard_id: int, row: Any, there: dict[int, Any]
    ) -> Kind | None:
        """Return what is wrong with a row, beside its object."""
        if row.target_id not in there:
            return kinds.DANGLING
        if self._is_stale(table, row, there[row.target_id]):
            return kinds.STALE
        if table.shard_of(row.key) != shard_id:
            return kinds.MISPLACED
        if row.policy != self._definition.labels[0]:
            return kinds.OUTDATED
        return None

    def _is_stale(self, table: Table, row: Any, one: Any) -> bool:
        if self._targets.field is None:
            return False
        forms, unfit = forms_of(table, self._targets.keys_of(one))
        # What cannot be a key is reported with the object; whether this is
        # what is left of it, nobody knows.
        return not unfit and not any(
            form.text == row.key for _, given in forms for form in given
        )

    def _finding(
        self, kind: Kind, table: Table, shard_id: int, row: Any, detail: str
    ) -> Finding:
        return Finding(
            kind=kind.name,
            subject=self.subject,
            keyspace=table.keyspace.name,
            shard_id=shard_id,
            row={"key": row.key, "target_id": row.target_id},
            detail=detail,
        )

    def mend(self, cluster: Cluster, finding: Finding) -> Outcome:
        """Put a row right."""
        return self._mender.mend(cluster, finding)


class ClaimCheck(RowCheck):
    """Looks for abandoned claims, and at nothing else."""

    unit = "claims"

    def __init__(self, cls: Any, keep: timedelta) -> None:
        super().__init__(cls, keep)
        self._rows = self._rows.where(self._target.is_(None))

    def _kinds(self) -> Iterable[Kind]:  # type: ignore[override]  # fewer
        return (kinds.ABANDONED,)
