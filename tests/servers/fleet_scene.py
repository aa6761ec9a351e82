"""A fleet whose topology is in ZooKeeper, with applications that write.

::

    with FleetScene(tmp_path, zookeeper_server, seed=7, kind=server_kind) as scene:
        with scene.writing() as load:
            apply(scene.fleet, Failover.planned(scene.fleet, "server1"))
            load.wait_for_acks(100)
        scene.prove()

The applications are processes of :mod:`tests.servers.fleet_writers`, which
follow the topology.  Others, that are stale, write for ever where the first
topology has a shard; :mod:`tests.servers.load_checks` finds what they write
to an old home.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import re
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from sqla_shard import Cluster, Topology
from sqla_shard.cli.dev_command import FLEET_OPTIONS
from sqla_shard.fleet import Fleet
from sqla_shard.testing import ZooKeeperServer
from sqla_shard.topology import DEFAULT_PLACEHOLDERS
from sqla_shard.topology.urls import address_of
from sqla_shard.topology.zookeeper import Publisher
from tests.models.load_models import Base
from tests.servers.fleet_load import wait_until_equal
from tests.servers.fleet_pairs import FleetPairs, MYSQL_OPTIONS
from tests.servers.fleet_writers import RunWriter, SessionWriter
from tests.servers.kinds import Kind
from tests.servers.load_checks import (
    check,
    Pauses,
    pauses,
    Rows,
    rows_at,
    rows_of_places,
)
from tests.servers.load_log import Attempt
from tests.servers.load_writers import RawWriter
from tests.servers.published import Place, publish_to
from tests.servers.server_statements import semi_sync_options
from tests.servers.writing_load import Load

SHARDS = 8

_numbers = itertools.count(1)


def _of(first: Any) -> tuple[str, ...]:
    """Return the arguments that servers of a pair of MariaDB share."""
    return ("--slave-parallel-threads=4", f"--gtid-domain-id={first.gtid_domain_id}")


class FleetScene:
    """One pair with all shards, and a spare pair.

    :param folder: for logs and the stale topology; an empty one.
    :param zookeeper: where the topology is published.
    :param seed: of everything that is random.
    :param writers: number of processes that write.
    :param kind: kind of the servers.
    :ivar fleet: the fleet.
    :ivar attempts: attempts of the writers of the loads that have ended.
    :ivar late: the stale applications, while a load runs.
    :ivar servers: all servers.
    """

    def __init__(
        self,
        folder: Path,
        zookeeper: ZooKeeperServer,
        *,
        seed: object,
        writers: int,
        kind: Kind,
    ) -> None:
        self.folder = folder
        self.seed = seed
        self.kind = kind
        self.rng = random.Random(str(seed))
        self.attempts: list[Attempt] = []
        self.last: list[Attempt] = []
        self.late: Load
        self._writers = writers
        self._path = f"/scene{next(_numbers)}"
        self._hosts = zookeeper.hosts
        self.pairs = FleetPairs(
            folder,
            pairs=1,
            spare=1,
            shards=SHARDS,
            pair=kind.pair,
            options=semi_sync_options(kind),
        )
        self.servers: list[Any] = self.pairs.servers
        self.fleet = Fleet(
            f"zookeeper://{self._hosts}{self._path}", accounts=self.pairs.accounts
        )
        first = self.pairs["server1"].primary
        self._environ = {"MYSQL_USER": first.user, "MYSQL_PASSWORD": first.password}
        self._stack = ExitStack()

    def __enter__(self) -> FleetScene:
        try:
            self._stack.enter_context(self.pairs)
            self._publish()
            self._create()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def _publish(self) -> None:
        # A topology with passwords is not published.
        text = re.sub(
            r"//[^@/]*@",
            "//${MYSQL_USER}:${MYSQL_PASSWORD}@",
            json.dumps(self.pairs.document()),
        )
        environ = dict.fromkeys(DEFAULT_PLACEHOLDERS, "x")
        with Publisher(self.fleet.location) as publisher:
            publisher.publish(Topology.from_mapping(json.loads(text), environ=environ))

    def _create(self) -> None:
        primary = self.pairs["server1"].primary
        primary.root_execute("SET GLOBAL read_only = 0")
        with self.opening() as cluster:
            cluster.create_all(Base.metadata)
        with primary.connect(autocommit=True) as connection:
            cursor = connection.cursor()
            for _, name in self.places().values():
                for table in ("load_pins", "load_notes", "load_balances"):
                    # For writers that do not know the columns of mixins.
                    cursor.execute(
                        f"ALTER TABLE `{name}`.{table}"
                        " ALTER COLUMN data SET DEFAULT (JSON_OBJECT())"
                    )
                cursor.execute(
                    f"INSERT INTO `{name}`.load_balances (local_id, amount)"
                    " VALUES (1, 0)"
                )

    @property
    def opening(self) -> partial[Cluster]:
        """A function that opens a cluster; picklable."""
        return partial(
            Cluster.from_zookeeper,
            f"{self._hosts}{self._path}",
            snapshot=False,
            environ=self._environ,
        )

    def new_server(self) -> Any:
        """Start an empty server with the accounts of the fleet."""
        first = self.pairs["server1"].primary
        server = self.kind.server(
            f"new{len(self.servers)}",
            password=first.password,
            fast=True,
            options=(
                *FLEET_OPTIONS,
                *semi_sync_options(self.kind),
                *(MYSQL_OPTIONS if self.kind.is_mysql else _of(first)),
            ),
        )
        server.start()
        self._stack.callback(server.stop)
        self.pairs.add_accounts(server)
        self.servers.append(server)
        return server

    # -- the topology -----------------------------------------------------

    def names(self) -> list[str]:
        """Return the names of the servers of the topology."""
        return [server.name for server in self._entries()]

    def roles(self, name: str) -> tuple[Any, Any]:
        """Return the primary and the standby of a server."""
        (entry,) = [one for one in self._entries() if one.name == name]
        standby = None if entry.standby is None else self._at(entry.standby)
        return self._at(entry.primary), standby

    def places(self) -> dict[int, Place]:
        """Return where each virtual shard is, for the application."""
        return {
            shard: (self._at(entry.primary).url, f"db{shard:05d}")
            for entry in self._entries()
            for part in entry.shards
            for shard in part
        }

    def _entries(self) -> Any:
        return self.fleet.topology().keyspaces["objects"].servers

    def _at(self, url: str) -> Any:
        wanted = str(address_of(url))
        (found,) = [
            server
            for server in self.servers
            if f"{server.host}:{server.port}" == wanted
        ]
        return found

    # -- writing ----------------------------------------------------------

    @contextlib.contextmanager
    def writing(self, *, acks: int = 30) -> Iterator[Load]:
        """Write until the end of the block; collect the attempts.

        :param acks: acknowledged writes to wait for before the block.
        """
        number = next(_numbers)
        folder = self.folder / f"load{number}"
        stale = folder / "stale"
        stale.mkdir(parents=True)
        # As it is now, for ever.
        publish_to(stale / "topology.json", self._document())
        writers = (RunWriter(opening=self.opening), SessionWriter(opening=self.opening))
        with (
            Load(
                writers,
                shards=range(SHARDS),
                folder=folder,
                seed=f"{self.seed} {number}",
                processes=self._writers,
                prefix=f"w{number}-",
            ) as load,
            Load(
                RawWriter(path=stale / "topology.json", selects=True, lost="abandoned"),
                # Among those that move.
                shards=[self.rng.randrange(SHARDS // 2, SHARDS)],
                folder=stale,
                seed=number,
                processes=1,
                prefix=f"s{number}-",
                pause=0.05,
                give_up=5.0,
            ) as late,
        ):
            load.wait_for_acks(acks)
            late.wait_for_acks(1)
            self.late = late
            yield load
            self.last = load.stop()
            self.attempts += [*self.last, *late.stop()]

    def _document(self) -> dict[str, Any]:
        first = self.pairs.document()
        (pattern,) = first["keyspaces"]["objects"]["servers"]
        servers = []
        for entry in self._entries():
            server = {**pattern, "name": entry.name}
            server["primary"] = self._at(entry.primary).url
            server["shards"] = [[r.first, r.last] for r in entry.shards]
            servers.append(server)
        first["keyspaces"]["objects"]["servers"] = servers
        return first

    def waited(self) -> Pauses:
        """Return how long the writers of the last load have waited."""
        return pauses(self.last)

    # -- proving ----------------------------------------------------------

    def rows(self) -> dict[int, Rows]:
        """Read all rows as an application does."""
        return rows_of_places(self.places(), has_transfers=True)

    def problems(self) -> list[str]:
        """Compare acknowledged writes with the rows."""
        return check(self.attempts, self.rows())

    def prove(self) -> None:
        """Check that nothing is lost, and that standbys are equal."""
        rows = self.rows()
        assert check(self.attempts, rows) == []
        assert sum(there.balance for there in rows.values()) == 0
        for entry in self._entries():
            primary, standby = self.roles(entry.name)
            assert primary.root_execute("SELECT @@read_only") == [(0,)]
            if standby is None:
                continue
            assert standby.root_execute("SELECT @@read_only") == [(1,)]
            wait_until_equal(primary, standby)
            shards = [shard for part in entry.shards for shard in part]
            with standby.root_connect() as connection:
                there = rows_at(
                    connection,
                    {shard: f"db{shard:05d}" for shard in shards},
                    has_transfers=True,
                )
            assert there == {shard: rows[shard] for shard in shards}
