"""A local server process, the base of all kinds.

Each kind of server overrides methods that write its files, build its command,
and check whether it is ready.

Needs Linux.  Do not control one server from several threads at the same time.
"""

from __future__ import annotations

import abc
import atexit
import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar, TypeVar

from sqla_shard import exc

_StartableSelf = TypeVar("_StartableSelf", bound="Startable")

_Server = TypeVar("_Server")


def in_parallel(
    servers: Sequence[_Server], action: Callable[[_Server], object]
) -> None:
    """Call a function for all servers in parallel; raise the first error.

    :param servers: at least one.
    :param action: called once for each, in a thread of its own.
    """
    with ThreadPoolExecutor(len(servers)) as pool:
        futures = [pool.submit(action, server) for server in servers]
    for future in futures:
        future.result()


class Startable(abc.ABC):
    """Started when a ``with`` statement begins, stopped when it ends."""

    def __enter__(self: _StartableSelf) -> _StartableSelf:
        self.start()
        return self

    def __exit__(self, *details: object) -> None:
        self.stop()

    @abc.abstractmethod
    def start(self) -> object:
        """Start the server, and wait until it is ready."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Stop the server, and remove all files."""

    @contextlib.contextmanager
    def _stopped_on_error(self) -> Iterator[None]:
        """Stop if the block raises, even KeyboardInterrupt."""
        try:
            yield
        except BaseException:
            self.stop()
            raise


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
    """Return a free TCP port of 127.0.0.1; never the same one twice.

    :raises OSError: if no port is free.
    """
    # The kernel must not choose the port (port 0), which comes from the range
    # of outgoing connections: one of these may take it while the server is
    # down, and the restart would fail.
    end = _lowest_ephemeral_port()
    for attempt in range(200):
        port = 0
        if attempt < 100 and end > _LOWEST_PORT + 1000:
            # Not the random module: tests set its seed, and two runs would
            # try the same ports.
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
    """Start a server; repeat if another process took its port meanwhile.

    :param start: chooses ports; leaves no process if it fails.
    :raises sqla_shard.exc.ServerProcessError: if all attempts fail, or one
        fails for another reason than the port.
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


def is_listening(path: Path) -> bool:
    """Return whether a process listens on a Unix socket."""
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
    """Call ``condition`` until it is true or the time is over.

    :param condition: called at least once.
    :param seconds: maximum number of seconds.
    :param every: seconds between two calls.
    :return: the last result.
    """
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while not condition():
        if time.monotonic() >= deadline:
            return False
        pause.wait(every)
    return True


def tail(path: Path, lines: int = 20) -> str:
    """Return the last lines of a text file; empty if there is no file."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


class Guard:
    """A process that removes the servers of a test run that was killed.

    It is started on first use, one for each process that starts servers.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._owner = 0
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        pid = None if self._process is None else self._process.pid
        return f"<Guard pid={pid}>"

    def add(self, pid: int, directory: Path) -> None:
        """Kill a server and remove its directory when this process ends.

        :param pid: process id of the server, whose command line must have the
            directory; 0 for a server that is not started yet.
        :param directory: all files of the server.
        """
        self._send(["add", pid, str(directory)])

    def remove(self, directory: Path) -> None:
        """Remove a server that was stopped from the list."""
        # The guard may have been killed.
        with contextlib.suppress(BrokenPipeError):
            self._send(["remove", str(directory)])

    def close(self) -> None:
        """End the process, which removes the remaining servers first."""
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
            # A forked child needs its own guard: that of the parent waits
            # for the end of the parent.
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
            # Ctrl-C goes to all processes of the session: it must not end
            # the guard.
            start_new_session=True,
        )


guard: Guard = Guard()

"""The guard of this process."""


_Self = TypeVar("_Self", bound="LocalServer")


class LocalServer(Startable):
    """A server process for tests.

    :param name: name of the server, for messages.
    :param parent: parent of its directory; None for the directory for
        temporary files.
    :param start_timeout: seconds to wait for a start.
    :param stop_timeout: seconds to wait for a clean shutdown before SIGKILL.
    """

    host = "127.0.0.1"

    _log_name: ClassVar[str]
    """Name of the file for the output of the process."""

    def __init__(
        self,
        name: str,
        *,
        parent: Path | None,
        start_timeout: float,
        stop_timeout: float,
    ) -> None:
        self.name = name
        self.start_timeout = start_timeout
        self.stop_timeout = stop_timeout
        self.port: int = 0
        """TCP port; 0 before the first start."""
        self.directory: Path | None = None
        """All files of the server; None before the start, after the stop."""
        self._parent = parent
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._paused = False

    def __repr__(self) -> str:
        state = "paused" if self._paused else "running"
        if not self.running:
            state = "stopped"
        return f"<{type(self).__name__} {self.name} port={self.port} {state}>"

    @property
    def running(self) -> bool:
        """Whether the process exists, even if it is paused."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """Process id; None if it is not running."""
        if self._process is None or not self.running:
            return None
        return self._process.pid

    @property
    def log_tail(self) -> str:
        """The last lines of the log; empty once it was removed."""
        if self.directory is None:
            return ""
        return tail(self.directory / self._log_name)

    def start(self: _Self) -> _Self:
        """Start the server and wait until it is ready.

        After :meth:`kill` or a crash it has its port and its data, if it
        stores any on disk.  Does nothing if it is running.

        :raises sqla_shard.exc.ServerProcessError: if the program is not
            installed, or the server is not ready in time; has the end of the
            log.
        """
        if not self.running:
            if self._process is not None and self.directory is not None:
                self._launch()
            else:
                with self._stopped_on_error():
                    self._first_start()
        return self

    def stop(self) -> None:
        """End the server and remove its directory.

        Does nothing if it was not started, or in a forked child: the server
        belongs to the process that started it.
        """
        if self.directory is None or self._owner != os.getpid():
            return
        # Its files are removed: nothing is to be saved, which takes a second.
        self._end(signal.SIGKILL)
        guard.remove(self.directory)
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory = None
        self._process = None
        atexit.unregister(self.stop)

    def restart(self: _Self) -> _Self:
        """Shut the server down and start it with the same data.

        :raises sqla_shard.exc.ServerProcessError: as :meth:`start`.
        """
        self._directory()
        self._end(signal.SIGTERM)
        self.start()
        return self

    def kill(self) -> None:
        """End the server with SIGKILL; :meth:`start` lets it recover.

        :raises sqla_shard.exc.ServerProcessError: if it was not started.
        """
        self._directory()
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Suspend the process: it neither accepts connections nor responds.

        :raises sqla_shard.exc.ServerProcessError: if it is not running, or
            does not stop.
        """
        process = self._running_process()
        process.send_signal(signal.SIGSTOP)
        # On a busy machine a thread may still respond for a moment.
        self._paused = True
        if not wait_until(lambda: _is_stopped(process.pid), seconds=10.0):
            raise exc.ServerProcessError(
                f"{self!r} did not stop within 10 s", log=self.log_tail
            )

    def resume(self) -> None:
        """Resume a paused server.

        :raises sqla_shard.exc.ServerProcessError: if it is not running.
        """
        self._running_process().send_signal(signal.SIGCONT)
        self._paused = False

    # Overridden by each kind of server.

    def _make_directory(self, parent: Path) -> Path:
        """Create the directory of the server, for its user only."""
        made = tempfile.mkdtemp(prefix="sqlashard-", dir=parent.resolve())
        return Path(made)

    @abc.abstractmethod
    def _prepare(self, directory: Path) -> None:
        """Write the files that the first start needs."""

    @abc.abstractmethod
    def _command(self, directory: Path) -> list[str]:
        """Return the command of the server; it must contain the directory.

        :raises sqla_shard.exc.ServerProcessError: if a program is not
            installed.
        """

    @abc.abstractmethod
    def _is_ready(self) -> bool:
        """Return whether the running process is ready."""

    def _directory(self) -> Path:
        if self.directory is None:
            raise exc.ServerProcessError(f"{self!r} was not started", log="")
        return self.directory

    def _running_process(self) -> subprocess.Popen[bytes]:
        process = self._process
        if process is None or not self.running:
            raise exc.ServerProcessError(f"{self!r} is not running", log=self.log_tail)
        return process

    def _first_start(self) -> None:
        parent = self._parent or Path(tempfile.gettempdir())
        self.directory = self._make_directory(parent)
        self._owner = os.getpid()
        # Start the guard first: at exit the order is reversed, and stop()
        # needs the guard.
        guard.add(0, self.directory)
        atexit.register(self.stop)
        self._prepare(self.directory)
        on_free_ports(self._first_launch)

    def _first_launch(self) -> None:
        self.port = free_port()
        self._launch()

    def _launch(self) -> None:
        directory = self._directory()
        command = self._command(directory)
        with (directory / self._log_name).open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Ctrl-C ends the tests, which stop the server; it must not
                # end the server under running tests.
                start_new_session=True,
            )
        guard.add(self._process.pid, directory)
        started = time.monotonic()
        if not wait_until(self._answers, seconds=self.start_timeout):
            seconds = time.monotonic() - started
            log_tail = self.log_tail
            self._end(signal.SIGKILL)
            raise exc.ServerProcessError(
                f"{self!r} did not respond within {seconds:.0f} s", log=log_tail
            )

    def _answers(self) -> bool:
        process = self._process
        if process is None or process.poll() is not None:
            status = None if process is None else process.returncode
            raise exc.ServerProcessError(
                f"{self!r} ended with status {status} while it started",
                log=self.log_tail,
            )
        return self._is_ready()

    def _end(self, how: signal.Signals) -> None:
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(how)
            if self._paused:
                # A suspended process receives only SIGKILL.
                process.send_signal(signal.SIGCONT)
            try:
                process.wait(timeout=self.stop_timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(timeout=self.stop_timeout)
        self._paused = False


def _is_stopped(pid: int) -> bool:
    """Return whether all threads of a process are suspended."""
    states = []
    for status in Path(f"/proc/{pid}/task").glob("*/stat"):
        # A thread may end meanwhile.
        with contextlib.suppress(OSError):
            # The name before the state may contain spaces and brackets.
            states.append(status.read_text().rpartition(")")[2].split()[0])
    return all(state in "TtZX" for state in states)
