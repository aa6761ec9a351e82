"""The shard of a job that is not about an object.

It is a random one, by the weights of the servers: a server of weight 0 gets
none, and its jobs are run, until it is empty.  If a server does not respond,
another one is tried, unless COMMIT was sent: the job may exist.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TYPE_CHECKING, TypeVar

from sqlalchemy.exc import SQLAlchemyError

from sqla_shard.engine.rendering import Place
from sqla_shard.exc import (
    NoHealthyShardsError,
    PlacementError,
    ServerFencedError,
    ServerUnreachableError,
)
from sqla_shard.exc.base import summary
from sqla_shard.jobs.health import windows_of

if TYPE_CHECKING:
    from sqla_shard import Cluster

T = TypeVar("T")

#: Errors of a server, after which another one is tried.
_REFUSED = (ServerFencedError, ServerUnreachableError)
#: Maximum number of draws for a server that was not tried.
_DRAWS = 100


class _Choice:
    """The servers that were tried, and the next shard."""

    def __init__(self, cluster: Cluster, keyspace: str | None) -> None:
        self._cluster = cluster
        self._keyspace = keyspace
        self._name = keyspace or "objects"
        self._windows = windows_of(cluster)
        self._place: Place | None = None
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
                place = places.place(space, shard_id)
                if place.server in self._failed:
                    continue
                if self._windows.allows(place.engine):
                    self._place = place
                    return shard_id
                last = self._windows.last_error(place.engine)
                self._failed[place.server] = f"has failed repeatedly: {last}"
        except PlacementError as error:
            self._failed.setdefault("placement", str(error))
        raise NoHealthyShardsError(keyspace=self._name, servers=self._failed)

    @contextmanager
    def tried(self) -> Iterator[None]:
        """Record the outcome of a transaction on the last shard.

        An error after which another server may be tried is not raised.
        """
        place, failure = self._place, None
        try:
            yield
        except SQLAlchemyError as error:
            failure = error
            if place is None or not isinstance(error, _REFUSED):
                raise
            self._failed[place.server] = summary(error)
        finally:
            if place is not None:
                self._windows.record(place.engine, failure)


def on_healthy_shard(
    cluster: Cluster, keyspace: str | None, fn: Callable[[Any], T]
) -> T:
    """Run ``fn(session)`` in a transaction on a random shard.

    :raises NoHealthyShardsError: if every server has failed.
    """
    choice = _Choice(cluster, keyspace)
    while True:
        shard_id = choice.shard()
        with choice.tried(), cluster.begin(shard_id=shard_id) as session:
            return fn(session)


async def async_on_healthy_shard(
    cluster: Cluster, keyspace: str | None, fn: Callable[[Any], Awaitable[T]]
) -> T:
    """Await ``fn(session)`` on a random shard; see :func:`on_healthy_shard`.

    :raises NoHealthyShardsError: if every server has failed.
    """
    choice = _Choice(cluster, keyspace)
    while True:
        shard_id = choice.shard()
        with choice.tried():
            async with cluster.async_begin(shard_id=shard_id) as session:
                return await fn(session)
