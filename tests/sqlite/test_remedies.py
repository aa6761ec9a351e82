"""Messages of refusals name a way that works, on SQLite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sqla_shard import Cluster
from sqla_shard.testing import sqlite_topology
from tests.shared.remedies import Base
from tests.shared.remedies import filled
from tests.shared.remedies import Remedies
from tests.shared.remedies import SHARDS


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory: Path = tmp_path_factory.mktemp("remedies")
    document = sqlite_topology(directory, servers=2, shards=SHARDS)
    with Cluster.from_topology(document) as cluster:
        cluster.create_all(Base.metadata)
        yield cluster


data = filled()


class TestRemedies(Remedies):
    pass
