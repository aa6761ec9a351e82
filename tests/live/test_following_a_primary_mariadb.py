"""Eight processes write while their primary is exchanged, or shards move.

Each has a cluster of its own that follows ZooKeeper, and writes through
``cluster.run(key=...)``.  What they were told is compared with what the
servers have: every acknowledged token is there exactly once.
"""

from __future__ import annotations

import copy
import os
from functools import partial

import pytest

from sqla_shard import Cluster
from sqla_shard.testing import MariaDBPair
from sqla_shard.testing import ZooKeeperServer
from sqla_shard.testing.topology_documents import topology_document
from sqla_shard.topology import Topology
from sqla_shard.topology.zookeeper.publisher import Publisher
from tests.models.load_models import Base
from tests.servers.cutovers import fail_over
from tests.servers.cutovers import move_range
from tests.servers.cutovers import patiently
from tests.servers.load_checks import check
from tests.servers.load_checks import only_old
from tests.servers.load_checks import pauses
from tests.servers.load_checks import rows_at
from tests.servers.load_checks import rows_of_places
from tests.servers.load_writers import ClusterWriter
from tests.servers.published import moved
from tests.servers.published import places
from tests.servers.writing_load import Load

pytestmark = pytest.mark.live

SHARDS = 16
STAYING = range(8)
MOVING = range(8, SHARDS)
# Of eight writers, before the cutover and after it: about a second each.
ACKS = 600
# To the standby, and in the long form to and fro.
FAILOVERS = 20 if os.environ.get("SQLA_SHARD_SOAK") == "1" else 1
# The pause is some 0.1 s on a quiet machine; ours is shared.
LIMIT = 15.0


@pytest.fixture(scope="module")
def zookeeper(zookeeper_installed):
    with ZooKeeperServer() as server:
        yield server


def hidden(document, *pairs):
    """Return a document as it is published: without passwords."""
    shown = copy.deepcopy(document)
    for keyspace in shown["keyspaces"].values():
        for server in keyspace["servers"]:
            for pair in pairs:
                for role in ("primary", "standby"):
                    if server.get(role):
                        server[role] = server[role].replace(
                            f":{pair.primary.password}@", ":${MYSQL_PASSWORD}@"
                        )
    return Topology.from_mapping(shown, environ=environ(pairs[0]))


def environ(pair):
    return {"MYSQL_PASSWORD": pair.primary.password}


def under_load(zookeeper, path, document, steps, folder, seed, pairs):
    """Write through clusters, change the topology, and write on.

    :param steps: what is done, one after another: the next topology, and
        what is called with a function that publishes it.
    :returns: all attempts, and what each step has returned.
    """
    publisher = Publisher(f"zookeeper://{zookeeper.hosts}{path}")
    publisher.publish(hidden(document, *pairs))
    opening = partial(
        Cluster.from_zookeeper,
        f"{zookeeper.hosts}{path}",
        snapshot=False,
        environ=environ(pairs[0]),
    )
    with opening() as cluster:
        cluster.create_all(Base.metadata)
    for pair in pairs:
        pair.wait_caught_up()
    writer = ClusterWriter(opening=opening)
    done = []
    with (
        publisher,
        Load(writer, shards=range(SHARDS), folder=folder, seed=seed) as load,
    ):
        load.wait_for_acks(ACKS)
        for after, cut_over in steps:
            publish = partial(publisher.publish, hidden(after, *pairs))
            done.append(patiently(cut_over, publish))
            load.wait_for_acks(ACKS // 2, shards=MOVING)
        return load.stop(), done


def tokens_at(server, document):
    """Return the keys on a server, of the shards that a topology has.

    Without the marks of attempts, which are not UTF-8.
    """
    found = {}
    with server.root_connect() as connection:
        cursor = connection.cursor()
        for shard, (_, database) in places(document).items():
            cursor.execute(
                f"SELECT token FROM `{database}`.sqla_shard_token "
                "WHERE token < x'ff'"
            )
            found[shard] = sorted(row[0].decode() for row in cursor.fetchall())
    return found


def seed_of(request):
    return request.config.getoption("hypothesis_seed")


def test_a_failover_loses_nothing(
    zookeeper, mariadb_installed, tmp_path, say, request
):
    with MariaDBPair("server1", fast=True) as pair:
        document = topology_document({pair.name: pair.primary.url}, SHARDS)
        urls = [pair.standby.url, pair.primary.url]
        steps = []
        after = document
        for number in range(FAILOVERS):
            url = urls[number % 2]
            after = moved(after, {"name": pair.name, "primary": url})
            steps.append((after, partial(fail_over, pair)))
        attempts, timings = under_load(
            zookeeper,
            "/failover",
            document,
            steps,
            tmp_path,
            seed_of(request),
            [pair],
        )
        pair.wait_caught_up()
        waited = pauses(attempts)
        say(f"failover, seed {seed_of(request)}: {waited}")
        for timing in timings:
            say(f"  {timing}")
        rows = rows_of_places(places(after))
        assert check(attempts, rows) == []
        # Nobody was told that it has failed, or that nobody knows.
        assert [a.error for a in attempts if a.outcome != "acked"] == []
        assert waited.gap < LIMIT
        assert waited.worst < LIMIT
        for server in pair.servers:
            names = {s: place[1] for s, place in places(after).items()}
            with server.root_connect() as connection:
                assert rows_at(connection, names) == rows
            tokens = tokens_at(server, after)
            assert tokens == {
                shard: sorted(token for _, token in there.pins)
                for shard, there in rows.items()
            }


def test_a_move_of_shards_loses_nothing(
    zookeeper, mariadb_installed, tmp_path, say, request
):
    with (
        MariaDBPair("server1", fast=True) as source,
        MariaDBPair(
            "server2", fast=True, password=source.primary.password
        ) as target,
    ):
        document = topology_document({source.name: source.primary.url}, SHARDS)
        after = moved(
            document,
            {"name": source.name, "shards": [STAYING[0], STAYING[-1]]},
            {
                "name": target.name,
                "primary": target.primary.url,
                "shards": [MOVING[0], MOVING[-1]],
            },
        )
        names = [places(document)[shard][1] for shard in MOVING]
        attempts, (timings,) = under_load(
            zookeeper,
            "/move",
            document,
            [(after, partial(move_range, source, target, names))],
            tmp_path,
            seed_of(request),
            [source, target],
        )
        source.wait_caught_up()
        target.wait_caught_up()
        say(f"move, seed {seed_of(request)}: {timings}")
        for name, part in {"staying": STAYING, "moving": MOVING}.items():
            waited = pauses(attempts, shards=part)
            say(f"  {name}: {waited}")
            assert waited.acknowledged > 0
            assert waited.gap < LIMIT
            assert waited.worst < LIMIT
        rows = rows_of_places(places(after))
        assert check(attempts, rows) == []
        assert [a.error for a in attempts if a.outcome != "acked"] == []
        where = {s: place[1] for s, place in places(document).items()}
        for server in source.servers:
            with server.root_connect() as connection:
                assert only_old(rows_at(connection, where), rows) == []
        for server in target.servers:
            there = {shard: where[shard] for shard in MOVING}
            with server.root_connect() as connection:
                assert rows_at(connection, there) == {
                    shard: rows[shard] for shard in MOVING
                }
