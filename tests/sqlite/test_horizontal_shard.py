"""The ShardedSession for choosers of one's own, on SQLite files."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import random
import signal
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import (
    create_engine,
    delete,
    Engine,
    event,
    inspect,
    literal_column,
    select,
    text,
    update,
)
from sqlalchemy.exc import ArgumentError, OperationalError
from sqlalchemy.ext import horizontal_shard as upstream
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import selectinload, sessionmaker, with_loader_criteria
from sqlalchemy.pool import base as pool_base, impl as pool_impl, QueuePool, StaticPool
from sqlalchemy.util import await_only, queue as sqlalchemy_queue

from sqla_shard.exc import NoShardKeyError
from sqla_shard.ext import horizontal_shard
from sqla_shard.ext.horizontal_shard import Lanes, set_shard_id, ShardedSession
from tests.models.dropin import (
    Board,
    Choosers,
    engines_in,
    fill,
    LANE,
    lane_threads,
    meeting,
    Pin,
    TIMEOUT,
)
from tests.servers.following import until

NAMES = ["a", "b", "c", "d"]


@pytest.fixture(autouse=True)
def dispose() -> Iterator[None]:
    """Close the connections of each test at its end.

    Python 3.13 warns of those that are collected, in some later test.
    """
    engines: set[Any] = set()

    def connected(connection: Any) -> None:
        engines.add(connection.engine)

    event.listen(Engine, "engine_connect", connected)
    yield
    event.remove(Engine, "engine_connect", connected)
    for engine in engines:
        engine.dispose()


@pytest.fixture
def shards(tmp_path: Any) -> dict[Any, Any]:
    found = engines_in(tmp_path, NAMES)
    fill(found)
    return found


@pytest.fixture
def lanes() -> Iterator[Lanes]:
    before = lane_threads()
    lanes = Lanes(8, LANE)
    yield lanes
    lanes.close()
    # Ctrl-C may fall into the start of one, which nobody waits for then.
    for thread in threading.enumerate():
        if thread.name.startswith(LANE) and not before:
            thread.join(TIMEOUT)
    assert lane_threads() <= before


@pytest.fixture
def maker(shards: Any, lanes: Lanes) -> Any:
    """A sessionmaker; sessions have threads of their own, if any."""
    return sessionmaker(
        class_=ShardedSession, lanes=lanes, **Choosers(shards).arguments()
    )


# -- rows


@pytest.mark.parametrize(
    ("module", "all_there"), [(upstream, False), (horizontal_shard, True)]
)
def test_no_rows_are_lost(
    tmp_path: Any, request: Any, module: Any, all_there: bool
) -> None:
    """Upstream's forgets objects before it compares others with them."""
    shards = engines_in(tmp_path, range(1, 31))
    fill(shards, pins=0)
    session = module.ShardedSession(**Choosers(shards).arguments())

    def collect(*_: Any) -> None:
        # Otherwise garbage stays until Python's next collection.
        gc.collect()

    event.listen(Board, "load", collect)
    request.addfinalizer(lambda: event.remove(Board, "load", collect))
    with session, session.no_autoflush:
        by_query = sum(1 for _ in session.query(Board))
        unique = sum(1 for _ in session.scalars(select(Board)).unique())
        parts = session.scalars(select(Board)).unique().partitions(1)
        in_parts = sum(len(part) for part in parts)
    found = [by_query, unique, in_parts]
    assert (found == [30, 30, 30]) is all_there, found


def test_results_are_in_the_order_of_the_shards(maker: Any) -> None:
    with maker() as session:
        found = session.scalars(select(Board)).all()
        assert [board.shard for board in found] == NAMES
        assert [inspect(board).identity_token for board in found] == NAMES
        rows = session.execute(select(Board.shard, Board.id)).all()
        assert rows == [(name, 1) for name in NAMES]
        assert session.execute(text("SELECT 1")).all() == [(1,)] * 4


def test_objects_are_loaded_in_the_order_of_the_shards(maker: Any, shards: Any) -> None:
    """Whichever server answers first."""
    last = threading.Event()
    loaded: list[Any] = []

    def hold(name: str) -> int:
        if name == "d":
            last.set()
        return int(last.wait(TIMEOUT))

    def connected(connection: Any, record: Any) -> None:
        connection.create_function("hold", 1, hold)

    def load(board: Any, context: Any) -> None:
        loaded.append(board.shard)

    for engine in shards.values():
        engine.dispose()
        event.listen(engine, "connect", connected)
    event.listen(Board, "load", load)
    try:
        with maker() as session:
            statement = select(Board).where(text("hold(shard) = 1"))
            session.scalars(statement).all()
    finally:
        event.remove(Board, "load", load)
    assert loaded == NAMES


# -- at the same time


def test_all_shards_are_queried_at_the_same_time(maker: Any, shards: Any) -> None:
    with meeting(shards.values(), 4) as meet, maker() as session:
        found = session.execute(select(Board.shard, meet)).all()
        assert [shard for shard, _ in found] == NAMES
        assert {number for _, number in found} == {0, 1, 2, 3}


def test_upstream_asks_one_after_another(shards: Any) -> None:
    """So the test above can fail."""
    session = upstream.ShardedSession(**Choosers(shards).arguments())
    with (
        meeting(shards.values(), 4, timeout=0.1) as meet,
        session,
        pytest.raises(OperationalError, match="user-defined function raised"),
    ):
        session.execute(select(meet)).all()


@pytest.mark.parametrize("how", ["evaluate", "fetch", False])
def test_update_and_delete(maker: Any, shards: Any, how: Any) -> None:
    options = {"synchronize_session": how}
    with meeting(shards.values(), 4) as meet, maker() as session:
        boards = session.scalars(select(Board)).all()
        done = session.execute(
            update(Board).where(Board.id == 1).values(title="new", number=meet),
            execution_options=options,
        )
        assert done.rowcount == 4
        if how:
            assert [board.title for board in boards] == ["new"] * 4
        numbers = session.scalars(select(Board.number)).all()
        assert sorted(numbers) == [0, 1, 2, 3]
        done = session.execute(
            delete(Pin).where(Pin.id == 100), execution_options=options
        )
        assert done.rowcount == 4
        session.commit()
        assert len(session.scalars(select(Pin)).all()) == 4


def test_eager_loads_of_all_shards(shards: Any, lanes: Lanes) -> None:
    """The statements of the second level are under way together, too."""
    fill(shards, pins=1)
    choosers = Choosers(shards)

    def execute(context: Any) -> Any:
        if context.is_relationship_load:
            return [context.execution_options["identity_token"]]
        return NAMES

    arguments = {**choosers.arguments(), "execute_chooser": execute}
    with (
        meeting(shards.values(), 4) as meet,
        ShardedSession(lanes=lanes, **arguments) as session,
    ):
        found = session.scalars(
            select(Board).options(
                selectinload(Board.pins), with_loader_criteria(Pin, meet >= 0)
            )
        ).all()
        links = [[pin.link for pin in board.pins] for board in found]
    assert links == [[f"{name} 1 0"] for name in NAMES]


def test_a_statement_of_a_lane_that_needs_all_shards(maker: Any, shards: Any) -> None:
    """As with upstream, choosers send eager loads to all shards."""
    plain = upstream.ShardedSession(**Choosers(shards).arguments())
    statement = select(Board).options(selectinload(Board.pins))
    links = []
    for session in (plain, maker()):
        with session:
            found = session.scalars(statement).all()
            links.append([{pin.link for pin in b.pins} for b in found])
    assert links[0] == links[1]
    assert [len(pins) for pins in links[1]] == [8] * 4


def test_nothing_but_calls_of_the_driver_leaves_the_thread(
    maker: Any, shards: Any
) -> None:
    here = threading.current_thread().name
    orm, calls = set(), set()

    def load(board: Any, context: Any) -> None:
        orm.add(threading.current_thread().name)

    def where() -> int:
        calls.add(threading.current_thread().name)
        return 1

    def connected(connection: Any, record: Any) -> None:
        connection.create_function("here", 0, where)

    for engine in shards.values():
        engine.dispose()
        event.listen(engine, "connect", connected)
    event.listen(Board, "load", load)
    try:
        with maker() as session:
            session.scalars(select(Board).where(text("here() = 1"))).all()
    finally:
        event.remove(Board, "load", load)
    assert orm == {here}
    assert calls
    assert all(name.startswith(LANE) for name in calls)


def test_context_variables_are_seen(maker: Any) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("v")
    seen = []

    def load(board: Any, context: Any) -> None:
        seen.append(variable.get())

    event.listen(Board, "load", load)
    variable.set("it")
    try:
        with maker() as session:
            session.scalars(select(Board)).all()
    finally:
        event.remove(Board, "load", load)
    assert seen == ["it"] * 4


def test_flushed_once_and_before(maker: Any, shards: Any) -> None:
    flushes = []
    with maker() as session:
        event.listen(session, "before_flush", lambda *a: flushes.append(1))
        session.add(Board(id=7, shard="c", title="new"))
        found = session.scalars(select(Board)).all()
        assert len(flushes) == 1
        assert [b.shard for b in found] == ["a", "b", "c", "c", "d"]
        session.add(Board(id=8, shard="c", title="new"))
        statement = select(Board).execution_options(autoflush=False)
        assert len(session.scalars(statement).all()) == 5
        with session.no_autoflush:
            assert len(session.scalars(select(Board)).all()) == 5
        assert len(flushes) == 1


def test_listeners_of_do_execute_are_called(maker: Any, shards: Any) -> None:
    """Those that came first, and those that came after the first session."""
    called = []

    def before(cursor: Any, statement: str, *rest: Any) -> None:
        called.append("before")

    def after(cursor: Any, statement: str, *rest: Any) -> None:
        called.append("after")

    def instead(cursor: Any, statement: str, *rest: Any) -> bool:
        called.append("instead")
        cursor.execute("SELECT 5")
        return True

    event.listen(shards["a"], "do_execute", before)
    with maker() as session:
        session.execute(text("SELECT 1")).all()
        event.listen(shards["a"], "do_execute", after)
        event.listen(shards["b"], "do_execute", instead)
        called.clear()
        found = session.execute(text("SELECT 1")).scalars().all()
    assert sorted(called) == ["after", "before", "instead"]
    assert found == [1, 5, 1, 1]


# -- when something fails


def test_an_error_waits_for_all_and_leaves_connections_usable(
    maker: Any, shards: Any
) -> None:
    begun, failed = threading.Event(), threading.Event()
    ended = []

    def call(name: str) -> int:
        if name == "b":
            assert begun.wait(TIMEOUT)
            failed.set()
            raise ValueError("this one")
        if name == "d":
            begun.set()
            assert failed.wait(TIMEOUT)
            ended.append(name)
        return 1

    def connected(connection: Any, record: Any) -> None:
        connection.create_function("call", 1, call)

    for engine in shards.values():
        engine.dispose()
        event.listen(engine, "connect", connected)
    with maker() as session:
        with pytest.raises(OperationalError, match="user-defined function"):
            session.scalars(select(Board).where(text("call(shard) = 1")))
        assert ended == ["d"]
        session.rollback()
        assert len(session.scalars(select(Board)).all()) == 4
    assert [e.pool.checkedout() for e in shards.values()] == [0] * 4


def test_after_an_error_nothing_more_is_sent(maker: Any, shards: Any) -> None:
    sent = []

    def fails(connection: Any, *rest: Any) -> None:
        raise ValueError("this one")

    def note(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        sent.append(statement)

    for engine in shards.values():
        event.listen(engine, "before_cursor_execute", note)
    event.listen(shards["a"], "before_cursor_execute", fails)
    with maker() as session:
        with pytest.raises(ValueError, match="this one"):
            session.execute(select(Board))
        assert len(sent) == 1
        session.rollback()
        event.remove(shards["a"], "before_cursor_execute", fails)
        assert len(session.scalars(select(Board)).all()) == 4


def test_the_first_error_in_the_order_of_shards(maker: Any) -> None:
    with maker() as session:
        with pytest.raises(OperationalError, match="no such column: missing"):
            session.scalars(select(Board).where(text("missing = 1")))
        session.rollback()


def test_an_error_of_an_eager_load(maker: Any) -> None:
    with maker() as session:
        statement = select(Board).options(
            selectinload(Board.pins),
            with_loader_criteria(Pin, literal_column("missing") == 1),
        )
        with pytest.raises(OperationalError, match="no such column: missing"):
            session.scalars(statement)
        session.rollback()
        assert len(session.scalars(select(Board)).all()) == 4


@pytest.mark.parametrize("where", ["thread", "load"])
def test_ctrl_c(maker: Any, shards: Any, where: str) -> None:
    """Calls that are under way are ended, and all connections come back."""
    main = threading.main_thread().ident or 0

    def call(name: str) -> int:
        if where == "thread" and name == "b":
            signal.pthread_kill(main, signal.SIGINT)
        return 1

    def load(board: Any, context: Any) -> None:
        if where == "load":
            raise KeyboardInterrupt

    def connected(connection: Any, record: Any) -> None:
        connection.create_function("call", 1, call)

    for engine in shards.values():
        engine.dispose()
        event.listen(engine, "connect", connected)
    event.listen(Board, "load", load)
    endless = (
        "(WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "
        "SELECT count(*) FROM n) = call(shard)"
        if where == "thread"
        else "call(shard) = 1"
    )
    try:
        with maker() as session, pytest.raises(KeyboardInterrupt):
            session.scalars(
                select(Board).where(text(f"call(shard) = 1 AND {endless}"))
            ).all()
    finally:
        event.remove(Board, "load", load)
    assert [e.pool.checkedout() for e in shards.values()] == [0] * 4
    with maker() as session:
        assert len(session.scalars(select(Board)).all()) == 4


#: Where SQLAlchemy counts the connections of a pool, but for what it cleans
#: up after: an interrupt here leaves one checked out for all time.
_COUNTING = {module.__file__ for module in (pool_base, pool_impl, sqlalchemy_queue)}
_CLEANED_UP = {"__connect", "_reset"}


def _is_counting(frame: Any) -> bool:
    """Return whether SQLAlchemy's pool counts connections in a frame."""
    while frame and frame.f_code.co_filename not in _COUNTING:
        frame = frame.f_back
    return bool(frame) and frame.f_code.co_name not in _CLEANED_UP


# Python ignores errors in the callback of a weak reference.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_ctrl_c_at_any_time(maker: Any, shards: Any, rng: random.Random) -> None:
    """Wherever it falls: no connection is lost, closed in use, or hangs."""
    statement = select(Board).options(selectinload(Board.pins))
    main = threading.main_thread().ident or 0
    over = threading.Event()
    # Not an event: a handler that runs while its lock is held, in the same
    # thread, would wait for itself.
    armed = False
    hits = 0

    def interrupt(number: int, frame: Any) -> None:
        nonlocal armed
        # Or a little later: the next one comes soon.
        if armed and not _is_counting(frame):
            armed = False
            raise KeyboardInterrupt

    def shoot() -> None:
        while not over.wait(rng.random() * 0.02):
            if armed:
                signal.pthread_kill(main, signal.SIGINT)

    def in_use() -> int:
        return sum(e.pool.checkedout() for e in shards.values())

    def all_returned() -> bool:
        if in_use():
            # Before SQLAlchemy has recorded it in the session, a connection
            # is left to the collector, once the last frame that refers to it
            # has ended.
            gc.collect()
        return not in_use()

    before = signal.signal(signal.SIGINT, interrupt)
    shooter = threading.Thread(target=shoot)
    shooter.start()
    try:
        for _ in range(80):
            try:
                with maker() as session:
                    armed = True
                    session.scalars(statement).all()
                    session.execute(update(Board).values(title="never"))
                    armed = False
            except KeyboardInterrupt:
                hits += 1
            assert until(all_returned)
    finally:
        armed = False
        over.set()
        shooter.join(TIMEOUT)
        signal.signal(signal.SIGINT, before)
    assert hits
    with maker() as session:
        found = session.scalars(select(Board.title)).all()
        assert found == [f"on {name}" for name in NAMES]


def test_many_sessions_in_many_threads(shards: Any) -> None:
    lanes = Lanes(3, LANE)
    factory = sessionmaker(
        class_=ShardedSession, lanes=lanes, **Choosers(shards).arguments()
    )
    found: list[int] = []
    most = []

    def work() -> None:
        for _ in range(15):
            with factory() as session:
                boards = session.scalars(
                    select(Board).options(selectinload(Board.pins))
                ).all()
                found.extend(len(board.pins) for board in boards)
            most.append(lane_threads())

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT * 3)
    assert found == [8] * (6 * 15 * 4)
    assert max(most) <= 3
    lanes.close()


# -- what stays in its thread


def test_sqlite_in_memory(lanes: Lanes) -> None:
    shards = {name: create_engine("sqlite://") for name in NAMES}
    fill(shards)
    with ShardedSession(lanes=lanes, **Choosers(shards).arguments()) as s:
        assert [b.shard for b in s.scalars(select(Board))] == NAMES
    assert lane_threads() == 0


def test_one_connection_for_all_shards(lanes: Lanes, tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path}/one.sqlite"
    engine = create_engine(url, poolclass=StaticPool)
    fill({"a": engine})
    shards = {
        name: engine.execution_options(schema_translate_map={None: "main"})
        for name in NAMES
    }
    with ShardedSession(lanes=lanes, **Choosers(shards).arguments()) as s:
        assert [b.shard for b in s.scalars(select(Board))] == ["a"] * 4
    assert lane_threads() == 0
    engine.dispose()


def test_connections_that_check_their_thread(tmp_path: Any, lanes: Lanes) -> None:
    shards: dict[Any, Any] = engines_in(
        tmp_path, NAMES, poolclass=QueuePool, connect_args={"check_same_thread": True}
    )
    # One of them may leave its thread: the rest must not follow.
    shards["b"] = engines_in(tmp_path, ["b"])["b"]
    fill(shards)
    with ShardedSession(lanes=lanes, **Choosers(shards).arguments()) as s:
        assert [b.shard for b in s.scalars(select(Board))] == NAMES
        assert lane_threads() == 1
        s.execute(update(Board).values(title="it"))
        s.commit()
        assert s.scalars(select(Board.title)).all() == ["it"] * 4
    for engine in shards.values():
        engine.dispose()


@pytest.mark.parametrize("option", ["yield_per", "stream_results"])
def test_streams_are_not_read_ahead(maker: Any, shards: Any, option: str) -> None:
    fill(shards, boards=5, pins=0)
    loaded = []

    def load(board: Any, context: Any) -> None:
        loaded.append(board.id)

    event.listen(Board, "load", load)
    try:
        with maker() as session:
            options = {option: 2}
            found = session.scalars(select(Board), execution_options=options)
            assert next(found).shard == "a"
            assert len(loaded) <= 5
            assert len(found.all()) == 19
            query = session.query(Board).yield_per(2)
            assert sum(1 for _ in query) == 20
    finally:
        event.remove(Board, "load", load)
    assert lane_threads() == 0


# -- opening


def test_opening_costs_the_same_for_any_number_of_shards() -> None:
    class Engines(dict[Any, Any]):
        """Would tell if it were gone through."""

        def __iter__(self) -> Any:
            raise AssertionError("copied")

        keys = items = values = __iter__  # type: ignore[assignment]  # all refuse

    engines = Engines({str(i): object() for i in range(65536)})
    arguments = {**Choosers({}).arguments(), "shards": engines}
    factory = sessionmaker(class_=ShardedSession, **arguments)
    with factory() as session:
        assert session.get_bind(Board, shard_id="65535") is engines["65535"]
    count = len(gc.get_objects())
    kept = [factory() for _ in range(100)]
    per_session = (len(gc.get_objects()) - count) / len(kept)
    assert per_session < 60, per_session


def test_no_listener_for_each_session(maker: Any) -> None:
    listening = []

    def listen(target: Any, *rest: Any, **options: Any) -> None:
        listening.append(target)

    with maker() as session:
        session.scalars(select(Board)).all()
    before = event.listen
    event.listen = listen  # type: ignore[assignment]  # to see that it is not called
    try:
        for _ in range(3):
            with maker() as session:
                session.scalars(select(Board)).all()
    finally:
        event.listen = before
    assert listening == []


def test_classes_are_not_kept_alive(shards: Any) -> None:
    def use() -> weakref.ref[Any]:
        factory = sessionmaker(class_=ShardedSession, **Choosers(shards).arguments())
        with factory() as session:
            session.scalars(select(Board)).all()
        return weakref.ref(factory.class_)

    found = use()
    gc.collect()
    assert found() is None


def test_bind_shard_concerns_one_session(maker: Any, shards: Any) -> None:
    with maker() as session, maker() as other:
        session.bind_shard("e", shards["a"])
        session.bind_shard("f", shards["a"])
        assert session.get_bind(Board, shard_id="e") is shards["a"]
        assert session.get_bind(Board, shard_id="b") is shards["b"]
        assert "e" not in shards
        with pytest.raises(KeyError):
            other.get_bind(Board, shard_id="e")
    with ShardedSession(**{**Choosers({}).arguments(), "shards": None}) as alone:
        alone.bind_shard("x", shards["a"])
        assert alone.get_bind(Board, shard_id="x") is shards["a"]


def test_listeners_of_the_sessionmaker_are_called_once(maker: Any) -> None:
    """Those of a session are called for each shard, as upstream's are."""
    calls = []
    with ShardedSession(**Choosers({}).arguments()):
        pass
    event.listen(maker, "do_orm_execute", lambda c: calls.append(c.bind_arguments))
    with maker() as session:
        session.scalars(select(Board)).all()
        assert len(calls) == 1
        assert "shard_id" not in calls[0]
        each = []
        event.listen(
            session,
            "do_orm_execute",
            lambda c: each.append(c.bind_arguments["shard_id"]),
        )
        session.scalars(select(Board)).all()
    assert each == NAMES


# -- shards


def test_an_empty_list_of_shards(shards: Any) -> None:
    arguments = {**Choosers(shards).arguments(), "execute_chooser": list}
    arguments["execute_chooser"] = lambda context: []
    with (
        ShardedSession(**arguments) as session,
        pytest.raises(NoShardKeyError, match=r"no shard for: SELECT boards"),
    ):
        session.scalars(select(Board))


def test_any_iterable_of_shards(shards: Any) -> None:
    arguments = Choosers(shards).arguments()
    arguments["execute_chooser"] = lambda context: (n for n in "bc")
    with ShardedSession(**arguments) as session:
        assert [b.shard for b in session.scalars(select(Board))] == ["b", "c"]


def test_named_shards(maker: Any) -> None:
    with maker() as session:
        for found in (
            session.scalars(select(Board).options(set_shard_id("c"))),
            session.scalars(select(Board), bind_arguments={"shard_id": "c"}),
            session.scalars(select(Board), execution_options={"identity_token": "c"}),
            session.query(Board).set_shard("c"),
            session.scalars(select(Board).execution_options(_sa_shard_id="c")),
        ):
            assert [board.shard for board in found] == ["c"]
        assert session.get(Board, 1, identity_token="b").shard == "b"


def test_set_shard_id_holds_for_eager_loads(maker: Any) -> None:
    """Also where the statement was compiled without it before."""
    statement = select(Board).options(selectinload(Board.pins))
    with maker() as session:
        session.scalars(statement).all()
    with maker() as session:
        found = session.scalars(statement.options(set_shard_id("b"))).all()
        links = [pin.link for pin in found[0].pins]
    assert links == ["b 1 0", "b 1 1"]


def test_shard_0(tmp_path: Any, lanes: Lanes) -> None:
    """SQLAlchemy takes 0 for no shard."""
    shards = engines_in(tmp_path, range(3))
    fill(shards)
    asked = []
    choosers = Choosers(shards)

    def execute(context: Any) -> Any:
        if not context.is_relationship_load:
            asked.append(context.statement)
        return choosers.execute(context)

    arguments = {**choosers.arguments(), "execute_chooser": execute}
    factory = sessionmaker(class_=ShardedSession, lanes=lanes, **arguments)
    with factory() as session:
        found = session.scalars(select(Board)).all()
        assert [inspect(board).identity_token for board in found] == [0, 1, 2]
        asked.clear()
        session.refresh(found[0])
        session.commit()
        assert [board.shard for board in found] == ["0", "1", "2"]
        found[0].title = "changed"
        session.commit()
    with factory() as session:
        board = session.get(Board, 1, identity_token=0)
        assert (board.shard, board.title) == ("0", "changed")
        session.expunge_all()
        assert session.merge(board).shard == "0"
        new = Board(id=9, shard="0")
        session.add(new)
        session.flush()
        assert inspect(new).identity_token == 0
        session.delete(new)
        session.commit()
    assert asked == []
    for engine in shards.values():
        engine.dispose()


def test_a_connection_outside_of_a_transaction(maker: Any) -> None:
    with maker() as session:
        found = session.connection_callable(inspect(Board), shard_id="b")
        with found:
            assert found.scalar(select(Board.shard)) == "b"
        again = session.connection(bind_arguments={"shard_id": "a"})
        assert session.connection_callable(inspect(Board), shard_id="a") is again


def test_choosers_of_older_applications(shards: Any) -> None:
    choosers = Choosers(shards)
    with pytest.warns(DeprecationWarning, match="_chooser") as warned:
        session = ShardedSession(
            choosers.shard,
            id_chooser=lambda query, ident: ["b"],
            query_chooser=lambda statement: ["b", "c"],
            shards=shards,
        )
    assert len(warned) == 2
    with session:
        found = session.query(Board).all()
        assert [board.shard for board in found] == ["b", "c"]
        assert session.get(Board, 1) is found[0]


@pytest.mark.parametrize("missing", ["identity_chooser", "execute_chooser"])
def test_a_chooser_is_missing(missing: str) -> None:
    arguments = Choosers({}).arguments()
    del arguments[missing]
    with pytest.raises(ArgumentError, match=missing):
        ShardedSession(**arguments)


# -- asyncio


async def queried_together(directory: Any, lanes: Lanes) -> None:
    async_engines = {
        name: create_async_engine(
            f"sqlite+aiosqlite:///{directory}/shard_{name}.sqlite"
        )
        for name in NAMES
    }
    shards = {name: e.sync_engine for name, e in async_engines.items()}
    factory = async_sessionmaker(
        sync_session_class=ShardedSession,
        lanes=lanes,
        expire_on_commit=False,
        **Choosers(shards).arguments(),
    )
    barrier = threading.Barrier(4, timeout=TIMEOUT)

    def connected(connection: Any, record: Any) -> None:
        await_only(
            connection.driver_connection.create_function("meet", 0, barrier.wait)
        )

    for engine in shards.values():
        event.listen(engine, "connect", connected)
    loaded: list[str] = []

    def load(board: Any, context: Any) -> None:
        loaded.append(board.shard)

    event.listen(Board, "load", load)
    try:
        async with factory() as session:
            meet = text("meet() >= 0")
            found = (await session.scalars(select(Board).where(meet))).all()
            assert [board.shard for board in found] == NAMES
            assert loaded == NAMES
            statement = select(Board).options(selectinload(Board.pins))
            again = (await session.scalars(statement)).all()
            assert [len(board.pins) for board in again] == [8] * 4
            done = await session.execute(update(Board).values(title="it"))
            assert done.rowcount == 4
            with pytest.raises(OperationalError, match="no such column"):
                await session.scalars(select(Board).where(text("missing = 1")))
            await session.rollback()
            assert len((await session.scalars(select(Board))).all()) == 4
    finally:
        event.remove(Board, "load", load)
        for each in async_engines.values():
            await each.dispose()


def test_asyncio(tmp_path: Any, lanes: Lanes) -> None:
    """The lanes are awaited together, without a thread of ours."""
    plain = engines_in(tmp_path, NAMES)
    fill(plain)
    for engine in plain.values():
        engine.dispose()
    asyncio.run(queried_together(tmp_path, lanes))
    assert lane_threads() == 0
