"""The lock on the use of a session, after interruptions and forks."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

import pytest

from sqla_shard.exc import ConcurrentUseError
from sqla_shard.session import connections as module
from sqla_shard.session.connections import Usage


def refused(usage: Usage) -> bool:
    """Tell whether another thread may not use it."""
    found: list[bool] = []

    def use() -> None:
        try:
            with usage:
                found.append(False)
        except ConcurrentUseError:
            found.append(True)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    return found[0]


def test_one_at_a_time() -> None:
    usage = Usage()
    with usage:
        assert refused(usage)
        with usage:
            assert refused(usage)
        assert refused(usage)
    assert not refused(usage)


def interrupted(usage: Usage, line: int) -> bool:
    """Enter and leave, with Ctrl-C before a line of either; say if it came."""
    came = False

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal came
        inside = frame.f_code.co_filename == module.__file__
        if event == "line" and inside and frame.f_lineno == line and not came:
            came = True
            raise KeyboardInterrupt
        return trace

    before = threading.gettrace()
    sys.settrace(trace)
    try:
        with usage:
            pass
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    return came


def test_an_interruption_anywhere_releases_the_lock() -> None:
    with open(module.__file__) as file:
        lines = len(file.readlines())
    count = 0
    for line in range(1, lines + 1):
        usage = Usage()
        if interrupted(usage, line):
            count += 1
            with usage:  # whoever was interrupted can go on,
                usage.end()  # and close the session,
            assert not refused(usage)  # which others can use then
    assert count >= 5


def test_a_child_does_not_wait_for_threads_of_its_parent() -> None:
    usage = Usage()
    entered, ended = threading.Event(), threading.Event()

    def use() -> None:
        with usage:
            entered.set()
            ended.wait(60)

    thread = threading.Thread(target=use)
    thread.start()
    try:
        assert entered.wait(60)
        with pytest.raises(ConcurrentUseError), usage:
            pass
        child = os.fork()
        if child == 0:
            status = 1
            try:
                with usage:
                    status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
    finally:
        ended.set()
        thread.join()
