"""Home feeds in Redis: equal to the tables, whatever happens to them."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import delete

from sqla_shard import Cluster
from sqla_shard.contrib import feeds, FeedStore
from sqla_shard.exc import FeedStoreError
from sqla_shard.jobs import Worker
from sqla_shard.models.deletion import delete_object
from sqla_shard.outbox import apply
from sqla_shard.testing import RedisServer, run_jobs
from tests.models.graph_models import (
    boards,
    CLUSTERS,
    feed,
    follows,
    ids_of,
    Pin,
    pin,
    run,
    User,
    users,
)
from tests.servers.redis import finish_jobs, two_databases

cluster = CLUSTERS.on_servers(
    "feeds", engine_options={"pool_size": 30, "max_overflow": 30}
)


@pytest.fixture(scope="module")
def server(redis_installed: Any) -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(autouse=True)
def store(
    server: RedisServer, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FeedStore]:
    """Feeds in two databases, empty."""
    monkeypatch.setattr(apply, "_APPLY_SECONDS", 120.0)
    store = FeedStore(two_databases(server), size=10, timeout=5.0)
    monkeypatch.setattr(feed, "store", store)
    yield store
    # Before it is closed: jobs write to it.
    run_jobs(cluster)
    store.databases.close()


def on_tables(cluster: Cluster, user: int) -> list[int]:
    with cluster.session() as session:
        found = feed.pull(session, user, number=1000)
    return [entry.post_id for entry in found]


def stored(store: FeedStore, user: int) -> list[int] | None:
    """Return the pins of a feed in Redis; None if there is none."""
    found = store.read(user, feeds.NEWEST, 1000)
    return [one.post_id for one in found.entries] if found.exists else None


def test_added_by_a_job(cluster, store):
    ada, bob, eve = users(cluster, 3)
    (board,) = boards(cluster, bob, 1)
    for user in (ada, eve):
        run(cluster, follows.follow_user, user, bob)
    run_jobs(cluster)
    assert ids_of(cluster, ada) == []
    pins = [pin(cluster, bob, board) for _ in range(4)]
    run_jobs(cluster)
    assert stored(store, ada) == pins[::-1] == ids_of(cluster, ada)
    # The feed of a user who does not read is not stored.
    assert stored(store, eve) is None
    assert ids_of(cluster, eve) == pins[::-1]
    assert stored(store, eve) == pins[::-1]


def test_deleted_users_and_posts(cluster, store):
    """Nothing in Redis names them when the jobs have run."""
    ada, bob = users(cluster, 2)
    (own,), (other,) = boards(cluster, ada, 1), boards(cluster, bob, 1)
    run(cluster, follows.follow_user, ada, bob)
    run(cluster, follows.follow_user, bob, ada)
    run_jobs(cluster)
    posts = [pin(cluster, bob, other) for _ in range(2)]
    pin(cluster, ada, own)
    assert ids_of(cluster, ada) == posts[::-1]
    assert len(ids_of(cluster, bob)) == 1
    delete_object(cluster, Pin, posts[0])
    assert ids_of(cluster, ada) == posts[1:]
    assert stored(store, ada) == posts[1:]
    # A user whose edges have ended before.
    run(cluster, follows.unfollow_user, ada, bob)
    run_jobs(cluster)
    assert ids_of(cluster, ada) == []
    assert stored(store, ada) == []
    delete_object(cluster, User, ada)
    run_jobs(cluster)
    assert stored(store, ada) is None
    assert stored(store, bob) is None
    assert delete_object(cluster, User, ada).parts == ()


def test_a_damaged_entry_is_a_miss(cluster, store):
    ada, bob = users(cluster, 2)
    (board,) = boards(cluster, bob, 1)
    run(cluster, follows.follow_user, ada, bob)
    pins = [pin(cluster, bob, board) for _ in range(2)]
    run_jobs(cluster)
    assert ids_of(cluster, ada) == pins[::-1]
    client = store.databases.clients[store.databases.number_of(ada)]
    for member in (
        *(b"\xff\xfe", b"", b"no entry", b"1:2", b"1:2:3:4", b"-1:2:3", b"0:0:0"),
        *(f"{2**70}:1:1", f"{'9' * 5000}:1:1", f"{bob}:{board}:{bob}"),
        *(f"{pins[0]}:{bob}:{bob}", f"{pins[0]}:{board}:{board}"),
    ):
        client.zadd(store._key(ada), {member: 4e15})
        assert ids_of(cluster, ada) == pins[::-1], member
        assert stored(store, ada) == pins[::-1]


def test_a_job_that_runs_again_changes_nothing(cluster, store, monkeypatch):
    star, *fans = users(cluster, 8)
    (board,) = boards(cluster, star, 1)
    for fan in fans:
        run(cluster, follows.follow_user, fan, star)
    run_jobs(cluster)
    for fan in fans:
        assert ids_of(cluster, fan) == []
    calls: list[list[int]] = []
    add = store.add

    def failing(user_ids: list[int], entry: Any) -> int:
        calls.append(list(user_ids))
        if len(calls) == 3:
            raise FeedStoreError("killed", server="here")
        return add(user_ids, entry)

    monkeypatch.setattr(store, "add", failing)
    one = pin(cluster, star, board)
    finish_jobs(cluster, "feeds")
    assert all(stored(store, fan) == [one] for fan in fans)
    # It has continued with the batch that failed.
    assert calls[3] == calls[2]
    assert sum(map(len, calls)) == len(fans) + len(calls[2])


def test_a_worker_without_redis_does_not_lose_jobs(cluster, store, monkeypatch):
    ada, bob = users(cluster, 2)
    (board,) = boards(cluster, bob, 1)
    run(cluster, follows.follow_user, ada, bob)
    run_jobs(cluster)
    assert ids_of(cluster, ada) == []
    one = pin(cluster, bob, board)
    with monkeypatch.context() as patch:
        patch.setattr(feed, "store", None)
        report = Worker(cluster, ["feeds"]).run(until_empty=True)
    assert (report.succeeded, report.failed) == (0, 1)
    finish_jobs(cluster, "feeds")
    assert stored(store, ada) == [one]


def test_unfollowed_and_deleted_posts_are_removed_when_read(cluster, store):
    ada, bob, eve = users(cluster, 3)
    one, two = boards(cluster, bob, 2)
    (other,) = boards(cluster, eve, 1)
    for user in (bob, eve):
        run(cluster, follows.follow_user, ada, user)
    run_jobs(cluster)
    assert ids_of(cluster, ada) == []
    pins = [pin(cluster, bob, board) for board in (one, two, two)]
    pins.append(pin(cluster, eve, other))
    run_jobs(cluster)
    run(cluster, follows.unfollow_board, ada, one)
    # Its job has not run.
    assert stored(store, ada) == pins[::-1]
    assert ids_of(cluster, ada) == [pins[3], pins[2], pins[1]]
    assert stored(store, ada) == [pins[3], pins[2], pins[1]]
    cluster.run(feed.withdraw, bob, pins[1])
    cluster.run(lambda session: session.execute(delete(Pin).where(Pin.id == pins[1])))
    assert ids_of(cluster, ada) == [pins[3], pins[2]]
    assert stored(store, ada) == [pins[3], pins[2]]


def test_pages_after_the_end_of_a_trimmed_feed(cluster, store):
    ada, bob = users(cluster, 2)
    (board,) = boards(cluster, bob, 1)
    run(cluster, follows.follow_user, ada, bob)
    run_jobs(cluster)
    assert ids_of(cluster, ada) == []
    pins = [pin(cluster, bob, board) for _ in range(25)]
    run_jobs(cluster)
    assert stored(store, ada) == pins[::-1][: store.size]
    assert ids_of(cluster, ada, 4) == pins[::-1]
    store.forget([ada])
    assert ids_of(cluster, ada, 4) == pins[::-1]
    assert stored(store, ada) == pins[::-1][: store.size]


@pytest.mark.thorough
def test_those_with_many_followers_are_pulled(cluster, store, monkeypatch):
    monkeypatch.setattr(feed, "pull_above", 2)
    monkeypatch.setattr(feeds, "_OVERLAP", 0.0)
    monkeypatch.setattr(feeds, "_REFRESH", 0.0)
    star, bob, *fans = users(cluster, 6)
    (board,) = boards(cluster, star, 1)
    (other,) = boards(cluster, bob, 1)
    for fan in fans:
        run(cluster, follows.follow_user, fan, star)
    run(cluster, follows.follow_user, fans[0], bob)
    run_jobs(cluster)
    assert ids_of(cluster, fans[0]) == []
    pins = []
    for number in range(24):
        both = ((star, board), (bob, other))
        pins.append(pin(cluster, *both[number % 3 == 0]))
        run_jobs(cluster)
    of_star = [one for number, one in enumerate(pins) if number % 3]
    of_bob = pins[::3]
    # The first one was added before it was found how many they are.
    assert set(of_bob) <= set(stored(store, fans[0]) or ())
    assert len(set(stored(store, fans[0]) or ()) & set(of_star)) <= 1
    for limit in (1, 2, 5, 50):
        assert ids_of(cluster, fans[0], limit) == pins[::-1]
        assert ids_of(cluster, fans[1], limit) == of_star[::-1]


def test_read_from_the_tables_while_redis_is_down(cluster, store, server, caplog):
    ada, bob = users(cluster, 2)
    (board,) = boards(cluster, bob, 1)
    run(cluster, follows.follow_user, ada, bob)
    run_jobs(cluster)
    pins = [pin(cluster, bob, board) for _ in range(4)]
    run_jobs(cluster)
    assert ids_of(cluster, ada) == pins[::-1]
    server.kill()
    pins.append(pin(cluster, bob, board))
    assert ids_of(cluster, ada) == pins[::-1]
    assert "a feed is read from the tables" in caplog.text
    with pytest.raises(FeedStoreError, match="has failed"):
        store.forget([ada])
    server.start()
    assert ids_of(cluster, ada) == pins[::-1]
    assert stored(store, ada) == pins[::-1]
    with cluster.session() as session:
        assert feed.compare(session, [ada, bob]) == {}
        store.remove(ada, store.read(ada, feeds.NEWEST, 1).entries)
        (entries,) = feed.compare(session, [ada, bob]).values()
    assert [one.post_id for one in entries] == pins[-1:]


def test_a_feed_that_is_forgotten_while_it_is_built(cluster, store):
    """An old feed must not replace what has changed since it was read."""
    ada, bob = users(cluster, 2)
    (board,) = boards(cluster, bob, 1)
    token = store.begin(ada)
    run(cluster, follows.follow_user, ada, bob)
    one = pin(cluster, bob, board)
    run_jobs(cluster)
    assert store.finish(ada, token, []) is False
    assert stored(store, ada) is None
    assert ids_of(cluster, ada) == [one]


def test_equal_to_the_tables_under_load(cluster, store, server, rng):
    """Posts, follows and unfollows at once, and Redis is killed."""
    people = users(cluster, 8)
    owners = {board: user for user in people for board in boards(cluster, user, 2)}
    stop = threading.Event()
    seeds = [rng.randrange(1 << 32) for _ in range(6)]

    def publish(seed: int) -> int:
        random_ = random.Random(seed)
        for _ in range(40):
            board, owner = random_.choice(sorted(owners.items()))
            pin(cluster, owner, board)
        return 40

    def follow(seed: int) -> int:
        random_ = random.Random(seed)
        for _ in range(40):
            user, other = random_.sample(people, 2)
            change = random_.choice([follows.follow_user, follows.unfollow_user])
            run(cluster, change, user, other)
        return 40

    def read(seed: int) -> int:
        random_ = random.Random(seed)
        pages = 0
        while not stop.is_set():
            ids_of(cluster, random_.choice(people), 3)
            pages += 1
        return pages

    worker = Worker(cluster, ["feeds"], concurrency=2)
    with ThreadPoolExecutor(8) as executor:
        working = executor.submit(worker.run)
        readers = [executor.submit(read, seed) for seed in seeds[:2]]
        writers = [executor.submit(publish, seed) for seed in seeds[2:4]]
        writers += [executor.submit(follow, seed) for seed in seeds[4:]]
        try:
            writers[0].result()
            server.kill()
            server.start()
            assert sum(one.result() for one in writers) == 160
        finally:
            stop.set()
            pages = [one.result() for one in readers]
            worker.stop()
            working.result()
    assert all(pages)
    cluster.repair()
    finish_jobs(cluster, "feeds")
    with cluster.session() as session:
        assert feed.compare(session, people) == {}
    incremental = {user: stored(store, user) for user in people}
    for user in people:
        expected = on_tables(cluster, user)
        assert ids_of(cluster, user, 7) == expected
    store.forget(people)
    for user in people:
        ids_of(cluster, user)
        rebuilt = stored(store, user)
        if incremental[user] is not None:
            assert rebuilt == incremental[user]
