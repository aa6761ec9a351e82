"""A planned failover of real servers, with the topology in ZooKeeper."""

from __future__ import annotations

import json
import re

import pytest

pytest.importorskip("kazoo")

from sqla_shard.fleet import apply
from sqla_shard.fleet import Fleet
from sqla_shard.fleet import status
from sqla_shard.fleet.failover import Failover
from sqla_shard.topology import DEFAULT_PLACEHOLDERS
from sqla_shard.topology import Topology
from sqla_shard.topology.zookeeper import Publisher
from tests.servers.fleet_pairs import FleetPairs

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def fleet(mariadb_installed, zookeeper_server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fleet")
    location = f"zookeeper://{zookeeper_server.hosts}/{folder.name}"
    with FleetPairs(folder, pairs=1, shards=8) as pairs:
        # A topology with passwords is not published.
        text = re.sub(
            r"//[^@/]*@",
            "//${MYSQL_USER}:${MYSQL_PASSWORD}@",
            json.dumps(pairs.document()),
        )
        with Publisher(location) as publisher:
            publisher.publish(
                Topology.from_mapping(
                    json.loads(text),
                    environ=dict.fromkeys(DEFAULT_PLACEHOLDERS, "x"),
                )
            )
        yield Fleet(location, accounts=pairs.accounts)


def test_there_and_back(fleet, capsys):
    pauses = []
    for epoch in (2, 3, 4, 5):
        before = fleet.topology()
        done = apply(fleet, Failover.planned(fleet, "server1"))
        assert (done.state, done.epoch) == ("finished", epoch)
        after = fleet.topology()
        old, new = (
            one.keyspaces["objects"].servers[0] for one in (before, after)
        )
        assert (new.primary, new.standby) == (old.standby, old.primary)
        assert done.pause is not None
        pauses.append(1000 * done.pause)
    assert status(fleet).pending is None
    assert len(fleet.journal.history()) == 4
    with capsys.disabled():
        print("\npauses", *(f"{one:.0f} ms" for one in pauses))  # noqa: T201  # figures


def test_nothing_secret_is_in_the_journal(fleet):
    records = fleet.journal.history()
    text = json.dumps([record.as_dict() for record in records])
    assert fleet.accounts.operator.password not in text
    assert fleet.accounts.for_replication().password not in text
