"""The pinboard on MariaDB: who signs up, what is related, what meets."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from examples.pinboard import boards
from examples.pinboard.inputs import read_board
from examples.pinboard.inputs import read_pin
from examples.pinboard.samples import add_user
from sqla_shard import Cluster
from sqla_shard.testing import MariaDBFleet
from tests.shared.pinboard_relations import Relations
from tests.shared.pinboard_signing_up import SigningUp
from tests.shared.pinboard_tables import create_tables

pytestmark = pytest.mark.live

TIMEOUT = 30
REMOVER = "remover"


@pytest.fixture(scope="module")
def document(mariadb_installed: None) -> Iterator[Any]:
    with MariaDBFleet(servers=2, shards=4, fast=True) as fleet:
        document = fleet.topology_mapping(lookup=4)
        fleet.create_databases(document)
        yield document


@pytest.fixture(scope="module")
def cluster(document: Any) -> Iterator[Cluster]:
    options = {"pool_size": 20, "max_overflow": 0, "pool_timeout": 60}
    with Cluster.from_topology(document, engine_options=options) as cluster:
        create_tables(cluster)
        yield cluster


class TestSigningUp(SigningUp):
    pass


class TestRelations(Relations):
    pass


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
        # Whoever restores has seen the pin, which is not removed yet, and
        # would let the other go first.
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
