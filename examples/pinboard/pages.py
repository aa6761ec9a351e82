"""The pages.  All but dragging works without JavaScript."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from flask import (
    Blueprint,
    flash,
    redirect,
    render_template,
    request,
    session as cookie,
    url_for,
)
from flask.typing import ResponseReturnValue

from examples.pinboard import boards, importing, relations, security
from examples.pinboard.accounts import sign_in
from examples.pinboard.database import db
from examples.pinboard.errors import ForbiddenError, InvalidInputError, MalformedError
from examples.pinboard.import_jobs import progress_of, start_import
from examples.pinboard.inputs import read_board, read_pin, read_user
from examples.pinboard.models import Board, Pin, User
from examples.pinboard.samples import email_of, reachable_samples
from examples.pinboard.security import require_user
from examples.pinboard.signing_up import sign_up
from examples.pinboard.where import related_rows, where_is

blueprint = Blueprint("pages", __name__)


def _form(name: str) -> str:
    return request.form.get(name, "")


def _to(endpoint: str, **values: Any) -> ResponseReturnValue:
    # 303: the browser sends a GET, whatever it sent before.
    return redirect(url_for(f"pages.{endpoint}", **values), 303)


# -- users


@blueprint.get("/")
def users() -> ResponseReturnValue:
    """Show the sign-in form, and the sample users to choose from."""
    return _users_page()


def _users_page(status: int = 200, **more: Any) -> ResponseReturnValue:
    users, silent = reachable_samples(db.session)
    page = render_template(
        "users.html",
        people=[(email_of(user.name), user) for user in users],
        silent=silent,
        entered=request.form,
        **more,
    )
    return page, status


@blueprint.post("/session")
def choose_user() -> ResponseReturnValue:
    """Sign in the user of an address."""
    try:
        user = sign_in(db.session, _form("email"))
    except InvalidInputError as error:
        return _users_page(error.status, error=error)
    security.choose(user.id, user.name)
    return _to("own_boards")


@blueprint.get("/sign-up")
def sign_up_form() -> ResponseReturnValue:
    """Show the sign-up form."""
    return _sign_up_page()


def _sign_up_page(status: int = 200, **more: Any) -> ResponseReturnValue:
    page = render_template("sign_up.html", entered=request.form, **more)
    return page, status


@blueprint.post("/sign-up")
def add_user() -> ResponseReturnValue:
    """Create a user, and sign in."""
    try:
        entered = read_user(_form("email"), _form("name"))
        user_id = sign_up(db.cluster, entered)
    except InvalidInputError as error:
        return _sign_up_page(error.status, error=error)
    security.choose(user_id, entered.name)
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


def _boards_page(user_id: int, status: int = 200, **more: Any) -> ResponseReturnValue:
    session = db.session
    owner = boards.find(session, User, user_id)
    after = request.args.get("after")
    reader = security.current_user()
    tiles, following = boards.board_tiles(session, user_id, after)
    page = render_template(
        "boards.html",
        owner=owner,
        own=reader == user_id,
        tiles=tiles,
        next=following,
        followed=relations.followed_boards(session, user_id),
        people=relations.followed_users(session, user_id),
        counts=relations.counts(session, user_id),
        follows=reader is not None
        and reader != user_id
        and relations.follows_user(session, reader, user_id),
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


def _board_page(board_id: int, status: int = 200, **more: Any) -> ResponseReturnValue:
    session = db.session
    found = boards.find(session, Board, board_id)
    after = request.args.get("after")
    count, removed = boards.pin_counts(session, board_id)
    user_id = security.current_user()
    own = user_id == found.user_id
    page = render_template(
        "board.html",
        board=found,
        owner=boards.find(session, User, found.user_id),
        own=own,
        followers=relations.followers(session, found),
        follows=user_id is not None
        and not own
        and relations.follows(session, user_id, found),
        saved=relations.saved_pins(session, board_id),
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


@blueprint.post("/boards/<object_id(2):board_id>/follow")
def follow(board_id: int) -> ResponseReturnValue:
    """Follow a board."""
    _change(relations.follow, board_id)
    return _to("board", board_id=board_id)


@blueprint.post("/boards/<object_id(2):board_id>/unfollow")
def unfollow(board_id: int) -> ResponseReturnValue:
    """Unfollow a board."""
    _change(relations.unfollow, board_id)
    return _to("board", board_id=board_id)


@blueprint.post("/users/<object_id(3):user_id>/follow")
def follow_user(user_id: int) -> ResponseReturnValue:
    """Follow all boards of a user."""
    _change(relations.follow_user, user_id)
    return _to("boards_of", user_id=user_id)


@blueprint.post("/users/<object_id(3):user_id>/unfollow")
def unfollow_user(user_id: int) -> ResponseReturnValue:
    """Unfollow a user and all boards of the user."""
    _change(relations.unfollow_user, user_id)
    return _to("boards_of", user_id=user_id)


def _change(change: Callable[..., None], target_id: int) -> None:
    """Follow or unfollow as the current user."""
    db.run(change, require_user(), target_id, cross_shard="logged")


@blueprint.get("/home")
def home() -> ResponseReturnValue:
    """Show new pins of all that the user follows."""
    user_id, after = require_user(), request.args.get("after")
    found = relations.home_page(db.session, user_id, after)
    seen = float(cookie.get("seen", 0))
    return render_template(
        "home.html",
        home=found,
        after=after,
        fresh=sum(
            one.at.timestamp() > seen for one in relations.notices(db.session, user_id)
        ),
    )


@blueprint.get("/notifications")
def notifications() -> ResponseReturnValue:
    """Show the followers of the user, newest first."""
    found = relations.notices(db.session, require_user())
    seen = float(cookie.get("seen", 0))
    if found:
        cookie["seen"] = found[0].at.timestamp()
    return render_template("notifications.html", notices=found, seen=seen)


def _own(board_id: int, user_id: int) -> Board:
    found = boards.find(db.session, Board, board_id)
    if found.user_id != user_id:
        raise ForbiddenError("This board belongs to another user.")
    return found


# -- pins


@blueprint.route("/boards/<object_id(2):board_id>/pins", methods=["GET", "POST"])
def add_pin(board_id: int) -> ResponseReturnValue:
    """Put a pin on top of a board.

    The response to a refused pin has this address, which the browser may
    request again: a GET shows the board.
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


@blueprint.get("/pins/<object_id(1):pin_id>")
def pin(pin_id: int) -> ResponseReturnValue:
    """Show a pin, and the boards that hold it."""
    found = boards.find(db.session, Pin, pin_id)
    user_id = security.current_user()
    return render_template(
        "pin.html",
        pin=found,
        boards=relations.boards_that_hold(db.session, found),
        mine=[]
        if user_id is None
        else relations.boards_to_save_on(db.session, user_id, found),
    )


@blueprint.post("/pins/<object_id(1):pin_id>/save")
def save_pin(pin_id: int) -> ResponseReturnValue:
    """Save a pin on a board of the user."""
    user_id, board = require_user(), _form("board")
    if not re.fullmatch("[0-9]{1,19}", board):
        raise MalformedError("Choose a board.")
    db.run(relations.save_pin, user_id, int(board), pin_id)
    flash("Saved.")
    return _to("pin", pin_id=pin_id)


@blueprint.post("/boards/<object_id(2):board_id>/saved/<object_id(1):pin_id>/remove")
def take_off(board_id: int, pin_id: int) -> ResponseReturnValue:
    """Remove a saved pin from a board."""
    db.run(relations.take_off, require_user(), board_id, pin_id)
    flash("Removed from this board. It is still on its own board.")
    return _to("board", board_id=board_id)


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
    flash("Removed. You can restore it under “Removed”.")
    return _to("board", board_id=board_id)


@blueprint.post("/pins/<object_id(1):pin_id>/restore")
def restore_pin(pin_id: int) -> ResponseReturnValue:
    """Restore a removed pin to its place."""
    board_id = db.run(boards.restore_pin, require_user(), pin_id)
    flash("Restored to its place.")
    return _to("board", board_id=board_id, _anchor=f"pin-{pin_id}")


@blueprint.get("/boards/<object_id(2):board_id>/removed")
def removed(board_id: int) -> ResponseReturnValue:
    """Show the pins that were removed from a board."""
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
    """Store a file for the job that imports it, and go to its progress."""
    user_id = require_user()
    file = request.files.get("file")
    try:
        if file is None or not file.filename:
            raise InvalidInputError("Choose a file.", field="file")
        upload = importing.read_upload(file.stream)
    except InvalidInputError as error:
        return _import_page(error.status, error=error)
    import_id = db.run(start_import, user_id, upload)
    return _to("import_progress", import_id=import_id)


@blueprint.get("/import/<object_id(4):import_id>")
def import_progress(import_id: int) -> ResponseReturnValue:
    """Show the progress of an import."""
    progress = progress_of(db.session, require_user(), import_id)
    return _import_page(progress=progress)


# -- locations


@blueprint.get("/where/<object_id:object_id>")
def where(object_id: int) -> ResponseReturnValue:
    """Show the location of an object."""
    found = where_is(db.cluster, object_id)
    cls: Any = {"User": User, "Board": Board, "Pin": Pin}[found.kind]
    instance = boards.find(
        db.session, cls, object_id, execution_options={"include_inactive": True}
    )
    if isinstance(instance, Pin) and not instance.active:
        # Removed pins are shown to the owner of their board only.
        _own(instance.board_id, require_user())
    return render_template(
        "where.html",
        where=found,
        object=instance,
        position=_place(instance),
        rows=related_rows(db.session, instance, security.current_user()),
    )


def _place(instance: Any) -> int | None:
    if isinstance(instance, Pin):
        return boards.position_of(db.session, instance)
    return None
