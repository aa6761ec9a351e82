"""MariaDB with innodb_snapshot_isolation, the default from 11.6.2.

A locking read of a row that has changed since the transaction's first read
is error 1020 there, which ends the transaction.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqla_shard import blob_field, Cluster, MappingMixin, ObjectMixin, ShardSession
from sqla_shard.exc import StaleDataError
from sqla_shard.jobs import Linear, task, Worker
from sqla_shard.testing import MariaDBFleet

pytestmark = pytest.mark.live

ON = "--loose-innodb-snapshot-isolation=ON"
THREADS = 4
TIMES = 10


class Base(DeclarativeBase):
    pass


class Post(ObjectMixin, Base, type_id=1):
    __tablename__ = "posts"

    title: Mapped[str] = blob_field(default="")
    body: Mapped[str] = blob_field(default="")
    likes: Mapped[int] = mapped_column(default=0)


class Tag(ObjectMixin, Base, type_id=2, colocate_with="post_id"):
    __tablename__ = "tags"

    post_id: Mapped[int] = blob_field(ref=Post)


class PostHasTags(MappingMixin, Base, source=Post, target=Tag):
    pass


class PostHasMarks(MappingMixin, Base, source=Post, target=Tag, counted=True):
    pass


@task("tests.like", retry=Linear(50, step=0))
def like_later(session: ShardSession, post_id: int) -> None:
    session.get_one(Post, post_id, with_for_update=True).likes += 1


@pytest.fixture(scope="module")
def fleet(mariadb_installed: None) -> Iterator[MariaDBFleet]:
    with MariaDBFleet(servers=1, shards=2, fast=True, options=[ON]) as fleet:
        variable = "SHOW VARIABLES LIKE 'innodb_snapshot_isolation'"
        if not fleet.servers[0].root_execute(variable):
            pytest.skip("this MariaDB has no innodb_snapshot_isolation")
        yield fleet


def opened(fleet: MariaDBFleet, **options: Any) -> Cluster:
    return Cluster.from_topology(
        fleet.topology_mapping(), environ=fleet.environ, **options
    )


@pytest.fixture(scope="module")
def cluster(fleet: MariaDBFleet) -> Iterator[Cluster]:
    with opened(fleet) as cluster:
        cluster.create_all(Base.metadata)
        yield cluster


@pytest.fixture(scope="module")
def isolated(fleet: MariaDBFleet, cluster: Cluster) -> Iterator[Cluster]:
    """A cluster whose application has chosen the variable itself."""
    command = "SET SESSION innodb_snapshot_isolation = ON"
    options = {"connect_args": {"init_command": command}}
    with opened(fleet, engine_options=options) as cluster:
        yield cluster


@pytest.fixture
def post_id(cluster: Cluster) -> int:
    with cluster.begin() as session:
        post = Post()
        session.add(post)
        session.flush()
        return post.id


def setting(cluster: Cluster, scope: str) -> int:
    with cluster.session(shard_id=0) as session:
        connection = session.connection(bind_arguments={"shard_id": 0})
        variable = text(f"SELECT @@{scope}.innodb_snapshot_isolation")
        return int(connection.scalar(variable) or 0)


def test_connections_of_the_package_do_not_have_it(cluster: Cluster) -> None:
    assert (setting(cluster, "GLOBAL"), setting(cluster, "SESSION")) == (1, 0)


def test_fields_of_two_writers_are_merged(cluster: Cluster, post_id: int) -> None:
    with cluster.session() as one, cluster.session() as two:
        one.get_one(Post, post_id).title = "Ships"
        two.get_one(Post, post_id).body = "They float."
        one.commit()
        two.commit()
    with cluster.session() as session:
        post = session.get_one(Post, post_id)
        assert (post.title, post.body) == ("Ships", "They float.")


def test_two_writers_of_a_field_conflict(cluster: Cluster, post_id: int) -> None:
    with cluster.session() as one, cluster.session() as two:
        one.get_one(Post, post_id).title = "Ships"
        two.get_one(Post, post_id).title = "Boats"
        one.commit()
        with pytest.raises(StaleDataError):
            two.commit()


def test_a_changed_row_is_a_conflict_where_an_application_has_it(
    isolated: Cluster, post_id: int
) -> None:
    assert setting(isolated, "SESSION") == 1
    with isolated.session() as one, isolated.session() as two:
        one.get_one(Post, post_id).title = "Ships"
        two.get_one(Post, post_id).body = "They float."
        one.commit()
        with pytest.raises(OperationalError) as caught:
            two.commit()
        assert caught.value.orig.args[0] == 1020  # type: ignore[union-attr]


def like(session: Any, post_id: int) -> None:
    session.get(Post, post_id)
    post = session.get(Post, post_id, with_for_update=True)
    session.refresh(post)
    post.likes += 1


def tag(session: Any, post_id: int) -> None:
    PostHasTags.count(session, post_id)
    new = Tag(post_id=post_id)
    session.add(new)
    session.flush()
    PostHasTags.append(session, post_id, new.id)
    # Its neighbours are those of other threads.
    rows: Any = PostHasTags.page(session, post_id).items
    ids = [row.tag_id for row in rows]
    if len(ids) > 2:
        PostHasTags.move(session, post_id, new.id, before=ids[-1])


def mark(session: Any, post_id: int) -> None:
    PostHasMarks.count(session, post_id)
    new = Tag(post_id=post_id)
    session.add(new)
    session.flush()
    PostHasMarks.append(session, post_id, new.id)


def write(session: Any, post_id: int) -> None:
    post = session.get(Post, post_id)
    post.body += "."


def test_each_job_is_run_once_where_an_application_has_it(
    isolated: Cluster, cluster: Cluster, post_id: int
) -> None:
    with isolated.begin() as session:
        for _ in range(THREADS * TIMES):
            like_later.enqueue(session, near=post_id, post_id=post_id)
    worker = Worker(isolated, ["default"], concurrency=THREADS)
    assert worker.run(until_empty=True).succeeded == THREADS * TIMES
    with cluster.session() as session:
        assert session.get_one(Post, post_id).likes == THREADS * TIMES


@pytest.mark.parametrize("change", [like, tag, mark, write])
def test_a_changed_row_is_repeated_where_an_application_has_it(
    isolated: Cluster, cluster: Cluster, post_id: int, change: Any
) -> None:
    def work() -> None:
        for _ in range(TIMES):
            isolated.run(change, post_id, timeout=60)

    with ThreadPoolExecutor(THREADS) as pool:
        for done in [pool.submit(work) for _ in range(THREADS)]:
            done.result(timeout=120)
    with cluster.session() as session:
        post = session.get_one(Post, post_id)
        count = {
            like: post.likes,
            tag: PostHasTags.count(session, post_id),
            mark: PostHasMarks.count(session, post_id),
            write: len(post.body),
        }[change]
    assert count == THREADS * TIMES
