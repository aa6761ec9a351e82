"""A fleet of database servers that share the shards of a topology.

::

    with MySQLFleet(servers=2, shards=16) as fleet:
        fleet.create_databases()
        document = fleet.topology_mapping(main=True)
        ...
        fleet.servers[0].kill()

Four servers start in a second or two: their data directories are copies of
one, and they start in parallel.  If ``SQLA_SHARD_TEST_SERVERS`` is set (see
:class:`ExternalServer`), those servers are used and nothing is started.
"""

from __future__ import annotations

import abc
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar
from urllib.parse import quote, unquote, urlsplit

import pymysql

from sqla_shard import exc
from sqla_shard.dialects.mysql.catalogue import TABLE_TYPES
from sqla_shard.testing.database_server import (
    DatabaseServer,
    PREFIXES,
    random_password,
    SQLServer,
)
from sqla_shard.testing.local_server import in_parallel, Startable
from sqla_shard.testing.mysql import MariaDBServer, MySQLServer
from sqla_shard.testing.proxy import Proxy
from sqla_shard.testing.topology_documents import (
    databases,
    divide,
    MOD_DATABASE,
    OBJECTS_DATABASE,
    topology_document,
)

_LETTERS = "abcdefghijklmnopqrstuvwxyz"

_Server = TypeVar("_Server", bound=DatabaseServer)

_Pair = TypeVar("_Pair", bound="ServerPair[Any]")


class ServerPair(Startable, Generic[_Server]):
    """A primary and its standbys for tests.

    ::

        with MySQLPair() as pair:
            with pair.primary.connect() as connection:
                ...                      # write
            pair.wait_caught_up()
            with pair.standby.connect() as connection:
                ...                      # read; writing fails with error 1290

    Needs what :mod:`.database_server` needs; :meth:`ServerPair.attach` with
    ``demote=True`` needs MariaDB 10.10.  Replication is asynchronous, by GTID:
    acknowledged writes may be lost with the primary.  Nothing is promoted
    automatically.  :meth:`ServerPair.attach` and :meth:`ServerPair.name_primary`
    are two of the steps of a test that promotes a standby; the others, such as
    making the old primary read-only first, are statements of root.

    All servers of a pair have the same application user and password, and with
    MariaDB the same GTID domain.  The standbys are started with ``read_only``,
    which holds for the application user, but neither for root nor for
    replication.  A standby that is started after a crash is read-only and
    continues replication; a primary that is started after a crash is writable,
    even if another was promoted meanwhile.

    Do not control (start, stop, attach) one pair from several threads at the same
    time.

    :param name: name of the pair, as in a topology; the servers are
        ``server1a``, ``server1b`` and so on.
    :param standbys: number of standbys, 1 to 25.
    :param password: password of the application user, the same on all servers;
        by default random.
    :param prefixes: see :class:`~.database_server.DatabaseServer`.
    :param fast: see :class:`~.database_server.DatabaseServer`.
    :param options: arguments of every server, which override the others.
    :param base: directory of an unpacked server; by default the one of
        :mod:`.local_server`.
    :param parent: parent of the servers' directories; by default the directory
        for temporary files (``TMPDIR``).
    :param start_timeout: seconds to wait for each server.
    :raises ValueError: if an argument is not valid.
    """

    replication_user = "replication"
    """User of the standbys on their primary, for replication only."""

    def __init__(
        self,
        name: str = "server1",
        *,
        standbys: int = 1,
        password: str | None = None,
        prefixes: Sequence[str] = PREFIXES,
        fast: bool = False,
        options: Sequence[str] = (),
        base: Path | None = None,
        parent: Path | None = None,
        start_timeout: float = 60.0,
    ) -> None:
        if not 1 <= standbys < len(_LETTERS):
            raise ValueError(f"standbys={standbys!r} must be from 1 to 25")
        self.name = name
        shared = random_password() if password is None else password
        servers: list[_Server] = []
        for letter in _LETTERS[: standbys + 1]:
            closed = ("--read-only=1",) if servers else ()
            server = self._make(
                f"{name}{letter}",
                servers[0] if servers else None,
                password=shared,
                prefixes=prefixes,
                fast=fast,
                options=(*closed, *options),
                base=base,
                parent=parent,
                start_timeout=start_timeout,
            )
            servers.append(server)
        self.servers: tuple[_Server, ...] = tuple(servers)
        """All servers, in an order that promotions do not change."""
        self._primary = servers[0]
        self._replication_password = secrets.token_urlsafe(18)
        self._attached = False

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.name} "
            f"primary={self._primary.name} servers={len(self.servers)}>"
        )

    @abc.abstractmethod
    def _make(self, name: str, primary: _Server | None, **arguments: Any) -> _Server:
        """Return a new server.

        :param primary: the first one of the pair; None if this is it.
        """

    # -- roles ------------------------------------------------------------

    @property
    def primary(self) -> _Server:
        """The server that the others replicate from."""
        return self._primary

    @property
    def standby(self) -> _Server:
        """The first of the standbys."""
        return self.standbys[0]

    @property
    def standbys(self) -> tuple[_Server, ...]:
        """All servers but the primary."""
        return tuple(s for s in self.servers if s is not self._primary)

    def name_primary(self, server: _Server) -> None:
        """Set the primary of the pair, without a statement to the servers.

        :param server: one of :attr:`servers`.
        :raises ValueError: if the server belongs to another pair.
        """
        if server not in self.servers:
            raise ValueError(f"{server!r} is not a server of {self!r}")
        self._primary = server

    def start(self: _Pair) -> _Pair:
        """Start all servers in parallel, and replication the first time.

        If one fails, all are stopped.

        :raises sqla_shard.exc.ServerProcessError: if the program is missing,
            or a server does not start.
        """
        with self._stopped_on_error():
            in_parallel(self.servers, DatabaseServer.start)
            if not self._attached:
                for server in self.servers:
                    self._create_account(server)
                for server in self.standbys:
                    self.attach(server)
                self._attached = True
        return self

    def stop(self) -> None:
        """Stop all servers and remove their data."""
        in_parallel(self.servers, DatabaseServer.stop)
        self._attached = False
        self._primary = self.servers[0]

    # -- replication ------------------------------------------------------

    def attach(self, server: _Server, *, demote: bool = False) -> None:
        """Let a server replicate from the primary of this pair.

        It continues where it stopped; a new server gets all writes since
        the first.  ``read_only`` is not changed.

        :param server: a server of this pair or of another; not the primary.
        :param demote: whether it has been a primary, and the new primary has
            all its writes.
        :raises ValueError: if the server is the primary.
        :raises pymysql.err.MySQLError: if the server refuses.
        """
        if server is self._primary:
            raise ValueError(f"{server!r} cannot replicate from itself")
        server.replicate_from(
            self._primary,
            user=self.replication_user,
            password=self._replication_password,
            demote=demote,
        )

    def wait_caught_up(self, timeout: float = 30.0) -> None:
        """Wait until the standbys have applied all writes of the primary.

        :param timeout: seconds for each standby.
        :raises sqla_shard.exc.ServerProcessError: if a standby is too late;
            has its replication status.
        """
        position = self._primary.position()
        for server in self.standbys:
            if not server.reaches(position, timeout):
                raise exc.ServerProcessError(
                    f"{server!r} has not reached {position} of "
                    f"{self._primary.name} within {timeout:g} s",
                    log=server.replication_state(),
                )

    def _create_account(self, server: _Server) -> None:
        account = f"'{self.replication_user}'@'{server.host}'"
        with server.root_connect() as connection:
            cursor = connection.cursor()
            # Do not replicate this: every server has the account, since each
            # may become the primary.
            cursor.execute("SET SESSION sql_log_bin = 0")
            cursor.execute(
                f"CREATE USER {account} IDENTIFIED BY %s", (self._replication_password,)
            )
            cursor.execute(f"GRANT REPLICATION SLAVE ON *.* TO {account}")


class MariaDBPair(ServerPair[MariaDBServer]):
    """Servers of MariaDB; the arguments are those of :class:`ServerPair`."""

    def _make(
        self, name: str, primary: MariaDBServer | None, **arguments: Any
    ) -> MariaDBServer:
        # A single applier is slower than a primary with a few busy writers.
        options = ("--slave-parallel-threads=4", *arguments.pop("options"))
        return MariaDBServer(
            name,
            gtid_domain_id=None if primary is None else primary.gtid_domain_id,
            options=options,
            **arguments,
        )


class MySQLPair(ServerPair[MySQLServer]):
    """Servers of MySQL; the arguments are those of :class:`ServerPair`."""

    def _make(
        self, name: str, primary: MySQLServer | None, **arguments: Any
    ) -> MySQLServer:
        return MySQLServer(name, **arguments)


#: The tables of alembic, and of this package, that name revisions.
_REVISIONS = ("alembic_version", "sqla_shard_ledger", "sqla_shard_version")

#: Number of tables that one statement looks at.
_TOGETHER = 200

_Fleet = TypeVar("_Fleet", bound="ServerFleet[Any]")


class ExternalServer(SQLServer):
    """A server that the tests use, but do not start or stop.

    It can be of another version, or a server on another machine.  Tests
    that need no process of their own run on it.  The environment variable
    ``SQLA_SHARD_TEST_SERVERS`` has the URLs of such servers, separated by
    commas: ``mysql://user:password@host:port``; a fleet takes those of its
    kind, MariaDB or MySQL, whatever the scheme of the URL.  The account must
    have the privileges to create and drop the databases of the tests (names
    that begin with ``db``, ``main`` and ``lookup``); those are dropped.

    It has the part of :class:`~.database_server.DatabaseServer` that needs no
    process: ``name``, ``host``, ``port``, ``user``, ``password``, ``url``,
    :meth:`connect` and :meth:`root_execute`.

    :param name: name of the server, for messages and in a topology.
    :param url: URL of the server, as in ``SQLA_SHARD_TEST_SERVERS``.
    :raises ValueError: if the URL lacks a part; the password is not shown.
    """

    local = False
    """Whether the server is a local process that tests can kill."""

    def __init__(self, name: str, url: str) -> None:
        parts = urlsplit(url)
        scheme = parts.scheme.partition("+")[0]
        if scheme not in ("mysql", "mariadb") or not (
            parts.hostname and parts.username
        ):
            raise ValueError(
                "SQLA_SHARD_TEST_SERVERS: the URL of "
                f"{name} must have the form mysql://user:password@host:port"
            )
        self.name = name
        self.host: str = parts.hostname
        self.port: int = parts.port or 3306
        self.user: str = unquote(parts.username)
        self.password: str = unquote(parts.password or "")
        self.url: str = url.strip().replace(parts.scheme, "mysql", 1)

    def __repr__(self) -> str:
        where = f"{self.host}:{self.port}"
        return f"<{type(self).__name__} {self.name} {where}>"

    def start(self) -> ExternalServer:
        """Check that the server responds.

        :raises sqla_shard.exc.ServerProcessError: if it does not respond.
        """
        try:
            self.root_execute("SELECT 1")
        except pymysql.err.MySQLError as error:
            raise exc.ServerProcessError(
                f"{self!r} of SQLA_SHARD_TEST_SERVERS does not respond: {error}", log=""
            ) from error
        return self

    def stop(self) -> None:
        """Do nothing: the tests do not own the server."""

    def kind(self) -> str:
        """Return ``mariadb`` or ``mysql``, according to the server.

        :raises pymysql.err.MySQLError: if it does not respond.
        """
        ((version,),) = self.root_execute("SELECT VERSION()")
        return "mariadb" if "mariadb" in version.lower() else "mysql"


def external_servers(environ: Mapping[str, str] = os.environ) -> list[ExternalServer]:
    """Return the servers of ``SQLA_SHARD_TEST_SERVERS``; empty if not set.

    :raises ValueError: if one of the URLs lacks a part.
    """
    urls = environ.get("SQLA_SHARD_TEST_SERVERS", "").split(",")
    return [
        ExternalServer(f"server{number}", url.strip())
        for number, url in enumerate(filter(str.strip, urls), 1)
    ]


def external_of(kind: str, servers: Sequence[ExternalServer]) -> list[ExternalServer]:
    """Return the servers of one kind, named ``server1``, ``server2``...

    :param kind: ``mariadb`` or ``mysql``.
    :param servers: at least one.
    :raises sqla_shard.exc.ServerProcessError: if one does not respond.
    """
    in_parallel(servers, ExternalServer.start)
    urls = [server.url for server in servers if server.kind() == kind]
    return [
        ExternalServer(f"server{number}", url) for number, url in enumerate(urls, 1)
    ]


def none_of(kind: str) -> str:
    """Return what to say if no external server is of a kind."""
    name = {"mariadb": "MariaDB", "mysql": "MySQL"}[kind]
    return f"SQLA_SHARD_TEST_SERVERS has no server of {name}"


_PASSWORD = "MYSQL_PASSWORD"  # noqa: S105 - a name, not a secret


class ServerFleet(Startable, Generic[_Server]):
    """Servers ``server1``, ``server2``... and the databases on them.

    :param servers: number of servers; ignored if ``SQLA_SHARD_TEST_SERVERS``
        is set.
    :param shards: virtual shards of the keyspace ``objects``.
    :param database: pattern of their database names.
    :param password: password of the application user, the same on all servers;
        by default ``SQLA_SHARD_TEST_PASSWORD``, else random.
    :param prefixes: allowed beginnings of database names.
    :param fast: see :class:`~.database_server.DatabaseServer`.
    :param options: further arguments of every server.
    :param base: directory of an unpacked server; by default the one of
        :mod:`.local_server`.
    :param start_timeout: seconds to wait for each server.
    :raises ValueError: if an argument is not valid.
    """

    server_class: ClassVar[type[DatabaseServer]]
    """The class of its servers."""

    def __init__(
        self,
        servers: int = 4,
        shards: int = 256,
        *,
        database: str = OBJECTS_DATABASE,
        password: str | None = None,
        prefixes: Sequence[str] = PREFIXES,
        fast: bool = False,
        options: Sequence[str] = (),
        base: Path | None = None,
        start_timeout: float = 60.0,
    ) -> None:
        external = external_servers()
        divide(shards, 1 if external else servers)
        if not external and not database.startswith(tuple(prefixes)):
            raise ValueError(
                f"database {database!r} begins with none of the prefixes "
                f"{', '.join(map(repr, prefixes))}"
            )
        self.shards = shards
        self.database = database
        self.fast = fast
        self.local: bool = not external
        """Whether the servers are local processes that tests can kill."""
        self.servers: Sequence[_Server | ExternalServer] = external
        """The servers in order.

        If :attr:`local` is false, external ones: from :meth:`start` on those
        of the fleet's kind.
        """
        if external:
            return
        shared = random_password() if password is None else password
        self.servers = [
            self._make(
                f"server{number}",
                password=shared,
                prefixes=prefixes,
                fast=fast,
                options=options,
                base=base,
                start_timeout=start_timeout,
            )
            for number in range(1, servers + 1)
        ]

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} servers={len(self.servers)} "
            f"shards={self.shards} local={self.local}>"
        )

    def _make(self, name: str, **arguments: Any) -> _Server:
        server: Any = self.server_class(name, **arguments)
        return server  # type: ignore[no-any-return]  # of the subclass

    def start(self: _Fleet) -> _Fleet:
        """Start all servers in parallel and wait until they respond.

        If one fails, all are stopped.

        :raises sqla_shard.exc.ServerProcessError: if the program is missing or
            a server does not start; external ones, if one does not respond, or
            none is of the fleet's kind.
        :raises ValueError: if the shards cannot be divided among the external
            servers.
        """
        external = [s for s in self.servers if isinstance(s, ExternalServer)]
        if external:
            kind = self.server_class.kind
            self.servers = external_of(kind, external)
            if not self.servers:
                raise exc.ServerProcessError(none_of(kind), log="")
            divide(self.shards, len(self.servers))
            return self
        with self._stopped_on_error():
            in_parallel(self.servers, lambda server: server.start())
        return self

    def stop(self) -> None:
        """Stop all local servers and remove their data."""
        in_parallel(self.servers, lambda server: server.stop())

    def server(self, name: str) -> _Server | ExternalServer:
        """Return the server with the given name.

        :raises KeyError: if there is none.
        """
        return {server.name: server for server in self.servers}[name]

    # -- Topology and databases ------------------------------------------

    @property
    def environ(self) -> dict[str, str]:
        """Values for the placeholders of :meth:`topology_mapping`.

        Only ``MYSQL_PASSWORD`` if the servers share one password, otherwise
        ``MYSQL_PASSWORD_1`` for the first and so on.
        """
        return {
            self._placeholder(number): server.password
            for number, server in enumerate(self.servers, 1)
        }

    def topology_mapping(
        self,
        *,
        epoch: int = 1,
        shards: int | None = None,
        database: str | None = None,
        main: bool | str = False,
        lookup: int = 0,
        lookup_database: str = MOD_DATABASE,
        weights: Sequence[float] | None = None,
        placeholders: bool = False,
        proxies: Sequence[Proxy] = (),
    ) -> dict[str, Any]:
        """Return a topology of these servers, as a document.

        Keyspaces, all divided evenly: ``objects``, and on demand the global
        ``main`` and ``lookup`` of kind mod.  The servers must be running.

        :param shards: number of shards of ``objects``; by default that of the
            fleet.
        :param database: pattern of the database names of ``objects``; by
            default that of the fleet.  With a pattern for each test module,
            such as ``"db_move{shard:05d}"``, modules do not share data.
        :param main: whether to add the keyspace ``main``; or the name of
            its database.
        :param lookup: shards of the keyspace ``lookup``; 0 for none.
        :param lookup_database: pattern of its database names.
        :param weights: share of new roots of each server.
        :param placeholders: write ``${...}`` for passwords; :attr:`environ`
            has the values.
        :param proxies: a running proxy for each server, in order, whose
            addresses replace those of the servers.
        :raises ValueError: if there are proxies, but not one for each.
        """
        if proxies and len(proxies) != len(self.servers):
            raise ValueError(f"proxies: {len(proxies)} for {len(self.servers)} servers")
        primaries = {}
        ends: Sequence[Any] = proxies or self.servers
        for number, server in enumerate(self.servers, 1):
            password = quote(server.password, safe="")
            if placeholders:
                password = f"${{{self._placeholder(number)}}}"
            user = quote(server.user, safe="")
            end = ends[number - 1]
            where = f"{end.host}:{end.port}"
            primaries[server.name] = f"mysql://{user}:{password}@{where}"
        return topology_document(
            primaries,
            self.shards if shards is None else shards,
            epoch=epoch,
            database=self.database if database is None else database,
            main=main,
            lookup=lookup,
            lookup_database=lookup_database,
            weights=weights,
        )

    def create_databases(self, document: Mapping[str, Any] | None = None) -> None:
        """Create the missing databases of virtual shards.

        Character set utf8mb4, collation utf8mb4_bin.

        :param document: document of :meth:`topology_mapping`; by default
            with ``objects`` only.
        """
        self._run(
            "CREATE DATABASE IF NOT EXISTS `{}` "
            "CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
            document,
        )

    def drop_databases(self, document: Mapping[str, Any] | None = None) -> None:
        """Drop the databases of virtual shards.

        :param document: document of :meth:`topology_mapping`; by default
            with ``objects`` only.
        """
        self._run("DROP DATABASE IF EXISTS `{}`", document)

    def empty(self, document: Mapping[str, Any] | None = None) -> int:
        """Delete the rows of the databases of virtual shards.

        The tables stay, as do the rows that name their revisions, and
        AUTO_INCREMENT does not restart: ids are not used again.  It takes a
        fraction of the time of dropping and creating them.

        :param document: document of :meth:`topology_mapping`; by default
            with ``objects`` only.
        :returns: number of the rows.
        """
        names = self._databases(document)
        counts: list[int] = []

        def action(server: _Server | ExternalServer) -> None:
            with server.connect() as connection:
                counts.append(_delete_rows(connection.cursor(), names[server.name]))
                connection.commit()

        in_parallel([one for one in self.servers if one.name in names], action)
        return sum(counts)

    def _placeholder(self, number: int) -> str:
        shared = len({server.password for server in self.servers}) == 1
        return _PASSWORD if shared else f"{_PASSWORD}_{number}"

    def _run(self, sql: str, document: Mapping[str, Any] | None) -> None:
        names = self._databases(document)

        def action(server: _Server | ExternalServer) -> None:
            with server.connect(autocommit=True) as connection:
                cursor = connection.cursor()
                for name in names.get(server.name, ()):
                    cursor.execute(sql.format(name))

        in_parallel(self.servers, action)

    def _databases(self, document: Mapping[str, Any] | None) -> dict[str, list[str]]:
        """Return the names of the databases by that of their server."""
        names: dict[str, list[str]] = {}
        for server, database in databases(
            self.topology_mapping() if document is None else document
        ):
            names.setdefault(server, []).append(database)
        return names


def _delete_rows(cursor: Any, schemas: Sequence[str]) -> int:
    """Delete the rows of some databases; return their number."""
    cursor.execute(
        "SELECT table_schema, table_name FROM information_schema.tables"
        " WHERE table_type IN %s AND table_schema IN %s",
        (TABLE_TYPES, schemas),
    )
    tables = [
        ".".join(f"`{one.replace('`', '``')}`" for one in (schema, name))
        for schema, name in cursor.fetchall()
        if not name.startswith(_REVISIONS)
    ]
    # Most of them are empty: a DELETE for each would take longer.
    full: list[str] = []
    for start in range(0, len(tables), _TOGETHER):
        part = tables[start : start + _TOGETHER]
        cursor.execute(
            " UNION ALL ".join(
                f"(SELECT {start + n} FROM {table} LIMIT 1)"  # noqa: S608 - quoted
                for n, table in enumerate(part)
            )
        )
        full += [tables[n] for (n,) in cursor.fetchall()]
    cursor.execute("SET foreign_key_checks = 0")
    return sum(
        cursor.execute(f"DELETE FROM {table}")  # noqa: S608 - quoted
        for table in full
    )


class MariaDBFleet(ServerFleet[MariaDBServer]):
    """Servers of MariaDB; the arguments are those of :class:`ServerFleet`."""

    server_class: ClassVar[type[MariaDBServer]] = MariaDBServer


class MySQLFleet(ServerFleet[MySQLServer]):
    """Servers of MySQL; the arguments are those of :class:`ServerFleet`."""

    server_class: ClassVar[type[MySQLServer]] = MySQLServer
