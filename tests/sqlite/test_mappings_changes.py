"""Changing lists on SQLite."""

from __future__ import annotations

from tests.shared import mapping_changes
from tests.shared.mapping_models import lists_on_sqlite

cluster = lists_on_sqlite()


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
