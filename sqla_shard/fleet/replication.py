"""Replication of one server: the only place where MariaDB and MySQL differ.

:func:`replication_of` returns the statements of a server.  Positions are
strings of the server, opaque to callers: GTID positions such as ``0-1-42`` on
MariaDB, sets of GTIDs on MySQL.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from sqla_shard.exc import FleetSetupError
from sqla_shard.fleet.accounts import Account, Login, PUBLIC
from sqla_shard.fleet.admin import Admin
from sqla_shard.fleet.replication_base import (
    gtids,
    Replication,
    ReplicationStatus,
    SemiSync,
    TableCounter,
    TableSize,
)

__all__ = [
    "PUBLIC",
    "Login",
    "MariaDBReplication",
    "MySQLReplication",
    "Replication",
    "ReplicationStatus",
    "SemiSync",
    "TableCounter",
    "TableSize",
    "gtids",
    "replication_kind",
    "replication_of",
]


#: Seconds in which a transaction that a standby has is committed on MySQL.
_COMMIT_SECONDS = 1.0
#: The thread of MySQL that hands transactions to those that apply them, which it
#: has started.
_APPLIER = (
    "SELECT MIN(id) FROM information_schema.processlist"
    " WHERE user = 'system user' AND host = ''"
)
#: Seconds until it has ended; what is left is that of STOP REPLICA.
_KILL_SECONDS = 10.0


def replication_of(admin: Admin) -> Replication:
    """Return the statements of a server."""
    return replication_kind(is_mariadb=admin.is_mariadb)(admin)


def replication_kind(*, is_mariadb: bool) -> type[Replication]:
    """Return the words and statements of a kind of server."""
    return MariaDBReplication if is_mariadb else MySQLReplication


class MariaDBReplication(Replication):
    """MariaDB 10.6 and later."""

    REPLICA: ClassVar[str] = "SLAVE"
    SOURCE: ClassVar[str] = "MASTER"
    START_APPLIER: ClassVar[str] = "START SLAVE SQL_THREAD"
    # With MASTER_USE_GTID the first START deletes the relay log.
    RECEIVED_SURVIVES: ClassVar[bool] = False
    RESCUE: ClassVar[str] = (
        "Do not start its replication: that would delete its relay log"
    )
    SEMI_SYNC: ClassVar[tuple[str, str]] = (
        "rpl_semi_sync_master",
        "rpl_semi_sync_slave",
    )
    APPLIERS: ClassVar[str] = "slave_parallel_threads"
    POSITION: ClassVar[str] = "gtid_binlog_pos"
    APPLIED: ClassVar[str] = "gtid_slave_pos"
    #: The last GTID of each server.
    HISTORY: ClassVar[str] = "gtid_binlog_state"
    WAIT: ClassVar[str] = "MASTER_GTID_WAIT"
    #: Accounts with READ_ONLY ADMIN bypass it.
    READ_ONLY: ClassVar[str] = "read_only"
    FIT: ClassVar[Mapping[str, str]] = {
        "log_slave_updates": "ON",
        "binlog_format": "ROW",
        "gtid_strict_mode": "ON",
    }
    RECEIVED: ClassVar[str] = "Gtid_IO_Pos"
    USES_GTID: ClassVar[str] = "Using_Gtid"
    CHANGE: ClassVar[str] = (
        "CHANGE MASTER TO MASTER_HOST = %s, MASTER_PORT = %s, MASTER_USER = %s, "
        "MASTER_PASSWORD = %s, MASTER_CONNECT_RETRY = 1, MASTER_USE_GTID = slave_pos"
    )
    # A former primary has no gtid_slave_pos of its own writes, or one of an
    # earlier role; with the option the server sets it (10.10).
    DEMOTED: ClassVar[str] = ", MASTER_DEMOTE_TO_SLAVE = 1"
    RECEIVER: ClassVar[str] = (
        "SELECT id FROM information_schema.processlist WHERE command = 'Slave_IO'"
    )
    LONGEST_WAIT: ClassVar[str] = (
        "SELECT MAX(time_ms) / 1000 FROM information_schema.processlist"
        " WHERE state LIKE 'Waiting for semi-sync ACK%%'"
    )
    HEARTBEAT: ClassVar[str] = (
        "SELECT variable_value FROM information_schema.global_status"
        " WHERE variable_name = 'slave_heartbeat_period'"
    )
    NET_TIMEOUT: ClassVar[str] = "slave_net_timeout"
    ROLE_MEMBERS: ClassVar[str] = "SELECT User, Host, Role FROM mysql.roles_mapping"
    ACCOUNTS: ClassVar[str] = (
        "SELECT u.user, u.host, u.is_role = 'N' AND u.authentication_string = '' AND "
        "u.plugin IN ('', 'mysql_native_password', 'ed25519') AND "
        "COALESCE(JSON_VALUE(g.priv, '$.account_locked'), 0) = 0, "
        "COALESCE(JSON_VALUE(g.priv, '$.account_locked'), 0) <> 0, IF(u.plugin IN ('', "
        "'mysql_native_password', 'ed25519') AND JSON_EXTRACT(g.priv, '$.auth_or') IS "
        "NULL, CONCAT(u.plugin, ':', SHA2(u.authentication_string, 256)), NULL) FROM "
        "mysql.user AS u JOIN mysql.global_priv AS g ON g.user = u.user AND g.host = "
        "u.host"
    )
    ORIGINS: ClassVar[tuple[str, str, str]] = (
        (
            "SELECT LOWER(variable_name), global_value_origin"
            " FROM information_schema.system_variables"
        ),
        "COMPILE-TIME",
        "SQL",
    )
    operator_privileges: ClassVar[tuple[str, ...]] = (
        # Rows and tables of the application: copies, comparisons, restores.
        *("SELECT", "INSERT", "UPDATE", "DELETE", "CREATE", "ALTER", "DROP"),
        *("INDEX", "LOCK TABLES"),
        # Views, triggers, procedures and events, also of other users.
        *("CREATE VIEW", "SHOW VIEW", "TRIGGER", "CREATE ROUTINE"),
        *("ALTER ROUTINE", "EXECUTE", "EVENT", "SET USER"),
        # Fences: read_only, the global read lock, KILL, event_scheduler.
        *("RELOAD", "READ_ONLY ADMIN", "CONNECTION ADMIN", "PROCESS", "SUPER"),
        *("REPLICATION SLAVE ADMIN", "REPLICATION MASTER ADMIN"),
        *("SLAVE MONITOR", "BINLOG ADMIN", "BINLOG MONITOR", "BINLOG REPLAY"),
    )

    def past_read_only(self) -> set[str]:
        """READ_ONLY ADMIN, which SUPER includes before MariaDB 10.11."""
        is_old = self.admin.version < (10, 11)
        return {"READ_ONLY ADMIN", *(["SUPER"] if is_old else [])}

    def covers(self, applied: str, position: str) -> bool:
        """Compare the sequence numbers of each domain."""
        has = {domain: number for domain, _, number in gtids(applied)}
        return all(
            has.get(domain, -1) >= number for domain, _, number in gtids(position)
        )

    def is_at(self, applied: str, position: str) -> bool:
        """Compare the sequence numbers of the domains of the primary."""
        has = {domain: number for domain, _, number in gtids(applied)}
        return all(has.get(domain) == number for domain, _, number in gtids(position))

    def errant(self, history: str) -> dict[str, int]:
        """Compare the last number of each domain and server."""
        mine = {
            (domain, server): number for domain, server, number in gtids(self.history())
        }
        return {
            f"{domain}-{server}": number - mine.get((domain, server), 0)
            for domain, server, number in gtids(history)
            if number > mine.get((domain, server), 0)
        }

    def committed(self) -> str:
        """Return the later of ``gtid_binlog_pos`` and ``gtid_slave_pos``."""
        # gtid_slave_pos alone is too low for a moment after a commit of the
        # applier; gtid_binlog_pos alone lacks what was copied.
        last: dict[int, tuple[int, int]] = {}
        for text in (self.applied(), self.position()):
            for domain, server, number in gtids(text):
                if number >= last.get(domain, (0, -1))[1]:
                    last[domain] = (server, number)
        return ",".join(
            f"{domain}-{server}-{number}"
            for domain, (server, number) in sorted(last.items())
        )

    def adopt(self, position: str, history: str = "") -> None:
        """``RESET MASTER``, and set ``gtid_slave_pos``."""
        self.detach()
        self.admin.run("RESET MASTER")
        self.admin.run("SET GLOBAL gtid_slave_pos = %s", position)
        if history:
            # Without it a former primary would seem to have writes of its
            # own after a failover to this server.
            self.admin.run("SET GLOBAL gtid_binlog_state = %s", history)

    def clone_from(self, host: str, port: int, account: Account) -> None:
        """Refuse it."""
        raise FleetSetupError(
            f"{self.admin} is MariaDB, which has no CLONE; copy it as rows, "
            "or with a command"
        )

    def filters(self) -> tuple[str, ...]:
        """Read the variables ``replicate_do_db`` and so on."""
        found = self.admin.variables(
            "replicate_do_%", "replicate_ignore_%", "replicate_wild_%"
        )
        return tuple(f"{name}={value}" for name, value in found.items() if value)

    def has_first_write(self) -> bool:
        """Read the list of GTIDs at the beginning of the oldest log."""
        if self.applied():
            # What was copied or replicated before may not be in its log,
            # which begins with an empty list after RESET MASTER.
            return False
        logs = self.admin.rows("SHOW BINARY LOGS")
        if not logs:
            return False
        # The events 'Format_desc', 'Gtid_list' and others.
        events = self.admin.rows(f"SHOW BINLOG EVENTS IN '{logs[0][0]}' LIMIT 3")
        return any(row[2] == "Gtid_list" and row[5] == "[]" for row in events)

    def domain(self) -> int:
        """Return ``gtid_domain_id``."""
        return int(self.admin.value("SELECT @@GLOBAL.gtid_domain_id"))

    def set_domain(self, domain: int) -> None:
        """Set ``gtid_domain_id``."""
        self.admin.run(f"SET GLOBAL gtid_domain_id = {int(domain)}")

    def start_applier(self) -> None:
        """``START SLAVE SQL_THREAD``."""
        # Refuse it while the receiver is stopped: the server would delete the
        # relay log, which semi-sync has acknowledged, and report the applied
        # position as the received one.
        status = self.status()
        if status is None or status.receiver == "No":
            raise self.admin.error(
                "its receiver is stopped, so starting the applier "
                "would delete what it has received and not applied"
            )
        super().start_applier()

    def snapshot_end(self, position: str) -> str:
        """Return the end of the binary log at the time of the snapshot."""
        # UNTIL master_gtid_pos is refused while the receiver runs (error
        # 1254); if it were stopped, the relay log would be deleted, and
        # semi-synchronous COMMITs of the primary would wait.
        found = dict(self.admin.rows("SHOW SESSION STATUS LIKE 'binlog_snapshot_%%'"))
        return (
            f"MASTER_LOG_FILE = '{found['Binlog_snapshot_file']}',"
            f" MASTER_LOG_POS = {found['Binlog_snapshot_position']}"
        )

    def _of_roles(self) -> dict[str, set[str]]:
        """Return the global privileges of each role, and of PUBLIC.

        ``information_schema.user_privileges`` has accounts only.
        """
        found = {}
        for (role,) in self.admin.rows(
            "SELECT user FROM mysql.user WHERE is_role = 'Y'"
        ):
            # With quotes PUBLIC would be another role.
            grants = (
                self.admin.rows("SHOW GRANTS FOR PUBLIC")
                if role == PUBLIC
                else self.admin.rows("SHOW GRANTS FOR %s", role)
            )
            found[role] = {
                privilege for (grant,) in grants for privilege in self._global(grant)
            }
        return found

    def _global(self, grant: str) -> list[str]:
        """Return the global privileges in a row of SHOW GRANTS."""
        parts = re.match(r"GRANT (.*) ON \*\.\* TO ", grant)
        if parts is None:
            return []
        if parts[1] != "ALL PRIVILEGES":
            return parts[1].split(", ")
        return [str(row[0]).upper() for row in self.admin.rows("SHOW PRIVILEGES")]


class MySQLReplication(Replication):
    """MySQL 8.4 and later, with GTIDs."""

    REPLICA: ClassVar[str] = "REPLICA"
    SOURCE: ClassVar[str] = "SOURCE"
    START_APPLIER: ClassVar[str] = "START REPLICA SQL_THREAD"
    # But for relay_log_recovery, which the doctor finds.
    RECEIVED_SURVIVES: ClassVar[bool] = True
    RESCUE: ClassVar[str] = (
        "START REPLICA fails if its relay log cannot be read; with "
        "relay_log_recovery it was deleted"
    )
    SEMI_SYNC: ClassVar[tuple[str, str]] = (
        "rpl_semi_sync_source",
        "rpl_semi_sync_replica",
    )
    APPLIERS: ClassVar[str] = "replica_parallel_workers"
    #: It includes replicated transactions.
    POSITION: ClassVar[str] = "gtid_executed"
    APPLIED: ClassVar[str] = "gtid_executed"
    HISTORY: ClassVar[str] = "gtid_executed"
    WAIT: ClassVar[str] = "WAIT_FOR_EXECUTED_GTID_SET"
    #: It sets ``read_only`` too.
    READ_ONLY: ClassVar[str] = "super_read_only"
    FIT: ClassVar[Mapping[str, str]] = {
        "log_replica_updates": "ON",
        "binlog_format": "ROW",
        "gtid_mode": "ON",
        "enforce_gtid_consistency": "ON",
    }
    RECEIVED: ClassVar[str] = "Retrieved_Gtid_Set"
    USES_GTID: ClassVar[str] = "Auto_Position"
    CHANGE: ClassVar[str] = (
        "CHANGE REPLICATION SOURCE TO SOURCE_HOST = %s, SOURCE_PORT = %s,"
        " SOURCE_USER = %s, SOURCE_PASSWORD = %s,"
        # The default of 10 lets it give up while the primary restarts.
        " SOURCE_CONNECT_RETRY = 1, SOURCE_RETRY_COUNT = 86400,"
        " SOURCE_AUTO_POSITION = 1, GET_SOURCE_PUBLIC_KEY = 1"
    )
    # The tables of performance_schema may be switched off.  Only the receiver
    # has this host.
    RECEIVER: ClassVar[str] = (
        "SELECT id FROM information_schema.processlist"
        " WHERE user = 'system user' AND host = 'connecting host'"
    )
    # The list of processes has whole seconds.
    LONGEST_WAIT: ClassVar[str] = (
        "SELECT MAX(time) + 1 FROM information_schema.processlist"
        " WHERE state LIKE 'Waiting for semi-sync ACK%%'"
    )
    HEARTBEAT: ClassVar[str] = (
        "SELECT heartbeat_interval"
        " FROM performance_schema.replication_connection_configuration"
    )
    NET_TIMEOUT: ClassVar[str] = "replica_net_timeout"
    ROLE_MEMBERS: ClassVar[str] = (
        "SELECT TO_USER, TO_HOST, FROM_USER FROM mysql.role_edges"
    )
    ACCOUNTS: ClassVar[str] = (
        "SELECT user, host, authentication_string = '' AND account_locked = 'N' AND "
        "plugin IN ('mysql_native_password', 'caching_sha2_password', "
        "'sha256_password'), account_locked = 'Y', IF(plugin = "
        "'mysql_native_password', CONCAT(plugin, ':', SHA2(authentication_string, "
        "256)), NULL) FROM mysql.user"
    )
    ORIGINS: ClassVar[tuple[str, str, str]] = (
        (
            "SELECT LOWER(variable_name), variable_source"
            " FROM performance_schema.variables_info"
        ),
        "COMPILED",
        "DYNAMIC",
    )
    operator_privileges: ClassVar[tuple[str, ...]] = (
        # Rows and tables of the application: copies, comparisons, restores.
        *("SELECT", "INSERT", "UPDATE", "DELETE", "CREATE", "ALTER", "DROP"),
        *("INDEX", "REFERENCES", "LOCK TABLES"),
        # Views, triggers, procedures and events, also those of other users,
        # of root, and of users that are gone.  SUPER is for triggers and
        # functions, which are refused (1419) while there is a binary log.
        *("CREATE VIEW", "SHOW VIEW", "TRIGGER", "CREATE ROUTINE"),
        *("ALTER ROUTINE", "EXECUTE", "EVENT", "SET_ANY_DEFINER"),
        *("ALLOW_NONEXISTENT_DEFINER", "SYSTEM_USER", "SUPER"),
        # Fences: read_only, the global read lock, KILL, event_scheduler.
        *("RELOAD", "PROCESS", "CONNECTION_ADMIN", "SYSTEM_VARIABLES_ADMIN"),
        "XA_RECOVER_ADMIN",
        *("REPLICATION_SLAVE_ADMIN", "REPLICATION CLIENT"),
        *("REPLICATION SLAVE", "BINLOG_ADMIN"),
        # CLONE, on both servers.
        *("BACKUP_ADMIN", "CLONE_ADMIN"),
    )

    def past_read_only(self) -> set[str]:
        """SUPER and CONNECTION_ADMIN; ``super_read_only`` stops these too."""
        return {"SUPER", "CONNECTION_ADMIN"}

    def covers(self, applied: str, position: str) -> bool:
        """Call ``GTID_SUBSET``."""
        return bool(self.admin.value("SELECT GTID_SUBSET(%s, %s)", position, applied))

    def is_at(self, applied: str, position: str) -> bool:
        """Call ``GTID_SUBTRACT`` in both directions."""
        if not self.covers(applied, position):
            return False
        left = self.admin.value("SELECT GTID_SUBTRACT(%s, %s)", applied, position)
        return not _origins(left) & _origins(position)

    def errant(self, history: str) -> dict[str, int]:
        """Call ``GTID_SUBTRACT``."""
        left = self._lacks(history)
        # A transaction is sent to standbys before it is committed, and in
        # gtid_executed: one under way is not errant.
        if left:
            self.reaches(history, _COMMIT_SECONDS)
            left = self._lacks(history)
        found = {}
        for part in left.replace("\n", "").split(","):
            origin, _, ranges = part.strip().partition(":")
            if origin:
                found[origin] = sum(
                    _length(interval)
                    for interval in ranges.split(":")
                    # MySQL 8.3 and later have tags between intervals.
                    if interval[:1].isdigit()
                )
        return found

    def _lacks(self, history: str) -> str:
        """Return the GTIDs of a set that it does not have."""
        return str(
            self.admin.value(
                "SELECT GTID_SUBTRACT(%s, @@GLOBAL.gtid_executed)", history
            )
        )

    def abandon(self) -> None:
        """``KILL`` an applier that waits for the rest of a transaction.

        STOP REPLICA would wait 60 s for the rest, even if KILL follows.
        """
        self.stop_receiver()
        channels = self.admin.mappings("SHOW REPLICA STATUS")
        # The processlist does not tell the appliers of several channels apart.
        if len(channels) == 1 and _is_received_in_part(channels[0]):
            applier = self.admin.value(_APPLIER)
            if applier is not None:
                self.admin.kill(applier)
                self._within(_KILL_SECONDS, lambda s: s is None or s.applier != "Yes")
        self.stop()

    def adopt(self, position: str, history: str = "") -> None:
        """Delete the binary log, and set ``gtid_purged``."""
        self.detach()
        self.admin.run("RESET BINARY LOGS AND GTIDS")
        self.admin.run("SET GLOBAL gtid_purged = %s", position)

    def clone_from(self, host: str, port: int, account: Account) -> None:
        """``CLONE INSTANCE FROM``; the plugin must be installed on both."""
        self.admin.run("SET GLOBAL clone_valid_donor_list = %s", f"{host}:{port}")
        self.admin.run(
            f"CLONE INSTANCE FROM %s@%s:{int(port)} IDENTIFIED BY %s",
            account.user,
            host,
            account.password,
        )

    def filters(self) -> tuple[str, ...]:
        """Read ``replication_applier_global_filters``.

        It is empty without the Performance Schema: then only a server that
        replicates shows them, in its status.
        """
        rows = self.admin.rows(
            "SELECT filter_name, filter_rule FROM"
            " performance_schema.replication_applier_global_filters"
        )
        return tuple(f"{name}={value}" for name, value in rows if value)

    def has_first_write(self) -> bool:
        """Read ``gtid_purged``."""
        return not self.admin.value("SELECT @@GLOBAL.gtid_purged")

    def domain(self) -> int:
        """Return 0: its GTIDs begin with the identity of the server."""
        return 0

    def set_domain(self, domain: int) -> None:
        """Do nothing: there are no domains."""

    def _semi_sync_names(
        self, found: Mapping[str, str] | None = None
    ) -> tuple[str, str]:
        """Check which plugins are installed: the old ones have other names."""
        if found is None:
            found = self.admin.variables("rpl_semi_sync_%")
        source, replica = self.SEMI_SYNC
        if "rpl_semi_sync_master_enabled" in found:
            source = "rpl_semi_sync_master"
        if "rpl_semi_sync_slave_enabled" in found:
            replica = "rpl_semi_sync_slave"
        return source, replica

    def snapshot_end(self, position: str) -> str:
        """Return the position."""
        return f"SQL_AFTER_GTIDS = '{position}'"


def _origins(position: str) -> set[str]:
    parts = position.replace("\n", "").split(",")
    return {part.strip().partition(":")[0] for part in parts if part.strip()}


def _length(interval: str) -> int:
    first, _, last = interval.partition("-")
    return int(last or first) - int(first) + 1


def _is_received_in_part(channel: Mapping[str, Any]) -> bool:
    """Return whether a standby waits for the rest of a transaction."""
    received = channel["Source_Log_File"], channel["Read_Source_Log_Pos"]
    applied = channel["Relay_Source_Log_File"], channel["Exec_Source_Log_Pos"]
    return received != applied
