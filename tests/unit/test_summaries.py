"""Summaries of errors in logs and traces."""

from __future__ import annotations

import sqlite3
from typing import Any

import pymysql.err
import pytest
from sqlalchemy.exc import DBAPIError, StatementError

from sqla_shard.exc import ServerUnreachableError, UnknownShardError
from sqla_shard.exc.base import code_of, summary
from tests.suites.jobs_working import HiddenError, NamelessError, OddError

SECRET = "me@example.com"


def wrapped(error: Any) -> Any:
    """Return an error as SQLAlchemy raises it, with parameters."""
    kind: Any = type(error).__mro__[-3]
    return DBAPIError.instance("SELECT ?", (SECRET,), error, kind)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            pymysql.err.OperationalError(1213, "Deadlock found"),
            "OperationalError: (1213, 'Deadlock found')",
        ),
        (
            pymysql.err.OperationalError(2013, "Lost connection"),
            "OperationalError: (2013, 'Lost connection')",
        ),
        (
            pymysql.err.IntegrityError(1062, f"Duplicate entry '{SECRET}'"),
            "IntegrityError: 1062",
        ),
        (
            pymysql.err.OperationalError(1292, f"Incorrect: '{SECRET}'"),
            "OperationalError: 1292",
        ),
        (
            pymysql.err.ProgrammingError(1064, f"syntax near '{SECRET}'"),
            "ProgrammingError: 1064",
        ),
        (
            sqlite3.IntegrityError("UNIQUE constraint failed: users.email"),
            "IntegrityError: UNIQUE constraint failed: users.email",
        ),
    ],
)
def test_errors_of_drivers(error: Any, expected: str) -> None:
    found = wrapped(error)
    assert SECRET in str(found)
    assert summary(found) == expected


def test_a_value_that_a_type_refuses() -> None:
    error = StatementError(
        f"(LookupError) '{SECRET}' is not a color",
        "SELECT ?",
        (SECRET,),
        LookupError(SECRET),
    )
    assert summary(error) == "StatementError: LookupError"


def test_errors_of_this_package_are_shown() -> None:
    error = ServerUnreachableError(
        server="server1", error=pymysql.err.OperationalError(2003, "Can't connect")
    )
    assert "server1" in summary(error)
    unknown = UnknownShardError(shard_id=9, keyspace="objects", opened=4)
    assert summary(unknown) == f"UnknownShardError: {unknown}"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (HiddenError(), "an error that cannot be described"),
        (NamelessError(), "an error that cannot be described"),
        (OddError(), "OddError: odd"),
        (type("A" * 10**6, (ValueError,), {})("long"), f"{'A' * 200}: long"),
    ],
    ids=range(4),
)
def test_odd_classes(error: Any, expected: str) -> None:
    assert summary(error) == expected


def test_codes() -> None:
    mysql = pymysql.err.IntegrityError(1062, "Duplicate entry")
    assert code_of(mysql) == "1062"
    assert code_of(wrapped(mysql)) == "1062"
    assert code_of(ValueError("x")) is None
    assert code_of(ValueError()) is None
