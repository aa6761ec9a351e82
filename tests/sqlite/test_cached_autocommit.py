"""AUTOCOMMIT and a cache, on SQLite."""

from __future__ import annotations

from tests.shared import cached_autocommit
from tests.shared.cached_models import cached_on_sqlite

cluster = cached_on_sqlite(engine_options={"isolation_level": "AUTOCOMMIT"})


class TestAutocommit(cached_autocommit.Autocommit):
    pass
