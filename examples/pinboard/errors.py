"""Errors, with their HTTP status.

The services raise these; :mod:`.answers` turns them into a page or JSON.
"""

from __future__ import annotations


class PinboardError(Exception):
    """Base; the message is for the user.

    :ivar status: of the HTTP response.
    :ivar code: the same for programs.
    """

    status = 500
    code = "error"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class MalformedError(PinboardError):
    """Raised when the API cannot parse a request."""

    status = 400
    code = "malformed"


class SignedOutError(PinboardError):
    """Raised when a user has to be signed in."""

    status = 401
    code = "signed_out"

    def __init__(self) -> None:
        super().__init__("Sign in first.")


class ForbiddenError(PinboardError):
    """Raised when a user changes an object of another user."""

    status = 403
    code = "forbidden"


class NotFoundError(PinboardError):
    """Raised when there is no such object, or it was removed."""

    status = 404
    code = "not_found"


class ConflictError(PinboardError):
    """Raised when the page of the user is out of date."""

    status = 409
    code = "conflict"


class InvalidInputError(PinboardError):
    """Raised when a value cannot be stored.

    :ivar field: name of the input.
    """

    status = 422
    code = "invalid"

    def __init__(self, message: str, *, field: str) -> None:
        super().__init__(message)
        self.field = field


class TakenError(InvalidInputError):
    """Raised when a unique value belongs to another user, or is claimed.

    The message does not name that user.
    """

    status = 409
    code = "taken"

    def __init__(self, field: str) -> None:
        what = {"email": "address"}.get(field, field)
        super().__init__(
            f"Another user has this {what}, or is signing up with it. "
            "Choose another one.",
            field=field,
        )
