"""Passwords of a function: asked for at connect, and again after 1045."""

from __future__ import annotations

import asyncio
import logging
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

import pytest
from sqlalchemy import make_url, text

from sqla_shard import Cluster, ServerLogin
from sqla_shard.exc import FleetServerError, LoginFailedError
from sqla_shard.fleet.admin import Admin
from sqla_shard.testing.database_server import DatabaseServer
from tests.servers.kinds import Kind

pytestmark = pytest.mark.live

THREADS = 8
WHO = text("SELECT CURRENT_USER()")
FIRST: Any = {"bind_arguments": {"shard_id": 0}}
USER = "rotated"


@pytest.fixture(scope="module")
def server(server_kind: Kind) -> Iterator[DatabaseServer]:
    with server_kind.server(fast=True) as server:
        server.root_execute("CREATE DATABASE db00000")
        yield server


class Vault:
    """The store of the password; the function of the cluster.

    :ivar logins: what it was called with.
    :ivar threads: the threads that have called it.
    """

    def __init__(self, server: DatabaseServer) -> None:
        self.server = server
        self.logins: list[ServerLogin] = []
        self.threads: list[threading.Thread] = []
        self.number = 0
        self.password = ""
        # Set in a test to let calls begin together.
        self.before: Callable[[], None] = lambda: None
        server.root_execute(f"CREATE USER '{USER}'@'%' IDENTIFIED BY 'none'")
        server.root_execute(f"GRANT ALL ON `db%`.* TO '{USER}'@'%'")
        self.rotate()

    def rotate(self, *, stored: bool = True) -> None:
        """Change the password of the account, and what calls return."""
        self.number += 1
        changed = f"secret-{self.number}"
        self.server.root_execute(f"ALTER USER '{USER}'@'%' IDENTIFIED BY '{changed}'")
        if stored:
            self.password = changed

    def __call__(self, login: ServerLogin) -> str:
        self.logins.append(login)
        self.threads.append(threading.current_thread())
        self.before()
        return self.password


@pytest.fixture
def vault(server: DatabaseServer) -> Iterator[Vault]:
    yield Vault(server)
    server.root_execute(f"DROP USER '{USER}'@'%'")


def document(server: DatabaseServer, login: str = USER) -> dict[str, Any]:
    return {
        "epoch": 1,
        "keyspaces": {
            "objects": {
                "kind": "objects",
                "shards": 1,
                "database": "db{shard:05d}",
                "servers": [
                    {
                        "name": "sharddb001",
                        "primary": (f"mysql://{login}@{server.host}:{server.port}"),
                        "shards": [0, 0],
                    }
                ],
            }
        },
    }


@pytest.fixture(params=["pymysql", "mysqldb"])
def cluster(vault: Vault, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    if request.param == "mysqldb":
        request.getfixturevalue("mysqlclient_installed")
    with Cluster.from_topology(
        document(vault.server),
        driver=request.param,
        password=vault,
        engine_options={"pool_size": THREADS},
    ) as cluster:
        yield cluster


def who(cluster: Cluster) -> str:
    with cluster.session() as session:
        found: str = session.scalars(WHO, **FIRST).one()
        return found


async def awaited(cluster: Cluster) -> str:
    async with cluster.async_session() as session:
        found: str = (await session.scalars(WHO, **FIRST)).one()
        return found


def together(cluster: Cluster, count: int = THREADS) -> set[str]:
    """Hold several connections at once."""
    barrier = threading.Barrier(count)

    def one(number: int) -> str:
        with cluster.session() as session:
            barrier.wait(60)
            found: str = session.scalars(WHO, **FIRST).one()
            barrier.wait(60)
            return found

    with ThreadPoolExecutor(count) as executor:
        return set(executor.map(one, range(count)))


async def together_awaited(cluster: Cluster, count: int = THREADS) -> set[str]:
    both = asyncio.Event()
    held = 0

    async def one() -> str:
        nonlocal held
        async with cluster.async_session() as session:
            found: str = (await session.scalars(WHO, **FIRST)).one()
            held += 1
            if held == count:
                both.set()
            await asyncio.wait_for(both.wait(), 60)
            return found

    return set(await asyncio.gather(*(one() for _ in range(count))))


ALL = {f"{USER}@%"}


def test_connections_at_the_same_time_ask_once(cluster: Cluster, vault: Vault) -> None:
    assert together(cluster) == ALL
    assert vault.logins == [
        ServerLogin(
            server="sharddb001",
            host=vault.server.host,
            port=vault.server.port,
            user=USER,
        )
    ]


def test_a_new_password_is_asked_for_once_and_open_connections_stay(
    cluster: Cluster, vault: Vault
) -> None:
    assert who(cluster) == f"{USER}@%"
    with cluster.session() as session:
        number = text("SELECT CONNECTION_ID()")
        before = session.scalars(number, **FIRST).one()
        vault.rotate()
        # All but one open a new connection, which the server refuses first.
        assert together(cluster, THREADS - 1) == ALL
        assert session.scalars(number, **FIRST).one() == before
    assert len(vault.logins) == 2
    assert cluster.health().servers == {"sharddb001": None}
    assert len(vault.logins) == 2


def test_a_password_that_is_refused_is_asked_for_once_again(
    cluster: Cluster, vault: Vault
) -> None:
    vault.rotate(stored=False)
    for calls in (2, 3):
        with pytest.raises(LoginFailedError, match="1045") as caught:
            who(cluster)
        assert caught.value.server == "sharddb001"
        # At first there was none, so that the first is two calls.
        assert len(vault.logins) == calls
    vault.rotate()
    assert who(cluster) == f"{USER}@%"
    assert len(vault.logins) == 4


def test_probes_use_the_function(cluster: Cluster, vault: Vault) -> None:
    assert cluster.health().servers == {"sharddb001": None}
    vault.rotate()
    assert cluster.health().servers == {"sharddb001": None}
    cluster.warm(2)
    assert len(vault.logins) == 2
    vault.rotate(stored=False)
    (answer,) = cluster.health().servers.values()
    assert answer is not None
    assert "LoginFailedError" in answer


def test_the_lag_of_standbys_is_read_with_the_function(
    cluster: Cluster, vault: Vault
) -> None:
    engines = cluster.places.engines
    (listed,) = cluster.topology.keyspaces["objects"].servers
    # Those of a move that are not in the topology have a password there.
    another = listed.primary.replace(USER, f"{USER}:another")
    assert engines.filled(another).password == "another"
    for _ in range(2):
        with (
            Admin(
                engines.filled(listed.primary),
                name="sharddb001",
                password=engines.password_of(listed.primary, ["sharddb001"]),
            ) as admin,
            admin.another() as further,
        ):
            assert further.value("SELECT CURRENT_USER()") == f"{USER}@%"
        vault.rotate()
    assert len(vault.logins) == 2


def test_the_password_of_the_url_is_not_used(vault: Vault) -> None:
    with Cluster.from_topology(
        document(vault.server, f"{USER}:another"), password=vault
    ) as cluster:
        assert who(cluster) == f"{USER}@%"
        assert len(vault.logins) == 1


def test_asynchronous_sessions_ask_in_a_thread_and_once(vault: Vault) -> None:
    async def main() -> None:
        with Cluster.from_topology(
            document(vault.server),
            password=vault,
            engine_options={"pool_size": THREADS},
        ) as cluster:
            assert await together_awaited(cluster) == ALL
            assert len(vault.logins) == 1
            # Synchronous sessions have the same passwords.
            assert await asyncio.to_thread(who, cluster) == f"{USER}@%"
            assert len(vault.logins) == 1
            async with cluster.async_session() as session:
                await session.execute(WHO, **FIRST)
                vault.rotate()
                assert await together_awaited(cluster, THREADS - 1) == ALL
            assert len(vault.logins) == 2
            health = await cluster.async_health()
            assert health.servers == {"sharddb001": None}
            assert threading.current_thread() not in vault.threads
            await cluster.aclose()

    asyncio.run(main())


def test_an_event_loop_goes_on_while_the_function_blocks(vault: Vault) -> None:
    goes_on = threading.Event()
    vault.before = lambda: _wait(goes_on)

    async def main() -> None:
        with Cluster.from_topology(document(vault.server), password=vault) as cluster:
            asking = asyncio.create_task(awaited(cluster))
            while not vault.logins:
                await asyncio.sleep(0.01)
            goes_on.set()
            assert await asking == f"{USER}@%"
            await cluster.aclose()

    asyncio.run(asyncio.wait_for(main(), 60))


def _wait(event: threading.Event) -> None:
    assert event.wait(60)


def _raises(login: ServerLogin) -> str:
    raise KeyError("a token")


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (_raises, "raised KeyError"),
        (lambda login: b"a token", "returned bytes, not a str"),
        (lambda login: None, "returned NoneType, not a str"),
    ],
)
@pytest.mark.parametrize(
    "read",
    [who, lambda cluster: asyncio.run(awaited(cluster))],
    ids=["pymysql", "asyncmy"],
)
def test_functions_that_return_no_password(
    server: DatabaseServer, function: Any, reason: str, read: Any
) -> None:
    with (
        Cluster.from_topology(document(server), password=function) as cluster,
        pytest.raises(LoginFailedError, match=reason) as caught,
    ):
        read(cluster)
    assert caught.value.server == "sharddb001"
    assert "sharddb001" in str(caught.value)
    assert "a token" not in str(caught.value)


def test_passwords_are_not_shown(
    vault: Vault, caplog: pytest.LogCaptureFixture
) -> None:
    vault.password = "the-secret"
    caplog.set_level(logging.DEBUG)
    with Cluster.from_topology(
        document(vault.server),
        password=vault,
        engine_options={"echo": "debug", "echo_pool": "debug"},
    ) as cluster:
        with pytest.raises(LoginFailedError) as caught:
            who(cluster)
        engines = cluster.places.engines
        shown = [
            str(caught.value),
            repr(caught.value),
            repr(cluster),
            repr(engines),
            caplog.text,
            *(repr(engine) for engine in engines),
            *(str(engine.url) for engine in engines),
            *map(repr, vault.logins),
        ]
    assert not [one for one in shown if vault.password in one]


@pytest.mark.parametrize("driver", ["pymysql", "mysqldb", "asyncmy"])
def test_passwords_with_any_characters(
    vault: Vault, driver: str, request: pytest.FixtureRequest
) -> None:
    if driver == "mysqldb":
        request.getfixturevalue("mysqlclient_installed")
    # The first is in Latin-1, which is not what the server has of it.
    for vault.password in ("p\xe4ss", "p\u20acss", "p\U0001f600ss"):
        vault.server.root_execute(
            f"ALTER USER '{USER}'@'%' IDENTIFIED BY '{vault.password}'"
        )
        account = f"{USER}:{quote(vault.password)}"
        for login, function in ((USER, vault), (account, None)):
            with Cluster.from_topology(
                document(vault.server, login),
                driver="pymysql" if driver == "asyncmy" else driver,
                password=function,
            ) as cluster:
                if driver == "asyncmy":
                    assert asyncio.run(_closed(cluster)) == f"{USER}@%"
                else:
                    assert who(cluster) == f"{USER}@%"


async def _closed(cluster: Cluster) -> str:
    try:
        return await awaited(cluster)
    finally:
        await cluster.aclose()


def test_accounts_that_wrong_passwords_have_locked(vault: Vault) -> None:
    server = vault.server
    if server.kind == "mysql":
        server.root_execute(
            f"ALTER USER '{USER}'@'%' FAILED_LOGIN_ATTEMPTS 2 PASSWORD_LOCK_TIME 1"
        )
    else:
        server.root_execute("SET GLOBAL max_password_errors = 2")
    vault.rotate(stored=False)
    try:
        with Cluster.from_topology(document(server), password=vault) as cluster:
            for _ in range(2):
                with pytest.raises(LoginFailedError) as caught:
                    who(cluster)
            calls = len(vault.logins)
            with pytest.raises(LoginFailedError, match="blocked") as caught:
                who(cluster)
            assert caught.value.server == "sharddb001"
            # Another password would be refused, too.
            assert len(vault.logins) == calls
    finally:
        if server.kind == "mariadb":
            server.root_execute("SET GLOBAL max_password_errors = DEFAULT")
            server.root_execute("FLUSH PRIVILEGES")


def test_passwords_in_statements_of_the_operator_are_not_shown(vault: Vault) -> None:
    server = vault.server
    url = make_url(f"mysql://{USER}@{server.host}:{server.port}")
    with (
        Admin(url.set(password=vault.password), name="sharddb001") as admin,
        pytest.raises(FleetServerError) as caught,
    ):
        admin.run("SELECT %s FROM db00000.missing", vault.password)
    shown = "".join(traceback.format_exception(caught.value))
    assert "missing" in shown
    assert vault.password not in shown
