"""``sqla-shard init --compose``: its settings, on servers without docker."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sqla_shard.testing import MemcachedServer, MySQLServer
from tests.servers.command_line import COMMAND, environment
from tests.sqlite.test_cli_init import settings

pytestmark = [
    pytest.mark.live,
    pytest.mark.processes,
    pytest.mark.usefixtures("mysql_installed", "memcached_installed"),
]


def test_the_project_runs_with_its_grants_and_its_cache(tmp_path: Path) -> None:
    project = tmp_path / "shop"
    environ = environment(MYSQL_PASSWORD="secret", SQLA_SHARD_CACHE="cache.toml")

    def run(*command: str | Path) -> str:
        done = subprocess.run(
            command,
            cwd=project if project.exists() else tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run(*COMMAND, "init", project, "--compose", "--shards", "4")
    services = settings((project / "compose.yaml").read_text())
    topology = project / "topology.json"
    cache = project / "cache.toml"
    grants = (project / "compose" / "grants.sql").read_text()

    def server(name: str) -> MySQLServer:
        # Without privileges but those of the file.
        options = services[name]["command"]
        return MySQLServer(
            name, password="secret", prefixes=["none"], options=options, fast=True
        )

    with (
        server("server1") as first,
        server("server2") as second,
        MemcachedServer() as memcached,
    ):
        for file, port, running in (
            (topology, 3307, first),
            (topology, 3308, second),
            (cache, 11211, memcached),
        ):
            text = file.read_text()
            assert f"127.0.0.1:{port}" in text
            file.write_text(
                text.replace(f"127.0.0.1:{port}", f"127.0.0.1:{running.port}")
            )
        for one in (first, second):
            host = f"'app'@'{one.host}'"
            one.root_execute(f"RENAME USER {host} TO 'app'@'%'")
            one.root_execute(grants)
        run(*COMMAND, "schema", "provision", "--initial")
        alembic = (sys.executable, "-m", "alembic", "revision")
        run(*alembic, "--autogenerate", "-m", "first tables")
        run(*COMMAND, "schema", "upgrade")
        assert run(sys.executable, "app.py").startswith("Boats\n")
        run(*COMMAND, "cache", "stats")
        run(*COMMAND, "worker", "--models", "models", "--deliver", "--once")
