"""A file that another transaction has locked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.exc import OperationalError

from sqla_shard import Cluster, scatter, ShardSession
from sqla_shard.testing import sqlite_topology
from tests.models.models import Base, Pin


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    options = {"connect_args": {"timeout": 0.01}}
    document = sqlite_topology(tmp_path, 1, 4, main=True)
    with Cluster.from_topology(document, engine_options=options) as cluster:
        cluster.create_all(Base.metadata)
        yield cluster


def _savepoint(session: ShardSession) -> None:
    session.connection({"shard_id": 1}).begin_nested()


def _lock_one(session: ShardSession) -> None:
    on_shard = {"shard_id": 1}
    session.scalars(select(Pin).with_for_update(), bind_arguments=on_shard).all()


def _lock_all(session: ShardSession) -> None:
    session.scalars(select(Pin).with_for_update().options(scatter())).all()


@pytest.mark.parametrize("take", [_savepoint, _lock_one, _lock_all])
def test_a_lock_that_is_not_free_is_an_error_of_sqlalchemy(
    cluster: Cluster, take: Callable[[ShardSession], None]
) -> None:
    """Cluster.run() repeats what has met it."""
    other = cluster.session()
    _lock_one(other)
    attempts: list[Any] = []

    def attempt(session: ShardSession) -> None:
        attempts.append(1)
        if len(attempts) == 2:
            other.close()
        take(session)

    with cluster.session() as session:
        with pytest.raises(OperationalError, match="locked"):
            take(session)
        session.rollback()
    cluster.run(attempt)
    assert len(attempts) == 2
