"""Operations that are done on another shard after a COMMIT."""

from __future__ import annotations

from sqla_shard.exc.base import ShardError

__all__ = [
    "OperationArgumentError",
    "OperationDefinitionError",
    "OperationError",
    "UnknownOperationError",
]


class OperationError(ShardError):
    """Base of the errors of operations."""


class OperationDefinitionError(OperationError, TypeError):
    """Raised for a function that cannot be an operation.

    :ivar operation: its name.
    """

    def __init__(self, reason: str, *, operation: str) -> None:
        super().__init__(f"operation {operation!r}: {reason}")
        self.operation = operation


class OperationArgumentError(OperationError, ValueError):
    """Raised for an argument that an intent cannot hold.

    :ivar operation: name of the operation.
    :ivar parameter: the parameter that it was for; None for all of them.
    """

    def __init__(
        self, reason: str, *, operation: str, parameter: str | None
    ) -> None:
        what = "its arguments" if parameter is None else f"{parameter}="
        super().__init__(f"operation {operation!r}: {what} {reason}")
        self.operation = operation
        self.parameter = parameter


class UnknownOperationError(OperationError, LookupError):
    """Raised for an intent whose operation this process does not know.

    :ivar operation: its name.
    """

    def __init__(self, *, operation: str) -> None:
        super().__init__(
            f"no operation {operation!r} is defined here; import the module "
            "that defines it, as by sqla-shard repair --models shop.models"
        )
        self.operation = operation
