"""Operations on other shards, on MariaDB."""

from __future__ import annotations

import pytest

from tests.shared import operations
from tests.shared.operation_models import operations_on_mariadb

pytestmark = pytest.mark.live

cluster = operations_on_mariadb("operations")


class TestIntending(operations.Intending):
    pass


class TestArguments(operations.Arguments):
    pass


class TestFailing(operations.Failing):
    pass


class TestAwaited(operations.Awaited):
    pass
