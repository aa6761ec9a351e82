"""What is kept of a class, and under which key.

The key is the name of the table and an id, and nothing that could be another
one in another process: whoever writes the row has to find it.  Which columns
there are, and which life of the server the row was read from, stands in the
value, before the row.  A value of another version is removed by who finds it.
So two versions of a program, or processes that have different topologies
while a new one goes round, invalidate each other's values, and read none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from sqlalchemy import inspect
from sqlalchemy import Select
from sqlalchemy import select
from sqlalchemy import type_coerce
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import Mapper
from sqlalchemy.types import NullType
from sqlalchemy.types import PickleType
from sqlalchemy.types import TypeDecorator
from sqlalchemy.types import TypeEngine

from sqla_shard.cache.cells import Cells
from sqla_shard.cache.codec import FORMAT
from sqla_shard.exc import CacheClassError
from sqla_shard.exc import CacheOptionError
from sqla_shard.ids import check_type
from sqla_shard.rendering import Place
from sqla_shard.routing import has_objects
from sqla_shard.routing import routing_column
from sqla_shard.routing import spec_of
from sqla_shard.session.contract import Scope
from sqla_shard.types import ShardedId

__all__ = [
    "Cached",
    "Columns",
    "check_id",
    "check_prefix",
    "check_rows",
    "digest",
    "is_mapping",
    "mapper_of",
    "place_of",
]

_PREFIX = re.compile(r"[!-9;-~]{1,40}")
_TABLE = re.compile(r"[!-~]{1,64}")
_ADDRESS = re.compile(r" at 0x[0-9A-Fa-f]+")


@dataclass(frozen=True, kw_only=True)
class Cached:
    """How a class is kept.

    :ivar region: name of the region.
    :ivar version: another one makes what was kept before unreadable; for a
        change that the columns do not show.
    :ivar rows: of a mapping class: how many rows of each list.
    """

    region: str
    version: int = 1
    rows: int = 500


def check_prefix(prefix: Any) -> str:
    """Return what keys begin with.

    :raises CacheOptionError: when keys cannot.
    """
    if not isinstance(prefix, str) or not _PREFIX.fullmatch(prefix):
        raise CacheOptionError(
            "is no prefix of keys: use 1 to 40 ASCII characters without "
            "blanks and colons",
            option="prefix",
            value=prefix,
        )
    return prefix


def check_rows(rows: int) -> int:
    """Return how many rows of a list to keep.

    :raises CacheOptionError: when that makes no sense.
    """
    if type(rows) is not int or not 1 <= rows <= 10_000:
        raise CacheOptionError(
            "is not 1 to 10,000 rows of a list", option="rows", value=rows
        )
    return rows


class Columns:
    """The columns of a class, as SELECT names them and as drivers have them.

    :ivar select: of the class.
    :ivar digest: tells one set of columns from another.
    :raises CacheClassError: when not all that is loaded is in the row.
    """

    def __init__(self, mapper: Mapper[Any], version: int) -> None:
        self.table: Any = mapper.local_table
        self.name = mapper.class_.__name__
        if mapper.polymorphic_on is not None or mapper.inherits is not None:
            raise CacheClassError(
                "has subclasses, or is one: what is loaded is not in one row",
                class_name=self.name,
            )
        self._refuse_name()
        self.select = select(mapper.class_)
        self._named = {column.name: column for column in self.table.c}
        compiled: Any = self.select.compile()
        self.names = [entry.keyname for entry in compiled._result_columns]
        strange = [name for name in self.names if name not in self._named]
        if strange or len(compiled.statement.get_final_froms()) != 1:
            raise CacheClassError(
                "is loaded with more than the columns of its table: "
                f"{', '.join(strange) or 'a join'}; use lazy='select' or "
                "deferred() for it",
                class_name=self.name,
            )
        self._refuse_subqueries(mapper)
        self._refuse_expressions()
        self._refuse_cascades()
        # Without addresses, which are others in each process.
        types = [
            _ADDRESS.sub("", repr(self._named[name].type))
            for name in self.names
        ]
        self._cells: dict[str, Cells] = {}
        self.digest = digest(FORMAT, version, self.names, types)

    def _refuse_name(self) -> None:
        if not _TABLE.fullmatch(str(self.table.name)):
            raise CacheClassError(
                f"has the table {self.table.name!r}: keys have its name in "
                "them, and take ASCII characters without blanks",
                class_name=self.name,
            )

    def _refuse_subqueries(self, mapper: Mapper[Any]) -> None:
        for relation in mapper.relationships:
            # It repeats the statement that the rows were read with, and we
            # have none that says their ids.
            if relation.lazy == "subquery":
                raise CacheClassError(
                    f"has the relationship {relation.key!r} with "
                    "lazy='subquery'; use lazy='selectin'",
                    class_name=self.name,
                )

    def _refuse_expressions(self) -> None:
        for name in self.names:
            kind = self._named[name].type
            if _is_pickled(kind):
                raise CacheClassError(
                    f"has the column {name!r} of type {kind!r}: who can write "
                    "to the cache could have code run by who reads; use JSON",
                    class_name=self.name,
                )
            if not isinstance(kind, ShardedId) and _composes(kind):
                raise CacheClassError(
                    f"has the column {name!r} of type {kind!r}, which the "
                    "server has to put into another form",
                    class_name=self.name,
                )

    def _refuse_cascades(self) -> None:
        for key in self.table.foreign_keys:
            for what, how in (
                ("ondelete", key.ondelete),
                ("onupdate", key.onupdate),
            ):
                if (how or "RESTRICT").upper() not in _SILENT:
                    raise CacheClassError(
                        f"has a foreign key with {what}={how!r}: the server "
                        "would change rows without a word; leave that to "
                        "relationship(cascade=...)",
                        class_name=self.name,
                    )

    def cells(self, dialect: Dialect) -> Cells:
        """Return what the cells of a row may be, for one kind of server."""
        found = self._cells.get(dialect.name)
        if found is None:
            columns = [self._named[name] for name in self.names]
            found = self._cells[dialect.name] = Cells(columns, dialect)
        return found

    def raw(self, *more: Any) -> Select[Any]:
        """Return a SELECT of what the driver has for each column.

        :param more: columns that come first.
        """
        return select(*more, *(self._raw(name) for name in self.names))

    def _raw(self, name: str) -> Any:
        column = self._named[name]
        # Its id is composed by the server, and is that in Python as well.
        if isinstance(column.type, ShardedId):
            return column
        return type_coerce(column, NullType()).label(name)


#: What a foreign key may do on its own.
_SILENT = ("RESTRICT", "NO ACTION")


def _composes(kind: TypeEngine[Any]) -> bool:
    inner = kind.impl if isinstance(kind, TypeDecorator) else kind
    return any(one._has_column_expression for one in (kind, inner))


def _is_pickled(kind: Any) -> bool:
    while isinstance(kind, TypeDecorator):
        if isinstance(kind, PickleType):
            return True
        kind = kind.impl
    return False


def check_id(table: Any, name: str, row_id: Any) -> int:
    """Return the number of the shard of rows of a class.

    :param name: of the class, for messages.
    :param row_id: the id that names their shard.
    :raises InvalidIdError: when it is no id.
    :raises WrongTypeError: when it is the id of another class.
    """
    kind = routing_column(table).type
    return check_type(row_id, kind.type_id, name).shard_id


def place_of(scope: Scope, table: Any, name: str, row_id: Any) -> Place:
    """Return where rows of a class are; see :func:`check_id`.

    :raises UnknownShardError: when the shard is not open.
    """
    shard_id = check_id(table, name, row_id)
    spec = spec_of(table)
    keyspace = scope.places.keyspace(spec.keyspace, spec.kind)
    return scope.places.place(keyspace, shard_id)


def digest(*parts: Any) -> str:
    """Return a short text that is the same for the same parts."""
    return blake2b(repr(parts).encode(), digest_size=6).hexdigest()


def is_mapping(cls: Any) -> bool:
    """Tell a mapping class from an object class.

    :raises CacheClassError: when it is neither.
    """
    if hasattr(cls, "__sqla_shard_mapping__"):
        return True
    table = mapper_of(cls).local_table
    if spec_of(table).kind == "objects" and has_objects(table):
        return False
    raise CacheClassError(
        "is neither an object class nor a mapping", class_name=cls.__name__
    )


def mapper_of(cls: Any) -> Mapper[Any]:
    """Return the mapper of a class.

    :raises CacheClassError: when it has none.
    """
    found: Any = inspect(cls, raiseerr=False)
    if not isinstance(found, Mapper):
        raise CacheClassError(
            "is not a mapped class", class_name=getattr(cls, "__name__", cls)
        )
    return found
