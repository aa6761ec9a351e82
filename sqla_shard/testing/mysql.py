"""Servers of MySQL and of MariaDB."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar, Literal

from sqla_shard import exc
from sqla_shard.testing import database_server
from sqla_shard.testing.database_server import Account, DatabaseServer
from sqla_shard.testing.local_server import tail
from sqla_shard.testing.programs import (
    DatabasePrograms,
    find_mariadb,
    find_mysql,
    MISSING_MARIADB,
    MISSING_MYSQL,
)

#: A page that was half written would matter after a power failure alone; the
#: buffers of these writes take 55 MB.
_FAST = (
    "--innodb-flush-method=nosync",
    "--innodb-doublewrite=OFF",
    "--innodb-adaptive-hash-index=OFF",
)
#: Creating and dropping tables without files of their own takes half of the
#: processor time, most of that of tests that create a few tables on many
#: virtual shards.  Not on MySQL, which names the file in SHOW CREATE TABLE.
_ONE_FILE = (
    "--loose-innodb-file-per-table=OFF",
    # 64 MB at a time by default.
    "--innodb-autoextend-increment=4",
)


class MySQLServer(DatabaseServer):
    """A MySQL server for tests.

    Needs MySQL 8.4 or later on the machine, or the directory of an unpacked one in
    ``SQLA_SHARD_MYSQL``.  The server offers TLS, with a certificate of its own.

    Its arguments are those of :class:`~.database_server.DatabaseServer`.
    """

    kind: ClassVar[Literal["mariadb", "mysql"]] = "mysql"

    def replicate_from(
        self, primary: DatabaseServer, *, user: str, password: str, demote: bool = False
    ) -> None:
        """Replicate from another server, from the current position on."""
        # A former primary has its own GTIDs in gtid_executed: nothing is to
        # be demoted.
        with self.root_connect() as connection:
            cursor = connection.cursor()
            cursor.execute("STOP REPLICA")
            cursor.execute(
                "CHANGE REPLICATION SOURCE TO SOURCE_HOST = %s,"
                " SOURCE_PORT = %s, SOURCE_USER = %s, SOURCE_PASSWORD = %s,"
                # Reconnect immediately after a crash, not after a minute, and
                # try again for longer than ten seconds.
                " SOURCE_CONNECT_RETRY = 1, SOURCE_RETRY_COUNT = 86400,"
                # Without it the password would need TLS.
                " SOURCE_AUTO_POSITION = 1, GET_SOURCE_PUBLIC_KEY = 1",
                (primary.host, primary.port, user, password),
            )
            cursor.execute("START REPLICA")

    def position(self) -> str:
        """Return the GTIDs of all that is in the binary log."""
        ((position,),) = self.root_execute("SELECT @@gtid_executed")
        return str(position)

    def reaches(self, position: str, timeout: float) -> bool:
        """Wait until it has applied a position of its primary."""
        # With 0 it would wait without end.
        ((answer,),) = self.root_execute(
            "SELECT WAIT_FOR_EXECUTED_GTID_SET(%s, %s)", (position, max(timeout, 0.001))
        )
        return bool(answer == 0)

    @property
    def root_user(self) -> str | None:
        """Name of the user root."""
        return "root"

    @classmethod
    def _find(cls, base: Path | None) -> DatabasePrograms:
        found = find_mysql(
            os.environ if base is None else {"SQLA_SHARD_MYSQL": str(base)}
        )
        if found is None:
            raise exc.ServerProcessError(MISSING_MYSQL, log="")
        return found

    def _install(self, data: Path, account: Account) -> None:
        programs = self._find(self.base)
        done = account.run(
            [
                programs.install,
                *programs.options,
                "--initialize-insecure",  # root has no password
                f"--datadir={data}",
                f"--tmpdir={data.parent}",
                *account.server_options,
                *self._options(),
                *self._storage_options(),
            ],
            cwd=data.parent,
        )
        if done.returncode:
            raise exc.ServerProcessError(
                f"mysqld --initialize ended with status {done.returncode}",
                log=done.stdout or tail(data.parent / "error.log"),
            )
        # It has the UUID of the server: a copy with the same one cannot
        # replicate.
        (data / "auto.cnf").unlink(missing_ok=True)

    def _options(self) -> list[str]:
        return [
            "--gtid-mode=ON",
            "--enforce-gtid-consistency=ON",
            "--mysqlx=OFF",
            # The default is a directory that packages create.
            "--secure-file-priv=NULL",
            # They wait for work in loops.
            "--innodb-log-writer-threads=OFF",
            # Each server would take 2,300 of the 65,536 requests that the
            # kernel has for all of them.
            "--innodb-use-native-aio=OFF",
            # 64 MB by default, all of which is written when a server starts.
            "--innodb-log-buffer-size=1M",
            *(_FAST if self.fast else ()),
        ]

    def _storage_options(self) -> list[str]:
        # A data directory cannot be used with another value of this option.
        found = [one for one in self.options if "lower-case-table" in one]
        if self.fast:
            found += [
                "--innodb-buffer-pool-size=64M",
                "--innodb-redo-log-capacity=32M",
                "--key-buffer-size=1M",
            ]
        return found


# The modes of MySQL 8, which are stricter than those of MariaDB.
_SQL_MODE = ",".join(
    (
        "ONLY_FULL_GROUP_BY",
        "STRICT_TRANS_TABLES",
        "NO_ZERO_IN_DATE",
        "NO_ZERO_DATE",
        "ERROR_FOR_DIVISION_BY_ZERO",
        "NO_ENGINE_SUBSTITUTION",
    )
)


class MariaDBServer(DatabaseServer):
    """A MariaDB server for tests.

    Needs MariaDB 10.6 or later on the machine.

    :param gtid_domain_id: domain of its GTIDs, by default the ``server_id``.
        Give a standby the id of its primary.
    :param arguments: see :class:`~.database_server.DatabaseServer`.
    :raises ValueError: if an argument is not valid.
    """

    kind: ClassVar[Literal["mariadb", "mysql"]] = "mariadb"

    def __init__(
        self,
        name: str = "server1",
        *,
        gtid_domain_id: int | None = None,
        **arguments: Any,
    ) -> None:
        super().__init__(name, **arguments)
        self.gtid_domain_id: int = (
            self.server_id if gtid_domain_id is None else gtid_domain_id
        )

    def replicate_from(
        self, primary: DatabaseServer, *, user: str, password: str, demote: bool = False
    ) -> None:
        """Replicate from another server, from the current position on."""
        sql = (
            "CHANGE MASTER TO MASTER_HOST = %s, MASTER_PORT = %s,"
            " MASTER_USER = %s, MASTER_PASSWORD = %s,"
            # Reconnect immediately after a crash, not after a minute.
            " MASTER_CONNECT_RETRY = 1, MASTER_USE_GTID = slave_pos"
        )
        if demote:
            sql += ", MASTER_DEMOTE_TO_SLAVE = 1"
        with self.root_connect() as connection:
            cursor = connection.cursor()
            cursor.execute("STOP SLAVE")
            cursor.execute(sql, (primary.host, primary.port, user, password))
            cursor.execute("START SLAVE")

    def position(self) -> str:
        """Return the GTIDs of all that is in the binary log."""
        ((position,),) = self.root_execute("SELECT @@gtid_binlog_pos")
        return str(position)

    def reaches(self, position: str, timeout: float) -> bool:
        """Wait until it has applied a position of its primary."""
        ((answer,),) = self.root_execute(
            "SELECT MASTER_GTID_WAIT(%s, %s)", (position, timeout)
        )
        return bool(answer == 0)

    @property
    def root_user(self) -> str | None:
        """Name of the user root: the account of this process."""
        return database_server.system_user()

    @classmethod
    def _find(cls, base: Path | None) -> DatabasePrograms:
        found = find_mariadb(
            os.environ if base is None else {"SQLA_SHARD_MARIADB": str(base)}
        )
        if found is None:
            raise exc.ServerProcessError(MISSING_MARIADB, log="")
        return found

    def _install(self, data: Path, account: Account) -> None:
        programs = self._find(self.base)
        if self.root_user is None:
            raise exc.ServerProcessError(
                f"user id {os.geteuid()} has no name, so MariaDB cannot "
                "identify it. Add it to /etc/passwd",
                log="",
            )
        done = account.run(
            [
                programs.install,
                *programs.options,
                "--force",  # without a name service
                "--skip-test-db",  # without anonymous users
                "--skip-name-resolve",
                "--auth-root-authentication-method=socket",
                f"--auth-root-socket-user={self.root_user}",
                f"--datadir={data}",
                f"--tmpdir={data.parent}",
                "--skip-log-bin",
                "--innodb-flush-method=nosync",
                "--sync-frm=0",
                *self._storage_options(),
            ],
            cwd=data.parent,
        )
        if done.returncode:
            raise exc.ServerProcessError(
                f"mariadb-install-db ended with status {done.returncode}",
                log=done.stdout or tail(data.parent / "error.log"),
            )

    def _options(self) -> list[str]:
        # DDL waits for the disk several times for each table.  "loose":
        # releases without one of these options ignore it.
        unsynced = ("--loose-innodb-flush-method=nosync", "--loose-debug-no-sync")
        return [
            "--binlog-format=ROW",
            "--log-slave-updates=1",
            f"--gtid-domain-id={self.gtid_domain_id}",
            "--gtid-strict-mode=1",
            f"--sql-mode={_SQL_MODE}",
            *((*unsynced, *_ONE_FILE) if self.fast else ()),
        ]

    def _storage_options(self) -> list[str]:
        if not self.fast:
            return []
        return [
            "--innodb-buffer-pool-size=64M",
            "--innodb-log-file-size=32M",
            "--aria-pagecache-buffer-size=8M",
            "--key-buffer-size=1M",
        ]
