"""Errors of a cluster as HTTP responses.

====== ====================================================================
status error
====== ====================================================================
400    an id, key, bookmark or value in the request is not valid, or it wants
       more than a limit of scatter() allows
404    the shard of the id is not open
409    another client has changed or taken a key, a row or a neighbour
503    a server does not respond, or a transaction was repeated without success
====== ====================================================================

A response with status 503 has the header ``Retry-After``, except if the
outcome of a COMMIT is unknown: repeating the request could write twice.
"""

from __future__ import annotations

import logging
from functools import partial
from traceback import format_tb
from typing import Any

from flask import current_app, Flask
from flask.typing import ResponseReturnValue
from sqlalchemy.exc import (
    OperationalError,
    TimeoutError,  # noqa: A004 - that of the pool
)
from werkzeug.exceptions import (
    BadRequest,
    Conflict,
    HTTPException,
    NotFound,
    ServiceUnavailable,
)

from sqla_shard.exc import (
    BlobValueError,
    ClaimLostError,
    CommitUnknownError,
    InvalidBookmarkError,
    InvalidIdError,
    InvalidKeyError,
    KeyPendingError,
    KeyTakenError,
    KeyUsedError,
    PartialCommitError,
    RetriesExhaustedError,
    ScatterLimitError,
    ServerFencedError,
    ServerRetiredError,
    ServerUnreachableError,
    ShardMovedError,
    StaleDataError,
    StaleListError,
    UnknownShardError,
)
from sqla_shard.exc.base import summary

__all__ = ["register_errors"]

_log = logging.getLogger(__name__)

RETRY_AFTER = 5
"""Seconds after which a client may repeat a request with status 503."""

_UNAVAILABLE = partial(ServiceUnavailable, retry_after=RETRY_AFTER)

_INVALID = (
    BlobValueError,
    InvalidBookmarkError,
    InvalidIdError,
    InvalidKeyError,
    ScatterLimitError,
)
_NOT_FOUND = (UnknownShardError,)
_CONFLICTS = (
    ClaimLostError,
    KeyTakenError,
    KeyUsedError,
    StaleDataError,
    StaleListError,
)
_UNREACHABLE = (
    RetriesExhaustedError,
    ServerFencedError,
    ServerRetiredError,
    ServerUnreachableError,
    ShardMovedError,
    TimeoutError,
)
_UNKNOWN_OUTCOME = (CommitUnknownError, KeyPendingError, PartialCommitError)


def register_errors(app: Flask) -> None:
    """Register handlers that map errors of the cluster to HTTP statuses.

    Handlers that the application registers later for the same errors take
    precedence.  Its handlers for the statuses render the pages.
    """
    for kinds, made in (
        (_INVALID, BadRequest),
        (_NOT_FOUND, NotFound),
        (_CONFLICTS, Conflict),
        (_UNREACHABLE, _UNAVAILABLE),
        (_UNKNOWN_OUTCOME, ServiceUnavailable),
    ):
        for kind in kinds:
            app.register_error_handler(kind, partial(_answer, made))
    app.register_error_handler(OperationalError, _operational)


def _operational(error: OperationalError) -> ResponseReturnValue:
    if not error.connection_invalidated:
        # MySQL drivers also raise it for unknown columns, which is a bug of
        # the application.
        raise error
    return _answer(_UNAVAILABLE, error)


def _answer(made: Any, error: Exception) -> ResponseReturnValue:
    response: HTTPException = made()
    if response.code == ServiceUnavailable.code:
        _log.error(
            "a request failed: %s\n%s",
            summary(error),
            # Omit the errors that caused it, which contain the parameters of
            # statements.
            "".join(format_tb(error.__traceback__)),
            extra={"action": "answer"},
        )
    # Do not send the message to clients: it contains names of servers and
    # ids.
    return current_app.handle_http_exception(response)
