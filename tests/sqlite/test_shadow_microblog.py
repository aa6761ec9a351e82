"""Shadow mode on the microblog, against the same microblog on shards.

Each statement is executed by both: on one database, where shadow mode gives a
verdict, and on shards, where the cluster accepts it or raises an error.  The
verdict has to name that error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from flask import Flask
from sqlalchemy import (
    and_,
    create_engine,
    delete,
    exists,
    func,
    or_,
    select,
    text,
    union_all,
    update,
)
from sqlalchemy.orm import joinedload, selectinload, Session

from examples.microblog import single
from examples.microblog.sharded import models as sharded_models
from examples.microblog.single import models as single_models
from sqla_shard import Cluster, Topology
from sqla_shard.exc import CrossShardWriteError, ShardError
from sqla_shard.migrate import (
    Declaration,
    Lookup,
    MappingTable,
    Owned,
    Owner,
    Report,
    Shadow,
)
from sqla_shard.testing import sqlite_topology
from tests.suites.microblog import CONFIG, promote, Visitor

DECLARATION = Declaration(
    Owner("users.id"),
    Lookup("users.username"),
    Lookup("users.email"),
    Owned("posts", colocate_with="user_id"),
    Owned("messages", colocate_with="recipient_id"),
    MappingTable("followers", source="follower_id", target="followed_id", inverse=True),
)


class Ids(NamedTuple):
    """Two users of different shards, and a post of the first."""

    ada: int
    bob: int
    post: int


def follows(m: Any) -> Any:
    """Return the columns of the association table, or of the mapping."""
    return getattr(m, "UserFollowsUsers", None) or m.followers.c


# Each returns a statement of the models of either version.
STATEMENTS: dict[str, Callable[[Any, Ids], Any]] = {
    "by id": lambda m, ids: select(m.User).where(m.User.id == ids.ada),
    "by ids": lambda m, ids: (
        select(m.User)
        .where(m.User.id.in_([ids.ada, ids.bob]))
        .order_by(m.User.created_at)
        .limit(5)
    ),
    "first page of two owners": lambda m, ids: (
        select(m.Post)
        .where(m.Post.user_id.in_([ids.ada, ids.bob]))
        .order_by(m.Post.id)
        .limit(5)
        .offset(0)
    ),
    "second page of two owners": lambda m, ids: (
        select(m.Post)
        .where(m.Post.user_id.in_([ids.ada, ids.bob]))
        .order_by(m.Post.id)
        .limit(5)
        .offset(5)
    ),
    "by owner": lambda m, ids: (
        select(m.Post)
        .where(m.Post.user_id == ids.ada)
        .order_by(m.Post.created_at.desc())
        .limit(5)
        .offset(1)
    ),
    "by owner and id": lambda m, ids: select(m.Post).where(
        m.Post.user_id == ids.ada, m.Post.id == ids.post
    ),
    "either owner": lambda m, ids: select(m.Post).where(
        or_(m.Post.user_id == ids.ada, m.Post.user_id == ids.bob)
    ),
    "no key": lambda m, _: select(m.Post).order_by(m.Post.created_at),
    "or without key": lambda m, ids: select(m.Post).where(
        or_(m.Post.user_id == ids.ada, m.Post.body == "x")
    ),
    "not": lambda m, ids: select(m.Post).where(m.Post.user_id != ids.ada),
    "by unique name": lambda m, _: select(m.User).where(m.User.username == "ada"),
    "join of the owner": lambda m, ids: (
        select(m.Post, m.User)
        .join(m.User, m.User.id == m.Post.user_id)
        .where(m.User.id == ids.ada)
    ),
    "join by relationship": lambda m, ids: (
        select(m.Post).join(m.Post.author).where(m.Post.user_id == ids.ada)
    ),
    "outer join": lambda m, ids: (
        select(m.User, m.Post)
        .outerjoin(m.Post, and_(m.Post.user_id == m.User.id, m.Post.body == "x"))
        .where(m.User.id == ids.ada)
    ),
    "outer join of a filtered side": lambda m, ids: select(m.User, m.Post).outerjoin(
        m.Post, and_(m.Post.user_id == m.User.id, m.User.id == ids.ada)
    ),
    "join of another owner": lambda m, ids: (
        select(m.Message, m.User)
        .join(m.User, m.User.id == m.Message.sender_id)
        .where(m.Message.recipient_id == ids.ada)
    ),
    "by another owner": lambda m, ids: select(m.Message).where(
        m.Message.sender_id == ids.ada
    ),
    "two without tie": lambda m, ids: select(m.Post, m.Message).where(
        m.Post.user_id == ids.ada,
        m.Message.recipient_id == ids.bob,
        m.Post.body == m.Message.body,
    ),
    "two of one owner": lambda m, ids: select(m.Post, m.Message).where(
        m.Post.user_id == ids.ada,
        m.Message.recipient_id == ids.ada,
        m.Post.body == m.Message.body,
    ),
    "exists": lambda m, ids: select(m.User).where(
        m.User.id == ids.ada, exists().where(m.Post.user_id == m.User.id)
    ),
    "exists decides": lambda m, ids: select(m.Post).where(
        exists().where(m.User.id == m.Post.user_id, m.User.id == ids.ada)
    ),
    "in subquery": lambda m, ids: select(m.User).where(
        m.User.id.in_(select(m.Post.user_id).where(m.Post.user_id == ids.ada))
    ),
    "in subquery of a mapping": lambda m, ids: select(m.Post).where(
        m.Post.user_id.in_(
            select(follows(m).followed_id).where(follows(m).follower_id == ids.ada)
        )
    ),
    "mapping by source": lambda m, ids: select(follows(m).followed_id).where(
        follows(m).follower_id == ids.ada
    ),
    "join of a mapping": lambda m, ids: (
        select(m.User)
        .join(follows_from(m), follows(m).followed_id == m.User.id)
        .where(follows(m).follower_id == ids.ada)
    ),
    "count of one": lambda m, ids: (
        select(func.count()).select_from(m.Post).where(m.Post.user_id == ids.ada)
    ),
    "count of all": lambda m, _: select(func.count()).select_from(m.Post),
    "count of two": lambda m, ids: (
        select(func.count())
        .select_from(m.Post)
        .where(m.Post.user_id.in_([ids.ada, ids.bob]))
    ),
    "groups of two": lambda m, ids: (
        select(m.Post.body, func.count())
        .where(m.Post.user_id.in_([ids.ada, ids.bob]))
        .group_by(m.Post.body)
    ),
    "window over two": lambda m, ids: select(
        m.Post.body, func.row_number().over(order_by=m.Post.created_at)
    ).where(m.Post.user_id.in_([ids.ada, ids.bob])),
    "limit in a subquery": lambda m, _: select(func.max(limited(m).c.body)),
    "limit in a subquery of one": lambda m, ids: select(
        func.max(limited(m, ids.ada).c.body)
    ),
    "union of two": lambda m, ids: union_all(
        select(m.Post.body).where(m.Post.user_id == ids.ada),
        select(m.Post.body).where(m.Post.user_id == ids.bob),
    ),
    "union of one": lambda m, ids: union_all(
        select(m.Post.body).where(m.Post.user_id == ids.ada),
        select(m.Message.body).where(m.Message.recipient_id == ids.ada),
    ),
    "scalar subquery": lambda m, ids: select(
        m.User.username,
        select(func.count(m.Post.id))
        .where(m.Post.user_id == m.User.id)
        .scalar_subquery(),
    ).where(m.User.id == ids.ada),
    "joined load": lambda m, ids: (
        select(m.Post)
        .where(m.Post.user_id == ids.ada)
        .options(joinedload(m.Post.author))
    ),
    "selectin load": lambda m, ids: (
        select(m.Post)
        .where(m.Post.user_id.in_([ids.ada, ids.bob]))
        .options(selectinload(m.Post.author))
    ),
    "update of one": lambda m, ids: (
        update(m.Post).where(m.Post.user_id == ids.ada).values(body="new")
    ),
    "update of two": lambda m, ids: (
        update(m.Post).where(m.Post.user_id.in_([ids.ada, ids.bob])).values(body="new")
    ),
    "update of all": lambda m, _: update(m.Post).values(body="new"),
    "update of the owner": lambda m, ids: (
        update(m.Post).where(m.Post.user_id == ids.ada).values(user_id=m.Post.id)
    ),
    "delete of one": lambda m, ids: delete(m.Post).where(m.Post.user_id == ids.ada),
    "delete by another owner": lambda m, ids: delete(m.Message).where(
        m.Message.sender_id == ids.ada
    ),
    "text": lambda m, _: text("SELECT 1 FROM users"),
    "text of posts": lambda m, _: select(m.Post).from_statement(
        text("SELECT * FROM posts")
    ),
    "constant": lambda m, _: select(1),
}


def follows_from(m: Any) -> Any:
    return getattr(m, "UserFollowsUsers", None) or m.followers


def limited(m: Any, owner: int | None = None) -> Any:
    found = select(m.Post.body).order_by(m.Post.created_at).limit(2)
    if owner is not None:
        found = found.where(m.Post.user_id == owner)
    return found.subquery()


#: Operators that the types of ids refuse while the statement is built.
BUILT: dict[str, Callable[[Any], Any]] = {
    "arithmetic": lambda m: select(m.User.id + 1),
    "a computed id": lambda m: select(m.Post.id).where(m.Post.user_id == m.Post.id % 2),
}


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, Ids]]:
    m = sharded_models
    directory = tmp_path_factory.mktemp("sharded")
    topology = Topology.from_mapping(
        sqlite_topology(directory, servers=2, shards=4, lookup=8)
    )
    with Cluster(topology) as cluster:
        cluster.create_all(m.Base.metadata)
        ids = []
        for shard_id, name in ((0, "ada"), (3, "bob")):
            with cluster.begin() as session:
                user = m.User(
                    username=name,
                    email=f"{name}@example.com",
                    password_hash="-",
                    shard_id=shard_id,
                )
                session.add(user)
                session.flush()
                post = m.Post(user_id=user.id, body="hello")
                session.add(post)
                session.flush()
                ids += [user.id, post.id]
        ada, post, bob, _ = ids
        yield cluster, Ids(ada, bob, post)


@pytest.fixture
def engine() -> Iterator[Any]:
    engine = create_engine("sqlite://")
    single_models.Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def shadow(engine: Any) -> Iterator[Shadow]:
    with Shadow(DECLARATION, single_models.Base.metadata, budget=None) as shadow:
        shadow.watch(engine)
        yield shadow


def refusal(cluster: Cluster, statement: Any) -> str | None:
    """Return the name of the error that the cluster raises, or None."""
    with cluster.session() as session:
        try:
            session.execute(statement)
        except ShardError as error:
            return type(error).__name__
        finally:
            session.rollback()
    return None


def verdicts(report: Report) -> list[str | None]:
    assert not report.failures, report.failures
    return [site.error for site in report.sites]


@pytest.mark.parametrize("name", STATEMENTS)
def test_verdict_is_that_of_the_cluster(name, sharded, engine, shadow):
    cluster, ids = sharded
    make = STATEMENTS[name]
    expected = refusal(cluster, make(sharded_models, ids))
    with Session(engine) as session:
        session.execute(make(single_models, Ids(1, 2, 1)))
        session.rollback()
    found = verdicts(shadow.report())
    # An eager load adds a statement if there are rows; there are none.
    assert found == [expected], shadow.report()


def test_both_answers_occur(sharded):
    cluster, ids = sharded
    answers = {
        refusal(cluster, make(sharded_models, ids)) for make in STATEMENTS.values()
    }
    assert answers >= {
        None,
        "NoShardKeyError",
        "ScatterUnsupportedError",
        "UnsupportedStatementError",
        "CrossShardWriteError",
    }


@pytest.mark.parametrize("name", BUILT)
def test_operators_that_ids_do_not_have(name, engine, shadow):
    make = BUILT[name]
    with pytest.raises(ShardError) as raised:
        make(sharded_models)
    with Session(engine) as session:
        session.execute(make(single_models))
    assert verdicts(shadow.report()) == [type(raised.value).__name__]


def test_two_owners_in_a_transaction(sharded, engine, shadow):
    m, (cluster, ids) = sharded_models, sharded
    with cluster.session() as session:
        for user_id in (ids.ada, ids.bob):
            session.add(m.Post(user_id=user_id, body="both"))
        with pytest.raises(CrossShardWriteError):
            session.commit()
    with Session(engine) as session:
        for name in ("ada", "bob"):
            session.add(
                single_models.User(username=name, email=name, password_hash="-")
            )
            # As on shards, where owners of one transaction share a shard.
            session.commit()
        session.add_all(
            single_models.Post(user_id=user_id, body="both") for user_id in (1, 2)
        )
        session.commit()
    report = shadow.report()
    (site,) = [one for one in report.sites if one.error is not None]
    assert (site.outcome, site.error) == ("cross_shard_write", "CrossShardWriteError")
    assert "posts of another owner" in site.reason
    assert report.transactions["several_owners"] == 1
    assert report.transactions["one_owner"] == 2


def test_owners_of_one_transaction_share_a_shard(engine, shadow):
    with Session(engine) as session:
        users = [
            single_models.User(username=name, email=name, password_hash="-")
            for name in ("ada", "bob")
        ]
        session.add_all(users)
        session.flush()
        session.add_all(single_models.Post(user_id=user.id, body="-") for user in users)
        session.commit()
    report = shadow.report()
    assert verdicts(report) == [None] * len(report.sites)
    assert report.transactions == {"one_owner": 1}


def test_objects_of_a_flush_have_the_shard_of_their_owner(engine, shadow):
    m = single_models
    with Session(engine) as session:
        for name in ("ada", "bob"):
            session.add(m.User(username=name, email=name, password_hash="-"))
            session.commit()
        session.add(m.Post(user_id=1, body="of ada"))
        session.add(m.Message(sender_id=2, recipient_id=1, body="-"))
        session.commit()
    fresh = Shadow(DECLARATION, m.Base.metadata, budget=None)
    shadow.close()
    with fresh, Session(engine) as session:
        # It has not seen the INSERT.
        fresh.watch(engine)
        session.get(m.Post, 1).body = "changed"
        session.get(m.User, 2).about_me = "bob"
        session.commit()
        assert fresh.report().transactions == {"several_owners": 1}


@pytest.fixture
def app(tmp_path: Any) -> Iterator[Flask]:
    uri = f"sqlite:///{tmp_path / 'blog.sqlite'}"
    app = single.create_app(**CONFIG, SQLALCHEMY_DATABASE_URI=uri)
    with app.app_context():
        single.db.create_all()
    yield app
    with app.app_context():
        single.db.engine.dispose()


def test_a_web_application(app: Flask) -> None:
    metadata = single_models.Base.metadata
    with Shadow(DECLARATION, metadata, budget=None) as shadow:
        with app.app_context():
            shadow.watch(single.db.engine)
        ada, bob = (
            Visitor(app, lambda _: None).sign_up(name) for name in ("ada", "bob")
        )
        ada.post("/", body="hello")
        bob.post("/follow/ada")
        bob.post("/message/ada", body="hi")
        for page in ("/", "/explore", "/user/ada", "/search?q=h"):
            bob.get(page)
        promote(app, single, "ada")
        ada.get("/messages")
        ada.post("/admin/delete/bob")
        report = shadow.report()
    assert not report.failures
    by_function = {(site.function, site.outcome): site for site in report.sites}
    assert ("find_user", "lookup") in by_function
    assert ("explore", "scatter") in by_function
    assert ("is_following", "refused") in by_function
    assert ("delete_user", "cross_shard_write") in by_function
    found = by_function["find_user", "lookup"]
    assert found.file.endswith("examples/microblog/single/models.py")
    assert "users.username" in found.remedy
    assert report.references["messages.sender_id"] == (0, 1, 0)
    assert 0.4 < report.share("single_shard") < 0.8
    text = str(report)
    assert "examples/microblog/single/views.py" in text
    assert "hello" not in text
    assert "@example.com" not in text
