"""One pass for all that transactions have left.

Each class is a suite; a test module has a fixture ``cluster``.
"""

from __future__ import annotations

import threading

from sqla_shard.engine import by_server
from sqla_shard.jobs import Worker, worker as worker_module
from sqla_shard.jobs.transactions import deliver
from sqla_shard.outbox import apply
from sqla_shard.testing import StatementLog
from sqla_shard.testing.local_server import wait_until
from tests.models.operation_models import (
    after_crash,
    entries,
    intend,
    make_due,
    OPERATIONS,
)
from tests.suites.operations import Suite
from tests.suites.outbox import forget_all, leave, rows

cluster = OPERATIONS.on_backend()
SECONDS = 60


class Delivering(Suite):
    def test_nothing_is_one_statement_for_a_server(self, cluster, ids):
        places = cluster.places
        groups = [
            group
            for space in places.topology.keyspaces.values()
            for group in by_server(places.all_places(space))
        ]
        with StatementLog(*{group[0].engine for group in groups}) as log:
            report = deliver(cluster)
        assert (report.applied, report.invalidated) == (0, 0)
        assert report.problems == []
        assert len(log.statements) == len(groups)

    def test_operations(self, cluster, ids):
        with after_crash(), cluster.begin(cross_shard="logged") as session:
            intend(session, ids[1], ids[6], "delivered")
        make_due(cluster)
        assert deliver(cluster).applied == 1
        assert entries(cluster)[ids[6], "delivered"] == 1
        assert deliver(cluster).applied == 0

    def test_an_unknown_operation(self, cluster, ids, monkeypatch):
        with after_crash(), cluster.begin(cross_shard="logged") as session:
            intend(session, ids[1], ids[6], "later")
        make_due(cluster)
        with monkeypatch.context() as patch:
            patch.setattr(apply, "_functions", {})
            (trouble,) = deliver(cluster).problems
        assert trouble == ("operation 'tests.note' is not defined in this process")
        assert deliver(cluster).applied == 1

    def test_invalidations(self, cluster, ids):
        leave(cluster, ids[2], [("rows", "a"), ("other", "b")])
        try:
            # They are left to a worker that has the cache.
            report = deliver(cluster)
            assert report.invalidated == 0
            assert "process has none" in report.problems[0]
            cluster.configure_cache(
                {"rows": {"backend": "dogpile.cache.memory"}},
                classes={},
                prefix="tests",
            )
            report = deliver(cluster)
            assert report.invalidated == 1
            assert report.problems == ["region 'other' of the cache is not configured"]
            assert rows(cluster) == [(2, "other", "b")]
        finally:
            forget_all(cluster)

    def test_a_worker_delivers(self, cluster, ids, monkeypatch):
        def leave_one(text: str) -> None:
            with after_crash(), cluster.begin(cross_shard="logged") as session:
                intend(session, ids[1], ids[6], text)
            make_due(cluster)

        leave_one("before")
        report = Worker(cluster, ["none"], delivers=True).run(until_empty=True)
        assert report.delivered == 1
        monkeypatch.setattr(worker_module, "_DELIVERY", 0.05)
        worker = Worker(cluster, ["none"], delivers=True)
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            leave_one("meanwhile")
            wait_until(
                lambda: entries(cluster)[ids[6], "meanwhile"] == 1, seconds=SECONDS
            )
        finally:
            worker.stop()
            thread.join(SECONDS)
        assert not thread.is_alive()
