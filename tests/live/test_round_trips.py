"""The number of statements that reach each server, by the servers' logs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import func, select, update
from sqlalchemy.orm import (
    DeclarativeBase,
    foreign,
    joinedload,
    Mapped,
    mapped_column,
    relationship,
    selectinload,
)

from sqla_shard import (
    blob_field,
    Cluster,
    MappingMixin,
    ObjectMixin,
    ObjectRef,
    scatter,
    ShardedId,
)
from sqla_shard.testing.server_fleet import ServerFleet
from tests.servers.kinds import own_fleet

pytestmark = pytest.mark.live

SERVERS = 3
SHARDS = 24
PINS = 48


class Base(DeclarativeBase):
    pass


class User(ObjectMixin, Base, type_id=3):
    __tablename__ = "users"
    name: Mapped[str] = blob_field()


class Board(ObjectMixin, Base, type_id=2):
    __tablename__ = "boards"
    title: Mapped[str] = blob_field()


class Pin(ObjectMixin, Base, type_id=1):
    __tablename__ = "pins"
    n: Mapped[int]
    maker_id: Mapped[int] = mapped_column(ObjectRef(3))
    maker: Mapped[User] = relationship(
        primaryjoin=lambda: foreign(Pin.maker_id) == User.id, viewonly=True
    )
    comments: Mapped[list[Comment]] = relationship(
        order_by=lambda: Comment.n.desc(),
        primaryjoin=lambda: foreign(Comment.pin_id) == Pin.id,
        viewonly=True,
    )


class Comment(ObjectMixin, Base, type_id=4, colocate_with="pin_id"):
    __tablename__ = "comments"
    pin_id: Mapped[int] = mapped_column(ShardedId(1), index=True)
    n: Mapped[int]


class BoardHasPins(MappingMixin, Base, source=Board, target=Pin):
    __tablename__ = "board_has_pins"


fleet = own_fleet(SERVERS, SHARDS)


@pytest.fixture(scope="module")
def cluster(fleet: ServerFleet[Any]) -> Iterator[Cluster]:
    with Cluster.from_topology(
        fleet.topology_mapping(), environ=fleet.environ
    ) as cluster:
        cluster.create_all(Base.metadata)
        yield cluster


@pytest.fixture(scope="module")
def board_id(cluster: Cluster) -> int:
    """A board on one shard, with pins on all of them, made by users."""
    with cluster.begin(cross_shard="unordered") as session:
        board = Board(title="Boats", shard_id=0)
        users = [User(name="u", shard_id=i) for i in range(SHARDS)]
        session.add_all([board, *users])
        session.flush()
        pins = [
            Pin(shard_id=i % SHARDS, n=i, maker_id=users[(i * 7) % SHARDS].id)
            for i in range(PINS)
        ]
        session.add_all(pins)
        session.flush()
        session.add_all([Comment(pin_id=pin.id, n=k) for pin in pins for k in range(2)])
        BoardHasPins.append_many(session, board.id, [pin.id for pin in pins])
        return board.id


class Counted:
    """The queries of each server since last asked."""

    def __init__(self, logs: list[Any]) -> None:
        self._logs = logs

    def take(self) -> list[int]:
        counts = []
        for log in self._logs:
            queries = [
                entry
                for entry in log.entries
                if entry.command == "Query"
                and entry.text.lstrip("(").startswith(
                    ("SELECT", "UPDATE", "SET STATEMENT")
                )
            ]
            counts.append(len(queries))
            log.clear()
        return counts


@pytest.fixture
def counted(cluster: Cluster, fleet: ServerFleet[Any]) -> Iterator[Counted]:
    with contextlib.ExitStack() as stack:
        logs = [stack.enter_context(s.query_log()) for s in fleet.servers]
        yield Counted(logs)


def test_the_board_page(cluster: Cluster, board_id: int, counted: Counted) -> None:
    """One statement on the board's server, then one on each for its pins."""
    with cluster.session() as session:
        page = BoardHasPins.page(session, board_id, limit=50, targets=True)
        assert len(page) == PINS
        assert counted.take() == [2, 1, 1]
        assert {row.target.n for row in page} == set(range(PINS))
        assert session.get_many(Pin, [row.pin_id for row in page])
        assert counted.take() == [0, 0, 0]


def test_eager_loads_cost_a_statement_for_each_server_and_level(
    cluster: Cluster, board_id: int, counted: Counted
) -> None:
    everything = (
        select(Pin)
        .order_by(Pin.n)
        .options(scatter(), selectinload(Pin.maker), selectinload(Pin.comments))
    )
    with cluster.session() as session:
        pins = session.scalars(everything).all()
        assert counted.take() == [3, 3, 3]
        assert [pin.n for pin in pins] == list(range(PINS))
        assert {pin.maker.name for pin in pins} == {"u"}
        assert all([c.n for c in pin.comments] == [1, 0] for pin in pins)
        assert counted.take() == [0, 0, 0]


def test_joined_in_the_same_statement(
    cluster: Cluster, board_id: int, counted: Counted
) -> None:
    made = select(Pin).options(scatter(), joinedload(Pin.comments))
    with cluster.session() as session:
        pins = session.scalars(made).unique().all()
        assert len(pins) == PINS
        assert all(len(pin.comments) == 2 for pin in pins)
    # Sorted by more than the rows of the statement are, so not a UNION.
    assert counted.take() == [8, 8, 8]


@pytest.mark.parametrize(
    ("made", "rows"),
    [
        (select(Pin).order_by(Pin.n.desc()).limit(10), 10),
        (select(func.count(Pin.id), func.avg(Pin.n)), 1),
        (select(Pin.maker_id, func.count()).group_by(Pin.maker_id), SHARDS),
        (select(Pin.maker_id).distinct(), SHARDS),
        (select(Pin.id), PINS),
        (select(Pin).limit(5), 5),
        (select(Pin.n, Comment.n).join(Pin.comments).limit(7), 7),
    ],
    ids=["ordered", "counted", "grouped", "distinct", "ids", "few", "joined"],
)
def test_one_statement_for_each_server(
    cluster: Cluster, board_id: int, counted: Counted, made: Any, rows: int
) -> None:
    with cluster.session() as session:
        for limits in (scatter(), scatter(timeout=20, on_error="partial")):
            assert len(session.execute(made.options(limits)).all()) == rows
            assert counted.take() == [1, 1, 1]
    explained = cluster.explain(made.options(scatter()))
    assert explained.round_trips == 1
    assert [len(sent.statements) for sent in explained.sent] == [1, 1, 1]
    assert counted.take() == [0, 0, 0]


def test_one_statement_for_each_shard(
    cluster: Cluster, board_id: int, counted: Counted
) -> None:
    locked = select(Pin.id).with_for_update().options(scatter())
    changed = update(Pin).values(n=Pin.n).options(scatter())
    with cluster.session(cross_shard="unordered") as session:
        assert len(session.scalars(locked).all()) == PINS
        assert counted.take() == [8, 8, 8]
        session.execute(changed, execution_options={"synchronize_session": False})
        assert counted.take() == [8, 8, 8]
        session.rollback()
    assert cluster.explain(locked).round_trips == 8


def test_pages(cluster: Cluster, board_id: int, counted: Counted) -> None:
    newest = select(Pin).order_by(Pin.n.desc())
    with cluster.session() as session:
        after = None
        for _ in range(3):
            page = session.scatter_page(newest, 10, after)
            after = page.next
            assert len(page) == 10
            assert counted.take() == [1, 1, 1]
