"""Servers that could not be read, as values and as lines."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pymysql
import pytest
from sqlalchemy.exc import OperationalError

from sqla_shard.engine.unreachable import (
    Cause,
    cause_of,
    for_each_shard,
    unreachable_lines,
    unreachable_values,
    UnreachableServer,
)
from sqla_shard.exc import ClusterClosedError, ServerUnreachableError
from sqla_shard.schema import ShardStatus, StatusReport
from sqla_shard.schema.reports import Outcome, RunReport, State


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


def test_that_a_server_is_lost_comes_before_what_a_shard_lacks() -> None:
    lacks = replace(unreachable(lost(2003, ""), 0), cause=Cause("no such database"))
    (found,) = unreachable_values([lacks, unreachable(lost(2003, "refused"), 1)])
    assert (found["reason"], found["responds"]) == ("refused", False)
    assert found["shards"] == {"objects": "0-1"}


@pytest.mark.parametrize("revisions", [("0001",), ()])
def test_reports_name_a_lost_server_whose_other_shard_lacks_its_database(
    revisions: tuple[str, ...],
) -> None:
    cause = cause_of(lost(2003, "refused"))
    shards: list[tuple[State, dict[str, Any]]] = [
        (state, {"shard_id": n, "server": "server1", "database": "", "cause": cause})
        for n, state in enumerate([State.MISSING, *2 * [State.UNREACHABLE]])
    ]
    shards[0][1]["cause"] = None
    run = RunReport(
        command="upgrade",
        target="head",
        keyspace="objects",
        outcomes=tuple(Outcome(state=state, **more) for state, more in shards),
        seconds=0,
    )
    # It was lost after the revisions of the last shard were read.
    known = ((), (), revisions)
    status = StatusReport(
        keyspace="objects",
        heads=(),
        shards=tuple(
            ShardStatus(condition=state.value, revisions=its, **more)
            for its, (state, more) in zip(known, shards, strict=True)
        ),
        seconds=0,
    )
    for report in (run, status):
        text = str(report)
        assert text.count("server1 unreachable (2003): 2 shards 1-2: refused") == 1
        assert "1 no such database: 0" in text
        assert "not reached" not in text
        (found,) = report.as_dict()["unreachable"]
        assert (found["reason"], found["shards"]) == ("refused", {"objects": "0-2"})
