"""Errors of fleet operations."""

from __future__ import annotations

from typing import Any

from sqla_shard.exc.base import bullets, field, MessageError, ShardError, shortened_list
from sqla_shard.exc.definitions import Problem

#: Errors of the driver with a server that answers: about TLS, a plugin of
#: accounts, and what that plugin needs.
_ANSWERED = frozenset([2026, 2059, 2061])


class FleetError(ShardError):
    """Base of the errors of fleet operations."""


class FleetSetupError(MessageError, FleetError):
    """Raised when an account or a program for an operation is missing."""


class FleetServerError(FleetError):
    """Raised when a server refuses a statement of the operator, or is silent.

    :ivar server: name and address of the server.
    :ivar number: error number of the server or the driver; 0 if unknown.
    :ivar reason: message of the driver.
    """

    server: str
    number: int
    reason: str

    def _describe(self, *_: Any, **__: Any) -> str:
        return f"{self.server}: {self.cause}"

    @property
    def cause(self) -> str:
        """The reason, with the number if there is one."""
        return f"{self.reason} (error {self.number})" if self.number else self.reason

    @property
    def is_unanswered(self) -> bool:
        """Whether the driver got no answer, so that nothing is known."""
        return 2000 <= self.number < 3000

    @property
    def may_be_lost(self) -> bool:
        """Whether the server may be lost.

        It is not if it answers the driver, even if the driver refuses the
        answer: such as a certificate that has expired.
        """
        return self.is_unanswered and self.number not in _ANSWERED

    def as_problem(self, consequence: str) -> Problem:
        """Return the problem of a plan that needs the server.

        :param consequence: what follows, such as ``"its state is unknown"``.
        """
        return Problem(self.server, f"{self.cause}; {consequence}")


class CopyFailedError(FleetError):
    """Raised when the content of a server cannot be copied to another one.

    The target is marked as not complete; a copy that is repeated starts over.

    :ivar target: name and address of the target.
    :ivar reason: why, and what to do.
    """

    target: str
    reason: str
    _text = "the copy to {target} failed: {reason}"


class OperationRefusedError(FleetError):
    """Raised when the checks of an operation find problems.

    Nothing was changed.

    :ivar operation: the operation.
    :ivar problems: every problem, with its remedy.
    """

    operation: str
    problems: tuple[Problem, ...] = field(kw_only=False)

    def _describe(self) -> str:
        return (
            f"{self.operation} is refused; nothing was changed{bullets(self.problems)}"
        )


class FleetLockedError(FleetError):
    """Raised when another operation is running, or was not finished.

    :ivar fleet: location of the topology.
    :ivar operation: the other operation.
    :ivar holder: host and process of its last owner.
    :ivar running: whether that process holds the lock now.
    """

    fleet: str
    operation: str
    holder: str
    running: bool

    def _describe(self) -> str:
        if self.running:
            return (
                f"{self.fleet}: {self.operation} is running ({self.holder}); "
                "wait for its end: sqla-shard fleet status"
            )
        return (
            f"{self.fleet}: {self.operation} was started by {self.holder} and "
            "is not finished; finish it with: sqla-shard fleet resume, or "
            "before its topology is published: sqla-shard fleet undo"
        )


class FleetLockLostError(FleetError):
    """Raised when another process has taken over the operation.

    This process does no further step.

    :ivar fleet: location of the topology.
    :ivar operation: the operation.
    :ivar reason: how the loss was noticed.
    """

    fleet: str
    operation: str
    reason: str
    _text = (
        "{fleet}: the lock of {operation} was lost ({reason}); this process "
        "does no further step. See: sqla-shard fleet status"
    )


class OperationFailedError(FleetError):
    """Raised when a step of an operation fails, or the undoing of one.

    :ivar operation: the operation.
    :ivar step: name of the step.
    :ivar reason: message of the error, which is the cause of this one.
    :ivar undone: whether it was undone.
    :ivar left: what is not as before although it was undone; empty if
        everything is.
    """

    operation: str
    step: str
    reason: str
    undone: bool
    left: str = ""

    def _describe(self) -> str:
        state = (
            f"it was undone, but {self.left}"
            if self.undone and self.left
            else "everything is as before"
            if self.undone
            else "it is not finished; what to do now: sqla-shard fleet status"
        )
        return f"{self.operation} failed at step {self.step}: {self.reason}; {state}"


class NoOperationError(FleetError):
    """Raised when there is no operation to resume or to undo.

    :ivar fleet: location of the topology.
    """

    fleet: str
    _text = "{fleet}: no operation is pending; there is nothing to do"


class UndoRefusedError(FleetError):
    """Raised when an operation has passed its commit point.

    :ivar operation: the operation.
    :ivar epoch: epoch of the topology that it has published.
    """

    operation: str
    epoch: int

    def _describe(self, **_: Any) -> str:
        return (
            f"{self.operation} has published the topology of epoch "
            f"{self.epoch} and cannot be undone; finish it with: sqla-shard "
            "fleet resume"
        )


class ApplierStoppedError(FleetError):
    """Raised when the applier of a standby was stopped and does not start.

    The standby receives writes, and applies none until it is started.

    :ivar server: name and address of the standby.
    :ivar reason: message of the last attempt.
    :ivar statement: statement that starts it.
    """

    server: str
    reason: str
    statement: str
    _text = (
        "{server}: its applier is stopped and could not be started "
        "({reason}); run on this server: {statement}"
    )


class BackupFailedError(FleetError):
    """Raised when a backup cannot be completed; none is listed.

    :ivar server: the server that was read.
    :ivar reason: what is in the way.
    """

    server: str
    reason: str
    _text = "the backup of {server} failed: {reason}"


class BackupNotFoundError(FleetError):
    """Raised when a folder has no finished backup of a name.

    :ivar backup: the name.
    :ivar folder: the folder.
    :ivar known: names of its finished backups.
    """

    backup: str
    folder: str
    known: tuple[str, ...]

    def _describe(self) -> str:
        known = shortened_list(self.known) if self.known else "no backup"
        return f"{self.folder} has no finished backup {self.backup!r}; it has {known}"


class BackupDamagedError(FleetError):
    """Raised when files of a backup are not as they were written.

    :ivar backup: name of the backup, or of the folder of binary logs.
    :ivar problems: every file, with its damage.
    """

    backup: str
    problems: tuple[Problem, ...] = field(kw_only=False)

    def _describe(self) -> str:
        return f"{self.backup} is damaged{bullets(self.problems)}"
