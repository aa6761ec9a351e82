"""The signed-in user, and the security headers of every response.

There are no passwords: the mail address of a user is enough to sign in.  The
rest is as in production: the user is stored in a signed cookie, and every
write needs a CSRF token (Flask-WTF's) and the owner.
"""

from __future__ import annotations

from flask import Flask, request, Response, session
from flask_wtf import CSRFProtect  # type: ignore[import-untyped]  # no stubs

from examples.pinboard.errors import SignedOutError

MAX_REQUEST = 64 * 1024
"""Bytes of a request, except for uploads."""
MAX_UPLOAD = 4 * 1024 * 1024

_UPLOADS = ("pages.import_file", "api.import_file")

# Only files of this site: no inline script or style either, so that a text
# that is not escaped has no effect.
_POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    ]
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    # Not "no-referrer": over HTTPS, CSRFProtect refuses a write without one.
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def protect(app: Flask) -> None:
    """Add limits, CSRF tokens and headers to an application."""
    app.config.update(
        MAX_CONTENT_LENGTH=MAX_REQUEST,
        MAX_FORM_PARTS=50,
        SESSION_COOKIE_NAME="pinboard",
        SESSION_COOKIE_HTTPONLY=True,
        SESSION_COOKIE_SAMESITE="Lax",
        # As long as the session: a board stays open for days.
        WTF_CSRF_TIME_LIMIT=None,
        WTF_CSRF_HEADERS=["X-CSRF-Token"],
    )
    # Before that of CSRFProtect, which reads the form.
    app.before_request(_allow_upload)
    CSRFProtect(app)
    app.after_request(_add_headers)


def _allow_upload() -> None:
    if request.endpoint in _UPLOADS:
        request.max_content_length = MAX_UPLOAD


def _add_headers(response: Response) -> Response:
    for name, value in _HEADERS.items():
        response.headers[name] = value
    if request.endpoint != "static":
        # With the token of the session, and boards as others moved them.
        response.headers["Cache-Control"] = "no-store"
    return response


def choose(user_id: int, name: str) -> None:
    """Sign a user in, with a new, empty session."""
    session.clear()
    # As a string: cookies are JSON.
    session["user_id"] = str(user_id)
    session["user_name"] = name


def leave() -> None:
    """Sign the user out."""
    session.clear()


def current_user() -> int | None:
    """Return the id of the user; None if signed out."""
    user_id = session.get("user_id")
    return None if user_id is None else int(user_id)


def require_user() -> int:
    """Return the id of the user.

    :raises SignedOutError: when no user is signed in.
    """
    user_id = current_user()
    if user_id is None:
        raise SignedOutError
    return user_id
