"""Numbers of rows and bytes, by the dictionary with which they are written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import case, cast, func, LargeBinary, literal, select

from sqla_shard.cluster.cluster import Cluster
from sqla_shard.engine.rendering import Place
from sqla_shard.engine.unreachable import (
    unreachable_lines,
    unreachable_values,
    UnreachableServer,
)
from sqla_shard.types.compression import MARKER, PREFIX_BYTES
from sqla_shard.upkeep.blobs.stored import Blobs, Stored, stored_on_all, visit


@dataclass(kw_only=True)
class VersionCount:
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
        return {**vars(self), "dictionary_id": shown}

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
class BlobStatus:
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

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes as JSON values."""
        return {
            "name": self.name,
            "shards": self.shards,
            "versions": [one.as_dict() for one in self.versions],
            "unreachable": unreachable_values(self.unreachable),
        }

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
    for found in stored.values():
        json.active += not any(one.is_active for one in found)
        for one in found:
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

    found, unreachable = visit(cluster, places, read)
    for rows in found.values():
        for form_, number, size in rows:
            prefix = bytes.fromhex(form_)[1:]
            key = int.from_bytes(prefix, "big") if prefix else None
            count = counts.setdefault(
                key, VersionCount(version=None, dictionary_id=key, rows=0, bytes=0)
            )
            count.rows = (count.rows or 0) + number
            count.bytes = (count.bytes or 0) + int(size)
    return unreachable
