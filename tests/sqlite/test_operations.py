"""Operations on other shards, on SQLite."""

from __future__ import annotations

from tests.shared import operations
from tests.shared.operation_models import operations_on_sqlite

cluster = operations_on_sqlite()


class TestIntending(operations.Intending):
    pass


class TestArguments(operations.Arguments):
    pass


class TestFailing(operations.Failing):
    pass


class TestAwaited(operations.Awaited):
    pass
