"""Several ZooKeeper servers that keep the same data.

::

    with ZooKeeperEnsemble(servers=3) as ensemble:
        client = KazooClient(ensemble.hosts)
        client.start()
        ensemble.leader().kill()    # the two others choose a new one

They start side by side, in two seconds or so; a new leader takes about half
a second after a crash, and some two seconds more where the old one is paused.
All that the servers say to each other is plain, with ``tls=True`` as well, and
does not go through a :class:`~.proxy.Proxy`: to part the servers from each
other, pause or kill some.
"""

from __future__ import annotations

from sqla_shard import exc
from sqla_shard.testing._processes import free_port
from sqla_shard.testing._processes import on_free_ports
from sqla_shard.testing._processes import wait_until
from sqla_shard.testing._started import at_once
from sqla_shard.testing._started import Started
from sqla_shard.testing.zoo_config import Membership
from sqla_shard.testing.zookeeper import ZooKeeperServer

__all__ = ["ZooKeeperEnsemble"]


class ZooKeeperEnsemble(Started):
    """Servers ``zookeeper1``, ``zookeeper2``... that elect a leader.

    :param servers: how many; an odd number, since an even one survives no
        more failures.
    :param tick: see :class:`~.zookeeper.ZooKeeperServer`.
    :param tls: as well; each server has certificates of its own.
    :param start_timeout: seconds to wait for each server, and then for the
        quorum.
    :raises ValueError: if an argument makes no sense.
    """

    def __init__(
        self,
        servers: int = 3,
        *,
        tick: int = 200,
        tls: bool = False,
        start_timeout: float = 60.0,
    ) -> None:
        if type(servers) is not int or servers < 3 or servers % 2 == 0:
            raise ValueError(
                f"servers={servers!r} is not an odd number from 3"
            )
        self.start_timeout = start_timeout
        self.servers = [
            ZooKeeperServer(
                f"zookeeper{number}",
                tick=tick,
                tls=tls,
                start_timeout=start_timeout,
            )
            for number in range(1, servers + 1)
        ]
        """In order, each to be killed and paused by itself."""

    def __repr__(self) -> str:
        running = sum(server.running for server in self.servers)
        return (
            f"<{type(self).__name__} servers={len(self.servers)} "
            f"running={running}>"
        )

    @property
    def hosts(self) -> str:
        """Hosts and ports of all servers, as clients want them."""
        return ",".join(server.hosts for server in self.servers)

    def start(self) -> ZooKeeperEnsemble:
        """Start all servers at once and wait until all serve.

        Those that run already go on.  If one fails, none is left running.

        :raises sqla_shard.exc.ServerProcessError: if ZooKeeper is missing,
            a server does not start, or they find no quorum.
        """
        on_free_ports(self._start_servers)
        with self._or_stopped():
            if not wait_until(self._complete, seconds=self.start_timeout):
                raise exc.ServerProcessError(
                    f"{self!r} found no quorum", log=self._logs()
                )
        return self

    def stop(self) -> None:
        """End all servers and remove their data."""
        at_once(self.servers, lambda server: server.stop())

    def leader(self) -> ZooKeeperServer:
        """Return the leader; while there is none, wait for one.

        :raises sqla_shard.exc.ServerProcessError: if there is none within
            ``start_timeout``, as without a majority.
        """
        found: list[ZooKeeperServer] = []

        def look() -> bool:
            found.extend(s for s in self.servers if s.mode == "leader")
            return bool(found)

        if not wait_until(look, seconds=self.start_timeout):
            raise exc.ServerProcessError(
                f"{self!r} has no leader", log=self._logs()
            )
        return found[0]

    # -- inside -----------------------------------------------------------

    def _start_servers(self) -> None:
        with self._or_stopped():
            # The ports among the servers are not theirs to choose anew.
            if all(server.directory is None for server in self.servers):
                self._assign_ports()
            at_once(self.servers, lambda server: server.start())

    def _complete(self) -> bool:
        return all(server.alive for server in self.servers)

    def _assign_ports(self) -> None:
        peers = {
            number: (free_port(), free_port())
            for number in range(1, len(self.servers) + 1)
        }
        for number, server in enumerate(self.servers, 1):
            server.membership = Membership(number=number, peers=peers)

    def _logs(self) -> str:
        return "\n".join(s.log_tail for s in self.servers if s.running)
