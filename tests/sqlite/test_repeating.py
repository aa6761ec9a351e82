"""Cases in which ``cluster.run`` must not retry."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, func, select

from sqla_shard import Cluster
from sqla_shard.exc import (
    CommitUnknownError,
    OptionError,
    RetriesExhaustedError,
    ServerRetiredError,
)
from sqla_shard.testing import sqlite_topology
from tests.models.models import Base, Pin

KEYS = pytest.mark.parametrize("key", [None, "a"])


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    document = sqlite_topology(tmp_path, servers=2, shards=4, main=True)
    with Cluster.from_topology(
        document, engine_options={"connect_args": {"timeout": 0}}
    ) as cluster:
        cluster.create_all(Base.metadata)
        yield cluster


def pin(title: str) -> Any:
    made = Pin(title=title)
    made.__dict__["_sqla_shard_requested"] = 1
    return made


def count(cluster: Cluster) -> int:
    with cluster.session() as session:
        found = session.scalar(
            select(func.count(Pin.id)), bind_arguments={"shard_id": 1}
        )
        return int(found or 0)


@KEYS
def test_commits_of_the_function_itself(cluster: Cluster, key: str | None) -> None:
    def write(session: Any) -> None:
        session.add(pin("it"))
        session.commit()
        raise ServerRetiredError(server="server1")

    with pytest.raises(ServerRetiredError):
        cluster.run(write, key=key, timeout=1)
    assert count(cluster) == 1


def test_a_function_that_is_async_def(cluster: Cluster) -> None:
    async def write(session: Any) -> None:
        session.add(pin("it"))

    with pytest.raises(OptionError, match=r"has not run.*async_run"):
        cluster.run(write)


@KEYS
def test_a_listener_that_raises_after_commit(cluster: Cluster, key: str | None) -> None:
    def fail(session: Any) -> None:
        raise ServerRetiredError(server="server1")

    def write(session: Any) -> None:
        session.add(pin("it"))
        event.listen(session, "after_commit", fail)

    with pytest.raises(ServerRetiredError):
        cluster.run(write, key=key, timeout=1)
    assert count(cluster) == 1


@pytest.mark.parametrize(
    "end",
    [lambda session: session.begin_nested().commit(), lambda session: session.commit()],
    ids=["savepoint", "nothing written"],
)
def test_a_transaction_that_has_committed_nothing_is_repeated(
    cluster: Cluster, end: Callable[[Any], None]
) -> None:
    attempts: list[int] = []

    def write(session: Any) -> None:
        attempts.append(1)
        end(session)
        session.add(pin("it"))
        session.flush()
        with session.begin_nested():
            session.add(pin("it"))
        if len(attempts) == 1:
            raise ServerRetiredError(server="server1")

    cluster.run(write, timeout=10)
    assert len(attempts) == 2
    assert count(cluster) == 2


def test_another_transaction_whose_outcome_is_unknown(cluster: Cluster) -> None:
    """The key of this transaction does not cover the other one."""
    attempts: list[int] = []

    def write(session: Any) -> None:
        attempts.append(1)
        session.add(pin("it"))
        session.flush()
        raise CommitUnknownError(server="another")

    with pytest.raises(CommitUnknownError, match="another"):
        cluster.run(write, key="a", timeout=1)

    async def write_awaited(session: Any) -> None:
        attempts.append(1)
        raise CommitUnknownError(server="another")

    with pytest.raises(CommitUnknownError, match="another"):
        asyncio.run(cluster.async_run(write_awaited, key="a", timeout=1))
    assert len(attempts) == 2
    assert count(cluster) == 0


def test_the_log_shows_no_parameters(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sqla_shard")
    with cluster.begin() as other:
        other.add(pin("holds the lock"))
        other.flush()

        def write(session: Any) -> None:
            session.add(pin("sesame"))

        with pytest.raises(RetriesExhaustedError):
            cluster.run(write, attempts=2)
    assert "attempt 1 failed" in caplog.text
    assert "locked" in caplog.text
    assert "sesame" not in caplog.text
