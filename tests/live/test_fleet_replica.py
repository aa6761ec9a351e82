"""Standbys are built, rebuilt and replaced while applications write."""

from __future__ import annotations

import contextlib
import getpass
import itertools
import json
import os
import random
import shutil
from concurrent.futures import ThreadPoolExecutor

import pymysql
import pytest

from sqla_shard.cli.dev_command import FLEET_OPTIONS
from sqla_shard.exc import (
    FleetLockedError,
    OperationFailedError,
    OperationRefusedError,
    UndoRefusedError,
)
from sqla_shard.fleet import apply, resume, row_copy, undo
from sqla_shard.fleet.failover import Failover
from sqla_shard.fleet.replica import Replica
from sqla_shard.fleet.replication import replication_kind
from sqla_shard.fleet.row_copy import RowCopy
from sqla_shard.fleet.write_access import Retire
from sqla_shard.testing.local_server import wait_until
from tests.servers.command_line import invoke
from tests.servers.fleet_load import wait_until_equal
from tests.servers.fleet_pairs import FleetPairs, MYSQL_OPTIONS
from tests.servers.fleet_processes import apply_until
from tests.servers.load_checks import check, rows_at, rows_of_places
from tests.servers.load_writers import create_tables, RawWriter
from tests.servers.published import places, publish_to
from tests.servers.server_statements import let_root_write, words
from tests.servers.writing_load import Load

pytestmark = pytest.mark.live

SHARDS = 8
# A single applier is slower than a primary with a few busy writers.
STANDBY_OPTIONS = {
    "mariadb": ("--read-only=1", "--slave-parallel-threads=4"),
    "mysql": ("--read-only=1", *MYSQL_OPTIONS),
}
SOAK = os.environ.get("SQLA_SHARD_SOAK") == "1"


class Scene:
    """A pair, and servers that can become its standby."""

    def __init__(self, pairs):
        self.pairs = pairs
        self.fleet = pairs.fleet()
        self.first = pairs["server1"].primary
        self.servers = list(pairs.servers)
        self.stack = contextlib.ExitStack()

    def new_server(self, *options):
        """Start an empty server with the accounts of the fleet."""
        more = {}
        if self.pairs.kind == "mariadb":
            more["gtid_domain_id"] = self.first.gtid_domain_id
        server = type(self.first)(
            f"new{len(self.servers)}",
            password=self.first.password,
            fast=True,
            options=(*FLEET_OPTIONS, *STANDBY_OPTIONS[self.pairs.kind], *options),
            **more,
        )
        server.start()
        self.stack.callback(server.stop)
        self.pairs.add_accounts(server)
        self.servers.append(server)
        return server

    def row_count(self, server):
        """Return the number of pins on a server."""
        rows = self.rows_on(server)
        return sum(len(shard.pins) for shard in rows.values())

    @property
    def document(self):
        return json.loads(self.pairs.path.read_text())

    @property
    def roles(self):
        """Return the primary and the standby of the topology."""
        (server,) = self.document["keyspaces"]["objects"]["servers"]
        by_url = {server.url: server for server in self.servers}
        return by_url[server["primary"]], by_url.get(server.get("standby"))

    def without_standby(self):
        """Publish a topology that names no standby."""
        document = self.document
        document["epoch"] += 1
        del document["keyspaces"]["objects"]["servers"][0]["standby"]
        publish_to(self.pairs.path, document)

    def with_standby(self, server):
        """Publish a topology that names a server as the standby."""
        document = self.document
        document["epoch"] += 1
        document["keyspaces"]["objects"]["servers"][0]["standby"] = server.url
        publish_to(self.pairs.path, document)

    def rows_on(self, server):
        names = {shard: p[1] for shard, p in places(self.document).items()}
        with server.root_connect() as connection:
            return rows_at(connection, names)

    def prove(self, attempts):
        """Check that nothing was lost, and that the standby is equal."""
        primary, standby = self.roles
        wait_until_equal(primary, standby)
        rows = rows_of_places(places(self.document))
        assert check(attempts, rows) == []
        assert self.rows_on(standby) == rows
        assert primary.root_execute("SELECT @@read_only") == [(0,)]
        assert standby.root_execute("SELECT @@read_only") == [(1,)]
        databases = standby.root_execute("SHOW DATABASES")
        assert ("sqla_shard_copy",) not in databases

    def empty(self):
        """Remove the rows of the test before."""
        primary, _ = self.roles
        with primary.connect() as connection:
            for _, name in places(self.document).values():
                for table in ("load_pins", "load_notes"):
                    connection.cursor().execute(f"TRUNCATE `{name}`.{table}")

    def planned(self, action, server=None, **options):
        target = None if server is None else f"{server.host}:{server.port}"
        return Replica.planned(self.fleet, action, "server1", target, **options)


@pytest.fixture(scope="module")
def scene(server_kind, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fleet")
    with FleetPairs(folder, pairs=1, shards=SHARDS, pair=server_kind.pair) as pairs:
        scene = Scene(pairs)
        names = [place[1] for place in places(pairs.document()).values()]
        with scene.first.connect() as connection:
            create_tables(connection, names)
        pairs["server1"].wait_caught_up()
        with scene.stack:
            yield scene


@pytest.fixture
def rng(request, say):
    seed = request.config.getoption("hypothesis_seed")
    say(f"seed {seed}")
    return random.Random(seed)


@pytest.fixture
def load(scene, tmp_path, request):
    scene.empty()
    with Load(
        RawWriter(path=scene.pairs.path),
        shards=range(SHARDS),
        folder=tmp_path,
        seed=request.config.getoption("hypothesis_seed"),
        processes=2,
    ) as load:
        load.wait_for_acks(30)
        yield load


def applied(scene, plan, say):
    assert plan.problems == ()
    events = []
    result = apply(scene.fleet, plan, progress=events.append)
    assert result.state == "finished"
    assert not any("problem" in note for note in result.notes.values())
    say(f"{result}; {result.notes['copy']}")
    return result


def test_a_standby_is_built_and_promoted(scene, load, say):
    scene.without_standby()
    new = scene.new_server()
    plan = scene.planned("build", new)
    assert plan.arguments["source"] == plan.arguments["primary"]
    assert any("copied from the primary" in text for text in plan.warnings)
    result = applied(scene, plan, say)
    primary, standby = scene.roles
    source, _ = words(primary).SEMI_SYNC
    assert f"where semi-sync is off; on it: SET GLOBAL {source}_enabled" in str(result)
    assert standby is new
    load.wait_for_acks(30)
    applied_failover = apply(scene.fleet, Failover.planned(scene.fleet, "server1"))
    assert applied_failover.state == "finished"
    assert scene.roles == (new, primary)
    load.wait_for_acks(30)
    scene.prove(load.stop())


def fences(server):
    return set(
        server.root_execute(
            "SELECT Db FROM mysql.db WHERE Select_priv = 'N' AND Db LIKE 'db00%'"
        )
    )


@pytest.mark.thorough
def test_a_standby_has_the_fences_of_its_primary(scene, load, say):
    primary, _ = scene.roles
    new = scene.new_server()
    for server, name in ((primary, "db00900"), (new, "db00000")):
        with server.root_connect() as connection:
            cursor = connection.cursor()
            cursor.execute("SET SESSION sql_log_bin = 0")
            cursor.execute(
                "INSERT INTO mysql.db (User, Host, Db) VALUES (%s, %s, %s)",
                (server.user, server.host, name),
            )
            cursor.execute("FLUSH LOCAL PRIVILEGES")
    try:
        applied(scene, scene.planned("replace", new), say)
        assert fences(new) == {("db00900",)}
        with new.connect() as connection:
            connection.cursor().execute("SELECT * FROM db00000.load_pins")
            with pytest.raises(pymysql.err.OperationalError, match="1044"):
                connection.cursor().execute("USE db00900")
        scene.prove(load.stop())
    finally:
        for server in (primary, new):
            with server.root_connect() as connection:
                cursor = connection.cursor()
                cursor.execute("SET SESSION sql_log_bin = 0")
                cursor.execute("DELETE FROM mysql.db WHERE Db = 'db00900'")
                cursor.execute("FLUSH LOCAL PRIVILEGES")


@pytest.mark.thorough
def test_a_standby_is_rebuilt(scene, load, say):
    primary, standby = scene.roles
    standby.root_execute("CREATE DATABASE db_errant")
    plan = scene.planned("rebuild")
    (problem,) = plan.problems
    assert "it has transactions that the primary does not have" in str(problem)
    origin = (
        f"-{standby.server_id}"
        if standby.kind == "mariadb"
        else standby.root_execute("SELECT @@server_uuid")[0][0]
    )
    assert f"{origin})" in str(problem)
    with pytest.raises(OperationRefusedError):
        apply(scene.fleet, plan)
    assert ("db_errant",) in standby.root_execute("SHOW DATABASES")
    plan = scene.planned("rebuild", discard_errant=True)
    assert f"{SHARDS + 1} databases" in plan.warnings[1]
    assert "db_errant" in plan.warnings[1]
    applied(scene, plan, say)
    assert ("db_errant",) not in standby.root_execute("SHOW DATABASES")
    assert scene.roles == (primary, standby)
    load.wait_for_acks(30)
    scene.prove(load.stop())


@pytest.mark.thorough
def test_a_server_with_content_is_named_and_rebuilt(scene, load, say):
    primary, former = scene.roles
    scene.without_standby()
    try:
        plan = scene.planned("rebuild")
        (problem,) = plan.problems
        assert "fleet replica build server1 HOST:PORT" in str(problem)
        assert "publish a topology that names" in str(problem)
        assert (plan.title, plan.steps) == ("rebuild of a standby of server1", ())
        former.root_execute("STOP REPLICA")
        former.root_execute("RESET REPLICA ALL")
        text = "\n".join(map(str, scene.planned("build", former).problems))
        assert "is emptied by: sqla-shard fleet replica rebuild" in text
    finally:
        scene.with_standby(former)
    former.root_execute("CREATE DATABASE db_errant")
    applied(scene, scene.planned("rebuild", discard_errant=True), say)
    assert scene.roles == (primary, former)
    load.wait_for_acks(30)
    scene.prove(load.stop())


@pytest.mark.thorough
def test_a_standby_is_replaced(scene, load, say):
    primary, old = scene.roles
    new = scene.new_server()
    plan = scene.planned("replace", new)
    assert plan.arguments["source"] == f"{old.host}:{old.port}"
    applied(scene, plan, say)
    assert scene.roles == (primary, new)
    assert old.root_execute("SHOW REPLICA STATUS") == []
    load.wait_for_acks(30)
    scene.prove(load.stop())


def test_a_standby_that_is_lost_is_replaced(scene, load, say):
    primary, old = scene.roles
    old.kill()
    new = scene.new_server()
    plan = scene.planned("replace", new)
    assert plan.arguments["source"] == plan.arguments["primary"]
    assert plan.problems == ()
    result = apply(scene.fleet, plan)
    assert "fleet retire" in result.notes["detach"]["problem"]
    assert scene.roles == (primary, new)
    scene.prove(load.stop())


@pytest.mark.thorough
def test_a_further_standby_is_built_for_a_split(scene, load, say):
    primary, standby = scene.roles
    kind = replication_kind(is_mariadb=scene.pairs.kind == "mariadb")
    source, replica = kind.SEMI_SYNC
    primary.root_execute(f"SET GLOBAL {source}_enabled = 1")
    try:
        new = scene.new_server()
        result = applied(scene, scene.planned("build", new, publish=False), say)
    finally:
        primary.root_execute(f"SET GLOBAL {source}_enabled = 0")
    assert "publish" not in result.steps
    assert scene.roles == (primary, standby)
    assert new.root_execute(f"SELECT @@{replica}_enabled") == [(0,)]
    attempts = load.stop()
    wait_until_equal(primary, new)
    assert scene.rows_on(new) == rows_of_places(places(scene.document))
    scene.prove(attempts)
    retired(scene, new)


def retired(scene, server):
    address = f"{server.host}:{server.port}"
    plan = Retire.planned(scene.fleet, address)
    assert plan.problems == ()
    result = apply(scene.fleet, plan)
    assert "position" in result.notes["detach"]
    assert server.root_execute("SHOW REPLICA STATUS") == []
    assert server.root_execute("SELECT @@read_only") == [(1,)]


# -- a process that dies --------------------------------------------------

STEPS = ("copy", "attach", "catch-up", "verify", "publish", "finish", "detach")
BEFORE = STEPS[: STEPS.index("publish")]


def kill_points(rng):
    """Return step, event, and what follows; some of them in the short run."""
    every = [
        (step, state, after)
        for step, state in itertools.product(STEPS, ("begin", "done"))
        for after in ("resume", "undo")
        if after == "resume" or step in BEFORE
    ]
    middle = [("copy", "progress", after) for after in ("resume", "undo")]
    if SOAK:
        return [*middle, *every]
    return [*middle, *rng.sample(every, 2)]


@pytest.mark.thorough
def test_a_killed_replacement_is_resumed_or_undone(scene, load, rng, say, monkeypatch):
    monkeypatch.setattr(row_copy, "_PROGRESS_SECONDS", 0.0)
    new = scene.new_server()
    for step, state, after in kill_points(rng):
        say(f"killed at {step} {state}, then {after}")
        primary, old = scene.roles
        plan = scene.planned("replace", new)
        assert plan.problems == ()
        apply_until(scene.fleet, plan, step=step, state=state)
        with pytest.raises(FleetLockedError):
            apply(scene.fleet, plan)
        published = scene.roles == (primary, new)
        assert published == (
            step not in BEFORE and (step, state) != ("publish", "begin")
        )
        if published:
            with pytest.raises(UndoRefusedError):
                undo(scene.fleet)
        if after == "resume":
            assert resume(scene.fleet).state == "finished"
            assert scene.roles == (primary, new)
            clear(old)
            new = old
        else:
            result = undo(scene.fleet)
            assert result.state == "undone"
            assert "undo" not in result.notes
            assert scene.roles == (primary, old)
            assert new.root_execute("SHOW REPLICA STATUS") == []
        load.wait_for_acks(20)
    scene.prove(load.stop())


def clear(server):
    """Remove all databases of a server that is retired."""
    with server.root_connect() as connection:
        cursor = connection.cursor()
        let_root_write(cursor, server.kind)
        cursor.execute("SET sql_log_bin = 0")
        cursor.execute("SHOW DATABASES LIKE 'db%'")
        for (name,) in cursor.fetchall():
            cursor.execute(f"DROP DATABASE `{name}`")


@pytest.mark.thorough
@pytest.mark.parametrize("after", ["resume", "undo"])
def test_a_rebuild_killed_while_copying(scene, load, monkeypatch, after):
    monkeypatch.setattr(row_copy, "_PROGRESS_SECONDS", 0.0)
    primary, standby = scene.roles
    plan = scene.planned("rebuild", discard_errant=True)
    apply_until(scene.fleet, plan, step="copy", state="progress")
    if after == "undo":
        result = undo(scene.fleet)
        assert "was dropped: rebuild" in result.notes["undo"]["problem"]
        # It is marked, and is rebuilt as if nothing had been there.
        assert ("sqla_shard_copy",) in standby.root_execute("SHOW DATABASES")
        assert Failover.planned(scene.fleet, "server1").problems
        apply(scene.fleet, scene.planned("rebuild"))
    else:
        resume(scene.fleet)
    assert scene.roles == (primary, standby)
    scene.prove(load.stop())


# -- refusals -------------------------------------------------------------


def test_everything_wrong_is_listed_at_once(scene):
    primary, standby = scene.roles
    new = scene.new_server(
        "--replicate-do-db=db00001",
        "--binlog-format=STATEMENT",
        "--read-only=0",
        f"--server-id={primary.server_id}",
        # Filters of MySQL are read there.
        "--performance-schema=ON",
    )
    new.root_execute("CREATE DATABASE db00000")
    new.root_execute("DROP USER 'app'@'127.0.0.1'")
    new.root_execute("DROP USER 'replica'@'127.0.0.1'")
    new.root_execute("REVOKE RELOAD ON *.* FROM 'operator'@'127.0.0.1'")
    plan = scene.planned("replace", new)
    text = "\n".join(map(str, plan.problems))
    for part in (
        "replication filters",
        "binlog_format = STATEMENT",
        "it is writable",
        "it has the server_id",
        "it has 1 databases (db00000)",
        "it has no account 'app'@'127.0.0.1'",
        "it has no user 'replica'",
        "lacks RELOAD",
    ):
        assert part in text
    with pytest.raises(OperationRefusedError):
        apply(scene.fleet, plan)
    assert scene.fleet.journal.pending() is None
    assert scene.roles == (primary, standby)


@pytest.mark.thorough
def test_a_rebuild_that_fails_says_that_its_content_is_gone(scene, monkeypatch):
    primary, standby = scene.roles
    with primary.connect(autocommit=True) as connection:
        connection.cursor().execute(
            "INSERT INTO db00000.load_pins (token) VALUES ('gone')"
        )
    wait_until_equal(primary, standby)
    assert scene.row_count(standby) > 0

    def fail(*_):
        raise ValueError("out of order")

    with monkeypatch.context() as patched:
        patched.setattr(RowCopy, "_copy", fail)
        with pytest.raises(OperationFailedError) as info:
            apply(scene.fleet, scene.planned("rebuild"))
    assert "it was undone, but the content of server1 standby" in str(info.value)
    assert scene.row_count(standby) == 0
    plan = scene.planned("rebuild")
    assert plan.problems == ()
    apply(scene.fleet, plan)
    wait_until_equal(primary, standby)
    assert scene.rows_on(standby) == scene.rows_on(primary)


@pytest.mark.parametrize(
    ("action", "role", "reason"),
    [
        ("build", None, "it has the standby"),
        ("replace", 0, "it is the primary of server1"),
        ("replace", 1, "it is the standby of server1"),
        ("rebuild", 0, "the standby of server1 is"),
        ("remove", None, "is not one of build, rebuild, replace"),
    ],
)
def test_requests_that_make_no_sense(scene, action, role, reason):
    server = None if role is None else scene.roles[role]
    (problem,) = scene.planned(action, server).problems
    assert reason in str(problem)


def test_a_target_that_was_opened_meanwhile_is_not_dropped(scene):
    primary, standby = scene.roles
    wait_until_equal(primary, standby)
    plan = scene.planned("rebuild")
    before = scene.row_count(standby)

    def open_it(event):
        if (event.step, event.state) == ("copy", "begin"):
            standby.root_execute("SET GLOBAL read_only = 0")

    try:
        with pytest.raises(OperationFailedError, match="it is writable"):
            apply(scene.fleet, plan, progress=open_it)
    finally:
        standby.root_execute("SET GLOBAL read_only = 1")
    assert scene.row_count(standby) == before


@pytest.mark.parametrize("target", ["", "a b:3306", "x/y:3306", "u@h:3306"])
def test_a_target_that_is_no_address(scene, target):
    plan = Replica.planned(scene.fleet, "replace", "server1", target)
    (problem,) = plan.problems
    assert "is not host:port" in str(problem)
    (problem,) = Retire.planned(scene.fleet, target).problems
    assert "is not host:port" in str(problem)


def test_a_server_that_does_not_respond_is_unknown(scene):
    plan = Replica.planned(scene.fleet, "replace", "server1", "127.0.0.1:1")
    (problem,) = plan.problems
    assert "its state is unknown" in str(problem)


def test_servers_in_use_are_not_retired(scene):
    primary, standby = scene.roles
    for server, role in ((primary, "primary"), (standby, "standby")):
        plan = Retire.planned(scene.fleet, f"{server.host}:{server.port}")
        assert f"it is the {role} of server1" in str(plan.problems[0])
    # A connection of a server that is gone may still be listed.
    assert "servers replicate from it" in str(
        Retire.planned(scene.fleet, f"{primary.host}:{primary.port}")
    )


def test_a_session_prevents_a_retirement(scene):
    new = scene.new_server()
    with new.connect():
        plan = Retire.planned(scene.fleet, f"{new.host}:{new.port}")
        (problem,) = plan.problems
        assert "1 sessions of others are open" in str(problem)
    assert wait_until(
        lambda: not Retire.planned(scene.fleet, f"{new.host}:{new.port}").problems,
        seconds=30,
    )


def test_a_migration_meanwhile_undoes_everything(scene, monkeypatch):
    primary, standby = scene.roles
    new = scene.new_server()
    copy_rows = RowCopy._copy

    def copy(self, *arguments):
        primary.root_execute("ALTER TABLE db00001.load_pins ADD COLUMN x INT")
        wait_until_equal(primary, standby)
        copy_rows(self, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(RowCopy, "_copy", copy)
        with pytest.raises(OperationFailedError) as info:
            apply(scene.fleet, scene.planned("replace", new))
    primary.root_execute("ALTER TABLE db00001.load_pins DROP COLUMN x")
    assert info.value.step == "copy"
    assert info.value.undone
    assert "were changed meanwhile" in info.value.reason
    assert scene.roles == (primary, standby)
    # The next one starts over.
    assert scene.planned("replace", new).problems == ()


def test_a_row_that_the_copy_has_lost_is_found(scene, monkeypatch):
    primary, standby = scene.roles
    new = scene.new_server()
    with primary.connect(autocommit=True) as connection:
        connection.cursor().execute(
            "INSERT INTO db00000.load_pins (token) VALUES ('lost')"
        )
    wait_until_equal(primary, standby)
    copy_rows = RowCopy._copy

    def copy(self, *arguments):
        copy_rows(self, *arguments)
        with new.root_connect() as connection:
            cursor = connection.cursor()
            cursor.execute("SET sql_log_bin = 0")
            cursor.execute("DELETE FROM db00000.load_pins WHERE token = 'lost'")

    with monkeypatch.context() as patched:
        patched.setattr(RowCopy, "_copy", copy)
        with pytest.raises(OperationFailedError) as info:
            apply(scene.fleet, scene.planned("replace", new))
    assert info.value.step == "verify"
    assert "it differs from its primary in 1 places" in info.value.reason
    assert "load_pins" in info.value.reason
    assert scene.roles == (primary, standby)


# -- the program ----------------------------------------------------------


def invoked(scene, *arguments):
    accounts = scene.pairs.accounts
    replication = accounts.for_replication()
    return invoke(
        *("-t", scene.pairs.path, "fleet", *arguments),
        env={
            "SQLA_SHARD_OPERATOR_USER": accounts.operator.user,
            "SQLA_SHARD_OPERATOR_PASSWORD": accounts.operator.password,
            "SQLA_SHARD_REPLICATION_USER": replication.user,
            "SQLA_SHARD_REPLICATION_PASSWORD": replication.password,
        },
    )


@pytest.mark.thorough
def test_the_commands(scene):
    primary, old = scene.roles
    new, further = scene.new_server(), scene.new_server()
    where = {one: f"{one.host}:{one.port}" for one in scene.servers}
    build = ("replica", "build", "server1", where[further])
    result = invoked(scene, *build, "--json", "--yes")
    assert result.exit_code == 1
    (problem,) = json.loads(result.stdout)["problems"]
    assert "it has the standby" in problem["message"]
    result = invoked(scene, *build, "--no-publish", "--json", "--yes")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["state"] == "finished"
    assert "tables, " in result.stderr or "copy: done" in result.stderr
    result = invoked(scene, "replica", "rebuild", "server1", "--plan-only")
    assert result.exit_code == 0, result.output
    assert f"{SHARDS} databases" in result.stdout
    assert "are dropped: db00000" in result.stdout
    replacing = ("replica", "replace", "server1", where[new])
    if scene.pairs.kind == "mariadb":
        result = invoked(scene, *replacing, "--way", "clone", "--yes")
        assert result.exit_code == 1
        assert "MariaDB has no CLONE" in result.stdout
    assert invoked(scene, *replacing).exit_code == 2
    result = invoked(scene, *replacing, "--yes")
    assert result.exit_code == 0, result.output
    assert scene.roles == (primary, new)
    assert invoked(scene, "retire", where[new], "--yes").exit_code == 1
    for server in (old, further):
        result = invoked(scene, "retire", where[server], "--yes")
        assert result.exit_code == 0, result.output
    for password in (
        scene.pairs.accounts.operator.password,
        scene.pairs.accounts.for_replication().password,
    ):
        folder = scene.pairs.path.with_name("topology.json.fleet")
        for path in folder.rglob("*.json"):
            assert password not in path.read_text()


# -- a command ------------------------------------------------------------

SCRIPT = """set -e
timeout 120 {program} --no-defaults --backup --user={user} --socket={socket} \\
    --target-dir={folder} >&2
{program} --no-defaults --prepare --target-dir={folder} >&2
touch {folder}.copied
until [ -s {folder}.restarted ]; do sleep 0.05; done
cat {folder}.restarted >&2
grep -q restarted {folder}.restarted
tail -n 1 {folder}/*_binlog_info | cut -f 3
"""


def restart_with(server, folder):
    """Replace the data directory of a server by a prepared backup."""
    said = "no backup was made"
    try:
        copied = folder.with_name(f"{folder.name}.copied")
        if wait_until(copied.exists, seconds=180):
            data = server.socket.parent / "data"
            owner = data.stat()
            server.kill()
            shutil.rmtree(data)
            shutil.copytree(folder, data)
            for path in (data, *data.rglob("*")):
                os.chown(path, owner.st_uid, owner.st_gid)
            server.start()
            said = "restarted"
    except Exception as error:
        said = repr(error)
        raise
    finally:
        # The command waits for it.
        folder.with_name(f"{folder.name}.restarted").write_text(f"{said}\n")


@pytest.mark.thorough
@pytest.mark.only_on("mariadb")
def test_mariabackup_is_a_command(scene, load, say, tmp_path):
    program = shutil.which("mariabackup") or shutil.which("mariadb-backup")
    if program is None:
        pytest.skip(
            "mariabackup is not installed (Debian: mariadb-backup), so that "
            "a copy with a command is not tested"
        )
    primary, old = scene.roles
    # A copy of rows refuses it.
    primary.root_execute("CREATE VIEW db00000.seen AS SELECT 1 AS a")
    wait_until_equal(primary, old)
    new = scene.new_server()
    folder = tmp_path / "backup"
    script = tmp_path / "copy.sh"
    script.write_text(
        SCRIPT.format(
            program=program, user=getpass.getuser(), socket=old.socket, folder=folder
        )
    )
    plan = scene.planned("replace", new, way="command", command=f"sh {script}")
    with ThreadPoolExecutor(1) as pool:
        restarted = pool.submit(restart_with, new, folder)
        applied(scene, plan, say)
        restarted.result()
    load.wait_for_acks(30)
    scene.prove(load.stop())
    assert new.root_execute("SELECT a FROM db00000.seen") == [(1,)]
    primary.root_execute("DROP VIEW db00000.seen")


# -- CLONE ----------------------------------------------------------------


def restart_when_stopped(server):
    """Start a server again that CLONE has stopped, as a supervisor does."""
    assert wait_until(lambda: not server.running, seconds=120)
    server.start()


@pytest.mark.thorough
@pytest.mark.only_on("mysql")  # MariaDB has no CLONE
def test_a_clone_replaces_the_standby(scene, load, say):
    primary, _ = scene.roles
    new = scene.new_server()
    plan = scene.planned("replace", new, way="clone")
    with ThreadPoolExecutor(1) as pool:
        restarted = pool.submit(restart_when_stopped, new)
        applied(scene, plan, say)
        restarted.result()
    load.wait_for_acks(30)
    scene.prove(load.stop())
    assert scene.roles == (primary, new)
