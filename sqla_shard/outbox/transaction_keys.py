"""Keys of transactions: a transaction with a key can be found after COMMIT.

``cluster.run(fn, key="order-17")`` lets the transaction insert its key, as a
row of the table ``sqla_shard_token``, into the database of the virtual shard
that it has written first.  The row exists if, and only if, *a* transaction
with the key has committed; a second one on that shard is refused.

Two callers may have the same key, such as two workers with one message that
was delivered twice.  So each attempt inserts a second row with the same
INSERT, its *mark*, which is random.  A COMMIT whose outcome is unknown is
resolved by a locking read of the mark, which exists if, and only if, this
attempt has committed.  A key without a mark was inserted by another caller, a
process of an earlier release.

A transaction of ``cross_shard="ordered"`` has a COMMIT on each server.  Before
the first one it inserts a *part* on each server that it writes, with the same
random number, its position in the order, and the key; the first part is its
mark.  If a process dies between two COMMITs, the first parts exist without the
others (:func:`find_halves`).

A key is known on one shard.  Transactions with the same key that write
different shards first, such as two that each create an object on a random
shard, do not conflict.

``create_all()`` creates ``sqla_shard_token``; ``sqla-shard schema upgrade``
also does, before it runs the revisions of the application.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from itertools import chain
from secrets import token_bytes
from typing import Any, NamedTuple, TYPE_CHECKING

from sqlalchemy import and_, Connection, delete, func, insert, or_, select, type_coerce
from sqlalchemy.exc import IntegrityError

from sqla_shard.dialects.sql import ServerTime
from sqla_shard.engine import by_server, ExecutionPlan, OPTION, Places
from sqla_shard.engine.rendering import Place, TRANSLATE
from sqla_shard.engine.unreachable import complete, UnreachableServer
from sqla_shard.exc import KeyUsedError, WrittenShard
from sqla_shard.outbox.scan import check_age, check_batch, PARALLEL, scan
from sqla_shard.outbox.tables import LONGEST_TOKEN, TOKEN_BYTES, TOKENS
from sqla_shard.session import ShardSession
from sqla_shard.session.transaction import TransactionLog
from sqla_shard.types import UTCTimestamp
from sqla_shard.util.json_values import JsonObject

if TYPE_CHECKING:
    from sqla_shard import Cluster


#: First bytes of marks and parts.  No key begins with them: they are not valid
#: UTF-8.
_MARK = b"\xff"
_FIRST_PART = b"\xfe"
_LATER_PART = b"\xfd"
_NUMBER_BYTES = 2
_HEAD = len(_MARK) + TOKEN_BYTES + 2 * _NUMBER_BYTES
#: Additional retention time of later parts.  If they were deleted before the
#: first one, the transaction would look like a partial commit.
_LATER_PARTS_AGE = timedelta(days=1)


def encode_key(key: object) -> bytes:
    """Return a key as it is stored.

    :raises ValueError: if it is not a non-empty string of at most 255 bytes.
    """
    if not isinstance(key, str) or not key:
        raise ValueError(f"key={key!r} must be a non-empty string")
    encoded = key.encode()
    if len(encoded) > LONGEST_TOKEN:
        raise ValueError(
            f"key={key[:40]!r}... has {len(encoded)} bytes; at most "
            f"{LONGEST_TOKEN} can be stored. Use a digest of it"
        )
    return encoded


class TransactionPart(NamedTuple):
    """The row of one server of a transaction that writes several.

    :ivar key: the key of the transaction.
    :ivar attempt: a random number, the same for all parts of a transaction.
    :ivar number: position of the server in the order of COMMITs, from 0.
    :ivar total: the number of servers that the transaction has written.
    """

    key: str
    attempt: bytes
    number: int
    total: int

    def encode(self) -> bytes:
        """Return the part as it is stored.

        :raises ValueError: if the key is too long.
        """
        key = self.key.encode()
        if len(key) > LONGEST_TOKEN - _HEAD:
            raise ValueError(
                f"key={self.key[:40]!r}... has {len(key)} bytes; the "
                "maximum for a transaction that writes several servers is "
                f"{LONGEST_TOKEN - _HEAD}. Use a digest of it"
            )
        numbers = (
            number.to_bytes(_NUMBER_BYTES, "big")
            for number in (self.number, self.total)
        )
        prefix = _LATER_PART if self.number else _FIRST_PART
        return b"".join((prefix, self.attempt, *numbers, key))

    @classmethod
    def decode(cls, token: bytes) -> TransactionPart:
        """Return the part of a row."""
        middle = len(_MARK) + TOKEN_BYTES
        numbers = token[middle:_HEAD]
        return cls(
            key=token[_HEAD:].decode(),
            attempt=token[len(_MARK) : middle],
            number=int.from_bytes(numbers[:_NUMBER_BYTES], "big"),
            total=int.from_bytes(numbers[_NUMBER_BYTES:], "big"),
        )


#: The condition of rows that are parts.
IS_PART = and_(TOKENS.c.token >= _LATER_PART, TOKENS.c.token < _MARK)


class Token:
    """The key of one transaction, which may take several attempts.

    :param key: the key, at most 255 bytes of UTF-8.
    :raises ValueError: if the key is not valid.
    """

    def __init__(self, key: str) -> None:
        self._key = key
        self._token = encode_key(key)
        self._mark = b""
        self._address: tuple[str, int] | None = None
        self._log: TransactionLog | None = None
        self._session: Callable[[], ShardSession | None] = lambda: None

    def follow(self, session: ShardSession) -> None:
        """Insert the key in the transaction of a new session: an attempt."""
        self._address = self._log = None
        # Use a weak reference: only the garbage collector would free a cycle.
        self._session = weakref.ref(session)
        session.last = self._write

    def _write(self, connection: Connection, log: TransactionLog) -> None:
        """Insert the key on the connection of the first COMMIT, before it.

        If it raises, nothing has been committed on any server.

        :raises KeyUsedError: if the key already exists.
        """
        if log.first is None:
            return
        if log.cross_shard == "unordered":
            raise ValueError(
                f"key={self._key!r} needs a transaction of one shard, or one "
                'with cross_shard="ordered"; this one does not define which '
                "COMMIT is the first"
            )
        session = self._session()
        assert session is not None  # noqa: S101 - it commits
        # A server to which no statement was sent has no transaction.
        written = {
            place.engine: place
            for place in log.places_that_commit(None)
            if session.is_connected(place)
        }
        if log is self._log or connection.engine not in written:
            return
        if self._log is not None:
            raise ValueError(
                f"key={self._key!r} is the key of one transaction, but the "
                "function has called commit(); let cluster.run() commit"
            )
        first, *others = (
            written[engine] for engine in log.in_order() if engine in written
        )
        attempt = token_bytes(TOKEN_BYTES)
        total = 1 + len(others)
        parts = [
            TransactionPart(self._key, attempt, number, total).encode()
            for number in range(total if others else 0)
        ]
        self._mark = parts[0] if parts else _MARK + attempt
        try:
            _insert(session, first, self._token, self._mark)
        except IntegrityError as error:
            raise KeyUsedError(
                key=self._key, shard_id=first.shard_id, keyspace=first.keyspace
            ) from error
        for place, part in zip(others, parts[1:], strict=True):
            _insert(session, place, part)
        self._address, self._log = first.address, log

    @property
    def is_written(self) -> bool:
        """Whether the last attempt has inserted the key."""
        return self._address is not None

    def is_there(self, session: ShardSession) -> bool:
        """Return whether the transaction of the last attempt has committed.

        Another transaction with the same key does not count: its result is
        unknown in this process.

        :param session: a new session, which the caller closes afterwards.
        :raises DBAPIError: if the attempt is still running: its row is
            locked, and the read does not wait.
        """
        if self._address is None:
            return False
        keyspace, shard_id = self._address
        statement = select(TOKENS.c.token).where(TOKENS.c.token == self._mark)
        connection = session.connection({"keyspace": keyspace, "shard_id": shard_id})
        # A standby, or a primary that has become one, refuses to lock.
        locked = statement.with_for_update(nowait=True)
        return connection.execute(locked).first() is not None


def _insert(session: ShardSession, place: Place, *tokens: bytes) -> None:
    now = func.current_timestamp()
    rows = [{"token": token, "created_at": now} for token in tokens]
    session._open_view(place).execute(insert(TOKENS).values(rows))


def forget(places: Places, older_than: timedelta, batch: int) -> int:
    """Delete old keys on every shard; see ``Cluster.forget_keys``."""
    check_age("older_than", older_than)
    check_batch(batch)
    everywhere = chain.from_iterable(
        map(places.all_places, places.topology.keyspaces.values())
    )
    jobs = [
        partial(_forget_on_server, on_one, older_than, batch)
        for on_one in by_server(everywhere)
    ]
    return sum(places.engines.in_parallel(jobs, "forget", PARALLEL))


def _forget_on_server(
    places: Sequence[Place], older_than: timedelta, batch: int
) -> int:
    return sum(_forget_on(place, older_than, batch) for place in places)


def _forget_on(place: Place, older_than: timedelta, batch: int) -> int:
    count = 0
    with place.engine.connect() as root:
        connection = root.execution_options(
            **{OPTION: ExecutionPlan((place,)), "schema_translate_map": TRANSLATE}
        )
        # Use the clock of the server, as created_at does.
        now: datetime | None = connection.scalar(select(func.current_timestamp()))
        assert now is not None  # noqa: S101 - a row, always
        old = (
            select(TOKENS.c.token)
            .where(
                TOKENS.c.created_at < now - older_than,
                or_(
                    TOKENS.c.token < _LATER_PART,
                    TOKENS.c.token >= _FIRST_PART,
                    TOKENS.c.created_at < now - older_than - _LATER_PARTS_AGE,
                ),
            )
            .order_by(TOKENS.c.created_at, TOKENS.c.token)
            .limit(batch)
        )
        while tokens := connection.scalars(old).all():
            # Commit each batch, so that no other transaction waits for long.
            connection.execute(delete(TOKENS).where(TOKENS.c.token.in_(tokens)))
            connection.commit()
            count += sum(token < _LATER_PART for token in tokens)
    return count


# -- Reads of all shards: committed keys, and partial commits.
#
# A key is a row of the shard that its transaction has written first, and does
# not contain the number of that shard.  So all shards are read, with one
# statement for each server.


#: Maximum time that the COMMITs of one transaction take.
MINUTE = timedelta(minutes=1)
_MADE = type_coerce(TOKENS.c.created_at, UTCTimestamp()).label("made")


@dataclass(frozen=True, kw_only=True)
class CommittedKey(JsonObject):
    """A shard on which a transaction with a key has committed.

    :ivar key: the key.
    :ivar keyspace: keyspace of the shard that the transaction has written
        first.
    :ivar shard_id: number of that shard; 0 in a global keyspace.
    :ivar server: the current server of that shard.
    :ivar committed_at: the time immediately before COMMIT, by the clock of
        the server, in whole seconds.
    """

    key: str
    keyspace: str
    shard_id: int
    server: str
    committed_at: datetime

    def __str__(self) -> str:
        return (
            f"{self.key} has committed on shard {self.shard_id} of "
            f"{self.keyspace}, on {self.server}, at "
            f"{self.committed_at:%Y-%m-%d %H:%M:%S} UTC"
        )


def find_key(cluster: Cluster, key: str) -> list[CommittedKey]:
    """Return the shards on which a key has committed.

    :raises ValueError: if the key is not valid.
    :raises SQLAlchemyError: if a server cannot be read.
    """
    return complete(key_on_all(cluster, key))


def key_on_all(
    cluster: Cluster, key: str
) -> tuple[list[CommittedKey], list[UnreachableServer]]:
    """Return the shards on which a key has committed, and the unreachable shards.

    :raises ValueError: if the key is not valid.
    """
    statement = select(_MADE).where(TOKENS.c.token == encode_key(key))
    rows, unreachable = scan(cluster, partial(_read, statement))
    committed = [
        CommittedKey(
            key=key,
            keyspace=place.keyspace,
            shard_id=place.shard_id,
            server=place.server,
            committed_at=row.made,
        )
        for place, row in rows
    ]
    committed.sort(key=lambda one: (one.keyspace, one.shard_id))
    return committed, unreachable


@dataclass(frozen=True, kw_only=True)
class HalfCommit(JsonObject):
    """A transaction that has committed on some of its servers only.

    :ivar key: the key of the transaction.
    :ivar committed: for each server that has committed, in order, one shard
        that was written there.
    :ivar missing: the number of servers that have not committed.
    :ivar committed_at: the time immediately before the first COMMIT, by the
        clock of its server.
    """

    key: str
    committed: tuple[WrittenShard, ...]
    missing: int
    committed_at: datetime

    def __str__(self) -> str:
        there = ", ".join(map(str, self.committed))
        return (
            f"{self.key} has committed on {there}, and not on the other "
            f"{self.missing} of its servers, at "
            f"{self.committed_at:%Y-%m-%d %H:%M:%S} UTC"
        )


_PARTS = select(TOKENS.c.token, _MADE, ServerTime().label("now")).where(IS_PART)


def find_halves(cluster: Cluster, older_than: timedelta = MINUTE) -> list[HalfCommit]:
    """Return the transactions that have committed on some servers only.

    :raises ValueError: if the age is not valid.
    :raises SQLAlchemyError: if a server cannot be read.
    """
    return complete(halves_on_all(cluster, older_than))


def halves_on_all(
    cluster: Cluster, older_than: timedelta
) -> tuple[list[HalfCommit], list[UnreachableServer]]:
    """Return partial commits, and the shards that were not read.

    If there are unreachable shards, no partial commits are returned: the missing
    parts may be on those shards.

    :raises ValueError: if the age is not valid.
    """
    check_age("older_than", older_than)
    attempts: dict[bytes, dict[int, tuple[TransactionPart, Place, Any]]] = {}
    rows, unreachable = scan(cluster, partial(_read, _PARTS))
    if unreachable:
        return [], unreachable
    for place, row in rows:
        part = TransactionPart.decode(row.token)
        parts = attempts.setdefault(part.attempt, {})
        parts[part.number] = part, place, row
    halves = []
    for parts in attempts.values():
        # If the first part is missing, the key was deleted; the other parts
        # will be.
        if 0 not in parts:
            continue
        part, _, row = parts[0]
        if len(parts) < part.total and row.now - row.made >= older_than:
            halves.append(_half(part, parts, row.made))
    return sorted(halves, key=lambda one: (one.committed_at, one.key)), []


def _half(
    part: TransactionPart,
    its: Mapping[int, tuple[TransactionPart, Place, Any]],
    made: datetime,
) -> HalfCommit:
    committed = tuple(
        WrittenShard(
            keyspace=place.keyspace, shard_id=place.shard_id, server=place.server
        )
        for _, (_, place, _) in sorted(its.items())
    )
    return HalfCommit(
        key=part.key,
        committed=committed,
        missing=part.total - len(committed),
        committed_at=made,
    )


def _read(
    statement: Any, session: ShardSession, places: Sequence[Place]
) -> list[tuple[Place, Any]]:
    # Rows do not contain their shard, and most shards have no rows: read all
    # shards together first.
    together = session.execute(statement, bind_arguments={"places": places})
    if together.first() is None:
        return []
    return [
        (place, row)
        for place in places
        for row in session.execute(statement, bind_arguments={"place": place})
    ]
