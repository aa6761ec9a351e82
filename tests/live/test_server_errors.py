"""Errors of MariaDB and MySQL, and what becomes of the transaction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import (
    Column,
    ForeignKeyConstraint,
    func,
    Integer,
    make_url,
    MetaData,
    select,
    Table,
    text,
    update,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqla_shard import blob_field, Cluster, ObjectMixin, scatter
from sqla_shard.exc import (
    ScatterTimeoutError,
    ServerFencedError,
    ServerUnreachableError,
    ShardMissingError,
    UnkeyedReferenceError,
)
from sqla_shard.fleet.admin import Admin
from sqla_shard.fleet.replication import replication_of
from sqla_shard.fleet.requirements import prepared_problems
from sqla_shard.testing import MariaDBFleet, MySQLFleet
from tests.servers.following import until

pytestmark = pytest.mark.live

SHARDS = 4


class Base(DeclarativeBase):
    pass


class Pin(ObjectMixin, Base, type_id=1):
    __tablename__ = "pins"

    n: Mapped[int] = mapped_column()
    title: Mapped[str] = blob_field(default="")
    link: Mapped[str] = blob_field(default="")


@pytest.fixture(scope="module", params=["mariadb", "mysql"])
def fleet(request: pytest.FixtureRequest) -> Iterator[Any]:
    request.getfixturevalue(f"{request.param}_installed")
    kind = MySQLFleet if request.param == "mysql" else MariaDBFleet
    with kind(servers=2, shards=SHARDS, fast=True) as fleet:
        yield fleet


def opened(fleet: Any, **options: Any) -> Cluster:
    return Cluster.from_topology(
        fleet.topology_mapping(), environ=fleet.environ, **options
    )


@pytest.fixture(scope="module")
def cluster(fleet: Any) -> Iterator[Cluster]:
    with opened(fleet) as cluster:
        cluster.create_all(Base.metadata)
        yield cluster


@pytest.fixture
def pin_id(cluster: Cluster) -> int:
    with cluster.begin(shard_id=0) as session:
        pin = Pin(n=1)
        session.add(pin)
        session.flush()
        return pin.id


def is_mysql(fleet: Any) -> bool:
    return isinstance(fleet, MySQLFleet)


def value(server: Any, name: str) -> str | None:
    """Return a global variable; None where the server lacks it."""
    rows = server.root_execute(f"SHOW GLOBAL VARIABLES LIKE '{name}'")
    return rows[0][1] if rows else None


@contextmanager
def setting(server: Any, name: str, number: int) -> Iterator[None]:
    before = value(server, name)
    server.root_execute(f"SET GLOBAL {name} = {number}")
    try:
        yield
    finally:
        server.root_execute(f"SET GLOBAL {name} = {before}")


# -- what is missing or closed


@pytest.mark.parametrize("keys", ["code", "a", "a b"])
def test_a_foreign_key_to_columns_without_a_unique_key(fleet: Any, keys: str) -> None:
    """Of an index, and of a part of a composite key; not of all of it."""
    metadata = MetaData()
    Table(
        "parents",
        metadata,
        Column("a", Integer, primary_key=True),
        Column("b", Integer, primary_key=True),
        Column("code", Integer, index=True),
    )
    columns = keys.split()
    Table(
        "children",
        metadata,
        Column("id", Integer, primary_key=True),
        *[Column(name, Integer) for name in columns],
        ForeignKeyConstraint(columns, [f"parents.{name}" for name in columns]),
    )
    document = fleet.topology_mapping(main=f"main_{keys.replace(' ', '')}")
    with Cluster.from_topology(document, environ=fleet.environ) as cluster:
        if keys == "a b" or not is_mysql(fleet):
            cluster.create_all(metadata)
            return
        with pytest.raises(UnkeyedReferenceError, match="UniqueConst") as info:
            cluster.create_all(metadata)
    assert info.value.server == "server1"
    assert info.value.orig.args[0] == 6125  # type: ignore[union-attr]


def test_a_missing_database(cluster: Cluster, fleet: Any, pin_id: int) -> None:
    server, name = fleet.servers[0], "db00001"
    server.root_execute(f"DROP DATABASE {name}")
    pins = select(Pin)
    with cluster.session() as session, pytest.raises(ShardMissingError) as caught:
        session.scalars(pins, bind_arguments={"shard_id": 1}).all()
    cluster.create_all(Base.metadata)
    assert caught.value.lacks == ("database" if is_mysql(fleet) else "table")
    assert caught.value.shards == (1,)


def test_a_database_that_is_read_only(
    cluster: Cluster, fleet: Any, pin_id: int
) -> None:
    if not is_mysql(fleet):
        pytest.skip("MariaDB has no read-only databases")
    server = fleet.servers[0]
    attempts = []

    def write(session: Any) -> None:
        attempts.append(1)
        if len(attempts) == 3:
            server.root_execute("ALTER DATABASE db00000 READ ONLY = 0")
        session.get(Pin, pin_id, with_for_update=True).n += 1

    server.root_execute("ALTER DATABASE db00000 READ ONLY = 1")
    with (
        cluster.session() as session,
        pytest.raises(ServerFencedError, match="Schema 'db00000' is in read"),
    ):
        session.execute(update(Pin).where(Pin.id == pin_id).values(n=5))
    with cluster.begin(shard_id=1) as session:
        session.add(Pin(n=7))  # The other databases are writable.
    cluster.run(write)
    assert len(attempts) == 3
    with cluster.session() as session:
        assert session.get_one(Pin, pin_id).n == 2


def test_a_lock_without_waiting(cluster: Cluster, fleet: Any, pin_id: int) -> None:
    attempts = []
    locked = select(Pin).where(Pin.id == pin_id)
    holder = cluster.session()
    holder.scalars(locked.with_for_update()).one()

    def read(session: Any) -> int:
        attempts.append(1)
        if len(attempts) == 3:
            holder.close()
        pin = session.scalars(locked.with_for_update(nowait=True)).one()
        return int(pin.n)

    assert cluster.run(read) == 1
    assert len(attempts) == 3


def test_a_connection_that_was_idle_for_too_long(
    cluster: Cluster, fleet: Any, pin_id: int
) -> None:
    attempts = []

    def read(session: Any) -> int:
        attempts.append(1)
        pin = session.get(Pin, pin_id)
        if len(attempts) == 1:
            connection = session.connection(bind_arguments={"shard_id": 0})
            number = connection.scalar(text("SELECT CONNECTION_ID()"))
            connection.execute(text("SET SESSION wait_timeout = 1"))
            assert until(lambda: number not in connections(fleet.servers[0]))
        session.refresh(pin)
        return int(pin.n)

    assert cluster.run(read) == 1
    assert len(attempts) == 2


def connections(server: Any) -> set[int]:
    return {row[0] for row in server.root_execute("SHOW PROCESSLIST")}


def test_locks_of_names_longer_than_those_of_mysql(cluster: Cluster) -> None:
    places = cluster.places
    place = places.place(places.keyspace(None, "objects"), 0)
    lock, unlock = place.backend.try_lock, place.backend.unlock
    one, two = ("a" * 70 + end for end in "12")
    with (
        places.engines.visit(place.engine) as first,
        places.engines.visit(place.engine) as second,
    ):
        assert lock(first, one)
        assert not lock(second, one)
        assert lock(second, two)
        unlock(first, one)
        assert lock(second, one)


# -- time limits


@pytest.mark.parametrize("form", ["plain", "named", "nested", "hinted"])
def test_the_server_ends_a_statement_at_its_time_limit(
    cluster: Cluster, pin_id: int, form: str
) -> None:
    with cluster.begin(shard_id=0) as session:
        pins = [Pin(n=n) for n in range(20)]
        session.add_all(pins)
        session.flush()
        ids = [pin.id for pin in pins]
    rows = select(Pin.n).where(Pin.id.in_(ids), func.sleep(1) == 0)
    hint = "/*+ SET_VAR(sort_buffer_size = 65536) */"
    statement: Any = {
        "plain": rows,
        "named": select(rows.cte("slow").c.n),
        "nested": select(rows.subquery().c.n),
        "hinted": rows.prefix_with(hint, dialect="mysql"),
    }[form]
    with cluster.session(shard_id=0) as session:
        connection = session.connection(bind_arguments={"shard_id": 0})
        number = connection.scalar(text("SELECT CONNECTION_ID()"))
        with pytest.raises(ScatterTimeoutError):
            session.execute(statement.options(scatter(timeout=0.3))).all()
        # It was the server: the connection is still open.
        assert connection.scalar(text("SELECT CONNECTION_ID()")) == number


# -- prepared transactions


def test_prepared_transactions_with_binary_names(cluster: Cluster, fleet: Any) -> None:
    server = fleet.servers[1]
    server.root_execute("CREATE USER operator IDENTIFIED BY 'xa'")
    server.root_execute("GRANT ALL ON *.* TO operator WITH GRANT OPTION")
    server.root_execute(
        "CREATE TABLE db00002.notes (id INT AUTO_INCREMENT PRIMARY KEY)"
    )
    names = ["'order 7'", "X'ff00fe'"]
    for name in names:
        with server.root_connect() as root, root.cursor() as cursor:
            cursor.execute(f"XA START {name}")
            cursor.execute("INSERT INTO db00002.notes VALUES ()")
            cursor.execute(f"XA END {name}")
            cursor.execute(f"XA PREPARE {name}")
    url = make_url(f"mysql://operator:xa@{server.host}:{server.port}")
    try:
        with Admin(url, name="server2") as admin:
            (problem,) = prepared_problems(replication_of(admin))
        assert "order 7" in str(problem)
        assert "\ufffd\0\ufffd" in str(problem)
    finally:
        for name in names:
            server.root_execute(f"XA ROLLBACK {name}")


# -- a server that closes its connections, of all clusters


def test_a_server_that_accepts_no_connections(fleet: Any) -> None:
    if not is_mysql(fleet):
        pytest.skip("MariaDB has no offline_mode")
    server = fleet.servers[0]
    with opened(fleet) as cluster:
        first = select(Pin).options(scatter())
        with cluster.session() as session:
            session.scalars(first).all()
        with setting(server, "offline_mode", 1):
            # Open connections were closed; new ones are refused.
            for _ in range(2):
                with (
                    cluster.session() as session,
                    pytest.raises(ServerUnreachableError) as caught,
                ):
                    session.scalars(first).all()
                assert caught.value.server == "server1"
            assert "3032" in str(caught.value)
            assert set(cluster.health().down) == {"server1"}
        with cluster.session() as session:
            session.scalars(first).all()
