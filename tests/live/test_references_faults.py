"""Servers that are killed while a reference table is written."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import event

from sqla_shard import Cluster
from sqla_shard.exc import (
    ReferenceIncompleteError,
    ServerFencedError,
    ServerUnreachableError,
)
from sqla_shard.models.reference import verify_references
from sqla_shard.testing.server_fleet import ServerFleet
from tests.models.reference_models import Base, contents, COUNTRIES, Country
from tests.servers.faults import opened
from tests.servers.kinds import own_fleet

pytestmark = pytest.mark.live

SERVERS = 2
EACH = 4
SHARDS = SERVERS * EACH
OTHER = [{"code": "xx", "name": "X"}]


fleet = own_fleet(SERVERS, SHARDS)


@pytest.fixture(scope="module")
def everywhere(fleet: ServerFleet[Any]) -> Iterator[Cluster]:
    with opened(fleet) as cluster:
        cluster.create_all(Base.metadata)
        yield cluster


@pytest.fixture
def cluster(everywhere: Cluster, fleet: ServerFleet[Any]) -> Cluster:
    start(fleet)
    Country.replace(everywhere, COUNTRIES)
    return everywhere


def start(fleet: ServerFleet[Any]) -> None:
    for server in fleet.servers:
        server.start()


def shards_of(number: int) -> list[int]:
    return list(range(number * EACH, (number + 1) * EACH))


@contextmanager
def killed(
    cluster: Cluster, fleet: ServerFleet[Any], number: int, commit: int
) -> Iterator[None]:
    """Kill a server right before its n-th COMMIT in the block, from 0."""
    first = shards_of(number)[0]
    engine = cluster.places.place(cluster.topology.sole("objects"), first).engine
    turns = itertools.count()

    def kill(connection: Any) -> None:
        if next(turns) == commit:
            fleet.servers[number].kill()

    event.listen(engine, "commit", kill)
    try:
        yield
    finally:
        event.remove(engine, "commit", kill)


def equal(cluster: Cluster) -> list[Any]:
    first, *others = contents(cluster, Country)
    assert all(one == first for one in others)
    return [row[0] for row in first]


def test_a_server_of_copies(
    cluster: Cluster, fleet: ServerFleet[Any], rng: random.Random
) -> None:
    number = 1
    turn = rng.randrange(EACH)
    with (
        killed(cluster, fleet, number, turn),
        pytest.raises(ReferenceIncompleteError) as caught,
    ):
        Country.replace(cluster, OTHER)
    there = shards_of(number)
    error = caught.value
    assert list(error.errors) == [there[turn]]
    assert isinstance(error.errors[there[turn]], ServerUnreachableError)
    assert error.not_reached == tuple(there[turn + 1 :])
    rest = {there[turn], *there[turn + 1 :]}
    assert set(error.done) == set(range(SHARDS)) - rest

    # Shards that cannot be read are not reported as correct.
    report = verify_references(cluster, [Country])
    assert [n for one in report.unreachable for _, n in one.addresses] == there
    assert not report.ok

    fleet.servers[number].start()
    report = verify_references(cluster, [Country])
    assert [d.shard_id for d in report.deviations] == sorted(rest)
    Country.replace(cluster, OTHER)
    assert equal(cluster) == ["xx"]


def test_the_server_of_the_truth(cluster: Cluster, fleet: ServerFleet[Any]) -> None:
    with (
        killed(cluster, fleet, 0, 0),
        pytest.raises(ReferenceIncompleteError) as caught,
    ):
        Country.replace(cluster, OTHER)
    assert list(caught.value.errors) == [0]
    assert caught.value.done == ()
    assert len(caught.value.not_reached) == SHARDS - 1
    with pytest.raises(ServerUnreachableError):
        verify_references(cluster, [Country])
    fleet.servers[0].start()
    Country.replace(cluster, OTHER)
    assert equal(cluster) == ["xx"]


def test_the_server_of_the_truth_among_copies(
    cluster: Cluster, fleet: ServerFleet[Any]
) -> None:
    # Its own copies, and those of others that cannot read it any more.
    with (
        killed(cluster, fleet, 0, 1),
        pytest.raises(ReferenceIncompleteError) as caught,
    ):
        Country.replace(cluster, OTHER)
    assert 1 in caught.value.errors
    assert 0 in caught.value.done
    # The connections that the pool has kept to the other one are dead, too.
    fleet.servers[1].kill()
    start(fleet)
    assert verify_references(cluster, [Country], repair=True).ok
    assert equal(cluster) == ["xx"]


def test_a_server_that_is_read_only(cluster: Cluster, fleet: ServerFleet[Any]) -> None:
    fleet.servers[1].root_execute("SET GLOBAL read_only = ON")
    try:
        with pytest.raises(ReferenceIncompleteError) as caught:
            Country.replace(cluster, OTHER)
    finally:
        fleet.servers[1].root_execute("SET GLOBAL read_only = OFF")
    first, *rest = shards_of(1)
    assert isinstance(caught.value.errors[first], ServerFencedError)
    assert caught.value.not_reached == tuple(rest)
    Country.replace(cluster, OTHER)
    assert equal(cluster) == ["xx"]
