"""Objects that belong together are on one shard, in one transaction.

::

    python -m examples.colocation

A transaction is atomic on one virtual shard.  So give objects that change
together a common parent: ``colocate_with`` names the field that holds the
parent's id, and the object is stored on the shard of its parent.  This shows
the result, what is refused across shards, and what to do instead.

SQLite in a temporary directory; nothing has to be installed, and nothing
stays.
"""

from __future__ import annotations

import contextlib
import textwrap
from collections.abc import Callable
from tempfile import TemporaryDirectory

from sqlalchemy import select
from sqlalchemy.orm import DeclarativeBase, Mapped

from sqla_shard import blob_field, Cluster, ObjectMixin, ShardSession
from sqla_shard.exc import ColocationError, CrossShardWriteError, ShardError
from sqla_shard.testing import sqlite_topology, StatementLog


class Base(DeclarativeBase):
    """Holds the tables of this example."""


class User(ObjectMixin, Base, type_id=3):
    """A root: the cluster chooses its shard, once and for all."""

    __tablename__ = "users"

    name: Mapped[str] = blob_field()
    boards: Mapped[int] = blob_field(default=0)


class Board(ObjectMixin, Base, type_id=2, colocate_with="user_id"):
    """Lives on the shard of its user."""

    __tablename__ = "boards"

    user_id: Mapped[int] = blob_field(ref=User)
    title: Mapped[str] = blob_field()


class Pin(ObjectMixin, Base, type_id=1, colocate_with="board_id"):
    """Lives on the shard of its board, thus on that of the user."""

    __tablename__ = "pins"

    board_id: Mapped[int] = blob_field(ref=Board)
    link: Mapped[str] = blob_field()


def add_user(session: ShardSession, name: str, shard_id: int) -> int:
    """Write a user on a shard of our choice, to know what will happen.

    An application leaves ``shard_id`` out and gets one at random.
    """
    user = User(name=name, shard_id=shard_id)
    session.add(user)
    session.flush()
    return user.id


def add_board(session: ShardSession, user_id: int, title: str, links: list[str]) -> int:
    """Write a board with its pins, and count it in its user."""
    board = Board(user_id=user_id, title=title)
    session.add(board)
    session.flush()  # now the board has its id, which its pins need
    session.add_all([Pin(board_id=board.id, link=link) for link in links])
    user = session.get(User, user_id, with_for_update=True)
    assert user is not None
    user.boards += 1
    session.flush()
    return board.id


def show_one_transaction(cluster: Cluster, user_id: int) -> int:
    """Write a board and its pins: one shard, one COMMIT."""
    links = [f"https://example.com/boats/{number}" for number in range(3)]
    with StatementLog() as log:
        board_id = cluster.run(add_board, user_id, "Boats", links)
    assert len(log.connections) == 1
    assert log.count("commit") == 1

    with cluster.session() as session:
        # By the parent's id, which names the shard: one server is queried.
        mine = select(Pin).where(Pin.board_id == board_id)
        pins = session.scalars(mine).all()
    assert len(pins) == 3
    shards = {cluster.explain(user_id).shards, cluster.explain(board_id).shards}
    shards |= {cluster.explain(pin.id).shards for pin in pins}
    ((shard_id,),) = shards
    print("A user, a board and three pins have one shard:", shard_id)
    print("They were one transaction: 1 connection, 1 COMMIT.")
    print("Their pins are read from there:", cluster.explain(mine).shards)
    return board_id


def show_all_or_nothing(cluster: Cluster, user_id: int) -> None:
    """Fail half-way through: neither the board nor the count stays."""

    class OutOfPaintError(Exception):
        pass

    def paint(session: ShardSession) -> None:
        add_board(session, user_id, "Paintings", ["https://example.com/p"])
        raise OutOfPaintError

    with contextlib.suppress(OutOfPaintError):
        cluster.run(paint)
    with cluster.session() as session:
        user = session.get(User, user_id)
        assert user is not None
        boards = select(Board).where(Board.user_id == user_id)
        titles = [board.title for board in session.scalars(boards)]
    assert (titles, user.boards) == (["Boats"], 1)
    print("\nA transaction that failed half-way left nothing:", titles)


def rename(session: ShardSession, user_id: int, name: str) -> None:
    """Give a user another name."""
    user = session.get(User, user_id)
    assert user is not None
    user.name = name


def refusal(cluster: Cluster, change: Callable[[ShardSession], None]) -> ShardError:
    """Return the error of a change that must not succeed."""
    try:
        cluster.run(change)
    except ShardError as error:
        text = f"{type(error).__name__}: {error}"
        print(textwrap.indent(textwrap.fill(text, 74, break_on_hyphens=False), "  "))
        return error
    raise AssertionError("it was not refused")


def show_refusals(cluster: Cluster, ada_id: int, grace_id: int, board_id: int) -> None:
    """Try to write two shards as one, and to move an object."""

    # Two shards of one server are refused too: one of them may be moved to
    # another server later.
    def two_shards(session: ShardSession) -> None:
        rename(session, ada_id, "nobody")
        rename(session, grace_id, "nobody")

    def another_shard(session: ShardSession) -> None:
        board = session.get(Board, board_id)
        assert board is not None
        board.user_id = grace_id

    print("\nRefused, before anything is sent:")
    assert isinstance(refusal(cluster, two_shards), CrossShardWriteError)
    assert isinstance(refusal(cluster, another_shard), ColocationError)

    with cluster.session() as session:
        users = session.get_many(User, [ada_id, grace_id])
        names = [user.name for user in users if user]
        board = session.get(Board, board_id)
    assert names == ["ada", "grace"]
    assert board is not None
    assert board.user_id == ada_id
    print("Nothing has changed.  Reading both at once is no problem:", names)


def show_instead(cluster: Cluster, ada_id: int, grace_id: int) -> None:
    """Write to two shards, in both ways that are possible."""
    # The first way, and nearly always the better one: one transaction per
    # shard, in an order in which a crash between them does no harm.
    with StatementLog() as log:
        cluster.run(rename, ada_id, "Ada")
        cluster.run(rename, grace_id, "Grace")
    print("\nA transaction for each:", log.count("commit"), "COMMITs.")
    assert log.count("commit") == 2

    # The second: both are written, or neither, unless a server fails between
    # the first COMMIT and the last.  That raises PartialCommitError, with
    # the outcome on each shard.
    with StatementLog() as log, cluster.begin(cross_shard="unordered") as session:
        rename(session, ada_id, "Ada Lovelace")
        rename(session, grace_id, "Grace Hopper")
    assert log.count("commit") == 2
    print('\ncross_shard="unordered":', log.count("commit"), "COMMITs too,")
    print("one after another, when everything else has succeeded.")

    with (
        contextlib.suppress(LookupError),
        cluster.begin(cross_shard="unordered") as session,
    ):
        rename(session, ada_id, "nobody")
        rename(session, grace_id, "nobody")
        session.flush()
        raise LookupError("an error before the first COMMIT")
    with cluster.session() as session:
        users = session.get_many(User, [ada_id, grace_id])
        names = [user.name for user in users if user]
    assert names == ["Ada Lovelace", "Grace Hopper"]
    print("An error before the first COMMIT undoes both:", names)


def show(cluster: Cluster) -> None:
    """Show all of it, where the shards 3 and 12 are on two servers."""
    cluster.create_all(Base.metadata)
    ada_id = cluster.run(add_user, "ada", shard_id=3)
    grace_id = cluster.run(add_user, "grace", shard_id=12)
    board_id = show_one_transaction(cluster, ada_id)
    show_all_or_nothing(cluster, ada_id)
    show_refusals(cluster, ada_id, grace_id, board_id)
    show_instead(cluster, ada_id, grace_id)


def main() -> None:
    """Run the example on SQLite: two servers with 16 virtual shards."""
    with TemporaryDirectory() as directory:
        topology = sqlite_topology(directory, servers=2, shards=16)
        with Cluster.from_topology(topology) as cluster:
            show(cluster)


if __name__ == "__main__":
    main()
