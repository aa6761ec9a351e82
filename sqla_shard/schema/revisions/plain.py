"""Column types and defaults of the package, in revisions for one server.

What teams need that run MySQL or MariaDB everywhere: the types of that
server, and nothing for SQLite.  Such a revision is not for the other of the
two either: they have the collation of blobs under different names.  Variants
that a model gives its own types are written as they are.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any
from typing import Literal

from alembic.autogenerate.api import AutogenContext

from sqla_shard.dialects.sql import UpdatedAt
from sqla_shard.schema.revisions import portable
from sqla_shard.types import JSONBlob
from sqla_shard.types import LookupKey
from sqla_shard.types import ObjectRef
from sqla_shard.types import Sequence38
from sqla_shard.types import ShardedId
from sqla_shard.types import UTCTimestamp

__all__ = ["drop_options", "is_plain", "render_item"]

_MYSQL = "from sqlalchemy.dialects import mysql"


def is_plain(dialect: Any) -> bool:
    """Tell whether there are plain revisions for a kind of server."""
    return dialect.name in ("mysql", "mariadb")


def render_item(
    kind: str, item: Any, context: AutogenContext
) -> str | Literal[False]:
    """Return what a revision says for an item; False for alembic's own way.

    It is the hook ``render_item`` of alembic's ``configure()``.
    """
    if kind == "type":
        return _type(item, context)
    default = getattr(item, "arg", item)
    if kind == "server_default" and isinstance(default, UpdatedAt):
        return f"sa.text({str(default.compile(dialect=context.dialect))!r})"
    return portable.render_item(kind, item, context)


def _type(kind: Any, context: AutogenContext) -> str | Literal[False]:
    if isinstance(kind, ShardedId | ObjectRef):
        return "sa.BigInteger()"
    if isinstance(kind, Sequence38):
        return "sa.Numeric(38, 0)"
    if isinstance(kind, LookupKey):
        context.imports.add(_MYSQL)
        return f"mysql.VARBINARY(length={LookupKey.MOST_BYTES})"
    if isinstance(kind, UTCTimestamp):
        context.imports.add(_MYSQL)
        return "mysql.TIMESTAMP(fsp=6)"
    if isinstance(kind, JSONBlob):
        context.imports.add(_MYSQL)
        dialect: Any = context.dialect
        return f"mysql.{kind.load_dialect_impl(dialect)!r}"
    return False


def drop_options(options: MutableMapping[str, Any]) -> None:
    """Take away what is for SQLite alone.

    :param options: keyword arguments of an operation of alembic.
    """
    for name in [name for name in options if name.startswith("sqlite_")]:
        del options[name]
