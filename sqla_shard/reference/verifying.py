"""Comparing the reference tables of all shards, and repairing them.

The rows of up to 256 shards of a server come with one statement, and all
servers are asked at the same time; so it costs what reading the rows costs.
Nothing is locked until something is repaired.  While ``replace()`` is
running, shards that it has not come to are different.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from functools import partial
from typing import Any

from sqlalchemy import MetaData
from sqlalchemy.exc import SQLAlchemyError

from sqla_shard.cluster import Cluster
from sqla_shard.engines import by_server
from sqla_shard.engines.troubles import message_of
from sqla_shard.exc import ShardMissingError
from sqla_shard.reference.copies import Copies
from sqla_shard.reference.copies import Difference
from sqla_shard.reference.copies import in_turn
from sqla_shard.reference.definition import table_of
from sqla_shard.reference.report import Deviation
from sqla_shard.reference.report import ReferencesReport
from sqla_shard.reference.report import Unread
from sqla_shard.reference.rows import Key
from sqla_shard.reference.rows import Rows
from sqla_shard.reference.writing import PARALLEL
from sqla_shard.rendering import Place
from sqla_shard.routing import spec_of

__all__ = ["verify_references"]

#: Rows that are read at a time, for what they take of memory.
_ROWS = 50_000


@dataclass
class _Found:
    deviations: list[Deviation] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)


def verify_references(
    cluster: Cluster,
    classes: MetaData | Iterable[type[Any]],
    *,
    repair: bool = False,
) -> ReferencesReport:
    """Compare reference tables on every shard with the lowest one.

    :param classes: reference classes; or a ``MetaData``, for all that have
        their tables there.
    :param repair: make shards equal to the lowest that are not; each in one
        transaction.
    :returns: data; ``str()`` of it is for reading.
    :raises ServerUnreachableError: when the server of the lowest shard does
        not answer.
    """
    if isinstance(classes, MetaData):
        tables = [
            table
            for table in classes.sorted_tables
            if spec_of(table).reference is not None
        ]
    else:
        tables = [table_of(cls) for cls in classes]
    places = cluster.places
    rows: dict[str, int] = {}
    shards: dict[str, int] = {}
    whole = _Found()
    for table in tables:
        copies = Copies(table, places)
        wanted = in_turn(copies.truth, partial(_truth, copies))
        rows[copies.name] = len(wanted)
        shards[copies.name] = copies.keyspace.shards
        jobs = [
            partial(_on_server, copies, wanted, there, repair)
            for there in by_server(copies.others)
        ]
        for part in places.engines.at_once(jobs, "verify", PARALLEL):
            whole.deviations += part.deviations
            whole.unread += part.unread
    return ReferencesReport(
        rows=rows,
        shards=shards,
        deviations=tuple(whole.deviations),
        unread=tuple(whole.unread),
    )


def _truth(copies: Copies) -> Rows:
    with copies.truth.engine.connect() as connection:
        return copies.read(connection)


def _on_server(
    copies: Copies, wanted: Rows, shards: Sequence[Place], repair: bool
) -> _Found:
    found = _Found()
    size = max(_ROWS // max(len(wanted), 1), 1)
    for start in range(0, len(shards), size):
        some = shards[start : start + size]
        for place, outcome in _compare(copies, wanted, some):
            _note(found, copies, place, outcome, repair)
    return found


def _compare(
    copies: Copies, wanted: Rows, shards: Sequence[Place]
) -> Iterator[tuple[Place, Difference | Exception]]:
    """Yield how shards of a server differ, or why that is not known."""

    def read() -> dict[int, Rows]:
        with shards[0].engine.connect() as connection:
            return copies.read_many(connection, shards)

    try:
        rows = in_turn(shards[0], read)
    except ShardMissingError as error:
        if len(shards) == 1:
            yield shards[0], error
            return
        # One of them has no such table; the others are asked without it.
        for place in shards:
            yield from _compare(copies, wanted, [place])
    except (SQLAlchemyError, OSError) as error:
        for place in shards:
            yield place, error
    else:
        for place in shards:
            yield place, Difference.between(rows[place.shard_id], wanted)


def _note(
    found: _Found,
    copies: Copies,
    place: Place,
    outcome: Difference | Exception,
    repair: bool,
) -> None:
    if isinstance(outcome, Difference) and outcome and repair:
        try:
            outcome = copies.bring(place)
        except (SQLAlchemyError, OSError) as error:
            outcome = error
    if isinstance(outcome, Exception):
        found.unread.append(
            Unread(
                reference=copies.name,
                shard_id=place.shard_id,
                server=place.server,
                reason=message_of(outcome),
            )
        )
    elif outcome:
        found.deviations.append(
            Deviation(
                reference=copies.name,
                shard_id=place.shard_id,
                server=place.server,
                missing=_in_order(outcome.missing),
                extra=_in_order(outcome.extra),
                different=_in_order(outcome.different),
                repaired=repair,
            )
        )


def _in_order(keys: Iterable[Key]) -> tuple[Key, ...]:
    return tuple(sorted(keys, key=str))
