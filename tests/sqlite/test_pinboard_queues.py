"""The pinboard: lists are re-spaced by jobs, and a page shows the queues."""

from __future__ import annotations

import re

from examples.pinboard.models import BoardHasPins
from sqla_shard import Cluster
from sqla_shard.jobs import task, Worker
from sqla_shard.testing import jobs_enqueued, run_jobs
from tests.servers.visiting import (
    app as app,
    cluster as cluster,
    Visitor,
    visitor as visitor,
)


@task("pinboard_tests.fails", queue="failing", max_attempts=1)
def fails(session: object) -> None:
    raise RuntimeError("<b>")


def number(page: str, queue: str, name: str) -> str:
    row = re.search(f'data-queue="{queue}".*?</tr>', page, re.DOTALL)
    assert row, page
    found = re.search(f"data-{name}>(.*?)<", row[0])
    assert found, row[0]
    return found[1]


def test_a_board_that_is_dragged_about(visitor: Visitor, cluster: Cluster) -> None:
    board_id = visitor.add_board()
    first, second, third = (visitor.add_pin(board_id, t) for t in "abc")
    assert "There are no jobs." in visitor.get("/queues")
    jobs: list[object] = []
    while not jobs:
        with cluster.begin() as session:
            for pin_id in (second, first):
                BoardHasPins.move(session, board_id, pin_id, before=third)
            jobs = [*jobs_enqueued(session)]
    page = visitor.get("/queues")
    assert number(page, "lists", "due") == "1"
    assert run_jobs(cluster, ["lists"]).succeeded == 1
    page = visitor.get("/queues")
    assert number(page, "lists", "due") == "0"
    assert number(page, "lists", "done") == "1"


def test_failed_jobs_are_shown(visitor: Visitor, cluster: Cluster) -> None:
    job = fails.enqueue_now(cluster)
    assert Worker(cluster, ["failing"]).run(until_empty=True).failed == 1
    page = visitor.get("/queues")
    assert number(page, "failing", "failed") == "1"
    assert f"<code>{job}</code>" in page
    assert "RuntimeError: &lt;b&gt;" in page
