"""Keys that could not be deleted from a cache, on one server and several.

Each class is a suite; a test module has a fixture ``cluster``.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import delete, event, select

from sqla_shard import Cluster, exc, ShardSession
from sqla_shard.cache.stores import KeyState, MemoryStore
from sqla_shard.outbox.invalidations import drain, outbox_size, write_pending
from sqla_shard.outbox.tables import OUTBOX
from sqla_shard.session.commit import Commits
from tests.models.operation_models import Account, points, SHARDS
from tests.suites.cache_store import leased, put, state, token
from tests.suites.operations import Suite

SECONDS = 60
Entries = Iterable[tuple[str, str]]


class Failing(MemoryStore):
    """A store with keys whose node does not answer."""

    def __init__(self, down: Collection[str] = ()) -> None:
        super().__init__()
        self.down = set(down)
        self.asked: list[str] = []

    def unblock(self, keys: Collection[str], token: bytes) -> set[str]:
        self.asked += keys
        failed = self.down.intersection(keys)
        return failed | super().unblock(set(keys) - failed, token)


@contextmanager
def at_commit(entries: Entries) -> Iterator[None]:
    """In the block each COMMIT writes keys down, right before it is sent."""
    before = Commits._commit_all

    def commit_all(commits: Any, written: Any) -> None:
        session = commits._session
        write_pending(session, session.log.first[0], entries)
        before(commits, written)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Commits, "_commit_all", commit_all)
        yield


def change(session: ShardSession, account_id: int) -> None:
    session.get_one(Account, account_id).points += 1


def leave(cluster: Cluster, account_id: int, entries: Entries) -> None:
    """Write an account, and keys that could not be deleted."""
    with at_commit(entries), cluster.begin() as session:
        change(session, account_id)


def rows(cluster: Cluster) -> list[tuple[int, str, str]]:
    """Return shard, region and key of all that wait, sorted."""
    found = []
    for places in _everywhere(cluster):
        with cluster.session() as session:
            found += session.execute(
                select(OUTBOX.c.shard_id, OUTBOX.c.region, OUTBOX.c.cache_key),
                bind_arguments={"places": places},
            ).all()
    return sorted(tuple(row) for row in found)


def forget_all(cluster: Cluster) -> None:
    for places in _everywhere(cluster):
        for place in places:
            with cluster.begin() as session:
                session.execute(delete(OUTBOX), bind_arguments={"place": place})


def _everywhere(cluster: Cluster) -> list[Sequence[Any]]:
    places = cluster.places
    spaces = places.topology.keyspaces.values()
    return [places.all_places(space) for space in spaces]


class Outbox(Suite):
    @pytest.fixture(autouse=True)
    def _nothing_waits(self, cluster: Cluster) -> Iterator[None]:
        yield
        forget_all(cluster)

    def test_is_written_with_the_transaction(self, cluster, ids):
        entries = [("r", "a"), ("s", "a"), ("r", "b"), ("r", "a")]
        leave(cluster, ids[2], entries)
        expected = [(2, "r", "a"), (2, "r", "b"), (2, "s", "a")]
        assert rows(cluster) == expected
        assert points(cluster, [ids[2]]) == [1]

    def test_the_session_gives_no_connection_by_then(self, cluster, ids):
        """The reason why write_pending() exists."""
        before = Commits._commit_all
        raised = []

        def commit_all(commits: Any, written: Any) -> None:
            session = commits._session
            place = session.log.first[0]
            for ask in (session._view, session.root_connection):
                with pytest.raises(Exception, match="prepared") as caught:
                    ask(place)
                raised.append(caught.value)
            before(commits, written)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Commits, "_commit_all", commit_all)
            with cluster.begin() as session:
                change(session, ids[0])
        assert len(raised) == 2

    def test_before_a_commit_too(self, cluster, ids):
        with cluster.begin() as session:
            change(session, ids[1])
            session.flush()
            write_pending(session, session.log.first[0], [("r", "a")])
        assert rows(cluster) == [(1, "r", "a")]

    def test_goes_with_a_rollback(self, cluster, ids):
        with cluster.session() as session:
            change(session, ids[1])
            session.flush()
            write_pending(session, session.log.first[0], [("r", "a")])
            session.rollback()
        assert rows(cluster) == []

    def test_each_shard_has_its_own(self, cluster, ids):
        before = Commits._commit_all

        def commit_all(commits: Any, written: Any) -> None:
            session = commits._session
            for shard_id in (0, 1, SHARDS - 1):
                place = session.place_for(Account, shard_id)
                write_pending(
                    session, place, [("r", f"of {shard_id}".replace(" ", ""))]
                )
            before(commits, written)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Commits, "_commit_all", commit_all)
            with cluster.begin(cross_shard="unordered") as session:
                for shard_id in (0, 1, SHARDS - 1):
                    change(session, ids[shard_id])
        assert rows(cluster) == [
            (shard_id, "r", f"of{shard_id}") for shard_id in (0, 1, SHARDS - 1)
        ]

    def test_nothing_is_no_statement(self, cluster, ids):
        with cluster.begin() as session:
            change(session, ids[1])
            session.flush()
            place = session.log.first[0]
            sent: list[str] = []
            event.listen(
                session._view(place),
                "before_cursor_execute",
                lambda c, cursor, statement, *more: sent.append(statement),
            )
            write_pending(session, place, [])
            assert sent == []
            # All of them are one.
            write_pending(session, place, [("r", f"k{n}") for n in range(50)])
            assert len(sent) == 1
        assert len(rows(cluster)) == 50

    @pytest.mark.parametrize(
        ("region", "key", "error"),
        [
            ("r", "a b", exc.CacheKeyError),
            ("r", "a" * 251, exc.CacheKeyError),
            ("", "a", exc.OptionError),
            ("r" * 65, "a", exc.OptionError),
        ],
        ids=["blank", "long key", "no region", "long region"],
    )
    def test_values_that_cannot_be_written(self, cluster, ids, region, key, error):
        with pytest.raises(error):
            leave(cluster, ids[3], [("r", "fine"), (region, key)])
        assert rows(cluster) == []
        assert points(cluster, [ids[3]]) == [0]

    def test_the_longest(self, cluster, ids):
        entry = "r" * 64, "~" * 250
        leave(cluster, ids[3], [entry])
        assert rows(cluster) == [(3, *entry)]
        store = Failing()
        assert drain(cluster, {entry[0]: store}).removed == 1
        assert store.asked == [entry[1]]

    def test_keys_that_differ_by_case(self, cluster, ids):
        leave(cluster, ids[3], [("r", "a"), ("r", "A"), ("R", "a")])
        assert len(rows(cluster)) == 3
        store = Failing({"A"})
        report = drain(cluster, {"r": store})
        assert report.removed == 1
        assert rows(cluster) == [(3, "R", "a"), (3, "r", "A")]

    def test_before_the_transaction_begins(self, cluster, ids):
        with cluster.begin() as session:
            place = session.place_for(Account, 0)
            with pytest.raises(LookupError, match="has not begun on"):
                write_pending(session, place, [("r", "a")])

    # -- draining

    @pytest.mark.parametrize("before", ["value", "lease"])
    def test_takes_out_what_is_there(self, cluster, ids, mark, before):
        store = MemoryStore()
        lease = None
        if before == "value":
            put(store, mark, b"old")
        else:
            lease = leased(store, [mark])[mark]
        leave(cluster, ids[5], [("r", mark)])
        report = drain(cluster, {"r": store})
        assert (report.removed, report.ok) == (1, True)
        assert report.ok
        if lease is not None:
            assert store.fill({mark: (lease, b"old")}, 60) == set()
        assert state(store, mark) is KeyState.LEASED
        assert rows(cluster) == []
        again = drain(cluster, {"r": store})
        assert (again.removed, again.ok) == (0, True)

    def test_tombstones_of_others_stay(self, cluster, ids, mark):
        store, ours = MemoryStore(), token()
        store.block([mark], ours, 10)
        leave(cluster, ids[5], [("r", mark)])
        # The old value is deleted: the next one is read after the COMMIT.
        assert drain(cluster, {"r": store}).removed == 1
        assert state(store, mark) is KeyState.BLOCKED
        store.unblock([mark], ours)
        assert state(store, mark) is KeyState.LEASED

    def test_entries_that_cannot_be_removed_stay(self, cluster, ids):
        leave(cluster, ids[0], [("r", "a"), ("r", "b"), ("s", "b")])
        leave(cluster, ids[7], [("r", "b"), ("r", "c"), ("t", "a")])
        r, s = Failing({"b"}), Failing()
        report = drain(cluster, {"r": r, "s": s})
        assert report.removed == 3
        assert not report.ok
        assert [(w.region, w.rows) for w in report.left] == [("r", 2)]
        assert [(w.region, w.rows) for w in report.unknown] == [("t", 1)]
        assert timedelta(0) < report.left[0].oldest < timedelta(minutes=5)
        assert report.unreachable == ()
        expected = [(0, "r", "b"), (7, "r", "b"), (7, "t", "a")]
        assert rows(cluster) == expected
        document = report.as_dict()
        assert document["left"][0]["rows"] == 2
        assert document["left"][0]["oldest"] > 0
        assert str(report).startswith("3 removed, 2 left, 1 of unknown")
        r.down.clear()
        assert drain(cluster, {"r": r}).removed == 2
        assert rows(cluster) == expected[2:]
        assert drain(cluster, {"t": s}).ok

    def test_after_the_commit(self, cluster, ids, mark):
        """Uncommitted rows are neither seen nor removed."""
        store = Failing()
        with cluster.session() as session:
            change(session, ids[4])
            session.flush()
            write_pending(session, session.log.first[0], [("r", mark)])
            assert drain(cluster, {"r": store}).ok
            assert store.asked == []
            session.commit()
        assert drain(cluster, {"r": store}).removed == 1
        assert store.asked == [mark]

    def test_it_is_deleted_after_that(self, cluster, ids, mark):
        seen = []

        class Looking(Failing):
            def unblock(self, keys: Any, token: bytes) -> set[str]:
                seen.append(rows(cluster))
                return super().unblock(keys, token)

        leave(cluster, ids[4], [("r", mark)])
        assert drain(cluster, {"r": Looking()}).removed == 1
        assert seen == [[(4, "r", mark)]]

    def test_a_crash_in_between(self, cluster, ids, mark, monkeypatch):
        def die(*given: Any) -> None:
            raise KeyboardInterrupt

        leave(cluster, ids[4], [("r", mark)])
        store = Failing()
        with monkeypatch.context() as patch:
            patch.setattr("sqla_shard.outbox.invalidations._delete", die)
            with pytest.raises(KeyboardInterrupt):
                drain(cluster, {"r": store})
        assert rows(cluster) == [(4, "r", mark)]
        assert drain(cluster, {"r": store}).removed == 1
        assert store.asked == [mark, mark]

    @pytest.mark.parametrize("batch", [1, 3, 7, 20, 500])
    def test_in_parts(self, cluster, ids, batch):
        """Entries that stay do not block the others."""
        keys = [f"k{n}" for n in range(20)]
        for at in (0, 10):
            # Many have one and the same time.
            leave(cluster, ids[6], [("r", key) for key in keys[at : at + 10]])
        store = Failing(keys[:15])
        report = drain(cluster, {"r": store}, batch=batch)
        assert report.removed == 5
        assert [w.rows for w in report.left] == [15]
        assert sorted(store.asked) == sorted(keys)
        assert len(rows(cluster)) == 15

    def test_ends_though_more_keep_coming(self, cluster, ids):
        class Busy(Failing):
            def unblock(self, keys: Any, token: bytes) -> set[str]:
                count = len(self.asked)
                leave(cluster, ids[6], [("r", f"new{count}{n}") for n in "abc"])
                return super().unblock(keys, token)

        leave(cluster, ids[6], [("r", "a"), ("r", "b"), ("r", "c")])
        report = drain(cluster, {"r": Busy()}, batch=2)
        assert 3 <= report.removed <= 6

    def test_a_key_that_cannot_be_one(self, cluster, ids):
        """Written by another program; the others are deleted."""
        leave(cluster, ids[6], [("r", "a"), ("r", "bad"), ("r", "c")])
        place = cluster.places.place(cluster.places.keyspace(None, "objects"), 6)
        with cluster.begin() as session:
            session.execute(
                OUTBOX.update()
                .where(OUTBOX.c.cache_key == "bad")
                .values(cache_key="a bad one"),
                bind_arguments={"place": place},
            )
        report = drain(cluster, {"r": MemoryStore()})
        assert report.removed == 2
        assert [w.rows for w in report.left] == [1]
        assert rows(cluster) == [(6, "r", "a bad one")]

    def test_by_several_at_once(self, cluster, ids):
        expected = {f"k{n}" for n in range(300)}
        keys = sorted(expected)
        for number in range(30):
            some = keys[number * 10 : number * 10 + 10]
            leave(cluster, ids[number % SHARDS], [("r", key) for key in some])
        store = Failing()
        together = threading.Barrier(4)
        reports: list[Any] = []

        def work() -> None:
            together.wait(SECONDS)
            reports.append(drain(cluster, {"r": store}, batch=20))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS)
        assert [trouble for r in reports for trouble in r.unreachable] == []
        assert sum(report.removed for report in reports) == 300
        assert set(store.asked) == expected
        assert rows(cluster) == []

    @pytest.mark.parametrize("batch", [0, -1, True, 1.5, None])
    def test_batches_that_cannot_be(self, cluster, batch):
        with pytest.raises(ValueError, match="1 or more"):
            drain(cluster, {}, batch=batch)

    # -- how many there are

    def test_size(self, cluster, ids):
        assert outbox_size(cluster) == ([], [])
        leave(cluster, ids[0], [("r", "a"), ("r", "b"), ("s", "b")])
        leave(cluster, ids[7], [("r", "b")])
        sizes, troubles = outbox_size(cluster)
        assert troubles == []
        found = [(s.region, s.keyspace, s.shard_id, s.rows) for s in sizes]
        assert found == [
            ("r", "objects", 0, 2),
            ("r", "objects", 7, 1),
            ("s", "objects", 0, 1),
        ]
        for size in sizes:
            assert timedelta(0) <= size.oldest < timedelta(minutes=5)
            assert size.as_dict()["oldest"] == size.oldest.total_seconds()
        later, _ = outbox_size(cluster)
        for size, after in zip(sizes, later, strict=True):
            assert after.oldest > size.oldest
