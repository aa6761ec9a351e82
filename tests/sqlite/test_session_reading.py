"""Reading on SQLite."""

from __future__ import annotations

from tests.shared import querying
from tests.shared import reading
from tests.shared.clusters import on_sqlite
from tests.shared.semantics import sample

cluster = on_sqlite()
data = sample()


class TestGet(reading.Get):
    pass


class TestGetMany(reading.GetMany):
    pass


class TestLoading(reading.Loading):
    pass


class TestByStatement(querying.ByStatement):
    pass
