"""Applications with an alembic project, on servers or SQLite."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from textwrap import dedent, indent
from time import monotonic
from typing import Any

import pymysql
import pytest
from alembic.config import Config
from pymysql.constants import ER

from sqla_shard import schema
from sqla_shard.testing import sqlite_topology
from sqla_shard.testing.server_fleet import ServerFleet
from sqla_shard.testing.topology_documents import databases, topology_document
from tests.workers.schema_runner import Finished, Run, Runner

LEDGER = "sqla_shard_ledger"
VERSIONS = "alembic_version"
TIMEOUT = 60

_INI = """\
[alembic]
script_location = %(here)s/migrations
topology = %(here)s/topology.json
keyspace = objects

[main]
script_location = %(here)s/migrations_main
topology = %(here)s/topology.json
keyspace = main
"""
_ENV = """\
from alembic import context
from sqlalchemy import MetaData

from sqla_shard.schema import run_env

run_env(context, MetaData())
"""
_MAKO = """\
revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = ${repr(branch_labels)}
depends_on = ${repr(depends_on)}


def upgrade():
    ${upgrades if upgrades else "pass"}


def downgrade():
    ${downgrades if downgrades else "pass"}
"""
_REVISION = """\
import sqlalchemy as sa
from alembic import op

revision = {name!r}
down_revision = {after!r}
branch_labels = {labels!r}
depends_on = None


def upgrade():
{upgrade}

def downgrade():
{downgrade}
"""


def until(condition: Callable[[], Any], what: str) -> Any:
    """Return the answer of a condition, once it is true."""
    deadline = monotonic() + TIMEOUT
    pause = threading.Event()
    while monotonic() < deadline:
        found = condition()
        if found:
            return found
        pause.wait(0.005)
    pytest.fail(f"{what}: not within {TIMEOUT} s")


class Project:
    """An alembic project and its topology.

    :param document: the topology.
    :param servers: connect as root; none for SQLite.
    """

    def __init__(
        self,
        directory: Path,
        document: dict[str, Any],
        servers: Sequence[Any] = (),
        runner: Runner | None = None,
    ) -> None:
        self.directory = directory
        self.document = document
        self.servers = {server.name: server for server in servers}
        self._runner = runner
        self._last: dict[str, str | None] = {}
        self._connections: dict[str, Any] = {}
        for name in ("migrations", "migrations_main"):
            (directory / name / "versions").mkdir(parents=True)
            (directory / name / "env.py").write_text(_ENV)
            (directory / name / "script.py.mako").write_text(_MAKO)
        (directory / "alembic.ini").write_text(_INI)
        self.write_topology(document)

    def write_topology(self, document: dict[str, Any]) -> None:
        text = json.dumps(document)
        (self.directory / "topology.json").write_text(text)

    def replace_in_env(self, old: str, new: str) -> None:
        """Change the text of ``env.py``, in which the old one stands."""
        path = self.directory / "migrations" / "env.py"
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    # -- revisions

    def add(
        self,
        name: str,
        upgrade: str = "pass",
        downgrade: str = "pass",
        *,
        after: Any = ...,
        labels: Any = None,
        tree: str = "migrations",
    ) -> Path:
        """Write a revision, after the one that was added last."""
        if after is ...:
            after = self._last.get(tree)
        self._last[tree] = name
        versions = self.directory / tree / "versions"
        # Python compares times in whole seconds: it would take the old one.
        shutil.rmtree(versions / "__pycache__", ignore_errors=True)
        path = versions / f"{name}.py"
        path.write_text(
            _REVISION.format(
                name=name,
                after=after,
                labels=labels,
                upgrade=indent(dedent(upgrade).strip("\n") + "\n", "    "),
                downgrade=indent(dedent(downgrade).strip("\n") + "\n", "    "),
            )
        )
        return path

    def rewrite(self, path: Path, old: str, new: str) -> None:
        """Change a revision."""
        text = path.read_text()
        assert old in text
        shutil.rmtree(path.parent / "__pycache__", ignore_errors=True)
        path.write_text(text.replace(old, new))

    # -- commands

    @property
    def ini(self) -> str:
        return str(self.directory / "alembic.ini")

    def config(self, name: str = "alembic") -> Config:
        return Config(self.ini, ini_section=name)

    def start(self, *arguments: str) -> Run:
        """Start alembic's command line."""
        assert self._runner is not None
        return self._runner.start("-c", self.ini, *arguments)

    def alembic(self, *arguments: str, status: int | None = 0) -> Finished:
        """Run alembic's command line.

        :param status: how it is to end; None for any way.
        """
        done = self.start(*arguments).wait()
        if status is not None:
            assert done.returncode == status, done.shown
        return done

    def report(self, *arguments: str, status: int = 0) -> dict[str, Any]:
        """Run a command and return its report."""
        path = self.directory / "report.json"
        path.unlink(missing_ok=True)
        self.alembic("-x", f"report={path}", *arguments, status=status)
        found: dict[str, Any] = json.loads(path.read_text("utf-8"))
        return found

    def states(self, *arguments: str, status: int = 0) -> dict[int, str]:
        """Run a command and return what became of each shard."""
        report = self.report(*arguments, status=status)
        return {one["shard_id"]: one["state"] for one in report["shards"]}

    # -- databases

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    @property
    def shards(self) -> range:
        return range(self.document["keyspaces"]["objects"]["shards"])

    def place(self, shard_id: int) -> tuple[str, str]:
        """Return server and database of a shard."""
        keyspace = self.document["keyspaces"]["objects"]
        for server in keyspace["servers"]:
            ranges = server["shards"]
            if isinstance(ranges[0], int):
                ranges = [ranges]
            if any(first <= shard_id <= last for first, last in ranges):
                name = keyspace["database"].format(shard=shard_id)
                return server["name"], name
        raise KeyError(shard_id)

    def query(self, shard_id: int, sql: str) -> list[tuple[Any, ...]]:
        """Ask a shard; ``{db}`` is its database, with a dot."""
        server, database = self.place(shard_id)
        if self.servers:
            text = sql.format(db=f"`{database}`.")
            connection = self._connections.get(server)
            if connection is None:
                connection = self.servers[server].root_connect(ssl_disabled=True)
                self._connections[server] = connection
            with connection.cursor() as cursor:
                cursor.execute(text)
                return list(cursor.fetchall())
        path = self.file(shard_id)
        connection = sqlite3.connect(path, timeout=30)
        with closing(connection), connection:
            return list(connection.execute(sql.format(db="")))

    def file(self, shard_id: int) -> Path:
        """Return the SQLite file of a shard."""
        server, database = self.place(shard_id)
        return self.directory / "data" / server / f"{database}.sqlite"

    @contextmanager
    def locked(self, shard_id: int, table: str) -> Iterator[None]:
        """Lock a table against changes until the block ends."""
        server, database = self.place(shard_id)
        connection = self.servers[server].root_connect(ssl_disabled=True)
        with closing(connection):
            cursor = connection.cursor()
            cursor.execute(f"LOCK TABLES `{database}`.`{table}` READ")
            yield

    def running(self, shard_id: int, like: str) -> list[int]:
        """Return the connections in a shard that run such a statement.

        One that writes a statement into the ledger does not run it yet.
        """
        _, database = self.place(shard_id)
        rows = self.query(
            shard_id,
            "SELECT id FROM information_schema.processlist WHERE "
            f"db = '{database}' AND info LIKE '{like}' "
            f"AND info NOT LIKE 'INSERT INTO {LEDGER}%'",
        )
        return [row[0] for row in rows]

    def until_running(self, shard_id: int, like: str) -> int:
        found: int = until(lambda: self.running(shard_id, like), like)[0]
        return found

    def end(self, shard_id: int, connection: int) -> None:
        """Let the server end a connection."""
        try:
            self.query(shard_id, f"KILL {connection}")
        except pymysql.err.OperationalError as error:
            # The server has seen for itself that its client is gone.
            if error.args[0] != ER.NO_SUCH_THREAD:
                raise
        until(
            lambda: (
                not self.query(
                    shard_id,
                    "SELECT id FROM information_schema.processlist "
                    f"WHERE id = {connection}",
                )
            ),
            "the end of a connection",
        )

    def heads(self, shard_id: int) -> list[str]:
        rows = self.query(shard_id, f"SELECT version_num FROM {{db}}{VERSIONS}")
        return sorted(row[0] for row in rows)

    def provision(self) -> None:
        """Say that the databases are new, for runs that do not end well."""
        schema.provision(self.config(), initial=True)

    def ledger(self, shard_id: int) -> list[dict[str, Any]]:
        """Return the statements of revisions, in order."""
        names = (
            "id direction revision number state statement tables_before error is_open"
        )
        rows = self.query(
            shard_id,
            f"SELECT {', '.join(names.split())} FROM {{db}}{LEDGER} "
            "WHERE direction <> 'provision' ORDER BY id",
        )
        return [dict(zip(names.split(), row, strict=True)) for row in rows]

    def tables(self, shard_id: int) -> dict[str, str]:
        """Return the definitions of the application's tables."""
        _, database = self.place(shard_id)
        rows = self.query(
            shard_id,
            "SELECT table_name FROM information_schema.tables WHERE "
            f"table_schema = '{database}' AND table_name NOT LIKE "
            f"'sqla\\_shard\\_%' AND table_name <> '{VERSIONS}'",
        )
        found = {}
        for (name,) in rows:
            made = self.query(shard_id, f"SHOW CREATE TABLE {{db}}`{name}`")
            found[name] = made[0][1]
        return self.without_counters(found)

    @staticmethod
    def without_counters(tables: dict[str, str]) -> dict[str, str]:
        return {
            name: re.sub(r" AUTO_INCREMENT=\d+", "", made)
            for name, made in tables.items()
        }


def runner_fixture() -> Any:
    """Return a fixture for a runner, which starts alembic quickly."""

    @pytest.fixture(scope="module")
    def runner(tmp_path_factory: Any) -> Iterator[Runner]:
        with Runner(tmp_path_factory.mktemp("runs")) as runner:
            yield runner

    return runner


def on_servers(prefix: str, shards: int = 4, **more: Any) -> Any:
    """Return a fixture: an empty project on new databases, for each test.

    :param prefix: part of the names of the databases, letters only.
    """

    @pytest.fixture
    def project(
        fleet: ServerFleet[Any], runner: Runner, tmp_path: Path
    ) -> Iterator[Project]:
        whole = fleet.topology_mapping()
        urls = {
            server["name"]: server["primary"]
            for server in whole["keyspaces"]["objects"]["servers"][:2]
        }
        document = topology_document(
            urls, shards, database=f"db_{prefix}_{{shard:05d}}", **more
        )
        fleet.drop_databases(document)
        fleet.create_databases(document)
        project = Project(tmp_path, document, fleet.servers, runner)
        yield project
        project.close()
        # Processes left by a failed test would keep the databases locked.
        runner.end_if_busy()
        fleet.drop_databases(document)

    return project


def on_sqlite(shards: int = 4, **more: Any) -> Any:
    """Return a fixture: an empty project on new files, for each test."""

    @pytest.fixture
    def project(runner: Runner, tmp_path: Path) -> Project:
        document = sqlite_topology(tmp_path / "data", 2, shards, **more)
        for server, database in databases(document):
            (tmp_path / "data" / server / f"{database}.sqlite").touch()
        return Project(tmp_path, document, runner=runner)

    return project
