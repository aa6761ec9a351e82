"""The id column on SQLite."""

from __future__ import annotations

from tests.shared.clusters import on_sqlite
from tests.shared.semantics import sample
from tests.shared.semantics import Semantics

cluster = on_sqlite()
data = sample()


class TestSemantics(Semantics):
    pass
