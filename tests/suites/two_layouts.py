"""Two keyspaces of objects in one cluster, with ids of two layouts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import func, insert, select, text, update
from sqlalchemy.orm import DeclarativeBase, foreign, Mapped, mapped_column, relationship

from sqla_shard import (
    blob_field,
    Cluster,
    exc,
    LookupMixin,
    MappingMixin,
    ObjectMixin,
    ObjectRef,
    operation,
    scatter,
    ShardSession,
)
from sqla_shard.ids import DEFAULT_LAYOUT, IdLayout
from sqla_shard.jobs import respace_by_job, task, Worker
from sqla_shard.lookup import normalization, sign_up
from sqla_shard.models.deletion import delete_object
from sqla_shard.testing import jobs_enqueued
from sqla_shard.topology import find_object, Topology
from sqla_shard.upkeep import verify_relations
from tests.models.backends import Clusters, with_cache

PHOTOS = IdLayout(shard_bits=10, type_bits=6, local_bits=44)
#: An id of a user on shard 1, and of a photo on shard 0.
BOTH = DEFAULT_LAYOUT.pack(1, 3, 9)


class Base(DeclarativeBase):
    pass


class Photos(Base):
    __abstract__ = True
    id_layout = PHOTOS


class User(ObjectMixin, Base, type_id=3, keyspace="objects"):
    __tablename__ = "users"
    name: Mapped[str] = blob_field(default="")
    photo_id: Mapped[int | None] = blob_field(ref="Photo", default=None)


class Photo(ObjectMixin, Photos, type_id=4, keyspace="photos"):
    __tablename__ = "photos"
    title: Mapped[str] = blob_field(default="")
    user_id: Mapped[int | None] = mapped_column(ObjectRef(3, layout=DEFAULT_LAYOUT))
    n: Mapped[int] = mapped_column(default=0)
    user: Mapped[User | None] = relationship(
        primaryjoin=lambda: foreign(Photo.user_id) == User.id, viewonly=True
    )


class Crop(ObjectMixin, Photos, type_id=5, keyspace="photos", colocate_with="photo_id"):
    __tablename__ = "crops"
    photo_id: Mapped[int] = blob_field(ref=Photo)


class UserHasPhotos(
    MappingMixin, Base, source=User, target=Photo, inverse="PhotoOfUsers"
):
    pass


class PhotoOfUsers(MappingMixin, Base, source=Photo, target=User):
    pass


class PhotoHasRated(MappingMixin, Base, source=Photo, target=User):
    pass


respace = respace_by_job(PhotoHasRated)


class PhotoSlug(LookupMixin, Base, target="Photo", normalize=normalization.casefold):
    pass


@operation("tests.layouts.count_view", keyspace="photos")
def count_view(session: ShardSession, photo_id: int) -> None:
    more = update(Photo).where(Photo.id == photo_id).values(n=Photo.n + 1)
    session.execute(more)


@task("tests.layouts.view", keyspace="photos")
def view(session: ShardSession, photo_id: int) -> None:
    count_view(session, photo_id)


cluster = Clusters(
    Base.metadata,
    shards=8,
    lookup=2,
    more={"photos": PHOTOS},
    prepare=with_cache("layouts", User, Photo),
).on_backend()


@pytest.fixture
def session(cluster: Cluster) -> Iterator[ShardSession]:
    with cluster.session() as session:
        yield session


def stored(cluster: Cluster, new: Any, shard_id: int) -> int:
    """Insert an object on a shard; return its id."""
    with cluster.begin(shard_id=shard_id) as session:
        session.add(new)
        session.flush()
        return int(new.id)


def photos(cluster: Cluster, **values: Any) -> list[int]:
    """Insert a photo on each shard; return their ids."""
    return [stored(cluster, Photo(**values), n) for n in range(8)]


class TwoLayouts:
    def test_each_class_has_ids_of_its_keyspace(
        self, cluster: Cluster, session: ShardSession
    ) -> None:
        user_id = stored(cluster, User(name="a"), 5)
        photo_id = stored(cluster, Photo(title="b", user_id=user_id), 5)
        assert DEFAULT_LAYOUT.unpack(user_id)[:2] == (5, 3)
        assert PHOTOS.unpack(photo_id)[:2] == (5, 4)
        local = session.connection({"mapper": Photo, "shard_id": 5}).scalar(
            text("SELECT MAX(local_id) FROM photos")
        )
        assert local == PHOTOS.unpack(photo_id).local_id
        photo = session.get_one(Photo, photo_id)
        assert photo.shard_id == 5
        assert photo.user is session.get_one(User, user_id)
        session.expire_all()
        assert session.get_one(Photo, photo_id).title == "b"
        assert session.get_one(User, user_id).name == "a"

    def test_one_number_is_two_objects(self, cluster: Cluster) -> None:
        with cluster.begin() as session:
            session.add(User(id=BOTH, name="user"))
        with cluster.begin() as session:
            session.add(Photo(id=BOTH, title="photo"))
        # From the servers, and from the cache.
        for _ in range(3):
            with cluster.session() as session:
                user = session.get_one(User, BOTH)
                photo = session.get_one(Photo, BOTH)
                assert (user.shard_id, photo.shard_id) == (1, 0)
                assert (user.name, photo.title) == ("user", "photo")
            with cluster.session() as session:
                (photo,) = session.get_many(Photo, [BOTH])
                (user,) = session.get_many(User, [BOTH])
                assert (user.name, photo.title) == ("user", "photo")

    def test_ids_of_the_other_layout_are_refused(
        self, cluster: Cluster, session: ShardSession
    ) -> None:
        user_id = stored(cluster, User(), 2)
        photo_id = stored(cluster, Photo(), 2)
        for entity, wrong in ((User, photo_id), (Photo, user_id)):
            for read in (
                lambda e=entity, i=wrong: session.get(e, i),
                lambda e=entity, i=wrong: session.get_many(e, [i]),
                lambda e=entity, i=wrong: session.scalars(
                    select(e).where(e.id == i)
                ).all(),
                lambda e=entity, i=wrong: session.scalars(
                    select(e).where(e.id.in_([i, i]))
                ).all(),
            ):
                with pytest.raises(exc.InvalidIdError):
                    read()
        with pytest.raises(exc.InvalidIdError):
            UserHasPhotos.append(session, user_id, user_id)
        with pytest.raises(exc.InvalidIdError):
            PhotoOfUsers.page(session, user_id)
        with pytest.raises(exc.InvalidIdError):
            PhotoSlug.claim(session, "slug", user_id)
        session.rollback()

    def test_many_photos(self, cluster: Cluster) -> None:
        ids = photos(cluster, title="many")
        mixed = [*ids[::-1], PHOTOS.pack(3, 4, 10**13), ids[0]]
        with cluster.session() as session:
            found = session.get_many(Photo, mixed)
            assert [one and one.id for one in found] == [*ids[::-1], None, ids[0]]
            both = session.scalars(
                select(Photo)
                .where(Photo.id.in_(mixed), Photo.id < ids[5])
                .order_by(Photo.id)
            ).all()
            assert [one.id for one in both] == ids[:5]
            last = session.scalars(
                select(Photo.id)
                .where(Photo.title == "many")
                .order_by(Photo.id.desc())
                .limit(3)
                .options(scatter())
            ).all()
            assert last == ids[:-4:-1]

    def test_bulk_writes(self, cluster: Cluster) -> None:
        with cluster.begin(shard_id=6) as session:
            rows = [{"title": f"bulk {n}", "n": 0} for n in range(3)]
            ids = list(session.scalars(insert(Photo).returning(Photo.id), rows))
            assert {PHOTOS.unpack(one)[:2] for one in ids} == {(6, 4)}
            session.execute(update(Photo).where(Photo.id.in_(ids)).values(n=7))
        with cluster.session() as session:
            found = session.get_many(Photo, ids)
            assert [(one.title, one.n) for one in found] == [
                (f"bulk {n}", 7) for n in range(3)
            ]

    def test_children_are_on_the_shard_of_their_parent(self, cluster: Cluster) -> None:
        photo_id = stored(cluster, Photo(), 7)
        with cluster.begin() as session:
            crop = Crop(photo_id=photo_id)
            session.add(crop)
            session.flush()
            assert PHOTOS.unpack(crop.id)[:2] == (7, 5)
            assert crop.shard_id == 7
            crop_id = crop.id
        plan = delete_object(cluster, Photo, photo_id)
        assert plan.object_id == photo_id
        with cluster.session() as session:
            assert session.get(Crop, crop_id) is None

    def test_lists_of_targets_with_the_other_layout(self, cluster: Cluster) -> None:
        user_id = stored(cluster, User(), 3)
        ids = photos(cluster)
        with cluster.begin(cross_shard="logged") as session:
            for one in ids:
                UserHasPhotos.append(session, user_id, one)
        cluster.repair()
        seen: list[int] = []
        after = None
        with cluster.session() as session:
            while True:
                page = UserHasPhotos.page(session, user_id, limit=3, after=after)
                seen += [row.photo_id for row in page.items]
                after = page.next
                if after is None:
                    break
            assert seen == ids[::-1]
            assert UserHasPhotos.contains(session, user_id, ids) == set(ids)
            for one in ids:
                (row,) = PhotoOfUsers.page(session, one).items
                assert row.user_id == user_id
                assert row.source.id == one
        report = verify_relations(cluster, [UserHasPhotos, PhotoOfUsers], grace=0)
        assert not report.findings

    def test_lookups(self, cluster: Cluster) -> None:
        photo_id = stored(cluster, Photo(), 4)
        with cluster.begin() as session:
            claim = PhotoSlug.claim(session, "Boats", photo_id)
        with cluster.session() as session:
            assert PhotoSlug.resolve(session, "boats") == photo_id
        assert claim is not None

        def create(session: ShardSession) -> int:
            photo = Photo(title="signed up", shard_id=2)
            session.add(photo)
            session.flush()
            return photo.id

        made = sign_up(cluster, {PhotoSlug: "cars"}, create)
        assert PHOTOS.unpack(made)[:2] == (2, 4)
        with cluster.session() as session:
            assert PhotoSlug.resolve(session, "CARS") == made

    def test_operations_and_jobs_are_on_the_shard_of_an_id(
        self, cluster: Cluster
    ) -> None:
        user_id = stored(cluster, User(), 1)
        photo_id = stored(cluster, Photo(), 6)
        with cluster.begin(cross_shard="logged") as session:
            session.get_one(User, user_id).name = "viewer"
            count_view.intend(session, photo_id)
        cluster.repair()
        with cluster.begin() as session:
            session.get_one(Photo, photo_id).title = "seen"
            job = view.enqueue(session, photo_id, near=photo_id)
            assert job is not None
        Worker(cluster, queues=["default"]).run(until_empty=True)
        with cluster.session() as session:
            assert session.get_one(Photo, photo_id).n == 2

    def test_a_list_is_respaced_in_the_keyspace_of_its_source(
        self, cluster: Cluster
    ) -> None:
        photo_id = stored(cluster, Photo(), 5)
        users = [stored(cluster, User(), n) for n in range(3)]
        with cluster.begin() as session:
            for one in users:
                PhotoHasRated.append(session, photo_id, one)
        job = None
        while job is None:
            with cluster.begin() as session:
                page = PhotoHasRated.page(session, photo_id)
                first, *_, last = [row.user_id for row in page.items]
                PhotoHasRated.move(session, photo_id, last, before=first)
                job = next(iter(jobs_enqueued(session, respace)), None)
        assert (job.keyspace, job.shard_id) == ("photos", 5)
        Worker(cluster, queues=["default"]).run(until_empty=True)
        with cluster.session() as session:
            assert jobs_enqueued(session, respace) == []

    def test_an_id_alone_is_ambiguous(self, cluster: Cluster) -> None:
        topology = cluster.topology
        photo_id = PHOTOS.pack(6, 4, 1)
        for read in (
            lambda: cluster.explain(photo_id),
            lambda: find_object(topology, photo_id),
            lambda: topology.id_layout(),
        ):
            with pytest.raises(exc.UnknownKeyspaceError, match="'photos'"):
                read()
        found = cluster.explain(photo_id, keyspace="photos")
        assert (found.keyspace, found.shards) == ("photos", (6,))
        assert "shard 6, type 4, local id 1" in str(found)
        assert find_object(topology, photo_id, "photos").shard_id == 6
        assert cluster.explain(select(Photo).where(Photo.id == photo_id)).shards == (6,)

    def test_a_class_with_another_layout_than_its_keyspace(
        self, cluster: Cluster
    ) -> None:
        document = cluster.topology.to_mapping()
        document["keyspaces"]["photos"]["id_layout"]["local_bits"] = 45
        wrong = Topology.from_mapping(document)
        with Cluster.from_topology(wrong) as other:
            with other.session() as session:
                for use in (
                    lambda: session.get(Photo, PHOTOS.pack(1, 4, 1)),
                    lambda: session.get_many(Photo, [PHOTOS.pack(1, 4, 1)]),
                    lambda: session.scalars(select(Photo)).all(),
                    lambda: session.execute(insert(Photo), [{"n": 1}]),
                    lambda: PhotoOfUsers.page(session, PHOTOS.pack(1, 4, 1)),
                    lambda: session.connection({"mapper": Photo, "shard_id": 1}),
                    lambda: session.scalars(
                        select(func.count(Photo.id)),
                        bind_arguments={"keyspace": "photos", "shard_id": 1},
                    ).all(),
                ):
                    with pytest.raises(
                        exc.IdLayoutMismatchError, match="45 local bits"
                    ):
                        use()
                session.rollback()
                session.add(Photo(shard_id=1))
                with pytest.raises(exc.IdLayoutMismatchError):
                    session.flush()
            with pytest.raises(exc.IdLayoutMismatchError):
                other.create_all(Base.metadata)

    def test_no_local_id_is_left(self, cluster: Cluster) -> None:
        last = PHOTOS.pack(1, 5, PHOTOS.max_local_id)
        parent = stored(cluster, Photo(), 1)
        with cluster.begin() as session:
            # The next of AUTO_INCREMENT has a bit more.
            session.add(Crop(id=last, photo_id=parent))
        with cluster.session() as session:
            session.add(Crop(photo_id=parent))
            with pytest.raises(exc.LocalIdsExhaustedError, match="44 bits"):
                session.flush()
            session.rollback()
            statement = insert(Crop).returning(Crop.id)
            with pytest.raises(exc.LocalIdsExhaustedError, match="44 bits"):
                session.scalars(statement, [{"photo_id": parent}]).all()
        with cluster.session() as session:
            found = session.scalars(
                select(Crop).options(scatter()).order_by(Crop.id)
            ).all()
            assert [one.id for one in found if one.photo_id == parent] == [last]
