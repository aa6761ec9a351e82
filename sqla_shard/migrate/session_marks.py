"""The events of sessions: fences before the first write, marks before COMMIT.

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
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from sqlalchemy import Connection, event, inspect, select
from sqlalchemy.orm import ORMExecuteState, Session, SessionTransaction

from sqla_shard.engine.rendering import Place
from sqla_shard.exc import MigrateSetupError, SideClosedError, UnsupportedStatementError
from sqla_shard.migrate.fences import DatabaseFence
from sqla_shard.migrate.mark_tables import Key
from sqla_shard.migrate.marks import Marks
from sqla_shard.migrate.stages import Progress, Side
from sqla_shard.migrate.tables import COPYING, MovedRows
from sqla_shard.session import ShardSession
from sqla_shard.session.flush import place_of
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
        found: WrittenRows[P] | None = session.info.get(self._info)
        if found is None:
            found = session.info[self._info] = WrittenRows()
        return found

    def _enter(self, session: Session, place: P) -> Progress:
        """Enter the fence of a database, once in a transaction.

        :raises SideClosedError: if it is not the truth.
        """
        written = self._written(session)
        found = written.progress.get(place)
        if found is None:
            found = self._fence.enter(self._connection(session, place))
            if found.rules.truth != self._side:
                raise SideClosedError(side=self._side, stage=found.stage)
            written.progress[place] = found
        return found

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
        found: Connection = session.connection(bind_arguments={"bind": bind})
        return found

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
        found: Connection = session._view(place)
        return found

    def _place(self, session: Any, instance: Any) -> Place:
        return place_of(session, inspect(instance).mapper, instance)

    def _place_of_key(self, session: Any, one: MovedRows, key: Key) -> Place:
        return one.place(session, one.layout.unpack(key[0]).shard_id)
