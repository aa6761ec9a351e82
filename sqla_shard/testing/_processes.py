"""What a server process needs of the machine: a port, patience, a guard."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from sqla_shard import exc

__all__ = [
    "Guard",
    "accepts",
    "free_port",
    "guard",
    "on_free_ports",
    "tail",
    "wait_until",
]

_START_ATTEMPTS = 3

_LOWEST_PORT = 20_000
_taken: set[int] = set()
_lock = threading.Lock()


def _lowest_ephemeral_port() -> int:
    try:
        text = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text()
    except OSError:
        return 32_768
    return int(text.split()[0])


def free_port() -> int:
    """Find a TCP port of 127.0.0.1 that nobody listens on.

    No port is returned twice in one process.

    :raises OSError: if none is free.
    """
    # Not one that the kernel picks (port 0): it comes from the range of
    # outgoing connections, one of which may take it while the server is
    # down, and a restart would then fail now and then.
    end = _lowest_ephemeral_port()
    for attempt in range(200):
        port = 0
        if attempt < 100 and end > _LOWEST_PORT + 1000:
            # Not the random module, whose seed the tests set: two runs
            # with one seed would try the same ports.
            port = _LOWEST_PORT + secrets.randbelow(end - _LOWEST_PORT)
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            port = int(probe.getsockname()[1])
        with _lock:
            if port not in _taken:
                _taken.add(port)
                return port
    raise OSError("no free TCP port on 127.0.0.1")


def on_free_ports(start: Callable[[], None]) -> None:
    """Start something, and again if somebody else took one of its ports.

    That happens between our look at a port and the server's.

    :param start: chooses ports; leaves no process if it fails.
    :raises sqla_shard.exc.ServerProcessError: what it raises the last time,
        or at once for another reason.
    """
    for attempt in range(1, _START_ATTEMPTS + 1):
        try:
            start()
        except exc.ServerProcessError as error:
            taken = "Address already in use" in error.log
            if not taken or attempt == _START_ATTEMPTS:
                raise
        else:
            return


def accepts(path: Path) -> bool:
    """Tell whether somebody listens on a Unix socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(5)
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def wait_until(
    condition: Callable[[], bool], *, seconds: float, every: float = 0.02
) -> bool:
    """Ask again and again until the answer is yes or time is up.

    :param condition: asked at least once.
    :param seconds: how long to ask.
    :param every: seconds between two questions.
    :return: the last answer.
    """
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while not condition():
        if time.monotonic() >= deadline:
            return False
        pause.wait(every)
    return True


def tail(path: Path, lines: int = 20) -> str:
    """Return the last lines of a text file; nothing if there is no file."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


class Guard:
    """The process that removes servers of a test run that died.

    Started on first use, one for each process that starts servers.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._owner = 0
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        pid = None if self._process is None else self._process.pid
        return f"<Guard pid={pid}>"

    def add(self, pid: int, directory: Path) -> None:
        """Have a server killed and its directory removed, should we die.

        :param pid: the server; its command line must name the directory.
            0 for one that is yet to start.
        :param directory: all its files.
        """
        self._send(["add", pid, str(directory)])

    def remove(self, directory: Path) -> None:
        """Forget a server that was stopped."""
        # A guard that somebody killed has nothing left to forget.
        with contextlib.suppress(BrokenPipeError):
            self._send(["remove", str(directory)])

    def close(self) -> None:
        """End the process; what it still guards is cleaned up now."""
        with self._lock:
            process, self._process = self._process, None
            if process is None or self._owner != os.getpid():
                return
            if process.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.close()
            process.wait(timeout=30)

    def _send(self, command: list[object]) -> None:
        with self._lock:
            # A forked child that starts servers needs a guard of its own:
            # the parent's would wait for the child, then know nothing.
            if self._process is None or self._owner != os.getpid():
                self._process = self._start()
                self._owner = os.getpid()
                atexit.register(self.close)
            assert self._process.stdin is not None  # noqa: S101 - for mypy
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()

    def _start(self) -> subprocess.Popen[str]:
        program = Path(__file__).with_name("_guard.py")
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(program)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
            # Ctrl-C in a terminal goes to the whole session; the guard
            # must not die of what it is there to clean up after.
            start_new_session=True,
        )


guard = Guard()
"""The guard of this process."""
