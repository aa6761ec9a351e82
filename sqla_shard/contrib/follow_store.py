"""Lists of a follow graph in Redis: sorted sets of users and boards.

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

Use databases without persistence (``save ""``, ``appendonly no``): a server
that starts again with lists of an earlier time has not got the changes since
then.  An empty one is correct.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from secrets import token_hex
from typing import Any, TypeVar

from sqla_shard.contrib.edges import Edge, Related
from sqla_shard.contrib.redis_databases import RedisDatabases

__all__ = ["FollowStore"]

_Decoded = TypeVar("_Decoded")

#: The kinds of edges that have not ended.
_KINDS = (1, 2, 3)
_DIGITS = 19
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
_BEGIN = f"""{_COMMON}
local found = redis.call('HGET', key, '!s')
if found then return found end
clear()
redis.call('HSET', key, '!s', ARGV[1], '!n', 0)
expire(ARGV[2])
return ARGV[1]
"""
# state before, state after, milliseconds, largest,
# (member, kind, content, version)...
_ADD = f"""{_COMMON}
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
        self.databases = RedisDatabases(urls, timeout)
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
        members = [_member(one) for one in target_ids]
        found = self._read(table, source_id, _SOME, *members)
        return self._decoded(
            *(table, source_id, found),
            lambda contents: {
                target_id: _edge(content)
                for target_id, content in zip(target_ids, contents, strict=True)
                if content is not None
            },
        )

    def count(self, table: str, source_id: int) -> dict[int, int] | None:
        """Return the number of edges of each kind."""
        found = self._read(table, source_id, _COUNT)
        if found is None:
            return None
        return dict(zip(_KINDS, found, strict=True))

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
            *(at, _member(before), number, *map(int, kinds)),
        )
        found = self._decoded(
            *(table, source_id, flat),
            lambda flat: [
                Related(int(member), *_edge(content)[:3])
                for member, content in zip(flat[::2], flat[1::2], strict=True)
            ],
        )
        if found is None:
            return None
        found.sort(key=lambda one: (one.sequence, one.id), reverse=True)
        return found[:number]

    def whole(
        self, table: str, source_id: int
    ) -> tuple[dict[int, Edge], set[tuple[int, int, int]]] | None:
        """Return the edges of a list, and the entries of its sorted sets.

        :returns: edges by target; the target, kind and time of each entry.
        """
        found = self._read(table, source_id, _WHOLE)
        return self._decoded(table, source_id, found, self._whole)

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
        found = self._run(table, source_id, _BEGIN, token, self._expires)
        state = _text(found)
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
            arguments += (_member(target_id), kind, content, edge.version)
        return bool(self._run(table, source_id, _ADD, *arguments))

    def forget(self, table: str, source_id: int) -> None:
        """Remove a list, which is built again when it is read."""
        self.databases.pipeline(
            self.databases.number_of(source_id),
            [("DEL", *self._keys(table, source_id))],
        )


def _member(target_id: int) -> str:
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
