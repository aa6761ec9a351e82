"""Alembic over 4,096 virtual shards, against the bare statements.

Raw is PyMySQL alone, in as many processes for each server as the runner
has: every statement that the runner has sent, and alembic's version table,
nothing else.  Halves of the databases take turns, in the order raw, runner,
runner, raw, for servers become slower as tables become many.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from subprocess import run as run_process
from time import perf_counter
from typing import Any

from alembic import command
from alembic.config import Config

from sqla_shard import schema
from sqla_shard.testing.server_fleet import ServerFleet
from tests.benchmarks.servers import new_fleet, title

_SHARDS = int(os.environ.get("SQLA_SHARD_BENCH_SHARDS", "4096"))
_SERVERS = 4
_JOBS = 4
_SAMPLE = 64
_MODELS = "examples.pinboard.models:Base"
_RAW = "db_raw{:05d}"
_LOOPED = "db_loop{:05d}"
_VERSION_TABLE = (
    "CREATE TABLE alembic_version "
    "(version_num VARCHAR(32) NOT NULL, PRIMARY KEY (version_num))"
)
_SECOND = '''"""A column."""

import sqlalchemy as sa
from alembic import op

revision = "second"
down_revision = {first!r}


def upgrade() -> None:
    op.add_column("pins", sa.Column("likes", sa.Integer(), nullable=True))
'''
_PLAIN_ENV = """
from alembic import context
from sqlalchemy import create_engine
engine = create_engine(context.config.attributes["url"])
with engine.connect() as connection:
    context.configure(connection=connection)
    with context.begin_transaction():
        context.run_migrations()
engine.dispose()
"""

Server = tuple[int, str, str]
"""Port, user and password."""


def run() -> None:
    """Print the table."""
    with (
        new_fleet(servers=_SERVERS, shards=_SHARDS) as fleet,
        tempfile.TemporaryDirectory() as directory,
    ):
        _Run(fleet, Path(directory)).run()


class _Run:
    def __init__(self, fleet: ServerFleet[Any], directory: Path) -> None:
        self.fleet = fleet
        self.directory = directory
        self.environ = {**os.environ, **fleet.environ}
        self.ini = directory / "alembic.ini"
        self.half = _SHARDS // 2
        # Databases that were created by hand, and are filled in parts.
        self.new = "--new", f"0-{_SHARDS - 1}"

    def run(self) -> None:
        self._prepare()
        print(
            f"\n{_SHARDS} databases on {_SERVERS} {title()} servers, the "
            f"pinboard's tables; {_JOBS} connections to each server"
        )
        print(f"{'':34}{'seconds':>9}{'ms each':>9}{'to raw':>8}")
        self._revision("first revision", self._first)
        self._revision("one ALTER", self._second)
        no_op, _ = _timed(partial(self._sqla_shard, "upgrade"))
        self._show("no-op, sqla-shard schema upgrade", no_op, _SHARDS)
        status, _ = _timed(partial(self._sqla_shard, "status"))
        self._show("sqla-shard schema status", status, _SHARDS)
        verify, _ = _timed(partial(self._sqla_shard, "verify"))
        self._show("sqla-shard schema verify", verify, _SHARDS)

    def _prepare(self) -> None:
        topology = self.directory / "topology.json"
        document = self.fleet.topology_mapping(placeholders=True, lookup=4)
        topology.write_text(json.dumps(document), "utf-8")
        schema.init(
            self.directory / "migrations",
            topology=topology,
            config=self.ini,
            models=_MODELS,
        )
        self.fleet.create_databases(document)
        self._on_servers(_RAW, [], self._all())
        self._alembic("revision", "--autogenerate", "-m", "first")

    def _first(self) -> str:
        return "head"

    def _second(self) -> str:
        versions = self.directory / "migrations" / "objects" / "versions"
        [first] = [path.name[:12] for path in versions.glob("*_first.py")]
        (versions / "second.py").write_text(_SECOND.format(first=first))
        return "second"

    # -- one revision, both ways

    def _revision(self, title: str, prepare: Callable[[], str]) -> None:
        target = prepare()
        # The statements are recorded on one shard.
        self._sqla_shard("upgrade", target, "--shards", "0", *self.new)
        statements = self._statements()
        half = range(self.half), range(self.half, _SHARDS)
        raw = self._raw(statements, half[0])
        ours = self._ours(target, half[0])
        ours += self._ours(target, half[1])
        raw += self._raw(statements, half[1])
        self._show(f"{title}: raw", raw, _SHARDS)
        self._show(f"{title}: runner", ours, _SHARDS, raw)
        looped = self._looped(target)
        print(
            f"{f'{title}: alembic looped':34}{'':9}"
            f"{looped / _SAMPLE * 1e3:9.1f}"
            f"{looped / _SAMPLE / (raw / _SHARDS):8.2f}"
        )

    def _ours(self, target: str, shards: Sequence[int]) -> float:
        shown = f"{shards[0]}-{shards[-1]}"
        arguments = "upgrade", target, "--shards", shown, *self.new
        seconds, _ = _timed(partial(self._sqla_shard, *arguments))
        return seconds

    def _raw(self, statements: list[str], numbers: Iterable[int]) -> float:
        seconds, _ = _timed(partial(self._on_servers, _RAW, statements, numbers))
        return seconds

    def _statements(self) -> list[str]:
        """Return what shard 0 was sent for the last revision."""
        with closing(self.fleet.servers[0].connect()) as connection:
            cursor = connection.cursor()
            cursor.execute("USE db00000")
            cursor.execute(
                "SELECT statement FROM sqla_shard_ledger WHERE revision = "
                "(SELECT revision FROM sqla_shard_ledger ORDER BY id DESC "
                "LIMIT 1) ORDER BY id"
            )
            found = [row[0] for row in cursor.fetchall()]
            cursor.execute("SELECT version_num FROM alembic_version")
            version = cursor.fetchone()[0]
            cursor.execute("SELECT COUNT(*) FROM sqla_shard_ledger")
        if found[0].lstrip().startswith("CREATE"):
            return [
                *found,
                _VERSION_TABLE,
                f"INSERT INTO alembic_version VALUES ('{version}')",
            ]
        return [*found, f"UPDATE alembic_version SET version_num='{version}'"]

    def _looped(self, target: str) -> float:
        """Upgrade a sample of databases with ``alembic.command`` in turn."""
        migrations = self.directory / "plain"
        if not migrations.exists():
            migrations.mkdir()
            (migrations / "env.py").write_text(_PLAIN_ENV)
            (migrations / "script.py.mako").write_text("")
            self._on_servers(_LOOPED, [], range(_SAMPLE))
        versions = self.directory / "migrations" / "objects" / "versions"

        def loop() -> None:
            for number in range(_SAMPLE):
                config = Config()
                config.set_main_option("script_location", str(migrations))
                config.set_main_option("version_locations", str(versions))
                config.set_main_option("path_separator", "os")
                config.attributes["url"] = self._url(_LOOPED, number)
                command.upgrade(config, target)

        seconds, _ = _timed(loop)
        return seconds

    # -- the servers

    def _all(self) -> range:
        return range(_SHARDS)

    def _server(self, number: int) -> int:
        return number * _SERVERS // _SHARDS

    def _url(self, pattern: str, number: int) -> str:
        # Spread over the servers, as the databases of the shards are.
        server = self.fleet.servers[number % _SERVERS]
        name = pattern.format(number)
        return (
            f"mysql+pymysql://{server.user}:{server.password}"
            f"@{server.host}:{server.port}/{name}?charset=utf8mb4"
        )

    def _on_servers(
        self, pattern: str, statements: list[str], numbers: Iterable[int]
    ) -> None:
        """Run statements in databases, with processes for each server."""
        looped = pattern == _LOOPED
        work: dict[tuple[int, int], list[str]] = {}
        for number in numbers:
            server = number % _SERVERS if looped else self._server(number)
            job = number // _SERVERS % _JOBS
            work.setdefault((server, job), []).append(pattern.format(number))
        context = get_context("fork")
        processes = [
            context.Process(
                target=_send, args=(self.fleet.servers[server], names, statements)
            )
            for (server, _), names in work.items()
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
            assert process.exitcode == 0

    def _sqla_shard(self, name: str, *arguments: str) -> None:
        before = ["-t", str(self.directory / "topology.json"), "schema"]
        if name != "verify":
            before += ["-c", str(self.ini)]
        self._process("sqla_shard.cli", *before, name, *arguments)

    def _alembic(self, *arguments: str) -> None:
        self._process("alembic", "-c", str(self.ini), *arguments)

    def _process(self, module: str, *arguments: str) -> None:
        done = run_process(
            [sys.executable, "-m", module, *arguments],
            env=self.environ,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def _show(
        self, title: str, seconds: float, count: int, raw: float | None = None
    ) -> None:
        ratio = "" if raw is None else f"{seconds / raw:8.2f}"
        print(f"{title:34}{seconds:9.1f}{seconds / count * 1e3:9.1f}{ratio}")


def _send(server: object, names: list[str], statements: list[str]) -> None:
    with closing(server.connect(autocommit=True)) as connection:
        cursor = connection.cursor()
        for name in names:
            if not statements:
                cursor.execute(f"CREATE DATABASE {name}")
                continue
            cursor.execute(f"USE {name}")
            for statement in statements:
                cursor.execute(statement)


def _timed(work: Callable[[], object]) -> tuple[float, object]:
    start = perf_counter()
    result = work()
    return perf_counter() - start, result
