"""Finding ids by keys, on MariaDB."""

from __future__ import annotations

import pytest

from tests.shared import lookup_reading
from tests.shared.lookup_models import lookups_on_mariadb

pytestmark = pytest.mark.live

cluster = lookups_on_mariadb("lkread")


class TestReading(lookup_reading.Reading):
    pass


class TestSharing(lookup_reading.Sharing):
    pass
