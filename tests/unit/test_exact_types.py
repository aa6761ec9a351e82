"""Values of columns, as they are in the database."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone, UTC

import pytest
from sqlalchemy import (
    Column,
    create_engine,
    DateTime,
    insert,
    Integer,
    JSON,
    MetaData,
    select,
    Table,
    TIMESTAMP,
    update,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeDecorator

from sqla_shard import blob_field, ObjectMixin
from sqla_shard.migrate import Declaration, Moved, Owner
from sqla_shard.migrate.exact_types import exact_table, written
from sqla_shard.migrate.future import Future
from sqla_shard.migrate.tables import MovedTable
from sqla_shard.types import UTCTimestamp

MOMENT = datetime(2020, 1, 2, 3, 4, 5, tzinfo=UTC)


class Document(TypeDecorator):
    """A type that takes nothing else than a document or None."""

    impl = JSON
    cache_ok = True

    def process_bind_param(self, value, dialect):
        return None if value is None else {**value}

    process_result_value = process_bind_param


class Local(TypeDecorator):
    """A type that says what the times of a session are."""

    impl = TIMESTAMP
    cache_ok = True

    def process_result_value(self, value, dialect):
        return value and value.replace(tzinfo=timezone(timedelta(hours=5)))


def things(*columns):
    return Table(
        "things", MetaData(), Column("id", Integer, primary_key=True), *columns
    )


def shown(statement):
    return str(statement.compile(dialect=mysql.dialect()))


@pytest.fixture
def connection():
    engine = create_engine("sqlite://")
    with engine.connect() as connection:
        yield connection
    engine.dispose()


def test_a_type_gets_what_it_reads_itself():
    for type_, is_read in (
        (UTCTimestamp(), "things.at"),
        (Local(), "CAST(things.at AS"),
    ):
        table = things(Column("at", type_))
        statement = shown(select(exact_table(table).c.at))
        assert statement.startswith(f"SELECT {is_read}")
    # The same moment on both sides, whatever their sessions are.
    assert "UNIX_TIMESTAMP" in shown(select(exact_table(table, ["at"]).c.at))


def test_a_type_gets_no_marker_of_a_json_null(connection):
    table = things(Column("doc", Document))
    table.create(connection)
    connection.exec_driver_sql("INSERT INTO things (doc) VALUES ('null'), (NULL)")
    exact = exact_table(table, ["doc"])
    for _ in range(2):
        assert connection.scalars(select(exact.c.doc)).all() == [JSON.NULL, None]
        connection.execute(update(exact).where(exact.c.id == 1), {"doc": JSON.NULL})


def test_a_timestamp_is_a_moment_on_sqlite_too(connection):
    table = things(Column("at", TIMESTAMP))
    table.create(connection)
    exact = exact_table(table)
    connection.execute(
        insert(exact), {"at": MOMENT.astimezone(timezone(timedelta(hours=5)))}
    )
    assert connection.scalar(select(table.c.at)) == MOMENT.replace(tzinfo=None)
    found = connection.scalar(select(exact.c.at))
    assert (found, found.utcoffset()) == (MOMENT, timedelta())


def test_a_zero_timestamp_is_written_as_a_text():
    exact = exact_table(things(Column("at", TIMESTAMP)))
    zero = written(exact, {"at": "0000-00-00 00:00:00"})
    assert "FROM_UNIXTIME" not in shown(insert(exact).values(zero))
    moment = written(exact, {"at": MOMENT})
    assert "FROM_UNIXTIME" in shown(insert(exact).values(moment))


class Base(DeclarativeBase):
    pass


class Thing(ObjectMixin, Base, type_id=1):
    __tablename__ = "things"
    edited: Mapped[datetime] = mapped_column("edited_at", DateTime, key="edited")
    seen: Mapped[datetime] = mapped_column(UTCTimestamp)
    met: Mapped[datetime] = blob_field()


def test_columns_with_keys_and_moments():
    table = things(
        Column("edited", DateTime),
        Column("seen", UTCTimestamp),
        Column("met", UTCTimestamp),
    )
    future = Future(Declaration(Owner("things.id", type_id=1)), table.metadata)
    moved = Moved(cls=Thing, zone=timezone(timedelta(hours=5)))
    found = MovedTable(Owner("things.id", type_id=1), future, moved, {})
    assert found.kept["edited"].name == "edited_at"
    row = {"edited": datetime(2020, 1, 2), "seen": MOMENT, "met": MOMENT}
    assert found.conversion.row(found.conversion.values(row, {}), {}) == row
