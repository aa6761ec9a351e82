"""Statements whose caller names the keyspace or the shard.

The table of notes is in every database, with a row that
says which one it is; nothing is known of it but its name.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import (
    BigInteger,
    bindparam,
    Column,
    delete,
    insert,
    Integer,
    MetaData,
    select,
    String,
    Table,
    text,
    update,
)
from sqlalchemy.ext.horizontal_shard import set_shard_id
from sqlalchemy.orm import DeclarativeBase, foreign, Mapped, mapped_column, relationship
from sqlalchemy.orm.exc import UnmappedClassError

from sqla_shard import (
    blob_field,
    Cluster,
    exc,
    KeyspaceMixin,
    ObjectMixin,
    ShardSession,
)
from tests.models.backends import Clusters, On
from tests.models.layouts import pack


class Base(DeclarativeBase):
    pass


class User(ObjectMixin, Base, type_id=3):
    __tablename__ = "users"
    name: Mapped[str] = blob_field(default="")
    age: Mapped[int] = mapped_column(default=0)
    country_id: Mapped[int | None] = mapped_column()
    country: Mapped[Country | None] = relationship(
        primaryjoin=lambda: foreign(User.country_id) == Country.id, viewonly=True
    )


class Country(KeyspaceMixin, Base, keyspace="main"):
    __tablename__ = "countries"
    id: Mapped[int] = mapped_column(primary_key=True)


class Region(KeyspaceMixin, Base, keyspace="other"):
    __tablename__ = "regions"
    id: Mapped[int] = mapped_column(primary_key=True)


class Plain(DeclarativeBase):
    pass


class Note(Plain):
    """The same table, mapped, in no keyspace that could be known."""

    __tablename__ = "notes"
    id: Mapped[int] = mapped_column(
        BigInteger().with_variant(Integer(), "sqlite"), primary_key=True
    )
    place: Mapped[str] = mapped_column(String(20))


notes = Table(
    "notes",
    MetaData(),
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("place", String(20)),
)

PLACES = [("main", 0), ("other", 0), ("objects", 0), ("objects", 3)]

CREATE = "CREATE TABLE notes (id BIGINT PRIMARY KEY, place VARCHAR(20))"


@contextmanager
def _with_notes(
    cluster: Cluster, request: pytest.FixtureRequest, on: On
) -> Iterator[None]:
    """Make the tables, with a row each."""
    for keyspace, shard_id in PLACES:
        with cluster.begin() as session:
            connection = session.connection(
                {"keyspace": keyspace, "shard_id": shard_id}
            )
            connection.execute(text(CREATE))
            connection.execute(
                insert(notes), {"id": 1, "place": f"{keyspace} {shard_id}"}
            )
    yield


cluster = Clusters(
    Base.metadata, shards=4, main=("main", "other"), prepare=_with_notes
).on_backend()


def arguments_of(keyspace: str, shard_id: int) -> dict[str, Any]:
    """Return the least that names a place."""
    found: dict[str, Any] = {"keyspace": keyspace}
    if keyspace == "objects":
        found["shard_id"] = shard_id
    return found


def rows_at(
    session: ShardSession, keyspace: str, shard_id: int
) -> set[tuple[int, str]]:
    connection = session.connection(arguments_of(keyspace, shard_id))
    return {
        (row.id, row.place)
        for row in connection.execute(text("SELECT id, place FROM notes"))
    }


def everywhere(session: ShardSession) -> dict[Any, set[tuple[int, str]]]:
    return {place: rows_at(session, *place) for place in PLACES}


#: A statement, its parameters, and the rows that it leaves of one.
WRITES: dict[str, Any] = {
    "insert": (insert(notes), {"id": 2, "place": "x"}, {(2, "x")}),
    "insert values": (insert(notes).values(id=2, place="x"), {}, {(2, "x")}),
    "insert many": (
        insert(notes),
        [{"id": 2, "place": "x"}, {"id": 3, "place": "y"}],
        {(2, "x"), (3, "y")},
    ),
    "insert from select": (
        insert(notes).from_select(
            ["id", "place"], select(notes.c.id + 1, notes.c.place)
        ),
        {},
        {(2, None)},
    ),
    "insert of a class": (insert(Note), [{"id": 2, "place": "x"}], {(2, "x")}),
    "update": (update(notes).values(place="x"), {}, {(1, "x")}),
    "update many": (
        update(notes).where(notes.c.id == bindparam("i")),
        [{"i": 1, "place": "x"}, {"i": 9, "place": "y"}],
        {(1, "x")},
    ),
    "update of a class": (
        update(Note).where(Note.id == 1).values(place="x"),
        {},
        {(1, "x")},
    ),
    "bulk update": (update(Note), [{"id": 1, "place": "x"}], {(1, "x")}),
    "delete": (delete(notes), {}, set()),
    "delete of a class": (delete(Note), {}, set()),
    "delete many": (
        delete(notes).where(notes.c.id == bindparam("i")),
        [{"i": 1}, {"i": 7}],
        set(),
    ),
    "text": (text("UPDATE notes SET place = 'x'"), {}, {(1, "x")}),
}

READS: dict[str, Any] = {
    "select": select(notes.c.place),
    "select of a class": select(Note.place),
    "text": text("SELECT place FROM notes"),
    "subquery": select(select(notes.c.place).subquery()),
    "union": select(notes.c.place).union(select(notes.c.place)),
}

#: Statements about a table of another keyspace than the one that is named.
ELSEWHERE: dict[str, Any] = {
    "select": (select(User), {}),
    "update": (update(User).values(age=1), {}),
    "delete": (delete(User), {}),
    "insert": (insert(User), {"name": "x"}),
    "insert many": (insert(User), [{"name": "x"}]),
    "core": (select(User.__table__.c.ts), {}),
    "bulk update": (update(User), [{"id": pack(1, 3, 1), "age": 1}]),
    "join": (select(User.ts, notes.c.place).join(notes, notes.c.id == 1), {}),
}


class NamedKeyspaces:
    @pytest.fixture
    def session(self, cluster: Cluster) -> Iterator[ShardSession]:
        # Closed without a commit: writes are rolled back.
        with cluster.session() as session:
            yield session

    @pytest.mark.parametrize("place", PLACES, ids=str)
    @pytest.mark.parametrize("name", WRITES)
    def test_a_write_goes_there(
        self, session: ShardSession, name: str, place: tuple[str, int]
    ) -> None:
        before = everywhere(session)
        statement, parameters, after = WRITES[name]
        session.execute(statement, parameters, bind_arguments=arguments_of(*place))
        label = f"{place[0]} {place[1]}"
        if name.startswith("insert"):
            after = {(1, label)} | {(i, p or label) for i, p in after}
        assert everywhere(session) == {**before, place: after}

    @pytest.mark.parametrize("place", PLACES, ids=str)
    @pytest.mark.parametrize("name", READS)
    def test_a_read_comes_from_there(
        self, session: ShardSession, name: str, place: tuple[str, int]
    ) -> None:
        found = session.execute(READS[name], bind_arguments=arguments_of(*place))
        assert found.all() == [(f"{place[0]} {place[1]}",)]

    @pytest.mark.parametrize("name", [*WRITES, *READS])
    def test_a_sharded_keyspace_takes_a_shard_too(
        self, session: ShardSession, name: str
    ) -> None:
        statement, parameters, _ = WRITES.get(name, (READS.get(name), {}, 0))
        with pytest.raises(exc.NoShardKeyError) as caught:
            session.execute(
                statement, parameters, bind_arguments={"keyspace": "objects"}
            )
        assert '"shard_id": n' in str(caught.value)

    # Without a table it is a shard of objects.
    @pytest.mark.parametrize("name", sorted({*WRITES, *READS} - {"text"}))
    @pytest.mark.parametrize("shard_id", [0, 3])
    def test_a_shard_alone_is_not_one_of_a_global_keyspace(
        self, session: ShardSession, name: str, shard_id: int
    ) -> None:
        statement, parameters, _ = WRITES.get(name, (READS.get(name), {}, 0))
        before = everywhere(session)
        asks: list[Any] = [(statement, {"bind_arguments": {"shard_id": shard_id}})]
        if hasattr(statement, "options"):
            asks.append((statement.options(set_shard_id(shard_id)), {}))
        for asked, how in asks:
            with pytest.raises(exc.RoutingError) as caught:
                session.execute(asked, parameters, **how)
            assert '{"keyspace": name, "shard_id": n}' in str(caught.value)
        assert everywhere(session) == before

    @pytest.mark.parametrize(
        "named", [{"keyspace": "main"}, {"keyspace": "other", "shard_id": 0}], ids=str
    )
    @pytest.mark.parametrize("name", ELSEWHERE)
    def test_a_table_of_another_keyspace_is_refused(
        self, session: ShardSession, name: str, named: dict[str, Any]
    ) -> None:
        statement, parameters = ELSEWHERE[name]
        with pytest.raises(exc.KeyspaceMismatchError) as caught:
            session.execute(statement, parameters, bind_arguments=named)
        message = str(caught.value)
        assert repr(named["keyspace"]) in message
        assert "users in 'objects'" in message
        assert caught.value.tables == {"objects": ("users",)}

    def test_a_global_table_of_another_keyspace_is_refused(
        self, session: ShardSession
    ) -> None:
        for named in ({"keyspace": "other"}, arguments_of("objects", 3)):
            for statement in (select(Country), delete(Country)):
                with pytest.raises(exc.KeyspaceMismatchError):
                    session.execute(statement, bind_arguments=named)
            with pytest.raises(exc.KeyspaceMismatchError):
                session.execute(insert(Country), {"id": 1}, bind_arguments=named)

    def test_a_global_table_has_one_shard(self, session: ShardSession) -> None:
        for statement, parameters in (
            (select(Country), {}),
            (delete(Country), {}),
            (insert(Country), {"id": 1}),
            (insert(Country), [{"id": 1}]),
            (update(Country), [{"id": 1}]),
        ):
            with pytest.raises(exc.UnknownShardError):
                session.execute(statement, parameters, bind_arguments={"shard_id": 3})
            session.execute(
                statement,
                parameters,
                bind_arguments={"keyspace": "main", "shard_id": 0},
            )
            session.rollback()

    def test_the_keyspace_of_the_table_may_be_named(self, cluster: Cluster) -> None:
        named = {"keyspace": "objects"}
        ids = [pack(shard_id, 3, 7) for shard_id in range(4)]
        for object_id in ids:
            with cluster.begin() as session:
                session.execute(insert(User), [{"id": object_id}], bind_arguments=named)
        with cluster.session() as session:
            found = session.scalars(
                select(User.id).where(User.id.in_(ids)), bind_arguments=named
            )
            assert set(found) == set(ids)
            # It is not the shard 0 that is asked.
            with pytest.raises(exc.NoShardKeyError):
                session.scalars(select(User.id), bind_arguments=named)
            for shard_id in range(4):
                found = session.scalars(
                    select(User.id), bind_arguments=arguments_of("objects", shard_id)
                )
                assert found.all() == [ids[shard_id]]
            elsewhere = session.execute(
                delete(User).where(User.id == ids[2]), bind_arguments=named
            )
            assert elsewhere.rowcount == 1  # type: ignore[attr-defined]  # of a DELETE

    def test_objects_of_a_global_keyspace_have_no_shard(self, cluster: Cluster) -> None:
        with cluster.begin() as session:
            session.add(Country(id=7))
        with cluster.begin() as session:
            session.add(User(country_id=7, shard_id=3))
        with cluster.session() as session:
            # The option also applies to objects loaded for the user.
            users = select(User).where(User.country_id == 7)
            user = session.scalars(users.options(set_shard_id(3))).one()
            user_id, country = user.id, user.country
            assert country is not None
            session.delete(country)
            session.commit()
        with cluster.begin() as session:
            session.delete(session.get_one(User, user_id))

    def test_rows_of_a_bulk_update_are_on_the_shard_that_is_named(
        self, session: ShardSession
    ) -> None:
        for shard_id in (0, 3):
            with pytest.raises(exc.ColocationError):
                session.execute(
                    update(User),
                    [{"id": pack(1, 3, 7), "age": 1}],
                    bind_arguments={"shard_id": shard_id},
                )

    def test_a_connection_of_a_class_in_another_keyspace(
        self, session: ShardSession
    ) -> None:
        with pytest.raises(exc.KeyspaceMismatchError):
            session.connection({"mapper": User, "keyspace": "main"})
        with pytest.raises(exc.KeyspaceMismatchError):
            session.connection(
                {"mapper": Country, "keyspace": "objects", "shard_id": 1}
            )
        named = {"mapper": Country, "keyspace": "main"}
        assert session.connection(named) is not None

    @pytest.mark.parametrize("typed", [False, True])
    def test_text_for_a_class_is_sent_to_its_keyspace(
        self, session: ShardSession, typed: bool
    ) -> None:
        one: Any = text("SELECT place FROM __sqla_shard__.notes")
        if typed:
            one = one.columns(notes.c.place)
        with pytest.raises(exc.NoShardKeyError):
            session.execute(one, bind_arguments={"mapper": User})
        for name, named in (
            ("objects 3", {"mapper": User, "shard_id": 3}),
            ("other 0", {"mapper": Region}),
            ("other 0", {"mapper": Region, "shard_id": 0}),
        ):
            assert session.scalar(one, bind_arguments=named) == name
        with pytest.raises(exc.KeyspaceMismatchError):
            session.execute(one, bind_arguments={"mapper": User, "keyspace": "main"})
        with pytest.raises(exc.UnknownShardError, match="7"):
            session.execute(one, bind_arguments={"mapper": Region, "shard_id": 7})
        with pytest.raises(UnmappedClassError, match="On"):
            session.execute(one, bind_arguments={"mapper": On})
