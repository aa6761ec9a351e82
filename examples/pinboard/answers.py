"""Responses to errors: a page, or JSON below ``/api/``."""

from __future__ import annotations

import logging

from flask import Flask, jsonify, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue
from flask_wtf.csrf import CSRFError  # type: ignore[import-untyped]  # no stubs
from sqlalchemy.exc import OperationalError
from werkzeug.exceptions import HTTPException, SecurityError

from examples.pinboard.errors import InvalidInputError, PinboardError, SignedOutError
from sqla_shard.exc import (
    CommitUnknownError,
    InvalidBookmarkError,
    RetriesExhaustedError,
)

_log = logging.getLogger(__name__)

_TITLES = {
    400: "Bad request",
    401: "Not signed in",
    403: "Forbidden",
    404: "Not found",
    409: "Conflict",
    413: "Too large",
    503: "Unavailable",
}
_MESSAGES = {
    404: "Page not found.",
    405: "This method is not allowed here.",
    413: "The request is too large: 4 MB for a bookmark file, 64 KB else.",
    500: "Internal error. The server has logged it.",
}


def register(app: Flask) -> None:
    """Handle the errors of an application."""
    app.register_error_handler(PinboardError, _refused)
    app.register_error_handler(CSRFError, _bad_token)
    app.register_error_handler(HTTPException, _http)
    app.register_error_handler(InvalidBookmarkError, _bad_bookmark)
    for kind in (OperationalError, RetriesExhaustedError):
        app.register_error_handler(kind, _unavailable)
    app.register_error_handler(CommitUnknownError, _unknown)


def _wants_json() -> bool:
    return request.path.startswith("/api/")


def _answer(
    status: int, code: str, message: str, field: str | None = None
) -> ResponseReturnValue:
    if _wants_json():
        error = {"code": code, "message": message}
        if field is not None:
            error["field"] = field
        return jsonify(error=error), status
    title = _TITLES.get(status, "Bad request")
    page = render_template("error.html", title=title, message=message)
    return page, status


def _refused(error: PinboardError) -> ResponseReturnValue:
    if isinstance(error, SignedOutError) and _looks_at_page():
        return redirect(url_for("pages.users"), 303)
    field = error.field if isinstance(error, InvalidInputError) else None
    return _answer(error.status, error.code, error.message, field)


def _looks_at_page() -> bool:
    return request.method == "GET" and not _wants_json()


def _bad_token(error: CSRFError) -> ResponseReturnValue:
    # Not only of an attack: also after a restart of the server, or a sign-in
    # as another user in another tab.
    return _answer(400, "csrf", "This page has expired. Reload it and try again.")


def _bad_bookmark(error: InvalidBookmarkError) -> ResponseReturnValue:
    return _answer(400, "bad_bookmark", "This bookmark does not belong to this board.")


def _http(error: HTTPException) -> ResponseReturnValue:
    status = error.code or 500
    # A redirect of the router's; or a host that is not ours, for which a
    # page could not be made, since it has links.
    if status < 400 or isinstance(error, SecurityError):
        return error
    code = error.name.lower().replace(" ", "_")
    message = _MESSAGES.get(status, "Invalid request.")
    return _answer(status, code, message)


def _unavailable(error: Exception) -> ResponseReturnValue:
    _log.error("a server does not answer", exc_info=error)
    return _answer(
        503,
        "unavailable",
        "The server of this board does not answer. Boards on other "
        "servers are not affected.",
    )


def _unknown(error: CommitUnknownError) -> ResponseReturnValue:
    _log.error("a commit with unknown outcome", exc_info=error)
    return _answer(
        503,
        "unknown",
        "The connection was lost while saving. Check whether it was saved "
        "before you try again.",
    )
