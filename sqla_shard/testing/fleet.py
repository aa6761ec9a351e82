"""Several servers that share the virtual shards of one topology.

::

    with MariaDBFleet(servers=2, shards=16) as fleet:
        fleet.create_databases()
        document = fleet.topology_mapping(main=True)
        ...
        fleet.servers[0].kill()

Four servers start in a second or two: their data directories are copies of
one, and they start side by side.  Where ``SQLA_SHARD_TEST_SERVERS`` is set
(see :mod:`.external`) its servers are used and nothing is started.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from sqla_shard.testing._started import at_once
from sqla_shard.testing._started import Started
from sqla_shard.testing.accounts import PREFIXES
from sqla_shard.testing.accounts import random_password
from sqla_shard.testing.documents import databases
from sqla_shard.testing.documents import divide
from sqla_shard.testing.documents import MOD_DATABASE
from sqla_shard.testing.documents import OBJECTS_DATABASE
from sqla_shard.testing.documents import sqlite_topology
from sqla_shard.testing.documents import topology_document
from sqla_shard.testing.external import external_servers
from sqla_shard.testing.external import ExternalServer
from sqla_shard.testing.mariadb import MariaDBServer
from sqla_shard.testing.proxy import Proxy

__all__ = ["MariaDBFleet", "sqlite_topology"]

_PASSWORD = "MYSQL_PASSWORD"  # noqa: S105 - a name, not a secret


class MariaDBFleet(Started):
    """Servers ``server1``, ``server2``... and the databases on them.

    :param servers: how many; as many as ``SQLA_SHARD_TEST_SERVERS`` names
        where that is set.
    :param shards: virtual shards of the keyspace ``objects``.
    :param database: pattern of their database names.
    :param password: of the application user, the same on all servers; by
        default ``SQLA_SHARD_TEST_PASSWORD``, else random.
    :param prefixes: what names of databases may begin with.
    :param fast: see :class:`~.mariadb.MariaDBServer`.
    :param options: further arguments of every ``mariadbd``.
    :param start_timeout: seconds to wait for each server.
    :raises ValueError: if an argument makes no sense.
    """

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
        start_timeout: float = 60.0,
    ) -> None:
        external = external_servers()
        divide(shards, len(external) or servers)
        if not external and not database.startswith(tuple(prefixes)):
            raise ValueError(
                f"database {database!r} begins with none of the prefixes "
                f"{', '.join(map(repr, prefixes))}"
            )
        self.shards = shards
        self.database = database
        self.fast = fast
        self.local = not external
        """Whether the servers are processes of ours, which we can kill."""
        self.servers: Sequence[MariaDBServer | ExternalServer] = external
        """In order; external ones where :attr:`local` is false."""
        if external:
            return
        shared = random_password() if password is None else password
        self.servers = [
            MariaDBServer(
                f"server{number}",
                password=shared,
                prefixes=prefixes,
                fast=fast,
                options=options,
                start_timeout=start_timeout,
            )
            for number in range(1, servers + 1)
        ]

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} servers={len(self.servers)} "
            f"shards={self.shards} local={self.local}>"
        )

    # -- starting and ending ----------------------------------------------

    def start(self) -> MariaDBFleet:
        """Start all servers at once and wait until they answer.

        If one fails, none is left running.

        :raises sqla_shard.exc.ServerProcessError: if MariaDB is missing or
            a server does not start; external ones, if one does not answer.
        """
        with self._or_stopped():
            at_once(self.servers, lambda server: server.start())
        return self

    def stop(self) -> None:
        """End all servers and remove their data; external ones stay."""
        at_once(self.servers, lambda server: server.stop())

    def server(self, name: str) -> MariaDBServer | ExternalServer:
        """Return the server of that name.

        :raises KeyError: if there is none.
        """
        return {server.name: server for server in self.servers}[name]

    # -- topology and databases -------------------------------------------

    @property
    def environ(self) -> dict[str, str]:
        """Values for the placeholders of :meth:`topology_mapping`.

        ``MYSQL_PASSWORD`` alone where the servers share one password, else
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

        :param shards: of ``objects``; by default those of the fleet.
        :param database: pattern of the database names of ``objects``; by
            default that of the fleet.  Give each test module its own, such
            as ``"db_move{shard:05d}"``, and none sees data of another.
        :param main: whether to add the keyspace ``main``; or the name of
            its database.
        :param lookup: shards of the keyspace ``lookup``; 0 for none.
        :param lookup_database: pattern of its database names.
        :param weights: for each server its share of new roots.
        :param placeholders: leave passwords to ``${...}``, for which
            :attr:`environ` has the values.
        :param proxies: a running one for each server, in order; the topology
            then leads through them.
        :raises ValueError: if there are proxies, but not one for each.
        """
        if proxies and len(proxies) != len(self.servers):
            raise ValueError(
                f"proxies: {len(proxies)} for {len(self.servers)} servers"
            )
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

    def create_databases(
        self, document: Mapping[str, Any] | None = None
    ) -> None:
        """Create the database of every virtual shard where it is missing.

        Character set utf8mb4, collation utf8mb4_bin.

        :param document: from :meth:`topology_mapping`; by default with
            ``objects`` alone.
        """
        self._run(
            "CREATE DATABASE IF NOT EXISTS `{}` "
            "CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
            document,
        )

    def drop_databases(
        self, document: Mapping[str, Any] | None = None
    ) -> None:
        """Drop the database of every virtual shard, if it is there.

        :param document: from :meth:`topology_mapping`; by default with
            ``objects`` alone.
        """
        self._run("DROP DATABASE IF EXISTS `{}`", document)

    # -- inside -----------------------------------------------------------

    def _placeholder(self, number: int) -> str:
        shared = len({server.password for server in self.servers}) == 1
        return _PASSWORD if shared else f"{_PASSWORD}_{number}"

    def _run(self, sql: str, document: Mapping[str, Any] | None) -> None:
        if document is None:
            document = self.topology_mapping()
        names: dict[str, list[str]] = {}
        for server, database in databases(document):
            names.setdefault(server, []).append(database)

        def action(server: MariaDBServer | ExternalServer) -> None:
            with server.connect(autocommit=True) as connection:
                cursor = connection.cursor()
                for name in names.get(server.name, ()):
                    cursor.execute(sql.format(name))

        at_once(self.servers, action)
