"""Reading on MariaDB."""

from __future__ import annotations

import pytest

from tests.shared import querying
from tests.shared import reading
from tests.shared.clusters import on_mariadb
from tests.shared.semantics import sample

pytestmark = pytest.mark.live

cluster = on_mariadb("reading")
data = sample()


class TestGet(reading.Get):
    pass


class TestGetMany(reading.GetMany):
    pass


class TestLoading(reading.Loading):
    pass


class TestByStatement(querying.ByStatement):
    pass
