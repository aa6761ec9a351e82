"""Topology, tables and checks of tests of fleet operations under load.

The topology has one pair, ``server1``, with :data:`SHARDS` virtual shards.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqla_shard.testing.database_server import DatabaseServer
from tests.servers.fleet_pairs import FleetPairs
from tests.servers.load_checks import check, Rows, rows_at, rows_of_places
from tests.servers.load_log import Attempt
from tests.servers.load_writers import create_tables, RawWriter
from tests.servers.published import places
from tests.servers.writing_load import Load

SHARDS = 8


def create(pairs: FleetPairs) -> None:
    """Create the tables of the writers."""
    names = [place[1] for place in places(pairs.document()).values()]
    with pairs["server1"].primary.connect() as connection:
        create_tables(connection, names)


def writing(pairs: FleetPairs, folder: Path, seed: object, **options: Any) -> Load:
    """Return writers, which are not started yet.

    :param folder: for their logs; it must not exist.
    :param options: for :class:`.Load`.
    """
    folder.mkdir()
    return Load(
        RawWriter(path=pairs.path),
        shards=range(pairs.shards),
        folder=folder,
        seed=seed,
        **options,
    )


def document(pairs: FleetPairs) -> dict[str, Any]:
    """Return the published topology."""
    return json.loads(pairs.path.read_text())  # type: ignore[no-any-return]


def roles(pairs: FleetPairs) -> tuple[Any, Any]:
    """Return the primary and the standby of the topology."""
    (server,) = document(pairs)["keyspaces"]["objects"]["servers"]
    by_url = {server.url: server for server in pairs.servers}
    return by_url[server["primary"]], by_url.get(server.get("standby"))


def rows_now(pairs: FleetPairs) -> dict[int, Rows]:
    """Read all rows where the topology says."""
    return rows_of_places(places(document(pairs)))


def rows_on(pairs: FleetPairs, server: DatabaseServer) -> dict[int, Rows]:
    """Read all rows of a server, whatever its role."""
    names = {shard: p[1] for shard, p in places(document(pairs)).items()}
    with server.root_connect() as connection:
        return rows_at(connection, names)


def lost(pairs: FleetPairs, attempts: Sequence[Attempt]) -> list[str]:
    """Return the acknowledged writes that are not there."""
    problems = check(attempts, rows_now(pairs))
    return [problem for problem in problems if problem.endswith("and lost")]


def wait_until_equal(primary: DatabaseServer, standby: DatabaseServer) -> None:
    """Wait until a standby has applied everything."""
    reached = standby.reaches(primary.position(), 60)
    assert reached, standby.replication_state()


def prove(pairs: FleetPairs, attempts: Sequence[Attempt]) -> None:
    """Check that nothing was lost, and that one server is writable."""
    primary, standby = roles(pairs)
    rows = rows_now(pairs)
    assert check(attempts, rows) == []
    assert primary.root_execute("SELECT @@read_only") == [(0,)]
    if standby is not None:
        wait_until_equal(primary, standby)
        assert rows_on(pairs, standby) == rows
        assert standby.root_execute("SELECT @@read_only") == [(1,)]
