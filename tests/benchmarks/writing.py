"""A flush of new objects on one shard and COMMIT, on a real server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from sqla_shard import Cluster
from tests.benchmarks import profiling
from tests.benchmarks.pins import Base, fill, Pin, PlainPin
from tests.benchmarks.reading import url_of
from tests.benchmarks.servers import new_fleet
from tests.benchmarks.timing import compare, show

_OBJECTS = 100
_SHARD = 0
_LINK = "https://example.com/a"


def run() -> None:
    """Print the table."""
    with _ways() as ways:
        show(
            f"{_OBJECTS} new objects on one shard, flush and COMMIT",
            compare(ways, turns=100, warm_up=10),
        )


def profile() -> None:
    """Print where the time of a flush goes."""
    with _ways() as ways:
        for title, way in ways.items():
            profiling.show(title, way, turns=50)


@contextmanager
def _ways() -> Iterator[dict[str, Callable[[], object]]]:
    """Yield the ways to write, each in a new session."""
    with (
        new_fleet(servers=1, shards=256, fast=True) as fleet,
        Cluster.from_topology(
            fleet.topology_mapping(), environ=fleet.environ
        ) as cluster,
    ):
        cluster.create_all(Base.metadata)
        engine = create_engine(url_of(fleet.servers[0], fill(cluster)[0]))

        def plain() -> None:
            with Session(engine) as session, session.begin():
                session.add_all(
                    PlainPin(data={"title": title, "link": _LINK})
                    for title in _titles()
                )

        def ours() -> None:
            with cluster.begin(shard_id=_SHARD) as session:
                session.add_all(Pin(title=title, link=_LINK) for title in _titles())

        yield {"plain Session, one database": plain, "ShardSession": ours}
        engine.dispose()


def _titles() -> Iterator[Any]:
    return (f"pin {number}" for number in range(_OBJECTS))
