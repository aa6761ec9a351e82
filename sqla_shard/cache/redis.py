"""A store on one Redis server, 6 or later.

Each operation is a script, see :mod:`.redis_scripts`, that nothing comes in
between of.  The user of the client may run ``EVALSHA``, ``SCRIPT LOAD``,
``INFO``, ``TIME``, ``GET``, ``SET`` and ``DEL``.

*A server that was started* has nothing, or what it had at some time before,
old values too.  Each value and each lease tells in which life of the server
it was written, and counts in that only.

*A server that was started or flushed* has forgotten tombstones.  As on
memcached it has a *guard*, which is put there when it is missing or of
another life; as long as the guard is younger than the longest tombstone, the
server gives no leases.

*A server without memory* that is told to forget items (``maxmemory-policy``)
may forget a tombstone, and nobody hears of it.  What is filled then is
removed by who wrote, after its COMMIT, unless the process dies in between.
With ``noeviction`` it does not happen; then there are no leases, and keys
where tombstones cannot be put.  The policy ``volatile-ttl`` is wrong in any
case: it forgets tombstones first.

*What is not promised*: anything across several servers.  A replica gives no
leases and no values, and one that was promoted starts with none; but as long
as some processes write to a server that others have left, a Sentinel or a
cluster may serve old rows.  Nor when the clock of the server is set forward:
tombstones end by it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from secrets import token_bytes
from time import monotonic
from typing import Any
from typing import TYPE_CHECKING
from weakref import WeakSet

from sqla_shard import exc
from sqla_shard.cache import redis_scripts
from sqla_shard.cache.store import check_keys
from sqla_shard.cache.store import check_lease
from sqla_shard.cache.store import check_seconds
from sqla_shard.cache.store import check_size
from sqla_shard.cache.store import check_token
from sqla_shard.cache.store import check_wait
from sqla_shard.cache.store import Found
from sqla_shard.cache.store import State
from sqla_shard.cache.store import TOKEN_BYTES
from sqla_shard.forking import in_children

if TYPE_CHECKING:
    import redis

__all__ = ["RedisStore"]

#: Before each key: the database may be shared with others.
_PREFIX = "sqla_shard:"
#: Keys have no blanks.
_GUARD = f"{_PREFIX} guard"
#: What one script is given: the server does nothing else meanwhile.
_KEYS, _BYTES = 100, 1_000_000
#: Where a server is, and how it is spoken to; not how long to wait for it.
_KEPT = frozenset(
    [
        *("host", "port", "path", "db", "username", "password"),
        *("credential_provider", "client_name", "redis_connect_func"),
        *("socket_keepalive", "socket_keepalive_options", "socket_type"),
    ]
)
_MANY = 10_000

_BUSY = Found(State.BUSY)
_BLOCKED = Found(State.BLOCKED)
_LOST = Found(State.LOST)

_log = logging.getLogger(__name__)


class RedisStore:
    """A store on a Redis server; see :class:`~.store.Store`.

    It goes where the client goes, by connections of its own: those of the
    client may wait for as long as they like, and try again.

    :param client: one for a single server.
    :param longest: seconds of the longest tombstone, see above; the same for
        all processes.
    :param largest: bytes of the largest value.
    :param timeout: seconds to wait for the server to connect, and for each
        part of an answer.
    :param retry: seconds after which a server that has failed is asked again.
    :raises sqla_shard.exc.CacheOptionError: if an argument makes no sense.
    :raises sqla_shard.exc.MissingExtraError: if redis is not installed.
    """

    def __init__(
        self,
        client: redis.Redis,
        *,
        longest: int = 60,
        largest: int = 1_000_000,
        timeout: float = 0.05,
        retry: float = 1.0,
    ) -> None:
        check_wait("timeout", timeout)
        check_wait("retry", retry)
        check_size("largest", largest)
        self.longest = check_seconds("longest", longest)
        self.failures = 0
        """How often the server has not answered, or not as it should."""
        self._largest = largest
        self._retry = retry
        self._dead_until = 0.0
        self._opened: WeakSet[Any] = WeakSet()
        self._client, self._errors = _connect(client, timeout, self._opened)
        in_children(self)
        self._scripts = {
            text: self._client.register_script(text)
            for text in (
                *(redis_scripts.FETCH, redis_scripts.FILL),
                *(redis_scripts.BLOCK, redis_scripts.UNBLOCK),
            )
        }

    def close(self) -> None:
        """Close idle connections; they are opened again when needed."""
        self._client.connection_pool.disconnect(inuse_connections=False)

    def after_fork(self) -> None:
        """Close the child's copies of connections, and nothing else."""
        # The pool itself would forget them, and leave them to the garbage
        # collector, at the next question.
        for connection in list(self._opened):
            connection.disconnect()

    def fetch(self, keys: Sequence[str], lease: int) -> dict[str, Found]:
        """Return what is under each key; see :class:`~.store.Store`."""
        check_lease(lease)
        token = token_bytes(TOKEN_BYTES)
        args = [token, lease * 1000, self.longest * 1000]
        found: dict[str, Found] = {}
        for part in _parts(check_keys(keys)):
            names = [_GUARD, *_names(part)]
            answers = self._run(redis_scripts.FETCH, names, args)
            if answers is None:
                found.update(dict.fromkeys(part, _LOST))
                continue
            for key, answer in zip(part, answers, strict=True):
                found[key] = _found(answer, token)
        return found

    def fill(
        self, values: Mapping[str, tuple[bytes, bytes]], expire: int
    ) -> set[str]:
        """Put values in the place of leases; see :class:`~.store.Store`."""
        check_seconds("expire", expire)
        sizes = {
            key: min(len(values[key][1]), self._largest)
            for key in check_keys(values)
        }
        done: set[str] = set()
        for part in _parts(list(sizes), sizes):
            args: list[Any] = [expire * 1000]
            for key in part:
                lease, value = values[key]
                fits = len(value) <= self._largest
                # Or others would wait for it as long as the lease lasts.
                args += [lease, value if fits else b"", int(fits)]
            answers = self._run(redis_scripts.FILL, _names(part), args)
            done.update(_where(part, answers, 1))
        return done

    def block(
        self, keys: Collection[str], token: bytes, expire: int
    ) -> set[str]:
        """Put tombstones there; see :class:`~.store.Store`."""
        # A server that has forgotten it would not wait for longer.
        check_seconds("expire", expire, self.longest)
        check_token(token)
        return self._change(redis_scripts.BLOCK, keys, [token, expire * 1000])

    def take(
        self, keys: Collection[str], token: bytes, expire: int
    ) -> dict[str, tuple[bytes, bytes]]:
        """Do nothing; see :class:`~.store.Store`.

        A tombstone that others have been added to and taken from looks as
        it did before.
        """
        return {}

    def unblock(self, keys: Collection[str], token: bytes) -> set[str]:
        """Remove what is not of others; see :class:`~.store.Store`."""
        return self._change(redis_scripts.UNBLOCK, keys, [token])

    # -- inside -----------------------------------------------------------

    def _change(
        self, script: str, keys: Collection[str], args: list[Any]
    ) -> set[str]:
        failed: set[str] = set()
        for part in _parts(check_keys(keys)):
            answers = self._run(script, _names(part), args)
            failed.update(part if answers is None else ())
            failed.update(_where(part, answers, 0))
        return failed

    def _run(
        self, script: str, names: list[str], args: list[Any]
    ) -> list[Any] | None:
        """Run a script; None when the server does not, or is left alone."""
        now = monotonic()
        if now < self._dead_until:
            return None
        if self._dead_until:
            # The others wait for what becomes of this one.
            self._dead_until = now + self._retry
        try:
            answers: list[Any] = self._scripts[script](keys=names, args=args)
        except self._errors as error:
            self._failed(error)
            return None
        self._dead_until = 0.0
        return answers

    def _failed(self, error: Exception) -> None:
        self.failures += 1
        self._dead_until = monotonic() + self._retry
        where = self._client.connection_pool.connection_kwargs
        name = where.get("path") or (
            f"{where.get('host', 'localhost')}:{where.get('port', 6379)}"
        )
        _log.warning(
            "Redis at %s does not answer, and is left alone for %g s: %s",
            name,
            self._retry,
            str(error) or type(error).__name__,
            extra={"action": "cache", "server": name},
        )


def _connect(
    client: Any, timeout: float, opened: WeakSet[Any]
) -> tuple[redis.Redis, tuple[type[Exception], ...]]:
    """Return a client that fails in time, and the errors of a server.

    :param opened: gets its connections.
    """
    try:
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry
        from redis.sentinel import SentinelConnectionPool
    except ImportError as error:
        raise exc.MissingExtraError(
            package="redis", extra="redis", reason=str(error)
        ) from None
    pool = getattr(client, "connection_pool", None)
    if (
        not isinstance(client, redis.Redis)
        or not isinstance(pool, redis.ConnectionPool)
        or isinstance(pool, SentinelConnectionPool)
    ):
        raise exc.CacheOptionError(
            "is no client of a single Redis server; of several, one that was "
            "promoted may not have heard of the last writes",
            option="client",
            value=client,
        )
    given = pool.connection_kwargs
    kept = {
        name: value
        for name, value in given.items()
        if name in _KEPT or name.startswith("ssl")
    }

    class Pool(redis.ConnectionPool):
        def make_connection(self) -> Any:
            made = super().make_connection()
            opened.add(made)
            return made

    ours = Pool(
        connection_class=pool.connection_class,
        max_connections=_MANY,
        socket_timeout=timeout,
        socket_connect_timeout=timeout,
        # One try: an answer that is late is none.
        retry=Retry(NoBackoff(), 0),
        protocol=2,
        **kept,
    )
    errors = (redis.RedisError, OSError)
    return redis.Redis(connection_pool=ours), errors


def _parts(
    keys: list[str], sizes: Mapping[str, int] | None = None
) -> Iterator[list[str]]:
    part: list[str] = []
    size = 0
    for key in keys:
        more = 0 if sizes is None else sizes[key]
        if part and (len(part) == _KEYS or size + more > _BYTES):
            yield part
            part, size = [], 0
        part.append(key)
        size += more
    if part:
        yield part


def _names(keys: list[str]) -> list[str]:
    return [_PREFIX + key for key in keys]


def _found(answer: Any, token: bytes) -> Found:
    if isinstance(answer, bytes):
        return Found(State.VALUE, answer)
    if answer == redis_scripts.LEASED:
        return Found(State.LEASED, b"", token)
    return _BUSY if answer == redis_scripts.BUSY else _BLOCKED


def _where(
    keys: list[str], answers: list[Any] | None, what: int
) -> Iterator[str]:
    for key, answer in zip(keys, answers or (), strict=False):
        if answer == what:
            yield key
