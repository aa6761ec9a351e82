"""Functions whose results are cached, on memcached and MariaDB."""

from __future__ import annotations

import pytest

from tests.shared import cache_functions
from tests.shared.mapping_models import lists_on_mariadb
from tests.shared.memcached import nodes

pytestmark = pytest.mark.live

cluster = lists_on_mariadb("cfunctions")


@pytest.fixture(scope="module")
def servers(memcached_installed):
    with nodes(2) as servers:
        yield servers


@pytest.fixture
def regions(servers):
    # A busy machine may take its time: faults are tested elsewhere.
    arguments = {"servers": [s.address for s in servers], "timeout": 5.0}
    region = {"backend": "sqla_shard.memcached", "arguments": arguments}
    return {"values": region, "lists": region}


class TestObjects(cache_functions.Objects):
    pass


class TestLists(cache_functions.Lists):
    pass


class TestTelling(cache_functions.Telling):
    pass


class TestAwaited(cache_functions.Awaited):
    pass
