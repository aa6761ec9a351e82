"""Lists that are cached, against a Python list; see mapping_machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sqla_shard import Cluster
from sqla_shard.cache import Cached
from sqla_shard.testing import sqlite_topology
from tests.models.cached_models import MEMORY
from tests.models.mapping_models import Base, NarrowList, SHARDS
from tests.suites import mapping_machine


@pytest.fixture(scope="module", params=[4, 500], ids="{} rows".format)
def cluster(tmp_path_factory: Any, request: Any) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("machine")
    document = sqlite_topology(directory, 2, SHARDS)
    with Cluster.from_topology(document) as cluster:
        cluster.create_all(Base.metadata)
        cluster.configure_cache(
            {"lists": MEMORY},
            classes={NarrowList: Cached(region="lists", rows=request.param)},
            prefix="machine",
        )
        yield cluster


class TestModels(mapping_machine.Models):
    examples = 5
