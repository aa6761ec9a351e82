"""A follow graph with a million edges, and home feeds of it.

The graph has 100,000 users, each of whom follows 11 others, chosen with a
probability proportional to ``1 / rank``: a power law with the exponent 1 for
the number of followers by rank, as social networks have it (M. Newman, "Power
laws, Pareto distributions and Zipf's law", 2005).  One more user is followed
by all of them.
"""

from __future__ import annotations

import itertools
import json
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import pymysql
import redis
from sqlalchemy import insert, text
from sqlalchemy.orm import Session

from sqla_shard import Cluster, pack, unpack
from sqla_shard.contrib import FeedStore, FollowKind, FollowStore
from sqla_shard.contrib.edges import Edge, EdgeTable
from sqla_shard.contrib.redis_stores import _MARK
from sqla_shard.jobs import Worker
from sqla_shard.testing import RedisServer, StatementLog
from tests.benchmarks.servers import new_fleet, title
from tests.benchmarks.timing import compare, show
from tests.models.graph_models import Base, Board, feed, follows, Pin, stored, User

#: SQLA_SHARD_USERS=5000 is a smaller graph, for a few minutes.
_USERS = int(os.environ.get("SQLA_SHARD_USERS", "100000"))
_EACH = 11
_SHARDS = 16
_AUTHORS = 100
_PINS = 20
_ROWS = 5_000


def run() -> None:
    """Print the tables."""
    with (
        new_fleet(servers=4, shards=_SHARDS, fast=True) as fleet,
        Cluster.from_topology(
            fleet.topology_mapping(), environ=fleet.environ
        ) as cluster,
        RedisServer(megabytes=1024) as server,
    ):
        cluster.create_all(Base.metadata)
        users = _users()
        star, reader = users[0], users[-1]
        followed = _load_graph(cluster, users)
        with _by_hand(cluster) as hands:
            _questions(cluster, hands, users, reader)
            small = _lists(cluster, users, followed)
            _stored(cluster, server, users, small)
            authors = sorted(followed[reader])
            _publish(cluster, users, authors)
            _pages(cluster, hands, server, reader)
        _fan_out(cluster, server, star)


# -- the graph


def _users() -> list[int]:
    """Return ids on all shards, the first for the star.

    Users without a row can be followed, and read.
    """
    ids = [
        pack(number % _SHARDS, 3, number // _SHARDS + 1) for number in range(_USERS + 1)
    ]
    random.Random(1).shuffle(ids)
    return ids


def _load_graph(cluster: Cluster, users: list[int]) -> dict[int, set[int]]:
    """Write both rows of all edges; return whom each user follows."""
    rng = random.Random(2)
    star, *others = users
    weights = list(itertools.accumulate(1 / rank for rank in range(1, len(others) + 1)))
    edges: dict[int, set[int]] = {}
    for user in others:
        chosen = set(rng.choices(others, cum_weights=weights, k=_EACH))
        edges[user] = {*chosen, star} - {user}
    reader = users[-1]
    edges[reader] = {
        *rng.sample(others[len(others) // 100 : len(others) // 20], _AUTHORS),
        star,
    }
    pairs = [(user, one) for user, found in edges.items() for one in found]
    moment = itertools.count(1_700_000_000_000_000)
    rows = []
    for pair in pairs:
        at = next(moment)
        rows.append((pair, Edge(FollowKind.EXPLICIT, 0, at, at)))
    opposite = [((pair[1], pair[0]), edge) for pair, edge in rows]
    start = perf_counter()
    _put(cluster, follows.users, rows)
    _put(cluster, follows.users_reversed, opposite)
    speed = 2 * len(pairs) / (perf_counter() - start)
    plain = _put_plainly(cluster, opposite)
    print(
        f"\n{len(pairs):,} edges of {len(users):,} users, 2 rows each: "
        f"{speed:,.0f} rows a second; into one plain table, one connection: "
        f"{plain:,.0f}, {plain / speed:.1f} times"
    )
    return edges


def _put_plainly(cluster: Cluster, rows: list[Any]) -> float:
    """Insert edges into one table with PyMySQL; return the rows a second."""
    table = follows.users_reversed
    keyspace = cluster.places.keyspace(None, "objects")
    place = cluster.places.place(keyspace, 0)
    values = sorted((*pair, *map(int, edge)) for pair, edge in rows)
    connection = place.engine.raw_connection().driver_connection
    with connection.cursor() as cursor:
        name = f"{place.schema}.plain_edges"
        cursor.execute(f"CREATE TABLE {name} LIKE {place.schema}.{table.name}")
        start = perf_counter()
        for begin in range(0, len(values), _ROWS):
            cursor.executemany(
                f"INSERT INTO {name} VALUES (%s, %s, %s, %s, %s, %s)",
                values[begin : begin + _ROWS],
            )
            connection.commit()
        seconds = perf_counter() - start
        cursor.execute(f"DROP TABLE {name}")
    return len(values) / seconds


def _put(cluster: Cluster, table: EdgeTable, rows: list[Any]) -> None:
    by_shard: dict[int, list[Any]] = {}
    for row in rows:
        by_shard.setdefault(unpack(row[0][0]).shard_id, []).append(row)

    def put(found: list[Any]) -> None:
        found.sort()
        for begin in range(0, len(found), _ROWS):
            cluster.run(table.put, found[begin : begin + _ROWS])

    with ThreadPoolExecutor(4) as executor:
        list(executor.map(put, by_shard.values()))


# -- reading


Ask = Callable[[int, str, Any], Any]


@contextmanager
def _by_hand(cluster: Cluster) -> Iterator[Ask]:
    """Yield a function that sends SQL to the server of a shard."""
    keyspace = cluster.topology.keyspaces["objects"]
    connections: dict[str, Any] = {}

    def ask(shard: int, sql: str, parameters: Any) -> Any:
        place = cluster.places.place(keyspace, shard)
        found = connections.get(place.server)
        if found is None:
            url = place.engine.url
            found = connections[place.server] = pymysql.connect(
                host=url.host,
                port=url.port,
                user=url.username,
                password=url.password or "",
                autocommit=True,
            )
        with found.cursor() as cursor:
            cursor.execute(sql, parameters)
            return cursor.fetchall()

    yield ask
    for one in connections.values():
        one.close()


def _database(cluster: Cluster, shard: int) -> str:
    keyspace = cluster.topology.keyspaces["objects"]
    return keyspace.database_for(shard)


def _questions(cluster: Cluster, ask: Ask, users: list[int], reader: int) -> None:
    rng = random.Random(3)
    shard = unpack(reader).shard_id
    database = _database(cluster, shard)
    batches = itertools.cycle([rng.sample(users[:5000], 25) for _ in range(50)])
    places = ", ".join(["%s"] * 25)
    sql = (
        f"SELECT followee_id, kind FROM {database}.{follows.users.name} WHERE "
        f"follower_id = %s AND followee_id IN ({places}) AND kind IN (1, 2)"
    )

    def by_hand() -> None:
        dict(ask(shard, sql, [reader, *next(batches)]))

    def ours() -> None:
        follows.following(session, reader, next(batches))

    names = [f"target_{index}" for index in range(25)]
    statement = text(
        f"SELECT followee_id, kind FROM {database}.{follows.users.name} WHERE "
        "follower_id = :reader AND followee_id IN "
        f"(:{', :'.join(names)}) AND kind IN (1, 2)"
    )

    def in_session() -> None:
        values = dict(zip(names, next(batches), strict=True), reader=reader)
        dict(plain.execute(statement, values).all())

    keyspace = cluster.topology.keyspaces["objects"]
    engine = cluster.places.place(keyspace, shard).engine
    with cluster.session() as session, Session(engine) as plain:
        show(
            "which of these 25 do I follow, session open, against PyMySQL",
            compare(
                {
                    "by hand": by_hand,
                    "text() in a Session": in_session,
                    "following()": ours,
                },
                turns=1000,
            ),
        )
        with StatementLog() as log:
            ours()
        print(f"  statements: {len(log.executions)}")


def _lists(cluster: Cluster, users: list[int], followed: dict[int, set[int]]) -> int:
    """Return a user with about 1,000 followers."""
    numbers = Counter(one for found in followed.values() for one in found)
    small = min(users[1:], key=lambda one: abs(numbers[one] - 1000))
    star = users[0]
    names = [f"{numbers[one]:,} followers" for one in (small, star)]

    def page(user: int) -> None:
        assert len(follows.followers(session, user, 50)) == 50

    with cluster.session() as session:
        show(
            "a page of 50 followers",
            compare(
                {names[0]: lambda: page(small), names[1]: lambda: page(star)}, turns=300
            ),
        )
        show(
            "the number of followers",
            compare(
                {
                    names[0]: lambda: follows.count_followers(session, small),
                    names[1]: lambda: follows.count_followers(session, star),
                },
                turns=100,
            ),
        )
        _counted(session, small, star, names)
    return small


def _counted(session: Any, small: int, star: int, names: list[str]) -> None:
    """Compare a stored number with the same one, counted by the server."""
    table = follows.users_reversed
    counts = table.counts

    def counted(user: int) -> None:
        table.counts = None
        follows.count_followers(session, user)
        table.counts = counts

    for user, name in zip((small, star), names, strict=True):
        show(
            f"the number of followers, {name}",
            compare(
                {
                    "stored": lambda user=user: follows.count_followers(session, user),
                    "counted": lambda user=user: counted(user),
                },
                turns=20,
                warm_up=3,
            ),
        )


def _stored(
    cluster: Cluster, server: RedisServer, users: list[int], small: int
) -> None:
    """Compare lists in Redis with those in the tables."""
    store = FollowStore([f"redis://{server.address}/2"])
    stored.store = store
    client = redis.Redis.from_url(f"redis://{server.address}/2")
    table = follows.users_reversed.name
    key = f"follows:{table}:{small}"
    rng = random.Random(4)
    batches = itertools.cycle([rng.sample(users[:5000], 25) for _ in range(50)])

    def by_hand() -> None:
        client.hmget(key, [str(one) for one in next(batches)])

    with cluster.session() as session:
        stored.rebuild(session, [small])
        assert client.exists(key)
        for name, ask in (
            (
                "which of these 25 follow me",
                lambda graph: graph.followed_by(session, small, next(batches)),
            ),
            (
                "a page of 50 followers",
                lambda graph: graph.followers(session, small, 50),
            ),
            (
                "the number of followers",
                lambda graph: graph.count_followers(session, small),
            ),
        ):
            hands = {"redis-py": by_hand} if "25" in name else {}
            show(
                f"{name}, of about 1,000, from Redis and the tables",
                compare(
                    {
                        **hands,
                        "Redis": lambda ask=ask: ask(stored),
                        "tables": lambda ask=ask: ask(follows),
                    },
                    turns=300,
                ),
            )
    stored.store = None


# -- feeds


def _publish(cluster: Cluster, users: list[int], authors: list[int]) -> None:
    for number, author in enumerate(authors):
        with cluster.begin() as session:
            board = Board(user_id=author)
            session.add(board)
            session.flush()
            pins = [Pin(board_id=board.id) for _ in range(_PINS)]
            session.add_all(pins)
            session.flush()
            session.execute(
                insert(feed.posts),
                [
                    {
                        "author_id": author,
                        "post_id": pin.id,
                        "board_id": board.id,
                        "sequence": 1_700_000_000_000_000 + index * 1_000_000 + number,
                    }
                    for index, pin in enumerate(pins)
                ],
                bind_arguments={"mapper": User, "shard_id": unpack(author).shard_id},
            )


def _pages(cluster: Cluster, ask: Ask, server: RedisServer, reader: int) -> None:
    servers: dict[str, list[int]] = {}
    keyspace = cluster.topology.keyspaces["objects"]
    for place in cluster.places.all_places(keyspace):
        servers.setdefault(place.server, []).append(place.shard_id)
    executor = ThreadPoolExecutor(len(servers))

    def posts(ids: list[int]) -> list[Any]:
        """Load pins, one statement for each server, in threads."""
        by_server: list[tuple[int, str, list[int]]] = []
        for shards in servers.values():
            parts, values = [], []
            for shard in shards:
                here = [one for one in ids if unpack(one).shard_id == shard]
                if here:
                    marks = ", ".join(["%s"] * len(here))
                    parts.append(
                        f"SELECT {shard}, local_id, data FROM "
                        f"{_database(cluster, shard)}.pins "
                        f"WHERE local_id IN ({marks})"
                    )
                    values += [unpack(one).local_id for one in here]
            if parts:
                by_server.append((shards[0], " UNION ALL ".join(parts), values))
        rows = executor.map(lambda one: ask(*one), by_server)
        return [json.loads(row[2]) for found in rows for row in found]

    def pulled() -> list[Any]:
        shard = unpack(reader).shard_id
        found = ask(
            shard,
            f"SELECT followee_id FROM {_database(cluster, shard)}."
            f"{follows.users.name} WHERE follower_id = %s AND kind IN (1, 2)",
            (reader,),
        )
        users = [row[0] for row in found]
        statements = []
        for shards in servers.values():
            parts, values = [], []
            for shard in shards:
                here = [one for one in users if unpack(one).shard_id == shard]
                if here:
                    marks = ", ".join(["%s"] * len(here))
                    parts.append(
                        "(SELECT sequence, post_id FROM "
                        f"{_database(cluster, shard)}.{feed.posts.name} WHERE "
                        f"author_id IN ({marks}) ORDER BY sequence DESC, "
                        "post_id DESC LIMIT 26)"
                    )
                    values += here
            statements.append((shards[0], " UNION ALL ".join(parts), values))
        rows = executor.map(lambda one: ask(*one), statements)
        newest = sorted((row for one in rows for row in one), reverse=True)
        return posts([row[1] for row in newest[:25]])

    client = redis.Redis.from_url(f"redis://{server.address}/0")

    def from_redis() -> list[Any]:
        """Read posts, check that their boards are followed, and load them."""
        members = client.zrevrange(f"feed:{reader}", 1, 26)
        entries = [tuple(map(int, one.split(b":"))) for one in members]
        shard = unpack(reader).shard_id
        parts, values = [], []
        for table, column, index in (
            (follows.users.name, "followee_id", 2),
            (follows.boards.name, "board_id", 1),
        ):
            ids = list({entry[index] for entry in entries})
            marks = ", ".join(["%s"] * len(ids))
            parts.append(
                f"SELECT {column}, kind FROM {_database(cluster, shard)}."
                f"{table} WHERE follower_id = %s AND {column} IN ({marks})"
            )
            values += [reader, *ids]
        kinds = dict(ask(shard, " UNION ALL ".join(parts), values))
        found = [entry[0] for entry in entries if kinds.get(entry[2]) == 1]
        return posts(found[:25])

    session = cluster.session()

    def ours() -> None:
        session.expunge_all()
        assert len(feed.page(session, reader, 25)) == 25

    assert len(pulled()) == 25
    show(
        f"a page of 25 posts of {_AUTHORS} authors, from the tables of 4 "
        "servers, session open, against PyMySQL in threads",
        compare({"by hand": pulled, "Feed.page()": ours}, turns=100),
    )
    with StatementLog() as log:
        ours()
    print(f"  statements by server: {sorted(log.count_by_server().values())}")
    feed.store = FeedStore([f"redis://{server.address}/0"])
    ours()
    assert len(from_redis()) == 25
    show(
        "the same from Redis, against redis-py and PyMySQL in threads",
        compare({"by hand": from_redis, "Feed.page()": ours}, turns=100),
    )
    with StatementLog() as log:
        ours()
    print(f"  statements by server: {sorted(log.count_by_server().values())}")
    feed.store = None
    session.close()
    executor.shutdown()


def _fan_out(cluster: Cluster, server: RedisServer, star: int) -> None:
    urls = [f"redis://{server.address}/{number}" for number in (0, 1)]
    feed.store = FeedStore(urls)
    feed.pull_above = 10 * _USERS
    feed._batch = 1000
    with cluster.begin() as session:
        board = Board(user_id=star)
        session.add(board)
        session.flush()
        pin = Pin(board_id=board.id)
        session.add(pin)
        session.flush()
        board_id, pin_id = board.id, pin.id
        feed.publish(session, star, board_id, pin_id)
    fans = [
        user for batch in _audience(cluster, board_id, star) for user in batch.users
    ]
    for number, users in feed.store.databases.grouped(fans).items():
        feed.store.databases.pipeline(
            number, [("ZADD", f"feed:{user}", _MARK, "!c") for user in users]
        )
    before = [one.info("commandstats") for one in feed.store.databases.clients]
    with StatementLog() as log:
        start = perf_counter()
        Worker(cluster, ["feeds"], concurrency=1).run(until_empty=True)
        seconds = perf_counter() - start
    after = feed.store.databases.clients[0].info("commandstats")
    scripts = sum(
        after[name]["calls"] - before[0].get(name, {}).get("calls", 0)
        for name in after
        if name in ("cmdstat_evalsha", "cmdstat_eval")
    )
    entries = feed.store.read(fans[-1], (1 << 52, 0), 1).entries
    assert [one.post_id for one in entries] == [pin_id]
    print(
        f"\none post to {len(fans):,} feeds in 2 Redis databases: "
        f"{len(fans) / seconds:,.0f} feeds a second, {scripts} commands of "
        f"Redis, {len(log.executions)} statements of {title()}"
    )
    feed.store = None


def _audience(cluster: Cluster, board_id: int, star: int) -> list[Any]:
    with cluster.session() as session:
        return list(follows.audience(session, board_id, star, batch=5000))
