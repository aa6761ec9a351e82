"""The rows of a mapping: whether their objects, and their reverse, are there.

Of a mapping with an inverse both classes are looked through: a pair that only
one of them has is one-sided.  What the mapping has is what holds, and the
inverse is written after it; so it is the mapping's rows whose objects are
looked for.  The sequences of the two are not compared: moves change one.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

from sqlalchemy import BigInteger
from sqlalchemy import inspect
from sqlalchemy import or_
from sqlalchemy import select
from sqlalchemy import type_coerce

from sqla_shard.cluster import Cluster
from sqla_shard.engines import Places
from sqla_shard.ids import unpack
from sqla_shard.mappings.definition import link
from sqla_shard.mappings.inverse import settle
from sqla_shard.mappings.lists import List
from sqla_shard.mappings.statements import statements_of
from sqla_shard.routing import spec_of
from sqla_shard.session import ShardSession
from sqla_shard.topology import Keyspace
from sqla_shard.verifying.contract import read
from sqla_shard.verifying.findings import Finding
from sqla_shard.verifying.findings import Kind
from sqla_shard.verifying.findings import Outcome
from sqla_shard.verifying.objects import Objects

__all__ = ["DANGLING", "ONE_SIDED", "MappingCheck"]

DANGLING = Kind(
    name="dangling", meaning="the source or the target is not there"
)
ONE_SIDED = Kind(
    name="one-sided", meaning="of a mapping and its inverse, one has it"
)
MISPLACED = Kind(
    name="misplaced",
    meaning="the row belongs on another shard, where it is looked for",
)
FOREIGN = Kind(
    name="foreign", meaning="an id is none of its class", settled=True
)

Pair = tuple[int, int]


class MappingCheck:
    """Looks through the rows of a mapping class; see ``Check``.

    :param cls: the class.
    """

    unit = "rows"

    def __init__(self, cls: Any) -> None:
        self.subject = cls.__name__
        self._cls = cls
        self._definition = definition = link(cls)
        self._sources = Objects(definition.source.entity)
        self._targets = Objects(definition.target.entity)
        self._columns = definition.source.column, definition.target.column
        table: Any = inspect(cls).local_table
        self._spec = spec_of(table)
        self._source, self._target = (table.c[name] for name in self._columns)
        self._rows = select(
            self._source.label("source_id"), self._target.label("target_id")
        )
        # What is no id must not stop the walk, and a shard finds the ids of
        # others, too.
        self._numbers = [
            type_coerce(column, BigInteger())
            for column in (self._source, self._target)
        ]
        #: The class with the other side of each pair.
        self._other = definition.inverse_class or definition.kept_by
        self.kinds = {kind.name: kind for kind in self._kinds()}

    def _kinds(self) -> Iterator[Kind]:
        if self._definition.kept_by is None:
            yield DANGLING
        if self._other is not None:
            yield ONE_SIDED
        yield MISPLACED
        yield FOREIGN

    def keyspace(self, places: Places) -> Keyspace:
        """Return that of the sources."""
        return places.keyspace(self._spec.keyspace, self._spec.kind)

    # -- reading

    def page(
        self, session: ShardSession, shard_id: int, after: Any, limit: int
    ) -> Sequence[Any]:
        """Return the next rows of a shard."""
        source, target = self._numbers
        statement = self._rows.order_by(source, target).limit(limit)
        if after is not None:
            there = (source == after[0]) & (target > after[1])
            statement = statement.where(or_(source > after[0], there))
        return read(self, session, shard_id, statement)

    def position(self, row: Any) -> Any:
        """Return the primary key."""
        return [row.source_id, row.target_id]

    def again(
        self,
        session: ShardSession,
        shard_id: int,
        findings: Sequence[Finding],
    ) -> Sequence[Any]:
        """Return the rows of the same sources and targets."""
        pairs = [self._pair(one) for one in findings]
        source, target = self._numbers
        statement = self._rows.where(
            source.in_({source_id for source_id, _ in pairs}),
            target.in_({target_id for _, target_id in pairs}),
        )
        return read(self, session, shard_id, statement)

    # -- judging

    def judge(
        self, session: ShardSession, shard_id: int, rows: Sequence[Any]
    ) -> list[Finding]:
        """Return the rows that do not fit."""
        found: list[tuple[Kind, Pair, str]] = []
        whole: list[Pair] = []
        for pair in (tuple(row) for row in rows):
            refusal = self._refusal(session, pair)
            if refusal is not None:
                found.append((FOREIGN, pair, refusal))
            elif unpack(pair[0]).shard_id != shard_id:
                found.append((MISPLACED, pair, ""))
            else:
                whole.append(pair)
        if self._definition.kept_by is None:
            gone = self._gone(session, whole)
            found += [(DANGLING, pair, gone[pair]) for pair in gone]
            whole = [pair for pair in whole if pair not in gone]
        if self._other is not None:
            both = self._on_the_other_side(session, whole)
            detail = f"{self._other.__name__} has no row of it"
            found += [
                (ONE_SIDED, pair, detail) for pair in whole if pair not in both
            ]
        keyspace = self.keyspace(session.places).name
        return [
            Finding(
                kind=kind.name,
                subject=self.subject,
                keyspace=keyspace,
                shard_id=shard_id,
                row=dict(zip(self._columns, pair, strict=True)),
                detail=detail,
            )
            for kind, pair, detail in found
        ]

    def _refusal(self, session: ShardSession, pair: Pair) -> str | None:
        source_id, target_id = pair
        return self._sources.refusal(session, source_id) or (
            self._targets.refusal(session, target_id)
        )

    def _gone(
        self, session: ShardSession, pairs: Sequence[Pair]
    ) -> dict[Pair, str]:
        """Return the pairs that lack an object, and which they lack."""
        sources = self._sources.there(session, [pair[0] for pair in pairs])
        targets = self._targets.there(session, [pair[1] for pair in pairs])
        gone = {}
        for pair in pairs:
            lacks = [
                name
                for name, object_id, there in (
                    ("source", pair[0], sources),
                    ("target", pair[1], targets),
                )
                if object_id not in there
            ]
            if lacks:
                gone[pair] = f"no {' and no '.join(lacks)}"
        return gone

    def _on_the_other_side(
        self, session: ShardSession, pairs: Sequence[Pair]
    ) -> set[Pair]:
        """Return the pairs that the other class has, too."""
        if not pairs:
            return set()
        theirs = statements_of(self._other)
        found = session.execute(
            select(theirs.target, theirs.source).where(
                theirs.source.in_({pair[1] for pair in pairs}),
                theirs.target.in_({pair[0] for pair in pairs}),
            )
        )
        return {tuple(row) for row in found}

    def _pair(self, finding: Finding) -> Pair:
        source, target = self._columns
        return finding.row[source], finding.row[target]

    # -- mending

    def mend(self, cluster: Cluster, finding: Finding) -> Outcome:
        """Delete a row whose object is gone, or settle the two sides."""
        if finding.kind == DANGLING.name:
            mended = cluster.run(self._remove, self._pair(finding))
        elif finding.kind == ONE_SIDED.name:
            mended = cluster.run(self._settle, self._pair(finding))
        else:
            return Outcome.not_done(finding)
        return Outcome.done() if mended else Outcome.gone()

    def _remove(self, session: ShardSession, pair: Pair) -> bool:
        source_id, target_id = pair
        # Whoever is adding the source has locked the list, for as long as
        # the transaction takes.
        if not self._sources.there(session, [source_id]) and not (
            self._sources.is_gone(session, source_id)
        ):
            return False
        rows = List(self._cls, session, source_id)
        # Locked before the objects are looked for, or they could come
        # between the two.
        rows.locked(rows.statements.lock_row, row=target_id)
        if not (
            self._sources.is_gone(session, source_id)
            or self._targets.is_gone(session, target_id)
        ):
            return False
        removed: bool = self._cls.remove(session, source_id, target_id)
        return removed

    def _settle(self, session: ShardSession, pair: Pair) -> bool:
        kept_by = self._definition.kept_by
        source_id, target_id = pair
        if kept_by is None:
            return settle(self._cls, session, [(*pair, None)]) > 0
        return settle(kept_by, session, [(target_id, source_id, None)]) > 0
