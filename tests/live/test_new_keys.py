"""Many new rows in one INSERT, and their keys, also where RETURNING is absent.

The servers of MySQL return nothing from an INSERT: keys are computed from the
first one.  A key that belonged to another row would show another object's
data, so these tests read back what each key stands for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import (
    BigInteger,
    delete,
    event,
    ForeignKey,
    func,
    insert,
    Integer,
    literal,
    select,
    String,
    text,
    update,
)
from sqlalchemy.exc import IntegrityError, ProgrammingError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqla_shard import (
    blob_field,
    Cluster,
    KeyspaceMixin,
    MappingMixin,
    ObjectMixin,
    ShardSession,
    unpack,
)
from sqla_shard.exc import MissingIdError, ShardError, UnsupportedStatementError
from sqla_shard.testing.server_fleet import ServerFleet
from tests.models.backends import Clusters, On
from tests.servers.kinds import Kind

pytestmark = pytest.mark.live

THERE = {"shard_id": 1}


class Base(DeclarativeBase):
    pass


class User(ObjectMixin, Base, type_id=3):
    __tablename__ = "users"

    name: Mapped[str] = blob_field()
    email: Mapped[str | None] = mapped_column(
        String(60), unique=True, info={"unique_per_shard": True}
    )


class Post(ObjectMixin, Base, type_id=4, colocate_with="user_id"):
    __tablename__ = "posts"

    user_id: Mapped[int] = blob_field(ref=User)
    title: Mapped[str] = blob_field()


class UserHasPosts(MappingMixin, Base, source=User, target=Post):
    pass


class Animal(KeyspaceMixin, Base, keyspace="main"):
    __tablename__ = "animals"

    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(String(9))
    name: Mapped[str] = mapped_column(String(60))

    __mapper_args__ = {  # noqa: RUF012  # SQLAlchemy's own protocol
        "polymorphic_on": "kind",
        "polymorphic_identity": "animal",
    }


class Dog(Animal):
    tail: Mapped[int | None] = mapped_column(Integer)

    __mapper_args__ = {"polymorphic_identity": "dog"}  # noqa: RUF012


class Horse(Animal):
    __tablename__ = "horses"

    id: Mapped[int] = mapped_column(ForeignKey("animals.id"), primary_key=True)
    hands: Mapped[int] = mapped_column()

    __mapper_args__ = {"polymorphic_identity": "horse"}  # noqa: RUF012


class Part(KeyspaceMixin, Base, keyspace="main"):
    """A key of two columns, of which the server gives one."""

    __tablename__ = "parts"

    id: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=True)
    maker: Mapped[str] = mapped_column(String(9), primary_key=True)
    name: Mapped[str] = mapped_column(String(60))


class Token(KeyspaceMixin, Base, keyspace="main"):
    """A key that an expression gives."""

    __tablename__ = "tokens"

    id: Mapped[str] = mapped_column(String(40), primary_key=True, default=func.uuid())
    name: Mapped[str] = mapped_column(String(60))


CLUSTERS = Clusters(Base.metadata, shards=4, main=("main",))
cluster = CLUSTERS.on_servers("newkeys")


class Sent:
    """The INSERT statements that a cluster sends."""

    def __init__(self, cluster: Cluster) -> None:
        self._engines = {p.engine for _, p in cluster.places.servers()}
        self.texts: list[str] = []

    def _see(self, conn: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("INSERT"):
            self.texts.append(statement)

    def __enter__(self) -> Sent:
        for engine in self._engines:
            event.listen(engine, "before_cursor_execute", self._see)
        return self

    def __exit__(self, *error: object) -> None:
        for engine in self._engines:
            event.remove(engine, "before_cursor_execute", self._see)


def received(session: ShardSession, what: dict[str, Any]) -> int:
    """Return how many INSERTs the server has received from a session."""
    (_, count) = session.execute(
        text("SHOW SESSION STATUS LIKE 'Com_insert'"), bind_arguments=what
    ).one()
    return int(count)


@pytest.fixture
def stepping(cluster: Cluster) -> Iterator[Callable[[ShardSession], None]]:
    """Set an increment of 5 in a session, which its connection keeps."""
    changed = []
    setting = text(
        "SET SESSION auto_increment_increment = 5, SESSION auto_increment_offset = 3"
    )

    def change(session: ShardSession) -> None:
        session.execute(setting, bind_arguments=THERE)
        changed.append(session)

    yield change
    for session in changed:
        session.invalidate()


def users(count: int, start: str = "u") -> list[User]:
    return [User(name=f"{start}{n}", shard_id=1) for n in range(count)]


def check(cluster: Cluster, made: Sequence[tuple[int, str]]) -> None:
    """Check that each id is that of the row of its name."""
    with cluster.session() as session:
        found = session.get_many(User, [i for i, _ in made])
        assert [None if u is None else u.name for u in found] == [
            name for _, name in made
        ]


def test_a_flush_is_one_statement(cluster: Cluster) -> None:
    with cluster.begin() as session:
        session.add(User(name="first", shard_id=1))
        session.flush()
        before = received(session, THERE)
        new = users(100)
        session.add_all(new)
        session.flush()
        assert received(session, THERE) == before + 1
        assert {unpack(u.id)[:2] for u in new} == {(1, 3)}
        posts = [Post(user_id=u.id, title=u.name) for u in new]
        session.add_all(posts)
        session.flush()
        assert received(session, THERE) == before + 2
        UserHasPosts.append_many(session, new[0].id, [p.id for p in posts])
        assert received(session, THERE) == before + 3
        assert all(u.ts is not None for u in new)
        made = [(u.id, u.name) for u in new]
        ids = [p.id for p in posts]
    check(cluster, made)
    with cluster.session() as session:
        found = session.get_many(Post, ids)
        assert [p and p.title for p in found] == [name for _, name in made]


def test_each_shard_has_a_statement(cluster: Cluster) -> None:
    with cluster.begin(cross_shard="unordered") as session, Sent(cluster) as sent:
        # The unit of work joins rows that follow each other.
        new = [User(name=f"s{n}", shard_id=n // 12) for n in range(48)]
        session.add_all(new)
        session.flush()
        made = [(u.id, u.name) for u in new]
        assert [unpack(i).shard_id for i, _ in made] == [n // 12 for n in range(48)]
    assert len(sent.texts) == 4
    check(cluster, made)


def test_rows_whose_ids_are_given(cluster: Cluster) -> None:
    with cluster.begin() as session:
        (known,) = users(1, "known")
        session.add(known)
        session.flush()
        given = known.id + 1000
        new = users(3, "a")
        new[1].id = given
        session.add_all(new)
        session.flush()
        more = users(3, "b")
        session.add_all(more)
        session.flush()
        made = [(u.id, u.name) for u in (*new, *more)]
        assert new[1].id == given
        rows = [
            {"name": "c", "id": None},
            {"name": "d", "id": given + 1000},
            {"name": "e", "id": None},
        ]
        ids = session.scalars(
            insert(User).returning(User.id), rows, bind_arguments=THERE
        ).all()
        assert given + 1000 in ids
        # Core sends all three with one set of columns.
        table: Any = User.__table__
        mixed = session.execute(
            insert(table).returning(table.c.local_id),
            [
                {"local_id": i, "data": {"name": n}}
                for i, n in ((None, "f"), (given + 2000, "g"), (None, "h"))
            ],
            bind_arguments=THERE,
        ).scalars()
        made += zip([*ids, *mixed], "cdefgh", strict=True)
    check(cluster, made)


@pytest.mark.parametrize("step", [1, 5])
def test_threads_insert_at_once(
    cluster: Cluster, stepping: Callable[[ShardSession], None], step: int
) -> None:
    ready = threading.Barrier(4)

    def work(thread: int) -> list[tuple[int, str]]:
        made: list[tuple[int, str]] = []
        with cluster.session() as session:
            if step > 1:
                stepping(session)
            ready.wait(60)
            for turn in range(15):
                new = users(2 + (turn * 7 + thread) % 40, f"{thread}.{turn}.")
                session.add_all(new)
                session.flush()
                made += [(u.id, u.name) for u in new]
                # A transaction that is undone leaves a gap.
                if turn % 5 == 4:
                    session.rollback()
                    made = made[: -len(new)]
                else:
                    session.commit()
            session.invalidate()
        return made

    with ThreadPoolExecutor(4) as threads:
        parts = list(threads.map(work, range(4), timeout=300))
    made = [one for part in parts for one in part]
    assert len({i for i, _ in made}) == len(made)
    check(cluster, made)


def test_an_increment_that_changes_is_obeyed(
    cluster: Cluster, stepping: Callable[[ShardSession], None]
) -> None:
    with cluster.begin() as session:
        first = users(3, "one")
        session.add_all(first)
        session.flush()
        stepping(session)
        then = users(4, "five")
        session.add_all(then)
        session.flush()
        ids = [unpack(u.id).local_id for u in then]
        assert {b - a for a, b in pairwise(ids)} == {5}
        assert {i % 5 for i in ids} == {3}
        made = [(u.id, u.name) for u in (*first, *then)]
        session.commit()
        check(cluster, made)


@pytest.mark.parametrize("how", ["cursor", "without parameters"])
def test_an_increment_that_is_set_by_other_ways_is_obeyed(
    cluster: Cluster, how: str
) -> None:
    sql = "SET SESSION auto_increment_increment = 5"
    with cluster.session() as session:
        first = users(3, "one")
        session.add_all(first)
        session.flush()
        connection = session.connection(THERE)
        if how == "cursor":
            wire: Any = connection.connection
            with wire.cursor() as cursor:
                cursor.execute(sql)
        else:
            connection.execution_options(no_parameters=True).exec_driver_sql(sql)
        then = users(4, "five")
        session.add_all(then)
        session.flush()
        ids = [unpack(u.id).local_id for u in then]
        assert {b - a for a, b in pairwise(ids)} == {5}
        made = [(u.id, u.name) for u in (*first, *then)]
        connection.exec_driver_sql("SET SESSION auto_increment_increment = DEFAULT")
        session.commit()
    check(cluster, made)


def test_an_increment_that_the_last_user_has_set_is_obeyed(
    request: pytest.FixtureRequest, server_kind: Kind
) -> None:
    options = {"engine_options": {"pool_size": 1, "max_overflow": 0}}
    on = On(server_kind.name, options=options)
    with CLUSTERS.open(request, on, "newkeyslast") as other:
        for step in (1, 3):
            with other.begin() as session:
                new = users(3, f"step{step}.")
                session.add_all(new)
                session.flush()
                ids = [unpack(u.id).local_id for u in new]
                assert {b - a for a, b in pairwise(ids)} == {step}
                made = [(u.id, u.name) for u in new]
                wire: Any = session.connection(THERE).connection
                with wire.cursor() as cursor:
                    cursor.execute("SET SESSION auto_increment_increment = 3")
            check(other, made)


def test_increments_of_the_server_are_obeyed(
    request: pytest.FixtureRequest, fleet: ServerFleet[Any], server_kind: Kind
) -> None:
    _set_increment(fleet, 2)
    try:
        # Its connections are new.
        with (
            CLUSTERS.open(request, On(server_kind.name), "newkeysstep") as other,
            other.begin() as session,
        ):
            new = users(5, "even")
            session.add_all(new)
            session.flush()
            ids = [unpack(u.id).local_id for u in new]
            assert ids == [*range(ids[0], ids[0] + 10, 2)]
            assert ids[0] % 2 == 0
            session.expire_all()
            assert [u.name for u in new] == [f"even{n}" for n in range(5)]
    finally:
        _set_increment(fleet, 1)


def _set_increment(fleet: ServerFleet[Any], value: int) -> None:
    for server in fleet.servers:
        server.root_execute(
            f"SET GLOBAL auto_increment_increment = {value}, "
            f"GLOBAL auto_increment_offset = {value}"
        )


def test_a_duplicate_key_in_the_middle(cluster: Cluster) -> None:
    with cluster.begin() as session:
        session.add(User(name="x", email="taken", shard_id=1))
    with cluster.session() as session:
        new = users(5, "dup")
        new[2].email = "taken"
        for user in new:
            user.email = user.email or user.name
        session.add_all(new)
        with pytest.raises(IntegrityError):
            session.flush()
        session.rollback()
        assert not any(u in session for u in new)
        found = session.scalars(
            select(User.email).where(User.email.like("dup%")), bind_arguments=THERE
        ).all()
        assert found == []
        for user in new:
            user.email = f"{user.name}@"
        session.add_all(new)
        session.commit()
        made = [(u.id, u.name) for u in new]
    check(cluster, made)


def test_a_savepoint_that_is_rolled_back(cluster: Cluster) -> None:
    with cluster.begin() as session:
        kept = users(3, "kept")
        session.add_all(kept)
        session.flush()
        undone = users(3, "undone")
        nested = session.begin_nested()
        session.add_all(undone)
        session.flush()
        gone = [u.id for u in undone]
        nested.rollback()
        more = users(3, "more")
        session.add_all(more)
        session.flush()
        made = [(u.id, u.name) for u in (*kept, *more)]
    check(cluster, made)
    with cluster.session() as session:
        assert session.get_many(User, gone) == [None] * 3


def test_plain_models(cluster: Cluster) -> None:
    with cluster.begin() as session, Sent(cluster) as sent:
        dogs = [Dog(name=f"d{n}", tail=n) for n in range(20)]
        horses = [Horse(name=f"h{n}", hands=n) for n in range(20)]
        parts = [Part(maker=f"m{n}", name=f"p{n}") for n in range(20)]
        session.add_all([*dogs, *horses, *parts])
        session.flush()
        keys = [*((Dog, d.id, d.name) for d in dogs)]
        keys += [(Horse, h.id, h.name) for h in horses]
        keys += [(Part, (p.id, p.maker), p.name) for p in parts]
    assert len(sent.texts) == 4
    with cluster.session() as session:
        for cls, key, name in keys:
            assert session.get_one(cls, key).name == name
            assert cls is not Horse or session.get_one(Horse, key).hands == int(
                name[1:]
            )


def test_keys_that_an_expression_gives(cluster: Cluster) -> None:
    with cluster.begin() as session:
        tokens = [Token(name=f"t{n}") for n in range(5)]
        session.add_all(tokens)
        session.flush()
        made = [(t.id, t.name) for t in tokens]
        names = ["more 0", "more 1"]
        ids = session.scalars(
            insert(Token).returning(Token.id, sort_by_parameter_order=True),
            [{"name": name} for name in names],
        ).all()
        made += zip(ids, names, strict=True)
    with cluster.session() as session:
        assert [session.get_one(Token, i).name for i, _ in made] == [
            name for _, name in made
        ]


def test_long_rows_are_sent_in_several_statements(cluster: Cluster) -> None:
    # Together they are longer than max_allowed_packet of MariaDB.
    with cluster.begin() as session, Sent(cluster) as sent:
        new = users(40, "long")
        for user in new:
            user.name += "x" * 600_000
        session.add_all(new)
        session.flush()
        assert 7 <= len(sent.texts) <= 20
        made = [(u.id, u.name) for u in new]
        session.expire_all()
        assert [u.name for u in new] == [name for _, name in made]
        session.rollback()


@pytest.mark.only_on("mysql")
@pytest.mark.parametrize("driver", ["pymysql", "mysqldb"])
def test_drivers(
    request: pytest.FixtureRequest, server_kind: Kind, driver: str
) -> None:
    on = On(server_kind.name)._replace(options={"driver": driver})
    with (
        CLUSTERS.open(request, on, f"newkeys{driver}") as other,
        other.begin() as session,
    ):
        new = users(1500, "d")
        session.add_all(new)
        session.flush()
        assert received(session, THERE) == 2
        made = [(u.id, u.name) for u in new]
        session.commit()
        check(other, made)


def test_rows_in_one_statement_whose_ids_are_null_or_0(cluster: Cluster) -> None:
    table: Any = Animal.__table__
    returning = insert(table).returning(table.c.id)
    with cluster.begin() as session:
        for given in (None, 0):
            rows = [{"id": given, "kind": "animal", "name": name} for name in "ab"]
            # MySQL sends the rows of a list singly, those of values() as one.
            for statement, parameters in (
                (returning, rows),
                (returning.values(rows), None),
            ):
                ids = session.scalars(statement, parameters).all()
                found = [session.get_one(Animal, i).name for i in ids]
                assert found == ["a", "b"]


@pytest.mark.only_on("mysql")
def test_rows_in_one_statement_some_with_ids(cluster: Cluster) -> None:
    table: Any = Animal.__table__
    returning = insert(table).returning(table.c.id)
    with cluster.session() as session:
        for ids, refusal in (
            ((None, 10**7), "some have one.*list"),
            ((10**7, None), "some have one.*list"),
            ((0, None), "some have one.*list"),
            ((10**7, literal(10**7) + literal(1)), "no RETURNING"),
        ):
            rows = [{"id": i, "kind": "animal", "name": "x"} for i in ids]
            with pytest.raises(UnsupportedStatementError, match=refusal):
                session.execute(returning.values(rows))
        (count,) = session.scalars(select(func.count()).where(table.c.id >= 10**7))
        assert count == 0


@pytest.mark.only_on("mysql")  # of which MariaDB returns what it has stored
def test_ids_that_a_trigger_gives_are_no_others(
    cluster: Cluster, fleet: ServerFleet[Any]
) -> None:
    for server in fleet.servers:
        server.root_execute("SET GLOBAL log_bin_trust_function_creators = 1")
    with cluster.session() as session:
        connection = session.connection({"keyspace": "main"})
        connection.execute(
            text(
                "CREATE TRIGGER __sqla_shard__.backwards BEFORE INSERT ON "
                "__sqla_shard__.parts FOR EACH ROW "
                "SET NEW.id = 5000 - 7 * SUBSTR(NEW.maker, 2)"
            )
        )
    try:
        with cluster.session() as session:
            session.add_all([Part(maker=f"m{n}", name="z") for n in range(3)])
            with pytest.raises(MissingIdError, match="a trigger sets"):
                session.flush()
    finally:
        with cluster.session() as session:
            connection = session.connection({"keyspace": "main"})
            connection.execute(text("DROP TRIGGER __sqla_shard__.backwards"))


@pytest.mark.only_on("mysql")  # on MariaDB it returns the rows that there are
def test_rows_that_an_event_lets_the_server_ignore(cluster: Cluster) -> None:
    engines = {p.engine for _, p in cluster.places.servers()}

    def ignore(
        conn: Any, cursor: Any, sql: str, parameters: Any, *_: Any
    ) -> tuple[str, Any]:
        return sql.replace("INSERT INTO", "INSERT IGNORE INTO"), parameters

    with cluster.session() as session:
        session.add(User(name="x", email="ignored", shard_id=1))
        session.flush()
        new = users(3, "ignored")
        for user in new:
            user.email = user.name
        new[1].email = "ignored"
        session.add_all(new)
        for engine in engines:
            event.listen(engine, "before_cursor_execute", ignore, retval=True)
        try:
            with pytest.raises(MissingIdError, match="2 of 3 rows"):
                session.flush()
        finally:
            for engine in engines:
                event.remove(engine, "before_cursor_execute", ignore)


@pytest.mark.only_on("mysql")  # which asks the server once more
def test_a_connection_that_is_lost_after_the_insert(
    cluster: Cluster, fleet: ServerFleet[Any]
) -> None:
    engines = {p.engine for _, p in cluster.places.servers()}
    with cluster.session() as session:
        engine = session.connection(THERE).engine
        (thread,) = session.execute(
            text("SELECT CONNECTION_ID()"), bind_arguments=THERE
        ).one()
        (server,) = (one for one in fleet.servers if one.port == engine.url.port)

        def kill(conn: Any, cursor: Any, sql: str, *_: Any) -> None:
            if sql.startswith("INSERT"):
                server.root_execute(f"KILL {thread}")

        session.add_all(users(3, "lost"))
        for one in engines:
            event.listen(one, "after_cursor_execute", kill)
        try:
            # Not an error of the rollback on a connection that is closed.
            with pytest.raises(ShardError, match=r"^(?!.*\(0, )"):
                session.flush()
        finally:
            for one in engines:
                event.remove(one, "after_cursor_execute", kill)
        session.rollback()
        session.add_all(users(3, "again"))
        session.flush()


@pytest.mark.only_on("mysql")
def test_what_mysql_cannot_return(cluster: Cluster) -> None:
    rows = [{"name": "x"}, {"name": "y"}]
    with cluster.session() as session:
        for statement, given, remedy in (
            (insert(User).returning(User), rows, "session.add_all"),
            (insert(User).returning(User.id, User.ts), rows, "add_all"),
            (insert(User).values(name="x").returning(User.name), None, "key"),
            (
                insert(User).prefix_with("IGNORE").values(name="x").returning(User.id),
                None,
                "key",
            ),
            (
                update(User).values(email="x").returning(User.id),
                None,
                "with_for_update",
            ),
            (delete(User).returning(User.id), None, "then delete them"),
        ):
            with pytest.raises(
                UnsupportedStatementError,
                match=rf"(?s)MySQL has no RETURNING.*users.*{remedy}",
            ):
                session.execute(statement, given, bind_arguments=THERE)
        ids = session.scalars(
            insert(User).values([rows[0], rows[1]]).returning(User.id),
            bind_arguments=THERE,
        ).all()
        assert [u and u.name for u in session.get_many(User, ids)] == ["x", "y"]


@pytest.mark.only_on("mysql")
@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO __sqla_shard__.users (data) VALUES ('{}') RETURNING ts",
        "DELETE FROM __sqla_shard__.users\nWHERE 0 returning local_id",
    ],
)
def test_returning_in_textual_sql(cluster: Cluster, sql: str) -> None:
    with cluster.session() as session:
        with pytest.raises(UnsupportedStatementError, match="leave it out"):
            session.execute(text(sql), bind_arguments=THERE)
        # The transaction goes on, and other errors are the server's.
        with pytest.raises(ProgrammingError, match="1064"):
            session.execute(text("SELEKT 1"), bind_arguments=THERE)
        assert session.scalars(select(User).limit(1), bind_arguments=THERE)


@pytest.mark.only_on("mysql")
def test_a_table_without_auto_increment(cluster: Cluster) -> None:
    with cluster.begin() as session:
        connection = session.connection({"keyspace": "main"})
        connection.execute(
            text("ALTER TABLE __sqla_shard__.parts MODIFY id BIGINT NOT NULL DEFAULT 9")
        )
    try:
        with cluster.session() as session:
            session.add_all([Part(maker=f"z{n}", name="z") for n in range(2)])
            with pytest.raises(MissingIdError, match="no AUTO_INCREMENT"):
                session.flush()
    finally:
        with cluster.begin() as session:
            connection = session.connection({"keyspace": "main"})
            connection.execute(
                text(
                    "ALTER TABLE __sqla_shard__.parts "
                    "MODIFY id BIGINT NOT NULL AUTO_INCREMENT"
                )
            )
