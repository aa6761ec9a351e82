"""Several executions of one session at the same time, on MariaDB."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, ExitStack
from typing import Any

import pytest
from sqlalchemy import (
    create_engine,
    delete,
    Engine,
    event,
    make_url,
    select,
    text,
    update,
)
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import selectinload

from sqla_shard import Cluster, pack
from sqla_shard.ext.horizontal_shard import Lanes, ShardedSession
from sqla_shard.testing.server_fleet import ServerFleet
from tests.models import models
from tests.models.clusters import at
from tests.models.dropin import Board, Choosers, fill, LANE, lane_threads, TIMEOUT
from tests.servers.following import until
from tests.servers.interrupting import interruptible
from tests.servers.kinds import own_fleet

pytestmark = pytest.mark.live

SERVERS = 3
SHARDS = 12
DATABASE = "db_dropin"
NAMES = ["a", "b", "c"]


fleet = own_fleet(SERVERS, SHARDS)


@pytest.fixture
def shards(fleet: ServerFleet[Any]) -> Iterator[dict[Any, Engine]]:
    found = {}
    for name, server in zip(NAMES, fleet.servers, strict=True):
        server.root_execute(f"CREATE DATABASE IF NOT EXISTS {DATABASE}")
        url = make_url(server.url).set(drivername="mysql+pymysql", database=DATABASE)
        found[name] = create_engine(url)
    fill(found)
    yield found
    for engine in found.values():
        assert engine.pool.checkedout() == 0  # type: ignore[attr-defined]  # a QueuePool
        engine.dispose()


@pytest.fixture
def opened(shards: Any) -> Iterator[Callable[[], ShardedSession]]:
    lanes = Lanes(4, LANE)
    arguments = Choosers(shards).arguments()
    yield lambda: ShardedSession(lanes=lanes, **arguments)
    lanes.close()
    # A thread ends a moment after its last call.
    assert until(lambda: lane_threads() == 0)


def until_waiting(*servers: Any) -> None:
    """Wait until a statement waits for a lock on each of the servers."""
    done = threading.Event()
    for _ in range(TIMEOUT * 5):
        if all(
            server.root_execute(
                "SELECT 1 FROM information_schema.innodb_trx "
                "WHERE trx_state = 'LOCK WAIT'"
            )
            for server in servers
        ):
            return
        # InnoDB returns cached values if it is queried within 0.1 seconds.
        done.wait(0.2)
    pytest.fail("they do not wait at the same time")


@contextmanager
def locked(server: Any, table: str) -> Iterator[None]:
    """Keep the rows of a table from being changed."""
    connection = server.root_connect()
    try:
        cursor = connection.cursor()
        cursor.execute("BEGIN")
        cursor.execute(f"SELECT * FROM {table} FOR UPDATE")
        yield
    finally:
        connection.close()


def all_locked(fleet: ServerFleet[Any], tables: list[str]) -> ExitStack:
    stack = ExitStack()
    for server, table in zip(fleet.servers, tables, strict=True):
        stack.enter_context(locked(server, table))
    return stack


@contextmanager
def interrupted(server: Any) -> Iterator[None]:
    """Interrupt the block when a statement waits for a lock."""
    with interruptible() as interrupt:
        interrupter = threading.Thread(
            target=lambda: (until_waiting(server), interrupt())
        )
        interrupter.start()
        with pytest.raises(KeyboardInterrupt):
            yield
        interrupter.join(TIMEOUT)


@contextmanager
def killed(server: Any) -> Iterator[None]:
    """Kill the connection whose statement waits for a lock."""

    def kill() -> None:
        until_waiting(server)
        for (thread,) in server.root_execute(
            "SELECT trx_mysql_thread_id FROM information_schema.innodb_trx "
            "WHERE trx_state = 'LOCK WAIT'"
        ):
            server.root_execute(f"KILL {thread}")

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(OperationalError) as raised:
        yield
    assert raised.value.connection_invalidated
    killer.join(TIMEOUT)


@pytest.mark.parametrize("how", ["evaluate", "fetch", False])
def test_update_is_under_way_on_all_servers(
    fleet: ServerFleet[Any], opened: Any, how: Any
) -> None:
    counts = []

    def work() -> None:
        with opened() as session:
            done = session.execute(
                update(Board).values(title="new"),
                execution_options={"synchronize_session": how},
            )
            counts.append(done.rowcount)
            session.commit()

    worker = threading.Thread(target=work)
    with all_locked(fleet, [f"{DATABASE}.boards"] * SERVERS):
        worker.start()
        until_waiting(*fleet.servers)
    worker.join(TIMEOUT)
    assert counts == [3]
    with opened() as session:
        assert session.scalars(select(Board.title)).all() == ["new"] * 3


def test_reads_lock_all_servers_at_once(fleet: ServerFleet[Any], opened: Any) -> None:
    found = []

    def work() -> None:
        with opened() as session:
            statement = select(Board).options(selectinload(Board.pins))
            boards = session.scalars(statement.with_for_update()).all()
            found.extend(len(board.pins) for board in boards)

    worker = threading.Thread(target=work)
    with all_locked(fleet, [f"{DATABASE}.boards"] * SERVERS):
        worker.start()
        until_waiting(*fleet.servers)
    worker.join(TIMEOUT)
    assert found == [6] * 3


@pytest.mark.parametrize("number", range(SERVERS))
def test_ctrl_c(fleet: ServerFleet[Any], opened: Any, number: int) -> None:
    """The lock is not waited for; the connections come back."""
    server = fleet.servers[number]
    with locked(server, f"{DATABASE}.boards"), opened() as session, interrupted(server):
        session.execute(update(Board).values(title="never"))
    for _ in range(3):
        with opened() as session:
            titles = session.scalars(select(Board.title)).all()
            assert titles == ["on a", "on b", "on c"]


@pytest.mark.parametrize("number", range(SERVERS))
def test_a_server_cuts_its_connection(
    fleet: ServerFleet[Any], opened: Any, number: int
) -> None:
    server = fleet.servers[number]

    with opened() as session:
        with locked(server, f"{DATABASE}.boards"), killed(server):
            session.execute(update(Board).values(title="never"))
        session.rollback()
        titles = session.scalars(select(Board.title)).all()
        assert titles == ["on a", "on b", "on c"]


def test_errors_name_the_statement(opened: Any) -> None:
    with opened() as session:
        with pytest.raises(OperationalError, match="Unknown column") as raised:
            session.execute(select(Board).where(text("missing = 1")))
        assert "boards" in str(raised.value.statement)


# -- ShardSession


@pytest.fixture
def cluster(fleet: ServerFleet[Any]) -> Iterator[Cluster]:
    document = fleet.topology_mapping(
        database="db_overlap_{shard:05d}", main="main_overlap"
    )
    fleet.drop_databases(document)
    with Cluster.from_topology(document, environ=fleet.environ) as cluster:
        cluster.create_all(models.Base.metadata)
        yield cluster
        assert cluster.close()
    fleet.drop_databases(document)


def ids_in(cluster: Cluster) -> list[int]:
    with cluster.begin(cross_shard="unordered") as session:
        pins = [at(shard, models.Pin(title="old", n=shard)) for shard in range(SHARDS)]
        session.add_all(pins)
        session.flush()
        return [pin.id for pin in pins]


@pytest.mark.parametrize("how", ["evaluate", "fetch", False])
@pytest.mark.parametrize("watched", [False, True])
def test_objects_are_changed_on_all_servers_at_once(
    fleet: ServerFleet[Any], cluster: Cluster, how: Any, watched: bool
) -> None:
    ids = ids_in(cluster)
    written: list[int] = []

    def listen(cluster: Cluster, report: Any) -> None:
        if report.writes:
            written.extend(report.shards)

    if watched:
        event.listen(cluster, "after_statement", listen)
    changed: list[Any] = []

    def work() -> None:
        with cluster.begin(cross_shard="unordered") as session:
            held = session.get_many(models.Pin, ids)
            done = session.execute(
                update(models.Pin).where(models.Pin.id.in_(ids)).values(title="new"),
                execution_options={"synchronize_session": how},
            )
            changed.append(done.rowcount)
            changed.append([pin.title for pin in held if pin is not None])

    worker = threading.Thread(target=work)
    tables = [
        f"db_overlap_{server * SHARDS // SERVERS:05d}.pins" for server in range(SERVERS)
    ]
    with all_locked(fleet, tables):
        worker.start()
        until_waiting(*fleet.servers)
    worker.join(TIMEOUT)
    if watched:
        event.remove(cluster, "after_statement", listen)
        assert sorted(written) == list(range(SHARDS))
    assert changed[0] == SHARDS
    assert changed[1] == ["old" if how is False else "new"] * SHARDS
    with cluster.begin(cross_shard="unordered") as session:
        pins = session.get_many(models.Pin, ids)
        assert [pin and pin.title for pin in pins] == ["new"] * SHARDS
        done = session.execute(delete(models.Pin).where(models.Pin.id.in_(ids)))
        assert done.rowcount == SHARDS
        assert session.get_many(models.Pin, ids) == [None] * SHARDS


def test_objects_that_are_not_flushed_yet(cluster: Cluster) -> None:
    """They are written first, once, and changed too."""
    ids = ids_in(cluster)
    with cluster.begin(cross_shard="unordered") as session:
        pin = at(3, models.Pin(title="old", n=3))
        session.add(pin)
        ids.append(pack(3, models.PIN, (ids[3] & (1 << 36) - 1) + 1))
        done = session.execute(
            update(models.Pin).where(models.Pin.id.in_(ids)).values(title="new")
        )
        assert done.rowcount == SHARDS + 1
        assert pin.id == ids[-1]
        assert pin.title == "new"


def test_an_error_on_one_server(fleet: ServerFleet[Any], cluster: Cluster) -> None:
    ids = ids_in(cluster)
    gone = f"db_overlap_{SHARDS - 1:05d}"
    fleet.servers[-1].root_execute(f"ALTER TABLE {gone}.pins DROP title")
    with (
        cluster.session(cross_shard="unordered") as session,
        pytest.raises(OperationalError, match=gone),
    ):
        session.execute(
            update(models.Pin).where(models.Pin.id.in_(ids)).values(title="new")
        )
    assert sum(stats.busy for stats in cluster.stats()) == 0
    with cluster.session() as session:
        pins = session.get_many(models.Pin, ids[:-1])
        titles = [pin and pin.title for pin in pins]
        assert titles == ["old"] * (SHARDS - 1)


# Their sockets are polled in one thread.


def rename(session: Any, ids: list[int], title: str) -> int:
    done = session.execute(
        update(models.Pin).where(models.Pin.id.in_(ids)).values(title=title)
    )
    count: int = done.rowcount
    return count


def titles_of(cluster: Cluster, ids: list[int]) -> set[str | None]:
    with cluster.session() as session:
        pins = session.get_many(models.Pin, ids)
        return {pin and pin.title for pin in pins}


def pins_on(number: int) -> str:
    """Return the table of pins of the last shard on a server."""
    return f"db_overlap_{(number + 1) * SHARDS // SERVERS - 1:05d}.pins"


def test_no_thread_makes_the_calls(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = ids_in(cluster)
    began: list[Any] = []
    monkeypatch.setattr(Lanes, "begin", lambda self, task: began.append(task))
    with cluster.begin(cross_shard="unordered") as session:
        assert rename(session, ids, "new") == SHARDS
    assert began == []
    assert titles_of(cluster, ids) == {"new"}


@pytest.mark.parametrize("number", range(SERVERS))
def test_ctrl_c_of_shards(
    fleet: ServerFleet[Any], cluster: Cluster, number: int
) -> None:
    """The statements of all shards are ended, and rolled back."""
    ids, server = ids_in(cluster), fleet.servers[number]
    with (
        locked(server, pins_on(number)),
        cluster.session(cross_shard="unordered") as session,
        interrupted(server),
    ):
        rename(session, ids, "never")
    assert sum(stats.busy for stats in cluster.stats()) == 0
    assert titles_of(cluster, ids) == {"old"}
    with cluster.begin(cross_shard="unordered") as session:
        assert rename(session, ids, "new") == SHARDS


@pytest.mark.parametrize("number", range(SERVERS))
def test_a_server_cuts_the_connection_of_shards(
    fleet: ServerFleet[Any], cluster: Cluster, number: int
) -> None:
    ids, server = ids_in(cluster), fleet.servers[number]
    with cluster.session(cross_shard="unordered") as session:
        with locked(server, pins_on(number)), killed(server):
            rename(session, ids, "never")
        session.rollback()
        assert rename(session, ids, "new") == SHARDS
        session.commit()
    assert sum(stats.busy for stats in cluster.stats()) == 0
    assert titles_of(cluster, ids) == {"new"}


def test_a_server_that_does_not_answer_in_time(
    fleet: ServerFleet[Any], cluster: Cluster
) -> None:
    ids = ids_in(cluster)
    with (
        cluster.session(cross_shard="unordered") as session,
        locked(fleet.servers[1], pins_on(1)),
    ):
        shard_id = SHARDS // SERVERS
        view = session.connection(bind_arguments={"shard_id": shard_id})
        wire: Any = view.connection.dbapi_connection
        wire._read_timeout = 0.5
        with pytest.raises(OperationalError, match="timed out"):
            rename(session, ids, "never")
    assert sum(stats.busy for stats in cluster.stats()) == 0
    assert titles_of(cluster, ids) == {"old"}
