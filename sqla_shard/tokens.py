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

A key is known on one shard.  Transactions with one key that write different
shards first, such as two that each make an object on a random shard, do not
meet.

``sqla_shard_token`` is made by ``create_all()``, and by ``sqla-shard schema
upgrade`` before the revisions of the application.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from datetime import timedelta
from functools import partial
from itertools import chain
from secrets import token_bytes

from sqlalchemy import Connection
from sqlalchemy import delete
from sqlalchemy import func
from sqlalchemy import insert
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
from sqla_shard.session.views import ShardView

__all__ = ["Token", "encoded", "forget"]

_PARALLEL = 8
#: What a mark begins with: no byte of UTF-8, so that no key is one.
_MARK = b"\xff"
_MARK_BYTES = 16


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

    def follow(self, session: ShardSession) -> None:
        """Let the transaction of a new session write it: a new attempt."""
        self._mark = _MARK + token_bytes(_MARK_BYTES)
        self._where = None
        session.last = self._write

    def _write(self, connection: Connection, log: TransactionLog) -> None:
        """Write it, if this is the connection, right before COMMIT.

        :raises KeyUsedError: when it is there already.
        """
        if log.first is None:
            return
        place, _ = log.first
        if not log.is_of_one_shard:
            raise ValueError(
                f"key={self._key!r} is for a transaction of one shard; it "
                "cannot tell which of several have committed"
            )
        if place.engine is not connection.engine:
            return
        if self._where is not None:
            raise ValueError(
                f"key={self._key!r} is for one transaction, and the function "
                "has committed one itself; let cluster.run commit"
            )
        view = ShardView(connection, place, Plan((place,)))
        now = func.current_timestamp()
        rows = [
            {"token": token, "created_at": now}
            for token in (self._token, self._mark)
        ]
        try:
            view.execute(insert(TOKENS).values(rows))
        except IntegrityError as error:
            raise KeyUsedError(
                key=self._key,
                shard_id=place.shard_id,
                keyspace=place.keyspace,
            ) from error
        self._where = place.address

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
            .where(TOKENS.c.created_at < now - older_than)
            .order_by(TOKENS.c.created_at, TOKENS.c.token)
            .limit(batch)
        )
        while found := connection.scalars(old).all():
            # Short transactions: what they lock, nobody else waits for.
            connection.execute(delete(TOKENS).where(TOKENS.c.token.in_(found)))
            connection.commit()
            count += sum(not token.startswith(_MARK) for token in found)
    return count
