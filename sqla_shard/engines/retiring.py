"""Servers that have left the topology, while some still use them."""

from __future__ import annotations

import logging
import weakref
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


class Leaving:
    """Says whether the server of one engine has left.

    It knows nothing of the engine: caches of statements, which live as long
    as the classes of an application, lead to what listens to a dialect.
    """

    def __init__(self) -> None:
        self._server: str | None = None
        self._deadline = 0.0

    def __bool__(self) -> bool:
        return self._server is not None

    def begin(self, server: str, grace: float) -> None:
        """Take note that it has."""
        self._deadline = monotonic() + grace
        self._server = server

    def check(self, *details: object) -> None:
        """Refuse a connection.

        :raises ServerRetiredError: when it has.
        """
        if self._server is not None:
            raise ServerRetiredError(server=self._server)

    def check_deadline(self, *details: object) -> None:
        """Refuse a statement, before it begins: none is torn.

        :raises ServerRetiredError: when it has, and time is up.
        """
        if self._server is not None and monotonic() > self._deadline:
            raise ServerRetiredError(server=self._server)


class Retired:
    """Engines that give out no connection any more.

    What was in use when the server left may be used for some time; then
    nothing is sent over it but the end of the transaction.

    :param grace: seconds.
    """

    def __init__(self, grace: float) -> None:
        self._grace = grace
        self._gone: dict[str, None] = {}
        self._engines: dict[Engine, tuple[str, ...]] = {}
        # Also of those that nobody uses any more: a transaction that has
        # found a place may come late for its first connection.
        self._watched: weakref.WeakKeyDictionary[Engine, Leaving] = (
            weakref.WeakKeyDictionary()
        )

    def watch(self, engine: Engine) -> Leaving:
        """Have a new engine ask whether its server has left."""
        # Not when it has: listeners must not change while other threads run
        # statements.
        leaving = self._watched[engine] = Leaving()
        # Before one is opened, too: the server may be down by now.
        event.listen(engine, "do_connect", leaving.check)
        event.listen(engine, "before_cursor_execute", leaving.check_deadline)
        return leaving

    def __contains__(self, engine: Engine) -> bool:
        return bool(self._watched.get(engine))

    def __iter__(self) -> Iterator[Engine]:
        """Iterate over those of which something is in use."""
        return iter(list(self._engines))

    def __bool__(self) -> bool:
        return bool(self._engines)

    def names_of(self, engine: Engine) -> tuple[str, ...]:
        """Return the names of its server, while something of it is in use."""
        return self._engines.get(engine, ())

    def is_gone(self, text: str) -> bool:
        """Tell whether a URL is of a server that has left."""
        return text in self._gone

    def let_in(self, present: Iterable[str]) -> None:
        """Take note of the URLs that a topology has."""
        for text in present:
            self._gone.pop(text, None)

    def note(self, left: Iterable[str]) -> None:
        """Take note of the URLs that a topology has no more."""
        self._gone.update(dict.fromkeys(left))
        for text in list(self._gone)[:-_MOST]:
            del self._gone[text]

    def add(self, engine: Engine, names: Iterable[str], busy: int) -> None:
        """Let an engine give out no connection any more.

        :param names: of its server.
        :param busy: how many of its connections are in use.
        """
        self._engines[engine] = tuple(names)
        server = ", ".join(self._engines[engine])
        self._watched[engine].begin(server, self._grace)
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
