"""Object ids in the URLs of a Flask application."""

from __future__ import annotations

import pytest
from flask import abort, url_for
from werkzeug.routing import BaseConverter

from sqla_shard import pack
from sqla_shard.exc import InvalidIdError, WrongTypeError
from sqla_shard.ext.flask import FlaskCluster
from sqla_shard.ids import MAX_ID
from tests.models.flask_app import BOARD, Board, flask_fixtures

PIN = 1

app, cluster, db, board_id = flask_fixtures()


@pytest.fixture
def client(app, db):
    @app.get("/any/<object_id:key>")
    def of_any_type(key):
        assert type(key) is int
        return f"id {key}"

    @app.get(f"/board/<object_id({BOARD}):key>")
    def of_boards(key):
        return f"board {key}"

    @app.get("/board/<name>")
    def by_name(name):
        return f"name {name}"

    return app.test_client()


@pytest.mark.parametrize(
    "key", [pack(0, 1, 0), pack(0, 1, 1), pack(65535, 1023, 1), MAX_ID]
)
def test_ids_in_urls(client, key):
    assert client.get(f"/any/{key}").text == f"id {key}"
    with client.application.test_request_context():
        assert url_for("of_any_type", key=key) == f"/any/{key}"


@pytest.mark.parametrize(
    "text",
    [
        "0",
        "7",  # a local id
        "-7",
        "+68719476737",
        "068719476737",
        "68719476737.0",
        " 68719476737",
        "6_8719476737",
        "\N{ARABIC-INDIC DIGIT SEVEN}" * 12,
        str(MAX_ID + 1),
        str(2**63),
        "9" * 19,
        "9" * 4000,
        "boats",
    ],
)
def test_an_invalid_id_is_not_found(client, text):
    assert client.get(f"/any/{text}").status_code == 404


def test_random_numbers_in_urls(client, rng):
    for _ in range(200):
        number = rng.getrandbits(rng.randrange(1, 70))
        found = client.get(f"/any/{number}")
        is_id = number <= MAX_ID and number >> 36 & 1023
        assert found.status_code == (200 if is_id else 404)


def test_ids_of_one_type(client):
    board, pin = pack(3, BOARD, 7), pack(3, PIN, 7)
    assert client.get(f"/board/{board}").text == f"board {board}"
    assert client.get(f"/board/{pin}").status_code == 404
    # Ids come before strings, which stay possible.
    assert client.get("/board/boats").text == "name boats"
    with client.application.test_request_context():
        assert url_for("of_boards", key=board) == f"/board/{board}"


def test_urls_of_wrong_ids_are_refused(client):
    with client.application.test_request_context():
        with pytest.raises(WrongTypeError, match="holds ids of type 2"):
            url_for("of_boards", key=pack(3, PIN, 7))
        for wrong in (-1, MAX_ID + 1, "68719476737", None, True):
            with pytest.raises((InvalidIdError, LookupError)):
                url_for("of_any_type", key=wrong)


@pytest.mark.parametrize("type_id", ["0", "1024", "Board", "'2'", "True"])
def test_types_that_do_not_exist(app, db, type_id):
    with pytest.raises(InvalidIdError, match="type_id"):
        app.add_url_rule(f"/<object_id({type_id}):key>", "x")


def test_a_converter_of_the_application_stays(app, cluster):
    class Own(BaseConverter):
        pass

    app.url_map.converters["object_id"] = Own
    FlaskCluster(app, cluster)
    assert app.url_map.converters["object_id"] is Own


def test_an_object_by_its_url(app, db, board_id):
    @app.get(f"/<object_id({BOARD}):board_id>")
    def board(board_id):
        found = db.session.get(Board, board_id)
        return found.title if found else abort(404)

    client = app.test_client()
    assert client.get(f"/{board_id}").text == "Boats"
    assert client.get(f"/{board_id + 999}").status_code == 404
