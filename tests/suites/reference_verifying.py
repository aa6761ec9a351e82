"""Reference tables that are not the same everywhere, found and repaired."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from sqla_shard import Cluster
from sqla_shard.exc import ReferenceIncompleteError, ShardMissingError
from sqla_shard.models.reference import verify_references
from tests.models.reference_models import (
    Base,
    contents,
    COUNTRIES,
    Country,
    Rate,
    SHARDS,
    spoil,
    Suite,
)


class Verified(Suite):
    """The test module has a fixture ``cluster``."""

    def test_nothing_to_find(self, cluster: Cluster) -> None:
        report = verify_references(cluster, Base.metadata)
        assert report.ok
        assert report.as_dict() == {
            "ok": True,
            "references": {
                "Country": {"rows": 3, "shards": SHARDS},
                "Rate": {"rows": 0, "shards": SHARDS},
            },
            "deviations": [],
            "unreachable": [],
        }
        assert "Country: 3 row(s) on 8 shard(s), 0 different" in str(report)

    def test_each_kind_of_damage(self, cluster: Cluster) -> None:
        before = contents(cluster, Country)
        spoil(cluster, 1, "DELETE FROM country WHERE code = 'fr'")
        spoil(cluster, 3, "UPDATE country SET area = 357.61 WHERE code = 'de'")
        spoil(
            cluster,
            6,
            "INSERT INTO country (code, name, labels) VALUES ('zz', 'Z', '[]')",
        )
        spoil(cluster, 7, "UPDATE country SET code = 'nn' WHERE code = 'no'")
        spoil(cluster, 2, "INSERT INTO rates VALUES (1, '2026-01-01')")
        report = verify_references(cluster, [Country, Rate])
        assert not report.ok
        found = {
            (d.reference, d.shard_id): (d.missing, d.extra, d.different)
            for d in report.deviations
        }
        assert found.pop(("Rate", 2))[0] == ()
        assert found == {
            ("Country", 1): ((("fr",),), (), ()),
            ("Country", 3): ((), (), (("de",),)),
            ("Country", 6): ((), (("zz",),), ()),
            ("Country", 7): ((("no",),), (("nn",),), ()),
        }
        assert "missing no; extra nn" in str(report)
        assert json.loads(json.dumps(report.as_dict()))["deviations"]
        assert verify_references(cluster, [Rate]).rows == {"Rate": 0}

        report = verify_references(cluster, [Country, Rate], repair=True)
        assert report.ok
        assert len(report.deviations) == 5
        assert "(repaired)" in str(report)
        assert contents(cluster, Country) == before
        assert not verify_references(cluster, Base.metadata).deviations

    def test_a_table_that_is_not_there(self, cluster: Cluster) -> None:
        spoil(cluster, 4, "DROP TABLE rates")
        spoil(cluster, 5, "INSERT INTO rates VALUES (1, '2026-01-01')")
        report = verify_references(cluster, [Rate], repair=True)
        assert not report.ok
        (lost,) = report.not_compared["Rate"]
        assert [shard_id for _, shard_id in lost.addresses] == [4]
        assert "does not exist" in lost.cause.reason
        (deviation,) = report.deviations
        assert (deviation.shard_id, deviation.repaired) == (5, True)
        with pytest.raises(ReferenceIncompleteError) as caught:
            Rate.replace(cluster, [])
        assert list(caught.value.errors) == [4]
        assert isinstance(caught.value.errors[4], ShardMissingError)
        assert caught.value.not_reached == ()
        cluster.create_all(Base.metadata)
        assert verify_references(cluster, [Rate]).ok


class Grown(Suite):
    """The test module has a fixture ``cluster``."""

    @pytest.fixture
    def opened(self, cluster: Cluster) -> Iterator[Cluster]:
        """A cluster with twice as many shards, where those have no rows."""
        document = cluster.topology.to_mapping()
        objects = document["keyspaces"]["objects"]
        objects["shards"] = 2 * SHARDS
        *_, last = objects["servers"]
        last["shards"] = [last["shards"][0], 2 * SHARDS - 1]
        with Cluster.from_topology(
            document, environ=cluster._engines._environ
        ) as opened:
            opened.create_all(Base.metadata)
            for shard_id in range(SHARDS, 2 * SHARDS):
                spoil(opened, shard_id, "DELETE FROM country")
            yield opened

    @pytest.mark.parametrize("how", ["repair", "upsert"])
    def test_new_shards_are_filled(self, opened: Cluster, how: str) -> None:
        report = verify_references(opened, [Country])
        new = list(range(SHARDS, 2 * SHARDS))
        assert sorted(d.shard_id for d in report.deviations) == new
        if how == "repair":
            assert verify_references(opened, [Country], repair=True).ok
        else:
            Country.upsert(opened, COUNTRIES)
        first, *others = contents(opened, Country)
        assert len(others) == 2 * SHARDS - 1
        assert all(one == first for one in others)
