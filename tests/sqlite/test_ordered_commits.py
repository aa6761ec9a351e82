"""The order in which the servers of a transaction commit.

With SQLite each virtual shard is a file of its own, and so a server.
"""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, insert, select, String, update
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqla_shard import blob_field, Cluster, KeyspaceMixin, MappingMixin, ObjectMixin
from sqla_shard.exc import PartialCommitError, ServerUnreachableError, WrittenShard
from sqla_shard.testing import sqlite_topology


class Base(KeyspaceMixin, DeclarativeBase):
    pass


class Board(ObjectMixin, Base, type_id=1):
    __tablename__ = "boards"
    title: Mapped[str] = blob_field()


class Pin(ObjectMixin, Base, type_id=2):
    __tablename__ = "pins"
    title: Mapped[str] = blob_field()


class BoardHasPins(MappingMixin, Base, source=Board, target=Pin):
    pass


class Country(Base, keyspace="main"):
    __tablename__ = "countries"
    code: Mapped[str] = mapped_column(String(2), primary_key=True)


class Email(Base, keyspace="lookup", kind="mod"):
    __tablename__ = "emails"
    address: Mapped[str] = mapped_column(String(40), primary_key=True)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    document = sqlite_topology(tmp_path, servers=2, shards=8, main="dbmain", lookup=2)
    with Cluster.from_topology(document) as cluster:
        cluster.create_all(Base.metadata)
        yield cluster


@contextmanager
def commits(cluster: Cluster) -> Iterator[list[str]]:
    """Take note of the files that commit."""
    seen: list[str] = []

    def note(connection: Any) -> None:
        seen.append(Path(str(connection.engine.url.database)).stem)

    engines = [
        cluster.places.place(keyspace, n).engine
        for keyspace in cluster.topology.keyspaces.values()
        for n in range(keyspace.shards if keyspace.kind != "global" else 1)
    ]
    for engine in engines:
        event.listen(engine, "commit", note)
    yield seen
    for engine in engines:
        event.remove(engine, "commit", note)


def add_email(session: Any, address: str, shard_id: int) -> None:
    where = {"keyspace": "lookup", "shard_id": shard_id}
    session.connection(where).execute(insert(Email).values(address=address))


def stems(cluster: Cluster, *shards: tuple[str, int]) -> list[str]:
    """Return the names of the files of shards."""
    found = []
    for name, shard_id in shards:
        keyspace = cluster.topology.keyspaces[name]
        engine = cluster.places.place(keyspace, shard_id).engine
        found.append(Path(str(engine.url.database)).stem)
    return found


def board_on(cluster: Cluster, shard_id: int) -> int:
    with cluster.begin() as session:
        board = Board(title="a", shard_id=shard_id)
        session.add(board)
        session.flush()
        return int(board.id)


def test_lookups_then_global_then_objects_then_mappings(cluster: Cluster) -> None:
    board_id = board_on(cluster, 1)
    with commits(cluster) as seen:
        with cluster.begin(cross_shard="ordered") as session:
            pin = Pin(title="b", shard_id=6)
            session.add(pin)
            session.flush()
            BoardHasPins.append(session, board_id, pin.id)
            session.add(Country(code="xx"))
            session.flush()
            add_email(session, "a@b", 1)
            add_email(session, "b@c", 0)
        assert seen == stems(
            cluster,
            ("lookup", 1),
            ("lookup", 0),
            ("main", 0),
            ("objects", 6),
            ("objects", 1),
        )


def test_a_shard_with_objects_and_mappings_comes_with_objects(cluster: Cluster) -> None:
    board_id = board_on(cluster, 1)
    with commits(cluster) as seen:
        with cluster.begin(cross_shard="ordered") as session:
            pin = Pin(title="b", shard_id=6)
            session.add(pin)
            session.flush()
            BoardHasPins.append(session, board_id, pin.id)
            session.get(Board, board_id).title = "c"
            session.flush()
            session.add(Pin(title="d", shard_id=3))
        assert seen == stems(cluster, ("objects", 6), ("objects", 1), ("objects", 3))


def test_by_first_write_and_then_by_number(cluster: Cluster) -> None:
    ids = {n: board_on(cluster, n) for n in (7, 2, 5, 0, 4)}
    with commits(cluster) as seen:
        with cluster.begin(cross_shard="ordered") as session:
            session.get(Board, ids[7]).title = "first"
            session.flush()
            boards = {n: session.get(Board, ids[n]) for n in (5, 4, 2)}
            for board in boards.values():
                board.title = "one flush"
            session.flush()
            pins = update(BoardHasPins.__table__).values(sequence=1)
            boards = BoardHasPins.board_id.in_([ids[0], ids[7]])
            session.execute(pins.where(boards))
        expected = [("objects", n) for n in (7, 2, 4, 5, 0)]
        assert seen == stems(cluster, *expected)


@pytest.mark.parametrize("how", ["session", "begin", "session.begin", "with"])
def test_ways_to_ask(cluster: Cluster, how: str) -> None:
    def write(session: Any) -> None:
        for n in (5, 1, 3):
            session.add(Board(title="x", shard_id=n))
            session.flush()

    with commits(cluster) as seen:
        if how == "session":
            with cluster.session(cross_shard="ordered") as session:
                write(session)
                session.commit()
        elif how == "begin":
            with cluster.begin(cross_shard="ordered") as session:
                write(session)
        else:
            with cluster.session() as session:
                transaction = session.begin(cross_shard="ordered")
                if how == "with":
                    with transaction:
                        write(session)
                else:
                    write(session)
                    session.commit()
        assert seen == stems(cluster, *[("objects", n) for n in (5, 1, 3)])


def test_awaited(cluster: Cluster) -> None:
    async def write() -> list[str]:
        made: list[Board] = []
        async with cluster.async_begin(cross_shard="ordered") as session:
            for n in (5, 1, 3):
                made.append(Board(title=str(n), shard_id=n))
                session.add(made[-1])
                await session.flush()
            log = session.sync_session.log
            found = [str(e.url.database) for e in log.in_order()]
        async with cluster.async_session() as session:
            boards = await session.get_many(Board, [b.id for b in made])
            assert [b.title for b in boards if b] == ["5", "1", "3"]
        return found

    found = asyncio.run(write())
    expected = stems(cluster, *[("objects", n) for n in (5, 1, 3)])
    assert [Path(f).stem for f in found] == expected


def test_shards_of_a_rolled_back_savepoint_have_no_place(cluster: Cluster) -> None:
    with commits(cluster) as seen:
        with cluster.begin(cross_shard="ordered") as session:
            session.add(Board(title="x", shard_id=2))
            session.flush()
            with session.begin_nested() as savepoint:
                session.add(Board(title="gone", shard_id=6))
                session.flush()
                savepoint.rollback()
            with session.begin_nested():
                session.add(Board(title="stays", shard_id=4))
            session.add(Board(title="again", shard_id=6))
            session.flush()
        expected = [("objects", n) for n in (2, 4, 6)]
        assert seen[-3:] == stems(cluster, *expected)


@pytest.mark.parametrize("way", [None, "ordered", "unordered"])
def test_shards_that_were_only_read_come_last(cluster: Cluster, way: Any) -> None:
    ids = {n: board_on(cluster, n) for n in (0, 3, 6)}
    with commits(cluster) as seen:
        with cluster.begin(cross_shard=way) as session:
            # Locks that hold until the protected rows are written.
            session.scalars(
                select(Board).where(Board.id == ids[6]).with_for_update()
            ).one()
            session.get(Board, ids[3])
            session.get(Board, ids[0]).title = "changed"
        assert seen == stems(cluster, *[("objects", n) for n in (0, 6, 3)])


def test_a_part_that_is_lost_during_the_last_flush(cluster: Cluster) -> None:
    """It is found before the first COMMIT."""
    ids = {n: board_on(cluster, n) for n in (1, 4, 6)}
    with commits(cluster) as seen:
        session = cluster.session(cross_shard="ordered")
        for board in session.get_many(Board, ids.values()):
            board.title = "new"

        def lose(*_: Any) -> None:
            place = cluster.places.place(cluster.topology.keyspaces["objects"], 6)
            session.root_connection(place).invalidate()

        event.listen(session, "after_flush_postexec", lose)
        with pytest.raises(ServerUnreachableError, match="repeat"):
            session.commit()
        session.close()
        assert seen == []
    with cluster.session() as session:
        boards = session.get_many(Board, ids.values())
        assert [b.title for b in boards if b] == ["a", "a", "a"]


@contextmanager
def failing(cluster: Cluster, shard_id: int, error: BaseException) -> Iterator[None]:
    """Let a listener of the application fail where a shard commits."""
    keyspace = cluster.topology.keyspaces["objects"]
    engine = cluster.places.place(keyspace, shard_id).engine

    def fail(_: Any) -> None:
        raise error

    event.listen(engine, "commit", fail)
    yield
    event.remove(engine, "commit", fail)


def written(*shards: int) -> tuple[WrittenShard, ...]:
    return tuple(
        WrittenShard(
            keyspace="objects", shard_id=n, server="server1" if n < 4 else "server2"
        )
        for n in shards
    )


@pytest.mark.parametrize("at", [4, 6])
def test_a_listener_that_fails_after_the_first_commit(
    cluster: Cluster, at: int
) -> None:
    ids = {n: board_on(cluster, n) for n in (1, 4, 6)}
    with (
        cluster.session(cross_shard="ordered") as session,
        failing(cluster, at, ValueError("mine")),
    ):
        for board in session.get_many(Board, ids.values()):
            board.title = "new"
        with pytest.raises(PartialCommitError) as caught:
            session.commit()
    assert str(caught.value.__cause__) == "mine"
    done = [n for n in ids if n < at]
    assert caught.value.shards_committed == written(*done)
    assert caught.value.shards_unknown == written(at)
    rest = [n for n in ids if n > at]
    assert caught.value.shards_rolled_back == written(*rest)
    with cluster.session() as session:
        titles = {b.id: b.title for b in session.get_many(Board, ids.values())}
    assert titles == {ids[n]: "new" if n in done else "a" for n in ids}


def test_a_listener_that_fails_at_the_first_commit(cluster: Cluster) -> None:
    ids = {n: board_on(cluster, n) for n in (1, 4)}
    with (
        cluster.session(cross_shard="ordered") as session,
        failing(cluster, 1, ValueError("mine")),
    ):
        for board in session.get_many(Board, ids.values()):
            board.title = "new"
        with pytest.raises(ValueError, match="mine"):
            session.commit()
    with cluster.session() as session:
        boards = session.get_many(Board, ids.values())
        assert [b.title for b in boards if b] == ["a", "a"]


def test_ctrl_c_between_two_commits_is_logged(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    ids = {n: board_on(cluster, n) for n in (1, 4)}
    with (
        cluster.session(cross_shard="ordered") as session,
        failing(cluster, 4, KeyboardInterrupt()),
    ):
        for board in session.get_many(Board, ids.values()):
            board.title = "new"
        with pytest.raises(KeyboardInterrupt):
            session.commit()
    assert "interrupted: committed: shard 1 of objects on server1" in (caplog.text)
    assert "shard 4 of objects on server2 may or may not" in caplog.text


def test_a_session_is_not_referenced(cluster: Cluster) -> None:
    session = cluster.session(cross_shard="ordered")
    for n in (1, 4):
        session.add(Board(title="x", shard_id=n))
    session.commit()
    session.close()
    gone = weakref.ref(session)
    gc.disable()
    try:
        del session
        # As SQLAlchemy's own: no cycle keeps it once it is closed.
        assert gone() is None
    finally:
        gc.enable()
