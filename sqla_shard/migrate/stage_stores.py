"""Stores of the stage of a move: with the topology.

Next to a topology file is the directory ``topology.toml.moving``, and below a
path in ZooKeeper the node ``/moving``.  It has one entry for each change of
the stage, named by the number of the change; the highest one is the stage now.
Entries are created and never changed, and a name can be created once: of two
processes that change the same stage, one gets
:exc:`~sqla_shard.exc.StageConflictError`.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Protocol, TYPE_CHECKING

from sqla_shard.exc import (
    StageConflictError,
    StageUnavailableError,
    TopologyUnavailableError,
)
from sqla_shard.migrate.stages import Progress
from sqla_shard.topology.follow.locations import is_zookeeper, zookeeper_options
from sqla_shard.util.files import flush_to_disk
from sqla_shard.util.forking import in_children
from sqla_shard.util.json_values import parsed_json

if TYPE_CHECKING:
    from sqla_shard.topology.zookeeper.store import ZooKeeperStore

#: Parent node of the changes in ZooKeeper.
_CHANGES = "/moving"


class StageStore(Protocol):
    """The stored stage of a move.

    :ivar notifies: whether it notifies of changes.
    """

    notifies: bool

    @property
    def name(self) -> str:
        """Location of the stage, without credentials."""
        ...

    def read(self) -> Progress:
        """Return the stage now; that of number 0 if none is stored.

        :raises StageUnavailableError: if it cannot be read.
        """
        ...

    def write(self, new: Progress) -> None:
        """Store the change that follows the one with the number before.

        If the same change is stored already, nothing is done, so that a
        command that was interrupted can be repeated.

        :raises StageConflictError: if another process was faster; nothing was
            changed.
        :raises StageUnavailableError: if it cannot be written, or it is
            unknown whether it was.
        """
        ...

    def listen(self, notify: Callable[[], None]) -> None:
        """Call ``notify()`` when the stage may have changed since it was read.

        It may be called from any thread, and returns immediately.
        """
        ...

    def close(self) -> None:
        """Close the connection; it is opened again when it is needed."""
        ...


def stage_store(location: str | os.PathLike[str]) -> StageStore:
    """Return the store of the stage of a topology.

    :param location: path of the topology, or ``zookeeper://host:port/path``.
    """
    if is_zookeeper(location):
        return ZooKeeperStageStore(str(location))
    return FileStageStore(location)


class FileStageStore:
    """The stage next to a topology file.

    :param path: path of the topology.
    """

    notifies = False

    def __init__(self, path: str | os.PathLike[str]) -> None:
        path = Path(path)
        self._folder = path.with_name(f"{path.name}.moving")

    @property
    def name(self) -> str:
        """Path of the directory with the changes."""
        return str(self._folder)

    def read(self) -> Progress:
        """Return the stage now."""
        try:
            number = _highest(os.listdir(self._folder))
            if number is None:
                return Progress()
            data = self._path(number).read_bytes()
        except FileNotFoundError:
            return Progress()
        except OSError as error:
            raise self._unavailable(error) from error
        return _parsed(data, number, self.name)

    def write(self, new: Progress) -> None:
        """Store the next change."""
        now = self.read()
        if now == new:
            return
        _check_follows(now, new, self.name)
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            is_new = self._create(self._path(new.number), _data_of(new))
        except OSError as error:
            raise self._unavailable(error) from error
        if not is_new:
            now = self.read()
            if now != new:
                raise _conflict(now, new, self.name)

    def listen(self, notify: Callable[[], None]) -> None:
        """Do nothing: a file does not notify."""

    def close(self) -> None:
        """Do nothing."""

    def _create(self, path: Path, data: bytes) -> bool:
        """Create a file with its content; return False if it exists."""
        handle, name = tempfile.mkstemp(prefix=".", dir=self._folder)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            # Unlike a rename, a link fails if the name exists; readers never
            # see a file without its content.
            os.link(name, path)
        except FileExistsError:
            return False
        finally:
            with suppress(FileNotFoundError):
                os.unlink(name)
        flush_to_disk(self._folder)
        return True

    def _path(self, number: int) -> Path:
        return self._folder / f"{_name_of(number)}.json"

    def _unavailable(self, error: OSError) -> StageUnavailableError:
        return StageUnavailableError(
            store=self.name, reason=error.strerror or str(error)
        )


class ZooKeeperStageStore:
    """The stage at a path in ZooKeeper, read and watched in one session.

    A watch only notifies; the next read sets it again.

    :param location: ``zookeeper://host:port,host:port/path``.
    :param timeout: seconds to wait for a response.
    """

    notifies = True

    def __init__(self, location: str, *, timeout: float = 5.0) -> None:
        self._hosts, self._options = zookeeper_options(location)
        self._timeout = timeout
        self._notify: Callable[[], None] = _ignore
        self._store: ZooKeeperStore | None = None
        self._lock = Lock()
        in_children(self)

    @property
    def name(self) -> str:
        """URL of the node with the changes, without credentials."""
        return f"zookeeper://{self._hosts}{_CHANGES}"

    def read(self) -> Progress:
        """Return the stage now, and watch it."""
        with self._opened() as store:
            return self._read(store)

    def write(self, new: Progress) -> None:
        """Store the next change."""
        # kazoo is imported by users of ZooKeeper only.
        from sqla_shard.topology.zookeeper.publications import TOPOLOGY
        from sqla_shard.topology.zookeeper.store import Create

        with self._opened() as store:
            now = self._read(store)
            if now == new:
                return
            _check_follows(now, new, self.name)
            store.prepare(_CHANGES, like=TOPOLOGY)
            node = f"{_CHANGES}/{_name_of(new.number)}"
            if store.commit(Create(node, _data_of(new))) is None:
                now = self._read(store)
                if now != new:
                    raise _conflict(now, new, self.name)

    def listen(self, notify: Callable[[], None]) -> None:
        """Call ``notify()`` when the stage may have changed."""
        self._notify = notify

    def close(self) -> None:
        """End the session."""
        with self._lock:
            store, self._store = self._store, None
        if store is not None:
            store.close()

    def after_fork(self) -> None:
        """Replace the lock, which a thread of the parent may hold.

        The connection closes its copies of sockets.
        """
        self._lock = Lock()

    def _read(self, store: ZooKeeperStore) -> Progress:
        # A server of the ensemble may be behind the one that was written.
        store.sync()
        number = _highest(store.watched_names(_CHANGES, self._on_change))
        if number is None:
            return Progress()
        node = store.read(f"{_CHANGES}/{_name_of(number)}")
        if node is None:
            raise StageUnavailableError(
                store=self.name, reason=f"change {number} was deleted"
            )
        return _parsed(node.data, number, self.name)

    def _on_change(self, event: object = None) -> None:
        """Called by kazoo, in its thread; without event, watches are lost."""
        self._notify()

    @contextmanager
    def _opened(self) -> Iterator[ZooKeeperStore]:
        from sqla_shard.topology.zookeeper.store import ZooKeeperStore

        # A connection is opened, and replaced, by one thread.
        with self._lock:
            if self._store is None:
                self._store = ZooKeeperStore(
                    self._hosts, timeout=self._timeout, options=self._options
                )
                self._store.listen(self._on_change)
            try:
                yield self._store
            except TopologyUnavailableError as error:
                raise StageUnavailableError(
                    store=self.name, reason=error.reason
                ) from error


def _ignore() -> None:
    """Do nothing."""


def _name_of(number: int) -> str:
    return f"{number:010d}"


def _highest(names: list[str]) -> int | None:
    """Return the highest number of the names of changes."""
    stems = (name.removesuffix(".json") for name in names)
    return max((int(stem) for stem in stems if stem.isdecimal()), default=None)


def _data_of(progress: Progress) -> bytes:
    return json.dumps(progress.as_dict(), sort_keys=True).encode()


def _parsed(data: bytes, number: int, name: str) -> Progress:
    try:
        found = Progress.from_dict(parsed_json(data))
        if found.number != number:
            raise ValueError(f"it has the number {found.number}")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise StageUnavailableError(
            store=name,
            reason=f"change {number} is damaged ({error}); restore it: "
            "without it no process knows which side is written",
        ) from error
    return found


def _check_follows(now: Progress, new: Progress, name: str) -> None:
    if new.number != now.number + 1:
        raise _conflict(now, new, name)


def _conflict(now: Progress, new: Progress, name: str) -> StageConflictError:
    return StageConflictError(store=name, expected=new.number - 1, found=now.number)
