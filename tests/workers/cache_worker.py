"""Processes that read or write rows through a cache, and log that.

Run as a program with the settings of all of them as JSON.  It says until when
they work, and forks: imports take long.  The work itself is done by children,
which are killed (SIGKILL) and replaced at random times.  What is written is a
row's version, or one row more of a list; several may add to one list at the
same time, without waiting for each other.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import random
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Literal, Protocol

import pymysql
from dogpile.cache import make_region
from dogpile.cache.api import NO_VALUE
from pymysql.constants import ER

from sqla_shard.cache.protocol import read_through, Times, Tombstones
from sqla_shard.cache.stores import Store
from sqla_shard.cache.stores.memcached import MemcachedStore
from sqla_shard.cache.stores.redis import RedisStore
from tests.models.cache_source import Plain
from tests.servers.cache_events import Event, line_of
from tests.servers.cache_processes import at_once, Delays, lives, Slow

TIMES = Times(expire=60, lease=2, tombstone=3, wait=0.02)
#: How often a writer, of those that are killed, dies right after its COMMIT.
_DIES = 0.1
_REFUSED = {ER.LOCK_WAIT_TIMEOUT, ER.LOCK_DEADLOCK}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a process.

    :ivar policy: ``"protocol"``, ``"plain"`` (get, set, delete) or
        ``"dogpile"`` (its ``get_or_create``, and delete).
    :ivar servers: of memcached, or the URL of one Redis.
    :ivar seed: of all that is random.
    :ivar seconds: that it works.
    :ivar delay: seconds, on average, between two steps.
    :ivar life: seconds, on average, until it is killed; 0 for never.
    :ivar timeout: seconds to wait for a node.
    :ivar strict: roll back where the tombstone cannot be set, so that there
        is no key of which nothing is promised.
    :ivar database: arguments of ``pymysql.connect``.
    """

    policy: Literal["protocol", "plain", "dogpile"]
    role: Literal["reader", "writer"]
    seed: str
    servers: list[str]
    keys: list[str]
    seconds: float
    delay: float
    life: float
    timeout: float
    strict: bool
    log: str
    database: dict[str, Any]


class Database:
    """The rows: a version for each key, or a list of rows."""

    def __init__(self, settings: Settings, delays: Delays) -> None:
        self._connection = pymysql.connect(**settings.database, autocommit=True)
        self._cursor = self._connection.cursor()
        self._delays = delays
        self.asked = 0

    def load(self, keys: Sequence[str]) -> dict[str, bytes | None]:
        """Return the versions of keys, as they are now."""
        self.asked += 1
        self._delays()
        found: dict[str, bytes | None] = {}
        for key in keys:
            query = "SELECT version FROM versions WHERE id = %s"
            if key.startswith("list"):
                query = "SELECT COUNT(*) FROM elements WHERE list = %s"
            self._cursor.execute(query, (key,))
            row = self._cursor.fetchone()
            found[key] = None if row is None else str(row[0]).encode()
        self._delays()
        return found

    def write(self, key: str) -> int:
        """Write in a transaction; return the new version."""
        execute = self._cursor.execute
        execute("BEGIN")
        if key.startswith("list"):
            execute("INSERT INTO elements (list) VALUES (%s)", (key,))
            return 0
        change = "UPDATE versions SET version = version + 1 WHERE id = %s"
        execute(change, (key,))
        execute("SELECT version FROM versions WHERE id = %s", (key,))
        row = self._cursor.fetchone()
        assert row is not None
        return int(row[0])

    def end(self, how: str) -> None:
        """Commit or roll back."""
        self._cursor.execute(how)


class Policy(Protocol):
    """A way to cache values that were read."""

    def read(self, keys: list[str]) -> Mapping[str, bytes | None]:
        """Return the versions of keys."""

    def before_commit(self, key: str) -> bool:
        """Announce a write; return whether it is certain to be heard."""

    def after(self) -> None:
        """Tell that the transaction has ended, in whatever way."""


class Protocolled:
    def __init__(self, settings: Settings, database: Database, delays: Delays) -> None:
        self._store: Any = Slow(_store_of(settings), delays)
        self._load = database.load
        self._tombstones: Tombstones | None = None

    def read(self, keys: list[str]) -> Mapping[str, bytes | None]:
        source = Plain(self._load, TIMES)
        return read_through(self._store, keys, source, TIMES)

    def before_commit(self, key: str) -> bool:
        self._tombstones = Tombstones(self._store, TIMES)
        return not self._tombstones.put([key])

    def after(self) -> None:
        if self._tombstones is not None:
            self._tombstones.remove()


def _is_redis(settings: Settings) -> bool:
    return settings.servers[0].startswith("redis:")


def _store_of(settings: Settings) -> Store:
    options: dict[str, Any] = {
        "longest": TIMES.tombstone,
        "timeout": settings.timeout,
        "retry": 0.2,
    }
    if not _is_redis(settings):
        return MemcachedStore(settings.servers, **options)
    import redis

    client = redis.Redis.from_url(settings.servers[0])
    return RedisStore(client, **options)


class Dogpile:
    """``get_or_create``, or its parts: get, set and delete."""

    def __init__(self, settings: Settings, database: Database, delays: Delays) -> None:
        self._load = database.load
        self._plain = settings.policy == "plain"
        self._delays = delays
        self._key = ""
        # Its default is pickle.
        self._region = make_region(
            serializer=lambda value: json.dumps(value).encode(), deserializer=json.loads
        ).configure(
            "dogpile.cache.pymemcache",
            expiration_time=60,
            arguments={"url": settings.servers},
        )

    def read(self, keys: list[str]) -> Mapping[str, bytes | None]:
        return {key: self._read(key) for key in keys}

    def _read(self, key: str) -> bytes | None:
        def create() -> str:
            value = self._load([key])[key]
            return "0" if value is None else value.decode()

        if not self._plain:
            return str(self._region.get_or_create(key, create)).encode()
        found = self._region.get(key)
        if found is NO_VALUE:
            found = create()
            self._region.set(key, found)
        return str(found).encode()

    def before_commit(self, key: str) -> bool:
        self._key = key
        return True

    def after(self) -> None:
        self._delays()
        self._region.delete(self._key)


class Worker:
    """The child."""

    def __init__(self, settings: Settings, seed: str, until: float) -> None:
        self._settings = settings
        self._until = until
        self._rng = random.Random(seed)
        delays = Delays(self._rng, settings.delay)
        self._delays = delays
        self._database = Database(settings, delays)
        kind = Protocolled if settings.policy == "protocol" else Dogpile
        self._cache: Policy = kind(settings, self._database, delays)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        self._log = os.open(settings.log, flags, 0o600)

    def run(self) -> int:
        """Read, or write, until the end."""
        step = self.read if self._settings.role == "reader" else self.write
        while monotonic() < self._until:
            with _refused():
                step()
            self._delays()
        return 0

    def read(self) -> None:
        """Read some keys."""
        some = self._rng.randint(1, 3)
        keys = self._rng.sample(self._settings.keys, some)
        asked = self._database.asked
        # A read that bypasses the cache sees unacknowledged writes.
        past = self._rng.random() < 0.2
        start = monotonic()
        found = (self._database.load if past else self._cache.read)(keys)
        end = monotonic()
        cached = self._database.asked == asked
        for key in keys:
            version = int(found[key] or 0)
            self._note("read", key, start, end, version, cached)

    def write(self) -> None:
        """Write one key, or begin to."""
        key = self._rng.choice(self._settings.keys)
        start = monotonic()
        try:
            version = self._database.write(key)
            self._delays()
            commits = self._rng.random() < 0.85
            if not self._cache.before_commit(key):
                if self._settings.strict:
                    commits = False
                else:
                    self._note("exempt", key, start, start)
            self._delays()
            self._database.end("COMMIT" if commits else "ROLLBACK")
            if self._settings.life and self._rng.random() < _DIES:
                os.kill(os.getpid(), signal.SIGKILL)
        except pymysql.MySQLError:
            self._database.end("ROLLBACK")
            raise
        self._delays()
        self._cache.after()
        if commits:
            kind = "write" if version else "add"
            self._note(kind, key, start, monotonic(), version)

    def _note(
        self,
        kind: Any,
        key: str,
        start: float,
        end: float,
        version: int = 0,
        cached: bool = False,
    ) -> None:
        event = Event(
            kind=kind, key=key, start=start, end=end, version=version, cached=cached
        )
        os.write(self._log, line_of(event))


@contextlib.contextmanager
def _refused() -> Iterator[None]:
    """Go on after a deadlock."""
    try:
        yield
    except pymysql.OperationalError as error:
        if error.args[0] not in _REFUSED:
            raise


def _lives(settings: Settings, until: float) -> int:
    def work(seed: str) -> int:
        return Worker(settings, seed, until).run()

    return lives(work, settings.seed, settings.life, until)


def main(everybody: list[Settings]) -> int:
    """Have all do their work; return how many failed."""
    if _is_redis(everybody[0]):
        # Once, and not in each of the lives.
        importlib.import_module("redis.sentinel")
    until = monotonic() + everybody[0].seconds
    sys.stdout.write(f"{until}\n")
    sys.stdout.flush()
    return at_once([lambda one=one: _lives(one, until) for one in everybody])


if __name__ == "__main__":
    sys.exit(main([Settings(**one) for one in json.loads(sys.argv[1])]))
