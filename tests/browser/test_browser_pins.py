"""Pins are added, edited, removed, restored; and all of them are shown."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from examples.pinboard.inputs import read_pin
from sqla_shard import unpack
from tests.browser.serving import pins, Site
from tests.browser.watching import expect, Visitor


@pytest.fixture
def board(site: Site, visitor: Callable[..., Visitor]) -> Any:
    name, user_id = site.add_user()
    board_id = site.add_board(user_id, "Editing", pins(3))
    one = visitor(site)
    one.enter_as(name)
    one.open_board(board_id)
    return one, board_id


@pytest.mark.on_all_servers
def test_add_edit_remove_restore(site: Site, board: Any) -> None:
    one, board_id = board
    before = one.order()
    one.fill(
        "add-pin",
        link="https://example.com/new?a=1&b=2",
        title="A <b>new</b> & shiny one",
        details='It\'s "quoted" <script>alert(1)</script>',
    )
    expect(one.page.locator("[data-pins] [data-pin-id]")).to_have_count(4)
    new, *rest = one.order()
    assert rest == before
    card = one.card(new)
    expect(card).to_contain_text("A <b>new</b> & shiny one")
    expect(card).to_contain_text("<script>alert(1)</script>")
    link = card.locator("h2 a")
    expect(link).to_have_attribute("href", "https://example.com/new?a=1&b=2")
    expect(link).to_have_attribute("rel", re.compile("noopener"))

    card.locator('[data-action="edit"]').click()
    one.at("pin-edit")
    one.fill("edit-pin", title="Edited", details="Another text")
    one.at("board")
    one.expect_order([new, *before])
    expect(one.card(new)).to_contain_text("Edited")

    middle = before[1]
    one.card(middle).locator('[data-action="remove"]').click()
    one.card(middle).wait_for(state="detached")
    one.expect_order([new, before[0], before[2]])
    one.page.reload()
    one.expect_order([new, before[0], before[2]])

    one.page.goto(f"/boards/{board_id}/removed")
    one.at("removed")
    row = one.page.locator(f'[data-removed-pin-id="{middle}"]')
    row.locator('[data-action="restore"]').click()
    row.wait_for(state="detached")
    one.page.goto(f"/boards/{board_id}")
    one.expect_order([new, *before])


@pytest.mark.thorough
def test_a_removed_pin_can_be_restored_at_once(site: Site, board: Any) -> None:
    one, board_id = board
    before = one.order()
    one.card(before[1]).locator('[data-action="remove"]').click()
    one.card(before[1]).wait_for(state="detached")
    one.page.locator("[data-toasts] button").click()
    one.card(before[1]).wait_for()
    one.expect_order(before)
    assert site.order(board_id) == before
    one.page.reload()
    one.expect_order(before)


@pytest.mark.thorough
def test_others_may_look_and_not_touch(
    site: Site, board: Any, visitor: Callable[..., Visitor]
) -> None:
    one, board_id = board
    name, _ = site.add_user()
    two = visitor(site)
    two.enter_as(name)
    two.page.goto(f"/boards/{board_id}")
    two.at("board")
    two.expect_order(one.order())
    for hook in ("[data-handle]", '[data-action="edit"]', "form.composer"):
        expect(two.page.locator(f"main {hook}:visible")).to_have_count(0)
    two.expected = {403}
    two.page.goto(f"/pins/{two.order()[0]}/edit")
    expect(two.page.locator('[role="alert"]')).to_be_visible()


@pytest.mark.thorough
@pytest.mark.parametrize(
    "link",
    [
        "javascript:alert(document.cookie)",
        " JaVaScRiPt:alert(1)",
        "java\tscript:alert(1)",
        "data:text/html,<script>alert(1)</script>",
    ],
)
def test_a_link_that_is_a_program_is_refused(board: Any, link: str) -> None:
    one, board_id = board
    before = one.order()
    one.expected = {400, 422}
    one.fill("add-pin", link=link, title="A trap")
    alert = one.page.locator('[role="alert"]:visible')
    expect(alert.first).to_contain_text(re.compile("http|link"))
    # The form still has the input, to be corrected.
    title = one.page.locator('form[data-form="add-pin"] [name="title"]')
    expect(title).to_have_value("A trap")
    one.expect_order(before)
    # Under the address that is shown now, there is the board.
    one.page.goto(one.page.url)
    one.at("board")
    assert one.page.url.endswith(f"/boards/{board_id}")
    one.expect_order(before)


def test_where_a_pin_lives(site: Site, board: Any) -> None:
    one, _ = board
    pin = one.order()[0]
    parts = unpack(int(pin))
    one.card(pin).locator('[data-action="where"]').click()
    where = one.page.locator("[data-where]").first
    where.wait_for()

    def check() -> None:
        (server,) = site.cluster.explain(int(pin)).servers
        for part, value in {
            "data-where-shard": parts.shard_id,
            "data-where-local": parts.local_id,
            "data-where-server": server,
        }.items():
            shown = where.locator(f"[{part}]")
            expect(shown).to_have_attribute(part, str(value))
        expect(where).to_contain_text(pin)

    check()
    one.page.goto(f"/where/{pin}")
    one.at("where")
    check()


def scroll(one: Visitor, count: int) -> None:
    """Scroll down until so many cards are shown, as a user would.

    Again and again: "down" is further away when a page has arrived.
    """
    one.page.wait_for_function(
        """count => {
            scrollBy({ top: innerHeight, behavior: "instant" });
            return document.querySelectorAll(
                "[data-pins] [data-pin-id]").length >= count;
        }""",
        arg=count,
        polling=50,
    )


@pytest.mark.thorough
@pytest.mark.on_all_servers
def test_scrolling_shows_every_pin_exactly_once(
    site: Site, visitor: Callable[..., Visitor]
) -> None:
    name, user_id = site.add_user()
    board_id = site.add_board(user_id, "Long", pins(137))
    wanted = site.order(board_id)
    one = visitor(site)
    one.enter_as(name)
    one.open_board(board_id)
    assert len(one.order()) < 60
    scroll(one, 137)
    one.expect_order(wanted)
    # A card of a later page can be moved like those of the first.
    order = one.drag(wanted[-1], onto=wanted[-3])
    assert order == [*wanted[:-3], wanted[-1], *wanted[-3:-1]]
    assert site.order(board_id) == order


@pytest.mark.thorough
def test_a_pin_that_moves_while_others_scroll_is_there_once(
    site: Site, visitor: Callable[..., Visitor]
) -> None:
    name, user_id = site.add_user()
    board_id = site.add_board(user_id, "Long", pins(80))
    one, two = visitor(site), visitor(site)
    for each in (one, two):
        each.enter_as(name)
        each.open_board(board_id)
    before = one.order()
    assert len(before) < 80
    # One sees the pin; two takes it to where one has not been yet.
    scroll(two, 80)
    moved = before[-1]
    handle = two.card(moved).locator("[data-handle]")

    def down() -> None:
        handle.focus()
        for key in ("Space", "End", "Space"):
            two.page.keyboard.press(key)

    assert two.moving(down)[-1] == moved
    scroll(one, 80)
    found = one.order()
    assert len(found) == len(set(found)) == 80
    assert set(found) == set(site.order(board_id))


@pytest.mark.thorough
def test_a_link_that_no_browser_understands(
    site: Site, visitor: Callable[..., Visitor]
) -> None:
    name, user_id = site.add_user()
    entered = pins(60)
    odd = read_pin("http://1.2.3.4.5/", "No address", "")
    board_id = site.add_board(user_id, "Odd", [*entered, odd, *pins(30)])
    one = visitor(site)
    one.enter_as(name)
    one.open_board(board_id)
    one.page.keyboard.press("End")
    one.page.wait_for_function(
        """() => {
            scrollTo(0, document.body.scrollHeight);
            const all = document.querySelectorAll("[data-pins] > li");
            return all.length == 91;
        }"""
    )
    link = one.page.get_by_text("No address", exact=True).first
    expect(link).to_be_visible()
    expect(link).not_to_have_attribute("href", re.compile(""))
