"""Tables of the library itself, which every virtual shard has.

Their names begin with ``sqla_shard_``; names of an application's tables must
not.  Their revisions are in :mod:`sqla_shard.schema.ledger`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Double,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    UniqueConstraint,
)
from sqlalchemy.dialects import mysql

from sqla_shard.dialects.sql import COUNTING
from sqla_shard.exc import CacheKeyError

#: The prefix of the names of these tables.
PREFIX = "sqla_shard_"

METADATA = MetaData()

_LONG_TEXT = Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")
_BLOB = LargeBinary().with_variant(mysql.MEDIUMBLOB(), "mysql", "mariadb")
_MOMENT = DateTime().with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")


def _bytes(length: int) -> LargeBinary:
    binary = mysql.VARBINARY(length)
    return LargeBinary(length).with_variant(binary, "mysql", "mariadb")


def _ascii(length: int) -> String:
    ascii_bin = mysql.VARCHAR(length, charset="ascii", collation="ascii_bin")
    return String(length).with_variant(ascii_bin, "mysql", "mariadb")


def _table(name: str, *columns: Any, **options: Any) -> Table:
    return Table(
        name,
        METADATA,
        *columns,
        **options,
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
        mysql_collate="utf8mb4_bin",
    )


#: One row for each statement of a revision, written before it runs.
LEDGER = _table(
    "sqla_shard_ledger",
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
    Column("statement", _LONG_TEXT, nullable=False),
    Column("digest", String(64), nullable=False),
    Column("tables_before", _LONG_TEXT, nullable=True),
    Column("error", _LONG_TEXT, nullable=True),
    Column("runner", String(255), nullable=False),
    Column("started_at", _MOMENT, nullable=False),
    Column("ended_at", _MOMENT, nullable=True),
    Column("is_open", Boolean(create_constraint=False), nullable=False),
)

#: Maximum length of the key of a transaction in bytes.
LONGEST_TOKEN = 255

#: Two rows for each transaction with a key, inserted by that transaction: the
#: key, and the mark of the attempt that has committed.
TOKENS = _table(
    "sqla_shard_token",
    # A binary type: as strings "a" and "a " are equal.
    Column("token", _bytes(LONGEST_TOKEN), primary_key=True),
    Column("created_at", DateTime, nullable=False),
    # Indexes the age; a UNIQUE constraint is part of CREATE TABLE.
    UniqueConstraint("created_at", "token", name="sqla_shard_token_age"),
)

#: Length of the random tokens of operations, claims and tombstones in bytes.
TOKEN_BYTES = 16
#: Maximum length of the name of an operation.
LONGEST_NAME = 200

#: One row for each pending operation on another shard, inserted by the
#: transaction and deleted after the operation was applied.
INTENTS = _table(
    "sqla_shard_intent",
    Column("token", _bytes(TOKEN_BYTES), primary_key=True),
    Column("operation", String(LONGEST_NAME), nullable=False),
    Column("arguments", _LONG_TEXT, nullable=False),
    Column("home_shard", Integer, nullable=False),
    Column("keyspace", String(255), nullable=False),
    Column("shard_id", Integer, nullable=False),
    Column("created_at", _MOMENT, nullable=False),
    Column("due_at", _MOMENT, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("error", _LONG_TEXT, nullable=True),
    UniqueConstraint("due_at", "token", name="sqla_shard_intent_due"),
)

#: One row for each operation that was applied on this shard, inserted by the
#: transaction that has applied it: a second one finds it and does nothing.
APPLIED = _table(
    "sqla_shard_applied",
    Column("token", _bytes(TOKEN_BYTES), primary_key=True),
    Column("shard_id", Integer, nullable=False),
    Column("home_keyspace", String(255), nullable=False),
    Column("home_shard", Integer, nullable=False),
    Column("applied_at", _MOMENT, nullable=False),
    UniqueConstraint("applied_at", "token", name="sqla_shard_applied_age"),
)

#: Maximum length of the name of a cache region.
LONGEST_REGION = 64
#: Maximum length of a cache key.
LONGEST_CACHE_KEY = 250

#: One row for each cache key that a transaction could not invalidate, inserted
#: by that transaction and deleted after the invalidation.
OUTBOX = _table(
    "sqla_shard_outbox",
    Column("token", _bytes(TOKEN_BYTES), primary_key=True),
    Column("region", String(LONGEST_REGION), nullable=False),
    Column("cache_key", _ascii(LONGEST_CACHE_KEY), nullable=False),
    Column("shard_id", Integer, nullable=False),
    Column("created_at", _MOMENT, nullable=False),
    UniqueConstraint("created_at", "token", name="sqla_shard_outbox_age"),
)

#: Maximum length of the name of a queue.
LONGEST_QUEUE = 64
#: Maximum length of the unique key of a job in bytes.
LONGEST_UNIQUE_KEY = 255
#: The index that answers every read of jobs other than by id.
JOB_INDEX = "sqla_shard_job_due"

#: One row for each job, inserted by the transaction that enqueues it and
#: deleted some time after the job has finished.
#:
#: ``due_at`` is the time at which something may be done with the row: a
#: pending job may run, a claim expires, a finished job has finished and may
#: be deleted later.  So one index serves claims, recovery and deletion.
JOBS = _table(
    "sqla_shard_job",
    Column(
        "id",
        BigInteger().with_variant(Integer, "sqlite"),
        primary_key=True,
        autoincrement=True,
    ),
    Column("shard_id", Integer, nullable=False),
    Column("task", String(LONGEST_NAME), nullable=False),
    Column("queue", _ascii(LONGEST_QUEUE), nullable=False),
    Column("priority", SmallInteger, nullable=False),
    Column("state", SmallInteger, nullable=False),
    Column("due_at", _MOMENT, nullable=False),
    Column("created_at", _MOMENT, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("max_attempts", Integer, nullable=False),
    Column("arguments", _LONG_TEXT, nullable=False),
    Column("checkpoint", _LONG_TEXT, nullable=True),
    Column("context", _LONG_TEXT, nullable=True),
    Column("token", _bytes(TOKEN_BYTES), nullable=True),
    Column("unique_key", _bytes(LONGEST_UNIQUE_KEY), nullable=True),
    Column("error", _LONG_TEXT, nullable=True),
    UniqueConstraint("state", "queue", "priority", "due_at", "id", name=JOB_INDEX),
    # The id is read from the response of the INSERT.
    implicit_returning=False,
)

#: One row for each unique key of a job that has not finished.  A table of its
#: own: the check of a unique key locks the gap before it, where a key of
#: another job, or the NULL of a job without one, may have to be inserted.
JOB_KEYS = _table(
    "sqla_shard_job_key",
    Column("unique_key", _bytes(LONGEST_UNIQUE_KEY), primary_key=True),
    Column("job_id", BigInteger, nullable=False),
    # How often the key was enqueued since the last claim of the job.
    Column("duplicates", Integer, nullable=False),
    implicit_returning=False,
    info={COUNTING: (("unique_key",), "duplicates")},
)

#: One row for each queue that is paused, or was, or has a limit; on one shard
#: only, which all workers read.
QUEUES = _table(
    "sqla_shard_queue",
    Column("queue", _ascii(LONGEST_QUEUE), primary_key=True),
    Column("is_paused", Boolean(create_constraint=False), nullable=False),
    # Jobs a second, of all workers together; NULL for no limit.
    Column("per_second", Double, nullable=True),
    # A token bucket: how many jobs may be claimed at once, and since when.
    Column("tokens", Double, nullable=False),
    Column("filled_at", _MOMENT, nullable=False),
)

#: One row for each dictionary of compressed blobs, on every shard: a database
#: that is moved or restored has the dictionaries of its rows.  The rows are
#: never deleted.
DICTIONARIES = _table(
    "sqla_shard_dictionary",
    # The start of the SHA-256 of the content.
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("name", String(64), nullable=False),
    Column("version", Integer, nullable=False),
    Column("content", _BLOB, nullable=False),
    # Whether blobs of this shard are written with it.
    Column("is_active", Boolean(create_constraint=False), nullable=False),
    Column("created_at", _MOMENT, nullable=False),
    UniqueConstraint("name", "version", name="sqla_shard_dictionary_version"),
)

#: One row, in a keyspace whose ids begin with the time: the highest local id
#: that was issued on the shard.
CLOCKS = _table(
    "sqla_shard_clock",
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("last_id", BigInteger, nullable=False),
)

#: The tables that transactions of an application write.
OF_TRANSACTIONS = (
    TOKENS,
    INTENTS,
    APPLIED,
    OUTBOX,
    JOBS,
    JOB_KEYS,
    QUEUES,
    DICTIONARIES,
    CLOCKS,
)

_KEY = re.compile(rf"[!-~]{{1,{LONGEST_CACHE_KEY}}}")
_KEYS = re.compile(rf"{_KEY.pattern}(?: {_KEY.pattern})*")


def check_keys(keys: Iterable[str]) -> list[str]:
    """Return cache keys without duplicates.

    :raises sqla_shard.exc.CacheKeyError: if one is not 1 to 250 printable
        ASCII characters without spaces.
    """
    unique = list(dict.fromkeys(keys))
    try:
        joined = " ".join(unique)
    except TypeError:
        joined = ""
    # One match for all keys: a match for each takes as long as to read their
    # values.
    spaces = len(unique) - 1
    if joined.count(" ") == spaces and _KEYS.fullmatch(joined):
        return unique
    for key in unique:
        if type(key) is not str or not _KEY.fullmatch(key):
            raise CacheKeyError(key=key)
    return unique
