"""A pytest plugin for SQLAlchemy's own tests: their sessions are ours.

Their database is the only one of a cluster, a global keyspace.  Sessions that
a test binds to a connection or to another engine stay plain: most of them only
insert the rows of a test.
"""

from __future__ import annotations

import gc
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import orm
from sqlalchemy.testing import assertsql, config

from sqla_shard import Cluster, ShardSession
from sqla_shard.dialects.sqlite import SQLite

Plain = orm.Session
_cluster: Any = None
#: Sessions of ours that the running test has opened.
_opened: list[None] = []
#: Tests that passed, with a session of ours.
_passed: list[str] = []


class GlobalSession(ShardSession):
    """A session of the cluster, opened like one of SQLAlchemy."""

    def __new__(cls, bind: Any = None, **kwargs: Any) -> Any:
        foreign = bind not in (None, config.db) or kwargs.get("binds")
        if cls is GlobalSession and (foreign or kwargs.get("twophase")):
            return Plain(bind, **kwargs)
        return super().__new__(cls)

    def __init__(self, bind: Any = None, **kwargs: Any) -> None:
        super().__init__(cluster=_cluster, **kwargs)
        _opened.append(None)


@pytest.hookimpl(trylast=True)  # SQLAlchemy's own plugin is ready by then
def pytest_sessionstart(session: pytest.Session) -> None:
    global _cluster
    engine = config.db
    # The engine of the tests, which count its statements: in a database in
    # memory each engine would have tables of its own.
    SQLite.locate = lambda self, url, database: (engine.url, "main")  # type: ignore[method-assign]
    SQLite.open = lambda self, url, options, **kwargs: engine  # type: ignore[method-assign]
    server = {"name": "server", "primary": "sqlite:///unused"}
    keyspace = {"kind": "global", "database": "unused", "servers": [server]}
    _cluster = Cluster.from_topology({"epoch": 1, "keyspaces": {"main": keyspace}})
    with _cluster.session() as one:
        assert one.connection().engine is engine
    # Before the modules of tests import them.
    orm.Session = GlobalSession  # type: ignore[misc]
    orm.sessionmaker.__init__.__kwdefaults__["class_"] = GlobalSession
    received = assertsql.CompiledSQL._received_statement

    def unqualified(rule: Any, observed: Any) -> Any:
        statement, parameters = received(rule, observed)
        return statement.replace("__[SCHEMA__none].", ""), parameters

    assertsql.CompiledSQL._received_statement = unqualified  # type: ignore[method-assign]


def pytest_collection_finish() -> None:
    # Many tests collect garbage, and would look at every module again.
    gc.collect()
    gc.freeze()


def pytest_runtest_setup() -> None:
    _opened.clear()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" and report.passed and _opened:
        _passed.append(report.nodeid)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    terminalreporter.write_line(
        f"SQLAlchemy {sqlalchemy.__version__}: {len(_passed)} passed with our sessions"
    )
