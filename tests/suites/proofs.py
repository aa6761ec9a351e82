"""Guarantees of the session, checked by the statements on the servers."""

from __future__ import annotations

import gc
import operator
import os
import random
from functools import partial
from typing import Any

import pytest
from sqlalchemy import (
    bindparam,
    func,
    insert,
    not_,
    or_,
    select,
    text,
    tuple_,
    union_all,
    update,
)
from sqlalchemy.orm import aliased

from sqla_shard import SCHEMA
from sqla_shard.exc import (
    CrossShardWriteError,
    ForkedSessionError,
    InvalidIdError,
    NoShardKeyError,
    ScatterUnsupportedError,
    ShardError,
)
from sqla_shard.testing import StatementLog
from tests.models.clusters import at, PINS, SHARDS
from tests.models.layouts import pack, unpack
from tests.models.models import Comment, PIN, Pin, Setting

#: Shards of the rows below: the first, two neighbours, the other server, the
#: last.
_HOMES = (0, 1, 2, 17, SHARDS - 1)


class Proofs:
    """Needs a fixture ``cluster``, empty when it begins."""

    @pytest.fixture(scope="class")
    @classmethod
    def ids(cls, cluster: Any) -> list[int]:
        pins = []
        for shard_id in _HOMES:
            with cluster.begin() as session:
                for n in range(3):
                    pin = at(shard_id, Pin(title=f"p{shard_id}_{n}", n=n))
                    pin.comments = [
                        at(shard_id, Comment(body=body, n=n)) for body in ("x", "y")
                    ]
                    session.add(pin)
                    session.flush()
                    pins.append(pin.id)
        return sorted(pins)

    # -- the 49 checks of the id column (24 of them are these operators)

    @pytest.mark.parametrize("which", [0, 4, 8, None])
    @pytest.mark.parametrize("name", ["lt", "le", "gt", "ge", "ne", "eq"])
    def test_operators(
        self, cluster: Any, ids: list[int], name: str, which: int | None
    ) -> None:
        compare = getattr(operator, name)
        value = pack(5, PIN, 1) if which is None else ids[which]
        want = [i for i in ids if compare(i, value)]
        statement = select(Pin.id).where(compare(Pin.id, value))
        with cluster.session() as session:
            # Among ids that are named, every operator is exact.
            named = statement.where(Pin.id.in_(ids))
            assert sorted(session.scalars(named)) == want
            if name == "eq":
                assert sorted(session.scalars(statement)) == want
            else:
                with pytest.raises(NoShardKeyError):
                    session.scalars(statement)

    def test_ranges_and_negations(self, cluster: Any, ids: list[int]) -> None:
        here = Pin.id.in_(ids)
        with cluster.session() as session:

            def found(*where: Any) -> list[int]:
                statement = select(Pin.id).where(here, *where)
                return sorted(session.scalars(statement))

            assert found(Pin.id.between(ids[1], ids[6])) == ids[1:7]
            assert found(Pin.id.not_in(ids[1:6])) == [ids[0], *ids[6:]]
            either = or_(Pin.id == ids[0], Pin.id == ids[8])
            assert found(not_(either)) == [*ids[1:8], *ids[9:]]
            assert found(either) == [ids[0], ids[8]]
            assert found(Pin.id.is_(None)) == []
            assert found(Pin.id.is_not(None)) == ids
            assert found(Pin.comments.any(Comment.body == "x")) == ids
            same = select(Comment.pin_id).where(Comment.body == "x")
            assert found(Pin.id.in_(same)) == ids

    @pytest.mark.parametrize("which", [0, 4, 14])
    def test_forms_on_one_shard(self, cluster: Any, ids: list[int], which: int) -> None:
        mine = ids[which]
        here = {"shard_id": unpack(mine).shard_id}
        siblings = [i for i in ids if i >> 46 == mine >> 46]
        with cluster.session() as session:

            def one(statement: Any, **options: Any) -> list[Any]:
                return sorted(session.scalars(statement, **options))

            other = aliased(Pin)
            assert one(select(other.id).where(other.id == mine)) == [mine]
            assert one(select(Comment.pin_id).where(Comment.pin_id == mine)) == [
                mine,
                mine,
            ]
            assert one(select(func.count(Pin.id)), bind_arguments=here) == [3]
            assert one(select(func.max(Pin.id)), bind_arguments=here) == siblings[-1:]
            both = union_all(
                select(Pin.id).where(Pin.n == 0), select(Pin.id).where(Pin.n == 1)
            )
            assert one(both, bind_arguments=here) == siblings[:2]
            inner = select(Pin.id, Pin.n).subquery()
            assert one(select(inner.c.id), bind_arguments=here) == siblings
            cte = select(Pin.id).cte()
            assert one(select(cte.c.id), bind_arguments=here) == siblings
            grouped = select(Comment.pin_id).group_by(Comment.pin_id)
            assert one(grouped, bind_arguments=here) == siblings
            named = select(Pin.id).where(Pin.id == bindparam("q"))
            assert one(named, params={"q": mine}) == [mine]
            ordered = select(Pin.id).order_by(Pin.id.desc()).limit(2)
            assert (
                session.scalars(ordered, bind_arguments=here).all() == siblings[:0:-1]
            )
            frozen = session.execute(select(Pin.id).where(Pin.id == mine)).freeze()
            assert frozen().scalars().all() == [mine]

    def test_forms_on_several_shards(self, cluster: Any, ids: list[int]) -> None:
        with cluster.session() as session:
            named = select(Pin.id).where(Pin.id.in_(bindparam("q", expanding=True)))
            assert sorted(session.scalars(named, {"q": ids})) == ids
            pairs = [(ids[0], "p0_0"), (ids[3], "p1_0"), (ids[4], "no")]
            tuples = select(Pin.id).where(tuple_(Pin.id, Pin.title).in_(pairs))
            assert sorted(session.scalars(tuples)) == [ids[0], ids[3]]
            chunks = session.scalars(
                select(Pin.id).where(Pin.id.in_(ids)),
                execution_options={"yield_per": 2},
            )
            assert sorted(chunks) == ids
            refused = select(Pin.id).where(Pin.id.in_(ids)).offset(2)
            with pytest.raises(ScatterUnsupportedError):
                session.execute(refused)

    def test_textual_rows_are_refused_or_composed(
        self, cluster: Any, ids: list[int]
    ) -> None:
        here = {"shard_id": unpack(ids[0]).shard_id}
        columns = "title, n, board_id, home_id, root_id"
        bare = text(f"SELECT local_id, {columns} FROM pins")
        prefix = ids[0] >> 36 << 36
        whole = text(f"SELECT local_id + {prefix} AS local_id, {columns} FROM pins")
        with cluster.session() as session:
            with pytest.raises(InvalidIdError, match="local id"):
                session.scalars(
                    select(Pin).from_statement(bare), bind_arguments=here
                ).all()
            found = session.scalars(
                select(Pin).from_statement(whole), bind_arguments=here
            )
            assert sorted(pin.id for pin in found) == ids[:3]

    # -- what reaches the servers

    def test_one_connection_and_transaction_per_server(
        self, cluster: Any, ids: list[int]
    ) -> None:
        places = cluster.places.all_places(cluster.topology.keyspace("objects"))
        used = {i >> 46 for i in ids}
        engines = {places[i].engine for i in used}
        with StatementLog() as log:
            with cluster.session() as session:
                for _ in range(2):
                    session.scalars(select(Pin).where(Pin.id.in_(ids))).all()
                    for object_id in ids:
                        session.refresh(session.get(Pin, object_id))
                session.commit()
            assert len(log.connections) == len(engines)
            assert log.count("begin") == len(engines)
            assert log.count("commit") == len(engines)

    def test_the_compiled_cache_does_not_grow_with_ids(
        self, cluster: Any, rng: random.Random
    ) -> None:
        def entries() -> dict[Any, int]:
            return {
                engine: len(engine._compiled_cache or ())
                for engine in cluster.places.engines
            }

        def some_ids(count: int) -> list[int]:
            return [
                pack(rng.randrange(SHARDS), PIN, rng.randrange(1, 10**9))
                for _ in range(count)
            ]

        with cluster.session() as session:

            def read(one: int, many: list[int]) -> None:
                session.get(Pin, one)
                session.scalars(select(Pin).where(Pin.id == one)).all()
                session.get_many(Pin, many)
                session.scalars(select(Pin).where(Pin.id.in_(many))).all()

            for shard_id in range(SHARDS):
                first = pack(shard_id, PIN, 10**9 + 1)
                read(first, [first + 1])
            before = entries()
            for _ in range(80):
                read(some_ids(1)[0], some_ids(rng.randrange(1, 40)))
            after = entries()
        grown = {e: n - before.get(e, 0) for e, n in after.items()}
        assert max(grown.values()) <= 2

    # -- writing one shard

    def test_a_second_shard_is_refused_before_it_is_sent(
        self, cluster: Any, ids: list[int]
    ) -> None:
        first, last = ids[0], ids[-1]

        def by_flush(session: Any) -> None:
            session.add(at(unpack(last).shard_id, Pin(title="new")))
            session.flush()

        def by_change(session: Any) -> None:
            session.get(Pin, last).title = "new"
            session.flush()

        def by_delete(session: Any) -> None:
            session.delete(session.get(Pin, last))
            session.flush()

        def by_update(session: Any) -> None:
            change = update(Pin).where(Pin.id == last)
            session.execute(change.values(title="new"))

        def by_insert(session: Any) -> None:
            rows = [{"pin_id": last, "body": "new"}]
            session.execute(insert(Comment), rows)

        def by_connection(session: Any) -> None:
            connection = session.connection({"shard_id": unpack(last).shard_id})
            connection.execute(insert(Pin.__table__).values(title="new"))

        def in_global(session: Any) -> None:
            session.add(Setting(name="new", value="x"))
            session.flush()

        ways = [by_flush, by_change, by_delete, by_update, by_insert]
        for second in [*ways, by_connection, in_global]:
            with cluster.session() as session:
                session.get(Pin, first).title = "first"
                session.get(Pin, last)
                session.flush()
                with (
                    StatementLog() as log,
                    pytest.raises(CrossShardWriteError) as caught,
                ):
                    second(session)
                # Statements that still have the mark were refused when sent.
                sent = [
                    statement
                    for statement in log.statements
                    if "SELECT" not in statement and SCHEMA not in statement
                ]
                assert sent == [], second.__name__
                assert str(first) in str(caught.value)
                assert caught.value.first[0] == unpack(first).shard_id

    def test_several_shards_on_request(self, cluster: Any, ids: list[int]) -> None:
        with cluster.begin(cross_shard="unordered") as session:
            done = session.execute(
                update(Pin).where(Pin.id.in_(ids)).values(n=Pin.n + 100)
            )
            assert done.rowcount == len(ids)
            session.add_all(at(i, Pin(title="spread")) for i in (3, 20))
            session.flush()
            session.rollback()
        with cluster.session() as session:
            assert max(p.n for p in session.get_many(Pin, ids)) == 2

    def test_a_savepoint_frees_its_shard(self, cluster: Any) -> None:
        with cluster.begin() as session:
            inner = session.begin_nested()
            session.add(at(3, Pin(title="undone")))
            session.flush()
            inner.rollback()
            kept = at(4, Pin(title="kept"))
            session.add(kept)
            session.flush()
            assert unpack(kept.id).shard_id == 4

    def test_roots_of_one_transaction_share_a_shard(self, cluster: Any) -> None:
        seen = set()
        for _ in range(20):
            with cluster.session() as session:
                pins = [Pin(title="root") for _ in range(3)]
                session.add_all(pins[:2])
                session.flush()
                session.add(pins[2])
                session.flush()
                (shard_id,) = {unpack(pin.id).shard_id for pin in pins}
                seen.add(shard_id)
        assert len(seen) > 3

    def test_a_rolled_back_object_keeps_its_id(self, cluster: Any) -> None:
        """As in SQLAlchemy, a flushed object is inserted again as it was."""
        pin = Pin(title="again")
        ids = []
        for _ in range(3):
            with cluster.session() as session:
                session.add(pin)
                session.flush()
                ids.append(pin.id)
                session.rollback()
        assert len(set(ids)) == 1

    # -- processes

    def test_fork_with_connections_out(self, cluster: Any, ids: list[int]) -> None:
        """As under gunicorn --preload, and with a transaction open."""
        session = cluster.session()
        first = session.get(Pin, ids[0])
        first.title = "before fork"
        session.flush()
        child = os.fork()
        if child == 0:
            os._exit(self._in_child(cluster, session, ids))
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        # The parent's transaction is as it was.
        first.title = "after fork"
        session.commit()
        session.close()
        with cluster.session() as fresh:
            assert fresh.get(Pin, ids[0]).title == "after fork"

    def _in_child(self, cluster: Any, session: Any, ids: list[int]) -> int:
        try:
            for use in (partial(session.get_many, Pin, ids), session.commit):
                try:
                    use()
                except ForkedSessionError:
                    pass
                else:
                    return 2
            with cluster.session() as own:
                if own.get(Pin, ids[4]) is None:
                    return 3
            # An inherited session that is closed, or collected, says nothing
            # to the server either.
            session.close()
            del session
            gc.collect()
        except ShardError:
            return 4
        return 0


cluster = PINS.on_backend()
