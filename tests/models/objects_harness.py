"""Fixtures that give the suites a cluster, and reads that bypass it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta, UTC
from time import monotonic
from typing import Any, ClassVar

import pytest
from sqlalchemy import text

from sqla_shard import Cluster
from sqla_shard.testing import StatementLog
from tests.models.backends import Clusters, On
from tests.models.layouts import unpack
from tests.models.objects import Base, Thing

SHARDS = 4


class Suite:
    """Fixtures of every suite, and what its cluster is like."""

    metadata = Base.metadata
    options: ClassVar[dict[str, Any]] = {}
    #: Global keyspaces.
    main: tuple[str, ...] = ("main",)

    @pytest.fixture(scope="class")
    @classmethod
    def cluster(cls, request, backend: On) -> Iterator[Cluster]:
        clusters = Clusters(cls.metadata, SHARDS, main=cls.main, options=cls.options)
        with clusters.open(request, backend) as cluster:
            yield cluster

    @pytest.fixture
    def session(self, cluster):
        with cluster.session() as session:
            yield session

    @pytest.fixture
    def log(self, cluster) -> Iterator[StatementLog]:
        with StatementLog() as log:
            yield log


def on_servers(cluster: Cluster) -> bool:
    return (
        not cluster.topology.keyspaces["objects"]
        .servers[0]
        .primary.startswith("sqlite")
    )


def stored(cluster: Cluster, cls: type[Any], **fields: Any) -> int:
    """Insert one object and return its id."""
    with cluster.begin() as session:
        new = cls(**fields)
        session.add(new)
        session.flush()
        return new.id


def raw_text(cluster: Cluster, cls: type[Any], object_id: int) -> str | None:
    """Return the stored content of a blob."""
    found = _raw(
        cluster, f"SELECT data FROM {cls.__tablename__} WHERE local_id = :id", object_id
    )
    return found.scalar()


def raw(cluster: Cluster, cls: type[Any], object_id: int) -> Any:
    found = raw_text(cluster, cls, object_id)
    return None if found is None else json.loads(found)


def set_raw(cluster: Cluster, cls: type[Any], object_id: int, document: Any) -> None:
    """Write a blob as another program would.

    With its characters as they are: SQLite does not find a key by a path if
    it is written with escapes.
    """
    set_raws(cluster, cls, {object_id: document})


def set_raws(cluster: Cluster, cls: type[Any], documents: Mapping[int, Any]) -> None:
    """Write the blobs of objects of one shard, as :func:`set_raw` does."""
    (shard_id,) = {unpack(one).shard_id for one in documents}
    with cluster.begin() as session:
        session.execute(
            text(f"UPDATE {cls.__tablename__} SET data = :data WHERE local_id = :id"),
            [
                {"id": unpack(one).local_id, "data": _as_text(document)}
                for one, document in documents.items()
            ],
            bind_arguments={"shard_id": shard_id},
        )


def _as_text(document: Any) -> str:
    if isinstance(document, str):
        return document
    return json.dumps(document, ensure_ascii=False)


def remove_raw(cluster: Cluster, cls: type[Any], object_id: int) -> None:
    _raw(cluster, f"DELETE FROM {cls.__tablename__} WHERE local_id = :id", object_id)


def _raw(cluster: Cluster, sql: str, object_id: int, **values: Any) -> Any:
    parts = unpack(object_id)
    with cluster.begin() as session:
        found = session.execute(
            text(sql),
            {"id": parts.local_id, **values},
            bind_arguments={"shard_id": parts.shard_id},
        )
        return found.freeze()() if found.returns_rows else None


def tick(moment: datetime) -> None:
    """Wait until the clock is past a moment, as precisely as SQLite has it."""
    deadline = monotonic() + 5
    while datetime.now(UTC) < moment + timedelta(milliseconds=2):
        assert monotonic() < deadline, f"the clock stays at {moment}"
        threading.Event().wait(0.0005)


def updates(log: StatementLog) -> list[str]:
    return [s for s in log.statements if s.lstrip().startswith("UPDATE")]


def thing(cluster: Cluster, **fields: Any) -> int:
    """Insert a thing and return its id."""
    return stored(cluster, Thing, **fields)
