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

import atexit
import os
import shutil
import signal
import ssl
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from sqla_shard import exc
from sqla_shard.testing._processes import free_port
from sqla_shard.testing._processes import guard
from sqla_shard.testing._processes import tail
from sqla_shard.testing._processes import wait_until
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

_START_ATTEMPTS = 3


class ZooKeeperServer:
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

    host = "127.0.0.1"

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
        self.name = name
        self.tick = tick
        self.tls = tls
        self.options = dict(options or {})
        self.start_timeout = start_timeout
        self.stop_timeout = stop_timeout
        self.port = 0
        """TCP port, the same from the first start on; 0 before."""
        self.directory: Path | None = None
        """All files of the server; None before the start, after the stop."""
        self.membership: Membership | None = None
        """Place in an ensemble; None for a server by itself."""
        self._parent = parent
        self._process: subprocess.Popen[bytes] | None = None
        self._certificates: Certificates | None = None
        self._owner = 0
        self._paused = False

    def __repr__(self) -> str:
        state = "paused" if self._paused else "running"
        if not self.running:
            state = "stopped"
        return f"<{type(self).__name__} {self.name} port={self.port} {state}>"

    def __enter__(self) -> ZooKeeperServer:
        return self.start()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    # -- state ------------------------------------------------------------

    @property
    def hosts(self) -> str:
        """Host and port, as clients want them."""
        return f"{self.host}:{self.port}"

    @property
    def running(self) -> bool:
        """Whether the process is there; a paused one is, too."""
        return self._process is not None and self._process.poll() is None

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
    def pid(self) -> int | None:
        """Number of the process; None if it is not running."""
        if self._process is None or not self.running:
            return None
        return self._process.pid

    @property
    def log_tail(self) -> str:
        """The last lines of the log; empty once it was removed."""
        if self.directory is None:
            return ""
        return tail(self.directory / "zookeeper.log")

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
        if self.running:
            return self
        if self._process is not None and self.directory is not None:
            self._launch()
            return self
        try:
            self._prepare()
            self._first_launch()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End the server and remove its directory.

        Nothing happens if there is none, nor in a forked child: the server
        belongs to the process that started it.
        """
        if self.directory is None or self._owner != os.getpid():
            return
        # Nothing that it would do at an orderly end is of use to anybody.
        self._end(signal.SIGKILL)
        guard.remove(self.directory)
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory = None
        self._process = None
        self._certificates = None
        atexit.unregister(self.stop)

    def restart(self) -> ZooKeeperServer:
        """End the server in good order and start it with the same data.

        Sessions that have not expired meanwhile go on.

        :raises sqla_shard.exc.ServerProcessError: as :meth:`start`.
        """
        self._directory()
        self._end(signal.SIGTERM)
        return self.start()

    def kill(self) -> None:
        """End the server with SIGKILL; :meth:`start` lets it recover.

        :raises sqla_shard.exc.ServerProcessError: if it was not started.
        """
        self._directory()
        self._end(signal.SIGKILL)

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

    def pause(self) -> None:
        """Stop the process in mid-air: it answers nothing.

        :raises sqla_shard.exc.ServerProcessError: if it is not running.
        """
        self._running_process().send_signal(signal.SIGSTOP)
        self._paused = True

    def resume(self) -> None:
        """Let a paused server go on.

        :raises sqla_shard.exc.ServerProcessError: if it is not running.
        """
        self._running_process().send_signal(signal.SIGCONT)
        self._paused = False

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

    def _directory(self) -> Path:
        if self.directory is None:
            raise exc.ServerProcessError(f"{self!r} was not started", log="")
        return self.directory

    def _running_process(self) -> subprocess.Popen[bytes]:
        process = self._process
        if process is None or not self.running:
            raise exc.ServerProcessError(
                f"{self!r} is not running", log=self.log_tail
            )
        return process

    def _with_tls(self) -> Certificates:
        if self._certificates is None:
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

    def _prepare(self) -> None:
        parent = self._parent or Path(tempfile.gettempdir())
        self.directory = Path(
            tempfile.mkdtemp(prefix="sqlashard-", dir=parent.resolve())
        )
        self._owner = os.getpid()
        # The guard first: at exit the order is reversed, and stop() needs
        # it still there.
        guard.add(0, self.directory)
        atexit.register(self.stop)
        if self.tls:
            self._certificates = make_certificates(self.directory / "tls")

    def _first_launch(self) -> None:
        for attempt in range(1, _START_ATTEMPTS + 1):
            self.port = free_port()
            try:
                self._launch()
            except exc.ServerProcessError as error:
                # Somebody else took the port between our look at it and
                # the server's.
                taken = "Address already in use" in error.log
                if not taken or attempt == _START_ATTEMPTS:
                    raise
            else:
                return

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

    def _launch(self) -> None:
        jars = find_zookeeper()
        if jars is None:
            raise exc.ServerProcessError(MISSING_ZOOKEEPER, log="")
        directory = self._directory()
        file = self._write_files(directory)
        with (directory / "zookeeper.log").open("ab") as log:
            self._process = subprocess.Popen(
                command(jars, file),
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Ctrl-C must end the tests, which end the server; not the
                # server first, under tests that are still running.
                start_new_session=True,
            )
        guard.add(self._process.pid, directory)
        started = time.monotonic()
        if not wait_until(self._answers, seconds=self.start_timeout):
            seconds = time.monotonic() - started
            log_tail = self.log_tail
            self._end(signal.SIGKILL)
            raise exc.ServerProcessError(
                f"{self!r} did not answer within {seconds:.0f} s", log=log_tail
            )

    def _answers(self) -> bool:
        process = self._process
        if process is None or process.poll() is not None:
            status = None if process is None else process.returncode
            raise exc.ServerProcessError(
                f"{self!r} ended with status {status} while it started",
                log=self.log_tail,
            )
        if self.membership is None:
            return self.alive
        # Without the others it cannot serve yet.
        return self._ask("ruok") == "imok"

    def _end(self, how: signal.Signals) -> None:
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(how)
            if self._paused:
                # A stopped process keeps every signal but SIGKILL for later.
                process.send_signal(signal.SIGCONT)
            try:
                process.wait(timeout=self.stop_timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(timeout=self.stop_timeout)
        self._paused = False
