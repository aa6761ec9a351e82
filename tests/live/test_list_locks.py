"""The order of the locks of operations on lists."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy.orm import DeclarativeBase, Mapped

from sqla_shard import (
    blob_field,
    Cluster,
    MappingMixin,
    ObjectMixin,
    pack,
    ShardSession,
)
from sqla_shard.models.mapping_list import List
from sqla_shard.testing.server_fleet import ServerFleet
from tests.servers.kinds import own_fleet

pytestmark = pytest.mark.live

TIMEOUT = 60
THREADS = 20


class Base(DeclarativeBase):
    pass


class Board(ObjectMixin, Base, type_id=2):
    __tablename__ = "boards"

    title: Mapped[str] = blob_field()


class Pin(ObjectMixin, Base, type_id=1):
    __tablename__ = "pins"

    title: Mapped[str] = blob_field()


class BoardHasPins(MappingMixin, Base, source=Board, target=Pin):
    pass


def pin(number: int) -> int:
    return pack(1, 1, number)


fleet = own_fleet(1, 2)


@pytest.fixture(scope="module")
def cluster(fleet: ServerFleet[Any]) -> Iterator[Cluster]:
    with Cluster.from_topology(
        fleet.topology_mapping(),
        environ=fleet.environ,
        engine_options={"pool_size": THREADS},
    ) as cluster:
        cluster.create_all(Base.metadata)
        yield cluster


@pytest.fixture
def board(cluster: Cluster) -> int:
    with cluster.begin(shard_id=1) as session:
        board = Board(title="a list")
        session.add(board)
        session.flush()
        board_id = board.id
        BoardHasPins.append_many(session, board_id, map(pin, range(1, 20)))
    return board_id


OPERATIONS: dict[str, Callable[[ShardSession, int], object]] = {
    "append": lambda s, b: BoardHasPins.append(s, b, pin(50)),
    "append_many": lambda s, b: BoardHasPins.append_many(s, b, [pin(51)]),
    "remove": lambda s, b: BoardHasPins.remove(s, b, pin(5)),
    "before": lambda s, b: BoardHasPins.move(s, b, pin(3), before=pin(9)),
    "after": lambda s, b: BoardHasPins.move(s, b, pin(4), after=pin(9)),
    "both": lambda s, b: BoardHasPins.move(s, b, pin(7), before=pin(12), after=pin(11)),
    "clear": lambda s, b: BoardHasPins.clear(s, b),
    "respace": lambda s, b: BoardHasPins.respace(s, b),
    "around": lambda s, b: BoardHasPins.respace(s, b, around=pin(6)),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_nothing_is_locked_before_the_source(
    cluster: Cluster, fleet: ServerFleet[Any], board: int, name: str
) -> None:
    """While the source is locked by another, all rows are free."""
    (server,) = fleet.servers
    held = server.root_connect()
    cursor = held.cursor()
    cursor.execute("SET innodb_lock_wait_timeout = 1")
    cursor.execute("BEGIN")
    cursor.execute("SELECT * FROM db00001.boards FOR UPDATE")
    worker = threading.Thread(target=cluster.run, args=(OPERATIONS[name], board))
    worker.start()
    try:
        _until_waiting(server)
        cursor.execute("SELECT * FROM db00001.board_has_pins FOR UPDATE")
        assert cursor.fetchall()
    finally:
        held.rollback()
        held.close()
        worker.join(TIMEOUT)
    assert not worker.is_alive()


def _until_waiting(server: Any) -> None:
    tick = threading.Event()
    for _ in range(TIMEOUT * 5):
        if server.root_execute(
            "SELECT 1 FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"
        ):
            return
        # InnoDB returns cached values if it is queried within 0.1 seconds.
        tick.wait(0.2)
    pytest.fail("nothing waits for the lock")


def test_the_lock_is_that_of_the_source(cluster: Cluster, board: int) -> None:
    with cluster.session() as session:
        rows = List(BoardHasPins, session, board)
        statements = rows.statements
        for lock in (
            statements.lock_row,
            statements.lock_top,
            statements.lock_many,
            statements.lock_before,
            statements.lock_after,
            statements.lock_both,
        ):
            found = rows.execute(
                lock, owner=board, row=pin(1), before=pin(2), after=pin(3)
            ).one()
            assert found.the_lock == found.the_lock_again == board


def test_appends_to_one_list_are_not_repeated(
    cluster: Cluster, board: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sqla_shard.cluster.retries")
    problems = []

    def work(number: int) -> None:
        try:
            for index in range(10):
                new = pin(1000 + number * 10 + index)
                cluster.run(BoardHasPins.append, board, new)
        except BaseException as error:
            problems.append(error)

    threads = [
        threading.Thread(target=work, args=(number,)) for number in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    assert not problems
    with cluster.session() as session:
        rows = list(BoardHasPins.iterate(session, board))
    assert len(rows) == 19 + THREADS * 10
    assert len({row.sequence for row in rows}) == len(rows)
    repeated = [r for r in caplog.records if r.name == "sqla_shard.cluster.retries"]
    assert not repeated


def test_a_list_is_cleared_with_its_source(cluster: Cluster, board: int) -> None:
    def delete_board(session: ShardSession) -> int:
        session.delete(session.get(Board, board))
        return BoardHasPins.clear(session, board)

    assert cluster.run(delete_board) == 19
    with cluster.session() as session:
        assert session.get(Board, board) is None
        assert BoardHasPins.count(session, board) == 0
        assert BoardHasPins.clear(session, board) == 0


def test_a_row_that_is_newer_than_the_snapshot(
    cluster: Cluster, fleet: ServerFleet[Any], board: int
) -> None:
    """With innodb_snapshot_isolation MariaDB refuses to lock it."""
    attempts = []

    def move_after_reading(session: ShardSession) -> int:
        attempts.append(1)
        connection = session.connection({"shard_id": 1})
        connection.exec_driver_sql("SET innodb_snapshot_isolation = ON")
        BoardHasPins.count(session, board)
        if len(attempts) == 1:
            cluster.run(BoardHasPins.move, board, pin(9), before=pin(15))
        return BoardHasPins.move(session, board, pin(9), before=pin(5))

    variables = fleet.servers[0].root_execute(
        "SHOW VARIABLES LIKE 'innodb_snapshot_isolation'"
    )
    if not variables:
        pytest.skip("this MariaDB has no innodb_snapshot_isolation")
    try:
        at = cluster.run(move_after_reading)
    finally:
        for engine in cluster.places.engines:
            engine.dispose()
    assert len(attempts) == 2
    with cluster.session() as session:
        assert BoardHasPins.position(session, board, pin(9)) == at
