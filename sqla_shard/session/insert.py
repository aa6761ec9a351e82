"""The shard of each row of an INSERT or a bulk UPDATE.

A row of an INSERT is a dictionary, not an object; it is placed by the same
rules: by its own id, by its parent's id, or on the shard of the transaction's
root objects.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TYPE_CHECKING

from sqlalchemy.sql.elements import BindParameter

from sqla_shard.engine.rendering import Place
from sqla_shard.exc import (
    ColocationError,
    NoShardKeyError,
    PlacementError,
    ScatterUnsupportedError,
    UnsupportedStatementError,
)
from sqla_shard.planning import has_objects, kind_of, routes, spec_of
from sqla_shard.session.placement import issue, parent_shard, root_shard
from sqla_shard.util import sqlalchemy_private as private

if TYPE_CHECKING:
    from sqla_shard import ShardSession

Row = dict[str, Any]

#: Key of a row: the requested shard of a new object.
_SHARD = "shard_id"


def encode_insert(statement: Any, parameters: Any) -> tuple[Any, Any]:
    """Return an INSERT and its parameters, by columns.

    Blob fields in the statement and in the parameters are encoded into the
    blob, with the defaults of the other fields.

    :param parameters: parameters of the INSERT; None if the rows are in the
        statement.
    :raises UnsupportedStatementError: for INSERT .. FROM SELECT without the
        blob column.
    """
    of_table = spec_of(statement.table).encode_row
    mapper = _mapper_of(statement)
    if of_table is None or mapper is None:
        return statement, parameters
    encode = partial(of_table, mapper)
    if statement.select is not None:
        if "data" not in private.select_names(statement):
            raise UnsupportedStatementError(
                f"INSERT INTO {statement.table.name} .. FROM SELECT does not "
                'select "data", which contains the fields of a row; select it '
                "too, or insert rows: session.execute(insert(Class), rows)",
                construct="FROM SELECT",
            )
        return statement, parameters
    columns = {*statement.table.c.keys(), *mapper.columns.keys()} - {"data"}
    own = [
        {
            name: value if name in columns else _literal(value)
            for name, value in row.items()
        }
        for row in _inline_rows(statement)
    ]
    if parameters is None:
        own = [encode(row) for row in own]
    else:
        fields = {k: v for row in own for k, v in row.items() if k not in columns}
        own = [{k: v for k, v in row.items() if k in columns} for row in own]
        if isinstance(parameters, list):
            parameters = [_encode_row(encode, fields, row) for row in parameters]
        else:
            parameters = _encode_row(encode, fields, parameters)
    many = bool(private.multi_values(statement))
    statement = private.copy_with(statement, values=None, multi_values=())
    return statement.values(own if many else own[0]), parameters


def _encode_row(encode: Any, fields: Row, row: Mapping[str, Any]) -> Row:
    """Encode the fields of a row; return it by columns."""
    given = {**fields, **row}
    requested = {_SHARD: given.pop(_SHARD)} if _SHARD in given else {}
    encoded: Row = encode(given)
    return {**encoded, **requested}


def _takes_shards(table: Any) -> bool:
    """Return whether a row may have the key ``shard_id``."""
    return has_objects(table) and _SHARD not in table.columns


def rows_of(statement: Any, parameters: Any) -> list[Row] | None:
    """Return the rows to send, without their requested shards.

    :param parameters: parameters of an INSERT; None if the rows are in the
        statement.
    """
    if parameters is None:
        return None
    rows = parameters if isinstance(parameters, list) else [parameters]
    if not _takes_shards(statement.table):
        return rows
    return [_without_shard(row) for row in rows]


def _without_shard(row: Row) -> Row:
    if _SHARD not in row:
        return row
    return {name: row[name] for name in row if name != _SHARD}


def group_rows(
    session: ShardSession, statement: Any, parameters: Any
) -> dict[Place, Any]:
    """Return the rows of an INSERT by shard location.

    :raises NoShardKeyError: for INSERT .. FROM SELECT.
    :raises PlacementError: if the shard of a row cannot be determined.
    """
    if statement.select is not None:
        name = statement.table.name
        raise NoShardKeyError(
            f"the shard of INSERT INTO {name} .. FROM SELECT cannot be "
            'determined; pass bind_arguments={"shard_id": n}',
            tables=(name,),
        )
    placer = _Placer(session, statement)
    own = _inline_values(statement)
    if parameters is None or len(own) > 1:
        places = {placer.place(row) for row in own}
        if len(places) > 1:
            raise UnsupportedStatementError(
                "the rows of one INSERT .. VALUES are on several shards; "
                "use session.execute(insert(Class), rows)",
                construct="VALUES",
            )
        return dict.fromkeys(places, parameters)
    grouped: dict[Place, Any] = {}
    given = parameters if isinstance(parameters, list) else [parameters]
    ready = rows_of(statement, parameters) or ()
    for row, bare in zip(given, ready, strict=True):
        place = placer.place({**own[0], **row})
        grouped.setdefault(place, []).append(bare)
    if len(grouped) > 1 and private.sort_by_parameter_order(statement):
        raise ScatterUnsupportedError(
            "RETURNING in the order of the rows is not supported for rows "
            "of several shards; return a column that identifies them, or "
            "use session.add_all(objects), which then have their ids",
            construct="sort_by_parameter_order",
        )
    return grouped


def prepare_rows(
    session: ShardSession, statement: Any, place: Place, rows: Any
) -> None:
    """Prepare the rows of an INSERT for their shard.

    :param rows: parameters; None if the rows are in the statement.
    """
    prepare = spec_of(statement.table).before_rows
    if prepare is not None:
        given = rows if isinstance(rows, list) else [rows or {}]
        prepare(session, statement.table, place, [*_inline_values(statement), *given])


def with_ids(
    session: ShardSession, statement: Any, place: Place, rows: list[Row]
) -> list[Row]:
    """Return the rows of an INSERT on a shard, each with an id.

    :param rows: parameters, which are not changed.
    :raises MissingIdError: if nothing issues ids for the table.
    """
    names = _names_of_id(statement)
    (own, *_) = _inline_values(statement)
    lacking = sum(_value({**own, **row}, names) is None for row in rows)
    if not lacking:
        return rows
    new_ids = issue(session, statement.table, place, lacking)
    return [
        row
        if _value({**own, **row}, names) is not None
        else {**_without(row, names), names[0]: next(new_ids)}
        for row in rows
    ]


def with_inline_ids(session: ShardSession, statement: Any, place: Place) -> Any:
    """Return an INSERT whose rows are in the statement, each with an id.

    :raises UnsupportedStatementError: for INSERT .. FROM SELECT without ids.
    :raises MissingIdError: if nothing issues ids for the table.
    """
    names = _names_of_id(statement)
    if statement.select is not None:
        if not set(names) & set(private.select_names(statement)):
            raise UnsupportedStatementError(
                f"INSERT INTO {statement.table.name} .. FROM SELECT does not "
                f"select {names[0]!r}, and the server cannot give ids to "
                "these rows; insert rows: session.execute(insert(Class), "
                "rows)",
                construct="FROM SELECT",
            )
        return statement
    given = [_value(row, names) for row in _inline_values(statement)]
    lacking = given.count(None)
    if not lacking:
        return statement
    new_ids = issue(session, statement.table, place, lacking)
    rows = [
        {**_without(row, names), names[0]: next(new_ids)} if object_id is None else row
        for object_id, row in zip(given, _inline_rows(statement), strict=True)
    ]
    many = bool(private.multi_values(statement))
    statement = private.copy_with(statement, values=None, multi_values=())
    return statement.values(rows if many else rows[0])


def _without(row: Row, names: Sequence[str]) -> Row:
    return {name: row[name] for name in row if name not in names}


def _names_of_id(statement: Any) -> tuple[str, ...]:
    """Return the names by which a row of an INSERT may have its id."""
    columns = _routing_columns(statement.table, _mapper_of(statement))
    (names,) = [names for column, names in columns if column.primary_key]
    return names


def check_rows(
    session: ShardSession, statement: Any, parameters: Any, shard_id: int
) -> None:
    """Refuse rows that belong to a shard other than the named one.

    :raises ColocationError: if a row belongs to another shard.
    """
    placer = _Placer(session, statement)
    given = parameters if isinstance(parameters, list) else [parameters or {}]
    own = _inline_values(statement)
    for row in own:
        for more in given:
            placer.check({**row, **more}, shard_id)


def updated_rows(
    session: ShardSession, statement: Any, rows: Sequence[Row], named: Place | None
) -> dict[Place, Any]:
    """Return the rows of a bulk UPDATE by shard location.

    :param named: the shard that the caller names, if any.
    :raises NoShardKeyError: if a row has no id.
    :raises ColocationError: if a row would move to another shard, or is
        not on the named shard.
    """
    if named is not None and spec_of(statement.table).kind == "global":
        return {named: list(rows)}
    placer = _Placer(session, statement)
    if placer.spec.kind == "global":
        return {session.places.place(placer.keyspace, 0): list(rows)}
    grouped: dict[Place, list[Row]] = {}
    for row in rows:
        shard_id = placer.own_shard(row)
        if shard_id is None:
            raise NoShardKeyError(
                f"a row of this UPDATE of {statement.table.name} has no id, "
                "so its shard cannot be determined; add the id",
                tables=(statement.table.name,),
            )
        placer.check(row, shard_id if named is None else named.shard_id)
        place = session.places.place(placer.keyspace, shard_id)
        grouped.setdefault(place, []).append(row)
    return dict(grouped)


def ids_of(statement: Any, parameters: Any) -> list[Any]:
    """Return the primary keys of rows that determine their shards.

    :param parameters: parameters of an INSERT, or of an UPDATE by primary
        key.
    :returns: one key for each row, with None for a row without id.
    """
    names = _names_of_id(statement)
    own = _inline_values(statement)
    given = parameters if isinstance(parameters, list) else [parameters or {}]
    return [_value({**row, **more}, names) for row in own for more in given]


class _Placer:
    """Placement of the rows of one statement."""

    def __init__(self, session: ShardSession, statement: Any) -> None:
        self._session = session
        self._table = table = statement.table
        self.spec = spec = spec_of(table)
        self.keyspace = session.places.keyspace(spec.keyspace, spec.kind, spec.layout)
        self._mapper = mapper = _mapper_of(statement)
        self._name = str(table.name)
        if mapper is not None:
            self._name = mapper.class_.__name__
        #: Columns that determine the shard, and their names in a row
        self._columns = tuple(_routing_columns(table, mapper))
        self._root: int | None = None
        self._takes_shards = _takes_shards(table)

    def place(self, row: Mapping[str, Any]) -> Place:
        """Return the location of a new row."""
        shard_id = self.own_shard(row)
        if shard_id is None and self.spec.colocation is not None:
            parent = self._parent(row)
            shard_id = parent_shard(self.spec, self._name, parent)
        if shard_id is None:
            shard_id = self._requested(row)
        if shard_id is None:
            self._check_root()
            shard_id = self._owner_shard(row)
        if shard_id is None:
            shard_id = self._root_shard()
        self.check(row, shard_id)
        return self._session.places.place(self.keyspace, shard_id)

    def own_shard(self, row: Mapping[str, Any]) -> int | None:
        """Return the shard of the row's own id; None if it has none."""
        for column, names in self._columns:
            value = _value(row, names)
            if value is not None and self._determines_shard(column):
                shard_id: int = kind_of(column).shard_of(value, self._name)
                return shard_id
        return None

    def _owner_shard(self, row: Mapping[str, Any]) -> int | None:
        """Return the shard of the first object that a root refers to, if any."""
        for column, names in self._columns:
            value = _value(row, names)
            if value is not None:
                name = f"{self._name}.{names[0]}"
                found: int = kind_of(column).shard_of(value, name)
                return found
        return None

    def _requested(self, row: Mapping[str, Any]) -> int | None:
        """Return the ``shard_id`` of a row.

        :raises PlacementError: if ``shard_id`` is not an integer.
        """
        if not self._takes_shards or _SHARD not in row:
            return None
        given = row[_SHARD]
        if type(given) is not int:
            raise PlacementError(
                f"{_SHARD}={given!r} in a row of {self._name} must be an "
                "integer, the number of a shard; or leave it out"
            )
        return given

    def _determines_shard(self, column: Any) -> bool:
        """Return whether a column determines the shard without a parent.

        In a link table without primary key, every id column does.
        """
        return column.primary_key or self.spec.id_index is None

    def check(self, row: Mapping[str, Any], shard_id: int) -> None:
        """Refuse references in columns that must refer to the row's own shard.

        :raises ColocationError: if a column refers to another shard, or the
            row requests another shard.
        """
        spec = self.spec
        requested = self._requested(row)
        if requested not in (None, shard_id):
            raise ColocationError(
                f"the row belongs to shard {shard_id} by its id, its parent "
                f"or bind_arguments, but requests shard {requested}; leave "
                "out shard_id",
                class_name=self._name,
                field=_SHARD,
                value=requested,
            )
        parent = None if spec.colocation is None else self._parent(row)
        if parent is not None:
            other = parent_shard(spec, self._name, parent)
            if other != shard_id:
                raise self._elsewhere_error("", parent, other, shard_id)
        for column, names in self._columns:
            value = _value(row, names)
            if value is not None:
                kind: Any = kind_of(column)
                name = f"{self._name}.{names[0]}"
                other = kind.shard_of(value, name)
                if other != shard_id:
                    raise self._elsewhere_error(names[0], value, other, shard_id)

    def _elsewhere_error(
        self, field: str, value: Any, other: int, shard_id: int
    ) -> ColocationError:
        if not field and self.spec.colocation is not None:
            field = self.spec.colocation.field
        return ColocationError(
            f"{value} is on shard {other}, the row is on shard {shard_id}, "
            "and this field can refer to its own shard only; insert the row "
            "on the shard of the object, or use an ObjectRef column for "
            "objects on other shards",
            class_name=self._name,
            field=field,
            value=value,
        )

    def _parent(self, row: Mapping[str, Any]) -> Any:
        assert self.spec.colocation is not None  # noqa: S101  # checked before
        field = self.spec.colocation.field
        for _, names in self._columns:
            if field in names:
                return _value(row, names)
        value = row.get(field)
        if value is None and isinstance(row.get("data"), Mapping):
            value = row["data"].get(field)
        return value

    def _check_root(self) -> None:
        for column, names in self._columns:
            if self._determines_shard(column) and column.foreign_keys:
                raise PlacementError(
                    f"a row of {self._name} has no {names[0]}, so its "
                    "shard cannot be determined; it is the shard of the "
                    "object that the row belongs to"
                )

    def _root_shard(self) -> int:
        if self._root is None:
            cls = None if self._mapper is None else self._mapper.class_
            self._root = root_shard(self._session, self.keyspace, cls)
        return self._root


def _mapper_of(statement: Any) -> Any:
    """Return the mapper of an ORM statement; None for a Core statement."""
    attributes = private.propagate_attrs(statement)
    if attributes.get("compile_state_plugin") != "orm":
        return None
    return attributes["plugin_subject"].mapper


def _routing_columns(table: Any, mapper: Any) -> Iterator[tuple[Any, tuple[str, ...]]]:
    for column in table.c:
        if routes(column):
            names = [column.key, column.name]
            if mapper is not None:
                names.insert(0, mapper.get_property_by_column(column).key)
            yield column, tuple(dict.fromkeys(names))


def _value(row: Mapping[str, Any], names: Sequence[str]) -> Any:
    for name in names:
        if row.get(name) is not None:
            return row[name]
    return None


def _inline_values(statement: Any) -> list[Row]:
    """Return the rows inside a statement, with the values of parameters."""
    return [
        {name: _literal(value) for name, value in row.items()}
        for row in _inline_rows(statement)
    ]


def _inline_rows(statement: Any) -> list[Row]:
    """Return the rows inside a statement.

    Bind parameters and SQL expressions are unchanged.
    """
    multi = private.multi_values(statement)
    sources = multi[0] if multi else [private.values(statement) or {}]
    return [
        {getattr(key, "key", key): value for key, value in source.items()}
        for source in sources
    ]


def _literal(value: Any) -> Any:
    if isinstance(value, BindParameter):
        return value.effective_value
    return value
