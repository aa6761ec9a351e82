"""The id column on MariaDB."""

from __future__ import annotations

import pytest

from tests.shared.clusters import on_mariadb
from tests.shared.semantics import sample
from tests.shared.semantics import Semantics

pytestmark = pytest.mark.live

cluster = on_mariadb("semantics")
data = sample()


class TestSemantics(Semantics):
    pass
