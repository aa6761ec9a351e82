"""The pages of the dashboard: their content, and permissions of changes."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from flask import abort, Flask

from sqla_shard import Cluster, pack, TimeLayout, Topology
from sqla_shard.cluster.explain import Target
from sqla_shard.exc import ExtensionSetupError, StatementTextError
from sqla_shard.fleet import Account, Accounts, Fleet
from sqla_shard.fleet.journal import Record
from sqla_shard.fleet.operation import FleetPlan
from sqla_shard.fleet.runner import kinds
from sqla_shard.jobs import JobState, stored_job
from sqla_shard.monitor import cached_reading
from sqla_shard.monitor.dashboard import (
    create_app,
    dashboard_blueprint,
    DashboardServer,
    Observer,
)
from sqla_shard.monitor.dashboard.observer import PATIENCE
from sqla_shard.monitor.dashboard.pages import Streams
from sqla_shard.monitor.dashboard.statements import _METHODS
from sqla_shard.testing import sqlite_topology, StatementLog
from tests.servers.dashboard_scene import Base, fail_job
from tests.servers.toy_operation import STEPS, Toy

SHARDS = 8
PAGES = (
    "/",
    "/?by=rows",
    "/?by=revision",
    "/servers/server1",
    "/shards/objects/3",
    "/history",
    "/schema",
    "/jobs",
    "/jobs/titles?state=failed",
    "/cache",
    "/pools",
    "/explain",
    f"/explain?q={pack(3, 1, 7)}",
    "/explain?q=select(Pin)",
    "/operations",
)


class Scene:
    """A cluster of SQLite files, and what looks at it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "topology.json"
        self.document = sqlite_topology(folder / "data", 2, SHARDS)
        self.path.write_text(json.dumps(self.document))
        self.cluster = Cluster.from_file(self.path, watch=False)
        self.cluster.create_all(Base.metadata)
        accounts = Accounts(operator=Account(user="", password=""))
        self.fleet = Fleet(self.path, accounts=accounts)
        self.observer = Observer(self.cluster, fleet=self.fleet, models=[Base])

    def client(self, **options: Any) -> Any:
        return create_app(self.observer, **options).test_client()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    found = Scene(tmp_path)
    with found.cluster:
        yield found


def text_of(client: Any, path: str, status: int = 200) -> str:
    answer = client.get(path)
    assert answer.status_code == status, path
    return re.sub(r"\s+", " ", answer.text)


def token_of(client: Any) -> str:
    page = text_of(client, "/jobs/titles?state=failed")
    return re.findall(r'name="token" value="([^"]+)"', page)[0]


class TestReading:
    def test_every_page_has_strict_headers_and_nothing_inline(self, scene):
        client = scene.client(allow_changes=True)
        fail_job(scene.cluster, 1)
        for path in PAGES:
            answer = client.get(path)
            assert answer.status_code == 200, path
            policy = answer.headers["Content-Security-Policy"]
            assert "unsafe" not in policy
            assert policy.startswith("default-src 'none'; ")
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert answer.headers["Cache-Control"] == "no-store"
            assert not re.search(r"\sstyle=|\son[a-z]+=|<style", answer.text)
            for script in re.findall(r"<script[^>]*>([^<]*)", answer.text):
                assert not script
            for link in re.findall(r'(?:src|href)="([^"]*)"', answer.text):
                assert link == "" or link[0] in "/#", link

    def test_shards_are_counted_and_linked(self, scene):
        client = scene.client()
        assert "<dd>8</dd>" in text_of(client, "/")
        answer = client.get("/shard?keyspace=objects&number=5")
        assert answer.location == "/shards/objects/5"
        page = text_of(client, "/shards/objects/5")
        assert "db00005" in page
        assert str(5 << 46 | 1 << 36) in page
        assert client.get("/shards/objects/8").status_code == 404
        assert client.get("/shards/nothing/1").status_code == 404
        assert client.get("/servers/nothing").status_code == 404
        assert client.get("/shard?number=x").status_code == 400

    def test_a_missing_server_is_shown_and_fails_no_page(self, scene):
        shutil.rmtree(scene.folder / "data" / "server2")
        client = scene.client()
        for path in PAGES:
            page = text_of(client, path)
            assert "<b>server2</b>, primary" in page
            assert "<b>server1</b>, primary" not in page

    def test_what_no_server_has_said_is_unknown(self, scene):
        shutil.rmtree(scene.folder / "data")
        client = scene.client()
        page = text_of(client, "/schema")
        assert f"{SHARDS} shards not read" in page
        assert "all shards alike" not in page
        assert "no revision" not in page
        assert "0 B" not in text_of(client, "/")

    def test_a_page_waits_once_for_servers_that_hang(self, scene, monkeypatch):
        # No time passes but that which a page waits.
        now, resumed = [0.0], Event()
        monkeypatch.setattr(cached_reading, "monotonic", lambda: now[0])

        def wait_for(is_done: Callable[[], bool], timeout: float) -> bool:
            now[0] += timeout
            return is_done()

        for one in vars(scene.observer).values():
            if isinstance(one, cached_reading.CachedReading):
                monkeypatch.setattr(one, "_read", partial(resumed.wait, 60))
                monkeypatch.setattr(one._changed, "wait_for", wait_for)
        client = scene.client()
        try:
            for path in PAGES:
                begun = now[0]
                status = 503 if path.startswith("/servers") else 200
                text_of(client, path, status)
                assert now[0] - begun <= PATIENCE, path
        finally:
            resumed.set()

    def test_a_moved_range_is_drawn(self, scene):
        new = json.loads(json.dumps(scene.document))
        first, second = new["keyspaces"]["objects"]["servers"]
        first["shards"], second["shards"] = [0, 1], [2, 7]
        new["epoch"] += 1
        scene.cluster.update_topology(Topology.from_mapping(new))
        page = text_of(scene.client(), "/history")
        assert "moved from" in page
        assert "shards 2-3" in page
        # Before: 4 and 4 shards; after: 2, then 6 of which 2 are new there.
        (after,) = re.findall(r'aria-label="objects after.*?</svg>', page)
        widths = re.findall(r'x="([\d.]+)" width="([\d.]+)"', after)
        assert widths == [("0.0", "25.0"), ("25.0", "75.0")]

    def test_a_statement_is_explained_and_not_run(self, scene):
        page = text_of(
            scene.client(),
            "/explain?q=select(Pin).order_by(Pin.ts).limit(2).options(scatter())",
        )
        assert page.count("data-route-server=") >= 2
        assert "Merge" in page
        refused = text_of(scene.client(), "/explain?q=open('/etc/passwd')", 400)
        assert "&#39;open&#39;, which is not known" in refused

    def test_each_shard_is_looked_at_once_and_not_for_each_server(self, monkeypatch):
        """With 65,536 shards on 64 servers a page took 9 s, with the GIL held."""
        servers = [
            {
                "name": f"s{n}",
                "primary": f"mysql://u@h{n}",
                "shards": [4 * n, 4 * n + 3],
            }
            for n in range(64)
        ]
        topology = Topology.from_mapping(
            {
                "epoch": 1,
                "keyspaces": {
                    "objects": {
                        "kind": "objects",
                        "database": "db{shard:05d}",
                        "shards": 256,
                        "servers": servers,
                    }
                },
            }
        )
        reads = 0

        def counted(target, name):
            nonlocal reads
            reads += name == "server"
            return object.__getattribute__(target, name)

        with Cluster(topology) as cluster:
            client = create_app(Observer(cluster, models=[Base])).test_client()
            monkeypatch.setattr(Target, "__getattribute__", counted, raising=False)
            page = text_of(client, "/explain?q=select(Pin).options(scatter())")
        assert page.count("data-route-server=") == 64
        assert 256 <= reads <= 3 * 256

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("update(Pin).join()", "no attribute &#39;join&#39;"),
            ("update(Board).values(titel='x')", "titel"),
            ("select(Board).join(Pin, Pin)", "is not valid: "),
            (f"select({'9' * 3900} * {'9' * 3900})", "is not valid: "),
        ],
        ids=range(4),
    )
    def test_a_mistake_is_answered(self, scene, text, message):
        page = scene.client().get("/explain", query_string={"q": text})
        assert page.status_code == 400
        assert 'role="alert"><span>the statement ' in page.text
        assert message in page.text

    def test_no_mistake_is_another_error(self, scene):
        answered = 0
        for begin in ("select(Pin)", "update(Pin)", "delete(Pin)", "Pin.id"):
            for method, argument in product(
                sorted(_METHODS), ("", "1", "Board.ts", "x=1")
            ):
                text = f"{begin}.{method}({argument})"
                if begin == "Pin.id":
                    text = f"select(Pin).where({text})"
                try:
                    scene.observer.explain(text, None)
                except StatementTextError:
                    answered += 1
        assert answered > 200

    def test_sql_is_explained_by_its_databases_and_not_run(self, scene):
        client = scene.client()
        with StatementLog() as log:
            page = text_of(
                client,
                "/explain?q=DELETE FROM db00003.pins, `db00001` . boards"
                " WHERE note = 'db00002.x' /* db00004.y */",
            )
            assert "2 shards on 1 server," in page
            assert "because of the databases that it names" in page
            shown = re.findall(r'title="[^"]*/(\w+)\.sqlite"', page)
            assert shown == ["db00001", "db00003"]
            page = text_of(client, "/explain?q=SELECT * FROM pins WHERE note = ':b'")
            assert "Refused." in page
            assert "pass bind_arguments" in page
            assert "SQL is not parsed here" in page
            page = text_of(client, "/explain?q=UPDATE db00099.pins SET a = 1", 400)
            assert 'role="alert"' in page
            assert re.search(r"shard 99\b.* is not open", page)
        assert not log.statements

    def test_an_id_of_one_of_several_keyspaces(self, tmp_path):
        document = sqlite_topology(tmp_path, 2, SHARDS)
        times = TimeLayout(epoch_ms=1_600_000_000_000)
        document["keyspaces"]["photos"] = {
            **document["keyspaces"]["objects"],
            "database": "photos{shard:05d}",
            "id_layout": times.to_mapping(),
        }
        number = times.pack_time(1_700_000_000_000, 3, 9)
        with Cluster.from_topology(document) as cluster:
            client = create_app(Observer(cluster)).test_client()
            page = text_of(client, f"/explain?q={number}&keyspace=photos")
            assert "<span>2023-11-14T22:13:20.000Z</span>" in page
            assert "Keyspace <b>photos</b>" in page
            assert "<option selected>photos</option>" in page
            ambiguous = text_of(client, f"/explain?q={number}", 400)
            assert 'role="alert"' in ambiguous

    def test_text_is_escaped(self, scene):
        page = text_of(scene.client(), "/explain?q=<script>alert(1)</script>", 400)
        assert "<script>alert" not in page
        page = scene.client().get("/servers/<b>x</b>").text
        assert "<b>x</b>" not in page


class TestChanging:
    def test_without_permission_there_is_no_address_for_it(self, scene):
        job = fail_job(scene.cluster, 1)
        client = scene.client()
        assert "<button" not in text_of(client, "/jobs/titles").split("<main")[1]
        for change in ("retry", "delete"):
            answer = client.post(f"/jobs/titles/{change}", data={"job": job})
            assert answer.status_code == 404
        for path in PAGES:
            assert client.post(path).status_code == 405
        stored = stored_job(scene.cluster, job)
        assert stored is not None
        assert stored.state is JobState.FAILED

    @pytest.mark.parametrize("token", [None, "", "wrong", "of another"])
    def test_a_form_needs_its_token(self, scene, token):
        job = fail_job(scene.cluster, 1)
        client = scene.client(allow_changes=True)
        token_of(client)
        if token == "of another":
            token = token_of(scene.client(allow_changes=True))
        data = {"job": job} if token is None else {"job": job, "token": token}
        answer = client.post("/jobs/titles/delete", data=data)
        assert answer.status_code == 403
        assert stored_job(scene.cluster, job) is not None

    def test_a_request_of_another_site_is_refused(self, scene):
        job = fail_job(scene.cluster, 1)
        client = scene.client(allow_changes=True)
        data = {"job": job, "token": token_of(client)}
        for site in ("cross-site", "same-site"):
            answer = client.post(
                "/jobs/titles/delete", data=data, headers={"Sec-Fetch-Site": site}
            )
            assert answer.status_code == 403
        assert stored_job(scene.cluster, job) is not None

    def test_jobs_are_retried_and_deleted(self, scene):
        jobs = [fail_job(scene.cluster, number) for number in range(1, 5)]
        client = scene.client(allow_changes=True)
        data = {"token": token_of(client), "state": "failed"}

        def post(change: str, **more: str) -> str:
            answer = client.post(f"/jobs/titles/{change}", data={**data, **more})
            assert answer.status_code == 303
            return text_of(client, answer.location)

        assert "1 job retried." in post("retry", job=jobs[0])
        assert "1 job deleted." in post("delete", job=jobs[1])
        page = post("retry", job=jobs[1])
        assert "0 jobs retried." in page
        assert "is not there" in page
        assert "2 jobs retried." in post("retry")
        for job in (jobs[0], *jobs[2:]):
            stored = stored_job(scene.cluster, job)
            assert stored is not None
            assert stored.state is JobState.PENDING
        assert stored_job(scene.cluster, jobs[1]) is None

    def test_an_invalid_job_id_is_refused(self, scene):
        fail_job(scene.cluster, 1)
        client = scene.client(allow_changes=True)
        data = {"token": token_of(client), "job": "objects/99/1'--"}
        answer = client.post("/jobs/titles/delete", data=data)
        assert answer.status_code == 400

    def test_a_secret_key_is_needed_for_changes(self, scene):
        app = Flask(__name__)
        with pytest.raises(ExtensionSetupError, match="SECRET_KEY"):
            app.register_blueprint(
                dashboard_blueprint(scene.observer, allow_changes=True)
            )


class TestServing:
    @pytest.mark.parametrize("path", ["/", "/static/dashboard.css", "/nope"])
    def test_another_host_name_is_refused(self, scene, path):
        client = scene.client(hosts=["127.0.0.1", "LOCALHOST", "[::1]", "0::1"])
        for host in (
            *("evil.example", "127.0.0.1.evil.example", "localhost."),
            *("[::2]:8417", "[::1", "::1", "[127.0.0.1].evil.example", ""),
        ):
            answer = client.get(path, headers={"Host": host})
            assert answer.status_code == 400
        for host in (
            *("127.0.0.1:8417", "localhost:8417", "LocalHost"),
            *("[::1]:8417", "[::1]", "[0::1]:8417"),
        ):
            answer = client.get("/", headers={"Host": host})
            assert answer.status_code == 200

    def test_requests_of_another_site_are_refused(self, scene):
        client = scene.client()

        def status(path: str, site: str, mode: str, dest: str) -> int:
            given = {"Site": site, "Mode": mode, "Dest": dest}
            headers = {f"Sec-Fetch-{k}": v for k, v in given.items()}
            return client.get(path, headers=headers).status_code

        link = "navigate", "document"
        for site in ("cross-site", "same-site"):
            assert status("/", site, "no-cors", "image") == 403
            assert status("/", site, "navigate", "iframe") == 403
            assert status("/events?topic=jobs", site, "cors", "empty") == 403
            assert status("/explain?q=7", site, *link) == 403
            assert status("/pools", site, *link) == 200
        assert status("/explain?q=7", "same-origin", *link) == 200
        assert status("/explain?q=7", "none", *link) == 200

    def test_an_origin_without_other_headers_is_judged(self, scene):
        """Browsers send Sec-Fetch-Site to HTTPS, and to this machine, only."""
        client = scene.client()

        def status(**headers: str) -> int:
            return client.get("/pools", headers=headers).status_code

        assert status(Host="127.0.0.1:8417") == 200
        for origin in ("https://evil.example", "null", "http://127.0.0.1:1", "x"):
            assert status(Host="127.0.0.1:8417", Origin=origin) == 403
        assert status(Host="127.0.0.1:8417", Origin="http://127.0.0.1:8417") == 200

    @pytest.mark.parametrize("host", ["192.0.2.1", "::"])
    def test_it_is_served_on_the_loopback_interface_only(self, scene, host):
        with pytest.raises(ExtensionSetupError, match="without a login"):
            DashboardServer(scene.observer, host=host)

    def test_an_application_mounts_it_behind_its_login(self, scene):
        app = Flask(__name__)
        blueprint = dashboard_blueprint(scene.observer)
        allowed = False

        @blueprint.before_request
        def only_operators():
            if not allowed:
                abort(401)

        app.register_blueprint(blueprint, url_prefix="/shards")
        client = app.test_client()
        answer = client.get("/shards/")
        assert answer.status_code == 401
        assert "Content-Security-Policy" in answer.headers
        allowed = True
        page = text_of(client, "/shards/")
        assert 'href="/shards/static/dashboard.css"' in page
        assert client.get("/").status_code == 404

    def test_streams_are_limited_and_released(self, scene):
        streams = Streams(scene.observer, most=2)
        first, second = streams.open("jobs"), streams.open("fleet")
        assert first is not None
        assert second is not None
        assert next(first) == "retry: 2000\n\n"
        assert next(first).startswith("data: ")
        assert streams.open("jobs") is None
        first.close()
        first.close()
        # One that was never read is released, too.
        second.close()
        assert all(streams.open("jobs") for _ in range(2))

    def test_a_stream_reports_a_change(self, scene):
        streams = Streams(scene.observer)
        stream = streams.open("history")
        assert stream is not None
        next(stream)
        before = next(stream)
        topology = scene.cluster.topology
        scene.cluster.update_topology(replace(topology, epoch=topology.epoch + 1))
        assert next(stream) != before
        streams.close()
        stream.close()


def test_a_pending_operation_is_shown(scene, tmp_path, monkeypatch):
    monkeypatch.setitem(kinds(), Toy.kind, Toy)
    plan = Toy.plan(scene.fleet, tmp_path, title="split of server1")
    record = Record(
        id="20260101-toy",
        plan=replace(plan, costs=("writes pause for 80 ms",)).as_dict(),
        token=1,
        holder="host pid 7",
        started=1_750_000_000.0,
        step="fence",
        done=("copy",),
    )
    hold = scene.fleet.journal.begin(record)
    try:
        page = text_of(scene.client(), "/operations")
        assert "split of server1" in page
        assert "in progress" in page
        assert "writes are stopped" in page
        assert "writes pause for 80 ms" in page
        assert page.count('<li class="') == len(STEPS)
        assert '<li class="done">copy it' in page
        assert '<li class="current" aria-current="step">fence it' in page
    finally:
        hold.release()


def test_a_past_operation_is_shown_with_its_pause(scene, tmp_path, monkeypatch):
    monkeypatch.setitem(kinds(), Toy.kind, Toy)
    plan = Toy.plan(scene.fleet, tmp_path, title="split of server1")
    record = Record(id="1", plan=plan.as_dict(), token=1, holder="host", started=1.0)
    hold = scene.fleet.journal.begin(record)
    hold.write(replace(record, state="finished").with_pause(0.0312))
    hold.release()
    page = text_of(scene.client(), "/operations")
    assert "No operation is in progress" in page
    assert "<td>31 ms</td>" in page


def test_a_plan_of_another_version_is_shown(scene):
    plan = FleetPlan(kind="unheard-of", title="new", epoch=1, arguments={})
    record = Record(id="1", plan=plan.as_dict(), token=1, holder="host", started=1.0)
    hold = scene.fleet.journal.begin(record)
    try:
        assert "in progress" in text_of(scene.client(), "/operations")
    finally:
        hold.release()
