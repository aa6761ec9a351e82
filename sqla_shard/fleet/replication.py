"""Replication of one server: the only place where MariaDB and MySQL differ.

:func:`replication_of` returns the statements of a server.  Positions are
strings of the server, opaque to callers: GTID positions such as ``0-1-42`` on
MariaDB, sets of GTIDs on MySQL 8.

MySQL 8 is supported by its documentation; its statements are not run by the
tests of this package.
"""

from __future__ import annotations

import re
from abc import ABC
from abc import abstractmethod
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from typing import ClassVar

from sqla_shard.exc import FleetServerError
from sqla_shard.exc import FleetSetupError
from sqla_shard.fleet.accounts import Account
from sqla_shard.fleet.admin import Admin

__all__ = [
    "PUBLIC",
    "Login",
    "MariaDBReplication",
    "MySQLReplication",
    "Replication",
    "ReplicationStatus",
    "SemiSync",
    "TableSize",
    "gtids",
    "replication_of",
]


#: The role of MariaDB that everybody has, from 10.11.
PUBLIC = "PUBLIC"

#: A database in the text of a digest, before the name of a table.
_NAMED = re.compile(r"`((?:[^`]|``)+)` \. `")
_BYTES = {"tinyint": 1, "smallint": 2, "mediumint": 3, "int": 4, "bigint": 8}


@dataclass(frozen=True, kw_only=True)
class ReplicationStatus:
    """State of a standby, as it reports it.

    :ivar source: ``host:port`` of the primary that it replicates from.
    :ivar source_id: ``server_id`` of that primary; 0 if it was never reached.
    :ivar receiver: ``"Yes"``, ``"No"`` or ``"Connecting"``: whether it
        receives the binary log of the primary.
    :ivar applier: ``"Yes"`` or ``"No"``: whether it applies what it received.
    :ivar received: position up to which it has received.
    :ivar lag: seconds behind the primary; None if unknown.
    :ivar error: last error of the receiver or the applier; empty if none.
    :ivar applier_error: last error of the applier.
    :ivar filters: options that leave out databases or tables.
    :ivar uses_gtid: whether it finds its position by GTID.
    """

    source: str
    source_id: int
    receiver: str
    applier: str
    received: str
    lag: int | None
    error: str
    applier_error: str
    filters: tuple[str, ...]
    uses_gtid: bool

    @property
    def runs(self) -> bool:
        """Whether it receives and applies."""
        return self.receiver == self.applier == "Yes"


@dataclass(frozen=True, kw_only=True)
class SemiSync:
    """State of semi-synchronous replication on a server.

    :ivar source_on: whether COMMIT waits for a standby at this moment.
    :ivar source_enabled: whether it is configured to wait.
    :ivar replica_on: whether the server is configured to acknowledge as a
        standby.
    :ivar acknowledges: whether it does so at this moment.
    :ivar after_sync: whether it waits before other sessions see the rows.
    :ivar waits_alone: whether it waits while no standby is connected.
    :ivar timeout: seconds after which it stops waiting.
    :ivar standbys: number of standbys that acknowledge.
    """

    source_on: bool
    source_enabled: bool
    replica_on: bool
    acknowledges: bool
    after_sync: bool
    waits_alone: bool
    timeout: float
    standbys: int


@dataclass(frozen=True, kw_only=True)
class Login:
    """An account of a server.

    :ivar user: name of the user, or of a role.
    :ivar host: the addresses from which it may connect; empty for a role.
    :ivar privileges: its global privileges, with those of its roles.
    :ivar roles: its roles, and the roles of these.
    :ivar needs_no_password: whether anyone can connect with its name.
    """

    user: str
    host: str
    privileges: frozenset[str]
    roles: frozenset[str] = frozenset()
    needs_no_password: bool = False

    def __str__(self) -> str:
        return f"'{self.user}'@'{self.host}'"


@dataclass(frozen=True, kw_only=True)
class TableSize:
    """What a table needs, as the server estimates it.

    :ivar bytes: of rows and indexes.
    :ivar rows: number of rows, an estimate that may be wrong by half.
    :ivar next_id: next value of AUTO_INCREMENT; None without such a column.
    :ivar id_type: type of that column, such as ``"bigint(20) unsigned"``.
    """

    database: str
    table: str
    bytes: int
    rows: int
    next_id: int | None = None
    id_type: str = ""


def replication_of(admin: Admin) -> Replication:
    """Return the statements of a server."""
    kind = MariaDBReplication if admin.is_mariadb else MySQLReplication
    return kind(admin)


class Replication(ABC):
    """Statements about replication, and who may write, on one server.

    Every method raises :exc:`~sqla_shard.exc.FleetServerError` if the server
    refuses a statement or does not respond in time.

    :param admin: session on the server.
    """

    #: Statement of :meth:`start_applier`, for messages.
    START_APPLIER: ClassVar[str]

    #: Its words for a standby and a primary, in statements and columns.
    REPLICA: ClassVar[str]
    SOURCE: ClassVar[str]

    #: Its variables of semi-synchronous replication begin with these: those
    #: of a primary, and those of a standby.
    SEMI_SYNC: ClassVar[tuple[str, str]]

    #: Global privileges that the operator needs.
    operator_privileges: ClassVar[tuple[str, ...]]

    #: Variables with the position of the last write, the position up to which
    #: a standby has applied, and the history.
    POSITION: ClassVar[str]
    APPLIED: ClassVar[str]
    HISTORY: ClassVar[str]

    #: Function that waits for a position, and returns 0 if it was reached.
    WAIT: ClassVar[str]

    #: Variable that stops writes, of as many accounts as the server can.
    READ_ONLY: ClassVar[str]

    #: Variables with which a server can change its role.
    FIT: ClassVar[Mapping[str, str]]

    #: Columns of the state of a standby: the position up to which it has
    #: received, and whether it uses GTIDs.
    RECEIVED: ClassVar[str]
    USES_GTID: ClassVar[str]

    #: Statement that sets host, port, user and password of the primary.
    CHANGE: ClassVar[str]

    #: What is added to it for a former primary.
    DEMOTED: ClassVar[str] = ""

    #: Query for the number of the thread that receives.
    RECEIVER: ClassVar[str]

    #: Query for the seconds of the longest COMMIT that waits for a standby.
    LONGEST_WAIT: ClassVar[str]

    #: Query for user, host and role of each account that has a role.
    ROLE_MEMBERS: ClassVar[str]

    #: Query for user and host of each account, and whether anyone can use it.
    ACCOUNTS: ClassVar[str]

    #: Query for the origins of variables; then the origin of a default, and
    #: that of a variable of which nothing is known.
    ORIGINS: ClassVar[tuple[str, str, str]]

    def __init__(self, admin: Admin) -> None:
        self.admin = admin

    # -- who may write ----------------------------------------------------

    def is_read_only(self) -> bool:
        """Return whether the application cannot write."""
        return bool(self._variable("read_only"))

    def close_writes(self) -> None:
        """Make the server read-only; afterwards no transaction commits.

        It waits for statements that are running, at most 1 s: all new writes
        would queue behind it.

        :raises FleetServerError: with number 1205, unchanged, if a statement
            runs for longer.
        """
        self.admin.run("SET SESSION lock_wait_timeout = 1")
        self.admin.run(f"SET GLOBAL {self.READ_ONLY} = 1")

    def open_writes(self) -> None:
        """Let the application write."""
        # On MySQL this unsets super_read_only, too.
        self.admin.run("SET GLOBAL read_only = 0")

    def freeze(self, seconds: int) -> None:
        """Stop all writes, those of every account, while this session lives.

        :meth:`close_writes` of this session then takes effect at once.  If
        the session is idle for long, the server ends it, and writes go on.

        :param seconds: how long the session may be idle.
        :raises FleetServerError: with number 1205 if a statement runs for
            longer than 1 s.
        """
        self.admin.run(
            f"SET SESSION lock_wait_timeout = 1, wait_timeout = {int(seconds)}"
        )
        self.admin.run("FLUSH TABLES WITH READ LOCK")

    def thaw(self) -> None:
        """End :meth:`freeze`."""
        self.admin.run("UNLOCK TABLES")
        self.admin.run("SET SESSION wait_timeout = DEFAULT")

    def unfit(self) -> list[str]:
        """Return the settings with which it cannot change its role.

        :returns: a sentence for each, with its remedy.
        """
        found = self.admin.variables(*self.FIT)
        return [
            f"{name} is {found.get(name, 'missing')}; it must be {value}"
            for name, value in self.FIT.items()
            if found.get(name) != value
        ]

    def own_privileges(self) -> set[str]:
        """Return the global privileges of the operator."""
        user, _, host = str(
            self.admin.value("SELECT CURRENT_USER()")
        ).rpartition("@")
        return {
            privilege
            for (privilege,) in self.admin.rows(
                "SELECT privilege_type"
                " FROM information_schema.user_privileges WHERE grantee = %s",
                f"'{user}'@'{host}'",
            )
        }

    @abstractmethod
    def past_read_only(self) -> set[str]:
        """Return the privileges with which ``read_only`` is bypassed."""

    def bypassing(self) -> set[str]:
        """Return the users whose writes ``read_only`` does not stop.

        They may have the privilege by a role, even one that is not active.
        """
        privileges = self.past_read_only()
        return {
            login.user
            for login in self.logins()
            if login.privileges & privileges
        }

    # -- positions --------------------------------------------------------

    def position(self) -> str:
        """Return the position of the last write in the binary log."""
        return str(self._variable(self.POSITION))

    def applied(self) -> str:
        """Return the position up to which a standby has applied."""
        return str(self._variable(self.APPLIED))

    def reaches(self, position: str, seconds: float) -> bool:
        """Wait until a standby has applied a position; False if it is late."""
        answer = self.admin.value(
            f"SELECT {self.WAIT}(%s, %s)", position, seconds
        )
        return bool(answer == 0)

    @abstractmethod
    def covers(self, applied: str, position: str) -> bool:
        """Return whether an applied position includes a position."""

    @abstractmethod
    def is_at(self, applied: str, position: str) -> bool:
        """Return whether an applied position is a position of the primary.

        Writes of other servers than the primary has are ignored.
        """

    def history(self) -> str:
        """Return all that the binary log of the server has ever contained."""
        return str(self._variable(self.HISTORY))

    @abstractmethod
    def errant(self, history: str) -> dict[str, int]:
        """Return the writes of another server that this one does not have.

        :param history: :meth:`history` of the other server.
        :returns: number of transactions by their origin.
        """

    def committed(self) -> str:
        """Return the position of all that the server has, while it is locked.

        Unlike :meth:`position`, it includes what a standby has applied before
        its binary log begins.  It is exact only while nothing commits.
        """
        return self.position()

    @abstractmethod
    def adopt(self, position: str, history: str = "") -> None:
        """Begin a new history after the content of another server was copied.

        The server forgets its primary, and its binary log is deleted.

        :param position: position of the content.
        :param history: :meth:`history` of the other server at that position;
            empty if it is not known, or the position says it.
        """

    @abstractmethod
    def clone_from(self, host: str, port: int, account: Account) -> None:
        """Replace the content with that of another server, and restart.

        The session is lost.

        :param account: account for the other server.
        :raises FleetSetupError: if servers of this kind cannot do it.
        """

    @abstractmethod
    def filters(self) -> tuple[str, ...]:
        """Return options with which a standby would leave out data."""

    def next_ids(self) -> list[tuple[str, str, int, int]]:
        """Return the AUTO_INCREMENT of all tables.

        :returns: database, table, next id, and highest id of the column.
        """
        rows = self.admin.rows(
            "SELECT t.table_schema, t.table_name, t.auto_increment,"
            " c.data_type, c.column_type"
            " FROM information_schema.tables t"
            " JOIN information_schema.columns c"
            " ON c.table_schema = t.table_schema"
            " AND c.table_name = t.table_name"
            " WHERE t.auto_increment IS NOT NULL"
            " AND c.extra = 'auto_increment'"
        )
        return [
            (database, table, int(number), _highest(kind, column))
            for database, table, number, kind, column in rows
        ]

    @abstractmethod
    def has_first_write(self) -> bool:
        """Return whether the binary log begins with the first write."""

    @abstractmethod
    def domain(self) -> int:
        """Return the GTID domain of its own writes; 0 if it has none."""

    @abstractmethod
    def set_domain(self, domain: int) -> None:
        """Set the GTID domain of new sessions, until the server restarts."""

    # -- accounts ---------------------------------------------------------

    def role_members(self) -> list[tuple[str, str, str]]:
        """Return user, host and role of each account that has a role."""
        return [
            (user, host, role)
            for user, host, role in self.admin.rows(self.ROLE_MEMBERS)
        ]

    # -- replicating ------------------------------------------------------

    def status(self) -> ReplicationStatus | None:
        """Return the state of a standby; None if it has no primary."""
        rows = self.admin.mappings(f"SHOW {self.REPLICA} STATUS")
        if not rows:
            return None
        row = rows[0]
        source, replica = self.SOURCE.title(), self.REPLICA.title()
        return ReplicationStatus(
            source=f"{row[f'{source}_Host']}:{row[f'{source}_Port']}",
            source_id=int(row[f"{source}_Server_Id"]),
            receiver=_state(row[f"{replica}_IO_Running"]),
            applier=row[f"{replica}_SQL_Running"],
            received=row[self.RECEIVED],
            lag=row[f"Seconds_Behind_{source}"],
            error=row["Last_IO_Error"] or row["Last_SQL_Error"],
            applier_error=row["Last_SQL_Error"],
            filters=_filters(row),
            uses_gtid=row[self.USES_GTID] not in ("No", 0),
        )

    def attach(
        self, host: str, port: int, account: Account, *, demoted: bool = False
    ) -> None:
        """Replicate from a server, and start.

        :param host: address of the primary.
        :param port: its port.
        :param account: replication account.
        :param demoted: whether this server was a primary, and the new primary
            has all of its writes.
        """
        self.admin.run(f"STOP {self.REPLICA}")
        self.admin.run(
            self.CHANGE + (self.DEMOTED if demoted else ""),
            host,
            port,
            account.user,
            account.password,
        )
        self.start()

    def start(self) -> None:
        """Start receiving and applying."""
        self.admin.run(f"START {self.REPLICA}")

    def start_applier(self) -> None:
        """Start applying; the receiver is not touched."""
        self.admin.run(self.START_APPLIER)

    def stop_applier(self) -> None:
        """Stop applying; the receiver is not touched."""
        self.admin.run(f"STOP {self.REPLICA} SQL_THREAD")

    @abstractmethod
    def snapshot_end(self, position: str) -> str:
        """Return the condition of UNTIL for the open snapshot of a session.

        A standby that applies until then has what the snapshot contains.

        :param position: position of the snapshot.
        """

    def apply_until(self, condition: str) -> None:
        """Start applying, up to a :meth:`snapshot_end`.

        The receiver is not touched: it must run.
        """
        self.admin.run(f"{self.START_APPLIER} UNTIL {condition}")

    def stop_receiver(self) -> None:
        """Stop receiving; the applier is not touched."""
        self.admin.run(f"STOP {self.REPLICA} IO_THREAD")

    def stop(self) -> None:
        """Stop receiving and applying; the position is remembered."""
        self.admin.run(f"STOP {self.REPLICA}")

    def detach(self) -> None:
        """Stop, and forget the primary and everything received."""
        self.stop()
        self.admin.run(f"RESET {self.REPLICA} ALL")

    def receiver(self) -> tuple[int, int] | None:
        """Identify the thread that receives; None if there is none.

        Another START, or a restart of the server, gives another one, which
        may have deleted what was received and not applied.

        :returns: number of the thread, and when the server was started, in
            seconds since the epoch; it may differ by 1 from call to call.
        """
        rows = self.admin.rows(self.RECEIVER)
        return (int(rows[0][0]), self._started()) if rows else None

    def server_id(self) -> int:
        """Return its ``server_id``."""
        return int(self.admin.value("SELECT @@GLOBAL.server_id"))

    def _variable(self, name: str) -> Any:
        return self.admin.value(f"SELECT @@GLOBAL.{name}")

    def _started(self) -> int:
        now = int(self.admin.value("SELECT UNIX_TIMESTAMP()"))
        return now - int(self.admin.counters("uptime")["uptime"])

    # -- semi-synchronous replication -------------------------------------

    def longest_wait(self) -> float:
        """Return for how many seconds a COMMIT has waited for a standby.

        :returns: the longest, or more; 0 if none waits.
        """
        return float(self.admin.value(self.LONGEST_WAIT) or 0)

    def semi_sync(self) -> SemiSync | None:
        """Return its state; None if the server does not have it."""
        found = self.admin.variables("rpl_semi_sync_%")
        source, replica = self._semi_sync_names(found)
        enabled = found.get(f"{source}_enabled")
        if enabled is None and f"{replica}_enabled" not in found:
            return None
        status = self.admin.counters("rpl_semi_sync_%")
        return SemiSync(
            source_on=status.get(f"{source}_status") == "ON"
            and enabled == "ON",
            source_enabled=enabled == "ON",
            replica_on=found.get(f"{replica}_enabled") == "ON",
            acknowledges=found.get(f"{replica}_enabled") == "ON"
            and status.get(f"{replica}_status") == "ON",
            after_sync=found.get(f"{source}_wait_point") == "AFTER_SYNC",
            waits_alone="ON"
            in (
                found.get(f"{source}_wait_no_slave"),
                found.get(f"{source}_wait_no_replica"),
            ),
            timeout=int(found.get(f"{source}_timeout", 0)) / 1000,
            standbys=int(status.get(f"{source}_clients", 0)),
        )

    def set_semi_sync(self, *, source: bool, replica: bool) -> None:
        """Let the server wait for standbys, or acknowledge as one."""
        names = self._semi_sync_names()
        for role, on in zip(names, (source, replica), strict=True):
            self.admin.run(f"SET GLOBAL {role}_enabled = {int(on)}")

    def _semi_sync_names(
        self, found: Mapping[str, str] | None = None
    ) -> tuple[str, str]:
        """Return the beginnings of the names of its variables.

        :param found: these variables, if they were read.
        """
        return self.SEMI_SYNC

    # -- what is on the server --------------------------------------------

    def configured(self, *names: str) -> dict[str, bool]:
        """Return whether each variable is set in the server's configuration.

        Otherwise a restart gives it the default of the server.  A variable
        that was changed with SET GLOBAL is left out: nothing is known of it.
        """
        query, default, changed = self.ORIGINS
        found = dict(self.admin.rows(query))
        return {
            name: found[name] != default
            for name in names
            if found.get(name, changed) != changed
        }

    def logins(self) -> list[Login]:
        """Return the accounts and roles of the server."""
        return _logins(
            self.admin,
            self.admin.rows(self.ACCOUNTS),
            self.role_members(),
            self._of_roles(),
        )

    def _of_roles(self) -> dict[str, set[str]] | None:
        """Return the global privileges of each role.

        None if ``information_schema.user_privileges`` has them.
        """
        return None

    def table_sizes(self) -> list[TableSize]:
        """Return the tables of all databases but those of the system."""
        types = {
            (database, table): column_type
            for database, table, column_type in self.admin.rows(
                "SELECT table_schema, table_name, column_type"
                " FROM information_schema.columns"
                " WHERE extra LIKE %s",
                "%auto_increment%",
            )
        }
        return [
            TableSize(
                database=database,
                table=table,
                bytes=int(size),
                rows=int(rows),
                next_id=None if next_id is None else int(next_id),
                id_type=types.get((database, table), ""),
            )
            for database, table, size, rows, next_id in self.admin.rows(
                "SELECT table_schema, table_name,"
                " COALESCE(data_length, 0) + COALESCE(index_length, 0),"
                " COALESCE(table_rows, 0), auto_increment"
                " FROM information_schema.tables"
                " WHERE table_type = 'BASE TABLE' AND table_schema NOT IN"
                " ('mysql', 'sys', 'information_schema',"
                " 'performance_schema')"
            )
        ]

    def activity(self) -> dict[str, tuple[int, int]] | None:
        """Return the numbers of rows read and written, by database.

        They count from a restart, or from when counting was switched on.

        :returns: None if the server does not count.
        """
        on = self.admin.variables("userstat", "performance_schema")
        if on.get("userstat") == "ON":
            counts = (
                "SELECT table_schema, SUM(rows_read), SUM(rows_changed)"
                " FROM information_schema.table_statistics"
                " GROUP BY table_schema"
            )
        elif on.get("performance_schema") == "ON" and self.admin.value(
            "SELECT COUNT(*) FROM performance_schema.setup_instruments"
            " WHERE name = 'wait/io/table/sql/handler' AND enabled = 'YES'"
        ):
            counts = (
                "SELECT object_schema, SUM(count_read), SUM(count_write)"
                " FROM performance_schema.table_io_waits_summary_by_table"
                " WHERE object_schema IS NOT NULL GROUP BY object_schema"
            )
        else:
            return None
        return {
            database: (int(read), int(written))
            for database, read, written in self.admin.rows(counts)
        }

    def statements(self) -> dict[str, int] | None:
        """Return the numbers of statements by the databases that they name.

        A statement with several databases counts for each of them, and one
        without for the default database.  They count from a restart, as
        digests of the Performance Schema; their texts end after
        ``performance_schema_max_digest_length`` bytes, and ``""`` has the
        number of statements for whose digests there was no room.

        :returns: None if the server does not count.
        """
        on = self.admin.variables("performance_schema")
        if on.get("performance_schema") != "ON" or not self.admin.value(
            "SELECT COUNT(*) FROM performance_schema.setup_consumers"
            " WHERE name = 'statements_digest' AND enabled = 'YES'"
        ):
            return None
        found: dict[str, int] = {}
        # Applications name the database of each table: schema_name is NULL.
        for default, text, count in self.admin.rows(
            "SELECT schema_name, digest_text, count_star"
            " FROM performance_schema.events_statements_summary_by_digest"
        ):
            names = {""} if text is None else set(_NAMED.findall(text))
            if default is not None:
                names.add(default)
            for name in names:
                found[name] = found.get(name, 0) + int(count)
        return found


class MariaDBReplication(Replication):
    """MariaDB 10.6 and later."""

    REPLICA = "SLAVE"
    SOURCE = "MASTER"
    START_APPLIER = "START SLAVE SQL_THREAD"
    SEMI_SYNC = ("rpl_semi_sync_master", "rpl_semi_sync_slave")
    POSITION = "gtid_binlog_pos"
    APPLIED = "gtid_slave_pos"
    #: The last GTID of each server.
    HISTORY = "gtid_binlog_state"
    WAIT = "MASTER_GTID_WAIT"
    #: Accounts with READ_ONLY ADMIN bypass it.
    READ_ONLY = "read_only"
    FIT: ClassVar = {
        "log_bin": "ON",
        "log_slave_updates": "ON",
        "binlog_format": "ROW",
        "gtid_strict_mode": "ON",
    }
    RECEIVED = "Gtid_IO_Pos"
    USES_GTID = "Using_Gtid"
    CHANGE = (
        "CHANGE MASTER TO MASTER_HOST = %s, MASTER_PORT = %s,"
        " MASTER_USER = %s, MASTER_PASSWORD = %s,"
        " MASTER_CONNECT_RETRY = 1, MASTER_USE_GTID = slave_pos"
    )
    # A former primary has no gtid_slave_pos of its own writes, or one of an
    # earlier role; with the option the server sets it (10.10).
    DEMOTED = ", MASTER_DEMOTE_TO_SLAVE = 1"
    RECEIVER = (
        "SELECT id FROM information_schema.processlist"
        " WHERE command = 'Slave_IO'"
    )
    LONGEST_WAIT = (
        "SELECT MAX(time_ms) / 1000 FROM information_schema.processlist"
        " WHERE state LIKE 'Waiting for semi-sync ACK%%'"
    )
    ROLE_MEMBERS = "SELECT User, Host, Role FROM mysql.roles_mapping"
    ACCOUNTS = (
        "SELECT u.user, u.host,"
        " u.is_role = 'N' AND u.authentication_string = ''"
        " AND u.plugin IN ('', 'mysql_native_password', 'ed25519')"
        " AND COALESCE(JSON_VALUE(g.priv, '$.account_locked'), 0) = 0"
        " FROM mysql.user AS u JOIN mysql.global_priv AS g"
        " ON g.user = u.user AND g.host = u.host"
    )
    ORIGINS = (
        (
            "SELECT LOWER(variable_name), global_value_origin"
            " FROM information_schema.system_variables"
        ),
        "COMPILE-TIME",
        "SQL",
    )
    operator_privileges = (
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

    def unfit(self) -> list[str]:
        """Ask for MariaDB 10.10, too."""
        found = super().unfit()
        if self.admin.version < (10, 10):
            found.append(
                "a former primary is attached with MASTER_DEMOTE_TO_SLAVE, "
                "which needs MariaDB 10.10; upgrade it"
            )
        return found

    def past_read_only(self) -> set[str]:
        """READ_ONLY ADMIN, which SUPER includes before MariaDB 10.11."""
        is_old = self.admin.version < (10, 11)
        return {"READ_ONLY ADMIN", *(["SUPER"] if is_old else [])}

    def covers(self, applied: str, position: str) -> bool:
        """Compare the sequence numbers of each domain."""
        has = {domain: number for domain, _, number in gtids(applied)}
        return all(
            has.get(domain, -1) >= number
            for domain, _, number in gtids(position)
        )

    def is_at(self, applied: str, position: str) -> bool:
        """Compare the sequence numbers of the domains of the primary."""
        has = {domain: number for domain, _, number in gtids(applied)}
        return all(
            has.get(domain) == number for domain, _, number in gtids(position)
        )

    def errant(self, history: str) -> dict[str, int]:
        """Compare the last number of each domain and server."""
        mine = {
            (domain, server): number
            for domain, server, number in gtids(self.history())
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
        return tuple(
            f"{name}={value}" for name, value in found.items() if value
        )

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
        events = self.admin.rows(
            f"SHOW BINLOG EVENTS IN '{logs[0][0]}' LIMIT 3"
        )
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
        found = dict(
            self.admin.rows("SHOW SESSION STATUS LIKE 'binlog_snapshot_%%'")
        )
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
                privilege
                for (grant,) in grants
                for privilege in self._global(grant)
            }
        return found

    def _global(self, grant: str) -> list[str]:
        """Return the global privileges in a row of SHOW GRANTS."""
        parts = re.match(r"GRANT (.*) ON \*\.\* TO ", grant)
        if parts is None:
            return []
        if parts[1] != "ALL PRIVILEGES":
            return parts[1].split(", ")
        return [
            str(row[0]).upper() for row in self.admin.rows("SHOW PRIVILEGES")
        ]


class MySQLReplication(Replication):
    """MySQL 8.0.26 and later, with GTIDs."""

    REPLICA = "REPLICA"
    SOURCE = "SOURCE"
    START_APPLIER = "START REPLICA SQL_THREAD"
    SEMI_SYNC = ("rpl_semi_sync_source", "rpl_semi_sync_replica")
    #: It includes what was replicated.
    POSITION = APPLIED = HISTORY = "gtid_executed"
    WAIT = "WAIT_FOR_EXECUTED_GTID_SET"
    #: It sets ``read_only`` too.
    READ_ONLY = "super_read_only"
    FIT: ClassVar = {
        "log_bin": "ON",
        "log_replica_updates": "ON",
        "binlog_format": "ROW",
        "gtid_mode": "ON",
        "enforce_gtid_consistency": "ON",
    }
    RECEIVED = "Retrieved_Gtid_Set"
    USES_GTID = "Auto_Position"
    CHANGE = (
        "CHANGE REPLICATION SOURCE TO SOURCE_HOST = %s, SOURCE_PORT = %s,"
        " SOURCE_USER = %s, SOURCE_PASSWORD = %s,"
        " SOURCE_CONNECT_RETRY = 1, SOURCE_AUTO_POSITION = 1,"
        " GET_SOURCE_PUBLIC_KEY = 1"
    )
    RECEIVER = (
        "SELECT thread_id FROM"
        " performance_schema.replication_connection_status"
        " WHERE channel_name = '' AND thread_id IS NOT NULL"
    )
    # The list of processes has whole seconds.
    LONGEST_WAIT = (
        "SELECT MAX(time) + 1 FROM information_schema.processlist"
        " WHERE state LIKE 'Waiting for semi-sync ACK%%'"
    )
    ROLE_MEMBERS = "SELECT TO_USER, TO_HOST, FROM_USER FROM mysql.role_edges"
    ACCOUNTS = (
        "SELECT user, host, authentication_string = ''"
        " AND account_locked = 'N' AND plugin IN"
        " ('mysql_native_password', 'caching_sha2_password',"
        " 'sha256_password') FROM mysql.user"
    )
    ORIGINS = (
        (
            "SELECT LOWER(variable_name), variable_source"
            " FROM performance_schema.variables_info"
        ),
        "COMPILED",
        "DYNAMIC",
    )
    operator_privileges = (
        *("SELECT", "INSERT", "UPDATE", "DELETE", "RELOAD", "PROCESS"),
        *("BINLOG_ADMIN", "REPLICATION CLIENT", "CONNECTION_ADMIN"),
        *("REPLICATION_SLAVE_ADMIN", "SYSTEM_VARIABLES_ADMIN"),
    )

    def past_read_only(self) -> set[str]:
        """SUPER and CONNECTION_ADMIN; ``super_read_only`` stops these too."""
        return {"SUPER", "CONNECTION_ADMIN"}

    def covers(self, applied: str, position: str) -> bool:
        """Call ``GTID_SUBSET``."""
        return bool(
            self.admin.value("SELECT GTID_SUBSET(%s, %s)", position, applied)
        )

    def is_at(self, applied: str, position: str) -> bool:
        """Call ``GTID_SUBTRACT`` in both directions."""
        if not self.covers(applied, position):
            return False
        left = self.admin.value(
            "SELECT GTID_SUBTRACT(%s, %s)", applied, position
        )
        return not _origins(left) & _origins(position)

    def errant(self, history: str) -> dict[str, int]:
        """Call ``GTID_SUBTRACT``."""
        left = self.admin.value(
            "SELECT GTID_SUBTRACT(%s, @@GLOBAL.gtid_executed)", history
        )
        found = {}
        for part in str(left).replace("\n", "").split(","):
            origin, _, ranges = part.strip().partition(":")
            if origin:
                found[origin] = sum(
                    _length(interval)
                    for interval in ranges.split(":")
                    # MySQL 8.3 and later have tags between intervals.
                    if interval[:1].isdigit()
                )
        return found

    def adopt(self, position: str, history: str = "") -> None:
        """Delete the binary log, and set ``gtid_purged``."""
        self.detach()
        # 8.4 has the new words only, 8.0 the former ones only.
        self.admin.run(
            "RESET MASTER"
            if self.admin.version < (8, 2)
            else "RESET BINARY LOGS AND GTIDS"
        )
        self.admin.run("SET GLOBAL gtid_purged = %s", position)

    def clone_from(self, host: str, port: int, account: Account) -> None:
        """``CLONE INSTANCE FROM``; the plugin must be installed on both."""
        self.admin.run(
            "SET GLOBAL clone_valid_donor_list = %s", f"{host}:{port}"
        )
        self.admin.run(
            f"CLONE INSTANCE FROM %s@%s:{int(port)} IDENTIFIED BY %s",
            account.user,
            host,
            account.password,
        )

    def filters(self) -> tuple[str, ...]:
        """Read ``replication_applier_global_filters``."""
        rows = self.admin.rows(
            "SELECT filter_name, filter_rule FROM"
            " performance_schema.replication_applier_global_filters"
        )
        return tuple(f"{name}={value}" for name, value in rows if value)

    def next_ids(self) -> list[tuple[str, str, int, int]]:
        """Read ``information_schema``, whose numbers are cached otherwise."""
        self.admin.run("SET SESSION information_schema_stats_expiry = 0")
        return super().next_ids()

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
        """Look which plugins are installed: the old ones have other names."""
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

    def table_sizes(self) -> list[TableSize]:
        """Read them without the cache of 24 hours."""
        self.admin.run("SET SESSION information_schema_stats_expiry = 0")
        return super().table_sizes()


def gtids(text: str) -> list[tuple[int, int, int]]:
    """Return the GTIDs of MariaDB in a position: domain, server, number.

    :param text: such as ``"0-1-42,7-3-12"``; may be empty.
    """
    found = []
    for part in text.replace("\n", "").split(","):
        if part.strip():
            domain, server, number = part.strip().split("-")
            found.append((int(domain), int(server), int(number)))
    return found


def _origins(position: str) -> set[str]:
    parts = position.replace("\n", "").split(",")
    return {part.strip().partition(":")[0] for part in parts if part.strip()}


def _length(interval: str) -> int:
    first, _, last = interval.partition("-")
    return int(last or first) - int(first) + 1


def _state(text: str) -> str:
    # MariaDB has "Preparing" between "No" and "Connecting".
    return text if text in ("Yes", "No") else "Connecting"


def _filters(row: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(
        f"{name}={value}"
        for name, value in row.items()
        if name.lower().startswith("replicate_") and value
    )


def _highest(kind: str, column: str) -> int:
    bits = 8 * _BYTES.get(kind.lower(), 4)
    return int(2 ** (bits if "unsigned" in column else bits - 1)) - 1


def _logins(
    admin: Admin,
    accounts: Sequence[tuple[Any, ...]],
    granted: Iterable[tuple[str, str, str]],
    of_roles: Mapping[str, set[str]] | None = None,
) -> list[Login]:
    roles: dict[str, set[str]] = {}
    for user, _, role in granted:
        roles.setdefault(user, set()).add(role)
    own: dict[str, set[str]] = {}
    for grantee, privilege in admin.rows(
        "SELECT grantee, privilege_type"
        " FROM information_schema.user_privileges"
    ):
        own.setdefault(grantee, set()).add(privilege)
    # Without privileges an account has USAGE.
    if any(f"'{u}'@'{host}'" not in own for u, host, _ in accounts if host):
        raise FleetServerError(
            server=str(admin),
            number=1142,
            reason="the privileges of other accounts are hidden from the "
            "operator, who lacks SELECT ON mysql.*",
        )
    if of_roles is None:
        # 'role'@'%' on MySQL
        of_roles = {
            grantee.rpartition("@")[0].strip("'"): privileges
            for grantee, privileges in own.items()
        }
    of_all = of_roles.get(PUBLIC, set())
    found = []
    for user, host, is_open in accounts:
        all_roles = _closure(user, roles)
        mine = {*own.get(f"'{user}'@'{host}'", ()), *of_all}
        mine.update(*(of_roles.get(role, ()) for role in all_roles))
        found.append(
            Login(
                user=user,
                host=host,
                privileges=frozenset(mine - {"USAGE"}),
                roles=frozenset(all_roles),
                needs_no_password=bool(is_open),
            )
        )
    return found


def _closure(user: str, roles: Mapping[str, set[str]]) -> set[str]:
    found: set[str] = set()
    left = [user]
    while left:
        for role in roles.get(left.pop(), set()) - found:
            found.add(role)
            left.append(role)
    return found
