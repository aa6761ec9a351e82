"""Sessions that several threads or tasks share, on real servers."""

from __future__ import annotations

import pytest

from tests.shared import shared_sessions
from tests.shared.clusters import on_mariadb

pytestmark = pytest.mark.live

cluster = on_mariadb("sharedsessions")


@pytest.fixture(scope="module")
def ids(cluster):
    return shared_sessions.fill(cluster, range(8))


class TestSharedByThreads(shared_sessions.SharedByThreads):
    pass


class TestSharedByTasks(shared_sessions.SharedByTasks):
    pass
