"""Classes with columns of every kind that a merge compares, and a mirror.

``Shop``, ``Ware`` and ``Mark`` are plain models, ``Gem`` is an object class
with the same kinds in its blob.  ``Crate`` is a ``Ware`` with a table of its
own beside, ``Pearl`` a ``Gem`` in the same table.  :data:`PLAIN` has the same
columns with whole ids, for one database.
"""

from __future__ import annotations

import datetime as dt
import enum
from decimal import Decimal
from types import SimpleNamespace
from typing import Any, ClassVar

from sqlalchemy import (
    BigInteger,
    Date,
    DateTime,
    Double,
    Enum,
    Float,
    ForeignKey,
    func,
    Integer,
    Numeric,
    String,
    Text,
    Time,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.ext.hybrid import hybrid_property
from sqlalchemy.orm import DeclarativeBase, foreign, Mapped, mapped_column, relationship

from sqla_shard import blob_field, ObjectMixin
from sqla_shard.types import full_id, ShardedId
from tests.models.collations import ServerText

SHOP, WARE, GEM = 11, 12, 13

#: Of the columns of texts, on MariaDB.
COLLATIONS = {
    "name": "utf8mb4_bin",
    "story": "utf8mb4_bin",
    # As the blob.
    "word": "utf8mb4_nopad_bin",
    "general": "utf8mb4_general_ci",
    "unicode": "utf8mb4_unicode_ci",
    "swedish": "utf8mb4_swedish_ci",
    "exact": "utf8mb4_nopad_bin",
    "unpadded": "utf8mb4_unicode_nopad_ci",
    "uca": "uca1400_ai_ci",
    "accents": "utf8mb4_uca1400_as_ci",
    "nopad": "utf8mb4_uca1400_nopad_ai_ci",
    "latin": "latin1_german2_ci",
    "german": "utf8mb4_german2_ci",
    "thai": "utf8mb4_thai_520_w2",
    "cased": "utf8mb4_uca1400_as_cs",
    "three": "utf8mb3_unicode_ci",
    "nick": "utf8mb4_bin",
}
# Others have it in their names.
_CHARSETS = {"uca1400_ai_ci": "utf8mb4"}
#: Servers sort by all levels of so many characters.
_LENGTHS = {"cased": 20, "nick": 4}


class Colour(enum.Enum):
    """In an order that is not that of their names."""

    RED = "red"
    BLUE = "blue"
    GREEN = "green"
    AMBER = "amber"


class Rank(enum.Enum):
    """Numbers that sort otherwise as text."""

    LOW = 2
    MIDDLE = 10
    HIGH = 100


def charset_of(collation: str) -> str:
    """Return the character set of a collation."""
    return _CHARSETS.get(collation, collation.partition("_")[0])


def _text(key: str) -> Any:
    name = COLLATIONS[key]
    length = _LENGTHS.get(key, 30)
    charset = charset_of(name)
    on_server = ServerText(length, charset=charset, collation=name)
    return mapped_column(String(length).with_variant(on_server, "mysql"))


def _mapped_as(kind: str) -> Any:
    """Return the arguments of the mapper of a base class."""
    return {"polymorphic_on": "kind", "polymorphic_identity": kind}


class _Numbered:
    """Values that are computed from a number."""

    @hybrid_property
    def twice(self) -> Any:
        return self.number * 2

    @hybrid_property
    def score(self) -> Any:
        return func.coalesce(self.number, 0) + 1


class _WareValues(_Numbered):
    """The columns of a ware that are no ids."""

    kind: Mapped[str] = mapped_column(String(9))
    number: Mapped[int | None] = mapped_column(Integer)
    big: Mapped[int | None] = mapped_column(BigInteger)
    price: Mapped[Decimal | None] = mapped_column(Numeric(30, 4))
    weight: Mapped[float | None] = mapped_column(Double)
    size: Mapped[float | None] = mapped_column(Float)
    sold: Mapped[bool | None]
    day: Mapped[dt.date | None] = mapped_column(Date)
    moment: Mapped[dt.datetime | None] = mapped_column(
        DateTime().with_variant(mysql.DATETIME(fsp=6), "mysql")
    )
    hour: Mapped[dt.time | None] = mapped_column(
        Time().with_variant(mysql.TIME(fsp=3), "mysql")
    )
    colour: Mapped[Colour | None] = mapped_column(Enum(Colour))
    spelled: Mapped[Colour | None] = mapped_column(Enum(Colour, native_enum=False))
    name: Mapped[str | None] = _text("name")
    story: Mapped[str | None] = mapped_column(Text)
    general: Mapped[str | None] = _text("general")
    unicode: Mapped[str | None] = _text("unicode")
    swedish: Mapped[str | None] = _text("swedish")
    exact: Mapped[str | None] = _text("exact")
    unpadded: Mapped[str | None] = _text("unpadded")
    uca: Mapped[str | None] = _text("uca")
    accents: Mapped[str | None] = _text("accents")
    nopad: Mapped[str | None] = _text("nopad")
    latin: Mapped[str | None] = _text("latin")
    german: Mapped[str | None] = _text("german")
    thai: Mapped[str | None] = _text("thai")
    cased: Mapped[str | None] = _text("cased")
    three: Mapped[str | None] = _text("three")
    nick: Mapped[str | None] = _text("nick")


# -- on shards


class Base(DeclarativeBase):
    pass


class Shop(Base):
    __tablename__ = "shops"

    id: Mapped[int] = mapped_column("local_id", ShardedId(SHOP), primary_key=True)
    name: Mapped[str | None] = _text("name")
    general: Mapped[str | None] = _text("general")
    number: Mapped[int | None]
    wares: Mapped[list[Ware]] = relationship(
        back_populates="shop", order_by="(Ware.number.desc(), Ware.id)"
    )


class Ware(_WareValues, Base):
    __tablename__ = "wares"

    id: Mapped[int] = mapped_column("local_id", ShardedId(WARE), primary_key=True)
    shop_id: Mapped[int | None] = mapped_column(
        ShardedId(SHOP), ForeignKey("shops.local_id")
    )
    shop: Mapped[Shop | None] = relationship(back_populates="wares")
    marks: Mapped[list[Mark]] = relationship(order_by="(Mark.general, Mark.name)")
    __mapper_args__ = _mapped_as("ware")


class Crate(Ware):
    __tablename__ = "crates"

    id: Mapped[int] = mapped_column(
        "local_id", ShardedId(WARE), ForeignKey("wares.local_id"), primary_key=True
    )
    depth: Mapped[int | None]
    __mapper_args__: ClassVar[dict[str, Any]] = {"polymorphic_identity": "crate"}


class Mark(Base):
    __tablename__ = "marks"

    ware_id: Mapped[int] = mapped_column(
        ShardedId(WARE), ForeignKey("wares.local_id"), primary_key=True
    )
    name: Mapped[str] = mapped_column(String(20), primary_key=True)
    general: Mapped[str | None] = _text("general")
    number: Mapped[int | None]


class Gem(_Numbered, ObjectMixin, Base, type_id=GEM, colocate_with="ware_id"):
    __tablename__ = "gems"

    kind: Mapped[str] = mapped_column(String(9))
    ware_id: Mapped[int] = blob_field(ref=WARE)
    word: Mapped[str | None] = blob_field(default=None)
    number: Mapped[int | None] = blob_field(default=None)
    price: Mapped[Decimal | None] = blob_field(default=None)
    weight: Mapped[float | None] = blob_field(default=None)
    sold: Mapped[bool | None] = blob_field(default=None)
    day: Mapped[dt.date | None] = blob_field(default=None)
    moment: Mapped[dt.datetime | None] = blob_field(default=None)
    colour: Mapped[Colour | None] = blob_field(default=None)
    rank: Mapped[Rank | None] = blob_field(default=None)
    __mapper_args__ = _mapped_as("gem")


class Pearl(Gem):
    lustre: Mapped[int | None] = blob_field(default=None)
    __mapper_args__: ClassVar[dict[str, Any]] = {"polymorphic_identity": "pearl"}


SHARDED = SimpleNamespace(
    base=Base,
    Shop=Shop,
    Ware=Ware,
    Crate=Crate,
    Mark=Mark,
    Gem=Gem,
    Pearl=Pearl,
    full=full_id,
    plain=False,
)


# -- the mirror


class PlainBase(DeclarativeBase):
    type_annotation_map = {int: BigInteger}  # noqa: RUF012  # SQLAlchemy's


def _plain_id() -> Any:
    return mapped_column("local_id", BigInteger, primary_key=True)


class PlainShop(PlainBase):
    __tablename__ = "shops"

    id: Mapped[int] = _plain_id()
    name: Mapped[str | None] = _text("name")
    general: Mapped[str | None] = _text("general")
    number: Mapped[int | None]
    wares: Mapped[list[PlainWare]] = relationship(
        primaryjoin=lambda: PlainShop.id == foreign(PlainWare.shop_id),
        back_populates="shop",
        order_by=lambda: (PlainWare.number.desc(), PlainWare.id),
    )


class PlainWare(_WareValues, PlainBase):
    __tablename__ = "wares"

    id: Mapped[int] = _plain_id()
    shop_id: Mapped[int | None]
    shop: Mapped[PlainShop | None] = relationship(
        primaryjoin=lambda: PlainShop.id == foreign(PlainWare.shop_id),
        back_populates="wares",
    )
    marks: Mapped[list[PlainMark]] = relationship(
        primaryjoin=lambda: PlainWare.id == foreign(PlainMark.ware_id),
        order_by=lambda: (PlainMark.general, PlainMark.name),
    )
    __mapper_args__ = _mapped_as("ware")


class PlainCrate(PlainWare):
    __tablename__ = "crates"

    id: Mapped[int] = mapped_column(
        "local_id", ForeignKey("wares.local_id"), primary_key=True
    )
    depth: Mapped[int | None]
    __mapper_args__: ClassVar[dict[str, Any]] = {"polymorphic_identity": "crate"}


class PlainMark(PlainBase):
    __tablename__ = "marks"

    ware_id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(20), primary_key=True)
    general: Mapped[str | None] = _text("general")
    number: Mapped[int | None]


class PlainGem(_Numbered, PlainBase):
    __tablename__ = "gems"

    id: Mapped[int] = _plain_id()
    kind: Mapped[str] = mapped_column(String(9))
    ware_id: Mapped[int]
    word: Mapped[str | None] = _text("word")
    number: Mapped[int | None]
    price: Mapped[Decimal | None] = mapped_column(Numeric(40, 6))
    weight: Mapped[float | None] = mapped_column(Double)
    sold: Mapped[bool | None]
    day: Mapped[dt.date | None] = mapped_column(Date)
    moment: Mapped[dt.datetime | None] = mapped_column(
        DateTime().with_variant(mysql.DATETIME(fsp=6), "mysql")
    )
    #: By its value, as in the blob.
    colour: Mapped[Colour | None] = mapped_column(
        Enum(
            Colour,
            native_enum=False,
            values_callable=lambda kind: [one.value for one in kind],
        )
    )
    #: The number itself: an Enum of SQLAlchemy holds text.
    rank: Mapped[int | None]
    __mapper_args__ = _mapped_as("gem")


class PlainPearl(PlainGem):
    lustre: Mapped[int | None]
    __mapper_args__: ClassVar[dict[str, Any]] = {"polymorphic_identity": "pearl"}


class CoreTable:
    """A table whose columns have the names of the class's attributes."""

    def __init__(self, table: Any) -> None:
        self.table = table

    def __getattr__(self, key: str) -> Any:
        column = self.table.c.get("local_id" if key == "id" else key)
        if column is None:
            raise AttributeError(key)
        return column


PLAIN = SimpleNamespace(
    base=PlainBase,
    Shop=PlainShop,
    Ware=PlainWare,
    Crate=PlainCrate,
    Mark=PlainMark,
    Gem=PlainGem,
    Pearl=PlainPearl,
    full=lambda column: column,
    plain=True,
)
