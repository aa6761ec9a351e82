"""Transactions that have lost their part on one of several servers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pymysql
import pytest
from pymysql.constants import ER
from sqlalchemy import select, text, update
from sqlalchemy.exc import OperationalError

from sqla_shard import Cluster, scatter, scatter_errors
from sqla_shard.exc import ServerUnreachableError
from sqla_shard.testing.server_fleet import ServerFleet
from tests.servers.faults import (
    busy,
    opened,
    own_ids,
    Pin,
    SERVERS,
    SHARDS,
    TIMEOUT,
    until_waiting,
)
from tests.servers.kinds import own_fleet

pytestmark = pytest.mark.live

EACH = SHARDS // SERVERS
#: The first shard of each server.
FIRSTS = range(0, SHARDS, EACH)
PARTIAL = select(Pin.body).options(scatter(on_error="partial"))

fleet = own_fleet(SERVERS, SHARDS)
ids = own_ids()


@pytest.fixture
def cluster(fleet: ServerFleet[Any], ids: list[int]) -> Iterator[Cluster]:
    with opened(fleet) as cluster:
        yield cluster
        assert busy(cluster) == 0
        assert cluster.close()


def kill_all(server: Any) -> None:
    """End every connection of applications, as a restart would.

    Whatever it seems to do: a server that has just answered says for a
    while that it is still at the statement.
    """
    found = server.root_execute(
        "SELECT id FROM information_schema.processlist WHERE user = 'app'"
    )
    assert found
    for (number,) in found:
        try:
            server.root_execute(f"KILL {number}")
        except pymysql.err.OperationalError as error:
            # One of the test before, that has ended by itself meanwhile.
            if error.args[0] != ER.NO_SUCH_THREAD:
                raise


def bodies(cluster: Cluster, wanted: list[int]) -> list[str]:
    with cluster.session() as session:
        return [session.get(Pin, i).body for i in wanted]


@pytest.mark.parametrize("ending", ["close", "rollback"])
def test_savepoints_on_several_servers(
    cluster: Cluster, ids: list[int], ending: str
) -> None:
    """One thread sends ROLLBACK to each connection."""
    roots = [ids[i] for i in FIRSTS]
    for _ in range(5):
        session = cluster.session(cross_shard="unordered")
        for i in roots:
            session.get(Pin, i).body = "one"
        session.flush()
        for _ in range(2):
            session.begin_nested()
            for i in roots:
                session.get(Pin, i).body += "more"
            session.flush()
        getattr(session, ending)()
        session.close()
        assert busy(cluster) == 0
        assert bodies(cluster, roots) == ["it"] * SERVERS
    assert sum(stats.idle for stats in cluster.stats()) == SERVERS


@pytest.mark.parametrize("number", range(SERVERS))
def test_a_partial_answer_after_another(
    cluster: Cluster, fleet: ServerFleet[Any], number: int
) -> None:
    """A server that was lost is left out for the rest of the transaction."""
    missing = set(range(number * EACH, (number + 1) * EACH))
    with cluster.session() as session:
        assert len(session.execute(PARTIAL).all()) == SHARDS
        kill_all(fleet.servers[number])
        for _ in range(3):
            result = session.execute(PARTIAL)
            errors = scatter_errors(result)
            assert set(errors) == missing
            assert {type(e) for e in errors.values()} == {ServerUnreachableError}
            assert len(result.all()) == SHARDS - EACH
        session.rollback()
        assert len(session.execute(PARTIAL).all()) == SHARDS


@pytest.mark.parametrize("number", range(SERVERS))
@pytest.mark.parametrize("at", FIRSTS)
def test_no_commit_after_a_part_was_lost(
    cluster: Cluster, fleet: ServerFleet[Any], ids: list[int], number: int, at: int
) -> None:
    """It is refused before any server has committed, and may be repeated."""
    with cluster.session() as session:
        session.get(Pin, ids[at]).body = "half"
        session.flush()
        assert len(session.execute(PARTIAL).all()) == SHARDS
        kill_all(fleet.servers[number])
        assert scatter_errors(session.execute(PARTIAL))
        with pytest.raises(ServerUnreachableError, match="lost; roll back") as e:
            session.commit()
        assert e.value.server == f"server{number + 1}"
    assert bodies(cluster, [ids[at]]) == ["it"]
    attempts: list[int] = []

    def read_again(session: Any) -> int:
        attempts.append(1)
        session.execute(PARTIAL)
        if len(attempts) == 1:
            kill_all(fleet.servers[number])
        return len(session.execute(PARTIAL).all())

    assert cluster.run(read_again) == SHARDS
    assert len(attempts) == 2


@pytest.mark.parametrize("locked", FIRSTS)
def test_the_victim_of_a_deadlock_gets_no_partial_answer(
    cluster: Cluster, fleet: ServerFleet[Any], ids: list[int], locked: int
) -> None:
    """The server has rolled back all that the transaction wrote there."""
    mine, theirs = ids[locked], ids[locked + 1 : locked + EACH]
    reading = (
        select(Pin)
        .where(Pin.id.in_(ids))
        .with_for_update()
        .options(scatter(on_error="partial"))
    )
    ended: list[str] = []
    with (
        cluster.session() as session,
        cluster.session(cross_shard="unordered") as other,
    ):
        session.get(Pin, mine).body = "written"
        session.flush()
        # It has changed more rows, and so is not the victim.
        more = update(Pin).where(Pin.id.in_(theirs))
        other.execute(more.values(body="theirs"))

        def wait_for_it() -> None:
            statement = select(Pin.id).where(Pin.id == mine).with_for_update()
            ended.append(f"read {len(other.execute(statement).all())}")

        waiting = threading.Thread(target=wait_for_it)
        waiting.start()
        until_waiting(fleet.servers[locked // EACH], "Statistics")
        with pytest.raises(OperationalError, match="1213"):
            session.execute(reading)
        waiting.join(TIMEOUT)
        assert ended == ["read 1"]


@pytest.mark.parametrize("many", [False, True])
def test_textual_sql_over_a_connection_that_died(
    cluster: Cluster, fleet: ServerFleet[Any], *, many: bool
) -> None:
    """The server is named, and Cluster.run() repeats it."""
    attempts: list[int] = []
    parameters: Any = [{"n": -1}, {"n": -2}] if many else {"n": -1}

    def write(session: Any) -> None:
        attempts.append(1)
        connection = session.connection({"shard_id": 0})
        if len(attempts) == 1:
            kill_all(fleet.servers[0])
            with pytest.raises(ServerUnreachableError, match="server1"):
                connection.execute(text("SELECT 1"))
            assert connection.invalidated
            session.rollback()
            session.connection({"shard_id": 0})
            kill_all(fleet.servers[0])
        connection = session.connection({"shard_id": 0})
        connection.execute(text("DELETE FROM pins WHERE local_id = :n"), parameters)

    cluster.run(write)
    assert len(attempts) == 2
