"""Statements about replication that MariaDB and MySQL have in common."""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from sqla_shard.dialects.mysql.catalogue import TABLE_TYPES
from sqla_shard.fleet.accounts import Account, Login, logins_of
from sqla_shard.fleet.admin import Admin, SYSTEM


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
    :ivar delay: seconds for which it waits before it applies anything.
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
    delay: int = 0

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
class TableCounter:
    """The AUTO_INCREMENT of a table.

    :ivar next_id: its next value; None without such a column.
    :ivar id_type: type of that column, such as ``"bigint(20) unsigned"``.
    """

    database: str
    table: str
    next_id: int | None = None
    id_type: str = ""


@dataclass(frozen=True, kw_only=True)
class TableSize(TableCounter):
    """The size of a table, as the server estimates it.

    :ivar bytes: of rows and indexes.
    :ivar rows: number of rows, an estimate that may be wrong by half.
    """

    bytes: int
    rows: int


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


#: Seconds in which a standby must apply what it has received.
_APPLY_SECONDS = 5.0
#: A database in the text of a digest, before the name of a table.
_NAMED = re.compile(r"(?<!`)`((?:[^`]|``)+)` \. `")
_BYTES = {"tinyint": 1, "smallint": 2, "mediumint": 3, "int": 4, "bigint": 8}


class Replication(ABC):
    """Statements about replication and write access on one server.

    Every method raises :exc:`~sqla_shard.exc.FleetServerError` if the server
    refuses a statement or does not respond in time.

    :param admin: session on the server.
    """

    #: Statement of :meth:`start_applier`, for messages.
    START_APPLIER: ClassVar[str]

    #: Its words for a standby and a primary, in statements and columns.
    REPLICA: ClassVar[str]
    SOURCE: ClassVar[str]

    #: Whether a standby that was stopped or restarted can apply what it had
    #: received.
    RECEIVED_SURVIVES: ClassVar[bool]

    #: What to do, or not, if it does not know what it had received.
    RESCUE: ClassVar[str]

    #: Its variables of semi-synchronous replication begin with these: those
    #: of a primary, and those of a standby.
    SEMI_SYNC: ClassVar[tuple[str, str]]

    #: Its variable with the number of threads that apply.
    APPLIERS: ClassVar[str]

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

    #: Variables with which a server can change its role, besides log_bin.
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

    #: Query for the seconds between two heartbeats that a standby is sent.
    HEARTBEAT: ClassVar[str]

    #: Variable: seconds without a packet after which a standby connects again.
    NET_TIMEOUT: ClassVar[str]

    #: Query for the seconds of the longest COMMIT that waits for a standby.
    LONGEST_WAIT: ClassVar[str]

    #: Query for user, host and role of each account that has a role.
    ROLE_MEMBERS: ClassVar[str]

    #: Query for the accounts of :func:`~sqla_shard.fleet.accounts.logins_of`.
    ACCOUNTS: ClassVar[str]

    #: Query for the origins of variables; then the origin of a default, and
    #: that of a variable of which nothing is known.
    ORIGINS: ClassVar[tuple[str, str, str]]

    def __init__(self, admin: Admin) -> None:
        self.admin = admin

    # -- write access -----------------------------------------------------

    def is_read_only(self) -> bool:
        """Return whether the application cannot write."""
        return bool(self._variable("read_only"))

    def close_writes(self) -> None:
        """Make the server read-only; afterwards no transaction commits.

        It waits for statements that are running; see :meth:`.Admin.lock_all`.

        :raises FleetServerError: with number 1205, unchanged, if a statement
            runs for longer.
        """
        self.admin.lock_all(f"SET GLOBAL {self.READ_ONLY} = 1")

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
            longer; see :meth:`.Admin.lock_all`.
        """
        self.admin.run(f"SET SESSION wait_timeout = {int(seconds)}")
        self.admin.lock_all("FLUSH TABLES WITH READ LOCK")

    def thaw(self) -> None:
        """End :meth:`freeze`."""
        self.admin.run("UNLOCK TABLES")
        self.admin.run("SET SESSION wait_timeout = DEFAULT")

    def own_privileges(self) -> set[str]:
        """Return the global privileges of the operator."""
        user, _, host = str(self.admin.value("SELECT CURRENT_USER()")).rpartition("@")
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
        return {login.user for login in self.logins() if login.privileges & privileges}

    # -- positions --------------------------------------------------------

    def position(self) -> str:
        """Return the position of the last write in the binary log."""
        return str(self._variable(self.POSITION))

    def applied(self) -> str:
        """Return the position up to which a standby has applied."""
        return str(self._variable(self.APPLIED))

    def reaches(self, position: str, seconds: float) -> bool:
        """Wait until a standby has applied a position; False if it is late."""
        # With 0 seconds MySQL waits for ever.
        answer = self.admin.value(
            f"SELECT {self.WAIT}(%s, %s)", position, max(seconds, 0.001)
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
        """Return the position of the server's whole content, while locked.

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
        return [
            (one.database, one.table, one.next_id, _highest(one.id_type))
            for one in self.counters()
            if one.next_id is not None
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
        """Return the state of a standby; None if it has no primary.

        :raises FleetServerError: if it waits for space on its disk, for which
            MariaDB would wait here, too.
        """
        if self.admin.waits_for_space("Slave\\_IO"):
            raise self.admin.error(
                "its disk is full, and replication waits for space; free some"
            )
        rows = self.admin.mappings(f"SHOW {self.REPLICA} STATUS")
        if not rows:
            return None
        row = rows[0]
        source, replica = self.SOURCE.title(), self.REPLICA.title()
        source_id = int(row[f"{source}_Server_Id"])
        return ReplicationStatus(
            source=f"{row[f'{source}_Host']}:{row[f'{source}_Port']}",
            source_id=source_id,
            receiver=_state(row[f"{replica}_IO_Running"], source_id),
            applier=row[f"{replica}_SQL_Running"],
            received=row[self.RECEIVED],
            lag=row[f"Seconds_Behind_{source}"],
            error=row["Last_IO_Error"] or row["Last_SQL_Error"],
            applier_error=row["Last_SQL_Error"],
            filters=_filters(row),
            uses_gtid=row[self.USES_GTID] not in ("No", 0),
            delay=int(row["SQL_Delay"] or 0),
        )

    def attach(
        self, host: str, port: int, account: Account, *, demoted: bool = False
    ) -> None:
        """Replicate from a server, and start.

        :param host: address of the primary.
        :param account: replication account.
        :param demoted: whether this server was a primary, and the new primary
            has all of its writes.
        :raises FleetServerError: if it does not apply what it has received,
            which would be deleted.
        """
        if self.RECEIVED_SURVIVES:
            self._apply_received()
        self.admin.run(f"STOP {self.REPLICA}")
        self.admin.run(
            self.CHANGE + (self.DEMOTED if demoted else ""),
            host,
            port,
            account.user,
            account.password,
        )
        self.start()

    def _apply_received(self) -> None:
        """Wait until everything is applied that was received before.

        With semi-sync it may be the only copy of acknowledged writes.
        """
        status = self.status()
        if status is None:
            return
        self.stop_receiver()
        if status.applier != "Yes":
            self.start_applier()
        status = self.status()
        if status is not None and not self.reaches(status.received, _APPLY_SECONDS):
            raise self.admin.error(
                f"it has applied {self.applied()}, but received {status.received}, "
                "which is deleted if it replicates from another server; look why its "
                f"applier does not go on: {status.applier_error or 'no error'}"
            )

    def runs_within(self, seconds: float) -> bool:
        """Wait until a standby receives and applies; False if it is late."""
        return self._within(seconds, lambda status: status is not None and status.runs)

    def _within(
        self, seconds: float, is_reached: Callable[[ReplicationStatus | None], bool]
    ) -> bool:
        """Wait for a status; False if it is late."""
        deadline = time.monotonic() + seconds
        while not is_reached(self.status()):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True

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

    def abandon(self) -> None:
        """Stop, after everything that was received whole is applied.

        The rest of a transaction that was received in part is not waited for.
        """
        self.stop()

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

    def heartbeat(self) -> float | None:
        """Return after how many idle seconds its primary sends a heartbeat.

        :returns: None if it has no primary; 0 for never.
        """
        rows = self.admin.rows(self.HEARTBEAT)
        return float(rows[0][0]) if rows else None

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
            source_on=status.get(f"{source}_status") == "ON" and enabled == "ON",
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

    # -- content of the server --------------------------------------------

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
        return logins_of(
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

    def counters(self, database: str | None = None) -> list[TableCounter]:
        """Return the AUTO_INCREMENT of the tables that have one.

        :param database: see :meth:`table_sizes`.
        """
        only, name = _within(database)
        # Not a join: MariaDB compares each table with each column of all others.
        types = {
            (schema, table): column_type
            for schema, table, column_type in self.admin.rows(
                "SELECT table_schema, table_name, column_type"  # noqa: S608 - the name is a parameter
                " FROM information_schema.columns"
                f" WHERE extra LIKE %s AND table_schema {only}",
                "%auto_increment%",
                name,
            )
        }
        if not types:
            return []
        return [
            TableCounter(
                database=schema,
                table=table,
                next_id=int(next_id or 1),
                id_type=types[schema, table],
            )
            for schema, table, next_id in self.admin.rows(
                # The server opens only tables of these names.
                "SELECT table_schema, table_name, auto_increment"  # noqa: S608 - likewise
                " FROM information_schema.tables"
                f" WHERE table_type IN %s AND table_name IN %s AND table_schema {only}",
                TABLE_TYPES,
                sorted({table for _, table in types}),
                name,
            )
            if (schema, table) in types
        ]

    def table_count(self) -> int:
        """Return the number of tables and views, but those of the system."""
        only, name = _within(None)
        # Without their types: MariaDB reads the file of each table for them.
        return int(
            self.admin.value(
                "SELECT COUNT(*) FROM information_schema.tables"  # noqa: S608 - likewise
                f" WHERE table_schema {only}",
                name,
            )
        )

    def table_sizes(
        self, database: str | None = None, *, counters: bool = True
    ) -> list[TableSize]:
        """Return the tables of all databases but those of the system.

        :param database: name of the only one that is read; None for all.
        :param counters: whether to read AUTO_INCREMENT, for which the server
            opens tables.
        """
        only, name = _within(database)
        counted = {}
        if counters:
            counted = {
                (one.database, one.table): one for one in self.counters(database)
            }
        places = self.admin.rows(
            "SELECT table_schema, table_name"  # noqa: S608 - likewise
            " FROM information_schema.tables"
            f" WHERE table_type IN %s AND table_schema {only}",
            TABLE_TYPES,
            name,
        )
        estimates = {} if database else self.admin.estimates()
        # The server opens only tables of these names.
        asked = {place[1] for place in places if place not in estimates}
        if asked:
            for schema, table, size, rows in self.admin.rows(
                "SELECT table_schema, table_name,"  # noqa: S608 - likewise
                " COALESCE(data_length, 0) + COALESCE(index_length, 0),"
                " COALESCE(table_rows, 0) FROM information_schema.tables"
                f" WHERE table_type IN %s AND table_name IN %s AND table_schema {only}",
                TABLE_TYPES,
                sorted(asked),
                name,
            ):
                estimates[schema, table] = int(rows), int(size)
        none = TableCounter(database="", table="")
        return [
            TableSize(
                database=place[0],
                table=place[1],
                bytes=estimates[place][1],
                rows=estimates[place][0],
                next_id=counted.get(place, none).next_id,
                id_type=counted.get(place, none).id_type,
            )
            for place in places
            if place in estimates  # not dropped since
        ]

    def activity(self) -> dict[str, tuple[int, int]] | None:
        """Return the numbers of rows read and written, by database.

        They count from a restart, or from when counting was switched on.

        :returns: None if the server does not count.
        """
        on = self.admin.variables("userstat", "performance_schema")
        if on.get("userstat") == "ON":
            counts = (
                "SELECT table_schema, SUM(rows_read), SUM(rows_changed) FROM "
                "information_schema.table_statistics GROUP BY table_schema"
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


def _state(text: str, source_id: int) -> str:
    # MariaDB has "Preparing" between "No" and "Connecting".  With "Yes" it may
    # still have to ask for the server_id, and may be that of another server.
    return text if text == "No" or (text == "Yes" and source_id) else "Connecting"


def _filters(row: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(
        f"{name}={value}"
        for name, value in row.items()
        if name.lower().startswith("replicate_") and value
    )


def _within(database: str | None) -> tuple[str, object]:
    """Return the condition of one database, or of all; and its parameter."""
    # Not those of the system: the server would open its views.
    return ("NOT IN %s", sorted(SYSTEM)) if database is None else ("= %s", database)


def _highest(column: str) -> int:
    kind = column.partition("(")[0].partition(" ")[0]
    bits = 8 * _BYTES.get(kind.lower(), 4)
    return int(2 ** (bits if "unsigned" in column else bits - 1)) - 1
