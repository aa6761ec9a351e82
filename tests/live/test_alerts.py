"""Each alert rule is raised by its fault, and by no other.

A Prometheus scrapes ``sqla-shard exporter`` and an application, with the rules
of the repository; only their times are shorter.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import threading
from time import monotonic

import httpx
import prometheus_client
import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import create_engine, make_url

from sqla_shard import Cluster
from sqla_shard.exc import CommitUnknownError
from sqla_shard.jobs.claims import FAILED, PENDING
from sqla_shard.monitor import measure_load, publish_load
from sqla_shard.monitor.metrics import FLEET
from sqla_shard.monitor.prometheus import PrometheusMetrics
from sqla_shard.outbox.tables import METADATA
from sqla_shard.testing import Proxy
from tests.models.clusters import at
from tests.models.models import Base, Pin
from tests.servers.command_line import COMMAND, environment, ROOT, write
from tests.servers.prometheus import MONITORING, PrometheusServer, require_prometheus

pytestmark = [pytest.mark.live, pytest.mark.slow_on_servers]

SHARDS = 4
#: Seconds of the exporter.
TIMEOUT = 4
#: Seconds within which an alert is raised, or ends.
DEADLINE = 200
#: Seconds in which further alerts of a fault are raised: two scrapes.
SETTLED = 11

RULES = {"[5m]": "[30s]"}


class Scene:
    """Two servers, one behind a proxy, one with a standby, and exporters."""

    def __init__(self, folder, kind):
        self.folder = folder
        self.stack = contextlib.ExitStack()
        enter = self.stack.enter_context
        self.single = enter(kind.server("server1", fast=True))
        self.pair = enter(kind.pair("server2", fast=True))
        self.proxy = enter(Proxy(self.single.host, self.single.port, tls=False))
        self.primary = self.pair.primary
        for server in (self.single, *self.pair.servers):
            _let_see_replication(server, kind.lag_privilege)
        self._create()
        self.load = folder / "load"
        self.publish(1)
        self.application_file = folder / "application.json"
        self.topology(self.application_file, 1)
        self.exporter, self.url = self._start_exporter()
        self.cluster = enter(Cluster.from_file(self.application_file))
        registry = CollectorRegistry()
        metrics = PrometheusMetrics(self.cluster, registry)
        self.stack.callback(metrics.stop)
        server, thread = prometheus_client.start_http_server(0, "127.0.0.1", registry)
        self.stack.callback(thread.join)
        self.stack.callback(server.server_close)
        self.stack.callback(server.shutdown)
        self.prometheus = enter(
            PrometheusServer(
                {
                    "127.0.0.1:9477": self.url.split("/")[2],
                    "127.0.0.1:8000": f"127.0.0.1:{server.server_port}",
                },
                RULES,
            )
        )

    def document(self, epoch):
        """Return the topology; the first server is behind the proxy."""
        behind = make_url(self.single.url).set(port=self.proxy.port)
        servers = [
            {
                "name": "server1",
                "primary": behind.render_as_string(hide_password=False),
                "shards": [0, 1],
            },
            {
                "name": "server2",
                "primary": self.primary.url,
                "standby": self.pair.standby.url,
                "shards": [2, 3],
            },
        ]
        keyspace = {
            "kind": "objects",
            "shards": SHARDS,
            "database": "db{shard:05d}",
            "servers": servers,
        }
        return {"epoch": epoch, "keyspaces": {"objects": keyspace}}

    def topology(self, path, epoch):
        """Replace a topology file."""
        new = write(path.parent, self.document(epoch), f".{path.name}")
        new.replace(path)

    def publish(self, epoch):
        self.topology(self.folder / "topology.json", epoch)

    def _create(self):
        """Create the tables of the shards, and a revision of each."""
        document = self.document(1)
        with Cluster.from_topology(document) as cluster:
            cluster.create_all(Base.metadata, keyspace="objects")
        for shard in range(SHARDS):
            url = make_url(self.server_of(shard).url).set(
                drivername="mysql+pymysql", database=f"db{shard:05d}"
            )
            engine = create_engine(url)
            METADATA.create_all(engine)
            engine.dispose()
            self.execute(
                shard,
                "CREATE TABLE alembic_version (version_num VARCHAR(32) PRIMARY KEY)",
            )
            self.execute(shard, "INSERT INTO alembic_version VALUES ('a1')")

    def server_of(self, shard):
        return self.single if shard < 2 else self.primary

    def execute(self, shard, sql, parameters=()):
        """Run a statement in the database of a shard."""
        with (
            self.server_of(shard).root_connect(database=f"db{shard:05d}") as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(sql, parameters or None)

    def _start_exporter(self):
        errors = self.stack.enter_context((self.folder / "exporter.log").open("w"))
        process = subprocess.Popen(
            [
                *COMMAND,
                *("-t", self.folder / "topology.json", "exporter"),
                *("--port", "0", "--timeout", str(TIMEOUT)),
                *("--interval", "0"),
                *("--directory", self.load),
            ],
            cwd=ROOT,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        self.stack.callback(self._stop_exporter, process)
        self.load.mkdir()
        line = process.stdout.readline()
        assert line.startswith("serving http://127.0.0.1:"), line
        return process, line.split()[1]

    def _stop_exporter(self, process):
        process.send_signal(signal.SIGCONT)
        process.terminate()
        assert process.wait(60) == 0
        process.stdout.close()


def _let_see_replication(server, privilege):
    """Give the application the privilege for the state of a standby."""
    with server.root_connect() as connection:
        cursor = connection.cursor()
        # Each server by itself: otherwise replication would stop.
        cursor.execute("SET SESSION sql_log_bin = 0")
        cursor.execute("SELECT host FROM mysql.user WHERE user = %s", (server.user,))
        for (host,) in cursor.fetchall():
            cursor.execute(f"GRANT {privilege} ON *.* TO %s@%s", (server.user, host))


@pytest.fixture(scope="module")
def scene(tmp_path_factory, server_kind):
    require_prometheus()
    folder = tmp_path_factory.mktemp("alerts")
    scene = Scene(folder, server_kind)
    with scene.stack:
        yield scene


# -- Faults: each is a context manager, by the name of its alert.


@contextlib.contextmanager
def exporter_down(scene):
    os.kill(scene.exporter.pid, signal.SIGSTOP)
    yield
    os.kill(scene.exporter.pid, signal.SIGCONT)


@contextlib.contextmanager
def server_down(scene):
    scene.single.kill()
    yield
    scene.single.start()


@contextlib.contextmanager
def server_slow(scene):
    # More than the limit of the rule.  The state of a server takes about 20
    # round trips: with a longer delay it would not be read within TIMEOUT.
    scene.proxy.delay = 0.12
    yield
    scene.proxy.delay = 0


@contextlib.contextmanager
def with_variable(server, name, value):
    ((before,),) = server.root_execute(f"SELECT @@GLOBAL.{name}")
    server.root_execute(f"SET GLOBAL {name} = {value}")
    yield
    server.root_execute(f"SET GLOBAL {name} = {before}")


def primary_read_only(scene):
    return with_variable(scene.single, "read_only", 1)


def standby_writable(scene):
    return with_variable(scene.pair.standby, "read_only", 0)


@contextlib.contextmanager
def connections_exhausted(scene):
    with (
        with_variable(scene.single, "max_connections", 200),
        contextlib.ExitStack() as stack,
    ):
        for _ in range(184):
            stack.enter_context(scene.single.root_connect())
        yield


@contextlib.contextmanager
def replication_stopped(scene):
    scene.pair.standby.root_execute("STOP REPLICA")
    yield
    scene.pair.standby.root_execute("START REPLICA")
    scene.pair.wait_caught_up()


@contextlib.contextmanager
def standby_lags(scene):
    late = "INSERT INTO alembic_version VALUES ('late')"
    with scene.pair.standby.root_connect() as locking:
        locking.cursor().execute("LOCK TABLES db00002.alembic_version WRITE")
        with scene.primary.root_connect(database="db00002") as writing:
            cursor = writing.cursor()
            cursor.execute("BEGIN")
            cursor.execute("SET SESSION timestamp = UNIX_TIMESTAMP() - 1000")
            cursor.execute(late)
            cursor.execute("DELETE FROM alembic_version WHERE version_num = 'late'")
            cursor.execute("COMMIT")
        yield
    scene.pair.wait_caught_up()


@contextlib.contextmanager
def with_row(scene, table, values):
    """Insert a row on a shard, and delete it."""
    names = ", ".join(values)
    marks = ", ".join(
        value if value.startswith("@") else repr(value) for value in values.values()
    ).replace("@old", "NOW() - INTERVAL 1 DAY")
    scene.execute(3, f"INSERT INTO {table} ({names}) VALUES ({marks})")
    yield
    scene.execute(3, f"DELETE FROM {table}")


def operations_pending(scene):
    return with_row(
        scene,
        "sqla_shard_intent",
        {
            "token": "0123456789abcdef",
            "operation": "rename",
            "arguments": "[]",
            "home_shard": "3",
            "keyspace": "objects",
            "shard_id": "2",
            "created_at": "@old",
            "due_at": "@old",
            "attempts": "4",
        },
    )


def invalidations_pending(scene):
    return with_row(
        scene,
        "sqla_shard_outbox",
        {
            "token": "0123456789abcdef",
            "region": "pins",
            "cache_key": "a",
            "shard_id": "3",
            "created_at": "@old",
        },
    )


def _job(scene, state):
    values = {
        "shard_id": "3",
        "task": "titles",
        "queue": "titles",
        "priority": "1",
        "state": str(state),
        "due_at": "@old",
        "created_at": "@old",
        "attempts": "0",
        "max_attempts": "3",
        "arguments": "[]",
    }
    return with_row(scene, "sqla_shard_job", values)


def jobs_failed(scene):
    return _job(scene, FAILED)


def jobs_late(scene):
    return _job(scene, PENDING)


@contextlib.contextmanager
def schema_differs(scene):
    scene.execute(1, "UPDATE alembic_version SET version_num = 'b2'")
    yield
    scene.execute(1, "UPDATE alembic_version SET version_num = 'a1'")


@contextlib.contextmanager
def counts_incomplete(scene):
    scene.execute(1, "RENAME TABLE sqla_shard_outbox TO elsewhere")
    yield
    scene.execute(1, "RENAME TABLE elsewhere TO sqla_shard_outbox")


@contextlib.contextmanager
def topology_old(scene):
    epoch = scene.cluster.topology.epoch + 1
    scene.publish(epoch)
    yield
    scene.topology(scene.application_file, epoch)


@contextlib.contextmanager
def topology_unconfirmed(scene):
    document = json.loads(scene.application_file.read_text())
    scene.application_file.unlink()
    yield
    scene.topology(scene.application_file, document["epoch"])


@contextlib.contextmanager
def commits_uncertain(scene):
    session = scene.cluster.session()
    session.add(at(0, Pin(title="a")))
    session.flush()
    scene.proxy.cut_at_commit(when="after")
    with pytest.raises(CommitUnknownError):
        session.commit()
    session.close()
    yield
    scene.proxy.restore()


@contextlib.contextmanager
def hot(scene):
    meter = measure_load(scene.cluster, rate=1)
    publisher = publish_load(meter, scene.load)
    ended = threading.Event()

    def read():
        while not ended.wait(0.05):
            with scene.cluster.session() as session:
                session.get(Pin, (2 << 46) | (1 << 36) | 1)

    reader = threading.Thread(target=read)
    reader.start()
    yield
    ended.set()
    reader.join()
    publisher.stop()
    meter.stop()
    for path in scene.load.iterdir():
        path.unlink()


FAULTS = {
    "ShardExporterDown": exporter_down,
    "ShardServerDown": server_down,
    "ShardServerSlow": server_slow,
    "ShardPrimaryReadOnly": primary_read_only,
    "ShardStandbyWritable": standby_writable,
    "ShardConnectionsExhausted": connections_exhausted,
    "ShardReplicationStopped": replication_stopped,
    "ShardStandbyLags": standby_lags,
    "ShardOperationsPending": operations_pending,
    "ShardInvalidationsPending": invalidations_pending,
    "ShardJobsFailed": jobs_failed,
    "ShardJobsLate": jobs_late,
    "ShardSchemaDiffers": schema_differs,
    "ShardCountsIncomplete": counts_incomplete,
    "ShardTopologyOld": topology_old,
    "ShardTopologyUnconfirmed": topology_unconfirmed,
    "ShardCommitsUncertain": commits_uncertain,
    "ShardHot": hot,
}


def wait_for(scene, expected):
    """Wait until exactly these alerts fire."""
    end = monotonic() + DEADLINE
    pause = threading.Event()
    found = scene.prometheus.alerts()
    while found != expected:
        assert monotonic() < end, (
            found,
            expected,
            (scene.folder / "exporter.log").read_text()[-3000:],
        )
        pause.wait(0.5)
        found = scene.prometheus.alerts()


def test_every_rule_has_a_fault_and_is_valid(scene):
    rules = scene.prometheus.rules()
    assert {rule["name"] for rule in rules} == set(FAULTS)
    done = subprocess.run(
        [shutil.which("promtool"), "check", "rules", MONITORING / "alerts.yml"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("alert", FAULTS)
def test_each_alert_is_raised_by_its_fault_and_by_no_other(scene, alert):
    wait_for(scene, set())
    with contextlib.ExitStack() as stack:
        fault = FAULTS[alert](scene)
        fault.__enter__()
        # It ends after a failed test, too: otherwise all others would fail.
        stack.callback(fault.__exit__, None, None, None)
        wait_for(scene, {alert})
        # All other alerts of the fault are raised by now.
        threading.Event().wait(SETTLED)
        wait_for(scene, {alert})
    wait_for(scene, set())


def test_a_server_that_hangs_delays_no_scrape(scene):
    scene.proxy.hang()
    try:
        start = monotonic()
        response = httpx.get(scene.url, timeout=DEADLINE)
        seconds = monotonic() - start
    finally:
        scene.proxy.restore()
    lines = response.text.splitlines()
    up = 'sqla_shard_server_up{role="%s",server="%s"} %s'
    assert up % ("primary", "server1", "0.0") in lines
    assert up % ("primary", "server2", "1.0") in lines
    # Without a limit it would be the 30 seconds of the driver.
    assert seconds < 5 * TIMEOUT
    wait_for(scene, set())


def test_all_metrics_of_the_fleet_were_scraped(scene):
    names = {one.prometheus_name for one in FLEET}
    assert names <= scene.prometheus.names()
    for rule in scene.prometheus.rules():
        assert rule["health"] == "ok", rule
