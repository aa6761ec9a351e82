"""Log of the statements that SQLAlchemy sends, by server and connection.

::

    with StatementLog(engine) as log:
        session.get(User, user_id)
    assert log.count_by_server() == {"127.0.0.1:3306": 1}

It works with every database, including SQLite.  It records SQLAlchemy's
events: neither pings and resets of a pool, nor statements that are passed
directly to the driver.  :class:`.QueryLog` shows what a server received.

Parameters are recorded in plain text; do not use it with secret data.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from sqlalchemy import event
from sqlalchemy.engine import Connection, Engine, URL
from sqlalchemy.ext.asyncio import AsyncEngine

from sqla_shard.util.masking import host_and_port

Kind: TypeAlias = Literal["checkout", "begin", "execute", "commit", "rollback"]
"""Kind of an event; ``"execute"`` is a statement, ``"checkout"`` a connection
taken from its pool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedEvent:
    """An event on a connection.

    :ivar kind: see :data:`Kind`.
    :ivar server: host and port, or the file of a SQLite database; empty for
        a connection that did nothing but leave its pool.
    :ivar connection: number of the DBAPI connection within the log, from 1.
    :ivar statement: SQL text as the driver got it; empty for other kinds.
        For a statement that failed, as SQLAlchemy compiled it.
    :ivar parameters: bind parameters as the driver got them.
    """

    kind: Kind
    server: str
    connection: int
    statement: str = ""
    parameters: Any = None


class StatementLog:
    """Records events while it is open; they can be read afterwards.

    It can be opened again, and then appends.

    :param engines: the engines to listen to, sync or async; by default all
        engines of the process, including those that are created later.
    """

    def __init__(self, *engines: Engine | AsyncEngine) -> None:
        self._targets: tuple[Any, ...] = tuple(
            getattr(engine, "sync_engine", engine) for engine in engines
        ) or (Engine,)
        self._lock = threading.Lock()
        self._listening = False
        self._events: list[LoggedEvent] = []
        self._running: dict[int, int] = {}
        # Keep a reference to each connection: the id() of a connection that
        # was garbage collected may be used again.
        self._numbers: dict[int, tuple[int, object]] = {}
        self._servers: dict[int, str] = {}

    def __repr__(self) -> str:
        state = "listening" if self._listening else "closed"
        return f"<StatementLog {state} events={len(self._events)}>"

    def __enter__(self) -> StatementLog:
        if self._listening:
            raise RuntimeError("this StatementLog is open already")
        self._listening = True
        for target, name, function in self._listeners():
            event.listen(target, name, function)
        return self

    def __exit__(self, *details: object) -> None:
        for target, name, function in self._listeners():
            event.remove(target, name, function)
        self._listening = False

    @property
    def events(self) -> tuple[LoggedEvent, ...]:
        """All events, in order."""
        with self._lock:
            return tuple(
                replace(item, server=self._servers.get(item.connection, ""))
                for item in self._events
            )

    @property
    def executions(self) -> tuple[LoggedEvent, ...]:
        """The events of statements, in order."""
        return tuple(e for e in self.events if e.kind == "execute")

    @property
    def statements(self) -> list[str]:
        """The text of the statements, in order."""
        return [e.statement for e in self.executions]

    @property
    def connections(self) -> frozenset[int]:
        """Numbers of the connections that statements used."""
        return frozenset(e.connection for e in self.executions)

    def count(self, kind: Kind = "execute") -> int:
        """Return the number of events of a kind; by default statements."""
        return sum(e.kind == kind for e in self.events)

    def count_by_server(self, kind: Kind = "execute") -> dict[str, int]:
        """Return the number of events of a kind by server.

        :return: the numbers by server, without servers that have none.
        """
        return dict(Counter(e.server for e in self.events if e.kind == kind))

    def clear(self) -> None:
        """Remove all events; connections keep their numbers."""
        with self._lock:
            self._events.clear()
            self._running.clear()

    def _listeners(self) -> Iterator[tuple[Any, str, Callable[..., Any]]]:
        for target in self._targets:
            yield target, "checkout", self._checkout
            yield target, "engine_connect", self._on_connect
            yield target, "before_cursor_execute", self._before_execute
            yield target, "after_cursor_execute", self._after_execute
            yield target, "begin", self._begin
            yield target, "commit", self._commit
            yield target, "rollback", self._rollback

    def _number(self, dbapi_connection: object) -> int:
        known = self._numbers.get(id(dbapi_connection))
        if known is None:
            known = len(self._numbers) + 1, dbapi_connection
            self._numbers[id(dbapi_connection)] = known
        return known[0]

    def _record(self, connection: Connection, kind: Kind, **more: Any) -> int:
        with self._lock:
            number = self._connection_number(connection)
            self._events.append(
                LoggedEvent(kind=kind, server="", connection=number, **more)
            )
            return len(self._events) - 1

    def _connection_number(self, connection: Connection) -> int:
        number = self._number(connection.connection.dbapi_connection)
        self._servers[number] = server_of(connection.engine.url)
        return number

    def _checkout(self, dbapi_connection: object, *_: object) -> None:
        # The next event has the engine; this event has only the connection.
        with self._lock:
            number = self._number(dbapi_connection)
            self._events.append(
                LoggedEvent(kind="checkout", server="", connection=number)
            )

    def _on_connect(self, connection: Connection) -> None:
        with self._lock:
            self._connection_number(connection)

    def _before_execute(
        self,
        connection: Connection,
        cursor: object,
        statement: str,
        parameters: Any,
        context: object,
        executemany: bool,
    ) -> None:
        index = self._record(
            connection, "execute", statement=statement, parameters=parameters
        )
        with self._lock:
            self._running[id(context)] = index

    def _after_execute(
        self,
        connection: Connection,
        cursor: object,
        statement: str,
        parameters: Any,
        context: object,
        executemany: bool,
    ) -> None:
        # Later listeners may have changed the statement.
        with self._lock:
            index = self._running.pop(id(context), None)
            if index is not None:
                self._events[index] = replace(
                    self._events[index], statement=statement, parameters=parameters
                )

    def _begin(self, connection: Connection) -> None:
        self._record(connection, "begin")

    def _commit(self, connection: Connection) -> None:
        self._record(connection, "commit")

    def _rollback(self, connection: Connection) -> None:
        self._record(connection, "rollback")


def server_of(url: URL) -> str:
    """Return the host and port of a URL, or its file; never a password."""
    if url.host is None:
        return url.database or ":memory:"
    default = 3306 if url.drivername.startswith(("mysql", "maria")) else None
    port = url.port or default
    return url.host if port is None else host_and_port(url.host, port)
