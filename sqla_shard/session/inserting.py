"""The shard of each row of an INSERT or a bulk UPDATE.

A row of an INSERT is a dictionary, not an object; it is placed by the same
rules: its own id, its parent's, or the shard of the transaction's roots.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from functools import partial
from typing import Any

from sqlalchemy.sql.elements import BindParameter

from sqla_shard.exc import ColocationError
from sqla_shard.exc import NoShardKeyError
from sqla_shard.exc import PlacementError
from sqla_shard.exc import ScatterUnsupportedError
from sqla_shard.exc import UnsupportedStatementError
from sqla_shard.ids import check_type
from sqla_shard.rendering import Place
from sqla_shard.routing import has_objects
from sqla_shard.routing import routes
from sqla_shard.routing import spec_of
from sqla_shard.session.contract import Scope
from sqla_shard.session.placement import parent_shard

__all__ = [
    "check_rows",
    "encoded",
    "group_rows",
    "ids_of",
    "rows_of",
    "updated_rows",
]

Row = dict[str, Any]

#: Key of a row: the shard that a new object is to be on.
_SHARD = "shard_id"


def encoded(statement: Any, parameters: Any) -> tuple[Any, Any]:
    """Return an INSERT and its parameters, ready for columns.

    Fields that a class keeps in a blob are put into it, wherever they are
    given, and the blob has the defaults of the others.

    :raises UnsupportedStatementError: for INSERT .. FROM SELECT without it.
    """
    of_table = spec_of(statement.table).encode_row
    mapper = _mapper_of(statement)
    if of_table is None or mapper is None:
        return statement, parameters
    encode = partial(of_table, mapper)
    if statement.select is not None:
        if "data" not in statement._select_names:
            raise UnsupportedStatementError(
                f"INSERT INTO {statement.table.name} .. FROM SELECT gives no "
                '"data", which holds the fields of a row; select it too, or '
                "insert rows: session.execute(insert(Class), rows)",
                construct="FROM SELECT",
            )
        return statement, parameters
    columns = {*statement.table.c.keys(), *mapper.columns.keys()} - {"data"}
    own = [
        {
            name: value if name in columns else _literal(value)
            for name, value in row.items()
        }
        for row in _own_rows(statement)
    ]
    if parameters is None:
        own = [encode(row) for row in own]
    else:
        fields = {
            k: v for row in own for k, v in row.items() if k not in columns
        }
        own = [{k: v for k, v in row.items() if k in columns} for row in own]
        if isinstance(parameters, list):
            parameters = [_encoded(encode, fields, row) for row in parameters]
        else:
            parameters = _encoded(encode, fields, parameters)
    many = bool(statement._multi_values)
    statement = statement._generate()
    statement._values, statement._multi_values = None, ()
    return statement.values(own if many else own[0]), parameters


def _encoded(encode: Any, fields: Row, row: Mapping[str, Any]) -> Row:
    """Return a row ready for columns, with the shard that it asks for."""
    given = {**fields, **row}
    asked = {_SHARD: given.pop(_SHARD)} if _SHARD in given else {}
    found: Row = encode(given)
    return {**found, **asked}


def _takes_shards(table: Any) -> bool:
    """Tell whether a row may name the shard of a new object."""
    return has_objects(table) and _SHARD not in table.columns


def rows_of(statement: Any, parameters: Any) -> list[Row] | None:
    """Return the rows to be sent, without the shards that they ask for.

    :param parameters: of an INSERT; None where it holds its rows itself.
    """
    if parameters is None:
        return None
    rows = parameters if isinstance(parameters, list) else [parameters]
    if not _takes_shards(statement.table):
        return rows
    return [_bare(row) for row in rows]


def _bare(row: Row) -> Row:
    if _SHARD not in row:
        return row
    return {name: row[name] for name in row if name != _SHARD}


def group_rows(
    scope: Scope, statement: Any, parameters: Any
) -> dict[Place, Any]:
    """Return the rows of an INSERT by place.

    :raises NoShardKeyError: for INSERT .. FROM SELECT.
    :raises PlacementError: when a row's shard cannot be told.
    """
    if statement.select is not None:
        name = statement.table.name
        raise NoShardKeyError(
            f"INSERT INTO {name} .. FROM SELECT does not tell its "
            'shard; say bind_arguments={"shard_id": n}',
            tables=(name,),
        )
    placer = _Placer(scope, statement)
    own = _own_values(statement)
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
    if len(grouped) > 1 and statement._sort_by_parameter_order:
        raise ScatterUnsupportedError(
            "RETURNING in the order of the rows is not supported for rows "
            "of several shards; return a column that tells them apart",
            construct="sort_by_parameter_order",
        )
    return grouped


def check_rows(
    scope: Scope, statement: Any, parameters: Any, shard_id: int
) -> None:
    """Refuse rows that belong on another shard than the one that is told.

    :raises ColocationError: for such a row.
    """
    placer = _Placer(scope, statement)
    given = parameters if isinstance(parameters, list) else [parameters or {}]
    own = _own_values(statement)
    for row in own:
        for more in given:
            placer.check({**row, **more}, shard_id)


def updated_rows(
    scope: Scope, statement: Any, rows: Sequence[Row], named: Place | None
) -> dict[Place, Any]:
    """Return the rows of a bulk UPDATE by place; each names its id.

    :param named: the place that the caller names.
    :raises NoShardKeyError: when a row does not.
    :raises ColocationError: when it would move to another shard, or is not
        on the one that the caller names.
    """
    if named is not None and spec_of(statement.table).kind == "global":
        return {named: list(rows)}
    placer = _Placer(scope, statement)
    if placer.spec.kind == "global":
        return {scope.places.place(placer.keyspace, 0): list(rows)}
    grouped: dict[Place, list[Row]] = {}
    for row in rows:
        shard_id = placer.own_shard(row)
        if shard_id is None:
            raise NoShardKeyError(
                f"a row of this UPDATE of {statement.table.name} has no id, "
                "which tells its shard; give it one",
                tables=(statement.table.name,),
            )
        placer.check(row, shard_id if named is None else named.shard_id)
        place = scope.places.place(placer.keyspace, shard_id)
        grouped.setdefault(place, []).append(row)
    return dict(grouped)


def ids_of(statement: Any, parameters: Any) -> list[Any]:
    """Return the ids that tell the shards of rows, as they stand in them.

    :param parameters: of an INSERT, or of an UPDATE by primary key.
    :returns: for each row one, None where it has none.
    """
    columns = _telling(statement.table, _mapper_of(statement))
    (names,) = [names for column, names in columns if column.primary_key]
    own = _own_values(statement)
    given = parameters if isinstance(parameters, list) else [parameters or {}]
    return [_value({**row, **more}, names) for row in own for more in given]


class _Placer:
    """Places the rows of one statement."""

    def __init__(self, scope: Scope, statement: Any) -> None:
        self._scope = scope
        self._table = table = statement.table
        self.spec = spec = spec_of(table)
        self.keyspace = scope.places.keyspace(spec.keyspace, spec.kind)
        self._mapper = mapper = _mapper_of(statement)
        self._name = str(table.name)
        if mapper is not None:
            self._name = mapper.class_.__name__
        #: Columns that say where a row is, and their names in a row.
        self._columns = tuple(_telling(table, mapper))
        self._root: int | None = None
        self._takes_shards = _takes_shards(table)

    def place(self, row: Mapping[str, Any]) -> Place:
        """Return the place of a new row."""
        shard_id = self.own_shard(row)
        if shard_id is None and self.spec.colocation is not None:
            parent = self._parent(row)
            shard_id = parent_shard(self.spec, self._name, parent)
        if shard_id is None:
            shard_id = self._requested(row)
        if shard_id is None:
            self._check_root()
            shard_id = self._root_shard()
        self.check(row, shard_id)
        return self._scope.places.place(self.keyspace, shard_id)

    def own_shard(self, row: Mapping[str, Any]) -> int | None:
        """Return the shard of the row's own id; None if it has none."""
        for column, names in self._columns:
            value = _value(row, names)
            if value is not None and self._names_the_row(column):
                return check_type(
                    value, column.type.type_id, self._name
                ).shard_id
        return None

    def _requested(self, row: Mapping[str, Any]) -> int | None:
        """Return the shard that a row asks for.

        :raises PlacementError: when that is no number.
        """
        if not self._takes_shards or _SHARD not in row:
            return None
        given = row[_SHARD]
        if type(given) is not int:
            raise PlacementError(
                f"{_SHARD}={given!r} in a row of {self._name}; it is the "
                "number of a shard, or is left out"
            )
        return given

    def _names_the_row(self, column: Any) -> bool:
        """Tell whether a column says where a row is without its parent.

        Of a link table that has no primary key each id does.
        """
        return column.primary_key or self.spec.id_index is None

    def check(self, row: Mapping[str, Any], shard_id: int) -> None:
        """Refuse references to other shards where only the own one can be.

        :raises ColocationError: for such a reference, or a row that asks for
            another shard.
        """
        spec = self.spec
        requested = self._requested(row)
        if requested not in (None, shard_id):
            raise ColocationError(
                f"the row is on shard {shard_id} by its id, its parent or "
                f"bind_arguments, and asks for shard {requested}; leave "
                "that out",
                class_name=self._name,
                field=_SHARD,
                value=requested,
            )
        parent = None if spec.colocation is None else self._parent(row)
        if parent is not None:
            told = parent_shard(spec, self._name, parent)
            if told != shard_id:
                raise self._elsewhere("", parent, told, shard_id)
        for column, names in self._columns:
            value = _value(row, names)
            if value is not None:
                kind: Any = column.type
                name = f"{self._name}.{names[0]}"
                told = check_type(value, kind.type_id, name).shard_id
                if told != shard_id:
                    raise self._elsewhere(names[0], value, told, shard_id)

    def _elsewhere(
        self, field: str, value: Any, told: int, shard_id: int
    ) -> ColocationError:
        if not field and self.spec.colocation is not None:
            field = self.spec.colocation.field
        return ColocationError(
            f"{value} is on shard {told}, the row on shard {shard_id}, and "
            "this field refers to its own shard alone; insert the row "
            "beside what it refers to, or use an ObjectRef column for "
            "objects elsewhere",
            class_name=self._name,
            field=field,
            value=value,
        )

    def _parent(self, row: Mapping[str, Any]) -> Any:
        assert self.spec.colocation is not None  # noqa: S101  # asked before
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
            if self._names_the_row(column) and column.foreign_keys:
                raise PlacementError(
                    f"a row of {self._name} has no {names[0]}, so its "
                    "shard cannot be told; it is that of the object which "
                    "the row belongs to"
                )

    def _root_shard(self) -> int:
        scope = self._scope
        if self._root is None:
            first = scope.log.first
            if scope.root_shard_id is not None:
                self._root = scope.root_shard_id
            elif first is not None and first[0].keyspace == self.keyspace.name:
                self._root = first[0].shard_id
            else:
                mapper = self._mapper
                self._root = scope.cluster.placement(
                    keyspace=self.keyspace,
                    cls=None if mapper is None else mapper.class_,
                )
        return self._root


def _mapper_of(statement: Any) -> Any:
    """Return the mapper of an ORM statement; None for a Core one."""
    attributes = statement._propagate_attrs
    if attributes.get("compile_state_plugin") != "orm":
        return None
    return attributes["plugin_subject"].mapper


def _telling(table: Any, mapper: Any) -> Iterator[tuple[Any, tuple[str, ...]]]:
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


def _own_values(statement: Any) -> list[Row]:
    """Return the values inside a statement, by column or attribute name."""
    return [
        {name: _literal(value) for name, value in row.items()}
        for row in _own_rows(statement)
    ]


def _own_rows(statement: Any) -> list[Row]:
    """Return them as they stand there: parameters, or other SQL."""
    multi = statement._multi_values
    sources = multi[0] if multi else [statement._values or {}]
    return [
        {getattr(key, "key", key): value for key, value in source.items()}
        for source in sources
    ]


def _literal(value: Any) -> Any:
    if isinstance(value, BindParameter):
        return value.effective_value
    return value
