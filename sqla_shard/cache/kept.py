"""What the caches of objects and of lists have in common."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from typing import Generic
from typing import TypeVar

from sqlalchemy import Engine

from sqla_shard.cache.answers import answering
from sqla_shard.cache.answers import ROWS
from sqla_shard.cache.awaiting import sleep_of
from sqla_shard.cache.awaiting import store_of
from sqla_shard.cache.cells import Cells
from sqla_shard.cache.classes import Columns
from sqla_shard.cache.classes import place_of
from sqla_shard.cache.codec import dump
from sqla_shard.cache.generations import generation_of
from sqla_shard.cache.protocol import give_back
from sqla_shard.cache.protocol import read_through
from sqla_shard.cache.protocol import Source
from sqla_shard.cache.regions import Region
from sqla_shard.cache.store import Store
from sqla_shard.cache.tally import Tally
from sqla_shard.exc import ConcurrentUseError
from sqla_shard.rendering import Place
from sqla_shard.routing import spec_of
from sqla_shard.session.beside import beside
from sqla_shard.session.contract import INCLUDE_INACTIVE
from sqla_shard.session.contract import Scope
from sqla_shard.session.contract import Unlike

__all__ = ["OPTIONS", "Kept", "Part", "parted"]

T = TypeVar("T")
K = TypeVar("K")

_log = logging.getLogger(__name__)

#: What reads them is to see all that is there, and to write nothing.
OPTIONS = {INCLUDE_INACTIVE: True, "autoflush": False}


class Kept:
    """Rows of one class.

    :param columns: of the class.
    :param region: where they are kept.
    :param tally: counts for the class.
    :param prefix: what keys begin with.
    :ivar is_on: whether reads look there.
    :ivar head: what the keys of the class begin with.
    """

    def __init__(
        self, columns: Columns, *, region: Region, tally: Tally, prefix: str
    ) -> None:
        self.columns = columns
        self.region = region
        self.tally = tally
        self.is_on = True
        self.head = f"{prefix}:{columns.table.name}:"
        self._has_warned = False

    def place(self, scope: Scope, row_id: int) -> Place:
        """Return where a row is.

        :param row_id: the id that names its shard.
        :raises WrongTypeError: when it is the id of another class.
        """
        return place_of(scope, self.columns.table, self.columns.name, row_id)

    def read(
        self, scope: Scope, places: Mapping[int, Place]
    ) -> Mapping[int, Any]:
        """Return what is asked for, by the ids of objects or sources."""
        raise NotImplementedError

    def written(
        self, place: Place, row_id: int | None
    ) -> Iterable[tuple[str, str]]:
        """Return the regions and keys of what is written.

        :param row_id: the id that names the shard; None for rows that are
            inserted, where that is something else.
        """
        raise NotImplementedError

    def store(self, scope: Scope) -> Store:
        """Return the store, for the kind of the session."""
        return store_of(self.region.store, scope)

    def through(
        self,
        scope: Scope,
        keys: Iterable[str],
        source: Source[T],
        part: Part[Any],
    ) -> dict[str, T]:
        """Read keys through the store; see :func:`~.protocol.read_through`.

        :param part: what the source reads.
        """
        return read_through(
            self.store(scope),
            list(keys),
            source,
            self.region.times,
            leases=part.leases,
            still=part.is_fresh,
            tally=self.tally,
            sleep=sleep_of(scope),
        )

    def tag(self, scope: Scope, place: Place) -> bytes:
        """Return what a value begins with that we can read."""
        generation = generation_of(scope.places, place)
        return f"{self.columns.digest}:{generation}:".encode("ascii")

    def tags(self, scope: Scope, places: Mapping[K, Place]) -> dict[K, bytes]:
        """Return :meth:`tag` of many, each place once."""
        known: dict[Place, bytes] = {}
        tags = {}
        for key, place in places.items():
            tag = known.get(place)
            if tag is None:
                tag = known[place] = self.tag(scope, place)
            tags[key] = tag
        return tags

    def cells(self, place: Place) -> Cells:
        """Return what the cells of a row are on the server of a place."""
        return self.columns.cells(place.engine.dialect)

    def dumped(
        self, place: Place, rows: Sequence[Any], value: Any
    ) -> bytes | None:
        """Return a value as bytes; None where it cannot be kept.

        :param place: of the rows.
        :param rows: that are in the value.
        """
        try:
            # What would not be believed when it is read.
            if not all(map(self.cells(place).fit, rows)):
                raise TypeError("a column has a value of another type")
            return dump(value)
        except (TypeError, ValueError) as error:
            if not self._has_warned:
                self._has_warned = True
                _log.warning(
                    "a row of %s is not cached, nor are others like it: %s",
                    self.columns.name,
                    error,
                    extra={"action": "cache", "class": self.columns.name},
                )
            return None

    def loaded(
        self,
        scope: Scope,
        place: Place,
        rows: Mapping[str, Sequence[Sequence[Any]]],
    ) -> dict[str, list[Any]]:
        """Return objects of the session, in the order of their rows.

        A value whose rows cannot be loaded is removed, and is not in what is
        returned.  Should it not be to blame, but a listener, say, the row of
        the database raises the same error.

        :param place: of any of them.
        :param rows: by the keys of their values.
        :raises Unlike: when listeners ask for something else.
        """
        every = [row for some in rows.values() for row in some]
        try:
            objects = iter(self._instances(scope, place, every))
        except (ConcurrentUseError, Unlike):
            raise
        except Exception:
            # At least one of them; the others are loaded on their own.
            return self._loaded_one_by_one(scope, place, rows)
        return {
            key: [next(objects) for _ in some] for key, some in rows.items()
        }

    def _loaded_one_by_one(
        self,
        scope: Scope,
        place: Place,
        rows: Mapping[str, Sequence[Sequence[Any]]],
    ) -> dict[str, list[Any]]:
        found = {}
        for key, some in rows.items():
            try:
                found[key] = self._instances(scope, place, some)
            except (ConcurrentUseError, Unlike):
                raise
            except Exception as error:
                give_back(self.store(scope), [key])
                self.tally.add(unreadable=1)
                self.tally.log(error)
        return found

    def _instances(
        self, scope: Scope, place: Place, rows: Sequence[Sequence[Any]]
    ) -> list[Any]:
        found = scope.scalars(
            self.columns.select,
            bind_arguments={"place": answering(place)},
            execution_options={**OPTIONS, ROWS: (self.columns.select, rows)},
        )
        objects = list(found)
        check = spec_of(self.columns.table).check
        if check is not None:
            try:
                for one in objects:
                    check(one)
            except Exception:
                # Or the session would have it, and not look again.
                for one in objects:
                    scope.expire(one)
                raise
        return objects


@dataclass(frozen=True)
class Part(Generic[K]):
    """What is read in one way.

    :ivar places: where, by what is asked for.
    :ivar scope: the session that it is for.
    :ivar is_aside: whether it is read in a transaction of its own.
    :ivar leases: whether what is read may be kept.
    """

    places: Mapping[K, Place]
    scope: Scope
    is_aside: bool
    leases: bool

    @contextmanager
    def reader(self) -> Iterator[Scope]:
        """Yield the session that reads, each time as of then."""
        if not self.is_aside:
            yield self.scope
            return
        with beside(self.scope) as session:
            yield session

    def is_fresh(self) -> bool:
        """Tell whether what is read next is as new as can be."""
        if self.is_aside:
            return True
        return all(map(self.scope.sees_the_present, self.places.values()))


def parted(scope: Scope, places: Mapping[K, Place]) -> Iterator[Part[K]]:
    """Part what is read by how it is.

    A value has to be read after it was leased.  A transaction that has read
    on a server goes on seeing what was there at that time, unless it reads
    what is committed at each statement: then nothing is leased.  Where it
    has not begun it does not begin because of us, but what is missing is
    read in a transaction of its own.
    """
    found: dict[tuple[bool, bool], dict[K, Place]] = {}
    ways: dict[Engine, tuple[bool, bool]] = {}
    for key, place in places.items():
        way = ways.get(place.engine)
        if way is None:
            is_aside = not scope.is_connected(place)
            leases = is_aside or scope.sees_the_present(place)
            way = ways[place.engine] = is_aside, leases
        found.setdefault(way, {})[key] = place
    for (is_aside, leases), part in found.items():
        yield Part(part, scope, is_aside, leases)
