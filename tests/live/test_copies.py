"""Copies of the content of a server, while it is written."""

from __future__ import annotations

import random
import re
import sys
from concurrent.futures import ThreadPoolExecutor

import pymysql
import pytest

from sqla_shard.dialects.mysql.catalogue import without_implied
from sqla_shard.exc import CopyFailedError, FleetServerError
from sqla_shard.fleet.admin import quoted
from sqla_shard.fleet.common_point import snapshots
from sqla_shard.fleet.copies import Copy, copy_state, finish_copy
from sqla_shard.fleet.replication import replication_of
from sqla_shard.fleet.row_copy import (
    databases_of,
    looked_at,
    RowCopy,
    tables_of,
    texts_of,
)
from sqla_shard.testing.local_server import wait_until
from tests.servers.fleet_pairs import FleetPairs
from tests.servers.load_writers import create_tables

pytestmark = pytest.mark.live

ODD = """CREATE TABLE db00000.`odd ``%s` (
    id INT AUTO_INCREMENT PRIMARY KEY,
    a VARCHAR(100) CHARACTER SET latin1,
    b TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    c LONGBLOB, d FLOAT, e DOUBLE, f DECIMAL(30,10), g BIT(13), h JSON,
    i TIMESTAMP(6) NULL, j DATETIME(3), k TIME, l ENUM('a','b'),
    m SET('x','y'), n YEAR, o GEOMETRY, p BINARY(16),
    q DECIMAL(31,10) AS (f + 1) VIRTUAL, r INT AS (YEAR(j)) STORED,
    s VARCHAR(10) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci,
    u BIGINT UNSIGNED, v BIGINT DEFAULT 7, w DATE
)"""
INSERT = (
    "INSERT INTO db00000.`odd ``%%s`"
    " (a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, s, u, w) VALUES"
    " (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, POINT(1, 2),"
    " %s, %s, %s, %s)"
)


def odd_row(rng):
    """Return values that are easily written wrongly."""

    def maybe(value):
        return None if rng.random() < 0.2 else value

    return [
        maybe(value)
        for value in (
            rng.choice(["é%s'\\", "", "NULL", "x''"]),
            rng.choice(["😀\0\n'%%\\", '\r\x1a"`', "Ü" * 500]),
            rng.randbytes(rng.choice([0, 1, 300])),
            rng.random() * 10 ** rng.randint(-30, 30),
            rng.random() * 10 ** rng.randint(-300, 300),
            f"{rng.randrange(10**20)}.{rng.randrange(10**9):010d}",
            rng.randrange(2**13),
            '{"a": "b\\"%"}',
            f"2026-01-01 01:02:03.{rng.randrange(10**6):06d}",
            "2026-03-03 03:03:03.003",
            "-12:00:01",
            rng.choice(["a", "zz"]),
            "x,y",
            2020,
            rng.randbytes(16),
            "Ünï",
            rng.randrange(2**64),
            rng.choice(["0000-00-00", "2026-02-28"]),
        )
    ]


@pytest.fixture(scope="module")
def servers(tmp_path_factory, request, server_kind):
    folder = tmp_path_factory.mktemp("copies")
    seed = request.config.getoption("hypothesis_seed")
    rng = random.Random(f"copies {seed}")
    with FleetPairs(folder, spare=1, pair=server_kind.pair) as pairs:
        primary = pairs["server1"].primary
        if server_kind.is_mysql:
            # Only MySQL shows in which files tables are.
            for server in (pairs["server1"].standby, pairs["server2"].primary):
                server.root_execute("SET GLOBAL innodb_file_per_table = OFF")
        with primary.root_connect() as connection:
            create_tables(connection, ["db00000", "db00001"])
            cursor = connection.cursor()
            cursor.execute("CREATE DATABASE `db 2` COLLATE latin1_bin")
            cursor.execute(ODD)
            cursor.execute("SET SESSION sql_mode = ''")
            cursor.executemany(INSERT, [odd_row(rng) for _ in range(300)])
            cursor.execute("DELETE FROM db00000.`odd ``%s` ORDER BY id DESC LIMIT 3")
            cursor.execute("CREATE TABLE db00001.zero (id INT AUTO_INCREMENT KEY)")
            cursor.execute(
                "CREATE TABLE db00001.parts (id INT KEY) PARTITION BY RANGE (id)"
                " (PARTITION p VALUES LESS THAN MAXVALUE)"
            )
            cursor.execute("SET sql_mode = 'NO_AUTO_VALUE_ON_ZERO'")
            cursor.execute("INSERT INTO db00001.zero VALUES (0), (5)")
        pairs["server1"].wait_caught_up()
        pairs["server2"].standby.root_execute("STOP REPLICA")
        pairs["server2"].primary.root_execute("SET GLOBAL read_only = 1")
        yield pairs


@pytest.fixture
def ends(servers):
    """Return sessions on a standby, and on an empty server."""
    fleet = servers.fleet()
    old = servers["server1"].standby
    new = servers["server2"].primary
    with (
        fleet.admin(old.url, name="server1 standby") as source,
        fleet.admin(new.url, name="new") as target,
    ):
        yield source, target
    with new.root_connect() as connection:
        cursor = connection.cursor()
        cursor.execute("STOP REPLICA")
        cursor.execute("RESET REPLICA ALL")
        cursor.execute("SET sql_log_bin = 0")
        for name in ("sqla_shard_copy", "db00000", "db00001", "db 2"):
            cursor.execute(f"DROP DATABASE IF EXISTS `{name}`")


def sums(server):
    """Return a checksum of each table, by name, and its definition."""
    found = {}
    with server.root_connect() as connection:
        cursor = connection.cursor()
        cursor.execute(
            "SELECT table_schema, table_name FROM information_schema.tables"
            " WHERE table_schema LIKE 'db%'"
        )
        for database, name in cursor.fetchall():
            path = f"{quoted(database)}.{quoted(name)}"
            cursor.execute(f"CHECKSUM TABLE {path} EXTENDED")
            ((_, value),) = cursor.fetchall()
            cursor.execute(f"SHOW CREATE TABLE {path}")
            created = without_implied(cursor.fetchone()[1])
            found[path] = value, created
    return found


def test_a_copy_is_equal_and_can_be_attached(servers, ends):
    source, target = ends
    primary = servers["server1"].primary
    events = []
    copy = Copy(source, target, owner="op", progress=events.append)
    assert copy.check() == []
    copied = copy.run()
    assert copied.tables == 7
    assert copied.databases == 3
    assert copied.position == replication_of(target).applied()
    assert copy_state(target).position == copied.position
    # The same operation does not copy again, another one is refused.
    assert copy.run().position == copied.position
    with pytest.raises(CopyFailedError, match="needs an empty server"):
        Copy(source, target, owner="other").run()
    replication = replication_of(target)
    # After a failover to it, the others have nothing that it lacks.
    assert replication.errant(replication_of(source).history()) == {}
    assert not replication.has_first_write()
    account = servers.accounts.for_replication()
    replication.attach(primary.host, primary.port, account)
    finish_copy(target)
    assert copy_state(target) is None
    with primary.connect(autocommit=True) as connection:
        connection.cursor().execute("INSERT INTO db00001.zero VALUES ()")
    assert replication.reaches(primary.position(), 30)
    assert sums(servers["server2"].primary) == sums(primary)
    assert servers["server2"].primary.root_execute(
        "SHOW CREATE DATABASE `db 2`"
    ) == primary.root_execute("SHOW CREATE DATABASE `db 2`")


def broken_at(monkeypatch, action, *, after=False):
    """Call an action before rows are copied, or after."""
    copy_rows = RowCopy._copy

    def copy(self, *arguments):
        if not after:
            action()
        copy_rows(self, *arguments)
        if after:
            action()

    monkeypatch.setattr(RowCopy, "_copy", copy)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE db00001.zero FORCE, ADD COLUMN b INT",
        "CREATE TABLE db00001.another (a INT)",
    ],
)
def test_tables_that_change_meanwhile_are_noticed(
    servers, ends, monkeypatch, after, change
):
    source, target = ends
    primary = servers["server1"].primary

    def alter():
        primary.root_execute(change)
        servers["server1"].wait_caught_up()

    broken_at(monkeypatch, alter, after=after)
    try:
        with pytest.raises(CopyFailedError, match="were changed meanwhile"):
            Copy(source, target, owner="op").run()
    finally:
        if primary.root_execute("SHOW COLUMNS FROM db00001.zero LIKE 'b'"):
            primary.root_execute("ALTER TABLE db00001.zero DROP COLUMN b")
        primary.root_execute("DROP TABLE IF EXISTS db00001.another")
        servers["server1"].wait_caught_up()
    state = copy_state(target)
    assert (state.owner, state.position) == ("op", None)


@pytest.mark.thorough
def test_a_copy_that_was_interrupted_starts_over(servers, ends, monkeypatch):
    source, target = ends

    def stop():
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        broken_at(patched, stop, after=True)
        with pytest.raises(KeyboardInterrupt):
            Copy(source, target, owner="op").run()
    assert copy_state(target).position is None
    copy = Copy(source, target, owner="other")
    assert copy.check() == []
    copy.run()
    new, old = servers["server2"].primary, servers["server1"].standby
    assert sums(new) == sums(old)


TRIGGER = (
    "CREATE TRIGGER db00000.fires BEFORE INSERT ON db00000.load_pins"
    " FOR EACH ROW SET @a = 1"
)


def test_reasons_against_a_copy_are_given_at_once(servers, ends):
    source, target = ends
    primary = servers["server1"].primary
    new = servers["server2"].primary
    new.root_execute("CREATE DATABASE db00000")
    for sql in (
        "CREATE VIEW db00000.seen AS SELECT 1",
        "CREATE TABLE db00000.old (a INT) ENGINE=MyISAM",
        TRIGGER,
    ):
        primary.root_execute(sql)
    servers["server1"].wait_caught_up()
    try:
        problems = Copy(source, target, owner="op").check()
    finally:
        for sql in (
            "DROP VIEW db00000.seen",
            "DROP TABLE db00000.old",
            "DROP TRIGGER db00000.fires",
        ):
            primary.root_execute(sql)
        servers["server1"].wait_caught_up()
    text = "\n".join(map(str, problems))
    assert len(problems) == 4
    for part in (
        "it has 1 databases (db00000); a copy needs an empty server",
        "views or other objects (db00000.seen)",
        "tables without transactions (db00000.old)",
        "triggers (db00000.fires)",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"way": "scp"}, "'scp' is not one of rows, command, clone"),
        ({"way": "command"}, "needs a command"),
        ({"command": "true"}, "no other has one"),
    ],
)
def test_ways_that_do_not_exist_are_refused(ends, arguments, reason):
    source, target = ends
    (problem,) = Copy(source, target, owner="op", **arguments).check()
    assert reason in problem.message


@pytest.mark.only_on("mariadb")
def test_mariadb_has_no_clone(ends):
    source, target = ends
    (problem,) = Copy(source, target, owner="op", way="clone").check()
    assert "MariaDB has no CLONE" in problem.message


@pytest.mark.thorough
def test_a_statement_that_runs_is_not_waited_for(servers, ends, monkeypatch):
    source, target = ends
    monkeypatch.setattr("sqla_shard.fleet.admin._MAX_TRIES", 2)
    with servers["server1"].standby.root_connect() as connection:
        connection.cursor().execute("LOCK TABLES db00001.zero WRITE")
        with pytest.raises(FleetServerError) as info:
            Copy(source, target, owner="op").run()
    assert info.value.number == 1205
    assert "a session without a statement holds a lock" in str(info.value)


@pytest.mark.thorough
def test_the_statement_in_the_way_is_named(servers, monkeypatch):
    monkeypatch.setattr("sqla_shard.fleet.admin._MAX_TRIES", 2)
    primary = servers["server1"].primary
    slow = "UPDATE db00001.zero SET id = id WHERE SLEEP(600) = 0"
    with (
        ThreadPoolExecutor(1) as threads,
        primary.root_connect() as session,
        servers.fleet().admin(primary.url, name="server1") as admin,
    ):
        number = session.thread_id()
        running = threads.submit(session.cursor().execute, slow)

        def runs() -> bool:
            return bool(
                primary.root_execute(
                    "SELECT 1 FROM information_schema.processlist"
                    " WHERE id = %s AND state = 'User sleep' AND time > 0",
                    (number,),
                )
            )

        try:
            assert wait_until(runs, seconds=60)
            with pytest.raises(FleetServerError) as info:
                admin.lock_all("FLUSH TABLES WITH READ LOCK")
        finally:
            primary.root_execute(f"KILL {number}")
            with pytest.raises(pymysql.err.MySQLError):
                running.result()
    assert info.value.number == 1205
    text = rf"in its way: .*session {number} of '.*' runs a statement for"
    assert re.search(text, str(info.value))


def test_a_value_too_long_for_its_text_is_no_null(servers, ends):
    source, target = ends
    primary = servers["server1"].primary
    most = source.variables("max_allowed_packet")["max_allowed_packet"]
    primary.root_execute("CREATE TABLE db00001.large (a INT KEY, b LONGBLOB)")
    try:
        # As text, which is hexadecimal, it is longer than a packet.
        primary.root_execute(
            "INSERT INTO db00001.large VALUES (1, REPEAT('x', "
            f"{int(most) // 2 + 1000}))"
        )
        servers["server1"].wait_caught_up()
        with pytest.raises(CopyFailedError, match="max_allowed_packet"):
            Copy(source, target, owner="op").run()
        with snapshots(source, 1) as found:
            (session,) = found.sessions
            table = tables_of(source, ["db00001"])["db00001", "large"]
            with pytest.raises(FleetServerError, match="max_allowed_packet"):
                list(texts_of(session, table))
    finally:
        primary.root_execute("DROP TABLE db00001.large")
        servers["server1"].wait_caught_up()


COMMAND = (
    "import os, sys; print('copying'); print(sys.argv[1]);"
    " assert os.environ['SQLA_SHARD_TARGET_HOST'] == '127.0.0.1'"
)


def test_a_command_that_does_not_say_a_position_has_failed(ends):
    source, target = ends

    def copy(command):
        return Copy(source, target, owner="op", way="command", command=command).run()

    with pytest.raises(CopyFailedError, match="status 3: no space"):
        copy("echo no space >&2; exit 3")
    with pytest.raises(CopyFailedError, match="is not a position: 'done'"):
        copy("echo done")
    # Of several servers: the last line alone is not the position.
    with pytest.raises(CopyFailedError, match="a position: '1-1-3,done'"):
        copy("echo copying; echo 1-1-3,; echo done")
    program = f'{sys.executable} -c "{COMMAND}" 1-1-3'
    with pytest.raises(CopyFailedError, match="exists on one side only"):
        copy(program)
    assert copy_state(target).position is None


def test_a_session_that_is_lost_while_it_logs_nothing(ends):
    source, _ = ends

    def lose(session):
        number = session.value("SELECT CONNECTION_ID()")
        with session.unlogged():
            source.kill(number)
            session.run("DO SLEEP(60)")

    with source.another() as session, pytest.raises(FleetServerError) as caught:
        lose(session)
    assert "by an earlier statement" not in caught.value.reason


def test_round_trips_do_not_grow_with_the_tables(ends, monkeypatch):
    source, _ = ends
    raw = source._connection.connection.dbapi_connection
    send, sent = raw._execute_command, []

    def count(command, text):
        sent.append(text)
        return send(command, text)

    monkeypatch.setattr(raw, "_execute_command", count)
    counts = []
    source.run("START TRANSACTION")
    sent.clear()
    for names in (["db00001"], ["db00000", "db00001"]):
        found = tables_of(source, names)
        small = [table for table in found.values() if not table.name.startswith("odd")]
        rows = [list(rows) for *_, rows in looked_at(source, small)]
        assert len(rows) == len(small)
        counts.append((len(found), len(sent)))
        sent.clear()
    source.run("ROLLBACK")
    (few, before), (many, after) = counts
    assert few < many
    # Several statements are allowed, and forbidden again.
    assert before == after


def test_sizes_of_tables_without_a_counter_open_no_table(servers, ends):
    source, _ = ends
    pair, server = servers["server1"], replication_of(source)
    names = [f"db00001.plain{number}" for number in range(9)]
    for name in names:
        pair.primary.root_execute(f"CREATE TABLE {name} (a INT KEY)")
    pair.wait_caught_up()
    try:
        pair.standby.root_execute("FLUSH LOCAL TABLES")
        ((_, before),) = source.rows("SHOW SESSION STATUS LIKE 'Opened_tables'")
        found = server.table_sizes()
        ((_, after),) = source.rows("SHOW SESSION STATUS LIKE 'Opened_tables'")
        by_database = map(server.table_sizes, databases_of(source))
        alone = [one for tables in by_database for one in tables]
    finally:
        pair.primary.root_execute(f"DROP TABLE {', '.join(names)}")
        pair.wait_caught_up()

    def known(tables):
        return {(one.database, one.table, one.next_id, one.id_type) for one in tables}

    assert known(found) == known(alone)
    assert all(one.bytes >= 16_384 for one in found)
    counted = [one for one in found if one.next_id is not None]
    assert len(found) >= len(counted) + len(names)
    # The server opens its own tables of estimates, too.
    assert int(after) - int(before) < len(counted) + len(names)
