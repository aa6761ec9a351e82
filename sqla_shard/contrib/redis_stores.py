"""Feeds and lists of a follow graph in Redis.

A user is in the database with the number ``shard_id % len(databases)``, so all
users of a virtual shard are in one.  When the list of databases is changed,
contents that are in the wrong database expire, or are removed by you; they are
rebuilt where they belong.

Use databases without persistence (``save ""``, ``appendonly no``): a server
that starts again with contents of an earlier time has not got the changes
since then.  An empty one is correct.

The package redis is imported when the first object is created.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from secrets import token_hex
from typing import Any, NamedTuple, TypeVar

from sqla_shard.cache.stores.redis import pool_class
from sqla_shard.contrib.edges import Edge, Related
from sqla_shard.exc import FeedStoreError, MissingExtraError
from sqla_shard.ids import unpack
from sqla_shard.jobs import Exponential, Linear

_Store = TypeVar("_Store")

#: How jobs are retried that write to Redis.  A day and more: what is not
#: written is missing until the contents are rebuilt.
RETRY = Linear(5, step=1).then(Exponential(200, first=10, longest=600))


class RedisDatabases:
    """Clients of some databases, and their scripts.

    :param urls: URLs such as ``redis://cache1:6379/0``, or clients.
    :param timeout: seconds to wait for a connection or a response.
    :raises MissingExtraError: if the package redis is not installed.
    :raises ValueError: if there is no URL.
    """

    def __init__(self, urls: Sequence[Any], timeout: float = 1.0) -> None:
        if not urls:
            raise ValueError("urls=[] must be one or more URLs")
        try:
            import redis
        except ImportError as error:
            raise MissingExtraError(
                package="redis", extra="redis", reason=str(error)
            ) from None
        self._errors = redis.RedisError
        self.clients: list[Any] = [
            _client(redis, url, timeout) if isinstance(url, str) else url
            for url in urls
        ]
        self._scripts: dict[tuple[int, str], Any] = {}

    def number_of(self, object_id: int) -> int:
        """Return the number of the database of an object."""
        return unpack(object_id).shard_id % len(self.clients)

    def grouped(self, object_ids: Iterable[int]) -> dict[int, list[int]]:
        """Return objects by the number of their database."""
        groups: dict[int, list[int]] = {}
        for one in object_ids:
            groups.setdefault(self.number_of(one), []).append(one)
        return groups

    def run(
        self,
        number: int,
        script: str,
        keys: Sequence[str],
        arguments: Sequence[Any] = (),
    ) -> Any:
        """Run a Lua script in a database.

        :raises FeedStoreError: if it does not respond.
        """
        known = self._scripts.get((number, script))
        if known is None:
            known = self.clients[number].register_script(script)
            self._scripts[number, script] = known
        try:
            return known(keys=keys, args=arguments)
        except self._errors as error:
            raise self.failed(number, error) from error

    def pipeline(self, number: int, commands: Iterable[Sequence[Any]]) -> Any:
        """Send commands to a database together; return their results.

        :raises FeedStoreError: if it does not respond.
        """
        pipeline = self.clients[number].pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        try:
            return pipeline.execute()
        except self._errors as error:
            raise self.failed(number, error) from error

    def failed(self, number: int, error: Exception) -> FeedStoreError:
        """Return the error for a database that has failed."""
        where = self.clients[number].connection_pool.connection_kwargs
        server = where.get("path") or (
            f"{where.get('host', 'localhost')}:{where.get('port', 6379)}"
        )
        return FeedStoreError(
            f"Redis on {server} has failed: {error}. Its contents are "
            "rebuilt from the tables when it responds again",
            server=server,
        )

    def close(self) -> None:
        """Close all connections; they are opened again when needed."""
        for client in self.clients:
            client.close()


def _client(redis: Any, url: str, timeout: float) -> Any:
    pool = pool_class(redis).from_url(
        url, socket_timeout=timeout, socket_connect_timeout=timeout
    )
    made = redis.Redis(connection_pool=pool)
    # As of a client that has made its pool itself.
    made.auto_close_connection_pool = True
    return made


def required(store: _Store | None, name: str) -> _Store:
    """Return the store of a job; refuse to run it without one.

    The jobs of a process with a store would be lost.

    :param name: the attribute with the store, as in "Feed.store".
    :raises FeedStoreError: if there is none.
    """
    if store is None:
        raise FeedStoreError(
            f"this process runs jobs that write to Redis, but {name} is None; "
            "set it in the program of the worker as well",
            server="",
        )
    return store


class Entry(NamedTuple):
    """A post in a feed; entries compare by time.

    :ivar sequence: when it was published, in microseconds since 1970.
    :ivar post_id: id of the post.
    :ivar board_id: id of the board.
    :ivar author_id: id of the user.
    """

    sequence: int
    post_id: int
    board_id: int
    author_id: int


class StoredFeed(NamedTuple):
    """The part of a feed that Redis stores.

    :ivar entries: the newest entries before a bound, in order.
    :ivar exists: whether the feed is complete.
    :ivar is_whole: whether there are no other entries in the tables.
    """

    entries: list[Entry]
    exists: bool
    is_whole: bool


_MARK = "9000000000000000"

_TRIM = f"""
local function trim(key, size)
  local over = redis.call('ZCARD', key) - size - 1
  if over > 0 then
    redis.call('ZREMRANGEBYRANK', key, 0, over - 1)
    if redis.call('ZREM', key, '!w') == 1 then
      redis.call('ZADD', key, {_MARK}, '!c')
    end
  end
end
"""

# size, score, member
_ADD_POST = f"""{_TRIM}
local added = 0
for _, key in ipairs(KEYS) do
  if redis.call('EXISTS', key) == 1 then
    added = added + redis.call('ZADD', key, ARGV[2], ARGV[3])
    trim(key, tonumber(ARGV[1]))
  end
end
return added
"""

# score, member, number, milliseconds
_READ = """
local key = KEYS[1]
local state = 0
if redis.call('ZSCORE', key, '!w') then state = 2
elseif redis.call('ZSCORE', key, '!c') then state = 1
else return {0} end
redis.call('PEXPIRE', key, ARGV[4])
local left = tonumber(ARGV[3])
local found = {state}
for _, member in ipairs(
  redis.call('ZREVRANGEBYSCORE', key, ARGV[1], ARGV[1])) do
  if member < ARGV[2] and left > 0 then
    found[#found + 1] = member
    found[#found + 1] = ARGV[1]
    left = left - 1
  end
end
if left > 0 then
  for _, one in ipairs(redis.call('ZREVRANGEBYSCORE', key, '(' .. ARGV[1],
    '-inf', 'WITHSCORES', 'LIMIT', 0, left)) do
    found[#found + 1] = one
  end
end
return found
"""

# member, milliseconds
_BEGIN_FEED = f"""
redis.call('ZADD', KEYS[1], {_MARK}, ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
"""

# building, size, state, (score, member)...
_FINISH = f"""{_TRIM}
local key = KEYS[1]
if not redis.call('ZSCORE', key, ARGV[1]) then
  return 0
end
for index = 4, #ARGV, 2 do
  redis.call('ZADD', key, ARGV[index], ARGV[index + 1])
end
redis.call('ZREMRANGEBYSCORE', key, {_MARK}, {_MARK})
redis.call('ZADD', key, {_MARK}, ARGV[3])
trim(key, tonumber(ARGV[2]))
return 1
"""

_DIGITS = 19


class FeedStore:
    """Feeds of users in Redis databases.

    A feed is a sorted set: a post that a repeated job adds again is not in it
    twice, and posts are in the order of their times, not of their jobs.  (The
    lists of Pinterest's first feeds, LPUSH and LTRIM, have neither property.)

    A feed exists for users who have read it lately.  It is complete, or being
    built, which is stored in the set as well: with a score above all times.

    ``!b:token``
        a process is building it: it has set this before it reads the tables, so
        that a post that the tables do not have yet is added by its job.
    ``!c``
        it is complete: it has the newest posts, older ones are in the tables.
    ``!w``
        it is whole: the tables have no other posts.

    :param urls: URLs of the databases, or clients.
    :param size: maximum number of entries of a feed.
    :param days: days after which a feed that is not read is removed.
    :param prefix: beginning of all keys.
    :param timeout: seconds to wait for a response.
    :raises MissingExtraError: if the package redis is not installed.

    All methods raise :exc:`~sqla_shard.exc.FeedStoreError` if a server does
    not respond.
    """

    def __init__(
        self,
        urls: Sequence[Any],
        *,
        size: int = 800,
        days: float = 30,
        prefix: str = "feed:",
        timeout: float = 1.0,
    ) -> None:
        self.databases: RedisDatabases = RedisDatabases(urls, timeout)
        self.size = size
        self._expires = int(days * 86_400_000)
        self._prefix = prefix

    def _key(self, user_id: int) -> str:
        return f"{self._prefix}{user_id}"

    def add(self, user_ids: Iterable[int], entry: Entry) -> int:
        """Add an entry to the existing feeds of users.

        This is one command for each database.

        :returns: the number of feeds that did not have it.
        """
        arguments = (self.size, entry.sequence, _feed_member(entry))
        return sum(
            self.databases.run(
                number, _ADD_POST, [self._key(one) for one in users], arguments
            )
            for number, users in self.databases.grouped(user_ids).items()
        )

    def read(self, user_id: int, before: tuple[int, int], number: int) -> StoredFeed:
        """Return the newest entries of a feed before a bound.

        :param before: the time and the post of the entry before them.
        """
        sequence, post_id = before
        state, *flat = self.databases.run(
            self.databases.number_of(user_id),
            _READ,
            [self._key(user_id)],
            (sequence, f"{post_id:0{_DIGITS}}", number, self._expires),
        )
        try:
            entries = [
                _entry(flat[index], flat[index + 1]) for index in range(0, len(flat), 2)
            ]
        except (ValueError, OverflowError):
            # Others may write to the database: a damaged feed is built again.
            self.forget([user_id])
            return StoredFeed([], exists=False, is_whole=False)
        return StoredFeed(entries, state > 0, state == 2)

    def begin(self, user_id: int) -> str:
        """Begin to build a feed; return the token for :meth:`finish`."""
        token = f"!b:{token_hex(8)}"
        self.databases.run(
            self.databases.number_of(user_id),
            _BEGIN_FEED,
            [self._key(user_id)],
            (token, self._expires),
        )
        return token

    def finish(self, user_id: int, token: str, entries: Sequence[Entry]) -> bool:
        """Complete a feed with the rows of the tables.

        :param entries: at most ``size``; fewer are all there are.
        :returns: False if the feed was removed, or completed by another
            process, since it was begun.
        """
        state = "!w" if len(entries) < self.size else "!c"
        arguments: list[Any] = [token, self.size, state]
        for one in entries:
            arguments += (one.sequence, _feed_member(one))
        done = self.databases.run(
            self.databases.number_of(user_id), _FINISH, [self._key(user_id)], arguments
        )
        return bool(done)

    def remove(self, user_id: int, entries: Iterable[Entry]) -> None:
        """Remove entries from a feed."""
        members = [_feed_member(one) for one in entries]
        if members:
            self.databases.pipeline(
                self.databases.number_of(user_id),
                [("ZREM", self._key(user_id), *members)],
            )

    def forget(self, user_ids: Iterable[int]) -> None:
        """Remove feeds, which are built again when they are read."""
        for number, users in self.databases.grouped(user_ids).items():
            keys = [self._key(one) for one in users]
            self.databases.pipeline(number, [("DEL", *keys)])


def _feed_member(entry: Entry) -> str:
    # Posts of the same time are in the order of their ids.
    return f"{entry.post_id:0{_DIGITS}}:{entry.board_id}:{entry.author_id}"


def _entry(member: bytes | str, score: bytes | str) -> Entry:
    text = member.decode() if isinstance(member, bytes) else member
    ids = post_id, board_id, author_id = tuple(map(int, text.split(":")))
    if min(ids) < 0 or max(ids) >= 2**63:
        raise ValueError(f"{text!r:.80} has no ids")
    return Entry(int(float(score)), post_id, board_id, author_id)


_Decoded = TypeVar("_Decoded")

#: The kinds of edges that have not ended.
_KINDS = (1, 2, 3)

_BUILDING = "!b:"

_COMPLETE = "!c"

_LONG = "!l"

_COMMON = """
local key = KEYS[1]
local function clear()
  redis.call('DEL', unpack(KEYS))
end
local function expire(milliseconds)
  for _, one in ipairs(KEYS) do
    redis.call('PEXPIRE', one, milliseconds)
  end
end
"""

# milliseconds, ...
_STATE = f"""{_COMMON}
local function state()
  local found = redis.call('HGET', key, '!s')
  if found ~= '{_COMPLETE}' then return 0 end
  local entries = 0
  for index = 2, #KEYS do
    entries = entries + redis.call('ZCARD', KEYS[index])
  end
  if entries ~= tonumber(redis.call('HGET', key, '!n')) then
    clear()
    return 0
  end
  expire(ARGV[1])
  return 1
end
local found = {{state()}}
if found[1] == 0 then return found end
"""

# milliseconds, member...
_SOME = f"""{_STATE}
for index = 2, #ARGV do
  found[#found + 1] = redis.call('HGET', key, ARGV[index])
end
return found
"""

# milliseconds
_COUNT = f"""{_STATE}
for index = 2, #KEYS do
  found[index] = redis.call('ZCARD', KEYS[index])
end
return found
"""

# milliseconds, score, member, number, kind...
_NEWEST = f"""{_STATE}
local function add(member)
  found[#found + 1] = member
  found[#found + 1] = redis.call('HGET', key, member)
end
for index = 5, #ARGV do
  local set = KEYS[ARGV[index] + 1]
  local left = tonumber(ARGV[4])
  for _, one in ipairs(
    redis.call('ZREVRANGEBYSCORE', set, ARGV[2], ARGV[2])) do
    if one < ARGV[3] and left > 0 then
      add(one)
      left = left - 1
    end
  end
  if left > 0 then
    for _, one in ipairs(redis.call('ZREVRANGEBYSCORE', set, '(' .. ARGV[2],
      '-inf', 'LIMIT', 0, left)) do
      add(one)
    end
  end
end
return found
"""

# milliseconds
_WHOLE = f"""{_STATE}
found[2] = redis.call('HGETALL', key)
for index = 2, #KEYS do
  found[index + 1] = redis.call('ZRANGE', KEYS[index], 0, -1, 'WITHSCORES')
end
return found
"""

# token, milliseconds
_BEGIN_LIST = f"""{_COMMON}
local found = redis.call('HGET', key, '!s')
if found then return found end
clear()
redis.call('HSET', key, '!s', ARGV[1], '!n', 0)
expire(ARGV[2])
return ARGV[1]
"""

# state before, state after, milliseconds, largest,
# (member, kind, content, version)...
_ADD_EDGE = f"""{_COMMON}
local found = redis.call('HGET', key, '!s')
if not found or found == '{_LONG}' then return 0 end
if ARGV[1] ~= '' then
  if found ~= ARGV[1] then return 0 end
  redis.call('HSET', key, '!s', ARGV[2])
end
for index = 5, #ARGV, 4 do
  local member, kind = ARGV[index], tonumber(ARGV[index + 1])
  local content = ARGV[index + 2]
  local known = redis.call('HGET', key, member)
  local before, version = 0, 0
  if known then
    before, version = string.match(known, '^([0-3]) .* (%d+)$')
    if not before then
      clear()
      return 0
    end
  end
  if tonumber(version) <= tonumber(ARGV[index + 3]) then
    if tonumber(before) > 0 then
      redis.call('ZREM', KEYS[before + 1], member)
      redis.call('HINCRBY', key, '!n', -1)
    end
    if kind > 0 then
      local score = string.match(content, '^%d+ %d+ (%d+)')
      redis.call('ZADD', KEYS[kind + 1], score, member)
      redis.call('HINCRBY', key, '!n', 1)
    end
    redis.call('HSET', key, member, content)
  end
end
local milliseconds = redis.call('PTTL', key)
if redis.call('HLEN', key) - 2 > tonumber(ARGV[4]) then
  clear()
  redis.call('HSET', key, '!s', '{_LONG}')
end
expire(ARGV[1] ~= '' and ARGV[3] or milliseconds)
return 1
"""


class FollowStore:
    """Lists of a follow graph in Redis databases.

    A list has the edges of one user or board in one table: a sorted set for each
    kind, by the time at which the relation began, and a hash with the content of
    all edges, also of those that have ended.  An edge replaces one of an older
    version only, so that jobs may be late, repeated or in any order.

    A list exists if it was read lately.  Its hash has two other fields:

    ``!s``
        ``!b:token`` while it is built: it was set before the tables are read, so
        that what is committed later is added by its job.  ``!c`` when it is
        complete.  ``!l`` if it would be too long: it is read from the tables.
    ``!n``
        the number of entries of the sorted sets.  If Redis has evicted one of
        them, the list is built again.

    :param urls: URLs of the databases, or clients.
    :param largest: maximum number of edges of a list, with those that have
        ended; longer lists are read from the tables.
    :param days: days after which a list that is not read is removed.
    :param prefix: beginning of all keys.
    :param timeout: seconds to wait for a response.
    :raises MissingExtraError: if the package redis is not installed.

    All methods raise :exc:`~sqla_shard.exc.FeedStoreError` if a server does
    not respond.  Those that read return None for a list that is not complete
    or too long.
    """

    def __init__(
        self,
        urls: Sequence[Any],
        *,
        largest: int = 5000,
        days: float = 30,
        prefix: str = "follows:",
        timeout: float = 1.0,
    ) -> None:
        self.databases: RedisDatabases = RedisDatabases(urls, timeout)
        self.largest = largest
        self._expires = int(days * 86_400_000)
        self._prefix = prefix

    def _keys(self, table: str, source_id: int) -> list[str]:
        key = f"{self._prefix}{table}:{source_id}"
        return [key, *(f"{key}:{kind}" for kind in _KINDS)]

    def _run(self, table: str, source_id: int, script: str, *arguments: Any) -> Any:
        return self.databases.run(
            self.databases.number_of(source_id),
            script,
            self._keys(table, source_id),
            arguments,
        )

    def _read(
        self, table: str, source_id: int, script: str, *arguments: Any
    ) -> list[Any] | None:
        """Return the reply of a script that reads a complete list."""
        is_complete, *found = self._run(
            table, source_id, script, self._expires, *arguments
        )
        return found if is_complete else None

    def _decoded(
        self,
        table: str,
        source_id: int,
        found: list[Any] | None,
        decode: Callable[[list[Any]], _Decoded],
    ) -> _Decoded | None:
        """Decode a reply; remove a list that others have damaged."""
        if found is None:
            return None
        try:
            return decode(found)
        except (ValueError, OverflowError):
            self.forget(table, source_id)
            return None

    def some(
        self, table: str, source_id: int, target_ids: Sequence[int]
    ) -> dict[int, Edge] | None:
        """Return the edges to given targets."""
        members = [_list_member(one) for one in target_ids]
        values = self._read(table, source_id, _SOME, *members)
        return self._decoded(
            *(table, source_id, values),
            lambda contents: {
                target_id: _edge(content)
                for target_id, content in zip(target_ids, contents, strict=True)
                if content is not None
            },
        )

    def count(self, table: str, source_id: int) -> dict[int, int] | None:
        """Return the number of edges of each kind."""
        values = self._read(table, source_id, _COUNT)
        if values is None:
            return None
        return dict(zip(_KINDS, values, strict=True))

    def newest(
        self,
        table: str,
        source_id: int,
        kinds: Sequence[int],
        bound: tuple[int, int],
        number: int,
    ) -> list[Related] | None:
        """Return the newest edges of some kinds before a bound.

        :param bound: the time and the target of the edge before them.
        """
        at, before = bound
        flat = self._read(
            *(table, source_id, _NEWEST),
            *(at, _list_member(before), number, *map(int, kinds)),
        )
        values = self._decoded(
            *(table, source_id, flat),
            lambda flat: [
                Related(int(member), *_edge(content)[:3])
                for member, content in zip(flat[::2], flat[1::2], strict=True)
            ],
        )
        if values is None:
            return None
        values.sort(key=lambda one: (one.sequence, one.id), reverse=True)
        return values[:number]

    def whole(
        self, table: str, source_id: int
    ) -> tuple[dict[int, Edge], set[tuple[int, int, int]]] | None:
        """Return the edges of a list, and the entries of its sorted sets.

        :returns: edges by target; the target, kind and time of each entry.
        """
        values = self._read(table, source_id, _WHOLE)
        return self._decoded(table, source_id, values, self._whole)

    def _whole(
        self, found: list[Any]
    ) -> tuple[dict[int, Edge], set[tuple[int, int, int]]]:
        flat, *sets = found
        edges = {
            int(member): _edge(content)
            for member, content in zip(flat[::2], flat[1::2], strict=True)
            if not _text(member).startswith("!")
        }
        entries = {
            (int(member), kind, int(float(score)))
            for kind, both in zip(_KINDS, sets, strict=True)
            for member, score in zip(both[::2], both[1::2], strict=True)
        }
        return edges, entries

    def add(
        self, table: str, source_id: int, edges: Iterable[tuple[int, Edge]]
    ) -> None:
        """Add edges to a list that exists, or is being built."""
        self._add(table, source_id, "", "", edges)

    def begin(self, table: str, source_id: int) -> str | None:
        """Begin to build a list; return the token for :meth:`finish`.

        It is that of the process that has begun first.

        :returns: None if the list is too long.
        """
        token = f"{_BUILDING}{token_hex(8)}"
        answer = self._run(table, source_id, _BEGIN_LIST, token, self._expires)
        state = _text(answer)
        return None if state == _LONG else state

    def finish(
        self, table: str, source_id: int, token: str, edges: Iterable[tuple[int, Edge]]
    ) -> bool:
        """Complete a list with the rows of the tables, of all kinds.

        :returns: False if the list was removed, or completed by another
            process, since it was begun.
        """
        return token.startswith(_BUILDING) and self._add(
            table, source_id, token, _COMPLETE, edges
        )

    def _add(
        self,
        table: str,
        source_id: int,
        before: str,
        after: str,
        edges: Iterable[tuple[int, Edge]],
    ) -> bool:
        arguments: list[Any] = [before, after, self._expires, self.largest]
        for target_id, edge in edges:
            content = " ".join(str(int(part)) for part in edge)
            kind = int(edge.kind)
            arguments += (_list_member(target_id), kind, content, edge.version)
        return bool(self._run(table, source_id, _ADD_EDGE, *arguments))

    def forget(self, table: str, source_id: int) -> None:
        """Remove a list, which is built again when it is read."""
        self.databases.pipeline(
            self.databases.number_of(source_id),
            [("DEL", *self._keys(table, source_id))],
        )


def _list_member(target_id: int) -> str:
    # Edges of the same time are in the order of their targets.
    return f"{target_id:0{_DIGITS}}"


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _edge(content: bytes | str | None) -> Edge:
    if content is None:
        raise ValueError("it is missing")
    kind, number, sequence, version = map(int, content.split())
    if not 0 <= kind <= max(_KINDS):
        raise ValueError(f"{kind} is no kind of edges")
    return Edge(kind, number, sequence, version)
