"""Compressed blobs: sizes, processor time, reads and writes on servers."""

from __future__ import annotations

import json
import os
import random
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import process_time
from typing import Any

from sqlalchemy import insert, text
from sqlalchemy.orm import DeclarativeBase, Mapped

from examples.quickstart.bookmarks import read_folders
from sqla_shard import blob_field, Cluster, ObjectMixin, pack
from sqla_shard.models import blob_writes
from sqla_shard.types.compression import Dictionary, require_zstd, train_dictionary
from sqla_shard.upkeep import blobs
from tests.benchmarks.servers import new_fleet, title
from tests.benchmarks.timing import compare, show

#: A browser's export of bookmarks; that of the pinboard has 180 links.
_EXPORT = os.environ.get("SQLA_SHARD_BOOKMARKS", "examples/pinboard/samples.html")
_SIMILAR = 100_000
_SIZES = (32_768, 65_536, 112_640)


class Base(DeclarativeBase):
    pass


class Fields:
    """The fields of the pins of the quickstart."""

    board_id: Mapped[int] = blob_field()
    link: Mapped[str] = blob_field()
    title: Mapped[str] = blob_field()
    details: Mapped[str] = blob_field(default="")
    tags: Mapped[list[str]] = blob_field(default_factory=list)
    added: Mapped[str] = blob_field()


class Plain(Fields, ObjectMixin, Base, type_id=1):
    __tablename__ = "plain"


class Packed(Fields, ObjectMixin, Base, type_id=2, compression="zstd"):
    __tablename__ = "packed"


def run() -> None:
    """Print the tables."""
    links = _links()
    similar = list(_similar(links, _SIMILAR))
    _sizes(f"{len(links)} links", links)
    _sizes(f"{_SIMILAR:,} similar ones", similar)
    _on_servers(similar)


def _links() -> list[dict[str, Any]]:
    with Path(_EXPORT).open("rb") as file:
        return [
            {
                "board_id": pack(3429, 2, 7_075_733 + number),
                "link": link.url,
                "title": link.title,
                "details": link.details,
                "tags": list(link.tags),
                "added": f"{link.added:%Y-%m-%dT%H:%M:%S.%f+00:00}",
            }
            for number, folder in enumerate(read_folders(file))
            for link in folder.links
        ]


def _similar(links: list[dict[str, Any]], count: int) -> Iterator[dict[str, Any]]:
    """Yield links with hosts, words and tags of the given ones."""
    chooser = random.Random(1)
    words = [
        word for link in links for word in f"{link['title']} {link['details']}".split()
    ]
    hosts = ["/".join(link["link"].split("/")[:4]) for link in links]
    for number in range(count):
        slug = "-".join(chooser.choices(words, k=2)).lower()
        yield {
            "board_id": chooser.choice(links)["board_id"],
            "link": f"{chooser.choice(hosts)}/{slug}-{number}",
            "title": " ".join(chooser.choices(words, k=3)),
            "details": " ".join(chooser.choices(words, k=12)),
            "tags": chooser.choice(links)["tags"],
            "added": chooser.choice(links)["added"],
        }


def _sizes(title: str, documents: list[dict[str, Any]]) -> None:
    """Print ratios and processor time of rows that were not trained with."""
    rows = [
        json.dumps(one, ensure_ascii=False, separators=(",", ":")) for one in documents
    ]
    random.Random(2).shuffle(rows)
    held, used = rows[: len(rows) // 5], rows[len(rows) // 5 :]
    used = used[:20_000]
    encoded = [row.encode() for row in used]
    dictionary = Dictionary(
        min(
            (train_dictionary(encoded, size) for size in _SIZES),
            key=lambda one: _packed_size(Dictionary(one), held),
        )
    )
    prefix = b"".join(encoded[-200:])[-32_768:]
    zstd = require_zstd()

    def with_prefix(row: str) -> bytes:
        made = zlib.compressobj(6, zdict=prefix)
        return made.compress(row.encode()) + made.flush()

    ways: dict[str, tuple[Callable[[str], Any], Callable[[Any], Any]]] = {
        "zlib": (lambda row: zlib.compress(row.encode()), zlib.decompress),
        "zlib, 32 KB of rows as its dictionary": (
            with_prefix,
            lambda data: zlib.decompressobj(zdict=prefix).decompress(data),
        ),
        "zstd without a dictionary": (
            lambda row: zstd.compress(row.encode(), 3),
            zstd.decompress,
        ),
        f"zstd, a dictionary of {len(dictionary.content):,} bytes": (
            lambda row: dictionary.pack(row) or row.encode(),
            lambda data: dictionary.unpack(data, 1 << 24),
        ),
    }
    total = sum(len(row.encode()) for row in held)
    print(f"\n{title}: {total / len(held):.0f} bytes per row of JSON")
    for name, (compress, decompress) in ways.items():
        started = process_time()
        packed = [compress(row) for row in held]
        middle = process_time()
        for data in packed:
            decompress(data)
        ended = process_time()
        write = (middle - started) / len(held) * 1e6
        read = (ended - middle) / len(held) * 1e6
        ratio = total / sum(map(len, packed))
        print(
            f"  {name:45} {ratio:5.2f} : 1  {write:6.1f} us to write "
            f"{read:5.1f} us to read"
        )


def _packed_size(dictionary: Dictionary, rows: list[str]) -> int:
    return sum(len(dictionary.pack(row) or row.encode()) for row in rows)


def _on_servers(documents: list[dict[str, Any]]) -> None:
    with _filled(documents) as (cluster, ids):
        print(f"\n{len(documents):,} rows on one {title()} server, in bytes")
        for cls in (Plain, Packed):
            print(f"  {cls.__tablename__:8} {_table_size(cluster, cls):>12,}")
        with cluster.session() as session:
            show(
                "get of one object",
                compare(
                    {cls.__name__: _getting(session, cls, ids[cls][:1]) for cls in ids},
                    turns=800,
                    warm_up=50,
                ),
            )
            show(
                "get_many of 50 objects",
                compare(
                    {
                        cls.__name__: _getting(session, cls, ids[cls][:50])
                        for cls in ids
                    },
                    turns=300,
                    warm_up=20,
                ),
            )
        show(
            "a transaction that changes a field of one object",
            compare(
                {cls.__name__: _changing(cluster, cls, ids[cls][0]) for cls in ids},
                turns=400,
                warm_up=20,
            ),
        )
        show(
            "a transaction that inserts 50 objects",
            compare(
                {cls.__name__: _inserting(cluster, cls, documents[:50]) for cls in ids},
                turns=60,
                warm_up=5,
            ),
        )


@contextmanager
def _filled(
    documents: list[dict[str, Any]],
) -> Iterator[tuple[Cluster, dict[Any, list[int]]]]:
    with (
        new_fleet(servers=1, shards=2, fast=True) as fleet,
        Cluster.from_topology(
            fleet.topology_mapping(), environ=fleet.environ
        ) as cluster,
    ):
        cluster.create_all(Base.metadata)
        _insert_all(cluster, Packed, documents[:20_000], shard_id=1)
        print(f"\n{blobs.train(cluster, Packed, seed=1)}")
        blobs.activate(cluster, Packed)
        blob_writes._known.clear()
        ids = {}
        for cls in (Plain, Packed):
            _insert_all(cluster, cls, documents, shard_id=0)
            with cluster.session() as session:
                found = session.execute(
                    text(f"SELECT local_id FROM {cls.__tablename__} LIMIT 50"),
                    bind_arguments={"shard_id": 0},
                )
                type_id = cls.__sqla_shard__.type_id
                ids[cls] = [(type_id << 36) + local for (local,) in found]
        yield cluster, ids


def _insert_all(
    cluster: Cluster, cls: Any, documents: list[Any], shard_id: int
) -> None:
    for start in range(0, len(documents), 2000):
        with cluster.begin() as session:
            session.execute(
                insert(cls),
                [
                    {**one, "shard_id": shard_id}
                    for one in documents[start : start + 2000]
                ],
            )


def _table_size(cluster: Cluster, cls: Any) -> int:
    database = cluster.topology.keyspace("objects").database_for(0)
    with cluster.session() as session:
        for statement in (
            f"OPTIMIZE TABLE {database}.{cls.__tablename__}",
            (
                "SELECT data_length FROM information_schema.tables WHERE "
                f"table_schema = '{database}' "
                f"AND table_name = '{cls.__tablename__}'"
            ),
        ):
            found = session.execute(text(statement), bind_arguments={"shard_id": 0})
            rows = found.all()
    return int(rows[0][0])


def _getting(session: Any, cls: Any, ids: list[int]) -> Callable[[], object]:
    def call() -> None:
        session.expunge_all()
        assert all(session.get_many(cls, ids)) if ids[1:] else session.get(cls, ids[0])

    return call


def _changing(cluster: Any, cls: Any, object_id: int) -> Callable[[], object]:
    def call() -> None:
        with cluster.begin() as session:
            session.get(cls, object_id).details += "x"

    return call


def _inserting(cluster: Any, cls: Any, rows: list[Any]) -> Callable[[], object]:
    def call() -> None:
        with cluster.begin(shard_id=0) as session:
            session.add_all([cls(**row) for row in rows])

    return call
