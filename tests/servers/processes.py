"""The state of processes and their sockets, as read from ``/proc``."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import threading
from pathlib import Path


def sockets_of(pid: int, table: str) -> list[str]:
    """Return where a process listens, in hexadecimal."""
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        # A connection may be closed meanwhile.
        with contextlib.suppress(FileNotFoundError):
            inodes.add(os.readlink(link))
    rows = Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
    fields = [row.split() for row in rows]
    # Listening sockets of TCP, and unconnected sockets of UDP.
    return [
        f[1] for f in fields if f"socket:[{f[9]}]" in inodes and f[3] in ("0A", "07")
    ]


def state_of(pid: int) -> str:
    """Return the state of a process as a letter; Z when it has ended.

    An ended process stays if its parent does not read its status.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return "Z"
    return text.rpartition(")")[2].split()[0]


def is_running(pid: int) -> bool:
    """Tell whether a process is there, and has not ended."""
    return state_of(pid) != "Z"


def gone(pid: int) -> bool:
    """Tell whether a process has ended, and its parent has read its status."""
    return not Path(f"/proc/{pid}").exists()


def listening(pid: int) -> set[tuple[str, int]]:
    """Return the addresses on which a process listens for TCP."""
    found = set()
    for row in (*sockets_of(pid, "tcp"), *sockets_of(pid, "tcp6")):
        address, _, port = row.partition(":")
        # Java's sockets are those of IPv6, with IPv4 in their last four bytes.
        raw = bytes.fromhex(address)[-4:][::-1]
        found.add((socket.inet_ntoa(raw), int(port, 16)))
    return found


# -- The sockets of this process.


def count_sockets_to(port: int) -> int:
    """Return how many sockets are connected to a port."""
    return sum(_port_of(int(name)) == port for name in os.listdir("/proc/self/fd"))


def _port_of(descriptor: int) -> int | None:
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return None
        with socket.socket(fileno=os.dup(descriptor)) as sock:
            # That of a Unix socket is a path.
            name = sock.getpeername()
            return int(name[1]) if isinstance(name, tuple) else None
    except OSError:
        # It was the one that lists the directory, or is not connected.
        return None


# -- threads that a test has started


def running() -> set[threading.Thread]:
    """Return the threads of this moment."""
    return set(threading.enumerate())


def started_since(before: set[threading.Thread]) -> list[str]:
    """Return the names of threads that run now and did not before.

    Numbers of threads would not do: those of an earlier test may end while
    this one counts.
    """
    return sorted(thread.name for thread in running() - before)
