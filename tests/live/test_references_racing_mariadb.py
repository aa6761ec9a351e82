"""Reference tables written by several at once, where that is hardest.

READ COMMITTED locks no gaps by itself, in autocommit mode a lock ends with its
statement, and pools of one connection leave none to read the truth with.
"""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from sqla_shard import Cluster
from sqla_shard.dialects import Failure
from sqla_shard.reference.copies import Copies
from tests.shared import reference_writing
from tests.shared.reference_models import COUNTRIES
from tests.shared.reference_models import Country
from tests.shared.reference_models import references_on_mariadb

pytestmark = pytest.mark.live

cluster = references_on_mariadb(
    "refracing",
    *(
        {
            "engine_options": {
                "isolation_level": level,
                "pool_size": 1,
                "max_overflow": 0,
            }
        }
        for level in ("READ COMMITTED", "AUTOCOMMIT")
    ),
)


class TestRacing(reference_writing.Racing):
    rounds = 4

    @pytest.mark.parametrize("rows", [[], COUNTRIES])
    def test_a_locked_copy_takes_no_row(
        self, cluster: Cluster, rows: list[Any]
    ) -> None:
        Country.replace(cluster, rows)
        copies = Copies(Country.__table__, cluster.places)
        place = copies.others[-1]
        new = (
            f"INSERT INTO {place.schema}.country (code, name, labels) "
            "VALUES ('mm', 'M', '[]')"
        )
        # Its own pool, since the one of the cluster has one connection.
        apart = cluster.places.engines.apart(place.engine)
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
