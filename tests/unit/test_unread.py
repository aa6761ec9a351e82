"""Reads of the shards of a server, one after another."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sqla_shard.engine.unread import for_each_shard
from sqla_shard.exc import ClusterClosedError


@pytest.mark.parametrize("count", [1, 2000])
def test_a_cluster_that_was_closed_is_asked_once(count: int) -> None:
    places: Any = [
        SimpleNamespace(server="server1", address=("objects", number))
        for number in range(count)
    ]
    asked = []

    def work(place: Any) -> None:
        asked.append(place)
        raise ClusterClosedError("the cluster is closed")

    (unread,) = for_each_shard(places, work)
    assert len(asked) == 1
    assert len(unread.addresses) == count
