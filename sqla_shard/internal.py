"""The tables of this package itself, which every virtual shard has.

Their names begin with ``sqla_shard_``, and no table of an application may.
Their revisions are in :mod:`sqla_shard.schema.internal`.
"""

from __future__ import annotations

from sqlalchemy import BigInteger
from sqlalchemy import Boolean
from sqlalchemy import Column
from sqlalchemy import DateTime
from sqlalchemy import Integer
from sqlalchemy import LargeBinary
from sqlalchemy import MetaData
from sqlalchemy import String
from sqlalchemy import Table
from sqlalchemy import Text
from sqlalchemy import UniqueConstraint
from sqlalchemy.dialects import mysql

__all__ = ["LEDGER", "LONGEST_TOKEN", "METADATA", "PREFIX", "TOKENS"]

#: What the names of these tables begin with.
PREFIX = "sqla_shard_"

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

#: Bytes of the longest token.
LONGEST_TOKEN = 255

#: One row for each transaction with a key, written by that transaction.
TOKENS = Table(
    "sqla_shard_token",
    METADATA,
    # Bytes: in a text "a" and "a " are one and the same.
    Column(
        "token",
        LargeBinary(LONGEST_TOKEN).with_variant(
            mysql.VARBINARY(LONGEST_TOKEN), "mysql", "mariadb"
        ),
        primary_key=True,
    ),
    Column("created_at", DateTime, nullable=False),
    # An index of old ones that needs no statement of its own.
    UniqueConstraint("created_at", "token", name="sqla_shard_token_age"),
    mysql_engine="InnoDB",
    mysql_charset="utf8mb4",
    mysql_collate="utf8mb4_bin",
)
