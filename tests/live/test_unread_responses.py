"""Exceptions that end a call of a driver before its response is read.

As those of signal handlers: time limits of workers, decorators with a
time-out.  The connection must not be used again, since its next statement
would get the response that was left.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Generator, Iterator
from typing import Any

import pytest
from sqlalchemy import func, literal, make_url, select, String, update
from sqlalchemy.exc import DBAPIError, OperationalError, StatementError
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqla_shard import Cluster, ObjectMixin, scatter
from sqla_shard.dialects.mysql import MySQL
from sqla_shard.dialects.mysql.asyncmy_connections import _class_of
from sqla_shard.exc import CommitUnknownError
from sqla_shard.testing.server_fleet import ServerFleet

pytestmark = pytest.mark.live

_SHARDS = 4
#: How many tasks are cancelled.
_CANCELLED = 2500 if os.environ.get("SQLA_SHARD_SOAK") == "1" else 30


class Base(DeclarativeBase):
    pass


class Mark(ObjectMixin, Base, type_id=51):
    __tablename__ = "marks"

    note: Mapped[str | None] = mapped_column(String(40))


class LimitError(Exception):
    """Raised by the handler of a signal."""


@pytest.fixture(scope="module", params=["pymysql", "mysqldb"])
def cluster(
    request: pytest.FixtureRequest, fleet: ServerFleet[Any]
) -> Iterator[Cluster]:
    if request.param == "mysqldb":
        pytest.importorskip("MySQLdb")
    document = fleet.topology_mapping(
        shards=4, database="db_unread{shard:05d}", main=False
    )
    with Cluster.from_topology(
        document,
        environ=fleet.environ,
        driver=request.param,
        engine_options={"pool_size": 1, "max_overflow": 0},
    ) as cluster:
        cluster.create_all(Base.metadata)
        with cluster.begin() as session:
            session.add(Mark(note="one", shard_id=0))
        yield cluster
    fleet.drop_databases(document)


@pytest.fixture
def async_cluster(fleet: ServerFleet[Any]) -> Iterator[Cluster]:
    pytest.importorskip("asyncmy")
    document = fleet.topology_mapping(
        shards=_SHARDS, database="db_awaited{shard:05d}", main=False
    )
    options = {"pool_size": 1, "max_overflow": 0}
    with Cluster.from_topology(
        document, environ=fleet.environ, engine_options=options
    ) as cluster:
        cluster.create_all(Base.metadata)
        with cluster.begin(cross_shard="unordered") as session:
            session.add_all(Mark(note="one", shard_id=n) for n in range(_SHARDS))
        yield cluster
    fleet.drop_databases(document)


#: Modules of the calls, and functions that end a connection, in which an
#: exception is only logged, or open one.
_CALLS = (
    "pymysql.connections",
    "pymysql.cursors",
    "MySQLdb.",
    "sqla_shard.dialects.mysql.mysqlclient_connections",
    "sqla_shard.dialects.mysql.pymysql_",
    "sqla_shard.dialects.polling",
)
_OUTSIDE = frozenset({"close", "_force_close", "connect", "__del__"})


class Interrupting:
    """Raises an exception at one of the lines that drivers execute.

    A line is counted when it is first executed and once again.

    :param at: the number of the line.
    """

    def __init__(self, at: int) -> None:
        self._left = at
        self._seen: Counter[tuple[Any, int]] = Counter()
        self.raised = False

    def __enter__(self) -> Interrupting:
        self._before = sys.gettrace()
        sys.settrace(self._on_call)
        return self

    def __exit__(self, *raised: object) -> None:
        sys.settrace(self._before)

    def _on_call(self, frame: Any, event: str, value: Any) -> Any:
        name = frame.f_globals.get("__name__", "")
        if frame.f_code.co_name in _OUTSIDE or not name.startswith(_CALLS):
            return None
        return self._on_line

    def _on_line(self, frame: Any, event: str, value: Any) -> Any:
        if event == "line" and not self.raised:
            line = frame.f_code, frame.f_lineno
            self._seen[line] += 1
            self._left -= self._seen[line] <= 2
            if self._left < 0:
                self.raised = True
                raise LimitError
        return self._on_line


def _select(cluster: Cluster, token: str) -> Any:
    with cluster.session() as session:
        return session.scalar(
            select(literal(token)).select_from(Mark), bind_arguments={"shard_id": 0}
        )


def _write(cluster: Cluster, token: str) -> Any:
    with cluster.begin() as session:
        session.execute(update(Mark).values(note=token), bind_arguments={"shard_id": 0})


@pytest.mark.parametrize("work", [_select, _write])
def test_no_later_statement_gets_the_response(
    cluster: Cluster, work: Callable[[Cluster, str], Any]
) -> None:
    """Whichever line the exception interrupts, up to the ROLLBACK."""
    number = interrupted = 0
    raised = True
    while raised:
        # Whose connection the next one has, and whose ROLLBACK is read.
        assert _select(cluster, f"first {number}") == f"first {number}"
        with Interrupting(number) as interrupting:
            try:
                work(cluster, f"interrupted {number}")
            except (LimitError, CommitUnknownError):
                interrupted += 1
            except StatementError as error:
                # The statement was being prepared.
                if not isinstance(error.orig, LimitError):
                    raise
        assert _select(cluster, f"later {number}") == f"later {number}"
        raised = interrupting.raised
        number += 1
    assert interrupted


@pytest.mark.parametrize("begins", [True, False])
def test_a_transaction_does_not_get_the_error_of_an_earlier_rollback(
    cluster: Cluster, fleet: ServerFleet[Any], begins: bool
) -> None:
    """The same connection, which was lost before ROLLBACK was sent."""
    with cluster.session() as session:
        engine = session.connection(bind_arguments={"shard_id": 0}).engine
    with engine.connect() as connection:
        with connection.begin():
            number = connection.scalar(select(func.connection_id()))
        transaction = connection.begin()
        assert connection.scalar(select(func.connection_id())) == number
        fleet.servers[0].root_execute(f"KILL {number}")
        with pytest.raises(DBAPIError):
            transaction.rollback()
        if begins:
            connection.begin()
        assert connection.scalar(select(literal("other"))) == "other"
        assert connection.scalar(select(func.connection_id())) != number
        connection.rollback()


def test_engines_share_a_class_of_connections(async_cluster: Cluster) -> None:
    """Each class has settings of TLS, which are half a megabyte."""

    async def main() -> None:
        await async_cluster.async_health()
        first = _class_of.cache_info().misses
        await async_cluster.async_health()
        assert _class_of.cache_info().misses == first

    asyncio.run(main())


def test_a_response_that_drips_ends(fleet: ServerFleet[Any]) -> None:
    """With asyncmy, whose own limit begins again with each byte."""
    pytest.importorskip("asyncmy")
    url = make_url(fleet.servers[0].url)

    async def main() -> None:
        drips, ended = asyncio.Event(), asyncio.Event()

        async def pump(reader: Any, writer: Any, *, can_drip: bool) -> None:
            while data := await reader.read(65536):
                parts = [bytes([byte]) for byte in data]
                for part in parts if can_drip and drips.is_set() else [data]:
                    writer.write(part)
                    await writer.drain()
                    if part is not data:
                        await asyncio.sleep(0.1)
            writer.close()

        async def serve(reader: Any, writer: Any) -> None:
            up = await asyncio.open_connection(url.host, url.port)
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(pump(reader, up[1], can_drip=False))
                    group.create_task(pump(up[0], writer, can_drip=True))
            except* ConnectionError:
                pass  # the driver has closed the connection
            for one in (writer, up[1]):
                one.close()
                with contextlib.suppress(ConnectionError):
                    await one.wait_closed()
            ended.set()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        limits = {"read_timeout": 1, "ssl_disabled": True}
        engine = MySQL("asyncmy", asynchronous=True).open(
            url.set(drivername="mysql+asyncmy", host=host, port=port),
            {"connect_args": limits},
        )
        async with AsyncEngine(engine).connect() as connection:
            assert await connection.scalar(select(literal("whole"))) == "whole"
            drips.set()
            async with asyncio.timeout(8):
                with pytest.raises(OperationalError, match="read timeout"):
                    await connection.scalar(select(literal("x" * 200)))
            assert connection.invalidated
        engine.dispose()
        server.close()
        async with asyncio.timeout(8):
            await ended.wait()

    asyncio.run(main())


class Suspending:
    """Runs a coroutine, and ends it where it waits.

    :param at: the number of the wait.
    :param way: ``"before"`` cancels the task before the response arrives,
        ``"after"`` when it has, and ``"raise"`` lets the handler of a signal
        raise an exception then.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, Any], at: int, way: str) -> None:
        self._coroutine = coroutine
        self._left = at
        self._way = way
        self.raised = False

    def __await__(self) -> Generator[Any, Any, Any]:
        task: Any = asyncio.current_task()
        steps = self._coroutine.__await__()
        error: BaseException | None = None
        while True:
            try:
                waited = steps.send(None) if error is None else steps.throw(error)
            except StopIteration as end:
                return end.value
            error = None
            self.raised |= (here := self._left == 0)
            self._left -= 1
            if here and self._way == "before":
                task.cancel()
            elif here and self._way == "after" and waited is not None:
                # Before the task's own callback.
                waited.add_done_callback(lambda done: task.cancel())
            try:
                yield waited
                if here and self._way == "raise":
                    error = LimitError()
            except BaseException as raised:  # the coroutine gets it
                error = raised


async def _async_select(cluster: Cluster, token: str) -> Any:
    async with cluster.async_session() as session:
        return await session.scalar(
            select(literal(token)).select_from(Mark), bind_arguments={"shard_id": 0}
        )


async def _async_stream(cluster: Cluster, token: str) -> Any:
    async with cluster.async_session() as session:
        found = await session.stream_scalars(
            select(literal(token)).select_from(Mark), bind_arguments={"shard_id": 0}
        )
        return [value async for value in found]


async def _async_write(cluster: Cluster, token: str) -> Any:
    async with cluster.async_begin() as session:
        await session.execute(
            update(Mark).values(note=token), bind_arguments={"shard_id": 0}
        )


@pytest.mark.parametrize("work", [_async_select, _async_stream, _async_write])
def test_no_later_task_gets_the_response(
    async_cluster: Cluster, work: Callable[[Cluster, str], Any]
) -> None:
    """Wherever a task that waits is ended."""

    async def end_each(way: str) -> int:
        number = interrupted = 0
        raised = True
        while raised:
            first = f"first {number}"
            assert await _async_select(async_cluster, first) == first
            suspending = Suspending(
                work(async_cluster, f"interrupted {number}"), number, way
            )

            async def run(one: Suspending = suspending) -> None:
                await one

            task = asyncio.ensure_future(run())
            await asyncio.wait([task], timeout=30)
            assert task.done()
            if task.cancelled():
                interrupted += 1
            elif (error := task.exception()) is not None:
                assert isinstance(error, (LimitError, CommitUnknownError)), error
                interrupted += 1
            later = f"later {number}"
            async with asyncio.timeout(10):
                assert await _async_select(async_cluster, later) == later
            raised = suspending.raised
            number += 1
        return interrupted

    async def main() -> None:
        for way in ("before", "after", "raise"):
            assert await end_each(way)

    asyncio.run(main())


async def _async_scatter(cluster: Cluster, token: str) -> Any:
    async with cluster.async_session() as session:
        shown = select(literal(token)).select_from(Mark)
        found = await session.scalars(shown.options(scatter()))
        return found.all()


def test_no_later_scatter_gets_a_response(
    async_cluster: Cluster, rng: random.Random
) -> None:
    """Whenever the task that reads several servers is cancelled."""

    async def cancelled(token: str, after: float) -> bool:
        loop = asyncio.get_running_loop()
        until = loop.time() + after
        task = asyncio.ensure_future(_async_scatter(async_cluster, token))
        while loop.time() < until and not task.done():
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task], timeout=30)
        assert task.done()
        if not task.cancelled():
            assert task.result() == [token] * _SHARDS
        return task.cancelled()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        number = ended = 0
        # As many as it takes, since it depends on the machine how many are
        # done before they are cancelled.
        while ended < _CANCELLED:
            # The first one opens the connections that were cancelled.
            for later in (f"later {number}", f"timed {number}"):
                begun = loop.time()
                async with asyncio.timeout(10):
                    found = await _async_scatter(async_cluster, later)
                assert found == [later] * _SHARDS
            taken = loop.time() - begun
            ended += await cancelled(f"cancelled {number}", rng.random() * taken)
            number += 1
        assert sum(stats.busy for stats in async_cluster.stats()) == 0

    asyncio.run(main())
