"""Stores of the samples of load of the processes of an application.

Each process writes its :class:`.LoadSnapshot` every two seconds, and any of
them, or ``sqla-shard load`` on another machine, reads all::

    from sqla_shard.monitor import measure_load, publish_load

    publish_load(measure_load(cluster), "/run/pinboard/load")

A :class:`LoadDirectory` is for the processes of one machine, a
:class:`LoadCache` for all processes that share memcached or Redis servers.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from secrets import token_bytes
from time import time
from typing import Any, Protocol, TYPE_CHECKING

from sqla_shard.cache.stores import KeyState
from sqla_shard.exc import OptionError
from sqla_shard.monitor.load import LoadMeter, LoadSnapshot
from sqla_shard.util.files import replace_file
from sqla_shard.util.json_values import parsed_json
from sqla_shard.util.logs import careful_log
from sqla_shard.util.processes import in_children

if TYPE_CHECKING:
    from sqla_shard.cache.stores import Store

_log = careful_log(__name__)

#: Seconds between two snapshots of a process.
_INTERVAL = 2.0
#: Seconds after which the snapshot of a process is not read any more.
_FRESH = 10.0
#: Maximum number of processes in a cache.
_SLOTS = 256
_TOKEN_BYTES = 16
#: End of the names of files in a directory.
_SUFFIX = ".load"


class LoadStore(Protocol):
    """Interface of stores of snapshots."""

    def put(self, snapshot: LoadSnapshot) -> None:
        """Replace the snapshot of a process.

        :raises OSError: if it cannot be stored.
        """
        ...

    def snapshots(self) -> list[LoadSnapshot]:
        """Return the fresh snapshots of all processes.

        :raises OSError: if they cannot be read.
        """
        ...


def _packed(snapshot: LoadSnapshot) -> bytes:
    return json.dumps(snapshot.as_dict(), separators=(",", ":")).encode()


def _unpacked(values: Iterable[bytes]) -> list[LoadSnapshot]:
    """Return the fresh snapshots of this version; others are missing."""
    now = time()
    snapshots = []
    for data in values:
        one = LoadSnapshot.from_dict(_decoded(data))
        # A time in the future, of another clock, would be fresh for ever.
        if one is not None and abs(now - one.at) <= _FRESH:
            snapshots.append(one)
    return snapshots


def _decoded(data: bytes) -> Any:
    """Return the JSON value of an item; None if it is damaged, or empty."""
    try:
        return parsed_json(data)
    except ValueError:
        return None


class LoadDirectory:
    """Snapshots in a directory: one file for each process of this machine.

    :param path: the directory, which is created if it is missing.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path: Path = Path(path)

    def put(self, snapshot: LoadSnapshot) -> None:
        """Replace the file of a process, and delete old ones.

        :raises OSError: if the file cannot be written.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        name = re.sub(r"[^A-Za-z0-9.]+", "-", snapshot.process)
        replace_file(
            self.path / f"{name}{_SUFFIX}", _packed(snapshot), 0o644, durable=False
        )
        oldest = time() - 6 * _FRESH
        for path in self._files():
            try:
                if path.stat().st_mtime < oldest:
                    path.unlink(missing_ok=True)
            except FileNotFoundError:
                # Another process has deleted it.
                continue

    def snapshots(self) -> list[LoadSnapshot]:
        """Return the fresh snapshots of all processes.

        :raises OSError: if the directory cannot be read.
        """
        stored = []
        for path in self._files():
            try:
                stored.append(path.read_bytes())
            except FileNotFoundError:
                # Another process has deleted it.
                continue
        return _unpacked(stored)

    def _files(self) -> list[Path]:
        # Path.glob() returns nothing for a directory that cannot be read.
        with os.scandir(self.path) as entries:
            return [
                self.path / entry.name
                for entry in entries
                if entry.name.endswith(_SUFFIX)
            ]


class LoadCache:
    """Snapshots in a cache that all processes share: memcached or Redis.

    Up to 256 processes have an item each.

    :param store: the store of a region, ``cluster.cache.regions[name].store``.
    :param prefix: prefix of the keys; the same for all processes.
    """

    def __init__(self, store: Store, prefix: str) -> None:
        self._store = store
        self._keys = [f"{prefix}:load:{n}" for n in range(_SLOTS)]
        self._own: str | None = None

    def put(self, snapshot: LoadSnapshot) -> None:
        """Replace the item of a process.

        :raises OSError: if the servers do not respond, or all items are in
            use.
        """
        first = hash(snapshot.process) % _SLOTS
        keys = self._keys[first:] + self._keys[:first]
        if self._own is not None:
            keys.insert(0, self._own)
        data = _packed(snapshot)
        for key in keys:
            if self._put(key, snapshot.process, data):
                self._own = key
                return
        raise OSError(
            "the load of this process cannot be stored: the servers of the "
            f"cache do not respond, or {_SLOTS} processes have an item each"
        )

    def _put(self, key: str, process: str, data: bytes) -> bool:
        """Store an item, unless it belongs to another process."""
        there = self._store.fetch([key], lease=0)[key].value
        values = _decoded(there)
        # A damaged item is replaced; one of another version is not.
        owner = values.get("process") if isinstance(values, dict) else None
        if owner not in (None, process):
            return False
        if there:
            # Only a missing item can be filled.
            self._store.unblock([key], token_bytes(_TOKEN_BYTES))
        lease = self._store.fetch([key], lease=5)[key].lease
        if lease is None:
            return False
        return key in self._store.fill({key: (lease, data)}, int(_FRESH))

    def snapshots(self) -> list[LoadSnapshot]:
        """Return the fresh snapshots of all processes.

        :raises OSError: if a server does not respond.
        """
        stored = self._store.fetch(self._keys, lease=0)
        if any(one.state is KeyState.LOST for one in stored.values()):
            raise OSError(
                "the load of some processes cannot be read: servers of the "
                "cache do not respond"
            )
        return _unpacked(one.value for one in stored.values())


class LoadPublisher:
    """A thread that puts the snapshots of a meter into a store.

    In a child process, a thread of its own does it.

    :param meter: the meter.
    :param store: the store.
    """

    def __init__(self, meter: LoadMeter, store: LoadStore) -> None:
        self.meter = meter
        self.store = store
        self._failed = False
        self._stopped = threading.Event()
        self._start()
        in_children(self)

    def after_fork(self) -> None:
        """Start the thread of a child process."""
        if not self._stopped.is_set():
            self._stopped = threading.Event()
            self._start()

    def _start(self) -> None:
        self._thread = threading.Thread(
            target=self._run,
            args=(self._stopped,),
            name="sqla-shard-load",
            # The process must not wait for a cache that does not respond.
            daemon=True,
        )
        self._thread.start()

    def _run(self, stopped: threading.Event) -> None:
        while not stopped.wait(_INTERVAL):
            self.publish()

    def publish(self) -> None:
        """Put a snapshot into the store; log an error once."""
        try:
            self.store.put(self.meter.snapshot())
        # Such as of a store of the application: it would end the thread.
        except Exception as error:
            if not self._failed:
                _log.warning(
                    "the load of this process is not published: %s",
                    error,
                    extra={"action": "publish load"},
                )
            self._failed = True
        else:
            self._failed = False

    def snapshots(self) -> Sequence[LoadSnapshot]:
        """Return the snapshots of all processes, and a new one of this one.

        :raises OSError: if they cannot be read.
        """
        own = self.meter.snapshot()
        others = self.store.snapshots()
        return [own, *(one for one in others if one.process != own.process)]

    def stop(self) -> None:
        """Publish no more snapshots; the meter continues."""
        self._stopped.set()
        self._thread.join()


def publish_load(meter: LoadMeter, store: Any) -> LoadPublisher:
    """Publish the samples of this process, and of its child processes.

    :param meter: the meter of a cluster.
    :param store: path of a directory, or a :class:`LoadStore`.
    :raises OptionError: if it is neither.
    """
    if isinstance(store, (str, os.PathLike)):
        store = LoadDirectory(store)
    elif not hasattr(store, "put"):
        raise OptionError(
            "must be the path of a directory, or a LoadStore",
            option="store",
            value=store,
        )
    return LoadPublisher(meter, store)
