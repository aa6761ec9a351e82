"""Pools that have no connection to give, and statements with a timeout."""

from __future__ import annotations

import time
from typing import Any

import pytest
from sqlalchemy import select

from sqla_shard import scatter, scatter_errors
from sqla_shard.exc import ScatterTimeoutError
from sqla_shard.testing.server_fleet import ServerFleet
from tests.servers.faults import busy, opened, own_ids, Pin, SERVERS, SHARDS, TIMEOUT
from tests.servers.kinds import own_fleet

pytestmark = pytest.mark.live

EACH = SHARDS // SERVERS
ONE = {"pool_size": 1, "max_overflow": 0, "pool_timeout": TIMEOUT}

fleet = own_fleet(SERVERS, SHARDS)
ids = own_ids()


@pytest.mark.thorough
def test_other_servers_are_queried_nevertheless(
    fleet: ServerFleet[Any], ids: list[int]
) -> None:
    """However many statements have waited for the pool in vain."""
    here, there = ids[:EACH], ids[EACH:]
    statement = select(Pin.body).where(Pin.id.in_(here))
    soon = statement.options(scatter(timeout=0.02))
    rest = select(Pin.body).where(Pin.id.in_(there))
    both = select(Pin.body).where(Pin.id.in_(ids))
    with opened(fleet, **ONE) as cluster:
        with cluster.session() as holder:
            assert None not in holder.get_many(Pin, here)
            for _ in range(40):
                with cluster.session() as session, pytest.raises(ScatterTimeoutError):
                    session.execute(soon)
            with cluster.session() as session:
                limits = scatter(timeout=TIMEOUT)
                found = session.execute(rest.options(limits)).all()
                assert len(found) == len(there)
            with cluster.session() as session:
                limits = scatter(timeout=5, on_error="partial")
                result = session.execute(both.options(limits))
                assert set(scatter_errors(result)) == set(range(EACH))
                assert len(result.all()) == len(there)
        with cluster.session() as session:
            assert len(session.execute(both).all()) == SHARDS
        start = time.monotonic()
    # The statement ends before the timeout of the pool.
    assert time.monotonic() - start < TIMEOUT / 2
    assert busy(cluster) == 0
