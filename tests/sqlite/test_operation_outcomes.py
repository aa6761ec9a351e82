"""Operations and errors on the way, on SQLite."""

from __future__ import annotations

import logging
import os

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from sqla_shard.exc import OperationDefinitionError
from tests.models.operation_models import add, operations_on_sqlite, points
from tests.suites import operation_outcomes
from tests.suites.jobs_working import BrokenHandler
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

    def test_a_call_that_runs_nothing_is_not_applied(self, cluster, ids, defined):
        """As one of a decorated ``async def``, whose wrapper is a function."""

        async def awaited(session, account_id): ...

        def wrapped(session, account_id):
            return awaited(session, account_id)

        wrapped = defined(wrapped)
        with (
            cluster.begin() as session,
            pytest.raises(OperationDefinitionError, match="has not run"),
        ):
            wrapped.intend(session, ids[NEAR])
        with cluster.begin(cross_shard="logged") as session:
            add(session, ids[NEAR], 1)
            wrapped.intend(session, ids[FAR])
        (one,) = cluster.pending()
        assert "has not run" in one.error

    def test_a_child_ends_with_its_operation(self, cluster, ids, defined):
        """It would go on as the process that applies it."""
        parent, statuses = os.getpid(), []

        def forks(session, account_id):
            child = os.fork()
            if child:
                statuses.append(os.waitpid(child, 0)[1])

        with cluster.begin(cross_shard="logged") as session:
            add(session, ids[NEAR], 1)
            defined(forks).intend(session, ids[FAR])
        if os.getpid() != parent:
            os._exit(9)
        assert statuses == [0]

    def test_a_handler_of_the_log_that_fails(self, cluster, ids, defined):
        """It does not fail a COMMIT that has succeeded."""

        def fails(session, account_id):
            raise ValueError

        fails, handler = defined(fails), BrokenHandler()
        logging.getLogger("sqla_shard").addHandler(handler)
        try:
            with cluster.begin(cross_shard="logged") as session:
                add(session, ids[NEAR], 1)
                fails.intend(session, ids[FAR])
        finally:
            logging.getLogger("sqla_shard").removeHandler(handler)
        assert len(session.pending) == 1
        assert points(cluster, [ids[NEAR]]) == [1]


autocommitting = operations_on_sqlite(engine_options={"isolation_level": "AUTOCOMMIT"})


TestAutocommit = operation_outcomes.Autocommit
