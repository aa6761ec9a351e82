"""Object classes that are dataclasses, as SQLAlchemy makes them."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import pickle
from typing import Any

import pytest
from sqlalchemy import ForeignKey, inspect as inspect_mapped, select, String
from sqlalchemy.orm import (
    DeclarativeBase,
    joinedload,
    Mapped,
    mapped_column,
    MappedAsDataclass,
    relationship,
    selectinload,
    validates,
)

from sqla_shard import blob_field, MappingMixin, ObjectMixin, scatter, ShardedId
from sqla_shard.exc import BlobValueError
from tests.models.objects_harness import raw, set_raw, Suite


class DataBase(MappedAsDataclass, DeclarativeBase):
    pass


@dataclasses.dataclass
class Frame:
    """A value of a field; it cannot be hashed."""

    width: int
    height: int = 1


class Titled(MappedAsDataclass):
    """A mixin whose columns and blob fields stay in order."""

    title: Mapped[str] = blob_field()
    rank: Mapped[int] = mapped_column(default=3)
    subtitle: Mapped[str] = blob_field(default="none")


class Described(ObjectMixin, DataBase):
    __abstract__ = True

    text: Mapped[str | None] = blob_field(default=None, repr=False)


class Maker(ObjectMixin, DataBase, type_id=91, unsafe_hash=True):
    __tablename__ = "dc_makers"

    name: Mapped[str] = blob_field()
    pins: Mapped[list[Sketch]] = relationship(
        back_populates="maker",
        default_factory=list,
        repr=False,
        compare=False,
        order_by="Sketch.id",
    )


class Sketch(Described, Titled, type_id=92, colocate_with="maker_id"):
    __tablename__ = "dc_sketches"

    maker_id: Mapped[int] = mapped_column(
        ShardedId(91), ForeignKey("dc_makers.local_id"), init=False, repr=False
    )
    maker: Mapped[Maker] = relationship(
        back_populates="pins", kw_only=True, repr=False, compare=False
    )
    tags: Mapped[list[str]] = blob_field(default_factory=list)
    frame: Mapped[Frame] = blob_field(default=Frame(4))
    note: Mapped[str] = blob_field(default="n", init=False, compare=False, repr=False)
    shelf: Mapped[str | None] = mapped_column(String(20), default=None)


class Keyed(ObjectMixin, DataBase, type_id=93, kw_only=True):
    __tablename__ = "dc_keyed"

    seen: list[str] = dataclasses.field(default_factory=list, repr=False)
    size: Mapped[int] = blob_field(default=1)
    name: Mapped[str] = blob_field()

    def __post_init__(self) -> None:
        self.seen.append(f"made {self.name} {self.size}")

    @validates("size", "name")
    def _check(self, key: str, value: Any) -> Any:
        self.__dict__.setdefault("checked", []).append((key, value))
        return value


class Remark(DataBase):
    """A child row: a plain class on the shard of an object."""

    __tablename__ = "dc_remarks"

    id: Mapped[int] = mapped_column(
        "local_id", ShardedId(94), init=False, primary_key=True
    )
    maker_id: Mapped[int] = mapped_column(
        ShardedId(91), ForeignKey("dc_makers.local_id")
    )
    text: Mapped[str] = mapped_column(String(20), default="")


class MakerLikes(MappingMixin, DataBase, source=Maker, target=Sketch):
    __tablename__ = "dc_maker_likes"

    why: Mapped[str] = mapped_column(String(20), default="")


def made(cluster: Any, **fields: Any) -> tuple[int, int]:
    """Store a sketch and its maker; return their ids."""
    with cluster.begin() as session:
        maker = Maker("ada")
        maker.shard_id = 2
        sketch = Sketch("boat", maker=maker, **fields)
        session.add(sketch)
        session.flush()
        return maker.id, sketch.id


class DataclassSuite(Suite):
    metadata = DataBase.metadata

    def test_arguments(self):
        arguments = inspect.signature(Sketch).parameters
        assert list(arguments) == [
            "title",
            "rank",
            "subtitle",
            "text",
            "tags",
            "frame",
            "shelf",
            "maker",
        ]
        assert arguments["maker"].kind is inspect.Parameter.KEYWORD_ONLY
        assert Sketch.__match_args__ == tuple(arguments)[:-1]
        assert [f.name for f in dataclasses.fields(Sketch)] == [
            "title",
            "rank",
            "subtitle",
            "text",
            "id",
            "maker_id",
            "maker",
            "tags",
            "frame",
            "note",
            "shelf",
        ]
        with pytest.raises(TypeError, match="'title'"):
            Sketch(maker=Maker("a"))
        with pytest.raises(TypeError, match="'id'"):
            Maker("a", id=1)
        with pytest.raises(TypeError, match="'note'"):
            Sketch("a", maker=Maker("a"), note="b")
        with pytest.raises(TypeError):
            Keyed("positional")

    def test_defaults(self):
        maker = Maker("ada")
        one, other = Sketch("a", maker=maker), Sketch("b", maker=maker)
        assert (one.rank, one.subtitle, one.text) == (3, "none", None)
        assert (one.note, one.shelf, one.frame) == ("n", None, Frame(4))
        one.tags.append("x")
        one.frame.width = 5
        assert (other.tags, other.frame) == ([], Frame(4))
        # A missing argument is not a value.
        assert other.data == {"title": "b"}
        with pytest.raises(BlobValueError, match=r"Sketch\.title"):
            Sketch(7, maker=maker)

    def test_comparing_and_showing(self):
        maker = Maker("ada")
        one = Sketch("a", maker=maker, text="not shown")
        other = Sketch("a", maker=maker, text="not shown")
        assert repr(one) == (
            "Sketch(title='a', rank=3, subtitle='none', id=None, tags=[], "
            "frame=Frame(width=4, height=1), shelf=None)"
        )
        assert one == other
        other.note = "not compared"
        assert one == other
        other.tags.append("x")
        assert one != other
        assert Sketch.__hash__ is None
        assert len({Maker("ada"), Maker("ada"), Maker("bob")}) == 2

    def test_stored_and_read(self, cluster):
        maker_id, sketch_id = made(cluster, tags=["x"], shelf="s")
        assert raw(cluster, Sketch, sketch_id) == {
            "title": "boat",
            "subtitle": "none",
            "text": None,
            "tags": ["x"],
            "frame": {"width": 4, "height": 1},
            "note": "n",
        }
        with cluster.session() as session:
            found = session.get(Sketch, sketch_id)
            assert repr(found) == (
                "Sketch(title='boat', rank=3, subtitle='none', "
                f"id={sketch_id}, tags=['x'], frame=Frame(width=4, "
                "height=1), shelf='s')"
            )
            assert found.maker_id == maker_id
            assert found.shard_id == found.maker.shard_id == 2
            assert found.ts is not None
            found.tags.append("y")
            session.commit()
        assert raw(cluster, Sketch, sketch_id)["tags"] == ["x", "y"]

    def test_equal_values_are_flushed_twice(self, cluster):
        """Equal objects are not one object; they may have no hash."""
        with cluster.begin() as session:
            maker = Maker("ada")
            twins = [Sketch("twin", maker=maker) for _ in range(3)]
            assert twins[0] == twins[1]
            session.add_all(twins)
            session.flush()
            ids = [twin.id for twin in twins]
            assert len(set(ids)) == 3
            assert [pin.id for pin in maker.pins] == ids
            maker_id = maker.id
        with cluster.session() as session:
            assert len(session.get_many(Sketch, ids)) == 3
            stmt = select(Sketch).where(Sketch.title == "twin")
            everywhere = session.scalars(stmt.options(scatter())).all()
            assert {one.id for one in everywhere} >= set(ids)
            for option in (selectinload, joinedload):
                session.expunge_all()
                stmt = select(Maker).where(Maker.id == maker_id)
                found = session.scalars(stmt.options(option(Maker.pins)))
                assert [pin.id for pin in found.unique().one().pins] == ids
        with cluster.begin() as session:
            one, other, _ = session.get_many(Sketch, ids)
            session.delete(one)
            other.title = "changed"
        with cluster.session() as session:
            left = session.get(Maker, maker_id).pins
            assert [pin.title for pin in left] == ["changed", "twin"]

    def test_validators(self):
        """They see given values, and no default."""
        assert Keyed(name="a").__dict__["checked"] == [("name", "a")]
        new = Keyed(name="a", size=2)
        assert new.__dict__["checked"] == [("size", 2), ("name", "a")]
        assert new.seen == ["made a 2"]

    def test_merging_takes_what_was_given(self, cluster):
        maker_id, sketch_id = made(cluster, tags=["x"])
        set_raw(
            cluster,
            Sketch,
            sketch_id,
            {"title": "boat", "tags": ["theirs"], "subtitle": "theirs"},
        )
        with cluster.begin() as session:
            maker = session.get(Maker, maker_id)
            with session.no_autoflush:
                new = Sketch("ship", maker=maker)
                new.id = sketch_id
                merged = session.merge(new)
                maker.pins.remove(new)
            assert (merged.title, merged.tags) == ("ship", ["theirs"])
        assert raw(cluster, Sketch, sketch_id)["subtitle"] == "theirs"

    def test_copies(self, cluster):
        _, sketch_id = made(cluster, tags=["x"])
        with cluster.begin() as session:
            found = session.get(Sketch, sketch_id)
            copied = dataclasses.replace(found, title="copy")
            assert copied.id is None
            assert (copied.tags, copied.frame) == (["x"], Frame(4))
            copied.tags.append("y")
            assert found.tags == ["x"]
            session.add(copied)
            session.flush()
            assert copied.id != sketch_id
            assert copied.shard_id == found.shard_id

    def test_as_dict(self, cluster):
        with cluster.begin(shard_id=1) as session:
            session.add(new := Keyed(name="a"))
            session.flush()
            assert dataclasses.asdict(new) == {
                "id": new.id,
                "seen": ["made a 1"],
                "size": 1,
                "name": "a",
            }
            shown = dataclasses.asdict(Maker("ada"))
            assert shown == {"id": None, "name": "ada", "pins": []}

    def test_pickled(self, cluster):
        _, sketch_id = made(cluster, tags=["x"])
        with cluster.session() as session:
            found = session.get(Sketch, sketch_id)
            again = pickle.loads(pickle.dumps(found))
            session.expunge_all()
        assert inspect_mapped(again).detached
        assert (again.title, again.tags, again.id) == ("boat", ["x"], sketch_id)
        again.tags.append("y")
        with cluster.begin() as session:
            session.merge(again)
        assert raw(cluster, Sketch, sketch_id)["tags"] == ["x", "y"]
        new = pickle.loads(pickle.dumps(Keyed(name="new")))
        assert (new.name, new.data) == ("new", {"name": "new"})

    def test_child_rows_and_lists(self, cluster):
        maker_id, sketch_id = made(cluster)
        with cluster.begin() as session:
            session.add(remark := Remark(maker_id, "nice"))
            session.add(row := MakerLikes(maker_id, sketch_id, why="blue"))
            session.flush()
            assert remark.id is not None
            assert repr(row) == (
                f"MakerLikes(maker_id={maker_id}, sketch_id={sketch_id}, why='blue')"
            )
            assert row.sequence > 0
        with cluster.begin() as session:
            assert not MakerLikes.append(session, maker_id, sketch_id)
            (row,) = MakerLikes.page(session, maker_id, targets=True)
            assert (row.target.title, row.why) == ("boat", "blue")
            assert row == dataclasses.replace(row)
            stmt = select(Remark).where(Remark.maker_id == maker_id)
            assert session.scalars(stmt).one().text == "nice"

    def test_in_an_event_loop(self, cluster):
        async def work() -> None:
            async with cluster.async_begin() as session:
                maker = Maker("ada")
                session.add(sketch := Sketch("boat", maker=maker))
                await session.flush()
                # Neither asks the server.
                assert f"id={sketch.id}" in repr(sketch)
                assert sketch == sketch  # reads all fields
                sketch.title = "ship"
                await session.flush()
                assert "title='ship'" in repr(sketch)
                key = sketch.id
            async with cluster.async_session() as session:
                found = await session.get(Sketch, key)
                assert (found.title, found.tags) == ("ship", [])

        asyncio.run(work())
