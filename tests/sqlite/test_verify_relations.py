"""Looking through mappings, on SQLite."""

from __future__ import annotations

from tests.shared import verify_relations
from tests.shared.verify_relations import relations_on_sqlite

tables, cluster = relations_on_sqlite()


class TestDamage(verify_relations.Damage):
    pass


class TestBesideWriters(verify_relations.BesideWriters):
    pass
