"""Outcomes of operations that were pending after a COMMIT.

Each class is a suite; a test module has a fixture ``cluster``.
"""

from __future__ import annotations

import inspect
import itertools

import pytest
from sqlalchemy import event, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session
from sqlalchemy.schema import DropTable

from sqla_shard import Cluster
from sqla_shard.exc import OperationDefinitionError
from sqla_shard.outbox import apply, discard
from sqla_shard.outbox.apply import PendingOperation
from sqla_shard.outbox.tables import INTENTS
from tests.models.operation_models import (
    add,
    after_crash,
    Base,
    count_applied,
    first_of_each,
    forget_all,
    make_due,
    note,
    points,
)
from tests.suites.jobs_working import WAYS
from tests.suites.operations import FAR, NEAR, Suite


class Outcomes(Suite):
    """Errors on the way."""

    def test_an_operation_that_could_not_be_enqueued_is_not_applied(
        self, cluster, ids, mark
    ):
        """Catching the error and committing does not enqueue the operation."""
        with cluster.session() as session:
            place = session.place_for(shard_id=NEAR)
            session.execute(DropTable(INTENTS), bind_arguments={"place": place})
            session.commit()
        try:
            with cluster.begin(cross_shard="logged") as session:
                add(session, ids[NEAR], 1)
                with pytest.raises(SQLAlchemyError, match="sqla_shard_intent"):
                    note.intend(session, ids[FAR], text=mark)
        finally:
            cluster.create_all(Base.metadata)
        assert session.pending == ()
        assert points(cluster, [ids[NEAR]]) == [1]
        assert self.only(cluster, mark) == {}

    def test_each_way_to_fail(self, cluster, ids, defined, mark):
        """None holds others, in commands and workers, which run them in threads."""

        def strange(session, account_id, name):
            return WAYS[name]()

        strange = defined(strange)
        with after_crash(), cluster.begin(cross_shard="logged") as session:
            add(session, ids[NEAR], 1)
            for name in WAYS:
                strange.intend(session, ids[FAR], name)
                note.intend(session, ids[FAR], text=f"{mark} {name}")
        make_due(cluster)
        report = cluster.repair()
        assert (report.applied, len(report.failed)) == (len(WAYS), len(WAYS))
        assert len(self.only(cluster, mark)) == len(WAYS)
        left = cluster.pending()
        assert {one.arguments["name"] for one in left} == {*WAYS}
        assert all(one.error for one in left)

    def test_an_error_that_no_server_takes(self, cluster, ids, defined, mark):
        """Half of a surrogate pair, of a text that was cut off elsewhere."""

        def refuse(session, account_id, name):
            raise ValueError(f"{name} is no name")

        refuse = defined(refuse)
        with cluster.begin(cross_shard="logged") as session:
            add(session, ids[NEAR], 1)
            refuse.intend(session, ids[FAR], "\ud83d")
            note.intend(session, ids[FAR], text=mark)
        (one,) = cluster.pending()
        assert one.error == r"ValueError: \ud83d is no name"
        assert one.arguments["name"] == "\ud83d"
        make_due(cluster)
        report = cluster.repair()
        assert (report.applied, len(report.failed)) == (0, 1)
        assert self.only(cluster, mark) == {(ids[FAR], mark): 1}

    @pytest.mark.parametrize("text", ["", "[" * 30_000, "1" * 5000, "[1]"])
    def test_a_row_that_cannot_be_read_holds_no_other(self, cluster, ids, mark, text):
        with after_crash(), cluster.begin(cross_shard="logged") as session:
            add(session, ids[NEAR], 1)
            note.intend(session, ids[FAR], text=mark)
            note.intend(session, ids[FAR], text=mark)
            token = session.log._after_commit[0][1].token
        with cluster.begin() as session:
            session.execute(
                update(INTENTS).where(INTENTS.c.token == token).values(arguments=text),
                bind_arguments={"place": session.place_for(shard_id=NEAR)},
            )
        report = cluster.repair(now=True)
        assert (report.applied, len(report.failed)) == (1, 1)
        assert "cannot be read" in report.failed[0]
        assert self.only(cluster, mark) == {(ids[FAR], mark): 1}
        (one,) = cluster.pending()
        assert one.arguments is None
        assert "cannot be read" in str(one)
        assert discard(cluster, [one.token]) == [one]

    def test_a_listener_that_does_not_know_our_sessions(self, cluster, ids, mark):
        """The COMMIT has succeeded, and must not look as if it had not."""

        def audit(session):
            assert session.info["user"]

        with cluster.session(cross_shard="logged", info={"user": "ada"}) as session:
            add(session, ids[NEAR], 1)
            note.intend(session, ids[FAR], text=mark)
            event.listen(Session, "before_commit", audit)
            try:
                session.commit()
            finally:
                event.remove(Session, "before_commit", audit)
            assert len(session.pending) == 1
        assert points(cluster, [ids[NEAR]]) == [1]
        assert cluster.repair(now=True).applied == 1
        assert self.only(cluster, mark) == {(ids[FAR], mark): 1}

    def test_all_of_many_are_discarded(self, cluster, ids, mark):
        with after_crash(), cluster.begin(cross_shard="logged") as session:
            add(session, ids[NEAR], 1)
            for _ in range(250):
                note.intend(session, ids[FAR], text=mark)
            then = session.log._after_commit
            left = [operation.token.hex() for _, operation in then]
        assert len(cluster.pending()) == 200
        assert {one.token for one in discard(cluster, left)} == {*left}
        assert cluster.pending() == []

    def test_a_chain_is_no_recursion(self, cluster, ids, defined, mark, caplog):
        depths = []

        def step(session, account_id, n):
            depths.append(len(inspect.stack(0)))
            note(session, account_id, text=f"{mark} {n}")
            if n:
                step.intend(session, ids[NEAR + n % 2], n - 1)

        step = defined(step)
        with cluster.begin(cross_shard="logged") as session:
            add(session, ids[NEAR], 1)
            step.intend(session, ids[FAR], 20)
        assert len(depths) == len(self.only(cluster, mark)) == 21
        assert len(set(depths)) == 1
        assert cluster.pending() == []
        assert caplog.records == []

    def test_operations_that_leave_one_another_for_ever(
        self, cluster, ids, defined, monkeypatch
    ):
        """Neither a COMMIT nor a worker goes on with them without end."""
        calls = []

        def again(session, account_id):
            calls.append(account_id)
            assert len(calls) < 500
            add(session, account_id, 1)
            other = ids[FAR if account_id == ids[NEAR] else NEAR]
            again.intend(session, other)

        again = defined(again)
        # By a clock of its own: on a slow machine the time would be over
        # before the first one, on a fast one after too many.
        clock = itertools.count()
        monkeypatch.setattr(apply, "monotonic", lambda: next(clock))
        monkeypatch.setattr(apply, "_APPLY_SECONDS", 10)
        with cluster.begin(cross_shard="logged") as session:
            add(session, ids[NEAR], 1)
            again.intend(session, ids[FAR])
        assert len(calls) == 9
        (left,) = cluster.pending()
        assert (left.attempts, left.error) == (0, None)
        # It is not one of the transaction's own operations.
        assert session.pending == ()
        assert cluster.repair(now=True).applied == 1
        assert sum(points(cluster, ids)) == 1 + len(calls)


class Autocommit(Suite):
    """Nothing is committed together there; a module has such a cluster."""

    @pytest.fixture
    def ids(self, autocommitting: Cluster) -> list[int]:
        forget_all(autocommitting)
        return first_of_each(autocommitting)

    def test_failed_operations_are_not_done(self, autocommitting, ids, defined, mark):
        def fails_once(session, account_id):
            raise ZeroDivisionError

        fails_once = defined(fails_once)
        with autocommitting.session(cross_shard="logged") as session:
            add(session, ids[NEAR], 1)
            with pytest.raises(OperationDefinitionError, match="AUTOCOMMIT"):
                fails_once.intend(session, ids[FAR])
        assert autocommitting.pending() == []

    def test_a_worker_does_nothing(self, autocommitting, ids, mark):
        place = autocommitting.places.place(
            autocommitting.places.keyspace("objects", ""), FAR
        )
        intent = PendingOperation(
            token=b"left by another.",
            operation=note.name,
            arguments={"account_id": ids[FAR], "text": mark},
            home=("objects", NEAR),
            target=place.address,
        )
        ((_, error),) = apply.apply_all(autocommitting, [intent])
        assert "AUTOCOMMIT" in error
        assert self.only(autocommitting, mark) == {}
        assert count_applied(autocommitting) == 0
