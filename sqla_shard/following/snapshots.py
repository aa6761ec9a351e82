"""The last good topology, in a file on this machine.

It is a topology file like any other, with placeholders unexpanded.  Whoever
reads it has a whole one, whatever happened to the process or the machine.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import stat
import threading
import time
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from pathlib import Path

from sqla_shard.exc import Problem
from sqla_shard.exc import TopologyError
from sqla_shard.files import replace_file
from sqla_shard.topology import FileSource
from sqla_shard.topology import to_json
from sqla_shard.topology import Topology

__all__ = ["Snapshot", "default_path"]

#: Seconds to wait for others who write it, and between two tries.
_LONGEST_LOCK = 5.0
_SLICE = 0.01

_FOR_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def default_path(name: str) -> Path:
    """Return where the snapshot of a source is kept unless told otherwise.

    :param name: of the source; two sources have two snapshots.
    :returns: in ``$XDG_STATE_HOME``, or ``~/.local/state``.
    :raises TopologyError: when there is no home directory.
    """
    home = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    try:
        folder = Path(home).expanduser()
    except RuntimeError as error:
        # The user of a container may be a number and nothing else.
        message = (
            "this user has no home directory to keep it in; set "
            "XDG_STATE_HOME, or say snapshot=PATH, or snapshot=False for none"
        )
        raise TopologyError(
            [Problem("snapshot", message)], source=name
        ) from error
    readable = re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-")[:60]
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return folder / "sqla_shard" / f"{readable}-{digest}.json"


class Snapshot:
    """A file with the last good topology.

    Several processes may share it.

    :param path: ends in ``.json``; its directory is made if need be.
    :param mode: of the file; by default nobody else may read it.
    :param placeholders: see :meth:`Topology.from_mapping`.
    :param environ: likewise.
    :raises TopologyError: for another suffix.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        mode: int = 0o600,
        placeholders: Collection[str],
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.path = Path(path)
        self._mode = mode
        self._file = FileSource(
            self.path, placeholders=placeholders, environ=environ
        )
        if self.path.suffix.lower() != ".json":
            raise self._refusal("its name must end in .json")

    def load(self) -> Topology | None:
        """Return what was written last; None where there is nothing.

        :raises TopologyError: when it cannot be read, is not whole, or
            somebody else could have written it.
        """
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._refusal(
                f"cannot be read: {error.strerror or error}"
            ) from error
        if found.st_uid not in (0, os.geteuid()) or (
            found.st_mode & _FOR_OTHERS
        ):
            # Whoever may write it sends this process, with its passwords,
            # to a server of their own.
            raise self._refusal(
                "others may write it; leave it to this user (chmod 600), or "
                "remove it"
            )
        return self._file.load()

    def age(self) -> float:
        """Return how many seconds ago it was written or confirmed."""
        try:
            return max(0.0, time.time() - os.stat(self.path).st_mtime)
        except OSError:
            return 0.0

    def save(self, topology: Topology) -> None:
        """Write a topology, unless the file has a newer one.

        :raises OSError: when it cannot be written; the old one stays.
        """
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(self.path.parent):
            with contextlib.suppress(TopologyError):
                known = self.load()
                if known is not None and known.version > topology.version:
                    # Of another process, which has heard of it earlier.
                    return
                if known == topology:
                    self.confirm()
                    return
            replace_file(self.path, to_json(topology), self._mode)

    def confirm(self) -> None:
        """Take note that it is still the newest; its age begins again."""
        with contextlib.suppress(FileNotFoundError):
            os.utime(self.path)

    def _refusal(self, message: str) -> TopologyError:
        return TopologyError(
            [Problem("snapshot", message)], source=str(self.path)
        )


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Let one process at a time look at what is there, and replace it.

    Of two that do both at once, the one with the older topology could come
    last.  The directory itself is locked: it leaves no file behind.
    """
    handle = os.open(directory, os.O_RDONLY)
    try:
        _lock(handle)
        yield
    finally:
        # Closing is not enough: a child process that was forked meanwhile
        # has the handle as well, and would keep the lock until it ends.
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)


def _lock(handle: int) -> None:
    """Wait for a lock, but not for a process that hangs with it.

    :raises OSError: when it is not free in time.
    """
    deadline = time.monotonic() + _LONGEST_LOCK
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > deadline:
                raise OSError(
                    error.errno,
                    "another process has locked its directory for "
                    f"{_LONGEST_LOCK:g} seconds",
                ) from error
            threading.Event().wait(_SLICE)
        except OSError:
            # Network file systems have none for directories; better an older
            # one now and then than none at all.
            return
        else:
            return
