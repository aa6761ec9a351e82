"""The pinboard on MariaDB: sign-ups, relations, and concurrent requests."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from time import monotonic
from typing import Any

import pytest
from flask.testing import FlaskClient

from examples.pinboard import boards
from examples.pinboard.app import create_app
from examples.pinboard.inputs import read_board, read_pin
from examples.pinboard.samples import add_user, NAMES, sample_users
from sqla_shard import Cluster
from sqla_shard.testing import Proxy
from sqla_shard.testing.local_server import wait_until
from sqla_shard.testing.server_fleet import ServerFleet
from tests.servers.kinds import own_fleet
from tests.suites.pinboard_relations import Relations
from tests.suites.pinboard_signing_up import SigningUp
from tests.suites.pinboard_tables import create_tables

pytestmark = pytest.mark.live

TIMEOUT = 30
REMOVER = "remover"
#: Less than any limit of a driver, and more than a busy machine needs.
PATIENCE = 15


fleet = own_fleet(2, 4)


@pytest.fixture(scope="module")
def document(fleet: ServerFleet[Any]) -> Any:
    document = fleet.topology_mapping(lookup=4)
    fleet.create_databases(document)
    return document


@pytest.fixture(scope="module")
def cluster(document: Any) -> Iterator[Cluster]:
    options = {"pool_size": 20, "max_overflow": 0, "pool_timeout": 60}
    with Cluster.from_topology(document, engine_options=options) as cluster:
        create_tables(cluster)
        yield cluster


TestSigningUp = SigningUp
TestRelations = Relations


def test_a_pin_removed_while_it_is_restored_can_be_found(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    user_id = add_user(cluster, "Ada", shard_id=2)
    board_id = cluster.run(boards.add_board, user_id, read_board("Boats", ""))
    entered = read_pin("https://example.com/", "", "")
    pin_id = cluster.run(boards.add_pin, user_id, board_id, entered)
    own_pin, seen = boards._own_pin, threading.Event()
    removed = threading.Event()

    def meeting(*args: Any, **options: Any) -> Any:
        # The thread that restores has read the pin, which is not removed yet;
        # it would let the other thread go first.
        if threading.current_thread().name.startswith(REMOVER):
            return own_pin(*args, **options)
        found = own_pin(*args, **options)
        seen.set()
        removed.wait(1)
        return found

    def remove() -> None:
        assert seen.wait(TIMEOUT)
        cluster.run(boards.remove_pin, user_id, pin_id)
        removed.set()

    monkeypatch.setattr(boards, "_own_pin", meeting)
    with ThreadPoolExecutor(1, REMOVER) as threads:
        remover = threads.submit(remove)
        cluster.run(boards.restore_pin, user_id, pin_id)
        remover.result(TIMEOUT)
    with cluster.session() as session:
        listed = [p.id for p in boards.removed_pins(session, board_id)]
        assert listed == [pin_id]
        assert boards.pin_counts(session, board_id) == (0, 1)


@pytest.fixture
def front(
    cluster: Cluster, fleet: ServerFleet[Any]
) -> Iterator[tuple[list[Proxy], FlaskClient]]:
    """Proxies before the servers, and a browser; Ada's boards are on one."""
    with ExitStack() as stack:
        proxies = [
            stack.enter_context(Proxy(server.host, server.port))
            for server in fleet.servers
        ]
        through = fleet.topology_mapping(lookup=4, proxies=proxies)
        own = stack.enter_context(Cluster.from_topology(through))
        with cluster.session() as session:
            there = {user.name for user in sample_users(session)}
        for number, name in enumerate(NAMES):
            if name not in there:
                add_user(cluster, name, shard_id=3 * (number % 2))
        app = create_app(own, testing=True)
        yield proxies, app.test_client()


def down(proxy: Proxy) -> None:
    proxy.refuse()
    proxy.cut()


@pytest.mark.thorough
@pytest.mark.parametrize("fault", [Proxy.hang, down])
@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("connected", [False, True])
def test_the_first_page_works_without_a_server(
    front: tuple[list[Proxy], FlaskClient],
    fault: Callable[[Proxy], None],
    number: int,
    connected: bool,
) -> None:
    proxies, client = front
    if connected:
        assert "not answer" not in client.get("/").text
    fault(proxies[number])
    began = monotonic()
    page = client.get("/")
    assert monotonic() - began < PATIENCE
    assert page.status_code == 200
    silent = f"server{number + 1} does not answer."
    assert silent in page.text
    names = re.findall('data-user-name="([^"]+)"', page.text)
    assert set(names) < set(NAMES)
    proxies[number].restore()
    assert wait_until(lambda: silent not in client.get("/").text, seconds=60)
    names = re.findall('data-user-name="([^"]+)"', client.get("/").text)
    assert names == list(NAMES)
