"""Values of all types of the servers, through a move and back."""

from __future__ import annotations

import enum
import json
import pickle
import zlib
from contextlib import contextmanager
from datetime import date, datetime, time, timedelta, timezone, UTC
from decimal import Decimal

import pytest
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Computed,
    create_engine,
    Enum,
    event,
    Float,
    func,
    Integer,
    Interval,
    JSON,
    MetaData,
    PickleType,
    Table,
    text,
    Uuid,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker
from sqlalchemy.types import TypeDecorator, UserDefinedType

from sqla_shard import blob_field, Cluster, ObjectMixin
from sqla_shard.dialects.mysql import EXACT_SETS
from sqla_shard.exc import StageRefusedError
from sqla_shard.migrate import Declaration, Move, Moved, Owner, stage_changes
from sqla_shard.migrate.passes import backfill, reconcile, verify
from sqla_shard.migrate.stage_changes import copy_waiting, plan, Switch
from sqla_shard.types import UTCTimestamp

pytestmark = pytest.mark.live


class Spec(UserDefinedType):
    """A type of the server that SQLAlchemy does not convert."""

    cache_ok = True

    def __init__(self, spec):
        self.spec = spec

    def get_col_spec(self, **kw):
        return self.spec


class Vector(Spec):
    """A type that is read as text, which has six digits."""

    cache_ok = True

    def __init__(self, spec, to_text, of_text):
        super().__init__(spec)
        self.to_text = to_text
        self.of_text = of_text

    def column_expression(self, colexpr):
        return getattr(func, self.to_text)(colexpr)

    def bind_expression(self, bindvalue):
        return getattr(func, self.of_text)(bindvalue)


class Secret(Spec):
    """A text that Python writes and reads with a prefix."""

    cache_ok = True

    def bind_processor(self, dialect):
        return lambda value: None if value is None else f"enc:{value}"

    def result_processor(self, dialect, coltype):
        return lambda value: None if value is None else value.removeprefix("enc:")


class CompressedText(TypeDecorator):
    """A text that the server compresses."""

    impl = mysql.VARBINARY(99)
    cache_ok = True

    def column_expression(self, column):
        return func.uncompress(column)

    def bind_expression(self, bindvalue):
        return func.compress(bindvalue)


#: A type, and literals of some of its values; NULL is added.
TYPES = {
    "tinyint": (mysql.TINYINT(), "-128", "127"),
    "bool": (mysql.TINYINT(1), "0", "2"),
    "smallint": (mysql.SMALLINT(unsigned=True), "0", "65535"),
    "mediumint": (mysql.MEDIUMINT(), "-8388608", "8388607"),
    "filled": (mysql.INTEGER(5, unsigned=True, zerofill=True), "7", "123456"),
    "bigint": (mysql.BIGINT(unsigned=True), "18446744073709551615"),
    "decimal": (
        mysql.DECIMAL(65, 30),
        "-12345678901234567890123456789012345.123456789012345678901234567891",
        "0.000000000000000000000000000001",
    ),
    "rounded": (mysql.DECIMAL(30, 10, asdecimal=False), "12345678901234567890.1"),
    "filled_decimal": (mysql.DECIMAL(12, 3, unsigned=True, zerofill=True), "1.5"),
    "positive": (mysql.FLOAT(unsigned=True), "0.1", "3.4028234e38"),
    "filled_double": (mysql.DOUBLE(unsigned=True, zerofill=True), "1e-20", "1e22"),
    "float": (Float(), "16777217", "1e-30", "0.1", "3.4028234e38"),
    "float74": (mysql.FLOAT(7, 4), "123.4567", "-999.9999"),
    "double103": (mysql.DOUBLE(10, 3), "1234567.891"),
    "double": (mysql.DOUBLE(), "1e-20", "0.1", "1.7976931348623157e308"),
    "double_float": (mysql.DOUBLE(asdecimal=False), "-1e-300", "1e22"),
    "truth": (Boolean(), "0", "1"),
    "bit1": (mysql.BIT(1), "b'1'", "b'0'"),
    "bit": (mysql.BIT(64), "b'1'", "18446744073709551615"),
    "date": (mysql.DATE(), "'1000-01-01'", "'9999-12-31'"),
    "span": (Interval(), "'1970-01-02 00:00:00'"),
    "datetime": (mysql.DATETIME(), "'1000-01-01 00:00:00'"),
    "datetime1": (mysql.DATETIME(fsp=1), "'2020-01-02 03:04:05.6'"),
    "datetime6": (mysql.DATETIME(fsp=6), "'9999-12-31 23:59:59.999999'"),
    "timestamp": (
        mysql.TIMESTAMP(fsp=3),
        *("'2020-01-02 03:04:05.678'", "'1970-01-01 00:00:01'"),
        "'2038-01-19 03:14:07.999'",
    ),
    "time": (
        mysql.TIME(),
        *("'25:30:00'", "'-00:30:00'", "'24:00:00'", "'23:59:59'"),
        *("'838:59:59'", "'-838:59:59'", "'00:00:00'"),
    ),
    "time6": (mysql.TIME(fsp=6), "'-00:00:00.000001'", "'100:00:00.5'"),
    "time2": (mysql.TIME(fsp=2), "'01:02:03.04'"),
    "year": (mysql.YEAR(), "0", "1901", "2155"),
    "char": (mysql.CHAR(8), "'a  '", "''"),
    "varchar": (mysql.VARCHAR(30), "'a  '", "'\\0\\\\%\\n'", "'\U0001f600 e\u0301'"),
    "latin1": (mysql.VARCHAR(30, charset="latin1"), "'\u00e9\u20ac'"),
    "ascii_bin": (mysql.VARCHAR(30, charset="ascii", collation="ascii_bin"), "'A '"),
    "utf16": (mysql.VARCHAR(30, charset="utf16"), "'\U0001f600'"),
    "gbk": (mysql.VARCHAR(30, charset="gbk"), "'\u4e2d'"),
    "sjis": (mysql.VARCHAR(30, charset="sjis"), "'\u30bd\u8868'"),
    "ucs2": (mysql.CHAR(8, charset="ucs2"), "'a '"),
    "binary": (mysql.BINARY(4), "x'6100'", "x'ff'"),
    "varbinary": (mysql.VARBINARY(9), "x'00ff2700'", "''"),
    "blob": (mysql.BLOB(), "x'00ff275c'"),
    "text": (mysql.MEDIUMTEXT(), "'text  \\r\\n'"),
    "tinyblob": (mysql.TINYBLOB(), "x'00ff'"),
    "longblob": (mysql.LONGBLOB(), "repeat(x'00ff27', 30000)"),
    "tinytext": (mysql.TINYTEXT(), "'a '"),
    "longtext": (mysql.LONGTEXT(), "repeat('\u00e9 ', 30000)"),
    "national": (mysql.NCHAR(8), "'\u00e9 '"),
    "hidden": (Spec("INT INVISIBLE"), "7"),
    "enum": (mysql.ENUM("a", "b b", ""), "'b b'", "''"),
    "set": (mysql.SET("x", "y", "z"), "'z,x'", "''"),
    "set_bits": (mysql.SET("x", "", retrieve_as_bitwise=True), "'x'", "','"),
    # Those of 54 are more than a float of MySQL has.
    "wide_set": (
        mysql.SET(*(f"m{at}" for at in range(63)), retrieve_as_bitwise=True),
        *("'m0,m60'", "'m62'"),
    ),
    "enum_latin1": (mysql.ENUM("\u00e9", charset="latin1"), "'\u00e9'"),
    "json": (
        JSON(),
        *("'null'", "'[]'", '\'{"b":  [1, 1.0, 1e3, null], "a": "\u00e9"}\''),
        *("'18446744073709551615'", "'\"null\"'", "'1'", "'true'"),
    ),
    "json_numbers": (
        JSON(),
        *("'1.7976931348623157e308'", "'0.1000000000000000055511151231257827'"),
        *("'12345678901234567890123'", "'-0.0'", '\'{"b": 1, "a": 2, "b": 3}\''),
    ),
    "json_null": (JSON(none_as_null=True), "'null'", "'0'"),
    "point": (Spec("POINT"), "ST_GeomFromText('POINT(1 2)')"),
    "geometry": (
        Spec("GEOMETRY"),
        "ST_GeomFromText('POINT(1 2)', 4326)",
        "ST_GeomFromText('LINESTRING(0 0, 1 1.5)')",
    ),
    "shape": (
        Vector("GEOMETRY", "st_astext", "st_geomfromtext"),
        "ST_GeomFromText('POINT(1 2)', 4326)",
    ),
    "secret": (Secret("VARCHAR(20)"), "'enc:a'", "'enc:enc:'"),
    "compressed_text": (CompressedText(), "COMPRESS('a ')", "x'00'"),
    **{
        name: (Spec(name.upper()), f"ST_GeomFromText('{name.upper()}({shape})')")
        for name, shape in {
            "linestring": "0 0, 1 1.5",
            "polygon": "(0 0, 1 0, 1 1, 0 0)",
            "multipoint": "0 0, 1 1.5",
            "multilinestring": "(0 0, 1 1), (2 2, 3 3)",
            "multipolygon": "((0 0, 1 0, 1 1, 0 0))",
            "geometrycollection": "POINT(1 2), LINESTRING(0 0, 1 1)",
        }.items()
    },
}
OF_MARIADB = {
    # A text, which may have what no float is.
    "json_huge": (JSON(), "'[1e400, -1e400]'"),
    "uuid": (Spec("UUID"), "'123e4567-e89b-12d3-a456-426655440000'"),
    "inet4": (Spec("INET4"), "'10.0.0.1'"),
    "inet6": (Spec("INET6"), "'2001:db8::ff'"),
    "compressed": (Spec("VARCHAR(30) COMPRESSED"), "'a '", "''"),
}
OF_MYSQL = {
    "embedding": (
        Vector("VECTOR(3)", "vector_to_string", "string_to_vector"),
        "STRING_TO_VECTOR('[1,0.123456789,-3e-30]')",
    )
}
OF_MARIADB_11 = {
    "embedding": (
        Vector("VECTOR(3)", "vec_totext", "vec_fromtext"),
        "VEC_FromText('[1,0.123456789,-3e-30]')",
    )
}


def computed():
    """Return columns that the servers of both sides compute."""
    return [
        Column("twice", BigInteger, Computed("`tinyint` * 2", persisted=False)),
        Column("thrice", BigInteger, Computed("`tinyint` * 3", persisted=True)),
    ]


@contextmanager
def moving(fleet, tmp_path, table, moved, **options):
    """Yield the move of a table to one shard on each server.

    :param options: of the driver, for the database.
    """
    server = fleet.servers[0]
    document = fleet.topology_mapping(shards=4, database="db_to{shard:05d}")
    fleet.drop_databases(document)
    fleet.create_databases(document)
    server.root_execute("DROP DATABASE IF EXISTS db_from")
    server.root_execute("CREATE DATABASE db_from")
    topology = tmp_path / "topology.json"
    topology.write_text(json.dumps(document))
    url = server.url.replace("mysql://", "mysql+pymysql://", 1)
    engine = create_engine(f"{url}/db_from", connect_args=options)
    table.create(engine)
    cluster = Cluster.from_file(topology)
    move = Move(
        Declaration(Owner("things.id", type_id=1)),
        table.metadata,
        engine,
        cluster,
        {"things": moved},
        stage=str(topology),
    )
    move.watch(sessionmaker(engine))
    cluster.create_all(moved.cls.metadata)
    Switch(move).prepare()
    yield move
    move.close()
    cluster.close()
    engine.dispose()
    server.root_execute("DROP DATABASE db_from")
    fleet.drop_databases(document)


def things(*columns):
    return Table(
        "things",
        MetaData(),
        Column("id", mysql.INTEGER(unsigned=True), primary_key=True),
        *columns,
    )


@pytest.fixture
def scene(fleet, server_kind, tmp_path):
    """Yield the move of a table with a column of each type."""
    own_types = OF_MARIADB if server_kind.name == "mariadb" else OF_MYSQL
    types = TYPES | own_types
    with moving_all(fleet, tmp_path, types) as move:
        yield move, types


@contextmanager
def moving_all(fleet, tmp_path, types):
    """Yield the move of a table with a column of each of some types."""

    class Sharded(DeclarativeBase):
        pass

    own = {name: mapped_column(type_) for name, (type_, *_) in types.items()}
    own |= {column.name: column for column in computed()}
    cls = type(
        "Thing",
        (ObjectMixin, Sharded),
        {"__tablename__": "things", "__module__": __name__, **own},
        type_id=1,
    )
    columns = [Column(name, type_) for name, (type_, *_) in types.items()]
    table = things(*columns, *computed())
    with moving(fleet, tmp_path, table, Moved(cls=cls)) as move:
        yield move


def shown(fleet, types, side):
    """Return what the server sends for each row of a side, as bytes."""
    # Of a FLOAT it shows six digits.
    return sent(
        fleet,
        side,
        *(f"`{name}`" for name in types),
        *(c.name for c in computed()),
        "`float` * 1e0",
    )


def sent(fleet, side, *names):
    """Return what the server sends for expressions, as bytes, in UTC."""
    places = (
        [(0, "db_from")]
        if side == "legacy"
        else [(index, f"db_to{index:05d}") for index in range(4)]
    )
    found = []
    for index, database in places:
        connected = fleet.servers[index].root_connect(use_unicode=False, conv={})
        with connected as connection, connection.cursor() as cursor:
            cursor.execute("SET time_zone = '+00:00'")
            cursor.execute(f"SELECT {', '.join(names)} FROM {database}.things")
            found += cursor.fetchall()
    return sorted(found, key=repr)


def fill(move, types):
    """Insert rows so that each column has all of its values, and NULL."""
    count = max(len(literals) for _, *literals in types.values()) + 1
    with move.engine.begin() as connection:
        for row in range(count):
            values = {
                name: [*literals, "NULL"][row % (len(literals) + 1)]
                for name, (_, *literals) in types.items()
            }
            names = ", ".join(f"`{name}`" for name in values)
            connection.exec_driver_sql(
                f"INSERT INTO things ({names}) VALUES "
                f"({', '.join(values.values())})".replace("%", "%%")
            )


def test_all_types_forward_back_and_forward_again(fleet, scene):
    move_twice(fleet, *scene)


def test_types_of_a_newer_server(mariadb11_fleet, tmp_path):
    types = TYPES | OF_MARIADB | OF_MARIADB_11
    with moving_all(mariadb11_fleet, tmp_path, types) as move:
        move_twice(mariadb11_fleet, move, types)


def move_twice(fleet, move, types):
    """Move rows to shards and back, and once more."""
    fill(move, types)
    before = shown(fleet, types, "legacy")
    Switch(move).go("copying")
    assert backfill(move, jobs=1) == 0
    assert shown(fleet, types, "shards") == before
    assert reconcile(move).is_equal
    cls = move.tables["things"].cls
    for number in (1, 2):
        Switch(move).go("switched")
        for key in range(1, len(before) + 1):
            with move.cluster.begin() as session:
                found = move.object_id("things", key)
                session.get(cls, found).smallint = number
        assert copy_waiting(move, move.progress()) == 0
        after = shown(fleet, types, "legacy")
        assert after == shown(fleet, types, "shards")
        at = list(types).index("smallint")
        expected = [(*row[:at], b"%d" % number, *row[at + 1 :]) for row in before]
        assert after == sorted(expected, key=repr)
        assert verify(move).is_equal
        Switch(move).back()
        with move.engine.begin() as connection:
            connection.exec_driver_sql("UPDATE things SET `smallint` = 7")
        found = reconcile(move)
        assert found.is_equal
        assert shown(fleet, types, "shards") == shown(fleet, types, "legacy")


def test_values_that_do_not_fit_are_named_and_hold_up_no_other(fleet, tmp_path, caplog):
    class Sharded(DeclarativeBase):
        pass

    class Thing(ObjectMixin, Sharded, type_id=1):
        __tablename__ = "things"
        at: Mapped[str | None] = blob_field()
        day: Mapped[date | None] = blob_field()
        doc: Mapped[dict | None] = blob_field()
        cost: Mapped[float | None] = blob_field()
        size: Mapped[str] = mapped_column(mysql.ENUM("a"))

    table = things(
        Column("at", mysql.TIME()),
        Column("day", mysql.DATE()),
        Column("doc", JSON()),
        Column("cost", mysql.DECIMAL(30, 10, asdecimal=False)),
        Column("size", mysql.ENUM("a")),
    )
    moved = Moved(
        cls=Thing,
        # A TIME that is no time of day is text.
        convert={"at": lambda value: value and value.isoformat()},
        revert={"at": time.fromisoformat},
    )
    with moving(fleet, tmp_path, table, moved) as move:
        insert_rows(
            move,
            "(size, at, day, doc, cost) VALUES ('a', '25:30:00', NULL, NULL, NULL), "
            "('a', NULL, '2020-02-00', NULL, NULL), "
            "('a', NULL, NULL, 'null', NULL), ('b', NULL, NULL, NULL, NULL), "
            "('a', NULL, NULL, NULL, 12345678901234567890.1), "
            "('a', '23:59:59', '2020-02-29', '{}', 0.1), "
            "('a', NULL, NULL, NULL, NULL)",
        )
        fleet.servers[0].root_execute(
            "CREATE TRIGGER db_from.odd BEFORE UPDATE ON db_from.things "
            "FOR EACH ROW SET NEW.at = NULL"
        )
        problems = plan(move).problems
        for named in (
            "things has the triggers odd: ",
            "things.day: 1 rows have a zero or partial date",
            "things.doc: 1 rows have a JSON null",
            "things.size: 1 rows have the error value",
            "things.cost: 1 rows have a DECIMAL with more digits",
        ):
            assert sum(problem.startswith(named) for problem in problems) == 1
        assert len(problems) == 5
        Switch(move).go("copying")
        assert backfill(move, jobs=1) == 5
        for key in range(1, 6):
            assert f"things {key} was not copied and waits" in caplog.text
        found = verify(move)
        assert found.waiting + found.differences >= 5
        with move.cluster.session() as session:
            objects = [
                session.get(Thing, move.object_id("things", key)) for key in (6, 7)
            ]
            assert [one.at for one in objects] == ["23:59:59", None]
            assert [one.doc for one in objects] == [{}, None]
            assert [one.cost for one in objects] == [0.1, None]


def insert_rows(move, *values):
    """Insert rows of SQL without the rules of a strict mode."""
    with move.engine.connect() as connection:
        # The pool must not get it back with this mode.
        connection.detach()
        connection.exec_driver_sql("SET SESSION sql_mode = ''")
        for value in values:
            connection.exec_driver_sql(f"INSERT INTO things {value}")
        connection.commit()


def test_defaults_and_on_update_of_the_shards_change_no_value(fleet, tmp_path):
    class Sharded(DeclarativeBase):
        pass

    def columns():
        now = text("CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP")
        return {
            "size": Column(Integer, server_default="5"),
            "shape": Column(Integer, default=5),
            "doc": Column(JSON(none_as_null=True)),
            "at": Column(mysql.TIMESTAMP, server_default=now, nullable=False),
            "edited": Column(mysql.DATETIME, onupdate=func.now()),
            "version": Column(Integer, nullable=False),
        }

    Thing = type(
        "Thing",
        (ObjectMixin, Sharded),
        {
            "__tablename__": "things",
            "__module__": __name__,
            "__mapper_args__": {"version_id_col": (own := columns())["version"]},
            **own,
        },
        type_id=1,
    )
    table = things(*(Column(n, c.type) for n, c in columns().items()))
    names = tuple(columns())
    with moving(fleet, tmp_path, table, Moved(cls=Thing)) as move:
        insert_rows(
            move,
            "(at, edited, version) VALUES "
            "('2020-01-02 03:04:05', '2020-01-02 03:04:05', 3)",
            "(doc, at, shape, version) VALUES "
            """('{"a":  1}', '2020-01-02 03:04:05', 1, 3)""",
        )
        Switch(move).go("copying")
        assert backfill(move, jobs=1) == 0
        assert sent(fleet, "shards", *names) == sent(fleet, "legacy", *names)
        with move.engine.begin() as connection:
            connection.exec_driver_sql("UPDATE things SET size = 7, at = at")
        assert reconcile(move, passes=1).differences == 2
        assert sent(fleet, "shards", *names) == sent(fleet, "legacy", *names)


class DecoratedTime(TypeDecorator):
    impl = mysql.TIME
    cache_ok = True


class DecoratedFloat(TypeDecorator):
    impl = Float
    cache_ok = True


class DecoratedJSON(TypeDecorator):
    """A type that takes nothing else than a list or None."""

    impl = JSON
    cache_ok = True

    def process_bind_param(self, value, dialect):
        return None if value is None else [*value]

    process_result_value = process_bind_param


def test_moments_and_types_of_the_application(fleet, tmp_path):
    class Sharded(DeclarativeBase):
        pass

    class Thing(ObjectMixin, Sharded, type_id=1):
        __tablename__ = "things"
        at: Mapped[datetime] = mapped_column(mysql.TIMESTAMP(fsp=3))
        day: Mapped[datetime] = mapped_column(mysql.DATETIME)
        seen: Mapped[datetime] = blob_field()
        met: Mapped[datetime] = blob_field()
        heard: Mapped[datetime] = blob_field()
        span: Mapped[str | None] = mapped_column(DecoratedTime)
        weight: Mapped[float | None] = mapped_column(DecoratedFloat)
        doc: Mapped[object] = mapped_column(DecoratedJSON, nullable=True)
        number: Mapped[int | None] = mapped_column(BigInteger)

    table = things(
        Column("at", mysql.TIMESTAMP(fsp=3)),
        Column("day", mysql.DATETIME),
        Column("seen", mysql.TIMESTAMP),
        Column("met", mysql.DATETIME),
        Column("heard", UTCTimestamp),
        Column("span", DecoratedTime),
        Column("weight", DecoratedFloat),
        Column("doc", DecoratedJSON),
        Column("number", BigInteger),
    )
    moved = Moved(cls=Thing, zone=timezone(timedelta(hours=5)))
    # Of a connection that is not in UTC.
    zone = "SET time_zone = '+05:00'"
    names = ("at", "day", "span", "weight * 1e0", "doc")
    of_database = (*names, "seen", "met", "heard")
    moment = "'2020-10-25 00:30:00'"
    with moving(fleet, tmp_path, table, moved, init_command=zone) as move:
        insert_rows(
            move,
            *(
                "(at, day, seen, met, heard, span, weight, doc) VALUES "
                f"({moment}, {moment}, {moment}, {moment}, {moment}, {values})"
                for values in (
                    "'25:30:00', 16777217, NULL",
                    "'-00:30:00', 0.1, 'null'",
                    "NULL, NULL, '[1]'",
                )
            ),
        )
        assert not plan(move).problems
        before = sent(fleet, "legacy", *of_database)
        Switch(move).go("copying")
        assert backfill(move, jobs=1) == 0
        assert sent(fleet, "shards", *names) == sent(fleet, "legacy", *names)
        assert reconcile(move).is_equal
        Switch(move).go("switched")
        for key in range(1, 4):
            with move.cluster.begin() as session:
                found = session.get(Thing, move.object_id("things", key))
                assert (
                    found.seen
                    == found.met
                    == datetime(2020, 10, 24, 19, 30, tzinfo=UTC)
                )
                found.number = 1
        assert copy_waiting(move, move.progress()) == 0
        assert sent(fleet, "legacy", *of_database) == before
        assert verify(move).is_equal


_REFUSING = ("kind", "doc", "key", "done")


class Parsed(TypeDecorator):
    impl = mysql.VARCHAR(20)
    cache_ok = True

    def process_result_value(self, value, dialect):
        return None if value is None else json.dumps(json.loads(value))


def test_values_that_a_type_refuses_hold_up_no_other(fleet, tmp_path, caplog):
    class Sharded(DeclarativeBase):
        pass

    class Thing(ObjectMixin, Sharded, type_id=1):
        __tablename__ = "things"
        kind: Mapped[str | None] = mapped_column(Enum("a", native_enum=False))
        doc: Mapped[str | None] = mapped_column(Parsed)
        key: Mapped[object] = mapped_column(Uuid(native_uuid=False), nullable=True)
        done: Mapped[bool | None] = mapped_column(Boolean)

    table = things(
        *(Column(c.name, c.type) for c in Thing.__table__.c if c.name in _REFUSING)
    )
    with moving(fleet, tmp_path, table, Moved(cls=Thing)) as move:
        refused = "(kind) VALUES ('b')", "(doc) VALUES ('[')", "(`key`) VALUES ('z')"
        insert_rows(move, *refused, "(done) VALUES (2)", "(done) VALUES (1)")
        (problem,) = plan(move).problems
        assert problem.startswith("things.done: 1 rows have a BOOL that is neither")
        Switch(move).go("copying")
        assert backfill(move, jobs=1) == 4
        for key in range(1, 5):
            assert f"things {key} was not copied and waits" in caplog.text
        found = verify(move)
        assert found.waiting + found.differences >= 4
        assert sent(fleet, "shards", "done") == [(b"1",)]


class Upper(TypeDecorator):
    """A type that writes other texts than it reads, and equal ones."""

    impl = mysql.VARCHAR(20)
    cache_ok = True

    def __init__(self, ending=""):
        super().__init__()
        self.ending = ending

    def process_bind_param(self, value, dialect):
        return value and value.upper() + self.ending

    def process_result_value(self, value, dialect):
        return value and value.removesuffix(self.ending).upper()


class YesOrNo(TypeDecorator):
    impl = mysql.CHAR(1)
    cache_ok = True

    def process_bind_param(self, value, dialect):
        return "Y" if value else "N"

    def process_result_value(self, value, dialect):
        return value in ("Y", "y")


class Packed(TypeDecorator):
    """A type with methods of drivers."""

    impl = mysql.VARBINARY(200)
    cache_ok = True

    def bind_processor(self, dialect):
        return lambda value: value and zlib.compress(value, 9)

    def result_processor(self, dialect, coltype):
        return lambda value: value and zlib.decompress(value)


class Cents(TypeDecorator):
    impl = mysql.DECIMAL(12, 4)
    cache_ok = True

    def process_bind_param(self, value, dialect):
        return None if value is None else Decimal(value) / 100

    def process_result_value(self, value, dialect):
        return None if value is None else int(value * 100)


class Seconds(TypeDecorator):
    impl = mysql.DATETIME(fsp=6)
    cache_ok = True

    def process_bind_param(self, value, dialect):
        return value and value.replace(microsecond=0)

    process_result_value = process_bind_param


Size = enum.Enum("Size", [("SMALL", "s"), ("LITTLE", "s"), ("LARGE", "l")])


#: A type, and literals of values that it would write differently, or not.
REWRITTEN = {
    "pickle": (
        PickleType(),
        *(f"x'{pickle.dumps({'a': [1]}, protocol=one).hex()}'" for one in (0, 2, 4, 5)),
    ),
    "upper": (Upper(), "'aB'", "''", "'AB'"),
    "yes": (YesOrNo(), "'y'", "'Y'", "'x'", "'N'"),
    "packed": (
        Packed(),
        *(f"x'{zlib.compress(b'aaaa' * 9, one).hex()}'" for one in (0, 1, 9)),
    ),
    "cents": (Cents(), "1.2345", "0.01"),
    "at": (Seconds(), "'2020-01-02 03:04:05.678901'", "'2020-01-02 03:04:05'"),
    "key": (
        Uuid(native_uuid=False),
        "'123E4567E89B12D3A456426655440000'",
        "'123e4567e89b12d3a456426655440000'",
    ),
    "doc": (DecoratedJSON(), "'[1,  2]'", "'[1e3, 1.0]'", "'null'"),
    "size": (
        Enum(Size, native_enum=False, length=9, omit_aliases=False),
        *("'LITTLE'", "'SMALL'", "'LARGE'"),
    ),
    "native": (Enum(Size, values_callable=lambda all_: [o.value for o in all_]), "'l'"),
    "span": (Interval(), "'1970-01-02 00:00:00'"),
}


def test_values_that_types_of_the_application_write_differently(fleet, tmp_path):
    class Sharded(DeclarativeBase):
        pass

    own = {name: mapped_column(type_) for name, (type_, *_) in REWRITTEN.items()}
    cls = type(
        "Thing",
        (ObjectMixin, Sharded),
        {
            "__tablename__": "things",
            "__module__": __name__,
            "number": mapped_column(Integer),
            **own,
        },
        type_id=1,
    )
    columns = [Column(name, type_) for name, (type_, *_) in REWRITTEN.items()]
    table = things(Column("number", Integer), *columns)
    names = [f"`{name}`" for name in REWRITTEN]
    with moving(fleet, tmp_path, table, Moved(cls=cls)) as move:
        fill(move, REWRITTEN)
        before = sent(fleet, "legacy", *names)
        Switch(move).go("copying")
        assert backfill(move, jobs=1) == 0
        assert sent(fleet, "shards", *names) == before
        assert verify(move).is_equal
        with move.engine.begin() as connection:
            # An equal value in Python.
            value = pickle.dumps({"a": [1]}, protocol=3).hex()
            connection.exec_driver_sql(f"UPDATE things SET `pickle` = x'{value}'")
            connection.exec_driver_sql("UPDATE things SET `upper` = 'q' WHERE id = 1")
        before = sent(fleet, "legacy", *names)
        assert not verify(move).is_equal
        assert reconcile(move).is_equal
        assert sent(fleet, "shards", *names) == before
        Switch(move).go("switched")
        for key in range(1, len(before) + 1):
            with move.cluster.begin() as session:
                session.get(cls, move.object_id("things", key)).number = 1
        assert copy_waiting(move, move.progress()) == 0
        assert sent(fleet, "shards", *names) == before
        assert sent(fleet, "legacy", *names) == before
        assert verify(move).is_equal


def labelled(label):
    """Return a type that is not the same as one with another label."""
    found = DecoratedJSON()
    found.label = label
    return found


def test_values_that_would_come_back_as_others_are_refused(fleet, tmp_path, caplog):
    class Sharded(DeclarativeBase):
        pass

    class Thing(ObjectMixin, Sharded, type_id=1):
        __tablename__ = "things"
        upper: Mapped[str | None] = blob_field()
        ending: Mapped[str | None] = mapped_column(Upper("."))
        doc: Mapped[object] = mapped_column(labelled("a"), nullable=True)
        key: Mapped[object] = mapped_column(Uuid, nullable=True)
        size: Mapped[Size | None] = blob_field()
        free: Mapped[str | None] = blob_field()

    aliases = Enum(Size, native_enum=False, length=9, omit_aliases=False)
    table = things(
        *(Column("upper", Upper()), Column("ending", Upper(";"))),
        *(Column("key", Uuid(native_uuid=False)), Column("doc", labelled("b"))),
        *(Column("size", aliases), Column("free", Upper()), Column("left", Upper())),
    )
    one = {"free": lambda value: value}
    moved = Moved(cls=Thing, names={"left": None}, convert=one, revert=one)
    with moving(fleet, tmp_path, table, moved) as move:
        insert_rows(
            move,
            *("(`upper`) VALUES ('aB')", "(ending) VALUES ('ab;')"),
            *("(`key`) VALUES (upper(repeat('a', 32)))", "(size) VALUES ('LITTLE')"),
            "(`upper`, ending, `key`, size, free, `left`, doc) VALUES "
            "('AB', 'AB;', repeat('a', 32), 'SMALL', 'aB', 'aB', '[1]')",
        )
        Switch(move).go("copying")
        assert backfill(move, jobs=1) == 4
        for key in range(1, 5):
            assert f"things {key} was not copied and waits" in caplog.text
        for named in (
            "Upper reads 'aB' and writes 'AB': it would come back as another",
            "Upper reads 'ab;' and writes 'AB;'",
            "Uuid reads 'AAAA",
            "Enum reads 'LITTLE' and writes 'SMALL'",
        ):
            assert named in caplog.text
        found = verify(move)
        assert found.waiting + found.differences >= 4
        assert sent(fleet, "shards", "ending", "doc") == [(b"AB.", b"[1]")]


def test_generated_columns_that_are_not_declared_are_refused(fleet, tmp_path):
    class Sharded(DeclarativeBase):
        pass

    class Thing(ObjectMixin, Sharded, type_id=1):
        __tablename__ = "things"
        number: Mapped[int | None] = blob_field()
        twice: Mapped[int | None] = blob_field()
        thrice: Mapped[int | None] = mapped_column(Integer)
        known: Mapped[int | None] = blob_field()

    table = things(
        *(Column(name, Integer) for name in ("number", "twice", "thrice", "left")),
        Column("known", Integer, Computed("number * 5", persisted=False)),
    )
    moved = Moved(cls=Thing, names={"left": None})
    with moving(fleet, tmp_path, table, moved) as move:
        for name, kind in ("twice", "VIRTUAL"), ("thrice", "STORED"), ("left", ""):
            fleet.servers[0].root_execute(
                f"ALTER TABLE db_from.things DROP `{name}`, ADD `{name}` INT "
                f"GENERATED ALWAYS AS (number * 2) {kind}"
            )
        problems = plan(move).problems
        assert [problem.split(" is generated")[0] for problem in problems] == [
            "things.twice",
            "things.thrice",
        ]
        with pytest.raises(StageRefusedError, match=r"things\.twice is generated"):
            Switch(move).go("copying")
        for name in ("twice", "thrice"):
            fleet.servers[0].root_execute(
                f"ALTER TABLE db_from.things DROP `{name}`, ADD `{name}` INT"
            )
        Switch(move).go("copying")


def test_connections_that_change_texts_are_refused(fleet, tmp_path):
    class Sharded(DeclarativeBase):
        pass

    class Thing(ObjectMixin, Sharded, type_id=1):
        __tablename__ = "things"
        name: Mapped[str | None] = blob_field()

    table = things(Column("name", mysql.VARCHAR(9)))
    moved = Moved(cls=Thing)
    with moving(fleet, tmp_path, table, moved, charset="utf8mb3") as move:
        (problem,) = plan(move).problems
        assert "the character set utf8mb3" in problem
        with pytest.raises(StageRefusedError, match="charset=utf8mb4"):
            Switch(move).go("copying")

        @event.listens_for(move.engine, "checkout")
        def leave_results(connection, *_):
            with connection.cursor() as cursor:
                cursor.execute("SET character_set_results = NULL")

        (problem,) = plan(move).problems
        assert "the character set None, utf8mb3" in problem


def test_texts_that_change_in_unicode_are_refused(fleet, tmp_path, monkeypatch):
    class Sharded(DeclarativeBase):
        pass

    # Bytes without a character, one by one; koi8r has one for each.
    lost = {"greek": "a4", "cp932": "3f81ad", "euckr": "a2e8", "tis620": "ff"}
    kept = {"koi8r": "c1", "cp932": "3f82a0", "sjis": "3f"}

    class Thing(ObjectMixin, Sharded, type_id=1):
        __tablename__ = "things"
        greek: Mapped[str | None] = blob_field()
        cp932: Mapped[str | None] = mapped_column(mysql.VARCHAR(9))
        euckr: Mapped[str | None] = mapped_column(mysql.CHAR(9))
        tis620: Mapped[str | None] = blob_field()
        koi8r: Mapped[str | None] = blob_field()
        sjis: Mapped[str | None] = blob_field()
        handled: Mapped[str | None] = blob_field()

    columns = [
        Column(name, mysql.VARCHAR(9, charset=name)) for name in {**lost, **kept}
    ]
    table = things(*columns, Column("handled", mysql.VARCHAR(9, charset="greek")))
    moved = Moved(cls=Thing, convert={"handled": str}, revert={"handled": str})
    monkeypatch.setattr(stage_changes, "_PAGE", 2)
    with moving(fleet, tmp_path, table, moved) as move:
        insert_rows(
            move,
            *(f"({name}) VALUES (_binary x'{value}')" for name, value in lost.items()),
            "(handled) VALUES (_binary x'a4')",
            *(f"({name}) VALUES (_binary x'{value}')" for name, value in kept.items()),
            "(greek) VALUES (_binary x'3fa4')",
        )
        counts = {"greek": 2, "cp932": 1, "euckr": 1, "tis620": 1}
        handled = "things.handled: 1 rows have a text in greek"
        assert [problem.split(" with ")[0] for problem in plan(move).problems] == [
            *(
                f"things.{name}: {count} rows have a text in {name}"
                for name, count in counts.items()
            ),
            handled,
        ]
        with pytest.raises(StageRefusedError, match=r"things\.cp932: 1 rows"):
            Switch(move).go("copying")
        with move.engine.begin() as connection:
            connection.exec_driver_sql("DELETE FROM things WHERE id <= 4 OR id = 9")
        # Its function gets other characters, which is no reason to stop.
        (problem,) = plan(move).problems
        assert problem.startswith(handled)
        Switch(move).go("copying")
        assert backfill(move, jobs=1) == 0
        assert reconcile(move).is_equal


def test_texts_with_other_codes_of_their_characters_are_named(fleet, tmp_path):
    class Sharded(DeclarativeBase):
        pass

    class Thing(ObjectMixin, Sharded, type_id=1):
        __tablename__ = "things"
        name: Mapped[str | None] = mapped_column(mysql.VARCHAR(9))
        sjis: Mapped[str | None] = blob_field()
        key: Mapped[str | None] = blob_field()

    columns = [
        Column(name, mysql.VARCHAR(9, charset=its))
        for name, its in {"name": "cp932", "sjis": "sjis", "key": "armscii8"}.items()
    ]
    with moving(fleet, tmp_path, things(*columns), Moved(cls=Thing)) as move:
        insert_rows(
            move,
            "(name, sjis, `key`) VALUES "
            "(_binary x'3f8790', _binary x'5c', _binary x'a4')",
        )
        before = sent(fleet, "legacy", "CONVERT(name USING utf8mb4)")
        problems = plan(move).problems
        assert [problem.split(" that ")[0] for problem in problems] == [
            "things.name: 1 rows have a text in cp932",
            "things.sjis: 1 rows have a text in sjis",
            "things.key: 1 rows have a text in armscii8",
        ]
        Switch(move).go("copying")
        assert backfill(move, jobs=1) == 0
        assert reconcile(move).is_equal
        assert sent(fleet, "shards", "name") == before == [("?\u2252".encode(),)]
        with move.engine.begin() as connection:
            for problem in problems:
                connection.exec_driver_sql(problem.split(" now: ")[1])
        assert not plan(move).problems
        assert sent(fleet, "legacy", "CONVERT(name USING utf8mb4)") == before


def test_texts_of_more_than_half_a_packet_are_looked_at(fleet, tmp_path):
    class Sharded(DeclarativeBase):
        pass

    class Thing(ObjectMixin, Sharded, type_id=1):
        __tablename__ = "things"
        greek: Mapped[str | None] = blob_field()
        cp932: Mapped[str | None] = blob_field()

    columns = [
        Column(name, mysql.LONGTEXT(charset=name)) for name in ("greek", "cp932")
    ]
    server = fleet.servers[0]
    ((size,),) = server.root_execute("SELECT @@GLOBAL.max_allowed_packet")
    server.root_execute("SET GLOBAL max_allowed_packet = 1048576")
    try:
        with moving(fleet, tmp_path, things(*columns), Moved(cls=Thing)) as move:
            insert_rows(
                move,
                "(greek) VALUES (CONCAT(REPEAT('a', 600000), _binary x'a4'))",
                "(cp932) VALUES (CONCAT(REPEAT('a', 600000), _binary x'81ad'))",
                "(greek, cp932) VALUES (REPEAT('a', 600000), REPEAT('?', 600000))",
            )
            problems = [one.split(" with ")[0] for one in plan(move).problems]
        assert problems == [
            "things.greek: 1 rows have a text in greek",
            "things.cp932: 1 rows have a text in cp932",
        ]
    finally:
        server.root_execute(f"SET GLOBAL max_allowed_packet = {size}")


def test_character_sets_with_a_character_for_each_byte(fleet):
    # Not ascii: MySQL refuses the literal.
    with fleet.servers[0].root_connect() as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT character_set_name FROM information_schema.character_sets "
            "WHERE maxlen = 1 AND character_set_name NOT IN ('binary', 'ascii')"
        )
        found = set()
        for (name,) in cursor.fetchall():
            text = f"_{name} x'{bytes(range(256)).hex()}'"
            cursor.execute(
                f"SELECT HEX(CONVERT(CONVERT({text} USING utf8mb4) USING {name}))"
            )
            if cursor.fetchone() == (bytes(range(256)).hex().upper(),):
                found.add(name)
    assert found == {*EXACT_SETS}


def test_values_that_no_text_has_are_named(fleet, server_kind, tmp_path):
    class Sharded(DeclarativeBase):
        pass

    wide = mysql.SET(*(f"m{at}" for at in range(64)), retrieve_as_bitwise=True)

    class Thing(ObjectMixin, Sharded, type_id=1):
        __tablename__ = "things"
        members: Mapped[object] = mapped_column(wide)
        doc: Mapped[object] = mapped_column(JSON, nullable=True)
        note: Mapped[list[float] | None] = blob_field()

    table = things(Column("members", wide), Column("doc", JSON), Column("note", JSON))
    with moving(fleet, tmp_path, table, Moved(cls=Thing)) as move:
        decimal = "JSON_OBJECT('a', CAST(1.10 AS DECIMAL(10, 2)))"
        insert_rows(
            move,
            f"(members, doc) VALUES ('m63', {decimal}), ('m62', '[1.1, 1e3, \"e\"]')",
            f"(members, doc) VALUES ('m1', {decimal})",
            "(members, note) VALUES ('m1', JSON_ARRAY(1.50))",
        )
        problems = [*plan(move).problems]
        of_set = "things.members: 1 rows have the 64th member of a SET, which "
        of_json = "things.doc: 2 rows have a JSON value of SQL whose text MySQL "
        expected = [of_set, *([of_json] if server_kind.is_mysql else [])]
        assert [problem[: len(of_set)] for problem in problems] == [
            one[: len(of_set)] for one in expected
        ]
        with move.engine.begin() as connection:
            connection.exec_driver_sql("DELETE FROM things WHERE id = 1")
        Switch(move).go("copying")
        assert backfill(move, jobs=1) == 0
        assert verify(move).differences == (1 if server_kind.is_mysql else 0)
        if server_kind.is_mysql:
            assert problems[1].endswith("a pass finds the row different")


def test_a_json_number_that_python_refuses_is_named(mariadb_fleet, tmp_path, caplog):
    # MySQL has numbers of a DOUBLE only, and refuses the text.
    class Sharded(DeclarativeBase):
        pass

    class Thing(ObjectMixin, Sharded, type_id=1):
        __tablename__ = "things"
        doc: Mapped[object] = mapped_column(JSON, nullable=True)
        note: Mapped[list[int] | None] = blob_field()

    table = things(Column("doc", JSON), Column("note", JSON))
    with moving(mariadb_fleet, tmp_path, table, Moved(cls=Thing)) as move:
        number = "CONCAT('[', REPEAT('9', 5000), ']')"
        insert_rows(
            move,
            f"(doc) VALUES ({number}), ('[1]')",
            f"(note) VALUES ({number}), ('[1]')",
        )
        Switch(move).go("copying")
        assert backfill(move, jobs=1) == 2
        for key in (1, 3):
            assert f"things {key} was not copied and waits" in caplog.text
        assert caplog.text.count("4300 digits") == 2
        assert sent(mariadb_fleet, "shards", "doc") == [(None,), (b"[1]",)]
        found = verify(move)
        assert found.waiting + found.differences == 2
