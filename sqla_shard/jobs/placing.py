"""The shard of a job that is not about an object.

It is a random one, by the weights of the servers: a server of weight 0 is
drained.  If a server does not respond, another one is tried, unless COMMIT was
sent: the job may exist.
"""

from __future__ import annotations

from collections.abc import Awaitable
from collections.abc import Callable
from typing import Any
from typing import TYPE_CHECKING
from typing import TypeVar

from sqla_shard.exc import NoHealthyShardsError
from sqla_shard.exc import PlacementError
from sqla_shard.exc import ServerFencedError
from sqla_shard.exc import ServerUnreachableError
from sqla_shard.exc.base import summary

if TYPE_CHECKING:
    from sqla_shard import Cluster

__all__ = ["async_on_healthy_shard", "on_healthy_shard"]

T = TypeVar("T")

#: Errors of a server, after which another one is tried.
_UNHEALTHY = (
    ServerFencedError,
    ServerUnreachableError,
)
#: Maximum number of draws for a server that was not tried.
_DRAWS = 100


class _Choice:
    """The servers that were tried, and the next shard."""

    def __init__(self, cluster: Cluster, keyspace: str | None) -> None:
        self._cluster = cluster
        self._keyspace = keyspace
        self._name = keyspace or "objects"
        self._server = ""
        self._failed: dict[str, str] = {}

    def shard(self) -> int:
        """Return a shard on a server that has not failed.

        :raises NoHealthyShardsError: if there is none.
        """
        places = self._cluster.places
        space = places.keyspace(self._keyspace, "objects")
        self._name = space.name
        try:
            for _ in range(_DRAWS):
                shard_id = self._cluster.placement(keyspace=space, cls=None)
                self._server = places.place(space, shard_id).server
                if self._server not in self._failed:
                    return shard_id
        except PlacementError as error:
            self._failed.setdefault("placement", str(error))
        raise NoHealthyShardsError(keyspace=self._name, servers=self._failed)

    def failed(self, error: Exception) -> None:
        """Record the error of the server of the last shard."""
        self._failed[self._server] = summary(error)


def on_healthy_shard(
    cluster: Cluster, keyspace: str | None, fn: Callable[[Any], T]
) -> T:
    """Run ``fn(session)`` in a transaction on a random shard.

    :raises NoHealthyShardsError: if every server has failed.
    """
    choice = _Choice(cluster, keyspace)
    while True:
        shard_id = choice.shard()
        try:
            with cluster.begin(shard_id=shard_id) as session:
                return fn(session)
        except _UNHEALTHY as error:
            choice.failed(error)


async def async_on_healthy_shard(
    cluster: Cluster, keyspace: str | None, fn: Callable[[Any], Awaitable[T]]
) -> T:
    """Await ``fn(session)`` on a random shard; see :func:`on_healthy_shard`.

    :raises NoHealthyShardsError: if every server has failed.
    """
    choice = _Choice(cluster, keyspace)
    while True:
        shard_id = choice.shard()
        try:
            async with cluster.async_begin(shard_id=shard_id) as session:
                return await fn(session)
        except _UNHEALTHY as error:
            choice.failed(error)
