"""The lab of the demo on SQLite: strip, map, outages, newest pins, writers."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from flask import Flask
from sqlalchemy import event, func, select

from examples.pinboard.app import create_app
from examples.pinboard.caching import keep, MEMORY
from examples.pinboard.lab.bench import Bench
from examples.pinboard.lab.lab import Lab
from examples.pinboard.lab.newest import refusal
from examples.pinboard.lab.tour import STEPS
from examples.pinboard.lab.writers import Run
from examples.pinboard.models import BoardHasPins, Pin
from examples.pinboard.samples import add_user
from sqla_shard import Cluster, scatter, unpack
from sqla_shard.testing import sqlite_topology
from tests.servers.visiting import Visitor, visitor as visitor
from tests.suites.pinboard_tables import create_tables

#: One of each server.
HOMES = {"Ada": 1, "Grace": 6}
WHY = "There is no process to stop."


class Broken(Bench):
    """Reports the states of servers that a test sets."""

    def __init__(self) -> None:
        super().__init__(WHY)
        self.found: dict[str, str] = {}

    def states(self) -> Mapping[str, str]:
        return self.found


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("lab")
    document = sqlite_topology(directory, 2, 8, lookup=4)
    with Cluster.from_topology(document) as cluster:
        create_tables(cluster)
        keep(cluster, MEMORY)
        for name, shard_id in HOMES.items():
            add_user(cluster, name, shard_id=shard_id)
        yield cluster


@pytest.fixture(scope="module")
def lab(cluster: Cluster) -> Iterator[Lab]:
    with Lab(cluster, Broken(), MEMORY) as lab:
        yield lab


@pytest.fixture(scope="module")
def app(cluster: Cluster, lab: Lab) -> Flask:
    return create_app(cluster, testing=True, lab=lab)


@pytest.fixture
def bench(lab: Lab) -> Iterator[Broken]:
    assert isinstance(lab.bench, Broken)
    yield lab.bench
    lab.bench.found = {}


def text_of(page: str, pattern: str) -> str:
    found = re.search(pattern, page, re.S)
    assert found, page
    return " ".join(html.unescape(re.sub("<[^>]+>", "", found[1])).split())


def strip_of(page: str) -> str:
    return text_of(page, "<details class=.strip.*?<summary>(.*?)</summary>")


def test_the_strip_has_what_the_events_report(
    cluster: Cluster, visitor: Visitor
) -> None:
    board_id = visitor.add_board()
    visitor.add_pins(board_id, 3)
    reports: list[Any] = []

    def record(cluster: Cluster, report: Any) -> None:
        reports.append(report)

    cache = cluster.cache
    assert cache is not None
    for _ in range(2):
        visitor.get(f"/boards/{board_id}")
    before = sum(one.hits for one in cache.stats())
    event.listen(cluster, "after_statement", record)
    page = visitor.get(f"/boards/{board_id}")
    event.remove(cluster, "after_statement", record)
    hits = sum(one.hits for one in cache.stats()) - before
    assert reports
    assert hits >= 4  # the board, its user, the list, the pins
    seconds = sum(one.seconds for one in reports)
    assert strip_of(page) == (
        f"{len(reports)} statements, 1 shard, 1 server, {hits} cache hits, "
        f"{1000 * seconds:.1f} ms"
    )
    shown = [html.unescape(o) for o in re.findall("<pre.*?>(.*?)</pre>", page, re.S)]
    assert shown == [one.statement for one in reports]


def test_a_write_is_in_the_strip_of_the_next_page(visitor: Visitor) -> None:
    assert visitor.post("/boards", title="Boats").status_code == 303
    page = visitor.get("/boards")
    assert "the write before: " in strip_of(page)
    assert "INSERT INTO" in page
    assert "committed on 1 server" in page
    assert "the write before" not in strip_of(visitor.get("/boards"))


def test_the_map_has_the_shard_of_the_user(cluster: Cluster, visitor: Visitor) -> None:
    shard_id = unpack(visitor.user_id).shard_id
    objects = cluster.topology.sole("objects")
    page = visitor.get("/boards")
    assert re.findall(r'data-mine="(\d+)"', page) == [str(shard_id)]
    home = re.search(r'fleet-server up home" data-map-server="(\w+)"', page)
    assert home
    assert home[1] == objects.server_for(shard_id).name
    assert page.count("data-map-server") == 2


def test_the_application_without_the_lab_has_none(cluster: Cluster) -> None:
    client = create_app(cluster, testing=True).test_client()
    page = client.get("/").text
    assert "data-strip" not in page
    assert "data-map-server" not in page
    assert client.get("/lab/").status_code == 404


def test_an_outage_names_who_is_not_affected(
    bench: Broken, visitor: Visitor, cluster: Cluster
) -> None:
    assert "data-outage" not in visitor.get("/boards")
    bench.found = {"server2": "stopped"}
    page = visitor.get("/boards")
    shard_id = unpack(visitor.user_id).shard_id
    homes = {f"{visitor.name} (you)": shard_id, **HOMES}
    for what, shards in (("un", range(4)), ("", range(4, 8))):
        names = text_of(page, f"data-{what}affected>(.*?)</span>")
        expected = [name for name, at in homes.items() if at in shards]
        assert names.split(", ") == expected
    outage = text_of(page, '(<p class="outage stopped".*?)</p>')
    assert outage.startswith("server2 is stopped.")
    assert "4 of 8 shards of objects and 2 of 4 shards of lookup" in outage


def test_the_newest_pins_and_the_statement_that_is_refused(
    app: Flask, cluster: Cluster
) -> None:
    made = {}
    for name, shard_id in HOMES.items():
        one = Visitor(app.test_client(), 0, name)
        one.sign_in()
        made[one.add_pin(one.add_board())] = shard_id
    page = one.get("/lab/newest")
    pins = re.findall(r'data-pin-id="(\d+)"', page)[:2]
    assert {int(pin): unpack(int(pin)).shard_id for pin in pins} == made
    assert re.findall(r'data-time-of="(\w+)"', page) == ["server1", "server2"]
    refused = text_of(page, "data-refused>.*?<pre[^>]*>(.*?)</pre>")
    with cluster.session() as session:
        assert refused == " ".join(str(refusal(session)).split())
    assert "scatter()" in refused
    assert "Refused" in page  # in the strip, by the event of the cluster


def test_the_cache_is_switched_off_and_on(visitor: Visitor) -> None:
    board_id = visitor.add_board()
    assert visitor.post("/lab/cache", to="off").status_code == 303
    for _ in range(2):
        page = visitor.get(f"/boards/{board_id}")
        assert ", 0 cache hits, " in strip_of(page)
        assert 'data-outage="cache"' in page
    assert visitor.post("/lab/cache", to="on").status_code == 303
    for _ in range(2):
        page = visitor.get(f"/boards/{board_id}")
    assert ", 0 cache hits, " not in strip_of(page)


@pytest.mark.parametrize(
    "path", ["servers/server1", "cache", "grow", "writers", "tour"]
)
def test_the_controls_are_for_forms_of_this_machine(
    path: str, visitor: Visitor
) -> None:
    visitor.refused(400, f"/lab/{path}", csrf_token="of another page")
    answer = visitor.client.post(
        f"/lab/{path}",
        data={"csrf_token": visitor.token, "to": "off"},
        environ_overrides={"REMOTE_ADDR": "192.0.2.1"},
    )
    assert answer.status_code == 403


def test_limits_of_sqlite_are_shown(visitor: Visitor) -> None:
    page = visitor.get("/lab/")
    assert WHY in page
    assert "make demo DB=mysql" in page
    assert "data-server=" not in page
    assert visitor.refused(409, "/lab/servers/server1", to="stopped") == WHY
    assert visitor.refused(409, "/lab/grow") == WHY


def test_each_step_of_the_tour_has_a_page(visitor: Visitor) -> None:
    assert len(STEPS) == 5
    for number in range(1, 6):
        answer = visitor.post("/lab/tour", step=number)
        page = visitor.get(answer.location)
        assert re.findall(r'data-tour="(\d)"', page) == [str(number)]
    visitor.post("/lab/tour", step=0)
    assert "data-tour" not in visitor.get("/boards")


def test_the_figures_of_writers_are_those_of_their_pins(
    cluster: Cluster, lab: Lab
) -> None:
    count = select(func.count()).select_from(Pin).options(scatter())
    with cluster.session() as session:
        before = session.scalar(count)
    run = Run(cluster, lab.bench, MEMORY, writers=18, seconds=0.5)
    run.wait()
    assert (run.state, run.error) == ("done", "")
    servers = run.report["servers"]
    assert list(servers) == ["server1", "server2"]
    assert all(0 < s["p50"] <= s["p99"] < 60 for s in servers.values())
    assert [s["failed"] for s in servers.values()] == [0, 0]
    written = sum(s["writes"] for s in servers.values())
    assert written >= 18
    with cluster.session() as session:
        assert session.scalar(count) == before + written
        listed = select(func.count()).select_from(BoardHasPins)
        assert session.scalar(listed.options(scatter())) >= written
