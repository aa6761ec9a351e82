"""Keys of transactions: whether one has committed can be read.

``cluster.run(fn, key="order-17")`` lets the transaction write its key, as a
row of the table ``sqla_shard_token``, into the database of the virtual shard
that it has written first.  The row is there if, and only if, *a* transaction
with the key has committed, and a second one on that shard is refused.

It does not say which: two callers may have the same key, such as two workers
with one message that was delivered twice.  So each attempt writes a second
row by the same INSERT, its *mark*, which is random.  A COMMIT whose answer
was lost is resolved by a locking read of the mark, which is there if, and
only if, this very attempt has committed.  A key without a mark is that of
another caller: a process of an earlier release, which wrote none.

A transaction of ``cross_shard="ordered"`` has a COMMIT on each server.  Before
the first one it writes a *part* on each server that it writes, with the same
random number, its place in the order, and the key; the first part is its mark.
Where a process dies between two COMMITs, the first parts are there without the
others (:mod:`.committed`).

A key is known on one shard.  Transactions with one key that write different
shards first, such as two that each make an object on a random shard, do not
meet.

``sqla_shard_token`` is made by ``create_all()``, and by ``sqla-shard schema
upgrade`` before the revisions of the application.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from collections.abc import Sequence
from datetime import datetime
from datetime import timedelta
from functools import partial
from itertools import chain
from secrets import token_bytes
from typing import NamedTuple

from sqlalchemy import and_
from sqlalchemy import Connection
from sqlalchemy import delete
from sqlalchemy import func
from sqlalchemy import insert
from sqlalchemy import or_
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError

from sqla_shard.engines import by_server
from sqla_shard.engines import Places
from sqla_shard.exc import KeyUsedError
from sqla_shard.internal import LONGEST_TOKEN
from sqla_shard.internal import TOKENS
from sqla_shard.rendering import Place
from sqla_shard.rendering import TRANSLATE
from sqla_shard.scattering import OPTION
from sqla_shard.scattering import Plan
from sqla_shard.session import ShardSession
from sqla_shard.session.transactions import TransactionLog

__all__ = ["IS_PART", "Part", "Token", "encoded", "forget"]

_PARALLEL = 8
#: What marks and parts begin with: no bytes of UTF-8, so that no key is one.
_MARK = b"\xff"
_FIRST_PART = b"\xfe"
_LATER_PART = b"\xfd"
_MARK_BYTES = 16
_NUMBER_BYTES = 2
_HEAD = len(_MARK) + _MARK_BYTES + 2 * _NUMBER_BYTES
#: How long later parts outlive the first.  Forgotten before it, on a server
#: that is asked earlier, they would leave what looks like a half.
_LONGER = timedelta(days=1)


def encoded(key: object) -> bytes:
    """Return a key as the table has it.

    :raises ValueError: when it cannot be one.
    """
    if not isinstance(key, str) or not key:
        raise ValueError(f"key={key!r}; it is a text, and not empty")
    found = key.encode()
    if len(found) > LONGEST_TOKEN:
        raise ValueError(
            f"key={key[:40]!r}... has {len(found)} bytes; at most "
            f"{LONGEST_TOKEN} can be stored. Take a digest of it"
        )
    return found


class Part(NamedTuple):
    """What is written on one server of several.

    :ivar number: its place in the order of COMMITs, from 0.
    :ivar total: how many servers the transaction has written.
    :ivar attempt: the same for all parts of a transaction.
    """

    key: str
    attempt: bytes
    number: int
    total: int

    def encode(self) -> bytes:
        """Return it as the table has it.

        :raises ValueError: when the key is too long for that.
        """
        key = self.key.encode()
        if len(key) > LONGEST_TOKEN - _HEAD:
            raise ValueError(
                f"key={self.key[:40]!r}... has {len(key)} bytes; where "
                "several servers are written it has at most "
                f"{LONGEST_TOKEN - _HEAD}. Take a digest of it"
            )
        numbers = (
            number.to_bytes(_NUMBER_BYTES, "big")
            for number in (self.number, self.total)
        )
        prefix = _LATER_PART if self.number else _FIRST_PART
        return b"".join((prefix, self.attempt, *numbers, key))

    @classmethod
    def decode(cls, token: bytes) -> Part:
        """Return the part that a row is."""
        middle = len(_MARK) + _MARK_BYTES
        numbers = token[middle:_HEAD]
        return cls(
            key=token[_HEAD:].decode(),
            attempt=token[len(_MARK) : middle],
            number=int.from_bytes(numbers[:_NUMBER_BYTES], "big"),
            total=int.from_bytes(numbers[_NUMBER_BYTES:], "big"),
        )


#: Whether a row is a part.
IS_PART = and_(TOKENS.c.token >= _LATER_PART, TOKENS.c.token < _MARK)


class Token:
    """The key of one transaction, which may take several attempts.

    :param key: the key, at most 255 bytes of UTF-8.
    :raises ValueError: when it cannot be one.
    """

    def __init__(self, key: str) -> None:
        self._key = key
        self._token = encoded(key)
        self._mark = b""
        self._where: tuple[str, int] | None = None
        self._log: TransactionLog | None = None
        self._session: Callable[[], ShardSession | None] = _no_session

    def follow(self, session: ShardSession) -> None:
        """Let the transaction of a new session write it: a new attempt."""
        self._where = self._log = None
        # The session leads to this; both ways, only gc would free it.
        self._session = weakref.ref(session)
        session.last = self._write

    def _write(self, connection: Connection, log: TransactionLog) -> None:
        """Write it, if this is the connection, right before the first COMMIT.

        What fails then, on any server, has committed nothing.

        :raises KeyUsedError: when it is there already.
        """
        if log.first is None:
            return
        if log.cross_shard == "unordered":
            raise ValueError(
                f"key={self._key!r} is for a transaction of one shard, or "
                'for one with cross_shard="ordered"; of this one nobody '
                "knows which COMMIT is the first"
            )
        session = self._session()
        assert session is not None  # noqa: S101 - it commits
        # What was not sent after all has begun nothing there.
        homes = {
            home.engine: home
            for home in log.homes_of(None)
            if session.is_connected(home)
        }
        if log is self._log or connection.engine not in homes:
            return
        if self._log is not None:
            raise ValueError(
                f"key={self._key!r} is for one transaction, and the function "
                "has committed one itself; let cluster.run commit"
            )
        first, *others = (
            homes[engine] for engine in log.in_order() if engine in homes
        )
        attempt = token_bytes(_MARK_BYTES)
        total = 1 + len(others)
        parts = [
            Part(self._key, attempt, number, total).encode()
            for number in range(total if others else 0)
        ]
        self._mark = parts[0] if parts else _MARK + attempt
        try:
            _insert(session, first, self._token, self._mark)
        except IntegrityError as error:
            raise KeyUsedError(
                key=self._key,
                shard_id=first.shard_id,
                keyspace=first.keyspace,
            ) from error
        for place, part in zip(others, parts[1:], strict=True):
            _insert(session, place, part)
        self._where, self._log = first.address, log

    @property
    def is_written(self) -> bool:
        """Whether the last attempt has come to write it."""
        return self._where is not None

    def is_there(self, session: ShardSession) -> bool:
        """Tell whether the transaction of the last attempt has committed.

        Not whether another one with the key has: what that has returned,
        nobody knows here.

        While it is still in flight, the error is that of a lock that is not
        freed: to wait for it could take longer than there is time.

        :param session: a new one, which ends afterwards.
        """
        if self._where is None:
            return False
        keyspace, shard_id = self._where
        found = select(TOKENS.c.token).where(TOKENS.c.token == self._mark)
        connection = session.connection(
            {"keyspace": keyspace, "shard_id": shard_id}
        )
        # A standby, or a primary that is not one any more, refuses to lock.
        locked = found.with_for_update(nowait=True)
        return connection.execute(locked).first() is not None


def _insert(session: ShardSession, place: Place, *tokens: bytes) -> None:
    now = func.current_timestamp()
    rows = [{"token": token, "created_at": now} for token in tokens]
    session.begun_view(place).execute(insert(TOKENS).values(rows))


def _no_session() -> None:
    """Return the session of no attempt."""


def forget(places: Places, older_than: object, batch: int) -> int:
    """Delete old keys on every shard; see ``Cluster.forget_keys``."""
    if not isinstance(older_than, timedelta) or older_than < timedelta(0):
        raise ValueError(
            f"older_than={older_than!r}; it is a timedelta, from 0"
        )
    if type(batch) is not int or batch < 1:
        raise ValueError(f"batch={batch!r}; it is a number, from 1")
    everywhere = chain.from_iterable(
        map(places.all_places, places.topology.keyspaces.values())
    )
    jobs = [
        partial(_forget_on_server, on_one, older_than, batch)
        for on_one in by_server(everywhere)
    ]
    return sum(places.engines.at_once(jobs, "forget", _PARALLEL))


def _forget_on_server(
    places: Sequence[Place], older_than: timedelta, batch: int
) -> int:
    return sum(_forget_on(place, older_than, batch) for place in places)


def _forget_on(place: Place, older_than: timedelta, batch: int) -> int:
    count = 0
    with place.engine.connect() as root:
        connection = root.execution_options(
            **{OPTION: Plan((place,)), "schema_translate_map": TRANSLATE}
        )
        # By the clock that has written them.
        now: datetime | None = connection.scalar(
            select(func.current_timestamp())
        )
        assert now is not None  # noqa: S101 - a row, always
        old = (
            select(TOKENS.c.token)
            .where(
                TOKENS.c.created_at < now - older_than,
                or_(
                    TOKENS.c.token < _LATER_PART,
                    TOKENS.c.token >= _FIRST_PART,
                    TOKENS.c.created_at < now - older_than - _LONGER,
                ),
            )
            .order_by(TOKENS.c.created_at, TOKENS.c.token)
            .limit(batch)
        )
        while found := connection.scalars(old).all():
            # Short transactions: what they lock, nobody else waits for.
            connection.execute(delete(TOKENS).where(TOKENS.c.token.in_(found)))
            connection.commit()
            count += sum(token < _LATER_PART for token in found)
    return count
