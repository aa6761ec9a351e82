"""Errors of jobs, fleet operations, migrations, follow graphs and feeds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqla_shard.exc.base import (
    bullets,
    cut,
    field,
    MessageError,
    ShardError,
    shortened_list,
)
from sqla_shard.exc.topologies import Problem


class JobError(ShardError):
    """Base of the errors of jobs."""


class TaskDefinitionError(JobError, MessageError, TypeError):
    """Raised for a function that cannot be a task.

    :ivar task: name of the task.
    """

    task: str
    _text = "task {task!r}: {message}"


class UnknownTaskError(JobError, LookupError):
    """Raised for a job whose task is not defined in this process.

    The job stays in its table, and is tried again.

    :ivar task: name of the task.
    """

    task: str
    _text = (
        "task {task!r} is not defined in this process; import the module that "
        "defines it. The job stays in its queue, and is tried again later"
    )


class JobArgumentError(JobError, MessageError, ValueError):
    """Raised for an argument that a job cannot hold.

    :ivar task: name of the task.
    :ivar parameter: name of its parameter; None if the error is about all of
        them.
    """

    task: str
    parameter: str | None

    def _describe(self, message: str) -> str:
        what = "its arguments"
        if self.parameter is not None:
            what = f"{self.parameter}="
        return f"task {self.task!r}: {what} {message}"


class JobOptionError(JobError, MessageError, ValueError):
    """Raised for an option of a task, a job or a worker that is not valid.

    :ivar option: name of the option.
    :ivar value: the value that was given.
    """

    option: str
    value: object

    def _describe(self, message: str) -> str:
        return f"{self.option}={cut(self.value)}: {message}"


class JobClaimLostError(JobError):
    """Raised when the claim of a job is not valid any more.

    The claim has expired, or the job was acknowledged, released or deleted.
    Nothing was changed: another worker may be running the job.

    :ivar jobs: the jobs, as text: keyspace, shard and number.
    """

    jobs: tuple[str, ...]

    def _describe(self) -> str:
        shown = shortened_list(self.jobs)
        return (
            f"the claim of {shown} is lost: it has expired, or the job was "
            "finished or deleted; another worker may be running it. Nothing "
            "was changed. Roll back what this worker has done for it"
        )


class JobTimeLimitError(JobError, TimeoutError):
    """Raised in a task that has run longer than its time limit.

    The attempt has failed; the job is tried again like after any error.

    :ivar task: name of the task.
    :ivar seconds: the time limit.
    """

    task: str
    seconds: float
    _text = (
        "task {task!r} has run longer than its time limit of {seconds:g} s; "
        "make it faster, store progress in smaller steps, or raise time_limit"
    )


class NoHealthyShardsError(JobError):
    """Raised when no server with shards can take a job.

    :ivar keyspace: the keyspace.
    :ivar servers: by the name of each server that was tried, its error.
    """

    keyspace: str
    servers: dict[str, str]

    def _describe(self) -> str:
        lines = [f"{name}: {error}" for name, error in self.servers.items()]
        why = bullets(lines) if lines else " all weights are 0"
        return f"no server of keyspace {self.keyspace!r} takes jobs:{why}"


class UnsafeBinaryLogError(JobError):
    """Raised when a server writes statements to its binary log.

    A claim skips rows that are locked; a replica that executes the statement
    would claim others.

    :ivar server: name of the server.
    """

    server: str
    _text = (
        "server {server} has binlog_format=STATEMENT, with which a replica "
        "would claim other jobs than its primary; set binlog_format to ROW "
        "or MIXED"
    )


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


class MigrateError(ShardError):
    """Base of the errors of :mod:`sqla_shard.migrate`."""


class DeclarationError(MigrateError, ValueError):
    """Raised for a declaration that is not valid; it lists every problem.

    :ivar source: the file of the declaration, or ``declaration``.
    :ivar problems: all problems, in the order of the declaration.
    """

    source: str
    problems: tuple[str, ...]

    def __init__(self, problems: Iterable[str], *, source: str = "declaration") -> None:
        super().__init__(problems=problems, source=source)

    def _describe(self) -> str:
        count = len(self.problems)
        if count == 1:
            return f"{self.source}: {self.problems[0]}"
        return f"{self.source}: {count} problems{bullets(self.problems)}"


class StageRefusedError(MigrateError):
    """Raised when a move cannot change to a stage.

    :ivar stage: name of the stage that the move is in.
    :ivar wanted: name of the stage that was asked for.
    :ivar reason: what is missing.
    """

    stage: str
    wanted: str
    reason: str
    _text = "the move cannot go from {stage} to {wanted}: {reason}"


class StageConflictError(MigrateError):
    """Raised when another process has changed the stage in the meantime.

    Nothing was changed.

    :ivar store: location of the stage.
    :ivar expected: number of the change that this process had read.
    :ivar found: number of the change that is stored.
    """

    store: str
    expected: int
    found: int
    _text = (
        "{store} has change {found} of the stage instead of {expected}: "
        "another process has changed it; look at it, and repeat the command"
    )


class StageChangedError(MigrateError):
    """Raised when the stage has changed while a command was running.

    What the command has done until then remains, and is not wrong.

    :ivar expected: number of the change by which the command has run.
    :ivar found: number of the change in the fence.
    :ivar stage: name of the stage now.
    """

    expected: int
    found: int
    stage: str
    _text = (
        "the stage is {stage} now (change {found} instead of {expected}); "
        "start the command again if this stage has it"
    )


class StageUnavailableError(MigrateError):
    """Raised when the stage of a move cannot be read or written.

    :ivar store: location of the stage.
    :ivar reason: why.
    """

    store: str
    reason: str
    _text = "{store}: {reason}"


class SideClosedError(MigrateError):
    """Raised for a write on a side that is not the truth; it was not made.

    :ivar side: the side, ``legacy`` or ``shards``.
    :ivar stage: name of the stage in the fence.
    """

    side: str
    stage: str
    _text = (
        "the stage of the move is {stage}: sessions of the side {side} do "
        "not write; write with Move.write(), which waits and takes the "
        "other side"
    )


class UnclaimableRowError(MigrateError):
    """Raised when a row that is copied refers to a row that has no object id.

    The row is not copied, and waits.

    :ivar table: name of the table that is referred to.
    :ivar key: the primary key, or the object id.
    """

    table: str
    key: object
    _text = (
        "a row refers to {key} of {table}, which does not exist, or has no "
        "object id; delete the row, or restore the other one"
    )


class ConversionError(MigrateError):
    """Raised when a value of a move cannot be converted, or a function fails.

    The row is not copied, and waits.

    :ivar column: the column, as ``posts.title``.
    :ivar value: the value that it got, shortened.
    :ivar reason: its error.
    """

    column: str
    value: str
    reason: str
    _text = "{column} cannot be converted from {value}: {reason}"


class MigrateSetupError(MigrateError, MessageError, ValueError):
    """Raised when an engine, an option or a file does not fit; nothing was done."""


class FollowError(ShardError):
    """Base of the errors of follow graphs and feeds."""


class FollowRefusedError(FollowError, MessageError, ValueError):
    """Raised for a user or a board that cannot be followed.

    :ivar follower_id: the user who was to follow.
    :ivar target_id: the user or board.
    """

    follower_id: int
    target_id: int


class BlockedError(FollowError):
    """Raised when a user follows one who has blocked this user.

    :ivar follower_id: the user who was to follow.
    :ivar blocker_id: the user who has blocked this user.
    """

    follower_id: int
    blocker_id: int
    _text = (
        "user {follower_id} is blocked by user {blocker_id}, and cannot "
        "follow this user or one of the boards; the other one has to call "
        "unblock() first"
    )


class FeedStoreError(FollowError, MessageError):
    """Raised when Redis, with feeds or relations, does not respond.

    :ivar server: host and port, or the path of the socket.
    """

    server: str
