"""The cache of a cluster: its regions and cached classes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Any, TypeVar

from sqla_shard.cache.columns import (
    Cached,
    check_prefix,
    check_rows,
    Columns,
    is_mapping,
    mapper_of,
    place_of,
)
from sqla_shard.cache.functions import functions_of, with_transaction
from sqla_shard.cache.lists import ListCache
from sqla_shard.cache.protocol import CacheCounters, RegionStats, stats_of, Tombstones
from sqla_shard.cache.regions import open_region, Region, REGION_NAME
from sqla_shard.cache.rows import ObjectCache, RowCache
from sqla_shard.cache.stores import awaited, MemoryStore, to_its_end
from sqla_shard.engine.rendering import Place
from sqla_shard.exc import CacheClassError, OptionError
from sqla_shard.outbox.invalidations import has_pending, write_pending
from sqla_shard.outbox.tables import LONGEST_REGION
from sqla_shard.session import ShardSession
from sqla_shard.session.commit import outbox_places

# -- invalidation around a COMMIT


T = TypeVar("T")


class Announcement:
    """The tombstones of one transaction, in all regions.

    They are removed before the commit is acknowledged, in an event loop too:
    tombstones may have expired during a long COMMIT, and a stale value must
    not be read after it.

    :param session: the session.
    :param put: the tombstones and the statistics of each region.
    :param edited: shards of the keys whose new values are known.
    """

    def __init__(
        self,
        session: ShardSession,
        put: Sequence[tuple[Tombstones, CacheCounters]],
        edited: Collection[Place],
    ) -> None:
        self._session = session
        self._put = put
        self._edited = edited

    def after_commit(self) -> None:
        """Remove the tombstones; fill the values that are known."""
        cancelled = to_its_end(self._session, self._replace)
        # The session raises it when the transaction has ended.
        self._session.log.cancelled = cancelled

    def after_rollback(self) -> None:
        """Remove the tombstones after a ROLLBACK."""
        self._each_to_its_end(Tombstones.remove)

    def commit_unknown(self) -> None:
        """Renew the tombstones of a COMMIT whose outcome is unknown.

        The COMMIT may still succeed; and if the tombstones have expired
        meanwhile, stale values may have been stored.
        """
        self._each_to_its_end(Tombstones.renew)

    def _replace(self) -> None:
        # A list with a pending invalidation may be stale, and so would be
        # the edited one.  Read the outbox now, and not before COMMIT: the
        # snapshot of the transaction may be older than the lock of the list.
        is_stale = any(has_pending(self._session, one) for one in self._edited)
        work = Tombstones.remove if is_stale else Tombstones.replace
        awaited(self._session, partial(self._each, work))

    def _each_to_its_end(self, work: Callable[[Tombstones], object]) -> None:
        each = partial(self._each, work)
        # The error of the COMMIT is raised instead of a cancellation.
        to_its_end(self._session, partial(awaited, self._session, each))

    def _each(self, work: Callable[[Tombstones], object]) -> None:
        for tombstones, tally in self._put:
            _timed(tally, partial(work, tombstones))


def _timed(tally: CacheCounters, work: Callable[[], T]) -> T:
    started = perf_counter()
    try:
        return work()
    finally:
        tally.add(seconds=perf_counter() - started)


def announce(
    session: ShardSession,
    regions: Mapping[str, Region],
    tallies: Mapping[str, CacheCounters],
) -> Announcement:
    """Put tombstones; write the keys for which this fails to the outbox.

    :param regions: the regions, by name.
    :param tallies: the statistics of the regions, by name.
    """
    stale = session.log.invalidations
    keys: dict[str, list[str]] = {}
    for name, key in stale:
        keys.setdefault(name, []).append(key)
    put: list[tuple[Tombstones, CacheCounters]] = []
    edited: set[Place] = set()
    failed: dict[Place, list[tuple[str, str]]] = {}
    for name, its in keys.items():
        region, tally = regions[name], tallies[name]
        tombstones = Tombstones(region.store, region.times)
        put.append((tombstones, tally))
        edits = {
            key: stale[name, key].edited_value for key in its if stale[name, key].edits
        }
        work = partial(tombstones.put, its, edits)
        lost = awaited(session, partial(_timed, tally, work))
        tally.add(invalidations=len(its) - len(lost), outbox=len(lost))
        for key in lost:
            for place in outbox_places(session, stale[name, key]):
                failed.setdefault(place, []).append((name, key))
        places = [stale[name, key].place for key in tombstones.edited_keys]
        edited.update(one for one in places if one is not None)
    announcement = Announcement(session, put, edited)
    try:
        for place, entries in failed.items():
            write_pending(session, place, entries)
    except BaseException:
        announcement.after_rollback()
        raise
    return announcement


class Cache:
    """The cache of a cluster.

    ``cluster.configure_cache(...)`` creates it; it is available as
    ``cluster.cache``.

    :param regions: the configuration of each region, by name; see
        :func:`~sqla_shard.cache.open_region`.
    :param classes: the name of a region, or a :class:`Cached`, for each
        object or mapping class that is cached.
    :param prefix: the prefix of all keys; the same for all processes of an
        application, and different for each application that uses the same
        memcached nodes.
    :ivar classes: the cached classes.
    :raises OptionError: if an argument is not valid.
    :raises CacheClassError: if a class cannot be cached.
    """

    def __init__(
        self,
        regions: Mapping[str, Any],
        classes: Mapping[Any, str | Cached],
        prefix: str,
    ) -> None:
        self.prefix: str = check_prefix(prefix)
        _check_mappings(regions, classes)
        self.classes: tuple[Any, ...] = tuple(classes)
        self.regions: dict[str, Region] = {
            name: open_region(name, config) for name, config in regions.items()
        }
        self._tallies = {name: CacheCounters(name) for name in self.regions}
        self._row_caches: dict[Any, RowCache] = {}
        for cls, options in classes.items():
            row_cache = self._row_cache(cls, options)
            table = row_cache.columns.table
            if str(table.name) in [str(cached.name) for cached in self._row_caches]:
                raise CacheClassError(
                    f"has the table {table.name!r}, which another cached "
                    "class has, too",
                    class_name=cls.__name__,
                )
            self._row_caches[table] = row_cache

    def _row_cache(self, cls: Any, given: str | Cached) -> RowCache:
        mapper = mapper_of(cls)
        cached = Cached(region=given) if isinstance(given, str) else given
        _check_cached(cls.__name__, cached)
        region, tally = self.region(cached.region), CacheCounters(cls.__name__)
        has_lists = is_mapping(cls)
        columns = Columns(mapper, cached.version)
        if has_lists:
            rows = check_rows(cached.rows)
            return ListCache(columns, region, tally, self.prefix, rows=rows)
        return ObjectCache(columns, region, tally, self.prefix)

    def region(self, name: str) -> Region:
        """Return a region.

        :raises OptionError: if it is not found.
        """
        region = self.regions.get(name)
        if region is None:
            known = ", ".join(map(repr, self.regions)) or "none"
            raise OptionError(
                f"is not a region of this cache, which has {known}",
                option="region",
                value=name,
            )
        return region

    def tally(self, name: str) -> CacheCounters:
        """Return the counters of a region.

        :raises OptionError: if it is not found.
        """
        return self._tallies[self.region(name).name]

    def close(self) -> None:
        """Close connections to nodes; they are opened again when needed."""
        for region in self.regions.values():
            store: Any = region.store
            # A store in memory has no connections, and would lose its items.
            if not isinstance(store, MemoryStore):
                store.close()

    def __repr__(self) -> str:
        names = ", ".join(self.regions)
        return f"<Cache {self.prefix!r}: {names or 'no regions'}>"

    # -- at run time

    def disable(self, cls: Any) -> None:
        """Read a class from the database, in this process.

        Writes still invalidate its rows, for other processes.  See
        :meth:`enable`.

        :raises CacheClassError: if it is not cached.
        """
        self._of_class(cls).is_on = False

    def enable(self, cls: Any) -> None:
        """Read a class through the cache again.

        :raises CacheClassError: if it is not cached.
        """
        self._of_class(cls).is_on = True

    def is_enabled(self, cls: Any) -> bool:
        """Return whether reads of a class use the cache, in this process.

        :raises CacheClassError: if it is not cached.
        """
        return self._of_class(cls).is_on

    def invalidate(self, session: Any, cls: Any, ids: int | Iterable[int]) -> None:
        """Invalidate rows with the COMMIT of a transaction.

        For writes that the session does not see, such as textual SQL or the
        writes of other programs: the transaction need not write anything
        itself.  Cached results of functions of the class for these ids are
        invalidated, too.

        :param session: the session; begins a transaction if there is none.
        :param ids: ids of the objects, or of the sources of the lists.
        :raises CacheClassError: if the class is not cached.
        :raises InvalidIdError: if one of the ids is not valid.
        """
        session = with_transaction(session)
        table = mapper_of(cls).local_table
        if not self.is_cached(table):
            self._of_class(cls)
        for object_id in [ids] if isinstance(ids, int) else list(ids):
            self.record_write(session, table, object_id)

    def stats(self) -> list[RegionStats]:
        """Return the statistics of this process, by region."""
        return [
            stats_of(
                tally,
                [
                    (row_cache.tally, row_cache.is_on)
                    for row_cache in self._row_caches.values()
                    if row_cache.region.name == name
                ],
            )
            for name, tally in self._tallies.items()
        ]

    def _of_class(self, cls: Any) -> RowCache:
        row_cache = self._row_caches.get(mapper_of(cls).local_table)
        if row_cache is None:
            raise CacheClassError(
                "is not named in configure_cache(classes=...)", class_name=cls.__name__
            )
        return row_cache

    # -- for sessions

    def is_cached(self, table: Any) -> bool:
        """Return whether rows of a table, or results for them, are cached."""
        if table is None:  # textual SQL
            return False
        return table in self._row_caches or bool(functions_of(table, self))

    def reads(self, table: Any) -> bool:
        """Return whether reads of a table use the cache."""
        row_cache = self._row_caches.get(table)
        return row_cache is not None and row_cache.is_on

    def read(
        self, session: ShardSession, table: Any, places: Mapping[int, Place]
    ) -> Mapping[int, Any]:
        """Return objects, or the first rows of lists.

        :param places: the shard locations, by the ids of objects or sources.
        :returns: the objects by id, with None for those not found and
            without those that cannot be loaded; for lists the
            :class:`~.lists.FirstRows` of each.
        """
        return self._row_caches[table].read(session, places)

    def count(
        self,
        session: ShardSession,
        table: Any,
        place: Place,
        source_id: int,
        read_length: Callable[[ShardSession], int],
    ) -> int:
        """Return the length of a list.

        :param read_length: reads the length from the database, in a session.
        """
        row_cache: Any = self._row_caches[table]
        length: int = row_cache.count(session, place, source_id, read_length)
        return length

    def rows(
        self,
        session: ShardSession,
        table: Any,
        place: Place,
        source_id: int,
        rows: Sequence[Any],
    ) -> list[Any] | None:
        """Return objects of the session for rows of a list.

        :returns: None if they cannot be loaded.
        """
        row_cache = self._row_caches[table]
        key = f"{row_cache.head}{source_id}"
        return row_cache.load_objects(session, place, {key: rows}).get(key)

    def record_write(self, session: ShardSession, table: Any, row_id: int) -> None:
        """Record a row that a transaction writes, for invalidation.

        :param row_id: the id that names its shard.
        """
        row_cache = self._row_caches.get(table)
        if row_cache is None:
            place = place_of(session, table, f"a row of {table.name}", row_id)
        else:
            place = row_cache.place(session, row_id)
            for entry in row_cache.keys_of_write(place, row_id):
                session.log.invalidate(entry, place)
        self._record_results(session, table, place, row_id)

    def _record_results(
        self, session: ShardSession, table: Any, place: Place, row_id: int
    ) -> None:
        for function in functions_of(table, self):
            function.record(session, self, row_id, place)

    def record_append(
        self,
        session: ShardSession,
        table: Any,
        source_id: int,
        rows: Sequence[tuple[int, int]],
    ) -> None:
        """Record rows that a transaction has appended at the top of a list.

        :param rows: target and sequence of each row, ascending.
        """
        row_cache: Any = self._row_caches.get(table)
        if row_cache is None:
            self.record_write(session, table, source_id)
            return
        place = row_cache.place(session, source_id)
        for entry, edit in row_cache.keys_of_append(session, place, source_id, rows):
            session.log.invalidate(entry, place, edit)
        self._record_results(session, table, place, source_id)

    def record_insert(
        self, session: ShardSession, table: Any, place: Place, ids: Iterable[Any] = ()
    ) -> None:
        """Record objects that a transaction inserts on a shard.

        :param ids: the ids of the rows; None if an id is unknown.
        """
        row_cache = self._row_caches.get(table)
        if row_cache is not None:
            for entry in row_cache.keys_of_write(place, None):
                session.log.invalidate(entry, place)
        # Results for a deleted row, which is inserted again, may be cached.
        for row_id in ids:
            if isinstance(row_id, int):
                self._record_results(session, table, place, row_id)

    def announce(self, session: ShardSession) -> Announcement:
        """Put tombstones for all recorded keys, before the COMMIT."""
        return announce(session, self.regions, self._tallies)


def _check_mappings(regions: Any, classes: Any) -> None:
    for option, value, what in (
        ("regions", regions, "the names of regions to their configurations"),
        ("classes", classes, "classes to the names of their regions"),
    ):
        if not isinstance(value, Mapping):
            raise OptionError(
                f"must be a mapping of {what}", option=option, value=value
            )
    for name in regions:
        # Check it before the first write: the outbox would refuse the name in
        # the COMMIT of a transaction whose node does not respond.
        if not isinstance(name, str) or not REGION_NAME.fullmatch(name):
            raise OptionError(
                f"has an invalid region name; use 1 to {LONGEST_REGION} "
                "letters, digits, dots, dashes and underscores",
                option="regions",
                value=name,
            )


def _check_cached(class_name: str, cached: Any) -> None:
    if not isinstance(cached, Cached):
        raise OptionError(
            "must be the name of a region or a Cached",
            option=f"classes[{class_name}]",
            value=cached,
        )
    # 1 and "1" would remove each other's values.
    if type(cached.version) is not int:
        raise OptionError(
            f"must be an integer: the version of {class_name}",
            option="version",
            value=cached.version,
        )
