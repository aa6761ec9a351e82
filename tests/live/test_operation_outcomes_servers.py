"""Operations and errors on the way, on servers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from sqla_shard import ShardSession, unpack
from tests.models.operation_models import (
    account,
    add,
    entries,
    intend,
    note,
    operations_on_servers,
    points,
)
from tests.suites import operation_outcomes
from tests.suites.operations import FAR, NEAR, Suite

pytestmark = pytest.mark.live

SECONDS = 60

cluster = operations_on_servers("outcomes")


TestOutcomes = operation_outcomes.Outcomes


class TestDeadlocks(Suite):
    """A server that ends a deadlock rolls back all, pending operations too."""

    def lose(
        self, cluster: Any, first: int, mark: str
    ) -> Callable[[ShardSession], None]:
        """Return what loses a transaction that has written an account."""
        second = account(cluster, unpack(first).shard_id)
        inside, outside = threading.Event(), threading.Event()

        def cross() -> None:
            assert inside.wait(SECONDS)
            with cluster.begin() as session:
                # The other has less to undo, so that one is rolled back.
                for number in range(200):
                    note(session, second, text=f"{mark} {number}")
                add(session, second, 1)
                outside.set()
                add(session, first, 1)

        other = threading.Thread(target=cross)
        other.start()

        def lose(session: ShardSession) -> None:
            inside.set()
            assert outside.wait(SECONDS)
            try:
                add(session, second, 1)
            finally:
                other.join(SECONDS)

        return lose

    @pytest.mark.parametrize("nested", [False, True])
    def test_of_the_transaction(self, cluster, ids, mark, nested):
        """Catching the error and committing loses the operations before it."""
        lose = self.lose(cluster, ids[NEAR], mark)
        with cluster.begin(cross_shard="logged") as session:
            intend(session, ids[NEAR], ids[FAR], f"{mark} lost")
            part = session.begin_nested() if nested else nullcontext()
            with pytest.raises(OperationalError), part:
                lose(session)
            intend(session, ids[NEAR], ids[FAR], f"{mark} kept")
        assert session.pending == ()
        assert points(cluster, [ids[NEAR]]) == [2]
        found = entries(cluster)
        assert found[ids[FAR], f"{mark} kept"] == 1
        assert found[ids[FAR], f"{mark} lost"] == 0
        assert cluster.pending() == []

    def test_of_an_operation_that_another_does(self, cluster, ids, defined, mark):
        """The token that it finds then is not the one that it has written."""
        lose = self.lose(cluster, ids[FAR], mark)
        tries = []

        def stubborn(session, account_id):
            tries.append(1)
            add(session, account_id, 1)
            if len(tries) == 1:
                with pytest.raises(OperationalError, match="1213"):
                    lose(session)
                # A worker, in the time that this one takes.
                assert cluster.repair(now=True).applied == 1
                note(session, account_id, text=f"{mark} after")

        stubborn = defined(stubborn)
        with cluster.begin(cross_shard="logged") as session:
            add(session, ids[NEAR], 1)
            stubborn.intend(session, ids[FAR])
        assert len(tries) == 2
        assert points(cluster, [ids[FAR]]) == [2]
        assert entries(cluster)[ids[FAR], f"{mark} after"] == 0
        assert cluster.repair(now=True).ok
        assert cluster.pending() == []


autocommitting = operations_on_servers(
    "outcomesauto", engine_options={"isolation_level": "AUTOCOMMIT"}
)


TestAutocommit = operation_outcomes.Autocommit
