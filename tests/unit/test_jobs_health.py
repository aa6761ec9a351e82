"""Servers that have failed repeatedly have a rest, and are probed."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import create_engine

from sqla_shard.exc import CommitUnknownError
from sqla_shard.jobs import survey

FAILURE = CommitUnknownError(server="server1")


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found = [1000.0]
    monkeypatch.setattr(survey, "monotonic", lambda: found[0])
    return found


@pytest.fixture
def engine() -> Any:
    return create_engine("sqlite://")


def test_a_rest_and_a_probe(now: list[float], engine: Any) -> None:
    windows = survey.HealthWindows()
    for _ in range(2):
        windows.record(engine, FAILURE)
        assert windows.allows(engine)
    windows.record(engine, FAILURE)
    assert not windows.allows(engine)
    assert "COMMIT" in windows.last_error(engine)
    now[0] += 10
    # One of all threads probes it.
    assert windows.allows(engine)
    assert not windows.allows(engine)
    windows.record(engine, FAILURE)
    assert not windows.allows(engine)
    now[0] += 10
    assert windows.allows(engine)
    windows.record(engine, None)
    # The failures before the rest do not count any more.
    windows.record(engine, FAILURE)
    assert windows.allows(engine)


def test_a_probe_that_has_no_outcome(now: list[float], engine: Any) -> None:
    windows = survey.HealthWindows()
    for _ in range(3):
        windows.record(engine, FAILURE)
    now[0] += 10
    assert windows.allows(engine)
    now[0] += 10
    assert windows.allows(engine)


def test_errors_of_the_caller_do_not_count(engine: Any) -> None:
    windows = survey.HealthWindows()
    for _ in range(15):
        windows.record(engine, None)
    for _ in range(5):
        windows.record(engine, FAILURE)
        windows.record(engine, ValueError("of the caller"))
        windows.record(engine, None)
        windows.record(engine, None)
    assert windows.allows(engine)
    assert windows.allows(create_engine("sqlite://"))
