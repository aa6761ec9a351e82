"""Writers live through a failover and a move, and the checks can fail.

The writers use PyMySQL alone: what is proven here is the order of the steps,
and that :mod:`tests.servers.load_checks` sees what is lost without them.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

import pymysql
import pytest

from sqla_shard.testing import MariaDBPair
from sqla_shard.testing.topology_documents import topology_document
from tests.servers.cutovers import CutoverError
from tests.servers.cutovers import fail_over
from tests.servers.cutovers import move_range
from tests.servers.cutovers import patiently
from tests.servers.load_checks import check
from tests.servers.load_checks import only_old
from tests.servers.load_checks import pauses
from tests.servers.load_checks import rows_at
from tests.servers.load_checks import rows_of_places
from tests.servers.load_log import Attempt
from tests.servers.load_writers import create_tables
from tests.servers.load_writers import RawWriter
from tests.servers.published import moved
from tests.servers.published import places
from tests.servers.published import publish_to
from tests.servers.writing_load import Load

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("mariadb_installed")]

SHARDS = 16
STAYING = range(SHARDS // 2)
MOVING = range(SHARDS // 2, SHARDS)
# Of eight writers, before the cutover and after it: about a second each.
ACKS = 1600
# The pause is some 0.1 s on a quiet machine; ours is shared.
LIMIT = 10.0


@dataclass
class Run:
    """What a load left behind.

    :ivar before: the topology in which it began.
    :ivar after: the one in which it ended.
    """

    before: Any
    after: Any
    attempts: list[Attempt]
    timings: Any = None

    @property
    def rows(self):
        return rows_of_places(places(self.after))

    def rows_on(self, server, shards=range(SHARDS)):
        """Read what a server has, whether it should or not."""
        where = places(self.before)
        names = {shard: where[shard][1] for shard in shards}
        with server.root_connect() as connection:
            return rows_at(connection, names)


def topology_of(pair):
    """Create the databases; return a topology that has them on one pair."""
    document = topology_document({pair.name: pair.primary.url}, SHARDS)
    with pair.primary.connect() as connection:
        create_tables(connection, [p[1] for p in places(document).values()])
    return document


def divided(document, source, target):
    """Return the topology in which the target has the moving shards."""
    return moved(
        document,
        {"name": source.name, "shards": [STAYING[0], STAYING[-1]]},
        {
            "name": target.name,
            "primary": target.primary.url,
            "shards": [MOVING[0], MOVING[-1]],
        },
    )


def promoted(document, pair):
    """Return the topology in which the standby is the primary."""
    return moved(document, {"name": pair.name, "primary": pair.standby.url})


def under_load(
    document, after, cut_over, folder, seed, shards=None, acks=ACKS
):
    """Write, call ``cut_over(publish)``, and write on."""
    path = folder / "topology.json"
    publish_to(path, document)
    writer = RawWriter(path=path)
    with Load(writer, shards=range(SHARDS), folder=folder, seed=seed) as load:
        load.wait_for_acks(acks)
        timings = patiently(cut_over, lambda: publish_to(path, after))
        load.wait_for_acks(acks // 2, shards=shards)
        attempts = load.stop()
    last = json.loads(path.read_text())
    return Run(document, last, attempts, timings)


def seed_of(request):
    return request.config.getoption("hypothesis_seed")


@pytest.fixture(scope="module")
def pair(mariadb_installed):
    with MariaDBPair(fast=True) as pair:
        yield pair


# -- failover -------------------------------------------------------------


@pytest.fixture(scope="module")
def failed_over(pair, request, tmp_path_factory):
    document = topology_of(pair)
    run = under_load(
        document,
        promoted(document, pair),
        lambda publish: fail_over(pair, publish),
        tmp_path_factory.mktemp("failover"),
        seed_of(request),
    )
    pair.wait_caught_up()
    return run


def test_failover_loses_nothing(pair, failed_over, say, request):
    waited = pauses(failed_over.attempts)
    say(f"failover, seed {seed_of(request)}: {waited}; {failed_over.timings}")
    assert pair.primary is pair.servers[1]
    rows = failed_over.rows
    assert check(failed_over.attempts, rows) == []
    assert waited.gap < LIMIT
    assert waited.worst < LIMIT
    assert failed_over.rows_on(pair.primary) == rows
    assert failed_over.rows_on(pair.standby) == rows


def test_writers_were_refused_and_wrote_on_the_new_primary(pair, failed_over):
    errors = [a.error for a in failed_over.attempts if a.error]
    assert any("1290" in error for error in errors)
    ((own,),) = pair.primary.root_execute("SELECT @@gtid_binlog_pos")
    assert f"-{pair.primary.server_id}-" in own


def test_a_deleted_row_is_seen(pair, failed_over):
    acked = [a for a in failed_over.attempts if a.outcome == "acked"]
    lost = acked[len(acked) // 2]
    _, database = places(failed_over.after)[lost.shard]
    with pair.primary.connect(autocommit=True) as connection:
        cursor = connection.cursor()
        cursor.execute(
            f"DELETE FROM `{database}`.load_pins WHERE token = %s",
            (lost.token,),
        )
        try:
            problems = check(failed_over.attempts, failed_over.rows)
            assert len(problems) == 2
            assert problems[0] == (
                f"{lost.token}: acknowledged as "
                f"{lost.shard}/{{{lost.local_id}}}, and lost"
            )
            assert problems[1].startswith(f"{lost.token}: half a transaction")
        finally:
            cursor.execute(
                f"INSERT INTO `{database}`.load_pins VALUES (%s, %s)",
                (lost.local_id, lost.token),
            )
    pair.wait_caught_up()
    assert check(failed_over.attempts, failed_over.rows) == []


@pytest.mark.usefixtures("failed_over")
def test_the_roles_change_back(pair):
    old, new = pair.primary, pair.standby
    fail_over(pair, lambda: None)
    assert (pair.primary, pair.standby) == (new, old)
    with pair.primary.connect() as connection:
        connection.cursor().execute("CREATE DATABASE db_back")
    pair.wait_caught_up()
    assert ("db_back",) in pair.standby.root_execute("SHOW DATABASES")
    assert pair.standby.root_execute("SELECT @@read_only") == [(1,)]


def open_transaction(server, shard, token):
    """Return a connection that has written, and not committed."""
    connection = server.connect()
    connection.cursor().execute(
        f"INSERT INTO db{shard:05d}.load_pins (token) VALUES (%s)", (token,)
    )
    return connection


@pytest.mark.usefixtures("failed_over")
def test_an_open_transaction_does_not_survive_a_failover(pair):
    with open_transaction(pair.primary, 0, "open") as connection:
        fail_over(pair, lambda: None)
        with pytest.raises(pymysql.err.OperationalError):
            connection.commit()
    pair.wait_caught_up()
    for server in pair.servers:
        sql = "SELECT * FROM db00000.load_pins WHERE token = 'open'"
        assert server.root_execute(sql) == []


class NotPublishedError(Exception):
    pass


def refuse():
    raise NotPublishedError


@pytest.mark.usefixtures("failed_over")
def test_what_cannot_be_published_is_undone(pair):
    old = pair.primary
    with pytest.raises(NotPublishedError):
        fail_over(pair, refuse)
    assert pair.primary is old
    with old.connect() as connection:
        connection.cursor().execute("CREATE DATABASE db_undone")
    pair.wait_caught_up()
    assert pair.standby.root_execute("SELECT @@read_only") == [(1,)]


@pytest.mark.usefixtures("failed_over")
def test_a_lock_in_the_way_is_not_waited_for(pair):
    with pair.primary.connect() as connection:
        cursor = connection.cursor()
        cursor.execute("LOCK TABLES db00000.load_pins WRITE")
        with pytest.raises(CutoverError, match="more than 1 s"):
            fail_over(pair, refuse)
        cursor.execute("INSERT INTO db00000.load_pins (token) VALUES ('x')")
        connection.rollback()
    assert pair.primary.root_execute("SELECT @@read_only") == [(0,)]
    pair.wait_caught_up()


def test_without_the_fence_acknowledged_writes_are_lost(
    request, tmp_path, say
):
    with MariaDBPair(fast=True) as pair:
        document = topology_of(pair)
        run = under_load(
            document,
            promoted(document, pair),
            lambda publish: fail_over(pair, publish, fence=False),
            tmp_path,
            seed_of(request),
            acks=400,
        )
        rows = run.rows
        problems = check(run.attempts, rows)
        old = run.rows_on(pair.standby)
    lost = [problem for problem in problems if problem.endswith("and lost")]
    say(f"no fence, seed {seed_of(request)}: {len(lost)} lost")
    assert len(lost) >= 200
    assert len(only_old(old, rows)) >= 2 * len(lost)


# -- a move ---------------------------------------------------------------


@pytest.fixture(scope="module")
def target(mariadb_installed):
    with MariaDBPair("server2", fast=True) as target:
        yield target


@pytest.fixture(scope="module")
def source(mariadb_installed):
    with MariaDBPair("server1", fast=True) as source:
        yield source


@pytest.fixture(scope="module")
def range_moved(source, target, request, tmp_path_factory):
    document = topology_of(source)
    names = [places(document)[shard][1] for shard in MOVING]
    with pytest.raises(NotPublishedError):
        move_range(source, target, names, refuse)
    with source.primary.connect() as connection:
        cursor = connection.cursor()
        cursor.execute(f"CREATE TABLE `{names[0]}`.undone (a INT)")
    opened = open_transaction(source.primary, MOVING[0], "open")
    after = divided(document, source, target)
    run = under_load(
        document,
        after,
        lambda publish: move_range(source, target, names, publish),
        tmp_path_factory.mktemp("move"),
        seed_of(request),
        MOVING,
    )
    # It may write there, as far as it knows.
    with opened, pytest.raises(pymysql.err.OperationalError):
        opened.commit()
    source.wait_caught_up()
    target.wait_caught_up()
    return run


def test_move_loses_nothing(range_moved, source, target, say, request):
    parts = {"staying": STAYING, "moving": MOVING}
    waited = {
        name: pauses(range_moved.attempts, shards=shards)
        for name, shards in parts.items()
    }
    say(f"move, seed {seed_of(request)}: {range_moved.timings}")
    for name, pause in waited.items():
        say(f"  {name}: {pause}")
    rows = range_moved.rows
    assert check(range_moved.attempts, rows) == []
    for pause in waited.values():
        assert pause.acknowledged > 0
        assert pause.gap < LIMIT
        assert pause.worst < LIMIT
    for server in source.servers:
        assert only_old(range_moved.rows_on(server), rows) == []
    for server in target.servers:
        moving = range_moved.rows_on(server, MOVING)
        assert moving == {shard: rows[shard] for shard in MOVING}
    staying = range_moved.rows_on(source.standby, STAYING)
    assert staying == {shard: rows[shard] for shard in STAYING}


@pytest.mark.usefixtures("range_moved")
@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM db00015.load_pins",
        "INSERT INTO db00015.load_pins (token) VALUES ('x')",
        "DROP DATABASE db00015",
    ],
)
def test_the_old_home_is_shut(source, index, sql):
    with source.servers[index].connect() as connection:
        cursor = connection.cursor()
        cursor.execute("SELECT COUNT(*) FROM db00007.load_pins")
        with pytest.raises(pymysql.err.OperationalError) as info:
            cursor.execute(sql)
    refusals = {1142, 1044} if index == 0 else {1142, 1044, 1290}
    assert info.value.args[0] in refusals


@pytest.mark.usefixtures("range_moved")
def test_both_sides_write_under_their_own_domain(source, target):
    for pair in (source, target):
        primary = pair.primary
        assert primary.root_execute("SELECT @@read_only") == [(0,)]
        own = f"{primary.gtid_domain_id}-{primary.server_id}-"
        ((position,),) = primary.root_execute("SELECT @@gtid_binlog_pos")
        assert any(part.startswith(own) for part in position.split(","))
    assert source.primary.gtid_domain_id != target.primary.gtid_domain_id
    assert target.primary.root_execute("SHOW SLAVE STATUS") == []


@pytest.mark.usefixtures("range_moved")
def test_a_target_of_a_move_fails_over(target):
    old = target.primary
    fail_over(target, lambda: None)
    assert target.standby is old
    with target.primary.connect() as connection:
        connection.cursor().execute("CREATE DATABASE db_on_target")
    target.wait_caught_up()


def test_a_transaction_that_is_not_killed_commits_on_the_old_side():
    with (
        MariaDBPair("server1", fast=True) as source,
        MariaDBPair("server2", fast=True) as target,
    ):
        document = topology_of(source)
        names = [places(document)[shard][1] for shard in MOVING]
        shard = MOVING[0]
        # Whichever server is the primary of the source.
        document = promoted(document, source)
        fail_over(source, lambda: None)
        with open_transaction(source.primary, shard, "open") as connection:
            move_range(source, target, names, lambda: None, kill=False)
            connection.commit()
        now = time.monotonic()
        acked = Attempt(
            token="open",
            shard=shard,
            t0=now,
            t1=now,
            outcome="acked",
            local_id=1,
        )
        run = Run(document, divided(document, source, target), [acked])
        rows = run.rows
        assert check(run.attempts, rows) == [
            f"open: acknowledged as {shard}/{{1}}, and lost"
        ]
        assert only_old(run.rows_on(source.primary), rows) == [
            f"open: pin {shard}/1 only on the old"
        ]
