"""Lists that users put in order, and the gaps in them.

::

    python -m examples.ordering

``BoardHasPins`` is a mapping table: it holds ids of boards, ids of pins, and
a ``sequence``.  A pin that is moved gets the sequence in the middle between
its new neighbours, so that a move writes one row, whatever the length of the
list.  This shows the list in use, and what happens if there is no gap.

Limits: a list is on the shard of its board, and its changes wait for one
another.  Counting a long list takes longer than reading a page of it.

SQLite in a temporary directory; nothing has to be installed, and nothing
stays.
"""

from __future__ import annotations

from itertools import count, cycle
from tempfile import TemporaryDirectory

from sqlalchemy.orm import DeclarativeBase, Mapped

from sqla_shard import blob_field, Cluster, MappingMixin, ObjectMixin, ShardSession
from sqla_shard.exc import StaleNeighbourError
from sqla_shard.models import NarrowGap
from sqla_shard.testing import sqlite_topology, StatementLog

NAMES = "abcdefghijkl"
MILLISECOND = 10**25
"""As a distance of sequences: the milliseconds since 1970, and 25 zeros."""


class Base(DeclarativeBase):
    """Holds the tables of this example."""


class Board(ObjectMixin, Base, type_id=2):
    """Has pins in an order."""

    __tablename__ = "boards"

    title: Mapped[str] = blob_field()


class Pin(ObjectMixin, Base, type_id=1, colocate_with="board_id"):
    """Lives with its board here; it could be on any shard."""

    __tablename__ = "pins"

    board_id: Mapped[int] = blob_field(ref=Board)
    name: Mapped[str] = blob_field()


class BoardHasPins(MappingMixin, Base, source=Board, target=Pin):
    """The table ``board_has_pins``: board_id, pin_id and sequence."""

    pin_id: Mapped[int]


warnings: list[NarrowGap] = []


@BoardHasPins.on_narrow_gap
def note(session: ShardSession, gap: NarrowGap) -> None:
    """Record the narrow gap that a move has left.

    An application could have the neighbourhood re-spaced later, in a job.
    """
    warnings.append(gap)


def add(session: ShardSession, title: str) -> tuple[int, dict[str, int]]:
    """Write a board with the pins a to l; return its id and theirs."""
    board = Board(title=title)
    session.add(board)
    session.flush()
    pins = [Pin(board_id=board.id, name=name) for name in NAMES]
    session.add_all(pins)
    session.flush()
    # Each goes on top of those before it, so the last one is first.
    added = BoardHasPins.append_many(session, board.id, [p.id for p in pins])
    assert len(added) == len(NAMES)
    return board.id, {pin.name: pin.id for pin in pins}


def order(session: ShardSession, board_id: int) -> str:
    """Return the names of the pins, in the order of the list."""
    page = BoardHasPins.page(session, board_id, targets=True)
    return "".join(row.target.name for row in page)


# -- a list in use ----------------------------------------------------------


def show_pages(cluster: Cluster, board_id: int, pins: dict[str, int]) -> None:
    """Read a list in pages while others change it."""
    print("Newest first, in pages of five.")
    with cluster.session() as session:
        first = BoardHasPins.page(session, board_id, limit=5, targets=True)
        names = "".join(row.target.name for row in first)
    assert names == "lkjih"
    assert first.next is not None
    print(f"  page 1: {names}   with a bookmark: {first.next[:20]}...")

    def change(session: ShardSession) -> None:
        # A pin that was shown moves to the end, another is removed.
        a_id = pins["a"]
        BoardHasPins.move(session, board_id, pins["j"], before=a_id)
        assert BoardHasPins.remove(session, board_id, pins["k"])

    cluster.run(change)
    print("  Meanwhile j is moved to the end, and k taken out.")
    seen = names
    after: str | None = first.next
    for number in count(2):
        if after is None:
            break
        with cluster.session() as session:
            page = BoardHasPins.page(
                session, board_id, limit=5, after=after, targets=True
            )
            names = "".join(row.target.name for row in page)
            after = page.next
        print(f"  page {number}: {names}")
        seen += names
    # Pins that were not moved were shown once each.
    assert seen == "lkjihgfedcbaj"

    def again(session: ShardSession) -> tuple[bool, bool]:
        there = BoardHasPins.append(session, board_id, pins["a"])
        gone = BoardHasPins.append(session, board_id, pins["k"])
        return there, gone

    assert cluster.run(again) == (False, True)
    with cluster.session() as session:
        found = order(session, board_id)
        assert BoardHasPins.count(session, board_id) == len(NAMES)
        present = BoardHasPins.contains(session, board_id, pins.values())
        assert present == set(pins.values())
    print(f"\nAppended again: a is there and stays, k comes on top: {found}")
    assert found == "klihgfedcbaj"


def show_moves(cluster: Cluster, board_id: int, pins: dict[str, int]) -> None:
    """Move pins: by both neighbours, by one, and by one that is gone."""

    def move(session: ShardSession, name: str, **separate_session: str) -> str:
        ids = {side: pins[other] for side, other in separate_session.items()}
        BoardHasPins.move(session, board_id, pins[name], **ids)
        return order(session, board_id)

    with StatementLog() as log:
        found = cluster.run(move, "c", before="k", after="l")
    updates = [s for s in log.statements if s.startswith("UPDATE")]
    print(f"\nc between k and l:      {found}   rows written: {len(updates)}")
    assert found == "kclihgfedbaj"
    assert len(updates) == 1
    found = cluster.run(move, "d", after="k")
    print(f"d ahead of k:           {found}")
    assert found == "dkclihgfebaj"
    # The user's page is out of date: c is between k and l now.
    found = cluster.run(move, "e", before="k", after="l")
    print(f"e between k and l:      {found}   next to k, where c was")
    assert found == "dkeclihgfbaj"

    cluster.run(lambda s: BoardHasPins.remove(s, board_id, pins["l"]))
    try:
        cluster.run(move, "f", before="c", after="l")
        raise AssertionError("a row was moved next to one that is gone")
    except StaleNeighbourError as error:
        (gone,) = error.missing
    assert gone == pins["l"]
    print("f between c and l:      refused, since l is gone")


# -- gaps -------------------------------------------------------------------


def sequences(cluster: Cluster, board_id: int) -> dict[int, int]:
    """Return the sequence of each pin, in the order of the list."""
    with cluster.session() as session:
        rows = BoardHasPins.iterate(session, board_id)
        return {row.pin_id: row.sequence for row in rows}


def show_room(cluster: Cluster) -> None:
    """Move pins into one gap until there is no room, and once more."""
    board_id, pins = cluster.run(add, "Crowded")
    top, second = pins["l"], pins["k"]
    at = sequences(cluster, board_id)
    assert at[top] - at[second] == MILLISECOND
    print("\nl and k were added one millisecond apart:")
    print(f"  l {at[top]}\n  k {at[second]}")

    # Always directly ahead of k: a and b take turns, a move halves the gap.
    def squeeze(session: ShardSession, mover: int, ahead: int) -> None:
        BoardHasPins.move(session, board_id, mover, before=ahead, after=second)

    warnings.clear()
    ahead = top
    for done, mover in enumerate(cycle([pins["a"], pins["b"]])):
        before = at
        cluster.run(squeeze, mover, ahead)
        at = sequences(cluster, board_id)
        pins_now = list(at)
        assert pins_now[pins_now.index(second) - 1] == mover
        ahead = mover
        changed = [p for p in at if p != mover and at[p] != before[p]]
        if changed:
            break  # nothing else moved them
        if not warnings:
            narrow = done + 2
    print(f"{done} moves into this gap write one row each.  The callback is")
    print(f"called from move {narrow} on, and says how many moves are left:")
    left = [str(gap.moves_left) for gap in warnings]
    print(f"  {left[0]}, {left[1]}, ... {left[-2]}, {left[-1]}")
    assert done == 83

    room = (at[ahead] - at[second]).bit_length() - 1
    print(f"Move {done + 1} finds no room, and re-spaces the pins around it:")
    print(f"  {len(changed)} others were shifted, and {room} moves fit again.")
    assert room >= 40
    with cluster.session() as session:
        found = order(session, board_id)
    print(f"  The order is as it should be: {found}")
    assert found == "labkjihgfedc"


def show(cluster: Cluster) -> None:
    """Show all of it."""
    cluster.create_all(Base.metadata)
    board_id, pins = cluster.run(add, "In use")
    show_pages(cluster, board_id, pins)
    show_moves(cluster, board_id, pins)
    show_room(cluster)


def main() -> None:
    """Run the example on SQLite: two servers with 16 virtual shards."""
    with TemporaryDirectory() as directory:
        topology = sqlite_topology(directory, servers=2, shards=16)
        with Cluster.from_topology(topology) as cluster:
            show(cluster)


if __name__ == "__main__":
    main()
