"""Whatever writes a row takes it out of the cache."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import bindparam, delete, insert, select, text, update
from sqlalchemy.dialects import mysql

from sqla_shard import scatter
from sqla_shard.exc import CachedWriteError
from tests.models.cached_models import (
    Board,
    BoardHasPins,
    BoardHasRatedPins,
    BoardKeepsPins,
    CACHED,
    changed,
    key_of,
    Note,
    Pin,
    PinInBoards,
    seen,
    sent,
    settled,
    stored,
    Suite,
    User,
    value_of,
)

WIDE: dict[str, Any] = {"cross_shard": "unordered"}


def _by_flush(session, users):
    for user in session.get_many(User, users):
        user.city = "Oslo"


def _by_orm(session, users):
    session.execute(update(User).where(User.id.in_(users)).values(city="Oslo"))


def _by_value(session, users):
    session.execute(
        update(User).where(User.city == "Rome").values(city="Oslo"),
        bind_arguments={"shard_id": 5},
    )


def _by_scatter(session, users):
    statement = update(User).where(User.city == "Rome").values(city="Oslo")
    session.execute(statement.options(scatter()))


def _by_keys(session, users):
    rows = [{"id": user, "city": "Oslo"} for user in users]
    session.execute(update(User), rows)


def _by_core(session, users):
    table = User.__table__
    session.execute(
        update(table).where(table.c.local_id.in_(users)).values(city="Oslo")
    )


def _by_core_many(session, users):
    table = User.__table__
    statement = update(table).where(table.c.local_id == bindparam("the_id"))
    session.execute(statement.values(city="Oslo"), [{"the_id": user} for user in users])


def _by_merge(session, users):
    for user in users:
        session.merge(User(id=user, city="Oslo"))


def _by_textual_sql(session, users):
    for user in users:
        session.execute(
            text("UPDATE users SET city = 'Oslo' WHERE local_id = :id"),
            {"id": user & ((1 << 36) - 1)},
            bind_arguments={"shard_id": user >> 46},
        )
    session.cluster.cache.invalidate(session, User, users)


def _deleted(session, users):
    for user in session.get_many(User, users):
        session.delete(user)


def _deleted_by_orm(session, users):
    session.execute(delete(User).where(User.id.in_(users)))


def _deleted_by_core(session, users):
    table = User.__table__
    session.execute(delete(table).where(table.c.local_id.in_(users)))


def _deleted_by_value(session, users):
    session.execute(delete(User).where(User.city == "Rome").options(scatter()))


ONE = [_by_value]
SEVERAL = [
    _by_flush,
    _by_orm,
    _by_scatter,
    _by_keys,
    _by_core,
    _by_core_many,
    _by_merge,
    _by_textual_sql,
    _deleted,
    _deleted_by_orm,
    _deleted_by_core,
    _deleted_by_value,
]


def _name(write: Any) -> str:
    return write.__name__.strip("_")


class Objects(Suite):
    """Flushes, statements, and statements of Core."""

    def users(self, cluster, *shards):
        return [
            stored(cluster, User(name="u", city="Rome"), i, warm=True) for i in shards
        ]

    def check(self, cluster, write, users, **options):
        kept = self.users(cluster, 6)
        if _name(write).endswith(("scatter", "value")):
            with cluster.begin() as session:
                session.get(User, kept[0]).city = "Bonn"
            seen(cluster, User, kept[0])
        with sent() as statements:
            assert all(seen(cluster, User, user) for user in users)
        assert statements == []
        with cluster.begin(**options) as session:
            write(session, users)
            for user in users:
                # Not before COMMIT.
                assert value_of(cluster, key_of(cluster, User, user))
        for user in users:
            for _ in range(2):
                found = seen(cluster, User, user)
                if "deleted" in _name(write):
                    assert found is None
                else:
                    assert found.city == "Oslo"
        settled(lambda: [seen(cluster, User, user) for user in (*users, *kept)])

    @pytest.fixture(autouse=True)
    def no_users(self, cluster):
        with cluster.begin(**WIDE) as session:
            session.execute(delete(User).options(scatter()))

    @pytest.mark.parametrize("write", [*ONE, *SEVERAL], ids=_name)
    def test_on_one_shard(self, cluster, write):
        self.check(cluster, write, self.users(cluster, 5, 5), **WIDE)

    @pytest.mark.parametrize("write", SEVERAL, ids=_name)
    def test_on_several_shards(self, cluster, write):
        self.check(cluster, write, self.users(cluster, 5, 0, 5, 7), **WIDE)

    @pytest.mark.parametrize("write", [*ONE, *SEVERAL], ids=_name)
    def test_rolled_back(self, cluster, write):
        users = self.users(cluster, 5, 5)
        with cluster.session() as session:
            session.begin(**WIDE)
            write(session, users)
            session.rollback()
        with sent() as statements:
            for user in users:
                assert seen(cluster, User, user).city == "Rome"
        assert statements == []

    def test_rows_that_match_after_the_row_before(self, cluster):
        """Of many UPDATEs one may find what another has changed."""
        (user,) = self.users(cluster, 5)
        table = User.__table__
        statement = (
            update(table)
            .where(table.c.city == bindparam("old"))
            .values(city=bindparam("new"))
        )
        rows = [{"old": "Rome", "new": "Bonn"}, {"old": "Bonn", "new": "Oslo"}]
        with cluster.begin() as session:
            session.execute(statement, rows, bind_arguments={"shard_id": 5})
        assert seen(cluster, User, user).city == "Oslo"

    def test_inactive_objects(self, cluster):
        (user,) = self.users(cluster, 5)
        with cluster.begin() as session:
            session.get(User, user).deactivate()
        seen(cluster, User, user)
        with cluster.begin() as session:
            table = User.__table__
            session.execute(
                update(table).where(table.c.local_id == user).values(city="Oslo")
            )
        with cluster.session() as session:
            shown = {"include_inactive": True}
            found = session.get(User, user, execution_options=shown)
            assert found.city == "Oslo"

    def test_cascades(self, cluster):
        board = stored(cluster, Board(name="b"))
        notes = [
            stored(cluster, Note(board_id=board, text=str(i)), warm=True)
            for i in range(3)
        ]
        with cluster.begin() as session:
            found = session.get(Board, board)
            found.notes.pop(0)
            found.notes[0].text = "changed"
        texts = [getattr(seen(cluster, Note, n), "text", None) for n in notes]
        assert texts == [None, "changed", "2"]
        with cluster.begin() as session:
            session.delete(session.get(Board, board))
        assert [seen(cluster, Note, n) for n in notes] == [None] * 3
        assert seen(cluster, Board, board) is None

    def test_children_that_get_another_parent(self, cluster):
        boards = [stored(cluster, Board(), warm=True) for _ in range(2)]
        note = stored(cluster, Note(board_id=boards[0]), warm=True)
        with cluster.begin() as session:
            found = session.get(Note, note)
            found.board = session.get(Board, boards[1])
        assert seen(cluster, Note, note).board_id == boards[1]

    def test_run_again(self, cluster):
        (user,) = self.users(cluster, 5)

        for number in range(1, 4):
            with cluster.begin() as session:
                session.get(User, user).n += 1
            assert seen(cluster, User, user).n == number
            assert seen(cluster, User, user).n == number


class Rows(Suite):
    """Lists that are changed by other means than their methods."""

    @pytest.fixture
    def board(self, cluster):
        return stored(cluster, Board())

    @pytest.fixture
    def pins(self, cluster):
        return [stored(cluster, Pin(title=str(i)), i) for i in range(4)]

    def look(self, cluster, cls, source):
        for _ in range(2):
            with cluster.session() as session:
                rows = list(cls.iterate(session, source))
                assert cls.count(session, source) == len(rows)
        target = cls.__sqla_shard_mapping__.target.column
        return [getattr(row, target) for row in rows]

    def test_flushed(self, cluster, board, pins):
        assert self.look(cluster, BoardHasRatedPins, board) == []
        with cluster.begin() as session:
            session.add(BoardHasRatedPins(board_id=board, pin_id=pins[0]))
        assert self.look(cluster, BoardHasRatedPins, board) == pins[:1]
        with cluster.begin() as session:
            (row,) = BoardHasRatedPins.page(session, board, 3)
            row.stars = 5
        with cluster.session() as session:
            (row,) = BoardHasRatedPins.page(session, board, 3)
            assert row.stars == 5
        with cluster.begin() as session:
            (row,) = BoardHasRatedPins.page(session, board, 3)
            session.delete(row)
        assert self.look(cluster, BoardHasRatedPins, board) == []

    @pytest.mark.parametrize("core", [True, False])
    def test_statements(self, cluster, board, pins, core):
        assert self.look(cluster, BoardHasRatedPins, board) == []
        cls: Any = BoardHasRatedPins
        what = cls.__table__ if core else cls
        columns = cls.__table__.c if core else cls
        rows = [
            {"board_id": board, "pin_id": pin, "sequence": i, "stars": 1}
            for i, pin in enumerate(pins)
        ]
        with cluster.begin() as session:
            session.execute(insert(what), rows)
        assert self.look(cluster, cls, board) == pins[::-1]
        with cluster.begin() as session:
            session.execute(
                update(what)
                .where(columns.board_id == board, columns.pin_id == pins[0])
                .values(sequence=9)
            )
        assert self.look(cluster, cls, board) == [pins[0], *pins[:0:-1]]
        with cluster.begin() as session:
            session.execute(
                delete(what).where(columns.stars == 1, columns.sequence < 3),
                bind_arguments={"shard_id": 5},
            )
        assert self.look(cluster, cls, board) == [pins[0], pins[3]]

    def test_both_sides(self, cluster, board, pins):
        with cluster.begin() as session:
            BoardKeepsPins.append(session, board, pins[0])
        for pin in pins:
            self.look(cluster, PinInBoards, pin)
        changed(cluster, BoardKeepsPins.append_many, board, pins)
        assert self.look(cluster, BoardKeepsPins, board) == [*pins[:0:-1], pins[0]]
        for pin in pins:
            assert self.look(cluster, PinInBoards, pin) == [board]
        changed(cluster, BoardKeepsPins.remove, board, pins[2])
        assert self.look(cluster, PinInBoards, pins[2]) == []
        changed(cluster, BoardKeepsPins.clear, board)
        for pin in pins:
            assert self.look(cluster, PinInBoards, pin) == []


class Refusals(Suite):
    """Writes that cannot be invalidated; they are refused."""

    @pytest.fixture
    def user(self, cluster):
        return stored(cluster, User(name="u", city="Rome"), warm=True)

    def check(self, cluster, user, write):
        with cluster.session() as session:
            with pytest.raises(CachedWriteError) as caught:
                write(session)
            assert caught.value.table in str(caught.value)
            # It can be used, for another shard even.
            other = stored(cluster, User(name="o"), 2)
            session.get(User, other).city = "Lima"
            session.commit()
        assert seen(cluster, User, other).city == "Lima"
        assert seen(cluster, User, user).city == "Rome"
        with cluster.session(cache=False) as session:
            assert session.get(User, user).city == "Rome"

    def test_on_a_connection(self, cluster, user):
        table = User.__table__
        for statement in (
            update(table).values(city="x"),
            insert(table).values(city="x"),
            delete(table),
        ):
            self.check(
                cluster,
                user,
                lambda s, what=statement: s.connection(
                    {"shard_id": 5, "mapper": User}
                ).execute(what),
            )

    def test_upserts(self, cluster, user):
        statement = mysql.insert(User).values(id=user, city="x")
        self.check(
            cluster,
            user,
            lambda s: s.execute(statement.on_duplicate_key_update(city="x")),
        )

    def test_limits(self, cluster, user):
        for statement in (
            update(User).values(city="x"),
            update(User.__table__).values(city="x"),
        ):
            some = statement.with_dialect_options(mysql_limit=1)
            self.check(
                cluster,
                user,
                lambda s, what=some: s.execute(what, bind_arguments={"shard_id": 5}),
            )

    def test_insert_from_select(self, cluster, user):
        cls: Any = BoardHasPins
        rows = select(
            BoardHasRatedPins.board_id,
            BoardHasRatedPins.pin_id,
            BoardHasRatedPins.sequence,
        )
        statement = insert(cls).from_select(["board_id", "pin_id", "sequence"], rows)
        self.check(
            cluster,
            user,
            lambda s: s.execute(statement, bind_arguments={"shard_id": 5}),
        )

    def test_rows_that_change_their_list(self, cluster, user):
        boards = [stored(cluster, Board()) for _ in range(2)]
        cls: Any = BoardHasRatedPins
        for statement in (
            update(cls).where(cls.board_id == boards[0]),
            update(cls.__table__).where(cls.__table__.c.board_id == boards[0]),
        ):
            self.check(
                cluster,
                user,
                lambda s, what=statement: s.execute(what.values(board_id=boards[1])),
            )


cluster = CACHED.on_backend()
