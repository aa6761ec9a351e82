"""Errors of a cluster as HTTP responses.

====== ====================================================================
status raised by
====== ====================================================================
400    what a client has sent: ids, keys and bookmarks that cannot be right
404    the id of a shard that is not open
409    what another client has changed or taken: a key, a row, a neighbour
503    a server that does not answer, or a transaction that was repeated for
       as long as it may be
====== ====================================================================

A 503 has ``Retry-After``, except after a COMMIT whose outcome is unknown: a
client that repeats that might do it twice.
"""

from __future__ import annotations

import logging
from functools import partial
from traceback import format_tb
from typing import Any

from flask import current_app
from flask import Flask
from flask.typing import ResponseReturnValue
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError  # noqa: A004 - that of the pool
from werkzeug.exceptions import BadRequest
from werkzeug.exceptions import Conflict
from werkzeug.exceptions import HTTPException
from werkzeug.exceptions import NotFound
from werkzeug.exceptions import ServiceUnavailable

from sqla_shard.exc import ClaimLostError
from sqla_shard.exc import CommitUnknownError
from sqla_shard.exc import InvalidBookmarkError
from sqla_shard.exc import InvalidIdError
from sqla_shard.exc import InvalidKeyError
from sqla_shard.exc import KeyPendingError
from sqla_shard.exc import KeyTakenError
from sqla_shard.exc import KeyUsedError
from sqla_shard.exc import PartialCommitError
from sqla_shard.exc import RetriesExhaustedError
from sqla_shard.exc import ServerFencedError
from sqla_shard.exc import ServerRetiredError
from sqla_shard.exc import ServerUnreachableError
from sqla_shard.exc import ShardMovedError
from sqla_shard.exc import StaleDataError
from sqla_shard.exc import StaleListError
from sqla_shard.exc import UnknownShardError
from sqla_shard.exc.summaries import summary

__all__ = ["register_errors"]

_log = logging.getLogger(__name__)

#: Seconds after which a client may try again, where a server is down.
RETRY_AFTER = 5

_UNAVAILABLE = partial(ServiceUnavailable, retry_after=RETRY_AFTER)

_BAD = (InvalidBookmarkError, InvalidIdError, InvalidKeyError)
_ABSENT = (UnknownShardError,)
_CONFLICTS = (
    ClaimLostError,
    KeyTakenError,
    KeyUsedError,
    StaleDataError,
    StaleListError,
)
_AWAY = (
    RetriesExhaustedError,
    ServerFencedError,
    ServerRetiredError,
    ServerUnreachableError,
    ShardMovedError,
    TimeoutError,
)
_DOUBTFUL = (CommitUnknownError, KeyPendingError, PartialCommitError)


def register_errors(app: Flask) -> None:
    """Answer errors of the cluster with the status that they mean.

    Handlers of the application for the same errors take precedence when they
    are registered later, and its handlers for the statuses make the pages.
    """
    for kinds, made in (
        (_BAD, BadRequest),
        (_ABSENT, NotFound),
        (_CONFLICTS, Conflict),
        (_AWAY, _UNAVAILABLE),
        (_DOUBTFUL, ServiceUnavailable),
    ):
        for kind in kinds:
            app.register_error_handler(kind, partial(_answer, made))
    app.register_error_handler(OperationalError, _operational)


def _operational(error: OperationalError) -> ResponseReturnValue:
    if not error.connection_invalidated:
        # MySQL's for an unknown column, too: a fault of the program.
        raise error
    return _answer(_UNAVAILABLE, error)


def _answer(made: Any, error: Exception) -> ResponseReturnValue:
    response: HTTPException = made()
    if response.code == ServiceUnavailable.code:
        _log.error(
            "a request could not be served: %s\n%s",
            summary(error),
            # Where it was raised; the errors that led to it show the
            # parameters of statements.
            "".join(format_tb(error.__traceback__)),
            extra={"action": "answer"},
        )
    # The messages of errors name servers and ids: they are for the log.
    return current_app.handle_http_exception(response)
