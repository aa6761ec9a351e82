"""Values beside a field: in functions, CASE, tuples and other operators."""

from __future__ import annotations

import enum
import operator
from collections.abc import Callable, Iterator
from datetime import date, datetime, time, timedelta, timezone, UTC
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import (
    and_,
    bindparam,
    case,
    cast,
    Column,
    Date,
    delete,
    Enum,
    exists,
    extract,
    func,
    insert,
    Integer,
    literal,
    literal_column,
    MetaData,
    null,
    select,
    String,
    Table,
    Text,
    Time,
    tuple_,
    type_coerce,
    union,
    union_all,
    update,
    Uuid,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.orm import aliased

from sqla_shard import scatter
from sqla_shard.exc import BlobValueError, UnsupportedStatementError
from sqla_shard.models.codecs import EnumCodec
from sqla_shard.models.field_types import Coded
from tests.models.objects import Color, Level, Mixed, Size, Thing
from tests.models.objects_harness import on_servers, stored, Suite

# Not in UTC: a driver would drop the zone.
T0 = datetime(2024, 5, 6, 7, 8, 9, 10, timezone(timedelta(hours=2)))
T1 = T0 + timedelta(microseconds=1)

#: Two values of each field; the first one is the lesser.
PAIRS: dict[str, tuple[Any, Any]] = {
    "text": ("a", "b"),
    "count": (1, 2),
    "ratio": (0.5, 1.5),
    "flag": (False, True),
    "price": (Decimal("1.5"), Decimal(2)),
    "at": (T0, T1),
    "day": (date(2024, 5, 6), date(2024, 5, 7)),
    "uid": (UUID(int=1), UUID(int=2**127)),
    "color": (Color.BLUE, Color.RED),
    "level": (Level.LOW, Level.HIGH),
    "mixed": (Mixed.TEXT, Mixed.NUMBER),
}

#: Conditions on two times, and what Python says of them.
_COMPARED: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any, Any], bool]]] = {
    "==": (operator.eq, operator.eq),
    "!=": (operator.ne, operator.ne),
    "<": (operator.lt, operator.lt),
    "<=": (operator.le, operator.le),
    "reversed": (lambda a, b: b > a, operator.lt),
    "in": (lambda a, b: a.in_([b]), operator.eq),
    "in two": (lambda a, b: a.in_([b, null()]).is_(True), operator.eq),
    "not between": (lambda a, b: ~a.between(b, b), operator.ne),
    "not in": (lambda a, b: a.not_in([b, b]), operator.ne),
    "distinct": (lambda a, b: a.is_distinct_from(b), operator.ne),
    "between": (lambda a, b: a.between(b, b), operator.eq),
    "tuple": (lambda a, b: tuple_(a, 1) == tuple_(b, 1), operator.eq),
    "case": (lambda a, b: case((b, True), value=a, else_=False), operator.eq),
}

_Form = tuple[Any, Callable[[Any], Any]]


def forms(f: Any, v: Any, w: Any, *, servers: bool) -> dict[str, _Form]:
    """Return expressions with values of a field, and the same in Python."""
    greatest = func.greatest if servers else func.max
    least = func.least if servers else func.min
    choose = getattr(func, "if" if servers else "iif")
    return {
        "coalesce": (func.coalesce(f, w), lambda x: w if x is None else x),
        "coalesced": (func.coalesce(w, f), lambda x: w),
        "ifnull": (func.ifnull(f, w), lambda x: w if x is None else x),
        "nullif": (func.nullif(f, w), lambda x: None if x == w else x),
        "nullified": (func.nullif(w, f), lambda x: None if x == w else w),
        "if": (choose(f == w, v, f), lambda x: v if x == w else x),
        "greatest": (greatest(f, v), lambda x: x),
        "least": (least(w, f), lambda x: x),
        "case": (case((f == w, v), else_=f), lambda x: v if x == w else x),
        "else": (case((f == w, f), else_=v), lambda x: w if x == w else v),
        "switch": (case({w: v}, value=f, else_=f), lambda x: v if x == w else x),
        "switched": (
            case((f, v), value=literal(w), else_=f),
            lambda x: v if x == w else x,
        ),
        "nested": (
            func.coalesce(func.nullif(f, w), case((f == w, w), else_=v)),
            lambda x: v if x is None else x,
        ),
    }


def comparisons(made: Any, sample: Any) -> Iterator[_Form]:
    value = literal(sample)
    for condition in (
        made == sample,
        value == made,
        made.in_([sample]),
        value.in_([made]),
        made.between(sample, sample),
        value.between(made, made),
        made == case((Thing.id > 0, sample)),
        tuple_(made, Thing.id) == tuple_(value, Thing.id),
        tuple_(value, Thing.id) == tuple_(made, Thing.id),
        tuple_(made, literal(1)).in_([(sample, 1)]),
        made.is_not_distinct_from(sample),
    ):
        yield condition, lambda x: x == sample
    yield made.is_distinct_from(sample), lambda x: x != sample
    yield made != sample, lambda x: x not in (None, sample)


class BesideSuite(Suite):
    samples = 2

    @pytest.fixture(scope="class")
    @classmethod
    def things(cls, cluster) -> dict[str, dict[int, Any]]:
        """Return the ids of things by field, with the value of the field."""
        found: dict[str, dict[int, Any]] = {}
        with cluster.begin() as session:
            for name, pair in PAIRS.items():
                field = Thing.__sqla_shard__.fields[name]
                values = [*pair, None] if field.codec.nullable else pair
                new = [Thing(shard_id=1, **{name: v}) for v in values]
                session.add_all(new)
                session.flush()
                ids = [one.id for one in new]
                found[name] = dict(zip(ids, values, strict=True))
        return found

    @pytest.mark.parametrize("name", PAIRS)
    def test_values(self, cluster, session, things, name):
        field, (v, w), rows = getattr(Thing, name), PAIRS[name], things[name]
        made = forms(field, v, w, servers=on_servers(cluster))
        columns = [(one, test) for one, test in made.values()]
        for one, test in made.values():
            for sample in (w, v)[: self.samples]:
                columns += [
                    (
                        case((condition, True), else_=False),
                        lambda x, t=test, same=same: same(t(x)),
                    )
                    for condition, same in comparisons(one, sample)
                ]
        statement = select(Thing.id, *(one for one, _ in columns))
        found = session.execute(statement.where(Thing.id.in_(rows))).all()
        assert {row[0] for row in found} == set(rows)
        for row in found:
            for (one, test), value in zip(columns, row[1:], strict=True):
                expected = test(rows[row[0]])
                assert value == expected, f"{one} of {row}"
                if hasattr(expected, "value"):
                    assert value is expected

    def test_other_places(self, cluster, session):
        one = stored(cluster, Thing, at=T0, color=Color.BLUE, shard_id=1)
        other = aliased(Thing)
        least = func.ifnull(Thing.at, T1)
        inner = select(Thing.id, least.label("x")).where(Thing.id == one)
        cte, sub = inner.cte(), inner.subquery()
        scalar = (
            select(func.ifnull(other.at, T1)).where(other.id == one).scalar_subquery()
        )
        for statement in (
            select(Thing.id).where(exists().where(other.id == one, least == T0)),
            select(Thing.id).join(
                other, and_(other.id == Thing.id, func.ifnull(other.at, T1) == least)
            ),
            select(Thing.id).where(
                literal(T0).in_(select(other.at).where(other.id == one))
            ),
            select(Thing.id).where(scalar == T0, literal(T0) == scalar),
            select(Thing.id).where(func.lower(Thing.color) == Color.BLUE),
            select(Thing.id).where(func.ifnull(Thing.color, "x") == "blue"),
            select(Thing.id).group_by(Thing.id).having(func.max(least) == T0),
            select(Thing.id).order_by(func.coalesce(Thing.at, "")),
        ):
            found = session.scalars(statement.where(Thing.id == one)).all()
            assert found == [one], str(statement)
        for part in (cte, sub):
            found = session.scalars(select(part.c.x).where(part.c.x == T0))
            assert found.all() == [T0]
        for column, expected in (
            (scalar, T0),
            (func.ifnull(Thing.color, "x"), "blue"),
            (func.coalesce(type_coerce(Thing.day, String), "x"), "x"),
            (func.coalesce(Thing.size, Size(1)), Size(1)),
            (case((Thing.count == 0, [T0]), else_=Thing.times), [T0]),
            (func.coalesce(Thing.free, "x"), "x"),
            (func.max(least), T0),
            (func.first_value(least).over(order_by=Thing.id), T0),
        ):
            statement = select(column).where(Thing.id == one)
            assert session.scalar(statement) == expected, str(column)

    def test_times_of_the_server(self, cluster, session):
        """Beside a field they are its texts: two formats have no order."""
        one = stored(cluster, Thing, at=T0, shard_id=1)
        two = stored(cluster, Thing, at=None, shard_id=1)
        for key, least in (one, None), (two, session.get_one(Thing, two).ts):
            expected = T0 if least is None else least
            for column in (
                func.coalesce(Thing.at, Thing.ts),
                case((Thing.at.is_not(None), Thing.at), else_=Thing.ts),
                func.coalesce(Thing.at, func.nullif(Thing.ts, None), func.now()),
            ):
                made = select(column).where(Thing.id == key)
                assert session.scalar(made) == expected, str(column)
                for condition, holds in (
                    (column == expected, True),
                    (column > expected - timedelta(microseconds=1), True),
                    (column > expected, False),
                    (column <= Thing.ts, True),
                    (Thing.ts > column, key == one),
                    (case((Thing.ts, True), value=column, else_=False), key == two),
                    (tuple_(Thing.ts, 1) == tuple_(column, 1), key == two),
                    (tuple_(column, 1).in_([tuple_(Thing.ts, 1)]), key == two),
                ):
                    found = session.scalar(made.where(condition))
                    assert (found is not None) is holds, str(condition)
        compared = select(Thing.id).where(Thing.at < Thing.ts)
        assert session.scalars(compared.where(Thing.id.in_([one, two]))).all() == [one]
        day = func.date(Thing.ts, type_=Date)
        for column, remedy in (
            (func.coalesce(Thing.ts, Thing.at), "field first"),
            (case((True, Thing.ts), else_=Thing.at), "field first"),
            (func.coalesce(Thing.at, day), r"func\.date"),
            (func.coalesce(Thing.ts, Thing.day), "field first"),
        ):
            with pytest.raises(UnsupportedStatementError, match=remedy):
                session.execute(select(column).where(Thing.id == one))
        moment = session.get_one(Thing, one).ts
        dates = func.coalesce(day, Thing.day), func.nullif(day, Thing.day)
        for column in dates:
            made = select(column.label("x")).where(Thing.id == one)
            for statement in (made, select(made.subquery().c.x)):
                found = session.scalar(statement)
                assert found == moment.date(), str(statement)

    def test_dates_beside_moments(self, cluster, session):
        """MySQL would read the text of a moment as a date, or as a time of day."""
        if not on_servers(cluster):
            pytest.skip("SQLite compares texts")
        one = stored(cluster, Thing, at=T0, day=T0.date(), shard_id=1)
        there = Thing.id == one
        text = "2024-05-06"
        day = func.date(text, type_=Date)
        dates = day, func.date(text), select(day).scalar_subquery()
        for sooner in (*dates, func.date(Thing.at), Thing.day):
            for condition in (
                Thing.at == sooner,
                sooner == Thing.at,
                Thing.at <= sooner,
                Thing.at.in_([sooner, T1]),
                Thing.at.is_not_distinct_from(sooner),
                tuple_(Thing.at, 1) == tuple_(sooner, 1),
                case((sooner, True), value=Thing.at, else_=False),
                *([] if sooner is Thing.day else [Thing.at.in_(select(sooner))]),
            ):
                made = select(Thing.id).where(there, condition)
                found = session.scalar(made, bind_arguments={"shard_id": 1})
                assert found is None, str(condition)
            later = select(Thing.id).where(there, sooner < Thing.at)
            assert session.scalar(later) == one, str(sooner)
        hour = func.maketime(1, 0, 0)
        for condition in (Thing.at < hour, Thing.day < hour, hour > Thing.at):
            found = session.scalar(select(Thing.id).where(there, condition))
            assert found == one, str(condition)
        with pytest.raises(UnsupportedStatementError, match="texts differ"):
            session.scalar(
                select(func.coalesce(Thing.at, func.date(text))).where(there)
            )

    #: The number of random comparisons of times.
    comparisons = 150

    def test_random_times(self, cluster, session, rng):
        """Fields, functions and values, compared as Python compares them."""
        if not on_servers(cluster):
            pytest.skip("SQLite compares texts")
        midnight = datetime(2024, 5, 6, tzinfo=UTC)
        moments = [midnight + timedelta(hours=12 * n) for n in range(6)]
        rows = {}
        for _ in range(4):
            at, day = rng.choice(moments), rng.choice(moments).date()
            rows[stored(cluster, Thing, at=at, day=day, shard_id=1)] = at, day
        for _ in range(self.comparisons):
            one, (at, day) = rng.choice(list(rows.items()))
            given = rng.choice(moments)
            text, plain = f"{given:%Y-%m-%d}", given.replace(tzinfo=None)
            a_date = func.date(text, type_=Date)
            times = [
                (Thing.at, at),
                (Thing.day, day),
                (func.date(Thing.at), at.date()),
                (func.date(Thing.at, type_=Date), at.date()),
                (func.timestamp(Thing.at), at),
                (func.coalesce(Thing.at, given), at),
                (func.date(text), given.date()),
                (a_date, given.date()),
                (select(a_date).scalar_subquery(), given.date()),
                (func.timestamp(str(plain)), given),
            ]
            left, first = rng.choice(times[:2])
            right, second = rng.choice(times)
            value, other = (
                datetime.combine(it, time(), UTC) if type(it) is date else it
                for it in (first, second)
            )
            name = rng.choice(list(_COMPARED))
            condition, expected = _COMPARED[name]
            made = select(condition(left, right).is_(True)).where(Thing.id == one)
            found = session.scalar(made)
            assert found == expected(value, other), (name, str(made), first, second)

    def test_times_of_moments(self, cluster, session):
        """MySQL would read 20:24 in the text of a moment of the year 2024."""
        if not on_servers(cluster):
            pytest.skip("SQLite has none of these functions")
        utc = T0.astimezone(UTC)
        one = stored(cluster, Thing, at=T0, day=utc.date(), shard_id=1)
        for field, moment in (
            (Thing.at, utc),
            (Thing.day, datetime(utc.year, utc.month, utc.day)),
        ):
            before = moment - timedelta(seconds=1)
            since = timedelta(
                hours=moment.hour,
                minutes=moment.minute,
                seconds=moment.second,
                microseconds=moment.microsecond,
            )
            for column, expected in (
                (func.hour(field), moment.hour),
                (func.minute(field), moment.minute),
                (func.SECOND(field), moment.second),
                (func.microsecond(field), moment.microsecond),
                (func.max(func.hour(func.coalesce(field, field))), moment.hour),
                (extract("minute", field), moment.minute),
                (func.time(field), since),
                (func.time_format(field, "%H:%i"), f"{moment:%H:%M}"),
                (func.timediff(field, field), timedelta()),
                (func.hour(func.addtime(field, "00:00:01")), moment.hour),
                (func.hour(func.subtime(field, "00:00:01")), before.hour),
                (cast(field, mysql.TIME(fsp=6)), since),
                (func.floor(func.time_to_sec(field)), since // timedelta(seconds=1)),
            ):
                found = session.scalar(select(column).where(Thing.id == one))
                if isinstance(found, time):
                    found = datetime.combine(date.min, found) - datetime.min
                assert found == expected, (str(column), moment)

    def test_cached_statements(self, cluster, session):
        """A value may also stand beside a column that has another format."""
        one = stored(cluster, Thing, at=T0, shard_id=1)
        for moment in (T0, T1):
            value = literal(moment)
            row = session.execute(
                select(
                    func.nullif(value, Thing.at),
                    func.length(value),
                    func.coalesce(func.nullif(Thing.at, T0), bindparam("x")),
                ).where(Thing.id == one),
                {"x": moment},
            ).one()
            assert row == (None if moment == T0 else T1, 26, moment)

    def test_writes(self, cluster):
        one = stored(cluster, Thing, at=T0, shard_id=1)
        mine = (Thing.id == one, func.ifnull(Thing.at, T1) == T0)
        with cluster.begin() as session:
            kind = func.ifnull(func.nullif(Thing.color, Color.RED), Color.BLUE)
            session.execute(update(Thing).where(*mine).values(kind=kind))
            found = session.scalar(select(Thing.kind).where(Thing.id == one))
            assert found == "blue"
            assert session.execute(delete(Thing).where(*mine)).rowcount == 1

    def test_texts_of_columns(self, cluster, session):
        """MariaDB compares no columns of two collations."""
        one = stored(cluster, Thing, text="red", kind="red", shard_id=1)
        other = aliased(Thing)
        text, kind = Thing.text, Thing.kind
        there = other.id == one
        for condition in (
            text == kind,
            kind >= text,
            Thing.color == kind,
            text.in_([kind, "x"]),
            kind.between(text, "z"),
            tuple_(kind, 1) == tuple_(text, 1),
            kind.in_(select(other.text).where(there)),
            text.in_(select(other.kind).where(there)),
            select(other.text).where(there).scalar_subquery() == kind,
            case((text, True), value=kind, else_=False),
            func.coalesce(func.nullif(kind, text), text) == "red",
            text.like(kind),
            text + kind == "redred",
            func.lower(text) == func.lower(kind),
            func.upper(kind).in_([func.trim(func.upper(text))]),
            cast(text, String(20)) == kind,
            type_coerce(text, String) == kind,
            text + "x" == kind + "x",
            func.instr(text, kind) == 1,
        ):
            made = select(Thing.id).where(Thing.id == one, condition)
            assert session.scalar(made) == one, str(condition)
        made = select(func.max(Thing.color)).where(Thing.id == one)
        assert session.scalar(made.having(func.max(Thing.color) == func.max(kind)))
        inner = select(text.label("x"), kind.label("y")).where(Thing.id == one)
        part = inner.subquery()
        assert session.scalar(select(part.c.x).where(part.c.x == part.c.y)) == "red"
        dialect = session.connection(bind_arguments={"shard_id": 1}).dialect
        is_mariadb = getattr(dialect, "is_mariadb", False)
        own = select(kind.collate("utf8mb4_nopad_bin") if is_mariadb else kind)
        both = union(select(text).where(Thing.id == one), own.where(Thing.id == one))
        assert session.scalars(both).all() == ["red"]
        mixed = select(text).where(Thing.id == one).union(select(kind))
        filled = func.coalesce(kind, text).label("x")
        found = select(filled, func.count()).where(Thing.id == one)
        assert session.execute(found.group_by("x")).one() == ("red", 1)
        if is_mariadb:
            with pytest.raises(UnsupportedStatementError, match="nopad_bin"):
                session.scalars(mixed, bind_arguments={"shard_id": 1})
            with pytest.raises(UnsupportedStatementError, match="group_by"):
                session.execute(found.group_by(filled))
        else:
            assert session.execute(found.group_by(filled)).one() == ("red", 1)

    def test_fields_in_columns_of_other_formats(self, cluster):
        """SQLite stored what cannot be read; servers took 1 for the first member."""
        one = stored(cluster, Thing, level=Level.LOW, shard_id=1)
        table = Table(
            "things",
            MetaData(),
            *(Column("local_id", Integer, primary_key=True), Column("kind", Text)),
            *(Column("uid", Uuid(native_uuid=False)), Column("level", Enum(Level))),
            *(Column("at", Time), Column("color", Enum(Color))),
        )
        filled = func.coalesce(Thing.color, table.c.color)
        place = {"keyspace": "objects", "shard_id": 1}
        with cluster.session() as session:
            for statement in (
                update(table).values(level=Thing.level),
                update(table).values({table.c.uid: Thing.uid}),
                update(table).ordered_values((table.c.at, Thing.day)),
                update(table).values(color=filled),
                insert(table).values([{"level": Thing.level}]),
                insert(table).from_select(["level"], select(Thing.level)),
            ):
                with pytest.raises(UnsupportedStatementError, match="in Python"):
                    session.execute(statement, bind_arguments=place)
            mine = update(Thing).where(Thing.id == one)
            session.execute(mine.values(kind=Thing.level, rank=Thing.level))
            found = select(Thing.kind, Thing.rank).where(Thing.id == one)
            assert session.execute(found).one() == ("1", 1)

    def test_uuid_columns_of_the_server(self, cluster):
        """MariaDB reads the text of a field; others store no hyphens."""
        one = stored(cluster, Thing, uid=UUID(int=7), shard_id=1)
        table = Table("uids", MetaData(), Column("uid", Uuid), prefixes=["TEMPORARY"])
        uid = select(Thing.uid).where(Thing.id == one)
        copied = insert(table).from_select(["uid"], uid)
        place = {"keyspace": "objects", "shard_id": 1}
        with cluster.session() as session:
            connection = session.connection(bind_arguments=place)
            if not getattr(connection.dialect, "is_mariadb", False):
                with pytest.raises(UnsupportedStatementError, match="in Python"):
                    session.execute(copied, bind_arguments=place)
                return
            table.create(connection)
            try:
                session.execute(copied, bind_arguments=place)
                found = session.scalar(select(table.c.uid), bind_arguments=place)
            finally:
                table.drop(connection)
            assert found == UUID(int=7)

    def test_columns_of_uuids_and_enums(self, cluster):
        """SQLAlchemy stores UUIDs without hyphens, and the names of members."""
        values = Enum(Color, values_callable=lambda members: [m.value for m in members])
        for name, text, type_ in (
            ("uid", PAIRS["uid"][1].hex, Uuid(native_uuid=False)),
            ("color", "RED", Enum(Color)),
            ("level", "HIGH", Enum(Level)),
            ("mixed", "NUMBER", Enum(Mixed)),
            ("color", "red", values),
        ):
            field, value = getattr(Thing, name), PAIRS[name][1]
            one = stored(cluster, Thing, **{name: value}, shard_id=1)
            column = type_coerce(literal_column(repr(text)), type_)
            own, none = literal(value, type_), func.nullif(field, field)
            with cluster.session() as session:
                made = select(Thing.id).where(Thing.id == one)
                for condition in (
                    field == column,
                    column <= field,
                    field.in_([column]),
                    tuple_(column, Thing.id) == tuple_(field, Thing.id),
                    case((column, True), value=field, else_=False),
                    func.nullif(column, field).is_(None),
                    func.coalesce(column, field) == value,
                    # By position: the column is compared in its own format.
                    case((own, column), value=column, else_=none) == value,
                    func.coalesce(case((own, column), value=column), none) == value,
                    field == select(column).scalar_subquery(),
                    func.coalesce(select(column).scalar_subquery(), field) == value,
                ):
                    assert session.scalar(made.where(condition)) == one, str(condition)
                assert session.scalar(made.where(field != column)) is None
                absent = type_coerce(literal_column("NULL"), type_)
                for pair in ((column, field), (field, column), (absent, field)):
                    made = select(func.coalesce(*pair)).where(Thing.id == one)
                    assert session.scalar(made) == value
                inner = (
                    select(func.coalesce(column, field).label("x"), column.label("y"))
                    .where(Thing.id == one)
                    .subquery()
                )
                for condition in (inner.c.x == inner.c.y, inner.c.x == value):
                    assert session.scalar(select(inner.c.x).where(condition)) == value
                if not isinstance(type_, Enum) or text != "red":
                    for other in (
                        select(field).union(select(column)),
                        select(column).intersect(select(field)),
                        select(Thing.id).where(field.in_(select(column))),
                        select(Thing.id).where(
                            tuple_(field, 1).in_(select(column, literal(1)))
                        ),
                    ):
                        with pytest.raises(UnsupportedStatementError, match=name):
                            session.execute(other, bind_arguments={"shard_id": 1})

    def test_the_greatest_of_a_column(self, cluster, session):
        """It is that of the names of an enum, not of the values of the field."""
        one = stored(cluster, Thing, level=Level.LOW, shard_id=1)
        texts = (type_coerce(literal_column(f"'{t.name}'"), Enum(Level)) for t in Level)
        rows = union_all(*(select(text.label("x")) for text in texts)).subquery()
        found = func.coalesce(func.max(rows.c.x), func.max(Thing.level))
        statement = select(found).join_from(Thing, rows, Thing.id == one)
        statement = statement.where(Thing.id == one)
        assert session.scalar(statement) is Level.LOW

    def test_names_that_differ_in_case(self, cluster, session):
        """They are equal for the collation of a server."""
        kind = enum.Enum("kind", {"low": "x", "LOW": "y"})
        one = stored(cluster, Thing, shard_id=1)
        field = type_coerce(literal_column("'y'"), Coded(EnumCodec("Thing.x", kind)))
        column = type_coerce(literal_column("'LOW'"), Enum(kind, native_enum=False))
        made = select(func.coalesce(column, field)).where(Thing.id == one)
        assert session.scalar(made.where(column == field)) is kind.LOW

    def test_refusals(self, cluster, session):
        one = stored(cluster, Thing, at=T0, shard_id=1)
        value = select(literal(T0).label("x"))
        other = select(type_coerce(literal_column("'RED'"), Enum(Color)).label("x"))
        for make, remedy in (
            (lambda: Thing.color.in_(other), r"Thing\.color"),
            (lambda: Thing.at == value.scalar_subquery(), r"Thing\.at\.type"),
            (lambda: Thing.at.in_(value), r"Thing\.at\.type"),
            (lambda: Thing.at == value.subquery().c.x, r"Thing\.at\.type"),
            (lambda: func.nullif(Thing.tags, ["a"]).is_(None), "json_contains"),
            (lambda: literal(["a"]) == Thing.tags, "json_contains"),
            (lambda: case({1: True}, value=Thing.free), "json_contains"),
        ):
            statement = select(Thing.id).where(Thing.id == one, make())
            with pytest.raises(UnsupportedStatementError, match=remedy):
                session.scalars(statement)
        for naive in (T0.replace(tzinfo=None), T0.date(), Color.RED):
            statement = select(func.coalesce(Thing.at, naive))
            with pytest.raises(BlobValueError, match=r"Thing\.at"):
                session.scalars(statement.where(Thing.id == one))
        field = select(Thing.at).where(Thing.id == one)
        mine = select(literal(T1)).where(Thing.id == one)
        with pytest.raises(UnsupportedStatementError, match=r"Thing\.at\.type"):
            session.scalars(union_all(field, mine))
        mine = select(literal(T1, Thing.at.type)).where(Thing.id == one)
        absent = select(null()).where(Thing.id == one)
        assert session.scalars(union_all(absent, field)).all() == [None, T0]
        filled = select(func.ifnull(Thing.at, T1)).where(Thing.id == one)
        found = session.scalars(union_all(filled, field, mine))
        assert found.all() == [T0, T0, T1]

    def test_several_shards(self, cluster, session):
        for shard, at in enumerate((T1, None, T0)):
            stored(cluster, Thing, at=at, kind="s", shard_id=shard)
        filled = func.ifnull(Thing.at, T1)
        chosen = case((Thing.at.is_(None), T1), else_=Thing.at)

        def scattered(*columns):
            return select(*columns).where(Thing.kind == "s").options(scatter())

        for column in (filled, chosen):
            statement = scattered(Thing.at).order_by(column, Thing.id)
            assert session.scalars(statement).all() == [T0, T1, None]
            statement = scattered(column, func.count()).group_by(column)
            assert dict(session.execute(statement).all()) == {T0: 1, T1: 2}
            row = session.execute(
                scattered(func.max(column), func.count(column.distinct()))
            ).one()
            assert row == (T1, 2)
        statement = scattered(func.coalesce(func.min(Thing.at), T1))
        assert session.scalar(statement) == T0

    def test_functions(self, cluster, session):
        one = stored(cluster, Thing, at=T0, color=Color.RED, shard_id=1)
        columns = [(func.replace(Thing.color, Color.RED, "x"), "x")]
        if on_servers(cluster):
            columns += [
                (func.field(Thing.color, Color.BLUE, Color.RED), 2),
                (func.strcmp(Thing.color, Color.RED), 0),
                (func.elt(2, Thing.color, Color.BLUE), Color.BLUE),
                (func.concat(Thing.color, Color.BLUE), "redblue"),
                (func.datediff(Thing.at, T0), 0),
                (literal(T0).op("<=>")(Thing.at), 1),
            ]
        for column, expected in columns:
            statement = select(column).where(Thing.id == one)
            assert session.scalar(statement) == expected, str(column)

    def test_times_of_columns(self, cluster, session):
        """A driver drops the zone of a time that has no type."""
        one = stored(cluster, Thing, shard_id=1)
        found = session.get(Thing, one).ts
        there = found.astimezone(T0.tzinfo)
        later = found + timedelta(days=1)
        for column, expected in (
            (func.ifnull(Thing.ts, there), found),
            (func.coalesce(there, Thing.ts), found),
            (func.nullif(Thing.ts, there), None),
            (case((Thing.id == 0, Thing.ts), else_=there), found),
            (case((literal(there) == Thing.ts, later), else_=Thing.ts), later),
        ):
            statement = select(column).where(Thing.id == one)
            assert session.scalar(statement) == expected, str(column)
