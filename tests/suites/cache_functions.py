"""Functions of an application whose results are cached.

A test module has fixtures ``cluster`` and ``regions``.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import delete, select, text, update
from sqlalchemy.orm import scoped_session

from sqla_shard import Cluster, exc, ShardSession
from sqla_shard.cache import Cache, cached_list, cached_objects
from sqla_shard.outbox.invalidations import drain
from sqla_shard.outbox.tables import OUTBOX
from tests.models.mapping_models import (
    Board,
    BoardHasPins,
    LISTS,
    new_board,
    new_pins,
    pins,
    User,
)
from tests.servers.memcached import nodes

#: Arguments of calls of the functions, and actions while they run.
calls: list[Any] = []
meanwhile: list[Callable[[Any], None]] = []


def called(session: Any, *args: Any) -> None:
    calls.append(args if len(args) > 1 else args[0])
    while meanwhile:
        meanwhile.pop()(session)


def names_of(session: ShardSession, ids: list[int]) -> dict[int, str]:
    return {one.id: one.name for one in session.get_many(User, ids) if one is not None}


@cached_objects("values", format="t:user:%d", of=User)
def names(session, user_ids):
    found = names_of(session, user_ids)
    called(session, user_ids)
    return found


@cached_objects("values", format="t:listed:%d", of=User)
def listed(session, user_ids):
    found = names_of(session, user_ids)
    called(session, user_ids)
    return [{"name": found[i]} if i in found else None for i in user_ids]


@cached_objects("values", format="t:word:%s", expire=60)
def lengths(session, words):
    called(session, words)
    return {word: len(word) for word in words if word != "nothing"}


returned: list[Any] = []


@cached_objects("values", format="t:odd:%d")
def odd(session, ids):
    called(session, ids)
    return returned[0]


@cached_objects("nowhere", format="t:nowhere:%d")
def nowhere(session, ids):
    return {}


@cached_list("lists", format="t:pins:%d", rows=6, of=BoardHasPins)
def board_pins(session, board_id, offset=0, limit=3):
    rows = session.scalars(
        select(BoardHasPins.pin_id)
        .where(BoardHasPins.board_id == board_id)
        .order_by(BoardHasPins.sequence.desc())
        .offset(offset or 0)
        .limit(limit)
    ).all()
    called(session, board_id, offset, limit)
    return list(rows)


@cached_objects("values", format="t:async:%d", of=User)
async def names_async(session, user_ids):
    found = await session.get_many(User, user_ids)
    called(session, user_ids)
    return [None if one is None else one.name for one in found]


@cached_list("lists", format="t:pins-async:%d", rows=6, of=BoardHasPins)
async def pins_async(session, board_id, offset, limit):
    page = await session.run_sync(
        lambda inner: BoardHasPins.page(inner, board_id, offset + limit)
    )
    called(session, board_id, offset, limit)
    return [row.pin_id for row in page.items[offset:]]


def other_version(function: Any, **options: Any) -> Any:
    """Define a function anew, as if its module was loaded again."""
    source = function.__wrapped__
    code = source.__code__.replace(co_firstlineno=1)
    copied = type(source)(code, source.__globals__, source.__name__)
    copied.__qualname__ = source.__qualname__
    return cached_objects("values", format="t:user:%d", **options)(copied)


def needs_servers(cluster: Cluster) -> None:
    _, place = next(iter(cluster.places.servers()))
    if place.engine.name == "sqlite":
        pytest.skip("SQLite has a file for each shard, and one isolation")


def counted(cache: Any) -> Any:
    """Return the counters of the region of the functions."""
    (found,) = [one for one in cache.stats() if one.name == "values"]
    return found


class Suite:
    @pytest.fixture(autouse=True)
    def nothing_left(self) -> None:
        for some in (calls, meanwhile, returned):
            some.clear()

    @pytest.fixture
    def configure(self, cluster, regions, rng) -> Iterator[Any]:
        """Give the cluster a cache."""
        made = []

        def configure(**classes: Any) -> Cache:
            cache = cluster.configure_cache(
                regions, prefix=f"t{rng.getrandbits(48):x}", **classes
            )
            made.append(cache)
            return cache

        yield configure
        cluster.cache = None
        for cache in made:
            for region in cache.regions.values():
                getattr(region.store, "close", int)()

    @pytest.fixture
    def cache(self, configure) -> Cache:
        return configure(classes={})

    @pytest.fixture
    def ids(self, cluster) -> list[int]:
        """Users on both servers."""
        found = []
        for shard_id in (0, 1, 40):
            with cluster.begin(shard_id=shard_id) as session:
                user = User(name=f"user {shard_id}")
                session.add(user)
                session.flush()
                found.append(user.id)
        return found

    def ask(self, cluster: Cluster, function: Any, *args: Any) -> Any:
        """Call a function in a session of its own."""
        with cluster.session() as session:
            return function(session, *args)

    def took(self) -> list[Any]:
        """Return the calls of the functions since the last time."""
        found = list(calls)
        calls.clear()
        return found

    def rename(self, cluster: Cluster, user_id: int, name: str) -> None:
        with cluster.begin() as session:
            session.get_one(User, user_id).name = name


class Objects(Suite):
    def test_a_repeated_call_is_cached(self, cluster, cache, ids):
        first = self.ask(cluster, names, ids)
        assert self.took() == [ids]
        assert self.ask(cluster, names, ids) == first
        assert first == dict(zip(ids, ["user 0", "user 1", "user 40"], strict=True))
        assert self.took() == []

    def test_a_list_stays_a_list(self, cluster, cache, ids):
        asked = [ids[1], ids[0], ids[1]]
        first = self.ask(cluster, listed, asked)
        assert first == [{"name": "user 1"}, {"name": "user 0"}, {"name": "user 1"}]
        # Another process has not seen its result.
        again = other_process(listed)
        assert self.ask(cluster, again, asked) == first
        assert self.took() == [[ids[1], ids[0]]]

    def test_only_missing_keys_are_computed(self, cluster, cache, ids):
        self.ask(cluster, names, ids[:1])
        found = self.ask(cluster, names, iter(ids))
        assert list(found) == ids
        assert self.took() == [ids[:1], ids[1:]]

    def test_absences_are_not_cached(self, cluster, cache, ids):
        with cluster.begin() as session:
            session.delete(session.get_one(User, ids[0]))
        for _ in range(2):
            assert self.ask(cluster, names, ids[:1]) == {}
            assert self.ask(cluster, listed, ids[:1]) == [None]
        assert self.took() == [ids[:1]] * 4

    def test_no_ids(self, cluster, cache):
        assert self.ask(cluster, names, []) == {}
        assert self.ask(cluster, listed, []) == []

    def test_texts(self, cluster, cache):
        for _ in range(2):
            found = self.ask(cluster, lengths, ["a", "ab", "nothing"])
            assert found == {"a": 1, "ab": 2}
        assert self.took() == [["a", "ab", "nothing"], ["nothing"]]

    def test_by_keyword(self, cluster, cache, ids):
        with cluster.session() as session:
            found = names(session=session, user_ids=ids)
        assert found == self.ask(cluster, names, ids)
        with pytest.raises(TypeError, match="user_ids"):
            self.ask(cluster, names)

    @pytest.mark.parametrize("how", ["flush", "update", "delete", "text"])
    def test_a_row_that_is_written(self, cluster, cache, ids, how):
        one = ids[0]
        self.ask(cluster, names, ids)
        with cluster.begin() as session:
            if how == "flush":
                session.get_one(User, one).name = "new"
            elif how == "update":
                session.execute(
                    update(User).where(User.id == one).values(data={"name": "new"})
                )
            elif how == "delete":
                session.execute(delete(User).where(User.id == one))
            else:
                session.execute(
                    text("UPDATE users SET data = :data"),
                    {"data": json.dumps({"name": "new"})},
                    bind_arguments={"shard_id": 0},
                )
                cache.invalidate(session, User, [one])
            assert names(session, [one]) in ({one: "new"}, {})
        self.took()
        found = self.ask(cluster, names, ids)
        assert found.get(one) == (None if how == "delete" else "new")
        assert self.took() == [[one]]
        assert len(found) + (how == "delete") == len(ids)

    def test_a_transaction_that_is_rolled_back(self, cluster, cache, ids):
        self.ask(cluster, names, ids)
        with cluster.session() as session:
            session.get_one(User, ids[0]).name = "never"
            # Flushed first, as before every statement.
            assert names(session, ids)[ids[0]] == "never"
            session.rollback()
        self.took()
        assert self.ask(cluster, names, ids)[ids[0]] == "user 0"
        assert self.took() == []

    def test_written_while_it_reads(self, cluster, cache, ids):
        meanwhile.append(lambda session: self.rename(cluster, ids[0], "new"))
        assert self.ask(cluster, names, ids)[ids[0]] == "user 0"
        self.took()
        assert self.ask(cluster, names, ids)[ids[0]] == "new"
        # The others were not written.
        assert self.took() == [[ids[0]]]
        assert counted(cache).lease_losses == 1

    def test_a_session_that_has_read_before(self, cluster, cache, ids):
        with cluster.session() as session:
            session.execute(
                text("SELECT * FROM users"), bind_arguments={"shard_id": 0}
            ).all()
            # On MariaDB its snapshot still has the old rows.
            self.rename(cluster, ids[0], "new")
            names(session, ids)
        assert counted(cache).fills == 0
        assert self.ask(cluster, names, ids)[ids[0]] == "new"

    def test_one_with_read_committed(self, cluster, cache, ids):
        needs_servers(cluster)
        with cluster.session() as session:
            session.connection(
                {"shard_id": 0}, execution_options={"isolation_level": "READ COMMITTED"}
            )
            self.rename(cluster, ids[0], "new")
            assert names(session, ids[:1]) == {ids[0]: "new"}
        assert self.ask(cluster, names, ids[:1]) == {ids[0]: "new"}
        assert self.took() == [ids[:1]]

    def test_a_session_that_holds_objects(self, cluster, cache, ids):
        with cluster.session(expire_on_commit=False) as session:
            held = session.get_one(User, ids[0])
            session.commit()
            self.rename(cluster, ids[0], "new")
            # The object in the session is old, and is not cached for others.
            assert names(session, ids[:1]) == {held.id: "user 0"}
        assert self.ask(cluster, names, ids[:1]) == {ids[0]: "new"}

    def test_read_after_waiting(self, cluster, cache, ids):
        # A value that others did not fill is read from a snapshot that is
        # older than the lease: it must not be cached.
        store = cache.region("values").store
        key = f"{cache.prefix}:f:t:user:{ids[0]}"
        store.fetch([key], 5)
        once = threading.Event()
        fetch = store.fetch

        def fetching(keys, lease):
            if calls and not once.is_set():
                once.set()
                self.rename(cluster, ids[0], "new")
            return fetch(keys, lease)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(store, "fetch", fetching)
            # The first of them begins the transaction on its server.
            self.ask(cluster, names, [ids[1], ids[0]])
        assert once.is_set()
        assert self.ask(cluster, names, ids[:1]) == {ids[0]: "new"}

    def test_one_that_writes(self, cluster, cache, ids):
        def write(session):
            session.execute(
                update(User).where(User.id == ids[0]).values(data={"name": "x"})
            )

        meanwhile.append(write)
        with cluster.session() as session:
            names(session, ids)
            session.rollback()
        assert counted(cache).fills == 0

    def test_sessions_that_do_not_look(self, cluster, cache, ids):
        self.ask(cluster, names, ids)
        with cluster.session(cache=False) as session:
            names(session, ids)
        cluster.cache = None
        self.ask(cluster, names, ids)
        assert self.took() == [ids] * 3

    def test_versions(self, cluster, cache, ids):
        first = self.ask(cluster, names, ids)
        second = other_version(names, version=2, of=User)
        assert self.ask(cluster, second, ids) == first
        # The second call has deleted the value of the first version, and not
        # cached its own: the next call does.
        assert self.ask(cluster, second, ids) == first
        assert self.ask(cluster, second, ids) == first
        assert self.took() == [ids] * 3
        # Each of them invalidates its writes.
        self.rename(cluster, ids[0], "new")
        assert self.ask(cluster, names, ids)[ids[0]] == "new"
        assert counted(cache).unreadable == 5

    def test_nonsense_is_not_read(self, cluster, cache, ids):
        self.ask(cluster, names, ids)
        store = cache.region("values").store
        for one in ids:
            key = f"{cache.prefix}:f:t:user:{one}"
            found = store.fetch([key], 1)[key].value
            store.unblock([key], bytes(16))
            lease = store.fetch([key], 1)[key].lease
            assert store.fill({key: (lease, found[:-1])}, 60) == {key}
        assert len(self.ask(cluster, names, ids)) == len(ids)
        assert counted(cache).unreadable == len(ids)

    def test_counted(self, cluster, cache, ids):
        self.ask(cluster, names, ids)
        self.ask(cluster, names, ids)
        found = counted(cache)
        assert (found.hits, found.misses, found.fills) == (3, 3, 3)

    def test_scoped_sessions(self, cluster, cache, ids):
        scoped = scoped_session(cluster.session)
        for _ in range(2):
            assert lengths(scoped, ["a"]) == {"a": 1}
        lengths.invalidate(scoped, "a")
        scoped.commit()
        assert lengths(scoped, ["a"]) == {"a": 1}
        scoped.remove()
        assert self.took() == [["a"]] * 2

    def test_a_cached_object_of_the_session_is_not_in_the_way(
        self, cluster, configure, ids
    ):
        configure(classes={User: "values"})
        self.ask(cluster, ShardSession.get, User, ids[0])
        with cluster.session() as session:
            # Read from the cache, and let go.
            session.get(User, ids[0])
            names(session, ids)
        self.took()
        self.ask(cluster, names, ids)
        assert self.took() == []
        self.rename(cluster, ids[0], "new")
        assert self.ask(cluster, names, ids)[ids[0]] == "new"

    @pytest.mark.parametrize(
        ("given", "error"),
        [
            pytest.param("7", exc.CachedFunctionError, id="text"),
            pytest.param(True, exc.CachedFunctionError, id="bool"),
            pytest.param(None, exc.CachedFunctionError, id="none"),
            pytest.param(1.5, exc.CachedFunctionError, id="float"),
            pytest.param(7, exc.InvalidIdError, id="no id"),
            pytest.param(pins(1)[0], exc.WrongTypeError, id="of a pin"),
        ],
    )
    def test_invalid_ids(self, cluster, cache, given, error):
        for _ in range(2):
            with pytest.raises(error, match=str(given)):
                self.ask(cluster, names, [given])
            with pytest.raises(error, match=str(given)):
                self.ask(cluster, names.invalidate, [given])
            cluster.cache = None
        assert self.took() == []

    @pytest.mark.parametrize("given", ["", "a b", "é", "a\n", "x" * 251])
    def test_invalid_keys(self, cluster, cache, given):
        with pytest.raises(exc.CacheKeyError):
            self.ask(cluster, lengths, [given])
        with pytest.raises(exc.CacheKeyError):
            self.ask(cluster, lengths.invalidate, given)
        with pytest.raises(exc.CachedFunctionError, match="7; its"):
            self.ask(cluster, lengths, [7])

    def test_an_unknown_region(self, cluster, cache):
        with pytest.raises(exc.OptionError, match="'nowhere' is no"):
            self.ask(cluster, nowhere, [1])
        with pytest.raises(exc.OptionError, match="'nowhere' is no"):
            self.ask(cluster, nowhere.invalidate, [1])

    @pytest.mark.parametrize(
        ("value", "named"),
        [
            pytest.param({1, 2}, "of type set", id="set"),
            pytest.param((1, 2), "of type tuple", id="tuple"),
            pytest.param([{"a": b"x"}], "of type bytes", id="bytes"),
            pytest.param({2: "a"}, "dict with the key 2", id="key"),
            pytest.param([float("nan")], "the float nan", id="nan"),
            pytest.param(User, "of type DeclarativeAttr", id="class"),
            pytest.param("\ud800", "surrogates", id="surrogate"),
        ],
    )
    def test_values_that_json_does_not_have(self, cluster, cache, value, named):
        returned.append({1: value})
        for _ in range(2):
            with pytest.raises(exc.CachedFunctionError, match=named) as raised:
                self.ask(cluster, odd, [1])
            assert "odd() has returned" in str(raised.value)
        assert self.took() == [[1]] * 2
        # The leases were given back.
        returned[0] = {1: ["fine"]}
        self.ask(cluster, odd, [1])
        assert self.ask(cluster, odd, [1]) == {1: ["fine"]}
        assert self.took() == [[1]]

    def test_a_value_that_contains_itself(self, cluster, cache):
        endless: list[Any] = []
        endless.append(endless)
        returned.append([endless])
        with pytest.raises(exc.CachedFunctionError, match="itself"):
            self.ask(cluster, odd, [1])

    @pytest.mark.parametrize(
        ("value", "named"),
        [
            pytest.param("ab", "a str; return a mapping", id="text"),
            pytest.param(None, "a NoneType; return", id="none"),
            pytest.param([1], "with 2 ids and has returned 1", id="short"),
            pytest.param({3: 1}, "returned the key 3, which is not one", id="other"),
        ],
    )
    def test_invalid_answers(self, cluster, cache, value, named):
        returned.append(value)
        with pytest.raises(exc.CachedFunctionError, match=named):
            self.ask(cluster, odd, [1, 2])

    def test_all_that_json_has(self, cluster, cache):
        value = [None, True, 1, 10**30, 1.5, "é\x00", {"a": [{}]}, []]
        returned.append([value])
        assert self.ask(cluster, odd, [1]) == [value]
        assert self.ask(cluster, odd, [1]) == [value]
        assert self.took() == [[1]]


def other_process(function: Any) -> Any:
    """Clear what a process has learned about the results of a function."""
    (reads,) = (
        cell.cell_contents
        for cell in function.__closure__
        if hasattr(cell.cell_contents, "_is_list")
    )
    reads._is_list = None
    return function


class Lists(Suite):
    @pytest.fixture
    def board(self, cluster):
        return new_board(cluster)

    def fill(self, cluster, board, count):
        """Return pins, as the list has them."""
        ids = new_pins(cluster, count)
        with cluster.begin() as session:
            BoardHasPins.append_many(session, board, ids)
        return ids[::-1]

    def test_pages_of_cached_lists(self, cluster, cache, board):
        ids = self.fill(cluster, board, 4)
        for offset, limit in ((0, 3), (3, 3), (0, 100), (2, 0), (5, 1)):
            found = self.ask(cluster, board_pins, board, offset, limit)
            assert found == ids[offset : offset + limit]
        assert self.took() == [(board, 0, 6)]

    def test_pages_behind_it(self, cluster, cache, board):
        ids = self.fill(cluster, board, 8)
        for offset, limit, asked in (
            (0, 6, [(board, 0, 6)]),
            (3, 3, []),
            (4, 3, [(board, 4, 3)]),
            (6, 3, [(board, 6, 3)]),
            (0, None, [(board, 0, None)]),
        ):
            found = self.ask(cluster, board_pins, board, offset, limit)
            end = None if limit is None else offset + limit
            assert found == ids[offset:end]
            assert self.took() == asked

    def test_exactly_as_many_as_are_cached(self, cluster, cache, board):
        ids = self.fill(cluster, board, 6)
        assert self.ask(cluster, board_pins, board, 3, 9) == ids[3:]
        # That there are no more is not known.
        assert self.took() == [(board, 0, 6), (board, 3, 9)]

    def test_an_empty_list(self, cluster, cache, board):
        for _ in range(2):
            assert self.ask(cluster, board_pins, board, 0, 3) == []
        assert self.took() == [(board, 0, 6)]

    def test_defaults_and_keywords(self, cluster, cache, board):
        ids = self.fill(cluster, board, 4)
        with cluster.session() as session:
            assert board_pins(session, board) == ids[:3]
            assert board_pins(session, board, limit=1, offset=2) == ids[2:3]
        assert self.took() == [(board, 0, 6)]

    def test_a_change_of_the_list(self, cluster, cache, board):
        ids = self.fill(cluster, board, 4)
        self.ask(cluster, board_pins, board, 0, 3)
        with cluster.begin() as session:
            BoardHasPins.remove(session, board, ids[0])
        assert self.ask(cluster, board_pins, board, 0, 3) == ids[1:]
        (last,) = self.fill(cluster, board, 1)
        assert self.ask(cluster, board_pins, board, 0, 1) == [last]
        with cluster.begin() as session:
            session.execute(
                delete(BoardHasPins).where(
                    BoardHasPins.board_id == board, BoardHasPins.pin_id == last
                )
            )
        assert self.ask(cluster, board_pins, board, 0, 1) == [ids[1]]

    def test_a_list_that_is_cached_itself(self, cluster, configure, board):
        configure(classes={BoardHasPins: "lists"})
        ids = self.fill(cluster, board, 3)
        for _ in range(2):
            assert self.ask(cluster, board_pins, board, 0, 5) == ids
            with cluster.session() as session:
                assert BoardHasPins.count(session, board) == len(ids)
            # An append caches the longer list with it.
            ids = self.fill(cluster, board, 1) + ids

    def test_changed_while_it_reads(self, cluster, cache, board):
        ids = self.fill(cluster, board, 2)

        def change(session):
            with cluster.begin() as writer:
                BoardHasPins.remove(writer, board, ids[0])

        meanwhile.append(change)
        assert self.ask(cluster, board_pins, board, 0, 3) == ids
        assert self.ask(cluster, board_pins, board, 0, 3) == ids[1:]

    def test_more_than_the_limit(self, cluster, cache, board):
        @cached_list("lists", format="t:more:%d", rows=1)
        def more(session, board_id, offset, limit):
            return [1, 2]

        with pytest.raises(exc.CachedFunctionError, match="2 items, with a l"):
            self.ask(cluster, more, board, 0, 1)

    def test_no_list(self, cluster, cache, board):
        @cached_list("lists", format="t:tuple:%d", rows=1)
        def more(session, board_id, offset, limit):
            return (1, 2)

        with pytest.raises(exc.CachedFunctionError, match="a tuple; return"):
            self.ask(cluster, more, board, 0, 1)


class Invalidating(Suite):
    """Invalidation by sessions and by transactions that commit."""

    def is_invalid(self, cluster, one):
        self.took()
        self.ask(cluster, lengths, [one])
        return self.took() == [[one]]

    @pytest.mark.parametrize("kind", ["session", "begin"])
    def test_a_session_that_writes_nothing(self, cluster, cache, kind):
        self.ask(cluster, lengths, ["a", "b"])
        if kind == "begin":
            with cluster.begin() as session:
                lengths.invalidate(session, "a")
        else:
            with cluster.session() as session:
                lengths.invalidate(session, ["a"])
                session.commit()
        assert self.is_invalid(cluster, "a")
        assert not self.is_invalid(cluster, "b")

    def test_with_the_commit(self, cluster, cache, ids):
        self.ask(cluster, lengths, ["a"])
        with cluster.session() as session:
            session.get_one(User, ids[0]).name = "x"
            lengths.invalidate(session, "a")
            session.flush()
            assert not self.is_invalid(cluster, "a")
            with session.begin_nested():
                session.get_one(User, ids[0]).name = "y"
            assert not self.is_invalid(cluster, "a")
            session.commit()
            assert self.is_invalid(cluster, "a")
            lengths.invalidate(session, "a")
            session.rollback()
            session.commit()
        assert not self.is_invalid(cluster, "a")

    def test_rows_of_a_class_that_is_not_cached(self, cluster, cache, ids):
        self.ask(cluster, names, ids)
        with cluster.begin() as session:
            cache.invalidate(session, User, ids[:2])
        self.took()
        self.ask(cluster, names, ids)
        assert self.took() == [ids[:2]]
        with (
            cluster.begin() as session,
            pytest.raises(exc.CacheClassError, match="Board"),
        ):
            cache.invalidate(session, Board, [1])

    def test_without_a_cache(self, cluster, ids):
        with cluster.begin() as session:
            names.invalidate(session, ids)

    @pytest.mark.parametrize("how", ["nothing", "read", "written", "two"])
    @pytest.mark.parametrize("function", ["names", "lengths"])
    def test_a_node_that_does_not_answer(self, cluster, cache, ids, how, function):
        one: Any = ids[0]
        cached = names
        if function == "lengths":
            one, cached = "a", lengths
        written = {"written": ids[2:], "two": ids[1:]}.get(how, [])
        self.ask(cluster, cached, [one])
        store = cache.region("values").store
        with pytest.MonkeyPatch.context() as patch:
            for name in ("block", "unblock"):
                patch.setattr(store, name, lambda keys, *more: set(keys))
            with cluster.session(cross_shard="unordered") as session:
                if how == "read":
                    session.get(User, ids[2])
                for user_id in written:
                    session.get_one(User, user_id).name = "new"
                cached.invalidate(session, one)
                session.commit()
        # The cached value is old, and its invalidation is pending.
        self.took()
        assert self.ask(cluster, cached, [one])
        assert self.took() == []
        stores = {name: region.store for name, region in cache.regions.items()}
        report = drain(cluster, stores)
        # With it those of users that were written, by three functions.
        others = 3 * len(written)
        # On each server that was written: the others may not commit.
        times = max(len(written), 1)
        assert (report.removed, report.unknown) == (times * (1 + others), ())
        self.ask(cluster, cached, [one])
        assert self.took() == [[one]]

    def test_it_costs_no_server_twice(self, cluster, cache, ids, monkeypatch):
        # A transaction that has begun on one server is not begun on others.
        needs_servers(cluster)
        with cluster.session() as session:
            session.get(User, ids[2])
            lengths.invalidate(session, "a")
            before = len(session._connections)
            seen = []
            announce = cluster.cache.announce

            def announcing(session):
                seen.append(len(session._connections))
                return announce(session)

            monkeypatch.setattr(cluster.cache, "announce", announcing)
            session.commit()
        assert seen == [before]

    def test_nothing_is_left_in_the_outbox(self, cluster, cache, ids):
        with cluster.begin() as session:
            names.invalidate(session, ids)
        for shard_id in (0, 1, 40):
            with cluster.session() as session:
                place = session.place_for(User, shard_id)
                rows = session.execute(
                    select(OUTBOX.c.token), bind_arguments={"place": place}
                )
                assert rows.all() == []


class Awaited(Suite):
    def test_functions_that_are_awaited(self, cluster, cache, ids):
        assert inspect.iscoroutinefunction(names_async)

        async def main():
            for _ in range(2):
                async with cluster.async_session() as session:
                    found = await names_async(session, ids)
                    assert found == ["user 0", "user 1", "user 40"]
            async with cluster.async_begin() as session:
                user = await session.get(User, ids[0])
                user.name = "new"
            async with cluster.async_session() as session:
                assert await names_async(session, ids[:1]) == ["new"]
            async with cluster.async_begin() as session:
                names_async.invalidate(session, ids[1])
            async with cluster.async_session() as session:
                return await names_async(session, ids)

        assert asyncio.run(main()) == ["new", "user 1", "user 40"]
        assert self.took() == [ids, ids[:1], [ids[1]]]

    def test_written_while_it_is_awaited(self, cluster, cache, ids):
        meanwhile.append(lambda session: self.rename(cluster, ids[0], "new"))

        async def main():
            async with cluster.async_session() as session:
                return await names_async(session, ids[:1])

        assert asyncio.run(main()) == ["user 0"]
        assert asyncio.run(main()) == ["new"]

    def test_lists(self, cluster, cache):
        board = new_board(cluster)
        ids = new_pins(cluster, 4)
        with cluster.begin() as session:
            BoardHasPins.append_many(session, board, ids)

        async def main():
            async with cluster.async_session() as session:
                first = await pins_async(session, board, 0, 2)
                return first + await pins_async(session, board, 2, 2)

        assert asyncio.run(main()) == ids[::-1]
        assert self.took() == [(board, 0, 6)]

    def test_functions_that_wait(self, cluster, cache, ids):
        async def main():
            async with cluster.async_session() as session:
                with pytest.raises(exc.CachedFunctionError, match="run_sync"):
                    names(session, ids)
                return await session.run_sync(names, ids)

        first = asyncio.run(main())
        assert asyncio.run(main()) == first
        assert self.took() == [ids]

    def test_a_session_that_waits(self, cluster, cache, ids):
        async def main():
            with cluster.session() as session:
                await names_async(session, ids)

        with pytest.raises(exc.CachedFunctionError, match="not a ShardSess"):
            asyncio.run(main())


cluster = LISTS.on_backend()


@pytest.fixture(scope="module")
def region(backend, request):
    if not backend.live:
        yield {"backend": "dogpile.cache.memory"}
        return
    request.getfixturevalue("memcached_installed")
    with nodes(2) as servers:
        # A busy machine may take its time: faults are tested elsewhere.
        arguments = {"servers": [s.address for s in servers], "timeout": 5.0}
        yield {"backend": "sqla_shard.memcached", "arguments": arguments}


@pytest.fixture
def regions(region):
    return {"values": region, "lists": region}
