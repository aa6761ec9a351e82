"""Processes that start at once, and are killed at any moment.

One process has imported what they need, and is forked for each of them.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]


class Forks:
    """Starts processes that call a function; a context manager.

    :param module: the module of the functions.
    """

    def __init__(self, module: str) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-m", __name__, module],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._running: list[int] = []

    def __enter__(self) -> Forks:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for process in list(self._running):
            self.kill(process)
        assert self._server.stdin
        assert self._server.stdout
        self._server.stdin.close()
        assert self._server.wait(60) == 0
        self._server.stdout.close()

    def start(self, function: str, **arguments: Any) -> int:
        """Return the number of a new process.

        :param function: its name in the module.
        """
        assert self._server.stdin
        assert self._server.stdout
        self._server.stdin.write(json.dumps([function, arguments]) + "\n")
        self._server.stdin.flush()
        process = int(self._server.stdout.readline())
        self._running.append(process)
        return process

    def kill(self, process: int) -> None:
        """End a process, in the midst of whatever it does."""
        self._running.remove(process)
        # It was ended by an error; then what it has not done is missed.
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def is_orphan(server: int) -> bool:
    """Tell whether the process that was forked is gone."""
    return os.getppid() != server


def _serve() -> None:
    module = importlib.import_module(sys.argv[1])
    # No process waits for those that have ended.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    server = os.getpid()
    import tests.workers.freeze  # noqa: F401 - the last one

    for line in sys.stdin:
        function, arguments = json.loads(line)
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            getattr(module, function)(server=server, **arguments)
            os._exit(0)
        sys.stdout.write(f"{child}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _serve()
