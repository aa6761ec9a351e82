"""A pytest plugin for SQLAlchemy's own tests: they get our ShardedSession."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.ext import horizontal_shard as upstream

from sqla_shard.engine import Lanes
from sqla_shard.ext.horizontal_shard import ShardedSession

_calls: list[str] = []


@pytest.hookimpl(trylast=True)  # SQLAlchemy's own plugin is ready by then
def pytest_sessionstart(session: pytest.Session) -> None:
    # Before the test module imports it, and where ShardedQuery looks.
    upstream.ShardedSession = ShardedSession  # type: ignore[misc]  # that is the point
    begin = Lanes.begin

    def counted(lanes: Lanes, task: Any) -> None:
        _calls.append("")
        begin(lanes, task)

    Lanes.begin = counted  # type: ignore[method-assign]  # to count


def pytest_terminal_summary(terminalreporter: Any) -> None:
    terminalreporter.write_line(
        f"SQLAlchemy {sqlalchemy.__version__}: {len(_calls)} calls in lanes"
    )
