"""Whether the server of a statement that takes long still answers."""

from __future__ import annotations

import threading
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from sqla_shard.dialects import Backend
from sqla_shard.dialects import Failure
from sqla_shard.engines import Engines

__all__ = ["INTERVAL", "Watchdog"]

#: Seconds between two questions.
INTERVAL = 3.0
#: How many questions in a row the server may leave without an answer.
_MOST = 2


class Watchdog:
    """Cuts a connection whose server has stopped to answer.

    A change of a table may take hours, so nothing limits the wait for it.
    Meanwhile a thread connects to the same server again and again, and asks
    for a sign of life, within the limits that all connections have.  Two
    questions in a row without an answer end the statement for us: whoever
    waits for it gets the error of a lost connection.

    :param engines: of the cluster.
    :param engine: of the server.
    :param backend: its kind.
    :ivar has_cut: whether it has cut the connection.
    """

    def __init__(
        self, engines: Engines, engine: Engine, backend: Backend
    ) -> None:
        self._engines = engines
        self._engine = engine
        self._backend = backend
        self._ended = threading.Event()
        self.has_cut = False

    def watch(self, dbapi_connection: Any, record: Any) -> None:
        """Begin with a connection that was just opened; a listener."""
        if self._backend.waits:
            threading.Thread(
                target=self._run,
                args=(dbapi_connection,),
                name="sqla-shard-watchdog",
                daemon=True,
            ).start()

    def close(self) -> None:
        """End the thread; what it asks just now is not waited for."""
        self._ended.set()

    def _run(self, dbapi_connection: Any) -> None:
        silent = 0
        while not self._ended.wait(INTERVAL):
            silent = 0 if self._answers() else silent + 1
            if silent == _MOST and not self._ended.is_set():
                self.has_cut = True
                self._backend.abort(dbapi_connection)
                return

    def _answers(self) -> bool:
        """Tell whether the server answers, be it with an error."""
        try:
            with self._engines.visit(self._engine):
                return True
        except DBAPIError as error:
            return (
                error.orig is None
                or self._backend.classify(error.orig) is not Failure.LOST
            )
