"""The lists of a follow graph: followers and followed, paged and counted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from sqlalchemy import bindparam, inspect, literal, select, union_all

from sqla_shard.contrib.edges import BoardChoice, EdgeTable, FollowKind, Related
from sqla_shard.exc import ClassDefinitionError
from sqla_shard.models.id_sources import require_default_layout
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


class FollowLists:
    """The tables of a follow graph, and reads of them.

    The parameters are those of :class:`~sqla_shard.contrib.Follows`.
    """

    def __init__(
        self,
        base: Any,
        *,
        user: Any,
        board: Any,
        owner: str,
        name: str = "follows",
        count_slots: int = 0,
    ) -> None:
        self.user = user
        self.board = board
        self.owner = owner
        self.name = name
        for cls in (user, board):
            require_default_layout(cls)
        specs = [spec_of(inspect(cls).local_table) for cls in (user, board)]
        if specs[0].keyspace != specs[1].keyspace:
            raise ClassDefinitionError(
                f"its keyspace is {specs[1].keyspace!r}, that of "
                f"{user.__name__} is {specs[0].keyspace!r}; users and boards "
                "of a follow graph are in one keyspace",
                class_name=board.__name__,
            )
        self.user_type, self.board_type = (one.type_id for one in specs)
        prefix = "" if name == "follows" else f"{name}_"
        self.users = EdgeTable(
            base,
            f"{prefix}user_follows_user",
            user,
            ("follower_id", "followee_id"),
            "n_boards",
            count_slots=count_slots,
        )
        self.users_reversed = EdgeTable(
            base,
            f"{prefix}user_followed_by_user",
            user,
            ("followee_id", "follower_id"),
            "n_boards",
            count_slots=count_slots,
        )
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

    def __repr__(self) -> str:
        user = f"{self.user.__module__}.{self.user.__qualname__}"
        return f"<{type(self).__name__} {self.name!r} of {user}>"

    def following(
        self, session: ShardSession, user_id: int, user_ids: Iterable[int]
    ) -> dict[int, FollowKind]:
        """Return which of some users a user follows, with one statement.

        :returns: EXPLICIT or IMPLICIT, by user; without the others.
        """
        found = self.users.kinds(session, user_id, user_ids)
        return _following(found)

    def followed_by(
        self, session: ShardSession, user_id: int, user_ids: Iterable[int]
    ) -> dict[int, FollowKind]:
        """Return which of some users follow a user, with one statement.

        :returns: EXPLICIT or IMPLICIT, by user; without the others.
        """
        found = self.users_reversed.kinds(session, user_id, user_ids)
        return _following(found)

    def follows_boards(
        self, session: ShardSession, user_id: int, boards: Iterable[tuple[int, int]]
    ) -> set[int]:
        """Return which of some boards a user follows, with one statement.

        :param boards: the id and the owner of each board.
        """
        wanted = dict(boards)
        found = self.relations(session, user_id, wanted.values(), wanted)
        return {
            board_id
            for board_id, owner_id in wanted.items()
            if found.includes(owner_id, board_id)
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
        found = Relations({}, {})
        for is_board, target_id, kind in rows.all():
            found[is_board][target_id] = kind
        return found

    def _relations_statement(self) -> Any:
        parts = []
        for index, (table, name) in enumerate(
            ((self.users, "users"), (self.boards, "boards"))
        ):
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
        sources = (
            (self.users_reversed, owner_id, FollowKind.EXPLICIT),
            (self.boards_reversed, board_id, BoardChoice.FOLLOWED),
        )
        for number, (table, source_id, kind) in enumerate(sources):
            if number < stage:
                continue
            while last is not None:
                conditions = [table.source_id == source_id, table.kind == kind]
                if until is not None:
                    conditions.append(table.sequence <= until)
                place = table.place(session, source_id)
                found = table.after(
                    session, place, (source_id, last), batch, *conditions
                )
                users = [pair[1] for pair, _ in found]
                last = users[-1] if len(users) == batch else None
                if number == 0:
                    users = self._without_unfollowers(session, board_id, users)
                at_end = last is None and number == 1
                following = [number, last] if last else [number + 1, 0]
                yield AudienceBatch(users, None if at_end else following)
            last = 0

    def _without_unfollowers(
        self, session: ShardSession, board_id: int, users: list[int]
    ) -> list[int]:
        found = self.boards_reversed.kinds(session, board_id, users)
        left = BoardChoice.UNFOLLOWED
        return [one for one in users if found.get(one) != left]


def _following(kinds: dict[int, int]) -> dict[int, FollowKind]:
    return {
        user_id: _FOLLOWING[kind]
        for user_id, kind in kinds.items()
        if kind in _FOLLOWING
    }


def _counts(found: dict[int, int]) -> dict[FollowKind, int]:
    return {kind: found.get(kind, 0) for kind in FOLLOWING}
