"""Column types and defaults of the package, in revisions for all servers.

A revision is kept for years and must make the same table then, whatever the
package has become.  So it imports nothing of ours: types are written as plain
SQLAlchemy types with a variant for each kind of server, and what has no
SQLAlchemy construct is defined in the revision itself.
:mod:`sqla_shard.schema.revisions.plain` writes them for one kind of server.

One thing depends on the server that a revision is generated on.  MySQL and
MariaDB have the collation of blobs under different names, and a ``mysql://``
URL does not tell which of them it leads to.  A revision generated on MariaDB
or SQLite names that of MariaDB, which MySQL 8 refuses.
"""

from __future__ import annotations

import textwrap
from typing import Any
from typing import Literal

from alembic.autogenerate.api import AutogenContext
from sqlalchemy import DDL
from sqlalchemy.dialects import mysql
from sqlalchemy.dialects import sqlite
from sqlalchemy.sql.elements import False_
from sqlalchemy.sql.elements import TextClause
from sqlalchemy.sql.elements import True_
from sqlalchemy.sql.functions import current_timestamp
from sqlalchemy.sql.functions import now
from sqlalchemy.types import TypeEngine

from sqla_shard.dialects.sql import UpdatedAt
from sqla_shard.types import JSONBlob
from sqla_shard.types import LookupKey
from sqla_shard.types import ObjectRef
from sqla_shard.types import Sequence38
from sqla_shard.types import ShardedId
from sqla_shard.types import UTCTimestamp

__all__ = ["UPDATED_AT", "Listeners", "render_item"]

_MYSQL = "from sqlalchemy.dialects import mysql"
_SERVERS = "'mysql', 'mariadb'"
_PORTABLE: dict[type[Any], str] = {
    True_: "true",
    False_: "false",
    now: "func.now",
    current_timestamp: "func.current_timestamp",
}
#: What a revision brings for :class:`UpdatedAt`.
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


def render_item(
    kind: str, item: Any, context: AutogenContext
) -> str | Literal[False]:
    """Return what a revision says for an item; False for alembic's own way.

    It is the hook ``render_item`` of alembic's ``configure()``.
    """
    if kind == "type":
        return _type(item, context)
    if kind == "server_default":
        return _default(getattr(item, "arg", item), context)
    return False


def _type(
    kind: TypeEngine[Any], context: AutogenContext
) -> str | Literal[False]:
    if isinstance(kind, ShardedId):
        return "sa.BigInteger().with_variant(sa.Integer(), 'sqlite')"
    if isinstance(kind, ObjectRef):
        return "sa.BigInteger()"
    if isinstance(kind, Sequence38):
        return "sa.Numeric(38, 0).with_variant(sa.CHAR(38), 'sqlite')"
    if isinstance(kind, LookupKey):
        context.imports.add(_MYSQL)
        most = LookupKey.MOST_BYTES
        variant = f"mysql.VARBINARY(length={most}), {_SERVERS}"
        return f"sa.LargeBinary({most}).with_variant({variant})"
    if isinstance(kind, UTCTimestamp):
        context.imports.add(_MYSQL)
        variant = f"mysql.TIMESTAMP(fsp=6), {_SERVERS}"
        return f"sa.DateTime().with_variant({variant})"
    if isinstance(kind, JSONBlob):
        context.imports.add(_MYSQL)
        return "sa.Text()" + _blob_variants(kind, context)
    return False


def _blob_variants(kind: JSONBlob, context: AutogenContext) -> str:
    on_mariadb, on_mysql = (
        f"mysql.{kind.load_dialect_impl(mysql.dialect(is_mariadb=answer))!r}"
        for answer in (True, False)
    )
    dialect: Any = context.dialect
    if dialect.name == "mysql" and not dialect.is_mariadb:
        other = f".with_variant({on_mariadb}, 'mariadb')"
        return f".with_variant({on_mysql}, 'mysql'){other}"
    return f".with_variant({on_mariadb}, {_SERVERS})"


def _default(default: Any, context: AutogenContext) -> str | Literal[False]:
    if isinstance(default, UpdatedAt):
        context.imports.add(_updated_at())
        return "UpdatedAt()"
    if isinstance(default, str):
        return repr(default)  # alembic would take quotes off its ends
    # Alembic would write what these are on the server that it looks at.
    for kind, name in _PORTABLE.items():
        if isinstance(default, kind):
            return f"sa.{name}()"
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
    """The argument ``listeners`` of a table whose trigger SQLite needs.

    Its ``repr`` is the expression that makes it anew.

    :param trigger: text for :class:`sqlalchemy.DDL`.
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
