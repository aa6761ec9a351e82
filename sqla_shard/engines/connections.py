"""What happens to connections: lost, used, ended, back in the pool."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any
from typing import Protocol

from sqlalchemy import Connection
from sqlalchemy import Engine
from sqlalchemy import event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.engine import URL
from sqlalchemy.pool import PoolResetState

from sqla_shard.dialects import Backend
from sqla_shard.dialects import Failure
from sqla_shard.engines.pools import ENDED
from sqla_shard.exc import ParameterValueError
from sqla_shard.exc import ScatterUnsupportedError
from sqla_shard.exc import ServerFencedError
from sqla_shard.exc import ServerUnreachableError
from sqla_shard.exc import ShardError
from sqla_shard.exc import ShardMissingError
from sqla_shard.exc import ShardMovedError
from sqla_shard.rendering import Place
from sqla_shard.scattering import OPTION
from sqla_shard.scattering import PLACES
from sqla_shard.topology import Server
from sqla_shard.topology import Topology

__all__ = ["PROCESS", "Errors", "Known", "Reset", "info_after"]

#: In the ``info`` of a connection: the process that has taken it.
PROCESS = "sqla_shard.process"


def info_after(context: ExceptionContext) -> dict[Any, Any] | None:
    """Return the ``info`` of the connection that has met an error.

    :returns: None where the connection is lost, or is not the pool's yet: on
        the first one of an engine the dialect asks its questions.
    """
    connection = context.connection
    if connection is None or connection.closed or connection.invalidated:
        return None
    try:
        return connection.info
    except NotImplementedError:
        # Raised by a listener it would replace the error of the server; the
        # dialect passes over this one, and goes on without a connection.
        return None


class Known(Protocol):
    """What is known beyond one server: the registry of engines.

    :ivar topology: the newest; None before there is one.
    :ivar alone: by URL, the shards whose databases have engines of their
        own.
    :ivar trouble: asks for a newer one soon; it never blocks.
    """

    topology: Topology | None
    alone: dict[URL, Place]
    trouble: Callable[[], None]

    def locate(
        self, server: Server, database: str
    ) -> tuple[Engine, str, Backend]:
        """Return the engine of a server, its schema of a database."""
        ...


def _collations(error: Any) -> ScatterUnsupportedError:
    return ScatterUnsupportedError(
        "a text that is made of two collations, such as a column and a "
        f"cast(), cannot be compared: {error.orig}; collate() it to one",
        construct="COLLATE",
    )


def _unfit(context: ExceptionContext) -> ParameterValueError | None:
    """Return what to raise for a value that the driver could not send.

    It raises errors of Python itself, which name neither value nor remedy.
    """
    if not isinstance(context.original_exception, (ValueError, OverflowError)):
        return None
    given: Any = context.parameters
    rows = given if isinstance(given, list) else [given]
    for row in rows:
        values = list(row.values() if isinstance(row, dict) else row or ())
        for value in values:
            if isinstance(value, (list, tuple)):
                # PyMySQL takes a list as one parameter.
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
    """Says what an error of a server means: gone, fenced, or not there.

    What is not there is told of executions alone that name their shards, not
    of changes of the schema.

    :param known: knows the newest topology.
    :param names: of the server; others may be added later.
    """

    def __init__(
        self, known: Known, names: Iterable[str], backend: Backend
    ) -> None:
        # Classes of the application lead to what listens to a dialect, and
        # must not keep a cluster that nobody has any more.
        self._known = weakref.ref(known)
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
            self._ask()
        if gone:
            return ServerUnreachableError(server=self._name, error=error)
        execution = context.execution_context
        options = {} if execution is None else execution.execution_options
        plan = options.get(OPTION)
        places = options.get(PLACES) or (() if plan is None else plan.places)
        if context.connection is None:
            places = self._alone(context.engine)
        if failure is Failure.COLLATIONS and len(places) > 1:
            return _collations(error)
        return self.told(
            error, [p for p in places if p.engine is context.engine]
        )

    def told(self, error: Any, places: Sequence[Place]) -> Exception | None:
        """Return the error of an execution that was for some shards.

        :param error: SQLAlchemy's, of the driver's.
        :param places: of the server; empty where that is not known.
        :returns: None where there is nothing more to say than it does.
        """
        failure = self._backend.classify(error.orig)
        if failure is Failure.FENCED:
            self._ask()
            return (
                ServerFencedError(server=self._name, error=error)
                if places
                else None
            )
        if failure is Failure.MISPLACED and places:
            self._ask()
            return self._misplaced(error, places)
        if failure is Failure.COLLATIONS and len(places) > 1:
            return _collations(error)
        return None

    def _alone(self, engine: Engine | None) -> Sequence[Place]:
        """Return the shard of an engine that has no other."""
        known = self._known()
        if known is None or engine is None or engine.url not in known.alone:
            return ()
        return [known.alone[engine.url]]

    def _ask(self) -> None:
        known = self._known()
        if known is not None:
            known.trouble()

    @property
    def _name(self) -> str:
        return ", ".join(self._names)

    def _misplaced(self, error: Any, places: Sequence[Place]) -> Exception:
        known = self._known()
        topology = None if known is None else known.topology
        keyspace, server = places[0].keyspace, places[0].server
        moved: dict[int, str | None] = {}
        if known is not None and topology is not None:
            moved = _moved(known, places, topology)
        if topology is not None and moved:
            return ShardMovedError(
                keyspace=keyspace,
                shards=list(moved),
                from_server=server,
                to_server=next(iter(moved.values())),
                epoch=topology.epoch,
                error=error,
            )
        return ShardMissingError(
            keyspace=keyspace,
            shards=[place.shard_id for place in places],
            server=server,
            lacks=self._backend.lacks(error.orig),
            epoch=0 if topology is None else topology.epoch,
            error=error,
        )


def _moved(
    known: Known, places: Sequence[Place], topology: Topology
) -> dict[int, str | None]:
    """Return the shards that are elsewhere, with their server there."""
    found: dict[int, str | None] = {}
    for place in places:
        keyspace = topology.keyspaces.get(place.keyspace)
        if keyspace is None or place.shard_id >= keyspace.shards:
            found[place.shard_id] = None
            continue
        server = keyspace.server_for(place.shard_id)
        # Its name is the same after a failover.
        engine, schema, _ = known.locate(
            server, keyspace.database_for(place.shard_id)
        )
        quoted = engine.dialect.identifier_preparer.quote(schema)
        if (engine.url, quoted) != (place.engine.url, place.schema):
            found[place.shard_id] = server.name
    return found


class Reset:
    """Rolls back what comes back to the pool, but in its own process.

    The pool's own reset would send ROLLBACK over a socket that the parent
    process is using, from the finalizer of a session that a child
    inherited; and once more where the session has just sent one.
    """

    def __init__(self, engine: Engine, backend: Backend) -> None:
        self._dialect = engine.dialect
        self._backend = backend
        event.listen(engine, "before_cursor_execute", self._used)
        event.listen(engine, "rollback", self._ended)
        event.listen(engine, "commit", self._ended)
        event.listen(engine, "handle_error", self._failed)
        event.listen(engine, "checkout", self._taken)
        event.listen(engine, "reset", self)

    def _used(
        self,
        connection: Connection,
        cursor: Any,
        statement: str,
        parameters: Any,
        context: Any,
        executemany: bool,
    ) -> None:
        connection.info[ENDED] = False

    def _failed(self, context: ExceptionContext) -> None:
        info = info_after(context)
        # It may have been COMMIT or ROLLBACK itself.
        if info is not None:
            info[ENDED] = False

    def _ended(self, connection: Connection) -> None:
        if not connection.invalidated:
            connection.info[ENDED] = True

    def _taken(self, connection: Any, record: Any, fairy: Any) -> None:
        # Who takes it from the pool past SQLAlchemy is not seen above.
        record.info[ENDED] = False

    def __call__(
        self, connection: Any, record: Any, state: PoolResetState
    ) -> None:
        """Handle ``reset``: roll back where a transaction may be open."""
        # Not state.transaction_was_reset: it is said of a transaction whose
        # COMMIT has failed, too, and that may be open still.
        if not state.asyncio_safe:
            return
        if record.info.get(ENDED) and not (
            # Begun by a cursor of the driver, past SQLAlchemy.
            self._backend.in_transaction(connection)
        ):
            return
        if record.info.get(PROCESS) == os.getpid():
            self._dialect.do_rollback(connection)
