"""Sessions of an operation that lose the servers to another process."""

from __future__ import annotations

from threading import Thread

import pytest

from sqla_shard.exc import FleetLockLostError, FleetServerError
from sqla_shard.fleet.journal import Record
from sqla_shard.fleet.replication import replication_of
from sqla_shard.testing.local_server import wait_until
from tests.servers.fleet_pairs import FleetPairs
from tests.servers.toy_operation import Toy

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def pairs(server_kind, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fleet")
    with FleetPairs(folder, shards=1, pair=server_kind.pair) as found:
        yield found


@pytest.fixture
def sessions(pairs):
    """Two processes in one: the first has the lock of the server."""
    fleet = pairs.fleet()
    url = pairs["server1"].primary.url
    with (
        fleet.admin(url, name="first") as first,
        fleet.admin(url, name="second") as second,
    ):
        first.claim()
        yield first, second


def test_a_session_that_is_taken_over_sends_nothing_more(sessions):
    first, second = sessions
    second.claim()
    for _ in range(2):
        with pytest.raises(FleetServerError) as caught:
            first.run("SET GLOBAL read_only = 1")
    assert caught.value.is_unanswered
    assert second.value("SELECT @@GLOBAL.read_only") == 0


def test_further_sessions_are_taken_over_with_it(sessions):
    first, second = sessions
    with first.another() as part, second.another() as stranger:
        second.claim()
        with pytest.raises(FleetServerError) as caught:
            part.run("SET GLOBAL read_only = 1")
        assert caught.value.is_unanswered
        assert stranger.value("SELECT @@GLOBAL.read_only") == 0
    # Nor does it get others.
    with pytest.raises(FleetServerError, match="taken the operation over"):
        first.another()
    with second.another() as part:
        assert part.value("SELECT 1") == 1


def test_claiming_again_is_no_takeover(sessions):
    first, _ = sessions
    first.claim()
    assert first.value("SELECT 1") == 1


def test_an_operation_that_has_lost_its_lock_gets_no_session(pairs, tmp_path):
    fleet = pairs.fleet()
    toy = Toy(fleet, Toy.plan(fleet, tmp_path))
    record = Record(id="it", plan=toy.plan.as_dict(), token=1, holder="it", started=1.0)
    with toy:
        toy.hold = fleet.journal.begin(record)
        try:
            # Another operation may have had the servers since.
            (pairs.path.parent / "topology.json.fleet" / "lock").unlink()
            url = pairs["server1"].primary.url
            with fleet.admin(url, name="owner") as owner:
                owner.claim()
                with pytest.raises(FleetLockLostError):
                    toy.admin(url, "primary")
                # Nor does it end those of the process that has the lock.
                assert owner.value("SELECT 1") == 1
        finally:
            toy.hold.release()


def test_a_statement_that_runs_is_ended(sessions):
    first, second = sessions
    errors = []

    def work():
        try:
            first.run("SELECT SLEEP(50)")
        except FleetServerError as error:
            errors.append(error)

    thread = Thread(target=work)
    thread.start()
    running = "SELECT COUNT(*) FROM information_schema.processlist"
    wait_until(
        lambda: second.value(running + " WHERE info LIKE 'SELECT SLEEP%%'"), seconds=60
    )
    second.claim()
    thread.join(60)
    assert len(errors) == 1


def test_the_fence_of_a_session_ends_with_it(pairs, sessions):
    first, second = sessions
    replication_of(first).freeze(60)
    second.claim()
    # It would wait for the global read lock.
    second.run("SET SESSION lock_wait_timeout = 20")
    second.run("CREATE DATABASE free")
    second.run("DROP DATABASE free")


def test_a_server_that_is_paused_is_unanswered(pairs):
    primary = pairs["server1"].primary
    with pairs.fleet(timeout=1.0).admin(primary.url, name="it") as admin:
        primary.pause()
        try:
            with pytest.raises(FleetServerError) as caught:
                admin.value("SELECT 1")
        finally:
            primary.resume()
    assert caught.value.is_unanswered
    assert pairs.accounts.operator.password not in str(caught.value)
