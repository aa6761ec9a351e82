"""Empty SQLite files, in which tests need no tables."""

from __future__ import annotations

from typing import Any, TypeVar

from sqla_shard import Cluster, Topology

T = TypeVar("T")


def with_files(topology: T) -> T:
    """Make the file of every shard of a topology, and return that.

    :param topology: or a document of one, or a cluster.
    """
    found: Any = topology
    cluster = found
    if isinstance(found, Topology):
        cluster = Cluster(found)
    elif not isinstance(found, Cluster):
        cluster = Cluster.from_topology(found)
    places = cluster.places
    for keyspace in places.topology.keyspaces.values():
        for place in places.all_places(keyspace):
            place.backend.create_file(place.engine)
    if cluster is not found:
        cluster.close()
    return topology
