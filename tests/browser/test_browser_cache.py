"""The page about the cache: counts, and a switch for each class."""

from __future__ import annotations

import re
from collections.abc import Callable

from examples.pinboard.models import Pin
from tests.browser.serving import pins, Site
from tests.browser.watching import expect, Visitor


def test_look_and_switch(site: Site, visitor: Callable[..., Visitor]) -> None:
    cache = site.cluster.cache
    assert cache is not None
    name, user_id = site.add_user()
    board_id = site.add_board(user_id, "Warm", pins(3))
    one = visitor(site)
    page = one.page
    one.enter_as(name)
    # Rows read in an earlier transaction are not cached: each request fills
    # some more.
    for _ in range(8):
        page.goto(f"/boards/{board_id}")
        one.at("board")
    page.get_by_role("link", name="The cache").click()
    main = one.at("cache")
    row = main.locator('[data-class="Pin"]')
    hits = row.locator("[data-hits]")
    expect(hits).to_have_text(re.compile(r"^\s*\d+\s*$"))
    seen = int(hits.inner_text())
    assert seen >= 3
    expect(row.locator("[data-ratio]")).to_have_text(re.compile(r"%\s*$"))
    expect(main.locator("[data-outbox]")).to_have_text(["0", "0"])
    one.picture("cache")

    try:
        row.get_by_role("button", name="Switch off Pin").click()
        row.get_by_role("button", name="Switch on Pin").wait_for()
        assert not cache.is_enabled(Pin)
        page.goto(f"/boards/{board_id}")
        one.at("board")
        expect(page.locator("[data-pins] [data-pin-id]")).to_have_count(3)
        page.goto("/cache")
        one.at("cache")
        expect(hits).to_have_text(str(seen))
        row.get_by_role("button", name="Switch on Pin").click()
        row.get_by_role("button", name="Switch off Pin").wait_for()
        assert cache.is_enabled(Pin)
    finally:
        cache.enable(Pin)
