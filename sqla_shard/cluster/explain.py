"""The route of an id or a statement, and the reasons for it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from sqlalchemy import Executable
from sqlalchemy.orm import Query
from sqlalchemy.sql.lambdas import LambdaElement

from sqla_shard.cluster.dry_run import dry_run, Sent
from sqla_shard.engine import limits_of, Places, Scatter
from sqla_shard.engine.rendering import Place
from sqla_shard.exc import NoShardKeyError, ShardError
from sqla_shard.ids import ObjectId, pack
from sqla_shard.planning import as_statement, Decision, locate
from sqla_shard.session import PlacementPolicy
from sqla_shard.topology import find_object
from sqla_shard.topology.keyspaces import as_ranges
from sqla_shard.util import sqlalchemy_private as private

__all__ = ["Explanation", "Target", "explain", "target_of"]

#: Lines of shards, and characters of a statement, that str() shows.
_LINES_SHOWN = 12
_SQL_SHOWN = 1200
#: The lowest valid id of an object; type ids begin at 1.
_LOWEST_ID = pack(0, 1, 0)


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
        return tuple(dict.fromkeys(t.server for t in self.targets))

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
