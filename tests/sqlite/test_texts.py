"""Texts of several scripts over shards, on SQLite."""

from __future__ import annotations

from tests.shared.clusters import on_sqlite
from tests.shared.texts import Texts
from tests.shared.texts import titles

cluster = on_sqlite()
titles = titles()


class TestTexts(Texts):
    pass
