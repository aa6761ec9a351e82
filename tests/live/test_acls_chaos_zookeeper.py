"""A protected topology stays protected when processes are killed in a push."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.security import ACL, make_digest_acl

from sqla_shard.topology.zookeeper.publisher import Publisher
from tests.servers.command_line import environment, ROOT
from tests.servers.zookeeper import place, SECRET, topology

pytestmark = pytest.mark.live

ROUNDS = 60 if os.environ.get("SQLA_SHARD_SOAK") == "1" else 2
AUTH = {"SQLA_SHARD_ZOOKEEPER_AUTH": f"digest:me:{SECRET}"}
PROTECTED = {
    make_digest_acl("me", SECRET, all=True),
    make_digest_acl("reader", SECRET, read=True),
}


def start(location: str, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.workers.pushing", location, *more],
        cwd=ROOT,
        env=environment(**AUTH),
        stdout=subprocess.PIPE,
        text=True,
    )


def killed(pushers: list[subprocess.Popen[str]], rng: random.Random) -> list[str]:
    """Kill each after some lines and a moment; return the lines."""
    lines = []
    try:
        for pusher in pushers:
            assert pusher.stdout is not None
            for _ in range(rng.randint(1, 4)):
                line = pusher.stdout.readline()
                # It has not ended by itself.
                assert line, pusher.wait()
                lines.append(line)
            threading.Event().wait(rng.uniform(0, 0.01))
            pusher.kill()
    finally:
        for pusher in pushers:
            pusher.kill()
            pusher.communicate()
    return lines


def below(client: KazooClient, path: str) -> dict[str, set[ACL]]:
    """Return the ACLs of a node and of all below it."""
    found = {path: set(client.get_acls(path)[0])}
    for child in client.get_children(path):
        found.update(below(client, f"{path}/{child}"))
    return found


def open_nodes(
    server: Any, rng: random.Random, monkeypatch: pytest.MonkeyPatch, *more: str
) -> tuple[list[str], int]:
    """Return the nodes that are not protected, and how many there were."""
    for name, value in AUTH.items():
        monkeypatch.setenv(name, value)
    found, count = [], 0
    client = KazooClient(server.hosts)
    client.start()
    client.add_auth("digest", f"me:{SECRET}")
    try:
        for number in range(ROUNDS):
            location = place(server.hosts)
            path = "/" + location.removeprefix("zookeeper://").partition("/")[2]
            client.ensure_path(path, acl=list(PROTECTED))
            client.set_acls(path, list(PROTECTED))
            if number % 2:
                # There is one; else the folder alone is protected.
                with Publisher(location) as publisher:
                    publisher.publish(topology(1))
            pushers = [start(location, *more) for _ in range(2)]
            assert "published\n" in killed(pushers, rng)
            acls = below(client, path)
            count += len(acls)
            found += [one for one, acl in acls.items() if acl != PROTECTED]
    finally:
        client.stop()
        client.close()
    return found, count


def test_pushes_keep_the_acl(
    zookeeper_server: Any,
    rng: random.Random,
    monkeypatch: pytest.MonkeyPatch,
    say: Callable[[str], None],
) -> None:
    found, count = open_nodes(zookeeper_server, rng, monkeypatch)
    say(f"{count} nodes")
    assert found == []


def test_without_the_acl_of_others_they_open_it(
    zookeeper_server: Any, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, _ = open_nodes(zookeeper_server, rng, monkeypatch, "open")
    assert found != []
