"""Reading lists on SQLite."""

from __future__ import annotations

from tests.shared import mapping_reading
from tests.shared.mapping_models import lists_on_sqlite

cluster = lists_on_sqlite()


class TestQuestions(mapping_reading.Questions):
    pass


class TestPages(mapping_reading.Pages):
    pass


class TestBookmarks(mapping_reading.Bookmarks):
    pass


class TestTargets(mapping_reading.Targets):
    pass


class TestMapped(mapping_reading.Mapped):
    pass
