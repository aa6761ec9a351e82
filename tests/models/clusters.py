"""Clusters for the suites: SQLite files, or real MariaDB servers.

A test module takes one for its suites::

    cluster = on_sqlite()

    class TestReading(Reading):
        pass
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import create_engine, Engine, make_url

from sqla_shard.session.flush import REQUESTED
from sqla_shard.testing import StatementLog
from tests.models.backends import Clusters, On
from tests.models.models import Base

#: Virtual shards of every cluster here; half of them on the first server.
SHARDS = 32

_CONTROL = ("BEGIN", "SAVEPOINT", "RELEASE", "ROLLBACK")
_SHARD = re.compile(r"db_?[a-z]*_?(\d{5})")


def at(shard_id: int, instance: Any) -> Any:
    """Ask for the shard of a new object of any class."""
    instance.__dict__[REQUESTED] = shard_id
    return instance


class ShardLog(StatementLog):
    """Counts statements by virtual shard.

    Of what reaches the drivers, the shard is read: from the file's name on
    SQLite, from the name of the database in the statement on MariaDB.
    """

    def take(self) -> dict[int, int]:
        """Return how many statements each shard has got since last asked."""
        found: Counter[int] = Counter()
        for event in self.executions:
            if event.statement.startswith(_CONTROL):
                continue
            names = set(_SHARD.findall(event.statement))
            # On MariaDB only SELECT 1 and the like name no shard.
            for name in names or set(_SHARD.findall(event.server)):
                found[int(name)] += 1
        self.clear()
        return dict(found)


#: Clusters with the tables of pins and boards.
PINS = Clusters(Base.metadata, SHARDS, main=("main",))
on_sqlite = PINS.on_sqlite
on_servers = PINS.on_servers


def plain_engine(**options: Any) -> Any:
    """Return a fixture for a module of suites: one database without shards.

    :param options: for :func:`sqlalchemy.create_engine`.
    """

    @pytest.fixture(scope="module")
    def plain_engine(
        request: pytest.FixtureRequest,
        backend: On,
        tmp_path_factory: pytest.TempPathFactory,
    ) -> Iterator[Engine]:
        with contextlib.ExitStack() as stack:
            # In memory, the sessions of a thread would share a connection.
            path = tmp_path_factory.mktemp("plain") / "plain.sqlite"
            url: Any = f"sqlite:///{path}"
            if backend.live:
                fleet = request.getfixturevalue(f"{backend.kind}_fleet")
                url = stack.enter_context(_plain_database(fleet.servers[0]))
            engine = create_engine(url, **options)
            yield engine
            engine.dispose()

    return plain_engine


@contextlib.contextmanager
def _plain_database(server: Any) -> Iterator[Any]:
    name = "main_plain"
    with server.connect(autocommit=True) as connection:
        cursor = connection.cursor()
        cursor.execute(f"DROP DATABASE IF EXISTS {name}")
        cursor.execute(f"CREATE DATABASE {name} COLLATE utf8mb4_bin")
    url = make_url(server.url)
    # As on the connections of a cluster; to MySQL it is a comment.
    command = "SET @_ = 0 /*M!110602 , innodb_snapshot_isolation = 0 */"
    yield url.set(
        drivername="mysql+pymysql", database=name, query={"init_command": command}
    )
    with server.connect(autocommit=True) as connection:
        connection.cursor().execute(f"DROP DATABASE {name}")
