"""StatementLog on SQLite: its records, and removal of its listeners."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, event, make_url, text
from sqlalchemy.engine import Engine
from sqlalchemy.exc import OperationalError

from sqla_shard.testing import StatementLog
from sqla_shard.testing.statement_log import server_of


@pytest.fixture
def engines(tmp_path: Path) -> Iterator[tuple[Engine, Engine]]:
    pair = (
        create_engine(f"sqlite:///{tmp_path / 'one.sqlite'}"),
        create_engine(f"sqlite:///{tmp_path / 'two.sqlite'}"),
    )
    # The first connection of an engine sends statements of SQLAlchemy's.
    for engine in pair:
        engine.connect().close()
    yield pair
    for engine in pair:
        engine.dispose()


def test_hears_statements_of_its_engines_only(engines):
    one, two = engines
    with StatementLog(one) as log:
        with one.connect() as connection:
            connection.execute(text("SELECT :n"), {"n": 7})
        with two.connect() as connection:
            connection.execute(text("SELECT 2"))
    (only,) = log.executions
    assert only.statement == "SELECT ?"
    assert tuple(only.parameters) == (7,)
    assert only.server == one.url.database
    assert log.statements == ["SELECT ?"]
    assert log.count() == 1


def test_hears_all_engines_when_none_is_named(engines):
    one, two = engines
    with StatementLog() as log:
        for engine, times in ((one, 2), (two, 1)):
            for _ in range(times):
                with engine.connect() as connection:
                    connection.execute(text("SELECT 1"))
    expected = {one.url.database: 2, two.url.database: 1}
    assert log.count_by_server() == expected
    assert log.count_by_server("checkout") == expected
    assert log.count("checkout") == 3


def test_hears_engines_made_after_it(tmp_path):
    with StatementLog() as log:
        engine = create_engine("sqlite://")
        with engine.connect() as connection:
            connection.execute(text("SELECT 3"))
        engine.dispose()
    assert log.statements[-1] == "SELECT 3"
    assert log.executions[-1].server == ":memory:"


def test_tells_connections_apart(engines):
    one, _ = engines
    with StatementLog(one) as log:
        with one.connect() as first, one.connect() as second:
            for connection in (first, second, first):
                connection.execute(text("SELECT 1"))
        numbers = [e.connection for e in log.executions]
    assert numbers == [1, 2, 1]
    assert log.connections == {1, 2}


def test_hears_a_connection_that_was_open_before_it(engines):
    one, _ = engines
    with one.connect() as connection:
        with StatementLog(one) as log:
            connection.execute(text("SELECT 1"))
        connection.execute(text("SELECT 2"))
    assert log.statements == ["SELECT 1"]
    assert log.count("checkout") == 0


def test_hears_transactions_in_order(engines):
    one, _ = engines
    with StatementLog(one) as log:
        with one.begin() as connection:
            connection.execute(text("CREATE TABLE t (a INTEGER)"))
        with one.connect() as connection:
            connection.execute(text("INSERT INTO t VALUES (1)"))
            connection.rollback()
    assert [e.kind for e in log.events] == [
        "checkout",
        "begin",
        "execute",
        "commit",
        "checkout",
        "begin",
        "execute",
        "rollback",
    ]
    assert log.count("commit") == log.count("rollback") == 1


def test_a_failed_statement_is_there(engines):
    one, _ = engines
    log = StatementLog(one)
    with log, one.connect() as connection, pytest.raises(OperationalError):
        connection.execute(text("SELECT * FROM nothing"))
    assert log.statements == ["SELECT * FROM nothing"]


@pytest.mark.parametrize("everywhere", [True, False])
def test_shows_statements_as_other_listeners_rewrote_them(engines, everywhere):
    one, _ = engines

    @event.listens_for(one, "before_cursor_execute", retval=True)
    def rewrite(conn, cursor, statement, parameters, context, executemany):
        return statement.replace("__schema__", "main"), parameters

    with one.begin() as connection:
        connection.execute(text("CREATE TABLE t (a INTEGER)"))
    engines = () if everywhere else (one,)
    with StatementLog(*engines) as log, one.connect() as connection:
        connection.execute(text("SELECT a FROM __schema__.t"))
    assert log.statements == ["SELECT a FROM main.t"]


def test_clear_forgets_but_keeps_the_numbers(engines):
    one, _ = engines
    log = StatementLog(one)
    with log, one.connect() as first, one.connect() as second:
        first.execute(text("SELECT 1"))
        log.clear()
        assert log.events == ()
        second.execute(text("SELECT 2"))
    assert [e.connection for e in log.executions] == [2]
    assert log.count_by_server() == {one.url.database: 1}


def test_removes_its_listeners(engines):
    one, _ = engines
    for log in (StatementLog(one), StatementLog()):
        with log:
            heard = list(log._listeners())
            assert all(event.contains(*key) for key in heard)
        assert not any(event.contains(*key) for key in heard)
        with one.connect() as connection:
            connection.execute(text("SELECT 1"))
        assert log.events == ()


def test_hears_nothing_from_a_pool_that_was_replaced(engines):
    one, _ = engines
    with StatementLog(one) as log:
        one.dispose()
        with one.connect() as connection:
            connection.execute(text("SELECT 1"))
        assert log.count("checkout") == 1
        before = len(log.events)
    with one.connect() as connection:
        connection.execute(text("SELECT 2"))
    assert len(log.events) == before


def test_opened_twice_at_once_is_refused(engines):
    log = StatementLog(engines[0])
    with log, pytest.raises(RuntimeError, match="open already"):
        log.__enter__()
    with log:
        pass
    assert "closed" in repr(log)


def test_threads_do_not_lose_statements(engines):
    one, _ = engines

    def work() -> None:
        for _ in range(50):
            with one.connect() as connection:
                connection.execute(text("SELECT 1"))

    with StatementLog(one) as log:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert log.count() == 200
    assert log.count_by_server() == {one.url.database: 200}


def test_takes_async_engines(engines):
    one, _ = engines

    class Outside:  # an AsyncEngine wants a driver that is not installed
        sync_engine = one

    with StatementLog(Outside()) as log, one.connect() as connection:
        connection.execute(text("SELECT 1"))
    assert log.count() == 1


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("mysql+pymysql://a:secret@h", "h:3306"),
        ("mariadb://a:secret@h:3307/db", "h:3307"),
        ("mysql://a:secret@[::1]:3307/db", "[::1]:3307"),
        ("postgresql://a:secret@h/db", "h"),
        ("sqlite://", ":memory:"),
        ("sqlite:////data/db00001.sqlite", "/data/db00001.sqlite"),
    ],
)
def test_names_servers_without_passwords(url, expected):
    assert server_of(make_url(url)) == expected
