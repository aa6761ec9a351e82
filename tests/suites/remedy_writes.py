"""Writes that are refused, and what their message says to do instead."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone, UTC
from typing import Any

from sqlalchemy import bindparam, delete, insert, select, Sequence, update
from sqlalchemy.orm.attributes import set_committed_value

from sqla_shard import full_id, scatter, ShardSession
from tests.models.layouts import pack, unpack
from tests.models.remedy_models import (
    Case,
    Country,
    Data,
    Label,
    LabelledPost,
    Likes,
    Post,
    PostHasReaders,
    Reply,
    User,
    UserLikesPosts,
    UserName,
    UserReadsPosts,
)
from tests.models.returning import inserted


def add(session: ShardSession, *objects: Any) -> Any:
    """Flush new objects, and return the first one."""
    session.add_all(objects)
    session.flush()
    return objects[0]


def changed(session: ShardSession, entity: Any, ident: Any, **new: Any) -> Any:
    """Flush changes of an object, and return it."""
    found = session.get_one(entity, ident)
    for name, value in new.items():
        setattr(found, name, value)
    session.flush()
    return found


def _changed_name(session: ShardSession, data: Data) -> Any:
    user = session.get_one(User, data.users[1])
    user.name = "new"
    return user


def _changed_in_join(session: ShardSession, data: Data) -> None:
    add(session, Label(post_id=data.posts[0], name="x"))
    row = session.get_one(LabelledPost, (data.posts[0], "x"))
    row.name = "y"
    session.flush()


def _linked(session: ShardSession, one: int, other: int) -> int:
    post = session.get_one(Post, one)
    post.links.append(session.get_one(Post, other))
    session.flush()
    return len(post.links)


def _before_flush(session: ShardSession, data: Data) -> None:
    user = User(name="p", shard_id=1)
    add(session, Post(user_id=user.id, title="x"))


def _after_flush(session: ShardSession, data: Data) -> int:
    user = add(session, User(name="p", shard_id=1))
    return add(session, Post(user_id=user.id, title="x")).shard_id  # type: ignore[no-any-return]  # of an object


def _moved(session: ShardSession, data: Data) -> list[int]:
    old = session.get_one(Post, data.posts[0])
    new = add(session, Post(user_id=old.user_id, title=old.title))
    session.delete(old)
    session.flush()
    return [new.shard_id]


WRITES: dict[str, Case] = {
    # -- flushes
    "a change of a row of a join": Case(
        refused=_changed_in_join,
        names=("of posts, labels can be read only", "the classes of these"),
        remedy=lambda s, d: add(s, Label(post_id=d.posts[0], name="x")).name,
        answer=lambda s, d: "x",
    ),
    "an INSERT into a join": Case(
        refused=lambda s, d: s.execute(
            insert(LabelledPost), [{"id": d.posts[0], "name": "x"}]
        ),
        names=("of posts, labels can be read only", "the classes of these"),
        remedy=lambda s, d: add(s, Label(post_id=d.posts[0], name="x")).name,
        answer=lambda s, d: "x",
    ),
    "a Sequence": Case(
        refused=lambda s, d: s.scalar(select(Sequence("ids").next_value())),
        names=("a Sequence cannot be routed", "leave it out", "is flushed"),
        remedy=lambda s, d: add(s, User(name="q", shard_id=1)).id > 0,
        answer=lambda s, d: True,
    ),
    "a parent that has no id yet": Case(
        refused=_before_flush,
        names=("is None", "session.add(parent); session.flush()"),
        remedy=_after_flush,
        answer=lambda s, d: 1,
    ),
    "a parent of another class": Case(
        refused=lambda s, d: add(s, Post(user_id=d.posts[0], title="x")),
        names=("is an id of type 2", "a parent has type 3"),
        remedy=lambda s, d: add(s, Post(user_id=d.users[1], title="x")).shard_id,
        answer=lambda s, d: 1,
    ),
    "a shard beside a parent": Case(
        refused=lambda s, d: add(s, Post(user_id=d.users[1], title="x", shard_id=3)),
        names=("the parent is on shard 1", "leave out shard_id"),
        remedy=lambda s, d: add(s, Post(user_id=d.users[1], title="x")).shard_id,
        answer=lambda s, d: 1,
    ),
    "a row beside nothing": Case(
        refused=lambda s, d: add(s, Label(name="x")),
        names=("Label.post_id is None", "that the row belongs to"),
        remedy=lambda s, d: add(s, Label(post_id=d.posts[0], name="x")).name,
        answer=lambda s, d: "x",
    ),
    "a row beside an object of another class": Case(
        refused=lambda s, d: add(s, Label(post_id=d.users[1], name="x")),
        names=("type",),
        remedy=lambda s, d: add(s, Label(post_id=d.posts[0], name="x")).name,
        answer=lambda s, d: "x",
    ),
    "a parent on another shard": Case(
        refused=lambda s, d: changed(s, Post, d.posts[0], user_id=d.users[2]),
        names=("cannot move", "Insert a copy", "delete this object"),
        remedy=_moved,
        answer=lambda s, d: [1],
    ),
    "another shard": Case(
        refused=lambda s, d: setattr(s.get_one(User, d.users[1]), "shard_id", 2),
        names=("cannot be moved", "add a copy of it with shard_id="),
        remedy=lambda s, d: (
            add(s, User(name=s.get_one(User, d.users[1]).name, shard_id=2)).shard_id
        ),
        answer=lambda s, d: 2,
    ),
    "links between shards": Case(
        refused=lambda s, d: _linked(s, d.posts[0], d.posts[1]),
        names=("link objects of one shard", "class PostHasLinks("),
        remedy=lambda s, d: UserLikesPosts.append_many(s, d.users[1], [d.posts[1]]),
        answer=lambda s, d: [d.posts[1]],
    ),
    "a row of a reference class": Case(
        refused=lambda s, d: add(s, Country(code="de")),
        names=("the same on every shard", "Country.replace("),
        remedy=lambda s, d: _replaced(s),
        answer=lambda s, d: ["de"],
    ),
    "a row of a lookup class": Case(
        refused=lambda s, d: add(s, UserName(key="x", user_id=d.users[0])),
        names=("write rows of a lookup class", "claim()"),
        remedy=lambda s, d: UserName.claim(s, "x").key,
        answer=lambda s, d: "x",
    ),
    "a row of an inverse": Case(
        refused=lambda s, d: PostHasReaders.append(s, d.posts[0], d.users[0]),
        names=("is the inverse of UserReadsPosts", "use "),
        remedy=lambda s, d: _read(s, d),
        answer=lambda s, d: [d.posts[0]],
    ),
    "a row of what has an inverse": Case(
        refused=lambda s, d: s.execute(
            delete(UserReadsPosts).where(UserReadsPosts.user_id == d.users[0])
        ),
        names=("has an inverse", "instead of adding and deleting rows"),
        remedy=lambda s, d: _unread(s, d),
        answer=lambda s, d: [],
    ),
    "a key of a lookup for one object": Case(
        refused=lambda s, d: UserName.add(s, "x", d.users[0]),
        names=("a key belongs to one object", "use claim()"),
        remedy=lambda s, d: UserName.claim(s, "x").key,
        answer=lambda s, d: "x",
    ),
    "an abstract mapping": Case(
        refused=lambda s, d: Likes.append(s, d.users[0], d.posts[0]),
        names=("abstract and has no table", "use a subclass"),
        remedy=lambda s, d: UserLikesPosts.append(s, d.users[0], d.posts[0]),
        answer=lambda s, d: True,
    ),
    # -- fields
    "a parent that is None": Case(
        refused=lambda s, d: add(s, Reply(post_id=Post().id)),
        names=("is None", "session.add(parent); session.flush()"),
        remedy=lambda s, d: (
            add(
                s, Reply(post_id=add(s, Post(user_id=d.users[1], title="x")).id)
            ).shard_id
        ),
        answer=lambda s, d: 1,
    ),
    "an id of another class": Case(
        refused=lambda s, d: changed(s, User, d.users[1], best_id=d.users[2]),
        names=("is an id of type 3, not of 2",),
        remedy=lambda s, d: changed(s, User, d.users[1], best_id=d.posts[0]).best_id,
        answer=lambda s, d: d.posts[0],
    ),
    "a reference to a class that is not there": Case(
        refused=lambda s, d: changed(s, User, d.users[1], boss_id=d.users[2]),
        names=("boss_id refers to 'Boss'", "there are", "User"),
        remedy=lambda s, d: changed(s, User, d.users[1], best_id=d.posts[0]).best_id,
        answer=lambda s, d: d.posts[0],
    ),
    "a moment without a time zone": Case(
        refused=lambda s, d: changed(s, User, d.users[1], seen=datetime(2024, 1, 1)),
        names=("is not a datetime with a time zone", "datetime.now(timezone.utc)"),
        remedy=lambda s, d: (
            changed(s, User, d.users[1], seen=datetime.now(UTC)).seen is not None
        ),
        answer=lambda s, d: True,
    ),
    "a moment that Python has not in UTC": Case(
        refused=lambda s, d: changed(
            s,
            *(User, d.users[1]),
            seen=datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14))),
        ),
        names=("is outside the years 1 to 9999 in UTC",),
        remedy=lambda s, d: (
            changed(s, User, d.users[1], seen=datetime(2024, 1, 1, tzinfo=UTC)).seen
            is not None
        ),
        answer=lambda s, d: True,
    ),
    "a field without a value": Case(
        refused=lambda s, d: add(s, User(shard_id=1)),
        names=("User.name: has no value", "no default"),
        remedy=lambda s, d: add(s, User(name="x", shard_id=1)).name,
        answer=lambda s, d: "x",
    ),
    "del of a required field": Case(
        refused=lambda s, d: delattr(s.get_one(User, d.users[1]), "name"),
        names=("cannot be deleted", "no default"),
        remedy=lambda s, d: changed(s, User, d.users[1], name="").name,
        answer=lambda s, d: "",
    ),
    "a document that is None": Case(
        refused=lambda s, d: changed(s, User, d.users[1], data=None),
        names=("must be a dict, not None", "assign {} to empty it"),
        remedy=lambda s, d: dict(changed(s, User, d.users[1], data={}).data),
        answer=lambda s, d: {},
    ),
    "a document that is a text": Case(
        refused=lambda s, d: changed(s, User, d.users[1], data="x"),
        names=("must be a dict", "not 'x'"),
        remedy=lambda s, d: changed(s, User, d.users[1], data={"name": "x"}).name,
        answer=lambda s, d: "x",
    ),
    "active that is no bool": Case(
        refused=lambda s, d: changed(s, User, d.users[1], active="no"),
        names=("must be a bool", "'no'"),
        remedy=lambda s, d: changed(s, User, d.users[1], active=False).active,
        answer=lambda s, d: False,
    ),
    "a value that was never read": Case(
        refused=lambda s, d: set_committed_value(
            s.get_one(User, d.users[1]), "name", "x"
        ),
        names=("is part of a document", "Assign it"),
        remedy=lambda s, d: changed(s, User, d.users[1], name="x").name,
        answer=lambda s, d: "x",
    ),
    "one field that is read again": Case(
        refused=lambda s, d: s.expire(_changed_name(s, d), ["tags"]),
        names=("would be lost", "Flush first: session.flush()"),
        remedy=lambda s, d: _refreshed(s, d),
        answer=lambda s, d: ("new", ["t"]),
    ),
    "a list of an earlier state": Case(
        refused=lambda s, d: _stale_list(s, d),
        names=("is detached", "Read it from the object again"),
        remedy=lambda s, d: _fresh_list(s, d),
        answer=lambda s, d: ["t", "x"],
    ),
    "what another writer changed": Case(
        refused=lambda s, d: _written_by_another(s, d, None),
        names=("nothing was written", "read with_for_update=True"),
        remedy=lambda s, d: _written_by_another(s, d, True),
        answer=lambda s, d: "mine",
    ),
    # -- INSERT
    "INSERT .. FROM SELECT": Case(
        refused=lambda s, d: s.execute(_copied(0)),
        names=("FROM SELECT cannot be determined", '{"shard_id": n}'),
        remedy=lambda s, d: (
            s.execute(_copied(0), bind_arguments={"shard_id": 1}).rowcount
        ),
        answer=lambda s, d: 0,
    ),
    "INSERT .. FROM SELECT without the document": Case(
        refused=lambda s, d: s.execute(
            insert(User).from_select(["age"], select(User.age)),
            bind_arguments={"shard_id": 1},
        ),
        names=('does not select "data"', "select it too"),
        remedy=lambda s, d: (
            s.execute(_copied(1), bind_arguments={"shard_id": 1}).rowcount
        ),
        answer=lambda s, d: 1,
    ),
    "ids of two forms": Case(
        refused=lambda s, d: s.execute(
            insert(User).from_select(["data", "friend_id"], select(User.data, User.id)),
            bind_arguments={"shard_id": 1},
        ),
        names=("hold ids in different forms", "full_id()"),
        remedy=lambda s, d: (
            s.execute(
                insert(User).from_select(
                    ["data", "friend_id"], select(User.data, full_id(User.id))
                ),
                bind_arguments={"shard_id": 1},
            ).rowcount
        ),
        answer=lambda s, d: 1,
    ),
    "VALUES of two shards": Case(
        refused=lambda s, d: s.execute(
            insert(Post).values(
                [
                    {"user_id": d.users[0], "title": "x"},
                    {"user_id": d.users[1], "title": "x"},
                ]
            )
        ),
        names=("on several shards", "session.execute(insert(Class), rows)"),
        remedy=lambda s, d: _inserted(
            s,
            [
                {"user_id": d.users[1], "title": "x"},
                {"user_id": d.users[1], "title": "y"},
            ],
        ),
        answer=lambda s, d: ["x", "y"],
    ),
    "RETURNING in the order of rows": Case(
        refused=lambda s, d: s.execute(
            insert(User).returning(User.id, sort_by_parameter_order=True),
            [{"name": str(n), "shard_id": n} for n in range(2)],
        ),
        names=("a column that identifies them", "session.add_all(objects)"),
        remedy=lambda s, d: _ids_of(
            s, [User(name=str(n), shard_id=1) for n in range(2)]
        ),
        answer=lambda s, d: [1, 1],
    ),
    "a shard that is no number": Case(
        refused=lambda s, d: s.execute(insert(User), [{"name": "x", "shard_id": "1"}]),
        names=("shard_id='1'", "the number of a shard"),
        remedy=lambda s, d: (
            s.scalars(
                insert(User).returning(User.id), [{"name": "x", "shard_id": 1}]
            ).one()
            > 0
        ),
        answer=lambda s, d: True,
    ),
    "a row that asks for another shard": Case(
        refused=lambda s, d: s.execute(
            insert(Post), [{"user_id": d.users[1], "title": "x", "shard_id": 2}]
        ),
        names=("requests shard 2", "leave out shard_id"),
        remedy=lambda s, d: _inserted(s, [{"user_id": d.users[1], "title": "x"}]),
        answer=lambda s, d: ["x"],
    ),
    "a row whose id and parent are apart": Case(
        refused=lambda s, d: s.execute(
            insert(Post), [{"id": pack(2, 2, 88), "user_id": d.users[1], "title": "x"}]
        ),
        names=("its own shard only", "on the shard of the object"),
        remedy=lambda s, d: _inserted(
            s, [{"id": pack(1, 2, 88), "user_id": d.users[1], "title": "x"}]
        ),
        answer=lambda s, d: ["x"],
    ),
    "a row of a link that has no id": Case(
        refused=lambda s, d: s.execute(insert(Label), [{"name": "x"}]),
        names=("has no post_id", "that the row belongs to"),
        remedy=lambda s, d: _inserted_label(s, d),
        answer=lambda s, d: ["x"],
    ),
    "a row of a lookup": Case(
        refused=lambda s, d: s.execute(
            insert(UserName), [{"key": "x", "user_id": d.users[0]}]
        ),
        names=("the shard of a row of 'user_name'", '{"shard_id": n}'),
        remedy=lambda s, d: UserName.claim(s, "x").key,
        answer=lambda s, d: "x",
    ),
    "bulk_save_objects()": Case(
        refused=lambda s, d: s.bulk_save_objects([User(name="x")]),
        names=("legacy bulk methods", "session.add_all()"),
        remedy=lambda s, d: add(s, User(name="x", shard_id=1)).name,
        answer=lambda s, d: "x",
    ),
    "a row with an attribute that is none": Case(
        refused=lambda s, d: s.execute(
            insert(User), [{"name": "x", "nmae": "y", "shard_id": 1}]
        ),
        names=("'nmae' is not an attribute of User", "correct the name"),
        remedy=lambda s, d: (
            inserted(s, insert(User), [{"name": "x", "shard_id": 1}])[0].name
        ),
        answer=lambda s, d: "x",
    ),
    "an empty list of rows": Case(
        refused=lambda s, d: s.execute(insert(User), []),
        names=("a list of dicts that is not empty", "execute nothing"),
        remedy=lambda s, d: [s.execute(insert(User), rows) for rows in ([],) if rows],
        answer=lambda s, d: [],
    ),
    # -- UPDATE and DELETE
    "an UPDATE with limits": Case(
        refused=lambda s, d: s.execute(
            update(User).values(age=1).options(scatter(timeout=5))
        ),
        names=("scatter(timeout=) is for SELECT", "leave it out"),
        remedy=lambda s, d: (
            s.execute(
                update(User)
                .where(User.id == d.users[0])
                .values(age=1)
                .options(scatter())
            ).rowcount
        ),
        answer=lambda s, d: 1,
    ),
    "an UPDATE of rows without ids": Case(
        refused=lambda s, d: s.execute(update(User), [{"age": 1}]),
        names=("has no id", "add the id"),
        remedy=lambda s, d: _updated(s, {"id": d.users[0], "age": 5}),
        answer=lambda s, d: 5,
    ),
    "an UPDATE that moves rows": Case(
        refused=lambda s, d: s.execute(
            update(Post).where(Post.id == d.posts[0]).values(user_id=d.users[2])
        ),
        names=("an object never leaves its shard", "Insert a copy there"),
        remedy=lambda s, d: _inserted(s, [{"user_id": d.users[2], "title": "copy"}]),
        answer=lambda s, d: ["copy"],
    ),
    "an UPDATE of a reference by SQL": Case(
        refused=lambda s, d: s.execute(
            update(Post).where(Post.id == d.posts[0]).values(user_id=Post.user_id)
        ),
        names=("names the row's shard", "the id of an object of that shard"),
        remedy=lambda s, d: (
            s.execute(
                update(Post).where(Post.id == d.posts[0]).values(user_id=d.users[1])
            ).rowcount
        ),
        answer=lambda s, d: 1,
    ),
    "an UPDATE of ids of two forms": Case(
        refused=lambda s, d: s.execute(
            update(User).where(User.id == d.users[0]).values(friend_id=User.id)
        ),
        names=("hold ids in different forms", "full_id()"),
        remedy=lambda s, d: (
            s.execute(
                update(User)
                .where(User.id == d.users[0])
                .values(friend_id=full_id(User.id))
            ).rowcount
        ),
        answer=lambda s, d: 1,
    ),
    "an UPDATE of rows of two shards": Case(
        refused=lambda s, d: s.execute(
            update(User.__table__)
            .where(User.__table__.c.local_id == bindparam("i"))
            .values(age=9),
            [{"i": one} for one in d.users[:2]],
        ),
        names=("two shards cannot be committed as one",),
        remedy=lambda s, d: (
            s.execute(
                update(User.__table__)
                .where(User.__table__.c.local_id == bindparam("i"))
                .values(age=9),
                [{"i": d.users[0]}],
            ).rowcount
        ),
        answer=lambda s, d: 1,
    ),
}


def _replaced(session: ShardSession) -> list[str]:
    cluster = session.cluster
    session.rollback()
    Country.replace(cluster, [{"code": "de"}])
    found = session.scalars(select(Country.code), bind_arguments={"shard_id": 3}).all()
    session.rollback()
    Country.replace(cluster, [])
    return list(found)


def _read(session: ShardSession, data: Data) -> list[int]:
    UserReadsPosts.append(session, data.users[0], data.posts[0])
    page = UserReadsPosts.page(session, data.users[0])
    return [row.post_id for row in page]


def _unread(session: ShardSession, data: Data) -> list[int]:
    UserReadsPosts.append(session, data.users[0], data.posts[0])
    UserReadsPosts.remove(session, data.users[0], data.posts[0])
    page = UserReadsPosts.page(session, data.users[0])
    return [row.post_id for row in page]


def _refreshed(session: ShardSession, data: Data) -> tuple[str, list[str]]:
    user = _changed_name(session, data)
    session.flush()
    session.refresh(user, ["tags"])
    return user.name, list(user.tags)


def _stale_list(session: ShardSession, data: Data) -> None:
    user = session.get_one(User, data.users[1])
    tags = user.tags
    session.expire(user)
    assert user.tags is not tags
    tags.append("x")


def _fresh_list(session: ShardSession, data: Data) -> list[str]:
    user = session.get_one(User, data.users[1])
    session.expire(user)
    user.tags.append("x")
    session.flush()
    return list(user.tags)


def _written_by_another(session: ShardSession, data: Data, lock: bool | None) -> str:
    """Change a user; without a lock another transaction has done so, too."""
    user = session.get_one(User, data.users[1], with_for_update=lock)
    if not lock:
        session.cluster.run(changed, User, user.id, name=user.name + "'")
    user.name = "mine"
    session.flush()
    return user.name


def _copied(below: int) -> Any:
    """Return an INSERT of users of an age below a number."""
    return insert(User).from_select(
        ["data", "age"],
        select(User.data, User.age).where(User.age <= below, User.age > 0),
    )


def _inserted(session: ShardSession, rows: list[dict[str, Any]]) -> list[str]:
    return sorted(post.title for post in inserted(session, insert(Post), rows))


def _ids_of(session: ShardSession, users: list[User]) -> list[int]:
    session.add_all(users)
    session.flush()
    return [unpack(user.id).shard_id for user in users]


def _inserted_label(session: ShardSession, data: Data) -> list[str]:
    session.execute(insert(Label), [{"post_id": data.posts[0], "name": "x"}])
    found = session.scalars(select(Label.name).where(Label.post_id == data.posts[0]))
    return list(found)


def _updated(session: ShardSession, row: dict[str, Any]) -> int:
    session.execute(update(User), [row])
    return session.get_one(User, row["id"]).age
