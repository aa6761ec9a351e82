"""The lab of the demo: real servers that stop, and one that is added."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from flask import Flask
from sqlalchemy import func, select

from examples.pinboard.app import create_app
from examples.pinboard.caching import NONE
from examples.pinboard.clusters import fleet_cluster
from examples.pinboard.lab.bench import SLOW
from examples.pinboard.lab.lab import Lab
from examples.pinboard.lab.local_fleet import LocalFleet
from examples.pinboard.lab.writers import Run
from examples.pinboard.models import Pin, UserName
from examples.pinboard.relations import follow
from examples.pinboard.samples import add_user
from sqla_shard import Cluster, scatter, unpack
from sqla_shard.testing.local_server import wait_until
from tests.servers.kinds import Kind
from tests.servers.visiting import Visitor
from tests.suites.pinboard_tables import create_tables

pytestmark = pytest.mark.live

#: Deadline of what takes some seconds on a machine with nothing else to do.
PATIENCE = 120.0
ADA, GRACE = 0, 3
"""Shards on server1 and server2; that of Grace moves."""


@pytest.fixture(scope="module")
def fleet(server_kind: Kind) -> Iterator[LocalFleet]:
    with LocalFleet(server_kind.server, 4, 2) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def cluster(fleet: LocalFleet) -> Iterator[Cluster]:
    with fleet_cluster(fleet) as cluster:
        create_tables(cluster)
        yield cluster


@pytest.fixture(scope="module")
def lab(cluster: Cluster, fleet: LocalFleet) -> Iterator[Lab]:
    for name, shard_id in (("Ada", ADA), ("Linus", ADA), ("Grace", GRACE)):
        add_user(cluster, name, shard_id=shard_id)
    with Lab(cluster, fleet, NONE) as lab:
        yield lab


@pytest.fixture(scope="module")
def app(cluster: Cluster, lab: Lab) -> Flask:
    return create_app(cluster, testing=True, lab=lab)


@pytest.fixture(scope="module")
def people(app: Flask) -> tuple[Visitor, Visitor]:
    """Ada and Grace, signed in."""
    found = []
    for name in ("Ada", "Grace"):
        one = Visitor(app.test_client(), 0, name)
        one.sign_in()
        found.append(one)
    return found[0], found[1]


def ms(page: str) -> float:
    """Return the time of the statements of a page, as its strip has it."""
    found = re.search(r"cache hits?, <b>([\d.]+) ms", page)
    assert found, page
    return float(found[1])


def test_a_stopped_or_slow_server_affects_only_its_users(
    people: tuple[Visitor, Visitor], cluster: Cluster, app: Flask
) -> None:
    ada, grace = people
    board_id = grace.add_board("Harbours")
    with cluster.session() as session:
        (user_id,) = UserName.resolve_many(session, ["Ada"]).values()
    cluster.run(follow, user_id, board_id, cross_shard="logged")
    assert "Harbours" in ada.get("/boards")
    grace.add_pin(board_id, "distant")
    linus = Visitor(app.test_client(), 0, "Linus")
    linus.sign_in()
    near = linus.add_board("Near")
    linus.add_pin(near, "nearby")
    cluster.run(follow, user_id, near, cross_shard="logged")
    page = ada.get("/home")
    assert ("distant" in page, "nearby" in page) == (True, True)
    assert "data-hidden" not in page

    grace.post("/lab/servers/server2", to="stopped")
    page = ada.get("/home")
    assert ("distant" in page, "nearby" in page) == (False, True)
    assert (
        "server2 did not answer: the pins of 1 person that you follow are "
        "missing." in page
    )
    assert "data-unaffected" in grace.get("/home", 503)
    page = ada.get("/boards")
    assert "server2 is stopped." in page
    assert re.findall(r"data-unaffected>(.*?)<", page) == ["Ada (you)"]
    # Pins of the other server are missing.
    assert "Harbours" not in page
    assert "data-unaffected" in grace.get("/boards", 503)
    assert "server2 did not answer" in ada.get("/lab/newest")

    ada.post("/lab/servers/server2", to="up")
    assert "Harbours" in ada.get("/boards")
    assert "data-outage" not in grace.get("/boards")

    ada.post("/lab/servers/server2", to="slow")
    page = grace.get(f"/boards/{board_id}")
    assert "server2 is slow." in page
    assert ms(page) >= 1000 * SLOW
    ada.post("/lab/servers/server2", to="up")


def test_shards_move_to_a_third_server_while_pins_are_written(
    people: tuple[Visitor, Visitor], cluster: Cluster, lab: Lab, fleet: LocalFleet
) -> None:
    _, grace = people
    board_id = grace.add_board("Moving")
    before = grace.add_pin(board_id, "before")
    counted = select(func.count()).select_from(Pin).options(scatter())
    with cluster.session() as session:
        pins = session.scalar(counted)

    run = Run(cluster, fleet, NONE, writers=8, seconds=8.0)
    try:
        assert grace.post("/lab/grow").status_code == 303
        growth = fleet.growth
        assert growth is not None
        assert wait_until(lambda: growth.status is not None, seconds=PATIENCE)
    finally:
        run.wait()
    output = "\n".join(growth.lines)
    assert growth.status == 0, output
    assert "finished, epoch 2" in output
    assert growth.command in grace.get("/lab/").replace("&#39;", "'")
    assert (run.state, run.error) == ("done", "")

    assert wait_until(lambda: cluster.topology.epoch == 2, seconds=PATIENCE)
    written = sum(one["writes"] for one in run.report["servers"].values())
    with cluster.session() as session:
        now = session.scalar(counted)
    # One whose COMMIT was cut off counts as failed, and may be there.
    failed = sum(one["failed"] for one in run.report["servers"].values())
    assert pins + written <= now <= pins + written + failed

    after = grace.add_pin(board_id, "after")
    assert unpack(before).shard_id == unpack(after).shard_id == GRACE
    page = grace.get(f"/boards/{board_id}")
    assert grace.pins_on(f"/boards/{board_id}") == [after, before]
    assert re.findall(r'home" data-map-server="(\w+)"', page) == ["server3"]
    assert re.findall(r'data-servers="([^"]*)"', page) == ["server3"]
    # Once is enough.
    grace.post("/lab/grow")
    assert fleet.growth is growth
