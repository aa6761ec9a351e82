"""Dry runs: the statements that a session would send for a statement.

The statement passes through the same listeners, router, merge and compiler as
any other, up to the driver; only the connections are not real.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import DontWrapMixin
from sqlalchemy.pool import NullPool

from sqla_shard.engine import (
    Engines,
    ExecutionPlan,
    OPTION,
    Places,
    render_event,
    Sampling,
)
from sqla_shard.engine.rendering import Place
from sqla_shard.exc import CrossShardWriteError, ShardError
from sqla_shard.session import PlacementPolicy, ShardSession
from sqla_shard.session.paging import Seal
from sqla_shard.topology import Keyspace


@dataclass(frozen=True, kw_only=True)
class Sent:
    """The statements for one server.

    :ivar server: its name in the topology.
    :ivar shards: the virtual shards that the statements read or write.
    :ivar statements: text and parameters of each statement, in order; one
        for all of the shards, or one for each if they cannot be combined.
    """

    server: str
    shards: tuple[int, ...]
    statements: tuple[tuple[str, Any], ...]


@dataclass
class DryRun:
    """The result of a dry run.

    :ivar sent: the statements for each server, in the order of servers.
    :ivar merge: the steps of the merge.
    :ivar computes: whether a server would compute the end result.
    :ivar refusal: the error that executing would raise.
    """

    sent: list[Sent] = field(default_factory=list)
    merge: tuple[str, ...] = ()
    computes: bool = False
    refusal: ShardError | None = None

    def add(
        self, places: Sequence[Place], statements: Sequence[tuple[str, Any]]
    ) -> None:
        """Add statements for the given shards of one server."""
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


def dry_run(
    statement: Any,
    parameters: Any,
    places: Places,
    placement: PlacementPolicy,
    *,
    scatters: bool,
    shards: Sequence[int],
) -> DryRun:
    """Return the statements that a session would send for a statement.

    :param shards: the route of the statement.
    :param scatters: whether the cluster allows ``scatter()``.
    """
    found = DryRun()
    stage: Any = _DryCluster(_DryPlaces(places, found), placement, scatters)
    with ShardSession(cluster=stage) as session:
        try:
            session.execute(statement, parameters)
        except _Recorded:
            pass
        except CrossShardWriteError as error:
            found.refusal = error
        except ShardError as error:
            found.refusal = error
            return found
    if not statement.is_select:
        _each(statement, parameters, shards, stage, found)
    return found


def _each(
    statement: Any, parameters: Any, shards: Sequence[int], stage: Any, found: DryRun
) -> None:
    """Dry-run an UPDATE or DELETE, which is one statement for each shard."""
    found.sent.clear()
    for shard_id in shards:
        arguments = {"shard_id": shard_id}
        with ShardSession(cluster=stage) as session, contextlib.suppress(_Recorded):
            session.execute(statement, parameters, bind_arguments=arguments)


class _Recorded(Exception, DontWrapMixin):  # noqa: N818  # nothing is wrong
    """Raised instead of returning rows."""


@dataclass(frozen=True)
class _DryCluster:
    """The cluster of a session that sends nothing."""

    places: Places
    placement: PlacementPolicy
    scatters: bool
    watch: None = None
    caching: None = None
    seal: Seal = field(default_factory=Seal)

    def listens(self, name: str) -> bool:
        """Return False: what is not sent is not reported."""
        return False

    def notify(self, name: str, *arguments: Any) -> None:
        """Report nothing."""


class _DryPlaces(Places):
    """The locations of a topology, with connections that do nothing."""

    def __init__(self, places: Places, found: DryRun) -> None:
        engines: Engines = places.engines
        super().__init__(places.topology, engines)
        self._real = places
        self._found = found
        self._dry_engines: dict[Engine, Engine] = {}

    def place(self, keyspace: Keyspace, shard_id: int) -> Place:
        """Return the location of a shard, with an engine that does nothing."""
        place = self._real.place(keyspace, shard_id)
        engine = self._dry_engines.get(place.engine)
        if engine is None:
            engine = _dry_engine(place.engine, self._found)
            self._dry_engines[place.engine] = engine
        return replace(place, engine=engine)


def _dry_engine(real: Engine, found: DryRun) -> Engine:
    """Return an engine with the dialect of another, and no server."""
    pool = NullPool(lambda: _DryConnection())  # type: ignore[arg-type]  # all it uses
    engine = Engine(pool, real.dialect, real.url)
    render = partial(render_event, sampling=Sampling())
    event.listen(engine, "before_cursor_execute", render, retval=True)

    def record(
        connection: Connection,
        cursor: Any,
        statement: str,
        parameters: Any,
        context: Any,
        executemany: bool,
    ) -> None:
        plan: ExecutionPlan = context.execution_options[OPTION]
        if plan.merge is not None:
            found.merge = plan.merge.steps
            combine = plan.merge.combine
            found.computes = combine is not None and combine.computes
        for job in plan.jobs:
            found.add(job.places, job.statements)
        if not plan.jobs:
            found.add(plan.places, [(statement, parameters)])
        raise _Recorded

    event.listen(engine, "before_cursor_execute", record)
    return engine


class _DryConnection:
    """A connection, and a cursor, that does nothing."""

    in_transaction = True

    def cursor(self, *args: Any, **kwargs: Any) -> _DryConnection:
        return self

    def execute(self, *args: Any) -> None:
        pass

    def close(self) -> None:
        pass

    commit = rollback = close
