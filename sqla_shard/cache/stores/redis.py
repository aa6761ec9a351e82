"""A store on one Redis server, 6 or later.

Each operation is a script, which Redis runs atomically.  The user of the
client needs ``EVALSHA``, ``SCRIPT LOAD``, ``INFO``, ``TIME``, ``GET``, ``SET``
and ``DEL``.

*A restarted server* is empty, or has the items of an earlier time, including
stale values.  Each value and each lease has the run id of the server, and is
valid with that run id only.

*A restarted or flushed server* has lost tombstones.  As on memcached it has a
*guard*, which is stored when it is missing or of another run.  While the guard
is younger than the longest tombstone may be old, the server grants no leases.

*A server that evicts items* (``maxmemory-policy``) may lose a tombstone
silently.  A value that is filled then is removed by the writer after its
COMMIT, unless the process dies in between.  With ``noeviction`` tombstones are
not lost; when the memory is full, leases are not granted, and tombstones may
fail to be put.  Do not use the policy ``volatile-ttl``: it evicts tombstones
first.

*Not supported*: several servers.  A replica grants no leases and returns no
values, and a promoted one starts without; but while some processes still write
to the former primary, a Sentinel or a cluster may return stale rows.  So may a
server whose clock is set forward: tombstones expire by it.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from secrets import token_bytes
from typing import Any, TYPE_CHECKING
from weakref import WeakSet

from sqla_shard import exc
from sqla_shard.cache.stores import (
    Breaker,
    check_lease,
    check_seconds,
    check_size,
    check_tombstone,
    check_wait,
    Found,
    KeyState,
    split,
)
from sqla_shard.outbox.tables import check_keys, TOKEN_BYTES
from sqla_shard.util.logs import careful_log
from sqla_shard.util.processes import in_children

if TYPE_CHECKING:
    import redis


# -- The four scripts, each of which is atomic.
#
# An item is a string, whose first letter is its kind.
#
# ``V`` *run* *value*
#     A value.
# ``L`` *run* *token*
#     A lease, with the token of its holder.
# ``T`` (*token* *end*)...
#     A tombstone, with the tokens of its writers.
#
# *run* is the first 16 letters of the ``run_id`` of the server, which changes
# with each start.  A value or lease of another run is not valid: the row may
# have changed since.  A tombstone is always valid.  *end* is a time of the
# server, in milliseconds.


LEASED, BUSY, BLOCKED = 1, 2, 3
"""Results of :data:`FETCH` for a key without a value."""

_RUN = """
local info = redis.call('INFO', 'server')
local run = string.sub(string.match(info, 'run_id:(%x+)'), 1, 16)
"""

_NOW = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
"""

# Returns an item; if it is not a string, no store has written it: removes it.
_ITEM = """
local function get(key)
    local item = redis.pcall('GET', key) or ''
    if type(item) == 'table' then
        redis.call('DEL', key)
        item = ''
    end
    return item
end
"""

# Returns the tokens of a tombstone except one, and the time at which the last
# of them ends; empty for other items.
_OTHERS = """
local function others(item, token)
    local left, last = '', 0
    if string.sub(item, 1, 1) ~= 'T' then
        return left, last
    end
    for at = 2, #item, 29 do
        local ends = tonumber(string.sub(item, at + 16, at + 28)) or 0
        if ends > now and string.sub(item, at, at + 15) ~= token then
            left = left .. string.sub(item, at, at + 28)
            last = math.max(last, ends)
        end
    end
    return left, last
end
local function put(key, tokens, last)
    return redis.pcall('SET', key, 'T' .. tokens, 'PX', last - now)
end
"""

FETCH = (
    _RUN
    + _NOW
    + _ITEM
    + """
-- KEYS: the guard, and keys.  ARGV: token and milliseconds of a lease, 0 for
-- none, and milliseconds without leases after a start or flush.
local is_old = nil
local function old()
    if is_old == nil then
        local guard = get(KEYS[1])
        local since = tonumber(string.match(guard, '^' .. run .. ' (%d+)$'))
        if not since then
            since = now
            redis.pcall('SET', KEYS[1], string.format('%s %.0f', run, now))
        end
        is_old = now - since > tonumber(ARGV[3])
    end
    return is_old
end
local found = {}
for i = 2, #KEYS do
    local item = get(KEYS[i])
    local kind = string.sub(item, 1, 1)
    local is_ours = string.sub(item, 2, 17) == run
    if kind == 'V' and is_ours then
        found[i - 1] = string.sub(item, 18)
    elseif kind == 'L' and is_ours then
        found[i - 1] = 2
    elseif kind == 'T' or ARGV[2] == '0' or not old() then
        found[i - 1] = 3
    else
        local lease = 'L' .. run .. ARGV[1]
        local done = redis.pcall('SET', KEYS[i], lease, 'PX', ARGV[2])
        found[i - 1] = done.err and 3 or 1
    end
end
return found
"""
)
"""Returns the value of each key, or a number if there is none."""

FILL = (
    _RUN
    + _ITEM
    + """
-- ARGV: milliseconds of a value, and for each key the token of the lease,
-- the value, and whether it is stored.
local filled = {}
for i = 1, #KEYS do
    local token, value = ARGV[i * 3 - 1], ARGV[i * 3]
    filled[i] = 0
    if get(KEYS[i]) == 'L' .. run .. token then
        local done = {err = 'too large'}
        if ARGV[i * 3 + 1] == '1' then
            done = redis.pcall(
                'SET', KEYS[i], 'V' .. run .. value, 'PX', ARGV[1])
        end
        if done.err then
            redis.pcall('DEL', KEYS[i])
        else
            filled[i] = 1
        end
    end
end
return filled
"""
)
"""Returns 1 for each value that was stored, else 0."""

BLOCK = (
    _NOW
    + _ITEM
    + _OTHERS
    + """
-- ARGV: token and milliseconds.
local ends = now + tonumber(ARGV[2])
local blocked = {}
for i = 1, #KEYS do
    local item = get(KEYS[i])
    local tokens, last = others(item, ARGV[1])
    tokens = tokens .. ARGV[1] .. string.format('%013.0f', ends)
    blocked[i] = 1
    if put(KEYS[i], tokens, math.max(last, ends)).err then
        -- The server is out of memory: remove at least the value.
        blocked[i] = 0
        if string.sub(item, 1, 1) ~= 'T' then
            redis.pcall('DEL', KEYS[i])
        end
    end
end
return blocked
"""
)
"""Returns 1 for each tombstone that was stored, else 0."""

UNBLOCK = (
    _NOW
    + _ITEM
    + _OTHERS
    + """
-- ARGV: token.
local done = {}
for i = 1, #KEYS do
    local item = get(KEYS[i])
    local tokens, last = others(item, ARGV[1])
    local response = {}
    if tokens ~= '' and 'T' .. tokens ~= item then
        response = put(KEYS[i], tokens, last)
    elseif tokens == '' and item ~= '' then
        response = redis.pcall('DEL', KEYS[i])
    end
    -- DEL returns a number.
    done[i] = type(response) == 'table' and response.err and 0 or 1
end
return done
"""
)
"""Returns 1 for each key that does not have the token, else 0."""


#: The prefix of keys: the database may be shared.
_PREFIX = "sqla_shard:"
#: It cannot be the key of an item: these have no spaces.
_GUARD = f"{_PREFIX} guard"
#: Maximum number of keys and bytes of one script, which blocks the server.
_KEYS, _BYTES = 100, 1_000_000
#: Arguments of the client that are used: the server and the login, but no
#: timeouts.
_CONNECTION_ARGUMENTS = frozenset(
    [
        *("host", "port", "path", "db", "username", "password"),
        *("credential_provider", "client_name", "redis_connect_func"),
        *("socket_keepalive", "socket_keepalive_options", "socket_type"),
    ]
)
_MAX_CONNECTIONS = 10_000

_BUSY = Found(KeyState.BUSY)
_BLOCKED = Found(KeyState.BLOCKED)
_LOST = Found(KeyState.LOST)

_log = careful_log(__name__)


class RedisStore:
    """A store on a Redis server; see :class:`.Store`.

    It uses the server of the client, with its own connections: those of the
    client may have longer timeouts and retries.

    :param client: a client of a single server.
    :param longest: maximum lifetime of a tombstone in seconds, see above; the
        same for all processes.
    :param largest: maximum size of a value in bytes.
    :param timeout: timeout in seconds for connecting, and for each part of a
        response.
    :param retry: seconds after which a failed server is tried again.
    :raises sqla_shard.exc.OptionError: if an argument is not valid.
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
        self.longest: int = check_seconds("longest", longest)
        self._largest = largest
        self._opened: WeakSet[Any] = WeakSet()
        self._client, self._errors = _connect(client, timeout, self._opened)
        in_children(self)
        where = self._client.connection_pool.connection_kwargs
        name = where.get("path") or (
            f"{where.get('host', 'localhost')}:{where.get('port', 6379)}"
        )
        self._breaker = Breaker(_log, "Redis", name, retry)
        self._scripts = {
            text: self._client.register_script(text)
            for text in (FETCH, FILL, BLOCK, UNBLOCK)
        }

    @property
    def failures(self) -> int:
        """The number of failures: no response, or a malformed one."""
        return self._breaker.failures

    def close(self) -> None:
        """Close idle connections; they are opened again when needed."""
        self._client.connection_pool.disconnect(inuse_connections=False)

    def after_fork(self) -> None:
        """Close the copies of connections in a child."""
        # Otherwise the pool would leave them to the garbage collector at the
        # next command.
        for connection in list(self._opened):
            connection.disconnect()

    def fetch(self, keys: Sequence[str], lease: int) -> dict[str, Found]:
        """Return the state of each key; see :class:`.Store`."""
        check_lease(lease)
        token = token_bytes(TOKEN_BYTES)
        args = [token, lease * 1000, self.longest * 1000]
        found: dict[str, Found] = {}
        for part in _batches(check_keys(keys)):
            names = [_GUARD, *_names(part)]
            responses = self._run(FETCH, names, args)
            if responses is None:
                found.update(dict.fromkeys(part, _LOST))
                continue
            for key, response in zip(part, responses, strict=True):
                found[key] = _found(response, token)
        return found

    def fill(self, values: Mapping[str, tuple[bytes, bytes]], expire: int) -> set[str]:
        """Replace leases by values; see :class:`.Store`."""
        check_seconds("expire", expire)

        def size_of(key: str) -> int:
            return min(len(values[key][1]), self._largest)

        done: set[str] = set()
        for part in split(check_keys(values), size_of, _KEYS, _BYTES):
            args: list[Any] = [expire * 1000]
            for key in part:
                lease, value = values[key]
                fits = len(value) <= self._largest
                # FILL removes the lease of a value that is too large;
                # otherwise other readers would wait for it.
                args += [lease, value if fits else b"", int(fits)]
            responses = self._run(FILL, _names(part), args)
            done.update(_where(part, responses, 1))
        return done

    def block(self, keys: Collection[str], token: bytes, expire: int) -> set[str]:
        """Replace items by tombstones; see :class:`.Store`."""
        # A tombstone must not outlive the time without leases after a restart.
        check_tombstone(token, expire, self.longest)
        return self._change(BLOCK, keys, [token, expire * 1000])

    def take(
        self, keys: Collection[str], token: bytes, expire: int
    ) -> dict[str, tuple[bytes, bytes]]:
        """Do nothing; see :class:`.Store`.

        A tombstone to which another token was added, and removed again, looks
        unchanged.
        """
        return {}

    def unblock(self, keys: Collection[str], token: bytes) -> set[str]:
        """Remove items, but not other tombstones; see :class:`.Store`."""
        return self._change(UNBLOCK, keys, [token])

    # -- inside -----------------------------------------------------------

    def _change(self, script: str, keys: Collection[str], args: list[Any]) -> set[str]:
        failed: set[str] = set()
        for part in _batches(check_keys(keys)):
            responses = self._run(script, _names(part), args)
            failed.update(part if responses is None else ())
            failed.update(_where(part, responses, 0))
        return failed

    def _run(self, script: str, names: list[str], args: list[Any]) -> list[Any] | None:
        """Run a script; return None if the server does not respond."""
        if not self._breaker.may_try():
            return None
        try:
            responses: list[Any] = self._scripts[script](keys=names, args=args)
        except self._errors as error:
            self._breaker.record_failure(error)
            return None
        self._breaker.record_success()
        return responses


def _connect(
    client: Any, timeout: float, opened: WeakSet[Any]
) -> tuple[redis.Redis, tuple[type[Exception], ...]]:
    """Return a client with a timeout and no retries, and its errors.

    :param opened: the set to which its connections are added.
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
        raise exc.OptionError(
            "is not a client of a single Redis server; after a failover the "
            "promoted one may lack the last writes",
            option="client",
            value=client,
        )
    arguments = {
        name: value
        for name, value in pool.connection_kwargs.items()
        if name in _CONNECTION_ARGUMENTS or name.startswith("ssl")
    }

    class Pool(pool_class(redis)):  # type: ignore[misc]  # made when it is needed
        def make_connection(self) -> Any:
            connection = super().make_connection()
            opened.add(connection)
            return connection

    ours = Pool(
        connection_class=pool.connection_class,
        max_connections=_MAX_CONNECTIONS,
        socket_timeout=timeout,
        socket_connect_timeout=timeout,
        # Do not retry: a late response counts as a failure.
        retry=Retry(NoBackoff(), 0),
        protocol=2,
        **arguments,
    )
    errors = (redis.RedisError, OSError)
    return redis.Redis(connection_pool=ours), errors


def _batches(keys: list[str]) -> Iterator[list[str]]:
    return split(keys, lambda key: 0, _KEYS, _BYTES)


def _names(keys: list[str]) -> list[str]:
    return [_PREFIX + key for key in keys]


def _found(response: Any, token: bytes) -> Found:
    if isinstance(response, bytes):
        return Found(KeyState.VALUE, response)
    if response == LEASED:
        return Found(KeyState.LEASED, b"", token)
    return _BUSY if response == BUSY else _BLOCKED


def _where(keys: list[str], responses: list[Any] | None, what: int) -> Iterator[str]:
    for key, response in zip(keys, responses or (), strict=False):
        if response == what:
            yield key


# -- Connections to Redis that an interrupt does not leave half open.
#
# redis-py returns a connection to its pool after an exception that is not its
# own, such as that of the handler of a signal.  If it was not yet connected,
# each later command raises ``AttributeError``; if a command had been sent, the
# next one may read its response.


@cache
def pool_class(redis: Any) -> Any:
    """Return a class of pools that close such connections.

    :param redis: the module ``redis``.
    """

    class Pool(redis.ConnectionPool):  # type: ignore[misc]  # of a module that is passed
        def get_connection(self, *args: Any, **kwargs: Any) -> Any:
            # A script is loaded while its NoScriptError is handled.
            before = sys.exc_info()[1]
            connection: Any = super().get_connection(*args, **kwargs)
            connection.sqla_shard_before = before
            return connection

        def release(self, connection: Any) -> None:
            error = sys.exc_info()[1]
            before = connection.__dict__.pop("sqla_shard_before", None)
            if error is not before and not isinstance(error, redis.RedisError):
                connection.disconnect()
            super().release(connection)

    return Pool
