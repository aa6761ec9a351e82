"""Connections to Redis that an interrupt does not leave half open.

redis-py returns a connection to its pool after an exception that is not its
own, such as that of the handler of a signal.  If it was not yet connected,
each later command raises ``AttributeError``; if a command had been sent, the
next one may read its response.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any


@cache
def pool_class(redis: Any) -> Any:
    """Return a class of pools that close such connections.

    :param redis: the module ``redis``.
    """

    class Pool(redis.ConnectionPool):  # type: ignore[misc]  # of a module that is passed
        def get_connection(self, *args: Any, **kwargs: Any) -> Any:
            # A script is loaded while its NoScriptError is handled.
            before = sys.exc_info()[1]
            made: Any = super().get_connection(*args, **kwargs)
            made.sqla_shard_before = before
            return made

        def release(self, connection: Any) -> None:
            error = sys.exc_info()[1]
            before = connection.__dict__.pop("sqla_shard_before", None)
            if error is not before and not isinstance(error, redis.RedisError):
                connection.disconnect()
            super().release(connection)

    return Pool
