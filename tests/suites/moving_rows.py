"""Marks, ids and fences in the database that rows move from.

A suite for a kind of database has the fixture ``engine``.
"""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from random import Random
from threading import Event

import pytest
from sqlalchemy import Column, Integer, MetaData, String, Table
from sqlalchemy.exc import IntegrityError

from sqla_shard.exc import StageChangedError, StageUnavailableError
from sqla_shard.ids import pack
from sqla_shard.migrate.copies import apply_images, read_images, record_images
from sqla_shard.migrate.marks import Marks, RowMark
from sqla_shard.migrate.passes import compare, Comparison, look
from sqla_shard.migrate.stages import DatabaseFence, Progress
from tests.models.moving_tables import copy_rows, Move

_FORWARD = "marking copying reading closing"

#: Forward; there and back, after writes were stopped once for nothing; and
#: back to the start, and all over again.
PATHS = (
    f"{_FORWARD} switched detached",
    f"{_FORWARD} reading closing switched returning reading",
    f"marking copying marking legacy {_FORWARD} switched",
)

MARKING = Progress(number=1, stage="marking", round=1)

METADATA = MetaData()
POSTS = Table("posts", METADATA, Column("id", Integer, primary_key=True))
LIKES = Table(
    "likes",
    METADATA,
    Column("user", String(20), primary_key=True),
    Column("order", Integer, primary_key=True),
)


@pytest.fixture
def posts(engine):
    return created(engine, POSTS)


def created(engine, table):
    marks = Marks(table)
    marks.table.drop(engine, checkfirst=True)
    marks.table.create(engine)
    return marks


def read(engine, marks, *keys):
    with engine.connect() as connection:
        return marks.marks_of(connection, keys)


class Marking:
    def test_each_transaction_raises_a_version_by_one(self, engine, posts):
        for keys in ([(1,), (2,)], [(2,), (2,)], []):
            with engine.begin() as connection:
                posts.raise_versions(connection, keys, number=1)
        assert read(engine, posts, (1,), (2,), (3,)) == {
            (1,): RowMark(object_id=None, version=1, copied=0, round=1),
            (2,): RowMark(object_id=None, version=2, copied=0, round=1),
        }

    def test_a_transaction_that_is_rolled_back_marks_nothing(self, engine, posts):
        with engine.connect() as connection:
            posts.raise_versions(connection, [(1,)], number=1)
            connection.rollback()
        assert read(engine, posts, (1,)) == {}

    def test_claims_of_a_round_are_made_once(self, engine, posts):
        with engine.begin() as connection:
            posts.raise_versions(connection, [(1,)], number=1)
            posts.set_copied(connection, {(1,): 1})
        for number, version in ((1, 1), (1, 1), (2, 2), (2, 2)):
            with engine.begin() as connection:
                posts.claim(connection, [(1,), (2,)], number=number)
            marks = read(engine, posts, (1,), (2,))
            assert [mark.version for mark in marks.values()] == [version] * 2
        assert marks[1,].copied == 1
        assert marks[1,].waits

    def test_rows_that_wait_in_pages(self, engine):
        likes = created(engine, LIKES)
        keys = [(user, order) for user in "ab" for order in (1, 2, 3)]
        with engine.begin() as connection:
            # The ids have the opposite order.
            likes.claim(
                connection,
                keys,
                number=1,
                ids={key: 9 - index for index, key in enumerate(keys)},
            )
            likes.set_copied(connection, {("a", 2): 1, ("b", 1): 1})
            found, after = [], 0
            while page := likes.marked(connection, after=after, limit=2, waits=True):
                found += page.values()
                after = max(page)
            assert likes.count_waiting(connection) == len(found)
            assert [*likes.marked(connection, after=5, limit=3)] == [6, 7, 8]
        assert found == [("b", 3), ("b", 2), ("a", 3), ("a", 1)]

    def test_a_late_copy_does_not_lower_what_is_recorded(self, engine, posts):
        with engine.begin() as connection:
            posts.raise_versions(connection, [(1,)], number=1)
            posts.raise_versions(connection, [(1,)], number=1)
            posts.set_copied(connection, {(1,): 2})
            posts.set_copied(connection, {(1,): 1})
            assert not posts.count_waiting(connection)
            # A write after the copy was read.
            posts.raise_versions(connection, [(1,)], number=1)
            posts.set_copied(connection, {(1,): 2})
            assert posts.waiting_without_id(connection) == [(1,)]

    def test_ids_are_claimed_once(self, engine, posts):
        first, other = pack(1, 1, 7), pack(2, 1, 7)
        with engine.begin() as connection:
            posts.claim(connection, [(7,), (8,)], number=1)
            assert posts.claim_ids(connection, {(7,): first}) == {(7,): first}
        with engine.begin() as connection:
            assert posts.claim_ids(connection, {(7,): other}) == {(7,): first}
            assert posts.keys_of(connection, [first, other]) == {first: (7,)}
        with pytest.raises(IntegrityError), engine.begin() as connection:
            posts.claim_ids(connection, {(8,): first})

    def test_a_copy_is_received_once_and_only_if_it_is_newer(self, engine, posts):
        for versions, newer in (
            ({(1,): 2, (2,): 1}, {(1,), (2,)}),
            ({(1,): 2, (2,): 3}, {(2,)}),
            ({(1,): 1}, set()),
            ({}, set()),
        ):
            with engine.begin() as connection:
                found = posts.receive(connection, versions, number=1)
            assert found == newer
        assert read(engine, posts, (1,)) == {
            (1,): RowMark(object_id=None, version=2, copied=2, round=1)
        }
        with engine.begin() as connection:
            assert posts.outdated(connection, number=2) == [(1,), (2,)]
            assert posts.outdated(connection, number=1) == []

    def test_many_keys(self, engine, posts):
        keys = [(number,) for number in range(1, 1202)]
        ids = {(n,): pack(n % 16, 1, n) for (n,) in keys}
        with engine.begin() as connection:
            posts.claim(connection, keys, number=1)
            assert posts.claim_ids(connection, ids) == ids
            found = posts.marked(connection, limit=5000, waits=True)
            assert len(found) == 1201

    def test_concurrent_transactions_count_every_write(self, engine, posts):
        def write(seed):
            chosen = Random(seed)
            for _ in range(20):
                keys = [(chosen.randrange(6),) for _ in range(4)]
                with engine.begin() as connection:
                    # One has a snapshot of versions that are raised since.
                    DatabaseFence().enter(connection)
                    posts.raise_versions(connection, keys, number=1)
                yield from set(keys)

        with engine.begin() as connection:
            DatabaseFence().create(connection)
        with ThreadPoolExecutor(4) as pool:
            written = sum(pool.map(lambda i: len([*write(i)]), range(4)))
        keys = [(number,) for number in range(6)]
        marks = read(engine, posts, *keys)
        assert sum(mark.version for mark in marks.values()) == written


class Fencing:
    def test_it_waits_for_transactions_that_have_entered(self, engine):
        fence = DatabaseFence()
        fence.table.drop(engine, checkfirst=True)
        with engine.begin() as connection:
            fence.create(connection)
            fence.create(connection)
        changed = Event()

        def change():
            with engine.begin() as connection:
                fence.write(connection, MARKING)
            changed.set()

        with ThreadPoolExecutor(1) as pool:
            with engine.begin() as connection:
                assert fence.enter(connection) == Progress()
                done = pool.submit(change)
                # Longer is not needed: it fails without the lock only if
                # the change takes longer.
                assert not changed.wait(0.3)
                assert fence.enter(connection) == Progress()
            done.result(60)
        with engine.begin() as connection:
            assert fence.enter(connection) == MARKING

    def test_without_the_table(self, engine):
        fence = DatabaseFence()
        fence.table.drop(engine, checkfirst=True)
        refused = pytest.raises(StageUnavailableError, match="plan --create")
        with engine.begin() as connection, refused:
            fence.enter(connection)

    def test_an_older_process_does_not_lower_it(self, engine):
        fence = DatabaseFence()
        fence.table.drop(engine, checkfirst=True)
        with engine.begin() as connection:
            fence.create(connection)
            fence.write(connection, replace(MARKING, number=3))
            fence.write(connection, replace(MARKING, number=2))
            assert fence.read(connection) == replace(MARKING, number=3)


class Moving:
    """A whole move of a table of counters, while threads write them.

    The fixture ``sides`` has an engine for each side.  Each writer knows the
    stage only from fences that refused it; processes die at random steps.
    """

    writers = 3
    writes = 30
    keys = 2

    @pytest.mark.parametrize("path", PATHS)
    def test_every_write_is_on_the_side_that_is_the_truth(self, sides, path, tmp_path):
        seed = random.randrange(1_000_000)
        expected = self.writers * self.writes
        move = Move(sides, tmp_path / "topology.toml", seed, expected)
        with ThreadPoolExecutor(self.writers + 1) as pool:
            futures = [
                pool.submit(move.writer, index, self.writes, self.keys)
                for index in range(self.writers)
            ]
            tool = pool.submit(move.tool, path.split())
            for future in (*futures, tool):
                future.result(300)
        stage = move.store.read().rules
        if stage.copies is not None:
            move.drain(stage)
            assert move.values("legacy") == move.values("shards")
        assert move.values(stage.truth) == move.acknowledged
        assert move.acknowledged.total() == expected
        assert move.deaths

    def test_a_late_copy_changes_nothing(self, sides, tmp_path):
        move = Move(sides, tmp_path / "topology.toml", 1, 0)
        legacy, shards = move.sides["legacy"], move.sides["shards"]

        def write(part, row):
            with part.begin() as connection:
                part.write(connection, {(1,): row})
                part.marks.raise_versions(connection, [(1,)], number=1)

        write(legacy, {"id": 1, "value": 1})
        late = read_images(legacy, [(1,)])
        write(legacy, {"id": 1, "value": 2})
        copy_rows(legacy, shards, [(1,)], number=1)
        assert apply_images(shards, late, number=1) == 0
        record_images(legacy, late)
        assert move.values("shards") == {1: 2}
        # The shards become the truth, and delete the row.
        late = read_images(legacy, [(1,)])
        write(shards, None)
        assert apply_images(shards, late, number=1) == 0
        copy_rows(shards, legacy, [(1,)], number=1)
        assert move.values("legacy") == move.values("shards") == {}

    def test_a_pass_finds_and_repairs_what_was_written_without_a_mark(
        self, sides, tmp_path
    ):
        move = Move(sides, tmp_path / "topology.toml", 1, 0)
        legacy, shards = move.sides["legacy"], move.sides["shards"]
        keys = [(number,) for number in range(1, 8)]
        rows = {key: {"id": key[0], "value": 0} for key in keys}
        with legacy.begin() as connection:
            legacy.write(connection, {key: rows[key] for key in keys[:5]})
            legacy.marks.claim(connection, keys[:5], number=1)
        copy_rows(legacy, shards, keys, number=1)
        with legacy.begin() as connection:
            # Changed, deleted and inserted by another program.
            legacy.write(connection, {(1,): {"id": 1, "value": 9}})
            legacy.write(connection, {(2,): None, (6,): rows[6,]})
            # And one by a session, whose copy is on its way.
            legacy.write(connection, {(3,): {"id": 3, "value": 1}})
            legacy.marks.raise_versions(connection, [(3,)], number=1)
        with shards.begin() as connection:
            shards.write(connection, {(7,): rows[7,]})

        def compared():
            seen = [look(part, keys) for part in (legacy, shards)]
            return compare(*seen, keys, is_same=dict.__eq__)

        found = compared()
        assert found == Comparison(
            same=2, waiting=((3,),), different=((1,), (2,)), unmarked=((6,), (7,))
        )
        assert not found.is_equal
        with legacy.begin() as connection:
            with pytest.raises(StageChangedError, match="stage is legacy"):
                legacy.fence.enter_as(connection, MARKING)
            legacy.fence.enter_as(connection, Progress())
            legacy.marks.raise_versions(
                connection, [*found.different, *found.unmarked], number=1
            )
        copy_rows(legacy, shards, keys, number=1)
        assert compared().is_equal
        assert compared().same == len(keys)
        assert move.values("shards") == move.values("legacy")
        assert set(move.values("shards")) == {1, 3, 4, 5, 6}
