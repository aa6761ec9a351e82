"""The tables of this package itself, which every virtual shard has.

Their names begin with ``sqla_shard_``.  They have revisions and a version
table of their own, apart from those of the application, and every command
that changes a shard brings them up to date first.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import BigInteger
from sqlalchemy import Boolean
from sqlalchemy import Column
from sqlalchemy import Connection
from sqlalchemy import DateTime
from sqlalchemy import event
from sqlalchemy import Integer
from sqlalchemy import MetaData
from sqlalchemy import String
from sqlalchemy import Table
from sqlalchemy import Text
from sqlalchemy.dialects import mysql
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import DBAPIError

from sqla_shard.schema.statements import Effect
from sqla_shard.schema.statements import read

__all__ = [
    "LEDGER",
    "METADATA",
    "PREFIX",
    "VERSION_TABLE",
    "head",
    "upgrade",
]

#: What the names of these tables begin with.
PREFIX = "sqla_shard_"
VERSION_TABLE = "sqla_shard_version"

METADATA = MetaData()

_LONG = Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")
_MOMENT = DateTime().with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")

#: One row for each statement of a revision, written before it runs.
LEDGER = Table(
    "sqla_shard_ledger",
    METADATA,
    Column(
        "id",
        BigInteger().with_variant(Integer, "sqlite"),
        primary_key=True,
        autoincrement=True,
    ),
    Column("direction", String(10), nullable=False),
    Column("revision", String(100), nullable=False),
    Column("number", Integer, nullable=False),
    Column("state", String(10), nullable=False),
    Column("statement", _LONG, nullable=False),
    Column("digest", String(64), nullable=False),
    Column("tables_before", _LONG, nullable=True),
    Column("error", _LONG, nullable=True),
    Column("runner", String(255), nullable=False),
    Column("started_at", _MOMENT, nullable=False),
    Column("ended_at", _MOMENT, nullable=True),
    Column("is_open", Boolean(create_constraint=False), nullable=False),
    mysql_engine="InnoDB",
    mysql_charset="utf8mb4",
    mysql_collate="utf8mb4_bin",
)


@lru_cache(maxsize=1)
def _scripts() -> ScriptDirectory:
    return ScriptDirectory(str(Path(__file__).parent / "migrations"))


def head() -> str:
    """Return the newest revision of these tables."""
    found = _scripts().get_current_head()
    assert found is not None  # noqa: S101 - there is one, as shipped
    return found


#: What a database without these tables is sent, once it was sent to one.
_sent: dict[type[Dialect], list[str]] = {}


def upgrade(connection: Connection, version: str | None) -> None:
    """Bring these tables of the connection's database up to date.

    Each revision is one statement that does no harm when it is repeated,
    since there is no ledger to write it down in before the first.

    :param version: the revision that they are at, None without tables.
    """
    kind = type(connection.dialect)
    sent = _sent.get(kind) if version is None else None
    if sent is not None and _repeat(connection, sent):
        return
    sent = []

    def record(
        connection: Connection,
        cursor: Any,
        statement: str,
        *details: object,
    ) -> None:
        # PRAGMA, by which SQLAlchemy reads, is one for the session.
        if read(statement).effect not in (Effect.READS, Effect.SESSION):
            sent.append(statement)

    event.listen(connection, "before_cursor_execute", record)
    try:
        _run(connection)
    finally:
        event.remove(connection, "before_cursor_execute", record)
    # Nothing is sent where another runner was first: that is not what a
    # database without these tables needs.
    if version is None and sent:
        _sent[kind] = sent


def _repeat(connection: Connection, statements: Iterable[str]) -> bool:
    """Send statements, unless somebody has done part of it before."""
    try:
        for statement in statements:
            connection.exec_driver_sql(statement).close()
    except DBAPIError:
        # A runner that was killed, or another one since the version was
        # read: alembic looks at what is there.
        connection.rollback()
        return False
    connection.commit()
    return True


def _run(connection: Connection) -> None:

    def steps(heads: Any, _: MigrationContext) -> Any:
        return _scripts()._upgrade_revs("head", heads)

    context = MigrationContext.configure(
        connection, opts={"version_table": VERSION_TABLE, "fn": steps}
    )
    with Operations.context(context):
        context.run_migrations()
    connection.commit()
