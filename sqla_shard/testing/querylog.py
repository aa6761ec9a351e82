"""What a server saw of the application: connections and statements.

Taken from the server's general log, thus true whatever lies between: each
connection that was opened and each statement as it arrived.  MariaDB logs
neither pings nor resets.  Costs time; not for benchmarks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any
from typing import Protocol

import pymysql
from pymysql.cursors import Cursor

__all__ = ["LoggedCommand", "QueryLog"]

_STATEMENTS = frozenset({"Query", "Execute"})


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedCommand:
    """One message from the application to the server.

    :ivar connection_id: the server's number of the connection; the same as
        ``CONNECTION_ID()`` and PyMySQL's ``thread_id()``.
    :ivar command: the kind: ``Connect``, ``Query``, ``Execute``, ``Quit``...
    :ivar text: the statement, or what else the message says.
    """

    connection_id: int
    command: str
    text: str


class RootServer(Protocol):
    """What the log needs of a server: :class:`~.mariadb.MariaDBServer`."""

    @property
    def name(self) -> str:
        """For messages."""

    @property
    def user(self) -> str:
        """The application user, whose messages are shown."""

    @property
    def running(self) -> bool:
        """Whether there is a process to ask."""

    def root_connect(self) -> pymysql.Connection[Cursor]:
        """Connect as root, in autocommit mode."""

    def root_execute(
        self, sql: str, parameters: Sequence[object] = ()
    ) -> list[tuple[Any, ...]]:
        """Run one statement as root."""


class QueryLog:
    """What the application sends to one server, while it is open.

    Made by :meth:`.MariaDBServer.query_log`.  Statements of root are left
    out.  One at a time for each server.

    :param server: a running server.
    """

    def __init__(self, server: RootServer) -> None:
        self._server = server
        self._open = False
        self._entries: tuple[LoggedCommand, ...] = ()

    def __repr__(self) -> str:
        state = "open" if self._open else "closed"
        return f"<QueryLog of {self._server.name} {state}>"

    def __enter__(self) -> QueryLog:
        self._execute("SET GLOBAL log_output = 'TABLE'")
        self.clear()
        self._execute("SET GLOBAL general_log = 1")
        self._open = True
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._open = False
        if not self._server.running:
            return  # killed by the test; what it logged went with it
        self._execute("SET GLOBAL general_log = 0")
        self._entries = self._read()

    @property
    def entries(self) -> tuple[LoggedCommand, ...]:
        """All messages so far, in the order of their arrival."""
        return self._read() if self._open else self._entries

    @property
    def statements(self) -> list[str]:
        """The text of all statements, in the order of their arrival."""
        return [e.text for e in self.entries if e.command in _STATEMENTS]

    @property
    def connections(self) -> frozenset[int]:
        """Numbers of the connections that sent statements."""
        return frozenset(
            e.connection_id for e in self.entries if e.command in _STATEMENTS
        )

    @property
    def opened(self) -> int:
        """How many connections were opened since the start of the log."""
        return sum(e.command == "Connect" for e in self.entries)

    def clear(self) -> None:
        """Forget what was recorded so far."""
        self._execute("TRUNCATE TABLE mysql.general_log")
        self._entries = ()

    def _execute(self, sql: str) -> None:
        with self._server.root_connect() as connection:
            cursor = connection.cursor()
            # Bookkeeping of the test, nothing for a replica to repeat.
            cursor.execute("SET SESSION sql_log_bin = 0")
            cursor.execute(sql)

    def _read(self) -> tuple[LoggedCommand, ...]:
        rows = self._server.root_execute(
            "SELECT thread_id, command_type, argument FROM mysql.general_log"
            " WHERE user_host LIKE %s",
            (f"%[{self._server.user}]%",),
        )
        return tuple(
            LoggedCommand(connection_id=number, command=command, text=text)
            for number, command, text in rows
        )
