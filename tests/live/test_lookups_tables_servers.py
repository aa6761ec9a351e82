"""The tables of lookups, on servers."""

from __future__ import annotations

import pytest

from tests.models.databases import databases_on_servers
from tests.models.lookup_models import lookups_on_servers, Suite, UserName
from tests.suites import lookup_tables

pytestmark = pytest.mark.live

cluster = lookups_on_servers("lktables")


database = databases_on_servers("db_lkgenerate")


TestGenerating = lookup_tables.Generating
TestDrifting = lookup_tables.Drifting


class TestPlans(Suite):
    def test_keys_are_found_by_the_primary_key(self, cluster, mark):
        # As they are sent: in hexadecimal, in IN.
        with cluster.session() as session:
            shard_id = UserName.shard_of(session, mark)
            connection = session.connection(
                {"keyspace": "lookup", "shard_id": shard_id}
            )
            connection.exec_driver_sql(
                "INSERT INTO user_name (`key`, policy) VALUES (%s, 'exact/1')",
                [(f"k{i}".encode(),) for i in range(500)],
            )
            wanted = ", ".join(f"X'{f'k{i}'.encode().hex()}'" for i in (3, 4))
            (plan,) = connection.exec_driver_sql(
                "EXPLAIN FORMAT=TRADITIONAL SELECT user_id FROM user_name "
                f"WHERE `key` IN ({wanted})"
            ).mappings()
            assert plan["key"] == "PRIMARY"
            assert int(plan["rows"]) == 2
