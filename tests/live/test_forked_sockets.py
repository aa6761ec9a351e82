"""A child process has no copy of its parent's connections."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from sqla_shard import Cluster
from sqla_shard.testing import Proxy
from sqla_shard.testing.database_server import DatabaseServer
from sqla_shard.testing.topology_documents import topology_document
from tests.servers.faults import Base, Pin
from tests.servers.following import until
from tests.servers.kinds import Kind
from tests.test_docs import certificates  # noqa: F401  # a fixture
from tests.workers.forked_master import IDLE

pytestmark = pytest.mark.live

ROOT = Path(__file__).parents[2]
SECRET = "asecretword"


@pytest.fixture(scope="module")
def server(
    server_kind: Kind,
    certificates: Path,  # noqa: F811  # the fixture
) -> Iterator[DatabaseServer]:
    options = [
        f"--ssl-{key}={certificates / name}"
        for key, name in (("cert", "server.pem"), ("key", "server.key"))
    ]
    with server_kind.server(password=SECRET, fast=True, options=options) as server:
        yield server


@pytest.fixture(scope="module")
def proxy(server: DatabaseServer) -> Iterator[Proxy]:
    with Proxy(server.host, server.port) as proxy:
        yield proxy


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("kind", ["threads", "loop", "mysqlclient"])
def test_a_killed_parent_holds_nothing_though_its_child_lives(
    request: pytest.FixtureRequest,
    server: DatabaseServer,
    proxy: Proxy,
    certificates: Path,  # noqa: F811  # the fixture
    tmp_path: Path,
    kind: str,
    tls: bool,
) -> None:
    driver = "pymysql"
    if kind == "mysqlclient":
        request.getfixturevalue("mysqlclient_installed")
        driver = "mysqldb"
    query = f"?ssl_ca={certificates / 'ca.pem'}" if tls else ""
    url = f"mysql://app:{SECRET}@localhost:{proxy.port}/{query}"
    document = topology_document({"one": url}, 1)
    options = {}
    if not tls and kind != "mysqlclient":
        options = {"connect_args": {"ssl_disabled": True}}
    with Cluster.from_topology(document, engine_options=options) as cluster:
        cluster.create_all(Base.metadata)
        with cluster.begin() as session:
            pin = Pin(body="it")
            session.add(pin)
            session.flush()
            pin_id = pin.id
    # The proxy sees a moment later that these are closed.
    assert until(lambda: proxy.counts.open == 0), proxy.counts
    path = tmp_path / "document.json"
    path.write_text(json.dumps([document, proxy.port, driver, options]))
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "tests.workers.forked_master"),
            *(kind, str(path), str(pin_id)),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdin
    assert process.stdout
    # A process that neither responds nor ends is a failure, too.
    watchdog = threading.Timer(60, kill_all, [process.pid])
    watchdog.start()
    try:
        assert process.stdout.readline() == "open\n"
        # One that its pool has no room for is closed, which the proxy, too,
        # sees a moment later.
        assert until(lambda: proxy.counts.open == IDLE + 1), proxy.counts
        before = proxy.counts
        process.stdin.write("fork\n")
        process.stdin.flush()
        assert process.stdout.readline() == "0\n"
        # It has not said goodbye, for the server or for TLS.
        after = proxy.counts
        assert (after.open, after.sent) == (before.open, before.sent)
        process.kill()
        assert until(lambda: proxy.counts.open == 0)
        # The end of the transaction: its row can be locked.
        server.root_execute("SET GLOBAL innodb_lock_wait_timeout = 30")
        server.root_execute(
            f"SELECT body FROM {document_database(document)}.pins FOR UPDATE"
        )
    finally:
        watchdog.cancel()
        kill_all(process.pid)
        process.stdin.close()
        process.wait(30)
        process.stdout.close()


def kill_all(group: int) -> None:
    """End the parent and the child; the parent may be gone."""
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def document_database(document: Any) -> str:
    database: str = document["keyspaces"]["objects"]["database"]
    return database.format(shard=0)
