"""The last good topology, in a file."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from sqla_shard import FileSource, Topology
from sqla_shard.exc import TopologyError
from sqla_shard.topology import DEFAULT_PLACEHOLDERS
from sqla_shard.topology.follow import follower as snapshots, Snapshot
from sqla_shard.topology.follow.follower import default_path
from sqla_shard.util.files import replace_file
from tests.servers.following import document, in_child, TIMEOUT, topology


def snapshot(path: Path, **options: int) -> Snapshot:
    return Snapshot(path, placeholders=DEFAULT_PLACEHOLDERS, **options)


def test_saved_snapshots_are_loaded(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "last.json"
    assert snapshot(path).load() is None
    assert snapshot(path).age() == 0.0
    snapshot(path).save(topology(3))
    assert snapshot(path).load() == topology(3)
    # A topology file like any other.
    assert FileSource(path).load() == topology(3)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o077 == 0
    assert [p.name for p in path.parent.iterdir()] == ["last.json"]


def test_a_pipe_or_a_device_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(OSError, match="Not a regular file"):
        replace_file(path, b"{}", 0o600)
    assert path.is_fifo()
    assert list(tmp_path.iterdir()) == [path]


def test_the_mode_can_be_chosen_and_umask_does_not_matter(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        snapshot(tmp_path / "one.json").save(topology(1))
        snapshot(tmp_path / "two.json", mode=0o640).save(topology(1))
    finally:
        os.umask(before)
    assert (tmp_path / "one.json").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "two.json").stat().st_mode & 0o777 == 0o640
    assert snapshot(tmp_path / "two.json").load() == topology(1)


def test_placeholders_stay_as_they_are(tmp_path: Path) -> None:
    url = "mysql://me:${MYSQL_PASSWORD}@127.0.0.1"
    mapping = document(1, {"server1": (url, [0, 7])})
    environ = {"MYSQL_PASSWORD": "sesame"}
    found = Topology.from_mapping(
        mapping, placeholders={"MYSQL_PASSWORD"}, environ=environ
    )
    kept = Snapshot(
        tmp_path / "last.json", placeholders={"MYSQL_PASSWORD"}, environ=environ
    )
    kept.save(found)
    text = (tmp_path / "last.json").read_text()
    assert "${MYSQL_PASSWORD}" in text
    assert "sesame" not in text
    assert kept.load() == found


def test_an_older_one_does_not_replace_a_newer(tmp_path: Path) -> None:
    kept = snapshot(tmp_path / "last.json")
    kept.save(topology(5))
    kept.save(topology(4))
    assert kept.load() == topology(5)
    kept.save(topology(6))
    assert kept.load() == topology(6)


def test_of_several_at_once_the_newest_is_left(tmp_path: Path) -> None:
    path = tmp_path / "last.json"
    for highest in range(6, 60, 6):
        # Each with a file of its own, as processes have.
        epochs = range(highest - 5, highest + 1)
        kept = [snapshot(path) for _ in epochs]
        together = threading.Barrier(len(kept))

        def save(one: Snapshot, epoch: int, start: threading.Barrier) -> None:
            start.wait(TIMEOUT)
            one.save(topology(epoch))

        threads = [
            threading.Thread(target=save, args=(one, epoch, together))
            for one, epoch in zip(kept, epochs, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TIMEOUT)
        assert snapshot(path).load() == topology(highest)


def test_saving_the_same_again_makes_it_young(tmp_path: Path) -> None:
    path = tmp_path / "last.json"
    kept = snapshot(path)
    kept.save(topology(5))
    inode = path.stat().st_ino
    os.utime(path, (1e9, 1e9))
    assert kept.age() > 1e8
    kept.save(topology(5))
    assert kept.age() < TIMEOUT
    assert path.stat().st_ino == inode
    os.utime(path, (1e10, 1e10))
    assert kept.age() == 0.0


def test_invalid_snapshots_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "last.json"
    path.write_text("{")
    snapshot(path).save(topology(2))
    assert snapshot(path).load() == topology(2)


@pytest.mark.parametrize("mode", [0o602, 0o620, 0o666])
def test_a_file_that_others_may_write_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "last.json"
    snapshot(path).save(topology(2))
    path.chmod(mode)
    with pytest.raises(TopologyError, match="other users can write it"):
        snapshot(path).load()
    path.chmod(0o644)
    assert snapshot(path).load() == topology(2)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_file_of_another_user_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "last.json"
    snapshot(path).save(topology(2))
    os.chown(path, 1234, -1)
    with pytest.raises(TopologyError, match="other users can write it"):
        snapshot(path).load()


def test_a_failure_leaves_the_old_one_and_no_litter(tmp_path: Path) -> None:
    path = tmp_path / "last.json"
    path.mkdir()
    with pytest.raises(OSError, match=r"last\.json"):
        snapshot(path).save(topology(2))
    assert [p.name for p in tmp_path.iterdir()] == ["last.json"]
    with pytest.raises(TopologyError):
        snapshot(path).load()


def test_a_reader_always_sees_a_whole_one(tmp_path: Path) -> None:
    kept = snapshot(tmp_path / "last.json")
    kept.save(topology(1))
    stop = threading.Event()
    failed: list[BaseException] = []
    epochs: list[int] = []

    def read() -> None:
        while not stop.is_set():
            try:
                found = snapshot(tmp_path / "last.json").load()
                assert found is not None
                epochs.append(found.epoch)
            except (TopologyError, AssertionError) as error:
                failed.append(error)
                return

    thread = threading.Thread(target=read)
    thread.start()
    try:
        for epoch in range(2, 100):
            kept.save(topology(epoch))
    finally:
        stop.set()
        thread.join(TIMEOUT)
    assert failed == []
    assert epochs == sorted(epochs)


def test_its_name_says_its_format(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match=r"must end in \.json"):
        snapshot(tmp_path / "last.toml")


def test_the_usual_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    names = [
        "zookeeper://zk1:2181/prod",
        "zookeeper://zk1:2181-prod",
        "zookeeper://zk1:2181/" + "x" * 300,
        "../../../etc/passwd",
    ]
    found = {default_path(name) for name in names}
    assert len(found) == len(names)
    assert {path.parent for path in found} == {tmp_path / "sqla_shard"}
    assert all(path.suffix == ".json" for path in found)
    assert default_path(names[0]) == default_path(names[0])
    snapshot(default_path(names[2])).save(topology(1))
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert default_path("x").is_relative_to(tmp_path / "home/.local/state")


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_process_keeps_no_lock(tmp_path: Path) -> None:
    """It has been forked while a thread of its parent was writing."""
    read, write = os.pipe()
    with snapshots._locked(tmp_path):
        child = os.fork()
        if child == 0:
            os.close(write)
            # Until the parent has seen that it is not in its way.
            os.read(read, 1)
            os._exit(0)
    os.close(read)
    try:
        snapshot(tmp_path / "last.json").save(topology(1))
    finally:
        os.close(write)
        os.waitpid(child, 0)
    assert snapshot(tmp_path / "last.json").load() == topology(1)


def test_a_hanging_owner_of_the_lock_is_not_awaited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "_LONGEST_LOCK", 0.1)
    with (
        snapshots._locked(tmp_path),
        pytest.raises(OSError, match="another process has locked"),
    ):
        snapshot(tmp_path / "last.json").save(topology(1))
    snapshot(tmp_path / "last.json").save(topology(1))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root changes the user")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_user_without_a_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)

    def child() -> None:
        os.setuid(54321)
        with pytest.raises(TopologyError, match="set XDG_STATE_HOME"):
            default_path("zookeeper://zk1")

    in_child(child, tmp_path)
