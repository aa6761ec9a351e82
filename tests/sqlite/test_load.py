"""Samples of statements: the counters, and hot shards."""

from __future__ import annotations

import itertools
import json
import os
import random
import time

import pytest
from sqlalchemy import insert, select, text

from sqla_shard import pack, scatter, unpack
from sqla_shard.cache.stores import MemoryStore
from sqla_shard.exc import OptionError
from sqla_shard.monitor import (
    LoadCache,
    LoadDirectory,
    LoadSnapshot,
    measure_load,
    meter_of,
    publish_load,
    report_load,
)
from sqla_shard.monitor.load import Cell, Key, MOST_CELLS, OTHERS
from tests.models.mapping_models import Board, BoardHasPins, lists_on_sqlite, Pin, pins

cluster = lists_on_sqlite()


@pytest.fixture
def meter(cluster):
    found = measure_load(cluster, rate=1)
    yield found
    found.stop()


@pytest.fixture
def board(cluster):
    """Return the id of a board with pins."""
    with cluster.begin(shard_id=17) as session:
        board = Board(title="b")
        session.add(board)
        session.flush()
        BoardHasPins.append_many(session, board.id, pins(3))
        return board.id


def test_counters(cluster, board, meter):
    with cluster.begin() as session:
        found = session.get(Board, board)
        BoardHasPins.page(session, board, 10)
        session.get_many(Pin, [pack(shard, 1, 5) for shard in (1, 2)])
        session.scalars(select(Pin).options(scatter())).all()
        found.title = "c"
    found = meter.snapshot()
    assert found.rate == 1
    assert found.process.endswith(f":{os.getpid()}")
    assert found.cells == {
        Cell("objects", 17, "boards", False): 1,
        Cell("objects", 17, "board_has_pins", False): 1,
        Cell("objects", 1, "pins", False): 1,
        Cell("objects", 2, "pins", False): 1,
        Cell("objects", None, "pins", False): 1,
        Cell("objects", 17, "boards", True): 1,
    }
    assert found.keys == {
        Key("objects", 17, "boards", board, False, False): 1,
        Key("objects", 17, "boards", board, False, True): 1,
        Key("objects", 17, "board_has_pins", board, True, False): 1,
    }
    values = json.loads(json.dumps(found.as_dict()))
    assert LoadSnapshot.from_dict(values) == found


def test_inserts_and_text(cluster, meter):
    with cluster.begin(shard_id=5) as session:
        session.add(Pin(title="a"))
        session.flush()
        session.execute(text("SELECT 1"), bind_arguments={"shard_id": 9}).scalar_one()
    with cluster.begin(shard_id=6) as session:
        session.execute(insert(Pin), [{"title": "a"}, {"title": "b"}])
    found = meter.snapshot().cells
    assert found == {
        Cell("objects", 5, "pins", True): 1,
        Cell("objects", 9, "", False): 1,
        Cell("objects", 6, "pins", True): 1,
    }


def test_samples_have_the_rate(cluster, board, rng):
    # By chance outside of these bounds once in a billion runs.
    random.seed(rng.random())
    meter = measure_load(cluster, rate=0.1)
    with cluster.session() as session:
        for _ in range(2000):
            session.get(Board, board)
            session.expunge_all()
    count = sum(meter.snapshot().cells.values())
    meter.stop()
    assert 120 < count < 290


def test_nothing_is_counted_when_it_has_stopped(cluster, board):
    meter = measure_load(cluster, rate=1)
    assert meter_of(cluster) is meter
    with pytest.raises(OptionError, match="a meter already"):
        measure_load(cluster)
    meter.stop()
    assert meter_of(cluster) is None
    with cluster.session() as session:
        session.get(Board, board)
    assert not meter.snapshot().cells
    measure_load(cluster).stop()


@pytest.mark.parametrize("options", [{"rate": 0}, {"rate": 1.5}, {"window": 0}])
def test_wrong_options(cluster, options):
    with pytest.raises(OptionError, match=next(iter(options))):
        measure_load(cluster, **options)
    assert meter_of(cluster) is None


def snapshot(cells, keys=(), process="a:1", rate=0.01, seconds=10.0, at=0.0):
    return LoadSnapshot(
        process=process,
        at=at,
        seconds=seconds,
        rate=rate,
        cells=dict(cells),
        keys=dict(keys),
    )


def test_report_of_a_hot_list(cluster, board):
    shard = unpack(board).shard_id
    fair = {Cell("objects", n, "pins", False): 10 for n in range(64)}
    hot = {**fair, Cell("objects", shard, "board_has_pins", False): 100}
    keys = {Key("objects", shard, "board_has_pins", board, True, False): 55}
    # Two processes, one with another rate and time.
    found = report_load(
        [
            snapshot(hot, keys),
            snapshot(hot, keys, process="b:2", rate=0.02, seconds=5.0),
        ],
        cluster.topology,
    )
    assert found.processes == ("a:1", "b:2")
    assert found.reads == pytest.approx(2 * 740 * 10)
    assert [one.shard_id for one in found.hot] == [shard]
    top = found.shards[0]
    assert top.server == "server1"
    assert top.read_share == pytest.approx(110 / 740)
    assert top.fair_share == 1 / 64
    assert top.keys[0].share == pytest.approx(0.5)
    assert found.sentences() == [sentence(shard, board)]
    assert f"HOT: {found.sentences()[0]}" in str(found)
    assert json.loads(json.dumps(found.as_dict()))["shards"][0]["is_hot"]
    (first, *_) = found.tables
    assert (first.table, first.scattered) == ("pins", 0)


def sentence(shard, board):
    return (
        f"shard {shard} of objects on server1 takes 14.9 % of reads; the "
        f"list board_has_pins {board} takes 50.0 % of that"
    )


def test_nothing_is_hot_by_chance(cluster, rng):
    for count in (20, 200, 2000):
        cells = {}
        for _ in range(count):
            cell = Cell("objects", rng.randrange(64), "pins", False)
            cells[cell] = cells.get(cell, 0) + 1
        assert not report_load([snapshot(cells)], cluster.topology).hot


def test_snapshots_are_small(cluster, meter):
    for number in range(MOST_CELLS + 500):
        meter._take(_Plan(number), _Context())
    found = meter.snapshot()
    assert len(found.cells) == MOST_CELLS + 1
    assert found.cells[Cell("objects", OTHERS, "", False)] == 500
    report = report_load([found], cluster.topology)
    assert all(shard.shard_id >= 0 for shard in report.shards)
    assert report.samples == MOST_CELLS + 500


class _Context:
    isinsert = isupdate = isdelete = False
    compiled = None


class _Plan:
    scattered = False

    def __init__(self, shard_id):
        self.places = [self]
        self.shard_id = shard_id
        self.keyspace = "objects"


@pytest.fixture(params=["directory", "cache"])
def store(request, tmp_path):
    if request.param == "directory":
        return LoadDirectory(tmp_path / "load")
    return LoadCache(MemoryStore(), "test")


def test_snapshots_of_several_processes(cluster, board, meter, store):
    publisher = publish_load(meter, store)
    with cluster.session() as session:
        session.get(Board, board)
    publisher.publish()
    # A child process has counts and a thread of its own.
    child = os.fork()
    if not child:
        status = 1
        try:
            with cluster.session() as session:
                for _ in range(3):
                    session.get(Board, board)
                    session.expunge_all()
            if isinstance(store, LoadDirectory):
                publisher.publish()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    found = publisher.snapshots()
    if isinstance(store, LoadDirectory):
        counts = {one.process: sum(one.cells.values()) for one in found}
        own = f":{os.getpid()}"
        assert sorted(counts.values()) == [1, 3]
        assert [n for p, n in counts.items() if p.endswith(own)] == [1]
    # The snapshot is replaced.
    publisher.publish()
    assert len(store.snapshots()) == len(found)
    publisher.stop()


def test_old_snapshots_are_not_read(store):
    store.put(snapshot({}))
    assert store.snapshots() == []


def _changed(**values: object) -> bytes:
    return json.dumps({**snapshot({}, at=time.time()).as_dict(), **values}).encode()


@pytest.mark.parametrize(
    "data",
    [
        *(b"[[[[", b"[" * 50_000, b"null", b"5", b"[1]", b"{}", b"\xff", b'"x"'),
        *(b'{"version": 1}', b"1" * 5000),
        _changed(seconds=0),
        _changed(rate=0),
        _changed(rate=None),
        _changed(seconds=float("inf")),
        _changed(at=time.time() + 3600),
        _changed(at=float("nan")),
        _changed(at="now"),
        _changed(process=7),
        _changed(cells=None),
        _changed(cells=[[1]]),
        _changed(cells=[["objects", "1", "boards", False, 1]]),
        _changed(cells=[[["objects"], 1, "boards", False, 1]]),
        _changed(cells=[["objects", 1, "boards", False, "1"]]),
        _changed(cells=[["objects", 1, "boards", False, -1]]),
        _changed(keys=[["objects", 1, "boards", 7, False, 1]]),
    ],
    # Processes collect the same names: the items have times and process ids.
    ids=map(str, itertools.count()),
)
def test_a_damaged_item_hides_no_other(cluster, meter, store, data):
    if isinstance(store, LoadDirectory):
        store.path.mkdir()
        (store.path / "other.load").write_bytes(data)
    else:
        for key in store._keys[::2]:
            lease = store._store.fetch([key], lease=5)[key].lease
            store._store.fill({key: (lease, data)}, 60)
    publisher = publish_load(meter, store)
    publisher.publish()
    (own,) = store.snapshots()
    assert [own.process] == [one.process for one in publisher.snapshots()]
    assert report_load(publisher.snapshots(), cluster.topology).seconds > 0
    publisher.stop()


def test_any_error_of_a_store_is_logged(meter, tmp_path, caplog):
    class Odd(LoadDirectory):
        def put(self, snapshot: LoadSnapshot) -> None:
            raise ZeroDivisionError

    publisher = publish_load(meter, Odd(tmp_path))
    publisher.publish()
    publisher.stop()
    assert "is not published" in caplog.text


def test_a_directory_that_cannot_be_read(tmp_path):
    with pytest.raises(FileNotFoundError):
        LoadDirectory(tmp_path / "missing").snapshots()


def test_errors_of_a_store_are_logged_once(meter, tmp_path, caplog):
    (tmp_path / "file").touch()
    publisher = publish_load(meter, tmp_path / "file")
    publisher.publish()
    publisher.publish()
    publisher.stop()
    (record,) = caplog.records
    assert "is not published" in record.getMessage()


def test_invalid_stores(meter):
    with pytest.raises(OptionError, match="LoadStore"):
        publish_load(meter, 3)
