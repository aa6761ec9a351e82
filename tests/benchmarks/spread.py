"""Lists of followers: of one shard, counted, and spread over 16.

A thousand and a million rows, and 50 threads that follow one user at once.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from time import perf_counter
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import DeclarativeBase

from sqla_shard import Cluster, MappingMixin, ObjectMixin, pack
from sqla_shard.models.spread_list import list_of
from tests.benchmarks.servers import new_fleet
from tests.benchmarks.timing import compare, show

_SHARDS = 16
_SIZES = (1_000, 1_000_000)
_CHUNK = 100_000
_THREADS = 50
_FOLLOWS = 20
_COLUMNS = {"source_column": "followee_id", "target_column": "follower_id"}

#: Ids as of ``pack(n % 16, 1, n)``, and their pieces as of ``piece_of()``.
_ROWS = """
INSERT INTO {0} (followee_id, follower_id, sequence)
SELECT :user, id, n * 10000000000000000000000000
FROM (SELECT seq AS n, (seq % 16 << 46) + (1 << 36) + seq AS id
      FROM seq_{1}_to_{2}) AS ids
WHERE (((id % 2147483647) * 2654435769 % 4294967296) >> 16) & :mask = :slot
"""


class Base(DeclarativeBase):
    pass


class User(ObjectMixin, Base, type_id=1):
    __tablename__ = "users"


class Plain(MappingMixin, Base, source=User, target=User, **_COLUMNS):
    """On one shard; count() counts the rows."""


class Counted(MappingMixin, Base, source=User, target=User, counted=True, **_COLUMNS):
    """On one shard, with a stored count."""


class Spread(
    MappingMixin,
    Base,
    source=User,
    target=User,
    spread=16,
    spread_over=_SHARDS,
    **_COLUMNS,
):
    """On 16 shards."""


_CLASSES: tuple[Any, ...] = (Plain, Counted, Spread)


def run() -> None:
    """Print the tables."""
    with (
        new_fleet(servers=2, shards=_SHARDS, fast=True) as fleet,
        Cluster.from_topology(
            fleet.topology_mapping(),
            environ=fleet.environ,
            engine_options={"pool_size": _THREADS},
        ) as cluster,
    ):
        cluster.create_all(Base.metadata)
        lists = {
            (cls, size): _List(cluster, cls, size)
            for cls in _CLASSES
            for size in _SIZES
        }
        for title, what in (
            ("the first page, 50 rows", _List.first_page),
            ("the length", _List.length),
            ("which of 25 are in it", _List.contains),
        ):
            _compare(title, lists, what)
        for cls in _CLASSES:
            _race(cluster, cls)


def _compare(
    title: str, lists: dict[Any, _List], what: Callable[[_List], object]
) -> None:
    show(
        title,
        compare(
            {
                f"{cls.__name__}, {size:,} rows": lambda rows=rows: what(rows)
                for (cls, size), rows in lists.items()
            },
            turns=100,
        ),
    )


def _new_user(cluster: Cluster) -> int:
    with cluster.begin(shard_id=1) as session:
        user = User()
        session.add(user)
        session.flush()
        return user.id


class _List:
    """A list of some length."""

    def __init__(self, cluster: Cluster, cls: Any, size: int) -> None:
        self._cluster = cluster
        self._cls = cls
        self._user = _new_user(cluster)
        self._size = size
        start = perf_counter()
        self._load()
        cluster.run(cls.recount, self._user, cross_shard="ordered")
        taken = perf_counter() - start
        print(f"  {size:,} rows of {cls.__name__}: {taken:.1f} s")

    def _load(self) -> None:
        """Insert the rows; the servers generate the ids."""
        with self._cluster.session() as session:
            rows = list_of(self._cls, session, self._user)
            places = [part.place.shard_id for part in rows.parts()]
        for first in range(1, self._size + 1, _CHUNK):
            last = min(first + _CHUNK - 1, self._size)
            sql = _ROWS.format(self._cls.__tablename__, first, last)
            for slot, shard_id in enumerate(places):
                with self._cluster.begin() as session:
                    session.execute(
                        text(sql),
                        {"user": self._user, "mask": len(places) - 1, "slot": slot},
                        bind_arguments={"keyspace": "objects", "shard_id": shard_id},
                    )

    def first_page(self) -> None:
        """Read the newest rows."""
        with self._cluster.session() as session:
            page = self._cls.page(session, self._user, 50)
            assert len(page) == 50

    def length(self) -> None:
        """Read the number of rows."""
        with self._cluster.session() as session:
            number = self._cls.count(session, self._user)
            assert number == self._size

    def contains(self) -> None:
        """Read which of some users are in the list."""
        with self._cluster.session() as session:
            step = self._size // 25
            some = [pack(i % _SHARDS, 1, i) for i in range(1, 25 * step, step)]
            found = self._cls.contains(session, self._user, some)
            assert len(found) == 25


def _race(cluster: Cluster, cls: Any) -> None:
    """Follow one user by many threads at once; count repeated attempts."""
    user = _new_user(cluster)
    attempts = count()

    def follow(thread: int) -> None:
        for number in range(_FOLLOWS):
            follower = pack(thread % _SHARDS, 1, thread * 1000 + number + 1)

            def once(session: Any, follower: int = follower) -> None:
                next(attempts)
                cls.append(session, user, follower)

            cluster.run(once, attempts=50, timeout=120)

    start = perf_counter()
    with ThreadPoolExecutor(_THREADS) as executor:
        list(executor.map(follow, range(_THREADS)))
    seconds = perf_counter() - start
    done = _THREADS * _FOLLOWS
    again = next(attempts) - done
    with cluster.session() as session:
        assert cls.count(session, user) == done
    print(
        f"  {cls.__name__}: {done:,} follows of one user by {_THREADS} "
        f"threads, {done / seconds:,.0f} a second, {again} repeated"
    )
