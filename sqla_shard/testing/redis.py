"""One Redis server of your own, for as long as a test needs it.

::

    with RedisServer() as server:
        client = redis.Redis(port=server.port)
        client.set("pin", b"1")
        server.save()       # to disk
        client.delete("pin")
        server.kill()       # in mid-air, as a crash would
        server.start()      # on the same port, with the pin of old

Needs Linux, and Redis 6.2 or later on the machine (Debian:
``redis-server``).  No client: the example uses redis, of the extra
``redis``.  The server listens on 127.0.0.1 only; it starts in some
milliseconds and takes a few MB of memory until it is filled.

It writes to disk what :meth:`RedisServer.save` tells it to, and nothing else
unless its options say so.  Its directory, with that and its log, is removed
by :meth:`RedisServer.stop`, when the interpreter exits, or by a guard process
when the test run is killed.  A server that is controlled by several threads
at once is not supported.
"""

from __future__ import annotations

from pathlib import Path

from sqla_shard import exc
from sqla_shard.testing._caches import CacheServer
from sqla_shard.testing.binaries import find_redis
from sqla_shard.testing.binaries import MISSING_REDIS

__all__ = ["RedisServer"]


class RedisServer(CacheServer):
    """A Redis server that is started, used and thrown away.

    :param name: for messages; ``redis1`` by default.
    :param megabytes: memory for items; when it is full, nothing more is
        written, unless the options have another ``--maxmemory-policy``.
    :param options: further arguments of the program, such as
        ``["--appendonly", "yes"]``.
    :param parent: where to make the server's directory; by default where
        the system wants such things (``TMPDIR``).
    :param start_timeout: seconds to wait for a start.
    :param stop_timeout: seconds to wait for an orderly end before SIGKILL.
    :raises ValueError: if an argument makes no sense.
    """

    _first = "redis1"
    _log_name = "redis.log"
    _ping = b"PING", b"+PONG"
    _forget = b"FLUSHALL", b"+OK\r\n"

    def save(self) -> None:
        """Write all items to disk, from where the next start has them.

        :raises sqla_shard.exc.ServerProcessError: if the server is not
            running or does not answer.
        """
        self._tell(b"SAVE", b"+OK\r\n", failed="did not save its items")

    # -- inside -----------------------------------------------------------

    def _command(self, directory: Path) -> list[str]:
        program = find_redis()
        if program is None:
            raise exc.ServerProcessError(MISSING_REDIS, log="")
        return [
            program,
            *("--bind", self.host, "--port", str(self.port)),
            # The guard knows the process by the name of the directory, which
            # Redis would write its address over.
            *("--dir", str(directory), "--set-proc-title", "no"),
            *("--save", "", "--maxmemory", f"{self.megabytes}mb"),
            *self.options,
        ]
