"""A topology with a server of MariaDB and a server of MySQL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import func, select, text

from sqla_shard import Cluster, scatter
from sqla_shard.exc import ScatterUnsupportedError
from sqla_shard.testing import MariaDBFleet, MySQLFleet
from tests.models.layouts import with_layout
from tests.models.objects import Base, Thing
from tests.models.objects_harness import thing

# It has the servers of both kinds.
pytestmark = [pytest.mark.live, pytest.mark.thorough]


@pytest.fixture(params=["MariaDB first", "MySQL first"])
def cluster(
    request: pytest.FixtureRequest, mariadb_fleet: MariaDBFleet, mysql_fleet: MySQLFleet
) -> Iterator[Cluster]:
    fleets: list[Any] = [mariadb_fleet, mysql_fleet]
    servers: list[dict[str, Any]] = [
        {"name": f"server{number}", "primary": fleet.servers[0].url}
        for number, fleet in enumerate(fleets, 1)
    ]
    if request.param == "MySQL first":
        servers.reverse()
    objects = {
        "kind": "objects",
        "shards": 4,
        "database": "db_twokinds_{shard:05d}",
        "servers": [
            {**server, "shards": [2 * n, 2 * n + 1]} for n, server in enumerate(servers)
        ],
    }
    main = {"kind": "global", "database": "main_twokinds", "servers": servers[:1]}
    document = with_layout(
        {"epoch": 1, "keyspaces": {"objects": objects, "main": main}}
    )
    for fleet in fleets:
        fleet.drop_databases(document)
    with Cluster.from_topology(document) as made:
        made.create_all(Base.metadata)
        yield made
    for fleet in fleets:
        fleet.drop_databases(document)


def test_statements_over_both_are_right_or_refused(cluster: Cluster) -> None:
    ids = [
        thing(cluster, shard_id=shard, count=2**63 + shard, rank=shard)
        for shard in range(4)
    ]
    with cluster.session() as session:
        many = session.get_many(Thing, ids)
        assert [one and one.count for one in many] == [
            2**63 + shard for shard in range(4)
        ]
        for made in (
            select(Thing),
            select(Thing.count).order_by(Thing.count),
            select(func.avg(Thing.rank / 3)),
            select(Thing.kind).distinct(),
        ):
            with pytest.raises(ScatterUnsupportedError, match="MariaDB") as e:
                session.execute(made.options(scatter())).all()
            assert e.value.construct == "servers of two kinds"
        for shards in ((0, 1), (2, 3)):
            here = [ids[shard] for shard in shards]
            made = select(func.sum(Thing.count)).where(Thing.id.in_(here))
            assert session.scalar(made) == 2**64 + sum(shards)
        for shard in range(4):
            rank = session.scalar(
                text("SELECT `rank` FROM things"), bind_arguments={"shard_id": shard}
            )
            assert rank == shard
