"""A backfill waits while replicas are behind their primary."""

from __future__ import annotations

import json
import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event

import pytest
from sqlalchemy import func, insert, select

from sqla_shard import scatter
from sqla_shard.exc import FleetSetupError
from sqla_shard.migrate.passes import backfill, lag_guard, reconcile
from sqla_shard.migrate.stage_changes import Switch
from sqla_shard.testing.topology_documents import topology_document
from tests.models.moving_app import Base, open_move, Sharded, ShardedUser, User

pytestmark = pytest.mark.live

USERS = 20
#: Seconds for what takes one or two.
LONG = 120


@pytest.fixture(scope="module")
def pair(server_kind):
    with server_kind.pair(fast=True) as pair:
        for server in pair.servers:
            with as_root(server) as cursor:
                cursor.execute(
                    f"GRANT {server_kind.lag_privilege} ON *.* TO {account(pair)}"
                )
        yield pair


def account(pair):
    return f"'{pair.standby.user}'@'{pair.standby.host}'"


@contextmanager
def as_root(server):
    """Yield a cursor whose statements are not replicated."""
    with server.root_connect() as connection:
        cursor = connection.cursor()
        cursor.execute("SET SESSION sql_log_bin = 0")
        yield cursor


@pytest.fixture
def move(pair, tmp_path):
    names = ["db_before", *(f"db{number:05d}" for number in range(4))]
    for name in names:
        pair.primary.root_execute(f"CREATE DATABASE {name}")
    document = topology_document({pair.name: pair.primary.url}, 4)
    for server in document["keyspaces"]["objects"]["servers"]:
        server["standby"] = pair.standby.url
    topology = tmp_path / "topology.json"
    topology.write_text(json.dumps(document))
    url = pair.primary.url.replace("mysql://", "mysql+pymysql://", 1)
    move = open_move(f"{url}/db_before", str(topology))
    Base.metadata.create_all(move.engine)
    move.cluster.create_all(Sharded.metadata)
    switch = Switch(move)
    switch.prepare()
    with move.engine.begin() as connection:
        rows = [{"name": f"user {number}"} for number in range(USERS)]
        connection.execute(insert(User.__table__), rows)
    switch.go("copying")
    pair.wait_caught_up()
    yield move
    move.close()
    move.cluster.close()
    move.engine.dispose()
    for name in names:
        pair.primary.root_execute(f"DROP DATABASE {name}")
    pair.wait_caught_up()


def marked(move):
    marks = move.tables["users"].marks.table
    with move.engine.connect() as connection:
        return connection.execute(select(func.count()).select_from(marks)).scalar_one()


def copied(move):
    with move.cluster.session() as session:
        statement = select(ShardedUser).options(scatter())
        return len(session.scalars(statement).all())


class Waiting(logging.Handler):
    """Records the start of a guard's wait, and its reason."""

    def __init__(self):
        super().__init__()
        self.lines = []
        self.came = Event()

    def emit(self, record):
        self.lines.append(record.getMessage())
        self.came.set()


@pytest.fixture
def waiting():
    log = logging.getLogger("sqla_shard.fleet.server_states")
    handler = Waiting()
    log.addHandler(handler)
    yield handler
    log.removeHandler(handler)


def run_while(waiting, behind, work, check=lambda: None):
    """Run something while a replica is behind; return its result.

    :param behind: makes the replica be behind within a ``with``.
    :param check: called when the work waits.
    """
    with ThreadPoolExecutor(1) as pool:
        with behind:
            result = pool.submit(work)
            assert waiting.came.wait(LONG)
            check()
            assert not result.done()
        return result.result(LONG)


@contextmanager
def stopped(pair):
    pair.standby.root_execute("STOP REPLICA SQL_THREAD")
    try:
        yield
    finally:
        pair.standby.root_execute("START REPLICA SQL_THREAD")


@contextmanager
def killed(pair):
    pair.standby.kill()
    try:
        yield
    finally:
        pair.standby.start()


@contextmanager
def crowded(pair):
    """Let the standby refuse a further connection of the account."""
    limit = f"ALTER USER {account(pair)} WITH MAX_USER_CONNECTIONS {{}}"
    with as_root(pair.standby) as cursor:
        cursor.execute(limit.format(1))
        try:
            with pair.standby.connect():
                yield
        finally:
            cursor.execute(limit.format(0))


def set_delay(server, seconds):
    server.root_execute("STOP REPLICA")
    change = "CHANGE MASTER TO MASTER_DELAY"
    if server.kind == "mysql":
        change = "CHANGE REPLICATION SOURCE TO SOURCE_DELAY"
    server.root_execute(f"{change} = {seconds}")
    server.root_execute("START REPLICA")


@contextmanager
def delayed(pair, seconds):
    """Let the standby be behind by a number of seconds, as it reports."""
    set_delay(pair.standby, 3600)
    try:
        pair.primary.root_execute("CREATE DATABASE late")
        lag = 0
        while lag < seconds:
            with pair.standby.root_connect() as connection:
                cursor = connection.cursor()
                cursor.execute("SHOW REPLICA STATUS")
                names = [column[0] for column in cursor.description]
                row = dict(zip(names, cursor.fetchone(), strict=True))
            of = "Source" if pair.standby.kind == "mysql" else "Master"
            lag = row[f"Seconds_Behind_{of}"] or 0
        yield
    finally:
        set_delay(pair.standby, 0)
        pair.primary.root_execute("DROP DATABASE late")


def test_no_row_is_claimed_while_a_standby_does_not_replicate(move, pair, waiting):
    def check():
        assert marked(move) == 0

    failed = run_while(waiting, stopped(pair), lambda: backfill(move, max_lag=5), check)
    assert failed == 0
    assert copied(move) == USERS
    (line,) = waiting.lines
    assert line == (
        "waits until no replica is more than 5 s behind: server1 standby "
        "does not replicate: stopped"
    )


def test_a_pass_waits_for_a_standby_that_comes_back(move, pair, waiting):
    backfill(move)
    done = run_while(waiting, killed(pair), lambda: reconcile(move, max_lag=5))
    assert done.is_equal
    assert "server1 standby does not respond: " in waiting.lines[0]
    assert pair.standby.password not in "".join(waiting.lines)


def test_a_standby_with_too_many_connections_is_waited_for(move, pair, waiting):
    run_while(waiting, crowded(pair), lag_guard(move, 5).wait)
    assert "server1 standby does not respond: User " in waiting.lines[0]


def test_seconds_are_those_of_the_replica(move, pair, waiting):
    guard = lag_guard(move, 1)
    run_while(waiting, delayed(pair, 3), guard.wait)
    assert "server1 standby is behind (" in waiting.lines[0]
    lag_guard(move, 3600).wait()


def test_a_lag_that_may_not_be_seen(move, pair, server_kind):
    privilege = server_kind.lag_privilege
    with as_root(pair.standby) as cursor:
        cursor.execute(f"REVOKE {privilege} ON *.* FROM {account(pair)}")
        try:
            with pytest.raises(FleetSetupError, match=privilege):
                backfill(move, max_lag=5)
        finally:
            cursor.execute(f"GRANT {privilege} ON *.* TO {account(pair)}")
    assert marked(move) == 0


def test_a_replica_that_replicates_nothing(move, pair, tmp_path):
    other = open_move(
        move.engine.url.render_as_string(hide_password=False),
        str(tmp_path / "topology.json"),
        replicas=[pair.primary.url],
    )
    try:
        name = f"replica {pair.primary.host}:{pair.primary.port}"
        with pytest.raises(FleetSetupError, match=f"{name} replicates from no"):
            backfill(other, max_lag=5)
        assert marked(other) == 0
    finally:
        other.close()
        other.cluster.close()
        other.engine.dispose()
