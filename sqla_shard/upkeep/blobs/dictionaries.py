"""Dictionaries: stored, trained, and what is compressed with them."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic, process_time
from typing import Any, TypeVar

from sqlalchemy import (
    bindparam,
    case,
    cast,
    false,
    func,
    inspect,
    LargeBinary,
    literal,
    select,
    type_coerce,
    update,
)
from sqlalchemy.types import NullType

from sqla_shard.cluster.cluster import Cluster
from sqla_shard.dialects.sql import InsertMissing, IsBinary, ServerTime
from sqla_shard.engine import by_server, Places
from sqla_shard.engine.rendering import Place
from sqla_shard.engine.unreachable import (
    for_each_shard,
    ShardsReport,
    unreachable_lines,
    UnreachableServer,
)
from sqla_shard.exc import ClassDefinitionError, DictionaryError
from sqla_shard.models import ObjectMixin
from sqla_shard.models.blob_writes import dictionary_name, DICTIONARY_SECONDS
from sqla_shard.outbox.tables import DICTIONARIES as DICTIONARY_TABLE
from sqla_shard.planning import spec_of
from sqla_shard.session import ShardSession
from sqla_shard.topology import Keyspace
from sqla_shard.types import JSONBlob
from sqla_shard.types.blob import decode_stored
from sqla_shard.types.compression import (
    DICTIONARIES,
    Dictionary,
    MARKER,
    PREFIX_BYTES,
    train_dictionary,
)
from sqla_shard.util.json_values import JsonObject

T = TypeVar("T")

# -- The dictionaries of a table in the databases of its virtual shards.

#: Number of attempts to write a shard; the caller can repeat all.
_ATTEMPTS = 3

#: Maximum number of servers that are read or written in parallel.
_PARALLEL = 8

_dictionary = DICTIONARY_TABLE.c

_named = _dictionary.name == bindparam("the_name")

_STORED = select(_dictionary.id, _dictionary.version, _dictionary.is_active).where(
    _named
)

_ACTIVE = select(_dictionary.id).where(_named, _dictionary.is_active)

_CONTENT = select(_dictionary.content).where(_dictionary.id == bindparam("the_id"))

_INSERT = InsertMissing(DICTIONARY_TABLE).values(
    id=bindparam("the_id"),
    name=bindparam("the_name"),
    version=bindparam("the_version"),
    content=bindparam("the_content"),
    is_active=False,
    created_at=ServerTime(),
)

_ACTIVATE = (
    update(DICTIONARY_TABLE)
    .where(_named)
    .values(is_active=_dictionary.id == bindparam("the_id"))
)

_DEACTIVATE = update(DICTIONARY_TABLE).where(_named).values(is_active=false())


class Blobs:
    """The compressed blobs of one class.

    :param cls: an object class.
    :raises ClassDefinitionError: if its blobs are not compressed.
    """

    def __init__(self, cls: Any) -> None:
        mapper = inspect(cls, raiseerr=False)
        name = None
        if mapper is not None and issubclass(cls, ObjectMixin):
            name = dictionary_name(mapper.local_table)
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
        return places.all_places(self.keyspace(places))

    def place(self, places: Places, shard_id: int) -> Place:
        """Return the location of a shard of the table."""
        return places.place(self.keyspace(places), shard_id)

    def keyspace(self, places: Places) -> Keyspace:
        """Return the keyspace of the table."""
        return places.keyspace(self._spec.keyspace, self._spec.kind)


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A dictionary in the database of a shard, without its content."""

    id: int
    version: int
    is_active: bool


@dataclass(frozen=True, kw_only=True)
class ActivationReport(ShardsReport):
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

    def __str__(self) -> str:
        what = "JSON" if self.version is None else f"version {self.version}"
        first = (
            f"{self.name}: {self.shards:,} shards write {what}; every "
            f"process does so within {DICTIONARY_SECONDS:.0f} seconds"
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
        values: dict[Place, T] = {}

        def one(place: Place) -> None:
            values[place] = work(place)

        return values, for_each_shard(group, one)

    given = list(places)
    results: dict[Place, T] = {}
    unreachable: list[UnreachableServer] = []
    for values, failed in cluster.places.engines.in_parallel(
        [partial(on_server, group) for group in by_server(given)], "blobs", _PARALLEL
    ):
        results.update(values)
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
    dictionary_id: int | None = session.execute(
        _ACTIVE, {"the_name": name}, bind_arguments={"place": place}
    ).scalar()
    return dictionary_id


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
    rows = session.execute(_STORED, {"the_name": name}, bind_arguments=at).all()
    if (dictionary.id, version) not in {(one.id, one.version) for one in rows}:
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

    binary, _ = visit(cluster, places, is_binary)
    text = [place.shard_id for place, answer in binary.items() if not answer]
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


# -- Training of a dictionary from rows of a table.
#
# Rows are read from random places of random shards of all servers, in
# parallel, until there are enough or the time is over.  One fifth of them
# are not used for training: the ratio that is reported is theirs, as it
# will be for new rows.

#: Sizes of the dictionaries that are compared, in bytes.
_SIZES = (8192, 16_384, 32_768, 65_536, 112_640)

#: A larger dictionary must compress better by this factor.
_GAIN = 1.02

_LEAST_ROWS = 100

#: Maximum number of rows that one statement reads.
_PAGE = 50


@dataclass(frozen=True, kw_only=True)
class TrainingReport(ShardsReport):
    """A new dictionary, and what it will achieve.

    :ivar name: name of the dictionary.
    :ivar version: its version; None if it was not stored.
    :ivar dictionary_id: its id, as in compressed blobs.
    :ivar dictionary_bytes: its size.
    :ivar rows: number of rows that were read.
    :ivar shards: number of shards they are from.
    :ivar validation_rows: number of rows that were not used for training.
    :ivar average_bytes: average size of their JSON.
    :ivar compressed_bytes: average size after compression.
    :ivar zlib_bytes: average size after compression with zlib, for comparison.
    :ivar compress_microseconds: CPU time to compress a row.
    :ivar decompress_microseconds: CPU time to decompress a row.
    :ivar unreachable: shards that could not be read or written, by server.
    """

    name: str
    version: int | None
    dictionary_id: int
    dictionary_bytes: int
    rows: int
    shards: int
    validation_rows: int
    average_bytes: float
    compressed_bytes: float
    zlib_bytes: float
    compress_microseconds: float
    decompress_microseconds: float
    unreachable: tuple[UnreachableServer, ...]

    @property
    def ratio(self) -> float:
        """Expected size of JSON divided by that of compressed blobs."""
        return self.average_bytes / self.compressed_bytes

    @property
    def ok(self) -> bool:
        """Whether all shards were read, and have the dictionary."""
        return not self.unreachable

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes as JSON values."""
        return {
            **super().as_dict(),
            "dictionary_id": f"{self.dictionary_id:06x}",
            "ratio": round(self.ratio, 2),
        }

    def __str__(self) -> str:
        stored = "not stored (dry run)"
        if self.version is not None:
            stored = f"stored as version {self.version}, not active yet"
        lines = [
            (
                f"{self.name}: {self.rows:,} rows of {self.shards:,} shards; "
                f"{self.validation_rows:,} of them for validation"
            )
        ]
        lines.append(
            f"dictionary {self.dictionary_id:06x}: "
            f"{self.dictionary_bytes:,} bytes, {stored}"
        )
        lines.append(
            f"expected ratio: {self.ratio:.2f} (zlib: "
            f"{self.average_bytes / self.zlib_bytes:.2f}); {self.average_bytes:.0f} to "
            f"{self.compressed_bytes:.0f} bytes per row"
        )
        lines.append(
            f"CPU time per row: {self.compress_microseconds:.1f} us to write, "
            f"{self.decompress_microseconds:.1f} us to read"
        )
        return "\n".join([*lines, *unreachable_lines(self.unreachable)])


def train(
    cluster: Cluster,
    cls: Any,
    *,
    rows: int = 20_000,
    seconds: float = 60.0,
    dry_run: bool = False,
    seed: int | None = None,
) -> TrainingReport:
    """Train a dictionary from rows of a class, and store it on every shard.

    It is not used for writing before :func:`activate`.

    :param cls: an object class with ``compression="zstd"``.
    :param rows: maximum number of rows to read.
    :param seconds: time in which rows are read.
    :param dry_run: whether the dictionary is not stored.
    :param seed: makes the choice of rows repeatable.
    :raises ClassDefinitionError: if blobs of the class are not compressed.
    :raises DictionaryError: if there are too few rows, or compression
        does not make them smaller.
    :raises DictionaryError: if another process has stored the same
        version.
    :raises ValueError: if ``rows`` or ``seconds`` is not valid.
    """
    if type(rows) is not int or rows < _LEAST_ROWS:
        raise ValueError(f"rows={rows!r} must be an integer, {_LEAST_ROWS} or more")
    if not seconds > 0:
        raise ValueError(f"seconds={seconds!r} must be above 0")
    blobs = Blobs(cls)
    # Refuses a dictionary that is not stored everywhere because of an older
    # schema, before the rows are read.
    stored, unreachable = stored_on_all(cluster, blobs)
    chooser = random.Random(seed)  # noqa: S311  # not a secret
    texts, shards, failed = _sample(cluster, blobs, rows, seconds, chooser)
    unreachable = list({one.server: one for one in (*unreachable, *failed)}.values())
    if len(texts) < _LEAST_ROWS:
        raise DictionaryError(
            f"only {len(texts)} rows were read, and {_LEAST_ROWS} are required; wait "
            f"until there are more, or allow more seconds{not_read(unreachable)}",
            name=blobs.table.name,
        )
    chooser.shuffle(texts)
    most = len(texts) // 5
    held, used = texts[:most], texts[most:]
    dictionary = _best(blobs, used, held)
    version = None
    if not dry_run:
        known = [one.version for found in stored.values() for one in found]
        version = max(known, default=0) + 1
        unreachable += store(cluster, blobs, dictionary, version)
    return _report(blobs, dictionary, version, held, len(texts), shards, unreachable)


def _report(
    blobs: Blobs,
    dictionary: Dictionary,
    version: int | None,
    held: Sequence[bytes],
    rows: int,
    shards: int,
    unreachable: Sequence[UnreachableServer],
) -> TrainingReport:
    texts = [one.decode() for one in held]
    started = process_time()
    packed = [dictionary.pack(one) for one in texts]
    middle = process_time()
    for one in packed:
        if one is not None:
            dictionary.unpack(one, blobs.type.limit)
    ended = process_time()
    count = len(held)
    return TrainingReport(
        name=blobs.name,
        version=version,
        dictionary_id=dictionary.id,
        dictionary_bytes=len(dictionary.content),
        rows=rows,
        shards=shards,
        validation_rows=count,
        average_bytes=sum(map(len, held)) / count,
        compressed_bytes=_size(dictionary, held) / count,
        zlib_bytes=sum(len(zlib.compress(one)) for one in held) / count,
        compress_microseconds=(middle - started) / count * 1e6,
        decompress_microseconds=(ended - middle) / count * 1e6,
        unreachable=tuple(unreachable),
    )


def _size(dictionary: Dictionary, texts: Sequence[bytes]) -> int:
    return sum(len(dictionary.pack(text.decode()) or text) for text in texts)


def _best(blobs: Blobs, used: Sequence[bytes], held: Sequence[bytes]) -> Dictionary:
    """Return the smallest dictionary that compresses almost best.

    :param used: rows for training.
    :param held: other rows, for the comparison.
    :raises DictionaryError: if none makes rows smaller.
    """
    best: tuple[float, Dictionary] | None = None
    problem = "compression does not make the rows smaller"
    for size in _SIZES:
        try:
            dictionary = Dictionary(train_dictionary(used, size))
        except ValueError as error:
            problem = f"no dictionary can be trained from the rows: {error}"
            continue
        bytes_ = float(_size(dictionary, held))
        if best is None or bytes_ * _GAIN < best[0]:
            best = bytes_, dictionary
    if best is None or best[0] >= sum(map(len, held)):
        raise DictionaryError(problem, name=blobs.table.name)
    return DICTIONARIES.add(best[1].content)


def _sample(
    cluster: Cluster, blobs: Blobs, rows: int, seconds: float, chooser: random.Random
) -> tuple[list[bytes], int, list[UnreachableServer]]:
    """Return texts of random rows, and the number of their shards."""
    groups = by_server(blobs.places(cluster))
    deadline = monotonic() + seconds
    share = -(-rows // len(groups))
    jobs = [
        partial(
            _sample_server,
            cluster,
            blobs,
            chooser.sample(group, len(group)),
            share,
            deadline,
            random.Random(chooser.random()),  # noqa: S311
        )
        for group in groups
    ]
    texts: list[bytes] = []
    shards = 0
    unreachable: list[UnreachableServer] = []
    for found, count, failed in cluster.places.engines.in_parallel(
        jobs, "blobs", _PARALLEL
    ):
        texts += found
        shards += count
        unreachable += failed
    return texts, shards, unreachable


def _sample_server(
    cluster: Cluster,
    blobs: Blobs,
    group: Sequence[Place],
    rows: int,
    deadline: float,
    chooser: random.Random,
) -> tuple[list[bytes], int, list[UnreachableServer]]:
    texts: list[bytes] = []
    shards = visited = 0

    def read(place: Place) -> None:
        nonlocal shards, visited
        # Shards with fewer rows leave their share to the next ones.
        share = -(-(rows - len(texts)) // (len(group) - visited))
        visited += 1
        wanted = min(rows - len(texts), max(share, _PAGE))
        if wanted > 0 and monotonic() < deadline:
            answer = _sample_shard(cluster, blobs, place, wanted, deadline, chooser)
            texts.extend(answer)
            shards += bool(answer)

    unreachable = for_each_shard(group, read)
    return texts, shards, unreachable


def _sample_shard(
    cluster: Cluster,
    blobs: Blobs,
    place: Place,
    wanted: int,
    deadline: float,
    chooser: random.Random,
) -> list[bytes]:
    """Return the texts of pages of rows from random ids of a shard."""
    (key,) = blobs.table.primary_key
    ids = select(func.min(key), func.max(key))
    page = select(key, type_coerce(blobs.table.c.data, NullType()))
    at = {"place": place}
    texts: dict[int, bytes] = {}
    with cluster.session() as session:
        lowest, highest = session.execute(ids, bind_arguments=at).one()
        if lowest is None:
            return []
        # A shard with few rows is read from its first to its last one; at
        # random, its pages would overlap, and still miss some of them.
        is_small = highest - lowest < wanted
        size = min(_PAGE, wanted)
        start = lowest
        for _ in range(4 * -(-wanted // _PAGE)):
            rows = session.execute(
                page.where(key >= start).order_by(key).limit(size), bind_arguments=at
            ).all()
            for row_id, value in rows:
                blob = decode_stored(value, blobs.type)
                texts[row_id] = (blob.source or "").encode()
            if (
                len(texts) >= wanted
                or (is_small and len(rows) < size)
                or monotonic() >= deadline
            ):
                break
            start = rows[-1][0] + 1 if is_small else chooser.randint(lowest, highest)
    return list(texts.values())[:wanted]


# -- Numbers of rows and bytes, by the dictionary with which they are written.


@dataclass(kw_only=True)
class VersionCount(JsonObject):
    """The rows of one form.

    :ivar version: version of the dictionary; 0 for JSON, None for a dictionary
        that no shard has.
    :ivar dictionary_id: its id; None for JSON.
    :ivar stored: number of shards that have the dictionary.
    :ivar active: number of shards on which it is active; for JSON, on which
        no dictionary is.
    :ivar rows: number of rows; None if they were not counted.
    :ivar bytes: size of their blobs; None if they were not counted.
    """

    version: int | None
    dictionary_id: int | None
    stored: int = 0
    active: int = 0
    rows: int | None = None
    bytes: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes as JSON values."""
        shown = None
        if self.dictionary_id is not None:
            shown = f"{self.dictionary_id:06x}"
        return {**super().as_dict(), "dictionary_id": shown}

    def __str__(self) -> str:
        if self.dictionary_id is None:
            text = f"JSON: active on {self.active:,} shards"
        else:
            version = "?" if self.version is None else self.version
            text = (
                f"version {version} ({self.dictionary_id:06x}): on "
                f"{self.stored:,} shards, active on {self.active:,}"
            )
        if self.rows is not None:
            text += f"; {self.rows:,} rows, {self.bytes:,} bytes"
        return text


@dataclass(frozen=True, kw_only=True)
class BlobStatus(ShardsReport):
    """The dictionaries of a table, and the rows written with each.

    :ivar name: name of the dictionary.
    :ivar shards: number of shards that were read.
    :ivar versions: JSON, and the dictionaries by version.
    :ivar unreachable: shards that could not be read, by server.
    """

    name: str
    shards: int
    versions: tuple[VersionCount, ...]
    unreachable: tuple[UnreachableServer, ...]

    def __str__(self) -> str:
        return "\n".join(
            [
                f"{self.name}: {self.shards:,} shards",
                *(f"  {one}" for one in self.versions),
                *unreachable_lines(self.unreachable),
            ]
        )


def status(cluster: Cluster, cls: Any, *, rows: bool = False) -> BlobStatus:
    """Return the dictionaries of a class, and where they are active.

    :param cls: an object class with ``compression="zstd"``.
    :param rows: whether to count rows and bytes, which reads all rows.
    :raises ClassDefinitionError: if blobs of the class are not compressed.
    """
    blobs = Blobs(cls)
    stored, unreachable = stored_on_all(cluster, blobs)
    counts = _by_version(stored)
    if rows:
        for one in counts.values():
            one.rows = one.bytes = 0
        failed = _count_rows(cluster, blobs, list(stored), counts)
        unreachable = [*unreachable, *failed]
    # A dictionary that no shard has is last: its version is unknown.
    order = sorted(counts.values(), key=lambda one: (one.version is None, one.version))
    return BlobStatus(
        name=blobs.name,
        shards=len(stored),
        versions=tuple(order),
        unreachable=tuple(unreachable),
    )


def _by_version(
    stored: Mapping[Place, Sequence[Stored]],
) -> dict[int | None, VersionCount]:
    json = VersionCount(version=0, dictionary_id=None, stored=len(stored))
    counts: dict[int | None, VersionCount] = {None: json}
    for entries in stored.values():
        json.active += not any(one.is_active for one in entries)
        for one in entries:
            count = counts.setdefault(
                one.id, VersionCount(version=one.version, dictionary_id=one.id)
            )
            count.stored += 1
            count.active += one.is_active
    return counts


def _count_rows(
    cluster: Cluster,
    blobs: Blobs,
    places: Sequence[Place],
    counts: dict[int | None, VersionCount],
) -> list[UnreachableServer]:
    data = cast(blobs.table.c.data, LargeBinary)
    marker = literal(MARKER, LargeBinary)
    form = case(
        (func.substr(data, 1, 1) == marker, func.substr(data, 1, PREFIX_BYTES)),
        else_=literal(b"", LargeBinary),
    )
    # Servers reject parameters in an expression of GROUP BY.
    blob = select(form.label("form"), func.length(data).label("size")).subquery()
    statement = select(
        func.hex(blob.c.form).label("form"),
        func.count().label("rows"),
        func.sum(blob.c.size).label("bytes"),
    ).group_by(blob.c.form)

    def read(place: Place) -> list[Any]:
        with cluster.session() as session:
            return list(session.execute(statement, bind_arguments={"place": place}))

    per_shard, unreachable = visit(cluster, places, read)
    for rows in per_shard.values():
        for form_, number, size in rows:
            prefix = bytes.fromhex(form_)[1:]
            key = int.from_bytes(prefix, "big") if prefix else None
            count = counts.setdefault(
                key, VersionCount(version=None, dictionary_id=key, rows=0, bytes=0)
            )
            count.rows = (count.rows or 0) + number
            count.bytes = (count.bytes or 0) + int(size)
    return unreachable
