"""Processes that are killed between the COMMITs of ordered transactions."""

from __future__ import annotations

import os
import random
import signal
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event, select

from sqla_shard import Cluster, scatter, ShardSession
from sqla_shard.testing.server_fleet import ServerFleet
from sqla_shard.testing.topology_documents import topology_document
from tests.servers.command_line import invoke, write as write_topology
from tests.servers.following import Base, Pin

pytestmark = [
    pytest.mark.live,
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]

SERVERS = 3
ROUNDS = 200 if os.environ.get("SQLA_SHARD_SOAK") == "1" else 6


@pytest.fixture
def document(fleet: ServerFleet[Any]) -> Iterator[dict[str, Any]]:
    whole = fleet.topology_mapping()
    servers = whole["keyspaces"]["objects"]["servers"][:SERVERS]
    found = topology_document(
        {server["name"]: server["primary"] for server in servers},
        SERVERS,
        database="db_halves_{shard:05d}",
    )
    fleet.drop_databases(found)
    yield found
    fleet.drop_databases(found)


def write_all(session: ShardSession, title: str, shards: list[int]) -> None:
    for shard_id in shards:
        pin: Any = Pin(title=title, shard_id=shard_id)
        session.add(pin)
        session.flush()


def killed(
    document: Any,
    rng: random.Random,
    name: str,
    *,
    has_keys: bool,
    at: int | None = None,
) -> None:
    """Let a process write all servers, and be killed in its last COMMITs.

    :param at: before which of them; by chance, or after all, by default.
    """
    at = at or rng.randint(1, SERVERS + 1)
    shards = list(range(SERVERS))
    whole = [f"{name}-{number}" for number in range(rng.randint(0, 2))]
    orders = [rng.sample(shards, SERVERS) for _ in [*whole, name]]
    pid = os.fork()
    if pid:
        _, status = os.waitpid(pid, 0)
        assert os.WIFSIGNALED(status), status
        return
    try:
        with Cluster.from_topology(document) as cluster:
            left = at

            def commit(connection: object) -> None:
                nonlocal left
                left -= 1
                if not left:
                    os.kill(os.getpid(), signal.SIGKILL)

            for title, order in zip([*whole, name], orders, strict=True):
                if title == name:
                    for shard_id in shards:
                        space = cluster.places.keyspace("objects", "")
                        place = cluster.places.place(space, shard_id)
                        event.listen(place.engine, "commit", commit)
                cluster.run(
                    write_all,
                    title,
                    order,
                    key=title if has_keys else None,
                    cross_shard="ordered",
                )
            os.kill(os.getpid(), signal.SIGKILL)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def halves(cluster: Cluster) -> dict[str, int]:
    """Return the number of servers that lack a committed part."""
    with cluster.session() as session:
        statement = select(Pin.title).options(scatter())
        counts = Counter(session.scalars(statement))
    return {
        title: SERVERS - count for title, count in counts.items() if count < SERVERS
    }


def test_partial_commits_are_listed(
    document: Any, rng: random.Random, tmp_path: Any, say: Callable[[str], None]
) -> None:
    with Cluster.from_topology(document) as cluster:
        cluster.create_all(Base.metadata)
        # At least one is half.
        killed(document, rng, "order 0", has_keys=True, at=2)
        for number in range(1, ROUNDS):
            killed(document, rng, f"order {number}", has_keys=True)
        wanted = halves(cluster)
        say(f"{len(wanted)} half of {ROUNDS}")
        assert wanted["order 0"] == SERVERS - 1
        found = cluster.find_halves(timedelta(0))
        assert {one.key: one.missing for one in found} == wanted
        for one in found:
            assert len(one.committed) == SERVERS - one.missing
            with cluster.session() as session:
                for place in one.committed:
                    titles = session.scalars(
                        select(Pin.title), bind_arguments={"shard_id": place.shard_id}
                    )
                    assert one.key in set(titles)
        path = write_topology(tmp_path, document)
        done = invoke("-t", path, "halves", "--older-than", "0")
        assert done.exit_code == bool(wanted)
        assert f"{len(wanted)} partially committed" in done.stdout


def test_without_a_key_it_is_not(document: Any, rng: random.Random) -> None:
    with Cluster.from_topology(document) as cluster:
        cluster.create_all(Base.metadata)
        number = 0
        while not halves(cluster):
            number += 1
            killed(document, rng, f"order {number}", has_keys=False)
        assert cluster.find_halves(timedelta(0)) == []
