"""The pages.  Each works without JavaScript, but for dragging."""

from __future__ import annotations

from typing import Any

from flask import Blueprint
from flask import flash
from flask import redirect
from flask import render_template
from flask import request
from flask import url_for
from flask.typing import ResponseReturnValue
from sqlalchemy import select

from examples.pinboard import boards
from examples.pinboard import importing
from examples.pinboard import security
from examples.pinboard.database import db
from examples.pinboard.database import importer
from examples.pinboard.errors import ForbiddenError
from examples.pinboard.errors import InvalidInputError
from examples.pinboard.errors import NotFoundError
from examples.pinboard.inputs import read_board
from examples.pinboard.inputs import read_pin
from examples.pinboard.models import Board
from examples.pinboard.models import Person
from examples.pinboard.models import Pin
from examples.pinboard.models import User
from examples.pinboard.security import require_user
from examples.pinboard.where import where_is

__all__ = ["blueprint"]

blueprint = Blueprint("pages", __name__)


def _form(name: str) -> str:
    return request.form.get(name, "")


def _to(endpoint: str, **values: Any) -> ResponseReturnValue:
    # 303: the browser reads, whatever it did before.
    return redirect(url_for(f"pages.{endpoint}", **values), 303)


# -- users


@blueprint.get("/")
def users() -> ResponseReturnValue:
    """Show the users to choose from."""
    people = db.session.scalars(select(Person).order_by(Person.name)).all()
    return render_template("users.html", people=people)


@blueprint.post("/session")
def choose_user() -> ResponseReturnValue:
    """Sign the chosen user in."""
    name = _form("name")
    person = db.session.get(Person, name) if len(name) <= 50 else None
    if person is None:
        raise NotFoundError("There is no such user.")
    security.choose(person.user_id, person.name)
    return _to("own_boards")


@blueprint.post("/session/leave")
def leave() -> ResponseReturnValue:
    """Sign out."""
    security.leave()
    return _to("users")


# -- boards


@blueprint.get("/boards")
def own_boards() -> ResponseReturnValue:
    """Show the boards of the user."""
    return _boards_page(require_user())


@blueprint.get("/users/<object_id(3):user_id>")
def boards_of(user_id: int) -> ResponseReturnValue:
    """Show the boards of any user."""
    return _boards_page(user_id)


def _boards_page(
    user_id: int, status: int = 200, **more: Any
) -> ResponseReturnValue:
    session = db.session
    owner = boards.find(session, User, user_id)
    after = request.args.get("after")
    tiles, following = boards.board_tiles(session, user_id, after)
    page = render_template(
        "boards.html",
        owner=owner,
        own=security.current_user() == user_id,
        tiles=tiles,
        next=following,
        entered=request.form,
        **more,
    )
    return page, status


@blueprint.post("/boards")
def add_board() -> ResponseReturnValue:
    """Make a board and go there."""
    user_id = require_user()
    try:
        entered = read_board(_form("title"), _form("details"))
    except InvalidInputError as error:
        return _boards_page(user_id, error.status, error=error)
    board_id = db.run(boards.add_board, user_id, entered)
    return _to("board", board_id=board_id)


@blueprint.get("/boards/<object_id(2):board_id>")
def board(board_id: int) -> ResponseReturnValue:
    """Show a board."""
    return _board_page(board_id)


def _board_page(
    board_id: int, status: int = 200, **more: Any
) -> ResponseReturnValue:
    session = db.session
    found = boards.find(session, Board, board_id)
    after = request.args.get("after")
    count, removed = boards.pin_counts(session, board_id)
    page = render_template(
        "board.html",
        board=found,
        owner=boards.find(session, User, found.user_id),
        own=security.current_user() == found.user_id,
        page=boards.pin_page(session, board_id, after),
        after=after,
        count=count,
        removed=removed,
        entered=request.form,
        **more,
    )
    return page, status


@blueprint.post("/boards/<object_id(2):board_id>")
def edit_board(board_id: int) -> ResponseReturnValue:
    """Change title and description of a board."""
    changes = {name: _form(name) for name in ("title", "details")}
    try:
        db.run(boards.edit_board, require_user(), board_id, changes)
    except InvalidInputError as error:
        return _board_page(board_id, error.status, board_error=error)
    return _to("board", board_id=board_id)


def _own(board_id: int, user_id: int) -> Board:
    found = boards.find(db.session, Board, board_id)
    if found.user_id != user_id:
        raise ForbiddenError("This board belongs to somebody else.")
    return found


# -- pins


@blueprint.route(
    "/boards/<object_id(2):board_id>/pins", methods=["GET", "POST"]
)
def add_pin(board_id: int) -> ResponseReturnValue:
    """Put a pin on top of a board.

    A refused one is answered under this address, which the browser then
    shows and may ask for again: there is the board.
    """
    if request.method == "GET":
        return _to("board", board_id=board_id)
    user_id = require_user()
    try:
        entered = read_pin(_form("link"), _form("title"), _form("details"))
    except InvalidInputError as error:
        _own(board_id, user_id)
        return _board_page(board_id, error.status, error=error)
    pin_id = db.run(boards.add_pin, user_id, board_id, entered)
    flash("Pinned.")
    return _to("board", board_id=board_id, _anchor=f"pin-{pin_id}")


@blueprint.get("/pins/<object_id(1):pin_id>/edit")
def pin_form(pin_id: int) -> ResponseReturnValue:
    """Show a pin for editing."""
    return _pin_page(require_user(), pin_id)


def _pin_page(
    user_id: int, pin_id: int, status: int = 200, **more: Any
) -> ResponseReturnValue:
    pin = boards.find(db.session, Pin, pin_id)
    page = render_template(
        "pin_edit.html",
        pin=pin,
        board=_own(pin.board_id, user_id),
        entered=request.form or pin.data,
        **more,
    )
    return page, status


@blueprint.post("/pins/<object_id(1):pin_id>/edit")
def edit_pin(pin_id: int) -> ResponseReturnValue:
    """Change a pin."""
    user_id = require_user()
    changes = {name: _form(name) for name in ("link", "title", "details")}
    try:
        board_id = db.run(boards.edit_pin, user_id, pin_id, changes)
    except InvalidInputError as error:
        return _pin_page(user_id, pin_id, error.status, error=error)
    flash("Saved.")
    return _to("board", board_id=board_id, _anchor=f"pin-{pin_id}")


@blueprint.post("/pins/<object_id(1):pin_id>/remove")
def remove_pin(pin_id: int) -> ResponseReturnValue:
    """Remove a pin; it can be restored."""
    board_id = db.run(boards.remove_pin, require_user(), pin_id)
    flash("Removed. It waits under “Removed”.")
    return _to("board", board_id=board_id)


@blueprint.post("/pins/<object_id(1):pin_id>/restore")
def restore_pin(pin_id: int) -> ResponseReturnValue:
    """Restore a removed pin to its place."""
    board_id = db.run(boards.restore_pin, require_user(), pin_id)
    flash("Restored, where it was.")
    return _to("board", board_id=board_id, _anchor=f"pin-{pin_id}")


@blueprint.get("/boards/<object_id(2):board_id>/removed")
def removed(board_id: int) -> ResponseReturnValue:
    """Show what was removed from a board."""
    found = _own(board_id, require_user())
    return render_template(
        "removed.html",
        board=found,
        pins=boards.removed_pins(db.session, board_id),
        count=boards.pin_counts(db.session, board_id)[1],
    )


# -- importing


@blueprint.get("/import")
def import_form() -> ResponseReturnValue:
    """Show the form for a bookmark file."""
    require_user()
    return _import_page()


def _import_page(status: int = 200, **more: Any) -> ResponseReturnValue:
    page = render_template(
        "import.html",
        max_bytes=security.MAX_UPLOAD,
        max_pins=importing.MAX_PINS,
        **more,
    )
    return page, status


@blueprint.post("/import")
def import_file() -> ResponseReturnValue:
    """Begin an import and go to its progress."""
    user_id = require_user()
    file = request.files.get("file")
    try:
        if file is None or not file.filename:
            raise InvalidInputError("Choose a file.", field="file")
        upload = importing.read_upload(file.stream)
    except InvalidInputError as error:
        return _import_page(error.status, error=error)
    progress = importer().start(user_id, upload)
    return _to("import_progress", key=progress.key)


@blueprint.get("/import/<key>")
def import_progress(key: str) -> ResponseReturnValue:
    """Show how far an import is."""
    progress = importer().progress(key, require_user())
    return _import_page(progress=progress)


# -- where


@blueprint.get("/where/<object_id:object_id>")
def where(object_id: int) -> ResponseReturnValue:
    """Show where an object lives."""
    found = where_is(db.cluster, object_id)
    cls: Any = {"User": User, "Board": Board, "Pin": Pin}[found.kind]
    instance = boards.find(
        db.session,
        cls,
        object_id,
        execution_options={"include_inactive": True},
    )
    if isinstance(instance, Pin) and not instance.active:
        # Removed pins are shown to the owner of their board only.
        _own(instance.board_id, require_user())
    return render_template(
        "where.html", where=found, object=instance, position=_place(instance)
    )


def _place(instance: Any) -> int | None:
    if isinstance(instance, Pin):
        return boards.position_of(db.session, instance)
    return None
