"""Verification of mappings: their objects, their inverse, their counts.

Both classes of a mapping with an inverse are checked; a pair in only one of
the two is one-sided.  The mapping is authoritative, and its inverse is written
after it, so only the objects of the mapping's rows are checked.  Sequences are
not compared, since a move changes them in one class only.

A list without a stored count is not checked: its next change counts it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from sqlalchemy import BigInteger, inspect, or_, select, type_coerce

from sqla_shard.cluster.cluster import Cluster
from sqla_shard.engine import Places
from sqla_shard.models import MappingMixin
from sqla_shard.models.inverse_mapping import sync_pairs
from sqla_shard.models.list_positions import MOST_PIECES
from sqla_shard.models.mapping_definition import link
from sqla_shard.models.mapping_list import recount, statements_of
from sqla_shard.models.spread_list import list_of
from sqla_shard.planning import spec_of
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
from sqla_shard.util.pace import Pace

DANGLING = FindingKind(
    name="dangling", meaning="the source or the target does not exist"
)
ONE_SIDED = FindingKind(
    name="one-sided", meaning="only the mapping or only its inverse has it"
)
MISPLACED = FindingKind(
    name="misplaced", meaning="the row is on another shard than that of its source"
)
FOREIGN = FindingKind(
    name="foreign", meaning="an id is not an id of its class", settled=True
)
MISCOUNTED = FindingKind(
    name="miscounted", meaning="the stored count is not the number of rows"
)

Pair = tuple[int, int]


class MappingCheck(Check):
    """Checks the rows of a mapping class.

    :param cls: the mapping class.
    """

    def __init__(self, cls: Any) -> None:
        super().__init__(cls)
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
        # Compare them as numbers: an invalid id must not stop the scan, and
        # ids of other shards are compared as well.
        self._numbers = [
            type_coerce(column, BigInteger()) for column in (self._source, self._target)
        ]
        #: The class with the other side of each pair.
        self._other = definition.inverse_class or definition.inverse_of
        self.kinds: dict[str, FindingKind] = {kind.name: kind for kind in self._kinds()}

    def _kinds(self) -> Iterator[FindingKind]:
        if self._definition.inverse_of is None:
            yield DANGLING
        if self._other is not None:
            yield ONE_SIDED
        yield MISPLACED
        yield FOREIGN

    def keyspace(self, places: Places) -> Keyspace:
        """Return the keyspace of the sources."""
        spec = self._spec
        return places.keyspace(spec.keyspace, spec.kind, spec.layout)

    def page(
        self, session: ShardSession, shard_id: int, after: Any, limit: int
    ) -> Sequence[Any]:
        """Return the next rows of a shard."""
        source, target = self._numbers
        statement = self._rows.order_by(source, target).limit(limit)
        if after is not None:
            there = (source == after[0]) & (target > after[1])
            statement = statement.where(or_(source > after[0], there))
        return self._read(session, shard_id, statement)

    def position(self, row: Any) -> Any:
        """Return the primary key."""
        return [row.source_id, row.target_id]

    def again(
        self, session: ShardSession, shard_id: int, findings: Sequence[Finding]
    ) -> Sequence[Any]:
        """Return the rows of the same sources and targets."""
        pairs = [self._pair(one) for one in findings]
        source, target = self._numbers
        statement = self._rows.where(
            source.in_({source_id for source_id, _ in pairs}),
            target.in_({target_id for _, target_id in pairs}),
        )
        return self._read(session, shard_id, statement)

    def judge(
        self, session: ShardSession, shard_id: int, rows: Sequence[Any]
    ) -> list[Finding]:
        """Return the findings of the given rows."""
        problems: list[tuple[FindingKind, Pair, str]] = []
        whole: list[Pair] = []
        for pair in (tuple(row) for row in rows):
            refusal = self._refusal(session, pair)
            if refusal is not None:
                problems.append((FOREIGN, pair, refusal))
            elif shard_id not in self._shards_of(session, pair):
                problems.append((MISPLACED, pair, ""))
            else:
                whole.append(pair)
        if self._definition.inverse_of is None:
            gone = self._gone(session, whole)
            problems += [(DANGLING, pair, gone[pair]) for pair in gone]
            whole = [pair for pair in whole if pair not in gone]
        if self._other is not None:
            both = self._on_the_other_side(session, whole)
            detail = f"{self._other.__name__} has no such row"
            problems += [
                (ONE_SIDED, pair, detail) for pair in whole if pair not in both
            ]
        return [
            self._finding(
                session,
                kind,
                shard_id,
                dict(zip(self._columns, pair, strict=True)),
                detail,
            )
            for kind, pair, detail in problems
        ]

    def _shards_of(self, session: ShardSession, pair: Pair) -> Sequence[int]:
        """Return the shards that a row may be on."""
        if self._spec.places_of is None:
            return (self._definition.source.layout.shard_of(pair[0]),)
        places = self._spec.places_of(session.places, pair)
        return [place.shard_id for place in places]

    def _refusal(self, session: ShardSession, pair: Pair) -> str | None:
        source_id, target_id = pair
        return self._sources.refusal(session, source_id) or (
            self._targets.refusal(session, target_id)
        )

    def _gone(self, session: ShardSession, pairs: Sequence[Pair]) -> dict[Pair, str]:
        """Return the descriptions of missing objects, by pair."""
        sources = self._sources.existing(session, [pair[0] for pair in pairs])
        targets = self._targets.existing(session, [pair[1] for pair in pairs])
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
        """Return the pairs that are in the other class, too."""
        if not pairs:
            return set()
        theirs = statements_of(self._other)
        there = select(theirs.target, theirs.source).where(
            theirs.source.in_({pair[1] for pair in pairs}),
            theirs.target.in_({pair[0] for pair in pairs}),
        )
        if theirs.definition.spread > 1:
            places = {
                place.address: place
                for one, two in pairs
                for place in list_of(self._other, session, two).limited_to([one]).places
            }
            rows = session.execute(
                there, bind_arguments={"places": list(places.values())}
            )
        else:
            rows = session.execute(there)
        return {tuple(row) for row in rows}

    def _pair(self, finding: Finding) -> Pair:
        source, target = self._columns
        return finding.row[source], finding.row[target]

    def repair(self, cluster: Cluster, finding: Finding) -> RepairOutcome:
        """Delete a row whose objects are missing, or write the missing row."""
        if finding.kind == DANGLING.name:
            repaired = cluster.run(self._remove, self._pair(finding))
        elif finding.kind == ONE_SIDED.name:
            repaired = cluster.run(self._sync_pairs, self._pair(finding))
        else:
            return RepairOutcome.needs_decision(finding)
        return RepairOutcome.succeeded() if repaired else RepairOutcome.not_needed()

    def _remove(self, session: ShardSession, pair: Pair) -> bool:
        source_id, target_id = pair
        # A transaction that inserts the source may hold the lock of the list
        # until its COMMIT.
        if not self._sources.existing(session, [source_id]) and not (
            self._sources.is_gone(session, source_id)
        ):
            return False
        rows = list_of(self._cls, session, source_id).part_of(target_id)
        rows.settle(target_id)
        # Lock the row before reading the objects: otherwise they could be
        # inserted in between.
        rows.locked(rows.statements.lock_row, row=target_id)
        if not (
            self._sources.is_gone(session, source_id)
            or self._targets.is_gone(session, target_id)
        ):
            return False
        removed: bool = self._cls.remove(session, source_id, target_id)
        return removed

    def _sync_pairs(self, session: ShardSession, pair: Pair) -> bool:
        forward = self._definition.inverse_of
        source_id, target_id = pair
        if forward is None:
            return sync_pairs(self._cls, session, [(*pair, None)]) > 0
        return sync_pairs(forward, session, [(target_id, source_id, None)]) > 0


class CountCheck(Check):
    """Checks the stored lengths of the lists of a mapping class.

    :param cls: a counted mapping class.
    """

    unit = "lists"

    def __init__(self, cls: Any) -> None:
        super().__init__(cls)
        self._statements = statements_of(cls)
        table = link(cls).counts
        self.subject: str = table.name
        self._spec = spec_of(table)
        self._key = tuple(table.primary_key.columns)
        # Read the rows and their number in one statement: a change commits
        # both, and must not be seen in between.
        self._rows = select(
            *self._key,
            table.c.number,
            self._statements.rows_beside(table).label("the_rows"),
        ).where(table.c.slot < MOST_PIECES)
        self.kinds: dict[str, FindingKind] = {MISCOUNTED.name: MISCOUNTED}

    def keyspace(self, places: Places) -> Keyspace:
        """Return the keyspace of the sources."""
        return places.keyspace(self._spec.keyspace, self._spec.kind)

    def page(
        self, session: ShardSession, shard_id: int, after: Any, limit: int
    ) -> Sequence[Any]:
        """Return the next lengths of a shard."""
        source, slot = self._key
        statement = self._rows.order_by(source, slot).limit(limit)
        if after is not None:
            there = (source == after[0]) & (slot > after[1])
            statement = statement.where(or_(source > after[0], there))
        return self._read(session, shard_id, statement)

    def position(self, row: Any) -> Any:
        """Return the primary key."""
        return [row[0], row[1]]

    def again(
        self, session: ShardSession, shard_id: int, findings: Sequence[Finding]
    ) -> Sequence[Any]:
        """Return the lengths of the same lists."""
        source, slot = self._key
        keys = [tuple(one.row.values()) for one in findings]
        statement = self._rows.where(
            source.in_({key[0] for key in keys}), slot.in_({key[1] for key in keys})
        )
        return self._read(session, shard_id, statement)

    def judge(
        self, session: ShardSession, shard_id: int, rows: Sequence[Any]
    ) -> list[Finding]:
        """Return the findings of the given lengths."""
        names = [column.name for column in self._key]
        return [
            self._finding(
                session,
                MISCOUNTED,
                shard_id,
                dict(zip(names, key, strict=True)),
                f"{number} stored, {there} rows",
            )
            for *key, number, there in rows
            if number != there
        ]

    def repair(self, cluster: Cluster, finding: Finding) -> RepairOutcome:
        """Count the rows of a list again, under its lock."""
        source_id, slot = finding.row.values()
        before, now = cluster.run(self._recount, source_id, slot)
        changed = before != now
        return RepairOutcome.succeeded() if changed else RepairOutcome.not_needed()

    def _recount(
        self, session: ShardSession, source_id: int, slot: int
    ) -> tuple[int | None, int]:
        parts = list_of(self._cls, session, source_id).parts()
        return recount(parts[slot])


#: The kinds that ``repair=True`` repairs.
_REPAIRABLE = frozenset({DANGLING.name, ONE_SIDED.name, MISCOUNTED.name})


def _checks(classes: Iterable[type[Any]]) -> Iterator[Check]:
    """Yield the checks of mapping classes, those of their counts last."""
    classes = list(classes)
    yield from map(MappingCheck, classes)
    yield from map(CountCheck, [c for c in classes if link(c).counted])


def verify_relations(
    cluster: Cluster,
    classes: Iterable[type[Any]] | None = None,
    *,
    repair: bool = False,
    rate: float | None = None,
    grace: float = 60.0,
    position: str | os.PathLike[str] | None = None,
    batch: int = 500,
    on_progress: Callable[[VerifyProgress], object] | None = None,
) -> VerifyReport:
    """Verify that mappings have their objects, inverses and counts.

    The application can run meanwhile, as with
    :func:`~sqla_shard.upkeep.verify_lookups`.  An inverse row that a pending
    operation has not written yet is reported as one-sided; repairing it is
    harmless.

    :param classes: the mapping classes; by default all mapping classes of
        this process.
        Give a class together with its inverse.
    :param repair: delete rows without source or target, write inverses
        according to their mappings, and count lists again whose stored
        number is wrong.
    :param rate: maximum number of rows per second.
    :param grace: seconds between the two checks of a finding.
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
    return Run(
        cluster,
        list(_checks(classes_of(MappingMixin, classes))),
        repair=_REPAIRABLE if repair else frozenset(),
        pace=Pace(rate=rate, grace=grace, batch=batch),
        command="relations",
        position=position,
        on_progress=on_progress,
    ).run()
