"""What the session promises, on MariaDB."""

from __future__ import annotations

import pytest

from tests.shared.clusters import on_mariadb
from tests.shared.proofs import Proofs

pytestmark = pytest.mark.live

cluster = on_mariadb("proofs")


class TestProofs(Proofs):
    pass
