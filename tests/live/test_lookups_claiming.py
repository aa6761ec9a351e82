"""Claims of keys, on servers."""

from __future__ import annotations

from datetime import datetime, UTC

import pytest

from sqla_shard import exc
from tests.models.lookup_models import lookups_on_servers, Suite, UserName

pytestmark = pytest.mark.live

cluster = lookups_on_servers("lkclaim", engine_options={"pool_size": 30})


class TestBoundary(Suite):
    @pytest.mark.parametrize(
        ("late", "taken"), [("-0.000001", True), ("", False), ("+0.000001", False)]
    )
    def test_the_microsecond_of_the_end(self, cluster, mark, late, taken):
        claim = cluster.run(UserName.claim, mark)
        epoch = datetime(1970, 1, 1, tzinfo=UTC)
        seconds = (claim.expires_at - epoch).total_seconds()
        with cluster.session() as session:
            shard_id = UserName.shard_of(session, mark)
            connection = session.connection(
                {"keyspace": "lookup", "shard_id": shard_id}
            )
            # The clock of this connection stands still.
            connection.exec_driver_sql(f"SET timestamp = {seconds:.6f}{late}")
            try:
                if taken:
                    with pytest.raises(exc.KeyTakenError):
                        UserName.claim(session, mark)
                else:
                    again = UserName.claim(session, mark)
                    assert again.token != claim.token
            finally:
                connection.exec_driver_sql("SET timestamp = DEFAULT")
