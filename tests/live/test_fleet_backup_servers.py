"""Backups and restores while applications write."""

from __future__ import annotations

import dataclasses
import json
import os
import time
import uuid
from contextlib import contextmanager
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from pymysql.constants import CLIENT

from sqla_shard.exc import (
    BackupFailedError,
    BackupNotFoundError,
    FleetSetupError,
    OperationRefusedError,
)
from sqla_shard.fleet import (
    apply,
    backup as backup_module,
    binlog_archive,
    resume,
    undo,
)
from sqla_shard.fleet.backup import create_backups, plan_backups, Scope
from sqla_shard.fleet.binlog_archive import archives_of, copy_binlogs, plan_binlogs
from sqla_shard.fleet.dumps import content_of, HEAD, same_content
from sqla_shard.fleet.replay import Moment
from sqla_shard.fleet.replication import replication_of
from sqla_shard.fleet.restore import Restore
from sqla_shard.fleet.row_copy import tables_of
from sqla_shard.fleet.storage import Storage
from sqla_shard.testing.local_server import wait_until
from tests.servers.command_line import invoke, ROOT
from tests.servers.fleet_pairs import FleetPairs
from tests.servers.fleet_processes import apply_until
from tests.servers.load_log import ACKNOWLEDGED
from tests.servers.load_writers import create_tables, RawWriter
from tests.servers.published import places
from tests.servers.writing_load import Load
from tests.test_docs import blocks_of

pytestmark = pytest.mark.live

SOAK = os.environ.get("SQLA_SHARD_SOAK") == "1"
SHARDS = 1024 if SOAK else 64
SHARD = 7
PAGE = ROOT / "docs" / "operate" / "restore.rst"
#: Written by this test alone, so that its content at a second is known.
QUIET = 11
LIVE = f"db{SHARD:05d}"
KILLED = "20260101T000000Z-server1-0000"
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
        # Half of the writes are to the shard that is restored.
        shards = [
            *(shard for shard in range(SHARDS) if shard != QUIET),
            *[SHARD] * SHARDS,
        ]
        self.on_quiet("CREATE TABLE notes (id INT PRIMARY KEY, v TEXT)")
        self.on_quiet("INSERT INTO notes VALUES (1, 'before')")
        self.pair.wait_caught_up()
        with Load(
            writer,
            shards=shards,
            folder=folder,
            seed=seed,
            # Each restore reads all that was written since the backup.
            rest=0.0 if SOAK else 0.05,
        ) as load:
            load.wait_for_acks(50)
            begin = time.monotonic()
            (self.backup,) = create_backups(
                self.fleet, self.storage, Scope(keyspace="objects")
            )
            self.seconds = time.monotonic() - begin
            load.wait_for_acks(50)
            # The name of the live database is in one of the statements.
            self.on_live("ALTER TABLE `odd ;` ADD COLUMN z INT DEFAULT 5")
            self.on_live(f"CREATE TABLE {LIVE}.more (id INT PRIMARY KEY)", default=None)
            if pairs.kind == "mysql":
                self.pair.primary.root_execute(
                    "SET GLOBAL binlog_transaction_compression = ON"
                )
            self.on_live("INSERT INTO more VALUES (1), (2), (3)")
            self.on_live("UPDATE `odd ;` SET a = 'new' WHERE id = 1")
            self.on_live("CREATE TABLE chosen AS SELECT id, a FROM `odd ;`")
            load.wait_for_acks(50)
            self.gtid, self.content = self.record()
            self.on_live("UPDATE `odd ;` SET a = 'wrong'")
            self.on_live("DELETE FROM more")
            load.wait_for_acks(50)
            self.on_quiet("UPDATE notes SET v = 'after' WHERE id = 1")
            self.on_quiet("INSERT INTO notes VALUES (2, 'later')")
            self.quiet, self.second = self.read(f"db{QUIET:05d}"), self.tick()
            self.on_quiet("DELETE FROM notes")
            copy_binlogs(self.fleet, self.storage, "server1")
            acks, begin = self.acks(load), time.monotonic()
            self.quiet_plan = self.planned(shard=QUIET, moment=Moment(time=self.second))
            self.quiet_result = apply(self.fleet, self.quiet_plan)
            self.quiet_seconds = time.monotonic() - begin
            self.quiet_acks = self.acks(load) - acks
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

    def on_quiet(self, sql):
        """Run a statement in the database of the shard without load."""
        self.on_live(sql, default=f"db{QUIET:05d}")

    def tick(self):
        """Wait until a second of the server begins, and return it."""
        with self.admin() as admin:
            begin = int(admin.value("SELECT UNIX_TIMESTAMP()"))
            found = begin
            while found == begin:
                admin.run("DO SLEEP(0.02)")
                found = int(admin.value("SELECT UNIX_TIMESTAMP()"))
        return float(found)

    def acks(self, load):
        """Return the number of tokens that were acknowledged."""
        return sum(one.outcome in ACKNOWLEDGED for one in load.attempts())

    def record(self):
        """Return a GTID, and the content of the live database there."""
        with self.admin() as admin:
            admin.run("FLUSH TABLES WITH READ LOCK")
            position = replication_of(admin).position()
            content = self.read(LIVE)
            admin.run("UNLOCK TABLES")
        return position, content

    def read(self, database, server=None):
        """Return the content of a database."""
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
        return Restore.planned(self.fleet, str(self.storage), **arguments)

    def path(self, file):
        """Return the path of a file of the backup."""
        return Path(str(self.storage.file(self.backup.name, file.file)))

    def databases(self):
        """Return the names of all databases."""
        return {name for (name,) in self.pair.primary.root_execute("SHOW DATABASES")}

    def drop(self, name):
        """Drop a restored database."""
        self.pair.primary.root_execute(f"DROP DATABASE {name}")


@pytest.fixture(scope="module")
def scene(tmp_path_factory, request, server_kind):
    folder = tmp_path_factory.mktemp("backup")
    seed = request.config.getoption("hypothesis_seed")
    with (
        FleetPairs(folder, shards=SHARDS, pair=server_kind.pair) as pairs,
        pytest.MonkeyPatch.context() as patch,
    ):
        programs = server_kind.server._find(None)
        log_program = programs.find(
            "mysqlbinlog" if server_kind.is_mysql else "mariadb-binlog"
        )
        folders = [str(Path(log_program).parent), os.environ["PATH"]]
        patch.setenv("PATH", os.pathsep.join(folders))
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
    # The live database is unchanged, with its errors.
    assert same_content(scene.content, scene.read(LIVE)) != []
    scene.pair.wait_caught_up()
    restored = scene.read(f"restored_{LIVE}", scene.pair.standby)
    assert same_content(scene.content, restored) == []


def test_a_shard_is_restored_to_a_second_ago(scene, say, request):
    """The others are written meanwhile; nothing of them is in it."""
    say(
        f"1 of {SHARDS} shards to a second ago: {scene.quiet_seconds:.2f} s "
        f"with its checks, {scene.quiet_acks} transactions of the other "
        f"shards meanwhile; {scene.quiet_result.notes['load']}; seed "
        f"{request.config.getoption('hypothesis_seed')}"
    )
    assert scene.quiet_plan.problems == ()
    assert scene.quiet_result.state == "finished"
    restored = scene.read(f"restored_db{QUIET:05d}")
    assert same_content(scene.quiet, restored) == []
    (notes,) = [one for one in restored if one.name == "notes"]
    assert notes.rows == 2
    # The mistake is in the live shard still, and not in the restored one.
    (live,) = [one for one in scene.read(f"db{QUIET:05d}") if one.name == "notes"]
    assert live.rows == 0
    assert scene.quiet_acks > 0


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
    assert scene.storage.listing().backups == [scene.backup]
    assert scene.storage.problems(scene.backup) == []
    for one in scene.backup.databases:
        rows = {table.name: table.rows for table in one.tables}
        assert rows["load_pins"] == rows["load_notes"]


def test_times_are_moments(scene):
    closed = archives_of(scene.storage)[0][0].logs[-1].closed
    plan = scene.planned(moment=Moment(time=closed), database="at_time")
    assert plan.problems == ()
    late = problems_of(scene.planned(moment=Moment(time=closed + 60)))
    assert "the logs end 60 s before that moment" in late
    early = scene.backup.created - 10
    found = problems_of(scene.planned(moment=Moment(time=early)))
    assert "it was made after that moment" in found


def test_gtids_outside_are_refused(scene):
    if scene.pairs.kind == "mysql":
        origin, other = f"{scene.gtid.split(':')[0]}:", "0-1-1"
    else:
        origin = scene.gtid.rpartition("-")[0] + "-"
        other = f"{uuid.uuid4()}:1"
    early = Moment(gtid=f"{origin}1")
    late = Moment(gtid=f"{origin}99999999")
    assert "it was made after" in problems_of(scene.planned(moment=early))
    assert "do not contain" in problems_of(scene.planned(moment=late))
    foreign = Moment(gtid=other)
    text = "GTID of another kind of server"
    assert text in problems_of(scene.planned(moment=foreign))
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


@pytest.mark.parametrize(("step", "state"), [("create", "done"), ("load", "done")])
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
    folder = str(scene.storage)

    def run(*arguments):
        found = invoke("-t", scene.pairs.path, "fleet", *arguments, env=account)
        return found.exit_code, found.stdout

    for command in (
        ("create", folder, "--keyspace", "objects", "--shard", SHARD),
        ("binlogs", folder, "server1"),
    ):
        code, text = run("backup", *command, "--dry-run", "--json")
        assert code == 0
        assert "problems" in json.loads(text) or "new" in json.loads(text)
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


def files_in(folder):
    return sorted(str(path) for path in folder.rglob("*"))


def test_a_dry_run_writes_nothing(scene, tmp_path):
    folder = tmp_path / "not yet"
    storage = Storage(folder)
    scope = Scope(keyspace="objects")
    plan = plan_backups(scene.fleet, storage, scope)
    assert plan.problems == ()
    (server,) = plan.servers
    standby = scene.pair.standby
    assert server.source == f"server1 standby ({standby.host}:{standby.port})"
    assert len(server.databases) == SHARDS
    # A table of InnoDB has a page at least.
    assert min(server.databases.values()) >= 16_384
    assert f"server1: {SHARDS} databases, " in str(plan)
    assert str(folder) in str(plan)
    json.dumps(plan.as_dict())
    assert not folder.exists()
    one = plan_backups(scene.fleet, storage, Scope(keyspace="objects", shard=SHARD))
    assert list(one.servers[0].databases) == [LIVE]
    with another_id(scene.pair.primary):
        (problem,) = plan_backups(scene.fleet, storage, scope).problems
    assert "not from server1 primary" in str(problem)
    # Of binary logs: the server goes on writing to the last one.
    primary = scene.pair.primary
    before = primary.root_execute("SHOW BINARY LOGS")
    logs = plan_binlogs(scene.fleet, storage, "server1")
    after = primary.root_execute("SHOW BINARY LOGS")
    assert list(logs.new) == [row[0] for row in before]
    assert [row[0] for row in after] == [row[0] for row in before]
    assert not folder.exists()
    copy_binlogs(scene.fleet, scene.storage, "server1")
    known = files_in(Path(str(scene.storage)))
    logs = plan_binlogs(scene.fleet, scene.storage, "server1")
    (last,) = logs.new
    assert last == primary.root_execute("SHOW BINARY LOGS")[-1][0]
    assert (logs.copied, logs.address) == (
        len(archives_of(scene.storage)[0][0].logs),
        f"{primary.host}:{primary.port}",
    )
    assert files_in(Path(str(scene.storage))) == known
    assert f"  {last}: " in str(logs)
    with pytest.raises(FleetSetupError, match="of which keyspace"):
        plan_backups(scene.fleet, storage, Scope(shard=1))


def test_backups_that_do_not_exist_are_refused(scene, tmp_path):
    with pytest.raises(BackupNotFoundError, match="'x'"):
        scene.planned(backup="x")
    with pytest.raises(FleetSetupError, match="of which keyspace"):
        create_backups(scene.fleet, scene.storage, Scope(shard=1))
    with pytest.raises(FleetSetupError, match="no backup of shard 7"):
        Restore.planned(scene.fleet, tmp_path, keyspace="objects", shard=SHARD)


def flipped(path):
    """Change one byte in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_one_changed_byte_is_found(scene):
    file = scene.backup.database("objects", SHARD)
    path = scene.path(file)
    flipped(path)
    try:
        (problem,) = scene.storage.problems(scene.backup)
        assert "SHA-256" in str(problem)
        assert "SHA-256" in problems_of(scene.planned(database="damaged"))
    finally:
        flipped(path)
    (archive,), _ = archives_of(scene.storage)
    log = Path(str(archive.file(archive.logs[0])))
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
    scene.on_live(f"CREATE TABLE {LIVE}.copied LIKE db00008.load_pins", default=None)
    scene.on_live("DROP TABLE copied")
    archive, _ = copy_binlogs(scene.fleet, scene.storage, "server1")
    moment = Moment(time=archive.logs[-1].closed)
    found = problems_of(scene.planned(moment=moment, database="x"))
    assert "it names db00008" in found


def test_prepared_transactions_are_refused(scene):
    with scene.pair.primary.root_connect(database=LIVE) as connection:
        for sql in (
            "XA START 'one'",
            "INSERT INTO more VALUES (88)",
            "XA END 'one'",
            "XA PREPARE 'one'",
            "XA COMMIT 'one'",
        ):
            connection.cursor().execute(sql)
    scene.on_live("DELETE FROM more WHERE id = 88")
    archive, _ = copy_binlogs(scene.fleet, scene.storage, "server1")
    moment = Moment(time=archive.logs[-1].closed)
    found = problems_of(scene.planned(moment=moment, database="x"))
    assert "an XA transaction" in found


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
    assert scene.storage.listing().backups == [scene.backup]
    assert scene.storage.listing().unfinished == []


def test_views_and_missing_databases_are_refused(scene):
    scene.on_live("CREATE VIEW seen AS SELECT 1")
    scene.pair.wait_caught_up()
    try:
        with pytest.raises(OperationRefusedError, match="views"):
            create_backups(
                scene.fleet, scene.storage, Scope(keyspace="objects", shard=SHARD)
            )
    finally:
        scene.on_live("DROP VIEW seen")
    scene.pair.standby.root_execute("STOP REPLICA SQL_THREAD")
    try:
        with pytest.raises(OperationRefusedError, match="may be old"):
            create_backups(scene.fleet, scene.storage, Scope())
    finally:
        scene.pair.standby.root_execute("START REPLICA SQL_THREAD")
        scene.pair.wait_caught_up()


def test_a_killed_backup_is_not_listed(scene):
    with scene.storage.file(KILLED, "db00000.sql.gz").create() as file:
        file.write(b"x")
    try:
        assert scene.storage.listing() == ([scene.backup], [], [KILLED])
        with pytest.raises(BackupNotFoundError):
            scene.storage.get(KILLED)
    finally:
        scene.storage.remove(KILLED)


def test_the_only_good_backup_stays(scene, tmp_path):
    storage = Storage(tmp_path)
    for day in range(3):
        one = dataclasses.replace(scene.backup, name=f"b{day}", created=day * 86_400.0)
        for file in one.databases:
            with storage.file(one.name, file.file).create() as copied:
                copied.write(scene.path(file).read_bytes())
        storage.finish(one)
    newest = Path(str(storage.file("b2", storage.get("b2").databases[0].file)))
    flipped(newest)
    options = {"keep_last": 1, "keep_days": 1.0, "now": 10 * 86_400.0}
    assert storage.prune(**options, dry_run=True) == ["b0"]
    assert storage.prune(**options) == ["b0"]
    assert [one.name for one in storage.listing().backups] == ["b1", "b2"]
    flipped(newest)
    assert storage.prune(**options) == ["b1"]


# -- standbys that are not fit ------------------------------------------------


def test_a_standby_that_is_late_is_not_read(scene, monkeypatch):
    monkeypatch.setattr(backup_module, "_LATE_SECONDS", 0.5)
    standby = scene.pair.standby
    delay = "CHANGE MASTER TO MASTER_DELAY"
    if scene.pairs.kind == "mysql":
        delay = "CHANGE REPLICATION SOURCE TO SOURCE_DELAY"
    for sql in ("STOP REPLICA", f"{delay} = 3600"):
        standby.root_execute(sql)
    standby.root_execute("START REPLICA")
    scene.on_live("INSERT INTO more VALUES (77)")
    with scene.admin(standby) as admin:
        replication = replication_of(admin)
        assert wait_until(lambda: replication.status().runs, seconds=60)
    scope = Scope(keyspace="objects", shard=SHARD)
    try:
        with pytest.raises(OperationRefusedError, match="has not applied"):
            create_backups(scene.fleet, scene.storage, scope)
        with pytest.raises(OperationRefusedError, match="--from primary"):
            create_backups(scene.fleet, scene.storage, scope)
    finally:
        for sql in ("STOP REPLICA", f"{delay} = 0"):
            standby.root_execute(sql)
        standby.root_execute("START REPLICA")
        scene.on_live("DELETE FROM more WHERE id = 77")
        scene.pair.wait_caught_up()
    assert scene.storage.listing() == ([scene.backup], [], [])


@contextmanager
def another_id(server):
    """Give a server another server_id, as if it was another server."""
    ((number,),) = server.root_execute("SELECT @@server_id")
    server.root_execute("SET GLOBAL server_id = 4711")
    try:
        yield
    finally:
        server.root_execute(f"SET GLOBAL server_id = {number}")


def test_a_standby_of_another_primary_is_not_read(scene):
    with (
        another_id(scene.pair.primary),
        pytest.raises(OperationRefusedError, match="not from server1 primary"),
    ):
        create_backups(scene.fleet, scene.storage, Scope(keyspace="objects"))


# -- binary logs --------------------------------------------------------------


def test_logs_are_copied_by_one_process_at_a_time(scene, monkeypatch):
    monkeypatch.setattr(binlog_archive, "_LOCK_SECONDS", 1)
    with scene.admin() as other:
        other.run("SELECT GET_LOCK('sqla_shard.binlogs', 0)")
        number = other.value("SELECT CONNECTION_ID()")
        with pytest.raises(BackupFailedError, match=f"in session {number} "):
            copy_binlogs(scene.fleet, scene.storage, "server1")
    copy_binlogs(scene.fleet, scene.storage, "server1")


def test_logs_of_another_server_are_not_mixed(scene):
    before = archives_of(scene.storage)
    with (
        another_id(scene.pair.primary),
        pytest.raises(BackupFailedError, match="another server has this"),
    ):
        copy_binlogs(scene.fleet, scene.storage, "server1")
    assert archives_of(scene.storage) == before


def test_logs_of_another_history_are_not_mixed(scene, tmp_path):
    """The names and sizes fit, since the old ones were purged."""
    (archive,), _ = archives_of(scene.storage)
    storage = Storage(tmp_path)
    last = archive.logs[-1]
    first = dataclasses.replace(last, name=f"{last.name[:-6]}000000")
    other = dataclasses.replace(archive, files=storage.files, logs=(first,))
    with archive.file(last).open() as file, other.file(first).create() as to:
        to.write(file.read())
    other.write()
    with pytest.raises(BackupFailedError, match="another history than"):
        copy_binlogs(scene.fleet, storage, "server1")
    assert archives_of(storage) == ([other], [])


def test_a_program_that_hangs_is_ended(scene, tmp_path, monkeypatch):
    is_mysql = scene.pairs.kind == "mysql"
    name = "mysqlbinlog" if is_mysql else "mariadb-binlog"
    program = tmp_path / "bin" / name
    program.parent.mkdir()
    program.write_text(
        "#!/bin/sh\n"
        f"[ $1 = --help ] && exec echo {'' if is_mysql else 'MariaDB'}\n"
        "exec sleep 600\n"
    )
    program.chmod(0o755)
    storage = Storage(tmp_path / "backups")
    with monkeypatch.context() as patch:
        patch.setattr(binlog_archive, "_STALLED_SECONDS", 0.3)
        patch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
        with pytest.raises(BackupFailedError, match="written nothing for"):
            copy_binlogs(scene.fleet, storage, "server1")
    assert archives_of(storage) == ([], [])
    # Files left by a killed process are removed by the next one.
    (folder,) = (tmp_path / "backups" / "binlogs").iterdir()
    left = folder / ".partial"
    left.mkdir()
    (left / "binlog.000001").write_bytes(b"x")
    archive, new = copy_binlogs(scene.fleet, storage, "server1")
    assert [one.name for one in archive.logs] == new
    assert archive.problems() == []
    assert not left.exists()


# -- folders elsewhere --------------------------------------------------------


def test_a_folder_of_fsspec(scene, tmp_path):
    for number, url in enumerate((f"file://{tmp_path}/x", "memory://x")):
        storage = Storage(url)
        (backup,) = create_backups(
            scene.fleet, storage, Scope(keyspace="objects", shard=SHARD)
        )
        assert storage.listing() == ([backup], [], [])
        assert storage.problems(backup) == []
        scene.on_live(f"INSERT INTO more VALUES ({100 + number})")
        gtid, content = scene.record()
        scene.on_live("DELETE FROM more WHERE id >= 100")
        _, new = copy_binlogs(scene.fleet, storage, "server1")
        assert new
        assert copy_binlogs(scene.fleet, storage, "server1")[1] == [
            archives_of(storage)[0][0].logs[-1].name
        ]
        plan = Restore.planned(
            scene.fleet,
            url,
            keyspace="objects",
            shard=SHARD,
            moment=Moment(gtid=gtid),
            database="elsewhere",
        )
        assert plan.problems == ()
        assert plan.arguments["folder"] == url
        apply(scene.fleet, plan)
        assert same_content(content, scene.read("elsewhere")) == []
        scene.drop("elsewhere")
        storage.files.remove("backups")
        storage.files.remove("binlogs")


class Failing(MemoryFileSystem):
    """Files in memory; a file after some others cannot be written."""

    protocol = "failing"
    left = 0

    def open(self, path, mode="rb", **options):
        if mode == "wb":
            Failing.left -= 1
            if Failing.left < 0:
                raise OSError(28, "No space left on device")
        return super().open(path, mode, **options)


@pytest.mark.parametrize("left", [0, 3, SHARDS])
def test_a_folder_that_fails_in_the_middle(scene, left):
    fsspec.register_implementation("failing", Failing, clobber=True)
    storage = Storage("failing://here")
    Failing.left = left
    with pytest.raises(BackupFailedError, match="No space left"):
        create_backups(scene.fleet, storage, Scope(keyspace="objects"))
    assert storage.listing() == ([], [], [])
    Failing.left = SHARDS + 1
    (backup,) = create_backups(scene.fleet, storage, Scope(keyspace="objects"))
    assert storage.listing() == ([backup], [], [])
    storage.remove(backup.name)


def test_a_damaged_backup_is_named_and_the_next_is_restored(scene):
    manifest = scene.storage.file("20991231-bad", "manifest.json")
    scene.storage.files.replace(manifest.path, b"{}")
    try:
        plan = scene.planned(database="beside")
        assert plan.problems == ()
        assert plan.arguments["backup"] == scene.backup.name
        assert "20991231-bad" in " ".join(plan.warnings)
    finally:
        scene.storage.remove("20991231-bad")


def run_printed(scene, sql):
    """Run statements, and the statements that they print."""
    arguments = {"client_flag": CLIENT.MULTI_STATEMENTS}
    with scene.pair.primary.root_connect(**arguments) as connection:
        cursor = connection.cursor()
        cursor.execute(sql)
        while not (printed := cursor.fetchall()):
            assert cursor.nextset()
        for (statements,) in printed:
            cursor.execute(statements)
            while cursor.nextset():
                pass


# The last test: it replaces live databases.
def test_the_statements_of_the_page_put_databases_in_place(scene):
    ids, names = (
        block.code
        for block in blocks_of(PAGE)
        if block.language == "sql" and "CONCAT(" in block.code
    )
    lives = (LIVE, f"db{QUIET:05d}")
    restored = {live: scene.read(f"restored_{live}") for live in lives}
    for live in lives:
        scene.drop(live)
    run_printed(scene, ids)
    run_printed(scene, names)
    for live, before in restored.items():
        now = scene.read(live)
        assert same_content(before, now) == []
        # A table without rows yet has no counter in its definition.
        was = {one.name: one.auto_increment or 1 for one in before}
        for one in now:
            if one.auto_increment is not None:
                assert one.auto_increment == was[one.name] + 1_000_000
        assert f"restored_{live}" not in scene.databases()
    assert any(one.auto_increment for before in restored.values() for one in before)
