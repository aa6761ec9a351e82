"""Uses of jobs: re-spacing of lists, and tests of applications.

Each class is a suite; a test module has a fixture ``cluster``.
"""

from __future__ import annotations

import pytest
from sqlalchemy.orm import DeclarativeBase

from sqla_shard import Cluster, MappingMixin, ObjectMixin, ShardSession
from sqla_shard.jobs import (
    delete_of,
    JobState,
    pause,
    respace_by_job,
    resume,
    task,
    Worker,
)
from sqla_shard.testing import jobs_enqueued, JobsFailedError, run_jobs
from tests.models.backends import Clusters


class Base(DeclarativeBase):
    pass


class Board(ObjectMixin, Base, type_id=2):
    __tablename__ = "boards"


class Pin(ObjectMixin, Base, type_id=1):
    __tablename__ = "pins"


class BoardHasPins(MappingMixin, Base, source=Board, target=Pin):
    pass


respace = respace_by_job(BoardHasPins, queue="lists")


@task("uses.add_pin", queue="pins")
def add_pin(session: ShardSession, board_id: int, n: int = 0) -> None:
    pin = Pin()
    session.add(pin)
    session.flush()
    BoardHasPins.append(session, board_id, pin.id)
    if n:
        add_pin.enqueue(session, board_id, n - 1, near=board_id)


@task("uses.fails", queue="failing")
def fails(session: ShardSession, board_id: int) -> None:
    raise RuntimeError("for a test")


cluster = Clusters(Base.metadata, 4).on_backend()


@pytest.fixture
def board_id(cluster: Cluster) -> int:
    with cluster.begin(shard_id=1) as session:
        board = Board()
        session.add(board)
        session.flush()
        for _ in range(3):
            add_pin(session, board.id)
        return board.id


def shown(session: ShardSession, board_id: int) -> list[int]:
    page = BoardHasPins.page(session, board_id, limit=50)
    return [row.pin_id for row in page.items]


def swap(session: ShardSession, board_id: int) -> list[int]:
    """Move a row into the gap below the first; return the list."""
    first, *_, last = shown(session, board_id)
    BoardHasPins.move(session, board_id, last, before=first)
    return shown(session, board_id)


def narrow(cluster: Cluster, board_id: int) -> list[int]:
    """Swap rows until a job is enqueued; return the list as it is then."""
    while True:
        with cluster.begin() as session:
            order = swap(session, board_id)
            if jobs_enqueued(session, respace):
                return order


class Respacing:
    """Lists whose gaps get narrow."""

    def test_one_job_for_a_list(self, cluster, board_id):
        order = narrow(cluster, board_id)
        with cluster.session() as session:
            (job,) = jobs_enqueued(session, respace)
            assert job.shard_id == 1
            assert job.arguments["source_id"] == board_id
        assert run_jobs(cluster, ["lists"]).succeeded == 1
        with cluster.session() as session:
            assert shown(session, board_id) == order
            assert jobs_enqueued(session) == []
        # There is room again, for more than 20 moves.
        for _ in range(15):
            with cluster.begin() as session:
                swap(session, board_id)
                assert jobs_enqueued(session) == []

    def test_a_row_that_was_removed(self, cluster, board_id):
        order = narrow(cluster, board_id)
        with cluster.begin() as session:
            for pin_id in order:
                BoardHasPins.remove(session, board_id, pin_id)
        assert run_jobs(cluster).succeeded == 1

    def test_a_move_that_is_rolled_back(self, cluster, board_id):
        narrow(cluster, board_id)
        assert delete_of(cluster, "lists", [JobState.PENDING]).changed == 1
        with cluster.session() as session:
            swap(session, board_id)
            swap(session, board_id)
            assert len(jobs_enqueued(session)) == 1
            session.rollback()
            assert jobs_enqueued(session) == []


class Testing:
    """Functions for tests of applications."""

    def test_enqueued_jobs(self, cluster, board_id):
        with cluster.session() as session:
            add_pin.enqueue(session, board_id, n=1, near=board_id)
            fails.enqueue(session, board_id, near=board_id, run_after=60)
            first, second = jobs_enqueued(session)
            assert (first.task, first.arguments) == (
                "uses.add_pin",
                {"board_id": board_id, "n": 1},
            )
            assert jobs_enqueued(session, fails) == [second]
            assert jobs_enqueued(session, "uses.add_pin") == [first]
            session.rollback()
        with cluster.session() as session:
            assert jobs_enqueued(session) == []

    def test_they_run_with_what_they_enqueue(self, cluster, board_id):
        add_pin.enqueue_now(cluster, board_id, n=3, near=board_id)
        assert run_jobs(cluster).succeeded == 4
        with cluster.session() as session:
            assert len(shown(session, board_id)) == 7
        assert run_jobs(cluster).succeeded == 0

    def test_a_failure_is_raised(self, cluster, board_id):
        job = fails.enqueue_now(cluster, board_id, near=board_id)
        with pytest.raises(JobsFailedError, match="RuntimeError: for a test"):
            run_jobs(cluster)
        with cluster.session() as session:
            assert [one.id for one in jobs_enqueued(session)] == [str(job)]
        assert Worker(cluster, ["failing"]).run(until_empty=True).failed == 0

    def test_a_queue_that_is_paused(self, cluster, board_id):
        pause(cluster, "pins")
        try:
            add_pin.enqueue_now(cluster, board_id, near=board_id)
            with pytest.raises(JobsFailedError, match="pins was run"):
                run_jobs(cluster, ["pins"])
        finally:
            resume(cluster, "pins")
        assert run_jobs(cluster, ["pins"]).succeeded == 1
