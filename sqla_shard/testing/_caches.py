"""What servers of caches share: a line asked is a line answered."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar
from typing import TypeVar

from sqla_shard import exc
from sqla_shard.testing._server import LocalServer

__all__ = ["CacheServer"]

_PATIENCE = 5.0
_Self = TypeVar("_Self", bound="CacheServer")


class CacheServer(LocalServer):
    """A server of a cache that is started, used and thrown away.

    :param name: for messages; by default that of the first of its kind.
    :param megabytes: memory for items.
    :param options: further arguments of the program.
    :raises ValueError: if an argument makes no sense.
    """

    _first: ClassVar[str]
    """The name of one that nobody has named."""

    _ping: ClassVar[tuple[bytes, bytes]]
    """What it is asked to see whether it is there, and how it answers."""

    _forget: ClassVar[tuple[bytes, bytes]]
    """How it is told to forget everything, and what it answers."""

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
            raise ValueError(f"megabytes={megabytes!r} is not 1 or more")
        super().__init__(
            self._first if name is None else name,
            parent=parent,
            start_timeout=start_timeout,
            stop_timeout=stop_timeout,
        )
        self.megabytes = megabytes
        self.options = list(options)

    @property
    def address(self) -> str:
        """Host and port, as clients want them."""
        return f"{self.host}:{self.port}"

    @property
    def alive(self) -> bool:
        """Whether it answers; a paused server does not."""
        if self._paused or not self.running:
            return False
        question, answer = self._ping
        try:
            return self._ask(question).startswith(answer)
        except OSError:
            return False

    def start(self: _Self) -> _Self:
        """Start the server and wait until it answers.

        After :meth:`kill` or an end of its own it has its port again.
        Nothing happens if it is running.

        :raises sqla_shard.exc.ServerProcessError: if its program is missing
            or does not start in time; has the end of its log.
        """
        self._start()
        return self

    def flush(self) -> None:
        """Forget all items; connections stay.

        :raises sqla_shard.exc.ServerProcessError: if the server is not
            running or does not answer.
        """
        self._tell(*self._forget, failed="did not forget its items")

    # -- inside -----------------------------------------------------------

    def _fill(self, directory: Path) -> None:
        """Write nothing; the process writes its log."""

    def _serves(self) -> bool:
        return self.alive

    def _tell(self, command: bytes, expected: bytes, *, failed: str) -> None:
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
        """Return the one line that answers a command.

        :raises OSError: if there is none in time.
        """
        with socket.create_connection(
            (self.host, self.port), timeout=_PATIENCE
        ) as asking:
            asking.sendall(command + b"\r\n")
            with asking.makefile("rb") as answers:
                return answers.readline()
