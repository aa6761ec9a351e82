"""Statements that change rows, on MariaDB."""

from __future__ import annotations

import pytest

from tests.shared import changing
from tests.shared.clusters import on_mariadb

pytestmark = pytest.mark.live

cluster = on_mariadb("changing")
pins = changing.pins_of()


class TestInserting(changing.Inserting):
    pass


class TestUpdating(changing.Updating):
    pass


class TestDeleting(changing.Deleting):
    pass
