"""Rare uses of sessions, which work with a cache as they do without."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from sqlalchemy import (
    Engine,
    event,
    ForeignKey,
    insert,
    inspect,
    PickleType,
    select,
    String,
    text,
    TypeDecorator,
)
from sqlalchemy.exc import InvalidRequestError
from sqlalchemy.orm import DeclarativeBase, mapped_column, relationship
from sqlalchemy.types import UserDefinedType

from sqla_shard import ObjectMixin
from sqla_shard.cache import cached_list
from sqla_shard.cache.columns import Columns
from sqla_shard.exc import CacheClassError, OptionError
from sqla_shard.types import ShardedId
from tests.models.cached_models import (
    Board,
    BoardHasPins,
    cached_on_sqlite,
    changed,
    CLASSES,
    key_of,
    MEMORY,
    PATIENCE,
    Pin,
    poison,
    stored,
    User,
    value_of,
)

cluster = cached_on_sqlite()


@pytest.fixture(scope="module", autouse=True)
def corners(cluster):
    # A region that other modules do not have: the functions here are of a
    # class of theirs, and they count what its writes take.
    regions = {name: dict(MEMORY) for name in ("objects", "lists", "corners")}
    cluster.cache = None
    cluster.configure_cache(regions, classes=CLASSES, prefix="test")


def test_a_second_cache_is_refused(cluster):
    before = cluster.cache
    with pytest.raises(OptionError, match="already configured"):
        cluster.configure_cache({}, classes={}, prefix="test")
    assert cluster.cache is before


@cached_list("corners", format="corner:direct:%d", of=User)
def names(session, user_id, offset, limit):
    found = select(User.name).where(User.id == user_id).limit(limit)
    return list(session.scalars(found.offset(offset)))


@cached_list("corners", format="corner:got:%d", of=User)
def names_got(session, user_id, offset, limit):
    return [session.get(User, user_id).name][offset : offset + limit]


def read_nothing(cluster):
    """Return reads that find nothing, by the cache."""
    user = stored(cluster, User(name="u"))
    board = stored(cluster, Board())
    pin = stored(cluster, Pin(title="p"))
    reads = [
        lambda session: session.get(User, user + 1),
        lambda session: session.get_many(User, [user + 1]),
        lambda session: BoardHasPins.contains(session, board, [pin]),
        lambda session: BoardHasPins.count(session, board),
        lambda session: BoardHasPins.page(session, board, 3),
    ]
    for read in reads:
        with cluster.session() as session:
            read(session)
    return reads


class TestBeginning:
    def test_a_read_without_rows_begins_a_transaction(self, cluster):
        # The topology of a session that never began was that of its first
        # read, for as long as it lived.
        for read in read_nothing(cluster):
            with cluster.session() as session:
                read(session)
                assert session.in_transaction()
                session.close()
                assert session._places is None

    def test_writes_of_several_shards(self, cluster):
        for read in read_nothing(cluster):
            users = [stored(cluster, User(), shard) for shard in (1, 6)]
            with cluster.session() as session:
                read(session)
                # As without a cache; not "a second shard" later on.
                with pytest.raises(InvalidRequestError, match="already begun"):
                    session.begin(cross_shard="unordered")
                session.close()
                with session.begin(cross_shard="unordered"):
                    for user in users:
                        session.get(User, user).city = "Rome"

    def test_listeners_of_transactions(self, cluster):
        user = stored(cluster, User(name="u"), warm=True)
        numbers = []

        def begun(session, transaction, connection):
            numbers.append(connection.scalar(text("SELECT 1")))

        with cluster.session() as session:
            event.listen(session, "after_begin", begun)
            assert session.get(User, user).name == "u"
            with session.begin_nested():
                assert session.get(User, user).name == "u"
            assert numbers == []
            session.scalars(select(User).where(User.id == user)).all()
            assert numbers == [1]

    def test_a_transaction_that_has_failed(self, cluster):
        user = stored(cluster, User(name="u"), warm=True)
        with cluster.session() as session:
            session.add(User(id=user, name="twice"))
            with pytest.raises(Exception, match="UNIQUE"):
                session.flush()
            session.expunge_all()
            session.rollback()
            assert session.get(User, user).name == "u"


class TestPending:
    @pytest.mark.parametrize("cache", [True, False])
    def test_an_object_that_is_added(self, cluster, cache):
        user = stored(cluster, User(name="u"))
        with cluster.session() as session:
            assert session.get(User, user + 1) is None
        with cluster.session(cache=cache) as session:
            new = User(id=user + 1, name="new")
            session.add(new)
            assert session.get(User, user + 1) is new

    @pytest.mark.parametrize("cache", [True, False])
    def test_an_object_that_is_deleted(self, cluster, cache):
        user = stored(cluster, User(name="u"), warm=True)
        with cluster.session(cache=cache) as session:
            found = session.get(User, user)
            session.delete(found)
            session.expire(found)
            assert session.get(User, user) is None


class TestFunctions:
    @pytest.mark.parametrize("bulk", [True, False])
    def test_a_row_that_is_put_back(self, cluster, bulk):
        user = stored(cluster, User(name="u"))

        def seen():
            with cluster.session() as session:
                return names(session, user, 0, 10)

        assert seen() == ["u"]
        with cluster.begin() as session:
            session.delete(session.get(User, user))
        assert seen() == []
        with cluster.begin() as session:
            if bulk:
                session.execute(insert(User), [{"id": user, "name": "back"}])
            else:
                session.add(User(id=user, name="back"))
        assert seen() == ["back"]

    def test_cached_values_are_made_of_those_in_the_database(self, cluster):
        # The row may be old as long as its key is in the outbox, and what
        # is made of it would be so when the row no longer is.
        user = stored(cluster, User(name="real"), warm=True)
        key = key_of(cluster, User, user)
        poison(cluster, key, value_of(cluster, key).replace(b"real", b"kept"))
        with cluster.session() as session:
            assert names_got(session, user, 0, 1) == ["real"]
        with cluster.session() as session:
            assert session.get(User, user).name == "kept"


def test_many_appends_make_a_list_old(cluster):
    # Each of them would read and write the whole list, before COMMIT.
    board = stored(cluster, Board())
    pins = [stored(cluster, Pin(title=str(i))) for i in range(40)]
    changed(cluster, BoardHasPins.append, board, pins[0])
    key = key_of(cluster, BoardHasPins, board)
    for some, is_kept in ((pins[1:11], True), (pins[11:], False)):
        with cluster.session() as session:
            BoardHasPins.page(session, board, 3)
        with cluster.begin() as session:
            for pin in some:
                BoardHasPins.append(session, board, pin)
        assert bool(value_of(cluster, key, "lists")) is is_kept
        with cluster.session() as session:
            (newest,) = BoardHasPins.page(session, board, 1)
            assert newest.pin_id == some[-1]


def test_threads_of_the_loop_that_wait_for_a_cached_read(cluster):
    user = stored(cluster, User(name="u"), warm=True)

    async def read():
        async with cluster.async_session() as session:
            return (await session.get(User, user)).name

    async def main():
        loop = asyncio.get_running_loop()
        all_there = threading.Barrier(2)

        def wait():
            all_there.wait(PATIENCE)
            started = asyncio.run_coroutine_threadsafe(read(), loop)
            return started.result(PATIENCE)

        # The loop has no other threads.
        loop.set_default_executor(ThreadPoolExecutor(2))
        both = [asyncio.to_thread(wait) for _ in range(2)]
        return await asyncio.gather(*both)

    assert asyncio.run(main()) == ["u", "u"]


# -- classes


class _Pickled(TypeDecorator):
    impl = PickleType
    cache_ok = True


class _Coded(UserDefinedType):
    cache_ok = True

    def __init__(self, coder):
        self.coder = coder

    def get_col_spec(self, **kw):
        return "TEXT"


def columns(kind, name="things"):
    class Base(DeclarativeBase):
        pass

    class Thing(ObjectMixin, Base, type_id=1):
        __tablename__ = name

        what = mapped_column(kind)

    return Columns(inspect(Thing), 1)


@pytest.mark.parametrize("kind", [PickleType, _Pickled])
def test_no_pickles(kind):
    with pytest.raises(CacheClassError, match="code"):
        columns(kind)


@pytest.mark.parametrize("name", ["my things", "t\u00e4ble"])
def test_names_that_no_key_can_have(name):
    with pytest.raises(CacheClassError, match="ASCII"):
        columns(String(20), name)


def test_no_subqueries():
    class Base(DeclarativeBase):
        pass

    class Thing(ObjectMixin, Base, type_id=1):
        __tablename__ = "things"

        parts = relationship("Part", lazy="subquery")

    class Part(ObjectMixin, Base, type_id=2, colocate_with="thing_id"):
        __tablename__ = "parts"

        thing_id = mapped_column(ShardedId(1), ForeignKey("things.local_id"))

    with pytest.raises(CacheClassError, match="selectin"):
        Columns(inspect(Thing), 1)
    assert Columns(inspect(Part), 1).name == "Part"


def test_processes_read_the_values_of_each_other():
    # Objects of two processes are not at one address, nor are these two.
    coders = [SimpleNamespace(), SimpleNamespace()]
    one, other = (columns(_Coded(_Coder(it))).digest for it in coders)
    assert one == other


class _Coder:
    def __init__(self, it):
        self.it = it


def test_answers_are_given_back_where_a_server_cannot_be_invalidated(cluster):
    """Left open, it would be closed by gc, with a warning."""
    user = stored(cluster, User(name="u"), warm=True)

    async def work():
        session = cluster.async_session()
        assert (await session.get(User, user)).name == "u"
        await session.scalars(select(User).where(User.id == user))
        await session.close()

    def fail(connection):
        raise OSError("the server is gone")

    event.listen(Engine, "rollback", fail)
    try:
        with pytest.raises(OSError, match="is gone"):
            asyncio.run(work())
    finally:
        event.remove(Engine, "rollback", fail)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gc.collect()
    assert [str(one.message) for one in caught] == []
