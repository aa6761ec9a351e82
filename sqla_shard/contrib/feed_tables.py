"""The tables of home feeds, and feeds that are read from them alone."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from sqlalchemy import (
    BigInteger,
    bindparam,
    delete,
    func,
    Index,
    inspect,
    Integer,
    literal,
    or_,
    select,
    type_coerce,
    union_all,
)
from sqlalchemy.orm import mapped_column

from sqla_shard.contrib.edges import BoardChoice, FollowKind
from sqla_shard.contrib.feed_store import Entry
from sqla_shard.contrib.follow_lists import FOLLOWING
from sqla_shard.contrib.follows import Follows
from sqla_shard.engine.rendering import Place
from sqla_shard.models.deletion_plan import Part, register_belongings, Work
from sqla_shard.models.layouts import require_default_layout
from sqla_shard.routing import declare, spec_of
from sqla_shard.session import ShardSession
from sqla_shard.types import ObjectRef

#: The time and the post of a bound before all posts.
NEWEST = (1 << 52, 0)


class FeedTables:
    """The tables of the feeds of an application.

    The parameters are those of :class:`~sqla_shard.contrib.Feed`.
    """

    def __init__(self, base: Any, *, follows: Follows, post: Any, name: str) -> None:
        require_default_layout(post)
        self.follows = follows
        self.post = post
        self.name = name
        self._statements: dict[tuple[bool, bool], Any] = {}
        self._relations: dict[bool, Any] = {}
        prefix = "" if name == "feeds" else f"{name}_"
        self.posts = self._table(
            base,
            f"{prefix}user_has_posts",
            {
                "author_id": _id(colocated=True),
                "post_id": _id(),
                "board_id": mapped_column(ObjectRef(), nullable=False),
                "sequence": mapped_column(BigInteger, nullable=False),
            },
            Index(f"ix_{prefix}user_has_posts", *("author_id", "sequence", "post_id")),
        )
        self.pulled = self._table(
            base,
            f"{prefix}user_has_pulled_posts",
            {
                "author_id": _id(colocated=True),
                "since": mapped_column(BigInteger, nullable=False),
            },
        )

        register_belongings(follows.user, self._of_users)

    def _of_users(
        self, session: ShardSession, place: Place, ids: Sequence[int]
    ) -> Iterator[Work]:
        """Yield the steps that delete what users have published."""
        at = {"place": place}
        for table in (self.posts, self.pulled):
            own = table.c.author_id.in_(ids)
            count = session.scalar(
                select(func.count()).select_from(table).where(own), bind_arguments=at
            )
            if count:
                part = Part.on(place, "delete", table.name, count)
                gone = delete(table).where(own)
                yield (part, partial(session.execute, gone, bind_arguments=at))

    def __repr__(self) -> str:
        post = f"{self.post.__module__}.{self.post.__qualname__}"
        return f"<{type(self).__name__} {self.name!r} of {post}>"

    def _table(self, base: Any, name: str, columns: dict[str, Any], *args: Any) -> Any:
        """Return the table of a new class."""
        cls: Any = type(
            "".join(part.title() for part in name.split("_")),
            (base,),
            {
                "__module__": base.__module__,
                "__tablename__": name,
                "__table_args__": args,
                **columns,
            },
        )
        table: Any = inspect(cls).local_table
        theirs = spec_of(inspect(self.follows.user).local_table).keyspace
        declare(table, replace(spec_of(table), keyspace=theirs))
        return table

    def _place(self, session: ShardSession, user_id: int) -> Any:
        return self.follows.users.place(session, user_id)

    def withdraw(self, session: ShardSession, author_id: int, post_id: int) -> bool:
        """Remove a post from all feeds.

        :returns: False if it was not published.
        """
        result: Any = session.execute(
            delete(self.posts).where(
                self.posts.c.author_id == author_id, self.posts.c.post_id == post_id
            ),
            bind_arguments={"place": self._place(session, author_id)},
        )
        return bool(result.rowcount)

    def pull(
        self,
        session: ShardSession,
        user_id: int,
        before: tuple[int, int] = NEWEST,
        number: int = 25,
        authors: Collection[int] | None = None,
    ) -> list[Entry]:
        """Return the newest entries of a feed from the tables.

        This takes one statement on the shard of the user, and one on each
        server with shards of those whom the user follows.

        :param before: the time and the post of the entry before them.
        :param authors: only posts of these users.
        """
        users, boards = self._sources(session, user_id, authors)
        if not users:
            return []
        explicit = [one for one, kind in users.items() if kind == FollowKind.EXPLICIT]
        chosen: dict[int, list[int]] = {}
        for board_id, choice in boards.items():
            chosen.setdefault(choice, []).append(board_id)
        unfollowed = chosen.get(BoardChoice.UNFOLLOWED, [])
        has_single = len(explicit) < len(users)
        values: dict[str, Any] = {
            "authors": list(users),
            "at": before[0],
            "before": before[1],
            "number": number,
        }
        if unfollowed:
            values["unfollowed"] = unfollowed
        if has_single:
            values["explicit"] = explicit
            values["followed"] = chosen.get(BoardChoice.FOLLOWED, [])
        rows = session.execute(self._newest(bool(unfollowed), has_single), values)
        return [Entry._make(row) for row in rows.all()]

    def _newest(self, has_unfollowed: bool, has_single: bool) -> Any:
        """Return the SELECT of the newest posts, built once.

        :param has_unfollowed: whether some boards are left out.
        :param has_single: whether single boards of some authors are read.
        """
        known = self._statements.get((has_unfollowed, has_single))
        if known is not None:
            return known
        table = self.posts.c
        at = bindparam("at", type_=BigInteger())
        post = type_coerce(table.post_id, BigInteger())
        before = bindparam("before", type_=BigInteger())
        conditions: list[Any] = [
            table.author_id.in_(bindparam("authors", expanding=True)),
            table.sequence <= at,
            or_(table.sequence < at, post < before),
        ]
        if has_unfollowed:
            unfollowed: Any = bindparam("unfollowed", expanding=True)
            conditions.append(table.board_id.not_in(unfollowed))
        if has_single:
            # As a number: the router reads the first condition only.
            author = type_coerce(table.author_id, BigInteger())
            followed: Any = bindparam("followed", expanding=True)
            conditions.append(
                or_(
                    author.in_(bindparam("explicit", expanding=True)),
                    table.board_id.in_(followed),
                )
            )
        statement = (
            select(table.sequence, table.post_id, table.board_id, table.author_id)
            .where(*conditions)
            .order_by(table.sequence.desc(), table.post_id.desc())
            .limit(bindparam("number", type_=Integer()))
        )
        self._statements[has_unfollowed, has_single] = statement
        return statement

    def _sources(
        self, session: ShardSession, user_id: int, authors: Collection[int] | None
    ) -> tuple[dict[int, int], dict[int, int]]:
        """Return the relations of a user to all users and boards."""
        values: dict[str, Any] = {"source": user_id}
        if authors is not None:
            values["owners"] = list(authors)
        found: tuple[dict[int, int], dict[int, int]] = ({}, {})
        rows = session.execute(
            self._related(authors is not None),
            values,
            bind_arguments={"place": self._place(session, user_id)},
        )
        for is_board, target_id, kind in rows.all():
            found[is_board][target_id] = kind
        return found

    def _related(self, has_owners: bool) -> Any:
        """Return the SELECT of the relations of a user, built once.

        :param has_owners: whether only those to some users are read.
        """
        known = self._relations.get(has_owners)
        if known is not None:
            return known
        users, boards = self.follows.users, self.follows.boards
        parts = []
        for index, (table, owner, kinds) in enumerate(
            (
                (users, users.target_id, FOLLOWING),
                (boards, boards.number, tuple(BoardChoice)[1:]),
            )
        ):
            part = select(
                literal(index).label("is_board"),
                table.target_id.label("target_id"),
                table.kind.label("kind"),
            ).where(table.source_id == bindparam("source"), table.kind.in_(kinds))
            if has_owners:
                owners: Any = bindparam("owners", expanding=True)
                part = part.where(owner.in_(owners))
            parts.append(part)
        rows = union_all(*parts).subquery()
        statement = self._relations[has_owners] = select(*rows.c)
        return statement


def _id(*, colocated: bool = False) -> Any:
    return mapped_column(
        ObjectRef(colocated=colocated), primary_key=True, autoincrement=False
    )
