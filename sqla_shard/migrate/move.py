"""A move as the application has it: reads and writes on the side of the stage.

::

    move = Move(
        Declaration(
            Owner("users.id"), Owned("posts", colocate_with="user_id")
        ),
        Base.metadata,
        engine,
        cluster,
        {"users": User, "posts": Moved(cls=Post, names={"at": "written_at"})},
        stage="topology.toml",
    )
    move.watch(Session)           # the sessionmaker of the application

    post_id = move.write(add_post, add_post_on_shards, user_id, "text")
    post = move.read("posts", load_post, load_post_on_shards, post_id)

The first function gets a session of the database, the second one a
:class:`~sqla_shard.ShardSession`; :meth:`Move.write` takes the one that the
stage has, waits while none has, and begins again if the stage has changed.  An
application that calls ``write()`` for its writes sees no error of the move.

The ids that functions get and return may be those of either side:
:meth:`Move.object_id` and :meth:`Move.key` convert them.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from threading import Event, Lock
from time import monotonic
from typing import Any, Generic, TypeVar

from sqlalchemy import Connection, Engine, event, inspect, MetaData, select
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.orm import ORMExecuteState, Session, sessionmaker, SessionTransaction

from sqla_shard.cluster.cluster import Cluster
from sqla_shard.cluster.retries import repeat, Retries
from sqla_shard.dialects import backend_for
from sqla_shard.engine.rendering import Place
from sqla_shard.exc import (
    DeclarationError,
    MigrateSetupError,
    SideClosedError,
    StageUnavailableError,
    TopologyError,
    UnsupportedStatementError,
)
from sqla_shard.migrate.copier import Copier, grouped, MovedLinks, WaitingRows
from sqla_shard.migrate.declaration import (
    Declaration,
    Item,
    Lookup,
    MappingTable,
    Owned,
    Owner,
)
from sqla_shard.migrate.future import Future
from sqla_shard.migrate.marks import Key, Marks
from sqla_shard.migrate.stages import (
    DatabaseFence,
    Progress,
    Side,
    stage_store,
    StageStore,
)
from sqla_shard.migrate.tables import COPYING, Moved, MovedRows, MovedTable
from sqla_shard.session import ShardSession
from sqla_shard.session.flush import place_of
from sqla_shard.util.logs import careful_log
from sqla_shard.util.masking import masked
from sqla_shard.util.processes import in_children
from sqla_shard.util.sqlalchemy_helpers import stop_listening

#: What a statement of a cluster may be executed with.
_LOCATIONS = ("place", "shard_id", "keyspace")

#: A shard, or None for the database.
P = TypeVar("P", Place, None)


class WrittenRows(Generic[P]):
    """The rows that a transaction has written.

    :ivar progress: the stage, by database.
    :ivar keys: keys of rows, by database and table.
    :ivar has_committed: whether the transaction was committed.
    """

    def __init__(self) -> None:
        self.progress: dict[P, Progress] = {}
        self.keys: dict[tuple[P, MovedRows], set[Key]] = {}
        self.has_committed = False


class _SessionMarks(Generic[P]):
    """Listeners that mark the writes of sessions.

    :class:`LegacyMarks` listens to the application's own sessions, and
    :class:`ShardMarks` to those of the cluster.  Before the first write of a
    transaction they enter the fence of its database, and refuse the write if the
    stage has another truth.  Before COMMIT they raise the versions of all rows
    that were written, in the order of the keys.  After the transaction, when its
    connection is back in the pool, the rows are copied to the other side: an error
    there is logged, and the rows wait.

    Rows that the unit of work writes are known from it, and those of association
    tables from the histories of their relationships.  Those of
    ``session.execute(update(...))`` and ``delete()`` are read with FOR UPDATE
    before; an ``insert()`` must have the primary keys.

    :param tables: the tables of the move.
    :param copy: called after COMMIT with the rows that were written.
    """

    _side: Side

    def __init__(
        self,
        tables: Iterable[MovedRows],
        fence: DatabaseFence,
        copy: Callable[[WrittenRows[P]], object],
    ) -> None:
        self._tables: Mapping[Any, MovedRows] = {
            self._table_of(one): one for one in tables
        }
        self._fence = fence
        self._copy: Callable[[Any], object] = copy
        self._info = f"sqla_shard_written_{id(self)}"
        self._listeners: list[tuple[Any, str, Any]] = []

    # -- differences between the sides

    def _table_of(self, one: MovedRows) -> Any:
        raise NotImplementedError

    def _marks_of(self, one: MovedRows) -> Marks:
        raise NotImplementedError

    def _connection(self, session: Any, place: P) -> Connection:
        raise NotImplementedError

    def _place(self, session: Any, instance: Any) -> P:
        raise NotImplementedError

    def _place_of_key(self, session: Any, one: MovedRows, key: Key) -> P:
        raise NotImplementedError

    def _is_ours(self, session: Any) -> bool:
        return True

    # -- listeners

    def listen(self, target: Any) -> None:
        """Listen to the sessions of a class or factory."""
        listeners: dict[str, Any] = {
            "before_flush": self._before_flush,
            "after_flush": self._after_flush,
            "do_orm_execute": self._on_execute,
            "before_commit": self._before_commit,
            "after_commit": self._after_commit,
            "after_transaction_end": self._after_end,
        }
        for name, listener in listeners.items():
            self._listeners.append((target, name, listener))
            event.listen(target, name, listener)

    def close(self) -> None:
        """Remove the listeners."""
        while self._listeners:
            stop_listening(*self._listeners.pop())

    def _written(self, session: Session) -> WrittenRows[P]:
        rows: WrittenRows[P] | None = session.info.get(self._info)
        if rows is None:
            rows = session.info[self._info] = WrittenRows()
        return rows

    def _enter(self, session: Session, place: P) -> Progress:
        """Enter the fence of a database, once in a transaction.

        :raises SideClosedError: if it is not the truth.
        """
        written = self._written(session)
        progress = written.progress.get(place)
        if progress is None:
            progress = self._fence.enter(self._connection(session, place))
            if progress.rules.truth != self._side:
                raise SideClosedError(side=self._side, stage=progress.stage)
            written.progress[place] = progress
        return progress

    def _objects(self, objects: Iterable[Any]) -> Iterator[tuple[MovedRows, Any]]:
        for instance in objects:
            one = self._tables.get(inspect(instance).mapper.local_table)
            if one is not None:
                yield one, instance

    def _changed(self, session: Session) -> Iterator[tuple[MovedRows, Any]]:
        yield from self._objects((*session.new, *session.deleted))
        for one, instance in self._objects(session.dirty):
            if session.is_modified(instance, include_collections=False):
                yield one, instance

    def _before_flush(self, session: Session, context: Any, instances: Any) -> None:
        if not self._is_ours(session):
            return
        for _, instance in self._changed(session):
            self._enter(session, self._place(session, instance))
        self._before_links(session)

    def _after_flush(self, session: Session, context: Any) -> None:
        if not self._is_ours(session):
            return
        for one, instance in self._objects(
            (*session.new, *session.dirty, *session.deleted)
        ):
            state = inspect(instance)
            keys = {tuple(state.mapper.primary_key_from_instance(instance))}
            if state.identity is not None:
                # The primary key may have been changed.
                keys.add(tuple(state.identity))
            place = self._place(session, instance)
            # Objects that are dirty, but not modified, are not written.
            if place in self._written(session).progress:
                self._add(session, place, one, keys)
        self._after_links(session)

    def _before_links(self, session: Session) -> None:
        """Enter the fence before rows of association tables are written."""

    def _after_links(self, session: Session) -> None:
        """Add the keys of rows of association tables."""

    def _add(self, session: Session, place: P, one: MovedRows, keys: set[Key]) -> None:
        self._written(session).keys.setdefault((place, one), set()).update(keys)

    def _on_execute(self, state: ORMExecuteState) -> None:
        if not (state.is_insert or state.is_update or state.is_delete):
            return
        statement: Any = state.statement
        one = self._tables.get(statement.table)
        if one is None or not self._is_ours(state.session):
            return
        for key in self._keys(state, one):
            place = self._place_of_key(state.session, one, key)
            self._enter(state.session, place)
            self._add(state.session, place, one, {key})

    def _keys(self, state: ORMExecuteState, one: MovedRows) -> list[Key]:
        """Return the keys of the rows that a statement will write.

        :raises UnsupportedStatementError: for an INSERT without primary keys.
        """
        mapper: Any = state.bind_mapper
        columns = (
            mapper.primary_key
            if mapper is not None
            else self._table_of(one).primary_key
        )
        names, attributes = [], []
        for column in columns:
            if mapper is not None:
                name = mapper.get_property_by_column(column).key
                column = getattr(mapper.class_, name)
            names.append(column.key)
            attributes.append(column)
        rows = state.parameters or {}
        given = rows if isinstance(rows, list) else [rows]
        if all(name in row for row in given for name in names):
            return [tuple(row[name] for name in names) for row in given]
        if state.is_insert:
            raise UnsupportedStatementError(
                f"an INSERT into {one.name} without primary keys in its rows "
                "cannot be marked for the move; use session.add_all(), or "
                "session.execute(insert(Class), rows) with the keys",
                construct="INSERT",
            )
        wanted = select(*attributes).with_for_update()
        where = state.statement.whereclause  # type: ignore[attr-defined]  # of UPDATE and DELETE
        if where is not None:
            wanted = wanted.where(where)
        found = state.session.execute(
            wanted,
            rows,
            bind_arguments={
                name: state.bind_arguments[name]
                for name in _LOCATIONS
                if name in state.bind_arguments
            },
        )
        return [tuple(row) for row in found]

    def _before_commit(self, session: Session) -> None:
        if not self._is_ours(session) or session.in_nested_transaction():
            return
        # SQLAlchemy flushes after this event.
        session.flush()
        written = self._written(session)
        for place, one in sorted(written.keys, key=lambda found: found[1].name):
            progress = written.progress[place]
            if progress.rules.marks:
                self._marks_of(one).raise_versions(
                    self._connection(session, place),
                    written.keys[place, one],
                    number=progress.round,
                )

    def _after_commit(self, session: Session) -> None:
        if self._info in session.info:
            session.info[self._info].has_committed = True

    def _after_end(self, session: Session, transaction: SessionTransaction) -> None:
        if transaction.parent is not None:
            return
        written = session.info.pop(self._info, None)
        if written is not None and written.has_committed and written.keys:
            self._copy(written)


class LegacyMarks(_SessionMarks[None]):
    """Marks the writes of the application's sessions into the database.

    :param bind: engine of the database.
    """

    _side: Side = "legacy"

    def __init__(
        self,
        tables: Iterable[MovedRows],
        bind: Any,
        copy: Callable[[WrittenRows[None]], object],
    ) -> None:
        super().__init__(tables, DatabaseFence(), copy)
        self._bind = bind

    def _table_of(self, one: MovedRows) -> Any:
        return one.table

    def _marks_of(self, one: MovedRows) -> Marks:
        return one.marks

    def _connection(self, session: Any, place: None) -> Connection:
        """Return the connection that the session writes the rows with.

        :raises MigrateSetupError: if it is one to another database.
        """
        for table in self._tables:
            bind = session.get_bind(clause=table)
            if bind.engine.pool is not self._bind.pool:
                raise MigrateSetupError(
                    f"a session writes {table.key} with {bind.engine!r}, "
                    f"which is not the engine of the move, {self._bind!r}"
                )
        connection: Connection = session.connection(bind_arguments={"bind": bind})
        return connection

    def _place(self, session: Any, instance: Any) -> None:
        return None

    def _before_links(self, session: Session) -> None:
        if any(True for _ in self._linked(session)):
            self._enter(session, None)

    def _after_links(self, session: Session) -> None:
        for one, parent, relation, child in self._linked(session):
            values = {}
            for instance, pairs in (
                (parent, relation.synchronize_pairs),
                (child, relation.secondary_synchronize_pairs),
            ):
                mapper = inspect(instance).mapper
                for column, linked in pairs:
                    name = mapper.get_property_by_column(column).key
                    values[linked.name] = getattr(instance, name)
            key = tuple(values[column.name] for column in one.table.primary_key)
            self._add(session, None, one, {key})

    def _linked(self, session: Session) -> Iterator[tuple[MovedRows, Any, Any, Any]]:
        """Yield changes of relationships with an association table.

        Each is the table, the object, the relationship and the other object.
        """
        deleted = session.deleted
        for instance in (*session.new, *session.dirty, *deleted):
            state = inspect(instance)
            for relation in state.mapper.relationships:
                one = self._tables.get(relation.secondary)
                if one is None or relation.viewonly:
                    continue
                history = state.attrs[relation.key].history
                changed = [*history.added, *history.deleted]
                if instance in deleted:
                    changed += history.unchanged
                for child in changed:
                    if child is not None:
                        yield one, instance, relation, child

    def _place_of_key(self, session: Any, one: MovedRows, key: Key) -> None:
        return None


class ShardMarks(_SessionMarks[Place]):
    """Marks the writes of the sessions of a cluster.

    :param cluster: the cluster.
    """

    _side: Side = "shards"

    def __init__(
        self,
        tables: Iterable[MovedRows],
        cluster: Any,
        copy: Callable[[WrittenRows[Place]], object],
    ) -> None:
        super().__init__(tables, DatabaseFence(), copy)
        self._cluster = cluster
        self.listen(ShardSession)

    def _is_ours(self, session: Any) -> bool:
        return session.cluster is self._cluster and not session.info.get(COPYING)

    def _table_of(self, one: MovedRows) -> Any:
        return one.mapper.local_table

    def _marks_of(self, one: MovedRows) -> Marks:
        return one.shard_marks

    def _connection(self, session: Any, place: Place) -> Connection:
        connection: Connection = session._view(place)
        return connection

    def _place(self, session: Any, instance: Any) -> Place:
        return place_of(session, inspect(instance).mapper, instance)

    def _place_of_key(self, session: Any, one: MovedRows, key: Key) -> Place:
        return one.place(session, one.layout.unpack(key[0]).shard_id)


_log = careful_log(__name__)

T = TypeVar("T")

#: Seconds after which the stage is read although the store notifies of its
#: changes, since a notification may be lost.
_REREAD = 60.0

#: Seconds between two looks at the stage while writes wait.
_PAUSE = 0.02

#: Seconds after which a failed copy is slow, and for which then all wait.
_SLOW = 1.0

_REST = 10.0


class Move:
    """A move of tables from one database to the shards of a cluster.

    :param declaration: what the tables will be.
    :param metadata: the tables as they are.
    :param engine: engine of the database.
    :param cluster: the cluster of the shards.
    :param classes: the object class of each owner and owned table, the mapping
        classes of association tables that move, or a :class:`Moved` with one;
        and lookup classes, by names such as ``"users.email"``.
    :param stage: location of the stage: path of the topology, or its URL in
        ZooKeeper.
    :param copies: whether a session copies what it has written after COMMIT;
        otherwise the rows wait for ``sqla-shard migrate backfill``.
    :param refresh: seconds after which a process looks at the stage again;
        until then its reads may use the share, or the side, of before.
        ZooKeeper notifies it instead, within a round trip.
    :param compare: share of the reads that read both sides in the stage
        ``reading``, from 0 to 1.
    :param replicas: URLs of the replicas of the database, for passes that
        wait while one is behind; placeholders are those of a topology.
    :raises DeclarationError: if a class is missing, or does not fit.
    :raises MigrateSetupError: if a replica is not a MySQL or MariaDB server.

    :ivar replicas: the replicas of the database, with the accounts.
    :ivar counts: how many reads of this process were ``compared``, were
        ``different``, and have ``failed`` on the shards.
    """

    def __init__(
        self,
        declaration: Declaration,
        metadata: MetaData,
        engine: Engine,
        cluster: Cluster,
        classes: Mapping[str, type[Any] | Moved],
        *,
        stage: str | os.PathLike[str],
        copies: bool = True,
        refresh: float = 1.0,
        compare: float = 0.0,
        replicas: Sequence[str] = (),
    ) -> None:
        self.declaration = declaration
        self.metadata = metadata
        self.engine = engine
        self.cluster = cluster
        self.store: StageStore = stage_store(stage)
        #: The tables by name, parents first.
        self.tables: dict[str, MovedRows] = _tables(declaration, metadata, classes)
        self._classes = classes.keys()
        self.copier: Copier = Copier(self.tables, engine, cluster)
        self.waiting: WaitingRows = WaitingRows(self.tables, engine, cluster)
        self.counts: Counter[str] = Counter()
        self._copies = copies
        self._refresh = refresh
        self._compare = compare
        self.replicas: tuple[URL, ...] = tuple(
            _replica(url, cluster) for url in replicas
        )
        self._random = random.Random()  # noqa: S311  # not a secret
        self._never = Event()
        self._lock = Lock()
        self._known: Progress | None = None
        self._expires = 0.0
        self._is_stale = False
        self.store.listen(self._on_stage)
        in_children(self)
        self._rests_until = 0.0
        self._sessions: Any = None
        self._legacy_marks = LegacyMarks(self.tables.values(), engine, self._copy_rows)
        self._shard_marks = ShardMarks(
            self.tables.values(), cluster, self._copy_objects
        )

    def watch(self, sessions: sessionmaker[Session]) -> None:
        """Mark and copy the writes of the application's sessions.

        :param sessions: their factory; :meth:`write` and :meth:`read` open
            sessions with it.
        """
        self._sessions = sessions
        self._legacy_marks.listen(sessions)

    def has_class(self, item: Item) -> bool:
        """Return whether a part of the declaration has a class."""
        return _name_of(item) in self._classes

    def close(self) -> None:
        """Remove all listeners, and end the session of the stage."""
        self._legacy_marks.close()
        self._shard_marks.close()
        self.store.close()

    # -- the stage

    def progress(self, *, now: bool = False) -> Progress:
        """Return the stage as this process knows it.

        If it cannot be read, the stage that is known remains: the fences
        refuse what is not correct any more.

        :param now: whether to read it, even if it was read lately.
        :raises StageUnavailableError: if it cannot be read, and ``now`` is
            given or none is known.
        """
        known = self._known
        if now or known is None:
            with self._lock:
                return self._read_stage(None)
        if monotonic() < self._expires and not self._is_stale:
            return known
        # Other threads do not wait for the one that reads.
        if not self._lock.acquire(blocking=False):
            return known
        try:
            return self._read_stage(known)
        finally:
            self._lock.release()

    def _read_stage(self, known: Progress | None) -> Progress:
        # Before the read: a later notification is of a later change.
        self._is_stale = False
        wait = self._refresh
        try:
            self._known = known = self.store.read()
            if self.store.notifies:
                wait = max(wait, _REREAD)
        except StageUnavailableError as error:
            if known is None:
                raise
            _log.warning("the stage of the move remains known: %s", error)
        self._expires = monotonic() + wait
        return known

    def after_fork(self) -> None:
        """Read the stage again, in a child process."""
        self._lock = Lock()
        self._is_stale = True

    def _on_stage(self) -> None:
        self._is_stale = True

    # -- writes

    def write(
        self,
        legacy: Callable[..., T],
        shards: Callable[..., T],
        *args: Any,
        timeout: float = 60.0,
        **kwargs: Any,
    ) -> T:
        """Run a transaction on the side that is written.

        It is repeated like that of :meth:`sqla_shard.Cluster.run`: after a
        deadlock, or a connection that was lost before COMMIT.  The functions
        do not commit.

        :param legacy: function that gets a session of the database.
        :param shards: function that gets a session of the cluster.
        :param timeout: seconds to wait for a stage that accepts writes.
        :returns: what the function returns.
        :raises SideClosedError: if there is none in time.
        """
        deadline = monotonic() + timeout
        progress = self.progress()
        while True:
            try:
                if progress.rules.truth == "legacy":
                    return self._run(legacy, args, kwargs)
                if progress.rules.truth == "shards":
                    return self.cluster.run(shards, *args, **kwargs)
                raise SideClosedError(side="legacy", stage=progress.stage)
            except SideClosedError:
                if monotonic() > deadline:
                    raise
            # The fences may be behind the stored stage.
            self._never.wait(_PAUSE)
            self._expires = 0.0
            progress = self.progress()

    def _run(self, fn: Callable[..., T], args: Any, kwargs: Any) -> T:
        dialect = self.engine.dialect
        backend = backend_for(dialect.name, driver=dialect.driver)
        commits = False

        def attempt() -> T:
            nonlocal commits
            commits = False
            with self._sessions() as session:
                result: T = fn(session, *args, **kwargs)
                session.flush()
                commits = True
                session.commit()
            return result

        def is_last(error: Exception) -> bool:
            # The COMMIT may have arrived: a repetition could write twice.
            return (
                commits
                and isinstance(error, DBAPIError)
                and error.connection_invalidated
            )

        retries = Retries(lambda: {backend}, attempts=None, timeout=30.0)
        return repeat(attempt, retries, is_last=is_last)

    # -- reads

    def read(
        self,
        table: str,
        legacy: Callable[..., T],
        shards: Callable[..., T],
        *args: Any,
        **kwargs: Any,
    ) -> T:
        """Run a function that only reads, on a side that may be read.

        In the stage ``reading`` that is a percentage of the reads of the
        table; if the shards fail, the database is read.  A share of the reads
        is compared: then the result is that of the database, and what differs
        is logged and counted in ``counts``.

        :param table: name of the table whose share is used.
        :returns: what the function returns.
        """
        progress = self.progress()
        if "legacy" not in progress.rules.reads:
            return self._read_shards(shards, args, kwargs)
        share = progress.shares.get(table, 0)
        if "shards" in progress.rules.reads:
            if self._random.random() < self._compare:
                return self._compared(table, legacy, shards, args, kwargs)
            if self._random.random() * 100 < share:
                try:
                    return self._read_shards(shards, args, kwargs)
                except SQLAlchemyError as error:
                    self.counts["failed"] += 1
                    _log.warning(
                        "a read of %s failed on the shards, and is made in "
                        "the database: %s",
                        table,
                        error,
                    )
        return self._read_legacy(legacy, args, kwargs)

    def _read_legacy(self, fn: Callable[..., T], args: Any, kwargs: Any) -> T:
        with self._sessions() as session:
            result: T = fn(session, *args, **kwargs)
        return result

    def _read_shards(self, fn: Callable[..., T], args: Any, kwargs: Any) -> T:
        with self.cluster.session() as session:
            return fn(session, *args, **kwargs)

    def _compared(
        self,
        table: str,
        legacy: Callable[..., T],
        shards: Callable[..., T],
        args: Any,
        kwargs: Any,
    ) -> T:
        """Read both sides; a row may be on its way, so repeat differences."""
        self.counts["compared"] += 1
        expected = self._read_legacy(legacy, args, kwargs)
        try:
            for _ in range(5):
                result = self._read_shards(shards, args, kwargs)
                if result == expected:
                    return expected
                self._never.wait(_PAUSE)
                expected = self._read_legacy(legacy, args, kwargs)
            self.counts["different"] += 1
            _log.warning(
                "a read of %s differs: %r on the shards, %r in the database",
                table,
                result,
                expected,
            )
        except SQLAlchemyError as error:
            self.counts["failed"] += 1
            _log.warning("a read of %s failed on the shards: %s", table, error)
        return expected

    # -- ids

    def object_id(self, table: str, key: int) -> int | None:
        """Return the object id of a row.

        :param table: name of the table.
        :param key: the primary key; an object id is returned as it is.
        :returns: None if there is no such row.
        """
        one = self._objects(table)
        if key > one.layout.max_local_id:
            return key
        return self.copier.ids.object_ids(one, [(key,)]).get((key,))

    def key(self, table: str, object_id: int) -> int | None:
        """Return the primary key of an object.

        :param table: name of the table.
        :param object_id: the id; a primary key is returned as it is.
        :returns: None if the object was not copied to the database yet.
        """
        one = self._objects(table)
        if object_id <= one.layout.max_local_id:
            return object_id
        keys = self.copier.keys_of(one, [object_id])
        return keys[object_id][0] if object_id in keys else None

    def _objects(self, table: str) -> MovedTable:
        one = self.tables[table]
        if not isinstance(one, MovedTable):
            raise MigrateSetupError(f"the rows of {table} have no object ids")
        return one

    # -- copies after COMMIT

    def _copy_rows(self, written: WrittenRows[None]) -> None:
        for (place, one), keys in written.keys.items():
            self._copy(one, None, list(keys), written.progress[place])

    def _copy_objects(self, written: WrittenRows[Any]) -> None:
        for (place, one), keys in written.keys.items():
            for shard_id, some in grouped(one, keys).items():
                self._copy(one, shard_id, some, written.progress[place])

    def _copy(
        self, one: MovedRows, shard_id: int | None, keys: list[Any], progress: Progress
    ) -> None:
        start = monotonic()
        if (
            not self._copies
            or progress.rules.copies is None
            or start < self._rests_until
        ):
            return
        failed = self.copier.copy_or_log((one, shard_id, keys), number=progress.round)
        if failed and monotonic() - start > _SLOW:
            # A server hangs: the application would wait after each COMMIT.
            self._rests_until = monotonic() + _REST


def _replica(text: str, cluster: Cluster) -> URL:
    """Return the URL of a replica.

    :raises MigrateSetupError: if it is not that of a server with replication.
    """
    try:
        url = cluster.places.engines.filled(text)
    except (ArgumentError, TopologyError) as error:
        raise MigrateSetupError(f"replicas: {masked(str(error))}") from error
    if url.get_backend_name() not in ("mysql", "mariadb") or not url.host:
        raise MigrateSetupError(
            f"replicas: {masked(text)} must be the URL of a MySQL or MariaDB "
            "server, such as mysql://monitor@10.0.0.7/"
        )
    return url


def _tables(
    declaration: Declaration,
    metadata: MetaData,
    classes: Mapping[str, type[Any] | Moved],
) -> dict[str, MovedRows]:
    """Return the tables of a move, parents first.

    :raises DeclarationError: if classes and declaration differ.
    """
    future = Future(declaration, metadata)
    items = {
        _name_of(item): item
        for item in declaration.items
        if isinstance(item, (Owner, Owned, MappingTable, Lookup))
    }
    needed = {name for name, item in items.items() if isinstance(item, (Owner, Owned))}
    problems = [f"{name}: give its object class" for name in needed - classes.keys()]
    problems += [
        f"{name} has a class, and is not declared as Owner, Owned, "
        "MappingTable or Lookup"
        for name in classes.keys() - items
    ]
    if problems:
        raise DeclarationError(sorted(problems))
    objects: dict[str, MovedTable] = {}
    links: dict[str, MovedLinks] = {}
    for name, given in classes.items():
        item = items[name]
        moved = _moved(given)
        if isinstance(item, MappingTable):
            links[name] = MovedLinks(item, future, moved)
        elif not isinstance(item, Lookup):
            lookups = {
                one.column: _moved(classes[_name_of(one)]).cls
                for one in declaration.of(Lookup)
                if one.table == name and _name_of(one) in classes
            }
            objects[name] = MovedTable(item, future, moved, lookups)
    ordered: dict[str, MovedRows] = {}

    def add(name: str) -> None:
        parent = objects[name].parent
        if parent is not None and parent not in ordered:
            add(parent)
        ordered.setdefault(name, objects[name])

    for name in objects:
        add(name)
    return {**ordered, **links}


def _moved(given: type[Any] | Moved) -> Moved:
    return given if isinstance(given, Moved) else Moved(cls=given)


def _name_of(item: Item) -> str:
    if isinstance(item, Lookup):
        return f"{item.table}.{item.column}"
    return item.table
