"""Statements whose caller names the keyspace or the shard, on SQLite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sqla_shard import Cluster
from sqla_shard.testing import sqlite_topology
from tests.shared.named_keyspaces import Base
from tests.shared.named_keyspaces import grown
from tests.shared.named_keyspaces import make_notes
from tests.shared.named_keyspaces import NamedKeyspaces


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory: Path = tmp_path_factory.mktemp("named")
    document = grown(sqlite_topology(directory, shards=4, main=True))
    with Cluster.from_topology(document) as cluster:
        cluster.create_all(Base.metadata)
        make_notes(cluster)
        yield cluster


class TestNamedKeyspaces(NamedKeyspaces):
    pass
