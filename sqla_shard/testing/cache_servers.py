"""memcached and Redis servers for tests.

::

    with MemcachedServer() as server:
        cache = pymemcache.Client(server.address)
        cache.set("pin", b"1")
        server.pause()      # does not respond
        server.resume()
        server.kill()       # like a crash
        server.start()      # on the same port, and empty

Needs Linux, and memcached 1.6 or later on the machine (Debian: ``memcached``).
There is no client: the example uses pymemcache, of the extra ``cache``.  The
server listens on 127.0.0.1 only, by TCP, never by UDP; it starts in some
milliseconds and takes a few MB of memory at first.

The items are lost when the process ends.  Its directory, with its log, is
removed by :meth:`MemcachedServer.stop`, when the interpreter exits, or by a
guard process when the test run is killed.  Do not control one server from
several threads at the same time.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from sqla_shard import exc
from sqla_shard.testing.local_server import LocalServer
from sqla_shard.testing.programs import (
    find_memcached,
    find_redis,
    MISSING_MEMCACHED,
    MISSING_REDIS,
)

_PATIENCE = 5.0


class CacheServer(LocalServer):
    """A cache server for tests.

    :param name: name of the server, for messages; by default :attr:`_first`.
    :param megabytes: memory for items.
    :param options: further arguments of the program.
    :raises ValueError: if an argument is not valid.
    """

    _first: ClassVar[str]
    """The default name."""

    _ping: ClassVar[tuple[bytes, bytes]]
    """A command, and the beginning of the response."""

    _flush_command: ClassVar[tuple[bytes, bytes]]
    """The command that removes all items, and its response."""

    def __init__(
        self,
        name: str | None = None,
        *,
        megabytes: int = 64,
        options: Sequence[str] = (),
        parent: Path | None = None,
        start_timeout: float = 20.0,
        stop_timeout: float = 10.0,
    ) -> None:
        if type(megabytes) is not int or megabytes < 1:
            raise ValueError(f"megabytes={megabytes!r} must be an integer from 1")
        super().__init__(
            self._first if name is None else name,
            parent=parent,
            start_timeout=start_timeout,
            stop_timeout=stop_timeout,
        )
        self.megabytes = megabytes
        self.options: list[str] = list(options)

    @property
    def address(self) -> str:
        """Host and port, in the form for clients."""
        return f"{self.host}:{self.port}"

    @property
    def alive(self) -> bool:
        """Whether the server responds; a paused server does not."""
        if self._paused or not self.running:
            return False
        question, answer = self._ping
        try:
            return self._ask(question).startswith(answer)
        except OSError:
            return False

    def flush(self) -> None:
        """Remove all items; connections stay open.

        :raises sqla_shard.exc.ServerProcessError: if the server is not
            running or does not respond.
        """
        self._expect(*self._flush_command, failed="did not remove its items")

    def _prepare(self, directory: Path) -> None:
        """Write nothing."""

    def _is_ready(self) -> bool:
        return self.alive

    def _expect(self, command: bytes, expected: bytes, *, failed: str) -> None:
        self._running_process()
        try:
            answer = self._ask(command)
        except OSError as error:
            answer = str(error).encode()
        if answer != expected:
            raise exc.ServerProcessError(
                f"{self!r} {failed}: {answer!r}", log=self.log_tail
            )

    def _ask(self, command: bytes) -> bytes:
        """Return the line with which the server responds to a command.

        :raises OSError: if there is no response in time.
        """
        with socket.create_connection(
            (self.host, self.port), timeout=_PATIENCE
        ) as asking:
            asking.sendall(command + b"\r\n")
            with asking.makefile("rb") as answers:
                return answers.readline()


class MemcachedServer(CacheServer):
    """A memcached server for tests.

    :param name: name of the server, for messages; by default ``memcached1``.
    :param megabytes: memory for items; when it is full, older ones are
        evicted.
    :param options: further arguments of the program, such as ``["-t", "1"]``.
    :param parent: parent of the server's directory; by default the
        directory for temporary files (``TMPDIR``).
    :param start_timeout: seconds to wait for a start.
    :param stop_timeout: seconds to wait for a clean shutdown before SIGKILL.
    :raises ValueError: if an argument is not valid.
    """

    _first = "memcached1"
    _log_name = "memcached.log"
    _ping = b"version", b"VERSION "
    _flush_command = b"flush_all", b"OK\r\n"

    def restart(self) -> MemcachedServer:
        """Kill the server and start it on its port, without its items.

        :raises sqla_shard.exc.ServerProcessError: as :meth:`start`.
        """
        # A clean shutdown takes a second, and saves nothing.
        self.kill()
        return self.start()

    def _command(self, directory: Path) -> list[str]:
        program = find_memcached()
        if program is None:
            raise exc.ServerProcessError(MISSING_MEMCACHED, log="")
        # Without this option memcached does not run as root.
        user = ["-u", "root"] if os.geteuid() == 0 else []
        return [
            program,
            *("-l", self.host, "-p", str(self.port), "-U", "0"),
            *("-m", str(self.megabytes), *user),
            # The guard identifies the process by its directory.
            *("-P", str(directory / "memcached.pid")),
            *self.options,
        ]


class RedisServer(CacheServer):
    """A Redis server for tests.

    ::

        with RedisServer() as server:
            client = redis.Redis(port=server.port)
            client.set("pin", b"1")
            server.save()       # to disk
            client.delete("pin")
            server.kill()       # like a crash
            server.start()      # on the same port, with the saved pin

    It needs Linux and Redis 6.2 or later (Debian: ``redis-server``).  The
    example uses the client redis, of the extra ``redis``.  The server listens
    on 127.0.0.1 only, and starts in some milliseconds.  It writes to disk
    only in :meth:`save`, unless its options say otherwise.  Its directory is
    removed by :meth:`stop`, when the interpreter exits, or by a guard process
    if the test run is killed.  Do not control one server from several threads
    at the same time.

    :param name: name of the server, for messages; by default ``redis1``.
    :param megabytes: memory for items; when it is full, writes fail, unless
        the options have another ``--maxmemory-policy``.
    :param options: further arguments of the program, such as
        ``["--appendonly", "yes"]``.
    :param parent: parent of the server's directory; by default the
        directory for temporary files (``TMPDIR``).
    :param start_timeout: seconds to wait for a start.
    :param stop_timeout: seconds to wait for a clean shutdown before SIGKILL.
    :raises ValueError: if an argument is not valid.
    """

    _first = "redis1"
    _log_name = "redis.log"
    _ping = b"PING", b"+PONG"
    _flush_command = b"FLUSHALL", b"+OK\r\n"

    def save(self) -> None:
        """Write all items to disk, for the next start.

        :raises sqla_shard.exc.ServerProcessError: if the server is not
            running or does not respond.
        """
        self._expect(b"SAVE", b"+OK\r\n", failed="did not save its items")

    def _command(self, directory: Path) -> list[str]:
        program = find_redis()
        if program is None:
            raise exc.ServerProcessError(MISSING_REDIS, log="")
        return [
            program,
            *("--bind", self.host, "--port", str(self.port)),
            # The guard identifies the process by its directory, which Redis
            # would replace in the title of the process.
            *("--dir", str(directory), "--set-proc-title", "no"),
            *("--save", "", "--maxmemory", f"{self.megabytes}mb"),
            *self.options,
        ]
