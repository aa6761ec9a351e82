"""The shard of new roots."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import insert, select

from sqla_shard import Cluster, exc
from sqla_shard.session import RandomPlacement
from tests.models.clusters import at, PINS, ShardLog, SHARDS
from tests.models.layouts import pack, unpack
from tests.models.models import Board, Note, PIN, Pin
from tests.suites.writing import pair


def shard_of(instance: Any) -> int:
    return unpack(instance.id).shard_id


def stored_on(cluster: Cluster, shard_id: int, instance: Any) -> int:
    with cluster.begin() as session:
        session.add(at(shard_id, instance))
        session.flush()
        return int(instance.id)


def chain(last: Pin) -> list[Pin]:
    middle = Pin(title="middle", root=last)
    return [Pin(title="first", root=middle), middle, last]


class Placement:
    def test_roots_of_a_transaction_share_a_shard(self, cluster):
        seen = Counter()
        for _ in range(30):
            with cluster.session() as session:
                first, second = Pin(title="a"), Board(name="b")
                session.add(first)
                session.flush()
                session.add(second)
                session.flush()
                assert shard_of(first) == shard_of(second)
                seen[shard_of(first)] += 1
        assert len(seen) > 5

    def test_roots_follow_what_is_written(self, cluster, pins):
        for order in (1, -1):
            with cluster.session() as session:
                new = [Pin(title="root"), at(13, Pin(title="placed"))][::order]
                session.add_all(new)
                session.flush()
                assert [shard_of(p) for p in new] == [13, 13]
        with cluster.session() as session:
            root, pin = Pin(title="root"), session.get(Pin, pins[0])
            session.add(root)
            pin.title = "changed"
            session.flush()
            assert shard_of(root) == 3

    @pytest.mark.parametrize("order", [1, -1])
    def test_roots_follow_what_they_refer_to(self, cluster, pins, order):
        """Foreign keys that may be NULL refer to rows of the own shard, too."""
        board = stored_on(cluster, 9, Board(name="b"))
        for make in (
            lambda s: [Pin(title="r", home_id=board)],
            lambda s: [Pin(title="r", root_id=stored_on(cluster, 9, Pin(title="p")))],
            # A chain, whose last one refers to a stored object.
            lambda s: chain(Pin(title="r", home_id=board)),
            lambda s: chain(at(9, Pin(title="r"))),
            lambda s: [
                Pin(title="r", root=s.get(Pin, stored_on(cluster, 9, Pin(title="p"))))
            ],
        ):
            with cluster.session() as session:
                new = make(session)[::order]
                session.add_all(new)
                session.flush()
                assert {shard_of(one) for one in new} == {9}
        for _ in range(10):
            with cluster.session() as session:
                new = chain(Pin(title="all are new"))[::order]
                session.add_all(new)
                session.flush()
                assert len({shard_of(one) for one in new}) == 1

    def test_rows_follow_what_they_refer_to(self, cluster):
        row = {"title": "r", "home_id": stored_on(cluster, 9, Board(name="b"))}
        for statement, rows in (
            (insert(Pin), [row, row]),
            (insert(Pin.__table__), row),
            (insert(Pin).values(**row), None),
        ):
            with cluster.session() as session:
                session.execute(statement, rows)
                assert session.scalars(
                    select(Pin.home_id).where(Pin.home_id == row["home_id"])
                ).first()

    def test_a_column_that_holds_no_id_is_named(self, cluster):
        with (
            cluster.session() as session,
            pytest.raises(exc.WrongTypeError, match=r"Pin\.root_id holds ids of type"),
        ):
            session.execute(insert(Pin).values(title="r", root_id=5))

    def test_reading_does_not_place(self, cluster, pins):
        class Fixed:
            def __call__(self, **context: Any) -> int:
                return 17

        with _placed(cluster, Fixed()), cluster.session() as session:
            session.get(Pin, pins[0])
            root = Pin(title="root")
            session.add(root)
            session.flush()
            assert shard_of(root) == 17

    def test_arguments_of_a_policy(self, cluster):
        contexts = []

        def policy(**context: Any) -> int:
            contexts.append(context)
            return 8

        with _placed(cluster, policy):
            with cluster.session() as session:
                session.add_all([Pin(title="a"), Board(name="b")])
                session.flush()
                session.add(Board(name="c"))
                session.flush()
            with cluster.session() as session:
                session.execute(insert(Pin), [{"title": "a"}, {"title": "b"}])
            with cluster.session() as session:
                session.execute(insert(Pin.__table__), {"title": "a"})
        assert [t["cls"] for t in contexts] == [Pin, Pin, None]
        assert {t["keyspace"].name for t in contexts} == {"objects"}

    @pytest.mark.parametrize("bad", [SHARDS, 40000])
    def test_a_policy_that_names_no_open_shard(self, cluster, bad):
        with _placed(cluster, lambda **context: bad):
            for write in (
                lambda s: (s.add(Pin(title="a")), s.flush()),
                lambda s: s.execute(insert(Pin), [{"title": "a"}]),
            ):
                with cluster.session() as session, ShardLog() as log:
                    with pytest.raises(exc.UnknownShardError):
                        write(session)
                    assert log.executions == ()

    def test_a_policy_that_names_no_shard(self, cluster):
        policy = _placed(cluster, lambda **context: "8")
        with policy, cluster.session() as session:
            session.add(Pin(title="a"))
            with pytest.raises(exc.InvalidIdError):
                session.flush()

    def test_the_shard_of_a_session(self, cluster, pins):
        with cluster.session(shard_id=14) as session:
            pin, placed = Pin(title="a"), at(15, Pin(title="b"))
            session.add(pin)
            session.flush()
            assert shard_of(pin) == 14
            session.rollback()
            session.add(placed)
            session.flush()
            assert shard_of(placed) == 15

    def test_the_shard_of_an_object(self, cluster):
        for shard_id in (0, 31):
            with cluster.session(shard_id=1) as session:
                note = Note(pin_id=pack(shard_id, PIN, 1), text="t", shard_id=shard_id)
                session.add(note)
                session.flush()
                assert note.shard_id == shard_id
                with pytest.raises(exc.PlacementError, match="cannot be moved"):
                    note.shard_id = 5

    def test_weights(self, cluster, rng):
        keyspace = cluster.topology.keyspace("objects")
        weighted = _weighted(cluster, [3.0, 1.0, 0.0])
        policy = RandomPlacement(random.Random(rng.random()))
        seen = Counter(policy(keyspace=weighted, cls=Pin) for _ in range(8000))
        by_server = Counter()
        for shard_id, count in seen.items():
            by_server[weighted.server_for(shard_id).name] += count
        assert set(by_server) == {"a", "b"}
        assert 2.5 < by_server["a"] / by_server["b"] < 3.5
        # Each shard of a server is as likely as the others.
        shards = [seen[i] for i in range(12)]
        assert min(shards) > 300
        assert max(shards) < 700
        assert keyspace.shards == SHARDS

    def test_no_server_takes_roots(self, cluster):
        keyspace = _weighted(cluster, [1.0, 1.0, 1.0])
        servers = [replace(s, weight=0.0) for s in keyspace.servers]
        keyspace = replace(keyspace, servers=tuple(servers))
        for entity in (Pin, None):
            with pytest.raises(exc.PlacementError, match="weight"):
                RandomPlacement()(keyspace=keyspace, cls=entity)


class _placed:  # noqa: N801  # used like a function
    """Gives a cluster another policy inside the block."""

    def __init__(self, cluster: Cluster, policy: Any) -> None:
        self._cluster, self._policy = cluster, policy

    def __enter__(self) -> None:
        self._before = self._cluster.placement
        self._cluster.placement = self._policy

    def __exit__(self, *details: object) -> None:
        self._cluster.placement = self._before


def _weighted(cluster: Cluster, weights: list[float]) -> Any:
    """Return a keyspace of three servers with twelve shards each."""
    servers = [
        {
            "name": name,
            "primary": f"sqlite:////nowhere/{name}",
            "shards": [[12 * at, 12 * at + 5], [12 * at + 6, 12 * at + 11]],
            "weight": weight,
        }
        for at, (name, weight) in enumerate(zip("abc", weights, strict=True))
    ]
    topology = type(cluster.topology).from_mapping(
        {
            "epoch": 1,
            "keyspaces": {
                "objects": {
                    "kind": "objects",
                    "shards": 36,
                    "database": "db{shard:05d}",
                    "servers": servers,
                }
            },
        }
    )
    return topology.keyspace("objects")


cluster = PINS.on_backend()
pins = pair()
