"""The sockets of this process."""

from __future__ import annotations

import os
import socket
import stat

__all__ = ["count_sockets_to"]


def count_sockets_to(port: int) -> int:
    """Return how many sockets are connected to a port."""
    return sum(
        _port_of(int(name)) == port for name in os.listdir("/proc/self/fd")
    )


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
