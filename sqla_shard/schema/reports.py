"""What became of every virtual shard."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import asdict
from dataclasses import dataclass
from enum import Enum
from typing import Any

from sqla_shard.schema.selecting import as_ranges
from sqla_shard.schema.selecting import Shard

__all__ = ["NOT_READ", "Outcome", "RunReport", "State"]


class State(Enum):
    """What became of a virtual shard."""

    CHANGED = "changed"
    CURRENT = "nothing to do"
    FAILED = "failed"
    IN_DOUBT = "in doubt"
    INTERRUPTED = "interrupted, the next run goes on"
    HELD = "another runner is at work"
    EMPTIED = "no revision, where others have one"
    NO_LEDGER = "no ledger"
    MISSING = "no such database"
    UNREACHABLE = "server not reached"
    READ_ONLY = "server is read-only"
    MOVED = "elsewhere in a newer topology"
    SKIPPED = "not attempted"

    @property
    def is_good(self) -> bool:
        """Whether the shard is as the command wants it."""
        return self in (State.CHANGED, State.CURRENT)


#: Those of shards whose databases could not be read.
NOT_READ = (State.MISSING, State.UNREACHABLE)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one virtual shard.

    :ivar steps: the revisions that were applied, such as ``"upgrade of
        1975ea83b712"``, in order.
    :ivar statements: how many statements ran.
    :ivar seconds: how long it took.
    :ivar error: what went wrong, or None.
    :ivar step: the revision that failed, or None.
    :ivar done: the statements of that revision which have taken effect all
        the same, because the server cannot roll them back; None where that
        is not known.
    """

    shard_id: int
    server: str
    database: str
    state: State
    steps: tuple[str, ...] = ()
    statements: int = 0
    seconds: float = 0.0
    error: str | None = None
    step: str | None = None
    done: tuple[str, ...] | None = ()

    @classmethod
    def of(cls, shard: Shard, state: State, **more: Any) -> Outcome:
        """Return what became of a shard.

        :param more: the other attributes, as far as there are any.
        """
        return cls(
            shard_id=shard.shard_id,
            server=shard.server,
            database=shard.database,
            state=state,
            **more,
        )

    def to_mapping(self) -> dict[str, Any]:
        """Return what JSON can hold."""
        return {**asdict(self), "state": self.state.value}


@dataclass(frozen=True, kw_only=True)
class RunReport:
    """What became of every virtual shard that a command was for.

    ``str()`` has a line for each kind of outcome and some for each failure.

    :ivar command: such as ``"upgrade"``.
    :ivar target: the revision asked for.
    :ivar keyspace: whose shards they are.
    :ivar outcomes: one for each shard, in order.
    :ivar seconds: how long it took in all.
    :ivar interrupted: whether it was told to stop.
    :ivar topology_error: why it is not known that shards are where the run
        looked for them, or None.
    """

    command: str
    target: str
    keyspace: str
    outcomes: tuple[Outcome, ...]
    seconds: float
    interrupted: bool = False
    topology_error: str | None = None

    @property
    def ok(self) -> bool:
        """Whether every shard is as the command wants it."""
        return self.topology_error is None and all(
            outcome.state.is_good for outcome in self.outcomes
        )

    def of(self, state: State) -> list[Outcome]:
        """Return the outcomes of one kind."""
        return [one for one in self.outcomes if one.state is state]

    def to_mapping(self) -> dict[str, Any]:
        """Return what JSON can hold."""
        return {
            "command": self.command,
            "target": self.target,
            "keyspace": self.keyspace,
            "ok": self.ok,
            "interrupted": self.interrupted,
            "topology_error": self.topology_error,
            "seconds": round(self.seconds, 3),
            "counts": {state.value: len(self.of(state)) for state in State},
            "shards": [outcome.to_mapping() for outcome in self.outcomes],
        }

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        total = len(self.outcomes)
        yield (
            f"{self.command} to {self.target}: {total} virtual shard"
            f"{'' if total == 1 else 's'} of {self.keyspace} in "
            f"{self.seconds:.1f} s{' (interrupted)' * self.interrupted}"
        )
        for state in State:
            found = self.of(state)
            if found:
                ids = as_ranges(one.shard_id for one in found)
                yield f"  {len(found)} {state.value}: {ids}"
        yield from _failures(self.outcomes)
        if self.topology_error is not None:
            yield f"repeat the command: {self.topology_error}"


_SHOWN = 10


def _failures(outcomes: Iterable[Outcome]) -> Iterator[str]:
    """Show each error once, with the shards that had it.

    And that are alike in what has taken effect, which is told with it.
    """
    alike: dict[tuple[object, ...], list[Outcome]] = {}
    for one in outcomes:
        if one.error is not None:
            error = one.error.replace(one.database, "<database>")
            key = (error, one.state, one.step, one.done)
            alike.setdefault(key, []).append(one)
    for found in list(alike.values())[:_SHOWN]:
        first = found[0]
        names = ", ".join(
            f"{one.database} on {one.server}" for one in found[:3]
        )
        if len(found) > 3:
            names += f" and {len(found) - 3} more"
        yield f"{first.state.value}: {names}"
        for line in (first.error or "").splitlines():
            yield f"    {line}"
        if first.step is not None and first.done is not None:
            yield from _already(first.step, first.done)
    if len(alike) > _SHOWN:
        yield f"and {len(alike) - _SHOWN} other errors; see the JSON report"


def _already(step: str, done: Sequence[str]) -> Iterator[str]:
    if not done:
        yield f"    nothing of the {step} has taken effect"
        return
    yield (
        f"    of the {step} {len(done)} statement(s) have taken effect "
        "already; the next run goes on after them:"
    )
    for number, statement in enumerate(done, 1):
        yield f"      {number}. {statement}"
