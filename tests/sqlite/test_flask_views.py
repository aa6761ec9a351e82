"""Helpers of the Flask extension for views, and responses to errors."""

from __future__ import annotations

import pytest
from flask import request
from sqlalchemy import select
from sqlalchemy.exc import OperationalError
from werkzeug.exceptions import NotFound

from sqla_shard import exc, pack, scatter
from sqla_shard.ext.flask import ContextSession, FlaskCluster
from sqla_shard.ext.flask_pagination import Pagination
from tests.models.flask_app import (
    add_board,
    Base,
    BOARD,
    Board,
    busy,
    flask_fixtures,
    title_of,
)

app, cluster, db, board_id = flask_fixtures()


# -- objects and rows, or 404 -----------------------------------------------


def test_get_or_404(app, db, board_id):
    @app.get("/<ident>")
    def show(ident):
        return db.get_or_404(Board, int(ident), description="No board.").title

    client = app.test_client()
    assert client.get(f"/{board_id}").text == "Boats"
    missing = [
        pack(3, BOARD, 999),  # not there
        pack(3, BOARD + 1, 1),  # of another class
        pack(999, BOARD, 1),  # of a shard that is not open
        7,
        2**63,
    ]
    for ident in missing:
        response = client.get(f"/{ident}")
        assert response.status_code == 404, ident
        assert "No board." in response.text


def test_first_and_one_or_404(app, db, cluster, board_id):
    there = select(Board).where(Board.id == board_id)
    titles = select(Board.id, Board.title).where(Board.id == board_id)
    absent = select(Board).where(Board.id == pack(3, BOARD, 999))
    everything = select(Board).options(scatter()).order_by(Board.id)
    cluster.run(add_board, 1)
    with app.app_context():
        for ask in (db.first_or_404, db.one_or_404):
            assert ask(there).id == board_id
            assert tuple(ask(titles)) == (board_id, "Boats")
            with pytest.raises(NotFound):
                ask(absent, description="No board.")
        assert db.first_or_404(everything).title == "Boats"
        with pytest.raises(NotFound):
            db.one_or_404(everything)


# -- the session ------------------------------------------------------------


def test_a_session_that_is_removed(app, db, cluster, board_id):
    with app.app_context():
        session = db.session
        assert isinstance(session, ContextSession)
        session.get(Board, board_id).title = "never"
        session.flush()
        session.remove()
        assert busy(cluster) == 0
        assert db.session is not session
        # As a teardown function may do, also where there is no context.
    session.remove()
    assert title_of(cluster, board_id) == "Boats"


def test_options_of_the_session(app, cluster, board_id):
    app.config["SQLA_SHARD_SESSION"] = {"cross_shard": "unordered"}
    db = FlaskCluster(app, cluster, metadata=Base.metadata)
    other = cluster.run(add_board, 1)
    with app.app_context():
        for ident in (board_id, other):
            db.session.get(Board, ident).title = "Both"
        db.session.commit()
    assert title_of(cluster, board_id) == title_of(cluster, other) == "Both"
    # Transactions of run() say so themselves.
    with app.app_context(), pytest.raises(exc.CrossShardWriteError):
        db.run(_rename_both, board_id, other)


def _rename_both(session, *ids):
    for ident in ids:
        session.get(Board, ident).title = "no"


# -- errors -----------------------------------------------------------------

_ERRORS = [
    (exc.BlobValueError("must be a text", field="Board.title", value=5), 400, None),
    (exc.ScatterLimitError(limit="max_offset", allowed=9, found=500), 400, None),
    (exc.InvalidBookmarkError("no", bookmark="x"), 400, None),
    (exc.InvalidKeyError(key="x", reason="no"), 400, None),
    (exc.InvalidMoveError("m", target_id=3, before=None, after=None), 400, None),
    (exc.KeyTakenError(lookup="A", key="k", target_id=3, expires_at=None), 409, None),
    (exc.ServerUnreachableError(server="s", error=OSError("no")), 503, "5"),
    (exc.BlobTooLargeError(size=2, limit=1), 413, None),
    (exc.CommitUnknownError(server="s"), 503, None),
    (exc.KeyPendingError(lookup="A", key="k", target_id=3), 503, None),
    (OperationalError("SELECT", {}, Exception("unknown column")), 500, None),
    (
        OperationalError("SELECT", {}, Exception("gone"), connection_invalidated=True),
        503,
        "5",
    ),
]


@pytest.mark.parametrize(
    ("error", "status", "after"),
    _ERRORS,
    ids=[f"{type(e).__name__} {s}" for e, s, _ in _ERRORS],
)
def test_errors_have_a_status(app, cluster, error, status, after):
    app.config["SQLA_SHARD_ERRORS"] = True
    FlaskCluster(app, cluster)

    @app.get("/")
    def fail():
        raise error

    @app.errorhandler(503)
    def page(http):
        return f"own page: {http.name}", 503, {"Retry-After": http.retry_after}

    app.testing = False
    response = app.test_client().get("/")
    assert response.status_code == status
    assert ("own page" in response.text) is (status == 503)
    # Messages of errors are for the log only.
    assert "server s" not in response.text
    if status != 503:
        assert "Retry-After" not in response.headers
    elif after is not None:
        assert response.headers["Retry-After"] == after


def test_a_shard_that_is_not_open_is_not_found(app, cluster):
    app.config["SQLA_SHARD_ERRORS"] = True
    db = FlaskCluster(app, cluster)

    @app.get("/<object_id(2):board_id>")
    def show(board_id):
        return db.session.get_one(Board, board_id).title

    client = app.test_client()
    assert client.get(f"/{pack(999, BOARD, 1)}").status_code == 404


def test_errors_are_those_of_flask_by_default(app, db):
    @app.get("/")
    def fail():
        raise exc.CommitUnknownError(server="s")

    with pytest.raises(exc.CommitUnknownError):
        app.test_client().get("/")


# -- repeating --------------------------------------------------------------


def failing(times):
    """Return a function that raises so many times, and counts its calls."""
    calls = []

    def fail():
        calls.append(1)
        if len(calls) <= times:
            raise exc.ShardMovedError(
                keyspace="objects",
                shards=[3],
                from_server="server1",
                to_server="server2",
                epoch=2,
                error=OSError("gone"),
            )

    return fail, calls


def test_reads_are_repeated_with_a_new_session(app, db, cluster, board_id):
    fail, calls = failing(2)
    sessions = []

    @app.route("/", methods=["GET", "POST"])
    @db.repeat_reads
    def show():
        board = db.session.get(Board, board_id)
        sessions.append(db.session)
        if request.method == "GET":
            board.title = "never"
            db.session.flush()
        fail()
        return "done"

    client = app.test_client()
    assert client.get("/").text == "done"
    assert len(calls) == len({id(one) for one in sessions}) == 3
    assert title_of(cluster, board_id) == "Boats"
    assert busy(cluster) == 0
    calls.clear()
    with pytest.raises(exc.ShardMovedError):
        client.post("/")
    assert len(calls) == 1


def test_a_committed_transaction_is_not_repeated(app, db, cluster, board_id):
    fail, calls = failing(9)

    @app.get("/")
    @db.repeat_reads(timeout=30.0)
    def show():
        db.session.get(Board, board_id).title += "!"
        db.session.commit()
        fail()
        return "done"

    with pytest.raises(exc.ShardMovedError):
        app.test_client().get("/")
    assert len(calls) == 1
    assert title_of(cluster, board_id) == "Boats!"


def test_404_is_not_repeated(app, db):
    calls = []

    @app.get("/")
    @db.repeat_reads
    def show():
        calls.append(1)
        db.get_or_404(Board, pack(3, BOARD, 999))

    assert app.test_client().get("/").status_code == 404
    assert len(calls) == 1


# -- numbered pages ---------------------------------------------------------


@pytest.fixture
def boards(cluster):
    def add(session):
        made = [Board(title=f"{number:02}", shard_id=2) for number in range(45)]
        session.add_all(made)
        session.flush()
        return [board.id for board in made]

    return cluster.run(add)


def test_pages(app, db, boards):
    @app.get("/")
    def index():
        ordered = select(Board).where(Board.id.in_(boards)).order_by(Board.id)
        page = db.paginate(ordered, max_per_page=30)
        return {
            "items": [board.title for board in page],
            "page": [page.page, page.per_page, page.total, page.pages],
            "rows": [page.first, page.last],
            "around": [page.prev_num, page.next_num],
            "links": list(page.iter_pages(left_edge=1, right_edge=1)),
        }

    client = app.test_client()
    assert client.get("/").json == {
        "items": [f"{number:02}" for number in range(20)],
        "page": [1, 20, 45, 3],
        "rows": [1, 20],
        "around": [None, 2],
        "links": [1, 2, 3],
    }
    last = client.get("/?page=3").json
    assert (last["items"], last["rows"]) == (
        [f"{number:02}" for number in range(40, 45)],
        [41, 45],
    )
    assert last["around"] == [2, None]
    assert client.get("/?per_page=1000").json["page"] == [1, 30, 45, 2]
    middle = client.get("/?page=20&per_page=2").json
    assert middle["links"] == [1, None, 18, 19, 20, 21, 22, 23]
    for wrong in (
        *("page=4", "page=0", "page=x", "per_page=0", "page=-1", "page="),
        *("page=1_0", "page=%D9%A1", "page=+1", "page=1.0", "page=1e9"),
        f"page={2**31 - 1}&per_page=30",
        f"page={2**31}",
        f"page={'9' * 4000}",
        f"page={'9' * 5000}",
        f"per_page={'9' * 5000}",
    ):
        assert client.get(f"/?{wrong}").status_code == 404, wrong


def test_links_are_chosen_among_any_number_of_pages():
    every = Pagination([1], 5 * 10**17, 1, 10**18)
    assert list(every.iter_pages()) == [
        *(1, 2, None),
        *range(5 * 10**17 - 2, 5 * 10**17 + 5),
        *(None, 10**18 - 1, 10**18),
    ]
    for page, total in ((1, 0), (1, 3), (7, 3), (3, 9), (9, 9)):
        some = Pagination([], page, 1, total)
        assert list(some.iter_pages(left_current=9)) == [*range(1, total + 1)]


def test_pages_beyond_what_scatter_allows(app, db, boards):
    ordered = select(Board).order_by(Board.id).options(scatter(max_offset=20))
    with app.test_request_context("/?page=2"):
        assert len(db.paginate(ordered).items) == 20
    with app.test_request_context("/?page=3"):
        with pytest.raises(NotFound):
            db.paginate(ordered)
        with pytest.raises(exc.ScatterLimitError):
            db.paginate(ordered, error_out=False)


def test_pages_without_an_error_or_a_count(app, db, boards):
    ordered = select(Board).where(Board.id.in_(boards)).order_by(Board.id)
    with app.test_request_context("/?page=x"):
        page = db.paginate(ordered, error_out=False, count=False)
        assert (page.page, page.total, page.pages) == (1, None, 0)
        assert len(page.items) == 20
        assert list(db.paginate(ordered, page=9, error_out=False)) == []
