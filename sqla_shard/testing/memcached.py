"""One memcached server of your own, for as long as a test needs it.

::

    with MemcachedServer() as server:
        cache = pymemcache.Client(server.address)
        cache.set("pin", b"1")
        server.pause()      # nothing is answered from now on
        server.resume()
        server.kill()       # in mid-air, as a crash would
        server.start()      # on the same port, and empty

Needs Linux, and memcached 1.6 or later on the machine (Debian:
``memcached``).  No client: the example uses pymemcache, of the extra
``cache``.  The server listens on 127.0.0.1 only, by TCP, never by UDP; it
starts in some milliseconds and takes a few MB of memory until it is filled.

Whatever ends the process loses all that it has: a server of this kind keeps
nothing on disk.  Its directory, with its log, is removed by
:meth:`MemcachedServer.stop`, when the interpreter exits, or by a guard
process when the test run is killed.  A server that is controlled by several
threads at once is not supported.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from sqla_shard import exc
from sqla_shard.testing._caches import CacheServer
from sqla_shard.testing.binaries import find_memcached
from sqla_shard.testing.binaries import MISSING_MEMCACHED

__all__ = ["MemcachedServer"]


class MemcachedServer(CacheServer):
    """A memcached server that is started, used and thrown away.

    :param name: for messages; ``memcached1`` by default.
    :param megabytes: memory for items; older ones make way.
    :param options: further arguments of the program, such as ``["-t", "1"]``.
    :param parent: where to make the server's directory; by default where
        the system wants such things (``TMPDIR``).
    :param start_timeout: seconds to wait for a start.
    :param stop_timeout: seconds to wait for an orderly end before SIGKILL.
    :raises ValueError: if an argument makes no sense.
    """

    _first = "memcached1"
    _log_name = "memcached.log"
    _ping = b"version", b"VERSION "
    _forget = b"flush_all", b"OK\r\n"

    # Nothing that it would do at an orderly end is of use to anybody.
    _stop_signal = signal.SIGKILL

    def restart(self) -> MemcachedServer:
        """End the server and start it on its port, without its items.

        :raises sqla_shard.exc.ServerProcessError: as :meth:`start`.
        """
        # Asked to end it takes a second, and has nothing to save.
        self.kill()
        return self.start()

    # -- inside -----------------------------------------------------------

    def _command(self, directory: Path) -> list[str]:
        program = find_memcached()
        if program is None:
            raise exc.ServerProcessError(MISSING_MEMCACHED, log="")
        # It refuses to run as root unless it is told to.
        user = ["-u", "root"] if os.geteuid() == 0 else []
        return [
            program,
            *("-l", self.host, "-p", str(self.port), "-U", "0"),
            *("-m", str(self.megabytes), *user),
            # The guard knows the process by the name of the directory.
            *("-P", str(directory / "memcached.pid")),
            *self.options,
        ]
