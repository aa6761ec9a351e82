"""The column types of blobs and of times, on one SQLite database."""

from __future__ import annotations

import gc
import json
import pickle
import sys
from datetime import datetime, timedelta, timezone, UTC
from typing import Any

import pytest
from hypothesis import given, strategies as st
from sqlalchemy import create_engine, func, select, text
from sqlalchemy.dialects import mysql, sqlite
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, Session
from sqlalchemy.schema import CreateColumn

from sqla_shard.exc import BlobError, BlobTooLargeError, BlobValueError
from sqla_shard.types import Blob, JSONBlob, UTCTimestamp
from sqla_shard.types.blob import decode_blob, encode_blob

UTC = UTC
JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4
        )
    ),
    max_leaves=15,
)


class Base(DeclarativeBase):
    pass


class Row(Base):
    __tablename__ = "rows"

    id: Mapped[int] = mapped_column(primary_key=True)
    data: Mapped[dict[str, Any] | None] = mapped_column(JSONBlob(1000))
    at: Mapped[datetime | None] = mapped_column(UTCTimestamp())


@pytest.fixture
def session():
    engine = create_engine("sqlite://")
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        yield session
    engine.dispose()


# -- text


@given(st.dictionaries(st.text('abé"\\\n\0', max_size=3), JSON_VALUES))
def test_any_document_comes_back(values):
    text = encode_blob(Blob(values), 10**6)
    again = decode_blob(text)
    assert again == values
    assert json.dumps(again) == json.dumps(values)
    assert again.source == text
    # The same text again: a flush that changes nothing writes nothing.
    assert encode_blob(again, 10**6) == text


def test_text_is_compact_and_readable():
    blob = {"é": "😀", "n": 2**70, "f": 0.1, "x": [1, None, True]}
    text = '{"é":"😀","n":1180591620717411303424,"f":0.1,"x":[1,null,true]}'
    assert encode_blob(blob, 1000) == text


@pytest.mark.parametrize(
    "stored",
    [
        *("", "{", "null", "[]", '"x"', "5", '{"a": 1}x', "{'a': 1}"),
        *('{"a": NaN}', '{"a": -Infinity}', "\ufeff{}"),
    ],
)
def test_invalid_blobs(stored):
    with pytest.raises(BlobValueError, match="the stored") as caught:
        decode_blob(stored)
    assert caught.value.value == stored


@pytest.mark.parametrize(
    "value",
    [
        *(float("nan"), float("inf"), {1}, b"x", object(), "\ud800", 1j),
        datetime(2024, 1, 1),
    ],
)
def test_values_that_json_cannot_hold(value):
    for values in ({"a": value}, {"a": [value]}):
        with pytest.raises(BlobValueError, match='data\\["a"\\]'):
            encode_blob(values, 1000)
        with pytest.raises(BlobValueError):
            Blob(values)
    with pytest.raises(BlobValueError):
        Blob({5: "x"})


def test_integers_that_mysql_does_not_parse():
    greatest = int(sys.float_info.max)
    assert Blob({"a": greatest, "b": [-greatest]})["a"] == greatest
    limit = sys.get_int_max_str_digits()
    for value in (greatest + 1, -greatest - 1, 10 ** (limit + 1)):
        with pytest.raises(BlobValueError, match="beyond a double"):
            Blob({"a": value})
        with pytest.raises(BlobValueError, match="beyond a double"):
            Blob({"a": [value]})


# -- sizes


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (2, "TEXT"),
        (65_535, "TEXT"),
        (65_536, "MEDIUMTEXT"),
        (16_777_215, "MEDIUMTEXT"),
        (16_777_216, "LONGTEXT"),
        (4_294_967_295, "LONGTEXT"),
    ],
)
def test_type_by_size(size, expected):
    kind = JSONBlob(size)
    for name, collation in (("mysql", "utf8mb4_bin"), ("mariadb", "utf8mb4_nopad_bin")):
        dialect = mysql.dialect(is_mariadb=name == "mariadb")
        assert kind.compile(dialect=dialect) == (
            f"{expected} CHARACTER SET utf8mb4 COLLATE {collation}"
        )
    assert kind.compile(dialect=sqlite.dialect()) == "TEXT"


@pytest.mark.parametrize("size", [0, 1, -5, 2**32, True, 10.0, "10", None])
def test_impossible_size(size):
    with pytest.raises(ValueError, match="max_bytes must be an int"):
        JSONBlob(size)


@pytest.mark.parametrize("character", ["x", "é", "語", "😀"])
def test_bytes_are_counted(character):
    width = len(character.encode())
    blob = {"a": character * 50}
    size = 8 + 50 * width
    assert len(encode_blob(blob, size).encode()) == size
    with pytest.raises(BlobTooLargeError) as caught:
        encode_blob(blob, size - 1)
    assert (caught.value.size, caught.value.limit) == (size, size - 1)
    assert pickle.loads(pickle.dumps(caught.value)).size == size


# -- as a column of any session


def test_tracked(session):
    row = Row(data={"a": [{"b": 1}]})
    session.add(row)
    session.commit()
    assert type(row.data) is Blob
    row.data["a"][0]["b"] += 1
    assert row in session.dirty
    session.commit()
    assert row.data == {"a": [{"b": 2}]}
    row.data["a"] = row.data["a"]
    assert row not in session.dirty


def test_none_and_empty(session):
    session.add_all([Row(data=None), Row(data={}), Row()])
    session.commit()
    found = session.scalars(select(Row.data).order_by(Row.id)).all()
    assert found == [None, {}, None]
    row = session.get(Row, 1)
    row.data = {}
    row.data["a"] = 1
    session.commit()
    assert row.data == {"a": 1}
    row.data = None
    session.commit()
    assert row.data is None


@pytest.mark.parametrize("value", [[], "x", 5, (), [("a", 1)], True])
def test_only_dictionaries(session, value):
    with pytest.raises(BlobValueError, match="data: must be a dict"):
        Row(data=value)
    with pytest.raises(BlobValueError):
        session.scalars(select(Row).where(Row.data == value)).all()


def test_a_blob_has_one_object(session):
    one, two = Row(data={"a": []}), Row()
    two.data = one.data
    two.data["a"].append(1)
    assert one.data == {"a": []}
    blob = Blob({"a": []})
    three = Row(data=blob)
    blob["a"].append(1)
    assert three.data == {"a": []}


def test_an_empty_blob_that_is_assigned_again(session):
    row = Row(data={})
    first = row.data
    row.data = {"a": 1}
    # Changes of a blob that was replaced are not flushed.
    row.data = first
    session.add(row)
    session.flush()
    row.data["b"] = 2
    assert row in session.dirty
    session.commit()
    assert row.data == {"b": 2}


def test_source_of_an_assigned_blob(session):
    """After an assignment, source is still the value in the database."""
    row = Row(data={"a": 1})
    session.add(row)
    session.commit()
    source = row.data.source
    assert source == '{"a":1}'
    row.data = {"b": 2}
    assert row.data.source == source
    row.data = Blob({"c": 3})
    assert row.data.source == source
    assert Row(data=row.data).data.source is None


def test_pickle_of_a_blob(session):
    row = Row(data={"a": [1, {"b": 2}]})
    session.add(row)
    session.commit()
    blob = pickle.loads(pickle.dumps(row.data))
    assert blob == row.data
    assert (type(blob), blob.source) == (Blob, row.data.source)
    blob["a"].append(3)
    assert row not in session.dirty


@pytest.mark.parametrize("end", ["commit", "refresh", "rollback", "expire"])
def test_container_of_an_earlier_state(session, end):
    row = Row(data={"a": [[1]]})
    session.add(row)
    session.commit()
    held = row.data, row.data["a"], row.data["a"][0]
    if end in ("commit", "rollback"):
        getattr(session, end)()
    else:
        getattr(session, end)(row)
    changes = (
        lambda: held[0].update(b=1),
        lambda: held[1].append(1),
        lambda: held[2].append(1),
    )
    for _ in range(2):  # before and after it is read again
        for change in changes:
            with pytest.raises(BlobError, match=r"Row\.data was refreshed"):
                change()
        assert row.data == {"a": [[1]]}
    assert row not in session.dirty
    row.data["a"].append(2)
    session.commit()
    assert row.data == {"a": [[1], 2]}


def test_container_of_a_replaced_blob(session):
    row = Row(data={"a": [1]})
    session.add(row)
    session.commit()
    held = row.data["a"]
    row.data = {"a": [2]}
    held.append(3)
    session.commit()
    assert row.data == {"a": [2]}


def test_container_of_an_object_that_is_gone(session):
    session.add(Row(data={"a": [1]}))
    session.commit()
    session.expunge_all()
    held = session.get(Row, 1).data["a"]
    gc.collect()
    with pytest.raises(BlobError, match="was garbage collected"):
        held.append(2)
    copied = list(held)
    copied.append(3)


def test_binding_is_no_writing(session):
    row = Row(data={"a": 1})
    session.add(row)
    session.commit()
    source = row.data.source
    row.data["a"] = 2
    with session.no_autoflush:
        session.scalars(select(Row).where(Row.data == row.data)).all()
    assert row.data.source == source
    assert row.data.sent == '{"a":2}'


# -- times


def test_ddl_of_a_timestamp():
    column = Row.__table__.c.at
    ddl = CreateColumn(column).compile(dialect=mysql.dialect())
    assert str(ddl) == "at TIMESTAMP(6) NULL"
    ddl = CreateColumn(column).compile(dialect=sqlite.dialect())
    assert str(ddl) == "at DATETIME"


@pytest.mark.parametrize(
    "moment",
    [
        datetime(2024, 5, 6, 7, 8, 9, 123456, UTC),
        datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=14))),
        datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
    ],
)
def test_timestamp_round_trip(session, moment):
    session.add(Row(at=moment))
    session.commit()
    row = session.scalars(select(Row)).one()
    assert row.at == moment
    assert row.at.tzinfo is UTC
    assert session.scalars(select(Row.id).where(Row.at == moment)).all()
    assert session.scalar(select(func.max(Row.at))) == moment
    stored = session.execute(text("SELECT at FROM rows")).scalar()
    wanted = moment.astimezone(UTC).replace(tzinfo=None)
    assert stored == wanted.isoformat(" ", "microseconds")


_EARLY = datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14)))


@pytest.mark.parametrize("value", [datetime(2024, 1, 1), "2024-01-01", 5, _EARLY])
def test_no_timestamp(session, value):
    with pytest.raises(BlobValueError, match=r"is not a datetime with|is outside the"):
        session.scalars(select(Row).where(Row.at == value)).all()
