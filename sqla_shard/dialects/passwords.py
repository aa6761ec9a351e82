"""Passwords that a function of the application returns."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from sqlalchemy.engine import URL

from sqla_shard.util.processes import in_children


@dataclass(frozen=True, kw_only=True)
class ServerLogin:
    """The account and the server that a password is for.

    :ivar server: name of the server in the topology, such as
        ``sharddb001``; that of a standby ends with ``" (standby)"``, and a
        server of several keyspaces may have several, with commas.
    :ivar host: its host, as in the URL.
    :ivar port: its port.
    :ivar user: the user in the URL.
    """

    server: str
    host: str
    port: int
    user: str


PasswordFunction = Callable[[ServerLogin], str]
"""Returns the password of an account on a server."""


class PasswordError(Exception):
    """Raised when a function returns no password."""


# By identity: a function may return the same password twice.
@dataclass(frozen=True, eq=False)
class Secret:
    """A password.

    :ivar text: the password.
    """

    text: str = field(repr=False)


class PasswordSource:
    """The password of an account on one server; thread-safe.

    :param function: returns the password.
    :param url: URL of the server.
    :param names: names of the server; more may be added later.
    """

    def __init__(
        self, function: PasswordFunction, url: URL, names: Iterable[str]
    ) -> None:
        self.names = names
        self._function = function
        self._host = url.host or "localhost"
        self._port = url.port or 3306
        self._user = url.username or ""
        #: The newest password; None before the first call.
        self.known: Secret | None = None
        self._lock = threading.Lock()
        in_children(self)

    def ask(self, used: Secret | None) -> Secret:
        """Call the function, unless another thread has done so meanwhile.

        :param used: the password that the server has refused; None if there
            was none.
        :raises PasswordError: if the function returns no password.
        """
        with self._lock:
            if self.known is None or self.known is used:
                self.known = Secret(self._call())
            return self.known

    def _call(self) -> str:
        login = ServerLogin(
            server=", ".join(self.names),
            host=self._host,
            port=self._port,
            user=self._user,
        )
        try:
            found = self._function(login)
        except Exception as error:
            # Its message is not shown: it may contain a token.
            raise PasswordError(
                f"the function for its password raised {_kind(error)}"
            ) from error
        if not isinstance(found, str):
            raise PasswordError(
                f"the function for its password returned {_kind(found)}, not a str"
            )
        return found

    def after_fork(self) -> None:
        """Replace the lock, which a thread of the parent may hold."""
        self._lock = threading.Lock()


class Passwords:
    """The passwords of all servers of a cluster.

    :param function: returns the password of a server.
    """

    def __init__(self, function: PasswordFunction) -> None:
        self._function = function
        self._sources: dict[tuple[object, ...], PasswordSource] = {}

    def of(self, url: URL, names: Iterable[str]) -> PasswordSource:
        """Return the password of a server.

        :param url: URL of the server.
        :param names: names of the server; more may be added later.
        """
        key = url.host, url.port, url.username
        source = self._sources.get(key)
        if source is None:
            source = self._sources.setdefault(
                key, PasswordSource(self._function, url, names)
            )
        source.names = names
        return source


def _kind(one: object) -> str:
    return type(one).__name__
