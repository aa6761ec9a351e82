"""Connections that go back to their pools, on SQLite."""

from __future__ import annotations

from tests.shared.clusters import on_sqlite
from tests.shared.resetting import Resetting

cluster = on_sqlite()


class TestResetting(Resetting):
    pass
