"""Reference tables, on servers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sqla_shard import Cluster
from sqla_shard.exc import ReferenceRowsError
from tests.models.reference_models import contents, Country, REFERENCES, SHARDS, spoil
from tests.suites import (
    reference_reading,
    reference_tables,
    reference_verifying,
    reference_writing,
)

pytestmark = pytest.mark.live

DATABASE = "db_references_"
cluster = REFERENCES.on_servers("references")


class TestAlone(reference_reading.Alone):
    connections = 1


TestWithObjects = reference_reading.WithObjects
TestWritten = reference_writing.Written


class TestRefused(reference_writing.Refused):
    def test_two_keys_that_are_one_to_the_server(self, cluster: Cluster) -> None:
        # Its collations ignore trailing spaces.
        before = contents(cluster, Country)
        rows = [{"code": "a", "name": "A"}, {"code": "a ", "name": "B"}]
        with pytest.raises(ReferenceRowsError, match="equal to another") as e:
            Country.replace(cluster, rows)
        assert e.value.row == ("a",)
        assert contents(cluster, Country) == before
        Country.upsert(cluster, rows[:1])
        with pytest.raises(ReferenceRowsError):
            Country.upsert(cluster, rows[1:])
        assert {r[1] for s in contents(cluster, Country) for r in s} == {
            "A",
            *(row[1] for row in before[0]),
        }


TestRacing = reference_writing.Racing
TestVerified = reference_verifying.Verified
TestDrifting = reference_tables.Drifting


class TestGrown(reference_verifying.Grown):
    @pytest.fixture(autouse=True)
    def dropped(self, opened: Cluster) -> Iterator[None]:
        yield
        for shard_id in range(SHARDS, 2 * SHARDS):
            spoil(opened, shard_id, f"DROP DATABASE {DATABASE}{shard_id:05d}")
