"""Rendering of column types and defaults of this package in revisions.

A revision has to create the same table with any later version of this
package, so it does not import the package.

A portable revision runs on all servers: it has plain SQLAlchemy types with a
variant for each backend, and defines what SQLAlchemy has no construct for.

MySQL and MariaDB have different names for the collation of blobs, and a
``mysql://`` URL can lead to either.  So a portable revision chooses the name
when it runs.

A plain revision, for teams with MySQL or MariaDB everywhere, has the types of
that server and no part for SQLite.  It does not run on the other of the two,
because of that collation.  Variants of the model's own types are
rendered as they are.
"""

from __future__ import annotations

import textwrap
from collections.abc import MutableMapping
from typing import Any, Literal

from alembic.autogenerate.api import AutogenContext
from sqlalchemy import DDL
from sqlalchemy.dialects import mysql, sqlite
from sqlalchemy.sql.elements import False_, TextClause, True_
from sqlalchemy.sql.functions import current_timestamp, now
from sqlalchemy.types import TypeEngine

from sqla_shard.dialects.sql import UpdatedAt
from sqla_shard.types import (
    JSONBlob,
    LookupKey,
    ObjectRef,
    Sequence38,
    ShardedId,
    UTCTimestamp,
    Vector,
)

__all__ = [
    "BLOB_TEXT",
    "UPDATED_AT",
    "Listeners",
    "drop_options",
    "render_item",
    "render_plain",
]


_MYSQL = "from sqlalchemy.dialects import mysql"
_SERVERS = "'mysql', 'mariadb'"
_PORTABLE: dict[type[Any], str] = {
    True_: "true",
    False_: "false",
    now: "func.now",
    current_timestamp: "func.current_timestamp",
}
#: The definition of :class:`UpdatedAt` in a revision.
UPDATED_AT = '''\
from sqlalchemy.ext.compiler import compiles


class UpdatedAt(sa.ColumnElement):
    """The time of a row's last change, which the server keeps."""

    inherit_cache = True


@compiles(UpdatedAt)
def _updated_at(element, compiler, **kw):
    if compiler.dialect.name == "sqlite":
        return "{on_sqlite}"
    return "{on_mysql}"
'''
#: The definition of the type of blobs in a revision.
BLOB_TEXT = '''\
from sqlalchemy.ext.compiler import compiles


class BlobText(sa.types.UserDefinedType):
    """Text with a collation that MySQL and MariaDB name differently."""

    cache_ok = True

    def __init__(self, name):
        self.name = name


@compiles(BlobText)
def _blob_text(element, compiler, **kw):
    collation = "utf8mb4_bin"
    if compiler.dialect.is_mariadb:
        collation = "utf8mb4_nopad_bin"
    return f"{element.name} CHARACTER SET utf8mb4 COLLATE {collation}"
'''


#: The definition of the type of vectors in a revision.
VECTOR = """\
class Vector(sa.types.UserDefinedType):
    cache_ok = True

    def __init__(self, dimensions):
        self.dimensions = dimensions

    def get_col_spec(self, **kw):
        return f"VECTOR({self.dimensions})"
"""


def render_item(kind: str, item: Any, context: AutogenContext) -> str | Literal[False]:
    """Render an item in a portable revision; False to let alembic do it.

    This is the hook ``render_item`` of alembic's ``configure()``.
    """
    if kind == "type":
        return _type(item, context, portable=True)
    if kind == "server_default":
        return _default(getattr(item, "arg", item), context)
    return False


def _type(
    kind: TypeEngine[Any], context: AutogenContext, *, portable: bool
) -> str | Literal[False]:
    if isinstance(kind, ObjectRef):
        return "sa.BigInteger()"
    if isinstance(kind, Vector):
        context.imports.add(VECTOR)
        return f"Vector({kind.dimensions})"
    if isinstance(kind, ShardedId):
        variant = ".with_variant(sa.Integer(), 'sqlite')" if portable else ""
        return f"sa.BigInteger(){variant}"
    if isinstance(kind, Sequence38):
        variant = ".with_variant(sa.CHAR(38), 'sqlite')" if portable else ""
        return f"sa.Numeric(38, 0){variant}"
    if isinstance(kind, LookupKey):
        most = LookupKey.MOST_BYTES
        general = f"sa.LargeBinary({most})"
        plain = f"mysql.VARBINARY(length={most})"
    elif isinstance(kind, UTCTimestamp):
        general, plain = "sa.DateTime()", "mysql.TIMESTAMP(fsp=6)"
    elif isinstance(kind, JSONBlob):
        dialect: Any = context.dialect
        on_server = kind.load_dialect_impl(mysql.dialect() if portable else dialect)
        if portable and kind.compression is None:
            context.imports.add(BLOB_TEXT)
            name = type(on_server).__name__
            return f"sa.Text().with_variant(BlobText({name!r}), {_SERVERS})"
        # On SQLite a column of any type contains both.
        general, plain = "sa.Text()", f"mysql.{on_server!r}"
    else:
        return False
    context.imports.add(_MYSQL)
    return f"{general}.with_variant({plain}, {_SERVERS})" if portable else plain


def _default(default: Any, context: AutogenContext) -> str | Literal[False]:
    if isinstance(default, UpdatedAt):
        context.imports.add(_updated_at())
        return "UpdatedAt()"
    if isinstance(default, str):
        return repr(default)  # alembic would strip quotes
    # Alembic would render them for the backend of the connection.
    for kind, name in _PORTABLE.items():
        if isinstance(default, kind):
            arguments = getattr(default, "clauses", ())
            digits = ", ".join(repr(one.value) for one in arguments)
            return f"sa.{name}({digits})"
    if isinstance(default, TextClause) and not default.compile().params:
        return f"sa.text({default.text!r})"
    return False


def _updated_at() -> str:
    texts = {
        f"on_{dialect.name}": str(UpdatedAt().compile(dialect=dialect))
        for dialect in (mysql.dialect(), sqlite.dialect())
    }
    return UPDATED_AT.format(**texts)


class Listeners(list[Any]):
    """The argument ``listeners`` of a table, with its trigger for SQLite.

    Its ``repr`` is the expression for a revision.

    :param trigger: SQL text for :class:`sqlalchemy.DDL`.
    """

    def __init__(self, trigger: str) -> None:
        ddl: Any = DDL(trigger)  # type: ignore[no-untyped-call]  # SQLAlchemy's
        super().__init__([("after_create", ddl.execute_if(dialect="sqlite"))])
        self.trigger = trigger

    def __repr__(self) -> str:
        parts = textwrap.wrap(
            self.trigger,
            width=60,
            drop_whitespace=False,
            replace_whitespace=False,
            break_long_words=False,
            break_on_hyphens=False,
        )
        text = "\n".join(f"    {part!r}" for part in parts)
        ddl = f"sa.DDL(\n{text}\n).execute_if(dialect='sqlite')"
        return f"[('after_create', {ddl})]"


def render_plain(kind: str, item: Any, context: AutogenContext) -> str | Literal[False]:
    """Render an item in a plain revision; False to let alembic do it."""
    if kind == "type":
        return _type(item, context, portable=False)
    default = getattr(item, "arg", item)
    if kind == "server_default" and isinstance(default, UpdatedAt):
        return f"sa.text({str(default.compile(dialect=context.dialect))!r})"
    return render_item(kind, item, context)


def drop_options(options: MutableMapping[str, Any]) -> None:
    """Remove the options of the SQLite dialect.

    :param options: keyword arguments of an operation of alembic.
    """
    for name in [name for name in options if name.startswith("sqlite_")]:
        del options[name]
