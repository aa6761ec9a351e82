"""Cards are moved, and stay where they were put."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from examples.pinboard.models import Base
from sqla_shard import Cluster, unpack
from sqla_shard.testing import sqlite_topology
from tests.browser.serving import pins, Site
from tests.browser.watching import PHONE, Visitor

LAST = 4095


def last_decade(document: Any, database: str) -> Any:
    """Return a topology of the ten last shards of another, but four.

    To create the tables of shard 4095 without those of 4,090 others.
    """
    found = copy.deepcopy(document)
    objects = found["keyspaces"]["objects"]
    del objects["servers"][:-1]
    objects["servers"][0]["shards"] = [0, 5]
    objects.update(shards=6, database=database)
    return found


@pytest.fixture(scope="module")
def last_site(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[Site]:
    """The pinboard over 4,096 virtual shards, the last of which is used."""
    fleet = None
    if request.param == "sqlite":
        directory = tmp_path_factory.mktemp("last")
        document = sqlite_topology(directory, 4, LAST + 1, lookup=4)
        decade = last_decade(document, "db0409{shard}")
    else:
        fleet = request.getfixturevalue(f"{request.param}_fleet")
        document = fleet.topology_mapping(
            shards=LAST + 1,
            database="db_browser{shard:05d}",
            lookup=4,
            lookup_database="lookup_browser{shard:05d}",
        )
        decade = last_decade(document, "db_browser0409{shard}")
        fleet.drop_databases(decade)
    with Cluster.from_topology(decade) as cluster:
        cluster.create_all(Base.metadata)
    with Cluster.from_topology(document) as cluster, Site(cluster) as site:
        yield site
    if fleet is not None:
        fleet.drop_databases(decade)


class Board:
    """A board with six pins, and a visitor of it."""

    def __init__(
        self, enter: Callable[..., Visitor], site: Site, **options: Any
    ) -> None:
        shard_id = site.cluster.topology.keyspace("objects").shards - 1
        name, user_id = site.add_user(shard_id=shard_id)
        self.site = site
        self.id = site.add_board(user_id, "Moving", pins(6))
        self.pins = site.order(self.id)
        assert {unpack(int(pin)).shard_id for pin in self.pins} == {shard_id}
        self.visitor = enter(site, **options)
        self.visitor.enter_as(name)
        self.visitor.open_board(self.id)
        self.name = name
        self.visitor.expect_order(self.pins)

    def check(self, wanted: list[str]) -> None:
        """See the order on the page, in the database, and on a new page."""
        self.visitor.expect_order(wanted)
        assert self.site.order(self.id) == wanted
        self.visitor.page.reload()
        self.visitor.at("board")
        self.visitor.expect_order(wanted)


@pytest.mark.on_all_servers
def test_a_card_of_shard_4095_stays_where_it_was_dragged_to(
    last_site: Site, visitor: Callable[..., Visitor]
) -> None:
    board = Board(visitor, last_site)
    a, b, c, d, e, f = board.pins
    assert unpack(int(a)).shard_id == LAST
    order = board.visitor.drag(f, onto=a, picture="board-dragging")
    assert order == [f, a, b, c, d, e]
    board.check([f, a, b, c, d, e])
    assert board.visitor.drag(f, onto=c) == [a, b, c, f, d, e]
    board.check([a, b, c, f, d, e])
    assert board.visitor.drag(a, onto=e) == [b, c, f, d, e, a]
    board.check([b, c, f, d, e, a])


def test_the_same_with_the_keyboard(
    last_site: Site, visitor: Callable[..., Visitor]
) -> None:
    board = Board(visitor, last_site)
    a, b, c, d, e, f = board.pins
    page = board.visitor.page
    handle = board.visitor.card(c).locator("[data-handle]")

    def keys(*names: str) -> Callable[[], None]:
        def press() -> None:
            handle.focus()
            for name in names:
                page.keyboard.press(name)

        return press

    move = board.visitor.moving
    assert move(keys("Space", "ArrowLeft", "ArrowLeft", "Space"))[0] == c
    board.check([c, a, b, d, e, f])
    assert move(keys("Enter", *["ArrowRight"] * 3, "Enter"))[3] == c
    board.check([a, b, d, c, e, f])
    # Escape puts it back, and nothing is saved.
    keys("Space", "ArrowLeft", "Escape")()
    assert board.visitor.saved() == 0
    board.check([a, b, d, c, e, f])


def test_the_handle_is_reached_with_the_keyboard_alone(
    site: Site, visitor: Callable[..., Visitor]
) -> None:
    board = Board(visitor, site)
    page = board.visitor.page
    wanted = board.pins[0]
    for _ in range(60):
        page.keyboard.press("Tab")
        focused = page.evaluate(
            """() => document.activeElement.matches("[data-handle]") &&
                document.activeElement.closest("[data-pin-id]").dataset.pinId
            """
        )
        if focused:
            break
    assert focused == wanted
    # There is something to see of it.
    seen = page.evaluate(
        """() => { const style = getComputedStyle(document.activeElement);
        return style.outlineStyle !== "none" || style.boxShadow !== "none" }
        """
    )
    assert seen

    def swap() -> None:
        for key in ("Space", "ArrowRight", "Space"):
            page.keyboard.press(key)

    a, b, *rest = board.pins
    assert board.visitor.moving(swap) == [b, a, *rest]


@pytest.mark.on_all_servers
def test_two_browsers_see_each_others_moves(
    last_site: Site, visitor: Callable[..., Visitor]
) -> None:
    board = Board(visitor, last_site)
    one = board.visitor
    two = visitor(last_site)
    two.enter_as(board.name)
    two.open_board(board.id)
    a, b, c, d, e, f = board.pins

    one.drag(f, onto=a)
    assert two.order() == [a, b, c, d, e, f]
    two.page.reload()
    two.at("board")
    two.expect_order([f, a, b, c, d, e])

    two.drag(b, onto=f)
    one.page.reload()
    one.at("board")
    one.expect_order([b, f, a, c, d, e])

    # From a page that the other has outdated: the place is that of the card
    # that it was put behind or ahead of, and nothing is lost.
    two.drag(e, onto=b)
    order = one.drag(d, onto=f)
    found = last_site.order(board.id)
    assert sorted(found) == sorted(board.pins)
    one.page.reload()
    two.page.reload()
    one.expect_order(found)
    two.expect_order(found)
    assert order.index(d) < order.index(f)
    assert found.index(d) < found.index(f)


def test_a_removed_neighbour_is_reported_and_the_page_shows_the_truth(
    site: Site, visitor: Callable[..., Visitor]
) -> None:
    board = Board(visitor, site)
    one = board.visitor
    two = visitor(site)
    two.enter_as(board.name)
    two.open_board(board.id)
    a, b, *_ = board.pins
    two.card(a).locator('[data-action="remove"]').click()
    two.card(a).wait_for(state="detached")

    one.expected = {409}
    handle = one.card(b).locator("[data-handle]")
    handle.focus()
    for key in ("Space", "ArrowLeft", "Space"):
        one.page.keyboard.press(key)
    toast = one.page.locator("[data-toasts]")
    toast.get_by_text("A pin was removed meanwhile").wait_for()
    one.expect_order(board.pins[1:])
    one.page.reload()
    one.expect_order(board.pins[1:])


def test_a_finger_drags_a_card_on_a_phone(
    site: Site, visitor: Callable[..., Visitor]
) -> None:
    board = Board(visitor, site, **PHONE)
    one = board.visitor
    a, b, c, *rest = board.pins
    touch = one.page.context.new_cdp_session(one.page)

    def box(pin: str, part: str) -> dict[str, float]:
        found = one.card(pin).locator(part).bounding_box()
        assert found is not None
        return dict(found)

    def send(kind: str, *points: dict[str, float]) -> None:
        touch.send(
            "Input.dispatchTouchEvent", {"type": kind, "touchPoints": list(points)}
        )

    def drag() -> None:
        one.card(a).locator("[data-handle]").scroll_into_view_if_needed()
        handle = box(b, "[data-handle]")
        x = handle["x"] + handle["width"] / 2
        start = {"x": x, "y": handle["y"] + handle["height"] / 2}
        end = {"x": x, "y": box(a, "[data-handle]")["y"]}
        send("touchStart", start)
        for step in range(1, 21):
            share = step / 20
            send(
                "touchMove",
                {
                    axis: start[axis] + (end[axis] - start[axis]) * share
                    for axis in ("x", "y")
                },
            )
        send("touchEnd")

    assert one.moving(drag) == [b, a, c, *rest]
    board.check([b, a, c, *rest])
