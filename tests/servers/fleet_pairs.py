"""Pairs of servers as a fleet has them, with the accounts of an operator.

::

    with FleetPairs(tmp_path, pairs=2, shards=16) as fleet_pairs:
        fleet = fleet_pairs.fleet()
        fleet_pairs["server1"].primary.root_execute(...)
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from sqla_shard.cli.dev_command import add_accounts, FLEET_OPTIONS
from sqla_shard.fleet import Account, Accounts, Fleet
from sqla_shard.testing import MariaDBPair
from sqla_shard.testing.database_server import DatabaseServer
from sqla_shard.testing.local_server import in_parallel
from sqla_shard.testing.server_fleet import ServerPair
from sqla_shard.testing.topology_documents import topology_document
from tests.servers.published import publish_to

#: What MariaDB has built in, and CLONE.
MYSQL_OPTIONS = (
    "--plugin-load-add=semisync_source.so",
    "--plugin-load-add=semisync_replica.so",
    "--plugin-load-add=mysql_clone.so",
)


#: Bytes of memory that have to be left for all else.
_LEFT = 10 << 30


def _parent() -> Path | None:
    """Return where the servers of a pair are: in memory, if there is enough.

    They wait for the disk at each COMMIT, as those of a fleet have to.
    Benchmarks have them on it.
    """
    root = os.environ.get("PYTEST_DEBUG_TEMPROOT")  # see tests/conftest.py
    found = re.search(r"MemAvailable: *(\d+) kB", Path("/proc/meminfo").read_text())
    if root is None or found is None or int(found[1]) << 10 < _LEFT:
        return None
    return Path(root)


class FleetPairs:
    """Some pairs, their accounts, and a topology in a JSON file.

    :param folder: where the topology is written.
    :param pairs: number of pairs in the topology, ``server1`` and so on.
    :param spare: number of pairs outside of the topology, without shards;
        they are named after those.
    :param shards: number of virtual shards, evenly over the pairs.
    :param fast: whether a power failure may lose commits.
    :param options: arguments of every server.
    :param pair: the class of the pairs, which says the kind of the servers.
    """

    def __init__(
        self,
        folder: Path,
        *,
        pairs: int = 1,
        spare: int = 0,
        shards: int = 8,
        fast: bool = True,
        options: Sequence[str] = (),
        pair: type[ServerPair[Any]] = MariaDBPair,
    ) -> None:
        self.path = folder / "topology.json"
        self.shards = shards
        self.accounts = Accounts(
            operator=Account(user="operator", password=secrets.token_urlsafe(12)),
            replication=Account(user="replica", password=secrets.token_urlsafe(12)),
        )
        self._in_topology = pairs
        password = secrets.token_urlsafe(12)
        own = () if pair is MariaDBPair else MYSQL_OPTIONS
        self.pairs = tuple(
            pair(
                f"server{number}",
                password=password,
                fast=fast,
                options=(*FLEET_OPTIONS, *own, *options),
                parent=_parent(),
            )
            for number in range(1, pairs + spare + 1)
        )
        self.kind = self.pairs[0].primary.kind
        self._stack = ExitStack()

    def __enter__(self) -> FleetPairs:
        try:
            in_parallel(self.pairs, ServerPair.start)
            for pair in self.pairs:
                self._stack.callback(pair.stop)
            for server in self.servers:
                self.add_accounts(server)
            publish_to(self.path, self.document())
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def __getitem__(self, name: str) -> ServerPair[Any]:
        return {pair.name: pair for pair in self.pairs}[name]

    @property
    def servers(self) -> list[DatabaseServer]:
        """Every server of every pair."""
        return [server for pair in self.pairs for server in pair.servers]

    def fleet(self, **options: Any) -> Fleet:
        """Return the fleet of the topology file."""
        return Fleet(self.path, accounts=self.accounts, **options)

    def document(self) -> dict[str, Any]:
        """Return the first topology: all pairs but the spare ones."""
        used = self.pairs[: self._in_topology]
        document = topology_document(
            {pair.name: pair.primary.url for pair in used}, self.shards
        )
        standbys = {pair.name: pair.standby.url for pair in used}
        for server in document["keyspaces"]["objects"]["servers"]:
            server["standby"] = standbys[server["name"]]
        return json.loads(json.dumps(document))  # type: ignore[no-any-return]

    def add_accounts(self, server: DatabaseServer) -> None:
        """Create the operator and the replication account on a server."""
        add_accounts(server, self.accounts)


def empty_server(server: DatabaseServer) -> None:
    """Make a server one that has never had a write, nor a fence."""
    is_mariadb = server.kind == "mariadb"
    with server.root_connect() as connection:
        cursor = connection.cursor()
        cursor.execute("SET SESSION sql_log_bin = 0")
        if not is_mariadb:
            cursor.execute("SET GLOBAL super_read_only = 0")
        cursor.execute("SET GLOBAL read_only = 1")
        cursor.execute("STOP REPLICA")
        cursor.execute("RESET REPLICA ALL")
        cursor.execute(
            "DELETE FROM mysql.db WHERE Insert_priv = 'N' AND User NOT LIKE 'mysql.%'"
        )
        cursor.execute("FLUSH LOCAL PRIVILEGES")
        cursor.execute("SHOW DATABASES")
        for (name,) in cursor.fetchall():
            if name.startswith(("db", "moved")):
                cursor.execute(f"DROP DATABASE `{name}`")
        if is_mariadb:
            cursor.execute("RESET MASTER")
            cursor.execute("SET GLOBAL gtid_slave_pos = ''")
        else:
            cursor.execute("RESET BINARY LOGS AND GTIDS")
