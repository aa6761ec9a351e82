"""Deleting an object with what belongs to it: objects, rows, lists, keys."""

from __future__ import annotations

import asyncio
import itertools
import json
import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Column, Engine, event, ForeignKey, func, select, Table
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from sqla_shard import (
    blob_field,
    Cluster,
    exc,
    LookupMixin,
    MappingMixin,
    ObjectMixin,
    ObjectRef,
    scatter,
    ShardedId,
)
from sqla_shard.models import normalization, sign_up
from sqla_shard.models.deletion import async_delete_object, delete_object, plan_deletion
from sqla_shard.upkeep import verify_lookups, verify_relations
from tests.models.backends import Clusters, On
from tests.models.clusters import ShardLog
from tests.models.layouts import LAYOUT, pack

#: What may name a user or its pins on other shards.
NEVER_SEARCHED = {"Pin.seen_by", "arguments of jobs"}
SHARDS = 8
MODULUS = 4


class Base(DeclarativeBase):
    id_layout = LAYOUT


class User(ObjectMixin, Base, type_id=3):
    __tablename__ = "users"
    email: Mapped[str | None] = blob_field(default=None)
    tags: Mapped[list[str]] = blob_field(default_factory=list)


class Board(ObjectMixin, Base, type_id=2, colocate_with="user_id"):
    """Its parent's id is in the blob."""

    __tablename__ = "boards"
    user_id: Mapped[int] = blob_field(ref=User)
    cover_id: Mapped[int | None] = mapped_column(
        ShardedId(1), ForeignKey("pins.local_id", use_alter=True, name="cover")
    )
    labels: Mapped[list[Label]] = relationship(secondary="board_labels")


class Pin(ObjectMixin, Base, type_id=1, colocate_with="board_id"):
    __tablename__ = "pins"
    board_id: Mapped[int] = mapped_column(ShardedId(2), ForeignKey("boards.local_id"))
    root_id: Mapped[int | None] = mapped_column(
        ShardedId(1), ForeignKey("pins.local_id")
    )
    seen_by: Mapped[int | None] = mapped_column(ObjectRef(3))


class Label(ObjectMixin, Base, type_id=4, colocate_with="user_id"):
    __tablename__ = "labels"
    user_id: Mapped[int] = mapped_column(ShardedId(3), ForeignKey("users.local_id"))


board_labels = Table(
    "board_labels",
    Base.metadata,
    Column("board_id", ForeignKey("boards.local_id"), primary_key=True),
    Column("label_id", ForeignKey("labels.local_id"), primary_key=True),
)


class Vote(Base):
    __tablename__ = "votes"
    pin_id: Mapped[int] = mapped_column(ForeignKey("pins.local_id"), primary_key=True)
    day: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


class UserEmail(
    LookupMixin, Base, target=User, normalize=normalization.email, field="email"
):
    pass


class UserTag(
    LookupMixin,
    Base,
    target=User,
    normalize=normalization.casefold,
    unique=False,
    field="tags",
):
    pass


class UserName(LookupMixin, Base, target=User, normalize=normalization.casefold):
    """No column of a user contains the name."""


class Follows(
    MappingMixin,
    Base,
    source=User,
    target=User,
    source_column="follower_id",
    target_column="followed_id",
    inverse="FollowedBy",
):
    pass


class FollowedBy(
    MappingMixin,
    Base,
    source=User,
    target=User,
    source_column="followed_id",
    target_column="follower_id",
):
    pass


class UserLikesPins(MappingMixin, Base, source=User, target=Pin, inverse="PinLikedBy"):
    pass


class PinLikedBy(MappingMixin, Base, source=Pin, target=User):
    pass


class UserSavesPins(MappingMixin, Base, source=User, target=Pin):
    """Without an inverse: no row of a pin names the users who saved it."""


MAPPINGS = [Follows, FollowedBy, UserLikesPins, PinLikedBy, UserSavesPins]
CACHED: dict[Any, Any] = dict.fromkeys((User, Board, Pin, *MAPPINGS), "all")
LOOKUPS = [UserEmail, UserTag, UserName]

_numbers = itertools.count()


class Ended(Exception):  # noqa: N818 - ends a process, so to speak
    """Raised in place of a statement."""


class Ending:
    """Lets some statements through, and none after.

    :param after: how many.
    """

    def __init__(self, after: int) -> None:
        self._left = after
        self.has_ended = False

    def __enter__(self) -> Ending:
        event.listen(Engine, "before_cursor_execute", self._count)
        return self

    def __exit__(self, *details: object) -> None:
        event.remove(Engine, "before_cursor_execute", self._count)

    def _count(self, *details: object) -> None:
        if self._left <= 0:
            self.has_ended = True
            raise Ended
        self._left -= 1


def new_user(session: Any, shard_id: int, email: str | None, tags: Any = ()) -> int:
    user = User(email=email, tags=list(tags), shard_id=shard_id)
    session.add(user)
    session.flush()
    return user.id


def new_things(session: Any, user_id: int) -> tuple[int, int, list[int]]:
    board = Board(user_id=user_id)
    label = Label(user_id=user_id)
    board.labels = [label]
    session.add_all([board, label])
    session.flush()
    pins = [Pin(board_id=board.id) for _ in range(5)]
    session.add_all(pins)
    session.flush()
    pins[1].root_id = pins[2].id
    board.cover_id = pins[3].id
    session.add(Vote(pin_id=pins[0].id, day=1))
    session.flush()
    hidden = pins[4]
    hidden.deactivate()
    return board.id, label.id, [pin.id for pin in pins]


def everything(cluster: Cluster) -> dict[str, int]:
    """Return how many rows each table has."""
    found = {}
    for table in Base.metadata.tables.values():
        with cluster.session() as session:
            count = select(func.count()).select_from(table)
            found[table.name] = session.scalar(count.options(scatter()))
    return {name: count for name, count in found.items() if count}


class Scene:
    """A user with all kinds of things, and another one on the next shard."""

    def __init__(self, cluster: Cluster) -> None:
        mark = next(_numbers)
        self.email = f"me{mark}@example.org"
        self.name = f"name{mark}"
        tags = [f"a{mark}", f"b{mark}"]
        self.user = sign_up(
            cluster,
            {UserEmail: self.email, UserName: self.name},
            new_user,
            mark % SHARDS,
            self.email,
            tags,
        )
        self.other = cluster.run(new_user, (mark + 1) % SHARDS, None, tags[:1])
        for tag in tags:
            cluster.run(UserTag.add, tag, self.user)
        cluster.run(UserTag.add, tags[0], self.other)
        run = cluster.run
        self.board, self.label, self.pins = run(new_things, self.user)
        self.others = run(new_things, self.other)
        logged = {"cross_shard": "logged"}
        run(Follows.append, self.user, self.other, **logged)
        run(Follows.append, self.other, self.user, **logged)
        run(UserLikesPins.append, self.other, self.pins[0], **logged)
        run(UserLikesPins.append, self.user, self.pins[1], **logged)
        run(UserLikesPins.append, self.user, self.others[2][0], **logged)
        run(UserSavesPins.append, self.other, self.pins[0])
        run(UserSavesPins.append, self.user, self.others[2][0])
        self.show(cluster)

    def show(self, cluster: Cluster) -> None:
        """Read the rows that would be cached."""
        with cluster.session() as session:
            for entity, ids in (
                (User, [self.user, self.other]),
                (Board, [self.board, self.others[0]]),
                (Pin, [*self.pins, *self.others[2]]),
            ):
                session.get_many(entity, ids)
            for cls in (Follows, FollowedBy, UserLikesPins, UserSavesPins):
                assert cls.page(session, self.user, targets=True)
                assert cls.page(session, self.other, targets=True)
            for pin in (self.pins[0], self.others[2][0]):
                assert PinLikedBy.page(session, pin, targets=True)


class Deleting:
    """The test module has a fixture ``cluster``."""

    @pytest.fixture
    def scene(self, cluster: Cluster) -> Scene:
        return Scene(cluster)

    def rest(self, cluster: Cluster, scene: Scene) -> None:
        """Check the rows that remain after the user."""
        with cluster.session() as session:
            options = {"include_inactive": True}
            for entity, key in (
                (User, scene.user),
                (Board, scene.board),
                (Label, scene.label),
                *((Pin, pin) for pin in scene.pins),
            ):
                found = session.get(entity, key, execution_options=options)
                assert found is None
            assert session.get(Board, scene.others[0]) is not None
            assert UserEmail.resolve(session, scene.email) is None
            assert Follows.count(session, scene.user) == 0
            assert Follows.count(session, scene.other) == 0
            assert FollowedBy.count(session, scene.user) == 0
            assert FollowedBy.count(session, scene.other) == 0
            assert UserLikesPins.count(session, scene.other) == 0
            assert PinLikedBy.count(session, scene.others[2][0]) == 0

    def test_all_that_belongs_to_it(self, cluster, scene):
        with cluster.session() as session:
            plan = plan_deletion(session, User, scene.user, scatter=True)
        done = delete_object(cluster, User, scene.user, scatter=True)
        self.rest(cluster, scene)
        objects = [
            {p.items for p in some.parts if p.name in ("User", "Board", "Pin")}
            for some in (plan, done)
        ]
        assert objects[0] == objects[1]
        # A row between two objects is in a plan with both.
        what = [{(p.action, p.name) for p in d.parts} for d in (plan, done)]
        assert what[0] == what[1]
        assert set(plan.unseen) == set(done.unseen) == NEVER_SEARCHED
        with cluster.session() as session:
            assert UserName.resolve(session, scene.name) is None
            assert UserSavesPins.count(session, scene.other) == 0
            assert UserSavesPins.count(session, scene.user) == 0
        found = verify_relations(cluster, MAPPINGS, grace=0)
        assert found.ok, found.findings
        assert verify_lookups(cluster, LOOKUPS, grace=0).ok
        assert cluster.pending() == []

    def test_nothing_but_that(self, cluster, scene):
        before = everything(cluster)
        plan = delete_object(cluster, User, Scene(cluster).user, scatter=True, batch=2)
        after = everything(cluster)
        # The other user of that scene stays, with its rows.
        assert after.pop("users") == before.pop("users") + 1
        assert len(plan.parts) > 15
        with cluster.session() as session:
            assert UserName.resolve(session, scene.name) == scene.user
            assert UserEmail.resolve(session, scene.email) == scene.user
            assert Follows.count(session, scene.user) == 1
            assert PinLikedBy.count(session, scene.pins[0]) == 1

    def test_without_asking_all_shards(self, cluster, scene):
        with cluster.session() as session, ShardLog() as log:
            plan = plan_deletion(session, User, scene.user)
            own = scene.user >> 46
            assert set(log.take()) == {own}
        searched = set(plan.unseen) - NEVER_SEARCHED
        assert searched == {"UserSavesPins", "UserName"}
        assert "not searched: UserSavesPins, " in str(plan)
        delete_object(cluster, User, scene.user)
        self.rest(cluster, scene)
        with cluster.session() as session:
            assert UserSavesPins.count(session, scene.other) == 1
            assert UserName.resolve(session, scene.name) == scene.user
        # The remaining rows can still be found, without the object.
        for entity, key, name in (
            (User, scene.user, "UserName"),
            (Pin, scene.pins[0], "UserSavesPins"),
        ):
            done = delete_object(cluster, entity, key, scatter=True)
            assert [part.name for part in done.parts] == [name]
            done = delete_object(cluster, entity, key, scatter=True)
            assert not done.parts

    def test_a_plan_writes_nothing(self, cluster, scene):
        before = everything(cluster)
        with cluster.begin() as session:
            plan = plan_deletion(session, User, scene.user, scatter=True)
        assert everything(cluster) == before
        assert plan.object_id == scene.user
        assert pickle.loads(pickle.dumps(plan)) == plan  # ours
        shown = json.loads(json.dumps(plan.as_dict()))
        (last,) = shown["parts"][-1:]
        assert last["action"] == "delete"
        assert (last["name"], last["items"]) == ("User", [scene.user])
        names = {(p.action, p.name) for p in plan.parts}
        assert names == {
            ("delete", "User"),
            ("delete", "Board"),
            ("delete", "Pin"),
            ("delete", "Label"),
            ("delete", "votes"),
            ("delete", "board_labels"),
            ("delete", "FollowedBy"),
            ("delete", "PinLikedBy"),
            ("set NULL", "pins.root_id"),
            ("set NULL", "boards.cover_id"),
            ("clear", "Follows"),
            ("clear", "UserLikesPins"),
            ("clear", "UserSavesPins"),
            ("remove", "Follows"),
            ("remove", "UserLikesPins"),
            ("remove", "UserSavesPins"),
            ("release", "UserEmail"),
            ("release", "UserTag"),
            ("release", "UserName"),
        }
        order = [p.name for p in plan.parts]
        assert order.index("Pin") < order.index("Board") < order.index("User")

    def test_ended_at_each_statement(self, cluster, scene):
        """Wherever it ends, calling it again goes on."""
        ended = 0
        while True:
            with Ending(ended * 4):
                try:
                    delete_object(cluster, User, scene.user, scatter=True, batch=2)
                    break
                except Ended:
                    ended += 1
        assert ended > 3
        # Deletions that ended after a COMMIT are left to the worker.
        assert cluster.repair(now=True).ok
        assert cluster.pending() == []
        self.rest(cluster, scene)
        with cluster.session() as session:
            assert UserName.resolve(session, scene.name) is None
        found = verify_relations(cluster, MAPPINGS, grace=0)
        assert found.ok, found.findings
        assert verify_lookups(cluster, LOOKUPS, grace=0).ok

    def test_by_several_at_the_same_time(self, cluster, scene):
        def delete() -> Any:
            return delete_object(cluster, User, scene.user, scatter=True, batch=1)

        with ThreadPoolExecutor(3) as pool:
            for one in [pool.submit(delete) for _ in range(3)]:
                one.result(timeout=120)
        assert cluster.repair(now=True).ok
        self.rest(cluster, scene)
        assert delete().parts == ()

    def test_a_part_of_it(self, cluster, scene):
        done = delete_object(cluster, Pin, scene.pins[0])
        assert [(p.action, p.name) for p in done.parts] == [
            ("remove", "UserLikesPins"),
            ("delete", "PinLikedBy"),
            ("delete", "votes"),
            ("delete", "Pin"),
        ]
        assert done.unseen == ("UserSavesPins", "arguments of jobs")
        with cluster.session() as session:
            assert session.get(Board, scene.board) is not None
            assert UserLikesPins.count(session, scene.other) == 0
        delete_object(cluster, Pin, scene.pins[0], scatter=True)

    def test_one_that_was_never_there(self, cluster):
        missing = pack(3, 3, 10**9)
        assert delete_object(cluster, User, missing).parts == ()

    def test_in_an_event_loop(self, cluster, scene):
        asyncio.run(self.awaited(cluster, scene))
        self.rest(cluster, scene)

    async def awaited(self, cluster: Cluster, scene: Scene) -> None:
        async with cluster.async_session() as session:
            plan = await session.run_sync(plan_deletion, User, scene.user, scatter=True)
        done = await async_delete_object(cluster, User, scene.user, scatter=True)
        assert done.parts[-1] == plan.parts[-1]

    def test_refusals(self, cluster, scene):
        with pytest.raises(exc.WrongTypeError):
            delete_object(cluster, User, scene.board)
        with pytest.raises(exc.UnsupportedStatementError, match="Vote"):
            delete_object(cluster, Vote, scene.pins[0])
        with pytest.raises(ValueError, match="batch=0"):
            delete_object(cluster, User, scene.user, batch=0)


@contextmanager
def _prepared(cluster: Cluster, request: Any, on: On) -> Iterator[None]:
    if on.name.endswith("-cached"):
        region = {"backend": "dogpile.cache.memory"}
        cluster.configure_cache({"all": region}, classes=CACHED, prefix="deleting")
    yield


_CLUSTERS = Clusters(Base.metadata, SHARDS, lookup=MODULUS, prepare=_prepared)
cluster = _CLUSTERS.on_backend()
