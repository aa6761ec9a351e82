"""A session and its transaction, as one context manager."""

from __future__ import annotations

import logging
from types import TracebackType

from sqlalchemy.exc import SQLAlchemyError

from sqla_shard.exc.summaries import summary
from sqla_shard.session.core import ShardSession

__all__ = ["Begun"]

_log = logging.getLogger(__name__)


class Begun:
    """Begins a transaction, commits it at the end, closes the session.

    An exception rolls back.

    :param session: a new session.
    """

    def __init__(self, session: ShardSession) -> None:
        self._session = session

    def __enter__(self) -> ShardSession:
        self._session.begin()
        return self._session

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            try:
                self._session.commit()
            except BaseException:
                self._roll_back()
                raise
            self._session.close()
        else:
            self._roll_back()

    def _roll_back(self) -> None:
        """Close the session; the error that led here is what is raised."""
        try:
            self._session.close()
        except SQLAlchemyError as error:
            # Without the traceback: it has the error that led here, with the
            # parameters of its statement.
            _log.warning(
                "a transaction could not be rolled back; its connections "
                "were closed: %s",
                summary(error),
                extra={"action": "roll back"},
            )
