"""Functions of this package that the usual calls run, by count.

Functions are counted, which no other process on the machine has an influence
on: a way that becomes longer fails here before a benchmark shows it.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

import sqla_shard
from sqla_shard import blob_field, Cluster, ObjectMixin, scatter, ShardSession
from sqla_shard.jobs import task, Worker
from sqla_shard.testing import sqlite_topology
from tests.models.clusters import at

PACKAGE = f"{Path(sqla_shard.__file__).parent}/"
SHARDS = 8


class Base(DeclarativeBase):
    pass


class User(ObjectMixin, Base, type_id=3):
    __tablename__ = "users"

    name: Mapped[str] = blob_field()
    n: Mapped[int] = mapped_column(default=0)


@task("tests.greet", queue="greeting")
def greet(session: ShardSession) -> None:
    pass


def calls(action: Callable[[], object]) -> Counter[str]:
    """Return how often each function of the package was called."""
    found: Counter[str] = Counter()

    def profile(frame: FrameType, event: str, arg: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE):
            module = code.co_filename.removeprefix(PACKAGE)
            found[f"{module}:{code.co_firstlineno} {code.co_qualname}"] += 1

    # What the collection calls is of other tests.
    gc.disable()
    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        action()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
        gc.enable()
    return found


class Walks:
    """The ways that are counted."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self.cluster = cluster
        self.document = sqlite_topology(directory, shards=SHARDS)
        self.ids = []
        for n in range(20):
            with cluster.begin() as session:
                user = at(n % SHARDS, User(name=f"user {n}", n=n))
                session.add(user)
                session.flush()
                self.ids.append(user.id)

    def get(self) -> None:
        with self.cluster.session() as session:
            assert session.get(User, self.ids[0]).n == 0

    def get_many(self) -> None:
        with self.cluster.session() as session:
            assert len(session.get_many(User, self.ids)) == 20

    def newest(self) -> None:
        query = select(User).order_by(User.n.desc()).limit(3).options(scatter())
        with self.cluster.session() as session:
            assert [user.n for user in session.scalars(query)] == [19, 18, 17]

    def groups(self) -> None:
        query = select(User.n, func.count()).group_by(User.n).options(scatter())
        with self.cluster.session() as session:
            assert len(session.execute(query).all()) >= 20

    def new_object(self) -> None:
        with self.cluster.session() as session:
            session.add(User(name="new", n=0))
            session.commit()

    def new_objects(self) -> None:
        with self.cluster.session() as session:
            session.add_all(User(name="new", n=0) for _ in range(50))
            session.commit()

    def changed_object(self) -> None:
        with self.cluster.session() as session:
            session.get(User, self.ids[0]).name += "."
            session.commit()

    def enqueued(self) -> None:
        with self.cluster.begin() as session:
            greet.enqueue(session, near=self.ids[0])

    def worker(self) -> None:
        self.enqueued()
        worker = Worker(self.cluster, ["greeting"], concurrency=1)
        assert worker.run(until_empty=True).succeeded

    def engines(self) -> None:
        with Cluster.from_topology(self.document) as cluster:
            assert [place.engine for _, place in cluster.places.servers()]

    def opened(self) -> None:
        with (
            Cluster.from_topology(self.document) as cluster,
            cluster.session() as session,
        ):
            assert session.get(User, self.ids[0])


@pytest.fixture(scope="module")
def walks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walks]:
    directory = tmp_path_factory.mktemp("walks")
    document = sqlite_topology(directory, shards=SHARDS)
    with Cluster.from_topology(document) as cluster:
        cluster.create_all(Base.metadata)
        yield Walks(cluster, directory)


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("get", 78),
        ("get_many", 440),
        ("newest", 501),
        ("groups", 668),
        ("new_object", 166),
        ("new_objects", 2000),
        ("changed_object", 237),
        ("enqueued", 110),
        ("worker", 1940),
        ("engines", 350),
        ("opened", 500),
    ],
)
@pytest.mark.usefixtures("no_listeners")
def test_calls(walks: Walks, name: str, most: int, say: Callable[[str], None]) -> None:
    action = getattr(walks, name)
    action()
    action()
    found = calls(action)
    total = found.total()
    say(f"{name}: {total} calls of {len(found)} functions")
    assert total <= most, found.most_common()
