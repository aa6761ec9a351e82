"""Findings of the doctor that cannot be provoked on real servers."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from sqla_shard.exc import FleetServerError
from sqla_shard.fleet.app_access import Attempt
from sqla_shard.fleet.doctor import CHECKS, diagnose, DoctorReport
from sqla_shard.fleet.facts import (
    Event,
    FleetFacts,
    LivePair,
    PairFacts,
    ServerFacts,
    ServerVersion,
    Session,
    Volume,
)
from sqla_shard.fleet.findings import (
    findings_of,
    FleetFinding,
    refusals,
    server_check,
    SEVERITIES,
    warning,
)
from sqla_shard.fleet.replication import (
    Login,
    MariaDBReplication,
    MySQLReplication,
    ReplicationStatus,
    SemiSync,
    TableCounter,
)
from sqla_shard.fleet.replication_checks import replication_stopped, two_writable
from sqla_shard.fleet.setting_checks import binary_log, settings
from sqla_shard.testing.topology_documents import topology_document
from sqla_shard.topology import Topology
from tests.models.scripted_admin import ScriptedAdmin

SHARDS = 4
GIB = 2**30


def topology():
    document = topology_document({"server1": "mysql://app@a:3306"}, SHARDS)
    document["keyspaces"]["objects"]["servers"][0]["standby"] = "mysql://app@b:3306"
    return Topology.from_mapping(document)


def server(role, address, **changes):
    """Return a healthy server; changes replace parts."""
    number = 1 if role == "primary" else 2
    names = frozenset(f"db{shard:05d}" for shard in range(SHARDS))
    parts: dict[str, Any] = {
        "variables": {
            "server_id": str(number),
            "read_only": "OFF" if role == "primary" else "ON",
            "log_bin": "ON",
            **MariaDBReplication.FIT,
            **MySQLReplication.FIT,
            "sync_binlog": "1",
            "innodb_flush_log_at_trx_commit": "1",
            "time_zone": "+00:00",
            "event_scheduler": "OFF",
            "binlog_expire_logs_seconds": "604800",
            "expire_logs_days": "7.000000",
            "max_connections": "100",
            "slave_net_timeout": "4",
            "gtid_domain_id": "1",
            "sql_mode": "STRICT_TRANS_TABLES",
            "datadir": "/var/lib/mysql/",
        },
        "version": ServerVersion(is_mariadb=True, number=(10, 11, 19)),
        "clock": 0.0,
        "clock_error": 0.001,
        "sessions": (),
        "programs": {},
        "transactions": (),
        "grants": (),
        "logins": (),
        "attempt": Attempt("app", is_tried=True),
        "configured": {"read_only": True, "event_scheduler": True},
        "events": (),
        "databases": names,
        "volumes": (Volume("/", 100 * GIB, 60 * GIB),),
        "waits_for_space": False,
        "counters": (),
        "table_count": 0,
        "digests": {},
        "status": None if role == "primary" else following(),
        "semi_sync": SemiSync(
            source_on=role == "primary",
            source_enabled=role == "primary",
            replica_on=role != "primary",
            acknowledges=role != "primary",
            after_sync=True,
            waits_alone=True,
            timeout=25.0,
            standbys=1,
        ),
        "heartbeat": None if role == "primary" else 2.0,
    }
    variables = {**parts["variables"], **changes.pop("variables", {})}
    return ServerFacts(
        name="server1",
        role=role,
        address=address,
        parts={**parts, **changes, "variables": variables},
    )


def following(**changes):
    return replace(
        ReplicationStatus(
            source="a:3306",
            source_id=1,
            receiver="Yes",
            applier="Yes",
            received="0-1-9",
            lag=0,
            error="",
            applier_error="",
            filters=(),
            uses_gtid=True,
        ),
        **changes,
    )


def fleet(primary=None, standby=None, pair=None, **changes):
    primary = primary or server("primary", "a:3306")
    standby = standby or server("standby", "b:3306")
    facts = PairFacts(
        name="server1",
        primary=primary,
        standby=standby,
        databases=server("primary", "a:3306").databases,
        parts={"late": 0.0, "errant": {}, "differing": ()},
    )
    return FleetFacts(
        topology=topology(),
        pairs=(replace(facts, **(pair or {})),),
        application=frozenset(["app"]),
        operators=frozenset(["operator"]),
        **changes,
    )


def lines(facts):
    return [
        f"{one.severity} {one.check} {one.server}"
        for one in diagnose(facts).findings
        if one.severity != "info"
    ]


def text(facts):
    return str(diagnose(facts))


def test_nothing_is_wrong():
    report = diagnose(fleet())
    assert report.ok
    assert report.complete
    assert {one.check for one in report.findings} == {"old-epochs", "skip-slave-start"}
    assert report.as_dict()["ok"] is True
    assert str(report).endswith("2 servers, epoch 1: 2 info")


def test_the_worst_come_first():
    facts = fleet(
        server("primary", "a:3306", variables={"sync_binlog": "0"}),
        server("standby", "b:3306", variables={"read_only": "OFF"}),
        {"unread": {"late": "silence"}, "parts": {"errant": {}}},
    )
    found = diagnose(facts).findings
    assert [one.severity for one in found] == sorted(
        (one.severity for one in found), key=SEVERITIES.index
    )
    assert found[0].check == "two-writable"


# -- unknown is not fine ------------------------------------------------------


def test_an_unread_server_is_unknown_once():
    silent = ServerFacts(
        name="server1",
        role="standby",
        address="b:3306",
        unread=dict.fromkeys(
            ["variables", "status", "semi_sync", "sessions"], "timed out"
        ),
    )
    report = diagnose(
        fleet(
            standby=silent, pair={"parts": {}, "silent": {"late": (silent, "status")}}
        )
    )
    assert not report.ok
    assert not report.complete
    unknown = [one for one in report.findings if one.severity == "unknown"]
    assert {one.server for one in unknown} == {"server1 standby (b:3306)"}
    first = unknown[0].what
    assert first.startswith(
        f"server1 (standby) unreachable: {SHARDS} shards 0-{SHARDS - 1}: "
        "timed out; not checked: two-writable, "
    )
    assert f"unknown: {first}\n" in str(report)
    assert first.count("two-writable") == 1
    assert "semi-sync" in first
    assert ", lag" in first


def test_a_refused_statement_is_not_an_outage():
    parts = server("standby", "b:3306").parts
    refusing = ServerFacts(
        name="server1",
        role="standby",
        address="b:3306",
        parts={key: one for key, one in parts.items() if key != "events"},
        unread={"events": "access denied"},
        numbers={"events": 1227},
    )
    report = diagnose(fleet(standby=refusing))
    [found] = [one for one in report.findings if one.severity == "unknown"]
    assert found.what == (
        f"server1 (standby) not read (1227): {SHARDS} shards "
        f"0-{SHARDS - 1}: access denied; not checked: events"
    )
    assert found.remedy.startswith("it answers other statements: ")


def test_a_server_outside_of_the_topology_has_no_shards():
    away = ServerFacts(
        name="c:3306",
        role="other",
        address="c:3306",
        unread=dict.fromkeys(["variables", "sessions"], "refused"),
        numbers=dict.fromkeys(["variables", "sessions"], 2003),
    )
    report = diagnose(replace(fleet(), others=(away,)))
    assert "unknown: server c:3306 unreachable (2003): refused; not " in str(report)


@pytest.mark.parametrize("role", ["primary", "standby"])
@pytest.mark.parametrize("part", sorted(server("primary", "a").parts))
def test_no_part_can_be_missing_without_a_word(role, part):
    healthy = server(role, "x:3306")
    parts = {key: one for key, one in healthy.parts.items() if key != part}
    facts = fleet(**{role: replace(healthy, parts=parts)})
    report = diagnose(facts)
    # Read of one role, or compared by the reader.
    if part in ("clock_error", "counters", "table_count") and role == "standby":
        return
    if part == "heartbeat" and role == "primary":
        return
    is_detail = part in ("digests", "programs")
    assert report.complete == is_detail, str(report)


# -- checks -------------------------------------------------------------------


def test_a_pair_without_a_standby():
    facts = fleet(pair={"standby": None, "parts": {}})
    assert lines(facts) == ["warning no-standby server1 primary (a:3306)"]


def test_a_standby_that_does_not_replicate():
    facts = fleet(standby=server("standby", "b:3306", status=None))
    assert lines(facts) == ["critical replication-stopped server1 standby (b:3306)"]


def test_a_standby_that_connects():
    status = following(receiver="Connecting", error="access denied")
    facts = fleet(standby=server("standby", "b:3306", status=status))
    assert "receiver Connecting, applier Yes: access denied" in text(facts)


def test_a_standby_that_is_late_on_purpose():
    late = server("standby", "b:3306", status=following(delay=3600))
    assert lines(fleet(standby=late)) == ["warning delay server1 standby (b:3306)"]
    assert "CHANGE MASTER TO MASTER_DELAY = 0" in text(fleet(standby=late))


@pytest.mark.parametrize(
    ("limit", "beat", "part"),
    [
        (4, 2.0, None),
        (10, 5.0, None),
        (60, 30.0, "no watcher replaces it before semi-sync stops"),
        (4, 30.0, "loses its connection again and again"),
        (4, 0.0, "loses its connection again and again"),
        (60, None, "no watcher replaces it before semi-sync stops"),
    ],
)
def test_a_primary_that_is_silent(limit, beat, part):
    standby = server(
        "standby", "b:3306", variables={"slave_net_timeout": str(limit)}, heartbeat=beat
    )
    facts = fleet(standby=standby)
    expected = ["warning silent-primary server1 standby (b:3306)"]
    assert lines(facts) == (expected if part else [])
    assert part is None or part in text(facts)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sql_mode", ""),
        ("character_set_server", "latin1"),
        ("max_allowed_packet", "1048576"),
        ("auto_increment_offset", "2"),
        ("tx_isolation", "READ-COMMITTED"),
    ],
)
def test_settings_that_a_failover_would_change(name, value):
    facts = fleet(
        primary=server("primary", "a:3306", variables={name: "other"}),
        standby=server("standby", "b:3306", variables={name: value}),
    )
    assert lines(facts) == ["warning settings-of-pair server1 standby (b:3306)"]
    assert f"{name} = {value!r}, and its primary 'other'" in text(facts)


def test_an_offset_of_ids_without_gaps_has_no_effect():
    servers = [
        server(
            role,
            f"{role}:3306",
            variables={"auto_increment_increment": "1", "auto_increment_offset": value},
        )
        for role, value in (("primary", "1"), ("standby", "2"))
    ]
    assert lines(fleet(*servers)) == []


def test_ids_that_are_left_out():
    step = {"auto_increment_increment": "2"}
    facts = fleet(
        server("primary", "a:3306", variables=step),
        server("standby", "b:3306", variables=step),
    )
    assert {one.split()[1] for one in lines(facts)} == {"id-step"}


def test_domains_of_gtids():
    one = fleet()
    (first,) = one.pairs
    other = replace(
        first,
        primary=server("primary", "c:3306", variables={"server_id": "3"}),
        standby=server("standby", "d:3306", variables={"server_id": "4"}),
    )
    found = lines(replace(one, pairs=(first, other)))
    assert "warning gtid-domains server1 primary (c:3306)" in found
    changed = server("standby", "b:3306", variables={"gtid_domain_id": "2"})
    found = lines(fleet(standby=changed))
    assert found == ["warning gtid-domains server1 standby (b:3306)"]


def test_the_lag_by_its_own_account_is_quoted():
    for lag, says in ((None, "unknown"), (7, "7 s")):
        facts = fleet(
            standby=server("standby", "b:3306", status=following(lag=lag)),
            pair={"parts": {"late": 2.0, "errant": {}, "differing": ()}},
        )
        assert lines(facts) == ["warning lag server1 standby (b:3306)"]
        assert f"(lag by its own account: {says})" in text(facts)


@pytest.mark.parametrize("name", ["log_slave_updates", "log_bin"])
def test_settings_that_need_a_restart(name):
    facts = fleet(server("primary", "a:3306", variables={name: "OFF"}))
    (line,) = lines(facts)
    assert line.split()[0] == ("critical" if name == "log_bin" else "warning")


@pytest.mark.parametrize("name", [*MySQLReplication.FIT, "log_bin"])
def test_a_setting_that_forbids_a_failover_is_named(name):
    kind = version(9, 7, 4, is_mariadb=False)
    servers = [
        server(role, f"{role}:3306", version=kind, variables=wrong)
        for role, wrong in (("primary", {name: "OFF_PERMISSIVE"}), ("standby", {}))
    ]
    (line,) = lines(fleet(*servers))
    assert line.endswith(
        (
            "settings server1 primary (primary:3306)",
            "binary-log server1 primary (primary:3306)",
        )
    )
    # Plans ask the same.
    facts = fleet(*servers)
    (problem,) = refusals(facts, binary_log, settings)
    assert f"{name} = OFF_PERMISSIVE" in str(problem) or "no binary log" in str(problem)


def test_an_old_mariadb_is_refused_as_a_former_primary():
    old = version(10, 6, 20)
    facts = fleet(
        server("primary", "a:3306", version=old),
        server("standby", "b:3306", version=old),
    )
    assert {line.split()[1] for line in lines(facts)} == {"settings"}
    assert "which needs MariaDB 10.10" in text(facts)


def test_a_restart_that_starts_replication_is_named():
    on = server("primary", "a:3306", variables={"skip_replica_start": "OFF"})
    assert [line.split()[1] for line in lines(fleet(on))] == ["skip-slave-start"]


def test_a_writable_standby_of_a_lost_primary_is_found():
    lost = ServerFacts(name="server1", role="primary", address="a:3306")
    standby = server("standby", "b:3306", variables={"read_only": "OFF"})
    (problem,) = refusals(fleet(lost, standby), two_writable)
    assert "it is writable, as only its primary may be" in str(problem)


@pytest.mark.parametrize("is_named", [True, False])
def test_a_standby_that_the_topology_does_not_name_is_not_rebuilt(is_named):
    pair = LivePair(
        name="server1",
        primary=server("primary", "a:3306"),
        standby=server("standby", "b:3306", status=None),
        is_named=is_named,
    )
    facts = replace(fleet(), pairs=(pair,))
    (problem,) = refusals(facts, replication_stopped)
    assert problem.message.endswith(
        "replica rebuild server1" if is_named else "fleet replica build"
    )


def version(*number, is_mariadb=True):
    return ServerVersion(is_mariadb=is_mariadb, number=number)


def pair_of(version, **standby):
    """Return the facts of a pair of servers of one version."""
    return fleet(
        server("primary", "a:3306", version=version),
        standby=server("standby", "b:3306", version=version, **standby),
    )


def test_a_restart_of_mysql_must_not_delete_what_was_received():
    on = {"relay_log_recovery": "ON"}
    facts = pair_of(version(9, 7, 4, is_mariadb=False), variables=on)
    assert lines(facts) == ["critical relay-log server1 standby (b:3306)"]
    assert "relay_log_recovery = OFF" in text(facts)
    # MariaDB deletes it with any value, when replication starts.
    assert lines(pair_of(version(10, 11, 19), variables=on)) == []


def test_a_change_of_a_standby_keeps_what_it_has_received():
    """MySQL deletes its relay log if both threads are stopped."""
    late = pair_of(
        version(9, 7, 4, is_mariadb=False),
        status=following(delay=3600),
        variables={"replica_net_timeout": "60"},
    )
    change = "CHANGE REPLICATION SOURCE TO SOURCE"
    for thread, option in (("SQL", "DELAY = 0"), ("IO", "HEARTBEAT_PERIOD = 2")):
        whole = (
            f"STOP REPLICA {thread}_THREAD; {change}_{option}; "
            f"START REPLICA {thread}_THREAD"
        )
        assert whole in text(late)
    late = pair_of(version(10, 11, 19), status=following(delay=3600))
    assert "START SLAVE; while its primary runs: it receives again" in text(late)


@pytest.mark.parametrize("is_mariadb", [True, False])
def test_remedies_are_statements_of_the_server(is_mariadb):
    facts = pair_of(
        version(10, 11, 19, is_mariadb=is_mariadb),
        status=following(applier="No"),
        semi_sync=None,
    )
    replica = "SLAVE" if is_mariadb else "REPLICA"
    assert f"START {replica}; if it stops again" in text(facts)
    assert (
        f"SET GLOBAL rpl_semi_sync_{replica.lower()}_enabled = 1; "
        f"STOP {replica} IO_THREAD; START {replica} IO_THREAD"
    ) in text(facts)


def test_semi_sync_of_mysql_is_a_plugin():
    mysql = version(9, 7, 4, is_mariadb=False)
    facts = fleet(
        server("primary", "a:3306", version=mysql, semi_sync=None),
        standby=server("standby", "b:3306", version=mysql, semi_sync=None),
    )
    assert (
        "INSTALL PLUGIN rpl_semi_sync_source SONAME 'semisync_source.so' and "
        "INSTALL PLUGIN rpl_semi_sync_replica SONAME 'semisync_replica.so'"
    ) in text(facts)


@pytest.mark.parametrize(
    ("other", "severity", "what"),
    [
        (version(10, 11, 18), "critical", "older than its primary"),
        (version(11, 4, 2), "warning", "the new standby is the older one"),
        (version(8, 0, 40, is_mariadb=False), "critical", "cannot replace"),
    ],
)
def test_versions(other, severity, what):
    facts = fleet(standby=server("standby", "b:3306", version=other))
    assert lines(facts) == [f"{severity} versions-of-pair server1 standby (b:3306)"]
    assert what in text(facts)
    assert "has servers of " in text(facts)


def test_definitions_differ_perhaps_with_the_version():
    parts = {"late": 0.0, "errant": {}, "differing": (("db00000", "pins"),)}
    facts = fleet(pair={"parts": parts})
    assert lines(facts)[0].startswith("critical differing-definitions")
    newer = server("standby", "b:3306", version=version(11, 4, 2))
    assert lines(fleet(standby=newer, pair={"parts": parts})) == [
        "warning versions-of-pair server1 standby (b:3306)"
    ]


@pytest.mark.parametrize(
    ("clock", "error", "count"),
    [(2.5, 0.1, 1), (-60.0, 0.1, 1), (2.5, 0.6, 0), (1.0, 0.0, 0)],
)
def test_clocks(clock, error, count):
    facts = fleet(standby=server("standby", "b:3306", clock=clock, clock_error=error))
    assert len(lines(facts)) == count
    if count:
        word = "ahead of" if clock > 0 else "behind"
        assert f"has a clock {abs(clock):.1f} s {word} that of" in text(facts)


@pytest.mark.parametrize(
    ("free", "severities"), [(60, []), (25, ["warning"]), (5, ["critical"])]
)
def test_disks(free, severities):
    volumes = (
        Volume("/", 100 * GIB, 60 * GIB),
        Volume("/var/lib/mysql", 100 * GIB, free * GIB),
        Volume("/var/lib/mysql/archive", 100 * GIB, 0),
    )
    facts = fleet(server("primary", "a:3306", volumes=volumes))
    assert [line.split()[0] for line in lines(facts)] == severities
    if severities:
        assert f"has {free}.0 GiB free of 100.0 GiB" in text(facts)


def test_a_server_that_waits_for_space_on_a_disk():
    facts = fleet(standby=server("standby", "b:3306", waits_for_space=True))
    assert lines(facts) == ["critical full-disk server1 standby (b:3306)"]
    assert "free some space" in text(facts)


def test_servers_of_mysql_have_no_plugin_for_disks():
    version = ServerVersion(False, (9, 7, 4))
    facts = fleet(server("primary", "a:3306", volumes=None, version=version))
    assert "MySQL has no statement for it" in text(facts)
    assert "SONAME" not in text(facts)


@pytest.mark.parametrize("volumes", [None, (Volume("/home", GIB, GIB),)])
def test_servers_that_do_not_show_their_disks(volumes):
    facts = fleet(server("primary", "a:3306", volumes=volumes))
    assert lines(facts) == ["unknown silent-disks fleet"]
    assert "1 servers do not show how full the disks" in text(facts)
    assert "INSTALL SONAME 'disks'" in text(facts)
    assert diagnose(facts, ignored=["silent-disks"]).complete


def test_users_without_a_value_are_unknown():
    facts = fleet(unknown_users=("${MYSQL_USER}",))
    assert lines(facts) == ["unknown application-users fleet"]


def test_binary_logs_that_stay_for_ever_and_not_for_a_day():
    never = {"binlog_expire_logs_seconds": "0", "expire_logs_days": "0"}
    facts = fleet(server("primary", "a:3306", variables=never))
    assert lines(facts) == []
    assert "never deletes its binary logs" in text(facts)
    soon = {"binlog_expire_logs_seconds": "0", "expire_logs_days": "0.5"}
    assert lines(fleet(server("primary", "a:3306", variables=soon))) == [
        "warning binlog-expiry server1 primary (a:3306)"
    ]


def test_events_that_run_on_a_standby():
    facts = fleet(
        standby=server(
            "standby",
            "b:3306",
            events=(
                Event("db00000", "e", "app@%", "ENABLED"),
                Event("db00000", "f", "app@%", "SLAVESIDE_DISABLED"),
            ),
            variables={"event_scheduler": "ON"},
        )
    )
    assert lines(facts) == [
        "critical events server1 standby (b:3306)",
        "warning events server1 standby (b:3306)",
    ]
    assert "runs 1 event (db00000.e)" in text(facts)


def test_operators_may_do_all():
    strong = frozenset(["SUPER", "READ_ONLY ADMIN"])
    logins = tuple(
        Login(user=user, host="%", privileges=strong)
        for user in ("operator", "root", "other")
    )
    facts = fleet(
        server("primary", "a:3306", logins=logins),
        server("standby", "b:3306", logins=logins[:1]),
    )
    assert lines(facts) == ["warning past-read-only server1 primary (a:3306)"]
    assert "'other'@'%'" in text(facts)


@pytest.mark.parametrize(
    ("proofs", "what"),
    [
        ([], "has no user 'operator': a failover is refused"),
        (["native:other"], "has another password of 'operator'"),
        (["native:other", "native:same"], None),
        # The same password may have any digest there.
        (["ed25519:other"], None),
        ([None], None),
    ],
)
def test_accounts_of_the_fleet_are_on_both_servers(proofs, what):
    def logins(*proofs):
        return tuple(
            Login(user="operator", host=f"h{n}", privileges=frozenset(), proof=proof)
            for n, proof in enumerate(proofs)
        )

    facts = fleet(
        server("primary", "a:3306", logins=logins("native:same")),
        server("standby", "b:3306", logins=logins(*proofs)),
    )
    expected = ["warning fleet-accounts server1 standby (b:3306)"] if what else []
    assert lines(facts) == expected
    assert what is None or what in text(facts)


def test_sessions_of_others_on_a_standby_are_fine():
    facts = fleet(
        standby=server(
            "standby",
            "b:3306",
            sessions=(
                Session(1, "system user", "", "Slave_SQL", 9),
                Session(2, "monitor", "c:1", "Sleep", 9),
            ),
        )
    )
    assert lines(facts) == []


def test_a_shard_that_another_server_has():
    databases = server("primary", "a:3306").databases
    other = server("other", "c:3306", databases=databases, variables={"server_id": "3"})
    other = replace(
        other,
        parts={**other.parts, "variables": {**other.variables, "read_only": "ON"}},
    )
    lacking = server("primary", "a:3306", databases=databases - {"db00001"})
    facts = fleet(lacking, others=(other,))
    found = text(facts)
    assert "lacks 1 databases of the topology (db00001); db00001 is on" in found
    assert "server c:3306" in found


@pytest.mark.parametrize(
    ("next_id", "id_type", "severity"),
    [
        (2**31 * 8 // 10, "int(11)", "warning"),
        (2**31 * 8 // 10, "int(10) unsigned", None),
        (2**36 - 1, "bigint(20) unsigned", "critical"),
        (2**35, "bigint(20)", None),
        (128, "tinyint(4)", "critical"),
    ],
)
def test_ids_are_limited_by_the_type_and_by_36_bits(next_id, id_type, severity):
    table = TableCounter(
        database="db00000", table="pins", next_id=next_id, id_type=id_type
    )
    facts = fleet(server("primary", "a:3306", counters=(table,)))
    assert [line.split()[0] for line in lines(facts)] == (
        [severity] if severity else []
    )


@pytest.mark.parametrize("name", ["table_definition_cache", "table_open_cache"])
@pytest.mark.parametrize(("kept", "is_enough"), [("2", True), ("1", False)])
def test_tables_that_a_cache_does_not_hold(name, kept, is_enough):
    primary = server("primary", "a:3306", table_count=2)
    variables = {**primary.variables, name: kept}
    primary = replace(primary, parts={**primary.parts, "variables": variables})
    found = text(fleet(primary))
    assert (f"has 2 tables and {name} = 1" in found) is not is_enough
    assert (f"SET GLOBAL {name} = 4" in found) is not is_enough


@pytest.mark.parametrize("is_interrupted", [True, False])
def test_an_operation(is_interrupted):
    operation = SimpleNamespace(
        pending=SimpleNamespace(record=SimpleNamespace(title="failover of server1")),
        is_interrupted=is_interrupted,
        clients=None,
        commands=("sqla-shard fleet resume", "sqla-shard fleet undo"),
    )
    facts = fleet(operation=operation)
    assert ("failover of server1 was interrupted" in text(facts)) == (is_interrupted)
    assert diagnose(facts).ok != is_interrupted


# -- adding a check -----------------------------------------------------------


@server_check
def small_pool(server, fleet):
    """Ask for a buffer pool of 1 GiB; an example of a check."""
    if server.number("innodb_buffer_pool_size") < GIB:
        yield warning(server, "has a small buffer pool", "make it larger")


def test_a_check_is_one_function():
    found = findings_of(fleet(), [__name__])
    assert [(one.check, one.severity) for one in found] == [
        ("small-pool", "warning"),
        ("small-pool", "warning"),
    ]
    assert str(found[0]) == (
        "warning: server1 primary (a:3306): has a small buffer pool\n    make it larger"
    )


def test_every_check_says_what_it_looks_for():
    for module in CHECKS:
        assert module.__doc__.startswith("Checks of the doctor: ")


def test_a_report_counts():
    finding = FleetFinding(severity="warning", server="s", what="is slow")
    report = DoctorReport(epoch=3, servers=1, findings=(finding,) * 2)
    assert str(report).splitlines()[-1] == "1 servers, epoch 3: 2 warning"
    assert report.at_least("critical") == []
    assert str(DoctorReport(epoch=3, servers=1, findings=())) == (
        "1 servers, epoch 3: nothing found"
    )


# -- MySQL 8, by its documentation --------------------------------------------


def test_logins_of_mysql():
    admin = ScriptedAdmin(
        {
            "mysql.user": [
                ("app", "%", 0, 0, None),
                ("old", "%", 1, 0, "mysql_native_password:e3b0"),
                ("r", "%", 0, 1, None),
            ],
            "role_edges": [("app", "%", "r")],
            "user_privileges": [
                ("'app'@'%'", "USAGE"),
                ("'old'@'%'", "USAGE"),
                ("'r'@'%'", "INSERT"),
            ],
        }
    )
    app, old, role = MySQLReplication(admin).logins()
    assert app == Login(
        user="app", host="%", privileges=frozenset(["INSERT"]), roles=frozenset(["r"])
    )
    assert old.needs_no_password
    assert role.is_locked


def test_hidden_privileges_are_not_taken_for_none():
    admin = ScriptedAdmin(
        {
            "role_edges": [],
            "mysql.user": [("app", "%", 0, 0, None), ("operator", "%", 0, 0, None)],
            "user_privileges": [("'operator'@'%'", "USAGE")],
        }
    )
    with pytest.raises(FleetServerError, match="are hidden"):
        MySQLReplication(admin).logins()


@pytest.mark.parametrize("resolves", ["OFF", "ON"])
def test_an_account_that_the_server_ignores(resolves):
    admin = ScriptedAdmin(
        {
            "role_edges": [],
            "mysql.user": [
                ("backup", "backuphost", 0, 0, None),
                ("operator", "%", 0, 0, None),
            ],
            "user_privileges": [("'operator'@'%'", "USAGE")],
        },
        variables={"skip_name_resolve": resolves},
    )
    if resolves == "OFF":
        with pytest.raises(FleetServerError, match="are hidden"):
            MySQLReplication(admin).logins()
    else:
        (login,) = MySQLReplication(admin).logins()
        assert login.user == "operator"


def test_the_configuration_of_mysql():
    admin = ScriptedAdmin(
        {
            "variables_info": [
                ("read_only", "GLOBAL"),
                ("event_scheduler", "COMPILED"),
                ("sync_binlog", "DYNAMIC"),
            ]
        }
    )
    assert MySQLReplication(admin).configured(
        "read_only", "event_scheduler", "sync_binlog", "other"
    ) == {"read_only": True, "event_scheduler": False}
