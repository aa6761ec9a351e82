"""The journal of a fleet whose topology is in ZooKeeper.

Below the path of the topology, ``/fleet/operation`` is the record of the
pending operation, ``/fleet/lock`` ends with the session of the process that
runs it, and ``/fleet/history/ID`` are the operations that have ended.

The lock only tells others that the process is alive.  What excludes two
processes is the version of ``/fleet/operation``: each record is written on
the condition that the node has the version that this process has written,
and a topology is published in one transaction with the same condition.  A
process that was asleep while another took over can write neither.  The node
is emptied, never deleted: versions would begin again with 0.  If the session
of a process expires and nobody has taken over, it takes the lock again and
goes on.

A process that was killed holds its lock until its session expires; taking
over waits for that.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace

from sqla_shard.exc import (
    FleetLockedError,
    FleetLockLostError,
    NoOperationError,
    TopologyConflictError,
    TopologyUnavailableError,
)
from sqla_shard.fleet.journal import holder_name, JournalHold, PendingRecord, Record
from sqla_shard.topology import DEFAULT_PLACEHOLDERS, Topology
from sqla_shard.topology.follow.locations import zookeeper_options
from sqla_shard.topology.zookeeper.publications import (
    LOCK,
    MAX_BYTES,
    OPERATION,
    OPERATIONS,
    TOPOLOGY,
)
from sqla_shard.topology.zookeeper.publisher import Publisher
from sqla_shard.topology.zookeeper.store import (
    Change,
    Create,
    Replace,
    StoredNode,
    VersionCheck,
    ZooKeeperStore,
)
from sqla_shard.util.json_values import parsed_json
from sqla_shard.util.logs import careful_log

#: Operations to keep in the history.
_MAX_HISTORY = 100

#: Times to write a record while answers are lost.
_MAX_ATTEMPTS = 3

_log = careful_log(__name__)


class ZooKeeperJournal:
    """The journal at a path in ZooKeeper.

    Each method has a session of its own; that of a lock ends when the lock
    is released.

    :param location: ``zookeeper://host:port,host:port/path``.
    :param placeholders: allowed names in ``${NAME}``.
    :param timeout: seconds to wait for a response from ZooKeeper.
    :param session_timeout: seconds after which the lock of a process that is
        gone ends.
    """

    def __init__(
        self,
        location: str,
        *,
        placeholders: Collection[str] = DEFAULT_PLACEHOLDERS,
        timeout: float = 5.0,
        session_timeout: float = 10.0,
    ) -> None:
        hosts, self._options = zookeeper_options(location)
        self._hosts = hosts
        self._location = location
        self._placeholders = placeholders
        self._timeout = timeout
        self._session_timeout = session_timeout

    @property
    def name(self) -> str:
        """URL of the topology, without credentials."""
        return f"zookeeper://{self._hosts}"

    def pending(self) -> PendingRecord | None:
        """Return the pending operation."""
        with self._opened() as store:
            store.sync()
            node = _operation(store)
            while node is not None:
                lock = store.read(LOCK)
                again = _operation(store)
                # Otherwise it may have ended before the lock was read.
                if lock is not None or again == node:
                    return PendingRecord(
                        record=_record_of(store, node), running=lock is not None
                    )
                node = again
        return None

    def history(self, most: int = 20) -> list[Record]:
        """Return finished and undone operations, the latest first."""
        with self._opened() as store:
            names = sorted(store.names(OPERATIONS), reverse=True)[:most]
            nodes = [store.read(f"{OPERATIONS}/{name}") for name in names]
            return [_record_of(store, node) for node in nodes if node is not None]

    def begin(self, record: Record) -> JournalHold:
        """Take the lock for a new operation and write its record."""
        store = self._open()
        try:
            store.sync()
            store.prepare(OPERATIONS, like=TOPOLOGY)
            return self._begun(store, record)
        except BaseException:
            store.close()
            raise

    def _begun(self, store: ZooKeeperStore, record: Record) -> JournalHold:
        hold = _ZooKeeperHold(self, store, record)
        data = _data_of(store, record)
        node = store.read(OPERATION)
        if node is not None and node.data:
            raise self._locked_error(store)
        first = (
            Create(OPERATION, data)
            if node is None
            else Replace(OPERATION, data, node.version)
        )
        try:
            found = store.commit(first, hold.lock)
        except TopologyUnavailableError as error:
            # Whether it has begun is unknown; the record decides.
            try:
                hold.check()
            except FleetLockLostError:
                raise store.unavailable(
                    f"{error.reason}; the operation was not started"
                ) from error
            except TopologyUnavailableError:
                raise store.unavailable(
                    f"{error.reason}; it is unknown whether the operation "
                    "was started: sqla-shard fleet status"
                ) from error
            return hold
        if found is None:
            raise self._locked_error(store)
        hold.version = found[0]
        return hold

    def take_over(self) -> JournalHold:
        """Take the lock of the pending operation, with the next token.

        Waits until the session of a process that was killed has expired.
        """
        store = self._open()
        try:
            deadline = time.monotonic() + self._session_timeout + 1.0
            while True:
                store.sync()
                node = _operation(store)
                if node is None:
                    raise NoOperationError(fleet=self.name)
                if store.read(LOCK) is None:
                    hold = self._taken(store, node)
                    if hold is not None:
                        return hold
                elif time.monotonic() > deadline:
                    raise self._locked_error(store)
                time.sleep(0.1)
        except BaseException:
            store.close()
            raise

    def _taken(self, store: ZooKeeperStore, node: StoredNode) -> JournalHold | None:
        """Take a free lock; return None if another process was faster."""
        store.prepare(OPERATIONS, like=TOPOLOGY)
        old = _record_of(store, node)
        record = replace(old, token=old.token + 1, holder=holder_name())
        hold = _ZooKeeperHold(self, store, record)
        try:
            found = store.commit(
                Replace(OPERATION, _data_of(store, record), node.version), hold.lock
            )
        except TopologyUnavailableError as error:
            lock = store.read(LOCK)
            # Others with the same token have other locks.
            if lock is None or lock.data != hold.lock.data:
                raise store.unavailable(
                    f"{error.reason}; the operation was not taken over; "
                    "repeat the command"
                ) from error
            hold.check()
            return hold
        if found is None:
            return None
        hold.version = found[0]
        return hold

    def publisher(self) -> Publisher:
        """Return a publisher at the same path."""
        return Publisher(
            self._location, timeout=self._timeout, placeholders=self._placeholders
        )

    def _open(self) -> ZooKeeperStore:
        return ZooKeeperStore(
            self._hosts,
            timeout=self._timeout,
            options={**self._options, "timeout": self._session_timeout},
        )

    @contextmanager
    def _opened(self) -> Iterator[ZooKeeperStore]:
        store = self._open()
        try:
            yield store
        finally:
            store.close()

    def _locked_error(self, store: ZooKeeperStore) -> FleetLockedError:
        lock = store.read(LOCK)
        node = _operation(store)
        found = {"title": "an operation", "holder": "another process"}
        if node is not None:
            record = _record_of(store, node)
            found = {"title": record.title, "holder": record.holder}
        elif lock is not None:
            # It has ended, and its process has not released the lock yet.
            found.update(parsed_json(lock.data))
        return FleetLockedError(
            fleet=self.name,
            operation=found["title"],
            holder=found["holder"],
            running=lock is not None,
        )


class _ZooKeeperHold:
    """The lock of the operation, and the session that it ends with.

    :ivar lock: creates the node of the lock.
    :ivar version: version of the record that this process has written.
    """

    def __init__(
        self, journal: ZooKeeperJournal, store: ZooKeeperStore, record: Record
    ) -> None:
        self.record = record
        self.version = 0
        self.lock = Create(
            LOCK,
            json.dumps(
                {
                    "operation": record.id,
                    "title": record.title,
                    "token": record.token,
                    "holder": record.holder,
                    "hold": uuid.uuid4().hex,
                }
            ).encode(),
            is_ephemeral=True,
        )
        self._store = store
        self._publisher = journal.publisher()
        self._is_released = False

    def check(self) -> None:
        """Ask ZooKeeper; take the lock again if the session has expired."""
        self._refuse_released()
        self._store.sync()
        for _ in range(_MAX_ATTEMPTS):
            node = _operation(self._store)
            if node is None:
                raise self._lost("the operation has ended")
            found = _record_of(self._store, node)
            if (found.id, found.token) != (self.record.id, self.record.token):
                raise self._lost(f"{found.holder} has taken over {found.title}")
            self.version = node.version
            lock = self._store.read(LOCK)
            if lock is not None:
                if lock.data != self.lock.data:
                    raise self._lost("another process has it")
                return
            _log.warning(
                "the session with ZooKeeper has expired; the lock of %s is taken again",
                self.record.title,
                extra={"action": "take fleet lock"},
            )
            if self._store.commit(VersionCheck(OPERATION, self.version), self.lock):
                return
        raise self._lost("another process takes it over")

    def write(self, record: Record) -> None:
        """Replace the record by compare-and-set."""
        self._refuse_released()
        data = _data_of(self._store, record)
        lost: TopologyUnavailableError | None = None
        for _ in range(_MAX_ATTEMPTS):
            try:
                found = self._store.commit(*self._changes(record, data))
            except TopologyUnavailableError as error:
                lost = error
                found = None
            if found is None and not self._is_written(record, data):
                # It has the version of a write whose answer was lost, or the
                # session has expired; otherwise this raises an error.
                self.check()
                continue
            if found is not None:
                self.version = found[0]
            self.record = record
            if record.state != "pending":
                self._trim()
            return
        raise lost or self._lost("its record is changed by another process")

    def topology(self) -> Topology:
        """Return the topology as it is now."""
        found = self._publisher.current()
        if found is None:
            raise self._store.unavailable("nothing is published there")
        return found

    def publish(self, topology: Topology, *, expected_epoch: int) -> Topology:
        """Publish in one transaction with a check of the record."""
        self.check()
        try:
            done = self._publisher.publish(
                topology,
                expected_epoch=expected_epoch,
                guard=VersionCheck(OPERATION, self.version),
                note=self.record.publication_note(),
            )
        except TopologyConflictError:
            # The lock itself may have been lost.
            self.check()
            raise
        return done.new

    def release(self) -> None:
        """End the session, and with it the lock."""
        self._is_released = True
        self._publisher.close()
        self._store.close()

    def _changes(self, record: Record, data: bytes) -> Iterator[Change]:
        if record.state == "pending":
            yield Replace(OPERATION, data, self.version)
        else:
            yield Replace(OPERATION, b"", self.version)
            yield Create(f"{OPERATIONS}/{record.id}", data)
        # Fails if the session has expired: then the lock is taken again.
        yield VersionCheck(LOCK, 0)

    def _is_written(self, record: Record, data: bytes) -> bool:
        """Return whether a write whose answer was lost took effect."""
        self._store.sync()
        if record.state != "pending":
            node = self._store.read(f"{OPERATIONS}/{record.id}")
            return node is not None and node.data == data
        node = self._store.read(OPERATION)
        if node is None or node.data != data:
            return False
        self.version = node.version
        return True

    def _trim(self) -> None:
        """Delete the oldest operations of the history."""
        try:
            names = sorted(self._store.names(OPERATIONS), reverse=True)
            self._store.remove(f"{OPERATIONS}/{name}" for name in names[_MAX_HISTORY:])
        except TopologyUnavailableError as error:
            # The operation has ended; the next one deletes them.
            _log.warning(
                "the history of operations was not shortened: %s",
                error,
                extra={"action": "shorten history"},
            )

    def _refuse_released(self) -> None:
        if self._is_released:
            raise self._lost("it was released")

    def _lost(self, reason: str) -> FleetLockLostError:
        return FleetLockLostError(
            fleet=self._store.name, operation=self.record.title, reason=reason
        )


def _operation(store: ZooKeeperStore) -> StoredNode | None:
    """Return the node of the pending operation; None if there is none."""
    node = store.read(OPERATION)
    return node if node is not None and node.data else None


def _data_of(store: ZooKeeperStore, record: Record) -> bytes:
    """Return the content of the node of a record.

    :raises TopologyUnavailableError: if it is too large for ZooKeeper.
    """
    data = json.dumps(record.as_dict()).encode()
    if len(data) > MAX_BYTES:
        raise store.unavailable(
            f"the record of {record.title} has {len(data)} bytes, and at most "
            f"{MAX_BYTES} fit into a transaction of ZooKeeper"
        )
    return data


def _record_of(store: ZooKeeperStore, node: StoredNode) -> Record:
    """Return the record in a node.

    :raises TopologyUnavailableError: if it is damaged.
    """
    try:
        return Record.from_dict(parsed_json(node.data))
    except (ValueError, KeyError, TypeError) as error:
        raise store.unavailable(
            f"the journal is damaged ({type(error).__name__}: {error}); look "
            f"at {OPERATION}, and empty it if no operation is pending"
        ) from error
