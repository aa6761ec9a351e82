"""Logins to MySQL: its default plugin, with each driver, and a cold cache.

``caching_sha2_password`` takes the password itself, over TLS or with RSA,
unless the server has the account in its cache.
"""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from sqlalchemy import make_url, text
from sqlalchemy.exc import OperationalError

from sqla_shard import Cluster
from sqla_shard.cli.program import program
from sqla_shard.exc import FleetServerError, LoginFailedError
from sqla_shard.fleet.admin import Admin
from sqla_shard.testing import Proxy
from sqla_shard.testing.database_server import DatabaseServer
from sqla_shard.testing.topology_documents import topology_document
from tests.servers.kinds import Kind

pytestmark = [pytest.mark.live, pytest.mark.only_on("mysql")]

CIPHER = text("SHOW STATUS LIKE 'Ssl_cipher'")
FIRST: Any = {"bind_arguments": {"shard_id": 0}}
DRIVERS = ["pymysql", "mysqldb", "asyncmy"]
PLUGINS = ["caching_sha2_password", "sha256_password"]


@pytest.fixture(scope="module")
def server(server_kind: Kind) -> Iterator[DatabaseServer]:
    with server_kind.server(fast=True) as server:
        server.root_execute("CREATE DATABASE db00000")
        yield server


@pytest.fixture(params=PLUGINS)
def account(server: DatabaseServer, request: pytest.FixtureRequest) -> Iterator[str]:
    """Create an account that the server does not have in its cache."""
    server.root_execute(
        f"CREATE USER cold@'%' IDENTIFIED WITH {request.param} BY 'secret'"
    )
    server.root_execute("GRANT ALL ON `db%`.* TO cold@'%'")
    yield "cold:secret"
    server.root_execute("DROP USER cold@'%'")


def document(account: str, server: DatabaseServer | Proxy) -> dict[str, Any]:
    url = f"mysql://{account}@{server.host}:{server.port}"
    return topology_document({"sharddb001": url}, 1)


def cipher(cluster: Cluster) -> str:
    with cluster.session() as session:
        ((_, found),) = session.execute(CIPHER, **FIRST)
    return str(found)


async def awaited(cluster: Cluster) -> str:
    async with cluster.async_session() as session:
        ((_, found),) = await session.execute(CIPHER, **FIRST)
    await cluster.aclose()
    return str(found)


def cipher_of(document: dict[str, Any], driver: str, **arguments: Any) -> str:
    """Connect once; return the cipher, empty without TLS."""
    is_async = driver == "asyncmy"
    with Cluster.from_topology(
        document,
        driver="pymysql" if is_async else driver,
        engine_options={"connect_args": arguments},
    ) as cluster:
        if is_async:
            return asyncio.run(awaited(cluster))
        return cipher(cluster)


def flush(server: DatabaseServer) -> None:
    # As a split does on the servers that it closes.
    server.root_execute("FLUSH LOCAL PRIVILEGES")


def restart(server: DatabaseServer) -> None:
    server.restart()


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("emptied", [flush, restart])
def test_accounts_that_the_server_has_forgotten(
    server: DatabaseServer,
    account: str,
    driver: str,
    emptied: Callable[[DatabaseServer], None],
    request: pytest.FixtureRequest,
) -> None:
    if driver == "mysqldb":
        request.getfixturevalue("mysqlclient_installed")
    first = cipher_of(document(account, server), driver)
    emptied(server)
    assert cipher_of(document(account, server), driver) == first
    if driver != "mysqldb":
        # The client library decides.
        assert first.startswith("TLS_")


@pytest.mark.parametrize("driver", ["pymysql", "asyncmy"])
def test_rsa_without_tls(server: DatabaseServer, account: str, driver: str) -> None:
    pytest.importorskip("cryptography")
    found = cipher_of(document(account, server), driver, ssl_disabled=True)
    assert found == ""
    flush(server)
    with Proxy(server.host, server.port, tls=False) as proxy:
        assert cipher_of(document(account, proxy), driver) == ""


@pytest.fixture
def without_cryptography(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("pymysql._auth", "asyncmy.auth"):
        found = importlib.import_module(module)
        monkeypatch.setattr(found, "_have_cryptography", False)


@pytest.fixture
def proxy(server: DatabaseServer, without_cryptography: None) -> Iterator[Proxy]:
    """Return a server without TLS, for clients without RSA."""
    with Proxy(server.host, server.port, tls=False) as proxy:
        yield proxy


def explains(message: str) -> bool:
    remedy = "use TLS (ssl_ca=FILE in the URL) or pip install cryptography"
    return remedy in message


@pytest.mark.parametrize("driver", ["pymysql", "asyncmy"])
def test_without_tls_and_rsa_the_error_names_server_and_remedy(
    proxy: Proxy, account: str, driver: str
) -> None:
    with pytest.raises(LoginFailedError) as caught:
        cipher_of(document(account, proxy), driver)
    assert caught.value.server == "sharddb001"
    assert caught.value.orig is not None
    assert caught.value.orig.args[0] == 2061
    assert "the login to server sharddb001 failed" in str(caught.value)
    assert explains(str(caught.value))
    assert "secret" not in str(caught.value)
    # Handlers of SQLAlchemy's errors catch it.
    assert isinstance(caught.value, OperationalError)


def test_probes_report_it(proxy: Proxy, account: str) -> None:
    async def health() -> Any:
        found = await cluster.async_health()
        await cluster.aclose()
        return found

    with Cluster.from_topology(document(account, proxy)) as cluster:
        answers = [
            cluster.health().servers["sharddb001"],
            asyncio.run(health()).servers["sharddb001"],
        ]
    for answer in answers:
        assert answer.startswith("LoginFailedError")
        assert explains(answer)


def test_sessions_of_the_operator_report_it(proxy: Proxy, account: str) -> None:
    url = make_url(f"mysql://{account}@{proxy.host}:{proxy.port}")
    with pytest.raises(FleetServerError) as caught:
        Admin(url, name="sharddb001")
    assert "sharddb001" in str(caught.value)
    assert explains(str(caught.value))


def test_commands_report_it(proxy: Proxy, account: str, tmp_path: Path) -> None:
    path = tmp_path / "topology.json"
    path.write_text(json.dumps(document(account, proxy)))
    for command in ("status", "queue list"):
        done = CliRunner().invoke(program, ["-t", str(path), *command.split()])
        assert done.exit_code != 0
        shown = " ".join(done.output.split())
        assert "sharddb001" in shown
        assert explains(shown)
        assert "Traceback" not in shown
