"""Uploaded bookmark files, and their parts.

It runs once for each virtual shard of its keyspace, on any server.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql
from sqlalchemy.ext.compiler import compiles


class UpdatedAt(sa.ColumnElement[Any]):
    """The time of a row's last change, updated by the server."""

    inherit_cache = True


@compiles(UpdatedAt)
def _updated_at(element: Any, compiler: Any, **kw: Any) -> str:
    if compiler.dialect.name == "sqlite":
        return "(strftime('%Y-%m-%d %H:%M:%f', 'now') || '000')"
    return "CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6)"


class BlobText(sa.types.UserDefinedType[str]):
    """Text with a collation that MySQL and MariaDB name differently."""

    cache_ok = True

    def __init__(self, name: str) -> None:
        self.name = name


@compiles(BlobText)
def _blob_text(element: Any, compiler: Any, **kw: Any) -> str:
    collation = "utf8mb4_bin"
    if compiler.dialect.is_mariadb:
        collation = "utf8mb4_nopad_bin"
    return f"{element.name} CHARACTER SET utf8mb4 COLLATE {collation}"


revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables."""
    _create_objects("imports")
    _create_objects("import_parts")


def downgrade() -> None:
    """Drop the tables, and all rows with them."""
    for name in ("import_parts", "imports"):
        op.drop_table(name)


def _create_objects(name: str) -> None:
    # Servers update a TIMESTAMP by themselves; SQLite needs a trigger.
    trigger = sa.DDL(
        'CREATE TRIGGER IF NOT EXISTS "%(name)s_ts" AFTER UPDATE ON %(table)s '
        "FOR EACH ROW WHEN NEW.ts IS OLD.ts BEGIN UPDATE %(table)s SET ts = "
        "strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now') || '000' "
        "WHERE local_id = OLD.local_id; END",
        context={"name": name},
    )
    op.create_table(
        name,
        sa.Column(
            "local_id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column(
            "data",
            sa.Text().with_variant(BlobText("MEDIUMTEXT"), "mysql", "mariadb"),
            nullable=False,
        ),
        sa.Column(
            "ts",
            sa.DateTime().with_variant(mysql.TIMESTAMP(fsp=6), "mysql", "mariadb"),
            server_default=UpdatedAt(),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("local_id"),
        listeners=[("after_create", trigger.execute_if(dialect="sqlite"))],
        sqlite_autoincrement=True,
    )
