"""Random statements: SQLite shards against one SQLite database."""

from __future__ import annotations

import pytest
from sqlalchemy import create_engine

from tests.shared.clusters import on_sqlite
from tests.shared.differential import comparison
from tests.shared.differential import Differential

# Some of the statements have a cartesian product, and mean it.
_OPTIONS = {"enable_from_linting": False}
cluster = on_sqlite(engine_options=_OPTIONS)
compared = comparison()


@pytest.fixture(scope="module")
def plain_engine():
    engine = create_engine("sqlite://", **_OPTIONS)
    yield engine
    engine.dispose()


class TestDifferential(Differential):
    pass
