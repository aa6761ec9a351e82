"""Ids that begin with the time: they are issued by the clock of a shard."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from datetime import datetime, UTC
from itertools import count
from threading import Barrier
from typing import Any

import pytest
from sqlalchemy import event, insert, select, text, update

from sqla_shard import Cluster, exc, operation, scatter, ShardSession
from sqla_shard.ids import DEFAULT_LAYOUT
from sqla_shard.jobs import task, Worker
from sqla_shard.lookup import sign_up
from sqla_shard.models.deletion import delete_object
from sqla_shard.outbox.tables import CLOCKS
from sqla_shard.topology import find_object
from sqla_shard.upkeep import verify_relations
from tests.models.backends import Clusters, with_cache
from tests.models.time_models import (
    Base,
    Crop,
    insert_photos,
    Photo,
    PhotoOfUsers,
    PhotoSlug,
    Scan,
    TIMES,
    User,
    UserHasPhotos,
)

#: Days at which the clocks of tests begin: the clock of a shard, which all
#: tests share, never goes back.
_DAYS = count(22_000)
_DAY_MS = 86_400_000
NOW_MS = 1_800_000_000_000


@operation("tests.times.count_view", keyspace="photos")
def count_view(session: ShardSession, photo_id: int) -> None:
    more = update(Photo).where(Photo.id == photo_id).values(n=Photo.n + 1)
    session.execute(more)


@task("tests.times.view", keyspace="photos")
def view(session: ShardSession, photo_id: int) -> None:
    count_view(session, photo_id)


cluster = Clusters(
    Base.metadata,
    shards=8,
    lookup=2,
    more={"photos": TIMES},
    prepare=with_cache("times", User, Photo),
).on_backend()


class Clock:
    """A clock that a test owns."""

    def __init__(self, now_ms: int) -> None:
        self.start = self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms * 1_000_000


@pytest.fixture
def clock(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(next(_DAYS) * _DAY_MS)
    monkeypatch.setattr(cluster, "id_clock", clock)
    return clock


def photos(cluster: Cluster, shard_id: int, count: int) -> list[int]:
    """Insert photos in a flush; return their ids in order."""
    with cluster.begin(shard_id=shard_id) as session:
        new = [Photo(title=str(n)) for n in range(count)]
        session.add_all(new)
        session.flush()
        return [one.id for one in new]


def parts(object_id: int) -> tuple[int, int, int]:
    """Return the shard, the milliseconds and the sequence number."""
    found = TIMES.unpack(object_id)
    time, sequence = divmod(found.local_id, 1 << TIMES.sequence_bits)
    return found.shard_id, TIMES.epoch_ms + time, sequence


class TimeClock:
    def test_ids_have_the_time_and_the_shard(
        self, cluster: Cluster, clock: Clock
    ) -> None:
        assert [parts(one) for one in photos(cluster, 0, 3)] == [
            (0, clock.start, n) for n in range(3)
        ]
        clock.now_ms += 5
        assert [parts(one) for one in photos(cluster, 0, 2)] == [
            (0, clock.start + 5, n) for n in range(2)
        ]

    def test_a_clock_that_goes_back(self, cluster: Cluster, clock: Clock) -> None:
        ids = photos(cluster, 1, 2)
        for back in (1, 60_000, clock.start):
            clock.now_ms = clock.start - back
            ids += photos(cluster, 1, 2)
        assert [parts(one) for one in ids] == [(1, clock.start, n) for n in range(8)]
        clock.now_ms = clock.start + 1
        assert parts(photos(cluster, 1, 1)[0]) == (1, clock.start + 1, 0)

    def test_more_rows_than_the_sequence_of_a_millisecond(
        self, cluster: Cluster, clock: Clock
    ) -> None:
        with cluster.begin(shard_id=2) as session:
            session.execute(insert(Photo), [{"title": "many"}] * 2500)
        ids = photos(cluster, 2, 1)
        with cluster.session() as session:
            stored = session.scalars(
                select(Photo.id).where(Photo.title == "many"),
                bind_arguments={"shard_id": 2},
            ).all()
        assert len(set(stored)) == 2500
        assert [parts(one)[1:] for one in (min(stored), max(stored))] == [
            (clock.start, 0),
            (clock.start + 2, 451),
        ]
        assert parts(ids[0])[1:] == (clock.start + 2, 452)

    def test_processes_whose_clocks_differ(
        self, cluster: Cluster, clock: Clock
    ) -> None:
        document = cluster.topology.to_mapping()
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(3, mp_context=spawn) as pool:
            runs = [
                pool.submit(insert_photos, document, 3, clock.start + skew, 12)
                for skew in (0, 1, -10_000)
            ]
            found = [run.result(timeout=300) for run in runs]
        assert all(ids == sorted(ids) for ids in found)
        ids = {one for ids in found for one in ids}
        assert len(ids) == 3 * 12 * 4
        with cluster.session() as session:
            assert None not in session.get_many(Photo, sorted(ids))

    def test_the_first_ids_of_a_shard(self, cluster: Cluster, clock: Clock) -> None:
        place = cluster.places.place(cluster.topology.keyspace("photos"), 6)
        several = 1 if place.backend.one_writer else 3
        # All of them have missed the row before the first inserts it.
        missed = Barrier(several)

        def wait(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
            if "INSERT" in statement and CLOCKS.name in statement:
                missed.wait(60)

        event.listen(place.engine, "before_cursor_execute", wait)
        try:
            with ThreadPoolExecutor(several) as pool:
                runs = [pool.submit(photos, cluster, 6, 2) for _ in range(several)]
                ids = [one for run in runs for one in run.result(120)]
        finally:
            event.remove(place.engine, "before_cursor_execute", wait)
        assert [parts(one) for one in sorted(ids)] == [
            (6, clock.start, n) for n in range(2 * several)
        ]

    def test_time_that_has_too_many_bits(self, cluster: Cluster, clock: Clock) -> None:
        before = photos(cluster, 4, 1)
        clock.now_ms = TIMES.epoch_ms + (1 << TIMES.time_bits)
        with pytest.raises(exc.LocalIdsExhaustedError):
            photos(cluster, 4, 1)
        # The clock of the shard was not advanced.
        clock.now_ms = clock.start
        assert photos(cluster, 4, 1) == [before[0] + 1]

    def test_rolled_back_ids(self, cluster: Cluster, clock: Clock) -> None:
        with cluster.session(shard_id=5) as session:
            session.add(new := Photo())
            session.flush()
            lost = new.id
            session.rollback()
        again = photos(cluster, 5, 1)[0]
        # A file of SQLite has one writer, which rolls back the clock too.
        place = cluster.places.place(cluster.topology.keyspace("photos"), 5)
        assert again == lost + (0 if place.backend.one_writer else 1)


def stored(cluster: Cluster, new: Any, shard_id: int) -> int:
    with cluster.begin(shard_id=shard_id) as session:
        session.add(new)
        session.flush()
        return int(new.id)


class TimeInserts:
    def test_every_kind_of_insert(self, cluster: Cluster) -> None:
        given = TIMES.pack_time(NOW_MS - 10**9, 6, 7)
        rows: list[dict[str, Any]] = [{"title": "a"}, {"title": "b"}]
        before = [dict(row) for row in rows]
        with cluster.begin(shard_id=6) as session:
            ids = session.scalars(insert(Photo).returning(Photo.id), rows)
            made = [*ids]
            mixed = [{"title": "c", "id": given}, {"title": "d", "id": None}]
            made += session.scalars(insert(Photo).returning(Photo.id), mixed).all()
            made += session.scalars(
                insert(Photo).values(title="e").returning(Photo.id)
            ).all()
            made += session.scalars(
                insert(Photo)
                .values([{"title": "f"}, {"title": "g"}])
                .returning(Photo.id)
            ).all()
            session.execute(insert(Photo.__table__), {"data": {}, "n": 77})
        assert rows == before
        assert given in made
        assert len(set(made)) == 7
        with cluster.session() as session:
            found = session.get_many(Photo, made)
            assert sorted(one.title for one in found) == [*"abcdefg"]
            assert session.scalars(
                select(Photo).where(Photo.n == 77).options(scatter())
            ).one()
            with pytest.raises(exc.UnsupportedStatementError, match="'id'"):
                session.execute(
                    insert(Photo).from_select(
                        ["data", "n"], select(Photo.data, Photo.n)
                    ),
                    bind_arguments={"shard_id": 6},
                )

    def test_an_object_that_is_added_during_the_flush(self, cluster: Cluster) -> None:
        with cluster.begin(shard_id=2) as session:

            def add(*_: Any) -> None:
                session.add(Photo(title="late", shard_id=2))

            event.listen(session, "before_flush", add, once=True)
            session.add(Photo(title="early"))
            session.flush()
            late = session.scalars(
                select(Photo).where(Photo.title == "late").options(scatter())
            ).one()
            assert TIMES.shard_of(late.id) == 2

    def test_rows_that_share_the_id_of_another(self, cluster: Cluster) -> None:
        photo_id = stored(cluster, Photo(), 3)
        with cluster.begin() as session:
            session.add(Scan(id=photo_id, n=1))
        with cluster.session() as session:
            assert session.get_one(Scan, photo_id).n == 1


class TimeIds:
    def test_reads(self, cluster: Cluster, clock: Clock) -> None:
        ids = [stored(cluster, Photo(title=f"{n}"), n) for n in range(8)]
        # On every shard, since the time precedes the shard.
        assert sorted(ids) == ids
        for _ in range(2):  # from the servers, and from the cache
            with cluster.session() as session:
                assert session.get_one(Photo, ids[3]).shard_id == 3
                found = session.get_many(
                    Photo, [*ids[::-1], TIMES.pack_time(NOW_MS, 3, 0)]
                )
                assert [one and one.title for one in found] == [
                    *(str(n) for n in range(7, -1, -1)),
                    None,
                ]
        with cluster.session() as session:
            assert (
                session.scalars(
                    select(Photo.id)
                    .where(Photo.id.between(ids[1], ids[6]))
                    .order_by(Photo.id.desc())
                    .options(scatter())
                ).all()
                == ids[6:0:-1]
            )
            page = session.scatter_page(
                select(Photo).where(Photo.id >= ids[0]).order_by(Photo.id), 5
            )
            more = session.scatter_page(
                select(Photo).where(Photo.id >= ids[0]).order_by(Photo.id), 5, page.next
            )
            assert [one.id for one in (*page.items, *more.items)] == ids

    def test_children_and_deletion(self, cluster: Cluster) -> None:
        photo_id = stored(cluster, Photo(), 7)
        with cluster.begin() as session:
            crop = Crop(photo_id=photo_id)
            session.add(crop)
            session.flush()
            crop_id = crop.id
        assert TIMES.shard_of(crop_id) == 7
        assert crop_id != photo_id
        delete_object(cluster, Photo, photo_id)
        with cluster.session() as session:
            assert session.get(Crop, crop_id) is None

    def test_lists_and_references(self, cluster: Cluster) -> None:
        ids = [stored(cluster, Photo(), n) for n in range(8)]
        user_id = stored(cluster, User(photo_id=ids[4]), 3)
        with cluster.begin(cross_shard="logged") as session:
            assert session.get_one(User, user_id).photo_id == ids[4]
            for one in ids:
                UserHasPhotos.append(session, user_id, one)
        cluster.repair()
        with cluster.session() as session:
            page = UserHasPhotos.page(session, user_id, limit=5)
            more = UserHasPhotos.page(session, user_id, after=page.next)
            assert [row.photo_id for row in (*page.items, *more.items)] == (ids[::-1])
            for one in ids:
                (row,) = PhotoOfUsers.page(session, one).items
                assert row.user_id == user_id
        report = verify_relations(cluster, [UserHasPhotos, PhotoOfUsers], grace=0)
        assert not report.findings

    def test_lookups(self, cluster: Cluster) -> None:
        photo_id = stored(cluster, Photo(), 4)
        with cluster.begin() as session:
            PhotoSlug.claim(session, "Boats", photo_id)

        def create(session: ShardSession) -> int:
            photo = Photo(shard_id=2)
            session.add(photo)
            session.flush()
            return photo.id

        made = sign_up(cluster, {PhotoSlug: "cars"}, create)
        with cluster.session() as session:
            assert PhotoSlug.resolve(session, "boats") == photo_id
            assert PhotoSlug.resolve(session, "CARS") == made

    def test_operations_and_jobs(self, cluster: Cluster) -> None:
        user_id = stored(cluster, User(), 1)
        photo_id = stored(cluster, Photo(), 6)
        with cluster.begin(cross_shard="logged") as session:
            session.get_one(User, user_id).name = "viewer"
            count_view.intend(session, photo_id)
        cluster.repair()
        with cluster.begin() as session:
            session.get_one(Photo, photo_id).title = "seen"
            view.enqueue(session, photo_id, near=photo_id)
        Worker(cluster, queues=["default"]).run(until_empty=True)
        with cluster.session() as session:
            assert session.get_one(Photo, photo_id).n == 2

    def test_explaining(self, cluster: Cluster) -> None:
        photo_id = TIMES.pack_time(NOW_MS, 6, 1)
        moment = datetime.fromtimestamp(NOW_MS / 1000, UTC)
        found = cluster.explain(photo_id, keyspace="photos")
        assert found.shards == (6,)
        assert f"shard 6, {moment:%Y-%m-%dT%H:%M:%S}.000Z" in str(found)
        assert find_object(cluster.topology, photo_id, "photos").shard_id == 6
        assert cluster.explain(select(Photo).where(Photo.id == photo_id)).shards == (6,)
        with pytest.raises(exc.UnknownKeyspaceError, match="'photos'"):
            cluster.explain(photo_id)

    def test_ids_of_no_such_shard_or_layout(self, cluster: Cluster) -> None:
        with cluster.session() as session:
            with pytest.raises(exc.UnknownShardError):
                session.get(Photo, TIMES.pack_time(NOW_MS, 4000, 0))
            with pytest.raises(exc.InvalidIdError):
                session.get(User, TIMES.pack_time(2**40 + NOW_MS, 1, 0))
            with pytest.raises(exc.InvalidIdError):
                session.get(Photo, 2**63)
            with pytest.raises(exc.WrongTypeError):
                session.get(User, DEFAULT_LAYOUT.pack(1, 4, 1))

    def test_whole_ids_are_stored(self, cluster: Cluster) -> None:
        photo_id = stored(cluster, Photo(), 5)
        with cluster.session() as session:
            found = session.connection({"mapper": Photo, "shard_id": 5}).scalar(
                text("SELECT MAX(id) FROM photos")
            )
        assert found == photo_id
