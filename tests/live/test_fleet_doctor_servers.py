"""Findings of the doctor on real pairs, and their remedies."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import time
from collections.abc import Sequence
from contextlib import contextmanager, ExitStack
from dataclasses import replace
from typing import NamedTuple

import pytest

from examples.fleet import KINDS, options_of
from sqla_shard.cli.dev_command import FLEET_OPTIONS
from sqla_shard.exc import FleetSetupError
from sqla_shard.fleet import access_checks, Accounts, capacity, Fleet, FleetPlan
from sqla_shard.fleet.capacity import measure, suggest
from sqla_shard.fleet.doctor import examine
from sqla_shard.fleet.journal import Record
from sqla_shard.fleet.replication_base import Replication
from sqla_shard.testing.local_server import free_port, wait_until
from tests.servers.command_line import invoke
from tests.servers.fleet_pairs import FleetPairs
from tests.servers.published import publish_to
from tests.servers.remedies import follow
from tests.servers.server_statements import change_source, words

pytestmark = pytest.mark.live

DURABLE = (
    "--sync-binlog=1",
    "--innodb-flush-log-at-trx-commit=1",
    "--binlog-expire-logs-seconds=154800",
)
#: What MySQL has instead of MariaDB's account of root without a password.
ROOT = {"mariadb": (), "mysql": ("--plugin-load-add=auth_socket.so",)}
#: The options that the documentation requires of every server.
DOCUMENTED = {
    # The plugins are loaded already.
    kind: (*(one for one in options_of(kind) if "plugin" not in one), *ROOT[kind])
    for kind in KINDS
}
SHARDS = 8
OPEN = "SET GLOBAL read_only = 0"
CLOSE = "SET GLOBAL read_only = 1"
SEMI_SYNC_ON = "SET GLOBAL {source}_enabled = 1"
#: A privilege to write although a server is read-only.
PAST_READ_ONLY = {"mariadb": "READ_ONLY ADMIN", "mysql": "CONNECTION_ADMIN"}
UNLOGGED = "SET SESSION sql_log_bin = 0"
TABLE = "(local_id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, v INT)"


def run(server, *statements):
    """Run statements as root; ``{source}`` and so on are words of its kind."""
    source, replica = words(server).SEMI_SYNC
    with server.root_connect() as connection:
        for statement in statements:
            connection.cursor().execute(
                statement.format(
                    source=source, replica=replica, past=PAST_READ_ONLY[server.kind]
                )
            )


def secure_root(server):
    """Let root in over the socket only: it has no password on MySQL."""
    if server.kind == "mysql":
        system = pwd.getpwuid(os.getuid()).pw_name
        run(
            server,
            UNLOGGED,
            f"ALTER USER root@localhost IDENTIFIED WITH auth_socket AS '{system}'",
        )


@pytest.fixture(scope="module")
def pairs(server_kind, tmp_path_factory):
    folder = tmp_path_factory.mktemp("doctor")
    with FleetPairs(
        folder,
        pairs=2,
        shards=SHARDS,
        options=DOCUMENTED[server_kind.name],
        pair=server_kind.pair,
    ) as pairs:
        for pair in pairs.pairs:
            run(pair.primary, OPEN)
            for server in pair.servers:
                secure_root(server)
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
            # Not at the start: the first writes would wait for a standby.
            run(pair.primary, SEMI_SYNC_ON)
        yield pairs


@pytest.fixture
def pair(pairs):
    return pairs["server1"]


@pytest.fixture
def doctor(pairs):
    """Return a function that returns a report."""

    def call(**options):
        # Debian has no package with the plugin.
        return examine(pairs.fleet(), ignored=["silent-disks"], **options)

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
    assert set(checks) <= {"ids", "old-epochs", "skip-slave-start"}
    json.dumps(report.as_dict())


def test_a_standby_without_the_account_of_replication(doctor, pair, pairs):
    name = f"'{pairs.accounts.for_replication().user}'@'{pair.standby.host}'"
    run(pair.standby, "SET SESSION sql_log_bin = 0", f"DROP USER {name}")
    finding = found(doctor(), "fleet-accounts", "warning")
    assert finding.server == place(pair.standby, "standby")
    password = pairs.accounts.for_replication().password
    create = f"CREATE USER {name} IDENTIFIED BY '{password}'"
    grant = f"GRANT REPLICATION SLAVE ON *.* TO {name}"
    run(pair.standby, "SET SESSION sql_log_bin = 0", create, grant)
    assert doctor().ok


# -- write access -----------------------------------------------------------


def test_two_writable_servers_are_the_first_line(doctor, pair, pairs):
    run(pair.standby, OPEN)
    report = doctor()
    finding = found(report, "two-writable", "critical")
    assert finding is report.findings[0]
    assert finding.server == place(pair.standby, "standby")
    assert "is writable, as only its primary may be" in finding.what
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


def test_a_former_server_that_takes_writes(doctor, pairs, server_kind):
    options = (*FLEET_OPTIONS, *ROOT[server_kind.name], *DURABLE)
    with server_kind.server("former", fast=True, options=options) as server:
        secure_root(server)
        pairs.add_accounts(server)
        run(server, "CREATE DATABASE db00003", "CREATE DATABASE other")
        at = f"{server.host}:{server.port}"
        with server.connect() as connection:
            connection.cursor().execute("SELECT 1")
            report = doctor(others=[at])
        serious = {one.check: one for one in report.at_least("warning")}
        assert set(serious) == {
            "writable-outside",
            "restarts-closed",
            "sessions-elsewhere",
        }
        assert "has 1 databases" in serious["writable-outside"].what
        assert "not in the topology" in serious["sessions-elsewhere"].what
        follow(serious["writable-outside"], [server])
        after = doctor(others=[at])
        # Whether it will be closed after a restart is not known any more.
        assert after.ok, str(after)
        # The journal names it, until it is retired.
        with was_primary(pairs, at):
            assert doctor().ok
            run(server, OPEN)
            (one,) = doctor().at_least("critical")
            assert one.check == "writable-outside"
            assert at in str(one)
            end(pairs, "retire", {"target": at})
            assert doctor().ok


def end(pairs, kind, arguments):
    """Write an operation that has ended into the journal."""
    plan = FleetPlan(kind=kind, title=kind, epoch=1, arguments=arguments)
    record = Record(
        id=f"{kind} {time.time_ns()}",
        plan=plan.as_dict(),
        token=1,
        holder="it",
        started=time.time(),
    )
    hold = pairs.fleet().journal.begin(record)
    hold.write(replace(record, state="finished"))
    hold.release()


@contextmanager
def was_primary(pairs, address):
    """Have a server in the journal that was lost as a primary."""
    end(pairs, "dead-failover", {"old": address, "server": "server1"})
    try:
        yield
    finally:
        shutil.rmtree(pairs.path.with_name(f"{pairs.path.name}.fleet"))


# -- replication --------------------------------------------------------------


@contextmanager
def changed(server, change, back):
    """Run statements, and others at the end; each is a list or one."""
    try:
        run(server, *listed(change))
        yield
    finally:
        run(server, *listed(back))


def listed(statements):
    return [statements] if isinstance(statements, str) else statements


def wait_healthy(doctor):
    assert wait_until(lambda: doctor().ok, seconds=60), str(doctor())


def wait_for(doctor, check, text=""):
    """Wait for a finding, and return it."""
    seen = []

    def look():
        seen[:] = [
            one for one in doctor().findings if one.check == check and text in one.what
        ]
        return bool(seen)

    assert wait_until(look, seconds=60), str(doctor())
    return seen[0]


def test_a_stopped_standby(doctor, pair, pairs):
    with changed(pair.standby, "STOP REPLICA", "START REPLICA"):
        finding = wait_for(doctor, "replication-stopped")
        assert finding.severity == "critical"
        assert "receiver No, applier No" in finding.what
        follow(finding, pairs.servers)
    wait_healthy(doctor)


def test_a_broken_applier(doctor, pair, pairs):
    run(pair.standby, UNLOGGED, "DELETE FROM db00000.pins WHERE local_id = 1")
    run(pair.primary, "DELETE FROM db00000.pins WHERE local_id = 1")
    # MySQL names the event in a table of its Performance Schema.
    reason = {"mariadb": "Delete_rows", "mysql": "Coordinator stopped"}
    finding = wait_for(doctor, "replication-stopped", reason[pair.standby.kind])
    assert "applier No" in finding.what
    run(pair.standby, UNLOGGED, "INSERT INTO db00000.pins VALUES (1, 1)")
    follow(finding, pairs.servers)
    wait_healthy(doctor)


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
    errant = ["CREATE DATABASE errant", "DROP DATABASE errant"]
    if pair.standby.kind == "mariadb":
        # A domain of its own, so that replication goes on afterwards.
        origin = f"{pair.primary.gtid_domain_id + 1000}"
        errant.insert(0, f"SET SESSION gtid_domain_id = {origin}")
        back = ["STOP REPLICA", "RESET MASTER", "START REPLICA"]
    else:
        ((origin,),) = pair.standby.root_execute("SELECT @@server_uuid")
        executed = pair.standby.position()
        back = [
            "STOP REPLICA",
            "RESET BINARY LOGS AND GTIDS",
            f"SET GLOBAL gtid_purged = '{executed}'",
            "START REPLICA",
        ]
    with changed(pair.standby, errant, back):
        finding = found(doctor(), "errant", "critical")
        assert "has 2 transactions" in finding.what
        assert origin in finding.what
        assert finding.remedy.endswith("server1 --discard-errant")
    wait_healthy(doctor)


# MariaDB's relay log does not survive whatever the variable is.
@pytest.mark.only_on("mysql")
def test_a_standby_that_forgets_what_it_has_received(doctor, pair):
    standby = pair.standby
    options = standby.options
    try:
        standby.kill()
        standby.options = (*options, "--relay-log-recovery=1")
        standby.start()
        run(standby, "START REPLICA")
        finding = wait_for(doctor, "relay-log")
        assert finding.severity == "critical"
        assert "relay_log_recovery = OFF" in finding.remedy
    finally:
        standby.kill()
        standby.options = options
        standby.start()
        run(standby, "START REPLICA")
    wait_healthy(doctor)


FILTERS = {
    "mariadb": (
        "SET GLOBAL replicate_do_db = 'db00000'",
        "SET GLOBAL replicate_do_db = ''",
    ),
    "mysql": (
        "CHANGE REPLICATION FILTER REPLICATE_DO_DB = (db00000)",
        "CHANGE REPLICATION FILTER REPLICATE_DO_DB = ()",
    ),
}


def test_a_filter(doctor, pair):
    filtered, whole = FILTERS[pair.standby.kind]
    with changed(
        pair.standby,
        ["STOP REPLICA", filtered],
        ["STOP REPLICA", whole, "START REPLICA"],
    ):
        run(pair.standby, "START REPLICA")
        finding = wait_for(doctor, "incomplete-replication")
        assert "leaves out data: Replicate_Do_DB=db00000" in finding.what
    wait_healthy(doctor)


def test_a_position_in_a_file(doctor, pair):
    standby = pair.standby
    if standby.kind == "mariadb":
        in_file = change_source(standby, use_gtid="no")
        by_gtid = change_source(standby, use_gtid="slave_pos")
    else:
        in_file = change_source(standby, auto_position=0)
        by_gtid = change_source(standby, auto_position=1)
    with changed(
        standby, ["STOP REPLICA", in_file], ["STOP REPLICA", by_gtid, "START REPLICA"]
    ):
        finding = wait_for(doctor, "incomplete-replication")
        assert "by GTID" in finding.what
    wait_healthy(doctor)


def test_a_standby_of_another_server(doctor, pairs, pair):
    other = pairs["server2"].primary
    # The account that all servers have with the same password.
    account = pairs.accounts.for_replication()
    moved = change_source(
        pair.standby,
        port=other.port,
        user=f"'{account.user}'",
        password=f"'{account.password}'",
    )
    try:
        # What the other server writes is not applied.
        run(pair.standby, "STOP REPLICA", moved, "START REPLICA IO_THREAD")
        finding = wait_for(doctor, "other-source")
        assert finding.severity == "critical"
        assert f"replicates from 127.0.0.1:{other.port}" in finding.what
    finally:
        run(pair.standby, "STOP REPLICA")
        pair.attach(pair.standby)
    wait_healthy(doctor)


def test_a_primary_that_replicates(doctor, pair, pairs):
    other = pairs["server2"].primary
    with changed(
        pair.primary,
        change_source(pair.primary, host="'127.0.0.1'", port=other.port),
        "RESET REPLICA ALL",
    ):
        finding = found(doctor(), "chained-primary", "critical")
        follow(finding, pairs.servers)
    assert doctor().ok


def test_a_standby_that_is_late_on_purpose(doctor, pair, pairs):
    late = change_source(pair.standby, delay=3600)
    run(pair.standby, "STOP REPLICA", late, "START REPLICA")
    finding = wait_for(doctor, "delay")
    assert "3,600 s late" in finding.what
    follow(finding, pairs.servers)
    wait_healthy(doctor)


def test_heartbeats_that_come_too_late(doctor, pair, pairs):
    name = words(pair.standby).NET_TIMEOUT
    rare = change_source(pair.standby, heartbeat_period=30)
    run(pair.standby, "STOP REPLICA", rare, "START REPLICA")
    finding = wait_for(doctor, "silent-primary")
    assert f"{name} = 4, and its primary sends a heartbeat every 30 s" in finding.what
    follow(finding, pairs.servers)
    wait_healthy(doctor)
    run(pair.standby, f"SET GLOBAL {name} = 60")
    finding = wait_for(doctor, "silent-primary")
    assert "no watcher replaces it before semi-sync stops waiting" in finding.what
    follow(finding, pairs.servers)
    wait_healthy(doctor)


def test_settings_that_a_failover_would_change(doctor, pair):
    names = ("sql_mode", "character_set_server", "max_allowed_packet")
    before = {
        name: pair.standby.root_execute(f"SELECT @@GLOBAL.{name}")[0][0]
        for name in names
    }
    changes = {"sql_mode": "", "character_set_server": "ascii"}
    changes["max_allowed_packet"] = 1 << 20

    def setting(values):
        return [f"SET GLOBAL {name} = {value!r}" for name, value in values.items()]

    with changed(pair.standby, setting(changes), setting(before)):
        finding = found(doctor(), "settings-of-pair", "warning")
        assert all(f"{name} = " in finding.what for name in names)
    assert doctor().ok


def test_semi_sync_that_has_fallen_back(doctor, pair, pairs):
    table = "db00000.pins"
    restart = ["STOP REPLICA IO_THREAD", "START REPLICA IO_THREAD"]
    with (
        changed(
            pair.primary,
            "SET GLOBAL {source}_timeout = 50",
            "SET GLOBAL {source}_timeout = 25000",
        ),
        changed(
            pair.standby,
            ["SET GLOBAL {replica}_enabled = 0", *restart],
            ["SET GLOBAL {replica}_enabled = 1", *restart],
        ),
    ):
        run(pair.primary, f"INSERT INTO {table} (v) VALUES (4)")
        report = doctor()
        (finding,) = report.at_least("critical")
        assert finding.check == "semi-sync-lost"
        whats = " ".join(
            one.what for one in report.at_least("warning") if one.check == "semi-sync"
        )
        assert "after 0.05 s" in whats
        assert "does not acknowledge" in whats
        follow(finding, pairs.servers)

    def is_healthy():
        # A write switches it on, once the standby has connected again.
        run(pair.primary, f"INSERT INTO {table} (v) VALUES (5)")
        return doctor().ok

    assert wait_until(is_healthy, seconds=60), str(doctor())


# -- settings, accounts, content: one statement each --------------------------


class Case(NamedTuple):
    """A fault of server1, and the finding of the doctor.

    :ivar remedy: whether its statements put all right.
    """

    check: str
    severity: str
    on: str
    change: Sequence[str] | str
    back: Sequence[str] | str
    text: str
    remedy: bool = False


def variable(check, on, name, wrong, right, text, severity="warning", remedy=True):
    return Case(
        check,
        severity,
        on,
        f"SET GLOBAL {name} = {wrong}",
        f"SET GLOBAL {name} = {right}",
        text,
        remedy,
    )


WEEK = 7 * 86_400
ID_LIMIT = 2**36
APP = "'app'@'127.0.0.1'"
CASES = (
    variable(
        "semi-sync", "primary", "{source}_enabled", 0, 1, "semi-sync switched off"
    ),
    variable(
        "semi-sync",
        "primary",
        "{source}_wait_point",
        "AFTER_COMMIT",
        "AFTER_SYNC",
        "shows rows to readers before",
    ),
    variable(
        "settings",
        "primary",
        "binlog_format",
        "STATEMENT",
        "ROW",
        "binlog_format = STATEMENT",
        remedy=False,
    ),
    variable("durability", "primary", "sync_binlog", 0, 1, "sync_binlog = 0"),
    variable(
        "durability",
        "standby",
        "innodb_flush_log_at_trx_commit",
        2,
        1,
        "innodb_flush_log_at_trx_commit = 2",
    ),
    variable(
        "time-zones",
        "standby",
        "time_zone",
        "'+02:00'",
        "'+00:00'",
        "time zone +02:00, others in UTC",
    ),
    variable(
        "binlog-expiry",
        "primary",
        "binlog_expire_logs_seconds",
        600,
        WEEK,
        "after 600 s",
    ),
    variable(
        "connections",
        "primary",
        "max_connections",
        30,
        500,
        "sessions of at most 30",
        remedy=False,
    ),
    variable(
        "events",
        "standby",
        "event_scheduler",
        "ON",
        "OFF",
        "event scheduler switched on",
    ),
    Case(
        "global-privileges",
        "critical",
        "primary",
        [UNLOGGED, f"GRANT INSERT, SUPER ON *.* TO {APP}"],
        [UNLOGGED, f"REVOKE INSERT, SUPER ON *.* FROM {APP}"],
        "global privileges (INSERT, SUPER)",
        remedy=True,
    ),
    Case(
        "global-privileges",
        "critical",
        "primary",
        [UNLOGGED, f"GRANT {{past}} ON *.* TO {APP}"],
        [UNLOGGED, f"REVOKE {{past}} ON *.* FROM {APP}"],
        "global privileges ({past})",
        remedy=True,
    ),
    Case(
        "roles",
        "warning",
        "primary",
        [
            UNLOGGED,
            "CREATE ROLE inner_role, outer_role",
            "GRANT inner_role TO outer_role",
            f"GRANT outer_role TO {APP}",
        ],
        [UNLOGGED, "DROP ROLE inner_role, outer_role"],
        "with roles (inner_role, outer_role)",
    ),
    Case(
        "past-read-only",
        "warning",
        "standby",
        [
            UNLOGGED,
            "CREATE USER strong@localhost IDENTIFIED BY 'x'",
            "GRANT SUPER ON *.* TO strong@localhost",
        ],
        [UNLOGGED, "DROP USER strong@localhost"],
        "'strong'@'localhost', that may write",
        remedy=True,
    ),
    Case(
        "no-password",
        "warning",
        "standby",
        [UNLOGGED, "CREATE USER anyone@localhost"],
        [UNLOGGED, "DROP USER IF EXISTS anyone@localhost"],
        "without a password: 'anyone'@'localhost'",
        remedy=True,
    ),
    Case(
        "events",
        "warning",
        "standby",
        [UNLOGGED, "CREATE EVENT db00000.e ON SCHEDULE EVERY 1 DAY DO SELECT 1"],
        [UNLOGGED, "DROP EVENT db00000.e"],
        "has 1 event that is enabled (db00000.e)",
        remedy=True,
    ),
    Case(
        "events",
        "warning",
        "primary",
        "CREATE EVENT db00000.e ON SCHEDULE EVERY 1 DAY DO SELECT 1",
        "DROP EVENT db00000.e",
        "the event db00000.e of the definer root@",
    ),
    Case(
        "missing-databases",
        "critical",
        "primary",
        [UNLOGGED, "DROP DATABASE db00001"],
        [UNLOGGED, "CREATE DATABASE db00001", f"CREATE TABLE db00001.pins {TABLE}"],
        "lacks 1 databases of the topology (db00001)",
    ),
    Case(
        "missing-databases",
        "critical",
        "standby",
        [UNLOGGED, "DROP DATABASE db00002"],
        [UNLOGGED, "CREATE DATABASE db00002", f"CREATE TABLE db00002.pins {TABLE}"],
        "lacks 1 databases that its primary has (db00002)",
    ),
    Case(
        "orphans",
        "warning",
        "primary",
        "CREATE DATABASE db00006",
        "DROP DATABASE db00006",
        "(db00006): db00006 is on server2",
    ),
    Case(
        "orphans",
        "warning",
        "standby",
        [UNLOGGED, "CREATE DATABASE db00099"],
        [UNLOGGED, "DROP DATABASE db00099"],
        "(db00099): objects has 8 shards only",
    ),
    Case(
        "differing-definitions",
        "critical",
        "standby",
        [UNLOGGED, "ALTER TABLE db00003.pins ADD INDEX (v)"],
        [UNLOGGED, "ALTER TABLE db00003.pins DROP INDEX v"],
        "1 tables of another definition than its primary (db00003.pins)",
    ),
    Case(
        "ids",
        "warning",
        "primary",
        f"CREATE TABLE db00000.t {TABLE} AUTO_INCREMENT {3 * ID_LIMIT // 4}",
        "DROP TABLE db00000.t",
        "db00000.t has used 75 % of its ids",
    ),
    Case(
        "ids",
        "critical",
        "primary",
        "CREATE TABLE db00000.t (n TINYINT UNSIGNED AUTO_INCREMENT PRIMARY"
        " KEY) AUTO_INCREMENT 250",
        "DROP TABLE db00000.t",
        "db00000.t has used 97.6 % of its ids (next 250, tinyint",
    ),
)


KIND_CASES = {
    "mariadb": variable(
        "settings",
        "standby",
        "gtid_strict_mode",
        0,
        1,
        "gtid_strict_mode = OFF",
        remedy=False,
    ),
    "mysql": variable(
        "settings",
        "standby",
        "gtid_mode",
        "ON_PERMISSIVE",
        "ON",
        "gtid_mode = ON_PERMISSIVE",
        remedy=False,
    ),
}


def case_id(case):
    return f"{case.check}-{case.on}-{case.text[:20]}"


def test_a_setting_of_one_kind(doctor, pair, pairs):
    find_and_mend(doctor, pair, pairs, KIND_CASES[pair.primary.kind])


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_a_fault_is_found_and_put_right(doctor, pair, pairs, case):
    find_and_mend(doctor, pair, pairs, case)


def find_and_mend(doctor, pair, pairs, case):
    server = getattr(pair, case.on)
    with ExitStack() as stack:
        if case.check == "connections":
            for _ in range(23):
                stack.enter_context(server.root_connect())
        stack.enter_context(changed(server, case.change, case.back))
        pair.wait_caught_up()
        finding = found(doctor(), case.check, case.severity)
        text = case.text.format(past=PAST_READ_ONLY[server.kind])
        assert text in finding.what
        assert finding.server == place(server, case.on)
        assert finding.remedy
        if case.remedy:
            follow(finding, pairs.servers)
            assert doctor().ok
    # The next test finds whatever is left.
    pair.wait_caught_up()


def test_equal_server_ids(doctor, pair, pairs):
    other = pairs["server2"].standby
    with changed(
        other,
        f"SET GLOBAL server_id = {pair.primary.server_id}",
        f"SET GLOBAL server_id = {other.server_id}",
    ):
        finding = found(doctor(), "server-ids", "critical")
        assert finding.server.startswith("server2 standby")
        assert place(pair.primary, "primary") in finding.what
    wait_healthy(doctor)


def test_a_session_of_the_application_on_a_standby(doctor, pair, pairs):
    with pair.standby.connect() as connection:
        connection.ping()
        finding = found(doctor(), "sessions-elsewhere", "warning")
        user, port = pair.standby.user, connection._sock.getsockname()[1]
        assert (
            "has 1 sessions of the application (127.0.0.1 "
            f"{user}: 1 session, port {port})" in finding.what
        )
        assert "is a standby: those processes use another" in finding.what
        follow(finding, pairs.servers)
        wait_healthy(doctor)


def test_a_long_transaction(doctor, pair, pairs, monkeypatch):
    monkeypatch.setattr(access_checks, "LONG_TRANSACTION", 1)
    url = f"mysql://{pair.primary.host}:{pair.primary.port}"
    with (
        pairs.fleet().admin(url, name="a backup") as reader,
        pair.primary.connect() as connection,
    ):
        # Those of a report or a backup are as old, and no finding.
        reader.run("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        cursor = connection.cursor()
        cursor.execute("INSERT INTO db00000.pins (v) VALUES (5)")
        finding = wait_for(doctor, "long-transactions")
        assert "has 1 transactions of 1 s or longer" in finding.what
        follow(finding, pairs.servers)
        wait_healthy(doctor)


def test_users_that_are_not_known(pairs, tmp_path):
    document = pairs.document()
    for server in document["keyspaces"]["objects"]["servers"]:
        for role in ("primary", "standby"):
            address = server[role].rpartition("@")[2]
            server[role] = f"mysql://${{MYSQL_USER}}@{address}"
    path = tmp_path / "topology.json"
    publish_to(path, document)
    fleet = Fleet(path, accounts=pairs.accounts)
    report = examine(fleet)
    assert not report.ok
    (finding,) = [one for one in report.findings if one.check == "application-users"]
    assert "${MYSQL_USER}" in finding.what
    assert finding.severity == "unknown"
    with pairs["server1"].standby.connect() as connection:
        connection.ping()
        found(
            examine(fleet, environ={"MYSQL_USER": "app"}, ignored=["silent-disks"]),
            "sessions-elsewhere",
            "warning",
        )


# -- servers that do not respond ----------------------------------------------


def with_unknown(doctor, server):
    """Return the report in which nothing else is unknown.

    On a busy machine the other servers need longer.
    """
    for timeout in (4, 16, 64):
        report = doctor(timeout=timeout)
        unknown = {one.server for one in report.findings if one.severity == "unknown"}
        if unknown == {place(server, "standby")}:
            break
    return report


@pytest.mark.thorough
def test_a_frozen_standby_is_unknown_and_hides_nothing(doctor, pair, pairs):
    closed = pairs["server2"].primary
    with changed(closed, CLOSE, OPEN):
        os.kill(pair.standby.pid, signal.SIGSTOP)
        try:
            report = with_unknown(doctor, pair.standby)
        finally:
            os.kill(pair.standby.pid, signal.SIGCONT)
    assert not report.ok
    assert not report.complete
    assert [one.check for one in report.findings[:1]] == ["primary-closed"]
    unknown = [one for one in report.findings if one.severity == "unknown"]
    assert unknown
    assert {one.server for one in unknown} == {place(pair.standby, "standby")}
    names = " ".join(one.what for one in unknown)
    for check in ("two-writable", "replication-stopped", "lag", "errant"):
        assert check in names
    assert names.startswith(f"{pair.name} (standby) unreachable")
    wait_healthy(doctor)


def test_a_server_that_is_away(doctor, pair):
    pair.standby.kill()
    try:
        report = doctor()
    finally:
        pair.standby.start()
        run(pair.standby, "START REPLICA")
    assert {one.server for one in report.at_least("unknown")} == {
        place(pair.standby, "standby")
    }
    [unknown] = [one for one in report.findings if one.severity == "unknown"]
    line = f"unknown: {pair.name} (standby) unreachable (2003): 4 shards 0-3: "
    assert str(unknown).startswith(line)
    assert "Connection refused" in str(report)
    wait_healthy(doctor)


@pytest.mark.thorough
def test_a_status_that_hangs_hides_nothing_else(doctor, pair, monkeypatch):
    # As on a standby whose disk is full.
    status = Replication.status

    def hanging(self):
        if self.admin.port == pair.standby.port:
            self.admin.run("DO SLEEP(60)")
        return status(self)

    monkeypatch.setattr(Replication, "status", hanging)
    with changed(
        pair.standby, "SET GLOBAL sync_binlog = 0", "SET GLOBAL sync_binlog = 1"
    ):
        report = with_unknown(doctor, pair.standby)
    unknown, other = report.at_least("warning")
    assert unknown.severity == "unknown"
    assert "replication-stopped" in unknown.what
    assert "two-writable" not in unknown.what
    assert other.check == "durability"


def test_an_account_without_privileges_is_unknown(pairs):
    accounts = Accounts(operator=pairs.accounts.for_replication())
    report = examine(Fleet(pairs.path, accounts=accounts), timeout=10)
    assert not report.complete
    unknown = " ".join(one.what for one in report.findings if one.severity == "unknown")
    # Without the privilege the server shows some rows, not an error.
    for name in ("sessions-elsewhere", "events", "orphans"):
        assert name in unknown
    assert "the operator lacks PROCESS" in unknown


# -- capacity -----------------------------------------------------------------


def test_sizes_and_splits(pairs):
    report = measure(pairs.fleet(), window=0)
    assert [one.shard for one in report.shards] == [*range(SHARDS)]
    assert all(one.bytes >= 16_384 for one in report.shards)
    assert [one.name for one in report.servers()] == ["server1", "server2"]
    assert report.unreachable == ()
    lines = suggest(report, "objects", servers=4)
    assert [" ".join(line.split()[2:6]) for line in lines] == [
        "split server1 --shards objects:2-3",
        "split server2 --shards objects:6-7",
    ]


def test_activity_that_is_not_counted_is_unknown(pairs):
    report = measure(pairs.fleet(), window=0.1)
    assert report.hottest() == []
    assert report.busiest() == []
    rows, statements = report.notes
    assert rows.startswith("activity is not counted on server1, server2;")
    assert "SET GLOBAL userstat = 1" in rows
    assert statements.startswith("statements are not counted on server1, ")
    assert "performance_schema = ON" in statements


# MySQL counts rows in its Performance Schema only, as below.
@pytest.mark.only_on("mariadb")
def test_hot_shards(pairs, pair, monkeypatch):
    with changed(pair.primary, "SET GLOBAL userstat = 1", "SET GLOBAL userstat = 0"):
        # Counts are not there before the first statement.
        run(pair.primary, "SELECT COUNT(*) FROM db00003.pins")

        def work(seconds):
            run(
                pair.primary,
                *["INSERT INTO db00002.pins (v) VALUES (1)"] * 20,
                *["SELECT * FROM db00003.pins"] * 5,
            )

        monkeypatch.setattr(capacity, "sleep", work)
        report = measure(pairs.fleet(), window=1)
    first, second = report.hottest()
    assert (first.shard, second.shard) == (2, 3)
    assert first.written > 0
    assert second.read > 0
    assert "server2" in report.notes[0]
    assert "server1" not in report.notes[0]
    pair.wait_caught_up()


def test_shards_by_statements(server_kind, tmp_path, monkeypatch):
    with FleetPairs(
        tmp_path,
        shards=4,
        pair=server_kind.pair,
        options=("--performance-schema=ON", "--performance-schema-digests-size=200"),
    ) as pairs:
        primary = pairs["server1"].primary
        for shard in range(4):
            run(
                primary,
                f"CREATE DATABASE db{shard:05d}",
                f"CREATE TABLE db{shard:05d}.pins {TABLE}",
            )

        union = "SELECT 1 FROM db00001.pins UNION ALL SELECT 2 FROM `db00003`"

        def work(seconds):
            # As the library writes them, and as a client with a default does.
            run(
                primary,
                *["SELECT v FROM db00002.pins WHERE local_id = 1"] * 30,
                *[f"{union}.`pins` AS p"] * 20,
                "USE db00003",
                *["SELECT pins.v FROM pins"] * 5,
            )

        monkeypatch.setattr(capacity, "sleep", work)
        report = measure(pairs.fleet(), window=1)
        counts = {one.shard: one.statements for one in report.busiest()}
        assert [*counts] == [2, 3, 1]
        assert counts[2] / counts[1] == pytest.approx(30 / 20)
        assert counts[3] / counts[1] == pytest.approx(25 / 20)
        assert "busy: objects 2 on server1: " in str(report)
        assert not report.notes

        def crowded(seconds):
            run(primary, *[f"SELECT 1 AS a{number}" for number in range(300)])

        monkeypatch.setattr(capacity, "sleep", crowded)
        (note,) = measure(pairs.fleet(), window=1).notes
        assert "statements/s of server1 are of unknown shards" in note


def test_a_server_that_was_not_measured(pairs, pair):
    pair.primary.kill()
    try:
        report = measure(pairs.fleet(), window=0)
    finally:
        pair.primary.start()
        run(pair.primary, OPEN, SEMI_SYNC_ON)
    assert [one.shard for one in report.shards] == [4, 5, 6, 7]
    [lost] = report.unreachable
    assert "Connection refused" in lost.cause.reason
    line = str(lost)
    assert line.startswith("server1 unreachable (2003): 4 shards 0-3: ")
    assert str(report).endswith(line)
    with pytest.raises(FleetSetupError, match="server1 could not be read"):
        suggest(report, "objects", servers=4)
    pair.wait_caught_up()


# -- the commands -------------------------------------------------------------


@pytest.fixture
def sqla_shard(pairs):
    """Return a function that runs a fleet command."""

    def call(*arguments):
        account = pairs.accounts.operator
        return invoke(
            "-t",
            pairs.path,
            "fleet",
            *arguments,
            env={
                "SQLA_SHARD_OPERATOR_USER": account.user,
                "SQLA_SHARD_OPERATOR_PASSWORD": account.password,
            },
        )

    return call


def test_the_exit_status_of_the_doctor(sqla_shard, doctor, pairs, pair):
    wait_healthy(doctor)
    result = sqla_shard("doctor")
    assert result.exit_code == 3
    assert "unknown: fleet: 4 servers do not show how full" in result.output
    ignoring = ("doctor", "--ignore", "silent-disks")
    result = sqla_shard(*ignoring)
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[-1].startswith("4 servers, epoch 1: ")
    with changed(
        pair.standby, "SET GLOBAL sync_binlog = 0", "SET GLOBAL sync_binlog = 1"
    ):
        result = sqla_shard(*ignoring, "--json")
        assert result.exit_code == 1
        document = json.loads(result.output)
        assert document["findings"][0]["check"] == "durability"
        assert not document["ok"]
        assert sqla_shard(*ignoring, "--fail-on", "critical").exit_code == 0
        away = free_port()
        result = sqla_shard("doctor", "--other", f"127.0.0.1:{away}")
        assert result.exit_code == 3
        assert f"unknown: server 127.0.0.1:{away}" in result.output
    assert pairs.accounts.operator.password not in result.output


def test_the_commands_of_capacity(sqla_shard, tmp_path):
    result = sqla_shard("capacity", "--window", "0", "--json")
    assert result.exit_code == 0, result.output
    path = tmp_path / "capacity.json"
    path.write_text(result.output)
    result = sqla_shard("capacity", "--window", "0", "--since", path, "--servers", "4")
    assert result.exit_code == 0, result.output
    assert "MiB a day" in result.output
    assert "sqla-shard fleet split server1 --shards objects:2-3" in (result.output)
    result = sqla_shard("capacity", "--window", "0", "--servers", "1")
    assert result.exit_code == 1
    assert "among 2 to 8 servers, not 1" in result.output
    path.write_text("{")
    result = sqla_shard("capacity", "--since", path)
    assert result.exit_code == 1
    assert "is not JSON" in result.output
