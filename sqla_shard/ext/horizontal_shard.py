"""SQLAlchemy's ``ShardedSession``, with concurrent statements on all shards.

For applications that shard with the extension
:mod:`sqlalchemy.ext.horizontal_shard` and their own choosers.  Only the
import changes::

    from sqla_shard.ext.horizontal_shard import ShardedSession

Choosers, the shards of a statement and the order of results are as in
SQLAlchemy: results of the shards are concatenated, and ORDER BY, LIMIT and
aggregates apply to each shard separately.  For merged results use
:class:`sqla_shard.ShardSession`.  INSERT, and statements with ``yield_per`` or
``stream_results``, are executed on one shard after another.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from sqlalchemy import Connection, event, inspect, Result
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.horizontal_shard import (
    set_shard_id,
    ShardedQuery,
    ShardedSession as UpstreamShardedSession,
)
from sqlalchemy.orm import Mapper, ORMExecuteState, Session
from sqlalchemy.util import warn_deprecated

from sqla_shard.engine import Lanes, overlap
from sqla_shard.exc import NoShardKeyError
from sqla_shard.util import sqlalchemy_private as private

__all__ = ["Lanes", "ShardedQuery", "ShardedSession", "set_shard_id"]

#: Threads of all sessions that have no threads of their own.
_LANES = Lanes(32, "sqla-shard-session")


class ShardedSession(UpstreamShardedSession):
    """A session on shards that choosers of the application select.

    :param shard_chooser: returns the shard of a new object.
    :param identity_chooser: returns the shards that may have a primary key.
    :param execute_chooser: returns the shards of a statement.
    :param shards: engines, by shard.  The mapping is not copied: shards
        added later are also available in open sessions.
    :param query_cls: class of the result of ``session.query()``.
    :param id_chooser: deprecated form of ``identity_chooser``.
    :param query_chooser: deprecated form of ``execute_chooser``.
    :param lanes: the threads that wait for servers; by default 32, shared by
        all sessions of the process.
    :param kwargs: arguments of :class:`sqlalchemy.orm.Session`.
    :raises sqlalchemy.exc.ArgumentError: if a chooser is missing.
    """

    def __init__(
        self,
        shard_chooser: Any,
        identity_chooser: Any = None,
        execute_chooser: Any = None,
        shards: Mapping[Any, Any] | None = None,
        query_cls: type[Any] = ShardedQuery,
        *,
        id_chooser: Any = None,
        query_chooser: Any = None,
        lanes: Lanes | None = None,
        **kwargs: Any,
    ) -> None:
        # Upstream's constructor adds a listener to each session and copies
        # the dictionary of all shards.
        Session.__init__(self, query_cls=query_cls, **kwargs)
        _listen(type(self))
        self.shard_chooser = shard_chooser
        if id_chooser:
            warn_deprecated(
                "The ``id_chooser`` parameter is deprecated; "
                "please use ``identity_chooser``.",
                "2.0",
            )
            identity_chooser = partial(_identities, self, id_chooser)
        if not identity_chooser:
            raise ArgumentError("identity_chooser or id_chooser is required")
        self.identity_chooser = identity_chooser
        if query_chooser:
            warn_deprecated(
                "The ``query_chooser`` parameter is deprecated; "
                "please use ``execute_chooser``.",
                "1.4",
            )
            if execute_chooser:
                raise ArgumentError(
                    "Can't pass query_chooser and execute_chooser at the same time."
                )
            execute_chooser = partial(_shards_of_query, query_chooser)
        if not execute_chooser:
            raise ArgumentError("execute_chooser or query_chooser is required")
        self.execute_chooser = execute_chooser
        # With the mangled class name, this is the attribute of upstream.
        self.__shards: Any = {} if shards is None else shards
        self.__copied = shards is None
        self.lanes: Lanes = _LANES if lanes is None else lanes

    def bind_shard(self, shard_id: Any, bind: Any) -> None:
        """Add a shard to this session."""
        if not self.__copied:
            self.__shards = dict(self.__shards)
            self.__copied = True
        self.__shards[shard_id] = bind

    def get(self, entity: Any, ident: Any, **kwargs: Any) -> Any:
        """Return an object; see :meth:`sqlalchemy.orm.Session.get`."""
        token = kwargs.get("identity_token")
        if token is not None and not token:
            # SQLAlchemy ignores falsy tokens, such as shard 0.
            given = kwargs.get("bind_arguments") or {}
            kwargs["bind_arguments"] = {"shard_id": token, **given}
        return super().get(entity, ident, **kwargs)

    def _choose_shard_and_assign(self, mapper: Any, instance: Any, **kw: Any) -> Any:
        # Upstream ignores falsy tokens, such as shard 0.
        if instance is not None:
            state = inspect(instance)
            token = state.key[2] if state.key else state.identity_token
            if token is not None:
                return token
        return super()._choose_shard_and_assign(mapper, instance, **kw)

    def connection_callable(
        self,
        mapper: Mapper[Any] | None = None,
        instance: Any = None,
        shard_id: Any = None,
        **kw: Any,
    ) -> Connection:
        """Return the connection to the shard of an object."""
        if self.in_transaction():
            return super().connection_callable(mapper, instance, shard_id, **kw)
        # Upstream raises NameError here.
        bind = self.get_bind(mapper, shard_id=shard_id, instance=instance)
        return bind if isinstance(bind, Connection) else bind.connect(**kw)


def _identities(
    session: Session,
    id_chooser: Callable[..., Any],
    mapper: Any,
    primary_key: Any,
    *,
    lazy_loaded_from: Any = None,
    **kw: Any,
) -> Any:
    query: Any = session.query(mapper)
    if lazy_loaded_from:
        query = private.with_lazyload_from(query, lazy_loaded_from)
    return id_chooser(query, primary_key)


def _shards_of_query(
    query_chooser: Callable[..., Any], context: ORMExecuteState
) -> Any:
    return query_chooser(context.statement)


_listening = threading.Lock()
_classes: weakref.WeakSet[type[Session]] = weakref.WeakSet()


def _listen(cls: type[Session]) -> None:
    """Add the listener to a class of sessions, once.

    It is not added to a base class: listeners that the application adds to
    its sessionmaker would run after it, once for each shard.
    """
    if cls in _classes:
        return
    with _listening:
        if cls in _classes:
            return
        # A strong reference from the listener would keep the class alive.
        ref = weakref.ref(cls)

        def listener(context: ORMExecuteState) -> Result[Any] | None:
            # Listeners of a class are also called for its subclasses, which
            # have their own.
            if type(context.session) is not ref():
                return None
            return _execute(context)

        event.listen(cls, "do_orm_execute", listener, retval=True)
        _classes.add(cls)


def _execute(context: ORMExecuteState) -> Result[Any]:
    session: Any = context.session
    options: Any = None
    if context.is_select:
        options = context.load_options
    elif context.is_update or context.is_delete:
        options = context.update_delete_options
    for option in private.orm_options(context):
        if isinstance(option, set_shard_id):
            more = {}
            if option.propagate_to_loaders:
                # Eager loaders do not get the option itself if the statement
                # was first compiled without it.
                more["_sa_shard_id"] = option.shard_id
            return _execute_on(context, option.shard_id, more)
    shard_id = _given_shard(context, options)
    if shard_id is not None:
        return _execute_on(context, shard_id, {})
    shards = list(session.execute_chooser(context))
    if not shards:
        raise NoShardKeyError(
            f"execute_chooser returned no shard for: {context.statement}. "
            "It must return at least one shard, even if that has no rows",
            tables=(),
        )
    if len(shards) == 1:
        return _execute_on(context, shards[0], {})
    return _execute_on_all(context, shards, options)


def _given_shard(context: ORMExecuteState, options: Any) -> Any:
    """Return the shard that the caller gave; None to call the chooser."""
    if options is not None:
        if private.identity_token(options) is not None:
            return private.identity_token(options)
        state = private.refresh_state(options)
        if state is not None and state.key and state.key[2] is not None:
            # SQLAlchemy ignores falsy tokens, such as shard 0.
            return state.key[2]
    if "_sa_shard_id" in context.execution_options:
        return context.execution_options["_sa_shard_id"]
    return context.bind_arguments.get("shard_id")


def _execute_on(
    context: ORMExecuteState, shard_id: Any, options: Mapping[str, Any]
) -> Result[Any]:
    return context.invoke_statement(
        bind_arguments={**context.bind_arguments, "shard_id": shard_id},
        execution_options={"identity_token": shard_id, **options},
    )


def _execute_on_all(
    context: ORMExecuteState, shards: Sequence[Any], options: Any
) -> Result[Any]:
    session: Any = context.session
    more: dict[str, Any] = {}
    streams = (
        context.execution_options.get("stream_results")
        or context.execution_options.get("yield_per")
        or private.yield_per(options)
    )
    if context.is_insert or streams:
        parts = [_execute_on(context, each, more) for each in shards]
    else:
        if context.is_select:
            # An unreferenced object would be collected before the next shard
            # is loaded, and unique() would drop a new one at its address.
            more["prebuffer_rows"] = True
        if context.is_orm_statement and private.autoflushes(options):
            # Two threads cannot flush at the same time.
            private.autoflush(session)
            more["autoflush"] = False
        parts = overlap(
            [partial(_execute_on, context, each, more) for each in shards],
            _connections(context, shards),
            session.lanes,
        )
    return parts[0].merge(*parts[1:])


def _connections(context: ORMExecuteState, shards: Sequence[Any]) -> list[Connection]:
    session = context.session
    arguments = dict(context.bind_arguments)
    arguments.pop("bind", None)
    binds = {}
    for shard_id in shards:
        bind = session.get_bind(**{**arguments, "shard_id": shard_id})
        binds[id(bind)] = bind
    # Use the same order in all sessions: otherwise two sessions that wait for
    # the last connections of two pools would deadlock.
    return [
        session.connection(bind_arguments={"bind": binds[key]}) for key in sorted(binds)
    ]
