"""The last good topology, in a file on this machine.

It is an ordinary topology file, with unexpanded placeholders.  It is replaced
atomically, so readers never see an incomplete file.
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
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from sqla_shard.exc import Problem, TopologyError
from sqla_shard.topology import FileSource, to_json, Topology
from sqla_shard.util.files import replace_file

#: Seconds to wait for the lock, and between two attempts.
_LONGEST_LOCK = 5.0
_SLICE = 0.01

_FOR_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def default_path(name: str) -> Path:
    """Return the default path of the snapshot of a source.

    :param name: name of the source.
    :returns: a path in ``$XDG_STATE_HOME``, or ``~/.local/state``.
    :raises TopologyError: if there is no home directory.
    """
    home = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    try:
        folder = Path(home).expanduser()
    except RuntimeError as error:
        # A user in a container may have no name.
        message = (
            "this user has no home directory; set XDG_STATE_HOME, "
            "snapshot=PATH, or snapshot=False for no snapshot"
        )
        raise TopologyError([Problem("snapshot", message)], source=name) from error
    readable = re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-")[:60]
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return folder / "sqla_shard" / f"{readable}-{digest}.json"


class Snapshot:
    """A file with the last good topology.

    Several processes may share it.

    :param path: path that ends in ``.json``; missing directories are created.
    :param mode: permissions of the file; by default only this user has access.
    :param placeholders: see :meth:`Topology.from_mapping`.
    :param environ: see :meth:`Topology.from_mapping`.
    :raises TopologyError: if the path has another suffix.
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
        self._file = FileSource(self.path, placeholders=placeholders, environ=environ)
        if self.path.suffix.lower() != ".json":
            raise self._refusal("its name must end in .json")

    def load(self) -> Topology | None:
        """Return the topology; None if there is no file.

        :raises TopologyError: if the file cannot be read, is invalid, or other
            users can write it.
        """
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._refusal(f"cannot be read: {error.strerror or error}") from error
        if found.st_uid not in (0, os.geteuid()) or (found.st_mode & _FOR_OTHERS):
            # Another user could redirect this process and its passwords to
            # another server.
            raise self._refusal(
                "other users can write it; change its permissions (chmod "
                "600), or remove it"
            )
        return self._file.load()

    def age(self) -> float:
        """Return the seconds since the topology was written or confirmed."""
        try:
            return max(0.0, time.time() - os.stat(self.path).st_mtime)
        except OSError:
            return 0.0

    def save(self, topology: Topology) -> None:
        """Write a topology, unless the file has a newer one.

        :raises OSError: if the file cannot be written; it is not changed.
        """
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(self.path.parent):
            with contextlib.suppress(TopologyError):
                known = self.load()
                if known is not None and known.version > topology.version:
                    # Another process has written the file.
                    return
                if known == topology:
                    self.confirm()
                    return
            replace_file(self.path, to_json(topology), self._mode)

    def confirm(self) -> None:
        """Record that the topology is still the newest; resets its age."""
        with contextlib.suppress(FileNotFoundError):
            os.utime(self.path)

    def _refusal(self, message: str) -> TopologyError:
        return TopologyError([Problem("snapshot", message)], source=str(self.path))


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Lock the directory while the file is read and replaced.

    Otherwise a concurrent process could overwrite a newer topology with an
    older one.
    """
    handle = os.open(directory, os.O_RDONLY)
    try:
        _lock(handle)
        yield
    finally:
        # Closing is not enough: a child process that was forked meanwhile
        # would hold the lock until it exits.
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)


def _lock(handle: int) -> None:
    """Wait for a lock, for a limited time.

    :raises OSError: if the lock is not free in time.
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
            # Network file systems cannot lock directories; a snapshot that may
            # be older is better than none.
            return
        else:
            return
