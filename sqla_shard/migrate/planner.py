"""Plans of the statements of an unsharded application, as if it were sharded."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Insert, insert
from sqlalchemy.orm.context import FromStatement
from sqlalchemy.sql.elements import TextClause
from sqlalchemy.sql.lambdas import LambdaElement
from sqlalchemy.sql.selectable import Select, TextualSelect

from sqla_shard.engine import Places
from sqla_shard.engine.rendering import Place
from sqla_shard.exc import (
    CrossShardWriteError,
    NoShardKeyError,
    ReferenceWriteError,
    ShardError,
)
from sqla_shard.ids import DEFAULT_LAYOUT
from sqla_shard.migrate.future import Future, FutureTable
from sqla_shard.migrate.report import refused, Verdict
from sqla_shard.planning import (
    check_mergeable,
    plan,
    refusal_of,
    RoutingShape,
    shape_of,
    supposing,
)
from sqla_shard.planning.sources import AllOf, AnyOf, Condition, Equals, Within
from sqla_shard.session.insert import group_rows
from sqla_shard.session.transaction import TransactionLog
from sqla_shard.topology import Keyspace, Topology
from sqla_shard.types import IdType
from sqla_shard.util import sqlalchemy_private as private

_SHARDS = 1 << 16

#: The shards of rows whose owner is not known.
ASSUMED = range(_SHARDS // 2, _SHARDS)

#: Maximum number of rows whose shard is in memory, about 150 bytes each.
_MOST = 50_000


class Locations:
    """The shards of rows, as far as they are known.

    An owner gets a shard of its own: a statement is single-shard, and a
    transaction atomic, if it is so for one owner.  The row of an owned table is on
    the shard of its owner, which is known after the row was inserted, or loaded by
    a flush; until then the row has a shard in :data:`ASSUMED`, which may be that
    of any owner.

    :param roots: type ids of owners, whose shard is always known.
    """

    def __init__(self, roots: frozenset[int]) -> None:
        self._roots = roots
        self._known: dict[tuple[int, Hashable], int] = {}

    def shard_of(self, type_id: int, value: Any) -> int:
        """Return the shard of a row.

        :param value: its primary key in the unsharded database.
        """
        key = type_id, _hashable(value)
        known = self._known.get(key)
        if known is not None:
            return known
        assumed = hash(key) % len(ASSUMED)
        return assumed if type_id in self._roots else ASSUMED[assumed]

    def learn(self, type_id: int, value: Any, shard_id: int) -> None:
        """Record the shard of a row."""
        key = type_id, _hashable(value)
        if len(self._known) >= _MOST and key not in self._known:
            # The oldest is forgotten first.
            self._known.pop(next(iter(self._known)), None)
        self._known[key] = shard_id

    def object_id(self, type_id: int, value: Any) -> int:
        """Return an object id for a row, equal for equal primary keys."""
        local_id = hash(_hashable(value)) & DEFAULT_LAYOUT.max_local_id
        shard_id = self.shard_of(type_id, value)
        return DEFAULT_LAYOUT.pack(shard_id, type_id, local_id)


def _hashable(value: Any) -> Hashable:
    try:
        hash(value)
    except TypeError:
        return repr(value)
    found: Hashable = value
    return found


class ShadowPlaces(Places):
    """The locations of shards that do not exist."""

    def __init__(self) -> None:
        topology = Topology.from_mapping(
            {
                "epoch": 1,
                "keyspaces": {
                    "objects": {
                        "kind": "objects",
                        "shards": _SHARDS,
                        "database": "db{shard:05d}",
                        "servers": [
                            {
                                "name": "objects",
                                "primary": "sqlite:///shadow/objects",
                                "shards": [0, _SHARDS - 1],
                            }
                        ],
                    },
                    "global": {
                        "kind": "global",
                        "database": "main",
                        "servers": [
                            {"name": "global", "primary": "sqlite:///shadow/global"}
                        ],
                    },
                },
            },
            source="shadow mode",
        )
        nothing: Any = None
        super().__init__(topology, nothing)

    def place(self, keyspace: Keyspace, shard_id: int) -> Place:
        """Return the location of a shard, without an engine."""
        nothing: Any = None
        return Place(
            keyspace=keyspace.name,
            shard_id=shard_id,
            server=keyspace.name,
            schema="",
            engine=nothing,
            backend=nothing,
        )


#: No OFFSET is too large if scatter(max_offset=) allows it.
_ANY_OFFSET = 1 << 62

SINGLE = Verdict(outcome="single_shard")

_GLOBAL = Verdict(outcome="global")

_ANYWHERE = Verdict(outcome="any_shard")

_INVERSE = Verdict(
    outcome="single_shard",
    reason="the inverse mapping table has these rows by target",
    remedy="Read them from the inverse class.",
)

_SEVERAL = Verdict(
    outcome="several_shards",
    reason="its ids may be on several shards, whose servers are read at the same time",
)

_TEXTUAL = Verdict(
    outcome="textual",
    error="NoShardKeyError",
    reason="textual SQL cannot be planned",
    remedy="Write it with select(), or pass "
    'bind_arguments={"shard_id": n}, and SCHEMA before the names of tables.',
)


@dataclass(frozen=True)
class Ids:
    """A bind parameter with ids.

    :ivar name: its name in ``compiled_parameters``; None if it has none.
    :ivar kind: the type of the ids.
    :ivar is_list: whether it is a list.
    :ivar item: position of the id in the tuples of the list, if it is one of
        tuples.
    :ivar width: the length of these tuples.
    """

    name: str | None
    kind: IdType
    is_list: bool = False
    item: int | None = None
    width: int = 1


@dataclass(frozen=True, kw_only=True)
class Form:
    """A form of statement, for any values.

    :ivar kind: ``select``, ``insert``, ``update``, ``delete`` or ``text``.
    :ivar tables: the names of its tables, at any depth, each once.
    :ivar verdict: the verdict, if its values name one shard.
    :ivar several: the verdict, if its values name several shards.
    :ivar skipping: the verdict of several shards and an OFFSET above 0.
    :ivar shape: how it is routed; None if that is not known.
    :ivar ids: the bind parameters with ids, by position.
    :ivar offset: name of the bind parameter of its OFFSET; None if there is
        none.
    :ivar written: the table that it writes; None for a SELECT.
    """

    kind: str
    tables: tuple[str, ...]
    verdict: Verdict
    several: Verdict | None = None
    skipping: Verdict | None = None
    shape: RoutingShape | None = None
    ids: Mapping[int, Ids] = field(default_factory=dict)
    offset: str | None = None
    written: FutureTable | None = None


class FormReader:
    """Reads forms of statements.

    As in a session, the router of :mod:`sqla_shard.planning` reads the statement,
    and the merge of its results is planned.

    :param future: the declared tables.
    :param places: the locations of shards.
    """

    def __init__(self, future: Future, places: ShadowPlaces) -> None:
        self._future = future
        self._places = places

    def read(self, statement: Any, compiled: Any) -> Form:
        """Read a form of statement.

        :param statement: the statement.
        :param compiled: the compiled statement; None if there is none.
        """
        if isinstance(statement, LambdaElement):
            statement = private.resolved(statement)
        if _is_textual(statement):
            return Form(kind="text", tables=_shown_tables(statement), verdict=_TEXTUAL)
        if isinstance(statement, Insert):
            return self._insert_form(statement)
        kind = (
            "update"
            if getattr(statement, "is_update", False)
            else "delete"
            if getattr(statement, "is_delete", False)
            else "select"
        )
        written = None
        if kind != "select":
            written = self._future.tables.get(str(statement.table.key))
            if written is not None and written.spec.reference is not None:
                return self._reference_write(kind, written)
        view, verdict, shape, binds = self._view_of(statement)
        several = skipping = None
        if shape is not None and verdict.error is None:
            with supposing(view):
                several = _several(statement, shape, written)
                skipping = _skipping(statement, shape)
        return Form(
            kind=kind,
            tables=_tables_of(shape),
            verdict=verdict,
            several=several,
            skipping=skipping,
            shape=None if verdict.error else shape,
            ids={} if verdict.error else dict(_ids(shape, binds, compiled)),
            offset=_offset(statement, binds, compiled) if skipping else None,
            written=written,
        )

    def _view_of(
        self, statement: Any
    ) -> tuple[Future, Verdict, RoutingShape | None, Any]:
        """Return the verdict of a statement, and how it was read.

        :returns: the future that it is planned with, the verdict, the shape
            if there is one, and the bind parameters.
        """
        read = self._read_as(self._future, statement)
        if read[0].error != "NoShardKeyError":
            return self._future, *read
        for how, view in self._future.views:
            verdict, shape, binds = self._read_as(view, statement)
            if verdict.error is None:
                verdict = _lookup(read[0], shape, view) if how == "lookup" else _INVERSE
                return view, verdict, shape, binds
        return self._future, *read

    def _read_as(
        self, view: Future, statement: Any
    ) -> tuple[Verdict, RoutingShape | None, Any]:
        with supposing(view):
            try:
                binds, shape = shape_of(statement)
            except ShardError as error:
                return refused(error), None, ()
            return self._verdict(view, statement, shape), shape, binds

    def _verdict(self, view: Future, statement: Any, shape: RoutingShape) -> Verdict:
        """Return the verdict of a shape, if its values name one shard."""
        error = refusal_of(shape, self._places)
        if isinstance(error, NoShardKeyError):
            return _scattered(statement, shape, error, view)
        if error is not None:
            return refused(error)
        if shape.constant or not shape.tables:
            return _ANYWHERE
        if all(view.spec_of(t).kind == "global" for t in shape.tables):
            return _GLOBAL
        return SINGLE if shape.groups else _ANYWHERE

    def _insert_form(self, statement: Any) -> Form:
        table = statement.table
        written = self._future.tables.get(str(table.key))
        tables = (str(table.key),)
        if written is None or written.spec.kind == "global":
            return Form(kind="insert", tables=tables, verdict=_GLOBAL, written=written)
        if written.spec.reference is not None:
            return self._reference_write("insert", written)
        if statement.select is not None:
            error = NoShardKeyError(
                f"the shard of INSERT INTO {table.name} .. FROM SELECT cannot "
                "be determined",
                tables=(str(table.name),),
            )
            return Form(
                kind="insert",
                tables=tables,
                verdict=refused(
                    error, remedy="Read the rows, and insert them for each owner."
                ),
                written=written,
            )
        return Form(kind="insert", tables=tables, verdict=SINGLE, written=written)

    def _reference_write(self, kind: str, written: FutureTable) -> Form:
        error = ReferenceWriteError(reference=str(written.spec.reference))
        return Form(
            kind=kind,
            tables=(str(written.table.key),),
            verdict=refused(error),
            written=written,
        )


def _is_textual(statement: Any) -> bool:
    if isinstance(statement, FromStatement):
        statement = statement.element
    return isinstance(statement, (str, TextClause, TextualSelect))


def _shown_tables(statement: Any) -> tuple[str, ...]:
    """Return the tables that the columns of textual SQL are of, if known."""
    shown: Any = private.raw_columns(statement)
    if isinstance(statement, TextualSelect):
        shown = statement.selected_columns
    tables = {
        str(getattr(table, "key", table)): None
        for element in shown
        for table in private.from_objects(element)
        if hasattr(table, "key")
    }
    return tuple(tables)


def _scattered(
    statement: Any, shape: RoutingShape, error: NoShardKeyError, view: Future
) -> Verdict:
    """Return the verdict of a statement that nothing restricts to shards."""
    columns = ", ".join(
        name for table in error.tables for name in _routing_columns(view, table)
    )
    named = f"Name ids in WHERE: {columns}" if columns else "Name ids in WHERE"
    if not getattr(statement, "is_select", False):
        return refused(
            error,
            "cross_shard_write",
            remedy=f"{named}; or write each shard in its own transaction.",
        )
    try:
        check_mergeable(shape)
        plan(statement, {}, shape.spread, max_offset=_ANY_OFFSET)
    except ShardError as worse:
        verdict = refused(worse, remedy=f"{named}.")
        return Verdict(
            outcome="refused",
            error=type(error).__name__,
            construct=verdict.construct,
            reason=f"{error}. With scatter(): {verdict.reason}",
            remedy=verdict.remedy,
        )
    return refused(
        error,
        "scatter",
        remedy=f"{named}; or add .options(scatter()), which reads all shards.",
    )


def _routing_columns(view: Future, name: str) -> tuple[str, ...]:
    for one in view.tables.values():
        if one.table.name == name:
            return one.routing_columns
    return ()


def _lookup(verdict: Verdict, shape: RoutingShape | None, view: Future) -> Verdict:
    columns = dict.fromkeys(
        f"{one.table.key}.{name}"
        for one in view.tables.values()
        for name in one.lookups
        if shape is not None
        and any(one.table.name in group.names for group in shape.groups)
    )
    return Verdict(
        outcome="lookup",
        error=verdict.error,
        reason=verdict.reason,
        remedy="Read the id from the lookup first, by "
        "Class.resolve(session, key), then the object by its id: "
        f"{', '.join(columns)}.",
    )


def _several(
    statement: Any, shape: RoutingShape, written: FutureTable | None
) -> Verdict | None:
    """Return the verdict of a statement whose values name several shards."""
    if written is not None or not shape.groups:
        return None
    try:
        check_mergeable(shape)
        plan(statement, {}, shape.spread, max_offset=_ANY_OFFSET)
    except ShardError as error:
        return refused(error)
    return _SEVERAL


def _skipping(statement: Any, shape: RoutingShape) -> Verdict | None:
    """Return the verdict of an OFFSET above 0 over several shards."""
    if not isinstance(statement, Select) or private.offset_clause(statement) is None:
        return None
    try:
        plan(statement.offset(1), {}, shape.spread)
    except ShardError as error:
        return refused(
            error,
            "scatter",
            remedy="Read page after page with session.scatter_page(), or add "
            ".options(scatter(max_offset=)).",
        )
    return None


def _tables_of(shape: RoutingShape | None) -> tuple[str, ...]:
    if shape is None:
        return ()
    return tuple(
        dict.fromkeys(str(getattr(table, "key", table.name)) for table in shape.tables)
    )


def _ids(
    shape: RoutingShape | None, binds: Sequence[Any], compiled: Any
) -> Iterator[tuple[int, Ids]]:
    """Yield the positions of bind parameters with ids, and their kinds."""
    names = {bind.key: name for bind, name in compiled.bind_names.items()}
    if compiled.cache_key is not None:
        # The names are those of the statement that was compiled.
        binds = compiled.cache_key.bindparams
    for group in () if shape is None else shape.groups:
        for one in _conditions(group.condition):
            bind = binds[one.index]
            name = names.get(bind.key)
            if isinstance(one, Equals):
                yield one.index, Ids(name, one.kind)
                continue
            width = len(getattr(bind.type, "types", ())) or 1
            yield one.index, Ids(name, one.kind, True, one.item, width)


def _offset(statement: Any, binds: Any, compiled: Any) -> str | None:
    """Return the name of the bind parameter of OFFSET, if there is one."""
    if not isinstance(statement, Select):
        return None
    clause = private.offset_clause(statement)
    names = {bind.key: name for bind, name in compiled.bind_names.items()}
    compiled_binds = binds
    if compiled.cache_key is not None:
        compiled_binds = compiled.cache_key.bindparams
    for bind, other in zip(binds, compiled_binds, strict=True):
        if bind is clause:
            return names.get(other.key)
    return None


def _conditions(condition: Condition | None) -> Iterator[Equals | Within]:
    """Yield the comparisons of a condition."""
    if isinstance(condition, (Equals, Within)):
        yield condition
    elif isinstance(condition, (AllOf, AnyOf)):
        for part in condition.parts:
            yield from _conditions(part)


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
        self.log: TransactionLog = TransactionLog(places, cross_shard=None)
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

    The placement of inserted rows, and the log of a transaction's writes, are
    those of :mod:`sqla_shard.session`.  Nothing is sent.

    A form of statement is read once, as SQLAlchemy compiles it once; after that
    only the shards of its values are computed.

    :param future: the declared tables.
    """

    def __init__(self, future: Future) -> None:
        self.future = future
        self.places: ShadowPlaces = ShadowPlaces()
        roots = frozenset(
            one.spec.type_id
            for one in future.tables.values()
            # A mapping table has the type of its source, and no id.
            if one.spec.type_id is not None
            and one.spec.colocation is None
            and one.id_column is not None
        )
        self.locations: Locations = Locations(roots)
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
        shards: frozenset[int] = frozenset()
        for row in rows[:MOST_VALUES] or ({},):

            def value(index: int, row: Values = row) -> Any:
                return self._value(form, row, index)

            for group in shape.groups:
                if group.condition is not None:
                    shards |= group.condition.shards(value) or frozenset()
        return shards

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
