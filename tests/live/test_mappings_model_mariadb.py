"""Lists against Python's on MariaDB."""

from __future__ import annotations

import pytest

from tests.shared import mapping_machine
from tests.shared.mapping_models import lists_on_mariadb

pytestmark = pytest.mark.live

cluster = lists_on_mariadb("model")


class TestModels(mapping_machine.Models):
    examples = 20
