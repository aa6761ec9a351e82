"""Operations of an application end when one of its servers hangs."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from time import monotonic
from typing import Any

import pytest
from sqlalchemy import func, select
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import DeclarativeBase, Mapped

from sqla_shard import (
    blob_field,
    Cluster,
    LookupMixin,
    MappingMixin,
    ObjectMixin,
    scatter,
    ShardSession,
)
from sqla_shard.exc import (
    CommitUnknownError,
    RetriesExhaustedError,
    ScatterTimeoutError,
    ServerUnreachableError,
    TopologyUnavailableError,
)
from sqla_shard.models import normalization
from sqla_shard.testing import MemcachedServer, Proxy, ZooKeeperServer
from sqla_shard.testing.server_fleet import ServerFleet
from tests.servers.command_line import ROOT
from tests.servers.kinds import own_fleet
from tests.servers.processes import count_sockets_to

pytestmark = pytest.mark.live

#: Seconds.  Without limits an operation would take for ever, and with those
#: that drivers have by default more than this.
PATIENCE = 9.0
LIMITS = {"connect_timeout": 1, "read_timeout": 1}
#: On the first server, and on the second, which hangs.
GOOD, BAD = 0, 3


class Base(DeclarativeBase):
    pass


class Board(ObjectMixin, Base, type_id=2):
    __tablename__ = "boards"
    title: Mapped[str] = blob_field()


class Pin(ObjectMixin, Base, type_id=1, colocate_with="board_id"):
    __tablename__ = "pins"
    board_id: Mapped[int] = blob_field(ref=Board)


class BoardHasPins(MappingMixin, Base, source=Board, target=Pin):
    pass


class BoardName(LookupMixin, Base, target=Board, normalize=normalization.exact):
    pass


fleet = own_fleet(2, 4)


@pytest.fixture(scope="module")
def boards(fleet: ServerFleet[Any]) -> dict[int, int]:
    """The id of a board on each server."""
    found = {}
    document = fleet.topology_mapping(lookup=4)
    with Cluster.from_topology(document, environ=fleet.environ) as cluster:
        cluster.create_all(Base.metadata)
        for shard_id in (GOOD, BAD):
            with cluster.begin(shard_id=shard_id) as session:
                board = Board(title="it")
                session.add(board)
                session.flush()
                found[shard_id] = board.id
    return found


def name_on(session: ShardSession, shard_id: int) -> str:
    """Return a name whose row would be on a shard."""
    return next(
        name
        for name in map(str, range(1000))
        if BoardName.shard_of(session, name) == shard_id
    )


class Scene:
    """A cluster behind proxies, of which the second can hang.

    :param connected: whether connections are in the pools by then.
    """

    def __init__(
        self, fleet: ServerFleet[Any], boards: dict[int, int], stack: ExitStack
    ) -> None:
        self.boards = boards
        self._fleet = fleet
        self._stack = stack
        self.proxies = [
            stack.enter_context(Proxy(server.host, server.port))
            for server in fleet.servers
        ]
        self.cluster = self.opened()

    def opened(self, **more: Any) -> Cluster:
        options = {"connect_args": {**LIMITS}, **more}
        document = self._fleet.topology_mapping(proxies=self.proxies, lookup=4)
        return self._stack.enter_context(
            Cluster.from_topology(
                document, environ=self._fleet.environ, engine_options=options
            )
        )

    def freeze(self) -> None:
        """Let nothing come from the second server any more."""
        self.proxies[1].hang()

    def pause(self) -> None:
        """Stop its process, as SIGSTOP does; :meth:`thaw` ends both."""
        self._fleet.servers[1].pause()

    def thaw(self) -> None:
        self._fleet.servers[1].resume()
        self.proxies[1].restore()


@pytest.fixture
def scene(fleet: ServerFleet[Any], boards: dict[int, int]) -> Iterator[Scene]:
    with ExitStack() as stack:
        scene = Scene(fleet, boards, stack)
        stack.callback(scene.thaw)
        yield scene


def get(session: ShardSession, scene: Scene) -> Any:
    return session.get(Board, scene.boards[BAD])


def get_many(session: ShardSession, scene: Scene) -> Any:
    return session.get_many(Board, list(scene.boards.values()))


def scattered(session: ShardSession, scene: Scene) -> Any:
    return session.scalar(select(func.count(Board.id)).options(scatter()))


def page(session: ShardSession, scene: Scene) -> Any:
    return BoardHasPins.page(session, scene.boards[BAD], limit=3)


def look_up(session: ShardSession, scene: Scene) -> Any:
    return BoardName.resolve(session, name_on(session, BAD))


def flush(session: ShardSession, scene: Scene) -> Any:
    board = Board(title="new")
    board.shard_id = BAD
    session.add(board)
    session.flush()


OPERATIONS = [get, get_many, scattered, page, look_up, flush]


def attempt(cluster: Cluster, operation: Callable[..., Any], scene: Scene) -> None:
    with cluster.session() as session:
        operation(session, scene)


def attempt_in_a_loop(
    cluster: Cluster, operation: Callable[..., Any], scene: Scene
) -> None:
    async def run() -> None:
        async with cluster.async_session() as session:
            await session.run_sync(operation, scene)

    asyncio.run(run())


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("how", [attempt, attempt_in_a_loop])
@pytest.mark.parametrize("fault", [Scene.freeze, Scene.pause])
def test_an_operation_ends(
    scene: Scene,
    operation: Callable[..., Any],
    how: Callable[..., None],
    fault: Callable[[Scene], None],
) -> None:
    cluster = scene.cluster
    if fault is Scene.pause:
        # Else it hangs when it is connected to.
        cluster.warm()
    fault(scene)
    began = monotonic()
    with pytest.raises(ServerUnreachableError, match="server2") as caught:
        how(cluster, operation, scene)
    assert monotonic() - began < PATIENCE
    assert caught.value.server == "server2"
    assert not any(stats.busy for stats in cluster.stats())
    # The other server is not touched by it.
    with cluster.session() as session:
        assert session.get(Board, scene.boards[GOOD]) is not None
    scene.thaw()
    with cluster.session() as session:
        assert session.get(Board, scene.boards[BAD]) is not None
    assert count_sockets_to(scene.proxies[1].port) <= 1


def between(session: ShardSession, scene: Scene) -> None:
    """Let the server hang between two statements."""
    get(session, scene)
    session.expunge_all()
    scene.freeze()
    get(session, scene)


@pytest.mark.parametrize("how", [attempt, attempt_in_a_loop])
def test_a_connection_in_use(scene: Scene, how: Callable[..., None]) -> None:
    began = monotonic()
    with pytest.raises(ServerUnreachableError, match="server2"):
        how(scene.cluster, between, scene)
    assert monotonic() - began < PATIENCE
    assert not any(stats.busy for stats in scene.cluster.stats())


def test_closing_a_session_sends_rollback_and_ends(scene: Scene) -> None:
    session = scene.cluster.session()
    flush(session, scene)
    scene.freeze()
    began = monotonic()
    with suppress(ServerUnreachableError):
        session.close()
    assert monotonic() - began < PATIENCE
    assert not any(stats.busy for stats in scene.cluster.stats())


def commit(scene: Scene) -> None:
    with scene.cluster.begin() as session:
        flush(session, scene)
        scene.freeze()


def commit_in_a_loop(scene: Scene) -> None:
    async def run() -> None:
        async with scene.cluster.async_begin() as session:
            await session.run_sync(flush, scene)
            scene.freeze()

    asyncio.run(run())


@pytest.mark.parametrize("how", [commit, commit_in_a_loop])
def test_commit(scene: Scene, how: Callable[[Scene], None]) -> None:
    began = monotonic()
    with pytest.raises(CommitUnknownError, match="server2"):
        how(scene)
    assert monotonic() - began < PATIENCE


def limited(session: ShardSession, scene: Scene) -> Any:
    wanted = select(Board).where(Board.id == scene.boards[BAD])
    return session.scalars(wanted.options(scatter(timeout=1))).all()


def limited_on_all(session: ShardSession, scene: Scene) -> Any:
    wanted = select(Board).options(scatter(timeout=1))
    return session.scalars(wanted).all()


def limited_key(session: ShardSession, scene: Scene) -> Any:
    return BoardName.resolve(session, name_on(session, BAD), timeout=1)


def limited_keys(session: ShardSession, scene: Scene) -> Any:
    names = [name_on(session, BAD), name_on(session, GOOD)]
    return BoardName.resolve_many(session, names, timeout=1)


def ends_in_its_time(
    scene: Scene, operation: Callable[..., Any], how: Callable[..., None]
) -> None:
    # The limits of the driver are 30 seconds.
    with scene.opened(connect_args={}) as cluster:
        cluster.warm()
        scene.freeze()
        began = monotonic()
        with pytest.raises(ScatterTimeoutError, match="server2"):
            how(cluster, operation, scene)
        assert monotonic() - began < PATIENCE


@pytest.mark.parametrize("operation", [limited, limited_on_all])
@pytest.mark.parametrize("how", [attempt, attempt_in_a_loop])
def test_scatter_has_a_time_of_its_own(
    scene: Scene, operation: Callable[..., Any], how: Callable[..., None]
) -> None:
    ends_in_its_time(scene, operation, how)


@pytest.mark.parametrize("operation", [limited_key, limited_keys])
@pytest.mark.parametrize("how", [attempt, attempt_in_a_loop])
def test_a_lookup_has_a_time_of_its_own(
    scene: Scene, operation: Callable[..., Any], how: Callable[..., None]
) -> None:
    ends_in_its_time(scene, operation, how)


def test_sending(scene: Scene) -> None:
    """More than the buffers of sockets hold is sent to a server that hangs."""
    limits = {**LIMITS, "write_timeout": 1}
    with scene.opened(connect_args=limits) as cluster:
        with cluster.session() as session:
            get(session, scene)
            scene.freeze()
            board = Board(title="x" * 12_000_000)
            board.shard_id = BAD
            session.add(board)
            began = monotonic()
            with pytest.raises(ServerUnreachableError, match="server2"):
                session.flush()
        assert monotonic() - began < PATIENCE


def test_a_pool_that_is_in_use(scene: Scene) -> None:
    options = {"pool_size": 1, "max_overflow": 0, "pool_timeout": 1}
    with scene.opened(**options) as cluster, cluster.session() as one:
        get(one, scene)
        began = monotonic()
        with cluster.session() as two, pytest.raises(PoolTimeoutError):
            get(two, scene)
        assert monotonic() - began < PATIENCE


def test_another_attempt(scene: Scene) -> None:
    scene.freeze()
    began = monotonic()
    with pytest.raises(RetriesExhaustedError, match="server2"):
        scene.cluster.run(get, scene, timeout=1)
    assert monotonic() - began < PATIENCE


def test_closing_the_cluster(scene: Scene) -> None:
    """close() waits for the frozen server only until its timeout."""
    with scene.opened(connect_args={}) as cluster:  # 30 seconds
        cluster.warm()
        scene.freeze()
        waits = threading.Event()
        ended = threading.Event()

        def read() -> None:
            with cluster.session() as session:
                waits.set()
                with suppress(ServerUnreachableError):
                    get(session, scene)
            ended.set()

        swallowed = scene.proxies[1].counts.swallowed
        reader = threading.Thread(target=read)
        reader.start()
        assert waits.wait(60)
        while scene.proxies[1].counts.swallowed == swallowed:
            assert not ended.is_set()
        began = monotonic()
        assert not cluster.close(timeout=1)
        assert monotonic() - began < PATIENCE
        scene.proxies[1].cut()
        reader.join(60)
        assert ended.is_set()


@pytest.mark.parametrize("idle", [False, True])
def test_closing_in_an_event_loop(scene: Scene, idle: bool) -> None:
    """With a connection in use, or in the pool; and the loop ends as well."""

    async def main() -> bool:
        session = scene.cluster.async_session()
        await session.run_sync(get, scene)
        if idle:
            await session.close()
        scene.freeze()
        ended = await scene.cluster.aclose(timeout=1)
        with suppress(ServerUnreachableError):
            await session.close()
        return ended

    began = monotonic()
    assert asyncio.run(main()) is idle
    assert monotonic() - began < PATIENCE


def test_an_event_loop_ends(scene: Scene) -> None:
    async def main() -> None:
        async with scene.cluster.async_session() as session:
            await session.run_sync(get, scene)
        scene.freeze()

    began = monotonic()
    asyncio.run(main())
    assert monotonic() - began < PATIENCE
    assert not count_sockets_to(scene.proxies[1].port)


@pytest.mark.usefixtures("memcached_installed")
def test_a_cache(scene: Scene) -> None:
    """Its node hangs, too: rows of the other server are read there."""
    with MemcachedServer() as node:
        scene.cluster.configure_cache(
            {
                "rows": {
                    "backend": "sqla_shard.memcached",
                    "arguments": {"servers": [node.address]},
                }
            },
            classes={Board: "rows"},
            prefix="frozen",
        )
        with scene.cluster.session() as session:
            assert session.get(Board, scene.boards[GOOD]) is not None
        node.pause()
        try:
            scene.freeze()
            began = monotonic()
            with scene.cluster.session() as session:
                assert session.get(Board, scene.boards[GOOD]) is not None
            with (
                scene.cluster.session() as session,
                pytest.raises(ServerUnreachableError),
            ):
                get(session, scene)
            with scene.cluster.begin() as session:
                session.get_one(Board, scene.boards[GOOD]).title = "other"
            assert monotonic() - began < PATIENCE
        finally:
            node.resume()


def test_a_zookeeper_when_a_cluster_is_opened(
    zookeeper_server: ZooKeeperServer, zookeeper_proxy: Proxy
) -> None:
    proxy = zookeeper_proxy
    proxy.hang()
    began = monotonic()
    with pytest.raises(TopologyUnavailableError, match="1 seconds"):
        Cluster.from_zookeeper(f"{proxy.host}:{proxy.port}/it", timeout=1)
    assert monotonic() - began < PATIENCE


# -- the page that tells all of this

#: The tests of each row of the table "What ends when".
ROWS = {
    "connecting to MySQL or MariaDB": "frozen: test_an_operation_ends",
    "a statement, until the server sends the next packet": (
        "frozen: test_an_operation_ends"
    ),
    "COMMIT": "frozen: test_commit",
    "sending a statement": "frozen: test_sending",
    "a statement that waits for a lock": (
        "limits: test_a_lock_is_not_taken_for_a_server_that_hangs"
    ),
    "a statement on many shards": "frozen: test_scatter_has_a_time_of_its_own",
    "a key of a lookup": "frozen: test_a_lookup_has_a_time_of_its_own",
    "a connection, while all connections of the pool are in use": (
        "frozen: test_a_pool_that_is_in_use"
    ),
    "another attempt of ``Cluster.run()``": "frozen: test_another_attempt",
    "``Cluster.health()``, and Flask's route": "health: test_one_hangs",
    "``Cluster.close()``": "frozen: test_closing_the_cluster",
    "a node of memcached, or a Redis server": "frozen: test_a_cache",
    "ZooKeeper, when a cluster is opened or a topology published": (
        "frozen: test_a_zookeeper_when_a_cluster_is_opened"
    ),
    "ZooKeeper, while a cluster is used": ("following: test_an_outage"),
    "a revision that changes tables": (
        "schema_odd: test_a_run_ends_whose_server_hangs"
    ),
    "commands of ``sqla-shard``": "commands: test_it_ends",
}
MODULES = {
    "frozen": "test_frozen",
    "limits": "test_limits",
    "health": "test_health",
    "following": "test_following_zookeeper",
    "schema_odd": "test_schema_odd_servers",
    "commands": "test_frozen_commands",
}


def test_each_row_of_the_page_has_a_test() -> None:
    page = (ROOT / "docs/explanation/time-limits.rst").read_text("utf-8")
    rows = re.findall(r"^   \* - (.*)$", page, re.MULTILINE)
    assert rows[0] == "wait"
    assert rows[1:] == list(ROWS)
    for test in ROWS.values():
        module, _, name = test.partition(": ")
        path = ROOT / "tests/live" / f"{MODULES[module]}.py"
        assert f"def {name}(" in path.read_text("utf-8"), test
