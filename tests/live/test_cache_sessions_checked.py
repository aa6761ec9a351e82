"""Sessions with a cache in processes that are killed, while things fail.

Objects and lists are read and written in several processes, on few keys, with
random delays at every step.  No read may know less than a write that was
acknowledged before it began; but for keys that wait in an outbox.  The same
is shown to find what others do wrong, and what would be wrong with ours
without one of its parts.
"""

from __future__ import annotations

import os
from collections import Counter
from contextlib import ExitStack
from functools import partial
from time import monotonic

import pytest

from sqla_shard.testing import Proxy
from sqla_shard.testing.topology_documents import topology_document
from tests.models.cache_session_models import SHARDS
from tests.servers.cache_session_policies import BROKEN
from tests.servers.cache_session_scene import Program, Scene
from tests.servers.memcached import nodes
from tests.servers.published import moved
from tests.servers.roles import exchange_roles, kill_application

pytestmark = [
    pytest.mark.live,
    pytest.mark.slow_on_servers,
    pytest.mark.usefixtures("memcached_installed"),
    pytest.mark.timeout(1200),
]

SOAK = os.environ.get("SQLA_SHARD_SOAK") == "1"
# A machine that is busy may take so long to see what is wrong, or until a
# failover was not given up; a quiet one takes ten seconds.
PATIENCE = 900
# Of a run that finds nothing, at least, and at most; there is an end to it
# as soon as enough was done.
LEAST, MOST = (600, 700) if SOAK else (2, PATIENCE)
OPTIONS = ["--innodb-lock-wait-timeout=2"]


@pytest.fixture(scope="module")
def program():
    program = Program()
    yield program
    program.close()


@pytest.fixture(scope="module")
def databases(server_kind):
    """A pair, and a server on its own."""
    with ExitStack() as stack:
        pair = server_kind.pair("server1", fast=True, options=OPTIONS)
        other = server_kind.server(
            "server2", fast=True, options=OPTIONS, password=pair.primary.password
        )
        yield stack.enter_context(pair), stack.enter_context(other)


@pytest.fixture(scope="module")
def servers(memcached_installed):
    with nodes(3) as servers:
        yield servers


@pytest.fixture
def scene(program, databases, servers, tmp_path, rng):
    pair, other = databases
    document = topology_document(
        {"server1": pair.primary.url, "server2": other.url},
        SHARDS,
        database=f"db_{rng.getrandbits(40):x}_{{shard:05d}}",
    )
    return Scene(
        program=program,
        databases=[pair.primary, other],
        nodes=servers,
        document=document,
        folder=tmp_path,
        rng=rng,
        least=LEAST,
        most=MOST,
    )


def shown(scene, report):
    """Return the first that is stale, and what led to it."""
    one = report.stale[0]
    since = one.read.start - 0.5
    led = [
        event
        for event in scene.events
        if event.key == one.read.key and since < event.end < one.read.end
    ]
    led.sort(key=lambda event: event.end)
    return "\n".join(map(str, [len(report.stale), one, *led[-40:]]))


def nothing_stale(scene, say, *kinds, also=lambda: True, **settings):
    """Run until enough was done for a meaningful check."""

    def enough(report):
        return also() and all(report.counts[kind] > 10 for kind in kinds)

    report = scene.run(enough=enough, **settings)
    say(f"cache: {dict(report.counts)}")
    assert not report.stale, shown(scene, report)
    assert report.exempt == set()
    # A machine that is busy does less.
    assert all(report.counts[kind] for kind in kinds)


def failures(scene):
    """Return what has failed; but for lack of time, on a busy machine."""
    events = (*scene.events, *scene.logged_events())
    failed = {event.key for event in events if event.kind == "failed"}
    return {one for one in failed if "RetriesExhausted" not in one}


WRITES = ("write", "add")


def test_nothing_is_stale_while_topologies_change(scene, say):
    def renumber(over):
        """Have newer topologies that say the same."""
        while not over.wait(0.5):
            epoch = scene.document["epoch"] + 1
            scene.publish({**scene.document, "epoch": epoch})

    nothing_stale(scene, say, "cached", *WRITES, during=renumber)
    assert failures(scene) == set()


def test_nothing_is_stale_when_processes_are_killed(scene, say):
    nothing_stale(scene, say, "read", *WRITES, nodes=3, life=0.8)
    assert failures(scene) == set()


def test_only_keys_in_an_outbox_are_stale_when_nodes_fail(scene, say):
    nothing_stale(
        *(scene, say, "read", *WRITES),
        nodes=3,
        life=2.0,
        timeout=0.05,
        during=scene.faults,
        also=lambda: any(e.kind == "exempt" for e in scene.logged_events()),
    )
    assert failures(scene) == set()


#: Of the one node, and so that lists are read between two writes.
PAUSED = {"nodes": 1, "timeout": 0.05, "idle": 0.05}


def test_nothing_is_added_to_lists_that_are_old(scene, say):
    scene.narrow(range(SHARDS), ("bag", "marks"))
    pauses = partial(scene.faults, kinds=["pause"])
    nothing_stale(scene, say, "cached", *WRITES, during=pauses, **PAUSED)
    assert failures(scene) == set()


# -- servers that lose COMMITs, and COMMITs that take long ------------------


@pytest.fixture
def line(databases):
    """The way to the server that commits last."""
    _, other = databases
    with Proxy(other.host, other.port, tls=False) as proxy:
        yield proxy


def on_both(scene, line):
    """Read and write rows of both servers, of one through the proxy."""
    first, second = scene.document["keyspaces"]["objects"]["servers"]
    host, port = f"@{line.server_host}:{line.server_port}", line.port
    assert host in second["primary"]
    url = second["primary"].replace(host, f"@{line.host}:{port}")
    document = moved(scene.document, first, {**second, "primary": url})
    scene.publish(document)
    scene.subjects = scene.sums


#: So that old values are read before the next write removes them.
HALVED = {"nodes": 1, "timeout": 0.05, "idle": 0.2}


def half_committed(scene):
    return any("PartialCommit" in one for one in failures(scene))


def test_results_of_several_servers_when_some_commit(scene, line, say):
    on_both(scene, line)
    nothing_stale(
        *(scene, say, "cached", "write"),
        **HALVED,
        during=partial(scene.halve, line),
        also=lambda: half_committed(scene),
    )


#: Longer than a tombstone, which counts in full seconds.
SLOW = {"tombstone": 1, "slow": 2.5}


def test_nothing_is_stale_after_commits_that_take_long(scene, say):
    scene.narrow([0, 1], ("pin", "bag") if SOAK else ("pin",))
    nothing_stale(scene, say, "cached", "write", in_loop=True, **SLOW)


# -- failovers ------------------------------------------------------------


@pytest.fixture
def on_pair(scene, databases):
    """Limit the scene to the shards of the pair; return the pair."""
    scene.narrow(range(SHARDS // 2))
    pair, _ = databases
    pair.wait_caught_up()
    yield pair
    for server in pair.servers:
        allow(server, may=True)


def allow(server, *, may):
    """Allow or deny connections of the application; end existing ones."""
    how = "UNLOCK" if may else "LOCK"
    with server.root_connect() as connection:
        cursor = connection.cursor()
        cursor.execute("SET SESSION sql_log_bin = 0")
        account = f"'{server.user}'@'{server.host}'"
        cursor.execute(f"ALTER USER {account} ACCOUNT {how}")
    if not may:
        kill_application(server)


def promoted(scene, server, **more):
    """Return the topology in which a server of the pair is the primary."""
    _, second = scene.document["keyspaces"]["objects"]["servers"]
    first = {"name": "server1", "primary": server.url, **more}
    return moved(scene.document, first, second)


def test_nothing_is_stale_after_a_failover(scene, on_pair, say):
    def fail_over_and_back(over):
        pair = on_pair
        while not over.wait(10 if SOAK else 1):
            old, new = pair.primary, pair.standby

            def publish(old=old, new=new):
                # Processes with the old topology cannot read there; only the
                # cache can have old values.
                allow(new, may=True)
                allow(old, may=False)
                number = scene.document["epoch"] + 1
                scene.publish(promoted(scene, new, generation=number))

            if exchange_roles(pair, publish):
                scene.databases = [pair.primary, *scene.databases[1:]]
                done.append(monotonic())

    def read_since():
        hits = [e for e in scene.logged_events() if e.kind == "read" and e.cached]
        return done and sum(e.start > done[0] for e in hits) > 20

    done = []
    before = scene.document["epoch"]
    scene.publish(promoted(scene, on_pair.primary, generation=before + 1))
    nothing_stale(
        *(scene, say, "cached", *WRITES), during=fail_over_and_back, also=read_since
    )
    assert scene.document["epoch"] > before + 1


def rejoin(pair):
    """Let the other server replicate again, without the lost writes."""
    position, old = pair.primary.position(), pair.standby
    reset, name = {
        "mariadb": ("MASTER", "gtid_slave_pos"),
        "mysql": ("BINARY LOGS AND GTIDS", "gtid_purged"),
    }[old.kind]
    old.root_execute("STOP REPLICA")
    old.root_execute(f"RESET {reset}")
    old.root_execute(f"SET GLOBAL {name} = %s", (position,))
    pair.attach(old)


def lost_pins(scene, since, seen_since):
    """Return how many pins the cache has that the standby has not.

    :param since: when the standby has stopped to follow.
    :param seen_since: they were read from the cache after that.
    """
    events = sorted(scene.logged_events(), key=lambda event: event.end)
    versions = Counter()
    seen = set()
    for event in events:
        if event.start > since and event.key.startswith("pin"):
            if event.kind == "write":
                versions[event.key] = event.version
            elif (
                event.cached
                and event.start > seen_since
                and event.version == versions[event.key]
            ):
                seen.add(event.key)
    return len(seen)


@pytest.mark.parametrize("policy", ["ours", "no-generation"])
def test_nothing_is_left_of_what_a_failover_has_lost(scene, on_pair, policy, say):
    pair = on_pair
    scene.narrow(range(SHARDS), ("pin", "bag"))
    scene.lossy = scene.document["epoch"] + 1
    scene.most = PATIENCE

    def lose(over):
        """Promote a standby that has not all."""
        old, new = pair.primary, pair.standby
        new.root_execute("STOP REPLICA")
        since = monotonic()
        while not lost_pins(scene, since, since) and not over.is_set():
            over.wait(0.1)
        old.root_execute("SET GLOBAL read_only = 1")
        # Transactions in their COMMIT may have deleted them again.
        fenced = monotonic()
        while not lost_pins(scene, since, fenced) and not over.is_set():
            over.wait(0.1)
        allow(old, may=False)
        scene.document = promoted(scene, new)
        new.root_execute("SET GLOBAL read_only = 0")
        new.root_execute("RESET REPLICA ALL")
        scene.events += scene.present(life=2)
        scene.publish(scene.document)
        scene.databases = [new, *scene.databases[1:]]
        pair.name_primary(new)

    def enough(report):
        if policy != "ours":
            return any(one.read.life == 2 for one in report.stale)
        events = [e for e in scene.logged_events() if e.life == 2]
        reads = Counter(e.key for e in events if e.kind == "read")
        pins = sum(reads[key] > 5 for key in reads if key.startswith("pin"))
        return pins > 1 or report.stale != []

    try:
        report = scene.run(policy, enough=enough, during=lose)
    finally:
        rejoin(pair)
    say(f"{policy}: {len(report.stale)} of {dict(report.counts)}")
    if policy == "ours":
        assert not report.stale, shown(scene, report)
    else:
        assert any(one.read.life == 2 for one in report.stale)


# -- findings of the checker ----------------------------------------------


@pytest.mark.parametrize("policy", ["plain", "dogpile", *BROKEN])
def test_the_same_finds_what_is_wrong(scene, policy, say):
    kinds = ("items",) if policy == "no-absence" else ("pin",)
    scene.narrow([0], kinds)
    finds(scene, say, policy, delay=0.005)


def finds(scene, say, policy, **settings):
    """Run until something is wrong, or there was time enough.

    It runs again if a transaction whose outcome is unknown excuses, before
    all processes have ended, the keys that were stale.
    """
    scene.least, deadline = 0, monotonic() + PATIENCE
    while True:
        scene.most = deadline - monotonic()
        report = scene.run(policy, enough=lambda report: bool(report.stale), **settings)
        say(f"{policy}: {len(report.stale)} of {dict(report.counts)}")
        if report.stale:
            return
        assert monotonic() < deadline


def test_the_same_finds_keys_that_wait_where_nothing_commits(scene, line, say):
    on_both(scene, line)
    halve = partial(scene.halve, line)
    finds(scene, say, "one-outbox", during=halve, **HALVED)


def test_the_same_finds_what_is_not_awaited(scene, say):
    scene.narrow([0, 1], ("pin",))
    finds(scene, say, "unawaited", delay=0.01, in_loop=True, **SLOW)


@pytest.mark.skipif(
    not SOAK, reason="a busy machine may find nothing in the time of a short run"
)
def test_the_same_finds_what_is_added_to_old_lists(scene, say):
    scene.narrow(range(SHARDS), ("bag", "marks"))
    pauses = partial(scene.faults, kinds=["pause"])
    finds(scene, say, "adding-to-old", during=pauses, **PAUSED)
