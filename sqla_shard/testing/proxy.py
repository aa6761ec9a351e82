"""A proxy for tests: a distant server, one that hangs, or is lost at COMMIT.

It forwards bytes between clients and a server of any kind::

    with Proxy(server.host, server.port, delay=0.02) as proxy:
        with pymysql.connect(host=proxy.host, port=proxy.port, ...) as c:
            ...             # each round trip takes 20 ms longer
            proxy.hang()    # there is no answer
            proxy.cut()     # the connection is reset
            proxy.restore()

**Delay.**  Half of it is added in each direction, so that a round trip takes
one delay longer.  Bytes in transit do not wait for earlier ones: several
requests without an answer in between cost one delay.  A new connection reaches
the server one and a half delays after it was opened, as with TCP over a
network.  The proxy itself adds about 0.2 ms to a round trip, even without a
delay.

**Faults.**  They can be switched while connections are open:

:meth:`Proxy.hang` Bytes of both sides are dropped.  Connections stay open, new
    ones are accepted and get no answer.  :meth:`Proxy.refuse` New connections
    are refused; open ones continue.  :meth:`Proxy.cut` All open connections
    are reset (RST), on both sides.  :meth:`Proxy.cut_at_commit` The connection
    of the n-th following COMMIT is reset, once: either before the server
    receives it, or when the server answers; the client does not receive the
    answer.  COMMIT is recognized in the protocol of MySQL and MariaDB, as a
    statement of its own, without compression.
    :meth:`Proxy.cut_at_statement` The same for any statement, such as those
    that a driver and a dialect send after connecting.  :meth:`Proxy.restore`
    All faults end; the delay is not changed.  A connection that has lost bytes
    never gets an answer: the client would mistake it for the answer to a
    dropped request.

**TLS.**  Drivers use it if the server offers it, as MySQL does, and then no
statement can be read.  ``Proxy(..., tls=False)`` removes the offer from the
greeting of the server, for tests that cut connections at statements or count
them.  Otherwise these calls raise
:exc:`~sqla_shard.exc.EncryptedStatementsError`.  Without TLS, PyMySQL and
asyncmy need the package ``cryptography`` to log in to MySQL.

The end of a connection is always forwarded.  While the server is down a
client is accepted and then reset; the server itself would refuse it.

The proxy is a separate process, which does not slow down the threads of the
tests.  It listens on 127.0.0.1 only and ends with the process that started it,
also if that is killed.  Needs Linux.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, IO, Literal

from sqla_shard import exc

_PROGRAM = Path(__file__).with_name("_proxying.py")
_PATIENCE = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyCounts:
    """Counts of a proxy since it was started.

    :ivar connections: accepted connections.
    :ivar open: connections that are open.
    :ivar encrypted: connections of clients that have asked for TLS, whose
        statements cannot be counted.
    :ivar sent: bytes forwarded to the server.
    :ivar received: bytes forwarded to clients.
    :ivar swallowed: bytes of both sides that were dropped.
    """

    connections: int
    open: int
    encrypted: int
    sent: int
    received: int
    swallowed: int
    _statements: int
    _commits: int

    @property
    def statements(self) -> int:
        """Text statements of clients, including COMMIT and the driver's.

        :raises sqla_shard.exc.EncryptedStatementsError: if a client has used
            TLS.
        """
        return self._read(self._statements)

    @property
    def commits(self) -> int:
        """COMMITs of clients.

        :raises sqla_shard.exc.EncryptedStatementsError: if a client has used
            TLS.
        """
        return self._read(self._commits)

    def _read(self, count: int) -> int:
        if self.encrypted:
            raise exc.EncryptedStatementsError(connections=self.encrypted)
        return count


class Proxy:
    """A proxy process between a server and its clients; thread-safe.

    :param host: host of the server.
    :param port: port of the server.
    :param delay: seconds that are added to each round trip.
    :param tls: whether clients may use TLS; False for servers of MySQL and
        MariaDB only.
    :raises ValueError: if an argument is not valid.
    """

    host = "127.0.0.1"
    """Address for clients."""

    def __init__(
        self, host: str, port: int, *, delay: float = 0.0, tls: bool = True
    ) -> None:
        if type(port) is not int or not 1 <= port <= 65_535:
            raise ValueError(f"port={port!r} must be from 1 to 65535")
        self.server_host = host
        self.server_port = port
        self.port: int = 0
        """Port for clients; 0 while the proxy does not run."""
        self._delay = _checked(delay)
        self._tls = tls
        self._hanging = False
        self._refusing = False
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._answers: IO[bytes] | None = None
        self._stderr_file: IO[bytes] | None = None
        self._owner = 0

    def __repr__(self) -> str:
        state = "" if self.port else " stopped"
        state += " hanging" if self._hanging else ""
        state += " refusing" if self._refusing else ""
        return (
            f"<{type(self).__name__} port={self.port} delay={self._delay} "
            f"of {self.server_host}:{self.server_port}{state}>"
        )

    def __enter__(self) -> Proxy:
        return self.start()

    def __exit__(self, *details: object) -> None:
        self.stop()

    def start(self) -> Proxy:
        """Start the process, unless it is running.

        The server need not run yet.

        :raises sqla_shard.exc.ServerProcessError: if it does not start.
        """
        if self._process is not None:
            return self
        ours, theirs = socket.socketpair()
        ours.settimeout(_PATIENCE)
        self._stderr_file = tempfile.TemporaryFile()  # noqa: SIM115 - see stop()
        self._control, self._answers = ours, ours.makefile("rb")
        self._owner = os.getpid()
        try:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    *("-I", "-S", str(_PROGRAM)),
                    *(self.server_host, str(self.server_port)),
                    *(repr(self._delay), str(int(self._tls))),
                ],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=self._stderr_file,
                # Ctrl-C must end the tests only.
                start_new_session=True,
            )
            theirs.close()
            self.port = self._send("counts")["port"]
        except BaseException:
            theirs.close()
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Reset all connections and end the process.

        Does nothing if it was not started, or in a forked child: the proxy
        belongs to the process that started it.
        """
        if self._owner != os.getpid():
            return
        with self._lock:
            for file in (self._answers, self._control, self._stderr_file):
                if file is not None:
                    file.close()
            self._answers = self._control = self._stderr_file = None
            process, self._process = self._process, None
        self.port = 0
        self._hanging = self._refusing = False
        if process is not None:
            try:
                process.wait(timeout=_PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(timeout=_PATIENCE)

    @property
    def delay(self) -> float:
        """Seconds that are added to each round trip.

        It can be set; bytes in transit keep their delay.
        """
        return self._delay

    @delay.setter
    def delay(self, seconds: float) -> None:
        checked = _checked(seconds)
        if self._process is not None:
            self._send("delay", seconds=checked)
        self._delay = checked

    @property
    def pid(self) -> int | None:
        """Process id; None if it does not run."""
        process = self._process
        if process is None or process.poll() is not None:
            return None
        return process.pid

    @property
    def counts(self) -> ProxyCounts:
        """The counts since the start.

        :raises sqla_shard.exc.ServerProcessError: if it is not running.
        """
        answer = self._send("counts")
        del answer["port"]
        for name in ("statements", "commits"):
            answer[f"_{name}"] = answer.pop(name)
        return ProxyCounts(**answer)

    def hang(self) -> None:
        """Drop the bytes of both sides, without closing connections.

        :raises sqla_shard.exc.ServerProcessError: if it is not running.
        """
        self._send("hang")
        self._hanging = True

    def refuse(self) -> None:
        """Refuse new connections.

        :raises sqla_shard.exc.ServerProcessError: if it is not running.
        """
        self._send("refuse")
        self._refusing = True

    def cut(self) -> None:
        """Reset all open connections.

        :raises sqla_shard.exc.ServerProcessError: if it is not running.
        """
        self._send("cut")

    def cut_at_commit(self, n: int = 1, *, when: Literal["before", "after"]) -> None:
        """Reset the connection of the n-th following COMMIT, once.

        Another call replaces this one; :meth:`restore` cancels it.  Until
        then a connection that asks for TLS is reset, and the next call of any
        method raises the error.

        :param n: 1 for the next one, on any connection.  The driver asyncmy
            also commits on each new connection.
        :param when: ``"before"`` the server receives it, so that it rolls
            back; or ``"after"`` it took effect, so that only the answer is
            lost.
        :raises ValueError: if an argument is not valid.
        :raises sqla_shard.exc.EncryptedStatementsError: if a client uses TLS.
        :raises sqla_shard.exc.ServerProcessError: if it is not running.
        """
        self._cut_at("commits", n, when)

    def cut_at_statement(self, n: int = 1, *, when: Literal["before", "after"]) -> None:
        """Reset the connection of the n-th following statement, once.

        This replaces a call of :meth:`cut_at_commit`.

        :param n: 1 for the next one, on any connection.
        :param when: ``"before"`` the server receives it, or ``"after"`` it
            took effect.
        :raises ValueError: if an argument is not valid.
        :raises sqla_shard.exc.EncryptedStatementsError: if a client uses TLS.
        :raises sqla_shard.exc.ServerProcessError: if it is not running.
        """
        self._cut_at("statements", n, when)

    def restore(self) -> None:
        """End all faults: forward bytes and accept connections again.

        :raises sqla_shard.exc.ServerProcessError: if it is not running.
        """
        self._send("restore")
        self._hanging = self._refusing = False

    def _cut_at(self, what: str, n: object, when: object) -> None:
        if type(n) is not int or n < 1:
            raise ValueError(f"n={n!r} must be an integer from 1")
        if when not in ("before", "after"):
            raise ValueError(f'when={when!r} must be "before" or "after"')
        self._send("cut at", what=what, n=n, when=when)

    def _send(self, do: str, **more: Any) -> dict[str, Any]:
        """Send a command to the process; return its counts and port."""
        with self._lock:
            if self._process is None or self._owner != os.getpid():
                raise exc.ServerProcessError(
                    f"{self!r} is not running in this process", log=""
                )
            assert self._control is not None  # noqa: S101 - for mypy
            assert self._answers is not None  # noqa: S101 - for mypy
            command = json.dumps({"do": do, **more}).encode() + b"\n"
            answer = b""
            # There is no answer, or an error: the process has ended.
            with contextlib.suppress(OSError):
                self._control.sendall(command)
                answer = self._answers.readline()
            if not answer:
                raise exc.ServerProcessError(
                    f"{self!r} does not respond", log=self._error_text()
                )
        counts: dict[str, Any] = json.loads(answer)
        hidden = counts.pop("hidden")
        if hidden:
            raise exc.EncryptedStatementsError(connections=hidden)
        return counts

    def _error_text(self) -> str:
        if self._stderr_file is None:
            return ""
        self._stderr_file.seek(0)
        return self._stderr_file.read().decode(errors="replace")


def _checked(delay: object) -> float:
    if not isinstance(delay, (int, float)) or not 0 <= delay < math.inf:
        raise ValueError(f"delay={delay!r} must be seconds from 0")
    return float(delay)
