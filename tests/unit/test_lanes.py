"""Jobs that wait at the same time."""

from __future__ import annotations

import contextlib
import contextvars
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import wait
from contextlib import contextmanager
from typing import Any

import pytest

from sqla_shard.engine import Lanes
from sqla_shard.engine.lanes import LaneTask
from sqla_shard.engine.overlap import Hub, Lane
from tests.servers.interrupting import interruptible
from tests.servers.processes import running, started_since

TIMEOUT = 60
#: Threads of this name are none of a cluster that another test has left.
NAME = "lane-of-this-test"


def lane_threads() -> int:
    return sum(t.name.startswith(NAME) for t in threading.enumerate())


def test_all_run_at_the_same_time_and_answer_in_order() -> None:
    lanes = Lanes(3, NAME)
    barrier = threading.Barrier(4, timeout=TIMEOUT)

    def job(number: int) -> tuple[int, str]:
        barrier.wait()
        return number, threading.current_thread().name

    found = lanes.run([lambda n=n: job(n) for n in range(4)])
    assert [number for number, _ in found] == [0, 1, 2, 3]
    # The first one stays in the session's thread.
    assert found[0][1] == threading.current_thread().name
    assert len({name for _, name in found}) == 4
    lanes.close()
    assert lane_threads() == 0


def test_one_job_needs_no_thread() -> None:
    before = running()
    assert Lanes(1).run([lambda: 5]) == [5]
    assert started_since(before) == []


def test_fewer_threads_than_jobs() -> None:
    lanes = Lanes(1, NAME)
    assert lanes.run([lambda n=n: n for n in range(50)]) == list(range(50))
    assert lane_threads() <= 1
    lanes.close()


@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_waits_for_the_others(
    failing: int, error: type[BaseException]
) -> None:
    lanes = Lanes(4, per_server=4)
    begun = threading.Barrier(4, timeout=TIMEOUT)
    raised = threading.Event()
    ended = []

    def fails() -> None:
        begun.wait()
        raised.set()
        raise error("this one")

    def ends_later() -> None:
        begun.wait()
        assert raised.wait(TIMEOUT)
        ended.append(1)

    jobs = [ends_later, ends_later, ends_later]
    jobs.insert(failing, fails)
    with pytest.raises(error, match="this one"):
        lanes.run(jobs)
    assert len(ended) == 3
    lanes.close()


def test_the_first_error_in_order_is_raised() -> None:
    lanes = Lanes(2)

    def fails(name: str) -> None:
        raise ValueError(name)

    with pytest.raises(ValueError, match="second"):
        lanes.run([lambda: None, lambda: fails("second"), lambda: fails("third")])
    lanes.close()


def test_context_variables_are_seen() -> None:
    lanes = Lanes(1)
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("v")
    variable.set(7)
    assert lanes.run([variable.get, variable.get]) == [7, 7]
    lanes.close()


def test_many_sessions_share_the_threads() -> None:
    lanes = Lanes(2, NAME)
    found = []

    def session() -> None:
        for _ in range(50):
            found.extend(lanes.run([lambda: 1, lambda: 1, lambda: 1]))

    threads = [threading.Thread(target=session) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    assert len(found) == 8 * 50 * 3
    assert lane_threads() <= 2
    lanes.close()


def test_used_again_after_closing() -> None:
    lanes = Lanes(1)
    lanes.close()
    assert lanes.run([lambda: 1, lambda: 2]) == [1, 2]
    lanes.close()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_process_has_threads_of_its_own() -> None:
    lanes = Lanes(1)
    lanes.run([lambda: 1, lambda: 2])
    child = os.fork()
    if child == 0:
        code = 1
        try:
            lanes.after_fork()
            code = 0 if lanes.run([lambda: 3, lambda: 4]) == [3, 4] else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    lanes.close()


@pytest.mark.parametrize("threads", [0, -1, 1.5, True, None])
def test_invalid_numbers_of_threads(threads: object) -> None:
    with pytest.raises(ValueError, match=f"threads={threads}"):
        Lanes(threads)  # type: ignore[arg-type]  # what is tested


def test_closing_does_not_wait_for_a_job_that_hangs() -> None:
    lanes = Lanes(1)
    begun, go = threading.Event(), threading.Event()

    def hangs() -> int:
        begun.set()
        assert go.wait(TIMEOUT)
        return 2

    found: list[int] = []
    reader = threading.Thread(
        target=lambda: found.extend(lanes.run([lambda: 1, hangs]))
    )
    reader.start()
    assert begun.wait(TIMEOUT)
    lanes.close(wait=False)
    assert not found
    go.set()
    reader.join(TIMEOUT)
    assert found == [1, 2]


def test_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """The jobs run one after another, each of them once."""
    start = threading.Thread.start

    def fails(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    lanes = Lanes(2)
    ran: list[int] = []
    monkeypatch.setattr(threading.Thread, "start", fails)
    lanes.run([lambda n=n: ran.append(n) for n in range(4)])
    assert ran == [0, 1, 2, 3]

    def error() -> None:
        raise ValueError("this one")

    with pytest.raises(ValueError, match="this one"):
        lanes.run([error, lambda: ran.append(4), lambda: ran.append(5)])
    monkeypatch.setattr(threading.Thread, "start", start)
    # The executor still has the work that it could not start.
    assert lanes.run([lambda: 7, lambda: 8]) == [7, 8]
    lanes.close()
    assert ran == [0, 1, 2, 3]


def test_threads_that_outlive_the_main_thread() -> None:
    code = (
        "import threading\n"
        "from sqla_shard.engine import Lanes\n"
        "main = threading.main_thread()\n"
        "def work():\n"
        "    main.join()\n"
        "    print(Lanes(2).run([lambda: 1, lambda: 2]))\n"
        "threading.Thread(target=work).start()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        # A machine that is busy needs half a minute to import all of it.
        timeout=120,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("[1, 2]\n", "")


@pytest.mark.parametrize("where", ["first", "waiting"])
def test_an_interrupt_ends_what_is_running(where: str) -> None:
    lanes = Lanes(1)
    begun, aborted = threading.Event(), threading.Event()
    seen: list[int] = []
    never: list[int] = []

    def hangs() -> None:
        if where == "waiting":
            interrupt()
        else:
            begun.set()
        assert aborted.wait(TIMEOUT)
        raise ValueError("its connection was cut")

    def first() -> None:
        # Otherwise this thread might run the next job itself.
        assert begun.wait(TIMEOUT)
        raise KeyboardInterrupt

    def abort(index: int) -> None:
        seen.append(index)
        aborted.set()

    with interruptible() as interrupt, pytest.raises(KeyboardInterrupt):
        lanes.run([first, hangs, lambda: never.append(1)], abort)
    assert seen == [1]
    lanes.close()
    # It had not started: nothing uses its connection any more.
    assert not never


def test_a_lock_that_ctrl_c_has_broken_counts_as_ctrl_c() -> None:
    lanes = Lanes(4, per_server=4)
    begun, aborted = threading.Event(), threading.Event()

    def hangs() -> None:
        begun.set()
        assert aborted.wait(TIMEOUT)

    def first() -> None:
        assert begun.wait(TIMEOUT)
        lock = threading.Lock()
        with lock:
            # As in Condition.wait(), which has not taken it again yet.
            lock.release()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lanes.run([first, hangs], lambda index: aborted.set())
    assert aborted.is_set()
    lanes.close()


@contextmanager
def occupied(lanes: Lanes, count: int, server: str) -> Iterator[None]:
    """Let some threads wait for a server that does not answer."""
    go = threading.Event()
    begun = threading.Barrier(count + 1, timeout=TIMEOUT)

    def hangs() -> None:
        begun.wait()
        assert go.wait(TIMEOUT)

    def first() -> None:
        begun.wait()
        assert go.wait(TIMEOUT)

    jobs = [first, *[hangs] * (count - 1)]
    session = threading.Thread(
        target=lanes.run, args=([lambda: None, *jobs], None, [server] * 99)
    )
    session.start()
    begun.wait()
    try:
        yield
    finally:
        go.set()
        session.join(TIMEOUT)
    assert not session.is_alive()


def test_attempts_wait_for_their_own_server_alone() -> None:
    """One that hangs takes a part of the threads, and no more time."""
    lanes = Lanes(4, per_server=2)
    ran: list[str] = []
    with occupied(lanes, 3, "hangs"):
        rounds = 0
        # On a machine that is busy none may end in its hundredth of a second.
        while rounds < 20 or (not ran and rounds < 2000):
            rounds += 1
            hung, works = lanes.attempt(
                [lambda: ran.append("hung"), lambda: ran.append("works")],
                0.01,
                ["hangs", "works"],
            )
            assert hung.cancelled()
        wait([works], TIMEOUT)
        assert works.done()
        assert "hung" not in ran
        # All of the second server's were started, and some have ended in time.
        assert ran
    (found,) = lanes.attempt([lambda: 5], TIMEOUT, ["hangs"])
    assert found.result() == 5
    lanes.close()
    assert "hung" not in ran


def test_an_attempt_begins_when_another_has_ended() -> None:
    lanes = Lanes(4, per_server=1)
    threads: list[str] = []
    jobs = [lambda: threads.append(threading.current_thread().name) for _ in range(20)]
    futures = lanes.attempt(jobs, TIMEOUT, ["one"] * 20)
    assert all(future.done() for future in futures)
    assert len(threads) == 20
    assert threading.current_thread().name not in threads
    lanes.close()


def test_an_error_does_not_wait_for_a_thread_to_be_free() -> None:
    lanes = Lanes(1)
    ran: list[int] = []

    def fails() -> None:
        raise ValueError("this one")

    with occupied(lanes, 2, "hangs"), pytest.raises(ValueError, match="this one"):
        lanes.run([fails, lambda: ran.append(1)])
    lanes.close()
    assert not ran


def test_an_interrupt_in_what_the_own_thread_has_taken_over() -> None:
    """Nothing is started after it, and the others are ended."""
    lanes = Lanes(2, per_server=1)
    begun, aborted = threading.Event(), threading.Event()
    never: list[int] = []
    seen: list[int] = []

    def hangs() -> None:
        begun.set()
        assert aborted.wait(TIMEOUT)

    def interrupted() -> None:
        assert begun.wait(TIMEOUT)
        raise KeyboardInterrupt

    def abort(index: int) -> None:
        seen.append(index)
        aborted.set()

    with pytest.raises(KeyboardInterrupt):
        lanes.run(
            [lambda: begun.wait(TIMEOUT), hangs, interrupted, lambda: never.append(1)],
            abort,
            ["one", "one", "one", "one"],
        )
    assert seen == [1]
    assert not never
    lanes.close()


def test_an_interrupt_while_a_thread_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The place that was taken for it is free again."""
    lanes = Lanes(2, per_server=1)
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        raise KeyboardInterrupt

    for _ in range(3):
        monkeypatch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            lanes.run([lambda: 1, lambda: 2], None, ["one", "one"])
    monkeypatch.setattr(threading.Thread, "start", start)
    lanes.close()
    barrier = threading.Barrier(2, timeout=TIMEOUT)
    lanes.run([barrier.wait, barrier.wait], None, ["one", "one"])
    lanes.close()


def test_an_interrupt_while_a_lock_is_acquired_in_submit() -> None:
    def interrupt(frame: Any, event: str, argument: object) -> Any:
        # When the condition of a semaphore has been acquired: the statement
        # that would release it has not begun.
        caller = frame.f_back
        if (
            event == "return"
            and frame.f_code is threading.Condition.__enter__.__code__
            and caller.f_code.co_filename == threading.__file__
            and caller.f_code.co_name == "acquire"
        ):
            raise KeyboardInterrupt
        return interrupt

    lanes = Lanes(2)
    traced = sys.gettrace()
    sys.settrace(interrupt)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            lanes.begin(LaneTask(lambda: None))
    finally:
        sys.settrace(traced)
    assert lanes.drain(20)
    for _ in range(3):
        meeting = threading.Barrier(3)
        tasks = [LaneTask(meeting.wait) for _ in range(2)]
        for task in tasks:
            lanes.begin(task)
        meeting.wait(60)
        assert not wait([task.future for task in tasks], 20).not_done
    lanes.close()


@pytest.mark.parametrize("line", ["first", "last"])
def test_an_interrupt_beside_what_a_lane_does(
    monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    """At the first or the last line of a greenlet nothing catches it."""
    go = Lane._go
    done: list[Lane] = []

    def interrupted(lane: Lane) -> None:
        done.append(lane)
        if line == "last" or len(done) > 1:
            go(lane)
        if len(done) == 1:
            raise KeyboardInterrupt

    def run() -> None:
        try:
            Hub(Lanes(1)).run([lambda: 1, lambda: 2])
        except KeyboardInterrupt:
            raised.set()

    monkeypatch.setattr(Lane, "_go", interrupted)
    raised = threading.Event()
    # In a thread: what does not end here would take no other interrupt.
    threading.Thread(target=run, daemon=True).start()
    assert raised.wait(TIMEOUT)
    assert len(done) == 1


def test_a_deadline_that_fails_does_not_stop_the_clock(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lanes = Lanes(1)
    called = threading.Event()

    def fails() -> None:
        raise ValueError("this one")

    lanes.call_later(0.0, fails)
    lanes.call_later(0.01, called.set)
    assert called.wait(TIMEOUT)
    assert "this one" in caplog.text
    lanes.close()
