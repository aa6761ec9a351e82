"""sqla-shard with topologies in a real ZooKeeper."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys

import pytest

pytest.importorskip("kazoo")

from click.shell_completion import ShellComplete
from kazoo.client import KazooClient

from sqla_shard import Topology
from sqla_shard.cli import completion
from sqla_shard.cli.program import program
from sqla_shard.testing import sqlite_topology, ZooKeeperServer
from sqla_shard.topology import to_json
from sqla_shard.topology.history import PublicationNote
from sqla_shard.topology.zookeeper.publisher import Publisher
from tests.models.sqlite_files import with_files
from tests.servers.command_line import COMMAND, environment, invoke, run, write
from tests.servers.zookeeper import document, place, SECRET, topology

pytestmark = pytest.mark.live


@pytest.fixture(autouse=True)
def credentials(monkeypatch):
    """Without them anyone can change the topology: it warns."""
    monkeypatch.setenv("SQLA_SHARD_ZOOKEEPER_AUTH", f"digest:me:{SECRET}")


@pytest.fixture
def location(zookeeper_server):
    return place(zookeeper_server.hosts)


@pytest.fixture
def publisher(location):
    with Publisher(location) as found:
        yield found


def push(location, path, *more):
    return invoke("-t", location, "topology", "push", path, "--yes", *more)


def test_push_history_and_rollback(location, tmp_path, publisher):
    one = write(tmp_path, document(1), "one.json")
    two = write(tmp_path, document(2, hosts=("one", "three")), "two.json")
    done = push(location, one)
    assert done.exit_code == 0
    assert f"first topology at {location}\nepoch 1\n" in done.stdout
    assert done.stdout.endswith(f"published epoch 1 at {location}\n")
    assert done.stderr == ""
    done = push(location, two, "--expect-epoch", 1)
    assert done.exit_code == 0
    assert "epoch 1 -> 2\nobjects: primary of 'b'" in done.stdout
    assert "warning: primaries change, but publishing moves no" in done.stderr
    done = push(location, two)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.endswith("epoch 2 is already published\n")
    done = invoke("-t", location, "topology", "history")
    assert re.fullmatch(
        r"(epoch [21]: [-\d]+ [:\d]+\+00:00, \d+ bytes, \S+@\S+\n){2}", done.stdout
    )
    back = ("-t", location, "topology", "rollback", "--to", 1)
    done = invoke(*back, "--dry-run")
    assert done.exit_code == 0
    assert done.stdout.endswith("dry run: nothing was published\n")
    assert publisher.current() == topology(2, hosts=("one", "three"))
    done = invoke(*back, "--yes")
    assert done.exit_code == 0
    assert "epoch 2 -> 3\n" in done.stdout
    assert "warning: primaries change" in done.stderr
    assert publisher.current() == topology(3)
    shown = invoke("-t", location, "topology", "history", "--json")
    entries = json.loads(shown.stdout)
    assert [one["epoch"] for one in entries] == [3, 2, 1]
    assert set(entries[0]) == {"epoch", "published", "bytes", "author", "message"}


def test_the_history_says_who_and_why(location, tmp_path, publisher):
    # As versions of this package without notes did.
    publisher.publish(topology(1))
    two = write(tmp_path, document(2, shards=16), "two.json")
    said = ("-m", "more shards,\n\x1b[31mat last", "--author", "ops@desk")
    assert push(location, two, *said, "--dry-run").exit_code == 0
    assert push(location, two, *said).exit_code == 0
    back = ("-t", location, "topology", "rollback", "--to", 2, "--yes")
    # Nothing is published, and the note stays.
    assert push(location, two, "-m", "again").exit_code == 0
    three = write(tmp_path, document(3, shards=32), "three.json")
    assert push(location, three, "-m", "a", "--author", "b").exit_code == 0
    done = invoke(*back[:-1], "--dry-run", "-m", "x" * 2001)
    assert done.exit_code == 2
    assert "must have at most 2000 characters, not 2001" in done.stderr
    shown = invoke("-t", location, "topology", "history")
    lines = shown.stdout.splitlines()
    assert [line.partition(" bytes")[2] for line in lines] == [
        ", b: a",
        ", ops@desk: more shards, \\x1b[31mat last",
        "",
    ]
    # A reset publishes epochs again, and has notes of its own.
    reset = ("-t", location, "topology", "reset", two, "--yes")
    assert invoke(*reset, "--author", "c").exit_code == 1
    wide = write(tmp_path, document(2, shards=32), "wide.json")
    reset = ("-t", location, "topology", "reset", wide, "--yes")
    assert invoke(*reset, "--author", "c").exit_code == 0
    found = [(one.epoch, one.author, one.message) for one in publisher.history()]
    assert found == [(2, "c", None), (1, None, None)]


def test_notes_are_removed_with_their_topologies(location):
    with Publisher(location, keep=2) as publisher:
        for epoch in range(1, 6):
            note = PublicationNote(message=str(epoch))
            publisher.publish(topology(epoch), note=note)
        found = [(one.epoch, one.message) for one in publisher.history()]
        assert found == [(5, "5"), (4, "4")]
    hosts, _, path = location.removeprefix("zookeeper://").partition("/")
    client = KazooClient(hosts)
    client.start()
    names = sorted(client.get_children(f"/{path}/history"))
    client.stop()
    client.close()
    assert names == ["0000000004", "0000000004.note", "0000000005", "0000000005.note"]


def test_push_with_an_acl(location, tmp_path):
    one = write(tmp_path, document(1), "one.json")
    acl = ("--acl", "world:anyone:cdrwa", "--acl", "ip:127.0.0.1:r")
    assert push(location, one, *acl).exit_code == 0
    hosts, _, path = location.removeprefix("zookeeper://").partition("/")
    client = KazooClient(hosts)
    client.start()
    client.add_auth("digest", f"me:{SECRET}")
    for node in ("topology", "history/0000000001"):
        found, _ = client.get_acls(f"/{path}/{node}")
        assert [one.id.scheme for one in found] == ["world", "ip"]
    client.stop()
    client.close()
    done = push(location, one, "--acl", "nobody")
    assert done.exit_code != 0
    assert "scheme:id:permissions" in done.stderr


def test_push_in_json(location, tmp_path):
    path = write(tmp_path, document(1))
    done = invoke("topology", "push", path, "--to", location, "--yes", "--json")
    assert json.loads(done.stdout) == {
        "location": location,
        "old_epoch": None,
        "new_epoch": 1,
        "dry_run": False,
        "published": True,
        "diff": None,
        "generations": [],
    }
    path = write(tmp_path, document(2, shards=16))
    found = json.loads(push(location, path, "--json", "--dry-run").stdout)
    assert (found["dry_run"], found["published"]) == (True, False)
    assert found["diff"]["opened"] == [{"keyspace": "objects", "old": 8, "new": 16}]


def test_generations(location, tmp_path, publisher):
    one = write(tmp_path, document(1, generation=1), "one.json")
    hosts = ("one", "three")
    two = write(tmp_path, document(2, hosts=hosts, generation=1), "two.json")
    assert push(location, one).exit_code == 0
    note = "\nobjects: generation of 'b' is 2 instead of 1\n"
    done = push(location, two, "--dry-run")
    assert "\nobjects: generation of 'b' 1 -> 2\n" in done.stdout
    assert note in done.stdout
    found = json.loads(push(location, two, "--dry-run", "--json").stdout)
    assert found["generations"] == [
        {"keyspace": "objects", "server": "b", "given": 1, "published": 2}
    ]
    assert found["diff"]["generations"] == [
        {"keyspace": "objects", "server": "b", "old": 1, "new": 2}
    ]
    done = push(location, two)
    assert note in done.stdout
    assert "generation" not in done.stderr
    assert publisher.current() == topology(2, hosts=hosts, generation=2)
    for options in ((), ("--next-epoch",)):
        done = push(location, two, *options)
        assert (done.exit_code, done.stderr) == (0, "")
        assert note in done.stdout
        assert done.stdout.endswith("epoch 2 is already published\n")
    lower = write(tmp_path, document(3, hosts=hosts, generation=1), "l.json")
    done = push(location, lower)
    assert (done.exit_code, done.stdout) == (1, "")
    assert "generation: 1 is lower than 2, which 'b' has now" in done.stderr
    done = invoke("-t", location, "topology", "rollback", "--to", 1, "--yes")
    assert "generation of 'b' is 3 instead of 1\n" in done.stdout
    assert publisher.current() == topology(3, generation=3)
    new = write(tmp_path, document(4, hosts=hosts, generation=3), "new.json")
    done = push(location, new, "--renamed")
    assert "is the same machine under another name" in done.stderr
    assert publisher.current() == topology(4, hosts=hosts, generation=3)
    new = write(tmp_path, document(5, hosts=hosts, generation=4), "new.json")
    assert "changes while its primary stays" in push(location, new).stderr
    shown = invoke("-t", location, "topology", "show").stdout
    assert "b: mysql://app:${MYSQL_PASSWORD}@three" in shown
    assert "shards 4-7, generation 4\n" in shown


def test_completion_reads_zookeeper(location, publisher, monkeypatch):
    # In this process, so that a busy machine has all the time it needs.
    monkeypatch.setattr(completion, "_LIMIT", 60.0)
    publisher.publish(topology(1))
    publisher.publish(topology(12, shards=16))
    shell = ShellComplete(program, {}, "sqla-shard", "_UNUSED")
    for words, typed, values in (
        (("topology", "rollback", "--to"), "1", ["12", "1"]),
        (("fleet", "move"), "", ["a", "b"]),
    ):
        found = shell.get_completions(["-t", location, *words], typed)
        assert [one.value for one in found] == values


def test_open_nodes_are_warned_of_and_closed(location, tmp_path, monkeypatch):
    path = f"/{location.removeprefix('zookeeper://').partition('/')[2]}"
    monkeypatch.delenv("SQLA_SHARD_ZOOKEEPER_AUTH")
    done = push(location, write(tmp_path, document(1), "one.json"))
    assert done.exit_code == 0
    assert done.stderr == (
        f"warning: anyone can change {path}, {path}/topology, "
        f"{path}/history and 2 more and so redirect the passwords of the "
        "databases to another server; protect them with: sqla-shard topology "
        "protect\n"
    )
    protect = ("-t", location, "topology", "protect")
    done = invoke(*protect)
    assert done.exit_code == 1
    assert "set SQLA_SHARD_ZOOKEEPER_AUTH" in done.stderr
    monkeypatch.setenv("SQLA_SHARD_ZOOKEEPER_AUTH", f"digest:me:{SECRET}")
    done = invoke(*protect, "--dry-run")
    assert done.stdout.splitlines()[0] == (
        f"{path}/topology: world:anyone:cdrwa -> would be protected"
    )
    shown = json.loads(invoke(*protect, "--json").stdout)
    assert (len(shown["nodes"]), shown["open"]) == (5, [])
    assert SECRET not in str(shown)
    done = invoke(*protect)
    assert done.stdout == "all nodes are already protected\n"
    done = push(location, write(tmp_path, document(2), "two.json"))
    assert (done.exit_code, done.stderr) == (0, "")


def test_a_reset(location, tmp_path, publisher):
    one = write(tmp_path, document(41), "one.json")
    good = write(tmp_path, document(7), "good.json")
    assert push(location, one).exit_code == 0
    assert push(location, good).exit_code == 1
    reset = ("-t", location, "topology", "reset", good)
    done = invoke(*reset, "--dry-run")
    assert "epoch 41 -> 7\n" in done.stdout
    assert publisher.current() == topology(41)
    done = invoke(*reset, "--yes")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.endswith(f"published epoch 7 at {location}\n")
    assert publisher.current().version == (1, 7)
    shown = invoke("-t", location, "topology", "show", "--json")
    assert json.loads(shown.stdout)["resets"] == 1


def test_the_next_epoch(location, tmp_path, publisher):
    path = write(tmp_path, document(0))
    assert push(location, path, "--next-epoch").exit_code == 0
    assert publisher.current() == topology(1)
    done = push(location, path, "--next-epoch")
    assert "epoch 1 is already published" in done.stdout
    path = write(tmp_path, document(0, shards=16))
    done = push(location, path, "--next-epoch", "--expect-epoch", 1)
    assert "epoch 1 -> 2\n" in done.stdout
    assert publisher.current() == topology(2, shards=16)


def test_the_next_epoch_is_that_after_the_history(location, tmp_path, publisher):
    for epoch in (1, 2, 3):
        publisher.publish(topology(epoch))
    hosts, _, path = location.removeprefix("zookeeper://").partition("/")
    node = f"/{path}/topology"
    client = KazooClient(hosts)
    client.start()
    client.add_auth("digest", f"me:{SECRET}")
    try:
        client.set(node, to_json(topology(1)))
        file = write(tmp_path, document(0))
        done = push(location, file, "--next-epoch")
        assert "published epoch 4" in done.stdout, done.stderr
        client.delete(node)
        done = push(location, file, "--next-epoch")
        assert "published epoch 5" in done.stdout, done.stderr
        client.set(node, b"{")
        for options in (), ("--next-epoch",):
            done = push(location, file, *options)
            assert done.exit_code == 1
            assert "topology rollback --to 5" in done.stderr
    finally:
        client.stop()
        client.close()


@pytest.mark.parametrize(
    ("more", "options", "message"),
    [
        ({"epoch": 3, "shards": 16}, (), "has epoch 3 too"),
        ({"epoch": 2}, (), "has epoch 2, which is older"),
        ({"epoch": 4, "shards": 6}, (), "drops shards 6-7"),
        ({"epoch": 4, "password": SECRET}, (), "write ${MYSQL_PASSWORD} in"),
        ({"epoch": 4}, ("--expect-epoch", 2), "epoch 2 was to be replaced"),
        ({"epoch": 4, "password": "${OTHER}"}, (), "OTHER"),
    ],
)
def test_refusals(location, tmp_path, publisher, more, options, message):
    publisher.publish(topology(3))
    path = write(tmp_path, document(**more))
    for how in ((), ("--dry-run",), ("--json",)):
        done = push(location, path, *options, *how)
        assert (done.exit_code, done.stdout) == (1, "")
        assert message in done.stderr
        assert len(done.stderr.splitlines()) == 1
        assert SECRET not in done.output
    assert publisher.current() == topology(3)


@pytest.mark.parametrize("how", [(), ("--json",)])
def test_no_terminal_for_a_question(location, tmp_path, publisher, how):
    path = write(tmp_path, document(1))
    arguments = ("-t", location, "topology", "push", path, *how)
    done = run(tmp_path, *arguments, stdin="y\n")
    assert done.returncode == 2
    assert "add --yes" in done.stderr
    assert publisher.current() is None


def answered(answer, *arguments):
    """Return the status and the output, with an answer to its question."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        text=True,
    ) as process:
        os.close(theirs)
        os.write(ours, answer)
        printed, errors = process.communicate(timeout=60)
        os.close(ours)
    return process.returncode, printed, errors


def test_the_user_is_asked(location, tmp_path, publisher):
    arguments = ("-t", location, "topology", "push")
    path = write(tmp_path, document(1))
    status, printed, errors = answered(b"n\n", *arguments, path)
    assert (status, publisher.current()) == (1, None)
    assert "first topology" in printed
    assert f"publish epoch 1 at {location}? [y/N]" in errors
    status, printed, errors = answered(b"y\n", *arguments, path, "--json")
    assert status == 0
    assert json.loads(printed)["published"]
    assert "first topology" in errors
    assert publisher.current() == topology(1)


@pytest.mark.parametrize("command", ["push", "rollback", "agent"])
def test_a_file_is_no_zookeeper(tmp_path, command):
    path = write(tmp_path, document(1))
    more = {
        "push": [path],
        "rollback": ["--to", "1"],
        "agent": ["--out", tmp_path / "out.json"],
    }[command]
    for named in ((), ("-t", path)):
        done = invoke(*named, "topology", command, *more)
        assert done.exit_code == 2
        assert "this command requires the URL of a ZooKeeper" in done.stderr


# -- what takes a file takes a ZooKeeper


@pytest.fixture
def shop(location, publisher, tmp_path):
    """Publish a topology of SQLite files; return its location."""
    files = with_files(sqlite_topology(tmp_path, servers=2, shards=4))
    publisher.publish(Topology.from_mapping(files))
    return location


def test_looking(shop, tmp_path, publisher):
    for arguments, expected in (
        (("topology", "show"), "epoch 1\nobjects: kind objects, 4 shards"),
        (("topology", "validate"), f"{shop}: no problems in <Topology"),
        (("where", "211106232532999"), "shard 3 of objects: database"),
        (("explain", "211106232532999"), "shard 3 on server2 in"),
        (("topology", "diff", shop, shop), "epoch 1 -> 1\nnothing else"),
    ):
        done = invoke("-t", shop, *arguments)
        assert (done.exit_code, done.stderr) == (0, "")
        assert expected in done.stdout
    again = invoke("topology", "show", env={"SQLA_SHARD_TOPOLOGY": shop}).stdout
    assert again == invoke("-t", shop, "topology", "show").stdout
    mapping = invoke("-t", shop, "topology", "show", "--json").stdout
    path = write(tmp_path, json.loads(mapping), "same.json")
    done = invoke("topology", "diff", path, shop, "--exit-code")
    assert (done.exit_code, done.stdout) == (0, "epoch 1 -> 1\nnothing else changed\n")


def test_a_shell(shop, tmp_path):
    arguments = ("shell", "--shard", "3", "-c", "print(location)")
    done = run(tmp_path, "-t", shop, *arguments)
    assert done.returncode == 0, done.stderr
    assert "shard 3 of objects" in done.stdout


def test_schema_commands_by_alembic_ini(shop, tmp_path):
    (tmp_path / "shop.py").write_text(
        "from sqlalchemy import Column, Integer, MetaData, Table\n"
        "metadata = MetaData()\n"
    )
    done = run(
        tmp_path,
        *("-t", shop, "schema", "init", "migrations"),
        *("--models", "shop:metadata"),
    )
    assert done.returncode == 0, done.stderr
    assert f"topology = {shop}\n" in (tmp_path / "alembic.ini").read_text()
    state = tmp_path / "state"
    done = run(tmp_path, "schema", "status", XDG_STATE_HOME=str(state))
    assert done.returncode == 0, done.stderr
    assert "objects: 4 virtual shards" in done.stdout
    # A run uses the published topology, never a snapshot.
    assert not state.exists()


def test_missing_paths(location, tmp_path):
    done = invoke("-t", location, "topology", "show")
    assert done.exit_code == 1
    assert "nothing is published there" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    url = f"zookeeper://me:{SECRET}@zk1/prod"
    for arguments in (
        ("-t", url, "topology", "show"),
        ("-t", url, "topology", "history"),
        ("topology", "validate", url),
    ):
        done = invoke(*arguments)
        assert done.exit_code == 1
        assert SECRET not in done.output
        assert "SQLA_SHARD_ZOOKEEPER_AUTH" in done.output


def test_a_password_that_was_written_by_hand(location, publisher, tmp_path):
    """It is in ZooKeeper, and no command displays it."""
    publisher.publish(topology(1))
    hosts, _, path = location.removeprefix("zookeeper://").partition("/")
    client = KazooClient(hosts)
    client.start()
    client.add_auth("digest", f"me:{SECRET}")
    text = json.dumps(document(1, password=SECRET))
    client.set(f"/{path}/topology", text.encode())
    client.stop()
    client.close()
    next_file = write(tmp_path, document(2))
    for arguments in (
        ("topology", "show"),
        ("topology", "show", "--json"),
        ("topology", "validate", "--json"),
        ("topology", "diff", location, next_file),
        ("topology", "diff", location, next_file, "--json"),
        ("topology", "push", next_file, "--dry-run"),
        ("topology", "push", next_file, "--dry-run", "--json"),
        ("topology", "push", next_file, "--yes"),
        ("topology", "history", "--json"),
        ("topology", "rollback", "--to", "1", "--yes"),
        ("where", "211106232532999"),
    ):
        done = invoke("-t", location, *arguments)
        assert done.exit_code == 0, done.output
        assert SECRET not in done.output


def test_kazoo_is_loaded_for_zookeeper_alone(tmp_path):
    path = write(tmp_path, document(1))
    program = (
        "import sys\n"
        "sys.modules['kazoo'] = None\n"
        "from sqla_shard.cli.program import program\n"
        "program(sys.argv[1:])\n"
    )

    def without(*arguments):
        return subprocess.run(
            [sys.executable, "-c", program, *map(str, arguments)],
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
        )

    assert without("-t", path, "topology", "show").returncode == 0
    done = without("-t", "zookeeper://localhost/a", "topology", "history")
    assert done.returncode == 1
    assert "sqla-shard[zookeeper]" in done.stderr


def test_one_of_several_processes_wins(location, tmp_path, publisher):
    publisher.publish(topology(1))
    shards = [16, 17, 18]
    processes = [
        subprocess.Popen(
            [
                *(*COMMAND, "-t", location, "topology", "push", "--yes"),
                write(tmp_path, document(2, shards=count), f"{count}.json"),
            ],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for count in shards
    ]
    ended = [(*one.communicate(timeout=60), one.returncode) for one in processes]
    assert sorted(status for _, _, status in ended) == [0, 1, 1], ended
    (winner,) = (
        count
        for count, (_, _, status) in zip(shards, ended, strict=True)
        if status == 0
    )
    assert publisher.current() == topology(2, shards=winner)


def test_with_tls(tmp_path):
    with ZooKeeperServer(tls=True) as server:
        url = (
            f"zookeeper+tls://{server.hosts}/prod?ca={server.ca}"
            f"&certfile={server.certificate}&keyfile={server.key}"
        )
        done = push(url, write(tmp_path, document(1)))
        assert done.exit_code == 0, done.output
        assert invoke("-t", url, "topology", "show").exit_code == 0
