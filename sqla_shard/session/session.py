"""The session: SQLAlchemy's ``ShardedSession``, routed by object ids.

:class:`ShardSession` is a
:class:`~sqlalchemy.ext.horizontal_shard.ShardedSession` whose choosers read
the shard from object ids.  It differs from that class in costs and in what it
refuses:

* opening a session costs the same for any number of shards;
* a session has one connection and one transaction per server, for any number
  of the server's shards;
* an identity key is the class and the id, without a shard token;
* one ``execute`` is one ORM execution: a listener adds the shards to it;
* a statement whose shards cannot be determined is refused, and so is a write
  to a second shard in one transaction.

Compared to a single database there are no statements over two keyspaces, no
atomic transactions over two shards, and no results of several shards that
cannot be merged correctly.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from contextvars import ContextVar
from dataclasses import replace
from functools import wraps
from time import perf_counter
from types import TracebackType
from typing import Any, TYPE_CHECKING, TypeVar

from sqlalchemy import Connection, event, inspect
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.horizontal_shard import ShardedSession
from sqlalchemy.orm import (
    class_mapper,
    Mapper,
    ORMExecuteState,
    Session,
    SessionTransaction,
)
from sqlalchemy.orm.attributes import instance_state
from sqlalchemy.util import safe_reraise

from sqla_shard.engine import ExecutionPlan, Places, StatementReports
from sqla_shard.engine.hooks import TRANSACTION_LOG
from sqla_shard.engine.rendering import Place
from sqla_shard.exc import (
    ForkedSessionError,
    NoShardKeyError,
    RoutingError,
    ShardError,
    UnsupportedStatementError,
)
from sqla_shard.exc.base import summary
from sqla_shard.ids.layout import ids_in
from sqla_shard.planning import keyspace_of, route, spec_of
from sqla_shard.session.commit import (
    check_write,
    Commits,
    ensure_begun,
    invalidate_flushed,
    reads_latest,
)
from sqla_shard.session.connections import bind_to, outside_bulk, ShardView, Usage
from sqla_shard.session.execute import check_keyspace, prepare
from sqla_shard.session.flush import place_objects, place_of
from sqla_shard.session.get import ANSWERS, getter_of, includes_hidden, is_plain
from sqla_shard.session.paging import Page
from sqla_shard.session.placement import issue_for_object, IssuedAttributes
from sqla_shard.session.scatter_pages import scatter_page
from sqla_shard.session.transaction import (
    check_cross_shard,
    CrossShard,
    give_up,
    LastWrite,
    leave_to_parent,
    record_commit,
    refuse_lost,
    roll_back_together,
    TransactionLog,
)
from sqla_shard.util import sqlalchemy_private as private
from sqla_shard.util.logs import careful_log

if TYPE_CHECKING:
    from sqla_shard import Cluster


__all__ = ["CrossShard", "SessionContext", "ShardSession", "separate_session"]

T = TypeVar("T")

#: Arguments of ``execute()`` that the package itself passes, after ``place``.
_OURS = frozenset({"limits", "merged", "places"})


# -- listeners, in the order of their calls
#
# The modules of :mod:`sqla_shard.models`, which the session does not import,
# register more on the class.  ``before_flush`` and ``after_flush_postexec`` of
# blob fields are called after these.  Of ``do_orm_execute`` the check of an
# UPDATE of blob fields is called before :func:`.execute.prepare`; the condition
# that hides inactive objects is added after it.


def _before_flush(session: Any, context: Any, objects: Any) -> None:
    session._check_process()
    try:
        place_objects(session)
    except BaseException as error:
        # A refused flush has sent nothing, and the transaction continues.  After
        # another error, such as a deadlock of what is read here, SQLAlchemy's
        # flush would not let the rest of it be committed.
        if isinstance(error, DBAPIError) or not isinstance(error, ShardError):
            with safe_reraise():
                private.roll_back_flush(session)
        raise


def _before_commit(session: Any) -> None:
    session._check_process()
    refuse_lost(session._connections, session)
    ensure_begun(session)
    session._commits = session._commits or Commits(session)
    session._commits.take()


def _after_begin(
    session: Any, transaction: SessionTransaction, connection: Any
) -> None:
    session._connections.append(connection)
    connection.info[TRANSACTION_LOG] = session._log or session.log
    if session._commits is not None:
        # During COMMIT, by a listener or a flush.
        session._commits.take()


def _after_create(session: Any, transaction: SessionTransaction) -> None:
    if transaction.nested:
        session.log.savepoint(transaction)


def _after_rollback(session: Any, previous: SessionTransaction) -> None:
    if session._log is not None:  # None after the end of the transaction
        session._log.rolled_back(previous)
    session._placed.clear()


def _after_end(session: Any, transaction: SessionTransaction) -> None:
    if transaction.parent is None:
        log = session._log
        session._reset_transaction()
        session.pending = ()
        if log is not None:
            log.run_after_commit(session)


_LISTENERS: dict[str, Any] = {
    "do_orm_execute": prepare,
    "before_flush": _before_flush,
    "after_flush": invalidate_flushed,
    "before_commit": _before_commit,
    "after_commit": record_commit,
    "after_begin": _after_begin,
    "after_transaction_create": _after_create,
    "after_soft_rollback": _after_rollback,
    "after_transaction_end": _after_end,
}


def listen(cls: type[Any]) -> None:
    """Register the listeners of a class of sessions."""
    for name, listener in _LISTENERS.items():
        event.listen(cls, name, listener)


# -- the session


class ShardSession(ShardedSession):
    """A session over the virtual shards of a cluster.

    :param cluster: the cluster; ``cluster.session()`` passes it.
    :param shard_id: the shard of new root objects; None lets the placement
        policy choose.
    :param cross_shard: lets one transaction write several shards, committed
        one after another: ``"ordered"`` (lookups first) or ``"unordered"``;
        or run operations on other shards: ``"logged"``.
    :param cache: whether reads may use the row cache.
    :param kwargs: other options of :class:`sqlalchemy.orm.Session`.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.get_bind is not ShardSession.get_bind:
            cls.get_bind = _without_ours(cls.get_bind)  # type: ignore[method-assign]  # with fewer arguments

    shows_hidden: bool = False  #: whether reads return inactive objects
    last: LastWrite | None = None  #: called right before each COMMIT
    #: Whether a transaction with writes has been committed.
    has_committed = False
    #: Operations of the last transaction that have not been applied.
    pending: tuple[Any, ...] = ()

    def __init__(
        self,
        bind: None = None,
        *,
        cluster: Cluster,
        shard_id: int | None = None,
        cross_shard: CrossShard = None,
        cache: bool = True,
        **kwargs: Any,
    ) -> None:
        Session.__init__(self, bind, **kwargs)
        self.uses_cache = cache  #: whether reads may use the row cache
        self.cluster = cluster
        self.root_shard_id = shard_id
        self._cross_shard: CrossShard = check_cross_shard(cross_shard)
        self._usage = Usage()
        self._process = os.getpid()
        self._reset_transaction()
        #: The shard that SQLAlchemy's bulk INSERT or UPDATE is writing.
        self._bulk: Place | None = None

    _commits: Commits | None = None

    def _reset_transaction(self) -> None:
        if self._commits is not None:
            self._commits.forget()
        if self._cache_connection is not None:
            self.close_cache_connection()
        self._places: Places | None = None
        self._views: dict[Place, tuple[Connection, ShardView]] = {}
        self._log: TransactionLog | None = None
        #: Connections with a transaction, in the order of BEGIN.
        self._connections: list[Connection] = []
        self._commits = None
        #: Shard locations of objects that are not flushed yet.
        self._placed: dict[Any, Place] = {}
        self._transaction_cross_shard: CrossShard = None

    @property
    def places(self) -> Places:
        """The locations of shards, unchanged until the transaction ends."""
        if self._places is None:
            self._places = self.cluster.places
        return self._places

    @property
    def log(self) -> TransactionLog:
        """The writes of the transaction."""
        if self._log is None:
            crosses = self._transaction_cross_shard or self._cross_shard
            self._log = TransactionLog(self.places, cross_shard=crosses, last=self.last)
        return self._log

    @property
    def _watch(self) -> StatementReports | None:
        """The observers of the session's statements."""
        watch = self.cluster.watch
        return None if watch is None else replace(watch, session=self)

    def begin(
        self, nested: bool = False, *, cross_shard: CrossShard = None
    ) -> SessionTransaction:
        """Begin a transaction; see :meth:`sqlalchemy.orm.Session.begin`.

        :param cross_shard: lets this transaction write several shards.
        """
        transaction = super().begin(nested)
        self._transaction_cross_shard = check_cross_shard(cross_shard)
        return transaction

    def _close(self) -> None:
        failed: BaseException | None = None
        try:
            if self._process != os.getpid():
                leave_to_parent(self._connections)
            elif len(self._connections) > 1:
                roll_back_together(self._connections, self.places.engines.lanes)
        except BaseException as error:
            failed = error
        try:
            Session.close(self)
        except BaseException:
            # Session.close() stops at the first server that fails; on the
            # others locks would remain, and connections would not return to
            # their pools.
            give_up(self._connections)
            self._reset_transaction()
            raise
        if failed is not None:
            raise failed

    def _check_process(self) -> None:
        """Refuse to continue a transaction of the parent process.

        :raises ForkedSessionError: in a child process.
        """
        process = os.getpid()
        if process != self._process:
            if self._views or self.in_transaction():
                # What ends the transaction now sends nothing to its servers.
                leave_to_parent(self._connections)
                raise ForkedSessionError(
                    f"process {process} uses a session with a transaction "
                    f"that process {self._process} began; open a session in "
                    "each process"
                )
            self._process = process

    # ShardedSession's method tries the tokens of identity_chooser().
    _identity_lookup = Session._identity_lookup  # type: ignore[assignment]  # same call, other defaults

    def shard_chooser(  # type: ignore[override]  # an attribute there
        self, mapper: Any, instance: Any, clause: Any = None, **kw: Any
    ) -> int:
        """Return the shard of an object; choose the shard of a new one."""
        return place_of(self, mapper, instance).shard_id

    def identity_chooser(  # type: ignore[override]  # an attribute there
        self, mapper: Mapper[Any], primary_key: Sequence[Any], **kw: Any
    ) -> list[int]:
        """Return the shard of a primary key."""
        return [getter_of(mapper).place(self.places, primary_key).shard_id]

    def execute_chooser(self, context: ORMExecuteState) -> list[int]:
        """Return the shards of a statement; see :mod:`sqla_shard.planning`."""
        shards = route(context.statement, context.parameters, self.places)
        return list(shards.shards)

    def get_bind(  # type: ignore[override]  # takes a place as well
        self,
        mapper: Any = None,
        *,
        place: Place | None = None,
        shard_id: int | None = None,
        instance: Any = None,
        clause: Any = None,
        **kw: Any,
    ) -> Any:
        """Return the engine of the server of a shard.

        :raises NoShardKeyError: if the shard cannot be determined.
        """
        asked = _asked.get()
        if place is None and asked is not None and asked[0] is self:
            place = asked[1]
        if place is None:
            place = self._bulk
        if place is None:
            place = self.place_for(mapper, shard_id, instance, clause)
            if self._flushing:
                # SQLAlchemy writes the rows of a many-to-many relationship
                # on the connection of this engine, without options.
                root = self.root_connection(place)
                bind_to(root, self._connection_plan(place))
        return place.engine

    def place_for(
        self,
        mapper: Any = None,
        shard_id: int | None = None,
        instance: Any = None,
        clause: Any = None,
        keyspace: str | None = None,
    ) -> Place:
        """Return the location of an object, or of a shard of a class.

        :param mapper: the class, or its mapper.
        :param shard_id: number of the shard; not needed in a global keyspace.
        :param instance: the object, instead of class and shard.
        :param clause: a statement or table, instead of a class.
        :param keyspace: name of the keyspace, instead of a class.
        :raises KeyspaceMismatchError: if the class is in another keyspace.
        :raises NoShardKeyError: if the shard cannot be determined.
        """
        places = self.places
        if instance is not None:
            return place_of(self, mapper or inspect(instance).mapper, instance)
        table = None
        if mapper is not None:
            # Of a class that is not mapped, inspect() would name the type.
            is_class = isinstance(mapper, type)
            known: Any = class_mapper(mapper) if is_class else inspect(mapper)
            table = known.local_table
        elif clause is not None:
            table = getattr(clause, "table", None)
        if keyspace is not None:
            space = places.keyspace(keyspace, "")
            if table is not None:
                check_keyspace((table,), space, places.topology)
        elif table is not None:
            spec = spec_of(table)
            space = places.keyspace(spec.keyspace, spec.kind, spec.layout)
        elif shard_id is None:
            space = keyspace_of((), places)
        else:
            space = places.keyspace(None, "objects")
        if shard_id is None and space.kind == "global":
            shard_id = 0
        if shard_id is None:
            name = space.name if table is None else str(table.name)
            raise NoShardKeyError(
                f"the shard of {name} cannot be determined; pass "
                'bind_arguments={"shard_id": n}',
                tables=(name,),
            )
        return places.place(space, shard_id)

    @property
    def connection_callable(self) -> Any:  # type: ignore[override]  # a method there
        """The function that returns the connection of an object.

        The unit of work calls it.
        """
        # SQLAlchemy's bulk operations refuse sessions with this attribute.
        return None if self._bulk is not None else self._connection_of

    def _connection_of(
        self, mapper: Any = None, instance: Any = None, **kw: Any
    ) -> Connection:
        place = place_of(self, mapper, instance)
        known = self._flush_views
        if known is None:
            return self._view(place)
        attribute = self.issued_attributes[instance_state(instance).mapper]
        if attribute is not None:
            issue_for_object(self, instance, attribute, place)
        # Called for each object: the transaction of a flush stays the same.
        view = known.get(place)
        if view is None:
            view = known[place] = self._view(place)
        return view

    def _view(self, place: Place) -> ShardView:
        """Return the session's connection to a server, seen from a shard."""
        root = self.root_connection(place)
        known = self._views.get(place)
        # Return the same view each time: the unit of work batches rows by
        # connection.
        if known is None or known[0] is not root:
            view = ShardView(root, place, self._connection_plan(place))
            known = self._views[place] = root, view
        return known[1]

    def _open_view(self, place: Place) -> ShardView:
        """Return :meth:`view`; also works while COMMIT is being sent.

        :raises LookupError: if the transaction has not begun on the shard's
            server.
        """
        for root in self._connections:
            if root.engine is place.engine:
                return ShardView(root, place, self._connection_plan(place))
        raise LookupError(
            f"the transaction has not begun on {place.server}, where shard "
            f"{place.shard_id} of {place.keyspace} is"
        )

    def _plan_for(self, place: Place, *, scattered: bool = False) -> ExecutionPlan:
        """Return the plan of a statement that the session has checked."""
        return ExecutionPlan(
            (place,), (), self.log.wrote, scattered=scattered, watch=self._watch
        )

    def _connection_plan(self, place: Place) -> ExecutionPlan:
        """Return the plan of statements that are executed on a connection."""
        return ExecutionPlan((place,), (), self._wrote, watch=self._watch)

    def _wrote(self, place: Place, what: str, table: Any = None) -> None:
        by_session = self._flushing or self._bulk is not None
        check_write(self, place, table, by_session=by_session)
        self.log.wrote(place, what, table)

    def root_connection(self, place: Place) -> Connection:
        """Return the session's connection to the server of a shard."""
        return Session.connection(self, bind_arguments={"bind": place.engine})

    @property
    def has_connections(self) -> bool:
        """Whether the transaction has begun on a server."""
        return bool(self._connections)

    def is_connected(self, place: Place) -> bool:
        """Return whether the session is connected to a shard's server."""
        return any(c.engine is place.engine for c in self._connections)

    def reads_latest(self, place: Place | None = None) -> bool:
        """Return whether the next read sees the last COMMIT of any session."""
        engine = None if place is None else place.engine
        here = [c for c in self._connections if engine in (None, c.engine)]
        return all(map(reads_latest, here))

    def connection(
        self, bind_arguments: Any = None, execution_options: Any = None
    ) -> Connection:
        """Return the connection to one shard; see ``Session.connection``.

        :param bind_arguments: ``{"shard_id": n}``, with ``{"keyspace":
            name}`` or ``{"mapper": Class}`` if there are several keyspaces;
            None for the only global one.
        :raises NoShardKeyError: if the shard cannot be determined.
        """
        self._check_process()
        given = dict(bind_arguments or {})
        place = given.pop("place", None) or self.place_for(**given)
        if execution_options:
            Session.connection(
                self,
                bind_arguments={"bind": place.engine},
                execution_options=execution_options,
            )
        return self._view(place)

    # Cached rows: the connection to the engine that returns them is not part
    # of the transaction, since listeners to after_begin and execution
    # options are meant for servers.

    _cache_connection: Connection | None = None
    #: The views of the running flush, if any.
    _flush_views: dict[Place, ShardView] | None = None
    issued_attributes: IssuedAttributes  #: of the running flush

    def _connection_for_bind(
        self, engine: Any, execution_options: Any = None, **kw: Any
    ) -> Connection:
        if not getattr(engine, ANSWERS, False):
            # Called for each statement: look for listeners only if the
            # transaction has begun on another server.
            known = len(self._connections)
            start = perf_counter()
            connection = super()._connection_for_bind(engine, execution_options, **kw)
            if len(self._connections) > known and self.cluster.listens(
                "connection_obtained"
            ):
                name = self.places.engines.report_name(engine)
                self.cluster.notify("connection_obtained", name, perf_counter() - start)
            return connection
        # SQLAlchemy does the same before it connects to a server.
        private.check_can_execute(self)
        cached = self._cache_connection
        if cached is None or cached.engine is not engine:
            self.close_cache_connection()
            cached = self._cache_connection = engine.connect()
        return cached

    def close_cache_connection(self) -> None:
        """Close the connection to the engine of cached rows."""
        if self._cache_connection is not None:
            self._cache_connection.close()
            self._cache_connection = None

    def _execute_internal(self, *args: Any, **kwargs: Any) -> Any:
        with self._usage:
            try:
                return super()._execute_internal(*args, **kwargs)
            except RoutingError as error:
                # Once, although a statement on several shards is several
                # executions.
                if not self._usage.is_nested:
                    self.cluster.notify("statement_refused", error)
                raise

    def flush(self, objects: Any = None) -> None:
        """Flush; see :meth:`sqlalchemy.orm.Session.flush`."""
        if private.is_clean(self):  # nearly every autoflush
            self._usage.check()
            return
        # By autoflush or a listener it may be inside a bulk INSERT or UPDATE.
        apart = nullcontext() if self._bulk is None else outside_bulk(self)
        with self._usage, apart:
            try:
                self._flush_views = {}
                self.issued_attributes = IssuedAttributes()
                super().flush(objects)
            finally:
                self._flush_views = None

    def commit(self) -> None:
        """Commit; see :meth:`sqlalchemy.orm.Session.commit`."""
        with self._usage:
            super().commit()

    def rollback(self) -> None:
        """Roll back; see :meth:`sqlalchemy.orm.Session.rollback`."""
        with self._usage:
            if self._process != os.getpid():
                leave_to_parent(self._connections)
            super().rollback()

    def close(self) -> None:
        """Roll back and close; see :meth:`sqlalchemy.orm.Session.close`.

        ROLLBACK is sent to all servers in parallel.  If it fails on one, the
        connections to the others are closed.

        :raises sqlalchemy.exc.SQLAlchemyError: the error of that server.
        :raises ConcurrentUseError: if another thread or task is using the
            session.
        """
        with self._usage:
            try:
                self._close()
            finally:
                self._usage.end()

    def get(self, entity: type[T] | Mapper[T], ident: Any, **kwargs: Any) -> T | None:
        """Return the object of an id; see :meth:`sqlalchemy.orm.Session.get`.

        :param ident: the id of an object class, or any primary key.
        :returns: None if there is no row, or if it is inactive and
            ``execution_options={"include_inactive": True}`` is not given.
        :raises InvalidIdError: if ``ident`` is not an id.
        :raises WrongTypeError: if ``ident`` is an id of another class.
        :raises UnknownShardError: if the shard of the id is not open.
        :raises UnsupportedStatementError: if ``entity`` is not a class.
        """
        getter = getter_of(entity)
        if not getter.by_id:
            located = getter.located(self.places, ident, kwargs)
            return super().get(entity, ident, **located)
        hidden = self.shows_hidden or (
            bool(kwargs) and includes_hidden(kwargs.get("execution_options"))
        )
        if type(ident) is int and (not kwargs or is_plain(kwargs)):
            instance: T | None = getter.get(self, ident, hidden)
        else:
            instance = getter.get_with(self, ident, hidden, kwargs, super().get)
        return instance

    def get_many(
        self,
        entity: type[T],
        ids: Iterable[int],
        *,
        options: Sequence[Any] = (),
        execution_options: Any = None,
    ) -> list[T | None]:
        """Return the objects of several ids, on any shards.

        :param ids: ids of objects; an id may occur more than once.
        :param options: loader options, as for ``select().options()``.
        :returns: a list in the order of the ids, with None for each id that
            has no row.
        :raises InvalidIdError: if a value is not an id, or is an id of
            another class, or if ``ids`` is a single id.
        """
        getter = getter_of(entity)
        if not getter.by_id:
            raise UnsupportedStatementError(
                f"get_many() takes object classes; {entity!r} is not one: "
                "use select() with in_()",
                construct="get_many()",
            )
        instances: list[T | None] = getter.get_many(
            self, ids_in("get_many()", ids), options, execution_options or {}
        )
        return instances

    def scatter_page(
        self,
        statement: Any,
        limit: int,
        after: str | None = None,
        *,
        parameters: Any = None,
    ) -> Page[Any]:
        """Return a page of the rows of a SELECT, in its order.

        ::

            newest = select(Pin).order_by(Pin.ts.desc())
            page = session.scatter_page(newest, 50)
            more = session.scatter_page(newest, 50, after=page.next)

        Each shard reads at most one page.  Rows that are inserted or deleted
        between two pages cause no other row to be repeated or skipped.  Rows
        that are equal in ORDER BY are ordered by their primary keys.  If
        the statement does not determine its shards, it reads all of them.

        :param statement: a SELECT without LIMIT, DISTINCT or GROUP BY; its
            ``scatter()`` limits apply to each page.
        :param limit: maximum number of rows of the page, from 1.
        :param after: a bookmark: the ``next`` or ``previous`` of a page.
        :param parameters: parameters of the statement, if any.
        :returns: a page of objects or values if the statement selects one
            class or column, otherwise of rows.
        :raises ScatterUnsupportedError: if a page cannot continue in the
            order of the statement.
        :raises InvalidBookmarkError: if ``after`` is not a bookmark of
            this statement; it may belong to another order, WHERE clause,
            value in it or cluster, or be forged.
        """
        return scatter_page(self, statement, limit, after, parameters)

    def merge(self, instance: T, **kwargs: Any) -> T:
        """Merge an object; see :meth:`sqlalchemy.orm.Session.merge`."""
        # Show inactive rows: otherwise merge() would
        # insert them a second time.
        before = self.shows_hidden
        try:
            self.shows_hidden = True
            return super().merge(instance, **kwargs)
        finally:
            self.shows_hidden = before

    def expire(
        self, instance: object, attribute_names: Iterable[str] | None = None
    ) -> None:
        """Expire attributes; see :meth:`sqlalchemy.orm.Session.expire`.

        :raises BlobError: if the attribute is a field, and other fields of
            the object have unflushed changes: all fields are read together.
        """
        super().expire(instance, _loaded_as(instance, attribute_names))

    def refresh(
        self,
        instance: object,
        attribute_names: Iterable[str] | None = None,
        with_for_update: Any = None,
    ) -> None:
        """Read an object again; see :meth:`sqlalchemy.orm.Session.refresh`.

        :raises BlobError: see :meth:`expire`; only if autoflush is off.
        """
        names = None if attribute_names is None else list(attribute_names)
        if names and instance in self:
            state: Any = inspect(instance)
            discard = spec_of(state.mapper.local_table).discard
            if state.key and discard is not None and self.autoflush:
                # The document is read as a whole: flush the changes of other
                # fields, as SQLAlchemy flushes those of other columns.
                columns = discard(state, names)
                if columns:
                    super().expire(instance, columns)
                if columns is not None:
                    private.autoflush(self)
        super().refresh(instance, _loaded_as(instance, names), with_for_update)

    def _refuse_bulk(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse a method that does not route rows, or check fields.

        :raises UnsupportedStatementError: always.
        """
        raise UnsupportedStatementError(
            "the legacy bulk methods are not supported, for classes of any "
            "keyspace: they neither route rows nor check fields; use "
            "session.execute(insert(Class), rows) or session.add_all()",
            construct="bulk_*()",
        )

    bulk_save_objects = _refuse_bulk
    bulk_insert_mappings = _refuse_bulk
    bulk_update_mappings = _refuse_bulk


#: The session that calls its application's ``get_bind()``, and the place.
_asked: ContextVar[tuple[ShardSession, Place] | None] = ContextVar(
    "sqla_shard_asked", default=None
)


def _without_ours(override: Callable[..., Any]) -> Any:
    """Return the ``get_bind()`` of an application, called as by SQLAlchemy.

    It need not accept, or pass on, the arguments of this package.
    """

    @wraps(override)
    def get_bind(self: ShardSession, *args: Any, **kwargs: Any) -> Any:
        place = kwargs.pop("place", None)
        given = {k: v for k, v in kwargs.items() if k not in _OURS}
        if place is None:
            return override(self, *args, **given)
        token = _asked.set((self, place))
        try:
            return override(self, *args, **given)
        finally:
            _asked.reset(token)

    return get_bind


def _loaded_as(instance: object, names: Iterable[str] | None) -> Iterable[str] | None:
    """Return the attributes from which the named attributes are loaded."""
    state: Any = inspect(instance, raiseerr=False)
    if names is None or state is None:
        return names
    loaded_as = spec_of(state.mapper.local_table).loaded_as
    return names if loaded_as is None else loaded_as(state, list(names))


listen(ShardSession)


_log = careful_log(__name__)


class SessionContext:
    """Context manager that begins a transaction and closes the session.

    The transaction is committed at the end of the block, and rolled back
    after an exception.

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
        """Close the session; log an error instead of raising it."""
        try:
            self._session.close()
        except SQLAlchemyError as error:
            # Log no traceback: it contains the error of the block, with the
            # parameters of its statement.
            _log.warning(
                "could not roll back a transaction; its connections were closed: %s",
                summary(error),
                extra={"action": "roll back"},
            )


def separate_session(session: ShardSession) -> ShardSession:
    """Return a new session with the topology of another.

    The new session sees the last COMMIT, and begins no transaction in the
    other session.  Use it only for servers that the other session is not
    connected to: the connections of both could wait for each other.

    :param session: the session whose topology is used.
    """
    other = ShardSession(cluster=session.cluster, cache=False)
    other._places = session.places
    return other
