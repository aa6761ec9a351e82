"""Every command ends when a server, a node or ZooKeeper hangs."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.servers.kinds import Kind

pytest.importorskip("kazoo")

from examples.pinboard.models import Base
from sqla_shard import Cluster
from sqla_shard.cli.output import FAILED, NOT_READ
from sqla_shard.testing import MemcachedServer, Proxy, ZooKeeperServer
from sqla_shard.testing.local_server import wait_until
from tests.models import compressed_models, reference_models, spread_stages
from tests.servers.command_line import fleet_commands, MOVE_COMMANDS, ROOT, write
from tests.servers.frozen_commands import names_of_commands
from tests.workers.forks import Forks

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("memcached_installed")]

#: Seconds until all of them, which run side by side, must have ended.
#: Without limits they would wait for ever.
PATIENCE = 90.0
LIMITS = "?connect_timeout=1&read_timeout=1"
MODELS = ("--models", "examples.pinboard.models")
PACKED = ("--models", compressed_models.MODELS, "--class", "Packed")
SCHEMA = ("schema", "-c", str(ROOT / "examples/pinboard/alembic.ini"))
#: A user of shard 5, which is on the server that hangs.
USER = str(5 << 46 | 3 << 36 | 1)

#: Arguments of each command, its exit status and output.  The second of two
#: servers hangs, and the node of the cache.
DATABASES: dict[str, tuple[tuple[str, ...], int, str]] = {
    "repair": (("repair", "--once", *MODELS), NOT_READ, "server2"),
    "worker": (
        ("worker", "--once", "--models", "tests.models.job_models"),
        NOT_READ,
        "server2",
    ),
    "key": (("key", "order-17"), NOT_READ, "server2"),
    "halves": (("halves",), NOT_READ, "server2"),
    "queue list": (("queue", "list"), NOT_READ, "server2"),
    "queue stats": (("queue", "stats", "titles"), NOT_READ, "server2"),
    "queue scan": (("queue", "scan", "titles"), NOT_READ, "server2"),
    # The limits are on shard 0, which is on the other server.
    "queue pause": (("queue", "pause", "titles"), 0, "paused"),
    "queue resume": (("queue", "resume", "titles"), 0, "titles: open"),
    "queue limit": (("queue", "limit", "titles", "5"), 0, "5 jobs a second"),
    # Shard 5 is on the server that hangs.
    "queue show": (("queue", "show", "objects/5/1"), NOT_READ, ""),
    "queue retry": (("queue", "retry", "--queue", "titles"), NOT_READ, "server2"),
    "queue delete": (("queue", "delete", "objects/5/1"), NOT_READ, "1 shard 5"),
    "cache stats": (("cache", "stats", "--cache", "cache.toml"), NOT_READ, "server2"),
    "cache repair": (
        ("cache", "repair", "--cache", "cache.toml", "--once"),
        NOT_READ,
        "server2",
    ),
    "verify relations": (
        ("verify", "relations", *MODELS, "--grace", "0"),
        NOT_READ,
        "server2",
    ),
    "verify lookups": (
        ("verify", "lookups", *MODELS, "--grace", "0"),
        NOT_READ,
        "server2",
    ),
    "verify references": (
        ("verify", "references", "--models", "tests.models.reference_models"),
        NOT_READ,
        "server2",
    ),
    "verify sizes": (
        ("verify", "sizes", *MODELS, "--timeout", "5"),
        NOT_READ,
        "server2",
    ),
    "spread": (("spread", *spread_stages.MODELS, "--grace", "0"), NOT_READ, "server2"),
    "verify claims": (("verify", "claims", *MODELS), NOT_READ, "server2"),
    "blobs train": (("blobs", "train", *PACKED), FAILED, "server2"),
    "blobs activate": (("blobs", "activate", *PACKED), FAILED, "server2"),
    "blobs deactivate": (("blobs", "deactivate", *PACKED), NOT_READ, "server2"),
    "blobs rewrite": (("blobs", "rewrite", *PACKED), NOT_READ, "server2"),
    "blobs check": (("blobs", "check", *PACKED), NOT_READ, "server2"),
    "blobs status": (("blobs", "status", *PACKED), NOT_READ, "server2"),
    "shell": (
        ("shell", USER, "--python", *MODELS, "-c", f"session.get(User, {USER})"),
        NOT_READ,
        "server2",
    ),
    "schema status": ((*SCHEMA, "status", "--exit-code"), NOT_READ, "server2"),
    "schema verify": (
        (*SCHEMA, "verify", "--keyspace", "objects"),
        NOT_READ,
        "server2",
    ),
    "schema upgrade": ((*SCHEMA, "upgrade"), NOT_READ, "server2"),
    "schema downgrade": ((*SCHEMA, "downgrade", "base"), NOT_READ, "server2"),
    "schema provision": ((*SCHEMA, "provision", "--initial"), NOT_READ, "server2"),
    "schema resolve": (
        (*SCHEMA, "resolve", "5", "statement-done"),
        NOT_READ,
        "server2",
    ),
    "status": (("status",), NOT_READ, "server2"),
    "check": (("check",), NOT_READ, "server2"),
    "load": (("load", "--cache", "cache.toml"), 1, "do not respond"),
    "exporter": (("exporter", "--port", "0"), 0, "serving http://"),
    # These connect to nothing.
    "id": (("id", USER), 0, ""),
    "where": (("where", USER), 0, "server2"),
    "explain": (("explain", USER), 0, "server2"),
    "completion": (("completion", "bash"), 0, ""),
    # Otherwise it serves until SIGTERM comes.
    "dashboard": (("dashboard", "--host", "192.0.2.1"), 2, "without a login"),
    # It starts servers of its own, unless there is a topology.
    "dev up": (("dev", "up"), 2, "topology.json exists"),
    "topology show": (("topology", "show"), 0, "server2"),
    "topology validate": (("topology", "validate"), 0, ""),
    "topology diff": (("topology", "diff", "topology.json", "topology.json"), 0, ""),
    "migrate shadow": (("migrate", "shadow", "topology.json"), 1, "not a report"),
    "migrate suggest": (
        ("migrate", "suggest", "examples.microblog.single.models:Base"),
        0,
        "users",
    ),
    **{
        f"migrate {name}": (
            ("migrate", name, *given.split()),
            2,
            "is not a sqla_shard.migrate.Move",
        )
        for name, given in MOVE_COMMANDS.items()
    },
    "init": (("init", "project"), 0, "created"),
    "schema init": (("schema", "init", "revisions"), 0, ""),
    "schema template": (("schema", "template"), 0, ""),
    "fleet status": (("fleet", "status"), 0, "no operation"),
    "fleet history": (("fleet", "history"), 0, ""),
    # The accounts are missing.
    "fleet apply": (("fleet", "apply", "topology.json"), 1, "SQLA_SHARD_OPERATOR"),
    "fleet backup list": (("fleet", "backup", "list", "none"), 0, ""),
    "fleet backup prune": (
        ("fleet", "backup", "prune", "none", "--keep-last", "7"),
        0,
        "",
    ),
    "fleet backup verify": (("fleet", "backup", "verify", "none"), 0, "0 backups"),
    "fleet restore": (
        ("fleet", "restore", "none", "objects", "7"),
        1,
        "SQLA_SHARD_OPERATOR",
    ),
    **{
        path: (tuple(given.split()), 1, "SQLA_SHARD_OPERATOR")
        for path, given in fleet_commands().items()
    },
    "fleet resume": (("fleet", "resume"), 1, "SQLA_SHARD_OPERATOR"),
    "fleet undo": (("fleet", "undo"), 1, "SQLA_SHARD_OPERATOR"),
}
#: They wait until the ZooKeeper is there, or SIGTERM comes.
AGENT = "topology agent"
UNTIL_ENDED = (AGENT, "exporter")
SILENT = "no server answered within 5 seconds"
#: With a ZooKeeper that hangs.
ZOOKEEPERS: dict[str, tuple[tuple[str, ...], int, str]] = {
    name: (("topology", *arguments), 0 if name == AGENT else 1, SILENT)
    for name, arguments in {
        "topology push": ("push", "topology.json", "--yes"),
        "topology history": ("history",),
        "topology protect": ("protect", "--dry-run"),
        "topology reset": ("reset", "topology.json", "--yes"),
        "topology rollback": ("rollback", "--to", "1", "--yes"),
        "topology watch": ("watch",),
        AGENT: ("agent", "--out", "agent.json"),
        "any other": ("show",),
    }.items()
}
CASES = {**DATABASES, **ZOOKEEPERS}


def test_no_command_is_left_out() -> None:
    assert set(CASES) == {*names_of_commands(), "any other"}


@pytest.fixture(scope="module")
def outcomes(
    server_kind: Kind,
    zookeeper_server: ZooKeeperServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, Any]]:
    """Run all of them, and yield their output by name."""
    directory = tmp_path_factory.mktemp("frozen")
    with ExitStack() as stack:
        fleet = stack.enter_context(server_kind.fleet(servers=2, shards=8, fast=True))
        document = fleet.topology_mapping(lookup=4)
        with Cluster.from_topology(document, environ=fleet.environ) as cluster:
            cluster.create_all(Base.metadata)
            cluster.create_all(reference_models.Base.metadata)
            cluster.create_all(compressed_models.Base.metadata)
            cluster.create_all(spread_stages.Base.metadata)
        for keyspace in document["keyspaces"].values():
            for one in keyspace["servers"]:
                one["primary"] += LIMITS
        write(directory, document)
        host, port = zookeeper_server.hosts.split(":")
        zookeeper = stack.enter_context(Proxy(host, int(port)))
        node = stack.enter_context(MemcachedServer())
        (directory / "cache.toml").write_text(
            'prefix = "frozen"\n[regions.rows]\n'
            'backend = "sqla_shard.memcached"\n'
            f'arguments = {{servers = ["{node.address}"]}}\n'
        )
        fleet.servers[1].pause()
        stack.callback(fleet.servers[1].resume)
        node.pause()
        stack.callback(node.resume)
        zookeeper.hang()
        places = {
            name: directory / f"{number}.json" for number, name in enumerate(CASES)
        }
        numbers: dict[str, int] = {}
        forks = stack.enter_context(Forks("tests.servers.frozen_commands"))
        for name, (arguments, _, _) in CASES.items():
            location = "topology.json"
            if name in ZOOKEEPERS:
                location = f"zookeeper://{zookeeper.host}:{zookeeper.port}/it"
            numbers[name] = forks.start(
                "run_command",
                arguments=["-t", location, *arguments],
                directory=str(directory),
                result=str(places[name]),
            )
        ended = set(places) - set(UNTIL_ENDED)
        wait_until(
            lambda: all(places[name].exists() for name in ended), seconds=PATIENCE
        )
        for name in UNTIL_ENDED:
            os.kill(numbers[name], signal.SIGTERM)
            wait_until(places[name].exists, seconds=PATIENCE)
        yield {
            name: {
                **json.loads(place.read_text()),
                "said": place.with_suffix(".out").read_text(),
            }
            for name, place in places.items()
            if place.exists()
        }


@pytest.mark.parametrize("name", CASES)
def test_it_ends(outcomes: dict[str, Any], name: str) -> None:
    _, status, said = CASES[name]
    assert name in outcomes, f"{name} has not ended within {PATIENCE} s"
    found = outcomes[name]
    assert found["status"] == status, found
    assert said in found["said"], found
    assert "Traceback" not in found["said"]
