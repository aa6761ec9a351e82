"""A follow graph that is read from Redis, and written in its tables.

::

    follows = Follows(Base, user=User, board=Board, owner="user_id")
    stored = StoredFollows(follows, FollowStore(["redis://cache1:6379/0"]))

    with cluster.session() as session:
        stored.following(session, user_id, user_ids)

It has the methods of :class:`~sqla_shard.contrib.Follows` that read.  A list
that is read for the first time is built from the tables; each transaction that
writes rows of an edge adds a job that changes the lists in Redis.  So lists
are as old as the oldest job that has not run, and a transaction does not see
its own changes.  While Redis does not respond, and for lists that are too
long, the tables are read; bookmarks of pages are valid for both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from sqla_shard.contrib.edges import Edge, EdgeTable, Pair, Related
from sqla_shard.contrib.follows import AudienceBatch, FollowLists, Follows, Relations
from sqla_shard.contrib.redis_stores import FollowStore, required, RETRY
from sqla_shard.engine.rendering import Place
from sqla_shard.exc import FeedStoreError
from sqla_shard.ids import DEFAULT_LAYOUT, unpack
from sqla_shard.jobs import Task, task
from sqla_shard.models.deletion import existing, Part, register_belongings, Work
from sqla_shard.session import ShardSession
from sqla_shard.session.session import separate_session
from sqla_shard.util.logs import careful_log

#: Maximum number of edges of a job.
_EDGES = 200

_Found = TypeVar("_Found")
_log = careful_log(__name__)


class StoredFollows(FollowLists):
    """The lists of a follow graph, read from Redis.

    :param follows: the follow graph.
    :param store: the lists in Redis; None for the tables alone.
    :param queue: queue of the jobs.
    """

    def __init__(
        self,
        follows: Follows,
        store: FollowStore | None = None,
        *,
        queue: str = "follows",
    ) -> None:
        # The same tables: FollowLists.__init__() would define them again.
        vars(self).update(vars(follows))
        self.follows = follows
        self.store = store
        self.users: _StoredEdges = _StoredEdges(follows.users, self)
        self.users_reversed: _StoredEdges = _StoredEdges(follows.users_reversed, self)
        if follows.board is not None:
            self.boards: Any = _StoredEdges(follows.boards, self)
            self.boards_reversed: Any = _StoredEdges(follows.boards_reversed, self)
        self.add: Task = task(
            f"{follows.name}.add_to_store",
            queue=queue,
            in_transaction=False,
            retry=RETRY,
        )(self._add)
        self.forget_lists: Task = task(
            f"{follows.name}.forget_lists",
            queue=queue,
            in_transaction=False,
            retry=RETRY,
        )(self._forget_lists)
        for table in follows.tables:
            table.listeners.append(self._on_change)
        for entity in follows.entities:
            register_belongings(entity, partial(self._lists_of, entity))

    # -- writing

    def _on_change(
        self, session: ShardSession, table: EdgeTable, rows: Sequence[tuple[Pair, Edge]]
    ) -> None:
        """Add jobs that change the lists, in the transaction of the rows."""
        if self.store is not None:
            flat = [[*pair, *map(int, edge)] for pair, edge in rows]
            calls = [
                {"table": table.name, "rows": flat[start : start + _EDGES]}
                for start in range(0, len(flat), _EDGES)
            ]
            self.add.enqueue_many(session, calls, near=flat[0][0])

    def _add(self, table: str, rows: list[list[int]]) -> None:
        """Change the lists of some edges: the task."""
        store = required(self.store, "StoredFollows.store")
        lists: dict[int, list[tuple[int, Edge]]] = {}
        for source_id, target_id, *edge in rows:
            lists.setdefault(source_id, []).append((target_id, Edge(*edge)))
        for source_id, edges in lists.items():
            store.add(table, source_id, edges)

    def _lists_of(
        self,
        entity: Any,
        session: ShardSession,
        place: Place,
        ids: Sequence[int],
        scatter: bool,
    ) -> Iterator[Work]:
        """Yield the step that removes the lists of objects to be deleted."""
        there = existing(session, entity, ids)
        if there and self.store is not None:
            name = f"{self.follows.name} in Redis"
            part = Part.on(place, "remove", name, len(there), is_here=False)
            work = partial(self.forget_lists.enqueue, session, there, near=there[0])
            yield part, work

    def _forget_lists(self, object_ids: list[int]) -> None:
        """Remove the lists of users and boards: the task."""
        store = required(self.store, "StoredFollows.store")
        for object_id in object_ids:
            for table in self._tables_of(object_id):
                store.forget(table.name, object_id)

    # -- reading

    def relations(
        self,
        session: ShardSession,
        user_id: int,
        user_ids: Iterable[int],
        board_ids: Iterable[int],
    ) -> Relations:
        """Return the relations of a user to users and boards.

        This takes two commands.
        """
        return Relations(
            self.users.kinds(session, user_id, user_ids),
            self.boards.kinds(session, user_id, board_ids),
        )

    def audience(self, *args: Any, **kwargs: Any) -> Iterator[AudienceBatch]:
        """Yield the followers of a board, in batches, from the tables.

        The parameters are those of
        :meth:`Follows.audience() <sqla_shard.contrib.Follows.audience>`.
        """
        return self.follows.audience(*args, **kwargs)

    def read(
        self,
        session: ShardSession,
        table: EdgeTable,
        source_id: int,
        question: Callable[[FollowStore], _Found | None],
    ) -> _Found | None:
        """Return the list of Redis; None if the tables are to be read."""
        store = self.store
        if store is None:
            return None
        try:
            answer = question(store)
            if answer is None and self._build(store, session, table, source_id):
                answer = question(store)
        except FeedStoreError as error:
            _log.warning("a follow graph is read from the tables: %s", error)
            return None
        return answer

    def _build(
        self,
        store: FollowStore,
        session: ShardSession,
        table: EdgeTable,
        source_id: int,
    ) -> bool:
        """Build a list from the tables.

        :returns: False if it is known to be too long.
        """
        token = store.begin(table.name, source_id)
        if token is None:
            return False
        # In a later transaction than all edges that were added before.
        with separate_session(session) as other:
            edges = _edges(other, table, source_id, store.largest + 1)
        store.finish(table.name, source_id, token, edges.items())
        return True

    # -- comparing

    def rebuild(self, session: ShardSession, object_ids: Iterable[int]) -> None:
        """Build all lists of some users and boards again.

        :raises FeedStoreError: if Redis does not respond, or there is no
            store.
        :raises WrongTypeError: if an id is of another class.
        """
        store = required(self.store, "StoredFollows.store")
        for object_id in object_ids:
            for table in self._tables_of(object_id):
                store.forget(table.name, object_id)
                self._build(store, session, table, object_id)

    def compare(
        self, session: ShardSession, object_ids: Iterable[int]
    ) -> dict[tuple[str, int], list[int]]:
        """Return the edges in which lists in Redis and tables differ.

        Call it while no jobs are pending.  Lists that are not in Redis do not
        differ.

        :param object_ids: ids of users and boards.
        :returns: targets of edges, by name of the table and object; without
            lists that do not differ.
        :raises FeedStoreError: as :meth:`rebuild`.
        :raises WrongTypeError: if an id is of another class.
        """
        store = required(self.store, "StoredFollows.store")
        lists: dict[tuple[str, int], list[int]] = {}
        for object_id in object_ids:
            for table in self._tables_of(object_id):
                whole = store.whole(table.name, object_id)
                if whole is None:
                    continue
                edges, entries = whole
                rows = _edges(session, table, object_id, store.largest + 1)
                # Without versions: a row that was reverted has an older one.
                different = _content(edges) ^ _content(rows)
                sorted_sets = {one[:2] + one[3:] for one in _content(rows)}
                targets = {one[0] for one in different}
                targets |= {one[0] for one in entries ^ sorted_sets}
                if targets:
                    lists[table.name, object_id] = sorted(targets)
        return lists

    def _tables_of(self, object_id: int) -> tuple[EdgeTable, ...]:
        """Return the tables with lists of a user or a board."""
        own = self.follows
        if self.board is not None and unpack(object_id).type_id == self.board_type:
            return (own.boards_reversed,)
        DEFAULT_LAYOUT.shard_of(object_id, self.user_type, self.user.__name__)
        return tuple(one for one in own.tables if one is not own.boards_reversed)


class _StoredEdges(EdgeTable):
    """A table whose lists are read from Redis, if they are there."""

    def __init__(self, table: EdgeTable, lists: StoredFollows) -> None:
        # The same table: EdgeTable.__init__() would define it again.
        vars(self).update(vars(table))
        self._lists = lists

    def kinds(
        self, session: ShardSession, source_id: int, target_ids: Iterable[int]
    ) -> dict[int, int]:
        wanted = list(target_ids)
        if not wanted:
            return {}
        values = self._lists.read(
            session,
            self,
            source_id,
            lambda store: store.some(self.name, source_id, wanted),
        )
        if values is None:
            return super().kinds(session, source_id, wanted)
        return {one: edge.kind for one, edge in values.items() if edge.kind}

    def count(
        self, session: ShardSession, source_id: int, kinds: Iterable[int]
    ) -> dict[int, int]:
        values = self._lists.read(
            session, self, source_id, lambda store: store.count(self.name, source_id)
        )
        if values is None:
            return super().count(session, source_id, kinds)
        return {kind: values[kind] for kind in kinds}

    def newest(
        self,
        session: ShardSession,
        source_id: int,
        kinds: Sequence[int],
        bound: tuple[int, int],
        number: int,
    ) -> list[Related]:
        values = self._lists.read(
            session,
            self,
            source_id,
            lambda store: store.newest(self.name, source_id, kinds, bound, number),
        )
        if values is None:
            return super().newest(session, source_id, kinds, bound, number)
        return values


def _edges(
    session: ShardSession, table: EdgeTable, source_id: int, limit: int
) -> dict[int, Edge]:
    """Return the edges of a list, of all kinds, from the tables."""
    rows = table.after(
        session,
        table.place(session, source_id),
        (source_id, 0),
        limit,
        table.source_id == source_id,
    )
    return {pair[1]: edge for pair, edge in rows}


def _content(edges: dict[int, Edge]) -> set[tuple[int, int, int, int]]:
    """Return the target and content of each edge that has not ended."""
    return {
        (target_id, edge.kind, edge.number, edge.sequence)
        for target_id, edge in edges.items()
        if edge.kind
    }
