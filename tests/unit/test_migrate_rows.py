"""Rows as objects, by the declaration."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone, UTC
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import (
    Column,
    DateTime,
    ForeignKey,
    Integer,
    MetaData,
    Numeric,
    String,
    Table,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.orm import DeclarativeBase, Mapped
from sqlalchemy.types import UserDefinedType

from sqla_shard import blob_field, ObjectMixin, pack
from sqla_shard.exc import ConversionError, DeclarationError
from sqla_shard.migrate import Declaration, Owned, Owner
from sqla_shard.migrate.exact_types import unfit
from sqla_shard.migrate.future import Future
from sqla_shard.migrate.tables import AttributeDifference, Conversion, is_same

METADATA = MetaData()
Table("users", METADATA, Column("id", Integer, primary_key=True))
Table(
    "posts",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("user_id", ForeignKey("users.id"), nullable=False),
    Column("reply_to", ForeignKey("posts.id")),
    Column("title", String(100), nullable=False),
    Column("price", Numeric(10, 2)),
    Column("at", DateTime),
    Column("legacy_flags", Integer),
)
FUTURE = Future(
    Declaration(
        Owner("users.id", type_id=3), Owned("posts", colocate_with="user_id", type_id=4)
    ),
    METADATA,
)
NAMES = {"at": "written_at", "legacy_flags": None}


class Base(DeclarativeBase):
    pass


class User(ObjectMixin, Base, type_id=3):
    __tablename__ = "users"


class Post(ObjectMixin, Base, type_id=4, colocate_with="user_id"):
    __tablename__ = "posts"
    user_id: Mapped[int] = blob_field(ref=User)
    reply_to: Mapped[int | None] = blob_field(default=None)
    title: Mapped[str] = blob_field()
    price: Mapped[Decimal | None] = blob_field(default=None)
    written_at: Mapped[datetime | None] = blob_field(default=None)


ROW = {
    "id": 70,
    "user_id": 5,
    "reply_to": 69,
    "title": "Boats ",
    "price": Decimal("1.50"),
    "at": datetime(2020, 1, 2, 3, 4, 5),  # as MySQL returns it
    "legacy_flags": 1,
}
IDS = {(3, 5): pack(9, 3, 5), (4, 69): pack(9, 4, 69)}


@pytest.fixture
def conversion():
    return Conversion(FUTURE.tables["posts"], Post, names=NAMES)


def test_ids_are_replaced(conversion):
    assert conversion.references(ROW) == set(IDS)
    assert conversion.references({**ROW, "reply_to": None}) == {(3, 5)}
    assert conversion.values(ROW, IDS) == {
        "user_id": pack(9, 3, 5),
        "reply_to": pack(9, 4, 69),
        "title": "Boats ",
        "price": Decimal("1.50"),
        "written_at": ROW["at"].replace(tzinfo=UTC),
    }
    with pytest.raises(KeyError):
        conversion.values(ROW, {})


def test_an_object_of_a_row_is_the_same(conversion):
    values = conversion.values(ROW, IDS)
    post = Post(**values)
    found = conversion.attributes(post)
    assert list(conversion.differences(values, found)) == []
    post.title = "Boats"
    post.price = None
    found = conversion.attributes(post)
    assert list(conversion.differences(values, found)) == [
        AttributeDifference(attribute="title", expected="Boats ", found="Boats"),
        AttributeDifference(attribute="price", expected=Decimal("1.50"), found=None),
    ]


def test_every_column_has_an_attribute_or_is_left_behind():
    names = {"at": "written", "missing": "title"}
    with pytest.raises(DeclarationError) as caught:
        Conversion(FUTURE.tables["posts"], Post, names=names)
    text = "\n".join(caught.value.problems)
    assert "Post has no attribute 'written' for posts.at" in text
    assert "Post has no attribute 'legacy_flags'" in text
    assert "posts has no column 'missing'" in text


def test_values_are_converted_by_functions_and_zones():
    conversion = Conversion(
        FUTURE.tables["posts"],
        Post,
        names=NAMES,
        zone=timezone(timedelta(hours=2)),
        convert={"title": str.strip},
    )
    values = conversion.values(ROW, IDS)
    post = Post(**values)
    assert post.title == "Boats"
    assert post.written_at == datetime(2020, 1, 2, 1, 4, 5, tzinfo=UTC)
    found = conversion.attributes(post)
    assert list(conversion.differences(values, found)) == []


def test_the_hour_that_occurs_twice_is_the_same():
    conversion = Conversion(
        FUTURE.tables["posts"], Post, names=NAMES, zone=ZoneInfo("Europe/Berlin")
    )
    written = datetime(2020, 10, 25, 2, 30)
    values = conversion.values({**ROW, "at": written}, IDS)
    for hour, count in ((0, 0), (1, 0), (2, 1)):
        moment = datetime(2020, 10, 25, hour, 30, tzinfo=UTC)
        found = {**values, "written_at": moment}
        assert len(list(conversion.differences(values, found))) == count
    last = {**values, "written_at": datetime.max.replace(tzinfo=UTC)}
    assert len(list(conversion.differences(values, last))) == 1


MOMENT = datetime(2020, 1, 2, 3, 4, 5, tzinfo=UTC)


def test_a_time_that_the_zone_skips_is_refused():
    conversion = Conversion(
        FUTURE.tables["posts"], Post, names=NAMES, zone=ZoneInfo("Europe/Berlin")
    )
    for hour in (1, 3):
        row = {**ROW, "at": datetime(2020, 3, 29, hour, 30)}
        keys = {(3, IDS[3, 5]): 5, (4, IDS[4, 69]): 69}
        assert conversion.row(conversion.values(row, IDS), keys)["at"] == row["at"]
    # It would come back as 03:30.
    skipped = {**ROW, "at": datetime(2020, 3, 29, 2, 30)}
    with pytest.raises(ConversionError, match="Europe/Berlin skips this time"):
        conversion.values(skipped, IDS)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (None, None, True),
        (None, 0, False),
        ("", None, False),
        ("a", "a ", False),
        ("a", "A", False),
        ("1", 1, False),
        (1, True, True),
        (Decimal("1.50"), Decimal("1.5"), True),
        (Decimal("0.1"), 0.1, False),
        (b"a", bytearray(b"a"), True),
        (b"a", "a", False),
        (MOMENT, MOMENT.replace(tzinfo=None), True),
        (MOMENT, MOMENT.astimezone(timezone(timedelta(hours=5))), True),
        (MOMENT, MOMENT + timedelta(microseconds=1), False),
        ({"a": [1, {"b": None}]}, {"a": [1, {"b": None}]}, True),
        ({"a": 1}, {"a": True}, False),
        ({"a": 1}, {"a": 1, "b": None}, False),
        ([1, 2], [2, 1], False),
        (["a"], "a", False),
    ],
)
def test_values_are_compared_by_their_types(one, other, same):
    assert is_same(one, other) is same
    assert is_same(other, one) is same


class _Vector(UserDefinedType):
    cache_ok = True

    def get_col_spec(self, **kw):
        return "VECTOR(3)"


def test_a_vector_fits_a_column_of_its_type_only():
    column = Column("embedding", _Vector())
    assert not [*unfit(column, mysql.dialect(), is_raw=True)]
    ((reason, _),) = unfit(column, mysql.dialect(), is_raw=False)
    assert reason.startswith("a VECTOR")
