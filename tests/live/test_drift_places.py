"""Drift of standbys; databases and servers that are not there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from sqla_shard import Cluster, exc
from sqla_shard.dialects.mysql.catalogue import MySQLCatalogue
from sqla_shard.schema import verify
from sqla_shard.schema.drift import Copies, Orphan
from tests.servers.drift import (
    ALTERED,
    altered,
    build,
    cluster,
    document,
    drop,
    name_of,
    only,
    run,
    servers,
    SHARDS,
)

# The fixtures that tests of drift share.
__all__ = ["altered", "cluster", "servers"]

pytestmark = pytest.mark.live


# -- several databases


@pytest.mark.usefixtures("altered")
def test_drift_of_a_standby(cluster: Cluster, servers: dict[str, Any]) -> None:
    run(servers["standby2"], ALTERED, "ALTER TABLE notes ADD extra INT")
    (drift,) = only(verify(cluster)).drifted
    assert drift.reference.count == 2 * SHARDS - 1
    (variant,) = drift.others
    assert variant.copies == (
        Copies(server="server2", role="standby", shards=(ALTERED,)),
    )
    assert "+++ shard 3 on server2 (standby)" in variant.diff
    assert verify(cluster, standby=False).ok


@pytest.mark.usefixtures("altered")
def test_variants_are_grouped(cluster: Cluster, servers: dict[str, Any]) -> None:
    for name in ("server2", "standby2"):
        run(servers[name], ALTERED, "ALTER TABLE notes ADD extra INT")
    (drift,) = only(verify(cluster)).drifted
    (variant,) = drift.others
    assert variant.count == 2
    run(servers["standby2"], ALTERED, "ALTER TABLE notes MODIFY extra BIGINT")
    (drift,) = only(verify(cluster)).drifted
    assert [one.count for one in drift.others] == [1, 1]


@pytest.mark.usefixtures("altered")
def test_the_reference_may_be_the_one_that_is_wrong(
    cluster: Cluster, servers: dict[str, Any]
) -> None:
    run(servers["server2"], ALTERED, "ALTER TABLE notes ADD extra INT")
    report = verify(cluster, reference=ALTERED)
    (drift,) = only(report).drifted
    assert drift.suspect
    assert drift.reference.count == 1
    assert drift.others[0].copies == (
        Copies(server="server1", role="primary", shards=(0, 1)),
        Copies(server="server1", role="standby", shards=(0, 1)),
        Copies(server="server2", role="primary", shards=(2,)),
        Copies(server="server2", role="standby", shards=(2, 3)),
    )
    assert "is the reference wrong?" in str(report)
    assert "    server2 (standby): shards 2-3" in str(report).split("\n")


@pytest.mark.usefixtures("altered")
def test_shards_and_servers_restrict(cluster: Cluster, servers: dict[str, Any]) -> None:
    run(servers["server2"], ALTERED, "ALTER TABLE notes ADD extra INT")
    assert verify(cluster, shards=[0, 1, 2]).ok
    assert only(verify(cluster, shards=[0, 1, 2])).databases == 6
    assert verify(cluster, servers=["server1"]).ok
    assert not verify(cluster, servers=["server2"]).ok
    # The reference is read where it is.
    found = only(verify(cluster, shards=[ALTERED], reference=0))
    assert (found.reference, found.server) == (0, "server1")
    assert [drift.table for drift in found.drifted] == ["notes"]


# -- databases and servers that are not there


@pytest.mark.usefixtures("altered")
def test_missing_and_orphaned_databases(
    cluster: Cluster, servers: dict[str, Any]
) -> None:
    run(servers["server2"], ALTERED, f"DROP DATABASE {name_of(ALTERED)}")
    build(servers["server1"], ALTERED)
    build(servers["standby2"], 900)
    try:
        report = verify(cluster)
    finally:
        drop(servers["server1"], ALTERED)
        drop(servers["standby2"], 900)
    found = only(report)
    assert not report.ok
    assert found.drifted == ()
    assert found.missing == (
        Copies(server="server2", role="primary", shards=(ALTERED,)),
    )
    assert found.orphaned == (
        Orphan(
            database="db_drift003",
            server="server1",
            role="primary",
            shard=ALTERED,
            home="server2",
        ),
        Orphan(
            database="db_drift900",
            server="server2",
            role="standby",
            shard=900,
            home=None,
        ),
    )
    lines = str(report).split("\n")
    assert "  server2: shard 3" in lines
    assert "  db_drift003 on server1: shard 3 is on server2" in lines
    assert "  db_drift900 on server2 (standby): the shard is not open" in lines


@pytest.mark.usefixtures("altered")
def test_a_reference_that_is_missing(cluster: Cluster, servers: dict[str, Any]) -> None:
    run(servers["server2"], ALTERED, f"DROP DATABASE {name_of(ALTERED)}")
    with pytest.raises(exc.SchemaError) as caught:
        verify(cluster, reference=ALTERED)
    assert f"shard {ALTERED} of" in str(caught.value)
    assert "database not found" in str(caught.value)


@contextlib.contextmanager
def without(servers: dict[str, Any], name: str) -> Iterator[Cluster]:
    """Return a cluster in which nothing listens in place of a server."""
    broken = document(servers, standby=False)
    for server in broken["keyspaces"]["objects"]["servers"]:
        if server["name"] == name:
            server["primary"] = "mysql://app:hunter2@127.0.0.1:1"
    with Cluster.from_topology(broken) as cluster:
        yield cluster


def test_a_server_that_is_down(servers: dict[str, Any]) -> None:
    with without(servers, "server1") as cluster:
        report = verify(cluster)
        found = only(report)
        assert not report.ok
        assert (found.reference, found.databases) == (2, 2)
        (unread,) = found.unreachable
        assert (unread.server, unread.role) == ("server1", "primary")
        assert "server1 unreachable (2003): " in str(report)
        assert found.drifted == found.missing == ()
        assert str(report).startswith("incomplete: 1 server not compared; ")
        assert "hunter2" not in str(report) + repr(report)
        with pytest.raises(exc.SchemaError, match="cannot be the reference"):
            verify(cluster, reference=0)
        assert only(verify(cluster, servers=["server1"])).reference is None


def test_a_standby_that_is_down(servers: dict[str, Any]) -> None:
    broken = document(servers, standby=True)
    first = broken["keyspaces"]["objects"]["servers"][0]
    first["standby"] = "mysql://app:x@127.0.0.1:1"
    with Cluster.from_topology(broken) as cluster:
        found = only(verify(cluster))
        (unread,) = found.unreachable
        assert (unread.server, unread.role) == ("server1", "standby")
        assert str(unread).startswith("server1 (standby) unreachable (2003): ")
        assert found.databases == 6


def test_kinds_of_servers_are_not_compared(
    cluster: Cluster, servers: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = MySQLCatalogue.kind
    ports = [servers[name].port for name in ("server2", "standby2")]

    def kind(catalogue: MySQLCatalogue, connection: Any) -> str:
        if connection.engine.url.port in ports:
            return "another kind"
        return real(catalogue, connection)

    monkeypatch.setattr(MySQLCatalogue, "kind", kind)
    report = verify(cluster)
    found = only(report)
    assert not report.ok
    assert (found.reference, found.databases) == (0, 4)
    assert found.drifted == found.missing == ()
    assert [(one.server, one.role) for one in found.unreachable] == [
        ("server2", "primary"),
        ("server2", "standby"),
    ]
    text = str(report)
    assert text.startswith("incomplete: 2 servers not compared; ")
    assert "no drift" not in text
    assert "sqla-shard schema verify --servers server2" in text
    assert verify(cluster, servers=["server2"]).ok
