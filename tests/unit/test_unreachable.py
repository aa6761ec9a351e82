"""Servers that could not be read, as values and as lines."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pymysql
import pytest
from sqlalchemy.exc import OperationalError

from sqla_shard.engine.unreachable import (
    cause_of,
    for_each_shard,
    unreachable_lines,
    UnreachableServer,
)
from sqla_shard.exc import ClusterClosedError, ServerUnreachableError


@pytest.mark.parametrize("count", [1, 2000])
def test_a_cluster_that_was_closed_is_asked_once(count: int) -> None:
    places: Any = [
        SimpleNamespace(server="server1", address=("objects", number))
        for number in range(count)
    ]
    asked = []

    def work(place: Any) -> None:
        asked.append(place)
        raise ClusterClosedError("the cluster is closed")

    (found,) = for_each_shard(places, work)
    assert len(asked) == 1
    assert len(found.addresses) == count


def unreachable(error: Exception, *shards: int, **more: Any) -> UnreachableServer:
    addresses = tuple(("objects", shard_id) for shard_id in shards)
    return UnreachableServer(
        server="server2", cause=cause_of(error, **more), addresses=addresses
    )


def lost(number: int, text: str) -> ServerUnreachableError:
    cause = OperationalError("SELECT 1", {}, pymysql.OperationalError(number, text))
    return ServerUnreachableError(server="server2", error=cause)


def test_it_is_a_value_with_the_number_of_the_driver() -> None:
    # The text of the error looks like another number.
    found = unreachable(lost(2003, "(1045, 'x') cannot be reached: now"), 32, 33)
    assert found.as_dict() == {
        "server": "server2",
        "role": "primary",
        "reason": "(1045, 'x') cannot be reached: now",
        "code": 2003,
        "responds": False,
        "shards": {"objects": "32-33"},
    }
    assert str(found) == (
        "server2 unreachable (2003): 2 shards 32-33: (1045, 'x') cannot be reached: now"
    )


def test_the_causes_of_an_error_are_read() -> None:
    outer = RuntimeError("of the last attempt")
    outer.__cause__ = lost(2013, "Lost connection")
    assert cause_of(outer) == ("Lost connection", 2013, False)


def test_a_server_that_answers_was_not_read() -> None:
    error = OperationalError("SELECT 1", {}, pymysql.OperationalError(1205, "Timeout"))
    assert str(unreachable(error, 7)) == (
        "server2 not read: 1 shard 7: OperationalError: (1205, 'Timeout')"
    )
    down = unreachable(error, responds=False)
    assert str(down) == "server2 unreachable (1205): Timeout"
    missing = unreachable(FileNotFoundError(2, "No such file", "/data"), responds=False)
    assert missing.cause.code is None
    assert "'/data'" in missing.cause.reason


def test_each_server_is_there_once() -> None:
    first = unreachable(lost(2003, "refused"), 1, 2)
    second = unreachable(lost(2013, "gone"), 2, 5)
    standby = replace(first, role="standby")
    assert unreachable_lines([first, second, standby]) == [
        "server2 unreachable (2003): 3 shards 1-2, 5: refused",
        "server2 (standby) unreachable (2003): 2 shards 1-2: refused",
    ]
