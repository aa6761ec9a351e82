"""The listeners of engines, and the table of them.

:func:`listen` has the table, by event; the order of the listeners of an event
matters.  The table does not contain:

* the listeners that a dialect needs to connect; :meth:`.Backend.open`
  registers them earlier, for every engine that it opens;
* the listeners of :func:`.overlap.watch_calls`, which are added with the
  first statements that overlap, even to engines of the application;
* listeners of engines that send nothing, for the row cache and dry runs.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from time import monotonic
from typing import Any, Protocol, TYPE_CHECKING

from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.pool import PoolResetState

from sqla_shard.dialects import Backend, Failure
from sqla_shard.dialects.polling import PolledConnection
from sqla_shard.engine.execution import (
    compose_new_ids,
    execute_everywhere,
    execute_many,
    get_ready,
)
from sqla_shard.engine.plans import OPTION, PLACES, render_event
from sqla_shard.engine.pools import ENDED
from sqla_shard.engine.rendering import Place
from sqla_shard.exc import (
    ClusterClosedError,
    LoginFailedError,
    ParameterValueError,
    ScatterUnsupportedError,
    ServerFencedError,
    ServerRetiredError,
    ServerUnreachableError,
    ShardError,
    ShardMissingError,
    ShardMovedError,
    UnkeyedReferenceError,
)
from sqla_shard.exc.base import summary
from sqla_shard.topology import Topology
from sqla_shard.util.logs import careful_log
from sqla_shard.util.sqlalchemy_private import call_last_first
from sqla_shard.util.weak_keys import WeakKeys

if TYPE_CHECKING:
    from sqla_shard.engine import Engines


class CommitLog(Protocol):
    """The log of a session's transaction, which knows what was written."""

    def committing(self, connection: Connection) -> None:
        """Record that COMMIT is about to be sent to a server."""

    def statement_failed(self, error: BaseException) -> None:
        """Record an error of a statement."""

    def commit_error(self, context: ExceptionContext) -> Exception | None:
        """Return the error that reports the outcome of a failed COMMIT."""


#: Key in the ``info`` of a connection: the process that has checked it out
_PROCESS = "sqla_shard.process"
#: Key in the ``info`` of a connection: the log of the session's transaction
TRANSACTION_LOG = "sqla_shard.transaction"


def listen(
    engine: Engine, engines: Engines, backend: Backend, names: Iterable[str]
) -> None:
    """Register all listeners of a new engine.

    :param engines: the registry that the engine belongs to.
    :param names: names of its server; more may be added later.
    """
    retirement = engines.retired.watch(engine)
    errors = Errors(engines, names, backend)
    state = _ConnectionState(engine, engines, backend, retirement)
    opened = engines.open_connections
    compose_new_ids(engine)
    _register(
        engine,
        {
            # A removed server may be down: refuse new connections to it.
            "do_connect": [retirement.check],
            "connect": [partial(opened.on_connect, backend)],
            "checkout": [state.on_checkout],
            "before_cursor_execute": [state.on_execute],
            "do_execute": [
                partial(
                    execute_everywhere, lanes=engines.lanes, explain=errors.error_for
                )
            ],
            "do_executemany": [execute_many],
            "do_execute_no_params": [get_ready],
            "commit": [state.on_commit],
            "rollback": [state.on_rollback],
            # The last listener that returns an error wins: at COMMIT the log
            # knows more than the error of the server contains.
            "handle_error": [_note_error, errors, _log_error],
            "reset": [state.on_reset],
            "checkin": [state.on_checkin],
            "detach": [state.on_detach, opened.on_detach],
            "close_detached": [opened.on_close_detached],
        },
    )


def listen_to_probe(
    engine: Engine, engines: Engines, backend: Backend, names: Iterable[str] | None
) -> None:
    """Register the listeners of an engine that no session uses.

    :param names: names of its server, for errors; None to raise errors
        unchanged.
    """
    opened = engines.open_connections
    table: dict[str, list[Callable[..., Any]]] = {
        "connect": [partial(opened.on_connect, backend)],
        "detach": [opened.on_detach],
        "close_detached": [opened.on_close_detached],
    }
    if names is not None:
        table["handle_error"] = [Errors(engines, names, backend)]
    _register(engine, table)


def _register(engine: Engine, table: dict[str, list[Callable[..., Any]]]) -> None:
    for name, calls in table.items():
        for call in calls:
            event.listen(engine, name, call, retval=name == "before_cursor_execute")
            if name == "do_connect":
                # The listener of the dialect returns a connection: none after
                # it is called.
                call_last_first(engine.dialect.dispatch.do_connect)


def _info_of(context: ExceptionContext) -> dict[Any, Any] | None:
    """Return the ``info`` of the connection of a failed statement.

    :returns: None if the connection is lost, or is the first one of an
        engine, on which SQLAlchemy initializes the dialect.
    """
    connection = context.connection
    if connection is None or connection.closed or connection.invalidated:
        return None
    try:
        return connection.info
    except NotImplementedError:
        # Raised by a listener it would replace the error of the server; the
        # dialect ignores this one, and continues without a connection.
        return None


def _note_error(context: ExceptionContext) -> None:
    """Note that a transaction may be open, or that a connection is lost."""
    info = _info_of(context)
    # The statement may have been COMMIT or ROLLBACK.
    if info is not None:
        info[ENDED] = False
        wire: Any = context.connection
        wire = wire.connection.dbapi_connection
        # That of an asynchronous driver is wrapped.
        wire = getattr(wire, "driver_connection", wire)
        if getattr(wire, "is_torn", False):
            # As SQLAlchemy does after KeyboardInterrupt: a rollback to a
            # savepoint would raise another exception.
            context.is_disconnect = True
            context.invalidate_pool_on_disconnect = False


def _log_error(context: ExceptionContext) -> Exception | None:
    info = _info_of(context)
    log: CommitLog | None = None if info is None else info.get(TRANSACTION_LOG)
    if log is None:
        return None
    if context.statement is not None:
        log.statement_failed(context.original_exception)
        return None
    if not isinstance(context.original_exception, Exception):
        # Raise Ctrl-C, or the cancellation of a task, unchanged.
        return None
    return log.commit_error(context)


class OpenConnections:
    """The driver's connections that are open."""

    def __init__(self) -> None:
        # Not the connections: one whose record Ctrl-C has ended would stay
        # open.
        self._records: WeakKeys[Backend] = WeakKeys()
        self._detached: dict[int, tuple[Backend, Any]] = {}

    def on_connect(self, backend: Backend, connection: Any, record: Any) -> None:
        """Handle ``connect``."""
        self._records.put(record, backend)

    def on_detach(self, connection: Any, record: Any) -> None:
        """Handle ``detach``: the record no longer has the connection."""
        for known, backend in self._records.items():
            # One that was taken before is not known any more.
            if known is record:
                self._detached[id(connection)] = backend, connection

    def on_close_detached(self, connection: Any) -> None:
        """Handle ``close_detached``."""
        self._detached.pop(id(connection), None)

    def take(self) -> list[tuple[Backend, Any]]:
        """Return the connections, with their backends, and forget them."""
        connections = list(self._detached.values())
        for record, backend in self._records.items():
            if record.dbapi_connection is not None:
                connections.append((backend, record.dbapi_connection))
        self._detached.clear()
        self._records = WeakKeys()
        return connections


class _ConnectionState:
    """Tracks the connections of an engine: in use, and in a transaction.

    The only listener of most events: each call of a function counts where a
    statement is sent to many servers.

    Connections that return to the pool are rolled back here, in their own
    process.  The pool's own reset would send ROLLBACK over a socket that the
    parent process is using, from the finalizer of a session that a child
    process inherited; and it would send a second ROLLBACK after the session's.
    """

    def __init__(
        self,
        engine: Engine,
        engines: Engines,
        backend: Backend,
        retirement: _Retirement,
    ) -> None:
        self._engine = engine
        self._engines = engines
        self._backend = backend
        self._retirement = retirement

    def on_checkout(self, connection: Any, record: Any, fairy: Any) -> None:
        """Handle ``checkout``."""
        engines = self._engines
        if engines.closed:
            raise ClusterClosedError("the cluster is closed")
        if self._retirement.server is not None:
            self._retirement.check()
        info = record.info
        info[_PROCESS] = os.getpid()
        engines.in_use.put(record, self._engine)
        # Statements on a raw_connection() call no listener of this class.
        info[ENDED] = False
        if isinstance(connection, PolledConnection):
            try:
                connection.settle()
            except self._engine.dialect.loaded_dbapi.Error as error:
                # The pool then opens another one.
                raise DisconnectionError(str(error)) from error

    def on_execute(
        self,
        connection: Connection,
        cursor: Any,
        statement: str,
        parameters: Any,
        context: Any,
        executemany: bool,
    ) -> tuple[str, Any]:
        """Handle ``before_cursor_execute``."""
        if self._retirement.server is not None:
            self._retirement.check_deadline()
        rendered = render_event(
            connection,
            cursor,
            statement,
            parameters,
            context,
            executemany,
            sampling=self._engines.sampling,
        )
        connection.info[ENDED] = False
        return rendered

    def on_commit(self, connection: Connection) -> None:
        """Handle ``commit``."""
        # The log sends the last statement of the transaction before the
        # transaction is marked as ended.
        log: CommitLog | None = connection.info.get(TRANSACTION_LOG)
        if log is not None:
            log.committing(connection)
        if not connection.invalidated:
            connection.info[ENDED] = True

    def on_rollback(self, connection: Connection) -> None:
        """Handle ``rollback``."""
        if connection.invalidated:
            return
        info = connection.info
        info[ENDED] = True
        if TRANSACTION_LOG not in info:
            wire: Any = connection.connection.dbapi_connection
            if isinstance(wire, PolledConnection):
                # No session's: the connection may begin another transaction,
                # which would get the error of this ROLLBACK.
                wire.wait_for_rollback()

    def on_reset(self, connection: Any, record: Any, state: PoolResetState) -> None:
        """Handle ``reset``: roll back if a transaction may be open."""
        # Do not use state.transaction_was_reset: it is also set if COMMIT has
        # failed and the transaction may still be open.
        if record is None or not state.asyncio_safe:
            # SQLAlchemy closes it next: it was detached, or is collected.
            return
        if record.info.get(ENDED) and not (
            # The driver's cursor may have begun a transaction.
            self._backend.in_transaction(connection)
        ):
            return
        if record.info.get(_PROCESS) == os.getpid():
            self._engine.dialect.do_rollback(connection)

    def on_checkin(self, connection: Any, record: Any) -> None:
        """Handle ``checkin``."""
        engines = self._engines
        # The next user of the connection is another transaction.
        record.info.pop(TRANSACTION_LOG, None)
        try:
            if not engines.pools_connections or self._retirement.server is not None:
                # The pool of the connection is not used any more.
                record.close()
        finally:
            engines.checked_in(record)

    def on_detach(self, connection: Any, record: Any) -> None:
        """Handle ``detach``: the connection never returns to the pool."""
        self._engines.checked_in(record)


def _collations(error: Any) -> ScatterUnsupportedError:
    return ScatterUnsupportedError(
        "a string that is made of two collations, such as a column and a "
        f"cast(), cannot be compared: {summary(error)}; collate() it to one, "
        "or cast() a column to the character set of the other",
        construct="COLLATE",
    )


def _unfit(context: ExceptionContext) -> ParameterValueError | None:
    """Return the error to raise for a value that the driver could not send.

    The driver raises errors of Python, which name neither value nor remedy.
    """
    if not isinstance(context.original_exception, (ValueError, OverflowError)):
        return None
    given: Any = context.parameters
    rows = given if isinstance(given, list) else [given]
    for row in rows:
        values = list(row.values() if isinstance(row, dict) else row or ())
        for value in values:
            if isinstance(value, (list, tuple)):
                # PyMySQL accepts a list as one parameter.
                values.extend(value)
            elif isinstance(value, str):
                try:
                    value.encode()
                except UnicodeEncodeError as error:
                    return ParameterValueError(
                        value,
                        f"a lone surrogate at position {error.start}, which "
                        "UTF-8 cannot hold. Decode the original bytes with "
                        "errors='replace'",
                    )
            elif isinstance(value, int) and value.bit_length() > 63:
                return ParameterValueError(
                    value, "more bits than the server has for an integer"
                )
    return None


class Errors:
    """Translation of server errors: unreachable, fenced, shard missing.

    Missing shards are reported only for statements that name their shards,
    not for changes of the schema.

    :param engines: registry of engines, which has the newest topology.
    :param names: names of the server; more may be added later.
    """

    def __init__(
        self, engines: Engines, names: Iterable[str], backend: Backend
    ) -> None:
        # Classes of the application refer to the listeners of a dialect, and
        # must not keep a closed cluster alive.
        self._engines = weakref.ref(engines)
        self._names = names
        self._backend = backend

    def __call__(self, context: ExceptionContext) -> Exception | None:
        """Handle ``handle_error``."""
        error = context.sqlalchemy_exception
        if error is None:
            return _unfit(context)
        if isinstance(error, ShardError):
            return None
        original: Any = context.original_exception
        failure = self._backend.classify(original)
        gone = context.is_disconnect or (
            context.connection is None and failure is Failure.LOST
        )
        if gone or failure is Failure.LOST:
            self._refresh_topology()
        if gone:
            return ServerUnreachableError(server=self._name, error=error)
        if context.connection is None and failure is Failure.LOGIN:
            return LoginFailedError(server=self._name, error=error)
        if failure is Failure.UNKEYED:
            return UnkeyedReferenceError(server=self._name, error=error)
        execution = context.execution_context
        options = {} if execution is None else execution.execution_options
        plan = options.get(OPTION)
        places = options.get(PLACES) or (() if plan is None else plan.places)
        if context.connection is None:
            places = self._only_place(context.engine)
        if failure is Failure.COLLATIONS and len(places) > 1:
            return _collations(error)
        return self.error_for(error, [p for p in places if p.engine is context.engine])

    def error_for(self, error: Any, places: Sequence[Place]) -> Exception | None:
        """Return the error to raise for a statement on the given shards.

        :param error: SQLAlchemy's error, which contains the driver's error.
        :param places: shards of the server that the statement was for;
            empty if unknown.
        :returns: None to raise the error unchanged.
        """
        failure = self._backend.classify(error.orig)
        if failure is Failure.FENCED:
            self._refresh_topology()
            return ServerFencedError(server=self._name, error=error) if places else None
        if failure is Failure.MISPLACED and places:
            self._refresh_topology()
            return self._misplaced(error, places)
        if failure is Failure.COLLATIONS and len(places) > 1:
            return _collations(error)
        return None

    def _only_place(self, engine: Engine | None) -> Sequence[Place]:
        """Return the shard of an engine that serves only one database."""
        engines = self._engines()
        place = (
            None
            if engines is None or engine is None
            else engines.only_places.get(engine.url)
        )
        return () if place is None else [place]

    def _refresh_topology(self) -> None:
        engines = self._engines()
        if engines is not None:
            engines.request_topology()

    @property
    def _name(self) -> str:
        return ", ".join(self._names)

    def _misplaced(self, error: Any, places: Sequence[Place]) -> Exception:
        engines = self._engines()
        topology = None if engines is None else engines.topology
        keyspace, server = places[0].keyspace, places[0].server
        if engines is not None and topology is not None:
            moved = _moved(engines, places, topology)
            if moved:
                return ShardMovedError(
                    keyspace=keyspace,
                    shards=tuple(moved),
                    from_server=server,
                    to_server=next(iter(moved.values())),
                    epoch=topology.epoch,
                    error=error,
                )
        return ShardMissingError(
            keyspace=keyspace,
            shards=tuple(place.shard_id for place in places),
            server=server,
            lacks=self._backend.lacks(error.orig),
            epoch=0 if topology is None else topology.epoch,
            error=error,
        )


def _moved(
    engines: Engines, places: Sequence[Place], topology: Topology
) -> dict[int, str | None]:
    """Return the shards that have moved, with their current servers."""
    servers: dict[int, str | None] = {}
    for place in places:
        keyspace = topology.keyspaces.get(place.keyspace)
        if keyspace is None or place.shard_id >= keyspace.shards:
            servers[place.shard_id] = None
            continue
        server = keyspace.server_for(place.shard_id)
        # The name of a server is the same after a failover.
        engine, schema, _ = engines.locate(
            server, keyspace.database_for(place.shard_id)
        )
        quoted = engine.dialect.identifier_preparer.quote(schema)
        if (engine.url, quoted) != (place.engine.url, place.schema):
            servers[place.shard_id] = server.name
    return servers


# Servers that were removed from the topology while they are in use


_log = careful_log(__name__)

#: Maximum number of stored URLs: no transaction can still be open on servers
#: that were removed earlier.
_MAX_RETIRED_URLS = 1024


class _Retirement:
    """Refuses the use of an engine after its server was removed.

    It does not refer to the engine: SQLAlchemy's caches of statements, which
    live as long as the classes of an application, refer to the listeners of
    a dialect.
    """

    def __init__(self) -> None:
        #: Name of the server after it was removed.
        self.server: str | None = None
        self._deadline = 0.0

    def begin(self, server: str, grace: float) -> None:
        """Refuse new connections now, and statements after some seconds."""
        self._deadline = monotonic() + grace
        self.server = server

    def check(self, *details: object) -> None:
        """Refuse a connection.

        :raises ServerRetiredError: if the server was removed.
        """
        if self.server is not None:
            raise ServerRetiredError(server=self.server)

    def check_deadline(self) -> None:
        """Refuse a statement before it is sent.

        :raises ServerRetiredError: if the server was removed, and the grace
            period of open transactions is over.
        """
        if self.server is not None and monotonic() > self._deadline:
            raise ServerRetiredError(server=self.server)


class Retired:
    """The engines of servers that were removed from the topology.

    Transactions that were open when the server was removed may use it for a
    grace period; after it, only COMMIT and ROLLBACK are sent.

    :param grace: the grace period in seconds.
    """

    def __init__(self, grace: float) -> None:
        self._grace = grace
        self._gone: dict[str, None] = {}
        #: The engines with connections in use, and the names of their servers.
        self.engines: dict[Engine, tuple[str, ...]] = {}
        # Includes engines without connections: a transaction that has located
        # a shard may open its first connection later.
        self._watched: weakref.WeakKeyDictionary[Engine, _Retirement] = (
            weakref.WeakKeyDictionary()
        )

    def watch(self, engine: Engine) -> _Retirement:
        """Return the object that refuses a new engine after it is retired."""
        # Register it when the engine is opened, not when it is retired:
        # listeners must not change while other threads run statements.
        retirement = self._watched[engine] = _Retirement()
        return retirement

    def is_gone(self, text: str) -> bool:
        """Return whether a URL belongs to a removed server."""
        return text in self._gone

    def let_in(self, texts: Iterable[str]) -> None:
        """Accept the URLs of a topology."""
        for text in texts:
            self._gone.pop(text, None)

    def refuse(self, left: Iterable[str]) -> None:
        """Refuse the URLs that were removed from the topology."""
        self._gone.update(dict.fromkeys(left))
        for text in list(self._gone)[:-_MAX_RETIRED_URLS]:
            del self._gone[text]

    def add(self, engine: Engine, names: Iterable[str], busy: int) -> None:
        """Retire an engine, which then opens no more connections.

        :param names: names of its server.
        :param busy: number of its connections in use.
        """
        self.engines[engine] = tuple(names)
        server = ", ".join(self.engines[engine])
        self._watched[engine].begin(server, self._grace)
        _log.info(
            "server %s has left the topology; %d of its connections are in use",
            server,
            busy,
            extra={"action": "retire server", "server": server},
        )

    def forget(self, busy: Collection[Engine]) -> None:
        """Forget the engines without connections in use.

        :param busy: the engines with connections in use.
        """
        for engine in self.engines.keys() - set(busy):
            self.engines.pop(engine, None)
