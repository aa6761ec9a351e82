"""Work of readers and writers with a session, on a few rows.

A subject is what is read or written: a pin, whose version grows; the items of
a shard, or the targets of a list, which come and go; a list with a target
that moves up, whose place is a version; the result of a function of two pins.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import delete, insert, select, update

from sqla_shard import pack
from tests.models.cache_session_models import Bag, Board, Item, Marks, Pin, sums

_LONGEST = 12
_AHEAD = 6
_NUMBERS = 2**30


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A thing that is read or written.

    :ivar kind: ``"pin"``, ``"items"``, ``"bag"``, ``"marks"`` or ``"sum"``.
    :ivar number: an id, or that of a shard; see :func:`sum_of`.
    """

    kind: str
    number: int

    @property
    def both(self) -> tuple[int, int]:
        """The ids of the pins of a sum."""
        return divmod(self.number, 2**64)

    def __str__(self) -> str:
        return f"{self.kind}:{self.number}"


@dataclass
class Change:
    """The change of a subject by a transaction.

    :ivar version: that it has written; 0 for none.
    :ivar came: ids that it has put there.
    :ivar went: ids that it has removed.
    """

    version: int = 0
    came: list[int] = field(default_factory=list)
    went: list[int] = field(default_factory=list)


def target(number: int) -> int:
    """Return the id of a target of lists; there is no such row."""
    return pack(0, 1, _NUMBERS + number)


def subjects(pins: list[int], boards: list[int], shards: int) -> list[Subject]:
    """Return all that there are."""
    return [
        *(Subject(kind="pin", number=number) for number in pins[:3]),
        *(Subject(kind="items", number=number) for number in range(shards)),
        *(Subject(kind="bag", number=number) for number in boards),
        *(Subject(kind="marks", number=number) for number in boards),
    ]


def sum_of(first: int, second: int) -> Subject:
    """Return the result of a function of two pins."""
    return Subject(kind="sum", number=first * 2**64 + second)


def _name_of(subject: Subject) -> str:
    return "{},{}".format(*subject.both)


# -- reading --------------------------------------------------------------


def look(
    session: Any, subject: Subject, ids: list[int], rng: random.Random
) -> dict[str, Any]:
    """Read a subject; return what an event has of it.

    :param ids: that are worth being asked for, of items or of a bag; other
        pins.
    """
    number = subject.number
    if subject.kind == "sum":
        name = _name_of(subject)
        return {"version": sums(session, [name])[name]}
    if subject.kind == "pin":
        if rng.random() < 0.5:
            pin = session.get(Pin, number)
        else:
            pin, *_ = session.get_many(Pin, [number, *ids])
        return {"version": pin.version + pin.flushed}
    if subject.kind == "items":
        found = session.get_many(Item, ids)
        return {"ids": [one.id for one in found if one], "asked": ids}
    if subject.kind == "marks":
        page = Marks.page(session, number, 3)
        return {"version": _behind([row.pin_id for row in page])}
    how = rng.random()
    if how < 0.5:
        rows = Bag.page(session, number, 200)
        return {"ids": [row.pin_id for row in rows]}
    if how < 0.8 and ids:
        present = Bag.contains(session, number, ids)
        return {"ids": list(present), "asked": ids}
    return {"count": Bag.count(session, number)}


def _behind(ids: list[int]) -> int:
    """Return the number of the target behind that which moves.

    :returns: 0 where there is none, as no list has ever been.
    """
    if target(0) not in ids[:-1]:
        return 0
    return ids[ids.index(target(0)) + 1] - target(0)


def frontier(shard_id: int, local_id: int) -> list[int]:
    """Return ids of items around the last one that is known."""
    first = max(local_id - 2, 1)
    return [pack(shard_id, 2, number) for number in range(first, local_id + _AHEAD)]


def everything(session: Any, subject: Subject) -> list[int]:
    """Return the ids of a subject, as the database has them; if it has any."""
    number = subject.number
    if subject.kind in ("pin", "sum"):
        ids = [number] if subject.kind == "pin" else subject.both
        for one in ids:
            session.scalars(select(Pin.version).where(Pin.id == one)).all()
        return []
    if subject.kind == "items":
        at = {"shard_id": number}
        return list(session.scalars(select(Item.id), bind_arguments=at))
    cls = Bag if subject.kind == "bag" else Marks
    query = select(cls.pin_id).where(cls.board_id == number)
    return list(session.scalars(query))


# -- writing --------------------------------------------------------------


def change(session: Any, subject: Subject, rng: random.Random) -> Change:
    """Write a subject."""
    if subject.kind == "sum":
        return _write_sum(session, subject)
    return _WRITES[subject.kind](session, subject.number, rng)


def _write_sum(session: Any, subject: Subject) -> Change:
    pins = [session.get(Pin, one, with_for_update=True) for one in subject.both]
    version = sum(pin.version + pin.flushed for pin in pins)
    for pin in pins:
        # In two flushes, so that they are committed in this order.
        pin.version += 1
        session.flush()
    sums.invalidate(session, _name_of(subject))
    return Change(version=version + len(pins))


def _write_pin(session: Any, pin_id: int, rng: random.Random) -> Change:
    if rng.random() < 0.3:
        # Loaded from the cache, perhaps.
        pin = session.get(Pin, pin_id)
        session.refresh(pin, with_for_update=True)
    else:
        pin = session.get(Pin, pin_id, with_for_update=True)
    version = pin.version + pin.flushed + 1
    how = rng.random()
    if how < 0.3:
        pin.flushed += 1
    elif how < 0.5:
        pin.version += 1
    elif how < 0.8:
        more = {"version": Pin.version + 1}
        session.execute(update(Pin).where(Pin.id == pin_id).values(more))
    else:
        session.execute(update(Pin), [{"id": pin_id, "version": pin.version + 1}])
    session.flush()
    return Change(version=version)


def _write_items(session: Any, shard_id: int, rng: random.Random) -> Change:
    at = {"shard_id": shard_id}
    how = rng.random()
    if how < 0.35:
        mark = f"{rng.getrandbits(128):x}"
        rows = [{"mark": mark}] * rng.randint(1, 3)
        session.execute(insert(Item), rows, bind_arguments=at)
        query = select(Item.id).where(Item.mark == mark)
        return Change(came=list(session.scalars(query, bind_arguments=at)))
    if how < 0.7:
        items = [Item(mark="", shard_id=shard_id) for _ in range(2)]
        session.add_all(items[: rng.randint(1, 2)])
        session.flush()
        return Change(came=[one.id for one in items if one.id])
    query = select(Item.id).order_by(Item.id.desc()).limit(5)
    newest = list(session.scalars(query, bind_arguments=at))
    item_id = rng.choice(newest) if newest else None
    locked = item_id and session.get(Item, item_id, with_for_update=True)
    if not locked:
        return Change()
    if rng.random() < 0.5:
        session.delete(locked)
        session.flush()
    else:
        session.execute(delete(Item).where(Item.id == item_id))
    return Change(went=[item_id])


def _rows(session: Any, cls: Any, board_id: int) -> list[int]:
    """Return the newest targets of a list, as they are now."""
    # First, as those do that change a list.
    session.get(Board, board_id, with_for_update=True)
    query = (
        select(cls.pin_id)
        .where(cls.board_id == board_id)
        .order_by(cls.sequence.desc())
        .limit(_LONGEST + 2)
        .with_for_update()
    )
    return list(session.scalars(query))


def _write_bag(session: Any, board_id: int, rng: random.Random) -> Change:
    there = _rows(session, Bag, board_id)
    if there and rng.random() < len(there) / _LONGEST:
        gone = rng.choice(there)
        if rng.random() < 0.3:
            session.execute(
                delete(Bag).where(Bag.board_id == board_id, Bag.pin_id == gone)
            )
        else:
            Bag.remove(session, board_id, gone)
        return Change(went=[gone])
    new = [target(rng.getrandbits(35)) for _ in range(rng.choice([1, 1, 2]))]
    if len(new) == 1:
        Bag.append(session, board_id, new[0])
    else:
        Bag.append_many(session, board_id, new)
    return Change(came=new)


def _write_marks(session: Any, board_id: int, rng: random.Random) -> Change:
    first, second, *_ = _rows(session, Marks, board_id)
    if first == target(0):
        first, second = second + 1, first
        Marks.append(session, board_id, first)
        if rng.random() < 0.3:
            return Change()
    Marks.move(session, board_id, second, before=None, after=first)
    return Change(version=first - target(0))


_WRITES: dict[str, Callable[[Any, int, random.Random], Change]] = {
    "pin": _write_pin,
    "items": _write_items,
    "bag": _write_bag,
    "marks": _write_marks,
}
