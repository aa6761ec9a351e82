"""Threads that run no greenlets leave nothing of greenlet behind.

A state of greenlet is destroyed at the native end of its thread, with a mutex
that a child forked at this moment could never take.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from greenlet import getcurrent
from sqlalchemy import create_engine, text

from sqla_shard.dialects.polling import (
    CAN_POLL,
    polled_call,
    PolledCall,
    PolledSocket,
    Poller,
)
from sqla_shard.engine.overlap import watch_calls
from tests.servers.greenlets import others, thread_greenlets


@contextmanager
def pair() -> Iterator[tuple[PolledSocket, socket.socket]]:
    """Yield the two ends of a connection."""
    left, right = socket.socketpair()
    with PolledSocket(left.family, left.type, fileno=left.detach()) as polled, right:
        polled.settimeout(60)
        right.settimeout(60)
        yield polled, right


def created_by(act: Callable[[], object]) -> int:
    """Return the number of states that a thread has after a call."""
    before = thread_greenlets()

    def job() -> int:
        act()
        return len(others(before))

    with ThreadPoolExecutor(1) as executor:
        return executor.submit(job).result(60)


def exchange() -> None:
    with pair() as (polled, other):
        polled.sendall(b"SELECT 1")
        assert other.recv(8) == b"SELECT 1"
        other.sendall(b"row")
        found = bytearray(3)
        assert polled.recv_into(found) == 3
        assert found == b"row"


def test_a_thread_that_asks_for_its_greenlet_is_noticed() -> None:
    assert created_by(getcurrent) == 1


def test_a_thread_that_polls_nothing_does_not_ask_for_its_greenlet() -> None:
    assert created_by(exchange) == 0


def test_nor_does_a_statement_of_an_engine_whose_statements_overlap() -> None:
    engine = create_engine("sqlite://")
    watch_calls(engine)

    def execute() -> None:
        with engine.connect() as connection:
            assert connection.scalar(text("SELECT 1")) == 1
        engine.dispose()  # by its thread, as SQLite wants it

    assert created_by(execute) == 0


@pytest.mark.skipif(not CAN_POLL, reason="the system cannot poll")
def test_a_thread_polls_after_it_has_read_without() -> None:
    arrived: list[bytes] = []

    def read(polled: PolledSocket) -> None:
        assert polled_call() is not None
        found = bytearray(1)
        polled.recv_into(found)
        arrived.append(bytes(found))

    def job() -> None:
        exchange()
        with pair() as (one, first), pair() as (two, second):
            calls = [PolledCall(lambda: read(one))]
            calls.append(PolledCall(lambda: read(two)))
            poller = Poller()
            for call in calls:
                poller.resume(call)
            # Outside of a call its thread waits as any other.
            assert polled_call() is None
            for other, byte in ((second, b"2"), (first, b"1")):
                other.sendall(byte)
                poller.step(60)
        assert [call.failure for call in calls] == [None, None]

    with ThreadPoolExecutor(1) as executor:
        executor.submit(job).result(60)
    assert arrived == [b"2", b"1"]
