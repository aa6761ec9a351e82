"""The longest lists of mapping classes, and those with the most new rows.

They show which classes need ``spread=``: the rows of a list are on one virtual
shard, and its changes wait for each other.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import func, select

from sqla_shard.cluster.cluster import Cluster
from sqla_shard.engine import scatter, scatter_errors
from sqla_shard.engine.rendering import Place
from sqla_shard.engine.unreachable import (
    each_once,
    unreachable_values,
    UnreachableServer,
)
from sqla_shard.exc import ScatterFailedError
from sqla_shard.models import MappingMixin
from sqla_shard.models.list_positions import STEP
from sqla_shard.models.mapping_list import statements_of
from sqla_shard.planning import spec_of
from sqla_shard.session import ShardSession
from sqla_shard.upkeep.targets import classes_of


@dataclass(frozen=True, kw_only=True)
class ListSize:
    """The number of rows of a list.

    :ivar mapping: name of the mapping class.
    :ivar source_id: the source of the list.
    :ivar rows: number of rows; of a spread list, the rows of its largest
        piece times the number of pieces.
    :ivar pieces: number of pieces of the list; 1 if it is not spread.
    """

    mapping: str
    source_id: int
    rows: int
    pieces: int

    def __str__(self) -> str:
        about = f"about {self.rows:,}" if self.pieces > 1 else f"{self.rows:,}"
        return f"{self.mapping} of {self.source_id}: {about} rows"


@dataclass(frozen=True, kw_only=True)
class ListSizes:
    """The largest lists of mapping classes.

    :ivar largest: the lists with the most rows.
    :ivar busiest: the lists with the most rows that were appended during the
        ``window`` and are still there.
    :ivar window: seconds.
    :ivar unreachable: servers that could not be read in time.
    """

    largest: tuple[ListSize, ...]
    busiest: tuple[ListSize, ...]
    window: float
    unreachable: tuple[UnreachableServer, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes as JSON values."""
        return {**asdict(self), "unreachable": unreachable_values(self.unreachable)}

    def __str__(self) -> str:
        lines = [f"large: {one}" for one in self.largest]
        lines += [
            f"busy: {one} appended in {self.window:,.0f} seconds"
            for one in self.busiest
        ]
        lines += map(str, self.unreachable)
        return "\n".join(lines) or "no rows"


def largest_lists(
    cluster: Cluster,
    classes: Iterable[type[Any]] | None = None,
    *,
    top: int = 10,
    window: float = 86_400.0,
    timeout: float = 60.0,
) -> ListSizes:
    """Return the lists with the most rows, and with the most new rows.

    Servers read the index of each table once, all rows of it, and the lengths
    of counted classes: run it on a replica, or at night.

    :param classes: the mapping classes; by default all mapping classes of
        this process.
    :param top: number of lists in each part of the report.
    :param window: seconds up to now in which a row is new.
    :param timeout: seconds for the servers to read one class; a shard that
        is not read by then is in ``unreachable``.
    :returns: the report; ``str()`` of it is readable.
    :raises ValueError: for an invalid argument.
    """
    if top < 1:
        raise ValueError(f"top={top} must be 1 or more")
    since = max(int((time.time() - window) * 1000), 0) * STEP
    largest: list[ListSize] = []
    busiest: list[ListSize] = []
    unreachable: dict[Place, Exception] = {}
    for cls in classes_of(MappingMixin, classes):
        statements = statements_of(cls)
        number = func.count().label("number")
        rows = select(statements.source, number).group_by(statements.source)
        sizes = rows
        if statements.counts is not None:
            table = statements.counts.table
            sizes = select(statements.counts.source, table.c.number.label("number"))
        recent = rows.where(cls.sequence >= since)
        for statement, found in ((sizes, largest), (recent, busiest)):
            with cluster.session() as session:
                ordered = statement.order_by(
                    statement.selected_columns["number"].desc()
                )
                found += _largest(
                    session, cls, ordered.limit(top), timeout, unreachable
                )
    return ListSizes(
        largest=_first(largest, top),
        busiest=_first(busiest, top),
        window=window,
        unreachable=each_once(
            UnreachableServer.of([place], error) for place, error in unreachable.items()
        ),
    )


def _largest(
    session: ShardSession,
    cls: Any,
    statement: Any,
    timeout: float,
    unreachable: dict[Place, Exception],
) -> list[ListSize]:
    """Return the largest lists of each shard.

    :param unreachable: receives the errors of shards.
    """
    pieces = statements_of(cls).definition.spread
    spec = spec_of(statements_of(cls).table)
    keyspace = session.places.keyspace(spec.keyspace, spec.kind)
    every = session.places.several(keyspace, range(keyspace.shards))
    # Each statement would wait for a server that does not respond.
    places = [place for place in every if place not in unreachable]
    rows: list[Any] = []
    errors: Mapping[int, Exception] = {}
    if places:
        try:
            result = session.execute(
                statement,
                bind_arguments={
                    "places": places,
                    "limits": scatter(timeout=timeout, on_error="partial"),
                },
            )
            errors = scatter_errors(result)
            rows = list(result)
        except ScatterFailedError as error:
            errors = error.errors
    for place in places:
        if place.shard_id in errors:
            unreachable[place] = errors[place.shard_id]
    most: dict[int, int] = {}
    for source_id, number in rows:
        most[source_id] = max(most.get(source_id, 0), number)
    return [
        ListSize(
            mapping=cls.__name__,
            source_id=source_id,
            rows=number * pieces,
            pieces=pieces,
        )
        for source_id, number in most.items()
        if number
    ]


def _first(sizes: list[ListSize], top: int) -> tuple[ListSize, ...]:
    return tuple(heapq.nlargest(top, sizes, key=lambda one: one.rows))
