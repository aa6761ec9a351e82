"""``sqla-shard dev up``: local servers for development, until Ctrl-C.

They are those of :mod:`sqla_shard.testing`: real MySQL or MariaDB servers,
ZooKeeper and memcached on 127.0.0.1, whose data is removed when they are
stopped.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, ExitStack
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

import click

from sqla_shard.cli.options import VARIABLE
from sqla_shard.cli.output import command, data_option, echo, FAILED, option, print_data
from sqla_shard.cli.service_loop import StopFlag
from sqla_shard.fleet import Account, Accounts
from sqla_shard.fleet.replication import replication_kind
from sqla_shard.testing.cache_servers import MemcachedServer
from sqla_shard.testing.database_server import DatabaseServer
from sqla_shard.testing.local_server import in_parallel, LocalServer
from sqla_shard.testing.mysql import MariaDBServer, MySQLServer
from sqla_shard.testing.server_fleet import MariaDBPair, MySQLPair, ServerPair
from sqla_shard.testing.topology_documents import databases, topology_document
from sqla_shard.testing.zookeeper import ZooKeeperServer
from sqla_shard.topology import to_json, Topology
from sqla_shard.topology.zookeeper import Publisher
from sqla_shard.util.files import replace_file

#: What the operations of a fleet ask of every server.
FLEET_OPTIONS = ("--skip-slave-start", "--event-scheduler=OFF")

_KINDS: dict[str, tuple[type[DatabaseServer], type[ServerPair[Any]]]] = {
    "mariadb": (MariaDBServer, MariaDBPair),
    "mysql": (MySQLServer, MySQLPair),
}
_NODE = "/sqla_shard"
_PASSWORD = "MYSQL_PASSWORD"  # noqa: S105  # the name of a variable


class LocalServers:
    """The servers of ``dev up``, and how to reach them.

    :param kind: ``mariadb`` or ``mysql``.
    :param servers: number of servers, or of pairs.
    :param shards: number of virtual shards of the keyspace ``objects``.
    :param lookup: number of shards of the keyspace ``lookup``; 0 for none.
    :param pairs: whether each server has a standby, and the accounts with
        which ``sqla-shard fleet`` operates them.
    :param spare: whether to start another pair, which is empty and not in the
        topology, to move shards to.
    :param zookeeper: whether to start a ZooKeeper, with the topology.
    :param memcached: whether to start a memcached.
    """

    def __init__(
        self,
        *,
        kind: str,
        servers: int,
        shards: int,
        lookup: int,
        pairs: bool,
        spare: bool,
        zookeeper: bool,
        memcached: bool,
    ) -> None:
        self.environ: dict[str, str] = {
            _PASSWORD: os.environ.get(_PASSWORD) or secrets.token_urlsafe(12)
        }
        self._shards = shards
        self._lookup = lookup
        self.pairs: list[ServerPair[Any]] = []
        self.spare: ServerPair[Any] | None = None
        self.primaries: list[DatabaseServer] = []
        names = [f"server{number}" for number in range(1, servers + 1)]
        password = self.environ[_PASSWORD]
        server_class, pair_class = _KINDS[kind]
        if pairs:
            self.environ |= _operators()
            pair = partial(
                pair_class, password=password, fast=True, options=FLEET_OPTIONS
            )
            self.pairs = list(map(pair, names))
            if spare:
                self.spare = pair(f"server{servers + 1}")
            self.primaries = [pair.primary for pair in self.pairs]
        else:
            self.primaries = [
                server_class(name, password=password, fast=True) for name in names
            ]
        self.zookeeper: ZooKeeperServer | None = (
            ZooKeeperServer() if zookeeper else None
        )
        self.memcached: MemcachedServer | None = (
            MemcachedServer() if memcached else None
        )

    @property
    def processes(self) -> list[LocalServer]:
        """All servers."""
        others = (self.zookeeper, self.memcached)
        return [
            *(server for pair in self._all_pairs for server in pair.servers),
            *(() if self.pairs else self.primaries),
            *(one for one in others if one is not None),
        ]

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the servers; stop them, and remove their data, at the end.

        :raises ServerProcessError: if a program is missing or a server does
            not start.
        """
        units = self._all_pairs or self.primaries
        others = [one for one in (self.zookeeper, self.memcached) if one]
        with ExitStack() as stack:
            stack.callback(_stop, [*units, *others])
            in_parallel([*units, *others], lambda one: one.start())
            accounts = Accounts.from_environ(self.environ) if self.pairs else None
            for server in self.processes:
                if accounts and isinstance(server, DatabaseServer):
                    add_accounts(server, accounts)
            in_parallel(self.primaries, self._create_databases)
            for pair in self.pairs:
                pair.wait_caught_up()
            yield

    def document(self) -> dict[str, Any]:
        """Return the topology; its URLs have ``${MYSQL_PASSWORD}``."""
        document = topology_document(
            dict(zip(self._names, map(_url, self.primaries), strict=True)),
            self._shards,
            lookup=self._lookup,
        )
        standbys = {pair.name: _url(pair.standby) for pair in self.pairs}
        for keyspace in document["keyspaces"].values():
            for server in keyspace["servers"]:
                if standby := standbys.get(server["name"]):
                    server["standby"] = standby
        return document

    @property
    def _all_pairs(self) -> list[ServerPair[Any]]:
        return [*self.pairs, *([self.spare] if self.spare else [])]

    @property
    def _names(self) -> list[str]:
        return [one.name for one in self.pairs or self.primaries]

    def _create_databases(self, server: DatabaseServer) -> None:
        name = self._names[self.primaries.index(server)]
        with server.connect(autocommit=True) as connection:
            cursor = connection.cursor()
            for owner, database in databases(self.document()):
                if owner == name:
                    cursor.execute(
                        f"CREATE DATABASE `{database}` "
                        "CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
                    )


def _operators() -> dict[str, str]:
    """Return the accounts of an operator, those of the environment first."""
    found = {}
    for kind, user in (("OPERATOR", "operator"), ("REPLICATION", "replica")):
        for part, default in (("USER", user), ("PASSWORD", secrets.token_urlsafe(12))):
            name = f"SQLA_SHARD_{kind}_{part}"
            found[name] = os.environ.get(name) or default
    return found


def _url(server: DatabaseServer) -> str:
    return f"mysql://{server.user}:${{{_PASSWORD}}}@{_address(server)}"


def _address(server: DatabaseServer) -> str:
    return f"{server.host}:{server.port}"


def _stop(servers: Sequence[Any]) -> None:
    in_parallel(servers, lambda one: one.stop())


def add_accounts(server: DatabaseServer, accounts: Accounts) -> None:
    """Create the operator and the replication account on a server.

    They have the privileges that the documentation of the fleet lists, and
    are not replicated.
    """
    kind = replication_kind(is_mariadb=server.kind == "mariadb")
    privileges = ", ".join(kind.operator_privileges)
    grants: list[tuple[Account, str]] = [
        (accounts.operator, privileges),
        (accounts.for_replication(), "REPLICATION SLAVE"),
    ]
    with server.root_connect() as connection:
        cursor = connection.cursor()
        cursor.execute("SET SESSION sql_log_bin = 0")
        for account, allowed in grants:
            name = f"'{account.user}'@'{server.host}'"
            cursor.execute(f"CREATE USER {name} IDENTIFIED BY %s", (account.password,))
            cursor.execute(f"GRANT {allowed} ON *.* TO {name}")


@command(
    "up",
    "sqla-shard dev up --server mysql --servers 3 --shards 64",
    "sqla-shard dev up --servers 2 --pairs --zookeeper --memcached",
)
@option(
    "--server",
    "Kind of the servers.",
    click.Choice([*_KINDS]),
    to="kind",
    default="mariadb",
    show_default=True,
)
@option("--servers N", "Number of servers.", click.IntRange(1, 64), default=2)
@option("--shards N", "Number of virtual shards.", click.IntRange(1, 4096), default=64)
@option(
    "--lookup N",
    "Number of shards of the keyspace lookup; 0 for none.",
    click.IntRange(0, 4096),
    default=0,
)
@option("--pairs", "A standby for each server, and accounts for sqla-shard fleet.")
@option(
    "--spare",
    "With --pairs: another pair, without shards, for sqla-shard fleet split and move.",
)
@option("--zookeeper", "A ZooKeeper with the topology.")
@option("--memcached", "A memcached.")
@option(
    "--file PATH",
    "Topology file to write; it is removed at the end.",
    click.Path(path_type=Path, dir_okay=False),
    to="path",
    default=Path("topology.json"),
)
@data_option
def up_command(path: Path, as_data: bool, **options: Any) -> None:
    """Run local servers until Ctrl-C, and write their topology.

    For development and trials: the servers listen on 127.0.0.1, do not flush
    to disk, and lose their data at the end.  The passwords are those of the
    environment, such as MYSQL_PASSWORD, or random and printed.  The user of
    the topology, app, may create databases whose names begin with db, lookup
    or main.
    """
    if options["servers"] > options["shards"]:
        raise click.UsageError(
            f"--shards {options['shards']} is less than --servers "
            f"{options['servers']}; each server needs a shard"
        )
    if options["spare"] and not options["pairs"]:
        raise click.UsageError("--spare is a pair; give --pairs, too")
    if path.exists():
        raise click.UsageError(
            f"{path} exists; name another file with --file, or remove it"
        )
    servers = LocalServers(**options)
    with StopFlag() as end, servers.running():
        topology = Topology.from_mapping(servers.document(), environ=servers.environ)
        replace_file(path, to_json(topology), 0o600)
        try:
            url = _publish(servers, topology)
            _show(servers, path, url, as_data)
            _wait(servers, end, click.get_current_context())
        finally:
            path.unlink(missing_ok=True)


def _publish(servers: LocalServers, topology: Topology) -> str | None:
    if servers.zookeeper is None:
        return None
    url = f"zookeeper://{servers.zookeeper.hosts}{_NODE}"
    with Publisher(url) as publisher:
        publisher.publish(topology)
        publisher.open_nodes()
    return url


def _show(servers: LocalServers, path: Path, url: str | None, as_data: bool) -> None:
    memcached, spare = servers.memcached, servers.spare
    if as_data:
        print_data(
            {
                "topology": str(path),
                "zookeeper": url,
                "memcached": memcached and memcached.address,
                "environ": servers.environ,
                "spare": spare
                and {
                    "name": spare.name,
                    "primary": _address(spare.primary),
                    "standby": _address(spare.standby),
                },
                "pids": {one.name: one.pid for one in servers.processes},
            }
        )
        return
    for one in servers.processes:
        if isinstance(one, DatabaseServer):
            echo(f"{one.name}: {_address(one)}")
    echo(f"topology: {path}")
    if url is not None:
        echo(f"ZooKeeper: {url}")
    if memcached is not None:
        echo(f"memcached: {memcached.address}")
    echo("\nIn another terminal:")
    for name, value in servers.environ.items():
        echo(f"  export {name}={value}")
    echo(f"  export {VARIABLE}={quote(url or str(path))}")
    echo("  sqla-shard topology show")
    if spare is not None:
        echo(
            f"  sqla-shard fleet {_to_move(servers)} --to {spare.name} --primary "
            f"{_address(spare.primary)} --standby {_address(spare.standby)}"
        )
    echo("\nCtrl-C stops the servers and removes their data.")


def _to_move(servers: LocalServers) -> str:
    """Return the operation that moves half of the shards of a server."""
    server, *_ = servers.document()["keyspaces"]["objects"]["servers"]
    first, last = server["shards"]
    if first == last:
        return f"move {server['name']}"
    half = f"{(first + last + 1) // 2}-{last}"
    return f"split {server['name']} --shards objects:{half}"


def _wait(servers: LocalServers, end: StopFlag, ctx: click.Context) -> None:
    """Wait for Ctrl-C; report a server that has ended by itself."""
    ended: set[str] = set()
    while not end.wait(1.0):
        for one in servers.processes:
            if not one.running and one.name not in ended:
                ended.add(one.name)
                echo(f"{one.name} has ended:\n{one.log_tail}", err=True)
    if ended:
        ctx.exit(FAILED)
