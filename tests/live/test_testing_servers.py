"""The servers for tests are what their documentation says."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pymysql
import pytest

from sqla_shard import Cluster, exc, unpack
from sqla_shard.testing import (
    local_server,
    MariaDBFleet,
    MariaDBServer,
    MySQLFleet,
    MySQLServer,
)
from sqla_shard.testing.local_server import free_port, wait_until
from tests.models.follow_models import Base, User
from tests.servers.command_line import invoke
from tests.servers.processes import gone, listening

pytest_plugins = ["pytester"]
pytestmark = [pytest.mark.live, pytest.mark.usefixtures("mariadb_installed")]


@pytest.fixture(scope="module")
def server(server_kind):
    with server_kind.server(fast=True, prefixes=["db", "my_app-"]) as server:
        yield server


def ask(server, sql):
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchall()


# -- properties of the server ---------------------------------------------


def test_url_lets_the_application_in(server):
    password = re.escape(server.password)
    pattern = rf"mysql://app:{password}@127\.0\.0\.1:{server.port}"
    assert re.fullmatch(pattern, server.url)
    assert ask(server, "SELECT CURRENT_USER()") == (("app@127.0.0.1",),)
    assert server.password not in repr(server)
    assert "running" in repr(server)


def test_the_password_is_required(server):
    for user in ("app", "root", ""):
        with pytest.raises(pymysql.err.OperationalError, match="denied"):
            pymysql.connect(
                host=server.host, port=server.port, user=user, password="wrong"
            )


def test_there_are_no_other_users(server):
    users = {user for (user,) in server.root_execute("SELECT user FROM mysql.user")}
    own = {
        "mariadb": {"mariadb.sys"},
        "mysql": {"mysql.infoschema", "mysql.session", "mysql.sys"},
    }
    assert users - {"root"} == {"app"} | own[server.kind]


@pytest.mark.parametrize("name", ["db00000", "dbx", "my_app-1"])
def test_application_owns_databases_with_the_prefixes(server, name):
    with server.connect() as connection:
        cursor = connection.cursor()
        cursor.execute(f"CREATE DATABASE `{name}`")
        cursor.execute(f"CREATE TABLE `{name}`.t (a INT PRIMARY KEY)")
        cursor.execute(f"INSERT INTO `{name}`.t VALUES (1)")
        connection.commit()
        cursor.execute(
            "SELECT table_schema FROM information_schema.tables WHERE table_name = 't'"
        )
        assert (name,) in cursor.fetchall()
        cursor.execute(f"DROP DATABASE `{name}`")


@pytest.mark.parametrize("name", ["other", "my1app-1", "d", "xdb"])
def test_application_gets_no_other_database(server, name):
    # my1app: the underscore of a prefix is no wildcard.
    with pytest.raises(pymysql.err.OperationalError, match="denied"):
        ask(server, f"CREATE DATABASE `{name}`")


@pytest.mark.parametrize(
    "sql",
    [
        "SET GLOBAL read_only = 1",
        "SET GLOBAL max_connections = 5",
        "FLUSH TABLES",
        "SELECT * FROM mysql.user",
        "CREATE USER x@localhost",
        "GRANT ALL ON `db%`.* TO app@'127.0.0.1'",
        "SET SESSION sql_log_bin = 0",
        "SHOW BINARY LOGS",
        "SELECT 1 INTO OUTFILE '/tmp/x'",
    ],
)
def test_application_has_no_global_privilege(server, sql):
    with pytest.raises(pymysql.err.MySQLError, match="denied"):
        ask(server, sql)


def test_a_read_only_server_refuses_the_application(server):
    ask(server, "CREATE DATABASE db_ro")
    server.root_execute("SET GLOBAL read_only = 1")
    try:
        with pytest.raises(pymysql.err.OperationalError, match="read-only"):
            ask(server, "CREATE TABLE db_ro.t (a INT)")
    finally:
        server.root_execute("SET GLOBAL read_only = 0")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("log_bin", 1),
        ("binlog_format", "ROW"),
        ("log_slave_updates", 1),
        ("innodb_flush_log_at_trx_commit", 2),
        ("sync_binlog", 0),
        ("performance_schema", 0),
        ("skip_name_resolve", 1),
        ("bind_address", "127.0.0.1"),
        ("character_set_server", "utf8mb4"),
        ("time_zone", "+00:00"),
    ],
)
def test_variables(server, name, expected):
    assert server.root_execute(f"SELECT @@GLOBAL.{name}") == [(expected,)]


def test_gtids_are_strict(server):
    name, expected = {
        "mariadb": ("gtid_strict_mode", 1),
        "mysql": ("enforce_gtid_consistency", "ON"),
    }[server.kind]
    assert server.root_execute(f"SELECT @@GLOBAL.{name}") == [(expected,)]


def test_durable_unless_fast():
    with MariaDBServer() as server:
        assert server.root_execute(
            "SELECT @@innodb_flush_log_at_trx_commit, @@sync_binlog"
        ) == [(1, 1)]


def test_strict_by_default(server):
    ((mode,),) = ask(server, "SELECT @@sql_mode")
    assert {"STRICT_TRANS_TABLES", "ONLY_FULL_GROUP_BY"} <= set(mode.split(","))


def test_its_own_set_up_is_not_in_the_binary_log():
    with MariaDBServer(fast=True, server_id=77) as server:
        assert server.root_execute("SELECT @@gtid_binlog_pos") == [("",)]
        ask(server, "CREATE DATABASE db1")
        assert server.root_execute("SELECT @@gtid_binlog_pos") == [("77-77-1",)]


def test_files_and_processes_are_its_own(server):
    directory = server.directory
    for variable in ("tmpdir", "datadir", "socket", "pid_file"):
        ((value,),) = server.root_execute(f"SELECT @@{variable}")
        assert Path(value).is_relative_to(directory), variable
    assert directory.stat().st_mode & 0o077 == 0


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_listens_on_loopback_only(server):
    assert listening(server.pid) == {("127.0.0.1", server.port)}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change account")
def test_does_not_run_as_root_where_it_need_not(server, tmp_path):
    assert Path(f"/proc/{server.pid}").stat().st_uid != 0 or (
        server._account.name == "root"
    )
    tmp_path.chmod(0o700)
    with MariaDBServer(fast=True, parent=tmp_path) as other:
        assert Path(f"/proc/{other.pid}").stat().st_uid == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"server_id": 0}, "server_id=0"),
        ({"prefixes": []}, "at least one"),
        ({"prefixes": ["my"]}, "'mysql'"),
        ({"prefixes": ["db`"]}, "'db`'"),
        ({"prefixes": [""]}, "must be letters"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        MariaDBServer(**arguments)


# -- life and death -------------------------------------------------------


def test_stop_leaves_nothing_behind():
    server = MariaDBServer(fast=True)
    server.stop()
    with server:
        pid, directory = server.pid, server.directory
        assert directory.is_dir()
        assert server.start() is server
        assert server.pid == pid
    assert gone(pid)
    assert not directory.exists()
    assert server.pid is None
    assert "stopped" in repr(server)
    server.stop()
    with pytest.raises(exc.ServerProcessError, match="not started"):
        server.kill()


def test_starts_afresh_after_a_stop():
    server = MariaDBServer(fast=True)
    with server:
        ask(server, "CREATE DATABASE db_old")
    with server:
        assert ("db_old",) not in ask(server, "SHOW DATABASES")


def test_restart_keeps_data_and_port():
    with MariaDBServer(fast=True) as server:
        ask(server, "CREATE DATABASE db_kept")
        pid, port = server.pid, server.port
        server.restart()
        assert (server.pid == pid, server.port) == (False, port)
        assert ("db_kept",) in ask(server, "SHOW DATABASES")


def test_kill_and_recover():
    with MariaDBServer(fast=True) as server:
        with server.connect(autocommit=True) as connection:
            cursor = connection.cursor()
            cursor.execute("CREATE DATABASE db1")
            cursor.execute("CREATE TABLE db1.t (a INT PRIMARY KEY)")
            cursor.execute("INSERT INTO db1.t VALUES (1)")
            server.kill()
            with pytest.raises(pymysql.err.OperationalError):
                cursor.execute("SELECT 1")
        with pytest.raises(exc.ServerProcessError, match="not running") as info:
            server.root_execute("SELECT 1")
        assert "ready for connections" in info.value.log
        with pytest.raises(pymysql.err.OperationalError):
            server.connect()
        for action in (server.pause, server.resume):
            with pytest.raises(exc.ServerProcessError, match="not running"):
                action()
        server.start()
        assert ask(server, "SELECT a FROM db1.t") == ((1,),)


def test_a_paused_server_does_not_answer():
    with MariaDBServer(fast=True) as server:
        server.pause()
        assert "paused" in repr(server)
        with pytest.raises(pymysql.err.OperationalError):
            server.connect(connect_timeout=1, read_timeout=1)
        server.resume()
        assert ask(server, "SELECT 1") == ((1,),)
        server.pause()
        pid = server.pid
    assert gone(pid)


def test_a_start_that_fails_says_why_and_leaves_nothing(monkeypatch, tmp_path):
    tmp_path.chmod(0o755)
    server = MariaDBServer(fast=True, options=["--no-such-option"], parent=tmp_path)
    with pytest.raises(exc.ServerProcessError, match="while it started") as info:
        server.start()
    assert "no-such-option" in info.value.log
    assert "no-such-option" in str(info.value)
    assert list(tmp_path.iterdir()) == []
    assert server.directory is None


def test_a_data_directory_is_created_once(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    runs = []
    install = MariaDBServer._install
    monkeypatch.setattr(
        MariaDBServer,
        "_install",
        lambda self, data, account: runs.append(data) or install(self, data, account),
    )
    cache = tmp_path / "sqla-shard" / "servers"
    with MariaDBServer(fast=True) as first, MariaDBServer(fast=True) as second:
        first.root_execute("CREATE DATABASE db00000")
        databases = second.root_execute("SHOW DATABASES LIKE 'db00000'")
    assert (len(runs), list(databases)) == (1, [])
    assert not runs[0].parent.exists()
    (template,) = (path for path in cache.iterdir() if path.is_dir())
    unused = cache / "unused"
    unused.mkdir()
    os.utime(unused, (0, 0))
    template.rename(tmp_path / "former")
    with MariaDBServer(fast=True):
        assert len(runs) == 2
    assert not unused.exists()
    cache.chmod(0o755)
    with pytest.raises(exc.ServerProcessError, match="without access for others"):
        MariaDBServer(fast=True).start()


def test_a_start_that_takes_too_long_is_given_up(tmp_path):
    server = MariaDBServer(fast=True, start_timeout=0, parent=tmp_path)
    with pytest.raises(exc.ServerProcessError, match="did not respond within"):
        server.start()
    assert list(tmp_path.iterdir()) == []


def test_a_port_taken_at_the_last_moment_is_replaced(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as other:
        ports = [free_port(), other.getsockname()[1]]
        monkeypatch.setattr(local_server, "free_port", ports.pop)
        with MariaDBServer(fast=True) as server:
            assert ports == []
            assert ask(server, "SELECT 1") == ((1,),)


def test_missing_programs_are_named(monkeypatch, tmp_path):
    monkeypatch.setenv("SQLA_SHARD_MARIADB", str(tmp_path))
    with pytest.raises(exc.ServerProcessError, match="apt-get install"):
        MariaDBServer().start()


def test_a_temporary_directory_with_a_long_name_is_refused(tmp_path):
    parent = tmp_path / ("x" * 100)
    parent.mkdir()
    with pytest.raises(exc.ServerProcessError, match="TMPDIR"):
        MariaDBServer(fast=True, parent=parent).start()
    assert list(parent.iterdir()) == []


PROGRAM = """
import os, signal, sys, threading
from sqla_shard.testing import MariaDBServer
server = MariaDBServer(fast=True)
# The thread that starts it ends before we do.
thread = threading.Thread(target=server.start)
thread.start()
thread.join()
print(server.pid, server.directory, flush=True)
how = sys.argv[1]
if how == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if how == "left":
    os._exit(3)
if how == "raised":
    raise SystemExit(4)
if how == "forked":
    pid = os.fork()
    if pid == 0:
        server.stop()
        sys.exit(0)  # its exit handlers run, and must not end the server
    os.waitpid(pid, 0)
    assert server.running
    server.root_execute("SELECT 1")
"""


@pytest.mark.parametrize(
    ("how", "status"),
    [
        ("killed", -signal.SIGKILL),
        ("left", 3),
        ("raised", 4),
        ("forked", 0),
        ("ended", 0),
    ],
)
def test_no_server_outlives_its_program(how, status):
    # A forked child cannot know that its parent waits for the processes.
    warnings = "ignore" if how == "forked" else "error"
    done = subprocess.run(
        [sys.executable, "-W", warnings, "-c", PROGRAM, how],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (status, "")
    pid, directory = done.stdout.split()
    assert wait_until(lambda: gone(int(pid)), seconds=60)
    assert wait_until(lambda: not Path(directory).exists(), seconds=60)


# -- recorded statements --------------------------------------------------


def test_query_log_shows_connections_and_statements(server):
    with server.connect() as before:
        with server.query_log() as log:
            assert "open" in repr(log)
            ask(server, "SELECT 'one\n\ttwo ä'")
            before.cursor().execute("SELECT 3")
            server.root_execute("SELECT 'not of the application'")
            assert len(log.statements) >= 2
        before.cursor().execute("SELECT 'too late'")
        chosen = [s for s in log.statements if s.startswith("SELECT")]
        assert chosen == ["SELECT 'one\n\ttwo ä'", "SELECT 3"]
        assert log.opened == 1
        assert len(log.connections) == 2
        assert before.thread_id() in log.connections
        assert [
            e.text for e in log.entries if e.connection_id == before.thread_id()
        ] == ["SELECT 3"]


def test_query_log_can_be_cleared_and_opened_again(server):
    log = server.query_log()
    for number in (1, 2):
        with log:
            ask(server, "SELECT 'before'")
            log.clear()
            # The server may log the end of the connection after that.
            assert {entry.command for entry in log.entries} <= {"Quit"}
            ask(server, f"SELECT {number}")
        assert log.statements[-1] == f"SELECT {number}"
        assert "SELECT 'before'" not in log.statements


def test_query_log_is_not_in_the_binary_log(server):
    before = server.position()
    with server.query_log():
        pass
    assert server.position() == before


def test_query_log_of_a_server_that_dies():
    with MariaDBServer(fast=True) as server:
        with server.query_log() as log:
            server.kill()
        assert log.entries == ()


# -- fleets ---------------------------------------------------------------


@pytest.fixture(scope="module")
def small_fleet(mariadb_installed):
    password = "a/b@ c%"
    with MariaDBFleet(3, 8, password=password) as fleet:
        yield fleet


def test_servers_of_a_fleet_differ(small_fleet):
    assert small_fleet.local
    assert [s.name for s in small_fleet.servers] == ["server1", "server2", "server3"]
    for attribute in ("port", "pid", "directory", "server_id"):
        assert len({getattr(s, attribute) for s in small_fleet.servers}) == 3
    for variable in ("server_id", "gtid_domain_id"):
        seen = {s.root_execute(f"SELECT @@{variable}")[0] for s in small_fleet.servers}
        assert len(seen) == 3
    assert small_fleet.server("server2") is small_fleet.servers[1]
    with pytest.raises(KeyError):
        small_fleet.server("server4")


def names(server):
    return {
        row[0]
        for row in ask(
            server,
            "SELECT schema_name FROM information_schema.schemata"
            " WHERE default_collation_name = 'utf8mb4_bin'",
        )
    }


def test_databases_are_where_the_topology_says(small_fleet):
    small_fleet.create_databases()
    small_fleet.create_databases()
    found = [names(server) for server in small_fleet.servers]
    assert found == [
        {"db00000", "db00001", "db00002"},
        {"db00003", "db00004", "db00005"},
        {"db00006", "db00007"},
    ]
    other = small_fleet.topology_mapping(
        shards=3, database="db_x{shard}", main="main_x", lookup=2
    )
    small_fleet.create_databases(other)
    assert names(small_fleet.servers[0]) - found[0] == {
        "db_x0",
        "main_x",
        "lookup00000",
    }
    small_fleet.drop_databases(other)
    assert [names(server) for server in small_fleet.servers] == found
    small_fleet.drop_databases()
    assert [names(server) for server in small_fleet.servers] == [set()] * 3


def test_a_new_project_is_tested_on_servers(mariadb_fleet, pytester, monkeypatch):
    assert invoke("init", pytester.path).exit_code == 0
    urls = ",".join(server.url for server in mariadb_fleet.servers)
    monkeypatch.setenv("SQLA_SHARD_TEST_SERVERS", urls)
    done = pytester.runpytest_subprocess("-k", "mariadb")
    done.assert_outcomes(passed=1, deselected=2)


def test_ids_go_on_in_emptied_tables(fleet):
    topology = fleet.topology_mapping(shards=4, database="db_ids{shard:05d}")
    ids = []
    with Cluster.from_topology(topology) as cluster:
        cluster.create_all(Base.metadata)
        for _ in range(3):
            with cluster.begin() as session:
                user = User(shard_id=3)
                session.add(user)
                session.flush()
                ids.append(user.id)
            assert fleet.empty(topology) == 1
            with cluster.session() as session:
                assert session.get(User, ids[-1]) is None
    fleet.drop_databases(topology)
    assert [unpack(one).local_id for one in ids] == [1, 2, 3]


def test_databases_are_emptied(small_fleet):
    other = small_fleet.topology_mapping(
        shards=8, database="db_e{shard}", main="main_e"
    )
    small_fleet.create_databases(other)
    small_fleet.create_databases()
    first, *_, last = small_fleet.servers
    for server, schema in ((first, "db_e0"), (last, "db_e7")):
        for statement in (
            "CREATE TABLE `own``ers` (id INT KEY)",
            "CREATE TABLE cats (id INT KEY, owner INT)",
            "ALTER TABLE cats ADD FOREIGN KEY (id) REFERENCES `own``ers` (id)",
            "CREATE TABLE alembic_version (version_num VARCHAR(32))",
            "CREATE VIEW old AS SELECT * FROM cats",
            "INSERT INTO `own``ers` VALUES (1), (2)",
            "INSERT INTO cats VALUES (1, 1)",
            "INSERT INTO alembic_version VALUES ('0001')",
        ):
            with server.connect(database=schema, autocommit=True) as one:
                one.cursor().execute(statement)
    with first.connect(database="db00000", autocommit=True) as one:
        one.cursor().execute("CREATE TABLE cats (id INT PRIMARY KEY)")
        one.cursor().execute("INSERT INTO cats VALUES (1)")
    assert small_fleet.empty(other) == 6
    assert small_fleet.empty(other) == 0
    assert ask(last, "SELECT COUNT(*) FROM db_e7.cats") == ((0,),)
    assert ask(last, "SELECT * FROM db_e7.alembic_version") == (("0001",),)
    # Of another topology.
    assert ask(first, "SELECT COUNT(*) FROM db00000.cats") == ((1,),)
    assert small_fleet.empty() == 1
    small_fleet.drop_databases(other)
    small_fleet.drop_databases()


def test_topology_has_passwords_or_placeholders(small_fleet):
    def primaries(document):
        servers = document["keyspaces"]["objects"]["servers"]
        return [server["primary"] for server in servers]

    urls = primaries(small_fleet.topology_mapping())
    assert urls == [server.url for server in small_fleet.servers]
    assert urls[0].startswith("mysql://app:a%2Fb%40%20c%25@127.0.0.1:")
    marked = primaries(small_fleet.topology_mapping(placeholders=True))
    assert marked[0].startswith("mysql://app:${MYSQL_PASSWORD}@127.0.0.1:")
    assert small_fleet.environ == {"MYSQL_PASSWORD": "a/b@ c%"}


def test_a_fleet_of_servers_of_others(small_fleet, monkeypatch):
    urls = ", ".join(server.url for server in small_fleet.servers[:2])
    monkeypatch.setenv("SQLA_SHARD_TEST_SERVERS", urls)
    with MariaDBFleet(4, 4) as other:
        assert (other.local, len(other.servers)) == (False, 2)
        assert small_fleet.servers[0].password not in repr(other.servers)
        other.create_databases()
        assert names(small_fleet.servers[1]) == {"db00002", "db00003"}
        assert other.topology_mapping() == small_fleet.topology_mapping() | {
            "keyspaces": other.topology_mapping()["keyspaces"]
        }
        assert other.servers[0].root_execute("SELECT %s", [5]) == [(5,)]
        other.drop_databases()
    assert all(server.running for server in small_fleet.servers)


@pytest.fixture(scope="module")
def mysql(mysql_installed):
    with MySQLServer(fast=True) as server:
        yield server


def test_a_fleet_of_servers_of_others_takes_its_kind(small_fleet, mysql, monkeypatch):
    ours = small_fleet.servers[0]
    urls = f"{mysql.url.replace('mysql:', 'mariadb:')},{ours.url}"
    monkeypatch.setenv("SQLA_SHARD_TEST_SERVERS", urls)
    for fleet, server in ((MySQLFleet(), mysql), (MariaDBFleet(), ours)):
        with fleet:
            (found,) = fleet.servers
            assert (found.name, found.port) == ("server1", server.port)


def test_a_fleet_of_servers_of_the_other_kind_is_refused(small_fleet, monkeypatch):
    url = small_fleet.servers[0].url
    monkeypatch.setenv("SQLA_SHARD_TEST_SERVERS", url)
    with pytest.raises(exc.ServerProcessError, match="has no server of MySQL") as info:
        MySQLFleet().start()
    assert small_fleet.servers[0].password not in str(info.value)


def test_fixtures_skip_tests_of_a_kind_that_no_server_of_others_is(
    small_fleet, monkeypatch, pytester
):
    url = small_fleet.servers[0].url
    monkeypatch.setenv("SQLA_SHARD_TEST_SERVERS", url)
    monkeypatch.setenv("CI", "")
    monkeypatch.setenv("SQLA_SHARD_REQUIRE_SERVERS", "")
    pytester.makepyfile("def test_one(mysql_fleet): pass")
    result = pytester.runpytest_subprocess("-p", "no:randomly")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*TEST_SERVERS has no server of MySQL*"])


def test_the_shards_are_for_all_servers_of_others(small_fleet, monkeypatch):
    urls = ",".join(server.url for server in small_fleet.servers)
    monkeypatch.setenv("SQLA_SHARD_TEST_SERVERS", urls)
    with pytest.raises(ValueError, match="cannot be divided"):
        MariaDBFleet(shards=2).start()


def test_a_fleet_with_a_server_that_fails_leaves_none():
    fleet = MariaDBFleet(2, 2, fast=True)
    fleet.servers[1].options = ("--no-such-option",)
    with pytest.raises(exc.ServerProcessError, match="server2"):
        fleet.start()
    assert not any(server.running for server in fleet.servers)
    assert all(server.directory is None for server in fleet.servers)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"servers": 5, "shards": 4}, "cannot be divided"),
        ({"servers": 0}, "cannot be divided"),
        ({"database": "x{shard}"}, "none of the prefixes"),
    ],
)
def test_fleets_that_make_no_sense_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        MariaDBFleet(**arguments)


@pytest.mark.parametrize("url", ["mysql://host", "http://a:secret@h", "x"])
def test_urls_of_others_are_checked(monkeypatch, url):
    monkeypatch.setenv("SQLA_SHARD_TEST_SERVERS", url)
    with pytest.raises(ValueError, match="server1 must have the form") as info:
        MariaDBFleet()
    assert "secret" not in str(info.value)


def test_the_fixture_has_databases(fleet):
    assert fleet.shards == 256
    first = fleet.servers[0]
    assert "db00000" in names(first)
