"""Training of a dictionary from rows of a table.

Rows are read from random places of random shards of all servers, in parallel,
until there are enough or the time is over.  One fifth of them are not used for
training: the ratio that is reported is theirs, as it will be for new rows.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from time import monotonic, process_time
from typing import Any

from sqlalchemy import func, select, type_coerce
from sqlalchemy.types import NullType

from sqla_shard.cluster.cluster import Cluster
from sqla_shard.engine import by_server
from sqla_shard.engine.rendering import Place
from sqla_shard.engine.unreachable import (
    for_each_shard,
    unreachable_lines,
    unreachable_values,
    UnreachableServer,
)
from sqla_shard.exc import DictionaryError
from sqla_shard.types.blob import decode_stored
from sqla_shard.types.compression import DICTIONARIES, Dictionary, train_dictionary
from sqla_shard.upkeep.blobs.stored import Blobs, not_read, store, stored_on_all

#: Sizes of the dictionaries that are compared, in bytes.
_SIZES = (8192, 16_384, 32_768, 65_536, 112_640)
#: A larger dictionary must compress better by this factor.
_GAIN = 1.02
_LEAST_ROWS = 100
#: Maximum number of rows that one statement reads.
_PAGE = 50
_PARALLEL = 8


@dataclass(frozen=True, kw_only=True)
class TrainingReport:
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
        found = asdict(self)
        del found["unreachable"]
        return {
            **found,
            "dictionary_id": f"{self.dictionary_id:06x}",
            "ratio": round(self.ratio, 2),
            "unreachable": unreachable_values(self.unreachable),
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
            f"expected ratio: {self.ratio:.2f} "
            f"(zlib: {self.average_bytes / self.zlib_bytes:.2f}); "
            f"{self.average_bytes:.0f} to {self.compressed_bytes:.0f} bytes "
            "per row"
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
            f"only {len(texts)} rows were read, and {_LEAST_ROWS} are "
            "required; wait until there are more, or allow more seconds"
            f"{not_read(unreachable)}",
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
            found = Dictionary(train_dictionary(used, size))
        except ValueError as error:
            problem = f"no dictionary can be trained from the rows: {error}"
            continue
        bytes_ = float(_size(found, held))
        if best is None or bytes_ * _GAIN < best[0]:
            best = bytes_, found
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
            found = _sample_shard(cluster, blobs, place, wanted, deadline, chooser)
            texts.extend(found)
            shards += bool(found)

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
    found: dict[int, bytes] = {}
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
                found[row_id] = (blob.source or "").encode()
            if (
                len(found) >= wanted
                or (is_small and len(rows) < size)
                or monotonic() >= deadline
            ):
                break
            start = rows[-1][0] + 1 if is_small else chooser.randint(lowest, highest)
    return list(found.values())[:wanted]
