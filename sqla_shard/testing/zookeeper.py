"""One ZooKeeper server of your own, for as long as a test needs it.

::

    with ZooKeeperServer() as server:
        client = KazooClient(server.hosts, timeout=1.0)
        client.start()
        server.expire(client.client_id)     # the client has lost its session
        server.kill()                       # in mid-air, as a crash would
        server.start()                      # and recover

Needs Linux, and ZooKeeper 3.8 or later with Java on the machine (Debian:
``libzookeeper-java`` and ``default-jre-headless``, jars only).  No client:
the examples use kazoo, the extra ``zookeeper``.  The server listens on
127.0.0.1 only, starts in about half a second and takes some 80 MB of memory.
Everybody may do everything; a client's digest authentication and ACLs work
without further ado.

Sessions can be as short as two ticks of 0.2 s, and 40 s long.  The server
looks after sessions once a tick, so that one ends up to a tick later.

With ``tls=True`` the server speaks TLS and nothing else, and wants a
certificate of its clients::

    with ZooKeeperServer(tls=True) as server:
        client = KazooClient(
            server.hosts,
            use_ssl=True,
            ca=str(server.ca),
            certfile=str(server.certificate),
            keyfile=str(server.key),
        )

For a partition put a :class:`~.proxy.Proxy` before the server.

Everything is in one directory, removed by :meth:`ZooKeeperServer.stop`, when
the interpreter exits, or by a guard process when the test run is killed.
A server that is controlled (started, stopped, killed) by several threads at
once is not supported.
"""

from __future__ import annotations

import shutil
import signal
import ssl
from collections.abc import Mapping
from pathlib import Path

from sqla_shard import exc
from sqla_shard.testing._server import LocalServer
from sqla_shard.testing.certificates import Certificates
from sqla_shard.testing.certificates import make_certificates
from sqla_shard.testing.jars import find_zookeeper
from sqla_shard.testing.jars import MISSING_ZOOKEEPER
from sqla_shard.testing.zoo_config import command
from sqla_shard.testing.zoo_config import configuration
from sqla_shard.testing.zoo_config import Membership
from sqla_shard.testing.zoo_wire import ask
from sqla_shard.testing.zoo_wire import end_session

__all__ = ["ZooKeeperServer"]


class ZooKeeperServer(LocalServer):
    """A ZooKeeper server that is started, used and thrown away.

    :param name: for messages.
    :param tick: milliseconds; no session is shorter than two.
    :param tls: speak TLS, and want a certificate of each client.
    :param options: further settings of ``zoo.cfg``; they win.
    :param parent: where to make the server's directory; by default where
        the system wants such things (``TMPDIR``).
    :param start_timeout: seconds to wait for a start.
    :param stop_timeout: seconds to wait for an orderly end before SIGKILL.
    :raises ValueError: if an argument makes no sense.
    """

    _log_name = "zookeeper.log"

    # Nothing that it would do at an orderly end is of use to anybody.
    _stop_signal = signal.SIGKILL

    def __init__(
        self,
        name: str = "zookeeper1",
        *,
        tick: int = 200,
        tls: bool = False,
        options: Mapping[str, str] | None = None,
        parent: Path | None = None,
        start_timeout: float = 60.0,
        stop_timeout: float = 30.0,
    ) -> None:
        if type(tick) is not int or not 1 <= tick <= 20_000:
            raise ValueError(f"tick={tick!r} is not 1 to 20,000 milliseconds")
        super().__init__(
            name,
            parent=parent,
            start_timeout=start_timeout,
            stop_timeout=stop_timeout,
        )
        self.tick = tick
        self.tls = tls
        self.options = dict(options or {})
        self.membership: Membership | None = None
        """Place in an ensemble; None for a server by itself."""
        self._certificates: Certificates | None = None

    # -- state ------------------------------------------------------------

    @property
    def hosts(self) -> str:
        """Host and port, as clients want them."""
        return f"{self.host}:{self.port}"

    @property
    def alive(self) -> bool:
        """Whether it answers and serves clients.

        A paused server does not, nor one of an ensemble without a quorum.
        """
        return self.mode is not None

    @property
    def mode(self) -> str | None:
        """``standalone``, ``leader`` or ``follower``; None if not alive."""
        for line in self._ask("srvr").splitlines():
            key, _, value = line.partition(": ")
            if key == "Mode":
                return value
        return None

    @property
    def ca(self) -> Path:
        """PEM file of the authority, with TLS.

        :raises sqla_shard.exc.ServerProcessError: without TLS, or if the
            server was not started.
        """
        return self._with_tls().ca

    @property
    def certificate(self) -> Path:
        """PEM file of a client's certificate, with TLS.

        :raises sqla_shard.exc.ServerProcessError: as :attr:`ca`.
        """
        return self._with_tls().certificate

    @property
    def key(self) -> Path:
        """PEM file of a client's key, with TLS.

        :raises sqla_shard.exc.ServerProcessError: as :attr:`ca`.
        """
        return self._with_tls().key

    # -- starting and ending ----------------------------------------------

    def start(self) -> ZooKeeperServer:
        """Start the server and wait until it serves.

        After :meth:`kill` or an end of its own it has its data and its port
        again.  Nothing happens if it is running.  One of an ensemble is not
        waited for until it has found the others.

        :raises sqla_shard.exc.ServerProcessError: if ZooKeeper is missing or
            does not start in time; has the end of its log.
        """
        self._start()
        return self

    def restart(self) -> ZooKeeperServer:
        """End the server in good order and start it with the same data.

        Sessions that have not expired meanwhile go on.

        :raises sqla_shard.exc.ServerProcessError: as :meth:`start`.
        """
        return super().restart()

    def wipe(self) -> None:
        """Kill the server and throw its data away.

        :meth:`start` then starts it empty, on its port: no nodes, no
        sessions.  One of an ensemble gets the data of the others.

        A client that was connected before stays out: ZooKeeper turns away
        who has seen later transactions than the server has.  It hears
        ``SUSPENDED`` and never ``LOST``, until it is made anew or the server
        has caught up with it.

        :raises sqla_shard.exc.ServerProcessError: if it was not started.
        """
        self.kill()
        shutil.rmtree(self._directory() / "data")

    # -- sessions ---------------------------------------------------------

    def expire(self, client_id: tuple[int, bytes]) -> bool:
        """End the session of a client, which is then told that it is lost.

        Its ephemeral nodes are gone when this returns, at the latest.  The
        client loses its connection, connects again, and hears of it.

        :param client_id: number and password of the session; kazoo's
            ``client.client_id``.
        :return: whether there was such a session.
        :raises sqla_shard.exc.ServerProcessError: if the server is not
            running or does not answer.
        """
        self._running_process()
        session, password = client_id
        try:
            return end_session(
                self.host, self.port, session, password, self._context()
            )
        except OSError as error:
            raise exc.ServerProcessError(
                f"{self!r} did not end session {session:#x}: {error}",
                log=self.log_tail,
            ) from error

    # -- inside -----------------------------------------------------------

    def _with_tls(self) -> Certificates:
        if self._certificates is None or self.directory is None:
            missing = "was not started" if self.tls else "is without tls=True"
            raise exc.ServerProcessError(f"{self!r} {missing}", log="")
        return self._certificates

    def _context(self) -> ssl.SSLContext | None:
        if not self.tls:
            return None
        context = ssl.create_default_context(cafile=str(self.ca))
        context.load_cert_chain(self.certificate, self.key)
        return context

    def _ask(self, word: str) -> str:
        """Return an answer; empty if there is none."""
        if self._paused or not self.running:
            return ""
        try:
            return ask(self.host, self.port, word, self._context())
        except OSError:
            return ""

    def _fill(self, directory: Path) -> None:
        if self.tls:
            self._certificates = make_certificates(directory / "tls")

    def _write_files(self, directory: Path) -> Path:
        data = directory / "data"
        data.mkdir(exist_ok=True)
        if self.membership is not None:
            (data / "myid").write_text(f"{self.membership.number}\n")
        file = directory / "zoo.cfg"
        file.write_text(
            configuration(
                data,
                port=self.port,
                tick=self.tick,
                membership=self.membership,
                certificates=self._certificates,
                options=self.options,
            )
        )
        return file

    def _command(self, directory: Path) -> list[str]:
        jars = find_zookeeper()
        if jars is None:
            raise exc.ServerProcessError(MISSING_ZOOKEEPER, log="")
        return command(jars, self._write_files(directory))

    def _serves(self) -> bool:
        if self.membership is None:
            return self.alive
        # Without the others it cannot serve yet.
        return self._ask("ruok") == "imok"
