"""Functions whose results are cached, in memory, on SQLite."""

from __future__ import annotations

import pytest

from tests.shared import cache_functions
from tests.shared.mapping_models import lists_on_sqlite

cluster = lists_on_sqlite()


@pytest.fixture
def regions():
    memory = {"backend": "dogpile.cache.memory"}
    return {"values": memory, "lists": memory}


class TestObjects(cache_functions.Objects):
    pass


class TestLists(cache_functions.Lists):
    pass


class TestTelling(cache_functions.Telling):
    pass


class TestAwaited(cache_functions.Awaited):
    pass
