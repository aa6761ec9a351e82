"""Declaration of the tables of an unsharded application on virtual shards.

A declaration names tables and columns of the application as they are, and
changes nothing.  Shadow mode plans statements by it, and so will the tools
that move the rows.  In Python::

    declaration = Declaration(
        Owner("users.id"),
        Lookup("users.email"),
        Owned("posts", colocate_with="user_id"),
        MappingTable("followers", source="follower_id", target="user_id"),
        Reference("countries"),
    )

or in a file, with the same names:

.. code-block:: toml

    reference = ["countries"]
    global = ["settings"]

    [owners.users]
    id = "id"

    [owned.posts]
    colocate_with = "user_id"

    [mappings.followers]
    source = "follower_id"
    target = "user_id"
    inverse = true

    [lookups]
    users = ["email"]

A table can be given as its name, as a ``Table`` or as a mapped class, and the
columns of :class:`Owner` and :class:`Lookup` as ``"table.column"`` or as
attributes of a class.  Tables that are not declared stay on one database, as
with :class:`Global`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from sqlalchemy import inspect, Table
from sqlalchemy.orm import Mapper
from sqlalchemy.orm.attributes import QueryableAttribute

from sqla_shard.exc import DeclarationError
from sqla_shard.util.json_values import parsed_toml


def _table(what: Any) -> str:
    """Return the name of a table that is given in any form."""
    if isinstance(what, str):
        return what
    table = what if isinstance(what, Table) else _mapped_table(what)
    if not isinstance(table, Table):
        raise DeclarationError(
            [f"{what!r} is not a table, its name, or a mapped class"]
        )
    return str(table.key)


def _mapped_table(what: Any) -> Any:
    mapper: Mapper[Any] | None = inspect(what, raiseerr=False)
    return getattr(mapper, "local_table", None)


def _column(what: Any) -> tuple[str, str | None]:
    """Return the names of a table and of a column, if that is given."""
    if isinstance(what, QueryableAttribute):
        (what,) = what.property.columns
    if not isinstance(what, str) and hasattr(what, "table"):
        return str(what.table.key), str(what.name)
    if isinstance(what, str) and "." in what:
        table, _, column = what.rpartition(".")
        return table, column
    return _table(what), None


@dataclass(frozen=True)
class Item:
    """Base of the parts of a declaration.

    :ivar table: name of the table, with its schema if it has one.
    """

    table: str


@dataclass(frozen=True, init=False)
class Owner(Item):
    """A table whose rows own others, and are spread over the shards.

    :param id: the primary key, as ``"users.id"``, or the table or class.
    :param type_id: type id of the objects; by default the next one.
    :ivar column: name of the primary key; None for the only column of it.
    """

    column: str | None
    type_id: int | None

    def __init__(self, id: Any, *, type_id: int | None = None) -> None:  # noqa: A002  # the word of the declaration
        table, column = _column(id)
        object.__setattr__(self, "table", table)
        object.__setattr__(self, "column", column)
        object.__setattr__(self, "type_id", type_id)


@dataclass(frozen=True, init=False)
class Owned(Item):
    """A table whose rows are on the shard of another row.

    :param table: the table.
    :param colocate_with: name of its column with the id of that row.
    :param parent: table of that row; by default the one that the column has a
        foreign key to.
    :param same_shard: names of further columns with ids of rows of the same
        owner, such as the comment that a comment replies to.
    :param type_id: type id of the objects; by default the next one.
    """

    colocate_with: str
    parent: str | None
    same_shard: tuple[str, ...]
    type_id: int | None

    def __init__(
        self,
        table: Any,
        *,
        colocate_with: str,
        parent: Any = None,
        same_shard: Iterable[str] = (),
        type_id: int | None = None,
    ) -> None:
        object.__setattr__(self, "table", _table(table))
        object.__setattr__(self, "colocate_with", colocate_with)
        named = None if parent is None else _table(parent)
        object.__setattr__(self, "parent", named)
        object.__setattr__(self, "same_shard", tuple(same_shard))
        object.__setattr__(self, "type_id", type_id)


@dataclass(frozen=True, init=False)
class MappingTable(Item):
    """An association table that becomes a mapping table.

    :param table: the table.
    :param source: name of the column with the id of the row that owns the
        list.
    :param target: name of the column with the id of the other row, which may
        be on any shard.
    :param inverse: whether there will be a second mapping table, from targets
        to sources.
    :param order_by: name of the column that has the order of a list.
    """

    source: str
    target: str
    inverse: bool
    order_by: str | None

    def __init__(
        self,
        table: Any,
        *,
        source: str,
        target: str,
        inverse: bool = False,
        order_by: str | None = None,
    ) -> None:
        object.__setattr__(self, "table", _table(table))
        object.__setattr__(self, "source", source)
        object.__setattr__(self, "target", target)
        object.__setattr__(self, "inverse", inverse)
        object.__setattr__(self, "order_by", order_by)


@dataclass(frozen=True, init=False)
class Lookup(Item):
    """A unique column that becomes a lookup.

    :param column: the column, as ``"users.email"`` or ``User.email``.
    :param normalize: name of the policy of the lookup's keys.
    """

    column: str
    normalize: str | None

    def __init__(self, column: Any, *, normalize: str | None = None) -> None:
        table, name = _column(column)
        if name is None:
            raise DeclarationError(
                [f"Lookup({table!r}): name a column, as in 'users.email'"]
            )
        object.__setattr__(self, "table", table)
        object.__setattr__(self, "column", name)
        object.__setattr__(self, "normalize", normalize)


@dataclass(frozen=True, init=False)
class Reference(Item):
    """A small table that every shard will have all rows of."""

    def __init__(self, table: Any) -> None:
        object.__setattr__(self, "table", _table(table))


@dataclass(frozen=True, init=False)
class Global(Item):
    """A table that stays on one database."""

    def __init__(self, table: Any) -> None:
        object.__setattr__(self, "table", _table(table))


_Document: TypeAlias = Mapping[str, Any]

_KEYS = ("global", "lookups", "mappings", "owned", "owners", "reference")


@dataclass(frozen=True, init=False)
class Declaration:
    """The future of an application's tables.

    :param items: tables and lookups.
    :raises DeclarationError: if a table is declared twice.
    """

    items: tuple[Item, ...]

    def __init__(self, *items: Item) -> None:
        object.__setattr__(self, "items", items)
        seen: set[tuple[str, str]] = set()
        problems = []
        for item in items:
            column = item.column if isinstance(item, Lookup) else ""
            if (item.table, column) in seen:
                problems.append(f"{item.table} is declared twice")
            seen.add((item.table, column))
        if problems:
            raise DeclarationError(problems)

    def of(self, kind: type[Any]) -> Iterator[Any]:
        """Yield the items of a class, in order."""
        return (item for item in self.items if isinstance(item, kind))

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Declaration:
        """Read a TOML file.

        :raises DeclarationError: if it is not valid.
        :raises OSError: if it cannot be read.
        """
        try:
            document = parsed_toml(Path(path).read_text("utf-8"))
        except ValueError as error:
            raise DeclarationError([str(error)], source=str(path)) from error
        return cls.from_mapping(document, source=str(path))

    @classmethod
    def from_mapping(
        cls, document: _Document, *, source: str = "declaration"
    ) -> Declaration:
        """Return the declaration of a document such as a TOML file.

        :param source: the name of the document in errors.
        :raises DeclarationError: if it is not valid.
        """
        unknown = sorted(document.keys() - set(_KEYS))
        if unknown:
            raise DeclarationError(
                [f"{name!r} is not one of {', '.join(_KEYS)}" for name in unknown],
                source=source,
            )
        try:
            return cls(*_items(document))
        except DeclarationError as error:
            raise DeclarationError(error.problems, source=source) from error

    def as_dict(self) -> dict[str, Any]:
        """Return the document that :meth:`from_mapping` reads."""
        lookups: dict[str, dict[str, Any]] = {}
        for one in self.of(Lookup):
            lookups.setdefault(one.table, {})[one.column] = one.normalize or ""
        values: dict[str, Any] = {
            "reference": [one.table for one in self.of(Reference)],
            "global": [one.table for one in self.of(Global)],
            "owners": {
                one.table: _given(id=one.column, type_id=one.type_id)
                for one in self.of(Owner)
            },
            "owned": {
                one.table: _given(
                    colocate_with=one.colocate_with,
                    parent=one.parent,
                    same_shard=list(one.same_shard) or None,
                    type_id=one.type_id,
                )
                for one in self.of(Owned)
            },
            "mappings": {
                one.table: _given(
                    source=one.source,
                    target=one.target,
                    inverse=one.inverse or None,
                    order_by=one.order_by,
                )
                for one in self.of(MappingTable)
            },
            "lookups": {
                table: list(columns) if not any(columns.values()) else columns
                for table, columns in lookups.items()
            },
        }
        return {name: value for name, value in values.items() if value}

    def as_toml(self) -> str:
        """Return the text of the file that :meth:`from_file` reads."""
        return "\n".join(_toml(self.as_dict())).lstrip("\n") + "\n"


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _toml(document: _Document) -> Iterator[str]:
    for name, value in document.items():
        if isinstance(value, list):
            yield f"{name} = {_toml_value(value)}"
    for name, tables in document.items():
        if isinstance(tables, list):
            continue
        lists = {k: v for k, v in tables.items() if isinstance(v, list)}
        if lists:
            # A file may have each head once.
            yield from ("", f"[{name}]")
        for table, settings in lists.items():
            yield f"{_toml_key(table)} = {_toml_value(settings)}"
        for table, settings in tables.items():
            if table in lists:
                continue
            yield from ("", f"[{name}.{_toml_key(table)}]")
            for key, value in settings.items():
                yield f"{_toml_key(key)} = {_toml_value(value)}"


def _toml_key(name: str) -> str:
    plain = name.replace("_", "a").isalnum() and name.isascii()
    return name if plain else _toml_value(name)


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_toml_value, value))}]"
    text = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


def _items(document: _Document) -> Iterator[Item]:
    for name, make in (("reference", Reference), ("global", Global)):
        tables = document.get(name, [])
        if not isinstance(tables, list):
            raise DeclarationError([f"{name}: it must be a list of tables"])
        yield from map(make, tables)
    for table, given in _tables(document, "owners", ("id", "type_id")):
        column = given.pop("id", None)
        yield Owner(f"{table}.{column}" if column else table, **given)
    keys = ("colocate_with", "parent", "same_shard", "type_id")
    for table, given in _tables(document, "owned", keys, needs=keys[:1]):
        yield Owned(table, **given)
    keys = ("source", "target", "inverse", "order_by")
    for table, given in _tables(document, "mappings", keys, needs=keys[:2]):
        yield MappingTable(table, **given)
    lookups = document.get("lookups", {})
    if not isinstance(lookups, dict):
        raise DeclarationError(["lookups: it must be a table of tables"])
    for table, columns in lookups.items():
        if not isinstance(columns, (list, dict)):
            raise DeclarationError([f"lookups.{table}: it must be a list of columns"])
        policies = columns if isinstance(columns, dict) else {}
        for column in columns:
            policy = policies.get(column) or None
            yield Lookup(f"{table}.{column}", normalize=policy)


def _tables(
    document: _Document, name: str, keys: Iterable[str], needs: Iterable[str] = ()
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the tables of a part of a document, with their settings."""
    part = document.get(name, {})
    if not isinstance(part, dict):
        raise DeclarationError([f"{name}: it must be a table of tables"])
    for table, given in part.items():
        if not isinstance(given, dict):
            raise DeclarationError([f"{name}.{table}: it must be a table"])
        problems = [
            f"{name}.{table}.{key}: it must be one of {', '.join(keys)}"
            for key in given
            if key not in tuple(keys)
        ]
        problems += [
            f"{name}.{table}: {key} is missing" for key in needs if key not in given
        ]
        if problems:
            raise DeclarationError(problems)
        yield table, dict(given)
