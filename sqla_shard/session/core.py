"""The session: SQLAlchemy's own, that knows where objects live.

:class:`ShardSession` is a :class:`~sqlalchemy.ext.horizontal_shard.\
ShardedSession` whose choosers are derived from the bits of object ids.  It
differs from it in what it costs and in what it refuses:

* opening one costs the same whatever the number of shards;
* it has one connection and one transaction per server, however many of the
  server's shards it touches;
* an identity key is the class and the whole id, without a shard token;
* one ``execute`` is one ORM execution: a listener adds the shards to it and
  lets it go on;
* a statement whose shards cannot be told is refused, as is a second shard
  written in one transaction.

Lost against a single database: statements over two keyspaces, transactions
over two shards, and answers of several that cannot be merged correctly.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from typing import TypeVar

from sqlalchemy import Connection
from sqlalchemy import inspect
from sqlalchemy.orm import Mapper
from sqlalchemy.orm import ORMExecuteState
from sqlalchemy.orm import Session
from sqlalchemy.orm import SessionTransaction

from sqla_shard.engines import Places
from sqla_shard.exc import ForkedSessionError
from sqla_shard.exc import NoShardKeyError
from sqla_shard.exc import UnsupportedStatementError
from sqla_shard.paging import Page
from sqla_shard.rendering import Place
from sqla_shard.routing import keyspace_of
from sqla_shard.routing import route
from sqla_shard.routing import spec_of
from sqla_shard.scattering import Plan
from sqla_shard.scattering import Watch
from sqla_shard.session.answered import Answered
from sqla_shard.session.arguments import check_keyspace
from sqla_shard.session.committing import Commits
from sqla_shard.session.contract import Announced
from sqla_shard.session.contract import Home
from sqla_shard.session.listening import listen
from sqla_shard.session.loading import getter_of
from sqla_shard.session.loading import is_plain
from sqla_shard.session.refreshing import Refreshing
from sqla_shard.session.scatter_pages import scatter_page
from sqla_shard.session.stale import announce
from sqla_shard.session.stale import reads_the_present
from sqla_shard.session.stale import refuse_unseen
from sqla_shard.session.transactions import checked
from sqla_shard.session.transactions import CrossShard
from sqla_shard.session.transactions import give_up
from sqla_shard.session.transactions import LastWrite
from sqla_shard.session.transactions import leave_to_parent
from sqla_shard.session.transactions import roll_back_together
from sqla_shard.session.transactions import TransactionLog
from sqla_shard.session.unit_of_work import place_of
from sqla_shard.session.usage import Usage
from sqla_shard.session.usage import UsedByOne
from sqla_shard.session.views import bind_to
from sqla_shard.session.views import ShardView

__all__ = ["CrossShard", "ShardSession"]

T = TypeVar("T")


class ShardSession(UsedByOne, Refreshing, Answered):
    """A session over the virtual shards of a cluster.

    :param cluster: the cluster; ``cluster.session()`` gives it.
    :param shard_id: the shard of this session's new roots; None lets the
        placement policy choose.
    :param cross_shard: lets one transaction write several shards, committed
        one after another: ``"ordered"`` (lookups first) or ``"unordered"``;
        or have operations done on others: ``"logged"``.
    :param cache: whether its reads may look into the cache.
    :param kwargs: as for :class:`sqlalchemy.orm.Session`.
    """

    last: LastWrite | None = None  #: written right before COMMIT
    #: Whether a transaction that has written something has committed.
    has_committed = False
    #: Operations that its last transaction has left, and that were not done
    #: at once.
    pending: tuple[Any, ...] = ()

    def __init__(
        self,
        bind: None = None,
        *,
        cluster: Home,
        shard_id: int | None = None,
        cross_shard: CrossShard = None,
        cache: bool = True,
        **kwargs: Any,
    ) -> None:
        Session.__init__(self, bind, **kwargs)
        self.uses_cache = cache  #: whether reads may look there
        self.cluster = cluster
        self.root_shard_id = shard_id
        self._cross_shard: CrossShard = checked(cross_shard)
        self.usage = Usage()
        self._process = os.getpid()
        self._reset_transaction()
        #: Set while SQLAlchemy's bulk INSERT and UPDATE run on one shard.
        self.bulk: Place | None = None

    # -- the transaction

    _commits: Commits | None = None

    def _reset_transaction(self) -> None:
        if self._commits is not None:
            self._commits.forget()
        self.forget_answers()
        self._places: Places | None = None
        self._views: dict[Place, tuple[Connection, ShardView]] = {}
        self._log: TransactionLog | None = None
        self._begun: list[Connection] = []
        self._commits = None
        self.placed: dict[Any, Place] = {}  #: of objects not flushed yet
        self._begun_cross_shard: CrossShard = None

    @property
    def places(self) -> Places:
        """Where the shards are, unchanged until the transaction ends."""
        if self._places is None:
            self._places = self.cluster.places
        return self._places

    @property
    def log(self) -> TransactionLog:
        """What the transaction has written."""
        if self._log is None:
            crosses = self._begun_cross_shard or self._cross_shard
            self._log = TransactionLog(
                self.places, cross_shard=crosses, last=self.last
            )
        return self._log

    @property
    def watch(self) -> Watch | None:
        """What else is done with its statements."""
        watch = self.cluster.watch
        return None if watch is None else replace(watch, session=self)

    def begin(
        self, nested: bool = False, *, cross_shard: CrossShard = None
    ) -> SessionTransaction:
        """Begin a transaction; see :meth:`sqlalchemy.orm.Session.begin`.

        :param cross_shard: lets this transaction write several shards.
        """
        transaction = super().begin(nested)
        self._begun_cross_shard = checked(cross_shard)
        return transaction

    def begun(
        self, transaction: SessionTransaction, connection: Connection
    ) -> None:
        """Follow what has just begun on one server."""
        self._begun.append(connection)
        self.log.begun(connection)
        if not transaction.nested:
            self._commits = self._commits or Commits(self)
            self._commits.take(transaction, connection)

    def _close(self) -> None:
        failed: BaseException | None = None
        try:
            if self._process != os.getpid():
                leave_to_parent(self._begun)
            elif len(self._begun) > 1:
                roll_back_together(self._begun, self.places.engines.lanes)
        except BaseException as error:
            failed = error
        try:
            Session.close(self)
        except BaseException:
            # It stops at the first server that fails; the others would keep
            # their connections out of the pool, and their locks.
            give_up(self._begun)
            self._reset_transaction()
            raise
        if failed is not None:
            raise failed

    def check_process(self) -> None:
        """Refuse a transaction that the parent process has begun.

        :raises ForkedSessionError: in a child process.
        """
        process = os.getpid()
        if process != self._process:
            if self._views or self.in_transaction():
                raise ForkedSessionError(
                    f"process {process} uses a session whose transaction "
                    f"process {self._process} has begun; open a session of "
                    "its own in each process"
                )
            self._process = process

    # -- SQLAlchemy's hooks

    # Not upstream's, which asks identity_chooser for tokens to try.
    _identity_lookup = Session._identity_lookup  # type: ignore[assignment]  # same call, other defaults

    def shard_chooser(  # type: ignore[override]  # an attribute there
        self, mapper: Any, instance: Any, clause: Any = None, **kw: Any
    ) -> int:
        """Return the shard of an object, chosen now if it is new."""
        return place_of(self, mapper, instance).shard_id

    def identity_chooser(  # type: ignore[override]  # an attribute there
        self, mapper: Mapper[Any], primary_key: Sequence[Any], **kw: Any
    ) -> list[int]:
        """Return the one shard that a primary key names."""
        return [getter_of(mapper).place(self.places, primary_key).shard_id]

    def execute_chooser(self, context: ORMExecuteState) -> list[int]:
        """Return the shards of a statement; see :mod:`.routing`."""
        found = route(context.statement, context.parameters, self.places)
        return list(found.shards)

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

        :raises NoShardKeyError: when nothing tells the shard.
        """
        if place is None:
            place = self.bulk
        if place is None:
            place = self.place_for(mapper, shard_id, instance, clause)
            if self._flushing:
                # The rows of a many-to-many relationship are written by
                # what SQLAlchemy takes from here, without a word on where.
                bind_to(self.root_connection(place), self._plan_of(place))
        return place.engine

    def place_for(
        self,
        mapper: Any = None,
        shard_id: int | None = None,
        instance: Any = None,
        clause: Any = None,
        keyspace: str | None = None,
    ) -> Place:
        """Return the place of an object, or of a shard of a class.

        :param keyspace: name of the keyspace, in place of a class.
        :raises KeyspaceMismatchError: when the class is in another one.
        :raises NoShardKeyError: when nothing tells the shard.
        """
        places = self.places
        if instance is not None:
            return place_of(self, mapper or inspect(instance).mapper, instance)
        table = None
        if mapper is not None:
            table = inspect(mapper).local_table
        elif clause is not None:
            table = getattr(clause, "table", None)
        if keyspace is not None:
            space = places.keyspace(keyspace, "")
            if table is not None:
                check_keyspace((table,), space, places.topology)
        elif table is not None:
            spec = spec_of(table)
            space = places.keyspace(spec.keyspace, spec.kind)
        elif shard_id is None:
            space = keyspace_of((), places)
        else:
            space = places.keyspace(None, "objects")
        if space.kind == "global":
            return places.place(space, 0)
        if shard_id is None:
            name = space.name if table is None else str(table.name)
            raise NoShardKeyError(
                f"the shard of {name} cannot be told; say "
                'bind_arguments={"shard_id": n}',
                tables=(name,),
            )
        return places.place(space, shard_id)

    @property
    def connection_callable(self) -> Any:  # type: ignore[override]  # a method there
        """The unit of work asks it for the connection of each object."""
        # SQLAlchemy's bulk operations refuse to run where there is one.
        return None if self.bulk is not None else self._connection_of

    def _connection_of(
        self, mapper: Any = None, instance: Any = None, **kw: Any
    ) -> Connection:
        return self.view(place_of(self, mapper, instance))

    def view(self, place: Place) -> ShardView:
        """Return the session's connection to a server, seen from a shard."""
        root = self.root_connection(place)
        known = self._views.get(place)
        # The unit of work batches rows of one and the same connection.
        if known is None or known[0] is not root:
            view = ShardView(root, place, self._plan_of(place))
            known = self._views[place] = root, view
        return known[1]

    def begun_view(self, place: Place) -> ShardView:
        """Return :meth:`view`, also while the transaction is committed.

        :raises LookupError: when it has not begun on the shard's server.
        """
        for root in self._begun:
            if root.engine is place.engine:
                return ShardView(root, place, self._plan_of(place))
        raise LookupError(
            f"the transaction has not begun on {place.server}, where shard "
            f"{place.shard_id} of {place.keyspace} is"
        )

    def _plan_of(self, place: Place) -> Plan:
        return Plan((place,), (), self._wrote, watch=self.watch)

    def _wrote(self, place: Place, what: str, table: Any = None) -> None:
        is_seen = self._flushing or self.bulk is not None
        refuse_unseen(self, place, table, is_seen=is_seen)
        self.log.wrote(place, what, table)

    def root_connection(self, place: Place) -> Connection:
        """Return the session's connection to the server of a shard."""
        return Session.connection(self, bind_arguments={"bind": place.engine})

    def is_connected(self, place: Place) -> bool:
        """Tell whether the session has a connection to a shard's server."""
        return any(c.engine is place.engine for c in self._begun)

    def sees_the_present(self, place: Place | None = None) -> bool:
        """Tell whether what it reads there next is as new as can be."""
        engine = None if place is None else place.engine
        here = [c for c in self._begun if engine in (None, c.engine)]
        return all(map(reads_the_present, here))

    def announce(self) -> Announced | None:
        """Tell the cache what is about to be committed."""
        return announce(self)

    def connection(
        self,
        bind_arguments: Any = None,
        execution_options: Any = None,
    ) -> Connection:
        """Return the connection to one shard; see ``Session.connection``.

        :param bind_arguments: ``{"shard_id": n}``, with ``{"keyspace":
            name}`` or ``{"mapper": Class}`` where there are several
            keyspaces; nothing for the only global one.
        :raises NoShardKeyError: when nothing tells the shard.
        """
        self.check_process()
        given = dict(bind_arguments or {})
        place = given.pop("place", None) or self.place_for(**given)
        if execution_options:
            Session.connection(
                self,
                bind_arguments={"bind": place.engine},
                execution_options=execution_options,
            )
        return self.view(place)

    # -- reading by id

    def get(
        self, entity: type[T] | Mapper[T], ident: Any, **kwargs: Any
    ) -> T | None:
        """Return the object of an id; see :meth:`sqlalchemy.orm.Session.get`.

        :param ident: the id, for an object class.
        :returns: None where there is no row, or where it is inactive and
            ``execution_options={"include_inactive": True}`` is not given.
        :raises InvalidIdError: when it is not an id.
        :raises WrongTypeError: when it is an id of another class.
        :raises UnknownShardError: when its shard is not open.
        """
        getter = getter_of(entity)
        if not getter.by_id:
            return super().get(entity, ident, **kwargs)
        hidden = getter.includes_hidden(self, kwargs)
        if type(ident) is int and (not kwargs or is_plain(kwargs)):
            found: T | None = getter.get(self, ident, hidden)
        else:
            found = getter.get_with(self, ident, hidden, kwargs, super().get)
        return found

    def get_many(
        self,
        entity: type[T],
        ids: Iterable[int],
        *,
        options: Sequence[Any] = (),
        execution_options: Any = None,
    ) -> list[T | None]:
        """Return the objects of several ids, on whatever shards.

        :param ids: each may stand more than once.
        :param options: loader options, as for ``select().options()``.
        :returns: a list in the order asked, None where there is no row.
        :raises InvalidIdError: when one is not an id, or of another class.
        """
        getter = getter_of(entity)
        if not getter.by_id:
            raise UnsupportedStatementError(
                f"get_many() takes object classes; {entity!r} is not one: "
                "use select() with in_()",
                construct="get_many()",
            )
        found: list[T | None] = getter.get_many(
            self, list(ids), options, execution_options or {}
        )
        return found

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

        Each shard reads a page at most, and rows that come or go meanwhile
        neither repeat nor hide others.  Rows that are equal in ORDER BY
        come in the order of their primary keys.  Where nothing tells the
        shards, it goes to all of them.

        :param statement: without LIMIT, DISTINCT or GROUP BY; its
            ``scatter()`` limits hold for each page.
        :param limit: how many rows a page has, from 1.
        :param after: a bookmark: the ``next`` or ``previous`` of a page.
        :param parameters: of the statement, if any.
        :returns: objects where the statement selects one class or column,
            else rows.
        :raises ScatterUnsupportedError: when its rows have no order that a
            page can go on with.
        :raises InvalidBookmarkError: when ``after`` is no bookmark of such
            rows in such an order: of another WHERE, or values in it, of
            another cluster, or made up.
        """
        return scatter_page(self, statement, limit, after, parameters)

    def _refuse_bulk(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse what knows nothing of shards.

        :raises UnsupportedStatementError: always.
        """
        raise UnsupportedStatementError(
            "the legacy bulk methods cannot write to several shards; use "
            "session.execute(insert(Class), rows) or session.add_all()",
            construct="bulk_*()",
        )

    bulk_save_objects = _refuse_bulk
    bulk_insert_mappings = _refuse_bulk
    bulk_update_mappings = _refuse_bulk


listen(ShardSession)
