"""Layouts of object ids: their widths, and where they are declared."""

from __future__ import annotations

import ast
import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

import sqla_shard
from sqla_shard import blob_field, MappingMixin, ObjectMixin, ObjectRef
from sqla_shard.contrib import Feed, Follows
from sqla_shard.exc import (
    BlobValueError,
    ClassDefinitionError,
    IdLayoutError,
    InvalidIdError,
    TopologyError,
    WrongTypeError,
)
from sqla_shard.ids import DEFAULT_LAYOUT, IdLayout, pack, unpack
from sqla_shard.models.mapping_definition import link
from sqla_shard.planning import spec_of
from sqla_shard.topology import diff, refusals, Topology
from sqla_shard.types.shard_bound import ComparedId, IdSlot, Prefix

PHOTOS = IdLayout(shard_bits=10, type_bits=6, local_bits=44)


@st.composite
def layouts(draw: st.DrawFn) -> IdLayout:
    shard = draw(st.integers(1, 16))
    type_ = draw(st.integers(1, min(16, 63 - 32 - shard)))
    local = draw(st.integers(32, min(52, 63 - shard - type_)))
    return IdLayout(shard_bits=shard, type_bits=type_, local_bits=local)


@st.composite
def parts(draw: st.DrawFn, layout: IdLayout) -> tuple[int, int, int]:
    return (
        draw(st.integers(0, layout.max_shard_id)),
        draw(st.integers(0, layout.max_type_id)),
        draw(st.integers(0, layout.max_local_id)),
    )


@given(st.data())
def test_ids_of_every_layout(data: st.DataObject) -> None:
    layout = data.draw(layouts())
    one, other = data.draw(parts(layout)), data.draw(parts(layout))
    packed = layout.pack(*one)
    assert 0 <= packed <= layout.max_id < 2**63
    assert layout.unpack(packed) == one
    assert int(layout.unpack(packed)) == packed
    if one[1]:
        assert layout.shard_of(packed) == one[0]
    else:
        with pytest.raises(WrongTypeError, match="no class has the type 0"):
            layout.shard_of(packed)
    assert layout.shard_of(packed, one[1], "Photo") == one[0]
    assert (packed < layout.pack(*other)) == (one < other)
    bits = f"{layout.max_id:b}"
    assert len(bits) == layout.shard_bits + layout.type_bits + (layout.local_bits)


@given(st.data())
def test_a_comparison_with_a_local_id_is_that_of_full_ids(data: st.DataObject) -> None:
    layout = data.draw(layouts())
    shard, type_id, local = data.draw(parts(layout))
    other = layout.pack(*data.draw(parts(layout)))
    own = layout.pack(shard, type_id, local)
    address = ComparedId(other, type_id, layout)
    assert (local < address.at(shard)) == (own < other)
    assert (local == address.at(shard)) == (own == other)
    assert address.is_at(shard) == (layout.unpack(other)[:2] == (shard, type_id))
    assert Prefix(type_id, layout).at(shard) + local == own
    slot = IdSlot([own, other], type_id, layout, whole=False)
    assert str(local) in slot.text_at(shard).split(",")


def test_the_default_layout_is_that_of_pack() -> None:
    assert IdLayout() == DEFAULT_LAYOUT
    assert DEFAULT_LAYOUT.pack(3429, 1, 7075733) == pack(3429, 1, 7075733)
    assert repr(unpack(241294492511762325)) == (
        "ObjectId(shard_id=3429, type_id=1, local_id=7075733)"
    )
    assert repr(PHOTOS.unpack(PHOTOS.pack(1, 2, 3))) == (
        "ObjectId(shard_id=1, type_id=2, local_id=3)"
    )


@pytest.mark.parametrize(
    ("widths", "message"),
    [
        ({"shard_bits": 0}, "shard_bits=0 must be an integer from 1 to 16"),
        ({"shard_bits": 17}, "shard_bits=17 must be"),
        ({"type_bits": 0}, "type_bits=0 must be an integer from 1 to 16"),
        ({"local_bits": 31}, "local_bits=31 must be an integer from 32"),
        ({"local_bits": 53}, "local_bits=53 must be"),
        ({"local_bits": True}, "local_bits=True must be"),
        ({"local_bits": "36"}, "local_bits='36' must be"),
        ({"type_bits": 12}, "64 bits, and a positive BIGINT has 63"),
    ],
)
def test_widths_that_ids_cannot_have(widths: dict[str, Any], message: str) -> None:
    with pytest.raises(IdLayoutError, match=message) as caught:
        IdLayout(**widths)
    assert pickle.loads(pickle.dumps(caught.value)).args == caught.value.args


def test_layouts_are_values() -> None:
    same = IdLayout(shard_bits=10, type_bits=6, local_bits=44)
    assert same == PHOTOS
    assert hash(same) == hash(PHOTOS)
    assert PHOTOS != DEFAULT_LAYOUT
    for made in (pickle.loads(pickle.dumps(PHOTOS)), copy.deepcopy(PHOTOS)):
        assert made == PHOTOS
        assert made.pack(1, 2, 3) == PHOTOS.pack(1, 2, 3)
    found = PHOTOS.unpack(PHOTOS.pack(1, 2, 3))
    assert int(pickle.loads(pickle.dumps(found))) == int(found)


def test_an_id_that_is_too_long_for_a_layout() -> None:
    number = PHOTOS.max_id + 1
    with pytest.raises(InvalidIdError, match="have 60 bits, and it has 61"):
        PHOTOS.unpack(number)
    assert unpack(number).type_id == 0
    with pytest.raises(WrongTypeError, match="User holds ids of type 3"):
        PHOTOS.shard_of(PHOTOS.pack(1, 2, 3), 3, "User")


# -- one place knows the widths

_NAMES = {
    "LOCAL_BITS",
    "MAX_ID",
    "MAX_LOCAL_ID",
    "MAX_TYPE_ID",
    "SHARD_SHIFT",
    "TYPE_SHIFT",
    "pack",
    "unpack",
}
#: The public names, also of statements that are entered; ``explain``, where
#: ids of the default layout are the smallest numbers that become strings; and
#: what refuses all other layouts.
_MAY = ("api.py", "cluster/explain.py", "contrib/", "monitor/dashboard/statements.py")


def test_no_other_module_has_the_default_widths() -> None:
    """A module that used them would read ids of other layouts wrongly."""
    root = Path(sqla_shard.__file__).parent
    found = [
        f"{path.relative_to(root)}: {alias.name}"
        for path in root.rglob("*.py")
        if not str(path.relative_to(root)).startswith(_MAY)
        if "sqla_shard.ids" in (source := path.read_text("utf-8"))
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom) and node.module == "sqla_shard.ids"
        for alias in node.names
        if alias.name in _NAMES
    ]
    assert found == []


# -- classes


class Base(DeclarativeBase):
    pass


class Photos(Base):
    __abstract__ = True
    id_layout = PHOTOS


class User(ObjectMixin, Base, type_id=3):
    __tablename__ = "users"
    photo_id: Mapped[int | None] = blob_field(ref="Photo", default=None)
    other_id: Mapped[int | None] = blob_field(ref=7, default=None)


class Photo(ObjectMixin, Photos, type_id=7):
    __tablename__ = "photos"
    user_id: Mapped[int | None] = blob_field(ref=User, default=None)
    next_id: Mapped[int | None] = mapped_column(ObjectRef(7))
    of_id: Mapped[int | None] = mapped_column(ObjectRef(3, layout=DEFAULT_LAYOUT))


class UserHasPhotos(MappingMixin, Base, source=User, target="Photo"):
    pass


class PhotoHasUsers(MappingMixin, Base, source="Photo", target="User"):
    pass


def layout_of(entity: Any, column: str) -> IdLayout:
    found: IdLayout = entity.__table__.c[column].type.layout
    return found


def test_columns_have_the_layout_of_what_they_refer_to() -> None:
    assert layout_of(User, "local_id") is DEFAULT_LAYOUT
    assert layout_of(Photo, "local_id") == PHOTOS
    assert layout_of(Photo, "next_id") == PHOTOS
    assert layout_of(Photo, "of_id") == DEFAULT_LAYOUT
    assert spec_of(Photo.__table__).layout == PHOTOS
    for mapping in (UserHasPhotos, PhotoHasUsers):
        link(mapping)
        assert layout_of(mapping, "user_id") == DEFAULT_LAYOUT
        assert layout_of(mapping, "photo_id") == PHOTOS
    assert spec_of(PhotoHasUsers.__table__).layout == PHOTOS
    assert spec_of(UserHasPhotos.__table__).layout == DEFAULT_LAYOUT


def test_fields_have_the_layout_of_what_they_refer_to() -> None:
    photo_id, user_id = PHOTOS.pack(900, 7, 1), pack(5, 3, 1)
    user = User(photo_id=photo_id, other_id=photo_id)
    assert user.photo_id == user.other_id == photo_id
    assert Photo(user_id=user_id).user_id == user_id
    for key in ("photo_id", "other_id"):
        with pytest.raises(BlobValueError, match="not of 7"):
            User(**{key: pack(900, 7, 1)})
    with pytest.raises(BlobValueError, match="not of 3"):
        Photo(user_id=PHOTOS.pack(5, 3, 1))


def test_the_shard_of_an_object_is_that_of_its_layout() -> None:
    number = PHOTOS.pack(900, 7, 1)
    assert Photo(id=number).shard_id == 900
    assert unpack(number).shard_id != 900


def test_a_parent_with_another_layout_is_refused() -> None:
    class Crop(ObjectMixin, Base, type_id=8, colocate_with="photo_id"):
        __tablename__ = "crops"
        photo_id: Mapped[int] = blob_field(ref=Photo)

    with pytest.raises(ClassDefinitionError, match="in another keyspace"):
        Crop(photo_id=PHOTOS.pack(1, 7, 1))
    with pytest.raises(ClassDefinitionError, match="in another keyspace"):

        class Tag(ObjectMixin, Photos, type_id=9, colocate_with="user_id"):
            __tablename__ = "tags"
            user_id: Mapped[int] = mapped_column(ObjectRef(3, layout=DEFAULT_LAYOUT))


def test_types_are_limited_by_the_layout() -> None:
    with pytest.raises(InvalidIdError, match="from 0 to 63, not 64"):

        class Tag(ObjectMixin, Photos, type_id=64):
            __tablename__ = "tags"


def test_invalid_layouts() -> None:
    class Wrong(Base):
        __abstract__ = True
        id_layout = (10, 6, 44)

    with pytest.raises(ClassDefinitionError, match="must be an IdLayout"):

        class Tag(ObjectMixin, Wrong, type_id=10):
            __tablename__ = "wrong"


def test_a_column_of_a_mixin_in_classes_of_two_layouts() -> None:
    class Named:
        by_id: Mapped[int] = mapped_column(ObjectRef(3))

    class One(Named, ObjectMixin, Base, type_id=20):
        __tablename__ = "ones"

    class Two(Named, ObjectMixin, Photos, type_id=21):
        __tablename__ = "twos"

    assert layout_of(One, "by_id") is DEFAULT_LAYOUT
    assert layout_of(Two, "by_id") == PHOTOS


def test_follow_graphs_and_feeds_have_the_default_layout() -> None:
    made: Any = {"base": Base, "user": User, "board": Photo, "owner": "id"}
    with pytest.raises(ClassDefinitionError, match="default layout only"):
        Follows(**made)
    unused: Any = None
    with pytest.raises(ClassDefinitionError, match="default layout only"):
        Feed(Base, follows=unused, post=Photo)


# -- topologies


def document(shards: int = 16, **keys: Any) -> dict[str, Any]:
    server = {"name": "a", "primary": "mysql://app@a", "shards": [0, shards - 1]}
    keyspace = {
        "kind": "objects",
        "shards": shards,
        "database": "db{shard:05d}",
        "servers": [server],
        **keys,
    }
    return {"epoch": 7, "keyspaces": {"objects": keyspace}}


WIDTHS = PHOTOS.to_mapping()


def test_a_layout_in_a_topology() -> None:
    plain = Topology.from_mapping(document())
    assert plain.keyspace("objects").id_layout is DEFAULT_LAYOUT
    assert "id_layout" not in plain.to_mapping()["keyspaces"]["objects"]
    found = Topology.from_mapping(document(id_layout=WIDTHS))
    assert found.keyspace("objects").id_layout == PHOTOS
    assert found != plain
    for again in (
        Topology.from_mapping(found.to_mapping()),
        pickle.loads(pickle.dumps(found)),
        found.redacted(),
    ):
        assert again == found


@pytest.mark.parametrize(
    ("keys", "place", "message"),
    [
        ({"id_layout": 13}, "id_layout", "13 is not a table; write"),
        ({"id_layout": {}}, "id_layout.shard_bits", "is missing"),
        (
            {"id_layout": {**WIDTHS, "bits": 1}},
            "id_layout.bits",
            "is not a valid key here",
        ),
        (
            {"id_layout": {**WIDTHS, "type_bits": "6"}},
            "id_layout.type_bits",
            "is not an integer",
        ),
        (
            {"id_layout": {**WIDTHS, "shard_bits": 17}},
            "id_layout",
            "shard_bits=17 must be an integer from 1 to 16",
        ),
        (
            {"id_layout": {**WIDTHS, "local_bits": 50}},
            "id_layout",
            "66 bits, and a positive BIGINT has 63",
        ),
        (
            {"id_layout": {**WIDTHS, "shard_bits": 3}},
            "shards",
            "16 is out of range: ids of 3 shard",
        ),
        (
            {"kind": "mod", "id_layout": WIDTHS},
            "id_layout",
            "a keyspace of kind 'mod' has no object ids",
        ),
    ],
)
def test_layouts_that_are_not_valid(
    keys: dict[str, Any], place: str, message: str
) -> None:
    with pytest.raises(TopologyError) as caught:
        Topology.from_mapping(document(**keys))
    problem = caught.value.problems[0]
    assert problem.place == f"keyspaces.objects.{place}"
    assert message in problem.message


@pytest.mark.parametrize("widths", [None, {**WIDTHS, "local_bits": 45}])
def test_the_layout_of_a_keyspace_never_changes(widths: dict[str, int] | None) -> None:
    old = Topology.from_mapping(document(id_layout=WIDTHS))
    keys = {} if widths is None else {"id_layout": widths}
    new = Topology.from_mapping({**document(**keys), "epoch": 8})
    for one, other in ((old, new), (new, old)):
        (problem,) = refusals(one, other)
        assert problem.place == "keyspaces.objects.id_layout"
        assert "as that of another object" in problem.message
    found = diff(old, new)
    assert "10 shard, 6 type and 44 local bits -> ids of" in str(found)
    assert found.as_dict()["layouts"][0]["old"] == WIDTHS
