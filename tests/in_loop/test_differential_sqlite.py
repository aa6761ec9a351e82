"""Random statements in event loops: the shards against one database."""

from __future__ import annotations

import pytest
from sqlalchemy import create_engine

from tests.shared import differential
from tests.shared.clusters import on_sqlite

# Some of the statements have a cartesian product, and mean it.
_OPTIONS = {"enable_from_linting": False}
sync_cluster = on_sqlite(engine_options=_OPTIONS)
compared = differential.comparison()


@pytest.fixture(scope="module")
def plain_engine():
    engine = create_engine("sqlite://", **_OPTIONS)
    yield engine
    engine.dispose()


class TestDifferential(differential.Differential):
    selects = 200
    changes = 60
