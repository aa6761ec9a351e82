"""The microblog of the examples, on one database and on virtual shards."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path

import pytest
from flask import Flask

from examples.microblog import sharded, single
from sqla_shard.testing import sqlite_topology
from tests.suites.microblog import CONFIG, Microblog, promote, settle

ROOT = Path(single.__file__).parents[1]


class TestOnOneDatabase(Microblog):
    @pytest.fixture
    def app(self, tmp_path: Path) -> Iterator[Flask]:
        uri = f"sqlite:///{tmp_path / 'blog.sqlite'}"
        app = single.create_app(**CONFIG, SQLALCHEMY_DATABASE_URI=uri)
        with app.app_context():
            single.db.create_all()
        yield app
        with app.app_context():
            single.db.engine.dispose()

    def promote(self, app: Flask, name: str) -> None:
        promote(app, single, name)


class TestOnShards(Microblog):
    @pytest.fixture
    def app(self, tmp_path: Path) -> Iterator[Flask]:
        topology = sqlite_topology(tmp_path, servers=2, shards=4, lookup=8)
        app = sharded.create_app(**CONFIG, SQLA_SHARD_TOPOLOGY=topology)
        with app.app_context():
            sharded.db.cluster.create_all(sharded.models.Base.metadata)
        yield app
        with app.app_context():
            sharded.db.cluster.close()

    def promote(self, app: Flask, name: str) -> None:
        promote(app, sharded, name)

    def settle(self, app: Flask) -> None:
        settle(app, sharded)


def test_few_lines_have_changed() -> None:
    """Lines that were added, and those that were removed."""
    changed = 0
    for before in sorted((ROOT / "single").glob("*.py")):
        after = ROOT / "sharded" / before.name
        lines = difflib.unified_diff(
            before.read_text("utf-8").splitlines(),
            after.read_text("utf-8").splitlines(),
            n=0,
            lineterm="",
        )
        changed += sum(
            line.startswith(("+", "-")) and not line.startswith(("+++", "---"))
            for line in lines
        )
    names = {path.name for path in (ROOT / "single").glob("*.py")}
    assert names == {path.name for path in (ROOT / "sharded").glob("*.py")}
    assert 0 < changed < 300
