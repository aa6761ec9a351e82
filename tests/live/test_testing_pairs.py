"""A pair for tests replicates, and refuses as documented."""

from __future__ import annotations

import re

import pymysql
import pytest

from sqla_shard import exc
from tests.servers.processes import gone

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def pair(server_kind):
    with server_kind.pair(fast=True) as pair:
        with pair.primary.connect(autocommit=True) as connection:
            cursor = connection.cursor()
            cursor.execute("CREATE DATABASE db1")
            cursor.execute("CREATE TABLE db1.t (a INT PRIMARY KEY)")
        yield pair


def write(server, number):
    with server.connect(autocommit=True) as connection:
        connection.cursor().execute("INSERT INTO db1.t VALUES (%s)", (number,))


def numbers(server):
    return {a for (a,) in server.root_execute("SELECT a FROM db1.t")}


def test_rows_arrive_with_the_ids_of_their_transactions(server_kind, pair):
    write(pair.primary, 1)
    pair.wait_caught_up()
    assert 1 in numbers(pair.standby)
    (position,) = {server.position() for server in pair.servers}
    if server_kind.is_mysql:
        (source,) = pair.primary.root_execute("SELECT @@server_uuid")[0]
        assert re.fullmatch(rf"{source}:1-\d+", position)
        return
    domain, server_id = pair.primary.gtid_domain_id, pair.primary.server_id
    assert re.fullmatch(rf"{domain}-{server_id}-\d+", position)
    assert pair.standby.root_execute("SELECT @@gtid_slave_pos") == [(position,)]


def test_standby_refuses_writes_of_the_application(pair):
    pair.wait_caught_up()
    with pytest.raises(pymysql.err.OperationalError) as info:
        write(pair.standby, 2)
    assert info.value.args[0] == 1290
    assert 2 not in numbers(pair.standby)


@pytest.mark.parametrize("index", [0, 1])
def test_application_may_not_write_where_it_is_read_only(pair, index):
    server = pair.servers[index]
    with server.connect() as connection:
        cursor = connection.cursor()
        cursor.execute("SHOW GRANTS")
        grants = [row[0] for row in cursor.fetchall()]
    everywhere = [grant for grant in grants if " ON *.* " in grant]
    assert len(everywhere) == 1
    assert everywhere[0].startswith("GRANT USAGE ON *.* ")


def test_account_of_replication_may_do_nothing_else(pair):
    for server in pair.servers:
        account = f"'{pair.replication_user}'@'{server.host}'"
        ((grant,),) = server.root_execute(f"SHOW GRANTS FOR {account}")
        assert grant.startswith("GRANT REPLICATION SLAVE ON *.* TO ")


def test_standby_that_was_killed_goes_on(pair):
    pair.wait_caught_up()
    pair.standby.kill()
    write(pair.primary, 3)
    pair.start()
    pair.wait_caught_up()
    assert 3 in numbers(pair.standby)
    assert pair.standby.root_execute("SELECT @@read_only") == [(1,)]


def test_standby_finds_a_primary_that_was_killed(pair):
    pair.primary.kill()
    pair.primary.start()
    write(pair.primary, 4)
    pair.wait_caught_up()
    assert 4 in numbers(pair.standby)


def test_standby_that_does_not_follow_says_why(pair):
    pair.wait_caught_up()
    pair.standby.root_execute("STOP REPLICA")
    try:
        write(pair.primary, 5)
        with pytest.raises(
            exc.ServerProcessError, match=r"server1b.* within 0\.1 s"
        ) as info:
            pair.wait_caught_up(0.1)
        assert re.search("(Slave|Replica)_SQL_Running: No", info.value.log)
    finally:
        pair.standby.root_execute("START REPLICA")
    pair.wait_caught_up()


def test_standby_without_a_primary_is_reported(server_kind):
    with server_kind.pair("other", fast=True) as other:
        other.standby.root_execute("STOP REPLICA")
        other.standby.root_execute("RESET REPLICA ALL")
        with other.primary.connect() as connection:
            connection.cursor().execute("CREATE DATABASE db1")
        with pytest.raises(exc.ServerProcessError, match="it has no primary"):
            other.wait_caught_up(0.1)


def test_roles_change_and_two_standbys_follow(server_kind):
    with server_kind.pair("main", standbys=2, fast=True) as pair:
        old, new, third = pair.servers
        with old.connect() as connection:
            connection.cursor().execute("CREATE DATABASE db1")
        pair.wait_caught_up()
        old.root_execute("SET GLOBAL read_only = 1")
        new.root_execute("STOP REPLICA")
        new.root_execute("RESET REPLICA ALL")
        new.root_execute("SET GLOBAL read_only = 0")
        pair.name_primary(new)
        assert (pair.primary, pair.standby) == (new, old)
        assert pair.standbys == (old, third)
        assert "primary=mainb" in repr(pair)
        pair.attach(old, demote=True)
        pair.attach(third)
        with new.connect() as connection:
            connection.cursor().execute("CREATE DATABASE db2")
        pair.wait_caught_up()
        for server in pair.standbys:
            assert ("db2",) in server.root_execute("SHOW DATABASES")


def test_servers_are_named_and_none_is_of_two_pairs(server_kind, pair):
    assert [server.name for server in pair.servers] == ["server1a", "server1b"]
    assert pair.primary.password == pair.standby.password
    assert pair.primary.password not in repr(pair)
    with pytest.raises(ValueError, match="itself"):
        pair.attach(pair.primary)
    other = server_kind.pair("other")
    with pytest.raises(ValueError, match=r"otherb.* is not a server of .*server1"):
        pair.name_primary(other.standby)


@pytest.mark.parametrize("standbys", [0, 26])
def test_numbers_of_standbys_that_make_no_sense_are_refused(server_kind, standbys):
    with pytest.raises(ValueError, match=f"standbys={standbys}"):
        server_kind.pair(standbys=standbys)


def test_stop_leaves_nothing_behind(server_kind):
    pair = server_kind.pair(fast=True)
    pair.stop()
    with pair:
        assert pair.start() is pair
        pids = [server.pid for server in pair.servers]
        directories = [server.directory for server in pair.servers]
        pair.name_primary(pair.standby)
    assert all(gone(pid) for pid in pids)
    assert not any(directory.exists() for directory in directories)
    assert pair.primary is pair.servers[0]
    with pair:
        with pair.primary.connect() as connection:
            connection.cursor().execute("CREATE DATABASE db_new")
        pair.wait_caught_up()
        names = pair.standby.root_execute("SHOW DATABASES")
        assert ("db_new",) in names


# The data directory that all are copies of stays until the process ends; it
# must not be made here.
@pytest.mark.usefixtures("pair")
def test_a_start_that_fails_leaves_nothing(server_kind, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    pair = server_kind.pair(fast=True, options=["--no-such-option"])
    with pytest.raises(exc.ServerProcessError, match="no-such-option"):
        pair.start()
    assert list(tmp_path.iterdir()) == []
    assert [server.directory for server in pair.servers] == [None, None]
