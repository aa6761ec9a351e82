"""Keys of transactions on SQLite, and what cannot be one."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Iterator
from datetime import datetime, timedelta, UTC
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, func, select, text

from sqla_shard import Cluster
from sqla_shard.cluster.retries import repeat, Retries
from sqla_shard.exc import CommitUnknownError, KeyUsedError, ShardMissingError
from sqla_shard.outbox.transaction_keys import Token
from sqla_shard.testing import sqlite_topology
from tests.models.models import Base, Pin, Setting
from tests.servers.command_line import invoke, write as write_topology
from tests.servers.following import in_child


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    document = sqlite_topology(tmp_path, servers=2, shards=4, main=True)
    with Cluster.from_topology(document) as cluster:
        cluster.create_all(Base.metadata)
        yield cluster


def pin(title: str, shard_id: int = 1) -> Any:
    made = Pin(title=title)
    made.__dict__["_sqla_shard_requested"] = shard_id
    return made


def write(session: Any, shard_id: int = 1) -> None:
    session.add(pin("it", shard_id))


def count(cluster: Cluster, shard_id: int = 1) -> int:
    with cluster.session() as session:
        found = session.scalar(
            select(func.count(Pin.id)), bind_arguments={"shard_id": shard_id}
        )
        return int(found or 0)


def test_a_key_is_used_once(cluster: Cluster) -> None:
    cluster.run(write, key="a")
    with pytest.raises(KeyUsedError, match="shard 1 of objects"):
        cluster.run(write, key="a")
    cluster.run(write, key="a ")
    assert count(cluster) == 2


def test_where_a_key_has_committed(cluster: Cluster) -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    assert cluster.find_key("a") == []
    for shard_id in (3, 1):
        cluster.run(write, shard_id, key="a")
    cluster.run(write, 2, key="b")
    with pytest.raises(KeyUsedError):
        cluster.run(write, 1, key="a")
    found = cluster.find_key("a")
    assert [(one.keyspace, one.shard_id) for one in found] == [
        ("objects", 1),
        ("objects", 3),
    ]
    for one in found:
        assert before <= one.committed_at <= datetime.now(UTC)
    assert [one.server for one in found] == ["server1", "server2"]
    # Neither a part of it, nor a mark.
    assert cluster.find_key("a ") == []
    with pytest.raises(ValueError, match="key="):
        cluster.find_key("")
    assert cluster.forget_keys(timedelta(0)) == 3
    assert cluster.find_key("a") == []


def test_where_a_key_is_when_a_shard_cannot_say(cluster: Cluster) -> None:
    """The outcome is not reported as "not committed"."""
    with cluster.begin() as session:
        session.execute(
            text("DROP TABLE sqla_shard_token"), bind_arguments={"shard_id": 1}
        )
    with pytest.raises(ShardMissingError):
        cluster.find_key("a")


def test_a_key_is_of_one_shard(cluster: Cluster) -> None:
    cluster.run(write, 1, key="a")
    cluster.run(write, 2, key="a")
    assert (count(cluster, 1), count(cluster, 2)) == (1, 1)


def test_a_key_in_the_global_keyspace(cluster: Cluster) -> None:
    def set_it(session: Any, value: str) -> None:
        session.merge(Setting(name="color", value=value))

    cluster.run(set_it, "red", key="color")
    with pytest.raises(KeyUsedError, match="shard 0 of main"):
        cluster.run(set_it, "blue", key="color")


def test_a_key_in_an_event_loop(cluster: Cluster) -> None:
    async def write(session: Any) -> str:
        session.add(pin("awaited"))
        return "done"

    async def main() -> None:
        assert await cluster.async_run(write, key="awaited") == "done"
        with pytest.raises(KeyUsedError):
            await cluster.async_run(write, key="awaited")
        assert await cluster.async_forget_keys(timedelta(hours=1)) == 0
        await cluster.aclose()

    asyncio.run(main())


@pytest.mark.parametrize("committed", [True, False])
def test_an_unknown_outcome(cluster: Cluster, committed: bool) -> None:
    """No file loses a connection; so the attempt says that it has."""
    token = Token("unknown")
    attempts: list[str] = []

    def attempt() -> str:
        attempts.append("attempt")
        if len(attempts) > 2:
            return "again"
        session = cluster.session()
        token.follow(session)
        write(session)
        session.flush()
        if committed:
            session.commit()
        else:
            assert session.last is not None
            place = session.log.first[0]  # type: ignore[index]  # written
            session.last(session.root_connection(place), session.log)
        session.close()
        raise CommitUnknownError(server="server1")

    def look() -> tuple[str] | None:
        attempts.append("look")
        with cluster.session() as session:
            return ("there",) if token.is_there(session) else None

    found = repeat(
        attempt,
        Retries(cluster.places.engines.backends, attempts=None, timeout=5),
        look=look,
    )
    assert found == ("there" if committed else "again")
    assert attempts[:2] == ["attempt", "look"]


def test_a_key_without_a_mark_is_of_another_caller(cluster: Cluster) -> None:
    """As a process of an earlier release has written it meanwhile."""
    token = Token("unmarked")

    def attempt() -> None:
        with cluster.begin() as session:
            token.follow(session)
            write(session)

    with cluster.begin() as session:
        token.follow(session)
        write(session)
        session.flush()
        assert session.last is not None
        place = session.log.first[0]  # type: ignore[index]  # written
        session.last(session.root_connection(place), session.log)
        session.rollback()
    with cluster.begin() as session:
        session.execute(
            text(
                "INSERT INTO sqla_shard_token (token, created_at) "
                "VALUES (CAST('unmarked' AS BLOB), CURRENT_TIMESTAMP)"
            ),
            bind_arguments={"shard_id": 1},
        )
    with cluster.session() as session:
        assert not token.is_there(session)
    with pytest.raises(KeyUsedError):
        attempt()
    assert count(cluster) == 0


@pytest.mark.parametrize("key", ["", "x" * 256, "\N{ROCKET}" * 64, b"x", 7])
def test_invalid_keys(cluster: Cluster, key: Any) -> None:
    with pytest.raises(ValueError, match="key="):
        cluster.run(write, key=key)
    assert count(cluster) == 0


def test_a_key_is_not_for_several_shards(cluster: Cluster) -> None:
    def both(session: Any) -> None:
        session.rollback()
        session.begin(cross_shard="unordered")
        session.add_all([pin("x", 1), pin("x", 2)])

    with pytest.raises(ValueError, match="of one shard"):
        cluster.run(both, key="both")
    assert (count(cluster, 1), count(cluster, 2)) == (0, 0)


def write_both(session: Any) -> None:
    """Write two servers, the second shard first."""
    write(session, 2)
    session.flush()
    write(session, 1)
    session.flush()


def test_a_key_of_several_servers(cluster: Cluster) -> None:
    for _ in range(2):
        with contextlib.suppress(KeyUsedError):
            cluster.run(write_both, key="both", cross_shard="ordered")
    assert (count(cluster, 1), count(cluster, 2)) == (1, 1)
    assert cluster.find_halves(timedelta(0)) == []
    # Known where COMMIT is sent first.
    (found,) = cluster.find_key("both")
    assert found.shard_id == 2
    # One that turns out to write one server leaves no parts.
    cluster.run(write, key="one", cross_shard="ordered")
    assert cluster.find_halves(timedelta(0)) == []
    with pytest.raises(ValueError, match=r"maximum .* is 234"):
        cluster.run(write_both, key="x" * 235, cross_shard="ordered")
    assert (count(cluster, 1), count(cluster, 2)) == (2, 1)
    cluster.run(write_both, key="x" * 234, cross_shard="ordered")


def test_keys_of_a_killed_process(cluster: Cluster, tmp_path: Path) -> None:
    document = sqlite_topology(tmp_path, servers=2, shards=4, main=True)

    def child() -> None:
        with Cluster.from_topology(document) as mine:
            place = mine.places.place(mine.places.keyspace("objects", ""), 1)
            event.listen(place.engine, "commit", lambda _: os._exit(0))
            mine.run(write_both, key="order-17", cross_shard="ordered")
        raise AssertionError("it has not come to the second COMMIT")

    cluster.run(write_both, key="whole", cross_shard="ordered")
    in_child(child, tmp_path)
    assert (count(cluster, 1), count(cluster, 2)) == (1, 2)
    assert cluster.find_halves() == []  # it may be committing still
    (half,) = cluster.find_halves(timedelta(0))
    assert (half.key, half.missing) == ("order-17", 1)
    (there,) = half.committed
    assert (there.keyspace, there.shard_id) == ("objects", 2)
    topology = write_topology(tmp_path, document)
    done = invoke("-t", topology, "halves", "--older-than", "0")
    assert done.exit_code == 1
    assert done.stdout.startswith("order-17 has committed on shard 2 of obj")
    done = invoke("-t", topology, "halves", "--older-than", "0", "--json")
    assert json.loads(done.stdout)["halves"][0]["missing"] == 1
    done = invoke("-t", topology, "halves")
    assert (done.exit_code, done.stdout) == (0, "0 partially committed\n")
    # The first part is forgotten before the others: "whole" is no half now.
    cluster.forget_keys(timedelta(0))
    assert cluster.find_halves(timedelta(0)) == []
    assert cluster.find_key("order-17") == []
    with pytest.raises(ValueError, match="older_than="):
        cluster.find_halves(timedelta(-1))


def test_a_key_is_not_for_two_transactions(cluster: Cluster) -> None:
    def twice(session: Any) -> None:
        write(session)
        session.commit()
        write(session)

    with pytest.raises(ValueError, match="one transaction"):
        cluster.run(twice, key="twice")
    assert count(cluster) == 1


def test_the_table_is_missing(cluster: Cluster) -> None:
    with cluster.begin() as session:
        session.execute(
            text("DROP TABLE sqla_shard_token"), bind_arguments={"shard_id": 1}
        )
    with pytest.raises(ShardMissingError, match="schema upgrade"):
        cluster.run(write, key="a")
    assert count(cluster) == 0


def test_old_keys_are_forgotten(cluster: Cluster) -> None:
    for number in range(5):
        cluster.run(write, key=f"{number}")
    with cluster.begin() as session:
        session.execute(
            text(
                "UPDATE sqla_shard_token SET created_at = "
                "datetime('now', '-1 hour') WHERE token < x'33'"
            ),
            bind_arguments={"shard_id": 1},
        )
    assert cluster.forget_keys(timedelta(minutes=1), batch=2) == 3
    cluster.run(write, key="0")
    with pytest.raises(KeyUsedError):
        cluster.run(write, key="4")


def test_removals_are_counted_in_keys(cluster: Cluster) -> None:
    for number in range(3):
        cluster.run(write, key=f"{number}")
    assert cluster.forget_keys(timedelta(0)) == 3
    with cluster.session() as session:
        left = session.execute(
            text("SELECT token FROM sqla_shard_token"), bind_arguments={"shard_id": 1}
        )
        assert left.all() == []


@pytest.mark.parametrize("older_than", [5, None, timedelta(seconds=-1)])
def test_invalid_ages(cluster: Cluster, older_than: Any) -> None:
    with pytest.raises(ValueError, match="older_than="):
        cluster.forget_keys(older_than)
    with pytest.raises(ValueError, match="batch="):
        cluster.forget_keys(timedelta(1), batch=0)


def test_an_exception_of_the_function_is_raised_unchanged(cluster: Cluster) -> None:
    def ends(session: Any) -> None:
        raise StopIteration("mine")

    with pytest.raises(StopIteration, match="mine"):
        cluster.run(ends)
