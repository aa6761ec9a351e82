"""The HTTP responses to errors of a cluster, for every framework.

====== ====================================================================
status error
====== ====================================================================
400    an id, key, bookmark or value in the request is not valid, or it wants
       more than a limit of scatter() allows
404    the shard of the id is not open
409    another client has changed or taken a key, a row or a neighbour
413    a blob is larger than its column
503    servers do not respond, the cluster is closed, or a transaction lost against
       another or was repeated without success
====== ====================================================================

A response with status 503 has the header ``Retry-After``, except if the
outcome of a COMMIT is unknown: repeating the request could write twice.
Messages of errors are logged and not sent to clients: they contain names of
servers and ids.  An ``ExceptionGroup`` of a ``TaskGroup`` is not in the table:
it is 500, whatever it contains.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from traceback import format_tb
from typing import NamedTuple

from sqlalchemy.exc import (
    OperationalError,
    SQLAlchemyError,
    TimeoutError,  # noqa: A004 - that of the pool
)

from sqla_shard.cluster.health import Health
from sqla_shard.dialects import backend_for, Failure
from sqla_shard.exc import (
    BlobTooLargeError,
    BlobValueError,
    ClaimLostError,
    ClusterClosedError,
    CommitUnknownError,
    InvalidBookmarkError,
    InvalidIdError,
    InvalidKeyError,
    InvalidMoveError,
    KeyNotHeldError,
    KeyPendingError,
    KeyTakenError,
    KeyUsedError,
    PartialCommitError,
    RetriesExhaustedError,
    ScatterFailedError,
    ScatterLimitError,
    ScatterTimeoutError,
    ServerFencedError,
    ServerRetiredError,
    ServerUnreachableError,
    ShardMissingError,
    ShardMovedError,
    StaleDataError,
    StaleListError,
    UnknownShardError,
)
from sqla_shard.exc.base import summary
from sqla_shard.util.logs import careful_log

__all__ = [
    "ERROR_RESPONSES",
    "ErrorResponse",
    "health_status",
    "losses_logged",
    "response_to",
]

_log = careful_log(__name__)


class ErrorResponse(NamedTuple):
    """The response to an error.

    :ivar retry_after: seconds after which a client may repeat the request;
        None if it should not.
    """

    status: int
    retry_after: int | None = None


_REPEATABLE = ErrorResponse(503, retry_after=5)

#: By class of error; a subclass has its own or the nearest.
ERROR_RESPONSES: dict[type[Exception], ErrorResponse] = {
    BlobValueError: ErrorResponse(400),
    InvalidBookmarkError: ErrorResponse(400),
    InvalidIdError: ErrorResponse(400),
    InvalidKeyError: ErrorResponse(400),
    InvalidMoveError: ErrorResponse(400),
    ScatterLimitError: ErrorResponse(400),
    UnknownShardError: ErrorResponse(404),
    ClaimLostError: ErrorResponse(409),
    KeyNotHeldError: ErrorResponse(409),
    KeyTakenError: ErrorResponse(409),
    KeyUsedError: ErrorResponse(409),
    StaleDataError: ErrorResponse(409),
    StaleListError: ErrorResponse(409),
    BlobTooLargeError: ErrorResponse(413),
    ClusterClosedError: _REPEATABLE,
    OperationalError: _REPEATABLE,
    RetriesExhaustedError: _REPEATABLE,
    ScatterFailedError: _REPEATABLE,
    ScatterTimeoutError: _REPEATABLE,
    ServerFencedError: _REPEATABLE,
    ServerRetiredError: _REPEATABLE,
    ServerUnreachableError: _REPEATABLE,
    ShardMissingError: _REPEATABLE,
    ShardMovedError: _REPEATABLE,
    TimeoutError: _REPEATABLE,
    CommitUnknownError: ErrorResponse(503),
    KeyPendingError: ErrorResponse(503),
    PartialCommitError: ErrorResponse(503),
}


#: Of any driver; the error does not say from which server it is.
_BACKENDS = [backend_for(name, driver="") for name in ("mysql", "sqlite")]


def _lost(error: BaseException | None) -> bool:
    """Return whether a deadlock or the lock of another transaction is the cause."""
    return error is not None and any(
        backend.classify(error) in (Failure.CONFLICT, Failure.BUSY)
        for backend in _BACKENDS
    )


def response_to(error: Exception) -> ErrorResponse:
    """Return the response to an error, and log one with status 404 or 503.

    :param error: of a class in :data:`ERROR_RESPONSES`.
    :raises OperationalError: the error itself, if the connection is intact and
        no other transaction is the cause: MySQL drivers raise it for unknown
        columns, too, which are a bug of the application.
    """
    kind = next(kind for kind in type(error).__mro__ if kind in ERROR_RESPONSES)
    if (
        kind is OperationalError
        and isinstance(error, OperationalError)
        and not error.connection_invalidated
        and not _lost(error.orig)
    ):
        raise error
    answer = ERROR_RESPONSES[kind]
    if answer.status == 404:
        # Perhaps the topology of this process is too old.
        _log.warning("a request failed: %s", summary(error), extra={"action": "answer"})
    elif answer.status == 503:
        _log.error(
            "a request failed: %s\n%s",
            summary(error),
            # Omit the errors that caused it, which contain the parameters of
            # statements.
            "".join(format_tb(error.__traceback__)),
            extra={"action": "answer"},
        )
    return answer


def health_status(found: Health, *, every: bool) -> int:
    """Return the status of a health route.

    It is 503 if the cluster is closed or no server responds.

    :param every: whether it is also 503 as soon as one server is down.
    """
    wanted = all if every else any
    serves = wanted(error is None for error in found.servers.values())
    return 200 if serves and found.state != "closed" else 503


@contextmanager
def losses_logged() -> Iterator[None]:
    """Log the error of a session that is closed at the end of a request.

    The response is ready and did not commit: a lost server must not turn it
    into an error.
    """
    try:
        yield
    except SQLAlchemyError as lost:
        _log.warning(
            "a session could not be rolled back; its connections are closed: %s",
            summary(lost),
            extra={"action": "close session"},
        )
