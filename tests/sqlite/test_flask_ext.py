"""The Flask extension: sessions of contexts, and setting it up."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from flask import abort, copy_current_request_context, Flask, stream_with_context

from sqla_shard import Cluster, ShardSession, Topology
from sqla_shard.exc import (
    BookmarkKeyError,
    ExtensionSetupError,
    MissingExtraError,
    TopologyError,
)
from sqla_shard.ext.flask import FlaskCluster
from sqla_shard.testing import sqlite_topology
from tests.models.flask_app import add_board, Board, busy, flask_fixtures, title_of

app, cluster, db, board_id = flask_fixtures()


@pytest.fixture
def opened(cluster, monkeypatch):
    """Note each session that is opened, and whether it was closed."""
    found = []
    open_session = cluster.session

    def session(**options):
        made = open_session(**options)
        made.info["closed"] = 0
        close = made.close

        def counting():
            made.info["closed"] += 1
            close()

        made.close = counting
        found.append(made)
        return made

    monkeypatch.setattr(cluster, "session", session)
    return found


# -- the session of a context ----------------------------------------------


def test_each_request_has_one_session_and_closes_it(app, db, opened):
    @app.get("/")
    def index():
        assert isinstance(db.session, ShardSession)
        assert db.session is db.session
        return str(id(db.session.info))

    client = app.test_client()
    client.get("/")
    assert [s.info["closed"] for s in opened] == [1]
    client.get("/")
    assert [s.info["closed"] for s in opened] == [1, 1]
    assert opened[0] is not opened[1]


def test_no_session_is_opened_where_none_is_used(app, db, opened):
    @app.get("/")
    def index():
        return str(db.cluster.topology.epoch)

    assert app.test_client().get("/").text == "1"
    assert app.test_client().get("/nothing").status_code == 404
    assert opened == []


def test_nothing_is_committed_by_itself(app, db, cluster, board_id):
    @app.post("/<title>")
    def rename(title):
        db.session.get(Board, board_id).title = title
        db.session.flush()
        return ""

    assert app.test_client().post("/Ships").status_code == 200
    assert title_of(cluster, board_id) == "Boats"
    assert busy(cluster) == 0


def test_committed_rows_stay(app, db, cluster, board_id):
    @app.post("/<title>")
    def rename(title):
        db.session.get(Board, board_id).title = title
        db.session.commit()
        db.session.get(Board, board_id).title = "not this"
        db.session.flush()
        return ""

    app.test_client().post("/Ships")
    assert title_of(cluster, board_id) == "Ships"
    assert busy(cluster) == 0


@pytest.mark.parametrize("testing", [True, False])
def test_closed_after_an_exception(app, db, cluster, board_id, opened, testing):
    app.testing = testing

    @app.get("/")
    def fail():
        db.session.get(Board, board_id).title = "never"
        db.session.flush()
        raise LookupError("the view failed")

    @app.get("/aborted")
    def aborted():
        db.session.get(Board, board_id)
        abort(418)

    client = app.test_client()
    if testing:
        with pytest.raises(LookupError, match="the view failed"):
            client.get("/")
    else:
        assert client.get("/").status_code == 500
    assert client.get("/aborted").status_code == 418
    assert [s.info["closed"] for s in opened] == [1, 1]
    assert busy(cluster) == 0
    assert title_of(cluster, board_id) == "Boats"


def test_error_handlers_and_teardown_functions_may_use_it(
    app, db, cluster, board_id, opened
):
    seen = []

    @app.errorhandler(LookupError)
    def sorry(error):
        return db.session.get(Board, board_id).title, 404

    @app.teardown_request
    def late(error):
        seen.append(db.session.get(Board, board_id).title)

    @app.get("/")
    def fail():
        db.session.get(Board, board_id)
        raise LookupError

    answer = app.test_client().get("/")
    assert (answer.status_code, answer.text) == (404, "Boats")
    assert seen == ["Boats"]
    assert [s.info["closed"] for s in opened] == [1]
    assert busy(cluster) == 0


def test_nested_contexts_have_sessions_of_their_own(app, db, opened):
    with app.app_context():
        outer = db.session
        with app.app_context():
            assert db.session is not outer
        assert [s.info["closed"] for s in opened] == [0, 1]
        assert db.session is outer
    assert [s.info["closed"] for s in opened] == [1, 1]


def test_a_context_that_begins_again_gets_a_new_session(app, db, opened):
    context = app.app_context()
    with context:
        first = db.session
        with context:
            assert db.session is first
        assert first.info["closed"] == 0
    with context:
        assert db.session is not first
    assert [s.info["closed"] for s in opened] == [1, 1]


def test_a_streamed_answer_keeps_its_session(app, db, cluster, board_id, opened):
    @app.get("/")
    def stream():
        def parts():
            for _ in range(3):
                yield db.session.get(Board, board_id).title

        return app.response_class(stream_with_context(parts()))

    assert app.test_client().get("/").text == "BoatsBoatsBoats"
    assert [s.info["closed"] for s in opened] == [1]
    assert busy(cluster) == 0


def test_two_applications_of_one_extension(tmp_path):
    db = FlaskCluster()
    found = []
    for number in (1, 2):
        app = Flask(f"app{number}")
        document = sqlite_topology(tmp_path / str(number), shards=2)
        app.config["SQLA_SHARD_TOPOLOGY"] = {**document, "epoch": number}
        db.init_app(app)
        found.append(app)
    with found[0].app_context():
        outer = db.session
        with found[1].app_context():
            assert db.cluster.topology.epoch == 2
            assert db.session is not outer
        assert db.cluster.topology.epoch == 1
        assert outer.cluster is db.cluster
        db.cluster.close(timeout=0)


def test_an_application_can_be_collected(cluster):
    db = FlaskCluster(cluster=cluster)
    db.init_app(Flask("gone"))
    gc.collect()
    assert len(db._clusters) == 0


# -- threads ---------------------------------------------------------------


def test_requests_at_the_same_time_share_nothing(app, db, cluster, board_id, opened):
    together = threading.Barrier(4, timeout=60)

    @app.get("/")
    def index():
        db.session.get(Board, board_id)
        together.wait()
        return str(id(db.session))

    def ask(_):
        return app.test_client().get("/").text

    with ThreadPoolExecutor(4) as executor:
        answers = list(executor.map(ask, range(4)))
    assert len(set(answers)) == 4
    assert {str(id(s)) for s in opened} == set(answers)
    assert [s.info["closed"] for s in opened] == [1] * 4
    assert busy(cluster) == 0


def test_a_thread_of_a_view_begins_its_own_context(app, db, opened):
    @app.get("/")
    def index():
        outer = db.session
        with ThreadPoolExecutor(1) as executor:
            with pytest.raises(RuntimeError, match="application context"):
                executor.submit(lambda: db.session).result()
            copied = copy_current_request_context(lambda: db.session)
            assert executor.submit(copied).result() is not outer
        return ""

    assert app.test_client().get("/").status_code == 200
    assert [s.info["closed"] for s in opened] == [1, 1]


# -- run -------------------------------------------------------------------


def test_run_is_a_transaction_of_its_own(app, db, cluster, board_id, opened):
    def rename(session, key, *, title):
        assert session is not db.session
        session.get(Board, key).title = title
        return "done"

    @app.post("/")
    def index():
        return db.run(rename, board_id, title="Ships", attempts=2)

    assert app.test_client().post("/").text == "done"
    assert title_of(cluster, board_id) == "Ships"


# -- setting up ------------------------------------------------------------


def test_from_a_topology_file(app, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "topology.toml").write_text(
        "epoch = 8\n"
        "[keyspaces.main]\n"
        'kind = "global"\n'
        'database = "main"\n'
        "[[keyspaces.main.servers]]\n"
        'name = "main"\n'
        'primary = "mysql://app:${SHOP_PASSWORD}@127.0.0.1:9"\n'
    )
    app.config.from_mapping(
        SQLA_SHARD_TOPOLOGY="topology.toml",
        SQLA_SHARD_OPTIONS={
            "placeholders": ["SHOP_PASSWORD"],
            "environ": {"SHOP_PASSWORD": "secret"},
            "session_options": {"expire_on_commit": False},
        },
    )
    db = FlaskCluster(app)
    assert app.extensions["sqla_shard"] is db
    with app.app_context():
        assert db.cluster.topology.epoch == 8
        assert not db.session.expire_on_commit


def test_from_a_topology_in_the_configuration(app, tmp_path):
    topology = Topology.from_mapping(sqlite_topology(tmp_path))
    app.config["SQLA_SHARD_TOPOLOGY"] = topology
    db = FlaskCluster(app)
    with app.app_context():
        assert db.cluster.topology.epoch == 1


def test_keys_of_bookmarks_in_the_configuration(app, tmp_path):
    options = {"bookmark_keys": ["${KEY}"], "environ": {"KEY": "short"}}
    app.config.from_mapping(
        SQLA_SHARD_TOPOLOGY=sqlite_topology(tmp_path), SQLA_SHARD_OPTIONS=options
    )
    with pytest.raises(BookmarkKeyError, match="5 bytes") as caught:
        FlaskCluster(app)
    assert "short" not in str(caught.value)
    options["environ"] = {"KEY": "a key of 32 bytes, or of more"}
    db = FlaskCluster(app)
    with app.app_context():
        assert repr(db.cluster.seal) == "<Seal with 1 keys>"


def test_a_cluster_comes_before_the_configuration(app, cluster):
    app.config["SQLA_SHARD_TOPOLOGY"] = "missing.toml"
    with Cluster.from_topology(cluster.topology) as other:
        db = FlaskCluster(cluster=other)
        db.init_app(app, cluster)
        another = Flask("another")
        db.init_app(another)
        with app.app_context():
            assert db.cluster is cluster
        with another.app_context():
            assert db.cluster is other


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "'shop' has no topology; set SQLA_SHARD_TOPOLOGY"),
        ({"SQLA_SHARD_TOPOLOGY": ""}, "has no topology"),
        ({"SQLA_SHARD_TOPOLOGY": 7}, "a path or a topology, not int"),
        (
            {"SQLA_SHARD_TOPOLOGY": "t.toml", "SQLA_SHARD_OPTIONS": "x"},
            "must be a mapping, not str",
        ),
    ],
)
def test_configurations_that_are_refused(app, config, message):
    app.config.from_mapping(config)
    with pytest.raises(ExtensionSetupError, match=message) as caught:
        FlaskCluster(app)
    assert caught.value.app == "shop"
    assert "sqla_shard" not in app.extensions


def test_a_topology_that_cannot_be_used_is_known_at_once(app, tmp_path):
    app.config["SQLA_SHARD_TOPOLOGY"] = tmp_path / "missing.toml"
    with pytest.raises(TopologyError, match=r"missing\.toml"):
        FlaskCluster(app)


def test_an_application_that_was_not_set_up(app, cluster):
    db = FlaskCluster(cluster=cluster)
    with app.app_context():
        for use in (
            lambda: db.session,
            lambda: db.cluster,
            lambda: db.run(add_board, 1),
        ):
            with pytest.raises(ExtensionSetupError, match="'shop' is not set"):
                use()


def test_two_extensions_on_one_application(app, db, cluster):
    with pytest.raises(ExtensionSetupError, match="has a FlaskCluster"):
        FlaskCluster(app, cluster)
    with pytest.raises(ExtensionSetupError, match="has a FlaskCluster"):
        db.init_app(app)
    other = FlaskCluster(cluster=cluster)
    with app.app_context():
        assert db.session
        with pytest.raises(ExtensionSetupError, match="not set up"):
            _ = other.session


def test_without_a_context_flask_says_so(db):
    with pytest.raises(RuntimeError, match="application context"):
        _ = db.session


def test_without_flask_the_extra_is_named():
    program = (
        "import sys\n"
        "sys.modules['flask'] = None\n"
        "import sqla_shard, sqla_shard.ext\n"
        "from sqla_shard.exc import MissingExtraError\n"
        "try:\n"
        "    import sqla_shard.ext.flask\n"
        "except MissingExtraError as error:\n"
        "    print(error.package, error.extra, error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("Flask flask Flask cannot be imported")
    assert "pip install 'sqla-shard[flask]'" in done.stdout
    assert issubclass(MissingExtraError, ImportError)


def test_fastapi_needs_no_flask_and_the_extra_is_named():
    program = (
        "import sys\n"
        "sys.modules['flask'] = sys.modules['werkzeug'] = None\n"
        "import sqla_shard.ext.fastapi\n"
        "del sys.modules['sqla_shard.ext.fastapi']\n"
        "sys.modules['fastapi'] = None\n"
        "from sqla_shard.exc import MissingExtraError\n"
        "try:\n"
        "    import sqla_shard.ext.fastapi\n"
        "except MissingExtraError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("FastAPI cannot be imported")
    assert "pip install 'sqla-shard[fastapi]'" in done.stdout
