"""A visitor signs up, follows a board and saves a pin of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sqla_shard import unpack
from tests.browser.serving import pins, Site
from tests.browser.watching import expect, Visitor


@pytest.mark.on_all_servers
def test_sign_up_follow_and_save(site: Site, visitor: Callable[..., Visitor]) -> None:
    name, user_id = site.add_user(shard_id=0)
    board_id = site.add_board(user_id, "Worth following", pins(2))
    one = visitor(site)
    page = one.page
    page.goto("/")
    one.at("users")
    page.get_by_role("link", name="Sign up").first.click()
    one.at("sign-up")
    # The name is taken; the form still has the input.
    one.expected = {409}
    one.fill("sign-up", email="newcomer@example.com", name=name)
    alert = page.locator('[role="alert"]:visible')
    expect(alert).to_contain_text("name")
    expect(page.locator('[name="name"][aria-invalid]')).to_have_count(1)
    expect(page.locator('[name="email"]')).to_have_value("newcomer@example.com")
    one.fill("sign-up", name="Newcomer")
    expect(one.at("boards")).to_contain_text("newcomer@example.com")
    one.fill("add-board", title="Kept")
    one.at("board")

    page.goto(f"/boards/{board_id}")
    one.at("board")
    one.fill("follow")
    page.locator('[data-followers]:text-is("1")').wait_for()
    pin = one.order()[0]
    one.card(pin).locator('[data-action="holders"]').click()
    one.at("pin")
    one.fill("save-pin")
    expect(page.locator("[data-holder-id] strong")).to_have_text(
        ["Worth following", "Kept"]
    )

    # Another browser: the address is enough.
    two = visitor(site)
    two.page.goto("/")
    two.at("users")
    two.fill("sign-in", email="NEWCOMER@example.com")
    two.at("boards")
    followed = two.page.locator("[data-followed] [data-holder-id]")
    expect(followed).to_have_attribute("data-holder-id", str(board_id))
    two.page.locator("[data-board-id]").first.click()
    two.at("board")
    row = two.page.locator(f'[data-saved-pin-id="{pin}"]')
    row.locator('[data-action="take-off"]').click()
    row.wait_for(state="detached")
    assert unpack(int(pin)).shard_id == 0
    assert site.order(board_id)[0] == pin


@pytest.mark.on_all_servers
def test_home_has_new_pins_of_who_is_followed(
    site: Site, visitor: Callable[..., Visitor]
) -> None:
    name, user_id = site.add_user(shard_id=0)
    other_name, other_id = site.add_user(shard_id=1)
    board_id = site.add_board(user_id, "Worth following", pins(3))
    one = visitor(site)
    page = one.page
    one.enter_as(other_name)
    page.goto("/home")
    expect(one.at("home")).to_contain_text("Nothing here yet")
    page.goto(f"/users/{user_id}")
    one.at("boards")
    one.fill("follow-user")
    page.locator('[data-followers]:text-is("1")').wait_for()
    page.get_by_role("link", name="Home").click()
    one.at("home")
    cards = page.locator(".card")
    expect(cards).to_have_count(3)
    expect(cards.first.locator(".byline")).to_contain_text(name)
    assert [card.get_attribute("data-pin-id") for card in cards.all()] == site.order(
        board_id
    )

    two = visitor(site)
    two.enter_as(name)
    two.page.goto("/home")
    expect(two.page.locator("[data-fresh]")).to_have_text("1")
    two.page.locator("[data-notices]").click()
    two.at("notifications")
    notice = two.page.locator(f'[data-notice-of="{other_id}"]')
    expect(notice).to_contain_text(other_name)
    two.page.goto("/home")
    expect(two.page.locator("[data-fresh]")).to_have_count(0)
