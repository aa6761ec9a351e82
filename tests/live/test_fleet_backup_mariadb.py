"""Backups and restores while applications write."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import time

import pytest

from sqla_shard.exc import BackupFailedError
from sqla_shard.exc import BackupNotFoundError
from sqla_shard.exc import FleetSetupError
from sqla_shard.exc import OperationRefusedError
from sqla_shard.fleet import apply
from sqla_shard.fleet import backup as backup_module
from sqla_shard.fleet import resume
from sqla_shard.fleet import undo
from sqla_shard.fleet.backup import create_backups
from sqla_shard.fleet.backup import Scope
from sqla_shard.fleet.binlog_archive import archives_of
from sqla_shard.fleet.binlog_archive import copy_binlogs
from sqla_shard.fleet.definitions import tables_of
from sqla_shard.fleet.dumps import content_of
from sqla_shard.fleet.dumps import HEAD
from sqla_shard.fleet.dumps import same_content
from sqla_shard.fleet.replay import Moment
from sqla_shard.fleet.restore import Restore
from sqla_shard.fleet.storage import Storage
from tests.servers.command_line import invoke
from tests.servers.fleet_pairs import FleetPairs
from tests.servers.fleet_processes import apply_until
from tests.servers.load_writers import create_tables
from tests.servers.load_writers import RawWriter
from tests.servers.published import places
from tests.servers.writing_load import Load

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("mariadb_installed")]

SHARDS = 1024 if os.environ.get("SQLA_SHARD_SOAK") == "1" else 64
SHARD = 7
LIVE = f"db{SHARD:05d}"
ODD = """CREATE TABLE `odd ;` (
    id BIGINT AUTO_INCREMENT PRIMARY KEY,
    a TEXT, b BLOB, c JSON, d DECIMAL(38, 10), e FLOAT,
    f TIMESTAMP(6) NULL, g BIT(13), h ENUM('x;', 'y') COMMENT 'a;\\nb'
)"""
ROW = (
    "a;\n'\\\r\x00\u2028😀%s",
    bytes(range(256)),
    '{"a": "\\n;"}',
    "1234567890123456789012345678.0123456789",
    1.1,
    "2026-03-04 05:06:07.123456",
    4097,
    "x;",
)


class Scene:
    """A pair under load, a backup, and a recorded moment after it."""

    def __init__(self, pairs, folder, seed):
        self.pairs = pairs
        self.fleet = pairs.fleet()
        self.pair = pairs["server1"]
        self.storage = Storage(folder / "backups")
        names = [place[1] for place in places(pairs.document()).values()]
        with self.pair.primary.connect() as connection:
            create_tables(connection, names)
        self.on_live(ODD)
        marks = ", ".join(["%s"] * len(ROW))
        insert = f"INSERT INTO `odd ;` VALUES (DEFAULT, {marks})"
        for _ in range(3):
            self.on_live(insert, ROW)
        self.on_live("DELETE FROM `odd ;` WHERE id = 3")
        self.pair.wait_caught_up()
        writer = RawWriter(path=pairs.path)
        shards = range(SHARDS)
        with Load(writer, shards=shards, folder=folder, seed=seed) as load:
            load.wait_for_acks(200)
            begin = time.monotonic()
            (self.backup,) = create_backups(
                self.fleet, self.storage, Scope(keyspace="objects")
            )
            self.seconds = time.monotonic() - begin
            load.wait_for_acks(200)
            # The name of the live database is in one of the statements.
            self.on_live("ALTER TABLE `odd ;` ADD COLUMN z INT DEFAULT 5")
            self.on_live(
                f"CREATE TABLE {LIVE}.more (id INT PRIMARY KEY)", default=None
            )
            self.on_live("INSERT INTO more VALUES (1), (2), (3)")
            self.on_live("UPDATE `odd ;` SET a = 'new' WHERE id = 1")
            load.wait_for_acks(200)
            self.gtid, self.content = self.record()
            self.on_live("UPDATE `odd ;` SET a = 'wrong'")
            self.on_live("DELETE FROM more")
            load.wait_for_acks(200)
            copy_binlogs(self.fleet, self.storage, "server1")
            # They write during the restores, too.
            self.plan = self.planned(moment=Moment(gtid=self.gtid))
            self.result = apply(self.fleet, self.plan)
            load.stop()

    def on_live(self, sql, values=None, default=LIVE):
        """Run a statement in the live database."""
        with self.pair.primary.root_connect(database=default) as connection:
            cursor = connection.cursor()
            cursor.execute(sql, values)
            connection.commit()

    def record(self):
        """Return a GTID, and what the live database contains there."""
        with self.admin() as admin:
            admin.run("FLUSH TABLES WITH READ LOCK")
            position = admin.value("SELECT @@gtid_binlog_pos")
            content = self.read(LIVE)
            admin.run("UNLOCK TABLES")
        return position, content

    def read(self, database, server=None):
        """Return what a database contains."""
        with self.admin(server) as admin:
            for statement in HEAD:
                admin.run(statement)
            tables = tables_of(admin, [database]).values()
            return [content_of(admin, table) for table in tables]

    def admin(self, server=None):
        url = (server or self.pair.primary).url
        return self.fleet.admin(url, name="server1")

    def planned(self, **options):
        """Return the plan of a restore."""
        arguments = {"keyspace": "objects", "shard": SHARD, **options}
        return Restore.planned(self.fleet, self.storage.folder, **arguments)

    def databases(self):
        """Return the names of all databases."""
        return {
            name
            for (name,) in self.pair.primary.root_execute("SHOW DATABASES")
        }

    def drop(self, name):
        """Drop a restored database."""
        self.pair.primary.root_execute(f"DROP DATABASE {name}")


@pytest.fixture(scope="module")
def scene(tmp_path_factory, request, mariadb_installed):
    folder = tmp_path_factory.mktemp("backup")
    seed = request.config.getoption("hypothesis_seed")
    with FleetPairs(folder, shards=SHARDS) as pairs:
        yield Scene(pairs, folder, seed)


def problems_of(plan):
    """Return the problems of a plan that must have some, as one text."""
    assert plan.problems
    return "\n".join(map(str, plan.problems))


def test_a_shard_is_restored_to_a_moment(scene, say, request):
    say(
        f"backup of {SHARDS} shards: {scene.seconds:.2f} s, restore: "
        f"{scene.result.steps['load']:.2f} s, {scene.result.notes}, seed "
        f"{request.config.getoption('hypothesis_seed')}"
    )
    assert scene.plan.problems == ()
    assert scene.result.state == "finished"
    assert same_content(scene.content, scene.read(f"restored_{LIVE}")) == []
    # What was wrong in the live database is so still.
    assert same_content(scene.content, scene.read(LIVE)) != []
    scene.pair.wait_caught_up()
    restored = scene.read(f"restored_{LIVE}", scene.pair.standby)
    assert same_content(scene.content, restored) == []


def test_a_shard_is_restored_to_the_backup(scene):
    plan = scene.planned(database="of_backup")
    assert plan.problems == ()
    apply(scene.fleet, plan)
    file = scene.backup.database("objects", SHARD)
    found = scene.read("of_backup")
    assert same_content(file.tables, found) == []
    (odd,) = [one for one in found if one.name == "odd ;"]
    assert (odd.rows, odd.auto_increment) == (2, 4)
    text, floating = scene.pair.primary.root_execute(
        "SELECT a, e + 0E0 FROM of_backup.`odd ;` WHERE id = 1"
    )[0]
    assert (text, floating) == (ROW[0], pytest.approx(1.1, rel=1e-7))
    scene.drop("of_backup")


def test_a_backup_is_of_one_position(scene):
    assert scene.backup.role == "standby"
    assert len(scene.backup.databases) == SHARDS
    assert scene.storage.backups() == [scene.backup]
    assert scene.storage.problems(scene.backup) == []
    for one in scene.backup.databases:
        rows = {table.name: table.rows for table in one.tables}
        assert rows["load_pins"] == rows["load_notes"]


def test_times_are_moments(scene):
    closed = archives_of(scene.storage)[0].logs[-1].closed
    plan = scene.planned(moment=Moment(time=closed), database="at_time")
    assert plan.problems == ()
    late = problems_of(scene.planned(moment=Moment(time=closed + 60)))
    assert "the logs end 60 s before that moment" in late
    early = scene.backup.created - 10
    found = problems_of(scene.planned(moment=Moment(time=early)))
    assert "it was made after that moment" in found


def test_gtids_outside_are_refused(scene):
    domain, server, _ = scene.gtid.split("-")
    early = Moment(gtid=f"{domain}-{server}-1")
    late = Moment(gtid=f"{domain}-{server}-99999999")
    assert "it was made after" in problems_of(scene.planned(moment=early))
    assert "do not contain" in problems_of(scene.planned(moment=late))
    with pytest.raises(FleetSetupError, match="is not a GTID"):
        scene.planned(moment=Moment(gtid="tomorrow"))


def test_targets_that_exist_are_refused(scene):
    for name, message in (
        (f"restored_{LIVE}", "it exists"),
        (LIVE, "it is the database of a shard"),
        ("x" * 65, "at most 64"),
    ):
        plan = scene.planned(database=name)
        assert message in problems_of(plan)
        with pytest.raises(OperationRefusedError, match=message):
            apply(scene.fleet, plan)
    assert same_content(scene.content, scene.read(f"restored_{LIVE}")) == []


@pytest.mark.parametrize(
    ("step", "state"), [("create", "done"), ("load", "done")]
)
def test_a_killed_restore_is_resumed_or_undone(scene, step, state):
    moment = Moment(gtid=scene.gtid)
    for end in (undo, resume):
        plan = scene.planned(moment=moment, database="killed")
        apply_until(scene.fleet, plan, step=step, state=state)
        assert "killed" in scene.databases()
        end(scene.fleet)
        assert ("killed" in scene.databases()) is (end is resume)
    assert same_content(scene.content, scene.read("killed")) == []
    scene.drop("killed")


def test_the_commands(scene):
    operator = scene.pairs.accounts.operator
    account = {
        "SQLA_SHARD_OPERATOR_USER": operator.user,
        "SQLA_SHARD_OPERATOR_PASSWORD": operator.password,
    }
    folder = scene.storage.folder

    def run(*arguments):
        found = invoke(
            "-t", scene.pairs.path, "fleet", *arguments, env=account
        )
        return found.exit_code, found.stdout

    assert run("backup", "verify", folder) == (0, "1 backups, 0 problems\n")
    code, text = run("backup", "list", folder, "--json")
    assert code == 0
    assert [one["name"] for one in json.loads(text)] == [scene.backup.name]
    shard = ("restore", folder, "objects", SHARD)
    code, text = run(*shard, "--as", "by_command", "--yes", "--json")
    assert code == 0
    assert json.loads(text)["notes"]["load"]["backup"] == scene.backup.name
    code, text = run(*shard, "--as", "by_command", "--plan-only")
    assert code == 1
    assert "it exists" in text
    scene.drop("by_command")
    code, text = run("backup", "prune", folder, "--keep-last", 1)
    assert (code, text) == (0, "")


def test_backups_that_do_not_exist_are_refused(scene):
    with pytest.raises(BackupNotFoundError, match="'x'"):
        scene.planned(backup="x")
    with pytest.raises(FleetSetupError, match="of which keyspace"):
        create_backups(scene.fleet, scene.storage, Scope(shard=1))
    empty = Storage(scene.storage.folder / "empty")
    with pytest.raises(FleetSetupError, match="no backup of shard 7"):
        Restore.planned(
            scene.fleet, empty.folder, keyspace="objects", shard=SHARD
        )


def flipped(path):
    """Change one byte in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_one_changed_byte_is_found(scene):
    file = scene.backup.database("objects", SHARD)
    path = scene.storage.path(scene.backup, file)
    flipped(path)
    try:
        (problem,) = scene.storage.problems(scene.backup)
        assert "SHA-256" in str(problem)
        assert "SHA-256" in problems_of(scene.planned(database="damaged"))
    finally:
        flipped(path)
    log = scene.storage.log_folders()[0].parent / (
        archives_of(scene.storage)[0].logs[0].name
    )
    flipped(log)
    try:
        plan = scene.planned(moment=Moment(gtid=scene.gtid), database="x")
        assert "SHA-256" in problems_of(plan)
    finally:
        flipped(log)


def test_a_missing_log_is_a_gap(scene):
    scene.on_live("INSERT INTO more VALUES (9)")
    copy_binlogs(scene.fleet, scene.storage, "server1")
    scene.on_live("DELETE FROM more")
    archive, new = copy_binlogs(scene.fleet, scene.storage, "server1")
    assert len(new) == 1
    moment = Moment(time=archive.logs[-1].closed)
    assert scene.planned(moment=moment, database="x").problems == ()
    middle = archive.logs[-2]
    dataclasses.replace(
        archive, logs=tuple(one for one in archive.logs if one != middle)
    ).write()
    try:
        found = problems_of(scene.planned(moment=moment, database="x"))
        assert "was not copied" in found
    finally:
        archive.write()


def test_statements_that_cannot_be_replayed_are_refused(scene):
    scene.on_live(
        f"CREATE TABLE {LIVE}.copied LIKE db00008.load_pins", default=None
    )
    scene.on_live("DROP TABLE copied")
    archive, _ = copy_binlogs(scene.fleet, scene.storage, "server1")
    moment = Moment(time=archive.logs[-1].closed)
    found = problems_of(scene.planned(moment=moment, database="x"))
    assert "it names db00008" in found


def test_a_migration_makes_a_backup_fail(scene, monkeypatch):
    original = backup_module.write_dump

    def dump(*args, **options):
        scene.on_live("ALTER TABLE load_notes ADD COLUMN extra INT")
        monkeypatch.setattr(backup_module, "write_dump", original)
        scene.pair.wait_caught_up()
        return original(*args, **options)

    monkeypatch.setattr(backup_module, "write_dump", dump)
    with pytest.raises(BackupFailedError, match="no migration runs"):
        create_backups(
            scene.fleet,
            scene.storage,
            Scope(keyspace="objects", shard=SHARD),
            workers=1,
        )
    assert scene.storage.backups() == [scene.backup]
    assert scene.storage.unfinished() == []


def test_views_and_missing_databases_are_refused(scene):
    scene.on_live("CREATE VIEW seen AS SELECT 1")
    scene.pair.wait_caught_up()
    try:
        with pytest.raises(OperationRefusedError, match="views"):
            create_backups(
                scene.fleet,
                scene.storage,
                Scope(keyspace="objects", shard=SHARD),
            )
    finally:
        scene.on_live("DROP VIEW seen")
    scene.pair.standby.root_execute("STOP SLAVE SQL_THREAD")
    try:
        with pytest.raises(OperationRefusedError, match="may be old"):
            create_backups(scene.fleet, scene.storage, Scope())
    finally:
        scene.pair.standby.root_execute("START SLAVE SQL_THREAD")
        scene.pair.wait_caught_up()


def test_a_killed_backup_is_not_listed(scene):
    partial = scene.storage.begin("killed")
    (partial / "db00000.sql.gz").write_bytes(b"x")
    try:
        assert scene.storage.backups() == [scene.backup]
        assert scene.storage.unfinished() == ["killed.partial"]
        with pytest.raises(BackupNotFoundError):
            scene.storage.get("killed")
    finally:
        shutil.rmtree(partial)


def test_the_only_good_backup_stays(scene, tmp_path):
    storage = Storage(tmp_path)
    for day in range(3):
        one = dataclasses.replace(
            scene.backup, name=f"b{day}", created=day * 86_400.0
        )
        folder = storage.begin(one.name)
        for file in one.databases:
            shutil.copy(scene.storage.path(scene.backup, file), folder)
        storage.finish(folder, one)
    newest = storage.get("b2")
    flipped(storage.path(newest, newest.databases[0]))
    options = {"keep_last": 1, "keep_days": 1.0, "now": 10 * 86_400.0}
    assert storage.prune(**options, dry_run=True) == ["b0"]
    assert storage.prune(**options) == ["b0"]
    assert [one.name for one in storage.backups()] == ["b1", "b2"]
    flipped(storage.path(newest, newest.databases[0]))
    assert storage.prune(**options) == ["b1"]
