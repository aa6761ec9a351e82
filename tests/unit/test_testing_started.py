"""The common part of servers for tests, without a server."""

from __future__ import annotations

import threading

import pytest

from sqla_shard import exc
from sqla_shard.testing.local_server import in_parallel, on_free_ports, Startable

TAKEN = "bind: Address already in use"


class Starts:
    """Fails with these logs, one a start, and then no more."""

    def __init__(self, *logs):
        self.logs = list(logs)
        self.count = 0

    def __call__(self):
        self.count += 1
        if self.logs:
            raise exc.ServerProcessError("no start", log=self.logs.pop(0))


def test_a_port_that_was_taken_costs_one_more_start():
    start = Starts(TAKEN)
    on_free_ports(start)
    assert start.count == 2


def test_ports_that_are_always_taken_are_given_up():
    start = Starts(TAKEN, TAKEN, f"{TAKEN}, the third", TAKEN)
    with pytest.raises(exc.ServerProcessError) as info:
        on_free_ports(start)
    assert info.value.log == f"{TAKEN}, the third"
    assert start.count == 3


def test_other_failures_are_not_repeated():
    start = Starts("disk full")
    with pytest.raises(exc.ServerProcessError):
        on_free_ports(start)
    assert start.count == 1


def test_servers_are_served_side_by_side():
    together = threading.Barrier(3, timeout=60)
    in_parallel("abc", lambda _: together.wait())
    assert not together.broken


def test_the_first_error_comes_when_all_are_done():
    done = []

    def action(number):
        if number in {2, 3}:
            raise ValueError(number)
        done.append(number)

    with pytest.raises(ValueError, match="2"):
        in_parallel([1, 2, 3, 4], action)
    assert sorted(done) == [1, 4]


class Recorded(Startable):
    """Records the calls of its methods."""

    def __init__(self, failing=None):
        self.done = []
        self._failing = failing

    def start(self):
        with self._stopped_on_error():
            self.done.append("start")
            if self._failing is not None:
                raise self._failing

    def stop(self):
        self.done.append("stop")


def test_a_block_begins_with_the_start_and_ends_with_the_stop():
    thing = Recorded()
    with thing as entered:
        assert entered is thing
        assert thing.done == ["start"]
    assert thing.done == ["start", "stop"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_start_that_fails_is_followed_by_the_stop(error):
    thing = Recorded(error())
    with pytest.raises(error), thing:
        pytest.fail("the block was begun")
    assert thing.done == ["start", "stop"]
