"""The lab of the demo: its pages, on a desktop by night, a phone by day."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from examples.pinboard.caching import MEMORY
from examples.pinboard.lab.bench import Bench
from examples.pinboard.lab.lab import Lab
from sqla_shard import Cluster
from sqla_shard.testing import sqlite_topology
from tests.browser.serving import pins, Site
from tests.browser.watching import DESKTOP, expect, faults, PHONE, Visitor
from tests.suites.pinboard_tables import create_tables


class Broken(Bench):
    """Says that one server is stopped, and the other slow."""

    def states(self) -> dict[str, str]:
        return {"server1": "slow", "server2": "stopped"}


@pytest.fixture(scope="module")
def lab_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    document = sqlite_topology(tmp_path_factory.mktemp("lab"), 2, 8, lookup=4)
    with Cluster.from_topology(document) as cluster:
        create_tables(cluster)
        with (
            Lab(cluster, Broken("There is no process."), MEMORY) as lab,
            Site(cluster, lab) as site,
        ):
            yield site


@pytest.mark.parametrize(("scheme", "options"), [("dark", DESKTOP), ("light", PHONE)])
def test_the_pages_of_the_lab(
    lab_site: Site,
    scheme: str,
    options: dict[str, object],
    visitor: Callable[..., Visitor],
) -> None:
    name, user_id = lab_site.add_user(shard_id=2)
    board_id = lab_site.add_board(user_id, "Boats", pins(3))
    one = visitor(lab_site, color_scheme=scheme, **options)
    page = one.page

    def look(title: str) -> None:
        one.picture(f"lab-{title}-{scheme}")
        assert faults(page) == [], title

    page.goto("/")
    look("users")
    page.get_by_role("button", name="Take the tour").click()
    expect(page.locator("[data-tour='1']")).to_be_visible()
    one.enter_as(name)
    one.open_board(board_id)
    expect(page.locator("[data-mine='2']")).to_have_count(1)
    strip = page.locator("[data-strip]")
    sql = strip.locator("pre").first
    expect(sql).not_to_be_visible()
    strip.locator("summary").click()
    expect(sql).to_be_visible()
    look("board")
    page.goto("/lab/newest")
    expect(page.locator("[data-pin-id]").first).to_be_visible()
    look("newest")
    page.goto("/lab/")
    look("page")
