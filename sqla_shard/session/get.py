"""Reads of objects by their ids, from the row cache or the database.

The ``select()`` of each class is built once: building it for every ``get``
would cost more than all the rest of the sharding code.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TYPE_CHECKING

from sqlalchemy import bindparam, inspect, select
from sqlalchemy.orm import (
    InstanceState,
    LoaderCriteriaOption,
    Mapper,
    Session,
    UserDefinedOption,
)
from sqlalchemy.orm.attributes import instance_state

from sqla_shard.engine import Places
from sqla_shard.engine.rendering import Place
from sqla_shard.exc import (
    CachedWriteError,
    ConcurrentUseError,
    UnreadableBlobError,
    UnsupportedStatementError,
)
from sqla_shard.ids import DEFAULT_LAYOUT
from sqla_shard.planning import spec_of
from sqla_shard.types.shard_bound import IdSlot
from sqla_shard.util import sqlalchemy_private as private

if TYPE_CHECKING:
    from sqla_shard import ShardSession
    from sqla_shard.cache import Cache


#: Attribute of the engine that returns rows of the cache.
ANSWERS = "sqla_shard_answers"

_ID = "sqla_shard_id"
_IDS = "sqla_shard_ids"
#: Execution option: reads include inactive objects.
INCLUDE_INACTIVE = "include_inactive"

_SHOW_ALL = {INCLUDE_INACTIVE: True}


def _repeats_options(state: InstanceState[Any]) -> bool:
    """Return whether an expired object is read by the options of its first read.

    Criteria are kept with the object, by whatever it is read.
    """
    return not all(isinstance(one, LoaderCriteriaOption) for one in state.load_options)


class CacheMismatch(Exception):  # noqa: N818 - no error
    """Raised if cached rows do not match the columns of the statement.

    A listener of the session has changed the statement.  The session catches
    the error and reads the database.
    """


def usable_cache(session: ShardSession, table: Any = None) -> Cache | None:
    """Return the cache; None if reads, or reads of a table, must not use it.

    After a write in the transaction, reads must not use it: the cache does
    not contain the written values.
    """
    caching = session.cluster.cache
    if caching is None or not session.uses_cache or session.log.first is not None:
        return None
    return caching if table is None or caching.reads(table) else None


def cache_in_transaction(
    session: ShardSession, table: Any, *, flush: bool = True
) -> Cache | None:
    """Begin the transaction, as a statement would; return the cache.

    The topology and the ``cross_shard`` option belong to a transaction:
    otherwise a session that only reads from the cache would use those of its
    first read forever.
    """
    if usable_cache(session, table) is None:
        return None
    session._check_process()
    private.autobegin(session)
    if flush:
        # Flush before usable_cache(): the written rows are not in the cache.
        private.autoflush(session)
    return usable_cache(session, table)


class NoCache(UserDefinedOption):
    """The option that :func:`no_cache` returns."""

    propagate_to_loaders = False


def no_cache() -> NoCache:
    """Return an option with which one read by id bypasses the cache.

    ::

        session.get(User, user_id, options=[no_cache()])
        session.get_many(User, user_ids, options=[no_cache()])

    The rows are not written to the cache either.  An object that is already
    in the session is returned unchanged, as without a cache; pass
    ``populate_existing=True`` to read it again.  ``select()`` never uses the
    cache; it accepts the option for code that shares its options with
    ``get()``.  For lists, which take no options, use
    ``cluster.session(cache=False)``.
    """
    return NoCache()


def refuse_cached_autocommit(session: ShardSession, place: Place, table: Any) -> None:
    """Refuse a write in autocommit mode to a table that is cached.

    The write is committed before keys can be invalidated: if the process
    dies right after it, old rows stay in the cache.

    :raises CachedWriteError: if rows of the table are cached, and the
        engine has the isolation level AUTOCOMMIT.
    """
    caching = session.cluster.cache
    if caching is None or not caching.is_cached(table):
        return
    if private.is_autocommit(session.root_connection(place)):
        raise CachedWriteError(
            f"the engine of {place.server} has the isolation level "
            "AUTOCOMMIT, which commits a write before the row cache can be "
            "invalidated; set another isolation level",
            table=table.name,
        )


class Getter:
    """Reader of objects of one class by id.

    :ivar by_id: whether the primary key of the class is one object id.
    """

    def __init__(self, mapper: Mapper[Any]) -> None:
        self._table = mapper.local_table
        self._spec = spec = spec_of(self._table)
        self._class = entity = mapper.class_
        self._name = entity.__name__
        key = mapper.primary_key
        self.by_id: bool = (
            spec.kind == "objects" and spec.id_index == 0 and len(key) == 1
        )
        self._layout = spec.layout or DEFAULT_LAYOUT
        if not self.by_id:
            return
        self._identity = mapper.identity_key_from_primary_key((0,))[0]
        self._key = mapper.get_property_by_column(key[0]).key
        attribute = getattr(entity, self._key)
        self._one = select(entity).where(attribute == bindparam(_ID))
        self._many = select(entity).where(
            attribute.in_(bindparam(_IDS, expanding=True))
        )

    def place(self, places: Places, primary_key: Sequence[Any]) -> Place:
        """Return the location of the object with a primary key.

        :raises InvalidIdError: if the key contains no id of the class.
        :raises UnknownShardError: if the shard is not open.
        """
        spec = self._spec
        keyspace = places.keyspace(spec.keyspace, spec.kind, spec.layout)
        if spec.places_of is not None:
            place: Place = spec.places_of(places, primary_key)[0]
            return place
        if spec.id_index is None:
            return places.place(keyspace, 0)
        object_id = primary_key[spec.id_index]
        shard_id = self._layout.shard_of(object_id, spec.type_id, self._name)
        return places.place(keyspace, shard_id)

    def located(
        self, places: Places, ident: Any, kwargs: dict[str, Any]
    ) -> dict[str, Any]:
        """Return arguments of ``Session.get()``, with the shard of a row.

        Rows with another shard than an id names are not found by routing.

        :param ident: the primary key, a sequence or a mapping.
        """
        if self._spec.places_of is None:
            return kwargs
        mapper: Any = inspect(self._class)
        if isinstance(ident, Mapping):
            names = (
                mapper.get_property_by_column(column).key
                for column in mapper.primary_key
            )
            others = {one.key: one.name for one in mapper.synonyms}
            ident = {others.get(name, name): value for name, value in ident.items()}
            ident = [ident[name] for name in names]
        at = {"places": self._spec.places_of(places, ident)}
        return {**kwargs, "bind_arguments": at}

    def get(self, session: ShardSession, object_id: int, hidden: bool) -> Any:
        """Return the object of an id; None if it is missing or hidden."""
        place = self.place(session.places, (object_id,))
        instance = session.identity_map.get((self._identity, (object_id,), None))
        if instance is None or (state := instance_state(instance)).expired:
            if instance is not None and not isinstance(instance, self._class):
                return None
            try:
                if instance is not None and _repeats_options(state):
                    return self._plain_get(session, object_id, hidden)
                held = instance
                instance = self._read(session, object_id, place, held)
            except UnreadableBlobError as error:
                raise error.of(object_id) from error
            if instance is not None:
                self._check(session, instance, object_id)
            elif held is not None:
                # Criteria of a listener may hide the row; SQLAlchemy reads it.
                return self._plain_get(session, object_id, hidden)
        return self._shown(instance, hidden)

    def _read(
        self, session: ShardSession, object_id: int, place: Place, expired: Any
    ) -> Any:
        """Read an object, from the cache if possible.

        :param expired: the object of the session, if it has the object.
        """
        cached = cache_in_transaction(session, self._table, flush=False)
        # Changes are not flushed: an object to be deleted is still in the
        # cache, and a new one is not.
        if cached is not None and (expired is None or expired not in session.deleted):
            with suppress(CacheMismatch):
                places = {object_id: place}
                read = cached.read(session, self._table, places)
                # The id is absent if its cached row cannot be loaded.
                instance = read.get(object_id)
                if instance is not None or (object_id in read and not session.new):
                    return instance
        # The class of the object may have more columns.
        getter = self if expired is None else getter_of(type(expired))
        # Python recognizes inactive objects faster than the server, which
        # would have to parse the blob.
        return (
            session.scalars(
                getter._one,
                {_ID: object_id},
                bind_arguments={"place": place},
                execution_options=_SHOW_ALL,
            )
            .unique()
            .one_or_none()
        )

    def _check(self, session: ShardSession, instance: Any, object_id: int) -> None:
        """Refuse an object that was not requested."""
        key: Any = instance_state(instance).key
        if key[1][0] != object_id:
            raise self._of_another_read(session, key[1][0])

    def _of_another_read(
        self, session: ShardSession, object_id: int
    ) -> ConcurrentUseError:
        # The next results on these connections are wrong too.
        session.invalidate()
        return ConcurrentUseError(
            f"a read of {self._name} by id returned the row of "
            f"{object_id}, which was not requested: several threads or "
            "tasks use this session at the same time; open one for each"
        )

    def _shown(self, instance: Any, hidden: bool) -> Any:
        shown = self._spec.is_shown
        if not isinstance(instance, self._class):
            return None
        if hidden or shown is None or shown(instance):
            return instance
        return None

    def get_with(
        self,
        session: ShardSession,
        ident: Any,
        hidden: bool,
        kwargs: dict[str, Any],
        get: Callable[..., Any],
    ) -> Any:
        """Return the object of an id through ``Session.get`` itself.

        :param get: ``Session.get``, bound to the session.
        :raises UnsupportedStatementError: for an identity token, or if
            another shard than that of the id is named.
        """
        if kwargs.get("identity_token") is not None:
            raise UnsupportedStatementError(
                f"identity_token={kwargs['identity_token']!r} is not "
                "supported: an object id contains its shard, so identity keys "
                "have no token; leave it out",
                construct="identity_token",
            )
        object_id = self._only(ident)
        place = self.place(session.places, (object_id,))
        given = kwargs.get("bind_arguments") or {}
        named = given.get("shard_id")
        if named is not None and (type(named) is not int or named != place.shard_id):
            raise UnsupportedStatementError(
                f"bind_arguments name shard {named!r}, but {self._name} "
                f"{object_id} is on shard {place.shard_id}, which its id "
                "names; leave out shard_id",
                construct="bind_arguments",
            )
        kwargs["bind_arguments"] = {**given, "place": place}
        kwargs["execution_options"] = {
            **(kwargs.get("execution_options") or {}),
            **_SHOW_ALL,
        }
        instance = get(self._class, object_id, **kwargs)
        if instance is None:
            return None
        self._check(session, instance, object_id)
        return self._shown(instance, hidden)

    def _plain_get(self, session: ShardSession, object_id: int, hidden: bool) -> Any:
        return self.get_with(
            session, object_id, hidden, {}, partial(Session.get, session)
        )

    def _only(self, ident: Any) -> Any:
        if isinstance(ident, Mapping) and len(ident) == 1:
            ((name, value),) = ident.items()
            mapper: Any = inspect(self._class)
            others = {one.key: one.name for one in mapper.synonyms}
            if others.get(name, name) == self._key:
                return value
        if isinstance(ident, (tuple, list)) and len(ident) == 1:
            return ident[0]
        return ident

    def get_many(
        self,
        session: ShardSession,
        ids: Sequence[int],
        options: Sequence[Any],
        execution_options: Mapping[str, Any],
    ) -> list[Any]:
        """Return the objects by id, in order, with None for missing ones."""
        type_id = self._spec.type_id
        # Checks and groups the ids; routing and rendering use the groups.
        slot = IdSlot(ids, type_id, self._layout, whole=False)
        if slot.other_type_id is not None:
            self._layout.shard_of(slot.other_type_id, type_id, self._name)
        hidden = session.shows_hidden or includes_hidden(execution_options)
        instances: dict[int, Any] = {}
        wanted = list(dict.fromkeys(ids))
        missing: list[int] = []
        if not execution_options.get("populate_existing"):
            loaded = session.identity_map
            expired: dict[Any, dict[int, Any]] = {}
            for object_id in wanted if len(loaded) else ():
                held = loaded.get((self._identity, (object_id,), None))
                if held is None:
                    continue
                state = instance_state(held)
                if not state.expired:
                    instances[object_id] = held
                    continue
                if options:  # whose criteria may hide the row
                    continue
                if isinstance(held, self._class):
                    missing.append(object_id)
                if (
                    _repeats_options(state)
                    # Its class may have more columns; cached rows have them all.
                    or (
                        type(held) is not self._class
                        and usable_cache(session, self._table) is None
                    )
                ):
                    alike = type(held), state.load_path.path, state.load_options
                    expired.setdefault(alike, {})[object_id] = held
            for those in expired.values():
                (one, *_) = those.values()
                again = getter_of(type(one))._many
                again = private.refreshing(again, instance_state(one))
                some = IdSlot([*those], type_id, self._layout, whole=False)
                instances |= dict.fromkeys(those)
                instances |= self._read_many(
                    session, some, those, again, execution_options
                )
            if instances:
                wanted = [i for i in wanted if i not in instances]
            if wanted and not options:
                cached = self._cached_many(session, wanted)
                if cached:
                    instances.update(cached)
                    wanted = [i for i in wanted if i not in instances]
        if wanted:
            if len(wanted) < len(ids):
                slot = IdSlot(wanted, type_id, self._layout, whole=False)
            many = self._many.options(*options) if options else self._many
            more = self._read_many(
                session, slot, wanted, many, execution_options, routed=bool(options)
            )
            instances |= more
        for object_id in missing:
            if instances.get(object_id) is None:
                instances[object_id] = self._plain_get(session, object_id, hidden=True)
        cls, shown = self._class, self._spec.is_shown
        return [
            one
            if isinstance(one := instances.get(i), cls)
            and (hidden or shown is None or shown(one))
            else None
            for i in ids
        ]

    def _read_many(
        self,
        session: ShardSession,
        slot: IdSlot,
        ids: Iterable[int],
        statement: Any,
        execution_options: Mapping[str, Any],
        *,
        routed: bool = False,
    ) -> dict[int, Any]:
        """Return objects by id, without missing ones, from all shards at once.

        :param routed: whether the statement may have scatter(), with limits.
        """
        bind_arguments = None
        if not routed:
            # The ids have named the shards: do not read the statement.
            bind_arguments = {"places": list(self._shards(session, ids).values())}
        requested = set(ids)
        instances = {}
        for row in session.scalars(
            statement,
            {_IDS: slot()},
            execution_options={**execution_options, **_SHOW_ALL},
            bind_arguments=bind_arguments,
        ).unique():
            key: Any = instance_state(row).key
            object_id = key[1][0]
            if object_id not in requested:
                raise self._of_another_read(session, object_id)
            instances[object_id] = row
        return instances

    def _shards(self, session: ShardSession, ids: Iterable[int]) -> dict[int, Place]:
        """Return the locations of the shards of ids, in order.

        :raises UnknownShardError: if one is not open.
        """
        places, spec = session.places, self._spec
        keyspace = places.keyspace(spec.keyspace, spec.kind, spec.layout)
        shift, highest = self._layout.shard_shift, self._layout.max_shard_id
        shards = sorted({object_id >> shift & highest for object_id in ids})
        return dict(zip(shards, places.several(keyspace, shards), strict=True))

    def _cached_many(
        self, session: ShardSession, ids: Sequence[int]
    ) -> Mapping[int, Any]:
        """Return the objects that are cached, after filling the cache."""
        cached = cache_in_transaction(session, self._table)
        if cached is None:
            return {}
        by_shard = self._shards(session, ids)
        shift, highest = self._layout.shard_shift, self._layout.max_shard_id
        try:
            return cached.read(
                session, self._table, {i: by_shard[i >> shift & highest] for i in ids}
            )
        except CacheMismatch:
            return {}


#: Arguments of ``Session.get`` without effect if empty; an empty
#: ``with_for_update`` is a lock.
_COLLECTIONS = ("options", "execution_options", "bind_arguments")


def includes_hidden(execution_options: Mapping[str, Any] | None) -> bool:
    """Return whether a read with these options includes inactive objects."""
    return bool((execution_options or {}).get(INCLUDE_INACTIVE))


def is_plain(kwargs: Mapping[str, Any]) -> bool:
    """Return whether no argument of ``get()`` has an effect.

    ``get_one()`` and ``scoped_session`` pass all arguments, with their
    defaults, and must use the cache too.
    """
    return not any(
        value if name in _COLLECTIONS else value is not None and value is not False
        for name, value in kwargs.items()
    )


_getters: weakref.WeakKeyDictionary[Any, Getter] = weakref.WeakKeyDictionary()


def getter_of(entity: Any) -> Getter:
    """Return the getter of a mapped class, or of its mapper.

    :raises UnsupportedStatementError: if it is neither.
    """
    try:
        getter = _getters.get(entity)
    except TypeError:
        # Columns, among others, cannot be referenced weakly.
        getter = None
    if getter is None:
        mapper = inspect(entity, raiseerr=False)
        if not getattr(mapper, "is_mapper", False):
            raise UnsupportedStatementError(
                "get() takes a mapped class, and not an object of type "
                f"{type(entity).__name__}; for one column, use "
                "session.scalar(select(Class.column).where(Class.id == id))",
                construct="get()",
            )
        getter = _getters[entity] = Getter(mapper)
    return getter
