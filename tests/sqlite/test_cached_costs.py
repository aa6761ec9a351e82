"""The cost of cached reads and writes, on SQLite."""

from __future__ import annotations

from tests.models.cached_models import cached_on_sqlite
from tests.suites import cached_costs

cluster = cached_on_sqlite()


TestCosts = cached_costs.Costs
