"""The pinboard with a cache: pages are never stale; the panel."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from sqlalchemy import event

from examples.pinboard.app import create_app
from examples.pinboard.caching import keep, MEMORY, NONE
from examples.pinboard.models import Board, Pin
from sqla_shard import Cluster
from sqla_shard.cache import Cache, ClassStats, MemcachedStore
from sqla_shard.testing import sqlite_topology
from tests.servers.visiting import Visitor, visitor as visitor
from tests.suites.pinboard_relations import Relations
from tests.suites.pinboard_tables import create_tables

pytestmark = pytest.mark.sqla_shard_lint

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("pinboard")
    document = sqlite_topology(directory, 2, 8, lookup=4)
    with Cluster.from_topology(document) as cluster:
        create_tables(cluster)
        keep(cluster, MEMORY)
        yield cluster


@pytest.fixture(scope="module")
def app(cluster: Cluster) -> Flask:
    return create_app(cluster, testing=True)


@pytest.fixture
def cache(cluster: Cluster) -> Iterator[Cache]:
    assert cluster.cache is not None
    yield cluster.cache
    for cls in cluster.cache.classes:
        cluster.cache.enable(cls)


def counts_of(cache: Cache, cls: Any) -> ClassStats:
    (found,) = [
        one
        for region in cache.stats()
        for one in region.classes
        if one.name == cls.__name__
    ]
    return found


TestRelations = Relations


def warm(visitor: Visitor, board_id: int) -> None:
    """Look so often that all that may be kept is."""
    for _ in range(8):
        visitor.get("/boards")
        visitor.get(f"/boards/{board_id}")
        visitor.order(board_id)


def test_a_board_is_read_from_the_cache(
    visitor: Visitor, cluster: Cluster, cache: Cache
) -> None:
    board_id = visitor.add_board()
    visitor.add_pins(board_id, 5)
    warm(visitor, board_id)
    before = counts_of(cache, Pin)
    asked: list[Any] = []
    listener = (cluster, "after_statement", lambda _, one: asked.append(one))
    event.listen(*listener)
    visitor.order(board_id)
    event.remove(*listener)
    after = counts_of(cache, Pin)
    assert (after.hits, after.misses) == (before.hits + 5, before.misses)
    assert asked == []


def test_each_change_is_seen_at_once(visitor: Visitor, cache: Cache) -> None:
    board_id = visitor.add_board("Old")
    a, b, c = visitor.add_pins(board_id, 3)
    path = f"/boards/{board_id}"
    warm(visitor, board_id)
    visitor.post(path, title="New", details="")
    assert "<h1>New</h1>" in visitor.get(path)
    assert "New" in visitor.get("/boards")

    warm(visitor, board_id)
    visitor.move(board_id, c, after=a)
    assert visitor.order(board_id) == visitor.pins_on(path)[:3] == [c, a, b]

    warm(visitor, board_id)
    visitor.api("DELETE", f"/pins/{a}", status=204)
    assert visitor.order(board_id) == visitor.pins_on(path) == [c, b]

    warm(visitor, board_id)
    visitor.api("POST", f"/pins/{a}/restore")
    assert visitor.order(board_id) == visitor.pins_on(path) == [c, a, b]

    warm(visitor, board_id)
    d = visitor.add_pin(board_id, "last")
    assert visitor.order(board_id) == visitor.pins_on(path) == [d, c, a, b]


def row_of(page: str, name: str) -> str:
    found = re.search(f'<tr id="{name}".*?</tr>', page, re.DOTALL)
    assert found, page
    return found[0]


def test_the_panel_shows_what_was_counted(visitor: Visitor, cache: Cache) -> None:
    board_id = visitor.add_board()
    warm(visitor, board_id)
    assert 'href="/cache"' in visitor.get("/boards")
    page = visitor.get("/cache")
    for region in cache.stats():
        assert f'data-region="{region.name}"' in page
        for one in region.classes:
            row = row_of(page, one.name)
            assert f"<td data-hits>{one.hits}</td>" in row
            assert f"<td data-misses>{one.misses}</td>" in row
            if one.hit_ratio is not None:
                assert f"{100 * one.hit_ratio:.0f} %" in row
    assert page.count("<b data-outbox>0</b>") == 2


def test_classes_are_switched(visitor: Visitor, cache: Cache) -> None:
    board_id = visitor.add_board()
    warm(visitor, board_id)
    answer = visitor.post("/cache/Board", to="off")
    assert answer.status_code == 303
    assert answer.location == "/cache#Board"
    assert not cache.is_enabled(Board)
    page = visitor.get("/cache")
    assert "Switch on" in row_of(page, "Board")
    assert "Switch off" in row_of(page, "Pin")
    before = counts_of(cache, Board)
    visitor.post(f"/boards/{board_id}", title="Renamed", details="")
    assert "<h1>Renamed</h1>" in visitor.get(f"/boards/{board_id}")
    after = counts_of(cache, Board)
    assert (after.hits, after.misses) == (before.hits, before.misses)
    visitor.post("/cache/Board", to="on")
    assert cache.is_enabled(Board)
    # Writes of the meantime were invalidated.
    assert "<h1>Renamed</h1>" in visitor.get(f"/boards/{board_id}")


def test_invalid_switches(visitor: Visitor, cache: Cache) -> None:
    assert visitor.post("/cache/Sock", to="off").status_code == 404
    assert visitor.post("/cache/Pin", to="sideways").status_code == 400
    assert visitor.post("/cache/Pin").status_code == 400
    assert all(map(cache.is_enabled, cache.classes))
    visitor.post("/session/leave")
    visitor.read_token()
    assert visitor.client.get("/cache").location == "/"
    assert visitor.post("/cache/Pin", to="off").status_code == 401
    assert cache.is_enabled(Pin)


def test_without_a_cache_there_is_no_panel(tmp_path: Path) -> None:
    document = sqlite_topology(tmp_path, 1, 2, lookup=2)
    with Cluster.from_topology(document) as cluster:
        create_tables(cluster)
        keep(cluster, NONE)
        app = create_app(cluster, testing=True)
        visitor = Visitor.new(app, cluster)
        visitor.get("/cache", status=404)
        assert "/cache" not in visitor.get("/boards")


def test_nodes_are_named(tmp_path: Path) -> None:
    document = sqlite_topology(tmp_path, 1, 2, lookup=2)
    with Cluster.from_topology(document) as cluster:
        keep(cluster, "127.0.0.1:11299, 127.0.0.1:11298")
        assert cluster.cache is not None
        for region in cluster.cache.regions.values():
            assert isinstance(region.store, MemcachedStore)


@pytest.mark.thorough
def test_a_wsgi_server_says_where(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from examples.pinboard.wsgi import _cluster\n"
        "print(sorted(_cluster.cache.regions) if _cluster.cache else None)\n"
        "_cluster.close()\n"
    )
    topology = ROOT / "examples" / "pinboard" / "topology.toml"
    said = {}
    for where in (None, "memory"):
        environ = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "SQLA_SHARD_TOPOLOGY": str(topology),
            "PINBOARD_DATA": str(tmp_path),
        }
        if where is not None:
            environ["PINBOARD_CACHE"] = where
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            check=True,
        )
        said[where] = done.stdout.strip()
    assert said == {None: "None", "memory": "['lists', 'objects']"}
