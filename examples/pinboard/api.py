"""JSON API, for the scripts of the pages and for programs.

Ids, positions and bookmarks are strings, since ids and positions exceed
``2**53``.  Errors are ``{"error": {"code", "message"}}`` with a fitting
status, and ``field`` where an input is wrong.  Writes need the header
``X-CSRF-Token`` with the content of ``<meta name="csrf-token">`` of a page,
and a user who is signed in by ``POST /session``, a form with ``email``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from flask import Blueprint, jsonify, request, Response, url_for
from flask.typing import ResponseReturnValue

from examples.pinboard import boards, importing, relations
from examples.pinboard.database import db
from examples.pinboard.errors import ForbiddenError, InvalidInputError, MalformedError
from examples.pinboard.import_jobs import progress_of, start_import
from examples.pinboard.inputs import read_board, read_pin, read_user
from examples.pinboard.models import Board, Pin, User
from examples.pinboard.security import require_user
from examples.pinboard.showing import board_json, owned_json, pin_json, user_json
from examples.pinboard.signing_up import sign_up
from examples.pinboard.where import where_is

blueprint = Blueprint("api", __name__, url_prefix="/api")


def _body() -> dict[str, Any]:
    """Return the JSON object of the request.

    :raises MalformedError: when it is not a JSON object.
    """
    try:
        body = request.get_json(silent=True)
    except RecursionError:  # thousands of lists inside each other
        body = None
    if not isinstance(body, dict):
        raise MalformedError("The body must be a JSON object.")
    return body


def _changes(*names: str) -> dict[str, str]:
    body = _body()
    return {name: _text(body, name) for name in names if name in body}


def _text(body: dict[str, Any], name: str) -> str:
    value = body.get(name, "")
    if not isinstance(value, str):
        raise MalformedError(f"{name!r} is to be a string.")
    return value


def _id(body: dict[str, Any], name: str) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    # As a JSON number it may have lost its last digits.
    if not isinstance(value, str) or not re.fullmatch("[0-9]{1,19}", value):
        raise MalformedError(f"{name!r} is to be an id, as a string.")
    return int(value)


# -- users


@blueprint.post("/users")
def add_user() -> ResponseReturnValue:
    """Create a user with ``email`` and ``name``, without signing in."""
    body = _body()
    entered = read_user(_text(body, "email"), _text(body, "name"))
    user_id = sign_up(db.cluster, entered)
    return jsonify(user_json(boards.find(db.session, User, user_id))), 201


@blueprint.get("/users/<object_id(3):user_id>")
def user(user_id: int) -> ResponseReturnValue:
    """Return a user."""
    return jsonify(user_json(boards.find(db.session, User, user_id)))


@blueprint.get("/users/<object_id(3):user_id>/followed")
def list_followed(user_id: int) -> ResponseReturnValue:
    """Return the boards that a user follows, the latest first."""
    boards.find(db.session, User, user_id)
    found = relations.followed_boards(db.session, user_id)
    return jsonify(boards=[owned_json(one) for one in found])


@blueprint.put("/users/<object_id(3):user_id>/follow")
def follow_user(user_id: int) -> ResponseReturnValue:
    """Follow all boards of a user, now and later."""
    _change(relations.follow_user, user_id)
    return "", 204


@blueprint.delete("/users/<object_id(3):user_id>/follow")
def unfollow_user(user_id: int) -> ResponseReturnValue:
    """Unfollow a user and all boards of the user."""
    _change(relations.unfollow_user, user_id)
    return "", 204


@blueprint.get("/home")
def list_home() -> ResponseReturnValue:
    """Return new pins of all that the user follows, a page at a time."""
    found = relations.home_page(db.session, require_user(), request.args.get("after"))
    pins = [
        {**pin_json(one.pin), "board": one.board.title, "user": user_json(one.owner)}
        for one in found.pins
    ]
    return jsonify(pins=pins, next=found.next, hidden=found.hidden)


# -- boards


@blueprint.get("/boards")
def list_boards() -> ResponseReturnValue:
    """Return the boards of the user, a page at a time."""
    tiles, following = boards.board_tiles(
        db.session, require_user(), request.args.get("after")
    )
    found = [board_json(tile.board, tile.count) for tile in tiles]
    return jsonify(boards=found, next=following)


@blueprint.post("/boards")
def add_board() -> ResponseReturnValue:
    """Make a board."""
    user_id, body = require_user(), _body()
    entered = read_board(_text(body, "title"), _text(body, "details"))
    board_id = db.run(boards.add_board, user_id, entered)
    return _board(board_id), 201


@blueprint.get("/boards/<object_id(2):board_id>")
def board(board_id: int) -> ResponseReturnValue:
    """Return a board."""
    return _board(board_id)


@blueprint.patch("/boards/<object_id(2):board_id>")
def edit_board(board_id: int) -> ResponseReturnValue:
    """Change title or description of a board."""
    user_id, changes = require_user(), _changes("title", "details")
    db.run(boards.edit_board, user_id, board_id, changes)
    return _board(board_id)


def _board(board_id: int) -> Response:
    session = db.session
    found = boards.find(session, Board, board_id)
    count, removed = boards.pin_counts(session, board_id)
    more = {"removed": removed, "followers": relations.followers(session, found)}
    return jsonify({**board_json(found, count), **more})


@blueprint.put("/boards/<object_id(2):board_id>/follow")
def follow(board_id: int) -> ResponseReturnValue:
    """Follow a board."""
    _change(relations.follow, board_id)
    return "", 204


@blueprint.delete("/boards/<object_id(2):board_id>/follow")
def unfollow(board_id: int) -> ResponseReturnValue:
    """Unfollow a board."""
    _change(relations.unfollow, board_id)
    return "", 204


def _change(change: Callable[..., None], target_id: int) -> None:
    """Follow or unfollow as the current user."""
    db.run(change, require_user(), target_id, cross_shard="logged")


@blueprint.get("/boards/<object_id(2):board_id>/saved")
def list_saved(board_id: int) -> ResponseReturnValue:
    """Return the pins of other boards that were saved on a board."""
    boards.find(db.session, Board, board_id)
    found = relations.saved_pins(db.session, board_id)
    return jsonify(pins=[pin_json(pin) for pin in found])


@blueprint.put("/boards/<object_id(2):board_id>/saved/<object_id(1):pin_id>")
def save_pin(board_id: int, pin_id: int) -> ResponseReturnValue:
    """Save a pin on a board of the user."""
    db.run(relations.save_pin, require_user(), board_id, pin_id)
    return "", 204


@blueprint.delete("/boards/<object_id(2):board_id>/saved/<object_id(1):pin_id>")
def take_off(board_id: int, pin_id: int) -> ResponseReturnValue:
    """Remove a saved pin from a board of the user."""
    db.run(relations.take_off, require_user(), board_id, pin_id)
    return "", 204


@blueprint.get("/boards/<object_id(2):board_id>/pins")
def list_pins(board_id: int) -> ResponseReturnValue:
    """Return the pins of a board in order, a page at a time."""
    session = db.session
    boards.find(session, Board, board_id)
    page = boards.pin_page(session, board_id, request.args.get("after"))
    return jsonify(pins=[pin_json(pin) for pin in page.pins], next=page.next)


@blueprint.get("/boards/<object_id(2):board_id>/removed")
def list_removed(board_id: int) -> ResponseReturnValue:
    """Return the pins that were removed from a board."""
    user_id, session = require_user(), db.session
    if boards.find(session, Board, board_id).user_id != user_id:
        raise ForbiddenError("This board belongs to another user.")
    found = boards.removed_pins(session, board_id)
    return jsonify(pins=[pin_json(pin) for pin in found])


@blueprint.post("/boards/<object_id(2):board_id>/moves")
def move(board_id: int) -> ResponseReturnValue:
    """Put ``pin`` between ``before`` and ``after``, or next to one."""
    user_id, body = require_user(), _body()
    pin_id = _id(body, "pin")
    before, after = _id(body, "before"), _id(body, "after")
    if pin_id is None or (before is None and after is None):
        raise MalformedError("A move needs a pin and a neighbour.")
    sequence = db.run(boards.move_pin, user_id, board_id, pin_id, before, after)
    return jsonify(id=str(pin_id), sequence=str(sequence))


# -- pins


@blueprint.post("/boards/<object_id(2):board_id>/pins")
def add_pin(board_id: int) -> ResponseReturnValue:
    """Put a pin on top of a board."""
    user_id, body = require_user(), _body()
    entered = read_pin(
        _text(body, "link"), _text(body, "title"), _text(body, "details")
    )
    pin_id = db.run(boards.add_pin, user_id, board_id, entered)
    return _pin(pin_id), 201


@blueprint.get("/pins/<object_id(1):pin_id>")
def pin(pin_id: int) -> ResponseReturnValue:
    """Return a pin."""
    return _pin(pin_id)


@blueprint.patch("/pins/<object_id(1):pin_id>")
def edit_pin(pin_id: int) -> ResponseReturnValue:
    """Change link, title or description of a pin."""
    user_id, changes = require_user(), _changes("link", "title", "details")
    db.run(boards.edit_pin, user_id, pin_id, changes)
    return _pin(pin_id)


@blueprint.delete("/pins/<object_id(1):pin_id>")
def remove_pin(pin_id: int) -> ResponseReturnValue:
    """Remove a pin; it can be restored."""
    db.run(boards.remove_pin, require_user(), pin_id)
    return "", 204


@blueprint.post("/pins/<object_id(1):pin_id>/restore")
def restore_pin(pin_id: int) -> ResponseReturnValue:
    """Restore a removed pin to its place."""
    db.run(boards.restore_pin, require_user(), pin_id)
    return _pin(pin_id)


@blueprint.get("/pins/<object_id(1):pin_id>/boards")
def list_holders(pin_id: int) -> ResponseReturnValue:
    """Return the boards that hold a pin, its own first."""
    found = relations.boards_that_hold(db.session, boards.find(db.session, Pin, pin_id))
    return jsonify(boards=[owned_json(one) for one in found])


def _pin(pin_id: int) -> Response:
    return jsonify(pin_json(boards.find(db.session, Pin, pin_id)))


# -- the rest


@blueprint.post("/imports")
def import_file() -> ResponseReturnValue:
    """Store the bookmark file ``file`` for a job to import."""
    user_id = require_user()
    file = request.files.get("file")
    if file is None or not file.filename:
        raise InvalidInputError("Choose a file.", field="file")
    upload = importing.read_upload(file.stream)
    import_id = db.run(start_import, user_id, upload)
    progress = progress_of(db.session, user_id, import_id)
    location = url_for("api.import_progress", import_id=import_id)
    return jsonify(progress.as_json()), 202, {"Location": location}


@blueprint.get("/imports/<object_id(4):import_id>")
def import_progress(import_id: int) -> ResponseReturnValue:
    """Return the progress of an import."""
    progress = progress_of(db.session, require_user(), import_id)
    return jsonify(progress.as_json())


@blueprint.get("/where/<object_id:object_id>")
def where(object_id: int) -> ResponseReturnValue:
    """Return the location of an object, if it exists."""
    return jsonify(where_is(db.cluster, object_id).as_json())
