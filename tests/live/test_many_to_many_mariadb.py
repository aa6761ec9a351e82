"""Many-to-many relationships on MariaDB."""

from __future__ import annotations

import pytest

from tests.shared import many_to_many
from tests.shared.many_models import many_on_mariadb

pytestmark = pytest.mark.live

cluster = many_on_mariadb("many")


class TestWritingMany(many_to_many.WritingMany):
    pass


class TestLoadingMany(many_to_many.LoadingMany):
    pass


class TestBackReferences(many_to_many.BackReferences):
    pass


class TestElsewhere(many_to_many.Elsewhere):
    pass
