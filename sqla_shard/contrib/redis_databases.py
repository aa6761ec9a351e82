"""Redis databases that users are distributed over.

A user is in the database with the number ``shard_id % len(databases)``, so all
users of a virtual shard are in one.  When the list of databases is changed,
contents that are in the wrong database expire, or are removed by you; they are
rebuilt where they belong.

The package redis is imported when the first object is created.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from sqla_shard.cache.stores.redis import pool_class
from sqla_shard.exc import FeedStoreError, MissingExtraError
from sqla_shard.ids import unpack
from sqla_shard.jobs import Exponential, Linear

_Store = TypeVar("_Store")

#: How jobs are retried that write to Redis.  A day and more: what is not
#: written is missing until the contents are rebuilt.
RETRY = Linear(5, step=1).then(Exponential(200, first=10, longest=600))


class RedisDatabases:
    """Clients of some databases, and their scripts.

    :param urls: URLs such as ``redis://cache1:6379/0``, or clients.
    :param timeout: seconds to wait for a connection or a response.
    :raises MissingExtraError: if the package redis is not installed.
    :raises ValueError: if there is no URL.
    """

    def __init__(self, urls: Sequence[Any], timeout: float = 1.0) -> None:
        if not urls:
            raise ValueError("urls=[] must be one or more URLs")
        try:
            import redis
        except ImportError as error:
            raise MissingExtraError(
                package="redis", extra="redis", reason=str(error)
            ) from None
        self._errors = redis.RedisError
        self.clients: list[Any] = [
            _client(redis, url, timeout) if isinstance(url, str) else url
            for url in urls
        ]
        self._scripts: dict[tuple[int, str], Any] = {}

    def number_of(self, object_id: int) -> int:
        """Return the number of the database of an object."""
        return unpack(object_id).shard_id % len(self.clients)

    def grouped(self, object_ids: Iterable[int]) -> dict[int, list[int]]:
        """Return objects by the number of their database."""
        found: dict[int, list[int]] = {}
        for one in object_ids:
            found.setdefault(self.number_of(one), []).append(one)
        return found

    def run(
        self,
        number: int,
        script: str,
        keys: Sequence[str],
        arguments: Sequence[Any] = (),
    ) -> Any:
        """Run a Lua script in a database.

        :raises FeedStoreError: if it does not respond.
        """
        known = self._scripts.get((number, script))
        if known is None:
            known = self.clients[number].register_script(script)
            self._scripts[number, script] = known
        try:
            return known(keys=keys, args=arguments)
        except self._errors as error:
            raise self.failed(number, error) from error

    def pipeline(self, number: int, commands: Iterable[Sequence[Any]]) -> Any:
        """Send commands to a database together; return their results.

        :raises FeedStoreError: if it does not respond.
        """
        pipeline = self.clients[number].pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        try:
            return pipeline.execute()
        except self._errors as error:
            raise self.failed(number, error) from error

    def failed(self, number: int, error: Exception) -> FeedStoreError:
        """Return the error for a database that has failed."""
        where = self.clients[number].connection_pool.connection_kwargs
        server = where.get("path") or (
            f"{where.get('host', 'localhost')}:{where.get('port', 6379)}"
        )
        return FeedStoreError(
            f"Redis on {server} has failed: {error}. Its contents are "
            "rebuilt from the tables when it responds again",
            server=server,
        )

    def close(self) -> None:
        """Close all connections; they are opened again when needed."""
        for client in self.clients:
            client.close()


def _client(redis: Any, url: str, timeout: float) -> Any:
    pool = pool_class(redis).from_url(
        url, socket_timeout=timeout, socket_connect_timeout=timeout
    )
    made = redis.Redis(connection_pool=pool)
    # As of a client that has made its pool itself.
    made.auto_close_connection_pool = True
    return made


def required(store: _Store | None, name: str) -> _Store:
    """Return the store of a job; refuse to run it without one.

    The jobs of a process with a store would be lost.

    :param name: the attribute with the store, as in "Feed.store".
    :raises FeedStoreError: if there is none.
    """
    if store is None:
        raise FeedStoreError(
            f"this process runs jobs that write to Redis, but {name} is None; "
            "set it in the program of the worker as well",
            server="",
        )
    return store
