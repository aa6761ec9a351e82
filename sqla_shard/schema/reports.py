"""The report of a run: the outcome of each virtual shard."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from sqla_shard.engine.unreachable import (
    Cause,
    each_once,
    unreachable_values,
    UnreachableServer,
)
from sqla_shard.exc.base import shortened_list
from sqla_shard.schema.selection import Shard
from sqla_shard.topology.keyspaces import as_ranges


class State(Enum):
    """The outcome of a command on a virtual shard."""

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
        """Whether the shard is in the state that the command requires."""
        return self in (State.CHANGED, State.CURRENT)


#: States of shards whose databases could not be read.
NOT_READ = (State.MISSING, State.UNREACHABLE)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of a command on one virtual shard.

    :ivar steps: the revisions that were applied, such as ``"upgrade of
        1975ea83b712"``, in order.
    :ivar statements: number of statements that were executed.
    :ivar seconds: duration in seconds.
    :ivar error: the error, or None.
    :ivar step: the revision that failed, or None.
    :ivar done: the statements of that revision that have taken effect, since
        the server cannot roll back DDL; None if this is unknown.
    :ivar cause: why the server did not respond, or None.
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
    cause: Cause | None = None

    @classmethod
    def of(cls, shard: Shard, state: State, **more: Any) -> Outcome:
        """Return the outcome for a shard.

        :param more: further attributes.
        """
        return cls(
            shard_id=shard.shard_id,
            server=shard.server,
            database=shard.database,
            state=state,
            **more,
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes as JSON values."""
        found = {**asdict(self), "state": self.state.value}
        del found["cause"]
        return found


@dataclass(frozen=True, kw_only=True)
class RunReport:
    """The outcomes of a command, shard by shard.

    ``str()`` of it has one line for each state, and a few for each failure.

    :ivar command: name of the command, such as ``"upgrade"``.
    :ivar target: the target revision.
    :ivar keyspace: name of the keyspace.
    :ivar outcomes: one for each selected shard, in order.
    :ivar seconds: duration of the run in seconds.
    :ivar interrupted: whether the run was stopped by a signal.
    :ivar topology_error: reason why the locations of the shards are
        uncertain, or None.
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
        """Whether every shard is in the state that the command requires."""
        return self.topology_error is None and all(
            outcome.state.is_good for outcome in self.outcomes
        )

    @property
    def unreachable(self) -> tuple[UnreachableServer, ...]:
        """The servers of the shards that could not be read."""
        return each_once(
            UnreachableServer(
                server=one.server,
                cause=one.cause or Cause(one.state.value),
                addresses=((self.keyspace, one.shard_id),),
            )
            for one in self.outcomes
            if one.state in NOT_READ
        )

    def of(self, state: State) -> list[Outcome]:
        """Return the outcomes with a state."""
        return [one for one in self.outcomes if one.state is state]

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes as JSON values."""
        return {
            "command": self.command,
            "target": self.target,
            "keyspace": self.keyspace,
            "ok": self.ok,
            "interrupted": self.interrupted,
            "topology_error": self.topology_error,
            "seconds": round(self.seconds, 3),
            "counts": {state.value: len(self.of(state)) for state in State},
            "shards": [outcome.as_dict() for outcome in self.outcomes],
            "unreachable": unreachable_values(self.unreachable),
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
        yield from (str(one) for one in self.unreachable if not one.cause.responds)
        for state in State:
            found = self.of(state)
            if found and state is not State.UNREACHABLE:
                ids = as_ranges(one.shard_id for one in found)
                yield f"  {len(found)} {state.value}: {ids}"
        yield from _failures(self.outcomes)
        if self.topology_error is not None:
            yield f"repeat the command: {self.topology_error}"


_SHOWN = 10


def _failures(outcomes: Iterable[Outcome]) -> Iterator[str]:
    """Yield each error once, with its shards and the completed statements."""
    groups: dict[tuple[object, ...], list[Outcome]] = {}
    for one in outcomes:
        # An outage has a line of its own, unless it left a revision open.
        is_outage = one.state is State.UNREACHABLE and one.step is None
        if one.error is not None and not is_outage:
            error = one.error.replace(one.database, "<database>")
            key = (error, one.state, one.step, one.done)
            groups.setdefault(key, []).append(one)
    for found in list(groups.values())[:_SHOWN]:
        first = found[0]
        names = shortened_list([f"{one.database} on {one.server}" for one in found], 3)
        yield f"{first.state.value}: {names}"
        for line in (first.error or "").splitlines():
            yield f"    {line}"
        if first.step is not None and first.done is not None:
            yield from _done(first.step, first.done)
    if len(groups) > _SHOWN:
        yield f"and {len(groups) - _SHOWN} other errors; see the JSON report"


def _done(step: str, done: Sequence[str]) -> Iterator[str]:
    if not done:
        yield f"    no statement of the {step} has taken effect"
        return
    yield (
        f"    {len(done)} statement(s) of the {step} have already taken "
        "effect; the next run resumes after them:"
    )
    for number, statement in enumerate(done, 1):
        yield f"      {number}. {statement}"
