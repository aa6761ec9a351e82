"""What cached reads and writes cost, on SQLite."""

from __future__ import annotations

from tests.shared import cached_costs
from tests.shared.cached_models import cached_on_sqlite

cluster = cached_on_sqlite()


class TestCosts(cached_costs.Costs):
    pass
