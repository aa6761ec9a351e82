"""The objects of a lookup: whether they can be found by their keys."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import bindparam

from sqla_shard.cluster import Cluster
from sqla_shard.engines import Places
from sqla_shard.lookup.definition import link
from sqla_shard.lookup.keys import Form
from sqla_shard.lookup.keys import Table
from sqla_shard.lookup.reading import read
from sqla_shard.lookup.statements import statements_of
from sqla_shard.session import ShardSession
from sqla_shard.topology import Keyspace
from sqla_shard.verifying.findings import Finding
from sqla_shard.verifying.findings import Kind
from sqla_shard.verifying.findings import Outcome
from sqla_shard.verifying.lookups import kinds
from sqla_shard.verifying.lookups.forms import forms_of
from sqla_shard.verifying.lookups.mending import Mender
from sqla_shard.verifying.objects import Objects

__all__ = ["ObjectCheck"]


class ObjectCheck:
    """Looks through the objects of a class whose field is known.

    :param cls: the lookup class.
    :param keep: how long claims are left alone after their end.
    """

    unit = "objects"
    kinds = kinds.by_name(
        (
            kinds.MISSING,
            kinds.CONFLICTING,
            kinds.UNFIT,
        )
    )

    def __init__(self, cls: Any, keep: timedelta) -> None:
        self.subject = cls.__name__
        self._cls = cls
        self._definition = definition = link(cls)
        self._targets = Objects(definition.target, definition.field)
        self._mender = Mender(cls, self._targets, keep)
        target = cls.__table__.c[definition.column]
        wanted: Any = bindparam("the_ids", expanding=True)
        self._pairs = statements_of(cls).read.where(target.in_(wanted))

    def keyspace(self, places: Places) -> Keyspace:
        """Return that of the objects."""
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
        self,
        session: ShardSession,
        shard_id: int,
        findings: Sequence[Finding],
    ) -> Sequence[Any]:
        """Return the objects of the same ids."""
        ids = [one.row["target_id"] for one in findings]
        return list(self._targets.there(session, ids).values())

    def judge(
        self, session: ShardSession, shard_id: int, rows: Sequence[Any]
    ) -> list[Finding]:
        """Return what is wrong with the keys of objects."""
        table = Table(self._cls, session)
        found, wanted = [], []
        for one in rows:
            if not self._targets.is_active(one):
                continue
            object_id = self._targets.id_of(one)
            forms, unfit = forms_of(table, self._targets.keys_of(one))
            wanted += [(object_id, key, given) for key, given in forms]
            for key, reason in unfit:
                finding = self._finding(kinds.UNFIT, shard_id, object_id, key)
                found.append((finding, reason))
        owners = self._owners(table, wanted)
        for object_id, key, given in wanted:
            kind, detail = self._judge(table, object_id, given, owners)
            if kind is not None:
                finding = self._finding(kind, shard_id, object_id, key)
                found.append((finding, detail))
        keyspace = self.keyspace(session.places).name
        return [
            Finding(**finding, keyspace=keyspace, detail=detail)
            for finding, detail in found
        ]

    def _finding(
        self, kind: Kind, shard_id: int, object_id: int, key: object
    ) -> dict[str, Any]:
        return {
            "kind": kind.name,
            "subject": self.subject,
            "shard_id": shard_id,
            "row": {
                "key": key if isinstance(key, str) else repr(key),
                "target_id": object_id,
            },
        }

    def _owners(
        self,
        table: Table,
        wanted: Iterable[tuple[int, str, tuple[Form, ...]]],
    ) -> dict[str, list[Any]]:
        """Return the rows of keys, by key; of shared ones, of these alone."""
        texts: dict[str, None] = {}
        ids: dict[int, None] = {}
        for object_id, _, given in wanted:
            texts.update((form.text, None) for form in given)
            ids[object_id] = None
        if self._definition.unique:
            rows: Iterator[Any] = iter(read(table, texts))
        else:
            rows = iter(read(table, texts, self._pairs, the_ids=list(ids)))
        owners: dict[str, list[Any]] = {}
        for row in rows:
            owners.setdefault(row.key, []).append(row)
        return owners

    def _judge(
        self,
        table: Table,
        object_id: int,
        given: Sequence[Form],
        owners: dict[str, list[Any]],
    ) -> tuple[Kind | None, str]:
        """Return what is wrong with a key of an object, and more about it."""
        rows = [row for form in given for row in owners.get(form.text, ())]
        if any(row.target_id == object_id for row in rows):
            return None, ""
        if not self._definition.unique:
            return kinds.MISSING, ""
        if any(row.policy not in self._definition.labels for row in rows):
            # Found with the rows; nobody knows what it means.
            return None, ""
        for row in rows:
            if row.target_id is not None:
                return (
                    kinds.CONFLICTING,
                    f"{row.key!r} belongs to {row.target_id}",
                )
        if any(not row.expired for row in rows):
            # Somebody is signing up: perhaps for this very object.
            return None, ""
        return kinds.MISSING, ""

    def mend(self, cluster: Cluster, finding: Finding) -> Outcome:
        """Give an object its key."""
        return self._mender.mend(cluster, finding)
