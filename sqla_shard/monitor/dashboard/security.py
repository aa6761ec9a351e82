"""The headers of every response, and the tokens of forms.

Scripts, styles and pictures come from this server only, so a text that got
past the escaping would do nothing.  Forms that change something have a token
in the signed session; browsers also say where a request comes from, and one
from another site is refused.
"""

from __future__ import annotations

import secrets

from flask import abort, request, Response, session

_TOKEN = "sqla_shard_dashboard"  # noqa: S105  # the name of a key
_FIELD = "token"

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
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
#: Headers of browsers for a request of the page itself, or of its user.
_SAME_SITES = (None, "same-origin", "none")


def add_headers(response: Response) -> Response:
    """Add the security headers to a response."""
    for name, value in _HEADERS.items():
        response.headers[name] = value
    if not (request.endpoint or "").endswith(".static"):
        response.headers.setdefault("Cache-Control", "no-store")
    return response


def check_site(*, links: bool = True) -> None:
    """End a request that a page of another site makes, as for a picture.

    It cannot read the answer, but would keep this process busy.

    :param links: whether a link of another site may be followed.
    :raises werkzeug.exceptions.Forbidden: if it comes from there.
    """
    headers = request.headers
    is_link = request.method == "GET" and (
        headers.get("Sec-Fetch-Mode") == "navigate"
        and headers.get("Sec-Fetch-Dest") == "document"
    )
    if headers.get("Sec-Fetch-Site") not in _SAME_SITES and not (links and is_link):
        abort(403, "The request comes from another site.")


def form_token() -> str:
    """Return the token for forms of this session."""
    token: str | None = session.get(_TOKEN)
    if token is None:
        session[_TOKEN] = token = secrets.token_urlsafe(32)
    return token


def check_form() -> None:
    """End a request that does not come from a form of these pages.

    :raises werkzeug.exceptions.Forbidden: if it does not.
    """
    check_site(links=False)
    expected: str = session.get(_TOKEN, "")
    given = request.form.get(_FIELD, "")
    if not expected or not secrets.compare_digest(expected.encode(), given.encode()):
        abort(403, "The token of the form is missing or outdated; reload the page.")
