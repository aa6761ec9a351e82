"""Plans the executions of statements of the unsharded application.

The placement of inserted rows, and the log of a transaction's writes, are
those of :mod:`sqla_shard.session`.  Nothing is sent.

A form of statement is read once, as SQLAlchemy compiles it once; after that
only the shards of its values are computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import insert

from sqla_shard.exc import CrossShardWriteError, ShardError
from sqla_shard.migrate.forms import Form, FormReader, SINGLE
from sqla_shard.migrate.future import Future, FutureTable
from sqla_shard.migrate.locations import ASSUMED, Locations, ShadowPlaces
from sqla_shard.migrate.verdicts import refused, Verdict
from sqla_shard.planning import supposing
from sqla_shard.session.insert import group_rows
from sqla_shard.session.transaction import TransactionLog
from sqla_shard.types import IdType

#: Maximum number of rows of an executemany(), and of values of an IN list,
#: whose shards are computed.
MOST_VALUES = 200

Values = Mapping[str, Any]


class Writes:
    """The writes of one transaction.

    :ivar log: the log that a session would have.
    :ivar has_unknown: whether rows were written whose owner is not known.
    :ivar is_refused: whether a write would have been refused.
    """

    def __init__(self, places: ShadowPlaces) -> None:
        self.places = places
        self.log = TransactionLog(places, cross_shard=None)
        self.has_unknown = False
        self.is_refused = False

    @property
    def root_shard_id(self) -> int | None:
        """The shard of new owners; None if nothing is written yet."""
        first = self.log.first_place("objects")
        return None if first is None else first.shard_id


@dataclass(frozen=True)
class _Placing:
    """The attributes of a session that the placement of rows reads."""

    places: ShadowPlaces
    log: TransactionLog
    root_shard_id: int


class Planner:
    """Plans statements.

    :param future: the declared tables.
    """

    def __init__(self, future: Future) -> None:
        self.future = future
        self.places = ShadowPlaces()
        roots = frozenset(
            one.spec.type_id
            for one in future.tables.values()
            # A mapping table has the type of its source, and no id.
            if one.spec.type_id is not None
            and one.spec.colocation is None
            and one.id_column is not None
        )
        self.locations = Locations(roots)
        #: Rows inserted with a foreign key to a row of the same owner, of
        #: another one, and of an unknown one, by column.
        self.references: dict[str, list[int]] = {}

        self._forms = FormReader(future, self.places)

    def writes(self) -> Writes:
        """Return an empty log of a transaction."""
        return Writes(self.places)

    def form(self, statement: Any, compiled: Any) -> Form:
        """Read a form of statement; see :meth:`.FormReader.read`."""
        return self._forms.read(statement, compiled)

    def judge(
        self,
        form: Form,
        rows: Sequence[Values],
        writes: Writes,
        inserted: Sequence[Any] = (),
    ) -> Verdict:
        """Return the verdict of an execution, and log what it writes.

        :param rows: the parameters of the execution, by name.
        :param writes: the log of its transaction.
        :param inserted: the primary keys of the rows of an INSERT, if known.
        """
        with supposing(self.future):
            if form.kind == "insert" and form.verdict is SINGLE:
                return self._inserted(form, rows, writes, inserted)
            shards = self._shards(form, rows)
            if form.written is not None and form.verdict.error is None:
                return self._written(form, shards, writes)
        if form.verdict.outcome == "cross_shard_write":
            writes.is_refused = True
        if len(shards) > 1 and form.several is not None:
            if form.offset is not None and rows and rows[0].get(form.offset):
                return form.skipping or form.several
            return form.several
        return form.verdict

    def _shards(self, form: Form, rows: Sequence[Values]) -> frozenset[int]:
        shape = form.shape
        if shape is None or not form.ids:
            return frozenset()
        found: frozenset[int] = frozenset()
        for row in rows[:MOST_VALUES] or ({},):

            def value(index: int, row: Values = row) -> Any:
                return self._value(form, row, index)

            for group in shape.groups:
                if group.condition is not None:
                    found |= group.condition.shards(value) or frozenset()
        return found

    def _value(self, form: Form, row: Values, index: int) -> Any:
        """Return the object ids of a bind parameter of an execution."""
        ids = form.ids[index]
        given = None if ids.name is None else row.get(ids.name)
        if not ids.is_list:
            return self._object_id(ids.kind, given)
        values = given or ()
        if ids.item is None:
            return [self._object_id(ids.kind, one) for one in values[:MOST_VALUES]]
        # The tuples are flattened.
        values = values[ids.item : MOST_VALUES * ids.width : ids.width]
        return [[None] * ids.item + [self._object_id(ids.kind, one)] for one in values]

    def _object_id(self, kind: IdType, value: Any) -> int | None:
        if value is None:
            return None
        return self.locations.object_id(kind.type_id or 1, value)

    # -- writes

    def _written(self, form: Form, shards: frozenset[int], writes: Writes) -> Verdict:
        """Return the verdict of an UPDATE or DELETE."""
        table = form.written
        assert table is not None  # noqa: S101  # checked before
        if table.spec.kind == "global":
            return self._log(form, [0], writes, "global") or form.verdict
        return self._log(form, sorted(shards), writes) or form.verdict

    def _log(
        self,
        form: Form,
        shards: Sequence[int],
        writes: Writes,
        keyspace: str = "objects",
    ) -> Verdict | None:
        """Log writes; return the verdict of a refused one, or None."""
        table = form.written
        assert table is not None  # noqa: S101  # checked before
        name = str(table.table.name)
        space = self.places.topology.keyspace(keyspace)
        for shard_id in shards:
            if keyspace == "objects" and shard_id in ASSUMED:
                writes.has_unknown = True
                continue
            first = writes.log.first
            if first is not None and first[0].address == (keyspace, shard_id):
                continue
            try:
                place = self.places.place(space, shard_id)
                writes.log.wrote(place, name, table.table)
            except CrossShardWriteError as error:
                writes.is_refused = True
                # Those of further shards would say the same.
                return _crossed(error)
        return None

    def _inserted(
        self,
        form: Form,
        rows: Sequence[Values],
        writes: Writes,
        inserted: Sequence[Any],
    ) -> Verdict:
        """Return the verdict of an INSERT, and learn where its rows are."""
        table = form.written
        assert table is not None  # noqa: S101  # checked before
        verdict: Verdict | None = None
        shards: dict[tuple[Any, ...], int] = {}
        for at, row in enumerate(rows[:MOST_VALUES]):
            key = inserted[at] if at < len(inserted) else None
            identity = _identity(table, row, key)
            placed = self._placed(table, row)
            values = tuple(placed.values())
            shard_id = shards.get(values)
            if shard_id is None:
                try:
                    shard_id = self._place(table, placed, identity, writes)
                except ShardError as error:
                    verdict = verdict or refused(error)
                    continue
                shards[values] = shard_id
                if verdict is None:
                    verdict = self._log(form, [shard_id], writes)
            if identity is not None and table.id_column is not None:
                type_id = table.spec.type_id or 1
                self.locations.learn(type_id, identity, shard_id)
            self._count_references(table, row, shard_id)
        return verdict or form.verdict

    def _place(
        self, table: FutureTable, placed: dict[str, Any], identity: Any, writes: Writes
    ) -> int:
        """Return the shard of a new row, as a session would choose it.

        :raises ShardError: if a session would refuse the row.
        """
        root = writes.root_shard_id
        if root is None:
            root = self._root(table, identity)
        session: Any = _Placing(self.places, writes.log, root)
        (place,) = group_rows(session, insert(table.table), [placed])
        return place.shard_id

    def _placed(self, table: FutureTable, row: Values) -> dict[str, Any]:
        """Return the ids of a row that determine its shard.

        A row gets a new id, so that its own primary key does not.
        """
        return {
            name: self._object_id(kind, row.get(name))
            for name, kind in table.kinds.items()
            if name != table.id_column and kind.routes
        }

    def _root(self, table: FutureTable, identity: Any) -> int:
        type_id = table.spec.type_id or 1
        if identity is None:
            return hash((type_id, id(table))) % len(ASSUMED)
        return self.locations.shard_of(type_id, identity) % len(ASSUMED)

    def _count_references(self, table: FutureTable, row: Values, shard_id: int) -> None:
        for name, kind in table.kinds.items():
            value = row.get(name)
            if kind.routes or value is None or kind.type_id is None:
                continue
            other = self.locations.shard_of(kind.type_id, value)
            at = 0 if other == shard_id else 1
            if other in ASSUMED or shard_id in ASSUMED:
                at = 2
            column = f"{table.table.key}.{name}"
            self.references.setdefault(column, [0, 0, 0])[at] += 1

    def learn(self, table: FutureTable, row: Values) -> None:
        """Learn the shard of a row from its columns, by name."""
        name, parent = table.id_column, table.parent_column
        if name is None or parent is None:
            return
        value, owner = row.get(name), row.get(parent)
        if value is not None and owner is not None:
            kind = table.kinds[parent]
            shard_id = self.locations.shard_of(kind.type_id or 1, owner)
            self.locations.learn(table.spec.type_id or 1, value, shard_id)


def _identity(table: FutureTable, row: Values, key: Any) -> Any:
    """Return the primary key of an inserted row, if it is known."""
    name = table.id_column
    if name is None:
        return None
    value = row.get(name)
    if value is None and key is not None:
        names = [column.name for column in table.table.primary_key]
        if name in names and len(key) == len(names):
            value = key[names.index(name)]
    return value


def _crossed(error: CrossShardWriteError) -> Verdict:
    """Return the verdict of a second shard, without numbers of shards."""
    parts = [what.partition(" on shard ") for _, what in (error.first, error.second)]
    first, second = (
        f"{name} in the global keyspace"
        if where.endswith("'global'")
        else f"{name} of {whose} owner"
        for (name, _, where), whose in zip(parts, ("one", "another"), strict=True)
    )
    same = CrossShardWriteError(first=(0, first), second=(1, second))
    return refused(same, "cross_shard_write", construct=second)
