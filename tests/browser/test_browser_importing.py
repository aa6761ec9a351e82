"""A bookmark file is uploaded, watched, and becomes boards."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.browser.serving import Site
from tests.browser.watching import Visitor

ROOT = Path(__file__).parents[2]
OURS = ROOT / "examples" / "bookmarks.html"
# A larger one, which is not part of a checkout.
REAL = ROOT.parent / "shared" / "data" / "bookmarks.html"


def upload(one: Visitor, path: Path) -> None:
    one.page.goto("/import")
    one.at("import")
    form = one.page.locator('form[data-form="import"]')
    form.locator('[name="file"]').set_input_files(path)
    form.locator('[type="submit"]').click()


def test_import(site: Site, visitor: Callable[..., Visitor]) -> None:
    path = REAL if REAL.exists() else OURS
    text = path.read_text("utf-8")
    links = len(re.findall(r'HREF="https?:', text))
    name, _ = site.add_user()
    one = visitor(site)
    one.enter_as(name)
    upload(one, path)
    progress = one.page.locator("[data-import-progress]")
    progress.wait_for()
    one.page.locator('[data-import-progress][data-state="done"]').wait_for(
        timeout=60_000
    )
    assert f"{links}" in progress.inner_text()
    one.picture("import-done")

    one.page.goto("/boards")
    one.at("boards")
    while one.page.get_by_text("More boards").is_visible():
        one.page.get_by_text("More boards").click()
        one.at("boards")
        break
    one.page.goto("/boards")
    boards = one.page.locator("[data-board-id]")
    assert boards.count() >= 6
    # The first folder with links of the file is the first board.
    first = boards.first
    assert str(first.inner_text()).strip()
    first.click()
    one.at("board")
    assert len(one.order()) >= 1


def test_both_files_are_imported_in_the_order_of_the_file(
    site: Site, visitor: Callable[..., Visitor]
) -> None:
    name, _ = site.add_user()
    one = visitor(site)
    one.enter_as(name)
    upload(one, OURS)
    one.page.locator('[data-import-progress][data-state="done"]').wait_for(
        timeout=60_000
    )
    # Bookmarklets and the browser's own entries are left out, and told.
    assert "2 links left out" in one.page.locator("main").inner_text()
    one.page.goto("/boards")
    titles = one.page.locator("[data-board-id] strong").all_inner_texts()
    assert titles == [
        "Unsorted",
        "Python",
        "Python / Libraries",
        "Databases",
        "Sky",
        "Reading",
    ]
    one.page.get_by_text("Python / Libraries").click()
    one.at("board")
    cards = one.page.locator("[data-pins] h2").all_inner_texts()
    assert cards == ["SQLAlchemy", "Alembic", "pytest", "Hypothesis"]


@pytest.mark.parametrize(
    "content", [b"", b"<p>Not a bookmark file", b"\x89PNG\r\n\x1a\n\0\0"]
)
def test_another_file_is_refused(
    site: Site,
    visitor: Callable[..., Visitor],
    tmp_path: Path,
    content: bytes,
) -> None:
    path = tmp_path / "export.html"
    path.write_bytes(content)
    name, _ = site.add_user()
    one = visitor(site)
    one.expected = {400, 422}
    one.enter_as(name)
    upload(one, path)
    one.page.locator('[role="alert"]:visible').first.wait_for()
    one.page.goto("/boards")
    assert one.page.locator("[data-board-id]").count() == 0
