"""Many rows of a class on a shard are one INSERT, on each kind of server."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import text

from sqla_shard import Cluster, ShardSession
from tests.models.follow_models import FOLLOWS, Likes, User
from tests.models.job_models import add, counter, JOB_CLUSTERS

pytestmark = pytest.mark.live

cluster = JOB_CLUSTERS.on_servers("jobcounts")
follows = FOLLOWS.on_servers("listcounts")

ROWS = 100


def inserts(session: ShardSession) -> int:
    """Return how many INSERTs the server has received from a session."""
    where: Any = {"keyspace": "objects", "shard_id": 1}
    (_, count) = session.execute(
        text("SHOW SESSION STATUS LIKE 'Com_insert'"), bind_arguments=where
    ).one()
    return int(count)


def test_jobs(cluster: Cluster) -> None:
    near = counter(cluster)
    with cluster.begin() as session:
        before = inserts(session)
        calls = [{"counter_id": near, "n": n} for n in range(ROWS)]
        assert add.enqueue_many(session, calls, near=near) == ROWS
        session.flush()
        assert inserts(session) - before == 1


def test_rows_of_a_list(follows: Cluster) -> None:
    with follows.begin() as session:
        users = [User(shard_id=1) for _ in range(ROWS)]
        before = inserts(session)
        session.add_all(users)
        session.flush()
        assert inserts(session) - before == 1
        first, *others = [user.id for user in users]
    with follows.begin() as session:
        before = inserts(session)
        Likes.append_many(session, first, others)
        session.flush()
        assert Likes.count(session, first) == len(others)
        # One for the rows, and at most one for each stored count.
        assert 1 <= inserts(session) - before <= 2
