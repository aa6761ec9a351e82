"""Guarantees to readers of a cache while its node cannot be reached.

The writer goes through proxies, to its servers and to its node; the reader
does not, and goes on finding what the node has.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from sqlalchemy import event

from sqla_shard import Cluster, no_cache, pack, unpack
from sqla_shard.cache import cached_objects
from sqla_shard.cache.stores import KeyState
from sqla_shard.exc import PartialCommitError
from sqla_shard.outbox.invalidations import drain
from sqla_shard.testing import MemcachedServer, Proxy
from sqla_shard.testing.local_server import wait_until
from sqla_shard.testing.server_fleet import ServerFleet
from tests.models.cached_models import (
    Base,
    Board,
    BoardHasPins,
    CLASSES,
    key_of,
    Pin,
    seen,
    SHARDS,
    stored,
    User,
)
from tests.servers.kinds import Kind, own_lines
from tests.servers.memcached import nodes
from tests.suites.outbox import forget_all

pytestmark = pytest.mark.live

#: Shards of the first server and of the last.
NEAR, FAR = 0, SHARDS - 1
TOMBSTONE = 1
#: How long to look whether something ends that is not to end yet.
SHORT = 0.5
PATIENCE = 60


def cities_of(session: Any, user_ids: list[int]) -> list[str]:
    found = session.get_many(User, user_ids, options=[no_cache()])
    return [user.city for user in found]


@cached_objects("results", format="promises:all:%s")
def cities(session: Any, names: list[str]) -> dict[str, list[str]]:
    """Return the cities of users whose ids are separated by commas."""
    return {
        name: cities_of(session, [int(one) for one in name.split(",")])
        for name in names
    }


#: The user whose city a user's own result has in it.
friends: dict[int, int] = {}


@cached_objects("results", format="promises:pair:%d", of=User)
def pairs(session: Any, user_ids: list[int]) -> dict[int, list[str]]:
    """Return the cities of users and of their friends."""
    return {
        user_id: cities_of(session, [friends[user_id], user_id]) for user_id in user_ids
    }


# -- clusters


lines = own_lines()


@pytest.fixture(scope="module")
def node(memcached_installed: None, server_kind: Kind) -> Iterator[MemcachedServer]:
    # Rows of another kind of server have the same ids.
    with nodes(1) as servers:
        yield servers[0]


@pytest.fixture(scope="module")
def way(node: MemcachedServer) -> Iterator[Proxy]:
    """The writer's way to the node."""
    with Proxy(node.host, node.port) as proxy:
        yield proxy


def configure(cluster: Cluster, address: str) -> None:
    region = {
        "backend": "sqla_shard.memcached",
        "tombstone": TOMBSTONE,
        "arguments": {"servers": [address], "timeout": 5.0, "retry": 0.01},
    }
    cluster.configure_cache(
        # Other modules have no region of results, and count what they send.
        {"objects": region, "lists": region, "results": region},
        classes=CLASSES,
        prefix="promise",
    )


@pytest.fixture(scope="module")
def document(fleet: ServerFleet[Any]) -> Iterator[Callable[..., Any]]:
    def document(**more: Any) -> Any:
        found = fleet.topology_mapping(
            shards=SHARDS, database="db_promises_{shard:05d}", **more
        )
        for server in found["keyspaces"]["objects"]["servers"]:
            # Or the values of readers and writers would be unlike: they
            # have other addresses.
            server["generation"] = 1
        return found

    fleet.drop_databases(document())
    yield document
    fleet.drop_databases(document())


@pytest.fixture(scope="module")
def cluster(document: Any, node: MemcachedServer) -> Iterator[Cluster]:
    """The reader's."""
    with Cluster.from_topology(document()) as cluster:
        cluster.create_all(Base.metadata)
        configure(cluster, node.address)
        yield cluster


@pytest.fixture
def writer(
    document: Any, cluster: Cluster, lines: list[Proxy], way: Proxy
) -> Iterator[Cluster]:
    with Cluster.from_topology(document(proxies=lines)) as writer:
        configure(writer, f"{way.host}:{way.port}")
        yield writer
        for line in (*lines, way):
            line.restore()
        forget_all(cluster)


@contextlib.contextmanager
def unreachable(way: Proxy) -> Iterator[None]:
    """The writer does not reach the node in the block."""
    way.refuse()
    way.cut()
    yield
    way.restore()


def drained(cluster: Cluster) -> int:
    """Take what waits out of the cache; return how many keys that were."""
    assert cluster.cache is not None
    regions = cluster.cache.regions
    report = drain(cluster, {name: one.store for name, one in regions.items()})
    assert report.ok
    return report.removed


def asked(cluster: Cluster, function: Any, one: Any) -> Any:
    with cluster.session() as session:
        return function(session, [one])[one]


@pytest.fixture
def users(cluster: Cluster) -> list[int]:
    return [
        stored(cluster, User(name="u", city="Rome"), shard_id)
        for shard_id in (NEAR, FAR)
    ]


# -- results of several servers


@pytest.mark.parametrize("function", [cities, pairs])
def test_a_result_of_two_servers_of_which_one_commits(
    cluster: Cluster,
    writer: Cluster,
    lines: list[Proxy],
    way: Proxy,
    users: list[int],
    function: Any,
) -> None:
    """Its key waits wherever a part of the transaction is committed."""
    near, far = users
    friends[far] = near
    one: Any = f"{near},{far}" if function is cities else far
    assert asked(cluster, function, one) == ["Rome", "Rome"]
    with unreachable(way), writer.session(cross_shard="ordered") as session:
        for user in users:
            session.get(User, user).city = "Oslo"
            session.flush()
        function.invalidate(session, one)
        lines[-1].cut_at_commit(when="before")
        with pytest.raises(PartialCommitError):
            session.commit()
    assert drained(cluster)
    assert asked(cluster, function, one) == ["Oslo", "Rome"]
    assert [seen(cluster, User, user).city for user in users] == ["Oslo", "Rome"]


# -- all that a transaction can write


class Rows:
    """Rows on two servers, and what can be read of them."""

    def __init__(self, cluster: Cluster) -> None:
        self.users = [
            stored(cluster, User(name="u", city="Rome"), shard_id)
            for shard_id in (NEAR, FAR)
        ]
        self.boards = [stored(cluster, Board(), shard_id) for shard_id in (NEAR, FAR)]
        self.pins = [stored(cluster, Pin(title="p")) for _ in range(4)]
        for board in self.boards:
            cluster.run(BoardHasPins.append_many, board, self.pins[:2])
        friends[self.users[1]] = self.users[0]
        # Those that come next.
        self.absent = [
            pack(parts.shard_id, parts.type_id, parts.local_id + 1)
            for parts in map(unpack, self.users)
        ]

    def read(self, cluster: Cluster, **options: Any) -> Any:
        found: list[Any] = []
        both = "{},{}".format(*self.users)
        for work in (
            lambda s: cities(s, [both]),
            lambda s: pairs(s, self.users[1:]),
            lambda s: [
                one and (one.name, one.city)
                for one in s.get_many(User, [*self.users, *self.absent])
            ],
            *(partial(self._listed, board) for board in self.boards),
        ):
            with cluster.session(**options) as session:
                found.append(work(session))
        return found

    def _listed(self, board: int, session: Any) -> Any:
        page = BoardHasPins.page(session, board, 9)
        there = BoardHasPins.contains(session, board, self.pins)
        count = BoardHasPins.count(session, board)
        return [row.pin_id for row in page], there, count

    def write(self, session: Any) -> None:
        first, second, third, fourth = self.pins
        for user, board in zip(self.users, self.boards, strict=True):
            undone = session.begin_nested()
            session.get(User, user).city = "nowhere"
            BoardHasPins.append(session, board, fourth)
            undone.rollback()
            session.get(User, user).city = "Oslo"
            with session.begin_nested():
                session.add(User(name="new", shard_id=unpack(user).shard_id))
                BoardHasPins.append(session, board, third)
            BoardHasPins.remove(session, board, first)
            BoardHasPins.move(session, board, second, before=None, after=third)
            session.flush()
        cities.invalidate(session, "{},{}".format(*self.users))


@pytest.mark.parametrize("cut", [None, "before", "after"])
@pytest.mark.parametrize("cross_shard", ["ordered", "unordered"])
@pytest.mark.parametrize("in_loop", [False, True])
def test_all_that_waits_is_read_anew(
    cluster: Cluster,
    writer: Cluster,
    lines: list[Proxy],
    way: Proxy,
    in_loop: bool,
    cross_shard: Any,
    cut: Any,
) -> None:
    """Whatever was committed, and where; the node is back after it."""
    rows = Rows(cluster)
    for _ in range(2):
        before = rows.read(cluster)

    def write(session: Any) -> None:
        with unreachable(way):
            rows.write(session)
            if cut is not None:
                lines[-1].cut_at_commit(when=cut)
            session.commit()

    async def main() -> None:
        async with contextlib.aclosing(writer):
            await writer.async_warm(2)
            async with writer.async_session(cross_shard=cross_shard) as session:
                await session.run_sync(write)

    with contextlib.ExitStack() as stack:
        if cut is not None:
            stack.enter_context(pytest.raises(PartialCommitError))
        if in_loop:
            asyncio.run(main())
        else:
            session = writer.session(cross_shard=cross_shard)
            write(stack.enter_context(session))
    # The server may hear of the end of a connection later.
    assert wait_until(
        lambda: rows.read(cluster, cache=False) != before, seconds=PATIENCE
    )
    assert drained(cluster)
    assert rows.read(cluster) == rows.read(cluster, cache=False) != before


# -- lists


def ids_of(cluster: Cluster, board: int) -> tuple[list[int], int]:
    """Return the pins of a board as read through the cache, and how many."""
    with cluster.session() as session:
        page = BoardHasPins.page(session, board, 3)
        return ([row.pin_id for row in page], BoardHasPins.count(session, board))


@pytest.mark.parametrize("change", ["append", "remove", "move"])
def test_a_list_that_two_have_changed(
    cluster: Cluster, writer: Cluster, way: Proxy, change: str
) -> None:
    """No row is added to a list that is to be removed from the cache."""
    board = stored(cluster, Board(), FAR)
    first, second, third, fourth = (stored(cluster, Pin(title="p")) for _ in range(4))
    cluster.run(BoardHasPins.append_many, board, [first, second])
    before = [second, first]
    assert ids_of(cluster, board) == (before, 2)
    with unreachable(way), writer.begin() as session:
        if change == "append":
            BoardHasPins.append(session, board, third)
            after = [third, *before]
        elif change == "remove":
            BoardHasPins.remove(session, board, first)
            after = [second]
        else:
            BoardHasPins.move(session, board, first, after=second)
            after = [first, second]
    # The cache has the old list; the key is pending.
    assert ids_of(cluster, board) == (before, 2)
    cluster.run(BoardHasPins.append, board, fourth)
    expected = [fourth, *after]
    assert ids_of(cluster, board) == (expected[:3], len(expected))
    assert drained(cluster)
    assert ids_of(cluster, board) == (expected[:3], len(expected))


def test_a_server_that_is_lost_after_commit(
    cluster: Cluster,
    writer: Cluster,
    lines: list[Proxy],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Keys may wait or not: the list is read anew."""
    board = stored(cluster, Board(), FAR)
    pins = [stored(cluster, Pin(title="p")) for _ in range(2)]
    cluster.run(BoardHasPins.append, board, pins[0])
    assert ids_of(cluster, board) == (pins[:1], 1)
    engine = dict(writer.places.servers())[f"server{len(lines)}"].engine

    def cut(*said: Any) -> None:
        if "sqla_shard_outbox" in said[2]:
            lines[-1].cut()

    event.listen(engine, "before_cursor_execute", cut)
    with writer.begin() as session:
        BoardHasPins.append(session, board, pins[1])
    assert "that were appended to" in caplog.text
    assert ids_of(cluster, board) == (pins[::-1], 2)
    # And put into the cache.
    store = cluster.cache.region("lists").store  # type: ignore[union-attr]  # there is one
    key = key_of(cluster, BoardHasPins, board)
    assert store.fetch([key], 0)[key].state is KeyState.VALUE


# -- event loops


class Gated:
    """A store that holds up the end of a transaction.

    :ivar at: the method that waits, which is called after COMMIT.
    :ivar reached: set when it is called.
    :ivar go: to be set then.
    """

    def __init__(self, store: Any, at: str) -> None:
        self._store = store
        self._at = at
        self.put = False
        self.reached = threading.Event()
        self.go = threading.Event()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if name not in ("block", "unblock"):
            return method

        def call(*args: Any) -> Any:
            # The first tombstones come before COMMIT.
            if name == self._at and self.put:
                self.reached.set()
                assert self.go.wait(PATIENCE)
            self.put = True
            return method(*args)

        return call


def filled(cluster: Cluster, user: int) -> None:
    """Return when a reader has cached the value of the database."""
    assert cluster.cache is not None
    store = cluster.cache.region("objects").store
    key = key_of(cluster, User, user)
    pause = threading.Event()
    for _ in range(PATIENCE * 20):
        seen(cluster, User, user)
        if store.fetch([key], 0)[key].state is KeyState.VALUE:
            return
        pause.wait(0.05)
    pytest.fail("the tombstone does not end")


async def during(commit: Any, gate: Gated, *, cancel: bool = False) -> Any:
    """Return the task of a commit that has waited for the gate."""
    task = asyncio.ensure_future(commit)
    await asyncio.to_thread(gate.reached.wait, PATIENCE)
    if cancel:
        task.cancel()
    # It is not acknowledged before the old value is gone.
    done, _ = await asyncio.wait([task], timeout=SHORT)
    assert not done
    gate.go.set()
    await asyncio.wait([task])
    return task


@pytest.fixture
def slow(
    document: Any, cluster: Cluster, lines: list[Proxy], node: MemcachedServer
) -> Iterator[Callable[..., Any]]:
    """COMMITs in event loops that take longer than a tombstone."""

    @contextlib.asynccontextmanager
    async def slow(
        user: int, at: str = "unblock", then: Callable[[], None] = int
    ) -> Any:
        other = Cluster.from_topology(document(proxies=lines))
        configure(other, node.address)
        assert other.cache is not None
        region = other.cache.region("objects")
        gate = Gated(region.store, at)
        object.__setattr__(region, "store", gate)
        async with contextlib.aclosing(other):
            await other.async_warm()
            session = other.async_session().sync_session
            engines = {place.engine for _, place in session.places.servers()}

            def committing(connection: Any) -> None:
                # Not those of connections that are new.
                if gate.put:
                    filled(cluster, user)
                    then()

            for engine in engines:
                event.listen(engine, "commit", committing)
            yield other, gate

    yield slow
    for line in lines:
        line.restore()


async def rename(session: Any, user: int) -> None:
    found = await session.get_one(User, user)
    found.city = "Oslo"


async def by_begin(cluster: Cluster, user: int) -> None:
    async with cluster.async_begin() as session:
        await rename(session, user)


async def by_commit(cluster: Cluster, user: int) -> None:
    async with cluster.async_session() as session:
        await rename(session, user)
        await session.commit()


async def by_run(cluster: Cluster, user: int) -> None:
    await cluster.async_run(rename, user)


async def by_block(cluster: Cluster, user: int) -> None:
    async with cluster.async_session() as session, session.begin():
        await rename(session, user)


@pytest.mark.parametrize(
    ("commit", "cancel"),
    [
        *((how, False) for how in (by_begin, by_commit, by_run, by_block)),
        *((how, True) for how in (by_begin, by_commit)),
    ],
)
def test_a_commit_that_is_longer_than_a_tombstone(
    cluster: Cluster, slow: Any, users: list[int], commit: Any, cancel: bool
) -> None:
    """An acknowledged write is read from then on."""
    user = users[0]

    async def main() -> None:
        async with slow(user) as (other, gate):
            task = await during(commit(other, user), gate, cancel=cancel)
            assert task.cancelled() is cancel
            assert sum(one.busy for one in other.stats()) == 0

    asyncio.run(main())
    assert seen(cluster, User, user).city == "Oslo"


def test_a_long_commit_whose_answer_is_lost(
    cluster: Cluster, slow: Any, lines: list[Proxy], users: list[int]
) -> None:
    """Its tombstones are there again before it is acknowledged."""
    user = users[0]

    def cut() -> None:
        for line in lines:
            line.cut_at_commit(when="after")

    async def main() -> None:
        async with slow(user, "block", cut) as (other, gate):
            key = f"promise {user}"
            commit = other.async_run(rename, user, key=key)
            task = await during(commit, gate)
            assert task.exception() is None

    asyncio.run(main())
    assert seen(cluster, User, user).city == "Oslo"


def test_a_task_that_is_cancelled_while_a_server_commits(
    cluster: Cluster, slow: Any, lines: list[Proxy], users: list[int]
) -> None:
    """The outcome is unknown: the tombstones are there again."""
    user = users[0]
    tasks: list[asyncio.Task[None]] = []

    def hang() -> None:
        for line in lines:
            line.hang()
        asyncio.get_running_loop().call_soon(tasks[0].cancel)

    async def main() -> None:
        async with slow(user, "block", hang) as (other, gate):
            gate.go.set()
            tasks.append(asyncio.ensure_future(by_commit(other, user)))
            await asyncio.wait(tasks)
            assert tasks[0].cancelled()
            assert gate.reached.is_set()
            for line in lines:
                line.cut()
                line.restore()

    asyncio.run(main())
    city = seen(cluster, User, user).city
    with cluster.session(cache=False) as session:
        assert session.get_one(User, user).city == city
