"""Snapshots of two servers at one point of their replication.

The point is made in this order: the applier of the standby stops; the primary
pauses commits (``FLUSH TABLES WITH READ LOCK``) while sessions open their
snapshots and the position G is read, some 10 ms; the standby applies up to G
and stops again; sessions open their snapshots there; it goes on.  That its
position is G after the last snapshot is checked: whatever others do meanwhile,
the snapshots contain the same writes.

The receiver of the standby runs all the time, so that semi-synchronous commits
do not wait.  The applier is started again in every case: after an error,
Ctrl-C, or a lost connection.  Only if the process is killed (``kill -9``), or
loses its network, between these two moments, somebody must start it:
``START SLAVE SQL_THREAD``.

While a snapshot is open, its server cannot purge old versions of rows; see
``seconds`` of :func:`~sqla_shard.fleet.compare.compare_servers`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Iterator
from contextlib import contextmanager
from contextlib import ExitStack
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType

from sqlalchemy.exc import SQLAlchemyError

from sqla_shard.exc import ApplierStoppedError
from sqla_shard.exc import FleetServerError
from sqla_shard.exc import OperationRefusedError
from sqla_shard.exc import Problem
from sqla_shard.fleet.admin import Admin
from sqla_shard.fleet.checksums import SESSION
from sqla_shard.fleet.replication import Replication
from sqla_shard.fleet.replication import replication_of

__all__ = ["CommonPoint", "Opener", "Snapshots"]

#: Connects to a server; the argument is the time limit of a response in
#: seconds.
Opener = Callable[[float], Admin]

# A chunk takes less than a second; a table without a key is read at once.
_RESPONSE = 600.0
_SHORT = 10.0
_LOCK_TRIES = 20
_LOCK_WAIT_TIMEOUT = 1205
_START_TRIES = 3


@dataclass(frozen=True, kw_only=True)
class CommonPoint:
    """A point of replication.

    :ivar position: GTID position of the first server.
    :ivar locked: seconds for which commits waited on the first server.
    :ivar stopped: seconds for which the second one applied nothing.
    """

    position: str
    locked: float
    stopped: float


class Snapshots:
    """Sessions on two servers that read the same state of the data.

    A context manager that closes them.

    :param first: connects to the primary, or to one of two servers without
        replication between them.
    :param second: connects to its standby, or to the other one.
    :param pairs: number of sessions on each.
    :param replicates: whether the second replicates from the first.  If not,
        each server has a state of its own, at about the same time.
    :param patience: seconds for the standby to catch up.
    """

    def __init__(
        self,
        first: Opener,
        second: Opener,
        *,
        pairs: int,
        replicates: bool = True,
        patience: float = 60.0,
    ) -> None:
        self.patience = patience
        self._replicates = replicates
        self._openers = first, second
        self._open = ExitStack()
        self.pairs: list[tuple[Admin, Admin]] = []
        try:
            for opener in self._openers:
                # The time limit of a reader is too long to connect.
                opener(_SHORT).close()
            for _ in range(pairs):
                self.pairs.append((self._reader(first), self._reader(second)))
            self.point = self._common() if replicates else self._plain()
        except BaseException:
            self._open.close()
            raise

    def __enter__(self) -> Snapshots:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._open.close()

    def _reader(self, opener: Opener) -> Admin:
        admin = self._open.enter_context(opener(_RESPONSE))
        for statement in SESSION:
            admin.run(statement)
        if admin.is_mariadb:
            admin.run("SET SESSION max_statement_time = 0")
            admin.run("SET SESSION idle_transaction_timeout = 0")
            admin.run("SET SESSION idle_readonly_transaction_timeout = 0")
        return admin

    def _plain(self) -> CommonPoint:
        """Open the snapshots of each server while its commits wait."""
        locked = []
        positions = []
        for side, opener in enumerate(self._openers):
            with opener(_SHORT) as admin:
                seconds, position, _ = self._freeze(admin, side)
            locked.append(seconds)
            positions.append(position)
        return CommonPoint(
            position=" | ".join(positions), locked=max(locked), stopped=0.0
        )

    def _common(self) -> CommonPoint:
        first, second = self._openers
        with first(_SHORT) as primary, second(_SHORT) as standby:
            replication = replication_of(standby)
            _check(replication)
            began = time.monotonic()
            with _applier_stopped(replication, second):
                locked, position, last = self._freeze(primary, 0)
                self._apply(replication, position, last)
                for _, reader in self.pairs:
                    _open_snapshot(reader)
                self._assert_at(replication, position)
            stopped = time.monotonic() - began
        return CommonPoint(position=position, locked=locked, stopped=stopped)

    def _freeze(self, admin: Admin, side: int) -> tuple[float, str, str]:
        """Open the snapshots of one side while no transaction commits.

        :returns: seconds for which commits waited, the position, and the
            condition of UNTIL.
        """
        replication = replication_of(admin)
        # If this process is cut off, the server ends the session, and with it
        # the lock.
        admin.run("SET SESSION wait_timeout = 5, lock_wait_timeout = 1")
        began = _lock(admin)
        try:
            for pair in self.pairs:
                _open_snapshot(pair[side])
            position = replication.position()
            last = replication.last_write() if self._replicates else ""
        finally:
            # A lost connection has no lock; the error is that of the block.
            with suppress(SQLAlchemyError):
                admin.run("UNLOCK TABLES")
        return time.monotonic() - began, position, last

    def _apply(
        self, replication: Replication, position: str, last: str
    ) -> None:
        """Apply up to a position, and stop."""
        # With nothing to apply, the applier would wait for the next write
        # before it knows where it is.
        if not replication.covers(replication.applied(), position):
            replication.apply_until(last)
            until = time.monotonic() + self.patience
            while not replication.reaches(position, 1.0):
                if time.monotonic() > until:
                    break
            replication.stop_applier()
        self._assert_at(replication, position)

    def _assert_at(self, replication: Replication, position: str) -> None:
        applied = replication.applied()
        if replication.covers(applied, position) and replication.covers(
            position, applied
        ):
            return
        status = replication.status()
        error = "" if status is None else status.error
        raise FleetServerError(
            server=str(replication.admin),
            number=0,
            reason=f"it has applied {applied or 'nothing'}, not {position} of "
            f"the primary, within {self.patience:g} s; its applier must not "
            "be started by others, and it must not be written to"
            + (f": {error}" if error else ""),
        )


def _check(replication: Replication) -> None:
    """Refuse a server that does not replicate now."""
    status = replication.status()
    if status is not None and status.runs and status.uses_gtid:
        return
    if status is None:
        reason = "it has no primary; compare it without replication"
    elif not status.uses_gtid:
        reason = "it does not use GTIDs; attach it with MASTER_USE_GTID"
    else:
        reason = (
            f"its receiver is {status.receiver!r} and its applier "
            f"{status.applier!r}, not 'Yes'; repair its replication first"
        )
        if status.error:
            reason += f": {status.error}"
    raise OperationRefusedError(
        (Problem(str(replication.admin), reason),),
        operation=f"the comparison with {replication.admin.name}",
    )


def _lock(admin: Admin) -> float:
    """Pause commits; return the time at which they began to wait."""
    for attempt in range(1, _LOCK_TRIES + 1):
        began = time.monotonic()
        try:
            admin.run("FLUSH TABLES WITH READ LOCK")
        except FleetServerError as error:
            # New writes queue behind a lock that waits for a statement: give
            # up after a second, and let them pass.
            if error.number != _LOCK_WAIT_TIMEOUT or attempt == _LOCK_TRIES:
                raise
            time.sleep(0.1 * attempt)
        else:
            break
    return began


def _open_snapshot(reader: Admin) -> None:
    reader.run("START TRANSACTION WITH CONSISTENT SNAPSHOT")


@contextmanager
def _applier_stopped(
    replication: Replication, opener: Opener
) -> Iterator[None]:
    try:
        replication.stop_applier()
        yield
    finally:
        _start_applier(replication, opener)


def _start_applier(replication: Replication, opener: Opener) -> None:
    """Start the applier in a new session: the first one may be lost.

    :raises ApplierStoppedError: if it cannot be started.
    """
    interrupted: KeyboardInterrupt | None = None
    reason = "interrupted"
    for _ in range(_START_TRIES):
        try:
            with opener(_SHORT) as admin:
                fresh = replication_of(admin)
                if fresh.status() is None:
                    # It is no standby any more, by an operation of others.
                    break
                fresh.stop_applier()
                fresh.start_applier()
        except FleetServerError as error:
            reason = str(error)
        except KeyboardInterrupt as error:
            interrupted = error
        else:
            break
    else:
        raise ApplierStoppedError(
            server=str(replication.admin),
            reason=reason,
            statement=replication.START_APPLIER,
        ) from interrupted
    if interrupted is not None:
        raise interrupted
