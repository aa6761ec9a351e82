"""Verdicts on statements: how they would run on virtual shards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args, Literal, TypeAlias

from sqla_shard.exc import (
    CrossShardWriteError,
    KeyspaceMismatchError,
    NoShardKeyError,
    ReferenceWriteError,
    ScatterUnsupportedError,
    ShardError,
    UnsupportedStatementError,
)

Outcome: TypeAlias = Literal[
    "single_shard",
    "any_shard",
    "global",
    "several_shards",
    "lookup",
    "scatter",
    "cross_shard_write",
    "refused",
    "textual",
]
"""The outcomes of statements."""

OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
"""All outcomes, the best first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """The way in which a statement would run on virtual shards.

    :ivar outcome: see :data:`Outcome`.
    :ivar error: the class of the error that the cluster would raise for the
        statement as it is; None if it would be executed.
    :ivar construct: the part of the statement that is refused, if known.
    :ivar reason: why.
    :ivar remedy: what to do about it; empty if nothing has to be done.
    """

    outcome: Outcome
    error: str | None = None
    construct: str = ""
    reason: str = ""
    remedy: str = ""


_REMEDIES: dict[type[ShardError], str] = {
    KeyspaceMismatchError: (
        "Declare the tables as Owned by one owner, a small one as Reference, "
        "or execute one statement for each keyspace."
    ),
    CrossShardWriteError: (
        "Write the rows of one owner in each transaction, and the others by "
        'an operation (begin(cross_shard="logged")).'
    ),
    ReferenceWriteError: "Write the rows by Class.replace() or upsert().",
    ScatterUnsupportedError: (
        "Name one owner in WHERE, or read the rows and do it in Python."
    ),
    UnsupportedStatementError: (
        "Rewrite the statement as the reason says; load objects of other "
        "owners by selectinload() or get_many()."
    ),
    NoShardKeyError: "Name ids in WHERE.",
}


def refused(
    error: ShardError,
    outcome: Outcome = "refused",
    *,
    remedy: str | None = None,
    construct: str = "",
) -> Verdict:
    """Return the verdict of a statement that raises an error."""
    if remedy is None:
        remedy = next(
            (text for kind, text in _REMEDIES.items() if isinstance(error, kind)), ""
        )
    return Verdict(
        outcome=outcome,
        error=type(error).__name__,
        construct=str(getattr(error, "construct", construct)),
        reason=str(error),
        remedy=remedy,
    )
