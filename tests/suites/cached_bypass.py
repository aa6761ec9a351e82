"""Reads that bypass the cache; cached reads flush like others."""

from __future__ import annotations

import pytest
from sqlalchemy import select, update
from sqlalchemy.exc import NoResultFound
from sqlalchemy.orm import undefer

from sqla_shard import no_cache
from sqla_shard.exc import CacheClassError
from tests.models.cached_models import (
    Board,
    BoardHasPins,
    CACHED,
    Color,
    key_of,
    Pin,
    poison,
    seen,
    sent,
    stored,
    Suite,
    User,
    value_of,
)


class _Users(Suite):
    @pytest.fixture
    def user(self, cluster):
        """Return a user of whom the cache says something else."""
        new = stored(cluster, User(name="real"), warm=True)
        key = key_of(cluster, User, new)
        value = value_of(cluster, key)
        assert b"real" in value
        poison(cluster, key, value.replace(b"real", b"kept"))
        return new


class Bypass(_Users):
    def test_read(self, session, user):
        assert session.get(User, user).name == "kept"
        assert session.get_many(User, [user])[0].name == "kept"

    @pytest.mark.parametrize(
        "options",
        [
            {"with_for_update": True},
            {"populate_existing": True},
            {"with_for_update": {}},
            {"options": [undefer(User.bio)]},
            {"options": [no_cache()]},
        ],
        ids=["lock", "populate", "lock-with-defaults", "option", "no_cache"],
    )
    def test_arguments_of_get(self, session, user, options):
        assert session.get(User, user, **options).name == "real"
        session.expunge_all()
        assert session.get_one(User, user, **options).name == "real"

    def test_arguments_that_say_nothing(self, session, user):
        assert session.get_one(User, user).name == "kept"
        session.expunge_all()
        nothing = {
            "options": [],
            "populate_existing": False,
            "with_for_update": False,
            "identity_token": None,
            "execution_options": {},
            "bind_arguments": None,
        }
        assert session.get(User, user, **nothing).name == "kept"
        session.expunge_all()
        with pytest.raises(NoResultFound):
            session.get_one(User, user + 1000)

    def test_no_cache(self, cluster, user):
        key = key_of(cluster, User, user)
        before = value_of(cluster, key)
        with cluster.session() as session:
            one = session.get_many(User, [user], options=[no_cache()])
            assert [found.name for found in one] == ["real"]
            # Held by the session, as it is.
            assert session.get(User, user) is one[0]
        with cluster.session() as session:
            found = session.get(User, user)
            assert session.get(User, user, options=[no_cache()]) is found
            assert found.name == "kept"
        with cluster.session() as session:
            statement = select(User).where(User.id == user)
            statement = statement.options(no_cache())
            assert session.scalars(statement).one().name == "real"
        assert value_of(cluster, key) == before

    def test_arguments_of_get_many(self, cluster, user):
        for options in (
            {"options": [undefer(User.bio)]},
            {"execution_options": {"populate_existing": True}},
        ):
            with cluster.session() as session:
                (found,) = session.get_many(User, [user], **options)
                assert found.name == "real"

    def test_populate_existing(self, session, user):
        found = session.get(User, user)
        assert found.name == "kept"
        options = {"populate_existing": True}
        session.get_many(User, [user], execution_options=options)
        assert found.name == "real"

    def test_other_reads(self, session, user):
        statement = select(User).where(User.id == user)
        found = session.scalar(statement)
        assert found.name == "real"
        assert session.get(User, user) is found

    def test_a_session_without(self, cluster, user):
        with cluster.session(cache=False) as session:
            assert session.get(User, user).name == "real"
        with cluster.session() as session:
            session.uses_cache = False
            assert session.get(User, user).name == "real"
            session.expunge_all()
            session.uses_cache = True
            assert session.get(User, user).name == "kept"

    def test_a_class_that_is_turned_off(self, cluster, user):
        cluster.cache.disable(User)
        try:
            assert seen(cluster, User, user).name == "real"
            pin = stored(cluster, Pin(title="p"), warm=True)
            with sent() as statements:
                seen(cluster, Pin, pin)
            assert statements == []
            # Writes still invalidate.
            with cluster.begin() as session:
                session.get(User, user).name = "written"
            assert not value_of(cluster, key_of(cluster, User, user))
        finally:
            cluster.cache.enable(User)
        assert seen(cluster, User, user).name == "written"

    def test_a_class_that_is_not_cached(self, cluster, session):
        for what in (
            cluster.cache.disable,
            cluster.cache.enable,
            lambda cls: cluster.cache.invalidate(session, cls, 1),
        ):
            with pytest.raises(CacheClassError):
                what(Color)

    def test_after_a_write(self, cluster, user):
        other = stored(cluster, User(name="other"))
        with cluster.session() as session:
            session.get(User, other).city = "Rome"
            # Not flushed yet, and get() flushes nothing.
            assert session.get(User, user).name == "kept"
            session.expunge(session.get(User, user))
            session.flush()
            assert session.get(User, user).name == "real"
            session.rollback()
            assert session.get(User, user).name == "kept"

    def test_own_writes_are_seen(self, cluster, user):
        with cluster.session() as session:
            session.execute(update(User).where(User.id == user).values(city="Rome"))
            assert session.get(User, user).city == "Rome"
            assert session.get_many(User, [user])[0].city == "Rome"
            session.rollback()

    def test_nothing_is_filled_from_an_old_snapshot(self, cluster):
        """The transaction still sees its snapshot."""
        new = stored(cluster, User(name="first"))
        other = stored(cluster, User(name="other"), shard_id=4)
        with cluster.session() as session:
            session.scalars(select(User).where(User.id == other)).all()
            with cluster.begin() as writer:
                writer.get(User, new).name = "second"
            session.get(User, new)
        assert seen(cluster, User, new).name == "second"
        assert seen(cluster, User, new).name == "second"


class Flushing(Suite):
    """Reads flush as they do without a cache."""

    @pytest.mark.parametrize("cache", [True, False])
    def test_get_many(self, cluster, cache):
        users = [stored(cluster, User(name="u"), warm=True) for _ in range(2)]
        with cluster.session(cache=cache) as session:
            session.get(User, users[0]).city = "Rome"
            session.get_many(User, users)
            assert not session.dirty
            session.get(User, users[0]).city = "Oslo"
            with session.no_autoflush:
                session.get_many(User, users)
            assert session.dirty

    @pytest.mark.parametrize("cache", [True, False])
    def test_lists(self, cluster, cache):
        board = stored(cluster, Board())
        pin = stored(cluster, Pin(title="p"))
        with cluster.session() as session:
            assert BoardHasPins.count(session, board) == 0
            BoardHasPins.page(session, board, 3)
        for read in (
            lambda s: BoardHasPins.page(s, board, 3).items,
            lambda s: BoardHasPins.contains(s, board, [pin]),
            lambda s: BoardHasPins.count(s, board),
            lambda s: BoardHasPins.position(s, board, pin),
            lambda s: list(BoardHasPins.iterate(s, board)),
            lambda s: BoardHasPins.pages(s, [board], 3)[board].items,
        ):
            with cluster.session(cache=cache) as session:
                row = BoardHasPins(board_id=board, pin_id=pin, sequence=1)
                session.add(row)
                assert read(session)
                assert not session.new


class Savepoints(_Users):
    def test_read_inside(self, cluster, session, user):
        with session.begin_nested():
            assert session.get(User, user).name == "kept"
            with session.begin_nested():
                other = stored(cluster, User(name="other"), warm=True)
                assert session.get(User, other).name == "other"
        assert session.get(User, user).name == "kept"
        session.commit()

    def test_read_before_inside_and_after(self, session, user):
        found = session.get(User, user)
        inner = session.begin_nested()
        session.expire(found)
        assert session.get(User, user).name == "kept"
        inner.rollback()
        assert session.get(User, user).name == "kept"
        session.rollback()
        assert session.get(User, user).name == "kept"

    def test_a_write_that_is_taken_back(self, cluster, session, user):
        other = stored(cluster, User(name="other"))
        inner = session.begin_nested()
        session.get(User, other).city = "Rome"
        session.flush()
        assert session.get(User, user).name == "real"
        session.expunge_all()
        inner.rollback()
        assert session.get(User, user).name == "kept"
        session.commit()
        # A rolled back change was invalidated nevertheless.
        assert not value_of(cluster, key_of(cluster, User, other))
        assert seen(cluster, User, other).city is None

    def test_a_write_that_stays(self, cluster, session, user):
        other = stored(cluster, User(name="other"), warm=True)
        with session.begin_nested():
            session.get(User, other).city = "Rome"
        assert session.get(User, user).name == "real"
        session.commit()
        assert seen(cluster, User, other).city == "Rome"

    def test_lists(self, cluster, session):
        board = stored(cluster, Board())
        pins = [stored(cluster, Pin(title=str(i))) for i in range(3)]
        with session.begin_nested():
            assert BoardHasPins.count(session, board) == 0
            BoardHasPins.append(session, board, pins[0])
        inner = session.begin_nested()
        BoardHasPins.append_many(session, board, pins)
        assert BoardHasPins.count(session, board) == 3
        inner.rollback()
        assert BoardHasPins.count(session, board) == 1
        session.commit()
        for _ in range(2):
            with cluster.session() as other:
                assert BoardHasPins.count(other, board) == 1
                page = BoardHasPins.page(other, board, 3)
                assert [row.pin_id for row in page] == pins[:1]


cluster = CACHED.on_backend()
