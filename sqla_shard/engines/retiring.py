"""Servers that have left the topology, while some still use them."""

from __future__ import annotations

import logging
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from time import monotonic

from sqlalchemy import Engine
from sqlalchemy import event

from sqla_shard.exc import ServerRetiredError

__all__ = ["Retired"]

_log = logging.getLogger(__name__)

#: How many URLs of former servers are known at most; those that left first
#: are forgotten, when no transaction of their time can be left.
_MOST = 1024


class Retired:
    """Engines that give out no connection any more.

    What was in use when the server left may be used for some time; then
    nothing is sent over it but the end of the transaction.

    :param grace: seconds.
    """

    def __init__(self, grace: float) -> None:
        self._grace = grace
        self._gone: dict[str, None] = {}
        self._engines: dict[Engine, float] = {}

    def __contains__(self, engine: object) -> bool:
        return engine in self._engines

    def __iter__(self) -> Iterator[Engine]:
        return iter(list(self._engines))

    def __bool__(self) -> bool:
        return bool(self._engines)

    def is_gone(self, text: str) -> bool:
        """Tell whether a URL is of a server that has left."""
        return text in self._gone

    def note(self, left: Iterable[str], present: Collection[str]) -> None:
        """Take note of the URLs that a topology has no more, and has."""
        self._gone.update(dict.fromkeys(left))
        for text in present:
            self._gone.pop(text, None)
        for text in list(self._gone)[:-_MOST]:
            del self._gone[text]

    def add(self, engine: Engine, names: Iterable[str], busy: int) -> None:
        """Let an engine give out no connection any more.

        :param names: of its server.
        :param busy: how many of its connections are in use.
        """
        self._engines[engine] = deadline = monotonic() + self._grace
        server = ", ".join(names)

        def refuse(*details: object) -> None:
            # Before a statement: none is torn while it runs.
            if monotonic() > deadline:
                raise ServerRetiredError(server=server)

        event.listen(engine, "before_cursor_execute", refuse)
        _log.info(
            "server %s has left the topology; %d of its connections are in "
            "use",
            server,
            busy,
            extra={"action": "retire server", "server": server},
        )

    def forget(self, busy: Collection[Engine]) -> None:
        """Forget the engines that nobody uses.

        :param busy: those that somebody does.
        """
        for engine in self._engines.keys() - set(busy):
            self._engines.pop(engine, None)

    def clear(self) -> None:
        """Forget all engines."""
        self._engines.clear()
