"""What a session would send for a statement, without sending it.

The statement takes the way that every statement takes, through listeners,
router, merge and compiler, up to the driver.  Only the connections lead
nowhere.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection
from sqlalchemy import Engine
from sqlalchemy import event
from sqlalchemy.exc import DontWrapMixin
from sqlalchemy.pool import NullPool

from sqla_shard.engines import Engines
from sqla_shard.engines import Places
from sqla_shard.exc import CrossShardWriteError
from sqla_shard.exc import ShardError
from sqla_shard.paging import Seal
from sqla_shard.rendering import Place
from sqla_shard.scattering import OPTION
from sqla_shard.scattering import Plan
from sqla_shard.scattering import render_event
from sqla_shard.session import PlacementPolicy
from sqla_shard.session import ShardSession
from sqla_shard.topology import Keyspace

__all__ = ["Rehearsal", "Sent", "rehearse"]


@dataclass(frozen=True, kw_only=True)
class Sent:
    """What a server would get.

    :ivar server: its name in the topology.
    :ivar shards: the virtual shards that it is asked about.
    :ivar statements: text and parameters of each statement, in order; one
        for all of the shards, or one for each where they cannot be one.
    """

    server: str
    shards: tuple[int, ...]
    statements: tuple[tuple[str, Any], ...]


@dataclass
class Rehearsal:
    """What would happen.

    :ivar sent: in the order of servers.
    :ivar merge: what would be done with the rows, step by step.
    :ivar computes: whether a server would be asked again in the end.
    :ivar refusal: the error that executing would raise.
    """

    sent: list[Sent] = field(default_factory=list)
    merge: tuple[str, ...] = ()
    computes: bool = False
    refusal: ShardError | None = None

    def add(
        self, places: Sequence[Place], statements: Sequence[tuple[str, Any]]
    ) -> None:
        """Add what goes to some shards of one server."""
        more = Sent(
            server=places[0].server,
            shards=tuple(place.shard_id for place in places),
            statements=tuple(statements),
        )
        last = self.sent[-1] if self.sent else None
        if last is not None and last.server == more.server:
            self.sent[-1] = Sent(
                server=last.server,
                shards=last.shards + more.shards,
                statements=last.statements + more.statements,
            )
        else:
            self.sent.append(more)


def rehearse(
    statement: Any,
    parameters: Any,
    places: Places,
    placement: PlacementPolicy,
    *,
    scatters: bool,
    shards: Sequence[int],
) -> Rehearsal:
    """Return what a session would do with a statement.

    :param shards: where it goes.
    :param scatters: whether the cluster lets statements go everywhere.
    """
    found = Rehearsal()
    home = _Stage(_Scenery(places, found), placement, scatters)
    with ShardSession(cluster=home) as session:
        try:
            session.execute(statement, parameters)
        except _Seen:
            pass
        except CrossShardWriteError as error:
            found.refusal = error
        except ShardError as error:
            found.refusal = error
            return found
    if not statement.is_select:
        _each(statement, parameters, shards, home, found)
    return found


def _each(
    statement: Any,
    parameters: Any,
    shards: Sequence[int],
    home: _Stage,
    found: Rehearsal,
) -> None:
    """Rehearse an UPDATE or DELETE, which is one statement for each shard."""
    found.sent.clear()
    for shard_id in shards:
        told = {"shard_id": shard_id}
        with ShardSession(cluster=home) as session, contextlib.suppress(_Seen):
            session.execute(statement, parameters, bind_arguments=told)


class _Seen(Exception, DontWrapMixin):  # noqa: N818  # nothing is wrong
    """Raised in place of an answer."""


@dataclass(frozen=True)
class _Stage:
    """The cluster of a session that sends nothing."""

    places: Places
    placement: PlacementPolicy
    scatters: bool
    watch: None = None
    caching: None = None
    seal: Seal = field(default_factory=Seal)


class _Scenery(Places):
    """The places of a topology, with connections that lead nowhere."""

    def __init__(self, places: Places, found: Rehearsal) -> None:
        engines: Engines = places.engines
        super().__init__(places.topology, engines)
        self._real = places
        self._found = found
        self._painted: dict[Engine, Engine] = {}

    def place(self, keyspace: Keyspace, shard_id: int) -> Place:
        """Return where a shard is, but with such a connection."""
        place = self._real.place(keyspace, shard_id)
        engine = self._painted.get(place.engine)
        if engine is None:
            engine = _painted(place.engine, self._found)
            self._painted[place.engine] = engine
        return replace(place, engine=engine)


def _painted(real: Engine, found: Rehearsal) -> Engine:
    """Return an engine with the dialect of another, and no server."""
    pool = NullPool(lambda: _Prop())  # type: ignore[arg-type]  # little is asked of it
    engine = Engine(pool, real.dialect, real.url)
    event.listen(engine, "before_cursor_execute", render_event, retval=True)

    def record(
        connection: Connection,
        cursor: Any,
        statement: str,
        parameters: Any,
        context: Any,
        executemany: bool,
    ) -> None:
        plan: Plan = context.execution_options[OPTION]
        if plan.merge is not None:
            found.merge = plan.merge.steps
            combine = plan.merge.combine
            found.computes = combine is not None and combine.computes
        for job in plan.jobs:
            found.add(job.places, job.statements)
        if not plan.jobs:
            found.add(plan.places, [(statement, parameters)])
        raise _Seen

    event.listen(engine, "before_cursor_execute", record)
    return engine


class _Prop:
    """A connection, and a cursor, that does nothing."""

    in_transaction = True

    def cursor(self, *args: Any, **kwargs: Any) -> _Prop:
        return self

    def execute(self, *args: Any) -> None:
        pass

    def close(self) -> None:
        pass

    commit = rollback = close
