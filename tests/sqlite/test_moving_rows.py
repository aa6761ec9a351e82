"""Marks and fences in a SQLite file."""

from __future__ import annotations

import pytest
from sqlalchemy import create_engine

from tests.suites import moving_rows
from tests.suites.moving_rows import posts  # noqa: F401  # a fixture


@pytest.fixture
def engine(tmp_path):
    engine = create_engine(
        f"sqlite:///{tmp_path / 'legacy.sqlite'}", connect_args={"timeout": 60}
    )
    yield engine
    engine.dispose()


TestMarking = moving_rows.Marking
TestFencing = moving_rows.Fencing


class TestMoving(moving_rows.Moving):
    @pytest.fixture
    def sides(self, tmp_path):
        engines = {
            name: create_engine(
                f"sqlite:///{tmp_path / name}.sqlite", connect_args={"timeout": 60}
            )
            for name in ("legacy", "shards")
        }
        yield engines
        for engine in engines.values():
            engine.dispose()
