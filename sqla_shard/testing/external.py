"""Servers that somebody else runs, named in the environment.

MySQL 8, an older MariaDB, a server on another machine: whatever the URL
leads to, the tests that need no process of their own run there.

Environment variables:

``SQLA_SHARD_TEST_SERVERS``
    URLs divided by commas, ``mysql://user:password@host:port``.  The account
    must be allowed to create and drop the databases of the tests (names
    that begin with ``db``, ``main`` and ``lookup``); those are dropped.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote
from urllib.parse import urlsplit

import pymysql
from pymysql.cursors import Cursor

from sqla_shard import exc

__all__ = ["ExternalServer", "external_servers"]


class ExternalServer:
    """A server that is used but not controlled.

    Has the part of :class:`~.mariadb.MariaDBServer` that needs no process:
    ``name``, ``host``, ``port``, ``user``, ``password``, ``url``,
    :meth:`connect` and :meth:`root_execute`.

    :param name: for messages; also the name in a topology.
    :param url: as in ``SQLA_SHARD_TEST_SERVERS``.
    :raises ValueError: if the URL lacks a part; the password is not shown.
    """

    local = False
    """Whether the server is a process of ours, which we can kill."""

    def __init__(self, name: str, url: str) -> None:
        parts = urlsplit(url)
        scheme = parts.scheme.partition("+")[0]
        if scheme not in ("mysql", "mariadb") or not (
            parts.hostname and parts.username
        ):
            raise ValueError(
                "SQLA_SHARD_TEST_SERVERS: the URL of "
                f"{name} must have the form mysql://user:password@host:port"
            )
        self.name = name
        self.host = parts.hostname
        self.port = parts.port or 3306
        self.user = unquote(parts.username)
        self.password = unquote(parts.password or "")
        self.url = url.strip().replace(parts.scheme, "mysql", 1)

    def __repr__(self) -> str:
        where = f"{self.host}:{self.port}"
        return f"<{type(self).__name__} {self.name} {where}>"

    def connect(self, **arguments: Any) -> pymysql.Connection[Cursor]:
        """Connect as the application does.

        :param arguments: for :func:`pymysql.connect`.
        :raises pymysql.err.OperationalError: if the server does not answer.
        """
        return pymysql.connect(
            host=self.host,
            port=self.port,
            user=self.user,
            password=self.password,
            charset="utf8mb4",
            **arguments,
        )

    def root_execute(
        self, sql: str, parameters: Sequence[object] = ()
    ) -> list[tuple[Any, ...]]:
        """Run one statement, under the account of the URL.

        :param parameters: for ``%s`` in the statement, if any.
        :return: the rows; none for a statement without.
        :raises pymysql.err.MySQLError: if the statement fails.
        """
        with self.connect(autocommit=True) as connection:
            cursor = connection.cursor()
            cursor.execute(sql, tuple(parameters) or None)
            return list(cursor.fetchall())

    def start(self) -> ExternalServer:
        """Check that the server answers.

        :raises sqla_shard.exc.ServerProcessError: if it does not.
        """
        try:
            self.root_execute("SELECT 1")
        except pymysql.err.MySQLError as error:
            raise exc.ServerProcessError(
                f"{self!r} of SQLA_SHARD_TEST_SERVERS does not answer: "
                f"{error}",
                log="",
            ) from error
        return self

    def stop(self) -> None:
        """Do nothing: it goes on for whoever runs it."""


def external_servers(
    environ: Mapping[str, str] = os.environ,
) -> list[ExternalServer]:
    """Return the servers of ``SQLA_SHARD_TEST_SERVERS``; none if not set.

    :raises ValueError: if one of the URLs lacks a part.
    """
    urls = environ.get("SQLA_SHARD_TEST_SERVERS", "").split(",")
    return [
        ExternalServer(f"server{number}", url.strip())
        for number, url in enumerate(filter(str.strip, urls), 1)
    ]
