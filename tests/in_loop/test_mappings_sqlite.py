"""Ordered lists in event loops, on SQLite through aiosqlite."""

from __future__ import annotations

from tests.shared import mapping_changes
from tests.shared import mapping_reading
from tests.shared.mapping_models import lists_on_sqlite

sync_cluster = lists_on_sqlite()


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


class TestAppending(mapping_changes.Appending):
    pass


class TestRemoving(mapping_changes.Removing):
    pass


class TestClearing(mapping_changes.Clearing):
    pass


class TestMoving(mapping_changes.Moving):
    pass


class TestHeld(mapping_changes.Held):
    pass


class TestRespacing(mapping_changes.Respacing):
    pass


class TestRefusing(mapping_changes.Refusing):
    pass
