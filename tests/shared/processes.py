"""What the system knows of a process."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

__all__ = ["is_running", "sockets_of", "state_of"]


def sockets_of(pid: int, table: str) -> list[str]:
    """Return where a process listens, in hexadecimal."""
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        # A connection may be closed meanwhile.
        with contextlib.suppress(FileNotFoundError):
            inodes.add(os.readlink(link))
    rows = Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
    fields = [row.split() for row in rows]
    # Sockets of TCP that listen, and of UDP that are connected to nobody.
    return [
        f[1]
        for f in fields
        if f"socket:[{f[9]}]" in inodes and f[3] in ("0A", "07")
    ]


def state_of(pid: int) -> str:
    """Return what a process does, in a letter; Z when it has ended.

    Nobody may be there to ask for the status of one that has.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return "Z"
    return text.rpartition(")")[2].split()[0]


def is_running(pid: int) -> bool:
    """Tell whether a process is there, and has not ended."""
    return state_of(pid) != "Z"
