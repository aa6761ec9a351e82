"""Topologies that a follower accepts, its messages, and its recovery."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic

import pytest

from sqla_shard import FileSource, Topology
from sqla_shard.exc import (
    Problem,
    StaleTopologyError,
    TopologyError,
    TopologyRefusedError,
    TopologyUnavailableError,
)
from sqla_shard.topology import DEFAULT_PLACEHOLDERS, to_json
from sqla_shard.topology.follow import (
    check_newer,
    Fixed,
    followed,
    Follower,
    open_follower,
    Snapshot,
)
from tests.servers.following import Feed, in_child, TIMEOUT, topology, until
from tests.servers.processes import running, started_since

DOWN = TopologyUnavailableError(source="feed", reason="it is down")
INVALID = TopologyError([Problem("epoch", "is none")], source="feed")


@pytest.fixture(autouse=True)
def all_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    # The time between two questions is most of what these tests take.
    monkeypatch.setattr("sqla_shard.topology.follow.follower._GAP", 0.005)


@pytest.fixture
def begun() -> Iterator[Callable[..., Follower]]:
    """Return what begins to follow a source; it ends with the test."""
    followers: list[Follower] = []

    def begin(feed: Feed, **options: object) -> Follower:
        follower = Follower(feed, **options)  # type: ignore[arg-type]  # of tests
        followers.append(follower)
        follower.begin()
        follower.start()
        feed.wait(2)
        return follower

    yield begin
    for follower in followers:
        assert follower.close(TIMEOUT)


def snapshot(path: Path) -> Snapshot:
    return Snapshot(path, placeholders=DEFAULT_PLACEHOLDERS)


def levels(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.levelname for record in caplog.records]


# -- accepted topologies


def test_newer_topologies_are_taken_in_order(begun: Callable[..., Follower]) -> None:
    feed = Feed(topology(3))
    follower = begun(feed)
    notified: list[tuple[int, int]] = []
    follower.add_callback(lambda old, new: notified.append((old.epoch, new.epoch)))
    for before, epoch in ((3, 4), (4, 9), (9, 10)):
        feed.tell(topology(epoch, first=epoch % 5 + 1))
        assert follower.wait(before, TIMEOUT)
        assert follower.epoch == follower.topology.epoch == epoch
    assert notified == [(3, 4), (4, 9), (9, 10)]
    report = follower.report()
    assert (report.state, report.epoch) == ("current", 10)
    assert report.last_error is None
    assert not report.from_snapshot


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (topology(3), "has epoch 3, which is older"),
        (topology(5, first=2), "has epoch 5 too, but different contents"),
        (topology(6, shards=6), "cannot follow"),
        (DOWN, "it is down"),
        (INVALID, "is none"),
        (OSError(5, "Input/output error"), "Input/output error"),
        (KeyError(), "KeyError"),
        (SystemExit("of the source"), "of the source"),
        (asyncio.CancelledError(), "CancelledError"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_other_topologies_are_refused_and_logged_once(
    answer: Topology | BaseException,
    said: str,
    begun: Callable[..., Follower],
    caplog: pytest.LogCaptureFixture,
) -> None:
    feed = Feed(topology(5))
    follower = begun(feed)
    notified: list[object] = []
    follower.add_callback(lambda old, new: notified.append(new))
    for _ in range(3):
        feed.answer(answer)
    assert levels(caplog) == ["WARNING"]
    assert said in caplog.text
    assert "the topology of epoch 5 stays in use" in caplog.text
    report = follower.report()
    assert (report.state, report.epoch) == ("stale", 5)
    assert report.last_error is not None
    assert said in report.last_error
    assert follower.topology == topology(5)
    # The same again: it is over.
    feed.answer(topology(5))
    assert follower.report().state == "current"
    assert follower.report().last_error is None
    assert levels(caplog) == ["WARNING", "INFO"]
    assert "is confirmed again" in caplog.text
    # And anew.
    feed.answer(answer)
    assert levels(caplog) == ["WARNING", "INFO", "WARNING"]
    feed.answer(topology(7))
    assert follower.epoch == 7
    assert notified == [topology(7)]


def test_each_problem_is_logged(
    begun: Callable[..., Follower], caplog: pytest.LogCaptureFixture
) -> None:
    feed = Feed(topology(1))
    begun(feed)
    for answer in (DOWN, DOWN, INVALID, INVALID, topology(0), topology(0)):
        feed.answer(answer)
    assert levels(caplog) == ["WARNING"] * 3


def test_passwords_are_not_logged(
    begun: Callable[..., Follower], caplog: pytest.LogCaptureFixture
) -> None:
    def with_password(epoch: int, word: str, shards: int = 4) -> Topology:
        return Topology.from_mapping(
            {
                "epoch": epoch,
                "keyspaces": {
                    "objects": {
                        "kind": "objects",
                        "shards": shards,
                        "database": "db{shard:05d}",
                        "servers": [
                            {
                                "name": "server1",
                                "primary": f"mysql://me:{word}@127.0.0.1",
                                "shards": [0, shards - 1],
                            }
                        ],
                    }
                },
            }
        )

    feed = Feed(with_password(1, "sesame1"))
    follower = begun(feed)
    feed.answer(with_password(2, "sesame2"))
    feed.answer(with_password(2, "sesame3"))
    feed.answer(with_password(3, "sesame4", 2))
    assert follower.epoch == 2
    assert len(caplog.records) == 3
    assert "another password" in caplog.text
    assert "sesame" not in caplog.text + repr(follower.report())


def test_check_newer_names_both_epochs() -> None:
    check_newer(topology(1), topology(2, first=1), source="me")
    with pytest.raises(StaleTopologyError) as stale:
        check_newer(topology(2), topology(1), source="me")
    assert (stale.value.source, stale.value.epoch) == ("me", 1)
    with pytest.raises(StaleTopologyError, match="different contents"):
        check_newer(topology(2), topology(2, first=1), source="me")
    with pytest.raises(TopologyRefusedError) as refused:
        check_newer(topology(1), topology(2, shards=7), source="me")
    assert len(refused.value.problems) == 1


# -- callbacks


@pytest.mark.parametrize(
    "error", [TypeError, ValueError, SystemExit, asyncio.CancelledError]
)
def test_callbacks_are_called_once_whatever_they_raise(
    error: type[BaseException],
    begun: Callable[..., Follower],
    caplog: pytest.LogCaptureFixture,
) -> None:
    feed = Feed(topology(1))
    follower = begun(feed)
    calls: list[tuple[str, int]] = []

    def fail(old: Topology, new: Topology) -> None:
        calls.append(("first", new.epoch))
        raise error("of the application")

    follower.add_callback(fail)
    follower.add_callback(lambda old, new: calls.append(("next", new.epoch)))
    for epoch in (2, 3):
        feed.answer(topology(epoch))
        feed.answer(topology(epoch))
    assert calls == [("first", 2), ("next", 2), ("first", 3), ("next", 3)]
    failed = [r for r in caplog.records if r.levelname == "ERROR"]
    assert len(failed) == 2
    assert all(r.exc_info and r.exc_info[0] is error for r in failed)
    assert follower.report().state == "current"


def test_a_callback_may_close_the_follower() -> None:
    feed = Feed(topology(1))
    follower = Follower(feed)
    follower.begin()
    closed = threading.Event()

    def close(old: Topology, new: Topology) -> None:
        assert follower.close()
        closed.set()

    follower.add_callback(close)
    follower.start()
    feed.wait(2)
    feed.tell(topology(2))
    assert closed.wait(TIMEOUT)
    assert until(lambda: feed.stopped == 1)
    assert follower.report().state == "closed"


def test_waiters_go_on_when_all_listeners_were_called(
    begun: Callable[..., Follower],
) -> None:
    feed = Feed(topology(1))
    follower = begun(feed)
    inside, go = threading.Event(), threading.Event()

    def slow(old: Topology, new: Topology) -> None:
        inside.set()
        assert go.wait(TIMEOUT)

    follower.add_callback(slow)
    feed.tell(topology(2))
    try:
        assert inside.wait(TIMEOUT)
        assert not follower.wait(1, 0.05)
        assert follower.epoch == 1
    finally:
        go.set()
    assert follower.wait(1, TIMEOUT)
    assert follower.epoch == 2


# -- waiting, asking, ending


def test_waiting_ends_with_the_time_or_with_the_follower() -> None:
    feed = Feed(topology(1))
    follower = Follower(feed)
    follower.begin()
    assert follower.wait(0, 0.0)
    assert not follower.wait(1, 0.0)
    ended: list[bool] = []
    thread = threading.Thread(
        target=lambda: ended.append(follower.wait(1, TIMEOUT * 10))
    )
    thread.start()
    follower.close()
    thread.join(TIMEOUT)
    assert ended == [False]


def test_closing_ends_the_thread_and_the_source() -> None:
    before = running()
    feed = Feed(topology(1))
    follower = Follower(feed)
    follower.begin()
    assert not follower.is_running
    follower.start()
    follower.start()
    assert follower.is_running
    feed.wait(2)
    assert len(started_since(before)) == 1
    assert follower.close(TIMEOUT)
    assert follower.close(TIMEOUT)
    assert started_since(before) == []
    assert (feed.started, feed.stopped) == (1, 1)
    follower.start()
    follower.refresh()
    assert started_since(before) == []
    assert follower.report().state == "closed"
    assert follower.topology == topology(1)
    assert "closed" in repr(follower)


def test_one_that_never_began_closes_its_source_as_well() -> None:
    feed = Feed(topology(1))
    follower = Follower(feed)
    follower.begin()
    follower.close()
    follower.close()
    assert feed.stopped == 1


def test_many_who_ask_are_answered_by_few_questions(
    begun: Callable[..., Follower], monkeypatch: pytest.MonkeyPatch
) -> None:
    gap = 0.05
    monkeypatch.setattr("sqla_shard.topology.follow.follower._GAP", gap)
    feed = Feed(topology(1))
    follower = begun(feed)
    start, asked = monotonic(), feed.asked
    for _ in range(1000):
        follower.refresh()
    feed.wait(asked + 1)
    # As many as there is time for: a machine that is busy may need some.
    assert feed.asked - asked <= (monotonic() - start) / gap + 2


def test_it_is_read_again_without_an_event(begun: Callable[..., Follower]) -> None:
    feed = Feed(topology(1))
    follower = begun(feed, reread=0.05)
    feed.say(topology(2))
    assert follower.wait(1, TIMEOUT)
    feed.say(DOWN)
    asked = feed.asked
    feed.wait(asked + 3)
    feed.say(topology(3))
    assert follower.wait(2, TIMEOUT)


def test_a_look_that_fails_ends_nothing(
    begun: Callable[..., Follower], caplog: pytest.LogCaptureFixture
) -> None:
    feed = Feed(topology(1))
    feed.interval = 0.01
    follower = begun(feed)
    feed.looking = SystemExit("at the look")
    follower.refresh()
    assert until(lambda: follower.report().last_error == "at the look")
    feed.looking = None
    feed.answer(topology(2))
    assert follower.epoch == 2


def test_its_age_grows_until_it_is_confirmed(begun: Callable[..., Follower]) -> None:
    feed = Feed(topology(1))
    follower = begun(feed)
    feed.answer(DOWN)
    first = follower.report().age
    assert until(lambda: follower.report().age > first + 0.1)
    feed.answer(topology(1))
    assert follower.report().age < TIMEOUT
    assert follower.report().state == "current"


def test_two_followers_know_nothing_of_each_other(
    begun: Callable[..., Follower],
) -> None:
    feeds = Feed(topology(1)), Feed(topology(1))
    one, two = map(begun, feeds)
    feeds[0].answer(topology(2))
    feeds[1].answer(topology(5))
    assert (one.epoch, two.epoch) == (2, 5)


def test_a_fixed_topology_is_not_polled() -> None:
    fixed = Fixed(topology(3))
    fixed.start()
    fixed.refresh()
    assert fixed.is_running
    assert not fixed.is_live
    assert fixed.report().state == "fixed"
    assert fixed.report().epoch == fixed.epoch == 3
    assert not fixed.wait(3, 0.0)
    fixed.replace(topology(4))
    assert fixed.wait(3, 0.0)
    assert fixed.close(0.0)


# -- the first topology

NEWER, OLDER, SAME = topology(6), topology(4), topology(5)
OTHER, LOSES = topology(5, first=1), topology(9, shards=6)


@pytest.mark.parametrize(
    ("answer", "used", "state", "from_snapshot", "logged"),
    [
        (NEWER, NEWER, "current", False, ["INFO"]),
        (SAME, SAME, "current", False, []),
        (OLDER, SAME, "stale", True, ["WARNING", "WARNING"]),
        (OTHER, SAME, "stale", True, ["WARNING", "WARNING"]),
        (LOSES, SAME, "stale", True, ["WARNING", "WARNING"]),
        (DOWN, SAME, "stale", True, ["WARNING", "WARNING"]),
        (INVALID, SAME, "stale", True, ["WARNING", "WARNING"]),
        (ConnectionError("no way"), SAME, "stale", True, ["WARNING"] * 2),
    ],
    ids=["newer", "same", "older", "other", "loses", "down", "bad", "error"],
)
def test_begin_with_a_snapshot(
    answer: Topology | BaseException,
    used: Topology,
    state: str,
    from_snapshot: bool,
    logged: list[str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = tmp_path / "last.json"
    snapshot(path).save(SAME)
    os.utime(path, (1e9, 1e9))
    follower = Follower(Feed(answer), snapshot=snapshot(path))
    assert follower.begin() == used
    assert follower.epoch == used.epoch
    report = follower.report()
    assert (report.state, report.from_snapshot) == (state, from_snapshot)
    assert levels(caplog) == logged
    assert snapshot(path).load() == used
    if from_snapshot:
        # In the logs and here it is as old as the file is.
        assert report.age > 1e8
        assert "using the topology of epoch 5" in caplog.text
        assert os.stat(path).st_mtime == 1e9
    else:
        assert report.age < TIMEOUT
        assert snapshot(path).age() < TIMEOUT
    follower.close()


def spoil_mode(path: Path) -> None:
    path.chmod(0o666)


def spoil_group(path: Path) -> None:
    path.chmod(0o620)


def spoil_owner(path: Path) -> None:
    os.chown(path, 1234, -1)


def spoil_end(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def spoil_all(path: Path) -> None:
    path.write_bytes(b"")


def spoil_contents(path: Path) -> None:
    path.write_text('{"epoch": 8}')


def spoil_kind(path: Path) -> None:
    path.unlink()
    path.mkdir()


def spoil_place(path: Path) -> None:
    path.unlink()


SPOILT = [
    spoil_mode,
    spoil_group,
    spoil_owner,
    spoil_end,
    spoil_all,
    spoil_contents,
    spoil_kind,
    spoil_place,
]


@pytest.mark.parametrize("spoil", SPOILT)
def test_begin_with_a_snapshot_that_cannot_be_used(
    spoil: Callable[[Path], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if spoil is spoil_owner and os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    path = tmp_path / "last.json"
    snapshot(path).save(SAME)
    spoil(path)
    follower = Follower(Feed(DOWN), snapshot=snapshot(path))
    # The error is that of the source, not that of the file.
    with pytest.raises(TopologyUnavailableError, match="it is down"):
        follower.begin()
    quiet = spoil is spoil_place
    assert levels(caplog) == ([] if quiet else ["WARNING"])
    assert quiet or "the snapshot is not used" in caplog.text
    follower = Follower(Feed(OLDER), snapshot=snapshot(path))
    assert follower.begin() == OLDER
    if spoil is not spoil_kind:
        # It is replaced by a good one.
        assert snapshot(path).load() == OLDER
        assert path.stat().st_mode & 0o777 == 0o600
    follower.close()


@pytest.mark.parametrize("answer", [DOWN, INVALID, OSError("gone")])
def test_begin_with_nothing(answer: BaseException) -> None:
    feed = Feed(answer)
    with pytest.raises(type(answer)) as caught:
        open_follower(
            feed, snapshot=False, placeholders=DEFAULT_PLACEHOLDERS, environ=None
        )
    assert caught.value is answer
    # It closes the source.
    assert feed.stopped == 1


def test_a_snapshot_is_written_for_each_new_topology(
    tmp_path: Path, begun: Callable[..., Follower]
) -> None:
    path = tmp_path / "state" / "last.json"
    feed = Feed(topology(1))
    begun(feed, snapshot=snapshot(path))
    assert snapshot(path).load() == topology(1)
    feed.answer(topology(2))
    assert snapshot(path).load() == topology(2)
    feed.answer(DOWN)
    os.utime(path, (1e9, 1e9))
    feed.answer(DOWN)
    assert os.stat(path).st_mtime == 1e9
    feed.answer(topology(2))
    assert snapshot(path).age() < TIMEOUT


def test_a_snapshot_that_cannot_be_written_is_logged_once(
    tmp_path: Path, begun: Callable[..., Follower], caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "file"
    place.write_text("no directory")
    feed = Feed(topology(1))
    follower = begun(feed, snapshot=snapshot(place / "last.json"))
    for _ in range(3):
        feed.answer(topology(1))
    feed.answer(topology(2))
    assert follower.report().state == "current"
    assert "cannot be written" in str(follower.report().last_error)
    # It could not be read at the beginning either.
    assert levels(caplog) == ["WARNING", "WARNING", "INFO"]


# -- files


def test_a_file_is_followed_through_everything(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "topology.json"
    path.write_bytes(to_json(topology(1)))
    source = followed(FileSource(path))
    source.interval = 0.01
    assert source.name == str(path)
    follower = Follower(source)
    follower.begin()
    follower.start()
    try:
        # Renamed into place.
        other = tmp_path / "other.json"
        other.write_bytes(to_json(topology(2)))
        os.replace(other, path)
        assert follower.wait(1, TIMEOUT)
        # Written in place: a reader may see a part of it.
        whole = to_json(topology(3))
        with path.open("wb") as file:
            file.write(whole[:50])
            file.flush()
            assert until(lambda: follower.report().state == "stale")
            file.write(whole[50:])
        assert follower.wait(2, TIMEOUT)
        assert follower.report().state == "current"
        # Gone.
        path.unlink()
        assert until(lambda: follower.report().state == "stale")
        assert "cannot be read" in str(follower.report().last_error)
        assert follower.topology == topology(3)
        path.write_bytes(to_json(topology(3)))
        assert until(lambda: follower.report().state == "current")
        # A directory in its place.
        path.unlink()
        path.mkdir()
        assert until(lambda: follower.report().state == "stale")
        path.rmdir()
        path.write_bytes(to_json(topology(4)))
        assert follower.wait(3, TIMEOUT)
        # A link to another.
        (tmp_path / "5.json").write_bytes(to_json(topology(5)))
        (tmp_path / "link").symlink_to("5.json")
        os.replace(tmp_path / "link", path)
        assert follower.wait(4, TIMEOUT)
    finally:
        assert follower.close(TIMEOUT)


def test_a_source_of_any_kind_is_polled() -> None:
    class Mine:
        asked = 0

        def load(self) -> Topology:
            self.asked += 1
            return topology(1 if self.asked < 3 else 2)

        def __repr__(self) -> str:
            return "<mine>"

    source = followed(Mine(), 0.01)
    assert source.name == "<mine>"
    follower = Follower(source)
    follower.begin()
    follower.start()
    assert follower.wait(1, TIMEOUT)
    assert follower.close(TIMEOUT)


# -- processes


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_process_begins_anew(
    tmp_path: Path, begun: Callable[..., Follower]
) -> None:
    feed = Feed(topology(1))
    follower = begun(feed)

    def child() -> None:
        assert feed.forks == 1
        assert threading.active_count() == 1
        assert not follower.is_running
        asked = feed.asked
        follower.start()
        feed.wait(asked + 1)
        feed.answer(topology(2))
        assert follower.epoch == 2
        assert follower.close(TIMEOUT)

    in_child(child, tmp_path)
    assert feed.forks == 0
    feed.answer(topology(3))
    assert follower.epoch == 3


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize(
    ("saved", "used"),
    [(topology(3), 3), (topology(1), 2), (topology(9, shards=6), 2), (None, 2)],
)
def test_a_child_begins_with_a_snapshot_that_is_newer(
    tmp_path: Path, saved: Topology | None, used: int
) -> None:
    """A parent that does not follow may be older than its children."""
    path = tmp_path / "last.json"
    feed = Feed(topology(2))
    follower = Follower(feed, snapshot=snapshot(path))
    notified: list[int] = []
    follower.add_callback(lambda old, new: notified.append(new.epoch))
    follower.begin()
    path.unlink()
    if saved is not None:
        snapshot(path).save(saved)
        os.utime(path, (0, 0))
    feed.say(DOWN)

    def child() -> None:
        assert follower.report().state == "stale"
        asked = feed.asked
        follower.start()
        # It was judged what the snapshot has when the source is asked.
        feed.wait(asked + 1)
        report = follower.report()
        assert (report.epoch, report.state) == (used, "stale")
        assert report.from_snapshot == (used == 3)
        assert (report.age > TIMEOUT) == (used == 3)
        assert notified == [3] * (used == 3)
        feed.answer(topology(4))
        report = follower.report()
        assert (report.epoch, report.state) == (4, "current")
        assert not report.from_snapshot
        assert follower.close(TIMEOUT)

    in_child(child, tmp_path)
    assert follower.report().state == "current"
    assert follower.close(TIMEOUT)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_while_callbacks_run(
    tmp_path: Path, begun: Callable[..., Follower]
) -> None:
    """Callbacks that the parent's thread had pending run in the child."""
    feed = Feed(topology(1))
    follower = begun(feed)
    inside, go = threading.Event(), threading.Event()
    notified: list[int] = []

    def slow(old: Topology, new: Topology) -> None:
        inside.set()
        assert go.wait(TIMEOUT)

    follower.add_callback(slow)
    follower.add_callback(lambda old, new: notified.append(new.epoch))

    def child() -> None:
        go.set()
        follower.start()
        assert follower.wait(1, TIMEOUT)
        assert notified == [2]

    feed.tell(topology(2))
    try:
        assert inside.wait(TIMEOUT)
        in_child(child, tmp_path)
        assert notified == []
    finally:
        go.set()
    assert follower.wait(1, TIMEOUT)
    assert notified == [2]


def test_nothing_is_left_of_one_that_was_closed() -> None:
    feed = Feed(topology(1))
    follower = Follower(feed)
    follower.begin()
    follower.start()
    feed.wait(2)
    assert follower.close(TIMEOUT)
    gone = weakref.ref(follower)
    del follower, feed
    gc.collect()
    assert gone() is None


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_thread_that_cannot_start_raises_no_error(tmp_path: Path) -> None:
    def child() -> None:
        feed = Feed(topology(1))
        follower = Follower(feed)
        follower.begin()
        # No room for the stack of a thread.
        size = threading.stack_size(1 << 34)
        before = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (1 << 34, before[1]))
        follower.start()
        assert not follower.is_running
        report = follower.report()
        assert report.state == "stale"
        assert "thread" in str(report.last_error)
        resource.setrlimit(resource.RLIMIT_AS, before)
        threading.stack_size(size)
        follower.start()
        assert follower.is_running
        feed.wait(2)
        assert follower.close(TIMEOUT)

    in_child(child, tmp_path)


# -- a callback that does not return


def test_a_callback_that_blocks_is_logged(
    begun: Callable[..., Follower],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("sqla_shard.topology.follow.follower._PATIENCE", 0.0)
    feed = Feed(topology(3))
    follower = begun(feed)
    entered, leave = threading.Event(), threading.Event()

    def block(old: Topology, new: Topology) -> None:
        entered.set()
        assert leave.wait(TIMEOUT)

    follower.add_callback(block)
    assert follower.report().state == "current"
    feed.tell(topology(4))
    assert entered.wait(TIMEOUT)
    assert until(lambda: follower.report().state == "stale")
    report = follower.report()
    assert report.epoch == 4
    assert "topology_changed) was called for epoch 4" in str(report.last_error)
    assert "has not returned" in str(report.last_error)
    # Logged once, however often the report is read.
    follower.report()
    said = [one for one in caplog.messages if "has not returned" in one]
    assert len(said) == 1
    # A topology of the meantime is found when it has returned.
    feed.tell(topology(5))
    leave.set()
    assert follower.wait(4, TIMEOUT)
    assert until(lambda: follower.report().state == "current")


def test_a_slow_callback_is_not_reported(begun: Callable[..., Follower]) -> None:
    feed = Feed(topology(3))
    follower = begun(feed)
    entered, leave = threading.Event(), threading.Event()

    def wait(old: Topology, new: Topology) -> None:
        entered.set()
        assert leave.wait(TIMEOUT)

    follower.add_callback(wait)
    feed.tell(topology(4))
    assert entered.wait(TIMEOUT)
    assert follower.report().state == "current"
    leave.set()
    assert follower.wait(3, TIMEOUT)
