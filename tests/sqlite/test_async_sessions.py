"""Asynchronous sessions on SQLite, through aiosqlite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sqla_shard import Cluster
from sqla_shard.testing import sqlite_topology
from tests.shared import awaited
from tests.shared.clusters import on_sqlite
from tests.shared.sqlite_files import with_files

cluster = on_sqlite()
data = awaited.pins_with_boards()


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Cluster]:
    document = with_files(sqlite_topology(tmp_path, 2, 4))
    with Cluster.from_topology(document) as cluster:
        yield cluster


class TestSessions(awaited.Sessions):
    pass


class TestLoops(awaited.Loops):
    pass
