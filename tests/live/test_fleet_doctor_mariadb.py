"""What the doctor finds on real pairs, and that its remedies are remedies."""

from __future__ import annotations

import json

import pytest

from sqla_shard.fleet.doctor import examine
from sqla_shard.testing import MariaDBServer
from sqla_shard.testing.local_server import wait_until
from tests.servers.fleet_pairs import FleetPairs
from tests.servers.remedies import follow

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("mariadb_installed")]

#: What the documentation asks of every server.
DOCUMENTED = (
    "--read-only=1",
    "--sync-binlog=1",
    "--innodb-flush-log-at-trx-commit=1",
    "--binlog-expire-logs-seconds=604800",
    "--rpl-semi-sync-master-enabled=1",
    "--rpl-semi-sync-master-wait-point=AFTER_SYNC",
    "--rpl-semi-sync-master-timeout=10000",
    "--rpl-semi-sync-slave-enabled=1",
)
SHARDS = 8
OPEN = "SET GLOBAL read_only = 0"
CLOSE = "SET GLOBAL read_only = 1"
UNLOGGED = "SET SESSION sql_log_bin = 0"
TABLE = "(local_id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, v INT)"


def run(server, *statements):
    with server.root_connect() as connection:
        for statement in statements:
            connection.cursor().execute(statement)


@pytest.fixture(scope="module")
def pairs(mariadb_installed, tmp_path_factory):
    folder = tmp_path_factory.mktemp("doctor")
    with FleetPairs(
        folder, pairs=2, shards=SHARDS, options=DOCUMENTED
    ) as pairs:
        for pair in pairs.pairs:
            run(pair.primary, OPEN)
        for server in pairs.document()["keyspaces"]["objects"]["servers"]:
            first, last = server["shards"]
            for shard in range(first, last + 1):
                run(
                    pairs[server["name"]].primary,
                    f"CREATE DATABASE db{shard:05d}",
                    f"CREATE TABLE db{shard:05d}.pins {TABLE}",
                    f"INSERT INTO db{shard:05d}.pins (v) VALUES (1), (2)",
                )
        for pair in pairs.pairs:
            pair.wait_caught_up()
        yield pairs


@pytest.fixture
def pair(pairs):
    return pairs["server1"]


@pytest.fixture
def doctor(pairs):
    """Return a function that returns a report."""

    def call(**options):
        return examine(pairs.fleet(), **options)

    return call


def found(report, check, severity):
    """Return the only finding of a check; nothing else may be wrong."""
    serious = report.at_least("warning")
    text = "\n".join(map(str, serious))
    assert {finding.check for finding in serious} == {check}, text
    assert {finding.severity for finding in serious} == {severity}, text
    return serious[0]


def place(server, role):
    return f"server1 {role} ({server.host}:{server.port})"


def test_a_healthy_fleet_gives_no_warning(doctor):
    report = doctor()
    assert report.at_least("warning") == [], str(report)
    assert report.ok
    assert report.complete
    assert report.servers == 4
    checks = [finding.check for finding in report.findings]
    assert checks.count("ids") == 2
    assert set(checks) <= {
        "ids",
        "old-epochs",
        "silent-disks",
        "skip-slave-start",
    }
    json.dumps(report.as_dict())


# -- who may write ----------------------------------------------------------


def test_two_writable_servers_are_the_first_line(doctor, pair, pairs):
    run(pair.standby, OPEN)
    report = doctor()
    finding = found(report, "two-writable", "critical")
    assert finding is report.findings[0]
    assert finding.server == place(pair.standby, "standby")
    assert "is writable, like its primary" in finding.what
    follow(finding, pairs.servers)
    assert doctor().ok


def test_a_closed_primary(doctor, pair):
    run(pair.primary, CLOSE)
    finding = found(doctor(), "primary-closed", "critical")
    assert finding.server == place(pair.primary, "primary")
    assert finding.remedy == "sqla-shard fleet reopen server1"
    run(pair.primary, OPEN)


def test_a_half_done_failover(doctor, pair):
    run(pair.primary, CLOSE)
    run(pair.standby, OPEN)
    report = doctor()
    assert [one.check for one in report.at_least("warning")] == [
        "two-writable",
        "primary-closed",
    ]
    assert "a failover was not finished" in report.findings[0].what
    run(pair.standby, CLOSE)
    run(pair.primary, OPEN)


def test_a_former_server_that_takes_writes(doctor, pairs):
    with MariaDBServer("former", fast=True, options=DOCUMENTED[1:4]) as server:
        pairs.add_accounts(server)
        run(server, "CREATE DATABASE db00003", "CREATE DATABASE other")
        at = f"{server.host}:{server.port}"
        with server.connect() as connection:
            connection.cursor().execute("SELECT 1")
            report = doctor(others=[at], environ={})
        assert [one.check for one in report.at_least("critical")] == [
            "writable-outside"
        ]
        serious = {one.check: one for one in report.at_least("warning")}
        assert set(serious) == {
            "writable-outside",
            "restarts-closed",
            "sessions-elsewhere",
        } - ({"restarts-closed"} if not is_configured(server) else set())
        assert "1 databases" in serious["writable-outside"].what
        follow(serious["writable-outside"], [server])
        after = doctor(others=[at])
        assert not after.at_least("critical"), str(after)


def is_configured(server):
    """Return whether read_only has the default of the server."""
    ((origin,),) = server.root_execute(
        "SELECT global_value_origin FROM information_schema.system_variables"
        " WHERE variable_name = 'READ_ONLY'"
    )
    return origin == "COMPILE-TIME"


# -- replication --------------------------------------------------------------


def test_a_stopped_standby(doctor, pair, pairs):
    run(pair.standby, "STOP SLAVE")
    report = doctor()
    finding = next(
        one for one in report.findings if one.check == "replication-stopped"
    )
    assert finding.severity == "critical"
    assert "receiver No, applier No" in finding.what
    follow(finding, pairs.servers)
    wait_healthy(doctor)


def wait_healthy(doctor):
    assert wait_until(lambda: doctor().ok, seconds=60), str(doctor())


def test_a_broken_applier(doctor, pair, pairs):
    run(pair.standby, UNLOGGED, "CREATE DATABASE broken")
    run(pair.primary, "CREATE DATABASE broken")
    assert wait_until(
        lambda: any(
            one.check == "replication-stopped" and "broken" in one.what
            for one in doctor().findings
        ),
        seconds=60,
    )
    run(pair.standby, UNLOGGED, "DROP DATABASE broken")
    (finding,) = [
        one for one in doctor().findings if one.check == "replication-stopped"
    ]
    follow(finding, pairs.servers)
    wait_healthy(doctor)
    run(pair.primary, "DROP DATABASE broken")
    pair.wait_caught_up()


def test_a_late_standby(doctor, pair):
    with pair.standby.root_connect() as holder:
        cursor = holder.cursor()
        cursor.execute("LOCK TABLES db00000.pins READ")
        run(pair.primary, "INSERT INTO db00000.pins (v) VALUES (3)")
        finding = found(doctor(), "lag", "warning")
        assert "has not applied within 2 s" in finding.what
        cursor.execute("UNLOCK TABLES")
    pair.wait_caught_up()
    assert doctor().ok


def test_errant_transactions(doctor, pair):
    domain = pair.primary.gtid_domain_id
    run(
        pair.standby,
        # A domain of its own, so that replication goes on afterwards.
        f"SET SESSION gtid_domain_id = {domain + 1000}",
        "CREATE DATABASE errant",
        "DROP DATABASE errant",
    )
    finding = found(doctor(), "errant", "critical")
    assert "has 2 transactions" in finding.what
    assert f"{domain + 1000}-" in finding.what
    assert finding.remedy.endswith("replica rebuild server1")
    run(
        pair.standby,
        "FLUSH BINARY LOGS",
        "PURGE BINARY LOGS BEFORE NOW() + INTERVAL 1 DAY",
        f"FLUSH BINARY LOGS DELETE_DOMAIN_ID = ({domain + 1000})",
    )
    assert doctor().ok


def test_a_filter(doctor, pair):
    change(pair.standby, "SET GLOBAL replicate_do_db = 'db00000'")
    finding = found(doctor(), "incomplete-replication", "critical")
    assert "leaves out data: Replicate_Do_DB=db00000" in finding.what
    change(pair.standby, "SET GLOBAL replicate_do_db = ''")
    wait_healthy(doctor)


def change(server, *statements):
    run(server, "STOP SLAVE", *statements, "START SLAVE")


def test_a_standby_of_another_server(doctor, pairs, pair):
    other = pairs["server2"].primary
    run(
        pair.standby,
        "STOP SLAVE",
        f"CHANGE MASTER TO MASTER_PORT = {other.port}",
    )
    try:
        run(other, *shared_account(pair))
        run(pair.standby, "START SLAVE IO_THREAD")
        assert wait_until(
            lambda: any(
                one.check == "other-source" and one.severity == "critical"
                for one in doctor().findings
            ),
            seconds=60,
        )
    finally:
        run(
            pair.standby,
            "STOP SLAVE",
            f"CHANGE MASTER TO MASTER_PORT = {pair.primary.port}",
            "START SLAVE",
        )
    wait_healthy(doctor)


def shared_account(pair):
    """Return statements that create the replication account of a pair."""
    with pair.primary.root_connect() as connection:
        cursor = connection.cursor()
        cursor.execute(
            "SELECT authentication_string FROM mysql.user WHERE user = %s",
            (pair.replication_user,),
        )
        ((text,),) = cursor.fetchall()
    account = f"'{pair.replication_user}'@'{pair.primary.host}'"
    return [
        UNLOGGED,
        f"ALTER USER {account} IDENTIFIED BY PASSWORD '{text}'",
    ]
