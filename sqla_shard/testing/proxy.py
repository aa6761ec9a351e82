"""A server that is far away, hangs, is lost at COMMIT, or cannot be reached.

A proxy stands in front of a server of any kind and passes bytes on::

    with Proxy(server.host, server.port, delay=0.02) as proxy:
        with pymysql.connect(host=proxy.host, port=proxy.port, ...) as c:
            ...             # each round trip takes 20 ms longer
            proxy.hang()    # from now on nothing comes back
            proxy.cut()     # and now the connection is reset
            proxy.restore()

**Delay.**  Half of it is added to what the client sends and half to what the
server sends, so that a request and its answer take the whole of it longer.
What is under way does not wait for what was sent before it: several requests
without an answer in between cost one delay.  A new connection reaches the
server one and a half delays after it was opened, as with TCP over a network
(there, back, and there again).  Work of the proxy itself adds some 0.2 ms to
a round trip, with no delay as well.

**Faults.**  They can be switched while connections are open:

:meth:`Proxy.hang`
    Bytes of both sides are swallowed.  Connections stay open, new ones are
    accepted and get no answer.
:meth:`Proxy.refuse`
    New connections are refused; those that are open go on.
:meth:`Proxy.cut`
    All open connections are reset (RST), on both sides.
:meth:`Proxy.cut_at_commit`
    The connection on which the n-th COMMIT comes from now on is reset, once:
    either before the server has got it, or when the server answers, which
    the client does not see.  COMMIT is recognised in the protocol of MySQL
    and MariaDB, as a text of its own, without TLS or compression.
:meth:`Proxy.cut_at_statement`
    The same with any statement, such as those that a driver and a dialect
    send by themselves when they have connected.
:meth:`Proxy.restore`
    Back to normal, with the delay as it was.  A connection that has lost
    bytes gets no answer ever again: the next one would pass for that of a
    request that was swallowed.

Closing a connection is passed on at all times.  While the server is down a
client is accepted and then reset, where the server itself would refuse it.

The proxy is a process of its own, so that it takes no time from the threads
of the tests.  It listens on 127.0.0.1 only and ends with the process that
started it, however that ends.  Needs Linux.
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
from types import TracebackType
from typing import Any
from typing import IO
from typing import Literal

from sqla_shard import exc

__all__ = ["Proxy", "ProxyCounts"]

_PROGRAM = Path(__file__).with_name("_proxying.py")
_PATIENCE = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyCounts:
    """What has passed a proxy since it was started.

    :ivar connections: that were accepted.
    :ivar open: of these, those that are still open.
    :ivar statements: how many statements clients have sent, as texts;
        COMMIT and what a driver sends by itself are among them.
    :ivar commits: how many COMMITs clients have sent.
    :ivar sent: bytes that were passed on to the server.
    :ivar received: bytes that were passed on to clients.
    :ivar swallowed: bytes of either side that were not.
    """

    connections: int
    open: int
    statements: int
    commits: int
    sent: int
    received: int
    swallowed: int


class Proxy:
    """A process that passes on what a server and its clients say.

    Safe to use from several threads.

    :param host: of the server.
    :param port: of the server.
    :param delay: seconds that are added to each round trip.
    :raises ValueError: if an argument makes no sense.
    """

    host = "127.0.0.1"
    """Where clients connect to."""

    def __init__(self, host: str, port: int, *, delay: float = 0.0) -> None:
        if type(port) is not int or not 1 <= port <= 65_535:
            raise ValueError(f"port={port!r} is not 1 to 65,535")
        self.server_host = host
        self.server_port = port
        self.port = 0
        """Where clients connect to; 0 while the proxy does not run."""
        self._delay = _checked(delay)
        self._hanging = False
        self._refusing = False
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._answers: IO[bytes] | None = None
        self._errors: IO[bytes] | None = None
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

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    # -- starting and ending ----------------------------------------------

    def start(self) -> Proxy:
        """Start the process; nothing happens if it was started.

        The server need not be running yet.

        :raises sqla_shard.exc.ServerProcessError: if it does not start.
        """
        if self._process is not None:
            return self
        ours, theirs = socket.socketpair()
        ours.settimeout(_PATIENCE)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - see stop()
        self._control, self._answers = ours, ours.makefile("rb")
        self._owner = os.getpid()
        try:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    *("-I", "-S", str(_PROGRAM)),
                    *(self.server_host, str(self.server_port)),
                    repr(self._delay),
                ],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                # Ctrl-C must end the tests, not a server under them.
                start_new_session=True,
            )
            theirs.close()
            self.port = self._ask("counts")["port"]
        except BaseException:
            theirs.close()
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Reset all connections and end the process.

        Nothing happens if there is none, nor in a forked child: the proxy
        belongs to the process that started it.
        """
        if self._owner != os.getpid():
            return
        with self._lock:
            for file in (self._answers, self._control, self._errors):
                if file is not None:
                    file.close()
            self._answers = self._control = self._errors = None
            process, self._process = self._process, None
        self.port = 0
        self._hanging = self._refusing = False
        if process is not None:
            try:
                process.wait(timeout=_PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(timeout=_PATIENCE)

    # -- what it does -----------------------------------------------------

    @property
    def delay(self) -> float:
        """Seconds that are added to each round trip.

        Can be set; what is under way is not hurried.
        """
        return self._delay

    @delay.setter
    def delay(self, seconds: float) -> None:
        checked = _checked(seconds)
        if self._process is not None:
            self._ask("delay", seconds=checked)
        self._delay = checked

    @property
    def pid(self) -> int | None:
        """Number of the process; None if it does not run."""
        process = self._process
        if process is None or process.poll() is not None:
            return None
        return process.pid

    @property
    def counts(self) -> ProxyCounts:
        """What has passed so far.

        :raises sqla_shard.exc.ServerProcessError: if it is not running.
        """
        answer = self._ask("counts")
        del answer["port"]
        return ProxyCounts(**answer)

    def hang(self) -> None:
        """Swallow what both sides send, and keep connections open.

        :raises sqla_shard.exc.ServerProcessError: if it is not running.
        """
        self._ask("hang")
        self._hanging = True

    def refuse(self) -> None:
        """Refuse new connections.

        :raises sqla_shard.exc.ServerProcessError: if it is not running.
        """
        self._ask("refuse")
        self._refusing = True

    def cut(self) -> None:
        """Reset all open connections.

        :raises sqla_shard.exc.ServerProcessError: if it is not running.
        """
        self._ask("cut")

    def cut_at_commit(
        self, n: int = 1, *, when: Literal["before", "after"]
    ) -> None:
        """Reset the connection on which the n-th COMMIT comes from now on.

        Then, or with :meth:`restore`, or when it is called again, that is
        over.

        :param n: 1 for the next one, on whatever connection.  The driver
            asyncmy commits on each new connection, too.
        :param when: ``"before"`` the server has got it, so that it rolls
            back; or ``"after"`` it was done, when the answer comes, which is
            not passed on.
        :raises ValueError: if an argument makes no sense.
        :raises sqla_shard.exc.ServerProcessError: if it is not running.
        """
        self._cut_at("commits", n, when)

    def cut_at_statement(
        self, n: int = 1, *, when: Literal["before", "after"]
    ) -> None:
        """Reset the connection on which the n-th statement comes from now on.

        It takes the place of :meth:`cut_at_commit`, and ends as that does.

        :param n: 1 for the next one, on whatever connection.
        :param when: ``"before"`` the server has got it, or ``"after"`` it
            was done.
        :raises ValueError: if an argument makes no sense.
        :raises sqla_shard.exc.ServerProcessError: if it is not running.
        """
        self._cut_at("statements", n, when)

    def restore(self) -> None:
        """Pass bytes on and accept connections, on the same port.

        :raises sqla_shard.exc.ServerProcessError: if it is not running.
        """
        self._ask("restore")
        self._hanging = self._refusing = False

    # -- inside -----------------------------------------------------------

    def _cut_at(self, what: str, n: object, when: object) -> None:
        if type(n) is not int or n < 1:
            raise ValueError(f"n={n!r} is not a number from 1")
        if when not in ("before", "after"):
            raise ValueError(f'when={when!r} is neither "before" nor "after"')
        self._ask("cut at", what=what, n=n, when=when)

    def _ask(self, do: str, **more: Any) -> dict[str, Any]:
        """Have the process do something; return its counts and port."""
        with self._lock:
            if self._process is None or self._owner != os.getpid():
                raise exc.ServerProcessError(
                    f"{self!r} is not running in this process", log=""
                )
            assert self._control is not None  # noqa: S101 - for mypy
            assert self._answers is not None  # noqa: S101 - for mypy
            command = json.dumps({"do": do, **more}).encode() + b"\n"
            answer = b""
            # An end of the answers, too, is a process that is gone.
            with contextlib.suppress(OSError):
                self._control.sendall(command)
                answer = self._answers.readline()
            if not answer:
                raise exc.ServerProcessError(
                    f"{self!r} does not answer", log=self._error_text()
                )
        counts: dict[str, Any] = json.loads(answer)
        return counts

    def _error_text(self) -> str:
        if self._errors is None:
            return ""
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")


def _checked(delay: object) -> float:
    if not isinstance(delay, (int, float)) or not 0 <= delay < math.inf:
        raise ValueError(f"delay={delay!r} is not a number of seconds from 0")
    return float(delay)
