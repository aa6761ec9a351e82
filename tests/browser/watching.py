"""A visitor with a browser, and all errors in it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TYPE_CHECKING
from urllib.parse import urlsplit

from examples.pinboard.samples import email_of
from tests.browser.serving import Site

if TYPE_CHECKING:
    from playwright.sync_api import (
        Browser,
        ConsoleMessage,
        Locator,
        LocatorAssertions,
        Page,
        Request,
    )

ARTEFACTS = Path(__file__).parents[2] / "artefacts" / "browser"

DESKTOP: dict[str, Any] = {"viewport": {"width": 1280, "height": 800}}
PHONE: dict[str, Any] = {
    "viewport": {"width": 390, "height": 844},
    "device_scale_factor": 2,
    "is_mobile": True,
    "has_touch": True,
}

# Violations that are only reported do not reach the console by themselves.
_REPORT = """
document.addEventListener("securitypolicyviolation", (event) =>
    console.error(`CSP: ${event.violatedDirective} ${event.blockedURI}`));
"""


# Elements that reach past the right edge of the page, and do not scroll by
# themselves.  The edge is not innerWidth: on a phone that grows with the page.
_WIDE = """() => {
    const width = document.documentElement.clientWidth;
    const found = document.documentElement.scrollWidth > width
        ? [`the page is ${document.documentElement.scrollWidth} wide`] : [];
    for (const element of document.querySelectorAll("main *")) {
        const box = element.getBoundingClientRect();
        if (box.right <= width + 1 || element.closest(".sr")) continue;
        if (!element.checkVisibility()) continue;
        let up = element.parentElement;
        while (up && getComputedStyle(up).overflowX === "visible")
            up = up.parentElement;
        if (!up) found.push(element.outerHTML.slice(0, 100));
    }
    return found;
}"""

_TIMEOUT = 20_000  # ms

# Playwright finds elements of a page that is not displayed yet, and reads
# from it texts that are empty.
_HAS_ORDER = """wanted => {
    const cards = [...document.querySelectorAll("[data-pins] [data-pin-id]")];
    const found = cards.map((card) => card.dataset.pinId);
    return JSON.stringify(found) === JSON.stringify(wanted);
}"""


def expect(found: Locator) -> LocatorAssertions:
    """Return assertions that are tried until the page agrees with them.

    What a page displays after a click is never read at once: between two
    pages an element may be there without its text.
    """
    # Here, since it may not be installed; ./conftest.py skips the tests.
    from playwright.sync_api import expect

    expect.set_options(timeout=_TIMEOUT)
    return expect(found)


def faults(page: Page) -> list[str]:
    """Return what is wrong with the looks of a page.

    That is what is too wide for it, and the rules of axe-core that it violates,
    with the elements: contrast, names, order of headings, size of targets.
    What a bar covers that stays at its place can be scrolled to.
    """
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(
        page,
        options={
            "resultTypes": ["violations"],
            "rules": {"target-size": {"enabled": True}},
        },
    )
    return [
        *page.evaluate(_WIDE),
        *(
            f"{one['id']}: {node['html'][:160]} {node['failureSummary'][:200]}"
            for one in found.response["violations"]
            for node in one["nodes"]
            if "obscured" not in node["failureSummary"]
        ),
    ]


class Visitor:
    """One browser context, thus one person: cookies of his own.

    :param options: for a browser context, such as :data:`PHONE`.
    """

    def __init__(self, browser: Browser, site: Site, **options: Any) -> None:
        self.site = site
        self.noticed: list[str] = []
        self.expected: set[int] = set()
        """Statuses of answers that the console may complain about."""
        self._context = browser.new_context(
            **{"base_url": site.address, **DESKTOP, **options}
        )
        self._context.set_default_timeout(_TIMEOUT)
        self._context.add_init_script(_REPORT)
        self._context.on("request", self._requested)
        self._context.on("console", self._said)
        self._context.on(
            "weberror", lambda error: self.noticed.append(str(error.error))
        )
        self.page: Page = self._context.new_page()

    def close(self) -> None:
        """Close the browser context."""
        self._context.close()

    def _requested(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme in ("data", "blob", "about"):
            return
        if f"{parts.scheme}://{parts.netloc}" != self.site.address:
            self.noticed.append(f"a request left the site: {request.url}")

    def _said(self, message: ConsoleMessage) -> None:
        if message.type not in ("error", "warning", "assert"):
            return
        for status in self.expected:
            if f"responded with a status of {status} " in message.text:
                return
        self.noticed.append(f"console {message.type}: {message.text}")

    # -- pages

    def enter_as(self, name: str) -> None:
        """Sign a user in and arrive at the boards."""
        self.page.goto("/")
        self.at("users")
        self.fill("sign-in", email=email_of(name))
        self.at("boards")

    def fill(self, form: str, **values: str) -> None:
        """Fill in a form and send it."""
        fields = self.page.locator(f'form[data-form="{form}"]')
        for name, value in values.items():
            fields.locator(f'[name="{name}"]').fill(value)
        fields.locator('[type="submit"]').click()

    def at(self, name: str) -> Locator:
        """Wait until a page is there, and return its main element."""
        main = self.page.locator(f'main[data-page="{name}"]')
        main.wait_for()
        # A key that is pressed before the scripts run is lost.
        self.page.wait_for_load_state()
        return main

    def open_board(self, board_id: int) -> None:
        """Follow the link to a board."""
        self.page.locator(f'[data-board-id="{board_id}"]').first.click()
        self.at("board")

    def order(self) -> list[str]:
        """Return the ids of the cards, as they are displayed."""
        cards = self.page.locator("[data-pins] [data-pin-id]")
        found: list[str] = cards.evaluate_all(
            "cards => cards.map(card => card.dataset.pinId)"
        )
        return found

    def expect_order(self, wanted: list[str]) -> None:
        """Wait until the cards are displayed in this order."""
        from playwright import sync_api

        try:
            self.page.wait_for_function(_HAS_ORDER, arg=wanted)
        except sync_api.TimeoutError:
            assert self.order() == wanted
            raise

    def card(self, pin_id: str) -> Locator:
        """Return a card."""
        return self.page.locator(f'[data-pins] [data-pin-id="{pin_id}"]')

    def saved(self) -> int:
        """Return how many moves the page has saved."""
        moves = self.page.locator("[data-pins]").get_attribute("data-saved")
        return int(moves or 0)

    def wait_saved(self, moves: int) -> None:
        """Wait until the page has saved so many moves."""
        self.page.locator(f'[data-pins][data-saved="{moves}"]').wait_for(
            state="attached"
        )

    def moving(self, do: Callable[[], object]) -> list[str]:
        """Move a card in some way, and return the order when it is saved."""
        before = self.saved()
        do()
        self.wait_saved(before + 1)
        return self.order()

    def drag(self, pin_id: str, onto: str, picture: str | None = None) -> list[str]:
        """Drag a card onto another with the mouse.

        :param picture: name of one to take while it flies.
        """

        def do() -> None:
            handle = self.card(pin_id).locator("[data-handle]")
            handle.scroll_into_view_if_needed()
            x, y = _middle(handle)
            mouse = self.page.mouse
            mouse.move(x, y)
            mouse.down()
            mouse.move(x + 8, y + 8, steps=3)
            x, y = _middle(self.card(onto))
            mouse.move(x, y, steps=12)
            if picture is not None:
                self.picture(picture)
            mouse.up()

        return self.moving(do)

    # -- pictures

    def picture(self, name: str, *, full_page: bool = True) -> None:
        """Store a screenshot of the page, if they are requested.

        They take half of the time of these tests, and only people see
        anything in them.
        """
        if os.environ.get("SQLA_SHARD_PICTURES") == "1":
            ARTEFACTS.mkdir(parents=True, exist_ok=True)
            self.page.screenshot(path=ARTEFACTS / f"{name}.png", full_page=full_page)


def _middle(element: Locator) -> tuple[float, float]:
    box = element.bounding_box()
    assert box is not None
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
