"""What the session promises, on SQLite."""

from __future__ import annotations

from tests.shared.clusters import on_sqlite
from tests.shared.proofs import Proofs

cluster = on_sqlite()


class TestProofs(Proofs):
    pass
