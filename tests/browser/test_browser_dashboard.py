"""The dashboard on four servers with 1,024 shards, in Chromium.

With ``SQLA_SHARD_PICTURES=1`` there are pictures in ``artefacts/browser``.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator

import pytest

from sqla_shard import Cluster, pack
from sqla_shard.monitor.cached_reading import CachedReading
from sqla_shard.monitor.dashboard import Observer
from sqla_shard.monitor.dashboard.readings import DatabaseSize, Sizes
from sqla_shard.topology.urls import address_of
from tests.browser.watching import DESKTOP, expect, faults, PHONE, Visitor
from tests.servers.dashboard_scene import DashboardScene, Served
from tests.servers.kinds import Kind

SCATTER = "select(Pin).order_by(Pin.ts.desc()).limit(10).options(scatter())"
PAGES = {
    "fleet": "/",
    "fleet-rows": "/?by=rows",
    "fleet-revision": "/?by=revision",
    "fleet-load": "/?by=load",
    "server": "/servers/server1",
    "shard": "/shards/objects/304",
    "explain": f"/explain?q={SCATTER}",
    "explain-id": f"/explain?q={pack(304, 1, 9)}",
    "explain-refused": "/explain?q=select(Pin)",
    "schema": "/schema",
    "jobs": "/jobs",
    "queue": "/jobs/titles",
    "cache": "/cache",
    "pools": "/pools",
    "history": "/history",
    "operations": "/operations",
    "error-missing": "/nowhere",
}
HOT = 304
#: One of each kind.
KINDS = {name: path for name, path in PAGES.items() if "-" not in name}
DEVICES = {"desktop": DESKTOP, "phone": PHONE}

#: Bytes and milliseconds of the load of a page.
LOAD = """() => {
    const entries = [
        ...performance.getEntriesByType("navigation"),
        ...performance.getEntriesByType("resource"),
    ];
    const paint = performance.getEntriesByName("first-contentful-paint")[0];
    return {
        bytes: entries.reduce((sum, one) => sum + one.encodedBodySize, 0),
        paint: paint ? Math.round(paint.startTime) : null,
    };
}"""


@pytest.fixture(scope="module")
def scene(
    tmp_path_factory: pytest.TempPathFactory, server_kind: Kind
) -> Iterator[DashboardScene]:
    folder = tmp_path_factory.mktemp("dashboard")
    with DashboardScene(folder, server_kind) as scene:
        scene.fail_jobs(6)
        scene.make_hot(HOT)
        yield scene


@pytest.fixture
def enter(
    scene: DashboardScene, visitor: Callable[..., Visitor]
) -> Callable[..., Visitor]:
    """Open a browser in front of the dashboard."""
    return lambda **options: visitor(scene.site, **options)


# Each width and each theme once: widths have the same colours.
@pytest.mark.parametrize(("kind", "scheme"), [("desktop", "light"), ("phone", "dark")])
def test_every_page(
    enter: Callable[..., Visitor], kind: str, scheme: str, say: Callable[[str], None]
) -> None:
    one = enter(color_scheme=scheme, **DEVICES[kind])
    one.expected = {404}
    for name, path in PAGES.items():
        one.page.goto(path)
        one.at(name.partition("-")[0])
        load = one.page.evaluate(LOAD)
        say(
            f"{name}, {kind}, {scheme}: {load['bytes'] / 1024:.0f} KiB, "
            f"first paint after {load['paint']} ms"
        )
        one.picture(f"dashboard-{name}-{kind}-{scheme}")
        assert faults(one.page) == [], name
        expect(one.page.locator(".wrong")).to_have_count(0)
        # The last of the links: on a phone, too, all of them are seen.
        last = one.page.get_by_role("link", name="Operations")
        expect(last).to_be_in_viewport()
        assert "not-to-be-shown" not in one.page.content()
        # All of it: styles, scripts, and the map of 1,024 shards.
        assert load["bytes"] < 100 * 1024, name


def test_the_theme_is_remembered(enter: Callable[..., Visitor]) -> None:
    one = enter(color_scheme="light")
    one.page.goto("/")
    one.at("fleet")
    toggle = one.page.get_by_role("button", name="Dark theme")
    toggle.focus()
    one.page.keyboard.press("Enter")
    expect(toggle).to_have_attribute("aria-pressed", "true")
    one.page.goto("/jobs")
    one.at("jobs")
    scheme = "getComputedStyle(document.documentElement).colorScheme"
    assert one.page.evaluate(scheme) == "dark"


def test_a_cell_of_the_map_is_a_shard(enter: Callable[..., Visitor]) -> None:
    one = enter()
    one.page.goto("/")
    one.at("fleet")
    # Shard 300 is the cell 44 of server2, which are in rows of 32.
    cells = one.page.locator('[data-server="server2"] svg.cells')
    box = cells.bounding_box()
    assert box is not None
    at = {
        "x": (44 % 32 + 0.5) * box["width"] / 32,
        "y": (44 // 32 + 0.5) * box["height"] / 8,
    }
    cells.hover(position=at)
    expect(one.page.locator(".tip")).to_contain_text("shard 300 ·")
    cells.click(position=at)
    one.at("shard")
    assert one.page.url.endswith("/shards/objects/300")
    # The same without a mouse.
    one.page.goto("/")
    one.page.get_by_label("Number of a shard").fill("301")
    one.page.keyboard.press("Enter")
    one.at("shard")
    expect(one.page.locator("h1")).to_have_text("Shard 301 of objects")


def test_a_hot_shard_is_named(
    scene: DashboardScene, enter: Callable[..., Visitor]
) -> None:
    one = enter()
    one.page.goto("/?by=load")
    one.at("fleet")
    pin_id = scene.make_hot(917)
    # The page was open before: it learns of the shard by itself.
    hot = one.page.locator(".alert", has_text="shard 917 of objects")
    expect(hot).to_contain_text(f"the object pins {pin_id} takes")
    hot.get_by_role("link").click()
    one.at("shard")
    expect(one.page.locator("main")).to_contain_text(str(pin_id))


def test_without_javascript(enter: Callable[..., Visitor]) -> None:
    one = enter(java_script_enabled=False)
    one.expected = {404}
    for name, path in PAGES.items():
        one.page.goto(path)
        one.at(name.partition("-")[0])
    one.page.goto("/")
    one.page.get_by_label("Shards 256–511 of objects on server2").click()
    one.at("server")
    one.page.get_by_role("link", name="objects 256", exact=True).click()
    one.at("shard")
    expect(one.page.locator("tbody th", has_text="pins")).to_be_visible()
    one.page.get_by_role("link", name="Explain").click()
    one.page.locator("textarea").fill(str(pack(700, 1, 5)))
    one.page.get_by_role("button", name="Explain").click()
    ends = one.page.locator("[data-route-server]")
    expect(ends).to_have_attribute("data-route-server", "server3")


def test_a_failed_job_is_retried(
    scene: DashboardScene, enter: Callable[..., Visitor]
) -> None:
    (job,) = scene.fail_jobs(1)
    one = enter()
    one.page.goto("/jobs/titles")
    one.at("queue")
    row = one.page.locator(f'[data-job="{job}"]')
    row.get_by_role("button", name=f"Retry {job}").click()
    expect(one.page.locator(".alert.note")).to_have_text("1 job retried.")
    expect(row).to_have_count(0)
    one.page.get_by_role("link", name="Pending").click()
    expect(row).to_be_visible()
    row.get_by_role("button", name=f"Delete {job}").click()
    expect(one.page.locator(".alert.note")).to_have_text("1 job deleted.")
    # All of them only after a second click.
    one.page.get_by_role("link", name="Failed").click()
    everything = one.page.get_by_text("Delete all failed")
    everything.click()
    one.page.get_by_role("button", name="Delete them").click()
    expect(one.page.locator(".alert.note")).to_contain_text("deleted.")
    expect(everything).to_have_count(0)


def test_explaining_draws_each_server(enter: Callable[..., Visitor]) -> None:
    one = enter()
    one.page.goto(PAGES["explain"])
    one.at("explain")
    ends = one.page.locator("[data-route-server]")
    expect(ends).to_have_count(4)
    expect(ends.first.locator("pre")).to_contain_text("FROM db00000.pins")
    one.page.goto(PAGES["explain-refused"])
    expect(one.page.locator(".alert").first).to_contain_text("Refused.")
    one.expected.add(400)
    one.page.goto("/explain?q=__import__('os').getpid()")
    expect(one.page.locator(".alert")).to_contain_text("__import__")


@pytest.fixture(scope="module")
def largest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A dashboard of 65,536 shards on 32 servers that do not exist."""
    path = tmp_path_factory.mktemp("largest") / "topology.json"
    servers = [
        {
            "name": f"sharddb{number:03d}",
            "primary": f"sqlite:///{path.parent}/{number}",
            "shards": [number * 2048, number * 2048 + 2047],
        }
        for number in range(32)
    ]
    keyspace = {
        "kind": "objects",
        "shards": 65_536,
        "database": "db{shard:05d}",
        "servers": servers,
    }
    path.write_text(json.dumps({"epoch": 1, "keyspaces": {"main": keyspace}}))
    rng = random.Random(7)
    with Cluster.from_file(path, watch=False) as cluster:
        observer = Observer(cluster)
        # Neighbours differ, so that nothing can be merged into long lines.
        sizes = Sizes(
            databases={
                (str(address_of(server.primary)), f"db{shard_id:05d}"): DatabaseSize(
                    bytes=rng.randrange(2**30), rows=1
                )
                for server in cluster.topology.keyspace("main").servers
                for part in server.shards
                for shard_id in part
            }
        )
        observer._sizes = CachedReading("sizes", lambda: sizes, fresh=600.0)
        observer._rollouts = CachedReading("revisions", tuple, fresh=600.0)
        with Served(observer, allow_changes=False) as served:
            yield served


def test_65536_shards_are_drawn_in_a_second(
    largest: Served, visitor: Callable[..., Visitor], say: Callable[[str], None]
) -> None:
    one = visitor(largest)
    one.page.goto("/")
    times = []
    for _ in range(3):
        one.page.goto("/", wait_until="load")
        drawn = one.page.evaluate(
            "() => new Promise((done) => requestAnimationFrame(() =>"
            " requestAnimationFrame(() => done(performance.now()))))"
        )
        times.append(drawn)
    load = one.page.evaluate(LOAD)
    say(
        f"65,536 shards: drawn after {min(times):.0f} ms, "
        f"{load['bytes'] / 1024:.0f} KiB, first paint {load['paint']} ms"
    )
    one.picture("dashboard-65536")
    assert one.page.locator("svg.cells").count() == 32
    assert min(times) < 1000


def test_a_server_that_hangs_delays_no_page(
    scene: DashboardScene, enter: Callable[..., Visitor]
) -> None:
    one = enter()
    one.page.goto("/")
    fourth = one.page.locator('[data-server="server4"]')
    expect(fourth).to_have_attribute("data-state", "good")
    scene.servers[3].pause()
    try:
        expect(fourth).to_have_attribute("data-state", "bad", timeout=60_000)
        for name, path in KINDS.items():
            one.page.goto(path)
            one.at(name)
            expect(one.page.get_by_role("status")).to_contain_text("server4")
        one.page.goto("/shards/objects/900")
        expect(one.page.locator("main")).to_contain_text("could not be read")
    finally:
        scene.servers[3].resume()
    one.page.goto("/")
    expect(fourth).to_have_attribute("data-state", "good", timeout=60_000)


def test_a_server_that_dies_is_shown(
    scene: DashboardScene, enter: Callable[..., Visitor]
) -> None:
    """The last test of the module: the server stays down."""
    one = enter()
    one.page.goto("/")
    one.at("fleet")
    third = one.page.locator('[data-server="server3"]')
    expect(third).to_have_attribute("data-state", "good")
    expect(one.page.locator("[data-live]")).to_have_attribute("data-state", "live")
    scene.servers[2].kill()
    expect(third).to_have_attribute("data-state", "bad", timeout=60_000)
    expect(one.page.get_by_role("status")).to_contain_text("server3")
    one.picture("dashboard-fleet-down")
    # The others are shown as before, and no page fails or hangs.
    expect(one.page.locator('[data-server="server2"]')).to_have_attribute(
        "data-state", "good"
    )
    for name, path in KINDS.items():
        one.page.goto(path)
        one.at(name)
    one.page.goto("/shards/objects/600")
    expect(one.page.locator("main")).to_contain_text("could not be read")
    one.picture("dashboard-shard-down")
    # What it does not say is not taken for nothing.
    one.page.goto("/schema")
    expect(one.page.locator("main")).to_contain_text("256 shards not read")
    one.page.goto("/jobs/nothing")
    expect(one.page.locator("main")).to_contain_text(
        "None on the servers that responded."
    )
    one.page.goto("/shards/objects/600")
    assert faults(one.page) == []
