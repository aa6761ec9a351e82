"""Errors of the way from one database to virtual shards."""

from __future__ import annotations

from collections.abc import Iterable

from sqla_shard.exc.base import bullets, MessageError, ShardError


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
