"""A server of any kind that is a process of ours, in a directory of its own.

A kind of server says, in methods to override, what its directory has in it,
what its command is, and how to tell that it answers.  Here is what all of
them share: the process, its end, the guard, the log, the directory.

Needs Linux.  A server that is controlled by several threads at once is not
supported.
"""

from __future__ import annotations

import abc
import atexit
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import ClassVar
from typing import TypeVar

from sqla_shard import exc
from sqla_shard.testing._processes import free_port
from sqla_shard.testing._processes import guard
from sqla_shard.testing._processes import on_free_ports
from sqla_shard.testing._processes import tail
from sqla_shard.testing._processes import wait_until
from sqla_shard.testing._started import Started

__all__ = ["LocalServer"]

_Self = TypeVar("_Self", bound="LocalServer")


class LocalServer(Started):
    """A server that is started, used and thrown away.

    :param name: for messages.
    :param parent: where to make the server's directory; None for where the
        system wants such things.
    :param start_timeout: seconds to wait for a start.
    :param stop_timeout: seconds to wait for an orderly end before SIGKILL.
    """

    host = "127.0.0.1"

    _log_name: ClassVar[str]
    """Name of the file for what the process prints."""

    _stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    """How the process is ended before its directory is removed."""

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
        self.port = 0
        """TCP port, the same from the first start on; 0 before."""
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

    # -- state ------------------------------------------------------------

    @property
    def running(self) -> bool:
        """Whether the process is there; a paused one is, too."""
        return self._process is not None and self._process.poll() is None

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
        return tail(self.directory / self._log_name)

    # -- starting and ending ----------------------------------------------

    def stop(self) -> None:
        """End the server and remove its directory.

        Nothing happens if there is none, nor in a forked child: the server
        belongs to the process that started it.
        """
        if self.directory is None or self._owner != os.getpid():
            return
        self._end(self._stop_signal)
        guard.remove(self.directory)
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory = None
        self._process = None
        atexit.unregister(self.stop)

    def restart(self: _Self) -> _Self:
        """End the server in good order and start it with the same data.

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
        """Stop the process in mid-air: it accepts nothing, answers nothing.

        :raises sqla_shard.exc.ServerProcessError: if it is not running, or
            does not stop.
        """
        process = self._running_process()
        process.send_signal(signal.SIGSTOP)
        # On a busy machine a thread of it may still answer for a while.
        self._paused = True
        if not wait_until(lambda: _is_stopped(process.pid), seconds=10.0):
            raise exc.ServerProcessError(
                f"{self!r} did not stop within 10 s", log=self.log_tail
            )

    def resume(self) -> None:
        """Let a paused server go on.

        :raises sqla_shard.exc.ServerProcessError: if it is not running.
        """
        self._running_process().send_signal(signal.SIGCONT)
        self._paused = False

    # -- what differs between kinds of servers ----------------------------

    def _make_directory(self, parent: Path) -> Path:
        """Make the directory of the server, closed to all others."""
        made = tempfile.mkdtemp(prefix="sqlashard-", dir=parent.resolve())
        return Path(made)

    @abc.abstractmethod
    def _fill(self, directory: Path) -> None:
        """Write what the directory has in it before the first start."""

    @abc.abstractmethod
    def _command(self, directory: Path) -> list[str]:
        """Return the command that runs the server; it names the directory.

        :raises sqla_shard.exc.ServerProcessError: if a program is missing.
        """

    @abc.abstractmethod
    def _serves(self) -> bool:
        """Ask the process, which is there, whether its start is over."""

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

    def _start(self) -> None:
        """Start the server if it is not running, with the data it has."""
        if self.running:
            return
        if self._process is not None and self.directory is not None:
            self._launch()
            return
        with self._or_stopped():
            self._first_start()

    def _first_start(self) -> None:
        parent = self._parent or Path(tempfile.gettempdir())
        self.directory = self._make_directory(parent)
        self._owner = os.getpid()
        # The guard first: at exit the order is reversed, and stop() needs
        # it still there.
        guard.add(0, self.directory)
        atexit.register(self.stop)
        self._fill(self.directory)
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
        return self._serves()

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


def _is_stopped(pid: int) -> bool:
    """Tell whether all threads of a process have stopped."""
    states = []
    for status in Path(f"/proc/{pid}/task").glob("*/stat"):
        # One that ends meanwhile is not in the way.
        with contextlib.suppress(OSError):
            # The name before it may have blanks and brackets.
            states.append(status.read_text().rpartition(")")[2].split()[0])
    return all(state in "TtZX" for state in states)
