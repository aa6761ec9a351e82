"""Statements for MySQL 8, and how its answers are read.

MySQL does not run in these tests: the statements and the columns are those of
the MySQL Reference Manual, 8.0.26 to 8.4.
"""

from __future__ import annotations

import pytest

from sqla_shard.exc import FleetServerError
from sqla_shard.fleet import Account
from sqla_shard.fleet.facts import FleetFacts, LivePair, LiveServer
from sqla_shard.fleet.findings import refusals
from sqla_shard.fleet.replication import MySQLReplication, replication_of
from sqla_shard.fleet.replication_checks import errant
from sqla_shard.fleet.role_change import (
    disable_events,
    enable_events,
    replicated_events_of,
)
from sqla_shard.testing.topology_documents import topology_document
from sqla_shard.topology import Topology
from tests.models.scripted_admin import ScriptedAdmin

ACCOUNT = Account(user="replication", password="se'cret")
UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
OTHER = "5b8f9d2e-0c1a-11ee-be56-0242ac120002"
#: SHOW REPLICA STATUS, section 15.7.7.36; columns that are not read are left
#: out.
STATUS = {
    "Source_Host": "a",
    "Source_Port": 3307,
    "Source_Server_Id": 11,
    "Replica_IO_Running": "Yes",
    "Replica_SQL_Running": "Yes",
    "Replicate_Do_DB": "",
    "Replicate_Ignore_Table": "db.t",
    "Retrieved_Gtid_Set": f"{UUID}:1-9",
    "Seconds_Behind_Source": 0,
    "Last_IO_Error": "",
    "Last_SQL_Error": "",
    "Auto_Position": 1,
    "SQL_Delay": 0,
}


def test_a_server_that_is_not_mariadb_gets_these():
    assert isinstance(replication_of(ScriptedAdmin()), MySQLReplication)


# -- write access -------------------------------------------------------------


def test_writes_are_closed_to_accounts_with_super_too():
    admin = ScriptedAdmin()
    MySQLReplication(admin).close_writes()
    assert admin.sent == [
        ("SET SESSION lock_wait_timeout = 1",),
        ("SET GLOBAL super_read_only = 1",),
    ]


def test_opening_writes_unsets_both():
    admin = ScriptedAdmin()
    MySQLReplication(admin).open_writes()
    assert admin.sent == [("SET GLOBAL read_only = 0",)]


# -- positions ----------------------------------------------------------------


def test_a_position_is_awaited():
    admin = ScriptedAdmin({"SELECT WAIT_FOR_EXECUTED_GTID_SET": [(1,)]})
    assert not MySQLReplication(admin).reaches(f"{UUID}:1-9", 2.5)
    assert admin.asked == [
        ("SELECT WAIT_FOR_EXECUTED_GTID_SET(%s, %s)", f"{UUID}:1-9", 2.5)
    ]


def test_no_time_at_all_is_a_short_one():
    # WAIT_FOR_EXECUTED_GTID_SET(.., 0) never returns.
    admin = ScriptedAdmin({"SELECT WAIT_FOR_EXECUTED_GTID_SET": [(1,)]})
    assert not MySQLReplication(admin).reaches(f"{UUID}:1-9", 0)
    assert admin.asked[0][-1] > 0


def test_an_applied_set_covers_its_subsets():
    admin = ScriptedAdmin({"SELECT GTID_SUBSET": [(1,)]})
    assert MySQLReplication(admin).covers("applied", "position")
    assert admin.asked == [("SELECT GTID_SUBSET(%s, %s)", "position", "applied")]


@pytest.mark.parametrize(
    ("left", "expected"),
    [
        ("", {}),
        (f"{UUID}:7", {UUID: 1}),
        (f"{UUID}:1-5:9,\n{OTHER}:3-4", {UUID: 6, OTHER: 2}),
        # From 8.3, with tags.
        (f"{UUID}:1-3:app:1-5:other:7", {UUID: 9}),
    ],
)
def test_errant_transactions_are_counted_by_origin(left, expected):
    admin = ScriptedAdmin(
        {"SELECT GTID_SUBTRACT": [(left,)], "SELECT WAIT_FOR_EXECUTED_GTID_SET": [(1,)]}
    )
    assert MySQLReplication(admin).errant("history") == expected


def test_a_position_is_adopted():
    admin = ScriptedAdmin()
    MySQLReplication(admin).adopt(f"{UUID}:1-5")
    assert admin.sent == [
        ("STOP REPLICA",),
        ("RESET REPLICA ALL",),
        ("RESET BINARY LOGS AND GTIDS",),
        ("SET GLOBAL gtid_purged = %s", f"{UUID}:1-5"),
    ]


def test_the_binary_log_begins_with_the_first_write_if_nothing_is_purged():
    for purged, expected in (("", True), (f"{UUID}:1-3", False)):
        admin = ScriptedAdmin({"SELECT @@GLOBAL.gtid_purged": [(purged,)]})
        assert MySQLReplication(admin).has_first_write() is expected


def test_there_are_no_domains():
    admin = ScriptedAdmin()
    replication = MySQLReplication(admin)
    replication.set_domain(7)
    assert (replication.domain(), admin.sent) == (0, [])


# -- replicating --------------------------------------------------------------


def test_a_standby_is_attached_by_gtid_and_without_the_password_in_the_text():
    admin = ScriptedAdmin({"SHOW REPLICA STATUS": []})
    MySQLReplication(admin).attach("a", 3307, ACCOUNT, demoted=True)
    stop, change, start = admin.sent
    assert (stop, start) == (("STOP REPLICA",), ("START REPLICA",))
    text, *parameters = change
    assert text == (
        "CHANGE REPLICATION SOURCE TO SOURCE_HOST = %s, SOURCE_PORT = %s,"
        " SOURCE_USER = %s, SOURCE_PASSWORD = %s,"
        " SOURCE_CONNECT_RETRY = 1, SOURCE_RETRY_COUNT = 86400,"
        " SOURCE_AUTO_POSITION = 1, GET_SOURCE_PUBLIC_KEY = 1"
    )
    assert parameters == ["a", 3307, "replication", "se'cret"]


def test_what_was_received_is_applied_before_another_attachment():
    """CHANGE REPLICATION SOURCE deletes it."""
    stopped = {**STATUS, "Replica_SQL_Running": "No"}
    admin = ScriptedAdmin(
        {
            "SHOW REPLICA STATUS": [stopped],
            "SELECT WAIT_FOR_EXECUTED_GTID_SET": [(1,)],
            "SELECT @@GLOBAL.gtid_executed": [(f"{UUID}:1-8",)],
        }
    )
    with pytest.raises(FleetServerError, match=f"received {UUID}:1-9"):
        MySQLReplication(admin).attach("a", 3307, ACCOUNT)
    assert admin.texts == ["STOP REPLICA IO_THREAD", "START REPLICA SQL_THREAD"]


def test_it_is_stopped_and_detached():
    admin = ScriptedAdmin()
    replication = MySQLReplication(admin)
    replication.stop_receiver()
    replication.stop_applier()
    replication.start_applier()
    replication.detach()
    assert admin.texts == [
        "STOP REPLICA IO_THREAD",
        "STOP REPLICA SQL_THREAD",
        "START REPLICA SQL_THREAD",
        "STOP REPLICA",
        "RESET REPLICA ALL",
    ]


def test_the_state_of_a_standby_is_read():
    admin = ScriptedAdmin({"SHOW REPLICA STATUS": [STATUS]})
    status = MySQLReplication(admin).status()
    assert status is not None
    assert status.runs
    assert (status.source, status.source_id) == ("a:3307", 11)
    assert status.received == f"{UUID}:1-9"
    assert status.filters == ("Replicate_Ignore_Table=db.t",)
    assert status.uses_gtid


def test_a_receiver_that_does_not_know_its_primary_yet_connects():
    """The server says "Yes" before it has asked for the server_id."""
    unknown = {**STATUS, "Source_Server_Id": 0}
    for says, receiver in (("Yes", "Connecting"), ("No", "No")):
        row = {**unknown, "Replica_IO_Running": says}
        status = MySQLReplication(ScriptedAdmin({"SHOW": [row]})).status()
        assert status is not None
        assert status.receiver == receiver
        assert not status.runs


def test_transactions_of_a_standby_are_asked_for_once():
    admin = ScriptedAdmin(
        {"GTID_SUBTRACT": [(f"{OTHER}:7-9",)], "WAIT_FOR_EXECUTED_GTID_SET": [(1,)]}
    )
    primary, standby = (
        LiveServer(
            server=MySQLReplication(admin), name="server1", role=role, address="a:3306"
        )
        for role in ("primary", "standby")
    )
    standby.parts["history"] = f"{OTHER}:1-9"
    pair = LivePair(name="server1", primary=primary, standby=standby)
    topology = Topology.from_mapping(topology_document({"server1": "mysql://a"}, 1))
    (found,) = refusals(FleetFacts(topology=topology, pairs=(pair,)), errant)
    assert "has 3 transactions that its primary does not have" in str(found)
    waits = [sql for sql, *_ in admin.asked if "WAIT_FOR" in sql]
    assert len(waits) == 1


def test_next_ids_are_read_without_a_join():
    """With 30,000 tables a server would compare a billion pairs."""
    admin = ScriptedAdmin(
        {
            "SELECT table_schema, table_name, column_type": [
                ("db", "t", "int(10) unsigned"),
                ("db", "u", "bigint"),
            ],
            "SELECT table_schema, table_name, auto_increment": [
                ("db", "t", 7),
                ("db", "u", None),
                # Without a counter, in another database.
                ("other", "t", None),
            ],
        }
    )
    assert MySQLReplication(admin).next_ids() == [
        ("db", "t", 7, 2**32 - 1),
        ("db", "u", 1, 2**63 - 1),
    ]
    # Nor are the sizes of all tables, which take longer.
    assert len(admin.asked) == 2


def test_a_server_without_counters_is_asked_for_none():
    admin = ScriptedAdmin({"information_schema.columns": []})
    assert MySQLReplication(admin).next_ids() == []


def test_a_primary_has_no_state_of_a_standby():
    admin = ScriptedAdmin({"SHOW REPLICA STATUS": []})
    assert MySQLReplication(admin).status() is None


def test_errors_of_applier_and_receiver_are_separate():
    row = {
        **STATUS,
        "Replica_IO_Running": "Connecting",
        "Last_IO_Error": "error connecting to source",
    }
    admin = ScriptedAdmin({"SHOW REPLICA STATUS": [row]})
    status = MySQLReplication(admin).status()
    assert status is not None
    assert not status.runs
    assert (status.error, status.applier_error) == ("error connecting to source", "")


def test_the_thread_that_receives_is_identified():
    admin = ScriptedAdmin(
        {
            "SELECT id FROM information_schema.processlist": [(42,)],
            "SELECT UNIX_TIMESTAMP()": [(1_700_000_100,)],
        },
        counters={"uptime": "100"},
    )
    assert MySQLReplication(admin).receiver() == (42, 1_700_000_000)


# -- semi-synchronous replication ---------------------------------------------


def test_the_state_of_semi_sync_is_read():
    admin = ScriptedAdmin(
        variables={
            "rpl_semi_sync_source_enabled": "ON",
            "rpl_semi_sync_source_timeout": "10000",
            "rpl_semi_sync_source_wait_point": "AFTER_SYNC",
            "rpl_semi_sync_source_wait_no_replica": "ON",
            "rpl_semi_sync_replica_enabled": "OFF",
        },
        counters={
            "rpl_semi_sync_source_status": "ON",
            "rpl_semi_sync_source_clients": "1",
            "rpl_semi_sync_replica_status": "OFF",
        },
    )
    found = MySQLReplication(admin).semi_sync()
    assert found is not None
    assert found.source_on
    assert found.after_sync
    assert found.waits_alone
    assert (found.timeout, found.standbys) == (10, 1)
    assert not found.replica_on


def test_the_old_plugins_have_other_names():
    # Of 8.0 and 8.4, and gone from 9.5; both kinds cannot be installed.
    admin = ScriptedAdmin(
        variables={
            "rpl_semi_sync_master_enabled": "ON",
            "rpl_semi_sync_master_timeout": "10000",
            "rpl_semi_sync_master_wait_point": "AFTER_SYNC",
            "rpl_semi_sync_master_wait_no_slave": "ON",
            "rpl_semi_sync_slave_enabled": "OFF",
        },
        counters={
            "rpl_semi_sync_master_status": "ON",
            "rpl_semi_sync_master_clients": "1",
            "rpl_semi_sync_slave_status": "OFF",
        },
    )
    replication = MySQLReplication(admin)
    found = replication.semi_sync()
    assert found is not None
    assert found.source_on
    assert found.waits_alone
    assert (found.timeout, found.standbys) == (10, 1)
    replication.set_semi_sync(source=False, replica=True)
    assert admin.texts == [
        "SET GLOBAL rpl_semi_sync_master_enabled = 0",
        "SET GLOBAL rpl_semi_sync_slave_enabled = 1",
    ]


def test_without_the_plugins_there_is_no_semi_sync():
    assert MySQLReplication(ScriptedAdmin()).semi_sync() is None


def test_semi_sync_is_set():
    admin = ScriptedAdmin()
    MySQLReplication(admin).set_semi_sync(source=True, replica=False)
    assert admin.texts == [
        "SET GLOBAL rpl_semi_sync_source_enabled = 1",
        "SET GLOBAL rpl_semi_sync_replica_enabled = 0",
    ]


# -- events -------------------------------------------------------------------


@pytest.mark.parametrize(
    "status",
    [
        pytest.param("SLAVESIDE_DISABLED", id="before 8.2, and MariaDB"),
        pytest.param("REPLICA_SIDE_DISABLED", id="from 8.2"),
    ],
)
def test_replicated_events_are_found_by_either_name(status):
    events = [(status, "db", "e", "o@%"), ("DISABLED", "db", "f", "o@%")]
    admin = ScriptedAdmin({"SELECT status": events})
    assert replicated_events_of(admin) == [["db", "e", "o@%"]]


def test_events_change_their_state_on_one_server_only():
    admin = ScriptedAdmin({"SELECT event_schema, event_name": [("d`b", "e%")]})
    events = [["d`b", "e%", "o@%"], ["gone", "e", "o@%"]]
    disable_events(admin, events)
    enable_events(admin, events)
    name = "DEFINER = `o`@`%%` EVENT `d``b`.`e%%`"
    assert admin.texts == [
        "SET SESSION sql_log_bin = 0",
        f"ALTER {name} DISABLE ON REPLICA",
        "SET SESSION sql_log_bin = 1",
        "SET SESSION sql_log_bin = 0",
        f"ALTER {name} ENABLE",
        "SET SESSION sql_log_bin = 1",
    ]
