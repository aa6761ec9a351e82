"""A load says what became of its writers."""

from __future__ import annotations

import pytest

from sqla_shard.testing.local_server import free_port
from sqla_shard.testing.topology_documents import topology_document
from tests.servers.load_checks import check, Rows
from tests.servers.load_writers import RawWriter
from tests.servers.published import moved, places, publish_to
from tests.servers.writing_load import Load

URL = "mysql://app:s%40cret@127.0.0.1:3306"


@pytest.fixture
def nobody(tmp_path):
    """A topology whose only server does not answer."""
    path = tmp_path / "topology.json"
    url = f"mysql://app:secret@127.0.0.1:{free_port()}"
    publish_to(path, topology_document({"server1": url}, 4))
    return RawWriter(path=path)


def test_a_writer_that_cannot_begin_is_reported(tmp_path):
    load = Load(
        RawWriter(path=tmp_path / "missing"),
        shards=[0],
        folder=tmp_path,
        seed=1,
        processes=2,
    )
    with pytest.raises(AssertionError, match="FileNotFoundError"):
        load.__enter__()


def test_unacknowledged_writes_are_logged(tmp_path, nobody):
    load = Load(nobody, shards=[2], folder=tmp_path, seed=1, processes=1, give_up=0.1)
    with load:
        with pytest.raises(AssertionError, match=r"(?s)0 of 1 acknowledged.*2003"):
            load.wait_for_acks(1, timeout=0.5)
        attempts = load.stop()
    assert {attempt.outcome for attempt in attempts} == {"failed"}
    assert {attempt.shard for attempt in attempts} == {2}
    assert check(attempts, {2: Rows()}) == ["nothing was acknowledged"]


def test_a_writer_that_dies_is_reported(tmp_path, nobody):
    load = Load(nobody, shards=[99], folder=tmp_path, seed=1, processes=1)
    with load:
        with pytest.raises(AssertionError, match=r"1 writers ended"):
            load.wait_for_acks(1)
        with pytest.raises(AssertionError, match=r"(?s)status 1.*KeyError"):
            load.stop()


def test_topologies_for_writers(tmp_path):
    document = topology_document({"server1": URL, "server2": "other"}, 4)
    assert places(document)[1] == (URL, "db00001")
    assert places(document)[2] == ("other", "db00002")
    new = moved(
        document,
        {"name": "server2", "shards": [[0, 0], [2, 3]]},
        {"name": "server3", "primary": "third", "shards": [1, 1]},
    )
    assert (document["epoch"], new["epoch"]) == (1, 2)
    assert [places(new)[shard][0] for shard in range(4)] == [
        "other",
        "third",
        "other",
        "other",
    ]
    assert places(document)[1] == (URL, "db00001")
    path = tmp_path / "topology.json"
    for written in (document, new):
        publish_to(path, written)
    assert [p.name for p in tmp_path.iterdir()] == ["topology.json"]
    assert path.stat().st_mode & 0o077 == 0
