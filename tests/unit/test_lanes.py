"""Jobs that wait at the same time."""

from __future__ import annotations

import contextvars
import os
import threading

import pytest

from sqla_shard.scatter import Lanes

TIMEOUT = 20


def lane_threads() -> int:
    return sum(
        t.name.startswith("sqla-shard-lane") for t in threading.enumerate()
    )


def test_all_run_at_the_same_time_and_answer_in_order() -> None:
    lanes = Lanes(3)
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
    before = threading.active_count()
    assert Lanes(1).run([lambda: 5]) == [5]
    assert threading.active_count() == before


def test_fewer_threads_than_jobs() -> None:
    lanes = Lanes(1)
    assert lanes.run([lambda n=n: n for n in range(50)]) == list(range(50))
    assert lane_threads() <= 1
    lanes.close()


@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_waits_for_the_others(
    failing: int, error: type[BaseException]
) -> None:
    lanes = Lanes(4)
    raised = threading.Event()
    ended = []

    def fails() -> None:
        raised.set()
        raise error("this one")

    def ends_later() -> None:
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
        lanes.run(
            [lambda: None, lambda: fails("second"), lambda: fails("third")]
        )
    lanes.close()


def test_context_variables_are_seen() -> None:
    lanes = Lanes(1)
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("v")
    variable.set(7)
    assert lanes.run([variable.get, variable.get]) == [7, 7]
    lanes.close()


def test_many_sessions_share_the_threads() -> None:
    lanes = Lanes(2)
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
def test_what_is_no_number_of_threads(threads: object) -> None:
    with pytest.raises(ValueError, match=f"threads={threads}"):
        Lanes(threads)  # type: ignore[arg-type]  # what is tested
