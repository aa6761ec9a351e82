"""Keys that could not be deleted from a cache, on SQLite."""

from __future__ import annotations

from tests.models.operation_models import operations_on_sqlite
from tests.suites import outbox

cluster = operations_on_sqlite()


TestOutbox = outbox.Outbox
