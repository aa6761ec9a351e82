"""The route of an id or a statement, the reasons for it, and dry runs.

The statement of a dry run passes through the same listeners, router, merge and
compiler as any other, up to the driver; only the connections are not real.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import isfinite
from typing import Any

from sqlalchemy import Connection, Engine, event, Executable
from sqlalchemy.exc import DontWrapMixin
from sqlalchemy.orm import Query
from sqlalchemy.pool import NullPool
from sqlalchemy.sql.lambdas import LambdaElement

from sqla_shard.engine import (
    Engines,
    ExecutionPlan,
    limits_of,
    OPTION,
    Places,
    render_event,
    Sampling,
    Scatter,
)
from sqla_shard.engine.rendering import Place
from sqla_shard.exc import CrossShardWriteError, NoShardKeyError, ShardError
from sqla_shard.ids import ObjectId, pack
from sqla_shard.planning import as_statement, Decision, locate
from sqla_shard.session import PlacementPolicy, ShardSession
from sqla_shard.session.paging import Seal
from sqla_shard.topology import find_object, Keyspace
from sqla_shard.topology.keyspaces import as_ranges
from sqla_shard.util import sqlalchemy_private as private

#: Lines of shards, and characters of a statement, that str() shows.
_LINES_SHOWN = 12
_SQL_SHOWN = 1200
#: The lowest valid id of an object; type ids begin at 1.
_LOWEST_ID = pack(0, 1, 0)


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
    cache: None = None
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


@dataclass(frozen=True, kw_only=True)
class Target:
    """One virtual shard of an explanation.

    :ivar shard_id: number of the shard.
    :ivar server: name of its physical server.
    :ivar database: name of its database, or of its file on SQLite.
    :ivar why: the part of the statement that selects it.
    """

    shard_id: int
    server: str
    database: str
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """The route of an id or a statement.

    :ivar object_id: the parts of the id; None for a statement.
    :ivar keyspace: name of the keyspace; None if it is not known.
    :ivar targets: the shards, in order; empty if no row can match, or they
        are not known.
    :ivar why: the reason of the route.
    :ivar refusal: the error that executing would raise, or None.
    :ivar sent: the statements for each server; empty for an id, and if the
        statement is refused.
    :ivar merge: the steps that merge the rows of several shards; empty if
        these are only concatenated.
    :ivar computes: whether one server would compute expressions of merged
        aggregates in another round trip.
    :ivar with_scatter: if the shards are not known, the explanation with
        ``.options(scatter())``.
    """

    object_id: ObjectId | None
    keyspace: str | None
    targets: tuple[Target, ...]
    why: str
    refusal: ShardError | None
    sent: tuple[Sent, ...] = ()
    merge: tuple[str, ...] = ()
    computes: bool = False
    with_scatter: Explanation | None = None

    @property
    def shards(self) -> tuple[int, ...]:
        """The numbers of the shards."""
        return tuple(target.shard_id for target in self.targets)

    @property
    def servers(self) -> tuple[str, ...]:
        """The names of the servers, each once."""
        return tuple(self.by_server)

    @property
    def by_server(self) -> dict[str, list[Target]]:
        """The targets by name of their server."""
        servers: dict[str, list[Target]] = {}
        for target in self.targets:
            servers.setdefault(target.server, []).append(target)
        return servers

    @property
    def round_trips(self) -> int:
        """The number of round trips; one is to all servers in parallel."""
        most = max((len(sent.statements) for sent in self.sent), default=0)
        return most + self.computes

    def as_dict(self) -> dict[str, Any]:
        """Return JSON values.

        Ids are strings, since JavaScript rounds such numbers.  So are
        parameters that may be ids, or have a type that JSON lacks.
        """
        parts = self.object_id
        return {
            "id": None if parts is None else str(int(parts)),
            "keyspace": self.keyspace,
            "why": self.why,
            "refusal": None if self.refusal is None else str(self.refusal),
            "shards": [
                {
                    "shard": target.shard_id,
                    "server": target.server,
                    "database": target.database,
                    "why": target.why,
                }
                for target in self.targets
            ],
            "round_trips": self.round_trips,
            "merge": list(self.merge),
            "sent": [
                {
                    "server": sent.server,
                    "shards": list(sent.shards),
                    "statements": [
                        {"sql": sql, "parameters": _document(parameters)}
                        for sql, parameters in sent.statements
                    ],
                }
                for sent in self.sent
            ],
            "with_scatter": self.with_scatter and self.with_scatter.as_dict(),
        }

    def __str__(self) -> str:
        return self.text()

    def text(self, *, full: bool = False) -> str:
        """Return a readable report.

        :param full: whether to list each shard, and the whole statement for
            each server; by default shards are ranges, and of a statement for
            many shards the part for the first one is shown.
        """
        return "\n".join(_lines(self, full))


def _document(value: Any) -> Any:
    """Return a parameter, or all of them, as JSON values."""
    if isinstance(value, Mapping):
        return {str(key): _document(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_document(item) for item in value]
    if isinstance(value, float):
        return value if isfinite(value) else str(value)
    if isinstance(value, int) and abs(value) >= _LOWEST_ID:
        return str(value)
    if value is None or isinstance(value, (int, str)):
        return value
    return str(value)


def _lines(shown: Explanation, full: bool) -> Iterator[str]:
    if shown.object_id is not None:
        yield f"id {int(shown.object_id)}: {shown.object_id.describe()}"
    if shown.refusal is not None:
        yield f"refused: {shown.refusal}"
        if shown.with_scatter is not None:
            yield "with .options(scatter()):"
            yield from _indented(_lines(shown.with_scatter, full))
        if not shown.targets:
            return
    yield (
        f"keyspace {shown.keyspace}: {len(shown.targets)} shard(s) on "
        f"{len(shown.servers)} server(s), because of {shown.why}"
    )
    yield from _target_lines(shown, full)
    if shown.sent:
        yield from _sent_lines(shown, full)


def _target_lines(shown: Explanation, full: bool) -> Iterator[str]:
    """Yield a line for each server, or for each shard."""
    groups: dict[tuple[Any, ...], list[Target]] = {}
    for target in shown.targets:
        key = target.server, target.why, target.shard_id if full else None
        groups.setdefault(key, []).append(target)
    lines = []
    for targets in groups.values():
        first = targets[0]
        why = first.why if first.why not in ("", shown.why) else ""
        where = f"shard {first.shard_id} on {first.server} in {first.database}"
        if len(targets) > 1:
            ids = as_ranges(target.shard_id for target in targets)
            where = f"{len(targets)} shards {ids} on {first.server}"
        lines.append(f"  {where}{why and ': '}{why}")
    yield from lines if full else lines[:_LINES_SHOWN]
    if lines[_LINES_SHOWN:] and not full:
        yield f"  and {len(lines) - _LINES_SHOWN} more"


def _sent_lines(shown: Explanation, full: bool) -> Iterator[str]:
    count = shown.round_trips
    trips = "1 round trip" if count == 1 else f"{count} round trips"
    also = ", all servers in parallel" if len(shown.sent) > 1 else ""
    yield f"{trips}{also}"
    for step in shown.merge:
        yield f"  merge: {step}"
    for sent in shown.sent:
        yield (
            f"  {sent.server}: {len(sent.statements)} statement(s) for "
            f"{len(sent.shards)} shard(s)"
        )
    if any(1 < len(s.shards) == len(s.statements) for s in shown.sent):
        yield ("  one statement for each shard: it cannot be combined with UNION ALL")
    if full:
        for sent in shown.sent:
            yield f"  to {sent.server}:"
            for text, _ in sent.statements:
                yield from _indented(iter(text.splitlines()), "    ")
        return
    # The statements for other servers differ in names and numbers only.
    text = _first_branch(shown.sent[0].statements[0][0])
    cut = f" ... ({len(text)} characters)" if text[_SQL_SHOWN:] else ""
    yield f"  to {shown.sent[0].server}:"
    yield from _indented(iter((text[:_SQL_SHOWN] + cut).splitlines()), "    ")


# Between the parts of a statement for several shards; rendering.py writes it.
_BETWEEN = re.compile(r"\n(?:\)\n)?(UNION(?: ALL)?)\n")


def _first_branch(text: str) -> str:
    """Return the part of a statement for its first shard, and its end."""
    first = _BETWEEN.search(text)
    if first is None:
        return text
    more = len(_BETWEEN.findall(text))
    shown = f"{text[: first.start()]}\n{first[1]} ... {more} more"
    if text.startswith("("):
        # Each part is in parentheses; then the order of all of them follows.
        _, _, end = text.rpartition("\n)")
        shown = f"{text[: first.start()]}\n)\n{first[1]} ... {more} more{end}"
    return shown


def _indented(lines: Iterator[str], by: str = "  ") -> Iterator[str]:
    for line in lines:
        yield f"{by}{line}"


def explain(
    what: Any,
    parameters: Any,
    places: Places,
    placement: PlacementPolicy,
    *,
    keyspace: str | None = None,
    scatters: bool = True,
) -> Explanation:
    """Return the explanation of an id or a statement.

    :param keyspace: name of the keyspace of an id; None for the only one of
        kind ``"objects"``.
    :param scatters: whether the cluster allows ``scatter()``.
    """
    if isinstance(what, Query):
        what = what.statement
    if isinstance(what, LambdaElement):
        # The statement of a lambda_stmt() is a private attribute.
        what = private.resolved(what)
    if not isinstance(what, Executable) and not hasattr(what, "get_children"):
        return _explain_id(what, places, keyspace)
    scattered = limits_of(what) is not None
    try:
        what = as_statement(what)
        if getattr(what, "is_insert", False):
            raise NoShardKeyError(
                "an INSERT is placed when it runs, by the ids in its rows",
                tables=(what.table.name,),
            )
        decision = locate(what, parameters, places, scatter=scattered)
    except NoShardKeyError as error:
        if scattered or not scatters or not what.is_select:
            return _refused(error)
        return _refused(error, _explain_scattered(what, parameters, places, placement))
    except ShardError as error:
        return _refused(error)
    return _explain(what, parameters, places, placement, decision, scatters=scatters)


def _refused(error: ShardError, with_scatter: Explanation | None = None) -> Explanation:
    return Explanation(
        object_id=None,
        keyspace=None,
        targets=(),
        why="",
        refusal=error,
        with_scatter=with_scatter,
    )


def _explain_scattered(
    what: Any, parameters: Any, places: Places, placement: PlacementPolicy
) -> Explanation | None:
    if not hasattr(what, "options"):
        return None
    return explain(what.options(Scatter()), parameters, places, placement)


def _explain(
    what: Any,
    parameters: Any,
    places: Places,
    placement: PlacementPolicy,
    decision: Decision,
    *,
    scatters: bool,
) -> Explanation:
    found = dry_run(
        what, parameters, places, placement, scatters=scatters, shards=decision.shards
    )
    shards = decision.shards
    if decision.anywhere:
        # Show the text for the shard that the dry run has chosen.
        shards = tuple(i for sent in found.sent for i in sent.shards)
    return Explanation(
        object_id=None,
        keyspace=decision.keyspace.name,
        targets=tuple(
            target_of(places.place(decision.keyspace, i), decision.reasons(i))
            for i in shards
        ),
        why=decision.why or "nothing",
        refusal=found.refusal,
        sent=tuple(found.sent),
        merge=found.merge,
        computes=found.computes,
    )


def _explain_id(what: Any, places: Places, name: str | None) -> Explanation:
    found = find_object(places.topology, what, name)
    parts, keyspace = found.object_id, found.keyspace
    place = places.place(keyspace, found.shard_id)
    return Explanation(
        object_id=parts,
        keyspace=keyspace.name,
        targets=(target_of(place, "the bits of the id"),),
        why="the bits of the id",
        refusal=None,
    )


def target_of(place: Place, why: str) -> Target:
    """Return the target of a location.

    :param why: the part of the statement that selects it.
    """
    url = place.engine.url
    database = str(url.database) if url.host is None else place.schema
    return Target(
        shard_id=place.shard_id, server=place.server, database=database, why=why
    )
