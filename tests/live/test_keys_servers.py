"""Keys of transactions, and COMMITs whose outcome is not known."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, UTC
from time import monotonic
from typing import Any

import pytest
from sqlalchemy import Connection, event, func, select

from sqla_shard import Cluster
from sqla_shard.exc import (
    CommitUnknownError,
    KeyUsedError,
    RetriesExhaustedError,
    ServerFencedError,
    ShardMissingError,
)
from sqla_shard.testing import Proxy
from sqla_shard.testing.server_fleet import ServerFleet
from tests.models.models import Base, Pin
from tests.servers.kinds import own_fleet
from tests.servers.swapping import Swaps

pytestmark = pytest.mark.live

SHARD = 1
#: Whose COMMIT waits for FLUSH TABLES WITH READ LOCK to end; after it has failed
#: the same session may wait with what it looks for.
WAITING = (
    "SELECT id FROM information_schema.processlist"
    " WHERE state LIKE 'Waiting for%lock' AND info = 'COMMIT'"
)


fleet = own_fleet(1, 4)


@pytest.fixture(scope="module")
def proxy(fleet: ServerFleet[Any]) -> Iterator[Proxy]:
    (server,) = fleet.servers
    with Proxy(server.host, server.port, tls=False) as proxy:
        yield proxy


@pytest.fixture
def cluster(fleet: ServerFleet[Any], proxy: Proxy) -> Iterator[Cluster]:
    proxy.restore()
    proxy.delay = 0
    document = fleet.topology_mapping(main=True, proxies=[proxy])
    with Cluster.from_topology(document, environ=fleet.environ) as cluster:
        cluster.create_all(Base.metadata)
        yield cluster


def pin(title: str, shard_id: int = SHARD) -> Any:
    made = Pin(title=title)
    made.__dict__["_sqla_shard_requested"] = shard_id
    return made


def count(fleet: ServerFleet[Any], title: str) -> int:
    ((found,),) = fleet.servers[0].root_execute(
        f"SELECT COUNT(*) FROM db0000{SHARD}.pins WHERE title = %s", [title]
    )
    return int(found)


def tokens(fleet: ServerFleet[Any], shard_id: int = SHARD) -> list[bytes]:
    """Return the keys that a shard has, without the marks of attempts."""
    rows = fleet.servers[0].root_execute(
        f"SELECT token FROM db0000{shard_id}.sqla_shard_token"
    )
    found = [bytes(row[0]) for row in rows]
    return [token for token in found if not token.startswith(b"\xff")]


def until(true: Callable[[], bool]) -> None:
    deadline = monotonic() + 30
    paused = threading.Event()
    while not true():
        assert monotonic() < deadline
        paused.wait(0.005)


class Fault:
    """Lets COMMIT fail, once.

    :param reaches: whether the server hears of it before.
    :param then: done between COMMIT and the loss of its answer.
    """

    def __init__(
        self,
        fleet: ServerFleet[Any],
        proxy: Proxy,
        title: str,
        *,
        reaches: bool,
        then: Callable[[], Any] = int,
    ) -> None:
        self._then = then
        self._fleet, self._proxy, self._title = fleet, proxy, title
        self._reaches = reaches
        self._executor = ThreadPoolExecutor(1)
        self._done: Any = None

    def watch(self, engine: Any) -> None:
        if not event.contains(engine, "commit", self):
            event.listen(engine, "commit", self)

    def __call__(self, connection: Connection) -> None:
        if self._done is not None:
            return
        if self._reaches:
            # COMMIT waits for it, so that its answer can be swallowed.
            lock = self._fleet.servers[0].root_connect()
            lock.cursor().execute("FLUSH TABLES WITH READ LOCK")
            self._done = self._executor.submit(self._after_it, lock)
        else:
            self._before = self._proxy.counts.swallowed
            self._proxy.hang()
            self._done = self._executor.submit(self._instead)

    def _after_it(self, lock: Any) -> None:
        server = self._fleet.servers[0]
        try:
            until(lambda: bool(server.root_execute(WAITING)))
            self._proxy.hang()
            lock.close()
            until(lambda: count(self._fleet, self._title) > 0)
            self._then()
        finally:
            if lock.open:
                lock.close()
            self._proxy.restore()
            self._proxy.cut()

    def _instead(self) -> None:
        try:
            until(lambda: self._proxy.counts.swallowed > self._before)
        finally:
            # In this order: a client that reconnects in between would hang.
            self._proxy.restore()
            self._proxy.cut()

    def check(self) -> None:
        self._done.result(60)
        self._executor.shutdown()


@pytest.mark.parametrize("reaches", [True, False])
def test_without_a_key_it_stays_unknown(
    cluster: Cluster, fleet: ServerFleet[Any], proxy: Proxy, reaches: bool
) -> None:
    title = f"unknown {reaches}"
    fault = Fault(fleet, proxy, title, reaches=reaches)
    attempts = []

    def write(session: Any) -> None:
        attempts.append(1)
        session.add(pin(title))
        session.flush()
        fault.watch(session.log.first[0].engine)

    with pytest.raises(CommitUnknownError, match="server1"):
        cluster.run(write)
    fault.check()
    assert len(attempts) == 1
    assert count(fleet, title) == int(reaches)


@pytest.mark.parametrize("reaches", [True, False])
def test_a_key_reports_the_outcome(
    cluster: Cluster, fleet: ServerFleet[Any], proxy: Proxy, reaches: bool
) -> None:
    title = f"known {reaches}"
    fault = Fault(fleet, proxy, title, reaches=reaches)
    attempts = []

    def write(session: Any) -> int:
        attempts.append(1)
        session.add(pin(title))
        session.flush()
        fault.watch(session.log.first[0].engine)
        return len(attempts)

    expected = 1 if reaches else 2
    assert cluster.run(write, key=title) == expected
    fault.check()
    assert len(attempts) == expected
    assert count(fleet, title) == 1
    assert tokens(fleet).count(title.encode()) == 1


@pytest.mark.parametrize("reaches", [True, False])
def test_a_key_in_an_event_loop(
    cluster: Cluster, fleet: ServerFleet[Any], proxy: Proxy, reaches: bool
) -> None:
    title = f"awaited {reaches}"
    fault = Fault(fleet, proxy, title, reaches=reaches)
    attempts = []

    async def write(session: Any) -> int:
        attempts.append(1)
        session.add(pin(title))
        await session.flush()
        fault.watch(session.sync_session.log.first[0].engine)
        return len(attempts)

    async def main() -> int:
        found = await cluster.async_run(write, key=title)
        with pytest.raises(KeyUsedError):
            await cluster.async_run(write, key=title)
        await cluster.aclose()
        return found

    expected = 1 if reaches else 2
    assert asyncio.run(main()) == expected
    fault.check()
    assert count(fleet, title) == 1
    assert tokens(fleet).count(title.encode()) == 1


def test_an_interrupted_commit_is_unknown(
    cluster: Cluster, fleet: ServerFleet[Any]
) -> None:
    """The connection lives on, which does not say what COMMIT has done."""
    title = "interrupted"
    server = fleet.servers[0]
    killed: list[Any] = []
    attempts = []

    def kill(connection: Connection) -> None:
        if killed:
            return
        wire: Any = connection.connection.dbapi_connection
        number = wire.thread_id()
        root = server.root_connect()
        root.cursor().execute("FLUSH TABLES WITH READ LOCK")

        def waits() -> bool:
            return (number,) in server.root_execute(WAITING)

        def work() -> None:
            try:
                until(waits)
                server.root_execute(f"KILL QUERY {number}")
                until(lambda: not waits())
            finally:
                root.close()

        killed.append(executor.submit(work))

    def write(session: Any) -> None:
        attempts.append(1)
        session.add(pin(title))
        session.flush()
        engine = session.log.first[0].engine
        if not event.contains(engine, "commit", kill):
            event.listen(engine, "commit", kill)

    with ThreadPoolExecutor(1) as executor:
        with pytest.raises(CommitUnknownError) as caught:
            cluster.run(write)
        killed[0].result(60)
        assert caught.value.__cause__ is not None
        assert caught.value.__cause__.args[0] == 1317
        assert count(fleet, title) == 0
        killed.clear()
        cluster.run(write, key=title)
        killed[0].result(60)
    assert len(attempts) == 3
    assert count(fleet, title) == 1


def test_looking_has_an_end(
    cluster: Cluster, fleet: ServerFleet[Any], proxy: Proxy
) -> None:
    """The server is gone for good, as far as this process can see."""

    def refuse(connection: Connection) -> None:
        proxy.refuse()
        proxy.cut()

    def write(session: Any) -> None:
        session.add(pin("never"))
        session.flush()
        event.listen(session.log.first[0].engine, "commit", refuse)

    start = monotonic()
    with pytest.raises(CommitUnknownError) as caught:
        cluster.run(write, key="never", timeout=1)
    assert 1 <= monotonic() - start < 10
    assert caught.value.__cause__ is not None
    proxy.restore()
    assert count(fleet, "never") == 0


def test_a_fenced_server_is_no_place_to_look(
    cluster: Cluster, fleet: ServerFleet[Any], proxy: Proxy
) -> None:
    """An old primary would answer from an outdated state."""
    server = fleet.servers[0]
    swaps = Swaps(cluster)

    def open_it() -> None:
        # Asked for by COMMIT's own failure, and by at least one look.
        until(lambda: swaps.asked > 3)
        server.root_execute("SET GLOBAL read_only = 0")

    def fence() -> None:
        server.root_execute("SET GLOBAL read_only = 1")
        opening.append(executor.submit(open_it))

    opening: list[Any] = []
    fault = Fault(fleet, proxy, "fenced", reaches=True, then=fence)

    def write(session: Any) -> str:
        session.add(pin("fenced"))
        session.flush()
        fault.watch(session.log.first[0].engine)
        return "done"

    with ThreadPoolExecutor(1) as executor:
        try:
            assert cluster.run(write, key="fenced") == "done"
            fault.check()
            opening[0].result(60)
        finally:
            server.root_execute("SET GLOBAL read_only = 0")
    assert count(fleet, "fenced") == 1


def test_a_key_that_was_used(cluster: Cluster, fleet: ServerFleet[Any]) -> None:
    def write(session: Any) -> None:
        session.add(pin("used"))

    cluster.run(write, key="used")
    with pytest.raises(KeyUsedError) as caught:
        cluster.run(write, key="used")
    error = caught.value
    assert (error.key, error.shard_id) == ("used", SHARD)
    assert error.keyspace == "objects"
    assert count(fleet, "used") == 1
    # Others it is not.
    for key in ("used ", "USED", "u", "sëd", "\N{ROCKET}" * 63):
        cluster.run(write, key=key)
    assert count(fleet, "used") == 6
    assert len({*tokens(fleet)} & {b"used", b"used ", b"USED"}) == 3


def test_one_key_at_the_same_time(cluster: Cluster, fleet: ServerFleet[Any]) -> None:
    met = threading.Barrier(8)

    def write(session: Any) -> bool:
        session.add(pin("at once"))
        session.flush()
        return True

    def work() -> bool:
        met.wait(30)
        try:
            return cluster.run(write, key="at once")
        except KeyUsedError:
            return False

    with ThreadPoolExecutor(8) as executor:
        done = [executor.submit(work) for _ in range(8)]
        assert sorted(one.result(60) for one in done) == [False] * 7 + [True]
    assert count(fleet, "at once") == 1
    assert tokens(fleet).count(b"at once") == 1


class Rival:
    """Does the work of a key while the first caller is cut off.

    The first caller's COMMIT never reaches the server, and no connection is
    accepted until the work is done.
    """

    def __init__(self, fleet: ServerFleet[Any], proxy: Proxy, key: str) -> None:
        self._fleet, self._proxy, self._key = fleet, proxy, key
        self._executor = ThreadPoolExecutor(1)
        self._done: Any = None

    def come_in_between(self) -> None:
        """To be called by the first caller, right before it commits."""
        if self._done is None:
            self._proxy.refuse()
            self._proxy.cut_at_commit(when="before")
            before = self._proxy.counts.open
            self._done = self._executor.submit(self._work, before)

    def _work(self, before: int) -> int:
        try:
            until(lambda: self._proxy.counts.open < before)
            document = self._fleet.topology_mapping(main=True)
            environ = self._fleet.environ
            with Cluster.from_topology(document, environ=environ) as cluster:
                return cluster.run(self._write, key=self._key)
        finally:
            self._proxy.restore()

    def _write(self, session: Any) -> int:
        made = pin(self._key)
        session.add(made)
        session.flush()
        return int(made.id)

    @property
    def made(self) -> int:
        """The id of what it has made."""
        found: int = self._done.result(60)
        self._executor.shutdown()
        return found


def test_another_has_committed_with_the_key(
    cluster: Cluster, fleet: ServerFleet[Any], proxy: Proxy
) -> None:
    """The result of an attempt that was rolled back is not returned."""
    rival = Rival(fleet, proxy, "two callers")
    made = []

    def write(session: Any) -> int:
        mine = pin("two callers")
        session.add(mine)
        session.flush()
        rival.come_in_between()
        made.append(mine.id)
        return int(mine.id)

    with pytest.raises(KeyUsedError, match="two callers"):
        cluster.run(write, key="two callers")
    assert len(made) == 2
    with cluster.session() as session:
        assert session.get(Pin, rival.made) is not None
        assert session.get(Pin, made[0]) is None


def test_another_has_committed_with_the_key_in_an_event_loop(
    cluster: Cluster, fleet: ServerFleet[Any], proxy: Proxy
) -> None:
    rival = Rival(fleet, proxy, "two tasks")
    made = []

    async def write(session: Any) -> int:
        mine = pin("two tasks")
        session.add(mine)
        await session.flush()
        rival.come_in_between()
        made.append(mine.id)
        return int(mine.id)

    async def main() -> None:
        with pytest.raises(KeyUsedError, match="two tasks"):
            await cluster.async_run(write, key="two tasks")
        await cluster.aclose()

    asyncio.run(main())
    assert len(made) == 2
    assert rival.made not in made
    assert count(fleet, "two tasks") == 1


def test_where_a_key_has_committed(cluster: Cluster, fleet: ServerFleet[Any]) -> None:
    def write(session: Any, shard_id: int) -> None:
        session.add(pin("found", shard_id))

    before = datetime.now(UTC).replace(microsecond=0)
    for shard_id in (3, 0):
        cluster.run(write, shard_id, key="found")
    found = cluster.find_key("found")
    assert [one.shard_id for one in found] == [0, 3]
    assert all(one.committed_at >= before for one in found)
    assert cluster.find_key("Found") == []
    fleet.servers[0].root_execute("DROP TABLE db00002.sqla_shard_token")
    try:
        with pytest.raises(ShardMissingError):
            cluster.find_key("found")
    finally:
        cluster.create_all(Base.metadata)


def test_nothing_written_is_no_key(cluster: Cluster, fleet: ServerFleet[Any]) -> None:
    before = tokens(fleet)

    def read(session: Any) -> int:
        found: int = session.execute(
            select(func.count(Pin.id)), bind_arguments={"shard_id": SHARD}
        ).scalar_one()
        return found

    assert cluster.run(read, key="read") == cluster.run(read, key="read")
    assert tokens(fleet) == before


def test_a_failed_transaction_leaves_no_key(
    cluster: Cluster, fleet: ServerFleet[Any]
) -> None:
    def write(session: Any) -> None:
        session.add(pin("failed"))
        session.flush()
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        cluster.run(write, key="failed")
    assert b"failed" not in tokens(fleet)


def test_a_savepoint_that_is_released(
    cluster: Cluster, fleet: ServerFleet[Any]
) -> None:
    def write(session: Any) -> None:
        session.add(pin("saved"))
        session.flush()
        with session.begin_nested():
            session.add(pin("saved"))
        session.begin_nested()
        session.add(pin("saved"))

    cluster.run(write, key="saved")
    assert count(fleet, "saved") == 3
    assert tokens(fleet).count(b"saved") == 1


def test_the_table_is_missing(cluster: Cluster, fleet: ServerFleet[Any]) -> None:
    server = fleet.servers[0]
    server.root_execute(f"DROP TABLE db0000{SHARD}.sqla_shard_token")

    def write(session: Any) -> None:
        session.add(pin("no table"))

    with pytest.raises(ShardMissingError, match="schema upgrade") as caught:
        cluster.run(write, key="no table")
    assert "sqla_shard_token" in str(caught.value)
    assert count(fleet, "no table") == 0
    cluster.create_all(Base.metadata)
    cluster.run(write, key="no table")
    assert tokens(fleet) == [b"no table"]


def test_old_keys_are_forgotten(cluster: Cluster, fleet: ServerFleet[Any]) -> None:
    server = fleet.servers[0]
    for shard_id in range(4):
        server.root_execute(f"TRUNCATE TABLE db0000{shard_id}.sqla_shard_token")
        server.root_execute(
            f"INSERT INTO db0000{shard_id}.sqla_shard_token "
            "SELECT CONCAT('old ', n), UTC_TIMESTAMP() - INTERVAL 2 DAY "
            "FROM (SELECT 1 AS n UNION SELECT 2 UNION SELECT 3) AS three"
        )
        server.root_execute(
            f"INSERT INTO db0000{shard_id}.sqla_shard_token "
            "VALUES ('new', UTC_TIMESTAMP())"
        )
    assert cluster.forget_keys(timedelta(days=1), batch=2) == 12
    assert cluster.forget_keys(timedelta(days=1)) == 0
    assert [tokens(fleet, i) for i in range(4)] == [[b"new"]] * 4

    async def forget() -> int:
        found = await cluster.async_forget_keys(timedelta(days=1))
        await cluster.aclose()
        return found

    assert asyncio.run(forget()) == 0


def test_a_function_that_commits_itself_and_is_not_answered(
    cluster: Cluster, fleet: ServerFleet[Any], proxy: Proxy
) -> None:
    """It took effect, but there is no result that could be returned."""
    fault = Fault(fleet, proxy, "half", reaches=True)

    def write(session: Any) -> None:
        session.add(pin("half"))
        session.flush()
        fault.watch(session.log.first[0].engine)
        session.commit()

    with pytest.raises(ValueError, match="committed the transaction"):
        cluster.run(write, key="half")
    fault.check()
    assert count(fleet, "half") == 1


def test_a_transaction_cancelled_during_commit_is_not_repeated(
    cluster: Cluster, fleet: ServerFleet[Any]
) -> None:
    server = fleet.servers[0]
    attempts: list[int] = []

    def cancel(connection: Connection) -> None:
        server.root_execute("SET GLOBAL read_only = 1")
        tasks[0].cancel()

    async def write(session: Any) -> None:
        attempts.append(1)
        session.add(pin("cancelled"))
        await session.flush()
        engine = session.sync_session.log.first[0].engine
        if len(attempts) == 1:
            event.listen(engine, "commit", cancel)

    async def main() -> None:
        tasks.append(asyncio.ensure_future(cluster.async_run(write)))
        with pytest.raises(ServerFencedError):
            await tasks[0]
        await cluster.aclose()

    tasks: list[asyncio.Future[None]] = []
    try:
        asyncio.run(main())
    finally:
        server.root_execute("SET GLOBAL read_only = 0")
    assert len(attempts) == 1
    assert count(fleet, "cancelled") == 0


def test_commits_that_are_lost_again_and_again_have_an_end(
    cluster: Cluster, fleet: ServerFleet[Any], proxy: Proxy
) -> None:
    attempts: list[int] = []

    def lose(connection: Connection) -> None:
        proxy.cut()

    def write(session: Any) -> None:
        attempts.append(1)
        session.add(pin("lost"))
        session.flush()
        engine = session.log.first[0].engine
        if not event.contains(engine, "commit", lose):
            event.listen(engine, "commit", lose)
        assert len(attempts) < 100

    with pytest.raises(RetriesExhaustedError) as caught:
        cluster.run(write, key="lost", attempts=3)
    assert caught.value.counts == {"CommitUnknownError": 3}
    assert len(attempts) == 3
    start = monotonic()
    with pytest.raises(RetriesExhaustedError):
        cluster.run(write, key="lost", timeout=0.5)
    assert monotonic() - start < 10
    assert count(fleet, "lost") == 0
