"""Real servers on 127.0.0.1: two in use, and a third one to grow to.

Their data is in memory where the system has room for it.  Each server is
behind a proxy of :mod:`sqla_shard.testing`, which adds 0.2 ms to a round trip,
and more to that of a slow server.  A stopped server was killed with SIGKILL,
and recovers when it is started.  The third one gets its shards by the command
``sqla-shard fleet split``, in a process of its own, whose output is displayed.
"""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from examples.pinboard.lab.bench import Bench, end, SLOW
from sqla_shard import Cluster, Topology
from sqla_shard.cli.dev_command import add_accounts, FLEET_OPTIONS
from sqla_shard.fleet import Accounts
from sqla_shard.testing import MemcachedServer, Proxy
from sqla_shard.testing.database_server import DatabaseServer
from sqla_shard.testing.local_server import in_parallel
from sqla_shard.testing.programs import find_memcached
from sqla_shard.testing.topology_documents import topology_document
from sqla_shard.topology import to_json
from sqla_shard.util.files import replace_file

_FIRST = ("server1", "server2")
_NEW = "server3"
#: Shards of the new server: the second half of those of the last one.
_FROM = "server2"
_PASSWORD = "MYSQL_PASSWORD"  # noqa: S105  # the name of a variable


#: A file system in memory, and the bytes that must be free there.
_MEMORY = Path("/dev/shm")  # noqa: S108  # only where the system has it
_NEEDED = 2 << 30


def _in_memory() -> Path | None:
    """Return a directory in memory; None if there is none with room.

    Each table is a file, and there are 2,000 of them: on a disk, making them
    takes the servers 1.7 times the processor time.
    """
    try:
        free = shutil.disk_usage(_MEMORY).free
    except OSError:
        return None
    has_room = free >= _NEEDED and os.access(_MEMORY, os.W_OK)
    return _MEMORY if has_room else None


class SplitCommand:
    """A process of ``sqla-shard``; see :class:`.bench.Growth`."""

    def __init__(
        self, arguments: list[str], environ: Mapping[str, str], folder: Path
    ) -> None:
        self.command = shlex.join(["sqla-shard", *arguments])
        self.lines: list[str] = []
        self.status: int | None = None
        self._process = subprocess.Popen(
            [sys.executable, "-m", "sqla_shard.cli", *arguments],
            cwd=folder,
            env={**os.environ, **environ, "COLUMNS": "100"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # Ctrl-C goes to the demo, which ends it.
            start_new_session=True,
        )
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self.lines.append(line.rstrip("\n"))
        self.status = self._process.wait()

    def close(self) -> None:
        """End the command; it undoes changes that it has not published."""
        end(self._process)
        self._thread.join()


class LocalFleet(Bench):
    """Two servers, a third one on demand, and memcached.

    A context manager, which removes all of it.

    :param server_class: of the servers, such as
        :class:`sqla_shard.testing.MySQLServer`.
    :param shards: number of virtual shards of objects.
    :param lookup: number of shards of the keyspace lookup.
    :raises sqla_shard.exc.ServerProcessError: if a program is missing, or
        a server does not start.
    """

    can_stop = True
    cache_name = "memcached"

    def __init__(
        self, server_class: type[DatabaseServer], shards: int, lookup: int
    ) -> None:
        super().__init__("")
        self._class = server_class
        self._shards, self._lookup = shards, lookup
        self.environ = {
            _PASSWORD: secrets.token_urlsafe(12),
            "SQLA_SHARD_OPERATOR_USER": "operator",
            "SQLA_SHARD_OPERATOR_PASSWORD": secrets.token_urlsafe(12),
            "SQLA_SHARD_REPLICATION_USER": "replica",
            "SQLA_SHARD_REPLICATION_PASSWORD": secrets.token_urlsafe(12),
        }
        self._accounts = Accounts.from_environ(self.environ)
        self._servers: dict[str, DatabaseServer] = {}
        self._proxies: dict[str, Proxy] = {}
        self._memcached = MemcachedServer() if find_memcached() else None
        self._stack = ExitStack()
        # A server must not be started and stopped at the same time.
        self._lock = threading.Lock()
        self.growth: SplitCommand | None = None
        self.path = Path()

    def __enter__(self) -> LocalFleet:
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            self.path = Path(folder, "topology.json")
            self._add(stack, *_FIRST)
            if self._memcached is not None:
                stack.enter_context(self._memcached)
            topology = self._topology(self._proxies)
            replace_file(self.path, to_json(topology), 0o600)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *details: object) -> None:
        if self.growth is not None:
            self.growth.close()
        self._stack.close()

    def _add(self, stack: ExitStack, *names: str) -> None:
        new = [
            self._class(
                name,
                password=self.environ[_PASSWORD],
                fast=True,
                options=FLEET_OPTIONS,
                parent=_in_memory(),
            )
            for name in names
        ]
        stack.callback(in_parallel, new, DatabaseServer.stop)
        in_parallel(new, DatabaseServer.start)
        for server in new:
            add_accounts(server, self._accounts)
            proxy = stack.enter_context(Proxy(server.host, server.port))
            self._servers[server.name] = server
            self._proxies[server.name] = proxy

    def direct_topology(self) -> Topology:
        """Return the first topology without proxies.

        Through them, the thousands of statements that create the tables would
        take a third longer.
        """
        return self._topology(self._servers)

    def _topology(self, ends: Mapping[str, DatabaseServer | Proxy]) -> Topology:
        primaries = {
            name: f"mysql://{self._servers[name].user}:${{{_PASSWORD}}}"
            f"@{ends[name].host}:{ends[name].port}"
            for name in _FIRST
        }
        document = topology_document(primaries, self._shards, lookup=self._lookup)
        return Topology.from_mapping(document, environ=self.environ)

    @property
    def cache_address(self) -> str | None:
        """Address of memcached; None where it is not installed."""
        return None if self._memcached is None else self._memcached.address

    # -- breaking

    def states(self) -> Mapping[str, str]:
        """Return the states of servers that are not up."""
        found = {}
        for name, server in list(self._servers.items()):
            if not server.running:
                found[name] = "stopped"
            elif self._proxies[name].delay:
                found[name] = "slow"
        return found

    def change(self, server: str, to: str) -> None:
        """Stop, start, slow down or speed up a server."""
        found = self._servers[server]
        with self._lock:
            self._proxies[server].delay = SLOW if to == "slow" else 0.0
            if to == "stopped":
                found.kill()
            else:
                found.start()

    def cache_is_on(self, cluster: Cluster) -> bool:
        """Return whether memcached runs."""
        if self._memcached is None:
            return super().cache_is_on(cluster)
        return self._memcached.running

    def switch_cache(self, cluster: Cluster, *, on: bool) -> None:
        """Kill memcached, or start it, empty."""
        if self._memcached is None:
            super().switch_cache(cluster, on=on)
            return
        with self._lock:
            if on:
                self._memcached.start()
            elif self._memcached.running:
                self._memcached.kill()

    # -- growing

    def opening(self, cluster: Cluster) -> dict[str, Any]:
        """Return the path of the topology, which changes."""
        return {"location": str(self.path)}

    def grow(self, cluster: Cluster) -> None:
        """Start the third server, and move shards to it.

        Does nothing during the move, or after it.
        """
        with self._lock:
            if not self._may_grow(cluster):
                return
            if _NEW not in self._servers:
                self._add(self._stack, _NEW)
            objects = cluster.topology.sole("objects")
            servers = {one.name: one for one in objects.servers}
            last = servers[_FROM].shards[-1]
            proxy = self._proxies[_NEW]
            self.growth = SplitCommand(
                [
                    *("-t", self.path.name, "fleet", "split", _FROM),
                    "--shards",
                    f"objects:{last.first + len(last) // 2}-{last.last}",
                    *("--to", _NEW),
                    *("--primary", f"{proxy.host}:{proxy.port}"),
                    # The account of the sockets; nothing else uses it.
                    *("--allow-user", self._root_user(), "--yes"),
                ],
                self.environ,
                self.path.parent,
            )

    def _root_user(self) -> str:
        return self._servers[_NEW].root_user or "root"

    def _may_grow(self, cluster: Cluster) -> bool:
        if self.growth is not None and self.growth.status is None:
            return False
        objects = cluster.topology.sole("objects")
        return _NEW not in {one.name for one in objects.servers}
