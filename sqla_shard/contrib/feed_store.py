"""Home feeds in Redis: the newest posts of each user, trimmed.

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

Use databases without persistence (``save ""``, ``appendonly no``): a server
that starts again with feeds of an earlier time has not got the posts since
then.  An empty one is correct.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from secrets import token_hex
from typing import Any, NamedTuple

from sqla_shard.contrib.redis_databases import RedisDatabases

__all__ = ["Entry", "FeedStore", "StoredFeed"]


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
_ADD = f"""{_TRIM}
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
_BEGIN = f"""
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
        self.databases = RedisDatabases(urls, timeout)
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
        arguments = (self.size, entry.sequence, _member(entry))
        return sum(
            self.databases.run(
                number, _ADD, [self._key(one) for one in users], arguments
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
            _BEGIN,
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
            arguments += (one.sequence, _member(one))
        done = self.databases.run(
            self.databases.number_of(user_id), _FINISH, [self._key(user_id)], arguments
        )
        return bool(done)

    def remove(self, user_id: int, entries: Iterable[Entry]) -> None:
        """Remove entries from a feed."""
        members = [_member(one) for one in entries]
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


def _member(entry: Entry) -> str:
    # Posts of the same time are in the order of their ids.
    return f"{entry.post_id:0{_DIGITS}}:{entry.board_id}:{entry.author_id}"


def _entry(member: bytes | str, score: bytes | str) -> Entry:
    text = member.decode() if isinstance(member, bytes) else member
    ids = post_id, board_id, author_id = tuple(map(int, text.split(":")))
    if min(ids) < 0 or max(ids) >= 2**63:
        raise ValueError(f"{text!r:.80} has no ids")
    return Entry(int(float(score)), post_id, board_id, author_id)
