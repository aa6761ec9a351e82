"""Lists whose number of pieces is increased while they are in use."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import delete, update

from sqla_shard import exc, pack, scatter
from sqla_shard.models.deletion import delete_object
from sqla_shard.session.execute import OUR_OWN
from sqla_shard.upkeep import spread_rows, verify_relations
from tests.models.backends import Clusters
from tests.models.list_clock import list_clock
from tests.models.spread_stages import SHARDS, stage, STAGES

ACROSS = {"cross_shard": "ordered"}
TABLES = stage(2, 0).base.metadata
CLUSTERS = Clusters(TABLES, SHARDS)
cluster = CLUSTERS.on_backend()
clock = list_clock()


@pytest.fixture(autouse=True)
def no_rows(cluster: Any) -> None:
    """Delete the lists of the test before: its pieces are other ones."""
    with cluster.session() as session:
        keyspace = session.places.keyspace(None, "objects")
        for place in session.places.several(keyspace, range(SHARDS)):
            for table in TABLES.sorted_tables:
                if table.name != "users":
                    session.execute(
                        delete(table),
                        bind_arguments={"place": place},
                        execution_options=OUR_OWN,
                    )
            session.commit()


def new_users(cluster: Any, user: Any, count: int) -> list[int]:
    """Insert users, and return their ids."""
    found = []
    for number in range(count):
        with cluster.begin(shard_id=number % SHARDS) as session:
            one = user()
            session.add(one)
            session.flush()
            found.append(one.id)
    return found


def some_ids(rng: Any, count: int) -> list[int]:
    numbers = rng.sample(range(10**6, 2 * 10**6), count)
    return [pack(number % SHARDS, 1, number) for number in numbers]


class Interrupted(BaseException):
    pass


def copy_only(cluster: Any, cls: Any, rows: int) -> None:
    """Interrupt a run that has copied rows, and has deleted none.

    After its last shard it would wait for the grace time; there may be fewer
    rows.
    """

    def interrupt(progress: Any) -> None:
        if progress.rows >= rows or progress.shard_id == progress.shards - 1:
            raise Interrupted

    with pytest.raises(Interrupted):
        spread_rows(cluster, cls, batch=3, grace=3600.0, on_progress=interrupt)


class Model:
    """The expected content of the lists, and reads that compare it."""

    def __init__(self, cluster: Any, rng: Any, owners: list[int]) -> None:
        self.cluster, self.rng = cluster, rng
        self.lists: dict[int, list[int]] = {owner: [] for owner in owners}
        self.pool = some_ids(rng, 14)

    def change(self, fans: Any) -> None:
        """Change a list with the class of some process."""
        rng = self.rng
        owner = rng.choice(list(self.lists))
        fan = rng.choice(self.pool)
        now = self.lists[owner]
        kind = rng.choices(
            ["append", "remove", "many", "again", "clear"], [8, 6, 2, 2, 0.3]
        )[0]
        if kind == "append":
            added = self.cluster.run(fans.append, owner, fan)
            assert added is (fan not in now)
            now += [fan] * added
        elif kind == "remove":
            removed = self.cluster.run(fans.remove, owner, fan)
            assert removed is (fan in now)
            if removed:
                now.remove(fan)
        elif kind == "many":
            some = rng.sample(self.pool, 4)
            added = self.cluster.run(fans.append_many, owner, some, **ACROSS)
            assert added == [i for i in some if i not in now]
            now += added
        elif kind == "again":
            with self.cluster.begin(**ACROSS) as session:
                removed = fans.remove(session, owner, fan)
                assert removed is (fan in now)
                assert fan not in fans.contains(session, owner, [fan])
                assert fans.append(session, owner, fan)
            self.lists[owner] = [i for i in now if i != fan] + [fan]
        else:
            number = self.cluster.run(fans.clear, owner, **ACROSS)
            assert number == len(now)
            now.clear()

    def compare(self, fans: Any) -> None:
        """Compare the reads of a process with a class."""
        for owner, now in self.lists.items():
            with self.cluster.session() as session:
                found = fans.iterate(session, owner, batch=3)
                assert [row.fan_id for row in found] == now[::-1]
                found = fans.iterate(session, owner, batch=4, newest_first=False)
                assert [row.fan_id for row in found] == now
                assert fans.count(session, owner) == len(now)
                assert fans.contains(session, owner, self.pool) == set(now)
                common = fans.intersect(session, owner, owner, batch=3)
                assert list(common) == sorted(now)
                fan = self.rng.choice(self.pool)
                row = session.get(fans, (owner, fan))
                assert (row is not None) is (fan in now)
                if row is not None:
                    session.expire(row)
                    assert row.sequence == fans.position(session, owner, fan)


class History:
    """Random changes by processes of two neighbouring stages."""

    #: Before each look at the lists.
    changes = 25

    @pytest.mark.parametrize("before", [1, 2])
    def test_equals_a_model(self, cluster, rng, before):
        stages = [stage(before, n) for n in range(4)]
        owners = new_users(cluster, stages[0].user, 3)
        model = Model(cluster, rng, owners)
        for first in range(3):
            both = [one.fans for one in stages[first : first + 2]]
            for _ in range(self.changes):
                model.change(rng.choice(both))
            if first == 1:
                # From now on all processes have the third stage.
                moving = stages[2].fans
                for rows in (6, 14):
                    copy_only(cluster, moving, rows)
                    model.compare(moving)
                    for _ in range(12):
                        model.change(moving)
                report = spread_rows(cluster, moving, grace=0.0, batch=5)
                assert report.ok
                assert report.moved >= 0
                again = spread_rows(cluster, moving, grace=0.0)
                assert (again.ok, again.moved, again.copied) == (True, 0, 0)
            for cls in both:
                model.compare(cls)
        last = stages[3].fans
        assert verify_relations(cluster, [last], grace=0.0).found("misplaced") == 0
        for owner, now in model.lists.items():
            with cluster.begin(**ACROSS) as session:
                assert last.recount(session, owner) == len(now)

    def test_numbers_without_copies(self, cluster, rng):
        before, moving = stage(2, 1), stage(2, 2)
        (ada,) = new_users(cluster, before.user, 1)
        some = some_ids(rng, 24)
        for fan in some:
            cluster.run(before.fans.append, ada, fan)
        with pytest.raises(Interrupted):
            spread_rows(
                cluster, moving.fans, grace=3600.0, on_progress=self._stop_at_the_end
            )
        with cluster.begin(**ACROSS) as session:
            assert moving.fans.count(session, ada) == 24
            assert moving.fans.recount(session, ada) == 24
        for fan in some[:10]:
            assert cluster.run(moving.fans.remove, ada, fan)
        with cluster.session() as session:
            assert moving.fans.count(session, ada) == 14
        assert spread_rows(cluster, moving.fans, grace=0.0).ok
        with cluster.session() as session:
            assert stage(2, 3).fans.count(session, ada) == 14

    @staticmethod
    def _stop_at_the_end(progress: Any) -> None:
        if progress.shard_id == progress.shards - 1:
            raise Interrupted


class Inverse:
    """The reverse rows of a mapping whose inverse gets more pieces."""

    @pytest.mark.parametrize("before", [1, 2])
    def test_operations_of_all_stages(self, cluster, rng, before):
        first = stage(before, 0)
        ada, *others = new_users(cluster, first.user, 20)
        expected: set[int] = set()
        for number in range(4):
            current = stage(before, number)
            for other in rng.sample(others, 8):
                if other in expected:
                    cluster.run(current.likes.remove, other, ada)
                else:
                    cluster.run(current.likes.append, other, ada)
                expected ^= {other}
            if number == 2:
                with pytest.raises(Interrupted):
                    spread_rows(
                        cluster,
                        current.likers,
                        grace=3600.0,
                        on_progress=History._stop_at_the_end,
                    )
                for other in rng.sample(sorted(expected), 3):
                    cluster.run(current.likes.remove, other, ada)
                    expected.remove(other)
                assert spread_rows(cluster, current.likers, grace=0.0).ok
            cluster.repair(now=True)
            with cluster.session() as session:
                rows = current.likers.iterate(session, ada)
                assert {row.liking_id for row in rows} == expected
                assert current.likers.count(session, ada) == len(expected)
            both = [current.likes, current.likers]
            report = verify_relations(cluster, both, grace=0.0)
            assert report.found("one-sided") == report.found("misplaced") == 0

    def test_an_operation_of_an_earlier_stage(self, cluster, monkeypatch, rng):
        """It is addressed to the shard of the piece from before."""
        old = stage(2, 0)
        ada, *others = new_users(cluster, old.user, 17)
        with monkeypatch.context() as patch:
            patch.setattr("sqla_shard.outbox.apply._APPLY_SECONDS", -1.0)
            for other in others:
                cluster.run(old.likes.append, other, ada)
        new = stage(2, 3)
        cluster.repair(now=True)
        with cluster.session() as session:
            rows = new.likers.iterate(session, ada)
            assert {row.liking_id for row in rows} == set(others)
            found = new.likers.contains(session, ada, others)
            assert found == set(others)


class Deleted:
    def test_an_object(self, cluster, rng):
        old, moving = stage(2, 1), stage(2, 2)
        ada, grace, *others = new_users(cluster, old.user, 12)
        for other in others:
            for owner in (ada, grace):
                cluster.run(old.likes.append, other, owner)
                cluster.run(old.fans.append, owner, other)
        cluster.repair(now=True)
        with pytest.raises(Interrupted):
            spread_rows(
                cluster,
                moving.likers,
                grace=3600.0,
                on_progress=History._stop_at_the_end,
            )
        delete_object(cluster, moving.user, ada)
        cluster.repair(now=True)
        for cls in (moving.fans, moving.likers):
            assert spread_rows(cluster, cls, grace=0.0).ok
        # On SQLite, operations that write two shards have waited for that.
        cluster.repair(now=True)
        with cluster.session() as session:
            assert list(moving.likers.iterate(session, ada)) == []
            assert list(moving.fans.iterate(session, ada)) == []
            assert moving.likers.count(session, grace) == 10
            assert moving.likers.count(session, ada) == 0


class Refusals:
    def test_other_columns(self, cluster, rng):
        old, moving = stage(2, 1), stage(2, 2)
        (ada,) = new_users(cluster, old.user, 1)
        (fan,) = some_ids(rng, 1)
        cluster.run(old.fans.append, ada, fan)
        for fans in (old.fans, moving.fans):
            with cluster.session() as session:
                (row,) = fans.page(session, ada)
                row.remark = "new"
                with pytest.raises(exc.KeptMappingError, match="copied"):
                    session.flush()
                session.rollback()
                everywhere = update(fans).values(remark="new")
                with pytest.raises(exc.KeptMappingError, match="copied"):
                    session.execute(everywhere.options(scatter()))

    def test_other_columns_are_copied(self, cluster, rng):
        first, moving = stage(2, 0), stage(2, 2)
        (ada,) = new_users(cluster, first.user, 1)
        some = some_ids(rng, 12)
        for fan in some:
            cluster.run(first.fans.append, ada, fan)
        with cluster.session() as session:
            for fan in some:
                row = session.get(first.fans, (ada, fan))
                row.remark = f"fan {fan}"
                session.commit()
        assert spread_rows(cluster, moving.fans, grace=0.0).ok
        with cluster.session() as session:
            rows = moving.fans.page(session, ada)
            assert {row.remark for row in rows} == {f"fan {i}" for i in some}

    @pytest.mark.parametrize("before", [1, 2])
    def test_other_classes(self, cluster, before):
        for number in (0, 1, 3):
            with pytest.raises(exc.ClassDefinitionError, match="spread_from"):
                spread_rows(cluster, stage(before, number).fans)

    @pytest.mark.parametrize("arguments", [{"rate": 0}, {"batch": 0}, {"grace": -1.0}])
    def test_arguments(self, cluster, arguments):
        with pytest.raises(ValueError, match=f"{next(iter(arguments))}="):
            spread_rows(cluster, stage(2, 2).fans, **arguments)

    def test_keywords(self, monkeypatch):
        for keywords, message in (
            ({"spread": 8, "spread_from": 3}, "power of two"),
            ({"spread": 8, "spread_from": 8}, "only be increased"),
            ({"spread": 8, "spread_to": 4}, "only be increased"),
            ({"spread": 8, "spread_from": 2, "spread_to": 16}, "two steps"),
            ({"spread_from": 2}, "spread=None"),
            ({"spread_to": 32}, "spread_over=16"),
        ):
            monkeypatch.setitem(STAGES, 3, (keywords,))
            with pytest.raises(exc.ClassDefinitionError, match=message):
                stage(3, 0)

    def test_too_few_shards(self, cluster, monkeypatch):
        """A list that was not spread may be on any shard."""
        users = new_users(cluster, stage(1, 0).user, 12)
        monkeypatch.setattr("tests.models.spread_stages.SHARDS", 8)
        fans = stage(1, 1).fans
        with cluster.session() as session:
            assert fans.contains(session, users[3], users[:2]) == set()
            with pytest.raises(exc.ClassDefinitionError, match="on shard 11"):
                fans.contains(session, users[11], users[:2])
