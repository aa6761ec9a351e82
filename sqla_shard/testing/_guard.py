"""A process that removes the servers of a test run when it ends.

Run by path, never imported.  It reads one JSON list for each line of its
standard input: ``["add", pid, directory]``, with 0 for a server that is
not started yet, or ``["remove", directory]``.  At the end of the input the
test run has ended: the servers that are still listed are killed and their
directories removed.

``prctl(PR_SET_PDEATHSIG)`` would need no process, but it fires when the
*thread* that started the server ends, and it is reset when mariadbd changes
from root to its own user.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys


def _command_of(pid: int) -> str:
    """Return the command line of a process; empty if it has ended."""
    try:
        with open(f"/proc/{pid}/cmdline", encoding="utf-8") as file:
            return file.read()
    except OSError:
        pass
    answer = subprocess.run(
        ["ps", "-o", "args=", "-p", str(pid)],  # noqa: S607 - not on Linux
        capture_output=True,
        text=True,
        check=False,
    )
    return answer.stdout


def _clean_up(pid: int, directory: str) -> None:
    # The process id may belong to another process by now.
    if pid and directory in _command_of(pid):
        os.kill(pid, signal.SIGKILL)
    shutil.rmtree(directory, ignore_errors=True)


def main() -> None:
    """Read commands until the test run ends, then clean up after it."""
    guarded: dict[str, int] = {}
    for line in sys.stdin:
        match json.loads(line):
            case ["add", int(pid), str(directory)]:
                guarded[directory] = pid
            case ["remove", str(directory)]:
                guarded.pop(directory, None)
    for directory, pid in guarded.items():
        _clean_up(pid, directory)


if __name__ == "__main__":
    main()
