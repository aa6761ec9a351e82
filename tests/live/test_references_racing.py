"""Reference tables written by several at once, where that is hardest.

READ COMMITTED locks no gaps by itself, in autocommit mode a lock ends with its
statement, and pools of one connection leave none to read the truth with.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from sqla_shard import Cluster
from sqla_shard.dialects import Failure
from sqla_shard.models.reference import ReferenceCopies
from tests.models.backends import On
from tests.models.reference_models import COUNTRIES, Country, REFERENCES
from tests.servers.kinds import Kind
from tests.suites import reference_writing

pytestmark = pytest.mark.live


@pytest.fixture(scope="module", params=["READ COMMITTED", "AUTOCOMMIT"])
def cluster(request: pytest.FixtureRequest, server_kind: Kind) -> Iterator[Cluster]:
    options = {"isolation_level": request.param, "pool_size": 1, "max_overflow": 0}
    on = On(server_kind.name, options={"engine_options": options})
    with REFERENCES.open(request, on, "refracing") as cluster:
        yield cluster


class TestRacing(reference_writing.Racing):
    rounds = 4

    @pytest.mark.parametrize("rows", [[], COUNTRIES])
    def test_a_locked_copy_takes_no_row(
        self, cluster: Cluster, rows: list[Any]
    ) -> None:
        Country.replace(cluster, rows)
        copies = ReferenceCopies(Country.__table__, cluster.places)
        place = copies.others[-1]
        new = (
            f"INSERT INTO {place.schema}.country (code, name, labels) "
            "VALUES ('mm', 'M', '[]')"
        )
        # Its own pool, since the one of the cluster has one connection.
        apart = cluster.places.engines.new_engine(place.engine)
        with place.engine.connect() as one, apart.connect() as other:
            other.exec_driver_sql("SET innodb_lock_wait_timeout = 0")
            assert len(copies.lock(one, place)) == len(rows)
            with pytest.raises(OperationalError) as caught:
                other.exec_driver_sql(new)
            failure = place.backend.classify(caught.value.orig)
            assert failure is Failure.BUSY
            one.rollback()
            other.exec_driver_sql(new)
            other.rollback()
        apart.dispose()
