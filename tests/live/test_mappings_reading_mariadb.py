"""Reading lists on MariaDB."""

from __future__ import annotations

import pytest

from tests.shared import mapping_reading
from tests.shared.mapping_models import lists_on_mariadb

pytestmark = pytest.mark.live

cluster = lists_on_mariadb("pages")


class TestQuestions(mapping_reading.Questions):
    pass


class TestPages(mapping_reading.Pages):
    pass


class TestBookmarks(mapping_reading.Bookmarks):
    pass


class TestTargets(mapping_reading.Targets):
    pass


class TestMapped(mapping_reading.Mapped):
    pass
