"""Home feeds: the newest posts of all boards that a user follows.

::

    feed = Feed(Base, follows=follows, post=Pin)

    def pin(session: ShardSession, ...) -> None:
        ...
        feed.publish(session, user_id, board_id, pin.id)

    with cluster.session() as session:
        page = feed.page(session, user_id, limit=25)

*On the tables alone* a page is pulled: one statement reads whom the user
follows, one on each server the newest posts of these, one on each server the
posts themselves.

*With Redis* (a :class:`~sqla_shard.contrib.FeedStore`) a job adds each post to
the feeds of its audience, and a page is read from there.  The tables remain
authoritative: a feed that is missing is built from them, entries of boards
that were unfollowed and of deleted posts are removed when they are read, and
pages after the end of a feed, and all pages while Redis does not respond, are
pulled.  Posts of users with very many followers are not added to their feeds,
but pulled by those who read.

Posts are in the order of their times, then of their ids.  Pages have neither
duplicates nor gaps while posts are published.  A post whose transaction takes
long is committed after younger ones; a reader who was past its place sees it
when beginning again.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from sqlalchemy import (
    BigInteger,
    bindparam,
    delete,
    func,
    Index,
    insert,
    inspect,
    Integer,
    literal,
    or_,
    select,
    type_coerce,
    union_all,
)
from sqlalchemy.orm import mapped_column

from sqla_shard.contrib.edges import BoardChoice, FollowKind, MARK, now, unsealed
from sqla_shard.contrib.follows import FOLLOWING, Follows
from sqla_shard.contrib.redis_stores import Entry, FeedStore, required, RETRY
from sqla_shard.dialects.sql import InsertMissing
from sqla_shard.engine import scatter
from sqla_shard.engine.rendering import Place
from sqla_shard.exc import FeedStoreError
from sqla_shard.ids import unpack
from sqla_shard.jobs import current_job, Task, task
from sqla_shard.models.deletion import (
    call,
    existing,
    IS_FOUND,
    Part,
    register_belongings,
    Work,
)
from sqla_shard.models.id_sources import require_default_layout
from sqla_shard.outbox import Operation, operation
from sqla_shard.planning import declare, spec_of
from sqla_shard.session import ShardSession
from sqla_shard.session.paging import check_limit, Page, Subject
from sqla_shard.session.session import separate_session
from sqla_shard.types import ObjectRef
from sqla_shard.util.logs import careful_log

#: Seconds for which the posts of a user are still added to feeds, after
#: readers have begun to pull them.
_OVERLAP = 120.0
#: Seconds after which a process reads again whose posts are pulled.
_REFRESH = 15.0
#: Microseconds by which the clocks of processes may differ.
_SKEW = 10_000_000

_log = careful_log(__name__)


#: The time and the post after which a feed is read.
Bound = tuple[int, int]


class FeedItem(NamedTuple):
    """A post in a feed.

    :ivar post: the post, loaded.
    :ivar board_id: id of its board.
    :ivar author_id: id of its user.
    :ivar sequence: when it was published, in microseconds since 1970.
    """

    post: Any
    board_id: int
    author_id: int
    sequence: int


# -- The tables of home feeds, and feeds that are read from them alone.


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
        self.posts: Any = self._table(
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
        self.pulled: Any = self._table(
            base,
            f"{prefix}user_has_pulled_posts",
            {
                "author_id": _id(colocated=True),
                "since": mapped_column(BigInteger, nullable=False),
            },
        )
        self.drop: Operation[Any] = operation(f"{name}.drop", on="author_id")(
            self._drop
        )
        register_belongings(follows.user, self._of_users)
        register_belongings(post, self._of_posts)

    def _drop(self, session: ShardSession, author_id: int, post_ids: list[int]) -> None:
        """Remove posts of a user that were deleted: the operation."""
        for post_id in post_ids:
            self.withdraw(session, author_id, post_id)

    def _of_posts(
        self, session: ShardSession, place: Place, ids: Sequence[int], everywhere: bool
    ) -> Iterator[Work | str]:
        """Yield the steps that remove posts to be deleted from feeds."""
        columns = self.posts.c
        # No index begins with the post: this reads all rows of a shard, without
        # locks.  Anybody may have published it, so the authors are unknown.
        there = select(columns.author_id, columns.post_id).where(
            type_coerce(columns.post_id, BigInteger()).in_(ids)
        )
        theirs = spec_of(self.posts).keyspace
        if everywhere:
            rows = session.execute(there.options(scatter()))
        else:
            yield self.posts.name
            if place.keyspace != session.places.keyspace(theirs, "objects").name:
                return
            rows = session.execute(there, bind_arguments={"place": place})
        by_author: dict[int, list[int]] = {}
        for author_id, post_id in rows:
            by_author.setdefault(author_id, []).append(post_id)
        for author_id, post_ids in by_author.items():
            their_place = self._place(session, author_id)
            is_here = their_place.address == place.address
            part = Part.on(
                their_place,
                "delete",
                self.posts.name,
                len(post_ids),
                items=tuple((author_id, post_id) for post_id in post_ids),
                is_here=is_here,
            )
            arguments = {"author_id": author_id, "post_ids": post_ids}
            one = self.drop.name, their_place, arguments
            yield part, partial(call, session, place, one, is_here)

    def _of_users(
        self, session: ShardSession, place: Place, ids: Sequence[int], scatter: bool
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
        table.info[IS_FOUND] = True
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
        sources: tuple[dict[int, int], dict[int, int]] = ({}, {})
        rows = session.execute(
            self._related(authors is not None),
            values,
            bind_arguments={"place": self._place(session, user_id)},
        )
        for is_board, target_id, kind in rows.all():
            sources[is_board][target_id] = kind
        return sources

    def _related(self, has_owners: bool) -> Any:
        """Return the SELECT of the relations of a user, built once.

        :param has_owners: whether only those to some users are read.
        """
        known = self._relations.get(has_owners)
        if known is not None:
            return known
        users, boards = self.follows.users, self.follows.boards
        parts = []
        for index, (table, kinds) in enumerate(
            ((users, FOLLOWING), (boards, tuple(BoardChoice)[1:]))
        ):
            if table not in self.follows.tables:
                continue
            part = select(
                literal(index).label("is_board"),
                table.target_id.label("target_id"),
                table.kind.label("kind"),
            ).where(table.source_id == bindparam("source"), table.kind.in_(kinds))
            if has_owners:
                owner = table.number if index else table.target_id
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


# -- The feeds.


class Feed(FeedTables):
    """The home feeds of an application, with a table of all posts.

    The tables belong to ``base``: ``user_has_posts``, on the shard of the
    user, and ``user_has_pulled_posts``, with those whose posts are pulled.

    :param base: the declarative base.
    :param follows: the follow graph.
    :param post: the class of the posts.
    :param store: feeds in Redis; None for the tables alone.
    :param pull_above: number of followers above which the posts of a user are
        pulled by readers; from then on they are, for good.
    :param batch: number of followers whose feeds a job extends at a time.
    :param queue: queue of the jobs.
    :param name: begins the names of the tasks, and of tables other than those
        of "feeds".
    """

    def __init__(
        self,
        base: Any,
        *,
        follows: Follows,
        post: Any,
        store: FeedStore | None = None,
        pull_above: int = 10_000,
        batch: int = 1000,
        queue: str = "feeds",
        name: str = "feeds",
    ) -> None:
        super().__init__(base, follows=follows, post=post, name=name)
        self.store = store
        self._post_type = spec_of(inspect(post).local_table).type_id
        self.pull_above = pull_above
        self._batch = batch
        #: When it was read whose posts are pulled, and the users, by cluster.
        self._known: WeakKeyDictionary[Any, tuple[float, list[int]]] = (
            WeakKeyDictionary()
        )
        self.fan_out: Task = task(
            f"{name}.fan_out", queue=queue, in_transaction=False, retry=RETRY
        )(self._fan_out)
        self.forget: Task = task(
            f"{name}.forget", queue=queue, in_transaction=False, retry=RETRY
        )(self._forget)
        follows.listeners.append(self._on_change)

    # -- writing

    def publish(
        self, session: ShardSession, author_id: int, board_id: int, post_id: int
    ) -> None:
        """Add a post to the feeds of the followers of its board.

        In a graph without boards its board is the author.

        :param session: its transaction writes the shard of the author.
        :raises CrossShardWriteError: if it writes another shard.
        """
        self.publish_many(session, author_id, board_id, [post_id])

    def publish_many(
        self,
        session: ShardSession,
        author_id: int,
        board_id: int,
        post_ids: Iterable[int],
    ) -> None:
        """Show posts of one board, the last one first; see :meth:`publish`."""
        first = now()
        rows = [
            {
                "author_id": author_id,
                "post_id": post_id,
                "board_id": board_id,
                "sequence": first + index,
            }
            for index, post_id in enumerate(post_ids)
        ]
        if not rows:
            return
        session.execute(
            insert(self.posts),
            rows,
            bind_arguments={"place": self._place(session, author_id)},
        )
        if self.store is not None:
            self.fan_out.enqueue_many(session, rows, near=author_id)

    def _on_change(
        self, session: ShardSession, near: int, followers: Sequence[int]
    ) -> None:
        """Build the feeds of followers again.

        It is called when the rows are written with which the audience of a
        post is found: a post that is published later is added by its job.
        """
        if self.store is not None:
            self.forget.enqueue(session, list(followers), near=near)

    def _of_users(
        self, session: ShardSession, place: Place, ids: Sequence[int], scatter: bool
    ) -> Iterator[Work]:
        yield from super()._of_users(session, place, ids, scatter)
        there = existing(session, self.follows.user, ids)
        if there and self.store is not None:
            part = Part.on(
                place, "remove", f"{self.name} in Redis", len(there), is_here=False
            )
            yield part, partial(self.forget.enqueue, session, there, near=there[0])

    def _forget(self, user_ids: list[int]) -> None:
        required(self.store, "Feed.store").forget(user_ids)

    def _fan_out(
        self, author_id: int, board_id: int, post_id: int, sequence: int
    ) -> None:
        """Add a post to the feeds of its audience: the task.

        A job that was interrupted continues after its last batch; adding a
        post again changes nothing.
        """
        store = required(self.store, "Feed.store")
        job = current_job()
        if job.checkpoint is None:
            if self._is_pulled(job.cluster, author_id):
                return
            until, position = now() + _SKEW, None
        else:
            until, position = job.checkpoint
        entry = Entry(sequence, post_id, board_id, author_id)
        with job.cluster.session() as session:
            for batch in self.follows.audience(
                session,
                board_id,
                author_id,
                until=until,
                batch=self._batch,
                position=position,
            ):
                store.add(batch.users, entry)
                if batch.position is not None and batch.users:
                    session.rollback()
                    job.save([until, batch.position])

    def _is_pulled(self, cluster: Any, author_id: int) -> bool:
        """Return whether a user's posts are not added to feeds any more."""
        since = cluster.run(self._measure, author_id)
        return since is not None and now() - since > _OVERLAP * 1_000_000

    def _measure(self, session: ShardSession, author_id: int) -> int | None:
        """Return since when the posts of a user are pulled, if they are."""
        bind = {"place": self._place(session, author_id)}
        size: int | None = session.scalar(
            select(self.pulled.c.since).where(self.pulled.c.author_id == author_id),
            bind_arguments=bind,
        )
        if size is not None:
            return size
        table = self.follows.users_reversed
        some = (
            select(table.target_id)
            .where(table.source_id == author_id, table.kind.in_(FOLLOWING))
            .limit(self.pull_above + 1)
            .subquery()
        )
        count = session.scalar(
            select(func.count()).select_from(some), bind_arguments=bind
        )
        if count is None or count <= self.pull_above:
            return None
        since = now()
        session.execute(
            InsertMissing(self.pulled),
            {"author_id": author_id, "since": since},
            bind_arguments=bind,
        )
        return since

    # -- reading

    def page(
        self,
        session: ShardSession,
        user_id: int,
        limit: int = 25,
        after: str | None = None,
        *,
        authors: Collection[int] | None = None,
    ) -> Page[FeedItem]:
        """Return a page of the feed of a user, the newest posts first.

        Posts that do not exist any more, or are inactive, are left out.

        :param after: a bookmark, the ``next`` of a page.
        :param authors: only posts of these users, such as those whose server
            responds; they are read from the tables.
        :raises InvalidBookmarkError: if it is not a bookmark of this feed.
        """
        check_limit(limit)
        subject = Subject(f"{self.posts.name} of the feed of {user_id}")
        seal = session.cluster.seal
        bound = NEWEST if after is None else unsealed(seal, after, subject)
        items: list[FeedItem] = []
        ahead: Bound | None = bound
        # With an earlier snapshot, or the one of the first entries, a post
        # that was published later would be treated as deleted.
        is_latest = session.reads_latest()
        while ahead is not None and len(items) <= limit:
            entries, ahead = self._next(
                session, user_id, ahead, limit + 1, authors=authors, cleans=is_latest
            )
            items += self._loaded(session, user_id, entries, cleans=is_latest)
            is_latest = False
        shown, following = items[:limit], None
        if len(items) > limit:
            last = shown[-1]
            mark = MARK.pack(last.sequence, self._id_of(last.post))
            following = seal.seal(mark, subject)
        return Page(shown, following)

    def _id_of(self, post: Any) -> int:
        object_id: int = inspect(post).identity[0]
        return object_id

    def _next(
        self,
        session: ShardSession,
        user_id: int,
        bound: Bound,
        number: int,
        *,
        authors: Collection[int] | None,
        cleans: bool,
    ) -> tuple[list[Entry], Bound | None]:
        """Return some entries before a bound, and the bound of the next.

        :param authors: only those of these users.
        :param cleans: whether to remove entries of boards that the user does
            not follow from Redis.
        """
        if self.store is not None and authors is None:
            try:
                stored = self._stored(
                    self.store, session, user_id, bound, number, cleans
                )
            except FeedStoreError as error:
                _log.warning("a feed is read from the tables: %s", error)
            else:
                if stored is not None:
                    return stored
        entries = self.pull(session, user_id, bound, number, authors)
        return entries, _end_of(entries, number)

    def _stored(
        self,
        store: FeedStore,
        session: ShardSession,
        user_id: int,
        bound: Bound,
        number: int,
        cleans: bool,
    ) -> tuple[list[Entry], Bound | None] | None:
        """Return entries from Redis, merged with those that are pulled.

        :returns: None if the tables have entries that Redis does not have.
        """
        feed = store.read(user_id, bound, number)
        if not all(map(self._is_possible, feed.entries)):
            store.forget([user_id])
            feed = feed._replace(exists=False)
        if not feed.exists:
            self.rebuild(session, user_id)
            feed = store.read(user_id, bound, number)
        end = _end_of(feed.entries, number)
        if not feed.exists or (end is None and not feed.is_whole):
            return None
        entries = self._followed(session, user_id, feed.entries)
        if cleans and len(entries) < len(feed.entries):
            store.remove(user_id, set(feed.entries) - set(entries))
        authors = self._pulled_authors(session)
        if authors:
            pulled = self.pull(session, user_id, bound, number, authors)
            entries = sorted({*entries, *pulled}, reverse=True)
            # Beyond the end of one list, the other has more than is known.
            ends = [one for one in (end, _end_of(pulled, number)) if one]
            end = max(ends, default=None)
            if end is not None:
                entries = [one for one in entries if one[:2] >= end]
        return entries, end

    def _is_possible(self, entry: Entry) -> bool:
        """Return whether the ids of an entry are of their classes."""
        types = [unpack(one).type_id for one in entry[1:]]
        follows = self.follows
        return types == [self._post_type, follows.board_type, follows.user_type]

    def _followed(
        self, session: ShardSession, user_id: int, entries: list[Entry]
    ) -> list[Entry]:
        """Return the entries of boards that a user follows."""
        relations = self.follows.relations(
            session,
            user_id,
            {one.author_id for one in entries},
            {one.board_id for one in entries},
        )
        return [
            one for one in entries if relations.includes(one.author_id, one.board_id)
        ]

    def _loaded(
        self, session: ShardSession, user_id: int, entries: list[Entry], *, cleans: bool
    ) -> list[FeedItem]:
        """Return the entries whose posts are shown, with the posts."""
        posts = session.get_many(self.post, [one.post_id for one in entries])
        missing = [
            one for one, post in zip(entries, posts, strict=True) if post is None
        ]
        if missing and cleans and self.store is not None:
            self._drop_withdrawn(session, user_id, missing)
        return [
            FeedItem(post, one.board_id, one.author_id, one.sequence)
            for one, post in zip(entries, posts, strict=True)
            if post is not None
        ]

    def _drop_withdrawn(
        self, session: ShardSession, user_id: int, entries: list[Entry]
    ) -> None:
        """Remove entries from Redis that the tables do not have."""
        store: Any = self.store
        columns = self.posts.c
        exist = set(
            session.scalars(
                select(columns.post_id).where(
                    columns.author_id.in_({one.author_id for one in entries}),
                    columns.post_id.in_({one.post_id for one in entries}),
                )
            )
        )
        gone = [one for one in entries if one.post_id not in exist]
        try:
            store.remove(user_id, gone)
        except FeedStoreError as error:
            _log.warning("deleted posts remain in a feed: %s", error)

    def _pulled_authors(self, session: ShardSession) -> list[int]:
        """Return the users whose posts are pulled, as read lately."""
        cluster = session.cluster
        read_at, authors = self._known.get(cluster, (None, []))
        if read_at is None or time.monotonic() - read_at > _REFRESH:
            # Before the statement: they are as old as that at least.
            read_at = time.monotonic()
            authors = list(
                session.scalars(select(self.pulled.c.author_id).options(scatter()))
            )
            self._known[cluster] = (read_at, authors)
        return authors

    # -- Redis

    def rebuild(self, session: ShardSession, user_id: int) -> None:
        """Build the feed of a user in Redis from the tables.

        :raises FeedStoreError: if Redis does not respond.
        """
        store = self.store
        if store is None:
            return
        token = store.begin(user_id)
        # In a later transaction than all posts that were added before.
        with separate_session(session) as other:
            entries = self.pull(other, user_id, number=store.size)
        store.finish(user_id, token, entries)

    def compare(
        self, session: ShardSession, user_ids: Iterable[int]
    ) -> dict[int, list[Entry]]:
        """Return the entries in which feeds in Redis and tables differ.

        Call it while no posts are published and no jobs are pending.  Feeds
        that are not in Redis do not differ.

        :returns: entries by user; without users that do not differ.
        """
        store: Any = self.store
        lists: dict[int, list[Entry]] = {}
        pulled = set(self._pulled_authors(session))
        for user_id in user_ids:
            feed = store.read(user_id, NEWEST, store.size)
            if not feed.exists:
                continue
            stored = set(self._followed(session, user_id, feed.entries))
            tables = self.pull(session, user_id, number=store.size)
            different = stored.symmetric_difference(tables)
            left = sorted(one for one in different if one.author_id not in pulled)
            if left:
                lists[user_id] = left
        return lists


def _end_of(entries: Sequence[Entry], number: int) -> Bound | None:
    """Return the last entry of a list that may have more; None at the end."""
    return entries[-1][:2] if len(entries) == number else None
