"""Operations and errors on the way, on SQLite."""

from __future__ import annotations

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from tests.models.operation_models import add, operations_on_sqlite, points
from tests.suites import operation_outcomes
from tests.suites.operations import FAR, NEAR

cluster = operations_on_sqlite()


class TestOutcomes(operation_outcomes.Outcomes):
    def test_an_error_that_rolls_back_the_transaction(
        self, cluster, ids, defined, mark
    ):
        """The token of the operation is rolled back as well."""

        def stubborn(session, account_id):
            add(session, account_id, 1)
            again = "INSERT OR ROLLBACK INTO accounts SELECT * FROM accounts"
            place = session.place_for(shard_id=FAR)
            with pytest.raises(IntegrityError):
                session.execute(text(again), bind_arguments={"place": place})

        stubborn = defined(stubborn)
        with cluster.begin(cross_shard="logged") as session:
            add(session, ids[NEAR], 1)
            stubborn.intend(session, ids[FAR])
        (one,) = cluster.pending()
        assert "rolled back its transaction" in one.error
        assert points(cluster, [ids[NEAR], ids[FAR]]) == [1, 0]


autocommitting = operations_on_sqlite(engine_options={"isolation_level": "AUTOCOMMIT"})


class TestAutocommit(operation_outcomes.Autocommit):
    pass
