"""The connections of a session: views by shard, plans, and concurrent use."""

from __future__ import annotations

import os
import random
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Any, TYPE_CHECKING

from greenlet import getcurrent
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from sqla_shard.engine import ExecutionPlan, OPTION, Scatter
from sqla_shard.engine.merge import Merge
from sqla_shard.engine.rendering import Place, TRANSLATE
from sqla_shard.exc import ConcurrentUseError, ScatterFailedError, ScatterTimeoutError
from sqla_shard.session.transaction import connection_lost, TransactionLog
from sqla_shard.topology import Keyspace

if TYPE_CHECKING:
    from sqla_shard import ShardSession


class ShardView(Connection):
    """The connection of a session to a server, bound to one shard.

    The view shares the transaction and everything else with the connection;
    only the execution options differ, which put the shard's database into
    statements.  The unit of work writes through such views, and
    ``session.connection(bind_arguments={"shard_id": n})`` returns one.
    """

    __slots__ = ("_shard_options",)

    def __init__(self, root: Connection, place: Place, plan: ExecutionPlan) -> None:
        # One dictionary for both: SQLAlchemy sets attributes such as the
        # nested transaction on either of them.
        object.__setattr__(self, "__dict__", root.__dict__)
        self._shard_options = {OPTION: plan, "schema_translate_map": TRANSLATE}

    @property
    def _execution_options(self) -> Any:
        return self.__dict__["_execution_options"].union(self._shard_options)

    @_execution_options.setter
    def _execution_options(self, options: Any) -> None:
        self.__dict__["_execution_options"] = options


def bind_to(root: Connection, plan: ExecutionPlan) -> None:
    """Use a plan for statements on a connection that have no own plan."""
    root._execution_options = root._execution_options.union(
        {OPTION: plan, "schema_translate_map": TRANSLATE}
    )


@contextmanager
def bulk_on(session: ShardSession, place: Place) -> Iterator[None]:
    """Send all writes of the session in the block to one shard.

    SQLAlchemy's bulk INSERT and UPDATE, and its flush of link tables, use
    the connection of the session without execution options.
    """
    bulk = session._bulk
    try:
        session._bulk = place
        root = session.root_connection(place)
        options = root._execution_options
        plan = session._plan_for(place)
        try:
            bind_to(root, plan)
            yield
        finally:
            root._execution_options = options
    finally:
        session._bulk = bulk


@contextmanager
def outside_bulk(session: ShardSession) -> Iterator[None]:
    """Send the writes of the block to the shards of their objects.

    For a flush inside a bulk INSERT or UPDATE; see :func:`bulk_on`.
    """
    bulk: Any = session._bulk
    root = session.root_connection(bulk)
    options = root._execution_options
    try:
        session._bulk = None
        yield
    finally:
        # Rows of global link tables have bound it to their shard.
        root._execution_options = options
        session._bulk = bulk


# The shard from which rows that every shard has are read.
#
# A transaction reads all of them from one shard: while a reference table is
# being written, two shards may differ.  A server that the session is connected
# to is preferred, since another one needs one more connection; otherwise
# the shard is random, so that all servers share the load.


_random = random.Random()  # noqa: S311  # not a secret

#: The choices of each transaction, by keyspace.
_chosen: weakref.WeakKeyDictionary[TransactionLog, dict[str, Place]] = (
    weakref.WeakKeyDictionary()
)


def any_place(session: ShardSession, keyspace: Keyspace) -> Place:
    """Return the shard from which a transaction reads rows of any shard."""
    known = _chosen.setdefault(session.log, {})
    place = known.get(keyspace.name)
    if place is None:
        place = known[keyspace.name] = _choose(session, keyspace)
    return place


def _choose(session: ShardSession, keyspace: Keyspace) -> Place:
    first = session.log.first_place(keyspace.name)
    if first is not None:
        return first
    for server in keyspace.servers:
        for shards in server.shards[:1]:
            place = session.places.place(keyspace, shards.first)
            if session.is_connected(place):
                return place
    return session.places.place(keyspace, _random.randrange(keyspace.shards))


def connect(
    session: ShardSession,
    places: Sequence[Place],
    merge: Merge | None,
    limits: Scatter | None,
    *,
    scattered: bool = False,
) -> ExecutionPlan:
    """Return the plan of a statement, with a connection to each server.

    :param places: the shards of the statement.
    :param merge: the merge of the rows; None to concatenate them.
    :param limits: the ``scatter()`` option of the statement, if any.
    :param scattered: whether the statement is sent to all shards because of
        ``scatter()``.
    :raises ServerUnreachableError: if a server cannot be connected to.
    :raises ScatterTimeoutError: if connecting takes longer than
        ``limits.timeout``.
    :raises ScatterFailedError: if a partial result would be empty.
    """
    started = monotonic()
    timeout = None if limits is None else limits.timeout
    partial = limits is not None and limits.on_error == "partial"
    # Connect in the same order in all sessions: otherwise two sessions that
    # wait for the last connections of two pools would deadlock.
    servers = {place.engine: place for place in places}
    connections: dict[Engine, Connection] = {}
    errors: dict[Engine, Exception] = {}
    new = [
        engine
        for engine, place in servers.items()
        if place.backend.waits and not session.is_connected(place)
    ]
    late = session.places.engines.connect_together(
        new,
        # Otherwise a hanging server would use up the time of the other ones.
        timeout / 2 if timeout is not None and partial else timeout,
    )
    for engine in sorted(servers, key=id):
        place = servers[engine]
        try:
            if engine in late:
                raise late[engine] or ScatterTimeoutError(
                    servers=(place.server,), timeout=timeout or 0.0
                )
            connection = session.root_connection(place)
            if partial and connection.invalidated:
                # A statement on an invalidated connection raises an error
                # of SQLAlchemy, not one of the server.
                raise connection_lost(place.server)
            connections[engine] = connection
        except SQLAlchemyError as error:
            if not partial:
                raise
            errors[engine] = error
    reached = places
    if errors:
        reached = [place for place in places if place.engine in connections]
    execution = ExecutionPlan(
        reached,
        [connections[place.engine] for place in reached],
        session.log.wrote,
        merge=merge,
        limits=limits,
        started=started,
        scattered=scattered,
        watch=session._watch,
    )
    for place in places if errors else ():
        if place.engine in errors:
            execution.errors[place.shard_id] = errors[place.engine]
    if not reached:
        raise ScatterFailedError(execution.errors)
    return execution


# One thread or task uses a session at a time: a server answers in the order of
# the statements on a connection, so with two of them a read could return the
# rows of the other.  SQLAlchemy refuses some of these uses
# (IllegalStateChangeError), but not two statements at the same time.


#: The only key of ``_users``.
_USER = "user"


_IN_USE = (
    "another thread or task is using this session; a session is for one at a "
    "time: open one for each"
)


class Usage:
    """Reentrant context manager that refuses a second thread or task.

    :raises ConcurrentUseError: by ``with``.
    """

    __slots__ = ("_depth", "_process", "_thread", "_users")

    def __init__(self) -> None:
        # Set in one step: Ctrl-C between two steps, such as taking a lock and
        # storing its owner, would leave a session that refuses its thread.
        self._users: dict[str, Any] = {}
        self._depth = 0
        self._process = os.getpid()
        #: The thread whose greenlets overlap statements of the session.
        self._thread: int | None = None

    def __enter__(self) -> None:
        # Each thread has a greenlet, and each task that awaits a statement.
        user = getcurrent()
        # Without a lock: no other thread stores or removes this greenlet.
        if self._users.get(_USER) is user or (
            self._thread is not None and self._thread == threading.get_ident()
        ):
            self._depth += 1
            return
        if self._process != os.getpid():
            # In a child process: the thread in use is one of the parent.
            self.__init__()  # type: ignore[misc]  # reset
        if self._users.setdefault(_USER, user) is not user:
            raise ConcurrentUseError(_IN_USE)

    def check(self) -> None:
        """Refuse a second thread or task, as a use that ends at once.

        :raises ConcurrentUseError: if there is one.
        """
        user = self._users.get(_USER)
        if (
            user is not None
            and user is not getcurrent()
            and self._thread != threading.get_ident()
            and self._process == os.getpid()
        ):
            raise ConcurrentUseError(_IN_USE)

    def __exit__(self, *error: object) -> None:
        if self._depth:
            self._depth -= 1
        elif self._users.get(_USER) is getcurrent():
            del self._users[_USER]

    @property
    def is_nested(self) -> bool:
        """Whether a use is inside of another one of the same user."""
        return self._depth > 0

    def end(self) -> None:
        """Forget uses that an exception interrupted before they ended."""
        self._depth = 0

    @contextmanager
    def overlapping(self) -> Iterator[None]:
        """Let statements of this thread overlap, each in its greenlet."""
        before, self._thread = self._thread, threading.get_ident()
        try:
            yield
        finally:
            self._thread = before
