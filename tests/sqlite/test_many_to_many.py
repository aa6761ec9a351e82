"""Many-to-many relationships on SQLite."""

from __future__ import annotations

from tests.shared import many_to_many
from tests.shared.many_models import many_on_sqlite

cluster = many_on_sqlite()


class TestWritingMany(many_to_many.WritingMany):
    pass


class TestLoadingMany(many_to_many.LoadingMany):
    pass


class TestBackReferences(many_to_many.BackReferences):
    pass


class TestElsewhere(many_to_many.Elsewhere):
    pass
