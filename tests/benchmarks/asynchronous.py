"""The columns of ``AsyncSession`` in the tables of ``scatter``."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from contextlib import contextmanager

from sqla_shard import Cluster

Ways = dict[str, Callable[[], object]]


@contextmanager
def by_id(cluster: Cluster, ids: list[int]) -> Iterator[Ways]:
    """Read objects by id."""
    if not hasattr(cluster, "async_begin"):
        print("\nno async sessions in this version")
    yield {}


@contextmanager
def newest(cluster: Cluster) -> Iterator[Ways]:
    """Read the newest of all."""
    yield {}
