"""The dictionaries of a table in the databases of its virtual shards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import bindparam, false, inspect, select, update

from sqla_shard.cluster.cluster import Cluster
from sqla_shard.dialects.sql import InsertMissing, IsBinary, ServerTime
from sqla_shard.engine import by_server, Places
from sqla_shard.engine.rendering import Place
from sqla_shard.engine.unreachable import (
    for_each_shard,
    unreachable_lines,
    unreachable_values,
    UnreachableServer,
)
from sqla_shard.exc import ClassDefinitionError, DictionaryError
from sqla_shard.models import ObjectMixin
from sqla_shard.models.blob_writes import name_of, SECONDS
from sqla_shard.outbox.tables import DICTIONARIES
from sqla_shard.planning import spec_of
from sqla_shard.session import ShardSession
from sqla_shard.topology import Keyspace
from sqla_shard.types import JSONBlob
from sqla_shard.types.compression import Dictionary

T = TypeVar("T")

#: Number of attempts to write a shard; the caller can repeat all.
_ATTEMPTS = 3
#: Maximum number of servers that are read or written in parallel.
_PARALLEL = 8

_dictionary = DICTIONARIES.c
_named = _dictionary.name == bindparam("the_name")
_STORED = select(_dictionary.id, _dictionary.version, _dictionary.is_active).where(
    _named
)
_ACTIVE = select(_dictionary.id).where(_named, _dictionary.is_active)
_CONTENT = select(_dictionary.content).where(_dictionary.id == bindparam("the_id"))
_INSERT = InsertMissing(DICTIONARIES).values(
    id=bindparam("the_id"),
    name=bindparam("the_name"),
    version=bindparam("the_version"),
    content=bindparam("the_content"),
    is_active=False,
    created_at=ServerTime(),
)
_ACTIVATE = (
    update(DICTIONARIES)
    .where(_named)
    .values(is_active=_dictionary.id == bindparam("the_id"))
)
_DEACTIVATE = update(DICTIONARIES).where(_named).values(is_active=false())


class Blobs:
    """The compressed blobs of one class.

    :param cls: an object class.
    :raises ClassDefinitionError: if its blobs are not compressed.
    """

    def __init__(self, cls: Any) -> None:
        mapper = inspect(cls, raiseerr=False)
        name = None
        if mapper is not None and issubclass(cls, ObjectMixin):
            name = name_of(mapper.local_table)
        if name is None:
            raise ClassDefinitionError(
                "its blobs are not compressed; it must be an object class "
                'with compression="zstd"',
                class_name=getattr(cls, "__name__", repr(cls)),
            )
        #: Name of the dictionary.
        self.name = name
        self.table: Any = mapper.local_table
        self.type: JSONBlob = self.table.c.data.type
        self._spec = spec_of(self.table)

    def places(self, cluster: Cluster) -> list[Place]:
        """Return the locations of the shards of the table, in order."""
        places = cluster.places
        return places.all_places(self._keyspace(places))

    def place(self, places: Places, shard_id: int) -> Place:
        """Return the location of a shard of the table."""
        return places.place(self._keyspace(places), shard_id)

    def _keyspace(self, places: Places) -> Keyspace:
        return places.keyspace(self._spec.keyspace, self._spec.kind)


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A dictionary in the database of a shard, without its content."""

    id: int
    version: int
    is_active: bool


@dataclass(frozen=True, kw_only=True)
class ActivationReport:
    """The result of :func:`activate` or :func:`deactivate`.

    :ivar name: name of the dictionary.
    :ivar version: the version that is written from now on; None for JSON.
    :ivar shards: number of shards that were changed.
    :ivar unreachable: shards that could not be changed, by server.
    """

    name: str
    version: int | None
    shards: int
    unreachable: tuple[UnreachableServer, ...]

    @property
    def ok(self) -> bool:
        """Whether all shards were changed."""
        return not self.unreachable

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes as JSON values."""
        return {
            "name": self.name,
            "version": self.version,
            "shards": self.shards,
            "unreachable": unreachable_values(self.unreachable),
        }

    def __str__(self) -> str:
        what = "JSON" if self.version is None else f"version {self.version}"
        first = (
            f"{self.name}: {self.shards:,} shards write {what}; every "
            f"process does so within {SECONDS:.0f} seconds"
        )
        return "\n".join([first, *unreachable_lines(self.unreachable)])


def visit(
    cluster: Cluster, places: Iterable[Place], work: Callable[[Place], T]
) -> tuple[dict[Place, T], list[UnreachableServer]]:
    """Call a function for each shard, for several servers in parallel.

    :returns: the results by shard, in order; and the shards that were not
        read or written.
    """

    def on_server(
        group: Sequence[Place],
    ) -> tuple[dict[Place, T], list[UnreachableServer]]:
        found: dict[Place, T] = {}

        def one(place: Place) -> None:
            found[place] = work(place)

        return found, for_each_shard(group, one)

    given = list(places)
    results: dict[Place, T] = {}
    unreachable: list[UnreachableServer] = []
    for found, failed in cluster.places.engines.in_parallel(
        [partial(on_server, group) for group in by_server(given)], "blobs", _PARALLEL
    ):
        results.update(found)
        unreachable += failed
    return {one: results[one] for one in given if one in results}, unreachable


def not_read(unreachable: Iterable[UnreachableServer]) -> str:
    """Return the servers that were not read, for the end of a message."""
    return "".join(f"; {line}" for line in unreachable_lines(unreachable))


def stored_on_all(
    cluster: Cluster, blobs: Blobs
) -> tuple[dict[Place, list[Stored]], list[UnreachableServer]]:
    """Return the dictionaries that each shard has.

    :returns: them by shard; and the shards that were not read.
    """

    def read(place: Place) -> list[Stored]:
        with cluster.session() as session:
            rows = session.execute(
                _STORED, {"the_name": blobs.name}, bind_arguments={"place": place}
            )
            return [Stored(**row._mapping) for row in rows]

    return visit(cluster, blobs.places(cluster), read)


def active_id(session: ShardSession, place: Place, name: str) -> int | None:
    """Return the id of the active dictionary of a shard, or None."""
    found: int | None = session.execute(
        _ACTIVE, {"the_name": name}, bind_arguments={"place": place}
    ).scalar()
    return found


def store(
    cluster: Cluster, blobs: Blobs, dictionary: Dictionary, version: int
) -> list[UnreachableServer]:
    """Store a dictionary on every shard; it is not active.

    :returns: the shards on which it was not stored.
    :raises DictionaryError: if a shard has another dictionary of this
        version.
    """
    # The first shard decides between two processes that store this version.
    first, *others = blobs.places(cluster)
    work = partial(_store, cluster, blobs.name, dictionary, version)
    work(first)
    return visit(cluster, others, work)[1]


def _store(
    cluster: Cluster, name: str, dictionary: Dictionary, version: int, place: Place
) -> None:
    cluster.run(_insert, name, dictionary, version, place, attempts=_ATTEMPTS)


def _insert(
    session: ShardSession, name: str, dictionary: Dictionary, version: int, place: Place
) -> None:
    """Store a dictionary on a shard that may have it."""
    at = {"place": place}
    values = {
        "the_id": dictionary.id,
        "the_name": name,
        "the_version": version,
        "the_content": dictionary.content,
    }
    session.execute(_INSERT, values, bind_arguments=at)
    found = session.execute(_STORED, {"the_name": name}, bind_arguments=at).all()
    if (dictionary.id, version) not in {(one.id, one.version) for one in found}:
        raise _conflict(name, version, place)


def activate(
    cluster: Cluster, cls: Any, version: int | None = None
) -> ActivationReport:
    """Let processes write blobs with a dictionary.

    The dictionary is copied to shards that do not have it, such as those that
    were opened meanwhile.  A shard that cannot be reached goes on writing as
    before; repeat the call.

    :param cls: an object class.
    :param version: the version; None for the newest.
    :raises ClassDefinitionError: if blobs of the class are not compressed.
    :raises DictionaryError: if there is no such version, or a column
        is not binary.
    :raises DictionaryError: if shards have different dictionaries of
        the version.
    """
    blobs = Blobs(cls)
    stored, unreachable = stored_on_all(cluster, blobs)
    holders = _holders(blobs, stored, version, unreachable)
    place, chosen = next(iter(holders.items()))
    dictionary = _content(cluster, place, chosen.id)
    _check_columns(cluster, blobs, stored)

    def write(place: Place) -> None:
        cluster.run(
            _activate, blobs.name, dictionary, chosen.version, place, attempts=_ATTEMPTS
        )

    done, failed = visit(cluster, stored, write)
    return ActivationReport(
        name=blobs.name,
        version=chosen.version,
        shards=len(done),
        unreachable=(*unreachable, *failed),
    )


def _holders(
    blobs: Blobs,
    stored: Mapping[Place, Sequence[Stored]],
    version: int | None,
    unreachable: Sequence[UnreachableServer],
) -> dict[Place, Stored]:
    """Return the shards that have a version, and their dictionary."""
    versions = {one.version for found in stored.values() for one in found}
    wanted = max(versions, default=0) if version is None else version
    holders = {
        place: one
        for place, found in stored.items()
        for one in found
        if one.version == wanted
    }
    if not holders:
        what = "no version is"
        if version is not None:
            what = f"version {version} is not"
        raise DictionaryError(
            f"{what} stored on the shards that were read; create one: "
            f"sqla-shard blobs train{not_read(unreachable)}",
            name=blobs.name,
        )
    first = next(iter(holders.values()))
    for place, one in holders.items():
        if one.id != first.id:
            raise _conflict(blobs.name, wanted, place)
    return holders


def _conflict(name: str, version: int | None, place: Place) -> DictionaryError:
    return DictionaryError(
        f"shard {place.shard_id} has another version {version} of the "
        "dictionary: another process has trained one meanwhile. Train again, "
        "which uses the next version",
        name=name,
    )


def _content(cluster: Cluster, place: Place, dictionary_id: int) -> Dictionary:
    with cluster.session() as session:
        content = session.execute(
            _CONTENT, {"the_id": dictionary_id}, bind_arguments={"place": place}
        ).scalar_one()
    return Dictionary(bytes(content))


def _check_columns(cluster: Cluster, blobs: Blobs, places: Iterable[Place]) -> None:
    """Refuse to write bytes to columns that contain text.

    :raises DictionaryError: if a column is not binary.
    """
    statement = select(IsBinary(blobs.table.c.data))

    def is_binary(place: Place) -> bool:
        with cluster.session() as session:
            return bool(
                session.execute(statement, bind_arguments={"place": place}).scalar()
            )

    found, _ = visit(cluster, places, is_binary)
    text = [place.shard_id for place, answer in found.items() if not answer]
    if text:
        raise DictionaryError(
            f"the column {blobs.table.name}.data of {len(text):,} shards, "
            f"such as {text[0]}, contains text; change its type first, with "
            "a revision: alembic revision --autogenerate",
            name=blobs.name,
        )


def _activate(
    session: ShardSession, name: str, dictionary: Dictionary, version: int, place: Place
) -> None:
    _insert(session, name, dictionary, version, place)
    session.execute(
        _ACTIVATE,
        {"the_name": name, "the_id": dictionary.id},
        bind_arguments={"place": place},
    )


def deactivate(cluster: Cluster, cls: Any) -> ActivationReport:
    """Let processes write blobs as JSON; compressed ones can still be read.

    :raises ClassDefinitionError: if blobs of the class are not compressed.
    """
    blobs = Blobs(cls)

    def change(session: ShardSession, place: Place) -> None:
        session.execute(
            _DEACTIVATE, {"the_name": blobs.name}, bind_arguments={"place": place}
        )

    def write(place: Place) -> None:
        cluster.run(change, place, attempts=_ATTEMPTS)

    done, unreachable = visit(cluster, blobs.places(cluster), write)
    return ActivationReport(
        name=blobs.name, version=None, shards=len(done), unreachable=tuple(unreachable)
    )
