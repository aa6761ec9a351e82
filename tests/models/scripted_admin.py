"""A session of the operator without a server.

Statements for MySQL 8 are tested with it: the servers of the tests are
MariaDB.  Each statement is recorded and answered with the rows that MySQL's
Reference Manual documents; one that no answer was given for is an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from sqla_shard.fleet.admin import Admin


class ScriptedAdmin:
    """Has the methods of :class:`~sqla_shard.fleet.admin.Admin`.

    :param answers: rows by a part of the statement.
    :ivar sent: the statements of :meth:`run`, with their parameters.
    :ivar asked: the statements of the other methods.
    """

    host = "b"
    port = 3306
    is_mariadb = False
    timeout = 10.0
    error = Admin.error
    lock_all = Admin.lock_all

    def __init__(
        self,
        answers: Mapping[str, Sequence[Any]] | None = None,
        *,
        version: tuple[int, ...] = (8, 4, 3),
        variables: Mapping[str, str] | None = None,
        counters: Mapping[str, str] | None = None,
    ) -> None:
        self.version = version
        self.sent: list[tuple[Any, ...]] = []
        self.asked: list[tuple[Any, ...]] = []
        self._answers = answers or {}
        self._variables = variables or {}
        self._counters = counters or {}

    def __str__(self) -> str:
        return "target (b:3306)"

    @property
    def texts(self) -> list[str]:
        """The statements of :meth:`run`."""
        return [text for text, *_ in self.sent]

    def run(self, sql: str, *parameters: object) -> None:
        self.sent.append((sql, *parameters))

    def mappings(self, sql: str, *parameters: object) -> list[Any]:
        self.asked.append((sql, *parameters))
        for part, rows in self._answers.items():
            if part in sql:
                return list(rows)
        raise AssertionError(f"no answer to {sql!r}")

    rows = mappings
    estimates = Admin.estimates
    databases = Admin.databases

    def value(self, sql: str, *parameters: object) -> Any:
        ((found,),) = self.rows(sql, *parameters)
        return found

    def waits_for_space(self, command: str = "%") -> bool:
        return False

    def variables(self, *patterns: str) -> dict[str, str]:
        return _like(self._variables, patterns)

    def counters(self, *patterns: str) -> dict[str, str]:
        return _like(self._counters, patterns)

    @contextmanager
    def unlogged(self) -> Any:
        self.run("SET SESSION sql_log_bin = 0")
        yield
        self.run("SET SESSION sql_log_bin = 1")


def _like(values: Mapping[str, str], patterns: Sequence[str]) -> dict[str, str]:
    return {
        name: value
        for name, value in values.items()
        if any(
            name.startswith(pattern[:-1]) if pattern.endswith("%") else name == pattern
            for pattern in patterns
        )
    }
