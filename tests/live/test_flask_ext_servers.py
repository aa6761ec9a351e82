"""The Flask extension on servers that are killed, and on contended rows."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from flask import Flask
from sqlalchemy import select, text
from sqlalchemy.exc import OperationalError

from sqla_shard import Cluster, scatter
from sqla_shard.ext.flask import FlaskCluster
from tests.models.flask_app import add_board, Base, Board, busy, title_of
from tests.servers.kinds import own_fleet

pytestmark = pytest.mark.live


fleet = own_fleet(2, 4)


@pytest.fixture
def cluster(fleet):
    document = fleet.topology_mapping(main=True)
    with Cluster.from_topology(
        document,
        environ=fleet.environ,
        # The end of a session fails with its server.
        deferred_rollback=False,
    ) as cluster:
        cluster.create_all(Base.metadata)
        yield cluster


@pytest.fixture
def app():
    return Flask("shop")


@pytest.fixture
def db(app, cluster):
    return FlaskCluster(app, cluster)


@pytest.fixture
def fragile(fleet):
    """The second server, to be killed."""
    server = fleet.servers[1]
    yield server
    if not server.running:
        server.start()


def test_a_server_lost_after_the_view_does_not_lose_the_answer(
    app, db, cluster, fragile, caplog
):
    here, there = cluster.run(add_board, 0), cluster.run(add_board, 3)

    @app.get("/")
    def index():
        titles = [db.session.get(Board, key).title for key in (here, there)]
        fragile.kill()
        return " ".join(titles)

    with caplog.at_level(logging.WARNING, "sqla_shard.ext.responses"):
        answer = app.test_client().get("/")
    assert (answer.status_code, answer.text) == (200, "Boats Boats")
    (record,) = caplog.records
    # Without a traceback, in which the parameters of statements may be.
    assert record.exc_info is None
    assert "ServerUnreachableError: server server2" in record.getMessage()
    assert busy(cluster) == 0

    # The other server works, and the lost one comes back.
    assert title_of(cluster, here) == "Boats"
    done = app.test_cli_runner().invoke(args=["shard", "health"])
    assert done.exit_code == 1
    assert "server1: up\nserver2: DOWN: ServerUnreachableError" in done.output
    assert "1 of 2 servers" in done.output
    fragile.start()
    assert app.test_client().get("/").status_code == 200
    fragile.start()
    done = app.test_cli_runner().invoke(args=["shard", "health"])
    assert done.exit_code == 0
    assert done.output.endswith("server1: up\nserver2: up\n")


def test_a_server_lost_inside_the_view(app, db, cluster, fragile):
    key = cluster.run(add_board, 3)

    @app.get("/")
    def index():
        db.session.get(Board, key)
        fragile.kill()
        db.session.expire_all()
        return db.session.get(Board, key).title

    assert app.test_client().get("/").status_code == 500
    assert busy(cluster) == 0


def test_locks_end_with_the_request(app, db, cluster):
    key = cluster.run(add_board, 1)

    @app.post("/fail")
    def fail():
        db.session.get(Board, key, with_for_update=True).title = "never"
        db.session.flush()
        raise LookupError

    @app.post("/<title>")
    def rename(title):
        db.session.get(Board, key, with_for_update=True).title = title
        db.session.commit()
        return title

    client = app.test_client()
    for number in range(3):
        assert client.post("/fail").status_code == 500
        assert client.post(f"/{number}").status_code == 200
    assert title_of(cluster, key) == "2"


def test_requests_that_deadlock_are_repeated_by_run(app, db, cluster):
    keys = [cluster.run(add_board, 2) for _ in range(2)]
    together = threading.Barrier(2, timeout=60)
    attempts = []

    def rename(session, first, second, title):
        attempts.append(title)
        session.get(Board, first, with_for_update=True).title = title
        session.flush()
        if len(attempts) <= 2:
            together.wait()
        session.get(Board, second, with_for_update=True).title = title

    @app.post("/<int:first>")
    def post(first):
        db.run(rename, keys[first], keys[1 - first], f"by {first}")
        return "done"

    def ask(first):
        return app.test_client().post(f"/{first}").text

    with ThreadPoolExecutor(2) as executor:
        assert list(executor.map(ask, range(2))) == ["done", "done"]
    assert len(attempts) >= 3
    one, two = (title_of(cluster, key) for key in keys)
    assert one == two
    assert one in {"by 0", "by 1"}


# -- what run() has committed in the same request --------------------------

EVERY = select(Board).options(scatter())


@pytest.fixture
def boards(cluster):
    """A board on each shard."""
    return [cluster.run(add_board, shard) for shard in range(4)]


@pytest.mark.parametrize(
    "read",
    [
        lambda session, key: session.get(Board, key),
        lambda session, key: session.get_many(Board, [key])[0],
        lambda session, key: session.scalar(select(Board).where(Board.id == key)),
        lambda session, key: {one.id: one for one in session.scalars(EVERY)}.get(key),
    ],
    ids=["get", "get_many", "select", "scatter"],
)
def test_what_run_has_committed_is_read(app, db, boards, read):
    with app.app_context():
        for shard, key in enumerate(boards):
            assert len(db.session.scalars(EVERY).all()) >= len(boards)
            assert read(db.session, key).id == key
            new = db.run(add_board, shard)
            assert read(db.session, new).id == new


def _lock(session, key):
    session.get(Board, key, with_for_update=True)


def _lock_by_text(session, key):
    session.execute(
        text("SELECT 1 FROM boards FOR UPDATE"), bind_arguments={"shard_id": 1}
    )


def _lock_in_connection(session, key):
    session.connection({"shard_id": 1}).execute(
        select(Board.__table__).where(Board.id == key).with_for_update()
    )


def _write(session, key):
    session.get(Board, key).title = "mine"
    session.flush()


def _savepoint(session, key):
    session.begin_nested()
    session.get(Board, key, with_for_update=True)


@pytest.mark.parametrize(
    "hold", [_lock, _lock_by_text, _lock_in_connection, _write, _savepoint]
)
def test_a_transaction_that_has_more_than_read_stays(app, db, boards, hold):
    def locked(session):
        session.get(Board, boards[1], with_for_update={"nowait": True})

    with app.app_context():
        hold(db.session, boards[1])
        db.run(add_board, 0)
        assert db.session.get(Board, boards[2]).title == "Boats"
        with pytest.raises(OperationalError), db.cluster.begin() as other:
            locked(other)
        db.session.rollback()
        db.run(locked)


def test_a_change_that_is_not_flushed_stays(app, db, cluster, boards):
    with app.app_context(), db.session.no_autoflush:
        board = db.session.get(Board, boards[1])
        board.title = "mine"
        db.run(add_board, 0)
        db.session.get(Board, boards[2])
        assert title_of(cluster, boards[1]) == "Boats"
        db.session.commit()
    assert title_of(cluster, boards[1]) == "mine"


def test_rows_are_read_to_the_end_while_others_are_written(app, db, cluster):
    """More rows than the driver has received when the first one is read."""

    def fill(session):
        session.add_all(Board(title="x" * 10_000, shard_id=1) for _ in range(500))

    cluster.run(fill)
    here, there = ({"shard_id": shard} for shard in (1, 3))
    with app.app_context():
        # A row of another server is read before: its snapshot could end.
        db.session.scalars(select(Board), bind_arguments=there).all()
        rows = db.session.scalars(
            select(Board.id), execution_options={"yield_per": 100}, bind_arguments=here
        )
        found = 0
        for part in rows.partitions():
            found += len(part)
            db.run(add_board, 1)
            db.session.scalars(select(Board.id), bind_arguments=there).all()
    assert found >= 500
