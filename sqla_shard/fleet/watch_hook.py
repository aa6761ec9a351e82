"""The command that watchers run to page an operator.

A watcher goes on whatever the command does: one that cannot be started, fails
or takes too long is reported as a problem until a later one succeeds.
"""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress

from sqla_shard.exc import FleetSetupError

_log = logging.getLogger(__name__)

_STDERR = 2


class Hook:
    """A command that is run for each line of a report.

    The line is in the variable ``SQLA_SHARD_WATCH``; other variables of this
    package, such as passwords, are not passed.  The output of the command
    goes to standard error.

    :param command: program and arguments; empty to run nothing.
    :param seconds: time after which a command is killed.
    :raises FleetSetupError: if the program does not exist, or cannot be
        executed.
    """

    def __init__(self, command: Sequence[str], *, seconds: float) -> None:
        self._command = [*command]
        self._seconds = seconds
        self._running: list[tuple[subprocess.Popen[bytes], float]] = []
        #: Why the last command has failed; None if it has not.
        self.failure: str | None = None
        if command and shutil.which(command[0]) is None:
            raise FleetSetupError(
                f"the hook {command[0]!r} is not a program that can be "
                "executed; write its path, or install it in a directory of "
                "PATH"
            )

    def run(self, line: str) -> None:
        """Start the command for a line; does not wait for its end."""
        if not self._command:
            return
        environ = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("SQLA_SHARD_")
        }
        try:
            process = subprocess.Popen(
                self._command,
                env={**environ, "SQLA_SHARD_WATCH": line},
                stdin=subprocess.DEVNULL,
                # Standard output has the reports, which may be JSON.
                stdout=_STDERR,
                # Its children are killed with it.
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            # ValueError: the line or an argument has a NUL.
            self._fail(f"cannot be started: {error}")
            return
        self._running.append((process, time.monotonic() + self._seconds))

    def collect(self) -> None:
        """Collect the commands that have ended, and kill those too late."""
        running = []
        for process, deadline in self._running:
            status = process.poll()
            if status is None and time.monotonic() < deadline:
                running.append((process, deadline))
            elif status is None:
                _kill(process)
                self._fail(f"was killed after {self._seconds:g} s")
            elif status:
                self._fail(f"ended with status {status}")
            else:
                self.failure = None
        self._running = running

    def close(self) -> None:
        """Kill the commands that run: the next watcher reports again."""
        self.collect()
        for process, _ in self._running:
            _kill(process)
        self._running.clear()

    def _fail(self, reason: str) -> None:
        self.failure = f"the hook {shlex.join(self._command)} {reason}"
        _log.warning("%s", self.failure, extra={"action": "run watch hook"})


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
