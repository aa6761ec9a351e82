"""Operations and errors on the way, on SQLite."""

from __future__ import annotations

from tests.shared import operation_outcomes
from tests.shared.operation_models import operations_on_sqlite

cluster = operations_on_sqlite()


class TestOutcomes(operation_outcomes.Outcomes):
    pass


autocommitting = operations_on_sqlite(
    engine_options={"isolation_level": "AUTOCOMMIT"}
)


class TestAutocommit(operation_outcomes.Autocommit):
    pass
