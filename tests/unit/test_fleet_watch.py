"""Decisions of watchers, and estimates of lost transactions."""

from __future__ import annotations

import json
import random
import stat
import sys
import threading
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest

pytest.importorskip("kazoo")

from sqla_shard.exc import FleetServerError, FleetSetupError, UnknownServerError
from sqla_shard.fleet import write_access
from sqla_shard.fleet.fleet import all_pairs, pair_named
from sqla_shard.fleet.loss import Acknowledgements, loss_of, SemiSyncProbe
from sqla_shard.fleet.watch_votes import doubt, probe_of, Sight, vote_of
from sqla_shard.fleet.watcher import Hook, WatchReport
from sqla_shard.testing.local_server import wait_until
from sqla_shard.topology import Topology

ACKS = Acknowledgements(timeout=10.0, receiver=(20, 1000))
LOST = Sight(lost_for=5.0, seen_ago=5.5, acks=ACKS)
SEEN = replace(LOST, lost_for=None, seen_ago=0.1)


@pytest.mark.parametrize(
    ("sights", "reason"),
    [
        ([LOST, LOST, LOST], None),
        ([LOST, LOST], None),
        ([LOST], "no majority"),
        ([], "no majority"),
        ([LOST, LOST, SEEN], "1 of 3 watchers still see it"),
        ([LOST, replace(LOST, lost_for=2.0)], "1 of 3 watchers have not"),
    ],
)
def test_doubt(sights, reason):
    found = doubt(sights, watchers=3, dead_after=3.0)
    assert found is None if reason is None else reason in found


def test_of_four_watchers_three_must_agree():
    assert doubt([LOST, LOST], watchers=4, dead_after=3.0) is not None
    assert doubt([LOST] * 3, watchers=4, dead_after=3.0) is None
    # Four run, although three were configured.
    unsure = replace(LOST, lost_for=1.0)
    sights = [LOST, LOST, unsure, unsure]
    assert doubt(sights, watchers=3, dead_after=3.0) is not None


def test_the_last_look_of_any_watcher_counts():
    off = Acknowledgements(doubt="semi-sync was off")
    last = Sight(seen_ago=5.2, lost_for=4.0, acks=off)
    probe = probe_of([LOST, last], 100.0)
    # It may have served clients for as long as it was only not seen.
    assert probe == SemiSyncProbe(seen=94.8, lost=100.0, acks=off)
    assert probe_of([replace(LOST, seen_ago=None)], 100.0) is None


def test_a_vote_is_older_than_its_last_collection():
    sight = replace(LOST, seen_ago=0.5)
    found = sight.later(2.0)
    assert found.seen_ago == 2.5
    # As long as it was lost then: no more is known.
    assert found.lost_for == sight.lost_for
    assert found.acks == ACKS
    assert replace(sight, seen_ago=None).later(2.0).seen_ago is None


PROBE = SemiSyncProbe(
    seen=10.0, lost=10.5, acks=replace(ACKS, timeout=1.0, waiting=0.25)
)


@pytest.mark.parametrize(
    ("probe", "loss"),
    [
        (PROBE, "none: semi-sync was on at the last look, 0.5 s ago"),
        (None, "unknown: nobody has looked"),
        (
            replace(PROBE, acks=replace(ACKS, doubt="semi-sync was off")),
            "unknown: semi-sync was off at the last look, 0.5 s ago",
        ),
        (replace(PROBE, lost=11.0), "unknown: semi-sync was on"),
        (
            replace(PROBE, lost=10.75),
            "0.8 s ago, when a COMMIT had waited for 0.2 s, but it stops",
        ),
        (replace(PROBE, lost=9.0), "unknown: the clocks"),
    ],
)
def test_loss(probe, loss):
    assert loss in loss_of(probe)


@pytest.mark.parametrize(
    ("receiver", "is_same"),
    [
        ((20, 1000), True),
        # The start of a server is computed from whole seconds.
        ([20, 1001], True),
        ((21, 1000), False),
        ((20, 1060), False),
        (None, False),
    ],
)
def test_a_standby_that_has_started_again_is_in_doubt(receiver, is_same):
    loss = loss_of(PROBE.compared(receiver))
    assert loss.startswith("none") is is_same
    assert is_same or "unknown: the standby was restarted" in loss
    nobody = replace(PROBE, acks=replace(PROBE.acks, receiver=None))
    assert loss_of(nobody.compared(receiver)).startswith("unknown")


# -- votes of others ----------------------------------------------------------

VOTE = {"one:3306": asdict(LOST), "two:3306": asdict(SEEN)}


def test_a_vote_is_read():
    data = json.dumps(VOTE).encode()
    assert vote_of(data) == {"one:3306": LOST, "two:3306": SEEN}


def changed(**values):
    return json.dumps({"one:3306": {**VOTE["one:3306"], **values}}).encode()


def changed_acks(**values):
    return changed(acks={**VOTE["one:3306"]["acks"], **values})


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "Expecting value"),
        (b"\xff\xfe\x00", "decode"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b" " * 600_000, "600,000 bytes"),
        (b"[]", "not a JSON object"),
        (b'{"one:3306": 1}', "not of this version"),
        (b'{"one:3306": {}}', "not of this version"),
        (changed(more=1), "not of this version"),
        (changed(lost_for="5"), "lost_for"),
        (changed(lost_for=True), "lost_for"),
        (changed(lost_for=float("inf")), "lost_for"),
        (changed(lost_for=float("nan")), "lost_for"),
        (changed(lost_for=10**400), "lost_for"),
        (changed(lost_for=-1), "lost_for"),
        (changed(seen_ago=[]), "seen_ago"),
        (changed(acks=[]), "not of this version"),
        (changed_acks(timeout=None), "timeout"),
        (changed_acks(waiting="1"), "waiting"),
        (changed_acks(doubt=1), "doubt"),
        (changed_acks(doubt="x" * 2000), "doubt"),
        (changed_acks(receiver=[1]), "receiver"),
        (changed_acks(receiver=[1, 2.5]), "receiver"),
        (changed_acks(more=1), "not of this version"),
    ],
)
def test_a_vote_that_is_not_valid(data, reason):
    with pytest.raises(ValueError, match=reason):
        vote_of(data)


def test_votes_that_were_mutated(request, say):
    seed = request.config.getoption("hypothesis_seed")
    random_ = random.Random(seed)
    say(f"seed {seed}")
    first = json.dumps(VOTE).encode()
    for _ in range(20_000):
        data = bytearray(first)
        for _ in range(random_.randint(1, 4)):
            begin = random_.randrange(len(data))
            end = begin + random_.randint(0, 8)
            data[begin:end] = random_.choice(
                [
                    random_.randbytes(random_.randint(0, 4)),
                    first[end : end + random_.randint(0, 40)],
                    random_.choice([b"null", b"1e999", b"{}", b'"', b"-"]),
                ]
            )
        try:
            vote = vote_of(bytes(data))
        except ValueError:
            continue
        for sight in vote.values():
            # It can be counted, and written.
            doubt([sight], watchers=3, dead_after=3.0)
            loss_of(probe_of([sight], 100.0))
            again = json.dumps({"one:3306": asdict(sight)}).encode()
            assert vote_of(again) == {"one:3306": sight}


def test_durations_make_no_other_line():
    report = WatchReport(
        is_leader=True,
        lines=("server1: unknown at the last look, 2.5 s ago",),
        troubles=("server2: it stops waiting after -10 s",),
    )
    assert report.state == (
        "server1: unknown at the last look, # s ago",
        "server2: it stops waiting after # s",
    )


# -- pairs --------------------------------------------------------------------


def test_pairs_of_one_name_are_distinguished():
    servers = [
        {"name": "a", "primary": "mysql://one", "shards": [0, 7]},
        {"name": "a", "primary": "mysql://two", "shards": [0, 7]},
    ]
    topology = Topology.from_mapping(
        {
            "epoch": 1,
            "keyspaces": {
                name: {
                    "kind": "mod",
                    "shards": 8,
                    "database": f"{name}{{shard:05d}}",
                    "servers": [server],
                }
                for name, server in zip(("x", "y"), servers, strict=True)
            },
        }
    )
    pairs = all_pairs(topology)
    assert [pair.name for pair in pairs] == ["x/a", "y/a"]
    for pair in pairs:
        assert pair_named(topology, pair.name).primary == pair.primary
    with pytest.raises(UnknownServerError, match=r"'z/a' in .* it has x/a, y/a$"):
        pair_named(topology, "z/a")


# -- hooks --------------------------------------------------------------------

LONG = 60.0


def run_until_failed(hook):
    hook.run("server1: the primary is lost")

    def failed():
        hook.collect()
        return hook.failure is not None

    assert wait_until(failed, seconds=LONG)
    return hook.failure


@pytest.mark.parametrize("name", ["no-such-program", "/no/such/program"])
def test_a_hook_that_does_not_exist(name):
    with pytest.raises(FleetSetupError, match=f"the hook '{name}' is not"):
        Hook([name], seconds=LONG)


def test_a_hook_that_is_not_executable(tmp_path):
    file = tmp_path / "page"
    file.write_text("#!/bin/sh\n")
    with pytest.raises(FleetSetupError, match="that can be executed"):
        Hook([str(file)], seconds=LONG)


def test_a_missing_hook_is_reported(tmp_path):
    file = tmp_path / "page"
    file.write_text("#!/bin/sh\nexit 3\n")
    file.chmod(stat.S_IRWXU)
    hook = Hook([str(file)], seconds=LONG)
    assert run_until_failed(hook).endswith("ended with status 3")
    file.write_text("#!/bin/sh\nexit 0\n")
    hook.run("line")

    def ended():
        hook.collect()
        return hook.failure is None

    assert wait_until(ended, seconds=LONG)
    file.unlink()
    assert "cannot be started" in run_until_failed(hook)


def test_a_hook_that_hangs_is_killed_with_its_children(tmp_path):
    children = tmp_path / "children"
    program = (
        "import pathlib, subprocess, sys;"
        "one = subprocess.Popen(['sleep', '1000'],"
        " stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL);"
        "pathlib.Path(sys.argv[1]).write_text(str(one.pid));"
        "one.wait()"
    )
    hook = Hook([sys.executable, "-c", program, str(children)], seconds=2.0)
    hook.run("line")
    assert wait_until(children.exists, seconds=LONG)
    assert wait_until(children.read_text, seconds=LONG)
    pid = children.read_text()

    def killed():
        hook.collect()
        return hook.failure is not None

    assert wait_until(killed, seconds=LONG)
    assert hook.failure.endswith("was killed after 2 s")
    assert wait_until(lambda: is_gone(pid), seconds=LONG)


def is_gone(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            # A zombie, until its new parent asks for it.
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_hook_gets_the_line_and_no_password(tmp_path, monkeypatch):
    monkeypatch.setenv("SQLA_SHARD_OPERATOR_PASSWORD", "secret")
    output = tmp_path / "output"
    hook = Hook(
        ["sh", "-c", f"env > {output}.new; mv {output}.new {output}"], seconds=LONG
    )
    hook.run("server1: the primary is lost")
    assert wait_until(output.exists, seconds=LONG)
    text = output.read_text()
    assert "SQLA_SHARD_WATCH=server1: the primary is lost\n" in text
    assert "secret" not in text
    hook.close()


def test_former_primaries_are_looked_at_at_once(monkeypatch):
    """A machine that is off takes the whole time of a connection."""
    formers = {f"db{number}:3306": "server1" for number in range(5)}
    together = threading.Barrier(len(formers), timeout=60)

    class Admin:
        def __init__(self, url):
            self.is_open = "db1:" in url or "db3:" in url

        def __enter__(self):
            together.wait()
            return self

        def __exit__(self, *details):
            pass

    def admin(url, *, name, timeout):
        assert (name, timeout) == ("server1 former primary", 3.0)
        if "db4:" in url:
            together.wait()
            raise FleetServerError(server=url, number=2003, reason="is off")
        return Admin(url)

    monkeypatch.setattr(write_access, "former_primaries", lambda *_: formers)
    monkeypatch.setattr(
        write_access,
        "replication_of",
        lambda found: SimpleNamespace(is_read_only=lambda: not found.is_open),
    )
    monkeypatch.setattr(write_access, "former_url", lambda _, address: address)
    fleet = SimpleNamespace(topology=lambda: None, admin=admin)
    found = write_access.writable_formers(fleet, [], timeout=3.0)
    assert found == ["db1:3306", "db3:3306"]
