"""The cache of a cluster: its regions, and the classes that are kept."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from sqla_shard.cache.announcing import announce
from sqla_shard.cache.announcing import Announcement
from sqla_shard.cache.classes import Cached
from sqla_shard.cache.classes import check_prefix
from sqla_shard.cache.classes import check_rows
from sqla_shard.cache.classes import Columns
from sqla_shard.cache.classes import is_mapping
from sqla_shard.cache.classes import mapper_of
from sqla_shard.cache.classes import place_of
from sqla_shard.cache.functions import begun
from sqla_shard.cache.functions import functions_of
from sqla_shard.cache.kept import Kept
from sqla_shard.cache.lists import KeptLists
from sqla_shard.cache.memcached import MemcachedStore
from sqla_shard.cache.objects import KeptObjects
from sqla_shard.cache.redis import RedisStore
from sqla_shard.cache.regions import open_region
from sqla_shard.cache.regions import Region
from sqla_shard.cache.regions import REGION_NAME
from sqla_shard.cache.tally import RegionStats
from sqla_shard.cache.tally import stats_of
from sqla_shard.cache.tally import Tally
from sqla_shard.exc import CacheClassError
from sqla_shard.exc import CacheOptionError
from sqla_shard.internal import LONGEST_REGION
from sqla_shard.rendering import Place
from sqla_shard.session.contract import Scope

__all__ = ["Cache"]


class Cache:
    """What is kept of the rows of a cluster, and where.

    ``cluster.configure_cache(...)`` makes one; ``cluster.cache`` is it.

    :param regions: by name, see :func:`~sqla_shard.cache.open_region`.
    :param classes: the object and mapping classes that are kept: the name of
        a region, or a :class:`Cached`.
    :param prefix: what every key begins with; the same for all processes of
        an application, and another for each application of a memcached.
    :ivar classes: those that are kept.
    :raises CacheOptionError: when that makes no sense.
    :raises CacheClassError: when a class cannot be kept.
    """

    def __init__(
        self,
        regions: Mapping[str, Any],
        classes: Mapping[Any, str | Cached],
        prefix: str,
    ) -> None:
        self.prefix = check_prefix(prefix)
        _check_mappings(regions, classes)
        self.classes: tuple[Any, ...] = tuple(classes)
        self.regions = {
            name: open_region(name, config) for name, config in regions.items()
        }
        self._tallies = {name: Tally(name) for name in self.regions}
        self._kept: dict[Any, Kept] = {}
        for cls, how in classes.items():
            kept = self._keep(cls, how)
            names = [str(table.name) for table in self._kept]
            if str(kept.columns.table.name) in names:
                raise CacheClassError(
                    f"has the table {kept.columns.table.name!r}, as another "
                    "class that is cached",
                    class_name=cls.__name__,
                )
            self._kept[kept.columns.table] = kept

    def _keep(self, cls: Any, how: str | Cached) -> Kept:
        mapper = mapper_of(cls)
        cached = Cached(region=how) if isinstance(how, str) else how
        _check_cached(cls.__name__, cached)
        options: dict[str, Any] = {
            "region": self.region(cached.region),
            "tally": Tally(cls.__name__),
            "prefix": self.prefix,
        }
        if is_mapping(cls):
            columns = Columns(mapper, cached.version)
            rows = check_rows(cached.rows)
            return KeptLists(columns, rows=rows, **options)
        return KeptObjects(Columns(mapper, cached.version), **options)

    def region(self, name: str) -> Region:
        """Return a region.

        :raises CacheOptionError: when there is none of the name.
        """
        found = self.regions.get(name)
        if found is None:
            known = ", ".join(map(repr, self.regions)) or "none"
            raise CacheOptionError(
                f"is no region; there are {known}", option="region", value=name
            )
        return found

    def tally(self, name: str) -> Tally:
        """Return what counts for a region.

        :raises CacheOptionError: when there is none of the name.
        """
        return self._tallies[self.region(name).name]

    def close(self) -> None:
        """Close connections to nodes; they are opened again when needed."""
        for region in self.regions.values():
            # One in memory has none, and would forget what it has.
            if isinstance(region.store, (MemcachedStore, RedisStore)):
                region.store.close()

    def __repr__(self) -> str:
        names = ", ".join(self.regions)
        return f"<Cache {self.prefix!r}: {names or 'no regions'}>"

    # -- at run time

    def disable(self, cls: Any) -> None:
        """Let reads of a class go to the database, in this process.

        What is written is invalidated all the same: other processes read
        it.  Decided anew with :meth:`enable`.

        :raises CacheClassError: when it is not cached.
        """
        self._of_class(cls).is_on = False

    def enable(self, cls: Any) -> None:
        """Let reads of a class use the cache again.

        :raises CacheClassError: when it is not cached.
        """
        self._of_class(cls).is_on = True

    def is_enabled(self, cls: Any) -> bool:
        """Tell whether reads of a class use the cache, in this process.

        :raises CacheClassError: when it is not cached.
        """
        return self._of_class(cls).is_on

    def invalidate(
        self, session: Any, cls: Any, ids: int | Iterable[int]
    ) -> None:
        """Have rows invalidated with the COMMIT of a transaction.

        For what is written where the session does not see it, such as in
        textual SQL, or by somebody else: the transaction need not write
        anything itself.  With the rows, what functions of the class have
        returned for these ids is invalidated.

        :param session: that writes; its transaction begins, if need be.
        :param ids: of the objects, or of the sources of the lists.
        :raises CacheClassError: when the class is not cached.
        :raises InvalidIdError: when one is no id.
        """
        scope = begun(session)
        table = mapper_of(cls).local_table
        if not self.keeps(table):
            self._of_class(cls)
        for object_id in [ids] if isinstance(ids, int) else list(ids):
            self.written(scope, table, object_id)

    def stats(self) -> list[RegionStats]:
        """Return what this process has counted, by region."""
        return [
            stats_of(
                tally,
                [
                    (kept.tally, kept.is_on)
                    for kept in self._kept.values()
                    if kept.region.name == name
                ],
            )
            for name, tally in self._tallies.items()
        ]

    def _of_class(self, cls: Any) -> Kept:
        found = self._kept.get(mapper_of(cls).local_table)
        if found is None:
            raise CacheClassError(
                "is not named in configure_cache(classes=...)",
                class_name=cls.__name__,
            )
        return found

    # -- for sessions

    def keeps(self, table: Any) -> bool:
        """Tell whether rows of a table are kept, or what is made of them."""
        if table is None:  # of textual SQL
            return False
        return table in self._kept or bool(functions_of(table, self))

    def reads(self, table: Any) -> bool:
        """Tell whether reads of a table look here."""
        kept = self._kept.get(table)
        return kept is not None and kept.is_on

    def read(
        self, scope: Scope, table: Any, places: Mapping[int, Place]
    ) -> Mapping[int, Any]:
        """Return objects, or the first rows of lists.

        :param places: where they are, by the ids of objects or sources.
        :returns: by id, for objects None where there is none, and without
            those that cannot be loaded; see :class:`~.lists.Prefix` for
            lists.
        """
        return self._kept[table].read(scope, places)

    def count(
        self,
        scope: Scope,
        table: Any,
        place: Place,
        source_id: int,
        ask: Callable[[Scope], int],
    ) -> int:
        """Return the length of a list.

        :param ask: asks the database, in a session.
        """
        kept: Any = self._kept[table]
        length: int = kept.count(scope, place, source_id, ask)
        return length

    def rows(
        self,
        scope: Scope,
        table: Any,
        place: Place,
        source_id: int,
        rows: Sequence[Any],
    ) -> list[Any] | None:
        """Return objects of the session for rows of a list.

        :returns: None when they cannot be loaded.
        """
        kept = self._kept[table]
        key = f"{kept.head}{source_id}"
        return kept.loaded(scope, place, {key: rows}).get(key)

    def written(self, scope: Scope, table: Any, row_id: int) -> None:
        """Take note of rows that a transaction writes.

        :param row_id: the id that names their shard.
        """
        kept = self._kept.get(table)
        if kept is None:
            place = place_of(scope, table, f"a row of {table.name}", row_id)
        else:
            place = kept.place(scope, row_id)
            for entry in kept.written(place, row_id):
                scope.log.note(entry, place)
        self._note_functions(scope, table, place, row_id)

    def _note_functions(
        self, scope: Scope, table: Any, place: Place, row_id: int
    ) -> None:
        for function in functions_of(table, self):
            function.note(scope, self, row_id, place)

    def appended(
        self,
        scope: Scope,
        table: Any,
        source_id: int,
        rows: Sequence[tuple[int, int]],
    ) -> None:
        """Take note of rows that a transaction has put on top of a list.

        :param rows: target and sequence of each, ascending.
        """
        kept: Any = self._kept.get(table)
        if kept is None:
            self.written(scope, table, source_id)
            return
        place = kept.place(scope, source_id)
        for entry, edit in kept.appended(scope, place, source_id, rows):
            scope.log.note(entry, place, edit)
        self._note_functions(scope, table, place, source_id)

    def inserted(
        self,
        scope: Scope,
        table: Any,
        place: Place,
        ids: Iterable[Any] = (),
    ) -> None:
        """Take note of objects that a transaction inserts on a shard.

        :param ids: of the rows, None where it is not known.
        """
        kept = self._kept.get(table)
        if kept is not None:
            for entry in kept.written(place, None):
                scope.log.note(entry, place)
        # A row that was deleted may be put back; of one that there never
        # was, nobody has asked.
        for row_id in ids:
            if isinstance(row_id, int):
                self._note_functions(scope, table, place, row_id)

    def announce(self, scope: Scope) -> Announcement:
        """Announce the COMMIT of what was noted, before it is sent."""
        return announce(scope, self.regions, self._tallies)


def _check_mappings(regions: Any, classes: Any) -> None:
    for option, value, what in (
        ("regions", regions, "the name of each region to its configuration"),
        ("classes", classes, "each class to the name of its region"),
    ):
        if not isinstance(value, Mapping):
            raise CacheOptionError(
                f"is no mapping: it has to lead from {what}",
                option=option,
                value=value,
            )
    for name in regions:
        # Not later: the outbox would refuse it, in the COMMIT of somebody
        # whose node does not answer.
        if not isinstance(name, str) or not REGION_NAME.fullmatch(name):
            raise CacheOptionError(
                f"has a name that is none; use 1 to {LONGEST_REGION} letters, "
                "digits, dots, dashes and underscores",
                option="regions",
                value=name,
            )


def _check_cached(class_name: str, cached: Any) -> None:
    if not isinstance(cached, Cached):
        raise CacheOptionError(
            "is neither the name of a region nor a Cached",
            option=f"classes[{class_name}]",
            value=cached,
        )
    # 1 and "1" would take each other's values out.
    if type(cached.version) is not int:
        raise CacheOptionError(
            f"is no full number, and the version of {class_name} has to be",
            option="version",
            value=cached.version,
        )
