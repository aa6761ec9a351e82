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

__all__ = [
    "APPLIED",
    "INTENTS",
    "INTENT_BYTES",
    "LEDGER",
    "LONGEST_CACHE_KEY",
    "LONGEST_NAME",
    "LONGEST_REGION",
    "LONGEST_TOKEN",
    "METADATA",
    "OF_TRANSACTIONS",
    "OUTBOX",
    "PREFIX",
    "TOKENS",
]

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

#: Two rows for each transaction with a key, written by that transaction: the
#: key, and the mark of the attempt that has committed.
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

#: Bytes of the token of an intent.
INTENT_BYTES = 16
#: Characters of the longest name of an operation.
LONGEST_NAME = 200

_INTENT = LargeBinary(INTENT_BYTES).with_variant(
    mysql.VARBINARY(INTENT_BYTES), "mysql", "mariadb"
)

#: One row for each operation that a transaction has left to be done on
#: another shard, written by that transaction and deleted when it is done.
INTENTS = Table(
    "sqla_shard_intent",
    METADATA,
    Column("token", _INTENT, primary_key=True),
    Column("operation", String(LONGEST_NAME), nullable=False),
    Column("arguments", _LONG, nullable=False),
    Column("home_shard", Integer, nullable=False),
    Column("keyspace", String(255), nullable=False),
    Column("shard_id", Integer, nullable=False),
    Column("created_at", _MOMENT, nullable=False),
    Column("due_at", _MOMENT, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("error", _LONG, nullable=True),
    UniqueConstraint("due_at", "token", name="sqla_shard_intent_due"),
    mysql_engine="InnoDB",
    mysql_charset="utf8mb4",
    mysql_collate="utf8mb4_bin",
)

#: One row for each intent that was applied here, written by the transaction
#: that has applied it: whoever comes later finds it, and does nothing.
APPLIED = Table(
    "sqla_shard_applied",
    METADATA,
    Column("token", _INTENT, primary_key=True),
    Column("shard_id", Integer, nullable=False),
    Column("home_keyspace", String(255), nullable=False),
    Column("home_shard", Integer, nullable=False),
    Column("applied_at", _MOMENT, nullable=False),
    UniqueConstraint("applied_at", "token", name="sqla_shard_applied_age"),
    mysql_engine="InnoDB",
    mysql_charset="utf8mb4",
    mysql_collate="utf8mb4_bin",
)

#: Characters of the longest name of a region of the cache.
LONGEST_REGION = 64
#: Characters of the longest key of a cache.
LONGEST_CACHE_KEY = 250

#: One row for each key that a transaction could not take out of a cache,
#: written by that transaction and deleted when it was taken out.
OUTBOX = Table(
    "sqla_shard_outbox",
    METADATA,
    Column("token", _INTENT, primary_key=True),
    Column("region", String(LONGEST_REGION), nullable=False),
    Column(
        "cache_key",
        String(LONGEST_CACHE_KEY).with_variant(
            mysql.VARCHAR(
                LONGEST_CACHE_KEY, charset="ascii", collation="ascii_bin"
            ),
            "mysql",
            "mariadb",
        ),
        nullable=False,
    ),
    Column("shard_id", Integer, nullable=False),
    Column("created_at", _MOMENT, nullable=False),
    UniqueConstraint("created_at", "token", name="sqla_shard_outbox_age"),
    mysql_engine="InnoDB",
    mysql_charset="utf8mb4",
    mysql_collate="utf8mb4_bin",
)

#: What transactions of an application write.
OF_TRANSACTIONS = (TOKENS, INTENTS, APPLIED, OUTBOX)
