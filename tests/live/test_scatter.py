"""One statement for each server, and all of them at the same time."""

from __future__ import annotations

import contextlib
import datetime
import enum
import random
import threading
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import (
    BigInteger,
    Boolean,
    Date,
    DateTime,
    Enum,
    Float,
    Integer,
    LargeBinary,
    literal,
    null,
    Numeric,
    select,
    String,
    Text,
    text,
    Time,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqla_shard import blob_field, Cluster, ObjectMixin, pack, unpack
from sqla_shard.testing import StatementLog
from sqla_shard.testing.server_fleet import ServerFleet
from tests.servers.kinds import own_fleet

pytestmark = pytest.mark.live

SERVERS = 3
SHARDS = 24
TIMEOUT = 30


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Base(DeclarativeBase):
    pass


class Pin(ObjectMixin, Base, type_id=1):
    __tablename__ = "pins"

    title: Mapped[str] = blob_field()


class Thing(ObjectMixin, Base, type_id=2):
    """Columns of every kind that a server might show in another way."""

    __tablename__ = "things"

    a_bit = mapped_column(mysql.BIT(10))
    a_bool = mapped_column(Boolean)
    a_big = mapped_column(BigInteger)
    an_unsigned = mapped_column(mysql.BIGINT(unsigned=True))
    a_small = mapped_column(mysql.TINYINT)
    a_float = mapped_column(Float)
    a_double = mapped_column(mysql.DOUBLE)
    a_number = mapped_column(Numeric(30, 10))
    a_date = mapped_column(Date)
    a_time = mapped_column(mysql.TIME(fsp=6))
    a_plain_time = mapped_column(Time)
    a_moment = mapped_column(mysql.DATETIME(fsp=6))
    a_plain_moment = mapped_column(DateTime)
    a_year = mapped_column(mysql.YEAR)
    a_string = mapped_column(String(40))
    a_char = mapped_column(mysql.CHAR(7))
    a_text = mapped_column(Text)
    a_long_text = mapped_column(mysql.LONGTEXT)
    an_enum = mapped_column(Enum(Colour))
    a_set = mapped_column(mysql.SET("a", "b", "c"))
    a_blob = mapped_column(LargeBinary)
    a_varbinary = mapped_column(mysql.VARBINARY(20))
    a_binary = mapped_column(mysql.BINARY(5))
    a_json = mapped_column(mysql.JSON)


fleet = own_fleet(SERVERS, SHARDS)


@pytest.fixture(scope="module")
def cluster(fleet: ServerFleet[Any]) -> Iterator[Cluster]:
    with Cluster.from_topology(
        fleet.topology_mapping(), environ=fleet.environ
    ) as cluster:
        cluster.create_all(Base.metadata)
        yield cluster
        assert cluster.close()


@pytest.fixture(scope="module")
def ids(cluster: Cluster) -> list[int]:
    """Two pins on every shard."""
    found = []
    for shard_id in range(SHARDS):
        with cluster.begin(shard_id=shard_id) as session:
            pins = [Pin(title=f"pin {shard_id} {n}") for n in range(2)]
            session.add_all(pins)
            session.flush()
            found += [pin.id for pin in pins]
    return found


def logged(cluster: Cluster) -> StatementLog:
    return StatementLog(*cluster.places.engines)


def by_server(log: StatementLog) -> Counter[str]:
    return Counter(
        event.server
        for event in log.executions
        if event.statement.startswith(("SELECT", "UPDATE", "DELETE"))
    )


def busy(cluster: Cluster) -> int:
    return sum(stats.busy for stats in cluster.stats())


def test_one_statement_for_each_server(cluster: Cluster, ids: list[int]) -> None:
    with cluster.session() as session, logged(cluster) as log:
        pins = session.get_many(Pin, ids)
        assert [pin.id for pin in pins if pin] == ids
        assert set(by_server(log).values()) == {1}
        assert len(by_server(log)) == SERVERS
        log.clear()
        # Objects in the session are not read again.
        assert session.get_many(Pin, ids) == pins
        assert not by_server(log)
        statement = select(Pin.id, Pin.title).where(Pin.id.in_(ids))
        rows = session.execute(statement).all()
        assert sorted(row.id for row in rows) == sorted(ids)
        assert all(row.title.startswith(f"pin {row.id >> 46} ") for row in rows)
        assert set(by_server(log).values()) == {1}


def test_parameters_are_repeated_for_each_branch(
    cluster: Cluster, ids: list[int]
) -> None:
    title = "it's 100% %s ? \\ \" of__sqla it"
    with cluster.session() as session:
        wanted = select(
            Pin.id, literal(title).label("shown"), null().label("nothing")
        ).where(
            Pin.id.in_(ids), Pin.title.in_(["pin 1 0", "pin 9 1", "pin 20 0", title])
        )
        rows = session.execute(wanted).all()
    assert sorted(row.id >> 46 for row in rows) == [1, 9, 20]
    assert {(row.shown, row.nothing) for row in rows} == {(title, None)}


@pytest.mark.parametrize(
    ("refinement", "union"),
    [
        (lambda s: s.with_for_update(), False),
        (lambda s: s.with_for_update(read=True), False),
        (lambda s: s.execution_options(yield_per=5), True),
        (lambda s: s.execution_options(populate_existing=True), True),
        (lambda s: s.distinct(), True),
    ],
)
def test_the_limits_of_a_union(
    cluster: Cluster, ids: list[int], refinement: Any, union: bool
) -> None:
    with cluster.session() as session, logged(cluster) as log:
        statement = refinement(select(Pin).where(Pin.id.in_(ids)))
        found = list(session.scalars(statement))
        assert sorted(pin.id for pin in found) == sorted(ids)
        each = 1 if union else SHARDS // SERVERS
        assert set(by_server(log).values()) == {each}


def test_the_compiled_cache_does_not_grow(
    cluster: Cluster, ids: list[int], rng: random.Random
) -> None:
    def sizes() -> int:
        return sum(
            len(engine._compiled_cache or ()) for engine in cluster.places.engines
        )

    with cluster.session() as session:
        session.get_many(Pin, ids)
        before = sizes()
        for _ in range(100):
            session.expunge_all()
            some = rng.sample(ids, rng.randrange(1, len(ids)))
            assert None not in session.get_many(Pin, some)
            session.scalars(select(Pin).where(Pin.id.in_(some))).all()
        assert sizes() - before <= 2 * SERVERS


def thing(number: int) -> Thing:
    moment = datetime.datetime(2026, 1, 2, 3, 4, 5, number)
    return Thing(
        a_bit=b"\x02\x01",
        a_bool=bool(number % 2),
        a_big=-(2**63) + number,
        an_unsigned=2**64 - 1 - number,
        a_small=-128,
        a_float=0.1 + number,
        a_double=1 / 3 + number,
        a_number=Decimal("12345678901234567890.0123456789") - number,
        a_date=moment.date(),
        a_time=moment.time(),
        a_plain_time=datetime.time(23, 59, number % 60),
        a_moment=moment,
        a_plain_moment=moment.replace(microsecond=0),
        a_year=1901 + number,
        a_string="é" * (number % 40) + " ",
        a_char="c" * (number % 7),
        a_text="ü€😀" * number,
        a_long_text="long" * 1000,
        an_enum=Colour.BLUE if number % 2 else Colour.RED,
        a_set={"a", "c"} if number % 2 else {"b"},
        a_blob=bytes(range(256)) * number,
        a_varbinary=b"\x00\xff" * (number % 10),
        a_binary=b"\x00ab\x00\x01",
        a_json={"n": number, "text": "ü", "none": None},
    )


def test_every_type_is_shown_as_by_one_shard(cluster: Cluster) -> None:
    ids = []
    for shard_id in range(SHARDS):
        with cluster.begin(shard_id=shard_id) as session:
            made = [thing(shard_id), Thing()]
            session.add_all(made)
            session.flush()
            ids += [each.id for each in made]
    columns = list(Thing.__table__.c)
    statement = select(*columns)
    key = Thing.__table__.c.local_id
    with cluster.session() as session:
        one_by_one = [
            tuple(session.execute(statement.where(key == i)).one()) for i in ids
        ]
        together = session.execute(statement.where(key.in_(ids))).all()
    assert sorted(map(repr, map(tuple, together))) == sorted(map(repr, one_by_one))


def test_all_servers_at_the_same_time(
    cluster: Cluster, fleet: ServerFleet[Any], ids: list[int]
) -> None:
    """Each server's lock is released only when all others wait, too."""
    held = []
    tables = ", ".join(f"db{shard_id:05d}.pins WRITE" for shard_id in range(SHARDS))
    for server in fleet.servers:
        connection = server.root_connect()
        cursor = connection.cursor()
        own = [
            f"`{name}`.pins WRITE"
            for (name,) in _databases(cursor)
            if name.startswith("db0")
        ]
        assert own, tables
        cursor.execute(f"LOCK TABLES {', '.join(own)}")
        held.append(connection)
    answers: list[Any] = []

    def read() -> None:
        with cluster.session() as session:
            answers.extend(session.get_many(Pin, ids))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for server in fleet.servers:
            _until_waiting(server)
        assert not answers
    finally:
        for connection in held:
            connection.close()
        reader.join(TIMEOUT)
    assert len(answers) == len(ids)


def _databases(cursor: Any) -> Any:
    cursor.execute("SHOW DATABASES")
    return cursor.fetchall()


def _until_waiting(server: Any) -> None:
    """Wait until a statement waits for a lock on the server."""
    done = threading.Event()
    for _ in range(TIMEOUT * 100):
        rows = server.root_execute(
            "SELECT 1 FROM information_schema.processlist "
            "WHERE state LIKE 'Waiting for table%'"
        )
        if rows:
            return
        done.wait(0.01)
    pytest.fail(f"nothing waits on {server.name}")


def test_a_connection_that_dies(
    cluster: Cluster, fleet: ServerFleet[Any], ids: list[int]
) -> None:
    """The right one is replaced; the others go on."""
    for number in range(SERVERS):
        with cluster.session() as session:
            session.get_many(Pin, ids)
            _kill_connection(session, fleet, number)
            session.expunge_all()
            with pytest.raises(OperationalError) as raised:
                session.get_many(Pin, ids)
            assert raised.value.connection_invalidated
        assert busy(cluster) == 0
        with cluster.session() as session:
            assert None not in session.get_many(Pin, ids)


def test_a_server_that_is_gone(
    cluster: Cluster, fleet: ServerFleet[Any], ids: list[int]
) -> None:
    fleet.servers[1].kill()
    try:
        with cluster.session() as session, pytest.raises(OperationalError):
            session.get_many(Pin, ids)
        assert busy(cluster) == 0
        with cluster.session() as session:
            assert session.get(Pin, ids[0]) is not None
    finally:
        fleet.servers[1].restart()
    # The pool had connections to the server that was killed.
    for _ in range(SERVERS):
        with cluster.session() as session, contextlib.suppress(OperationalError):
            assert None not in session.get_many(Pin, ids)
    assert None not in cluster.run(lambda s: s.get_many(Pin, ids))
    assert busy(cluster) == 0


def test_many_sessions_in_many_threads(cluster: Cluster, ids: list[int]) -> None:
    problems: list[BaseException] = []

    def read(seed: int) -> None:
        rng = random.Random(seed)
        try:
            for _ in range(20):
                some = rng.sample(ids, 20)
                with cluster.session() as session:
                    found = session.get_many(Pin, some)
                    assert [pin.id for pin in found if pin] == some
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=read, args=(n,)) for n in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    assert not problems
    assert busy(cluster) == 0


def test_ids_that_are_not_there(cluster: Cluster, ids: list[int]) -> None:
    missing = [pack(shard_id, 1, 10**9) for shard_id in range(SHARDS)]
    with cluster.session() as session:
        found = session.get_many(Pin, [*missing, *ids, ids[0]])
    assert found[:SHARDS] == [None] * SHARDS
    assert [pin.id for pin in found[SHARDS:] if pin] == [*ids, ids[0]]


def test_nothing_but_integers(cluster: Cluster) -> None:
    """The branches show numbers; they must not become something else."""
    ids = [pack(s, 2, 1) for s in range(SHARDS)]
    with cluster.session() as session:
        rows = session.execute(
            select(Thing.id, literal(1, Integer)).where(Thing.id.in_(ids))
        ).all()
    assert all(type(value) is int for row in rows for value in row)


@pytest.mark.parametrize("lost", range(SERVERS))
def test_closing_when_a_server_is_lost(
    cluster: Cluster, fleet: ServerFleet[Any], ids: list[int], lost: int
) -> None:
    """The other connections go back, and with them their locks."""
    session = cluster.session()
    session.scalars(select(Pin).where(Pin.id.in_(ids)).with_for_update()).all()
    _kill_connection(session, fleet, lost)
    with pytest.raises(OperationalError):
        session.close()
    assert busy(cluster) == 0
    # It can be used again, and nothing is locked.
    for object_id in ids:
        assert session.get(Pin, object_id, with_for_update=True) is not None
    session.close()
    assert busy(cluster) == 0


def test_the_error_of_the_application_is_the_one_raised(
    cluster: Cluster,
    fleet: ServerFleet[Any],
    ids: list[int],
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fails() -> None:
        with cluster.begin() as session:
            session.get_many(Pin, ids)
            _kill_connection(session, fleet, 1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert "could not roll back" in caplog.text
    assert busy(cluster) == 0


def test_the_log_of_a_rollback_has_no_values(
    cluster: Cluster,
    fleet: ServerFleet[Any],
    ids: list[int],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A traceback has the error that led there, with its parameters."""

    def fails() -> None:
        with cluster.begin() as session:
            session.get_many(Pin, ids)
            _kill_connection(session, fleet, 1)
            session.execute(
                text("SELECT missing FROM pins WHERE title = :title"),
                {"title": "4711-secret"},
                bind_arguments={"shard_id": unpack(ids[0]).shard_id},
            )

    with pytest.raises(OperationalError, match="4711-secret"):
        fails()
    assert "could not roll back" in caplog.text
    assert "4711-secret" not in caplog.text
    assert busy(cluster) == 0


def _kill_connection(session: Any, fleet: ServerFleet[Any], number: int) -> None:
    """Kill the session's connection to a server."""
    connection = session.connection(
        bind_arguments={"shard_id": number * SHARDS // SERVERS}
    )
    wire: Any = connection.connection.dbapi_connection
    fleet.servers[number].root_execute(f"KILL {wire.thread_id()}")
