"""The cost of cached reads and writes, on servers with memcached."""

from __future__ import annotations

import pytest

from sqla_shard.cache.stores.memcached_node import Stream
from tests.models.cached_models import cached_on_servers, stored, User
from tests.suites import cached_costs

pytestmark = pytest.mark.live

cluster = cached_on_servers("cachedcosts")


TestCosts = cached_costs.Costs


@pytest.fixture
def packets(monkeypatch):
    """Collect the data of each packet that is sent to nodes."""
    sent: list[bytes] = []
    send = Stream.sendall

    def listen(self, commands):
        sent.append(commands)
        send(self, commands)

    monkeypatch.setattr(Stream, "sendall", listen)
    return sent


def test_requests_to_nodes(cluster, packets):
    """One to each of two nodes, however many are asked for."""
    users = [stored(cluster, User(name=str(i)), i % 8) for i in range(50)]
    for _ in range(2):
        packets.clear()
        with cluster.session() as session:
            assert all(session.get_many(User, users))
    assert [one[:4] for one in packets] == [b"get ", b"get "]
    assert sum(one.count(b" ") for one in packets) == 50
