"""A list against a Python list, with readers that page through it meanwhile.

The guarantee to a reader: a row that was not moved, removed or added since the
reader began is returned once and in its order, however often the rows around
it were re-spaced.  Not promised where between
two pages rows at the end of the first one were both moved and re-spaced, or
both its last row and the row after it were moved.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings, strategies as st
from hypothesis.stateful import (
    initialize,
    invariant,
    precondition,
    rule,
    RuleBasedStateMachine,
    run_state_machine_as_test,
)

from sqla_shard import exc
from tests.models.mapping_models import (
    LISTS,
    NarrowList,
    new_board,
    pins,
    put,
    sequences,
)

FIRST = 10**25
PLACES = st.integers(0, 2**16)


class Reader:
    """A reader of a list, page by page."""

    def __init__(self, order: list[int], limit: int, newest: bool) -> None:
        self.limit = limit
        self.newest = newest
        #: Rows that stood still, in order.
        self.quiet = list(order) if newest else order[::-1]
        self.shown: list[int] = []
        self.bookmark: str | None = None
        self.done = False
        #: Where the rows stood that the bookmark remembers.
        self.marks: dict[int, int] = {}
        self.last_and_next: set[int] = set()
        #: Those of them that were moved.
        self.hit: set[int] = set()

    def disturbed(self, target_id: int) -> None:
        if target_id in self.quiet:
            self.quiet.remove(target_id)
        if target_id in self.marks:
            self.hit.add(target_id)

    def promised(self, places: dict[int, int]) -> bool:
        """Tell whether the next page must be right."""
        respaced = any(
            pin not in self.hit and places[pin] != at for pin, at in self.marks.items()
        )
        both = bool(self.last_and_next) and self.last_and_next <= self.hit
        return not both and not (respaced and self.hit)

    def read(self, session: Any, board: int, places: dict[int, int]) -> None:
        """Read a page.

        :param places: the sequences of all rows, newest first.
        """
        page = NarrowList.page(
            session, board, self.limit, self.bookmark, newest_first=self.newest
        )
        assert len(page) <= self.limit
        self.shown += [row.pin_id for row in page]
        self.bookmark = page.next
        self.done = page.next is None
        found = [pin for pin in self.shown if pin in self.quiet]
        expected = self.quiet if self.done else self.quiet[: len(found)]
        assert found == expected, f"{found} of rows that stood still, not {expected}"
        if not self.done:
            self.remember(places)

    def remember(self, places: dict[int, int]) -> None:
        order = list(places) if self.newest else [*places][::-1]
        last = self.shown[-1]
        rest = order[order.index(last) + 1 :]
        # Some that were shown may have gone further since.
        ahead = next((p for p in rest if p not in self.shown), last)
        marks = [*self.shown[-4:], ahead]
        self.hit = {pin for pin in self.hit if pin in marks}
        self.marks = {pin: places[pin] for pin in marks if pin in places}
        self.last_and_next = {last, ahead}


class Machine(RuleBasedStateMachine):
    """Changes a list and reads it."""

    def __init__(self, cluster: Any) -> None:
        super().__init__()
        self.cluster = cluster
        self.board = new_board(cluster)
        self.order: list[int] = []
        self.readers: list[Reader] = []
        self.pool: list[int] = []

    @initialize(gaps=st.lists(st.sampled_from([0, 1, 1, 2, 3, 9, 2**30]), max_size=30))
    def fill(self, gaps):
        found = sorted(pins(len(gaps)))
        at = FIRST
        rows = {}
        for pin, gap in zip(found, gaps, strict=True):
            at += gap
            rows[pin] = at
        put(self.cluster, NarrowList, self.board, rows)
        self.order = found[::-1]

    def disturbed(self, *target_ids: int) -> None:
        for reader in self.readers:
            for target_id in target_ids:
                reader.disturbed(target_id)

    def new(self) -> int:
        # Now and then one that was there before.
        if len(self.pool) > 3:
            return self.pool.pop(0)
        return pins(1)[0]

    # -- changing

    @rule()
    def append(self):
        pin = self.new()
        with self.cluster.begin() as session:
            assert NarrowList.append(session, self.board, pin)
        self.disturbed(pin)
        self.order.insert(0, pin)

    @rule(old=PLACES, count=st.integers(0, 4))
    def append_many(self, old, count):
        new = pins(count)
        given = [*new, self.order[old % len(self.order)]] if self.order else []
        with self.cluster.begin() as session:
            added = NarrowList.append_many(session, self.board, given)
        assert added == given[: len(added)]
        assert len(added) == max(len(given) - 1, 0)
        self.order = [*added[::-1], *self.order]

    @precondition(lambda self: self.order)
    @rule(place=PLACES)
    def append_again(self, place):
        pin = self.order[place % len(self.order)]
        with self.cluster.begin() as session:
            assert not NarrowList.append(session, self.board, pin)

    @precondition(lambda self: self.order)
    @rule(place=PLACES)
    def remove(self, place):
        pin = self.order.pop(place % len(self.order))
        with self.cluster.begin() as session:
            assert NarrowList.remove(session, self.board, pin)
        self.disturbed(pin)
        self.pool.append(pin)

    @precondition(lambda self: len(self.order) > 1)
    @rule(source=PLACES, place=PLACES, way=st.sampled_from(["before", "after", "both"]))
    def move(self, source, place, way):
        pin = self.order[source % len(self.order)]
        rest = [other for other in self.order if other != pin]
        at = place % (len(rest) + 1)
        named = {}
        if at > 0 and way != "after":
            named["before"] = rest[at - 1]
        if at < len(rest) and way != "before":
            named["after"] = rest[at]
        if not named:
            return
        with self.cluster.begin() as session:
            NarrowList.move(session, self.board, pin, **named)
        rest.insert(at, pin)
        if rest != self.order:
            self.disturbed(pin)
        self.order = rest

    @precondition(lambda self: len(self.order) > 1)
    @rule(place=PLACES, sources=st.lists(PLACES, min_size=1, max_size=6))
    def drag_many_to_one_spot(self, place, sources):
        spot = self.order[place % len(self.order)]
        for source in sources:
            pin = self.order[source % len(self.order)]
            if pin == spot:
                continue
            with self.cluster.begin() as session:
                NarrowList.move(session, self.board, pin, after=spot)
            old = list(self.order)
            self.order.remove(pin)
            self.order.insert(self.order.index(spot), pin)
            if old != self.order:
                self.disturbed(pin)

    @precondition(lambda self: len(self.order) > 2)
    @rule(place=PLACES)
    def move_reversed(self, place):
        pin, *rest = self.order
        at = place % (len(rest) - 1)
        with self.cluster.begin() as session:
            try:
                NarrowList.move(
                    session, self.board, pin, before=rest[at + 1], after=rest[at]
                )
            except exc.StaleNeighbourError:
                return
        raise AssertionError("a reversed pair was taken")

    @precondition(lambda self: self.order)
    @rule(place=PLACES)
    def respace(self, place):
        around = self.order[place % len(self.order)]
        with self.cluster.begin() as session:
            NarrowList.respace(session, self.board, around=around)

    @rule()
    def respace_all(self):
        with self.cluster.begin() as session:
            NarrowList.respace(session, self.board)

    # -- reading

    @rule(limit=st.integers(1, 8), newest=st.booleans())
    def begin_to_read(self, limit, newest):
        if len(self.readers) < 4:
            self.readers.append(Reader(self.order, limit, newest))

    @precondition(lambda self: self.readers)
    @rule(which=PLACES)
    def read(self, which):
        reader = self.readers[which % len(self.readers)]
        self.read_page(reader)
        if reader.done:
            self.readers.remove(reader)

    def read_page(self, reader):
        places = sequences(self.cluster, NarrowList, self.board)
        if not reader.promised(places):
            reader.done = True
            return
        with self.cluster.session() as session:
            reader.read(session, self.board, places)

    @rule(batch=st.integers(1, 9), newest=st.booleans())
    def iterate(self, batch, newest):
        with self.cluster.session() as session:
            rows = NarrowList.iterate(
                session, self.board, newest_first=newest, batch=batch
            )
            found = [row.pin_id for row in rows]
        assert found == (self.order if newest else self.order[::-1])

    @rule(limit=st.integers(1, 40))
    def ask(self, limit):
        absent = pins(2)
        with self.cluster.session() as session:
            assert NarrowList.count(session, self.board) == len(self.order)
            assert NarrowList.contains(
                session, self.board, [*self.order, *absent]
            ) == set(self.order)
            page = NarrowList.pages(session, [self.board], limit)[self.board]
            assert [row.pin_id for row in page] == self.order[:limit]
            assert NarrowList.position(session, self.board, absent[0]) is None

    @invariant()
    def is_the_same(self):
        found = sequences(self.cluster, NarrowList, self.board)
        assert list(found) == self.order

    def teardown(self):
        for reader in self.readers:
            while not reader.done:
                self.read_page(reader)


class Models:
    """The test module has a fixture ``cluster``."""

    examples = 30

    def test_is_a_list(self, cluster):
        profile = settings()
        soak = profile.max_examples > 1000
        run_state_machine_as_test(
            lambda: Machine(cluster),
            settings=settings(
                max_examples=profile.max_examples if soak else self.examples,
                stateful_step_count=60 if soak else 40,
            ),
        )


cluster = LISTS.on_backend()
