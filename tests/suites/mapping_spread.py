"""Lists that are spread over several virtual shards."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from sqlalchemy import delete, func, insert, select, update

from sqla_shard import exc, pack, scatter, unpack
from sqla_shard.models.deletion import delete_object
from sqla_shard.models.list_positions import piece_of, shard_of
from sqla_shard.models.mapping_definition import definition_of
from sqla_shard.testing import StatementLog
from sqla_shard.upkeep import verify_relations
from tests.models.clusters import ShardLog
from tests.models.follow_models import (
    FOLLOWS,
    length,
    new_users,
    SHARDS,
    Stars,
    User,
    Watchers,
    Watches,
)
from tests.models.list_clock import list_clock

SPREAD = 8
ACROSS = {"cross_shard": "ordered"}


def some_ids(rng: Any, count: int) -> list[int]:
    """Return ids of users that do not exist."""
    numbers = rng.sample(range(10**6, 10**6 + 9000), count)
    return [pack(number % SHARDS, 1, number) for number in numbers]


def fans(cluster: Any, owner: int, newest: bool = True) -> list[int]:
    with cluster.session() as session:
        rows = Stars.iterate(session, owner, newest_first=newest, batch=7)
        return [row.fan_id for row in rows]


def shard_of_row(owner: int, fan: int) -> int:
    home = unpack(owner).shard_id
    return shard_of(home, piece_of(fan, SPREAD), SHARDS)


class Placing:
    def test_each_piece_has_another_shard(self):
        for over in (16, 17, 100, 4096):
            for pieces in (2, 4, 8, 16):
                for home in (0, 5, over - 1, over + 3):
                    found = {shard_of(home, i, over) for i in range(pieces)}
                    assert len(found) == pieces
                    assert max(found) < over
        assert shard_of(5, 0, 16) == 5

    def test_places_do_not_change(self):
        # Existing rows are there.
        user = pack(3, 1, 77)
        assert [piece_of(user + i, 256) for i in range(4)] == [52, 107, 163, 218]
        assert [shard_of(3, i, 4096) for i in range(4)] == [3, 2051, 1027, 3075]

    def test_targets_are_spread_evenly(self):
        for step in (1, 2, 10):
            for shard in (0, 4095):
                found = Counter(
                    piece_of(pack(shard, 1, 1 + i * step), 16) for i in range(16_000)
                )
                assert len(found) == 16
                assert max(found.values()) < 1300

    def test_half_of_the_rows_stay_in_twice_as_many_pieces(self):
        for number in range(1, 3000):
            target = pack(number % 16, 1, number)
            old, new = piece_of(target, 16), piece_of(target, 32)
            assert new in (old, old + 16)


class Writing:
    def test_rows_are_on_the_shards_of_their_pieces(self, cluster, rng):
        (ada,) = new_users(cluster, 1)
        some = some_ids(rng, 30)
        for fan in some:
            with ShardLog() as log:
                assert cluster.run(Stars.append, ada, fan) is True
            assert set(log.take()) == {shard_of_row(ada, fan)}
            assert cluster.run(Stars.append, ada, fan) is False
        assert fans(cluster, ada) == some[::-1]
        assert fans(cluster, ada, newest=False) == some
        gone = some[::3]
        for fan in gone:
            assert cluster.run(Stars.remove, ada, fan) is True
            assert cluster.run(Stars.remove, ada, fan) is False
        left = [fan for fan in some if fan not in gone]
        assert fans(cluster, ada) == left[::-1]
        with cluster.session() as session:
            assert Stars.count(session, ada) == len(left)
            assert Stars.contains(session, ada, some) == set(left)

    def test_a_row_stays_on_the_shard_of_its_piece(self, cluster, rng):
        ada, bob = new_users(cluster, 2)
        (fan,) = some_ids(rng, 1)
        cluster.run(Stars.append, ada, fan)
        with cluster.session() as session:
            row = session.get_one(Stars, {"source_id": ada, "target_id": fan})
            row.source_id = pack(unpack(ada).shard_id + 1, 1, unpack(bob).local_id)
            with pytest.raises(exc.ColocationError, match="cannot move"):
                session.flush()
            session.rollback()
            row.target_id = func.abs(Stars.target_id)
            with pytest.raises(exc.InvalidIdError, match="abs"):
                session.flush()

    def test_many_at_once(self, cluster, rng):
        (ada,) = new_users(cluster, 1)
        some = some_ids(rng, 40)
        with cluster.begin() as session, pytest.raises(exc.CrossShardWriteError):
            Stars.append_many(session, ada, some)
        with cluster.begin(**ACROSS) as session:
            assert Stars.append_many(session, ada, some[:9]) == some[:9]
            assert Stars.append_many(session, ada, some) == some[9:]
        assert fans(cluster, ada) == some[::-1]
        with cluster.begin(**ACROSS) as session:
            assert Stars.recount(session, ada) == 40
            assert Stars.clear(session, ada) == 40
        assert fans(cluster, ada) == []
        with cluster.session() as session:
            assert Stars.count(session, ada) == 0

    @pytest.mark.parametrize("how", ["auto", "evaluate", "fetch"])
    @pytest.mark.parametrize("named", [False, True])
    def test_objects_change_with_their_rows(self, cluster, rng, how, named):
        (ada,) = new_users(cluster, 1)
        some = some_ids(rng, 20)
        first = shard_of_row(ada, some[0])
        with cluster.session(cross_shard="unordered") as session:
            Stars.append_many(session, ada, some)
            rows = [session.get_one(Stars, (ada, fan)) for fan in some]
            for row in rows:
                row.remark = ""
            made = update(Stars).where(Stars.owner_id == ada)
            made = made.values(remark=Stars.remark + "x")
            session.execute(
                made if named else made.options(scatter()),
                bind_arguments={"shard_id": first} if named else {},
                execution_options={"synchronize_session": how},
            )
            changed = [not named or shard_of_row(ada, fan) == first for fan in some]
            want = ["x" * each for each in changed]
            assert [row.__dict__["remark"] for row in rows] == want
            session.expire_all()
            assert [row.remark for row in rows] == want

    def test_order_is_that_of_the_append(self, cluster, rng):
        (ada,) = new_users(cluster, 1)
        one, two = some_ids(rng, 2)
        cluster.run(Stars.append, ada, one)
        cluster.run(Stars.append, ada, two)
        with cluster.begin() as session:
            with pytest.raises(exc.InvalidMoveError, match="is spread over"):
                Stars.move(session, ada, one, before=two)
            assert Stars.respace(session, ada) == 0
            assert Stars.respace(session, ada, around=one) == 0

    def test_other_writes_are_refused(self, cluster, rng):
        (ada,) = new_users(cluster, 1)
        (fan,) = some_ids(rng, 1)
        values = {"owner_id": ada, "fan_id": fan, "sequence": 1}
        with cluster.session() as session:
            for statement in (
                insert(Stars).values(values),
                delete(Stars).where(Stars.owner_id == ada),
            ):
                with pytest.raises(exc.KeptMappingError):
                    session.execute(statement)
            session.add(Stars(**values))
            with pytest.raises(exc.ShardError):
                session.flush()

    def test_rows_are_objects_of_the_session(self, cluster, rng):
        (ada,) = new_users(cluster, 1)
        some = some_ids(rng, 9)
        for fan in some:
            cluster.run(Stars.append, ada, fan)
        with cluster.session() as session:
            rows = list(Stars.page(session, ada))
            for row in rows:
                row.remark = f"fan {row.fan_id}"
                session.commit()
                assert row.remark == f"fan {row.fan_id}"
        with cluster.session() as session:
            for fan in some:
                row = session.get(Stars, (ada, fan))
                assert row.remark == f"fan {fan}"
            there = select(Stars).where(Stars.owner_id == ada)
            with pytest.raises(exc.NoShardKeyError):
                session.scalars(there)
            found = session.scalars(there.options(scatter()))
            assert {row.fan_id for row in found} == set(some)


class Reading:
    @pytest.fixture(scope="class")
    @classmethod
    def ada(cls, cluster):
        return new_users(cluster, 1)[0]

    @pytest.fixture(scope="class")
    @classmethod
    def some(cls, cluster, ada):
        found = [pack(i % SHARDS, 1, 10**7 + i) for i in range(60)]
        for fan in found:
            cluster.run(Stars.append, ada, fan)
        return found

    @pytest.mark.parametrize("newest", [True, False])
    @pytest.mark.parametrize("limit", [1, 7, 60, 100])
    def test_pages(self, cluster, ada, some, newest, limit):
        expected = some[::-1] if newest else some
        found, bookmark, pages = [], None, []
        while True:
            with cluster.session() as session:
                page = Stars.page(session, ada, limit, bookmark, newest_first=newest)
            found += [row.fan_id for row in page]
            pages.append(page)
            bookmark = page.next
            if bookmark is None:
                break
        assert found == expected
        if len(pages) > 1:
            with cluster.session() as session:
                page = Stars.page(
                    session, ada, limit, pages[1].previous, newest_first=newest
                )
            assert [row.fan_id for row in page] == expected[:limit]

    def test_one_statement_for_each_server(self, cluster, ada, some):
        absent = pack(1, 1, 10**8)
        with cluster.session() as session:
            page = Stars.page(session, ada, 5)
            for read in (
                lambda: Stars.page(session, ada, 5),
                lambda: Stars.page(session, ada, 5, page.next),
                lambda: Stars.count(session, ada),
                lambda: Stars.contains(session, ada, [*some[:24], absent]),
                lambda: Stars.top(session, ada),
            ):
                with StatementLog() as log:
                    read()
                assert set(log.count_by_server().values()) == {1}
            with ShardLog() as one:
                assert Stars.position(session, ada, some[3]) is not None
            assert one.take() == {shard_of_row(ada, some[3]): 1}

    def test_bounds_and_sets(self, cluster, ada, some):
        (grace,) = new_users(cluster, 1)
        for fan in some[::5]:
            cluster.run(Stars.append, grace, fan)
        with cluster.session() as session:
            until = Stars.position(session, ada, some[20])
            rows = Stars.iterate(session, ada, until=until, batch=4)
            assert [row.fan_id for row in rows] == some[20::-1]
            top = Stars.top(session, ada)
            assert top == Stars.position(session, ada, some[-1])
            found = Stars.intersect(session, ada, grace, batch=3)
            assert list(found) == sorted(some[::5])
            pages = Stars.pages(session, [ada, grace], 3)
            assert [row.fan_id for row in pages[ada]] == some[:-4:-1]


class Together:
    """With an inverse, verification and deletion."""

    def test_a_spread_inverse(self, cluster):
        ada, *others = new_users(cluster, 25)
        for other in others:
            cluster.run(Watches.append, other, ada)
        cluster.run(Watches.append_many, ada, others[:5])
        with cluster.session() as session:
            assert Watchers.count(session, ada) == 24
            page = Watchers.page(session, ada, 24)
            assert [row.watcher_id for row in page] == others[::-1]
            assert Watchers.contains(session, others[3], [ada]) == {ada}
        for other in others[:10]:
            cluster.run(Watches.remove, other, ada)
        cluster.run(Watches.clear, ada)
        with cluster.session() as session:
            assert Watchers.count(session, ada) == 14
            assert Watchers.contains(session, others[3], [ada]) == set()
        assert Watches.clear_target(cluster, ada, batch=4) == 14
        assert length(cluster, Watchers, ada) == 0

    def test_verify(self, cluster):
        ada, *others = new_users(cluster, 9)
        classes = [Watches, Watchers]
        verify_relations(cluster, classes, grace=0.0, repair=True)
        for other in others:
            cluster.run(Watches.append, other, ada)
        report = verify_relations(cluster, classes, grace=0.0)
        assert report.ok, str(report)
        for shard_id in range(SHARDS):
            self.damage(cluster, shard_id, others[4])
        report = verify_relations(cluster, classes, grace=0.0)
        assert report.found("one-sided") == 1
        assert report.found("miscounted") == 1
        assert report.found("misplaced") == 0
        report = verify_relations(cluster, classes, grace=0.0, repair=True)
        with cluster.session() as session:
            assert Watchers.count(session, ada) == 8
        assert verify_relations(cluster, classes, grace=0.0).ok

    @staticmethod
    def damage(cluster, shard_id, watcher):
        """Delete a row without its number."""
        table = Watchers.__table__
        with cluster.session() as session:
            places = session.places
            keyspace = places.keyspace(None, "objects")
            session.execute(
                delete(table).where(table.c.watcher_id == watcher),
                bind_arguments={"place": places.place(keyspace, shard_id)},
            )
            session.commit()

    def test_a_deleted_object(self, cluster, monkeypatch):
        monkeypatch.setattr(cluster, "scatters", False)
        ada, grace, *others = new_users(cluster, 9)
        for other in others:
            cluster.run(Watches.append, other, ada)
            cluster.run(Watches.append, other, grace)
            cluster.run(Stars.append, ada, other)
        done = delete_object(cluster, User, ada)
        cluster.repair(now=True)
        monkeypatch.setattr(cluster, "scatters", True)
        table = definition_of(Stars).counts
        there = select(table).where(table.columns[0] == ada).options(scatter())
        with cluster.session() as session:
            assert session.execute(there).all() == []
        assert definition_of(Watchers).counts.name in done.unseen
        assert length(cluster, Watchers, ada) == 0
        assert fans(cluster, ada) == []
        with cluster.session() as session:
            assert Watchers.count(session, ada) == 0
            assert Stars.count(session, ada) == 0
            assert Watchers.count(session, grace) == 7
            for other in others:
                assert Watches.count(session, other) == 1


cluster = FOLLOWS.on_backend()
clock = list_clock()
