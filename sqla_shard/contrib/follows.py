"""A follow graph: users follow users, and single boards of users.

::

    follows = Follows(Base, user=User, board=Board, owner="user_id")

    def follow(session: ShardSession) -> None:
        follows.follow_user(session, ada_id, bob_id)

    cluster.run(follow, cross_shard="logged")

Two users are in one of these relations:

* nothing;
* *explicit*: the user follows all boards of the other one, including boards
  that are created later, except those that the user has unfollowed;
* *implicit*: the user follows one or more boards, which are counted; when the
  last one is unfollowed, the relation ends;
* *blocked*: the other one has blocked the user.

Following a user replaces what the user has chosen for single boards: boards
that were unfollowed earlier are followed again, and an implicit relation
becomes explicit.  Unfollowing a user, and being blocked, ends both.  A block
ends and prevents the relation of the blocked user to the blocker, not the
opposite one.

An edge is written on the shard of the follower, in the transaction of the
caller, and is authoritative.  The row on the other shard, with which followers
are listed, is written by an operation after COMMIT
(:doc:`/howto/cross-shard`).  Operations may be applied late, twice or in any
order: the newest version of an edge remains.
:func:`~sqla_shard.contrib.repair_follows` compares both sides.

All changes of one follower wait for each other, with a lock of the row of the
user; changes of followers of one user do not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy import bindparam, inspect, literal, select, union_all

from sqla_shard.contrib.edges import (
    BoardChoice,
    Edge,
    EdgeTable,
    FollowKind,
    Pair,
    Related,
)
from sqla_shard.engine.rendering import Place
from sqla_shard.exc import (
    BlockedError,
    ClassDefinitionError,
    FollowError,
    FollowRefusedError,
)
from sqla_shard.ids import DEFAULT_LAYOUT, unpack
from sqla_shard.models.deletion import Call, call, Part, register_belongings, Work
from sqla_shard.models.id_sources import require_default_layout
from sqla_shard.outbox import Operation, operation
from sqla_shard.planning import spec_of
from sqla_shard.session import ShardSession
from sqla_shard.session.paging import Page

#: The kinds of edges with which a user follows another one.
FOLLOWING = (FollowKind.EXPLICIT, FollowKind.IMPLICIT)

#: Those by their number.
_FOLLOWING = {int(kind): kind for kind in FOLLOWING}


class Relations(NamedTuple):
    """The relations of one user to some users and boards.

    :ivar users: kind by user.
    :ivar boards: choice by board.
    """

    users: dict[int, int]
    boards: dict[int, int]

    def includes(self, owner_id: int, board_id: int) -> bool:
        """Return whether the user follows a board of an owner."""
        choice = self.boards.get(board_id, BoardChoice.NONE)
        kind = self.users.get(owner_id, FollowKind.NONE)
        if kind == FollowKind.EXPLICIT:
            return choice != BoardChoice.UNFOLLOWED
        return kind == FollowKind.IMPLICIT and choice == BoardChoice.FOLLOWED


class AudienceBatch(NamedTuple):
    """Some followers of a board.

    :ivar users: ids of the users.
    :ivar position: continues :meth:`Follows.audience`; None at the end.
    """

    users: list[int]
    position: list[int] | None


_NO_BOARDS = (
    "this graph of follows has no boards: give Follows() board= and owner=, or "
    "discard the operation"
)


class _NoEdges(EdgeTable):
    """The table of a graph without boards: nobody has chosen one."""

    def __init__(self) -> None:
        self.name = "no boards"
        self.listeners = []
        self.counts = None

    def place(self, session: ShardSession, source_id: int) -> Place:
        raise FollowError(_NO_BOARDS)

    def current(self, session: ShardSession, source_id: int, target_id: int) -> Edge:
        return Edge()

    def current_by_number(
        self, session: ShardSession, source_id: int, number: int
    ) -> dict[int, Edge]:
        return {}

    def kinds(
        self, session: ShardSession, source_id: int, target_ids: Iterable[int]
    ) -> dict[int, int]:
        return {}

    def count(
        self, session: ShardSession, source_id: int, kinds: Iterable[int]
    ) -> dict[int, int]:
        return {}

    def newest(
        self,
        session: ShardSession,
        source_id: int,
        kinds: Sequence[int],
        bound: tuple[int, int],
        number: int,
    ) -> list[Related]:
        return []

    def after(
        self,
        session: ShardSession,
        place: Place,
        pair: Pair,
        limit: int,
        *conditions: Any,
    ) -> list[tuple[Pair, Edge]]:
        return []

    def lasting(
        self, session: ShardSession, place: Place, source_ids: Sequence[int]
    ) -> list[tuple[Pair, Edge]]:
        return []


class FollowLists:
    """The tables of a follow graph, and reads of them.

    The parameters are those of :class:`~sqla_shard.contrib.Follows`.
    """

    def __init__(
        self,
        base: Any,
        *,
        user: Any,
        board: Any = None,
        owner: str = "",
        name: str = "follows",
        count_slots: int = 0,
    ) -> None:
        self.user = user
        self.board = board
        self.owner = owner
        self.name = name
        if (board is None) != (not owner):
            raise ClassDefinitionError(
                f"Follows() has board={board!r} and owner={owner!r}: give both, or "
                "neither if there are only users",
                class_name=user.__name__,
            )
        #: The classes of what can be followed.
        self.entities: list[Any] = [user] if board is None else [user, board]
        for cls in self.entities:
            require_default_layout(cls)
        specs = [spec_of(inspect(cls).local_table) for cls in self.entities]
        if specs[0].keyspace != specs[-1].keyspace:
            raise ClassDefinitionError(
                f"its keyspace is {specs[1].keyspace!r}, that of "
                f"{user.__name__} is {specs[0].keyspace!r}; users and boards "
                "of a follow graph are in one keyspace",
                class_name=board.__name__,
            )
        # Without boards a post is published by its user alone.
        self.user_type: Any = specs[0].type_id
        self.board_type: Any = specs[-1].type_id
        prefix = "" if name == "follows" else f"{name}_"
        self.users: EdgeTable = EdgeTable(
            base,
            f"{prefix}user_follows_user",
            user,
            ("follower_id", "followee_id"),
            "n_boards",
            count_slots=count_slots,
        )
        self.users_reversed: EdgeTable = EdgeTable(
            base,
            f"{prefix}user_followed_by_user",
            user,
            ("followee_id", "follower_id"),
            "n_boards",
            count_slots=count_slots,
        )
        self.boards: EdgeTable = _NoEdges()
        self.boards_reversed: EdgeTable = _NoEdges()
        if board is not None:
            self.boards = EdgeTable(
                base,
                f"{prefix}user_follows_board",
                user,
                ("follower_id", "board_id"),
                "owner_id",
                by_number=True,
            )
            self.boards_reversed = EdgeTable(
                base,
                f"{prefix}board_followed_by_user",
                board,
                ("board_id", "follower_id"),
                "owner_id",
                count_slots=count_slots,
            )
        self._both = self._relations_statement()

    @property
    def tables(self) -> list[EdgeTable]:
        """The tables that there are."""
        every = (self.users, self.boards, self.users_reversed, self.boards_reversed)
        return [one for one in every if not isinstance(one, _NoEdges)]

    def __repr__(self) -> str:
        user = f"{self.user.__module__}.{self.user.__qualname__}"
        return f"<{type(self).__name__} {self.name!r} of {user}>"

    def following(
        self, session: ShardSession, user_id: int, user_ids: Iterable[int]
    ) -> dict[int, FollowKind]:
        """Return which of some users a user follows, with one statement.

        :returns: EXPLICIT or IMPLICIT, by user; without the others.
        """
        kinds = self.users.kinds(session, user_id, user_ids)
        return _following(kinds)

    def followed_by(
        self, session: ShardSession, user_id: int, user_ids: Iterable[int]
    ) -> dict[int, FollowKind]:
        """Return which of some users follow a user, with one statement.

        :returns: EXPLICIT or IMPLICIT, by user; without the others.
        """
        kinds = self.users_reversed.kinds(session, user_id, user_ids)
        return _following(kinds)

    def follows_boards(
        self, session: ShardSession, user_id: int, boards: Iterable[tuple[int, int]]
    ) -> set[int]:
        """Return which of some boards a user follows, with one statement.

        :param boards: the id and the owner of each board.
        """
        wanted = dict(boards)
        relations = self.relations(session, user_id, wanted.values(), wanted)
        return {
            board_id
            for board_id, owner_id in wanted.items()
            if relations.includes(owner_id, board_id)
        }

    def relations(
        self,
        session: ShardSession,
        user_id: int,
        user_ids: Iterable[int],
        board_ids: Iterable[int],
    ) -> Relations:
        """Return the relations of a user to users and boards.

        This takes one statement.
        """
        users, boards = list(user_ids), list(board_ids)
        rows = session.execute(
            self._both,
            {"source": user_id, "users": users, "boards": boards},
            bind_arguments={"place": self.users.place(session, user_id)},
        )
        relations = Relations({}, {})
        for is_board, target_id, kind in rows.all():
            relations[is_board][target_id] = kind
        return relations

    def _relations_statement(self) -> Any:
        parts = []
        for index, (table, name) in enumerate(
            ((self.users, "users"), (self.boards, "boards"))
        ):
            if table not in self.tables:
                continue
            parts.append(
                select(
                    literal(index).label("is_board"),
                    table.target_id.label("target_id"),
                    table.kind.label("kind"),
                ).where(
                    table.source_id == bindparam("source"),
                    table.target_id.in_(bindparam(name, expanding=True)),
                )
            )
        rows = union_all(*parts).subquery()
        return select(*rows.c).where(rows.c.kind != 0)

    def followees(
        self,
        session: ShardSession,
        user_id: int,
        limit: int = 50,
        after: str | None = None,
        *,
        kinds: Sequence[FollowKind] = FOLLOWING,
    ) -> Page[Related]:
        """Return a page of those whom a user follows, the latest first.

        :param after: a bookmark, the ``next`` of a page.
        :param kinds: the kinds of relations that are included.
        :raises InvalidBookmarkError: if it is not a bookmark of this list.
        """
        return self.users.page(session, user_id, kinds, limit, after)

    def followers(
        self,
        session: ShardSession,
        user_id: int,
        limit: int = 50,
        after: str | None = None,
        *,
        kinds: Sequence[FollowKind] = FOLLOWING,
    ) -> Page[Related]:
        """Return a page of the followers of a user, the latest first.

        The parameters are as of :meth:`followees`.
        """
        return self.users_reversed.page(session, user_id, kinds, limit, after)

    def blocked(
        self,
        session: ShardSession,
        user_id: int,
        limit: int = 50,
        after: str | None = None,
    ) -> Page[Related]:
        """Return a page of those whom a user has blocked."""
        kinds = (FollowKind.BLOCKED,)
        return self.users_reversed.page(session, user_id, kinds, limit, after)

    def followed_boards(
        self,
        session: ShardSession,
        user_id: int,
        limit: int = 50,
        after: str | None = None,
    ) -> Page[Related]:
        """Return a page of the boards that a user follows by themselves.

        Boards of users who are followed explicitly are not included.
        """
        kinds = (BoardChoice.FOLLOWED,)
        return self.boards.page(session, user_id, kinds, limit, after)

    def count_followees(
        self, session: ShardSession, user_id: int
    ) -> dict[FollowKind, int]:
        """Return how many users a user follows, by kind."""
        return _counts(self.users.count(session, user_id, FOLLOWING))

    def count_followers(
        self, session: ShardSession, user_id: int
    ) -> dict[FollowKind, int]:
        """Return how many users follow a user, by kind."""
        return _counts(self.users_reversed.count(session, user_id, FOLLOWING))

    def count_audience(
        self, session: ShardSession, board_id: int, owner_id: int
    ) -> int:
        """Return the number of followers of a board.

        These are the explicit followers of its owner without those who have
        unfollowed it, and its own followers; one statement on each of the
        two shards.
        """
        kinds = (BoardChoice.FOLLOWED, BoardChoice.UNFOLLOWED)
        own = self.boards_reversed.count(session, board_id, kinds)
        whole = self.users_reversed.count(session, owner_id, (FollowKind.EXPLICIT,))
        return (
            whole.get(FollowKind.EXPLICIT, 0)
            - own.get(BoardChoice.UNFOLLOWED, 0)
            + own.get(BoardChoice.FOLLOWED, 0)
        )

    def audience(
        self,
        session: ShardSession,
        board_id: int,
        owner_id: int,
        *,
        until: int | None = None,
        batch: int = 1000,
        position: Sequence[int] | None = None,
    ) -> Iterator[AudienceBatch]:
        """Yield the followers of a board, in batches.

        :param until: only those who have followed before this time, in
            microseconds since 1970; so followers who come while the batches
            are read do not extend them.
        :param batch: maximum number of users of a batch.
        :param position: the ``position`` of a batch, after which to continue.
        """
        stage, start = position or (0, 0)
        last: int | None = start
        sources = [
            one
            for one in (
                (self.users_reversed, owner_id, FollowKind.EXPLICIT),
                (self.boards_reversed, board_id, BoardChoice.FOLLOWED),
            )
            if one[0] in self.tables
        ]
        for number, (table, source_id, kind) in enumerate(sources):
            if number < stage:
                continue
            while last is not None:
                conditions = [table.source_id == source_id, table.kind == kind]
                if until is not None:
                    conditions.append(table.sequence <= until)
                place = table.place(session, source_id)
                edges = table.after(
                    session, place, (source_id, last), batch, *conditions
                )
                users = [pair[1] for pair, _ in edges]
                last = users[-1] if len(users) == batch else None
                if number == 0:
                    users = self._without_unfollowers(session, board_id, users)
                at_end = last is None and number == len(sources) - 1
                following = [number, last] if last else [number + 1, 0]
                yield AudienceBatch(users, None if at_end else following)
            last = 0

    def _without_unfollowers(
        self, session: ShardSession, board_id: int, users: list[int]
    ) -> list[int]:
        choices = self.boards_reversed.kinds(session, board_id, users)
        left = BoardChoice.UNFOLLOWED
        return [one for one in users if choices.get(one) != left]


def _following(kinds: dict[int, int]) -> dict[int, FollowKind]:
    return {
        user_id: _FOLLOWING[kind]
        for user_id, kind in kinds.items()
        if kind in _FOLLOWING
    }


def _counts(found: dict[int, int]) -> dict[FollowKind, int]:
    return {kind: found.get(kind, 0) for kind in FOLLOWING}


#: Maximum number of edges of an operation.
_EDGES = 200


#: A user or board of a shard, and followers whose rows there have changed.
Listener = Callable[[ShardSession, int, Sequence[int]], None]


class Follows(FollowLists):
    """The follow graph of an application, and its four tables, or two.

    The tables belong to ``base``, and are created by its migrations:
    ``user_follows_user`` and ``user_follows_board`` on the shards of the
    followers, ``user_followed_by_user`` and ``board_followed_by_user`` on the
    others; without boards only those of users.

    :param base: the declarative base of both classes.
    :param user: the class of the users.
    :param board: the class of the boards, or of whatever single things of a
        user can be followed; None if there are only users.
    :param owner: the attribute of a board with the id of its user.
    :param name: distinguishes several graphs of one program: it begins the
        names of their operations, and of tables other than those of "follows".
    :param count_slots: number of rows that each number of followers is spread
        over, in three other tables, ``user_follows_user_count``,
        ``user_followed_by_user_count`` and ``board_followed_by_user_count``;
        0 if the server counts edges whenever a number is read.
    :raises ClassDefinitionError: if the two classes are in two keyspaces, or one of
        ``board`` and ``owner`` is missing.
    """

    def __init__(
        self,
        base: Any,
        *,
        user: Any,
        board: Any = None,
        owner: str = "",
        name: str = "follows",
        count_slots: int = 0,
    ) -> None:
        super().__init__(
            base,
            user=user,
            board=board,
            owner=owner,
            name=name,
            count_slots=count_slots,
        )
        #: Functions that are called in each transaction that writes rows on
        #: the shard of a user or board who is followed.
        self.listeners: list[Listener] = []
        self._user_id = inspect(user).primary_key[0]
        self.apply: Operation[Any] = operation(f"{name}.apply", on="near")(
            self._reverse
        )
        self.forget: Operation[Any] = operation(f"{name}.forget", on="near")(
            self._forget
        )
        register_belongings(user, self._of_users)
        if board is not None:
            register_belongings(board, self._of_boards)

    def follow_user(
        self, session: ShardSession, follower_id: int, user_id: int
    ) -> bool:
        """Follow all boards of a user, now and later.

        :returns: False if the user was followed explicitly already.
        :raises FollowRefusedError: if the two are the same, or the follower
            does not exist.
        :raises BlockedError: if the user has blocked the follower.
        :raises CrossShardWriteError: if the session does not have
            ``cross_shard="logged"``.
        """
        before = self._lock(session, follower_id, user_id)
        self._refuse_blocked(before, follower_id, user_id)
        if before.kind == FollowKind.EXPLICIT:
            return False
        after = before.changed(FollowKind.EXPLICIT)
        self._replace(session, follower_id, user_id, after)
        return True

    def unfollow_user(
        self, session: ShardSession, follower_id: int, user_id: int
    ) -> bool:
        """End the explicit or implicit relation to a user.

        :returns: False if there was none.
        :raises FollowRefusedError: as :meth:`follow_user`.
        """
        before = self._lock(session, follower_id, user_id)
        if before.kind not in FOLLOWING:
            return False
        after = before.changed(FollowKind.NONE)
        self._replace(session, follower_id, user_id, after)
        return True

    def block(self, session: ShardSession, user_id: int, blocked_id: int) -> bool:
        """Let a user not follow another one, nor the boards, any more.

        It is written on the shard of the blocked user: when it is committed,
        no later transaction follows.

        :param user_id: the user who blocks.
        :param blocked_id: the user who is blocked.
        :returns: False if it was blocked already.
        :raises FollowRefusedError: as :meth:`follow_user`.
        """
        before = self._lock(session, blocked_id, user_id)
        if before.kind == FollowKind.BLOCKED:
            return False
        after = before.changed(FollowKind.BLOCKED)
        self._replace(session, blocked_id, user_id, after)
        return True

    def unblock(self, session: ShardSession, user_id: int, blocked_id: int) -> bool:
        """Let a user follow again; a relation that has ended stays ended.

        :returns: False if the user was not blocked.
        :raises FollowRefusedError: as :meth:`follow_user`.
        """
        before = self._lock(session, blocked_id, user_id)
        if before.kind != FollowKind.BLOCKED:
            return False
        after = before.changed(FollowKind.NONE)
        self._write(session, blocked_id, [(user_id, after)], [])
        return True

    def follow_board(
        self, session: ShardSession, follower_id: int, board_id: int
    ) -> bool:
        """Follow a board.

        :returns: False if it was followed already.
        :raises FollowRefusedError: if there is no such board or follower, or
            it is the follower's own.
        :raises BlockedError: if the owner has blocked the follower.
        """
        owner_id = self._owner(session, follower_id, board_id)
        user = self._lock(session, follower_id, owner_id)
        self._refuse_blocked(user, follower_id, owner_id)
        board = self.boards.current(session, follower_id, board_id)
        if user.kind == FollowKind.EXPLICIT:
            if board.kind != BoardChoice.UNFOLLOWED:
                return False
            users = []
            choice = BoardChoice.NONE
        else:
            if board.kind == BoardChoice.FOLLOWED:
                return False
            begins = user.kind == FollowKind.NONE
            users = [
                (
                    owner_id,
                    user.changed(FollowKind.IMPLICIT, user.number + 1, begins=begins),
                )
            ]
            choice = BoardChoice.FOLLOWED
        boards = [(board_id, board.changed(choice, owner_id))]
        self._write(session, follower_id, users, boards)
        return True

    def unfollow_board(
        self, session: ShardSession, follower_id: int, board_id: int
    ) -> bool:
        """Unfollow a board; of a followed user, only this one.

        :returns: False if it was not followed.
        :raises FollowRefusedError: as :meth:`follow_board`.
        """
        owner_id = self._owner(session, follower_id, board_id)
        return self._end_board(session, follower_id, owner_id, board_id)

    def forget_user(
        self, session: ShardSession, follower_id: int, user_id: int
    ) -> bool:
        """End the relation between two users, one of whom was deleted.

        A block ends, too.  Deleting a user with
        :func:`~sqla_shard.models.deletion.delete_object` needs no call of
        this method.

        :returns: False if there was none.
        :raises FollowRefusedError: if the two are the same.
        """
        before = self._lock(session, follower_id, user_id, must_exist=False)
        if before.kind == FollowKind.NONE:
            return False
        after = before.changed(FollowKind.NONE)
        self._replace(session, follower_id, user_id, after)
        return True

    def forget_board(
        self, session: ShardSession, follower_id: int, owner_id: int, board_id: int
    ) -> bool:
        """Remove the choice of a user for a board that was deleted.

        The relation to the owner ends with the last board.  Deleting a board
        needs no call of this method:
        :func:`~sqla_shard.contrib.forget_deleted_board` calls
        it for all followers of one board.

        :returns: False if the user had not chosen.
        """
        return self._end_board(session, follower_id, owner_id, board_id, deleted=True)

    def _end_board(
        self,
        session: ShardSession,
        follower_id: int,
        owner_id: int,
        board_id: int,
        *,
        deleted: bool = False,
    ) -> bool:
        user = self._lock(session, follower_id, owner_id, must_exist=not deleted)
        board = self.boards.current(session, follower_id, board_id)
        choice = BoardChoice.NONE
        users = []
        if board.kind == BoardChoice.FOLLOWED:
            number = user.number - 1
            kind = FollowKind.IMPLICIT if number else FollowKind.NONE
            users = [(owner_id, user.changed(kind, number, begins=not number))]
        elif deleted:
            if board.kind == BoardChoice.NONE:
                return False
        elif user.kind != FollowKind.EXPLICIT or board.kind == BoardChoice.UNFOLLOWED:
            return False
        else:
            choice = BoardChoice.UNFOLLOWED
        boards = [(board_id, board.changed(choice, owner_id))]
        self._write(session, follower_id, users, boards)
        return True

    def _lock(
        self,
        session: ShardSession,
        follower_id: int,
        user_id: int,
        *,
        must_exist: bool = True,
    ) -> Edge:
        """Lock the row of a follower; return the edge to another user."""
        for one in (follower_id, user_id):
            DEFAULT_LAYOUT.shard_of(one, self.user_type, self.user.__name__)
        if follower_id == user_id:
            raise FollowRefusedError(
                f"{self.user.__name__} {follower_id} cannot follow or block "
                "itself, nor follow a board of its own",
                follower_id=follower_id,
                target_id=user_id,
            )
        edge = session.scalar(
            select(self._user_id).where(self._user_id == follower_id).with_for_update()
        )
        if edge is None and must_exist:
            raise FollowRefusedError(
                f"there is no {self.user.__name__} {follower_id}",
                follower_id=follower_id,
                target_id=user_id,
            )
        return self.users.current(session, follower_id, user_id)

    def _refuse_blocked(self, edge: Edge, follower_id: int, user_id: int) -> None:
        if edge.kind == FollowKind.BLOCKED:
            raise BlockedError(follower_id=follower_id, blocker_id=user_id)

    def _owner(self, session: ShardSession, follower_id: int, board_id: int) -> int:
        """Return the owner of a board."""
        board = None if self.board is None else session.get(self.board, board_id)
        if board is None:
            raise FollowRefusedError(
                _NO_BOARDS
                if self.board is None
                else f"there is no {self.board.__name__} {board_id}",
                follower_id=follower_id,
                target_id=board_id,
            )
        owner_id: int = getattr(board, self.owner)
        return owner_id

    def _replace(
        self, session: ShardSession, follower_id: int, user_id: int, edge: Edge
    ) -> None:
        """Write an edge to a user, and end the choices for single boards."""
        chosen = self.boards.current_by_number(session, follower_id, user_id)
        boards = [
            (board_id, board.changed(BoardChoice.NONE, user_id))
            for board_id, board in chosen.items()
        ]
        self._write(session, follower_id, [(user_id, edge)], boards)

    def _write(
        self,
        session: ShardSession,
        follower_id: int,
        users: Sequence[tuple[int, Edge]],
        boards: Sequence[tuple[int, Edge]],
    ) -> None:
        """Write edges of a follower, and their rows on the other shards."""
        by_shard: dict[int, tuple[list[list[int]], list[list[int]]]] = {}
        for index, (table, edges) in enumerate(
            ((self.users, users), (self.boards, boards))
        ):
            rows = [((follower_id, target), edge) for target, edge in edges]
            table.put(session, rows)
            for target, edge in edges:
                shard = unpack(target).shard_id
                both = by_shard.setdefault(shard, ([], []))
                both[index].append([target, follower_id, *edge])
        for changed in by_shard.values():
            for some in _parts(*changed):
                near = (some[0] or some[1])[0][0]
                self.apply.intend(session, near, some[0], some[1])

    def _reverse(
        self,
        session: ShardSession,
        near: int,
        users: list[list[int]],
        boards: list[list[int]],
    ) -> None:
        """Write rows of the other shard: the operation.

        :param near: an object of the shard.
        :param users: rows of users: the two ids, and the parts of the edge.
        :param boards: rows of boards.
        """
        for table, rows in (
            (self.users_reversed, users),
            (self.boards_reversed, boards),
        ):
            table.put(session, [((row[0], row[1]), Edge(*row[2:])) for row in rows])
        followers = list(dict.fromkeys(row[1] for row in (*users, *boards)))
        for listener in self.listeners:
            listener(session, near, followers)

    # -- deletions

    def _forget(
        self,
        session: ShardSession,
        near: int,
        users: list[list[int]],
        boards: list[list[int]],
    ) -> None:
        """End edges of followers of one shard: an operation of a deletion.

        :param near: a follower.
        :param users: followers, each with the user who was deleted.
        :param boards: followers, each with the owner and the board.
        """
        for follower_id, user_id in users:
            self.forget_user(session, follower_id, user_id)
        for follower_id, owner_id, board_id in boards:
            self.forget_board(session, follower_id, owner_id, board_id)

    def _of_users(
        self, session: ShardSession, place: Place, ids: Sequence[int], scatter: bool
    ) -> Iterator[Work]:
        """Yield the steps that end the edges of users to be deleted."""
        for index, (table, other) in enumerate(
            ((self.users, self.users_reversed), (self.boards, self.boards_reversed))
        ):
            rows = [
                (pair, edge.changed(0, self._owner_in(table, edge)))
                for pair, edge in table.lasting(session, place, ids)
            ]
            if rows:
                part = Part.on(place, "remove", table.name, len(rows))
                yield part, partial(table.put, session, rows)
            turned = [[pair[1], pair[0], *edge] for pair, edge in rows]
            for near, some in _by_shard(turned):
                both: dict[str, Any] = {"users": [], "boards": []}
                both["boards" if index else "users"] = some
                one = self.apply.name, other.place(session, near), both
                yield _call_step(session, place, one, near, other.name)
        edges = self.users_reversed.lasting(session, place, ids)
        ended = [[pair[1], pair[0]] for pair, _ in edges]
        for near, some in _by_shard(ended):
            both = {"users": some, "boards": []}
            one = self.forget.name, self.users.place(session, near), both
            yield _call_step(session, place, one, near, self.users.name)

    def _owner_in(self, table: EdgeTable, edge: Edge) -> int:
        return edge.number if table is self.boards else 0

    def _of_boards(
        self, session: ShardSession, place: Place, ids: Sequence[int], scatter: bool
    ) -> Iterator[Work]:
        """Yield the steps that end the edges to boards to be deleted."""
        edges = self.boards_reversed.lasting(session, place, ids)
        ended = [[pair[1], edge.number, pair[0]] for pair, edge in edges]
        for near, some in _by_shard(ended):
            both: dict[str, Any] = {"users": [], "boards": some}
            one = self.forget.name, self.boards.place(session, near), both
            yield _call_step(session, place, one, near, self.boards.name)


def _by_shard(rows: list[list[int]]) -> Iterator[tuple[int, list[list[int]]]]:
    """Yield parts of rows of one shard, each with its first id."""
    by_shard: dict[int, list[list[int]]] = {}
    for row in rows:
        by_shard.setdefault(unpack(row[0]).shard_id, []).append(row)
    for its in by_shard.values():
        for start in range(0, len(its), _EDGES):
            some = its[start : start + _EDGES]
            yield some[0][0], some


def _call_step(
    session: ShardSession, written: Place, one: Call, near: int, name: str
) -> Work:
    """Return the step of an operation."""
    name_of_it, place, both = one
    is_here = place.address == written.address
    count = len(both["users"]) + len(both["boards"])
    part = Part.on(place, "remove", name, count, is_here=is_here)
    arguments = {"near": near, **both}
    whole = name_of_it, place, arguments
    return part, partial(call, session, written, whole, is_here)


def _parts(
    users: list[list[int]], boards: list[list[int]]
) -> Iterator[tuple[list[list[int]], list[list[int]]]]:
    """Divide rows, so that an operation is not too long."""
    yield users, boards[:_EDGES]
    for start in range(_EDGES, len(boards), _EDGES):
        yield [], boards[start : start + _EDGES]
