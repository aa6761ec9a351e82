"""Each page, on a desktop and on a phone, by day and by night.

With ``SQLA_SHARD_PICTURES=1`` there are pictures in ``artefacts/browser``,
for people to look at.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from examples.pinboard.inputs import PinInput
from examples.pinboard.relations import follow_user
from examples.quickstart.bookmarks import read_folders
from tests.browser.serving import pins, Site
from tests.browser.watching import DESKTOP, faults, PHONE, Visitor

BOOKMARKS = Path(__file__).parents[2] / "examples" / "bookmarks.html"
LONG = PinInput(
    link="https://a-very-long-name.of-a-host.example.com/" + "path/" * 40,
    title="Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeam"
    "tengesellschaft and what else there is to say of it in a title",
    details="w" * 300 + " and words " * 40,
)

# The colour behind the page, as the brightness that is seen, from 0 to 1.
BRIGHTNESS = """() => {
    const canvas = document.createElement("canvas").getContext("2d");
    for (const element of [document.body, document.documentElement]) {
        const colour = getComputedStyle(element).backgroundColor;
        canvas.fillStyle = colour;
        canvas.fillRect(0, 0, 1, 1);
        const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
        if (a) return (0.2126 * r + 0.7152 * g + 0.0722 * b) / 255;
    }
    return matchMedia("(prefers-color-scheme: dark)").matches ? 0 : 1;
}"""


@pytest.fixture(scope="module")
def sample(site: Site) -> Any:
    """A user with the boards of our bookmark file, and one of the worst."""
    name, user_id = site.add_user("Ada")
    with BOOKMARKS.open("rb") as file:
        folders = [f for f in read_folders(file) if f.links]
    ids = [
        site.add_board(
            user_id,
            " / ".join(folder.path) or "Unsorted",
            [
                PinInput(link=link.url, title=link.title, details=link.details)
                for link in folder.links
            ],
        )
        for folder in folders
    ]
    worst = site.add_board(user_id, LONG.title, [LONG] * 3)
    empty = site.add_board(user_id, "Nothing yet", [])
    _, other = site.add_user("Grace")
    site.add_board(other, "Harbours", [LONG, *pins(5)])
    for one, followed in ((user_id, other), (other, user_id)):
        site.cluster.run(follow_user, one, followed, cross_shard="logged")
    return name, max(ids, key=lambda one: len(site.order(one))), worst, empty


DEVICES = {
    "desktop": DESKTOP,
    "phone": PHONE,
    "narrow": {**PHONE, "viewport": {"width": 320, "height": 568}},
}


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> Any:
    return request.param, DEVICES[request.param]


# Each width and each theme once: widths have the same colours.
@pytest.mark.parametrize(
    ("device", "scheme"),
    [("desktop", "light"), ("phone", "dark"), ("narrow", "light")],
    indirect=["device"],
)
def test_every_page(
    site: Site, sample: Any, device: Any, scheme: str, visitor: Callable[..., Visitor]
) -> None:
    kind, options = device
    name, board, worst, empty = sample
    one = visitor(site, color_scheme=scheme, **options)
    page = one.page

    found: dict[str, list[str]] = {}

    def look(title: str) -> None:
        one.picture(f"{title}-{kind}-{scheme}")
        assert page.title()
        found.update({title: wrong} if (wrong := faults(page)) else {})
        brightness = page.evaluate(BRIGHTNESS)
        assert brightness > 0.8 if scheme == "light" else brightness < 0.2

    page.goto("/")
    one.at("users")
    look("users")
    page.goto("/sign-up")
    one.at("sign-up")
    look("sign-up")
    one.enter_as(name)
    look("boards")
    one.open_board(board)
    look("board")
    pin = one.order()[1]
    one.card(pin).locator('[data-action="where"]').click()
    page.locator("[data-where]").first.wait_for()
    one.picture(f"where-sheet-{kind}-{scheme}", full_page=False)
    page.goto(f"/where/{pin}")
    one.at("where")
    look("where")
    page.goto(f"/pins/{pin}/edit")
    one.at("pin-edit")
    look("pin-edit")
    page.goto(f"/pins/{pin}")
    one.at("pin")
    look("pin")
    page.goto(f"/boards/{worst}")
    one.at("board")
    look("board-worst")
    page.goto(f"/boards/{empty}")
    one.at("board")
    look("board-empty")
    page.goto("/home")
    one.at("home")
    look("home")
    page.goto("/notifications")
    one.at("notifications")
    look("notifications")
    page.goto("/import")
    one.at("import")
    look("import")
    page.goto("/cache")
    one.at("cache")
    look("cache")
    page.goto("/queues")
    one.at("queues")
    look("queues")
    one.expected = {400, 404, 422}
    page.goto(f"/boards/{board}")
    form = page.locator('form[data-form="add-pin"]')
    form.locator('[name="link"]').fill("javascript:alert(1)")
    form.locator('[type="submit"]').click()
    page.locator('[role="alert"]:visible').first.wait_for()
    look("board-refused")
    page.goto("/boards/1")
    look("error")
    assert found == {}


def test_removed_pins(
    site: Site, sample: Any, device: Any, visitor: Callable[..., Visitor]
) -> None:
    kind, options = device
    name, board, *_ = sample
    one = visitor(site, **options)
    one.enter_as(name)
    one.open_board(board)
    removed = one.order()[:2]
    for pin in removed:
        one.card(pin).locator('[data-action="remove"]').click()
        one.card(pin).wait_for(state="detached")
    one.picture(f"board-removed-{kind}")
    one.page.goto(f"/boards/{board}/removed")
    one.at("removed")
    one.picture(f"removed-{kind}")
    assert faults(one.page) == []
    for pin in removed:
        row = one.page.locator(f'[data-removed-pin-id="{pin}"]')
        row.locator('[data-action="restore"]').click()
        row.wait_for(state="detached")
        one.page.goto(f"/boards/{board}/removed")


@pytest.mark.parametrize("javascript", [True, False])
def test_a_page_works_without_its_script(
    site: Site, sample: Any, visitor: Callable[..., Visitor], javascript: bool
) -> None:
    name, board, *_ = sample
    one = visitor(site, java_script_enabled=javascript)
    one.enter_as(name)
    one.open_board(board)
    form = one.page.locator('form[data-form="add-pin"]')
    form.locator('[name="link"]').fill("example.com/a")
    form.locator('[name="title"]').fill(f"Pinned {javascript}")
    form.locator('[type="submit"]').click()
    one.page.get_by_text(f"Pinned {javascript}").first.wait_for()
