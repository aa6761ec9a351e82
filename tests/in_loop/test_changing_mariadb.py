"""Changes in event loops, on MariaDB through asyncmy."""

from __future__ import annotations

import pytest

from tests.shared import inserting
from tests.shared import updating
from tests.shared.clusters import on_mariadb

pytestmark = pytest.mark.live

sync_cluster = on_mariadb("loopchanging")
pins = inserting.pins_of()


class TestInserting(inserting.Inserting):
    pass


class TestUpdating(updating.Updating):
    pass


class TestDeleting(updating.Deleting):
    pass
