"""A bookmark file is uploaded, watched, and becomes boards."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from examples.pinboard.boards import PAGE
from examples.quickstart.bookmarks import read_folders
from sqla_shard.testing import run_jobs
from tests.browser.serving import Site
from tests.browser.watching import expect, Visitor

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


def is_done(site: Site, one: Visitor) -> None:
    progress = one.page.locator("[data-import-progress]")
    expect(progress).to_have_attribute("data-state", "running")
    assert run_jobs(site.cluster, ["imports"]).succeeded == 1
    one.page.locator('[data-import-progress][data-state="done"]').wait_for(
        timeout=60_000
    )


@pytest.mark.on_all_servers
def test_import(site: Site, visitor: Callable[..., Visitor]) -> None:
    path = REAL if REAL.exists() else OURS
    text = path.read_text("utf-8")
    links = len(re.findall(r'HREF="https?:', text))
    name, _ = site.add_user()
    one = visitor(site)
    one.enter_as(name)
    progress = one.page.locator("[data-import-progress]")
    upload(one, path)
    expect(progress).to_have_attribute("data-state", "running")
    expect(progress).to_contain_text(f"0 of {links} pins")
    one.picture("import-running")
    is_done(site, one)
    expect(progress).to_contain_text(f"{links} of {links} pins")
    one.picture("import-done")

    # Everything is there, in the order of the file.
    with path.open("rb") as file:
        folders = [f for f in read_folders(file) if f.links]
    folders.sort(key=lambda folder: folder.line)
    one.page.goto("/boards")
    one.at("boards")
    titles = [" / ".join(f.path) or "Unsorted" for f in folders]
    more = one.page.get_by_role("link", name="More boards")
    while True:
        page, titles = titles[:PAGE], titles[PAGE:]
        expect(one.page.locator("[data-board-id] strong")).to_have_text(page)
        if not titles:
            break
        more.click()
        # The next page begins with another board.
        expect(one.page.locator("[data-board-id] strong").first).to_have_text(titles[0])
        one.at("boards")
    expect(more).to_have_count(0)

    one.page.goto("/boards")
    one.page.locator("[data-board-id]").first.click()
    one.at("board")
    cards = one.page.locator("[data-pins] h2")
    wanted = [link.title for link in folders[0].links]
    # The page fetches more pins whenever its end comes into view, so how many
    # there are is read together with their titles.
    expect(cards.nth(min(len(wanted), PAGE) - 1)).to_be_visible()
    titles = cards.all_inner_texts()
    assert titles == wanted[: len(titles)]


def test_lines_without_a_link_are_skipped_and_listed(
    site: Site, visitor: Callable[..., Visitor]
) -> None:
    name, _ = site.add_user()
    one = visitor(site)
    one.enter_as(name)
    upload(one, OURS)
    is_done(site, one)
    # Bookmarklets and the browser's own entries are left out, and listed.
    expect(one.page.locator("main")).to_contain_text("2 links left out")
    one.page.goto("/boards")
    expect(one.page.locator("[data-board-id] strong")).to_have_text(
        ["Unsorted", "Python", "Python / Libraries", "Databases", "Sky", "Reading"]
    )
    one.page.get_by_text("Python / Libraries").click()
    one.at("board")
    expect(one.page.locator("[data-pins] h2")).to_have_text(
        ["SQLAlchemy", "Alembic", "pytest", "Hypothesis"]
    )


@pytest.mark.parametrize(
    "content", [b"", b"<p>Not a bookmark file", b"\x89PNG\r\n\x1a\n\0\0"]
)
def test_another_file_is_refused(
    site: Site, visitor: Callable[..., Visitor], tmp_path: Path, content: bytes
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
    one.at("boards")
    expect(one.page.locator("[data-board-id]")).to_have_count(0)
