"""Row caches of classes: objects by their ids, and what lists share with them.

The absence of an object is cached as well, for a short time.  The id of an
inserted row may be unknown before the INSERT: it invalidates the *absence
token* of its table and shard, a random string that these values contain, and
that is compared when one of them is read.
"""

from __future__ import annotations

import copy
import hashlib
import re
import threading
import weakref
from base64 import urlsafe_b64encode
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from secrets import token_hex
from typing import Any, Generic, TypeAlias, TypeVar

from sqlalchemy import bindparam, Engine, event
from sqlalchemy.engine import URL
from sqlalchemy.engine.cursor import FullyBufferedCursorFetchStrategy
from sqlalchemy.engine.interfaces import Dialect
from sqlalchemy.pool import NullPool

from sqla_shard.cache.columns import Columns, dump, parse_many, place_of, RowChecks
from sqla_shard.cache.protocol import CacheCounters, discard, read_through, Source
from sqla_shard.cache.regions import Region
from sqla_shard.cache.stores import KeyState, sleep_of, Store, store_of
from sqla_shard.engine import Places
from sqla_shard.engine.rendering import Place
from sqla_shard.exc import ConcurrentUseError
from sqla_shard.planning import spec_of
from sqla_shard.session import ShardSession
from sqla_shard.session.get import ANSWERS, CacheMismatch, INCLUDE_INACTIVE
from sqla_shard.session.session import separate_session
from sqla_shard.util import sqlalchemy_private as private
from sqla_shard.util.logs import careful_log

# -- Generations of servers.
#
# Each value begins with the digest of :func:`generation_of`, which changes
# with a failover: the new primary may lack the last commits of the old one,
# whose rows are cached.  A reader removes a value with another digest, and
# reads the database.


#: Maximum number of digests of one topology that are stored in
#: :class:`Places`.
_MAX_DIGESTS = 8192

_IDS = "sqla_shard_ids"
_NONE = b"-"
_TOKEN = re.compile(rb"[0-9a-f]{16}")


def generation_of(places: Places, place: Place) -> str:
    """Return the digest of the generation of the server of a virtual shard.

    It is the same in every process, thread and event loop with the same
    topology, even with another user, password or driver.

    :param places: the shard locations of a topology.
    :param place: the location of the shard.
    :returns: 12 letters, digits, ``-`` and ``_``.
    """
    # This is called for each row that is read: avoid other calls here.
    generation = places.generations.get((place.keyspace, place.shard_id))
    if generation is not None:
        return generation
    known = places.generations
    if len(known) >= _MAX_DIGESTS:
        known.clear()
    return known.setdefault(place.address, _new_generation(places, place))


def _new_generation(places: Places, place: Place) -> str:
    keyspace = places.topology.keyspace(place.keyspace)
    server = keyspace.server_for(place.shard_id)
    # Do not use the schema of statements: its quotes differ between drivers.
    database = keyspace.database_for(place.shard_id)
    if server.generation is not None:
        return _digest(
            "number", keyspace.name, server.name, str(server.generation), database
        )
    url = place.engine.url
    if url.host is None:
        # SQLite: each database is a file.
        return _digest("file", str(url.database), database)
    return _digest("address", url.host.lower(), str(url.port or 3306), database)


def _digest(*parts: str) -> str:
    # NUL separates the parts: no part contains it.
    data = "\0".join(parts).encode()
    digest = hashlib.blake2b(data, digest_size=9).digest()
    return urlsafe_b64encode(digest).decode("ascii")


# -- Cached rows, loaded by the ORM as if a server had returned them.
#
# The engine has no server: SQLAlchemy compiles the SELECT and loads the rows
# as usual, with types, the identity map, pending changes and events.  Instead
# of sending the statement, the engine returns the cached rows.
#
# Listeners of the classes Engine and Pool are not called: they are meant for
# connections to servers.


#: Execution option: the statement, and the rows to return for it, in the order
#: of its columns.
ROWS = "sqla_shard_cached_rows"


Answer: TypeAlias = tuple[Any, Sequence[Sequence[Any]]]


class _Cursor:
    """A cursor without a driver: no rows are fetched from it."""

    description = None
    rowcount = -1
    lastrowid = None
    arraysize = 1

    def close(self) -> None:
        """Do nothing."""


class _Connection:
    """A connection without a driver: it sends nothing."""

    def cursor(self, *arguments: Any, **options: Any) -> _Cursor:
        return _Cursor()

    def commit(self) -> None:
        """Do nothing."""

    rollback = close = terminate = commit


#: Classes that have no listeners; SQLAlchemy registers listeners by class.
_NO_LISTENERS: tuple[type[Any], ...] = tuple(
    type("NoListeners", (), {}) for _ in range(3)
)

_lock = threading.Lock()
_engines: dict[Any, Engine] = {}
_places: weakref.WeakKeyDictionary[Engine, Place] = weakref.WeakKeyDictionary()


def cached_rows_place(place: Place) -> Place:
    """Return a location whose engine returns :data:`ROWS`.

    :param place: the location of rows of the same driver, whose dialect
        processes their values.
    """
    engine = place.engine
    cached = _places.get(engine)
    if cached is None:
        cached = _places[engine] = Place(
            keyspace="cache",
            shard_id=0,
            server="cache",
            schema="cache",
            engine=_engine_for(engine.dialect),
            backend=place.backend,
        )
    return cached


def _engine_for(real: Dialect) -> Engine:
    # Share engines of dialects that process values in the same way: a thousand
    # SQLite files have a thousand dialects, and a session would have a
    # connection for each.
    kind = (type(real), real.is_async, *private.json_functions(real))
    with _lock:
        engine = _engines.get(kind)
        if engine is None:
            engine = _engines[kind] = _new_engine(real)
        return engine


def _new_engine(real: Dialect) -> Engine:
    dialect = copy.copy(real)
    pool = NullPool(_Connection, dialect=dialect)  # type: ignore[arg-type]  # has the methods that are used
    engine = Engine(pool, dialect, URL.create("cache"))
    # Give it its own events: the copied dialect shares the events of the real
    # engine, and listeners of all engines would send or count statements.
    targets = (dialect, pool, engine)
    for target, cls in zip(targets, _NO_LISTENERS, strict=True):
        events = private.dispatch_for(target, cls)
        target.__dict__["dispatch"] = events
    setattr(engine, ANSWERS, True)
    event.listen(engine, "do_execute", _answer)
    return engine


def _answer(cursor: Any, statement: str, parameters: Any, context: Any) -> bool:
    answer: Answer = context.execution_options[ROWS]
    expected, rows = answer
    if context.invoked_statement is not expected:
        raise CacheMismatch
    names = [entry.keyname for entry in private.result_columns(context.compiled)]
    context.cursor_fetch_strategy = FullyBufferedCursorFetchStrategy(
        cursor, [(name,) + (None,) * 6 for name in names], rows
    )
    return True


T = TypeVar("T")
K = TypeVar("K")

_log = careful_log(__name__)

#: Execution options of reads for the cache: all rows, and no flush.
OPTIONS = {INCLUDE_INACTIVE: True, "autoflush": False}


class RowCache:
    """The cached rows of one class.

    :param columns: the columns of the class.
    :param region: the region of its values.
    :param tally: the counters of the class.
    :param prefix: the prefix of all keys.
    :ivar is_on: whether reads use the cache.
    :ivar head: the prefix of the keys of the class.
    """

    def __init__(
        self, columns: Columns, region: Region, tally: CacheCounters, prefix: str
    ) -> None:
        self.columns = columns
        self.region = region
        self.tally = tally
        self.is_on = True
        self.head: str = f"{prefix}:{columns.table.name}:"
        self._has_warned = False

    def place(self, session: ShardSession, row_id: int) -> Place:
        """Return the shard location of a row.

        :param row_id: the id that names its shard.
        :raises WrongTypeError: if it is the id of another class.
        """
        return place_of(session, self.columns.table, self.columns.name, row_id)

    def read(
        self, session: ShardSession, places: Mapping[int, Place]
    ) -> Mapping[int, Any]:
        """Return objects or lists, by the ids of objects or sources."""
        raise NotImplementedError

    def keys_of_write(
        self, place: Place, row_id: int | None
    ) -> Iterable[tuple[str, str]]:
        """Return the regions and keys that a write of a row invalidates.

        :param row_id: the id that names the shard; None for an inserted
            object, whose id is unknown.
        """
        raise NotImplementedError

    def store(self, session: ShardSession) -> Store:
        """Return the store; with an asyncio session its calls are awaited."""
        return store_of(self.region.store, session)

    def read_keys(
        self,
        session: ShardSession,
        keys: Iterable[str],
        source: Source[T],
        part: ReadPart[Any],
    ) -> dict[str, T]:
        """Read keys through the store; see :func:`~.protocol.read_through`.

        :param part: the part of the read that the source loads.
        """
        return read_through(
            self.store(session),
            list(keys),
            source,
            self.region.times,
            leases=part.leases,
            still=part.is_fresh,
            tally=self.tally,
            sleep=sleep_of(session),
        )

    def tag(self, session: ShardSession, place: Place) -> bytes:
        """Return the first bytes of a readable value.

        They are the digest of the columns, and the generation of the server.
        """
        generation = generation_of(session.places, place)
        return f"{self.columns.digest}:{generation}:".encode("ascii")

    def tags(self, session: ShardSession, places: Mapping[K, Place]) -> dict[K, bytes]:
        """Return the :meth:`tag` of each location, by key."""
        tags = {}
        known = session.places.generations.get
        head = f"{self.columns.digest}:"
        for key, place in places.items():
            # A call of generation_of() for each of them would take longer.
            generation = known((place.keyspace, place.shard_id))
            if generation is None:
                generation = generation_of(session.places, place)
            tags[key] = f"{head}{generation}:".encode("ascii")
        return tags

    def row_checks(self, place: Place) -> RowChecks:
        """Return the checks of rows, for the server of a location."""
        return self.columns.row_checks(place.engine.dialect)

    def encode_rows(
        self, place: Place, rows: Sequence[Any], value: Any
    ) -> bytes | None:
        """Return an encoded value; None if it cannot be cached.

        :param place: location of the rows.
        :param rows: the rows in the value.
        """
        try:
            # A reader would remove a value that fails the checks.
            if not all(map(self.row_checks(place).accepts, rows)):
                raise TypeError("a column has a value of an unexpected type")
            return dump(value)
        except (TypeError, ValueError) as error:
            if not self._has_warned:
                self._has_warned = True
                _log.warning(
                    "a row of %s cannot be cached; further ones are not logged: %s",
                    self.columns.name,
                    error,
                    extra={"action": "cache", "class": self.columns.name},
                )
            return None

    def load_objects(
        self,
        session: ShardSession,
        place: Place,
        rows: Mapping[str, Sequence[Sequence[Any]]],
    ) -> dict[str, list[Any]]:
        """Return objects of the session, in the order of their rows.

        A value whose rows cannot be loaded is removed, and not returned.  If
        a listener has raised the error, it will raise again for the row from
        the database.

        :param place: location of any of the rows.
        :param rows: the rows, by the keys of their values.
        :raises CacheMismatch: if a listener has changed the statement.
        """
        every = [row for group in rows.values() for row in group]
        try:
            objects = iter(self._instances(session, place, every))
        except (ConcurrentUseError, CacheMismatch):
            raise
        except Exception as error:
            if len(rows) == 1:
                discard(self.store(session), rows.keys())
                self.tally.add(unreadable=1)
                self.tally.log(error)
                return {}
            # One of several values has failed: load each value separately.
            groups: dict[str, list[Any]] = {}
            for key, group in rows.items():
                groups.update(self.load_objects(session, place, {key: group}))
            return groups
        groups = {key: list(islice(objects, len(group))) for key, group in rows.items()}
        if sum(map(len, groups.values())) != len(every):
            raise CacheMismatch
        return groups

    def _instances(
        self, session: ShardSession, place: Place, rows: Sequence[Sequence[Any]]
    ) -> list[Any]:
        instances = session.scalars(
            self.columns.select,
            bind_arguments={"place": cached_rows_place(place)},
            execution_options={**OPTIONS, ROWS: (self.columns.select, rows)},
        )
        objects = list(instances)
        check = spec_of(self.columns.table).check
        if check is not None:
            try:
                for one in objects:
                    check(one)
            except Exception:
                # Expire them; otherwise the session would return them without
                # reading the rows.
                for one in objects:
                    session.expire(one)
                raise
        return objects


@dataclass(frozen=True)
class ReadPart(Generic[K]):
    """The rows of a read that one transaction reads.

    :ivar places: the shard locations, by key.
    :ivar session: the session of the caller.
    :ivar is_separate: whether another session reads the rows.
    :ivar leases: whether the rows may be cached.
    """

    places: Mapping[K, Place]
    session: ShardSession
    is_separate: bool
    leases: bool

    @contextmanager
    def reader(self) -> Iterator[ShardSession]:
        """Yield the session that reads; a separate one has a new snapshot."""
        if not self.is_separate:
            yield self.session
            return
        with separate_session(self.session) as session:
            yield session

    def is_fresh(self) -> bool:
        """Return whether the next read sees the latest commits."""
        if self.is_separate:
            return True
        return all(map(self.session.reads_latest, self.places.values()))


def split_by_reader(
    session: ShardSession, places: Mapping[K, Place]
) -> Iterator[ReadPart[K]]:
    """Split a read into parts, by the transaction that reads the rows.

    A value must be read after its lease was taken.  A transaction that has
    read on a server has a snapshot of that time, and takes no leases, unless
    it is READ COMMITTED.  If the transaction has not begun on a server, a
    separate session reads the missing rows.
    """
    if places and not session.has_connections:
        yield ReadPart(places, session, is_separate=True, leases=True)
        return
    parts: dict[tuple[bool, bool], dict[K, Place]] = {}
    ways: dict[Engine, tuple[bool, bool]] = {}
    for key, place in places.items():
        way = ways.get(place.engine)
        if way is None:
            is_separate = not session.is_connected(place)
            leases = is_separate or session.reads_latest(place)
            way = ways[place.engine] = is_separate, leases
        parts.setdefault(way, {})[key] = place
    for (is_separate, leases), part in parts.items():
        yield ReadPart(part, session, is_separate, leases)


C = TypeVar("C", bound=RowCache)


class PartSource(Generic[C]):
    """The rows of a part; subclasses are a :class:`~.protocol.Source`.

    :param cache: the cache of the rows.
    :param part: the part of a read.
    :ivar ids: the ids of objects or lists, by their keys.
    """

    def __init__(self, cache: C, part: ReadPart[int]) -> None:
        self._cache = cache
        self._part = part
        self._places = places = part.places
        head = cache.head
        self.ids: dict[str, int] = {f"{head}{row_id}": row_id for row_id in places}
        self._tags = cache.tags(part.session, places)


@dataclass(frozen=True, slots=True)
class _Absent:
    """An id that is not found.

    :ivar token: the absence token when the id was read; empty if unknown.
    """

    token: str


class ObjectCache(RowCache):
    """The objects of one class."""

    def __init__(
        self, columns: Columns, region: Region, tally: CacheCounters, prefix: str
    ) -> None:
        super().__init__(columns, region, tally, prefix)
        (self._key,) = columns.table.primary_key.columns
        #: The position of the id in a row.
        self.index: int = columns.names.index(self._key.name)
        self._raw = columns.raw(self._key.label("sqla_shard_key")).where(
            self._key.in_(bindparam(_IDS, expanding=True))
        )

    def read(
        self, session: ShardSession, places: Mapping[int, Place]
    ) -> dict[int, Any]:
        """Return the objects by id, with None for those not found.

        :param places: the shard locations, by id.
        :returns: the objects, without those whose rows cannot be loaded.
        """
        ids: dict[str, int] = {}
        objects_read: dict[int, Any] = {}
        rows: dict[str, list[Any]] = {}
        for part in split_by_reader(session, places):
            source = _Objects(self, part)
            ids.update(source.ids)
            read = self.read_keys(session, source.ids, source, part)
            for key, one in read.items():
                if type(one) is _Absent:
                    objects_read[ids[key]] = None
                else:
                    rows[key] = [one]
        if rows:
            place = next(iter(places.values()))
            loaded = self.load_objects(session, place, rows)
            for key, (one,) in loaded.items():
                objects_read[ids[key]] = one
        return objects_read

    def rows(self, part: ReadPart[int], ids: Iterable[int]) -> dict[int, list[Any]]:
        """Read rows from the database."""
        with part.reader() as session:
            result = session.execute(
                self._raw, {_IDS: list(ids)}, execution_options=OPTIONS
            )
            return {key: row for key, *row in result}

    def keys_of_write(
        self, place: Place, object_id: int | None
    ) -> Iterable[tuple[str, str]]:
        """Return the region and key that a write of a row invalidates.

        :param object_id: id of the object; None for an inserted row whose id
            is unknown.
        """
        if object_id is None:
            yield self.region.name, self.absence(place)
        else:
            yield self.region.name, f"{self.head}{object_id}"

    def absence(self, place: Place) -> str:
        """Return the key of the absence token of a shard."""
        return f"{self.head}none:{place.keyspace}:{place.shard_id}"


class _Objects(PartSource[ObjectCache]):
    """The objects of one read."""

    def decode(self, values: Mapping[str, bytes]) -> dict[str, Any]:
        read: dict[str, Any] = {}
        bodies = {}
        absent: dict[str, _Absent] = {}
        for key, value in values.items():
            tag = self._tags[self.ids[key]]
            if not value.startswith(tag):
                continue
            body = value[len(tag) :]
            if body[:1] == _NONE:
                token = body[1:].decode("ascii", "replace")
                absent[key] = _Absent(token)
            else:
                bodies[key] = body
        index, ids, places = self._cache.index, self.ids, self._places
        known: dict[Engine, Callable[[Any], bool]] = {}
        for key, row in parse_many(bodies).items():
            object_id = ids[key]
            place = places[object_id]
            accepts = known.get(place.engine)
            if accepts is None:
                checks = self._cache.row_checks(place)
                accepts = known[place.engine] = checks.accepts
            if accepts(row) and row[index] == object_id:
                read[key] = row
        if absent:
            read.update(self._still_absent(absent))
        return read

    def encode(self, key: str, loaded: Any) -> tuple[bytes, int] | None:
        times = self._cache.region.times
        if type(loaded) is not _Absent:
            place = self._places[self.ids[key]]
            body = self._cache.encode_rows(place, [loaded], loaded)
            if body is None:
                return None
            return self._tags[self.ids[key]] + body, times.expire
        if not loaded.token:
            return None
        body = _NONE + loaded.token.encode("ascii")
        return self._tags[self.ids[key]] + body, times.expire_nothing

    def load(self, keys: Sequence[str], leased: Collection[str]) -> Mapping[str, Any]:
        # Read the tokens before the rows: the transaction may not see rows
        # that are inserted from now on; they change the token.
        tokens = self._tokens(leased, leases=True) if leased else {}
        rows = self._cache.rows(self._part, [self.ids[key] for key in keys])
        return {
            key: rows.get(self.ids[key], _Absent(tokens.get(self._absence(key), "")))
            for key in keys
        }

    def _still_absent(self, absent: Mapping[str, _Absent]) -> dict[str, _Absent]:
        """Return the absent objects that are still absent.

        Their shards have the same absence token: no row was inserted since.
        """
        tokens = self._tokens(absent, leases=False)
        return {
            key: one
            for key, one in absent.items()
            if tokens.get(self._absence(key)) == one.token
        }

    def _absence(self, key: str) -> str:
        return self._cache.absence(self._places[self.ids[key]])

    def _tokens(self, keys: Iterable[str], *, leases: bool) -> dict[str, str]:
        """Return the absence tokens of shards; fill those that are missing."""
        times = self._cache.region.times
        store = self._cache.store(self._part.session)
        names = list(dict.fromkeys(self._absence(key) for key in keys))
        entries = store.fetch(names, times.lease if leases else 0)
        tokens = {
            name: one.value.decode("ascii")
            for name, one in entries.items()
            if _TOKEN.fullmatch(one.value)
        }
        unreadable = [
            name
            for name, one in entries.items()
            if one.state is KeyState.VALUE and name not in tokens
        ]
        discard(store, unreadable)
        new = {
            name: (one.lease, token_hex(8).encode("ascii"))
            for name, one in entries.items()
            if one.state is KeyState.LEASED
        }
        if new:
            for name in store.fill(new, times.expire):
                tokens[name] = new[name][1].decode("ascii")
        return tokens
