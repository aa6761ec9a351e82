"""What the linter has found, in words."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from dataclasses import dataclass
from typing import get_args
from typing import Literal
from typing import TypeAlias

from sqla_shard.rendering import SCHEMA
from sqla_shard.scattering import StatementReport
from sqla_shard.testing.callers import SourceLine

__all__ = ["KINDS", "Evidence", "Finding", "FindingKind"]

FindingKind: TypeAlias = Literal[
    "scatter", "fan_out", "cross_shard_write", "n_plus_one"
]
"""What can be found."""

KINDS: tuple[str, ...] = get_args(FindingKind)
"""All kinds of findings."""

_LONGEST = 300


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A line that has sent what it should not.

    :ivar kind: see :data:`FindingKind`.
    :ivar line: the line of the application.
    :ivar statement: the first statement of that kind, without values.
    :ivar count: how often it was sent.
    :ivar what: what has happened, in words.
    :ivar remedy: what to do.
    """

    kind: FindingKind
    line: SourceLine
    statement: str
    count: int
    what: str
    remedy: str

    def __str__(self) -> str:
        inside = f", in {self.line.function}" if self.line.function else ""
        lines = [f"{self.line}: {self.kind}{inside}"]
        if self.line.text:
            lines.append(f"    {self.line.text}")
        lines += [
            f"  {self.what}:",
            f"    {_shown(self.statement)}",
            f"  {self.remedy}",
        ]
        return "\n".join(lines)


class Evidence:
    """What is known of a finding so far.

    :ivar first: the first statement of it.
    :ivar count: how many there were.
    :ivar shards: the virtual shards that they went to.
    :ivar before: the shard that the transaction had written before, with
        its keyspace.
    """

    def __init__(self, first: StatementReport) -> None:
        self.first = first
        self.count = 0
        self.shards: set[int] = set()
        self.before: tuple[str, int] | None = None

    def add(self, report: StatementReport) -> None:
        """Count another statement of the same kind."""
        self.count += 1
        self.shards.update(report.shards)

    def finding(
        self, kind: FindingKind, line: SourceLine, max_shards: int | None
    ) -> Finding:
        """Return it in words.

        :param max_shards: how many shards were allowed.
        """
        what, remedy = _EXPLAINED[kind](self, max_shards)
        return Finding(
            kind=kind,
            line=line,
            statement=self.first.statement,
            count=self.count,
            what=what,
            remedy=remedy,
        )


def _scatter(seen: Evidence, max_shards: int | None) -> tuple[str, str]:
    what = (
        f"scatter() has sent it to all {len(seen.shards)} shards of "
        f"{seen.first.keyspace!r}{_times(seen.count)}"
    )
    return what, "Name ids in WHERE, or a column that tells the shard."


def _fan_out(seen: Evidence, max_shards: int | None) -> tuple[str, str]:
    what = (
        f"the ids that it names are on {len(seen.shards)} shards, where "
        f"{max_shards} are allowed{_times(seen.count)}"
    )
    remedy = (
        "Ask for fewer ids at a time, or keep what is read together on one "
        "shard, with colocate_with."
    )
    return what, remedy


def _cross_shard(seen: Evidence, max_shards: int | None) -> tuple[str, str]:
    keyspace, shard_id = seen.before or ("", 0)
    what = (
        f"it writes {_list_of(seen.shards)} of {seen.first.keyspace!r} in a "
        f"transaction that has written shard {shard_id} of {keyspace!r}"
    )
    remedy = (
        "COMMIT is not atomic over shards: write one shard in each "
        "transaction, or make sure that half of it does no harm."
    )
    return what, remedy


def _n_plus_one(seen: Evidence, max_shards: int | None) -> tuple[str, str]:
    loads = seen.first.loads
    if loads is None:
        who = "it was sent"
        remedy = (
            "Ask for all at once: session.get_many(Class, ids), or select() "
            "with in_()."
        )
    elif "." in loads:
        who = f"{loads} was loaded lazily"
        remedy = (
            "Load it together with its objects: "
            f".options(selectinload({loads}))."
        )
    else:
        who = f"expired or deferred attributes of {loads} were loaded"
        remedy = (
            "Load the objects again with one statement, undefer() what is "
            "needed, or open the session with expire_on_commit=False."
        )
    what = (
        f"{who} {seen.count} times in one session, each time from one shard "
        f"({_list_of(seen.shards)})"
    )
    return what, remedy


_EXPLAINED: dict[
    FindingKind, Callable[[Evidence, int | None], tuple[str, str]]
] = {
    "scatter": _scatter,
    "fan_out": _fan_out,
    "cross_shard_write": _cross_shard,
    "n_plus_one": _n_plus_one,
}


def _list_of(shards: Collection[int]) -> str:
    ordered = sorted(shards)
    if len(ordered) == 1:
        return f"shard {ordered[0]}"
    shown = ", ".join(map(str, ordered[:8]))
    return f"shards {shown}{', ...' if len(ordered) > 8 else ''}"


def _times(count: int) -> str:
    return "" if count == 1 else f", {count} times"


def _shown(statement: str) -> str:
    text = " ".join(statement.replace(f"{SCHEMA}.", "").split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
