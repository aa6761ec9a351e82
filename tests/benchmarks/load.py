"""The cost of sampling the load per shard, compared to ``session.get``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqla_shard import Cluster, ShardSession
from sqla_shard.monitor import measure_load
from tests.benchmarks.pins import Base, fill, Pin
from tests.benchmarks.servers import new_fleet, title
from tests.benchmarks.timing import compare, Row, show

#: Statements of a turn: with 1 % of them sampled, a few samples.
_CALLS = 1000


def run() -> None:
    """Print the tables."""
    with _served() as (cluster, object_id):
        show(
            f"one object by id, session open, one {title()} server",
            _each(compare(_gets(cluster, object_id), turns=20, warm_up=1)),
        )
        costs = costs_of(cluster, Pin, object_id)
        show("the sampling of its statement alone", costs)


@contextmanager
def _served() -> Iterator[tuple[Cluster, int]]:
    with (
        new_fleet(servers=1, shards=256, fast=True) as fleet,
        Cluster.from_topology(
            fleet.topology_mapping(), environ=fleet.environ
        ) as cluster,
    ):
        cluster.create_all(Base.metadata)
        yield cluster, fill(cluster)[0]


def _each(rows: list[Row]) -> list[Row]:
    """Return the times of one call, of those of a turn."""
    return [Row(row.name, row.microseconds / _CALLS, row.ratio) for row in rows]


def _reader(
    session: ShardSession, entity: type[Any], object_id: int
) -> Callable[[], None]:
    def read() -> None:
        session.expunge_all()
        assert session.get(entity, object_id) is not None

    return read


def _gets(cluster: Cluster, object_id: int) -> dict[str, Callable[[], object]]:
    """Return ``get`` without sampling, and with samples of 1 %."""
    read = _reader(cluster.session(), Pin, object_id)

    def sampled() -> None:
        meter = measure_load(cluster)
        for _ in range(_CALLS):
            read()
        meter.stop()

    def plain() -> None:
        for _ in range(_CALLS):
            read()

    return {"ShardSession.get": plain, "with samples of 1 %": sampled}


def costs_of(cluster: Cluster, entity: type[Any], object_id: int) -> list[Row]:
    """Return the costs of a ``get``, and of the sampling of its statement.

    The two are timed apart: in the time of the ``get`` the difference is
    less than the noise.
    """
    with cluster.session() as session:
        read = _reader(session, entity, object_id)
        seen: list[Any] = []
        cluster.sampling.begin(1, lambda *statement: seen.append(statement))
        read()
        cluster.sampling.end()
        ((plan, context),) = seen
        meter = measure_load(cluster)
        sampling = cluster.sampling

        def sample() -> None:
            for _ in range(_CALLS):
                if sampling.is_on:
                    sampling(plan, context)

        def reads() -> None:
            for _ in range(_CALLS // 10):
                read()

        found = compare(
            {"ShardSession.get": reads, "samples of 1 %": sample}, turns=20, warm_up=2
        )
    meter.stop()
    gets, samples = found
    return [
        Row(gets.name, gets.microseconds / _CALLS * 10, 1.0),
        Row(samples.name, samples.microseconds / _CALLS, samples.ratio / 10),
    ]
