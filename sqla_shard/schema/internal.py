"""The tables of this package itself, which every virtual shard has.

Their names begin with ``sqla_shard_``.  They have revisions and a version
table of their own, apart from those of the application, and every command
that changes a shard brings them up to date first.
"""

from __future__ import annotations

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
from sqlalchemy import Integer
from sqlalchemy import MetaData
from sqlalchemy import String
from sqlalchemy import Table
from sqlalchemy import Text
from sqlalchemy.dialects import mysql

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


def upgrade(connection: Connection) -> None:
    """Bring these tables of the connection's database up to date.

    Each revision is one statement that does no harm when it is repeated,
    since there is no ledger to write it down in before the first.
    """

    def steps(heads: Any, _: MigrationContext) -> Any:
        return _scripts()._upgrade_revs("head", heads)

    context = MigrationContext.configure(
        connection, opts={"version_table": VERSION_TABLE, "fn": steps}
    )
    with Operations.context(context):
        context.run_migrations()
    connection.commit()
