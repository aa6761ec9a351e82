"""Object classes that can be created, and those that cannot."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Callable
from typing import Any, Optional, TYPE_CHECKING

import pytest
from sqlalchemy import (
    Column,
    create_engine,
    ForeignKey,
    inspect,
    Integer,
    JSON,
    MetaData,
    select,
    String,
    Table,
)
from sqlalchemy.exc import ArgumentError, InvalidRequestError
from sqlalchemy.orm import (
    configure_mappers,
    declarative_base,
    DeclarativeBase,
    DeclarativeBaseNoMeta,
    Mapped,
    mapped_column,
    MappedAsDataclass,
    registry,
    relationship,
)

from sqla_shard import blob_field, KeyspaceMixin, ObjectMixin, pack
from sqla_shard.exc import (
    BlobValueError,
    ClassDefinitionError,
    ColocationError,
    DuplicateTypeError,
    InvalidIdError,
)
from sqla_shard.planning import spec_of
from sqla_shard.types import ShardedId

if TYPE_CHECKING:
    pass


def make_base(**namespace: Any) -> Any:
    return type("Base", (DeclarativeBase,), namespace)


def no_meta_base() -> Any:
    return type("Base", (DeclarativeBaseNoMeta,), {})


BASES: dict[str, Callable[[], Any]] = {
    "DeclarativeBase": make_base,
    "DeclarativeBaseNoMeta": no_meta_base,
    "declarative_base()": declarative_base,
    "generate_base()": lambda: registry().generate_base(),
    "with KeyspaceMixin": lambda: type("Base", (KeyspaceMixin, DeclarativeBase), {}),
    "with a type map": lambda: make_base(
        type_annotation_map={str: String(7), dict[str, Any]: JSON, int: Integer}
    ),
}


@pytest.fixture(params=BASES)
def any_base(request) -> Any:
    return BASES[request.param]()


@pytest.fixture
def base() -> Any:
    return make_base()


def is_clean(base: Any) -> bool:
    """Tell whether a declarative base is as if nothing had happened."""
    gc.collect()
    return (
        not base.metadata.tables
        and not list(base.registry.mappers)
        and not [
            name for name in base.registry._class_registry if not name.startswith("_sa")
        ]
    )


# -- bases


def test_every_declarative_base(any_base):
    class User(ObjectMixin, any_base, type_id=3):
        __tablename__ = "users"
        name: Mapped[str] = blob_field()
        kind: Mapped[Optional[str]] = mapped_column(String(5))  # noqa: UP045

    class Pin(ObjectMixin, any_base, type_id=1, colocate_with="user_id"):
        __tablename__ = "pins"
        user_id: Mapped[int] = blob_field(ref="User")

    configure_mappers()
    assert [c.name for c in User.__table__.columns] == [
        "local_id",
        "data",
        "ts",
        "kind",
    ]
    assert list(User.__sqla_shard__.fields) == ["name"]
    spec = spec_of(Pin.__table__)
    assert (spec.kind, spec.type_id, spec.keyspace) == ("objects", 1, None)
    assert spec.colocation is not None
    assert spec.colocation.type_ids() == (3,)
    user = User(name="x", kind="k")
    assert (user.name, user.id, user.shard_id) == ("x", None, None)
    assert repr(user) == "<User None>"
    with pytest.raises(TypeError, match="nmae"):
        User(nmae="x")
    with pytest.raises(ColocationError):
        Pin(user_id=pack(1, 2, 3))
    engine = create_engine("sqlite://")
    any_base.metadata.create_all(engine)
    assert set(inspect(engine).get_table_names()) == {"users", "pins"}
    engine.dispose()


@pytest.mark.parametrize("make", [make_base, no_meta_base])
def test_wrong_order_of_bases(make):
    base = make()
    with pytest.raises(ClassDefinitionError, match=r"Pin\(ObjectMixin, Base"):

        class Pin(base, ObjectMixin, type_id=1):
            __tablename__ = "pins"
            link: Mapped[str] = blob_field()

    assert is_clean(base)


def test_no_declarative_base():
    with pytest.raises(ClassDefinitionError, match="has no declarative base"):

        class Pin(ObjectMixin, type_id=1):
            pass


def test_decorators_of_a_registry():
    for decorate in (registry().mapped, registry().mapped_as_dataclass):
        with pytest.raises(ClassDefinitionError, match="declarative base"):

            @decorate
            class Pin(ObjectMixin, type_id=1):
                __tablename__ = "pins"


def test_mixin_on_the_base_itself():
    class Base(ObjectMixin, DeclarativeBase):
        pass

    class Pin(Base, type_id=1):
        __tablename__ = "pins"
        link: Mapped[str] = blob_field()

    assert Pin(link="x").link == "x"
    with pytest.raises(ClassDefinitionError, match="it is abstract"):

        class Wrong(ObjectMixin, DeclarativeBase, type_id=1):
            pass


def test_abstract_base_with_fields(base):
    class Named(ObjectMixin, base):
        __abstract__ = True
        name: Mapped[str] = blob_field()
        kind: Mapped[str | None] = mapped_column(String(5))

        def shout(self) -> str:
            return self.name.upper()

    class Described(Named):
        __abstract__ = True
        text: Mapped[str] = blob_field(default="")

    class One(Described, type_id=1):
        __tablename__ = "one"
        count: Mapped[int] = blob_field(default=0)

    class Two(Named, type_id=2):
        __tablename__ = "two"
        name: Mapped[str | None] = blob_field(default=None)

    class Three(Described, type_id=3):
        __tablename__ = "three"
        text = None  # takes the field away

    assert list(One.__sqla_shard__.fields) == ["name", "text", "count"]
    assert list(Two.__sqla_shard__.fields) == ["name"]
    assert list(Three.__sqla_shard__.fields) == ["name"]
    assert One(name="x").shout() == "X"
    assert Two(name=None).name is None
    with pytest.raises(BlobValueError, match=r"One\.name"):
        One(name=None)
    assert "kind" in One.__table__.c
    assert "kind" in Two.__table__.c


@pytest.mark.parametrize(
    "keywords",
    [{"type_id": 1}, {"colocate_with": "x"}, {"keyspace": "x"}, {"max_bytes": 5}],
)
def test_abstract_base_with_keywords(base, keywords):
    with pytest.raises(ClassDefinitionError, match="to its subclasses"):

        class Named(ObjectMixin, base, **keywords):
            __abstract__ = True


def test_plain_mixins(base):
    class Titled:
        title: Mapped[str] = blob_field()

    class Bare:
        note = blob_field(default=None)

    class Typed:
        count = blob_field(default=0, type_=int)

    class One(Titled, Bare, Typed, ObjectMixin, base, type_id=1):
        __tablename__ = "one"
        note: Mapped[str | None]

    class Two(ObjectMixin, Titled, Typed, base, type_id=2):
        __tablename__ = "two"

    assert set(One.__sqla_shard__.fields) == {"title", "note", "count"}
    assert set(Two.__sqla_shard__.fields) == {"title", "count"}
    new = One(title="t", note="n", count=5)
    assert (new.title, new.note, new.count) == ("t", "n", 5)
    with pytest.raises(BlobValueError, match=r"Two\.title"):
        Two(title=5)
    with pytest.raises(ClassDefinitionError, match="note has no type annotation"):

        class Three(Bare, ObjectMixin, base, type_id=3):
            __tablename__ = "three"


def test_inheritance_from_a_mapped_class(base):
    class Pin(ObjectMixin, base, type_id=1):
        __tablename__ = "pins"

    class Plain(base):
        __tablename__ = "plain"
        key: Mapped[int] = mapped_column(primary_key=True)

    with pytest.raises(ClassDefinitionError, match="Pin is mapped to a table"):

        class BigPin(Pin, type_id=2):
            pass

    with pytest.raises(ClassDefinitionError, match="Plain is mapped"):

        class Both(ObjectMixin, Plain, type_id=2):
            __tablename__ = "both"

    assert set(base.metadata.tables) == {"pins", "plain"}


# -- dataclasses


def test_dataclass_bases(base):
    @dataclasses.dataclass
    class Data:
        x: int = 0

    for bases in ((Data, ObjectMixin, base), (ObjectMixin, Data, base)):
        with pytest.raises(ClassDefinitionError, match=r"Data is .*MappedAsDataclass"):

            class Pin(*bases, type_id=1):
                __tablename__ = "pins"

    assert is_clean(base)

    # The remedy of the message.
    class Made(MappedAsDataclass, ObjectMixin, Data, base, type_id=1):
        __tablename__ = "pins"
        title: Mapped[str] = blob_field(default="a")

    assert repr(Made(x=3)) == f"{Made.__qualname__}(x=3, id=None, title='a')"


@pytest.mark.parametrize("where", ["base", "first", "second"])
def test_a_dataclass(where):
    kinds = (MappedAsDataclass,) if where == "base" else ()
    base = type("Base", (*kinds, DeclarativeBase), {})
    bases = {
        "base": (ObjectMixin, base),
        "first": (MappedAsDataclass, ObjectMixin, base),
        "second": (ObjectMixin, MappedAsDataclass, base),
    }[where]

    class Pin(*bases, type_id=1, repr=False):
        __tablename__ = "pins"
        title: Mapped[str] = blob_field()
        tags: Mapped[list[str]] = blob_field(default_factory=list)

    assert [f.name for f in dataclasses.fields(Pin)] == ["id", "title", "tags"]
    pin = Pin("a")
    assert (pin.title, pin.tags, repr(pin)) == ("a", [], "<Pin None>")
    assert list(Pin.__table__.c.keys()) == ["local_id", "data", "ts"]
    assert str(select(Pin.title).where(Pin.tags.is_not(None)))


def test_where_a_dataclass_is_not_made():
    base = type("Base", (DeclarativeBase, MappedAsDataclass), {})
    plain = type("Base", (DeclarativeBase,), {})
    for bases in ((ObjectMixin, base), (ObjectMixin, plain, MappedAsDataclass)):
        with pytest.raises(ClassDefinitionError, match="must precede"):

            class Pin(*bases, type_id=1):
                __tablename__ = "pins"

    assert is_clean(plain)


def test_arguments_for_dataclasses(base):
    with pytest.raises(
        ClassDefinitionError, match=r"title has init, repr.*MappedAsDataclass"
    ):

        class Pin(ObjectMixin, base, type_id=1):
            __tablename__ = "pins"
            title: Mapped[str] = blob_field(init=False, repr=True)

    assert is_clean(base)


def test_fields_of_a_mixin_of_a_dataclass():
    base = type("Base", (MappedAsDataclass, DeclarativeBase), {})

    class Plain:
        plain: Mapped[str] = blob_field(default="p")

    class Named(MappedAsDataclass, kw_only=True):
        name: Mapped[str] = blob_field()

    class Shared(ObjectMixin, base):
        __abstract__ = True
        n: Mapped[int] = mapped_column(default=1)
        gone: Mapped[str] = blob_field(default="g")

    class Pin(Shared, Plain, Named, type_id=1):
        __tablename__ = "pins"
        gone = None
        title: Mapped[str] = blob_field(type_=str, kw_only=True)

    class Board(Shared, Plain, Named, type_id=2):
        __tablename__ = "boards"
        name: Mapped[str] = blob_field(default="b")

    pin, board = Pin(name="a", title="t"), Board()
    assert (pin.name, pin.title, pin.plain, pin.n) == ("a", "t", "p", 1)
    assert Pin.gone is None
    assert Pin.__sqla_shard__.fields.keys() == {"name", "plain", "title"}
    assert (board.name, board.gone) == ("b", "g")
    assert Board.__sqla_shard__.fields["name"] is not Board.name


def test_a_dataclass_that_python_refuses():
    base = type("Base", (MappedAsDataclass, DeclarativeBase), {})
    with pytest.raises(InvalidRequestError, match="non-default argument"):

        class Pin(ObjectMixin, base, type_id=1):
            __tablename__ = "pins"
            note: Mapped[str] = blob_field(default="")
            title: Mapped[str] = blob_field()

    assert is_clean(base)


# -- type ids and keyspaces


def test_missing_type_id(base):
    with pytest.raises(ClassDefinitionError, match="type_id=n"):

        class Pin(ObjectMixin, base):
            __tablename__ = "pins"


@pytest.mark.parametrize("type_id", [0, -1, 1024, 2**40, True, "1", 1.0, object()])
def test_impossible_type_id(base, type_id):
    with pytest.raises(InvalidIdError, match="type_id") as caught:

        class Pin(ObjectMixin, base, type_id=type_id):
            __tablename__ = "pins"

    assert caught.value.value is type_id
    assert is_clean(base)


def test_type_id_that_is_taken(base):
    class One(ObjectMixin, base, type_id=1):
        __tablename__ = "one"

    with pytest.raises(DuplicateTypeError) as caught:

        class Two(ObjectMixin, base, type_id=1):
            __tablename__ = "two"

    assert caught.value.names == ("One", "Two")
    assert set(base.metadata.tables) == {"one"}

    class Elsewhere(ObjectMixin, make_base(), type_id=1):
        __tablename__ = "two"


def test_keyspace(base):
    class Pin(ObjectMixin, base, type_id=1, keyspace="archive"):
        __tablename__ = "pins"

    assert spec_of(Pin.__table__).keyspace == "archive"


@pytest.mark.parametrize("size", [0, 1, -1, 2**32, True, "5", 1.5])
def test_impossible_size(base, size):
    with pytest.raises(ClassDefinitionError, match="max_bytes"):

        class Pin(ObjectMixin, base, type_id=1, max_bytes=size):
            __tablename__ = "pins"


# -- names


@pytest.mark.parametrize(
    "name",
    [
        *("data", "id", "ts", "active", "metadata", "registry"),
        *("shard_id", "deactivate", "restore"),
    ],
)
def test_reserved_names(base, name):
    with pytest.raises(ClassDefinitionError, match=f"called '{name}'"):
        type(
            "Pin",
            (ObjectMixin, base),
            {
                "__tablename__": "pins",
                "__annotations__": {name: Mapped[str]},
                name: blob_field(),
            },
            type_id=1,
        )
    assert is_clean(base)


@pytest.mark.parametrize("name", ["data", "id", "ts", "active", "shard_id"])
@pytest.mark.parametrize("on_mixin", [True, False])
@pytest.mark.parametrize(
    "namespace",
    [
        lambda name: {name: mapped_column(String(5))},
        lambda name: {name: Column(String(5))},
        lambda name: {"__annotations__": {name: Mapped[str]}},
        lambda name: {name: property(lambda self: 5)},
    ],
)
def test_own_attributes_in_place_of_ours(base, name, on_mixin, namespace):
    extra = type("Extra", (), namespace(name) if on_mixin else {})
    mine = {} if on_mixin else namespace(name)
    with pytest.raises(ClassDefinitionError, match=f"{name} would override"):
        type(
            "Pin",
            (extra, ObjectMixin, base),
            {"__tablename__": "pins", **mine},
            type_id=1,
        )
    assert is_clean(base)


def test_methods_can_be_extended(base):
    class Pin(ObjectMixin, base, type_id=1):
        __tablename__ = "pins"
        reason: Mapped[str | None] = blob_field(default=None)

        def deactivate(self, reason: str = "") -> None:
            self.reason = reason
            super().deactivate()

    pin = Pin()
    pin.deactivate("spam")
    assert (pin.active, pin.reason) == (False, "spam")


# -- the table


@pytest.mark.parametrize(
    ("namespace", "message"),
    [
        ({"__table_args__": {"schema": "other"}}, "in schema 'other'"),
        (
            {"key": mapped_column(Integer, primary_key=True)},
            "its primary key is .local_id, key.",
        ),
        (
            {"__table__": Table("pins", MetaData(), Column("a", Integer))},
            "it already has a table",
        ),
    ],
)
def test_impossible_tables(base, namespace, message):
    if "__table__" not in namespace:
        namespace = {"__tablename__": "pins", **namespace}
    with pytest.raises(ClassDefinitionError, match=message):
        type("Pin", (ObjectMixin, base), namespace, type_id=1)
    assert is_clean(base)


def test_class_that_sqlalchemy_refuses(base):
    with pytest.raises(InvalidRequestError, match="__tablename__"):

        class One(ObjectMixin, base, type_id=1):
            name: Mapped[str] = blob_field()

    with pytest.raises(ArgumentError):

        class Two(ObjectMixin, base, type_id=1):
            __tablename__ = "pins"
            size: Mapped[complex] = mapped_column()

    assert is_clean(base)

    class Pin(ObjectMixin, base, type_id=1):
        __tablename__ = "pins"
        name: Mapped[str] = blob_field()


def test_a_corrected_class_can_be_defined(any_base):
    """Whatever was wrong with it, and with the same names."""
    kept = []
    for keywords, namespace in (
        ({"type_id": 1, "colocate_with": "nothing"}, {}),
        ({"type_id": 1, "colocate_with": "number"}, {}),
        ({"type_id": 1}, {"__table_args__": {"schema": "s"}}),
        ({"type_id": 1}, {"key": mapped_column(Integer, primary_key=True)}),
        ({"type_id": 1}, {"text": blob_field()}),
        ({"type_id": 0}, {}),
        ({}, {}),
    ):
        fields = {
            "__tablename__": "pins",
            "number": mapped_column(Integer),
            "link": blob_field(type_=str),
        }
        with pytest.raises((ClassDefinitionError, InvalidIdError)) as caught:
            type("Pin", (ObjectMixin, any_base), {**fields, **namespace}, **keywords)
        # Although the tracebacks still hold the classes.
        kept.append(caught)
        assert not any_base.metadata.tables
    pin = type(
        "Pin",
        (ObjectMixin, any_base),
        {"__tablename__": "pins", "link": blob_field(type_=str)},
        type_id=1,
    )
    user = type(
        "User",
        (ObjectMixin, any_base),
        {
            "__tablename__": "users",
            "pin_id": mapped_column(ShardedId(1), ForeignKey("pins.local_id")),
            "pin": relationship("Pin"),
        },
        type_id=2,
        colocate_with="pin_id",
    )
    configure_mappers()
    assert inspect(user).relationships["pin"].mapper.class_ is pin
