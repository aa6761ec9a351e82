"""Errors of MariaDB and MySQL: the state of the transaction after them."""

from __future__ import annotations

from typing import Any

import pymysql.err
import pytest
from sqlalchemy import create_engine
from sqlalchemy.exc import OperationalError

from sqla_shard.cluster import retries
from sqla_shard.cluster.retries import repeat, Retries
from sqla_shard.dialects import backend_for, Failure
from sqla_shard.exc import RetriesExhaustedError, StaleDataError

BACKEND = backend_for("mysql", driver="pymysql", asynchronous=False)
READ_ONLY = (
    "The MariaDB server is running with the --{} option so it cannot execute "
    "this statement"
)


def errors() -> list[type[Any]]:
    found: list[type[Any]] = [pymysql.err.OperationalError]
    try:
        dialect = create_engine("mysql+asyncmy://h").dialect
    except ImportError:
        return found
    return [*found, dialect.loaded_dbapi.OperationalError]


@pytest.mark.parametrize("kind", errors(), ids=lambda one: one.__module__)
@pytest.mark.parametrize(
    ("number", "text", "failure"),
    [
        (1290, READ_ONLY.format("read-only"), Failure.FENCED),
        (1290, READ_ONLY.format("super-read-only"), Failure.FENCED),
        (1290, READ_ONLY.format("innodb_read_only"), Failure.FENCED),
        (1290, READ_ONLY.format("secure-file-priv"), Failure.OTHER),
        (1290, READ_ONLY.format("skip-grant-tables"), Failure.OTHER),
        (1836, "Running in read-only mode", Failure.FENCED),
        (3989, "Schema 'db1' is in read only mode.", Failure.FENCED),
        (1792, "Cannot execute in a READ ONLY transaction", Failure.OTHER),
        (1146, "Table 'db1.t' doesn't exist", Failure.MISPLACED),
        (1049, "Unknown database 'db1'", Failure.MISPLACED),
        (1142, "INSERT command denied to user", Failure.MISPLACED),
        (1044, "Access denied for user to database", Failure.MISPLACED),
        (1205, "Lock wait timeout exceeded", Failure.BUSY),
        (3572, "NOWAIT is set", Failure.BUSY),
        (1213, "Deadlock found", Failure.CONFLICT),
        (1020, "Record has changed since last read", Failure.CONFLICT),
        (3101, "Plugin instructed the server to roll", Failure.CONFLICT),
        (3024, "maximum statement execution time", Failure.TIMEOUT),
        (3032, "The server is in offline mode", Failure.LOST),
        (4031, "The client was disconnected", Failure.LOST),
        (1053, "Server shutdown in progress", Failure.LOST),
        (1317, "Query execution was interrupted", Failure.LOST),
        (1927, "Connection was killed", Failure.LOST),
        (2006, "gone away", Failure.LOST),
        (2013, "Lost connection", Failure.LOST),
        (1045, "Access denied", Failure.LOGIN),
        (1062, "Duplicate entry", Failure.OTHER),
    ],
)
def test_classification_of_errors(
    kind: type[Any], number: int, text: str, failure: Failure
) -> None:
    assert BACKEND.classify(kind(number, text)) is failure


class MySQLDialect:
    is_mariadb = False


class MySQLConnection:
    dialect = MySQLDialect()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("SELECT", " 1"),
        ("(SELECT", " 1) UNION ALL (SELECT 2)"),
        ("WITH c AS (SELECT 1) SELECT", " * FROM c"),
        ("WITH c (a, b) AS  (SELECT 1, (SELECT 2)) SELECT", " * FROM c"),
        ("with `)` as (select ')' -> '$.a') select", " * from `)`"),
        ("WITH c AS (SELECT 1) (SELECT", " 1) UNION ALL (SELECT 2)"),
        ("(WITH c AS (SELECT 1) SELECT", " 2) UNION ALL (SELECT 3)"),
        ("/* SELECT ( */ SELECT", " 1"),
    ],
)
def test_a_time_limit_is_in_the_outermost_select(before: str, after: str) -> None:
    connection: Any = MySQLConnection()
    limited = BACKEND.limited(connection, before + after, 0.0305)
    assert limited == f"{before} /*+ MAX_EXECUTION_TIME(31) */{after}"


def test_a_time_limit_beside_the_hints_of_a_statement() -> None:
    connection: Any = MySQLConnection()
    limited = BACKEND.limited(connection, "SELECT /*+ BKA(t) */ a FROM t", 2)
    hints = "/*+ MAX_EXECUTION_TIME(2000) BKA(t) */"
    assert limited == f"SELECT {hints} a FROM t"


def test_missing_tables_and_databases() -> None:
    found = {
        number: BACKEND.lacks(pymysql.err.OperationalError(number, "it"))
        for number in (1146, 1049, 1142, 1044)
    }
    assert found == {1146: "table", 1049: "database", 1142: "grant", 1044: "grant"}


def fenced() -> OperationalError:
    original = pymysql.err.OperationalError(1290, READ_ONLY.format("read-only"))
    return OperationalError("UPDATE pins", {"title": "secret"}, original)


@pytest.mark.parametrize("attempts", [1, 2, 7, 60])
def test_as_many_attempts_as_allowed(attempts: int) -> None:
    made = []

    def attempt() -> None:
        made.append(1)
        if len(made) % 2:
            raise fenced()
        raise StaleDataError(class_name="Pin", object_id=1, fields=["f"])

    class Newer:
        """Has a newer topology each time, so that no pause is made."""

        is_live = True
        epoch = 0

        def refresh(self) -> None:
            self.epoch += 1

        def wait(self, epoch: int, timeout: float) -> bool:
            self.epoch += 1
            return True

    with pytest.raises(RetriesExhaustedError) as caught:
        repeat(
            attempt,
            Retries(
                lambda: {BACKEND},
                attempts=attempts,
                timeout=60,
                follower=Newer(),  # type: ignore[arg-type]  # no thread
            ),
        )
    error = caught.value
    assert error.attempts == len(made) == attempts
    assert sum(error.counts.values()) == attempts
    assert len(error.failures) == min(attempts, 50)
    assert "secret" not in repr(error.failures)


class Clock:
    """A follower without news; time passes when it is waited for."""

    is_live = True
    epoch = 0

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def refresh(self) -> None:
        """Do nothing."""

    def wait(self, epoch: int, timeout: float) -> bool:
        self.now += timeout
        return False


@pytest.mark.parametrize("timeout", [0.0, 0.05, 0.3, 30.0])
def test_no_attempt_begins_after_the_deadline(
    timeout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Not that of the machine, which may do something else for a while.
    clock = Clock()
    monkeypatch.setattr(retries, "monotonic", clock.monotonic)
    began = []

    def attempt() -> None:
        began.append(clock.now - 1000.0)
        raise fenced()

    with pytest.raises(RetriesExhaustedError):
        repeat(
            attempt,
            Retries(
                lambda: {BACKEND},
                attempts=None,
                timeout=timeout,
                follower=clock,  # type: ignore[arg-type]  # no thread
            ),
        )
    # The last pause ends with the deadline, and is followed by one attempt.
    assert all(one < timeout for one in began[:-1])
    assert began[-1] == pytest.approx(timeout)
    assert len(began) > 1 or not timeout
