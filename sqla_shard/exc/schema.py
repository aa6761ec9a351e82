"""Errors of changing the schema of every virtual shard."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from sqla_shard.exc.base import ShardError
from sqla_shard.exc.definitions import Problem

__all__ = [
    "DivergedRevisionsError",
    "InDoubtError",
    "MigrationFailedError",
    "ProvisionError",
    "SchemaError",
    "SchemaOptionError",
]


class SchemaError(ShardError):
    """Base of the errors of schema changes."""


class SchemaOptionError(SchemaError, ValueError):
    """Raised when an option of a schema command cannot be used.

    :ivar option: its name.
    :ivar value: what was given.
    """

    def __init__(self, message: str, *, option: str, value: str) -> None:
        super().__init__(f"{option}={value}: {message}")
        self.option = option
        self.value = value


class DivergedRevisionsError(SchemaError):
    """Raised for a relative target where shards are at several revisions.

    :ivar target: what was asked for, such as ``"+1"``.
    :ivar heads: shards by the revision that they are at, for reading.
    """

    def __init__(self, *, target: str, heads: Mapping[str, str]) -> None:
        shown = "; ".join(f"{at} on {where}" for at, where in heads.items())
        super().__init__(
            f"{target!r} means another revision on each of these: {shown}. "
            "Name the revision itself, or choose shards that are at the "
            "same one with shards=..."
        )
        self.target = target
        self.heads = dict(heads)


class InDoubtError(SchemaError):
    """Raised when it cannot be told what an interrupted revision has done.

    Nothing is guessed: look at the database, put it right, and say so with
    ``sqla-shard schema resolve``.

    :ivar statement: the statement whose effect is unknown.
    """

    def __init__(self, message: str, *, statement: str) -> None:
        super().__init__(
            f"{message}. Look at the database; then say what is true of it "
            "with: sqla-shard schema resolve"
        )
        self.statement = statement


class MigrationFailedError(SchemaError):
    """Raised when a command did not do its work on every virtual shard.

    :ivar report: what became of every shard, as
        :meth:`~sqla_shard.schema.RunReport.to_mapping` gives it.
    :ivar shards: the shards that failed.
    """

    def __init__(
        self,
        message: str,
        *,
        report: Mapping[str, Any],
        shards: Sequence[int],
    ) -> None:
        super().__init__(message)
        self.report = dict(report)
        self.shards = tuple(shards)


_SHOWN = 20


class ProvisionError(SchemaError):
    """Raised before any database is made, when a topology cannot be opened.

    The message shows the first problems, ``problems`` has all.

    :ivar keyspace: whose virtual shards were to be made.
    :ivar epoch: of the topology that was to be provisioned.
    :ivar problems: all that is in the way.
    :ivar unread: the servers that could not be asked.
    """

    def __init__(
        self,
        problems: Iterable[Problem],
        *,
        keyspace: str,
        epoch: int,
        unread: Iterable[str] = (),
    ) -> None:
        self.keyspace = keyspace
        self.epoch = epoch
        self.problems = tuple(problems)
        self.unread = tuple(unread)
        count = len(self.problems)
        lines = "".join(f"\n  - {one}" for one in self.problems[:_SHOWN])
        if count > _SHOWN:
            lines += f"\n  and {count - _SHOWN} more"
        super().__init__(
            f"keyspace {keyspace!r} is not provisioned for the topology of "
            f"epoch {epoch}, and nothing was made: {count} problem"
            f"{'' if count == 1 else 's'}{lines}"
        )
