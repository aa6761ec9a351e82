"""Mapping classes that can be created, and those that cannot."""

from __future__ import annotations

import gc
from inspect import signature
from typing import Any, TypeVar

import pytest
from sqlalchemy import BigInteger, Column, Index, inspect, Integer, String, Table
from sqlalchemy.orm import (
    configure_mappers,
    DeclarativeBase,
    DeclarativeBaseNoMeta,
    declared_attr,
    Mapped,
    mapped_column,
    MappedAsDataclass,
)
from sqlalchemy.schema import CreateTable

from sqla_shard import blob_field, KeyspaceMixin, MappingMixin, ObjectMixin, pack
from sqla_shard.exc import ClassDefinitionError
from sqla_shard.models.mapping_list import statements_of
from sqla_shard.planning import spec_of

S = TypeVar("S")
T = TypeVar("T")


def make_base(kind: Any = DeclarativeBase, **namespace: Any) -> Any:
    return type("Base", (kind,), namespace)


def objects(base: Any) -> Any:
    class Board(ObjectMixin, base, type_id=2):
        __tablename__ = "boards"
        title: Mapped[str] = blob_field()

    class Pin(ObjectMixin, base, type_id=1):
        __tablename__ = "pins"
        title: Mapped[str] = blob_field()

    return Board, Pin


@pytest.fixture
def base():
    return make_base()


@pytest.fixture
def board_and_pin(base):
    return objects(base)


def make(base: Any, name: str = "BoardHasPins", **keywords: Any) -> Any:
    namespace = keywords.pop("namespace", {})
    keywords = {"source": "Board", "target": "Pin", **keywords}
    namespace.setdefault("__module__", __name__)
    return type(name, (MappingMixin, base), namespace, **keywords)


@pytest.mark.parametrize("kind", [DeclarativeBase, DeclarativeBaseNoMeta])
@pytest.mark.parametrize("named", [True, False])
def test_the_table(kind, named):
    base = make_base(kind)
    Board, Pin = objects(base)
    given = (
        {"source": "Board", "target": "Pin"}
        if named
        else {"source": Board, "target": Pin}
    )
    cls = make(base, **given)
    configure_mappers()
    table = cls.__table__
    assert table.name == "board_has_pins"
    assert [c.name for c in table.c] == ["board_id", "pin_id", "sequence"]
    assert [c.name for c in table.primary_key] == ["board_id", "pin_id"]
    assert not any(c.nullable for c in table.c)
    assert not any(c.autoincrement is True for c in table.c)
    (index,) = table.indexes
    assert list(index.columns.keys()) == ["board_id", "sequence", "pin_id"]
    assert not table.foreign_keys
    assert "CREATE TABLE board_has_pins" in str(CreateTable(table))
    assert statements_of(cls).definition.source.entity is Board
    spec = spec_of(table)
    assert (spec.kind, spec.id_index, spec.type_id) == ("objects", 0, 2)


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("BoardHasPins", "board_has_pins"),
        ("UserFollowsUser", "user_follows_user"),
        ("HTTPServerHasURLs", "http_server_has_ur_ls"),
        ("Board2Pins", "board2_pins"),
        ("boards_pins", "boards_pins"),
    ],
)
def test_names_of_tables(base, board_and_pin, name, table):
    assert make(base, name).__tablename__ == table


def test_a_name_of_ones_own(base, board_and_pin):
    cls = make(base, namespace={"__tablename__": "others"})
    assert cls.__table__.name == "others"


def test_a_name_that_the_base_gives():
    class Base(DeclarativeBase):
        @declared_attr.directive
        def __tablename__(cls) -> str:  # noqa: N805  # as it is written
            return f"app_{cls.__name__.lower()}"

    class Board(ObjectMixin, Base, type_id=2):
        pass

    class Pin(ObjectMixin, Base, type_id=1):
        pass

    assert make(Base).__table__.name == "app_boardhaspins"


def test_columns_are_named_after_the_classes(base):
    class PinBoard(ObjectMixin, base, type_id=5):
        __tablename__ = "pin_boards"

    class HTTPLink(ObjectMixin, base, type_id=6):
        __tablename__ = "links"

    cls = make(base, source=PinBoard, target=HTTPLink)
    assert [c.name for c in cls.__table__.c][:2] == ["pin_board_id", "http_link_id"]
    other = make(
        base,
        "Others",
        source=PinBoard,
        target=PinBoard,
        source_column="here",
        target_column="there",
    )
    assert [c.name for c in other.__table__.primary_key] == ["here", "there"]


def test_columns_and_indexes_of_ones_own(base, board_and_pin):
    class BoardHasPins(MappingMixin, base, source="Board", target="Pin"):
        # Annotations are for type checkers.
        board_id: Mapped[int]
        pin_id: Mapped[int]
        stars: Mapped[int] = mapped_column(Integer)
        remark: Mapped[str] = mapped_column("note", String(40))
        __table_args__ = (Index("by_stars", "stars"),)

        @classmethod
        def append(cls, session: Any, source_id: int, target_id: int) -> bool:
            return super().append(session, source_id, target_id)

    table = BoardHasPins.__table__
    assert set(table.c.keys()) == {"board_id", "pin_id", "sequence", "stars", "note"}
    assert len(table.indexes) == 2


def test_share_through_an_abstract_base(base, board_and_pin):
    class Listed(MappingMixin, base):
        __abstract__ = True
        stars: Mapped[int] = mapped_column(Integer)

        def shine(self) -> int:
            return self.stars + 1

    class BoardHasPins(Listed, source="Board", target="Pin"):
        pass

    class BoardHadPins(Listed, source="Board", target="Pin"):
        pass

    assert BoardHasPins(stars=2).shine() == 3
    assert "stars" in BoardHadPins.__table__.c
    one = BoardHasPins.__sqla_shard_mapping__
    assert one is not BoardHadPins.__sqla_shard_mapping__
    BoardHasPins.on_narrow_gap(print)
    assert BoardHadPins.__sqla_shard_mapping__.callbacks == []


def test_source_and_target_are_type_arguments():
    base = make_base()
    board, pin = objects(base)

    class BoardHasPins(MappingMixin[board, "Pin"], base):
        target: Mapped[pin | None]

    class Listed(MappingMixin[S, T], base):
        __abstract__ = True

    class BoardHadPins(Listed[board, pin], base, source=board, target=pin):
        pass

    configure_mappers()
    for one in (BoardHasPins, BoardHadPins):
        assert one.__table__.c.keys() == ["board_id", "pin_id", "sequence"]
        assert inspect(one).relationships.target.entity.class_ is pin


def test_columns_have_other_names():
    base = make_base()
    board, pin = objects(base)

    class Numbered:
        target_id: Mapped[str] = mapped_column(String(9))

    class BoardHasPins(MappingMixin[board, pin], base):
        pass

    class PinInBoards(Numbered, MappingMixin[pin, board], base):
        pass

    class Renamed(
        MappingMixin, base, source=pin, target=board, source_column="source_id"
    ):
        pass

    class Annotated(MappingMixin, base, source=board, target=pin):
        source_id: Mapped[str]

    class Named(MappingMixin, base, source=board, target=pin):
        origin: Mapped[str] = mapped_column("source_id", String(9))

    configure_mappers()
    for one in (Annotated, Named):
        assert "source_id" in one.__table__.c
        assert [*inspect(one).synonyms.keys()] == ["target_id"]
    row = BoardHasPins(source_id=1, target_id=2)
    assert (row.board_id, row.pin_id) == (1, 2)
    assert str(BoardHasPins.target_id == 2) == "board_has_pins.pin_id = :pin_id_1"
    assert str(PinInBoards.source_id == 1) == "pin_in_boards.pin_id = :pin_id_1"
    assert str(PinInBoards.target_id == "2").startswith("pin_in_boards.target_id = ")
    assert Renamed.__table__.c.keys() == ["source_id", "board_id", "sequence"]


def test_source_and_target_are_given_once():
    base = make_base()
    board, pin = objects(base)
    with pytest.raises(ClassDefinitionError, match="source and target are given twice"):

        class BoardHasPins(MappingMixin[board, pin], base, source=board):
            pass


REFUSED = [
    ({"source": None}, "source or target is missing"),
    ({"target": None}, "source or target is missing"),
    ({"source": ""}, "source=''"),
    ({"source": 5}, "source=5"),
    ({"target": object()}, "target=<object"),
    ({"source": int}, "int is not an object class"),
    ({"target": "Board", "source": "Board"}, "'board_id'"),
    ({"source_column": "pin_id"}, "'pin_id'"),
    ({"source_column": ""}, "source_column=''"),
    ({"source_column": "a b"}, "source_column='a b'"),
    ({"target_column": 5}, "target_column=5"),
    ({"target_column": "sequence"}, "target_column='sequence'"),
    ({"target_column": "target"}, "target_column='target'"),
    ({"target_column": "metadata"}, "target_column='metadata'"),
    ({"target_column": "__x__"}, "target_column='__x__'"),
    ({"target_column": "page"}, "'page' would override"),
    ({"source_column": "count"}, "'count' would override"),
    ({"narrow_below": -1}, "narrow_below=-1"),
    ({"narrow_below": 84}, "narrow_below=84"),
    ({"narrow_below": True}, "narrow_below=True"),
    ({"narrow_below": "5"}, "narrow_below='5'"),
    ({"respace_to": 0}, "respace_to=0"),
    ({"respace_to": 51}, "respace_to=51"),
    ({"respace_to": 2.0}, "respace_to=2.0"),
    ({"narrow_below": 41}, "narrow_below=41"),
    ({"narrow_below": 11, "respace_to": 10}, "respace_to=10"),
]
BODIES = [
    ({"sequence": mapped_column(BigInteger)}, "BoardHasPins.sequence"),
    ({"source": mapped_column(String(9))}, "BoardHasPins.source"),
    ({"target": None}, "BoardHasPins.target"),
    ({"board_id": mapped_column(BigInteger)}, "BoardHasPins.board_id"),
    ({"count": mapped_column(Integer)}, "BoardHasPins.count"),
    ({"position": 5}, "BoardHasPins.position"),
    ({"__annotations__": {"page": Mapped[int]}}, "BoardHasPins.page"),
    ({"extra": mapped_column(Integer, primary_key=True)}, "its primary key is"),
    ({"__table_args__": {"schema": "other"}}, "schema 'other'"),
]


@pytest.mark.parametrize(
    ("keywords", "message"),
    [*REFUSED, *(({"namespace": body}, text) for body, text in BODIES)],
)
def test_refused(base, board_and_pin, keywords, message):
    given = dict(keywords)
    if "namespace" in given:
        given["namespace"] = dict(given["namespace"])
    tables = set(base.metadata.tables)
    with pytest.raises(ClassDefinitionError) as caught:
        make(base, **given)
    assert message in str(caught.value)
    assert caught.value.class_name == "BoardHasPins"
    # As though nothing had been tried, even while the error is held.
    assert set(base.metadata.tables) == tables
    assert {m.class_.__name__ for m in base.registry.mappers} == {"Board", "Pin"}
    configure_mappers()
    assert make(base).__table__.name == "board_has_pins"
    configure_mappers()


def test_a_table_of_its_own_is_refused(base, board_and_pin):
    table = Table("x", base.metadata, Column("a", Integer, primary_key=True))
    with pytest.raises(ClassDefinitionError):
        make(base, namespace={"__table__": table})


def test_abstract_ones_take_no_classes(base, board_and_pin):
    with pytest.raises(ClassDefinitionError, match="abstract"):
        make(base, namespace={"__abstract__": True})


def test_the_base_comes_after(base, board_and_pin):
    with pytest.raises(ClassDefinitionError, match="declarative base"):
        type("BoardHasPins", (MappingMixin,), {}, source="A", target="B")


def test_no_inheritance_between_tables(base, board_and_pin):
    one = make(base)
    with pytest.raises(ClassDefinitionError, match="mapped to a table"):
        type("Other", (one,), {}, source="Board", target="Pin")


def test_classes_that_are_no_objects(base, board_and_pin):
    class Setting(KeyspaceMixin, base, keyspace="main"):
        __tablename__ = "settings"
        id: Mapped[int] = mapped_column(primary_key=True)

    class Plain(base):
        __tablename__ = "plain"
        id: Mapped[int] = mapped_column(primary_key=True)

    for wrong in (Setting, Plain, make(base)):
        with pytest.raises(ClassDefinitionError, match="not an object class"):
            make(base, "Other", source=wrong)
        with pytest.raises(ClassDefinitionError, match="not an object class"):
            make(base, "Other", target=wrong)
        assert "other" not in base.metadata.tables


def test_unknown_names(base):
    cls = make(base)
    with pytest.raises(ClassDefinitionError, match="no class 'Board'"):
        statements_of(cls)
    objects(base)
    # It may come later.
    assert statements_of(cls).definition.source.type_id == 2
    configure_mappers()


def test_names_that_two_have(base, board_and_pin):
    class Board(ObjectMixin, base, type_id=77):
        __module__ = "elsewhere"
        __tablename__ = "other_boards"

    cls = make(base)
    with pytest.raises(ClassDefinitionError, match="several classes"):
        statements_of(cls)


def test_the_keyspace_is_that_of_the_source(base):
    class Board(ObjectMixin, base, type_id=2, keyspace="far"):
        __tablename__ = "boards"

    class Pin(ObjectMixin, base, type_id=1, keyspace="near"):
        __tablename__ = "pins"

    cls = make(base, source=Board, target=Pin)
    assert spec_of(cls.__table__).keyspace == "far"
    named = make(base, "Named")
    statements_of(named)
    assert spec_of(named.__table__).keyspace == "far"
    said = make(base, "Said", keyspace="far")
    assert spec_of(said.__table__).keyspace == "far"
    with pytest.raises(ClassDefinitionError, match="keyspace='near'"):
        make(base, "Other", source=Board, keyspace="near")
    assert "other" not in base.metadata.tables


def test_a_refused_class_is_not_registered(base, board_and_pin):
    with pytest.raises(ClassDefinitionError):
        make(base, namespace={"__table_args__": {"schema": "x"}})
    gc.collect()
    assert all(
        mapper.class_.__name__ != "BoardHasPins" for mapper in base.registry.mappers
    )
    assert inspect(make(base)).local_table is not None


def test_a_small_respace_to_makes_narrow_below_as_small(base, board_and_pin):
    definition = make(base, respace_to=10).__sqla_shard_mapping__
    assert (definition.narrow_below, definition.respace_to) == (10, 10)


def test_dataclasses():
    class Base(MappedAsDataclass, DeclarativeBase):
        pass

    board, pin = objects(Base)

    class Held(MappingMixin, Base, source=board, target=pin):
        pin_id: Mapped[int]
        why: Mapped[str] = mapped_column(String(9), default="")

    assert list(signature(Held).parameters) == ["board_id", "pin_id", "why", "sequence"]
    row = Held(pack(1, 2, 3), pack(1, 1, 4), sequence=5)
    assert (row.board_id, row.sequence) == (pack(1, 2, 3), 5)
    assert repr(row).endswith(
        f"Held(board_id={pack(1, 2, 3)}, pin_id={pack(1, 1, 4)}, why='')"
    )
    assert row != Held(pack(1, 2, 3), pack(1, 1, 5), sequence=5)
    assert Held.__table__.c.keys()[:3] == ["board_id", "pin_id", "sequence"]


def test_an_abstract_class_has_no_lists(base):
    class Ordered(MappingMixin, base):
        __abstract__ = True

    with pytest.raises(ClassDefinitionError, match="it is abstract"):
        Ordered.on_narrow_gap(print)
    with pytest.raises(ClassDefinitionError, match="it is abstract"):
        Ordered.page(None, 5)
