"""A follow graph in Redis: equal to its tables, whatever happens to it."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import delete

from sqla_shard import Cluster
from sqla_shard.contrib import FollowKind, FollowStore, repair_follows
from sqla_shard.exc import BlockedError, FeedStoreError, WrongTypeError
from sqla_shard.jobs import Worker
from sqla_shard.models.deletion import delete_object
from sqla_shard.outbox import apply
from sqla_shard.testing import RedisServer, run_jobs, StatementLog
from tests.models.graph_models import (
    boards,
    CLUSTERS,
    follows,
    run,
    stored,
    User,
    users,
)
from tests.servers.redis import finish_jobs, two_databases

EXPLICIT, IMPLICIT = FollowKind.EXPLICIT, FollowKind.IMPLICIT

cluster = CLUSTERS.on_servers(
    "follows", engine_options={"pool_size": 30, "max_overflow": 30}
)


@pytest.fixture(scope="module")
def server(redis_installed: Any) -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(autouse=True)
def store(
    server: RedisServer, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FollowStore]:
    """Lists in two databases, empty."""
    monkeypatch.setattr(apply, "_APPLY_SECONDS", 120.0)
    store = FollowStore(two_databases(server), timeout=5.0)
    monkeypatch.setattr(stored, "store", store)
    yield store
    # Before it is closed: jobs write to it.
    run_jobs(cluster)
    store.databases.close()


def test_a_deleted_user(cluster, store):
    """Nothing in Redis names it when the jobs have run."""
    ada, bob = users(cluster, 2)
    run(cluster, follows.follow_user, ada, bob)
    with cluster.session() as session:
        assert list(stored.following(session, ada, [bob])) == [bob]
        assert list(stored.followed_by(session, ada, [bob])) == []
        assert list(stored.followed_by(session, bob, [ada])) == [ada]
    tables = (follows.users, follows.users_reversed)
    assert None not in [store.whole(one.name, ada) for one in tables]
    delete_object(cluster, User, ada)
    run_jobs(cluster)
    assert [store.whole(one.name, ada) for one in tables] == [None, None]
    with cluster.session() as session:
        assert list(stored.followed_by(session, bob, [ada])) == []


def answers(
    graph: Any, cluster: Cluster, people: list[int], owners: dict[int, int]
) -> list[Any]:
    """Return what can be read of some users and boards."""
    found: list[Any] = []
    with cluster.session() as session:
        for user in people:
            found += [
                graph.following(session, user, people),
                graph.followed_by(session, user, people),
                graph.follows_boards(session, user, owners.items()),
                graph.relations(session, user, people, owners),
                graph.count_followees(session, user),
                graph.count_followers(session, user),
                list(graph.blocked(session, user)),
                list(graph.followed_boards(session, user)),
            ]
            for pages in (graph.followees, graph.followers):
                after = None
                while True:
                    page = pages(session, user, 2, after)
                    found.append(list(page))
                    after = page.next
                    if after is None:
                        break
        for board, owner in owners.items():
            found.append(graph.count_audience(session, board, owner))
            batches = graph.audience(session, board, owner)
            found.append([one.users for one in batches])
    return found


def differences(cluster: Cluster, *ids: int) -> Any:
    with cluster.session() as session:
        return stored.compare(session, ids)


def change(
    cluster: Cluster, rng: random.Random, people: list[int], owners: dict[int, int]
) -> None:
    """Let a user follow, unfollow, block or unblock."""
    user, other = rng.sample(people, 2)
    name = rng.choices(
        ["follow_user", "unfollow_user", "block", "unblock"], [6, 3, 1, 2]
    )[0]
    if rng.random() < 0.5:
        name = rng.choice(["follow_board", "unfollow_board"])
        other = rng.choice([b for b, one in owners.items() if one != user])
    try:
        run(cluster, getattr(follows, name), user, other)
    except BlockedError:
        assert name.startswith("follow_")


def test_a_damaged_edge_is_a_miss(cluster, store):
    ada, bob, eve = users(cluster, 3)
    run(cluster, follows.follow_user, ada, bob)
    run_jobs(cluster)
    expected = answers(follows, cluster, [ada, bob], {})
    assert answers(stored, cluster, [ada, bob], {}) == expected
    client = store.databases.clients[store.databases.number_of(ada)]
    key = store._keys(follows.users.name, ada)[0]
    for content in (
        b"",
        b"\xff",
        b"x",
        b"1 0 1",
        b"77 0 1 1",
        b"1 0 1 1 1",
        b"1 0 -inf 1",
    ):
        client.hset(key, f"{bob:019}", content)
        assert answers(stored, cluster, [ada, bob], {}) == expected, content
        assert differences(cluster, ada) == {}
    client.hset(key, f"{bob:019}", b"x")
    # A job that finds it removes the list, too.
    run(cluster, follows.unfollow_user, ada, bob)
    run(cluster, follows.follow_user, ada, eve)
    run_jobs(cluster)
    people = [ada, bob, eve]
    expected = answers(follows, cluster, people, {})
    assert answers(stored, cluster, people, {}) == expected


def test_changed_by_jobs(cluster, store):
    ada, bob, *others = users(cluster, 26)
    run(cluster, follows.follow_user, ada, bob)
    with cluster.session() as session:
        assert stored.following(session, ada, [bob]) == {bob: EXPLICIT}
        assert stored.followed_by(session, bob, [ada]) == {ada: EXPLICIT}
    run_jobs(cluster)
    run(cluster, follows.unfollow_user, ada, bob)
    run(cluster, follows.follow_user, ada, others[0])
    with cluster.session() as session, StatementLog() as log:
        # Their jobs have not run.
        assert stored.following(session, ada, [bob, *others]) == {bob: EXPLICIT}
        assert stored.count_followees(session, ada)[EXPLICIT] == 1
    assert not log.events
    run_jobs(cluster)
    with cluster.session() as session, StatementLog() as log:
        found = stored.following(session, ada, [bob, *others])
        assert found == {others[0]: EXPLICIT}
        assert stored.following(session, ada, []) == {}
        assert stored.count_followers(session, bob)[EXPLICIT] == 0
    assert not log.events
    assert differences(cluster, ada, bob, *others) == {}


@pytest.mark.thorough
def test_equal_to_the_tables_with_jobs_in_any_order(cluster, store, rng, monkeypatch):
    """Jobs are late, repeated and reordered; lists are removed and built."""
    people = users(cluster, 5)
    owners = {board: user for user in people for board in boards(cluster, user, 2)}
    late: list[Any] = []
    add = store.add

    def sometimes(*args: Any) -> None:
        if rng.random() < 0.5:
            late.append(args)
        else:
            add(*args)

    monkeypatch.setattr(store, "add", sometimes)
    for _ in range(60):
        change(cluster, rng, people, owners)
        if rng.random() < 0.3:
            answers(stored, cluster, rng.sample(people, 2), owners)
        if rng.random() < 0.3:
            run_jobs(cluster)
        if late and rng.random() < 0.2:
            add(*rng.choice(late))
        if rng.random() < 0.1:
            keys = store.databases.clients[0].keys()
            if keys:
                # As if it were evicted.
                store.databases.clients[0].delete(rng.choice(sorted(keys)))
    run_jobs(cluster)
    late += rng.choices(late, k=len(late))
    rng.shuffle(late)
    for args in late:
        add(*args)
    assert differences(cluster, *people, *owners) == {}
    expected = answers(follows, cluster, people, owners)
    assert answers(stored, cluster, people, owners) == expected
    # Now all of them are built.
    assert differences(cluster, *people, *owners) == {}
    assert all(client.dbsize() for client in store.databases.clients)


def test_read_from_the_tables_while_redis_is_down(cluster, store, server, caplog):
    star, *fans = users(cluster, 6)
    for fan in fans:
        run(cluster, follows.follow_user, fan, star)
    run_jobs(cluster)
    with cluster.session() as session:
        first = stored.followers(session, star, 2)
    server.kill()
    with cluster.session() as session:
        # A bookmark of a page of Redis continues in the tables.
        second = stored.followers(session, star, 2, first.next)
        assert stored.count_followers(session, star)[EXPLICIT] == 5
        with pytest.raises(FeedStoreError, match="has failed"):
            stored.compare(session, [star])
    assert "a follow graph is read from the tables" in caplog.text
    run(cluster, follows.unfollow_user, fans[0], star)
    server.start()
    with cluster.session() as session, StatementLog() as log:
        third = stored.followers(session, star, 2, second.next)
        assert log.events
    with cluster.session() as session, StatementLog() as log:
        assert stored.followers(session, star, 2, second.next) == third
        assert stored.count_followers(session, star)[EXPLICIT] == 4
        assert not log.events
    found = [one.id for page in (first, second, third) for one in page]
    assert found == fans[:0:-1]
    run_jobs(cluster)
    assert differences(cluster, star, *fans) == {}


def test_changes_while_a_list_is_built(cluster, store):
    ada, bob, eve = users(cluster, 3)
    run(cluster, follows.follow_user, ada, bob)
    run_jobs(cluster)
    table = follows.users
    with cluster.session() as session:
        edges = {bob: table.current(session, ada, bob)}
    token = store.begin(table.name, ada)
    assert store.begin(table.name, ada) == token
    run(cluster, follows.unfollow_user, ada, bob)
    run(cluster, follows.follow_user, ada, eve)
    run_jobs(cluster)
    assert store.count(table.name, ada) is None
    # The edges were read before the jobs added theirs.
    assert store.finish(table.name, ada, token, edges.items()) is True
    assert store.finish(table.name, ada, token, edges.items()) is False
    assert store.count(table.name, ada) == {1: 1, 2: 0, 3: 0}
    assert differences(cluster, ada) == {}
    store.forget(table.name, ada)
    token = store.begin(table.name, ada)
    store.forget(table.name, ada)
    other = store.begin(table.name, ada)
    assert store.finish(table.name, ada, token, edges.items()) is False
    assert store.finish(table.name, ada, other, []) is True


def test_an_evicted_key_is_not_an_empty_list(cluster, store):
    star, *fans = users(cluster, 3)
    run(cluster, follows.follow_user, fans[0], star)
    name = follows.users_reversed.name
    (client, _) = store.databases.clients
    for number in range(4):
        with cluster.session() as session:
            stored.followers(session, star)
        key, *sets = sorted(client.scan_iter(f"*{name}:{star}*"))
        assert len(sets) == 1
        client.delete((key, *sets)[number % 2])
        if number > 1:
            # A job changes the rest.
            run(cluster, follows.follow_user, fans[1], star)
            run_jobs(cluster)
        with cluster.session() as session:
            found = stored.followers(session, star)
            assert found == follows.followers(session, star)
            assert stored.count_followers(session, star)[EXPLICIT] == len(list(found))
        run(cluster, follows.unfollow_user, fans[1], star)
        run_jobs(cluster)
    assert differences(cluster, star, *fans) == {}


@pytest.mark.thorough
def test_a_list_that_is_too_long_is_read_from_the_tables(cluster, store, monkeypatch):
    monkeypatch.setattr(store, "largest", 3)
    star, *fans = users(cluster, 6)
    for number, fan in enumerate(fans, 1):
        run(cluster, follows.follow_user, fan, star)
        run_jobs(cluster)
        with cluster.session() as session:
            count = stored.count_followers(session, star)
            assert count == {EXPLICIT: number, IMPLICIT: 0}
        found = store.count(follows.users_reversed.name, star)
        assert (found is not None) == (number <= 3)
    store.forget(follows.users_reversed.name, star)
    with cluster.session() as session:
        # It is found to be too long when it is built.
        page = stored.followers(session, star, 50)
        assert [one.id for one in page] == fans[::-1]
    assert store.begin(follows.users_reversed.name, star) is None
    (client, _) = store.databases.clients
    assert all(client.pttl(key) > 0 for key in client.scan_iter())
    assert differences(cluster, star) == {}


def test_compared_and_rebuilt(cluster, store):
    ada, bob, eve = users(cluster, 3)
    (board,) = boards(cluster, bob, 1)
    run(cluster, follows.follow_board, ada, board)
    run(cluster, follows.follow_user, eve, bob)
    run_jobs(cluster)
    everything = (ada, bob, eve, board)
    answers(stored, cluster, [ada, bob, eve], {board: bob})
    assert differences(cluster, *everything) == {}
    with cluster.begin(cross_shard="unordered") as session:
        # As by a restored server: no job knows.
        for table, source in (
            (follows.users_reversed, bob),
            (follows.boards_reversed, board),
        ):
            session.execute(delete(table.table).where(table.source_id == source))
    assert differences(cluster, *everything) == {
        (follows.users_reversed.name, bob): sorted([ada, eve]),
        (follows.boards_reversed.name, board): [ada],
    }
    with cluster.session() as session:
        stored.rebuild(session, [bob, board])
    assert differences(cluster, *everything) == {}
    with cluster.session() as session, StatementLog() as log:
        assert stored.count_audience(session, board, bob) == 0
        assert not log.events
        with pytest.raises(WrongTypeError):
            stored.compare(session, [board + (7 << 36)])


def test_a_repair_changes_redis_in_both_directions(cluster, store):
    # Of other tests.
    repair_follows(cluster, follows)
    ada, bob, eve = users(cluster, 3)
    for user in (ada, eve):
        run(cluster, follows.follow_user, user, bob)
    run_jobs(cluster)
    with cluster.begin(cross_shard="unordered") as session:
        for table, source, target in (
            (follows.users_reversed, bob, ada),
            (follows.users, eve, bob),
        ):
            session.execute(
                delete(table.table).where(
                    table.source_id == source, table.target_id == target
                )
            )
    with cluster.session() as session:
        stored.rebuild(session, [eve])
        stored.rebuild(session, [bob])
        assert stored.followed_by(session, bob, [ada, eve]) == {eve: EXPLICIT}
    found = repair_follows(cluster, follows)
    assert (found.written, found.reverted) == (1, 1)
    run_jobs(cluster)
    with cluster.session() as session, StatementLog() as log:
        assert stored.followed_by(session, bob, [ada, eve]) == {ada: EXPLICIT}
        assert not log.events
    assert differences(cluster, ada, bob, eve) == {}


def test_a_worker_without_redis_does_not_lose_jobs(cluster, store, monkeypatch):
    ada, bob = users(cluster, 2)
    with cluster.session() as session:
        assert stored.following(session, ada, [bob]) == {}
    run(cluster, follows.follow_user, ada, bob)
    with monkeypatch.context() as patch:
        patch.setattr(stored, "store", None)
        report = Worker(cluster, ["follows"]).run(until_empty=True)
    assert (report.succeeded, report.failed) == (0, 2)
    finish_jobs(cluster, "follows")
    with cluster.session() as session, StatementLog() as log:
        assert stored.following(session, ada, [bob]) == {bob: EXPLICIT}
    assert not log.events


def test_equal_to_the_tables_under_load(cluster, store, server, rng):
    """Changes and reads at once, and Redis is killed."""
    people = users(cluster, 8)
    owners = {board: user for user in people for board in boards(cluster, user, 2)}
    stop = threading.Event()
    seeds = [rng.randrange(1 << 32) for _ in range(5)]

    def write(seed: int) -> int:
        random_ = random.Random(seed)
        for _ in range(40):
            change(cluster, random_, people, owners)
        return 40

    def read(seed: int) -> int:
        random_ = random.Random(seed)
        reads = 0
        while not stop.is_set():
            answers(stored, cluster, random_.sample(people, 2), owners)
            reads += 1
        return reads

    worker = Worker(cluster, ["follows"], concurrency=2)
    with ThreadPoolExecutor(8) as executor:
        working = executor.submit(worker.run)
        readers = [executor.submit(read, seed) for seed in seeds[:2]]
        writers = [executor.submit(write, seed) for seed in seeds[2:]]
        try:
            writers[0].result()
            server.kill()
            server.start()
            assert sum(one.result() for one in writers) == 120
        finally:
            stop.set()
            reads = [one.result() for one in readers]
            worker.stop()
            working.result()
    assert all(reads)
    cluster.repair()
    finish_jobs(cluster, "follows")
    assert differences(cluster, *people, *owners) == {}
    expected = answers(follows, cluster, people, owners)
    assert answers(stored, cluster, people, owners) == expected
    assert differences(cluster, *people, *owners) == {}
