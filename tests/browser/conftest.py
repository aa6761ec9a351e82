"""A real browser for the pinboard, and errors that fail a test.

It is Chromium of the system (``SQLA_SHARD_CHROMIUM`` names another), driven
by Playwright, without a window and with a new profile.  Without it the tests
are skipped, and the last lines of the run say so; with ``CI=true`` they fail,
since a run that tests nothing would look like a good one.

The pinboard is on SQLite, and for tests with the marker ``on_all_servers`` on
MariaDB and MySQL, too, in the tier ``all``; with ``--every-server`` for all.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any, TYPE_CHECKING

import pytest

from sqla_shard import Cluster
from sqla_shard.testing import sqlite_topology
from tests.browser.serving import Site
from tests.browser.watching import Visitor
from tests.servers.kinds import KINDS

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_MARK = "pinboard: no browser: "  # counted by ../conftest.py
_NAMES = (*("chromium-headless-shell", "chromium", "chromium-browser"), "google-chrome")
_ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-proxy-server",
]


def _program() -> str:
    """Return the path of the browser, or skip or fail the test."""
    named = os.environ.get("SQLA_SHARD_CHROMIUM")
    found = filter(None, map(shutil.which, [named] if named else _NAMES))
    program = next(found, None)
    if importlib.util.find_spec("playwright") is None:
        reason = "Playwright is not installed: pip install --group browser"
    elif program is None:
        reason = "Chromium is not installed: apt-get install chromium"
    else:
        return program
    if os.environ.get("CI") == "true":
        pytest.fail(_MARK + reason, pytrace=False)
    pytest.skip(_MARK + reason)


# Not for the whole session: while it runs, Playwright has an event loop in
# this thread, and tests elsewhere could not start one.
@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """A browser, without a window and with a new profile."""
    program = _program()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=_ARGUMENTS)
        yield browser
        browser.close()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    option = metafunc.config.getoption
    on_all = metafunc.definition.get_closest_marker("on_all_servers")
    names: list[Any] = ["sqlite"]
    if option("--every-server") or (on_all and option("--tier") == "all"):
        names += [pytest.param(n, marks=pytest.mark.live) for n in KINDS]
    for site in ("site", "last_site"):
        if site in metafunc.fixturenames:
            metafunc.parametrize(site, names, indirect=True, scope="module")


@pytest.fixture(scope="module")
def site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    """The pinboard, over eight virtual shards of SQLite or of servers."""
    fleet = None
    if request.param == "sqlite":
        directory = tmp_path_factory.mktemp("pinboard")
        document = sqlite_topology(directory, 2, 8, lookup=4)
    else:
        fleet = request.getfixturevalue(f"{request.param}_fleet")
        document = fleet.topology_mapping(
            shards=8,
            database="db_site{shard:05d}",
            lookup=4,
            lookup_database="lookup_site{shard:05d}",
        )
        fleet.drop_databases(document)
    with Cluster.from_topology(document) as cluster, Site(cluster) as site:
        site.create_tables()
        yield site
    if fleet is not None:
        fleet.drop_databases(document)


@pytest.fixture
def visitor(chromium: Browser) -> Iterator[Callable[..., Visitor]]:
    """Make people with a browser each; afterwards, look what it noticed.

    Such as errors in its console, violations of the page's own content
    security policy, and requests to anywhere but the site.
    """
    visitors: list[Visitor] = []

    def enter(site: Site, **options: Any) -> Visitor:
        visitors.append(Visitor(chromium, site, **options))
        return visitors[-1]

    yield enter
    for one in visitors:
        one.close()
    for one in visitors:
        assert one.noticed == []
