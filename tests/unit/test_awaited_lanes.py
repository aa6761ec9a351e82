"""Jobs that are awaited at the same time, in one thread."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy.exc import MissingGreenlet
from sqlalchemy.util import await_only, greenlet_spawn

from sqla_shard.engine import AwaitedLanes


def in_loop(call: Callable[[], Any]) -> Any:
    async def main() -> Any:
        return await asyncio.wait_for(greenlet_spawn(call), 20)

    return asyncio.run(main())


def waits(event: asyncio.Event) -> None:
    await_only(event.wait())


def test_all_run_at_the_same_time_and_answer_in_order() -> None:
    events = [asyncio.Event() for _ in range(4)]

    def job(number: int) -> tuple[int, int]:
        # Each needs the next one to have started.
        events[number].set()
        waits(events[(number + 1) % 4])
        return number, threading.get_ident()

    found = in_loop(lambda: AwaitedLanes().run([lambda n=n: job(n) for n in range(4)]))
    assert found == [(n, threading.get_ident()) for n in range(4)]


@pytest.mark.parametrize("failing", [0, 1, 3])
def test_an_error_waits_for_the_others(failing: int) -> None:
    raised = asyncio.Event()
    ended = []

    def fails() -> None:
        raised.set()
        raise ValueError("this one")

    def ends_later() -> None:
        waits(raised)
        ended.append(1)

    jobs = [ends_later, ends_later, ends_later]
    jobs.insert(failing, fails)
    with pytest.raises(ValueError, match="this one"):
        in_loop(lambda: AwaitedLanes().run(jobs))
    assert len(ended) == 3


def test_the_first_error_in_order_is_raised() -> None:
    def fails(name: str) -> None:
        raise ValueError(name)

    jobs = [lambda: None, lambda: fails("second"), lambda: fails("third")]
    with pytest.raises(ValueError, match="second"):
        in_loop(lambda: AwaitedLanes().run(jobs))


def test_cancelled_all_end_before_it_is_raised() -> None:
    begun, ended = asyncio.Event(), []

    def job(number: int) -> None:
        if number == 2:
            begun.set()
        try:
            waits(asyncio.Event())
        finally:
            # As a connection takes a moment to be closed.
            await_only(asyncio.sleep(0))
            ended.append(number)

    async def main() -> None:
        jobs = [lambda n=n: job(n) for n in range(3)]
        task = asyncio.ensure_future(greenlet_spawn(AwaitedLanes().run, jobs))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert sorted(ended) == [0, 1, 2]

    asyncio.run(main())


def test_context_variables_are_seen() -> None:
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("v")

    def both() -> list[int]:
        variable.set(7)
        return AwaitedLanes().run([variable.get, variable.get])

    assert in_loop(both) == [7, 7]


def test_attempts_that_take_too_long_are_cancelled() -> None:
    cancelled = []

    def late() -> None:
        try:
            waits(asyncio.Event())
        except asyncio.CancelledError:
            cancelled.append(1)
            raise

    def fails() -> None:
        raise ValueError("at once")

    jobs: list[Callable[[], Any]] = [lambda: 1, late, fails]
    found = in_loop(lambda: AwaitedLanes().attempt(jobs, 0.05))
    assert [future.done() for future in found] == [True, False, True]
    assert found[0].result() == 1
    assert isinstance(found[2].exception(), ValueError)
    assert cancelled == [1]


def test_calls_can_be_taken_back() -> None:
    async def main() -> list[str]:
        called: list[str] = []
        second = asyncio.Event()
        lanes = AwaitedLanes()
        cancel = lanes.call_later(0, lambda: called.append("first"))
        lanes.call_later(0.01, second.set)
        cancel()
        await second.wait()
        return called

    assert asyncio.run(main()) == []


def test_without_a_greenlet_nothing_is_started() -> None:
    begun: list[int] = []

    async def main() -> None:
        with pytest.raises(MissingGreenlet):
            AwaitedLanes().run([lambda: begun.append(1)] * 2)
        await asyncio.sleep(0)

    asyncio.run(main())
    assert begun == []
