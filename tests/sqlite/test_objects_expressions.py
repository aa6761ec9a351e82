from __future__ import annotations

from tests.object_suites.expressions import ExpressionSuite
from tests.object_suites.harness import OnSQLite


class TestExpressions(OnSQLite, ExpressionSuite):
    pass
