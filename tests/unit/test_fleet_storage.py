"""Folders of backups: damaged, tampered with, half written, and elsewhere."""

from __future__ import annotations

import dataclasses
import json
import os
import stat
import sys
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from sqla_shard.exc import (
    BackupDamagedError,
    BackupNotFoundError,
    FleetSetupError,
    MissingExtraError,
)
from sqla_shard.fleet.binlog_archive import archives_of, BinlogArchive, LogFile
from sqla_shard.fleet.dumps import TableContent
from sqla_shard.fleet.files import File, files_at, HashingWriter
from sqla_shard.fleet.storage import (
    Backup,
    DatabaseFile,
    dump_name,
    read_manifest,
    Storage,
    write_manifest,
)
from tests.servers.command_line import invoke

DAY = 86_400.0
HALF = "20260101T000000Z-server1-0000"
TABLE = TableContent(
    name="pins", definition="0", rows=1, checksum="0", auto_increment=None
)


@pytest.fixture(params=["path", "local", "memory"])
def folder(request, tmp_path):
    """Return a place for backups, of each kind."""
    yield {
        "path": str(tmp_path / "a" / "b"),
        "local": f"file://{tmp_path}/c",
        "memory": "memory://backups",
    }[request.param]
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


@pytest.fixture
def storage(folder):
    return Storage(folder)


def write_dump_of(storage, name, shard=7):
    """Write the file of one shard, and return its entry."""
    database = f"db{shard:05d}"
    file = storage.file(name, dump_name(database))
    with file.create() as opened:
        written = HashingWriter(opened)
        written.write(b"SELECT 1;\n")
    return DatabaseFile(
        keyspace="objects",
        shard=shard,
        database=database,
        charset="utf8mb4",
        collation="utf8mb4_bin",
        file=file.name,
        size=written.size,
        sha256=written.sha256,
        tables=(TABLE,),
    )


def backup_of(storage, name, *, created=0.0):
    """Write a backup of one shard."""
    backup = Backup(
        name=name,
        created=created,
        product="1",
        topology="t",
        epoch=1,
        server="server1",
        source="a:3306",
        role="standby",
        server_version="10.11",
        is_mariadb=True,
        position="0-1-1",
        databases=(write_dump_of(storage, name),),
    )
    storage.finish(backup)
    return backup


def change(storage, name, edit):
    """Write another manifest of a backup, as one who knows its form."""
    manifest = storage.file(name, "manifest.json")
    values = read_manifest(manifest)
    edit(values)
    write_manifest(manifest, values)


def test_a_backup_is_there_when_it_is_finished(storage):
    assert storage.listing() == ([], [], [])
    write_dump_of(storage, HALF)
    backup = backup_of(storage, "whole")
    assert storage.listing() == ([backup], [], [HALF])
    assert storage.get("whole") == backup
    assert storage.problems(backup) == []
    for name in (HALF, "..", "../backups/whole", ""):
        with pytest.raises(BackupNotFoundError) as found:
            storage.get(name)
        assert found.value.known == ("whole",)


def test_unfinished_files_are_not_listed(storage):
    entry = dataclasses.replace(write_dump_of(storage, HALF), size=5)
    backup = dataclasses.replace(
        backup_of(storage, "other"), name=HALF, databases=(entry,)
    )
    with pytest.raises(OSError, match="has 10 bytes, not 5"):
        storage.finish(backup)
    assert storage.listing().unfinished == [HALF]


TAMPERED = {
    "another folder": (lambda d: d.update(name="other"), "of 'other'"),
    "no string": (lambda d: d.update(name=5), "name is 5, not str"),
    "a path": (
        lambda d: d["databases"][0].update(file="../whole/db00007.sql.gz"),
        "is not the dump of a database",
    ),
    "an absolute path": (
        lambda d: d["databases"][0].update(file="/etc/passwd"),
        "is not the dump of a database",
    ),
    "one file twice": (
        lambda d: d["databases"].append(d["databases"][0]),
        "more than once",
    ),
    "SQL": (
        lambda d: d["databases"][0].update(charset="x; DROP DATABASE a"),
        "is not a character set",
    ),
    "a flag": (lambda d: d["databases"][0].update(size=True), "size is True"),
    "rows": (lambda d: d["databases"][0]["tables"][0].update(rows="1"), "rows is '1'"),
    "another version": (lambda d: d.update(format=2), "not of format 1"),
    "no time": (lambda d: d.update(created=1e308), "created is 1e"),
    "not a number": (lambda d: d.update(created=float("nan")), "is nan"),
    "a missing value": (lambda d: d.pop("position"), "position"),
    "an unknown value": (lambda d: d.update(more=1), "more"),
    "no list": (lambda d: d.update(databases=5), "databases is 5"),
}


@pytest.mark.parametrize("case", TAMPERED)
def test_manifests_that_were_tampered_with(tmp_path, case):
    storage = Storage(tmp_path)
    edit, message = TAMPERED[case]
    whole = backup_of(storage, "whole", created=1.0)
    backup_of(storage, "bad")
    change(storage, "bad", edit)
    with pytest.raises(BackupDamagedError, match=message):
        storage.get("bad")
    # The others are served, and the damaged one stays.
    listing = storage.listing()
    assert listing.backups == [whole]
    (problem,) = listing.problems
    assert "bad" in problem.place
    options = {"keep_last": 1, "keep_days": 0.0, "now": 10 * DAY}
    assert storage.prune(**options) == []
    backup_of(storage, "later", created=2.0)
    assert storage.prune(**options) == ["whole"]
    assert len(storage.listing().problems) == 1


def logs_of(storage):
    archive = BinlogArchive(
        files=storage.files,
        folder=storage.log_folder("a:1"),
        address="a:1",
        server_id=1,
        logs=(LogFile(name="binlog.1", size=1, sha256="", closed=1.0),),
    )
    archive.write()
    return archive


def changed_manifests(data):
    """Yield a manifest with each change of one bit, and others."""
    for place in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[place] ^= 1 << bit
            yield bytes(changed)
    yield from (b"", b"{", b"5", b"[]", b"null", b"{}", b"[" * 100_000)
    yield from (data[:-1], data + b" ", json.dumps(json.loads(data)).encode())
    unsealed = {k: v for k, v in json.loads(data).items() if k != "sha256"}
    yield json.dumps(unsealed, indent=1).encode()


def test_a_manifest_that_was_changed(tmp_path):
    storage = Storage(tmp_path)
    whole = backup_of(storage, "whole")
    backup_of(storage, "bad")
    logs = logs_of(storage)
    manifest = storage.file("bad", "manifest.json")
    of_logs = File(storage.files, f"{logs.folder}/manifest.json")
    for file, read in (
        (manifest, lambda: storage.get("bad")),
        (of_logs, lambda: BinlogArchive.read(storage.files, logs.folder)),
    ):
        read()
        for changed in changed_manifests(Path(str(file)).read_bytes()):
            Path(str(file)).write_bytes(changed)
            with pytest.raises(BackupDamagedError):
                read()
    listing = storage.listing()
    assert listing.backups == [whole]
    assert "bad" in listing.problems[0].place


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_no_other_user_reads_a_backup(tmp_path):
    place = tmp_path / "made" / "here"
    storage = Storage(place)
    mask = os.umask(0)
    try:
        backup_of(storage, "whole")
        logs = logs_of(storage)
        with storage.files.scratch(logs.folder) as scratch:
            # As a program writes it.
            (scratch / "binlog.1").write_bytes(b"1")
            storage.files.take(scratch / "binlog.1", f"{logs.folder}/binlog.1")
    finally:
        os.umask(mask)
    found = {
        path.name: stat.S_IMODE(path.stat().st_mode)
        for path in (place.parent, *place.parent.rglob("*"))
    }
    assert {name: mode for name, mode in found.items() if mode & 0o077} == {}
    assert {"made", "here", "binlog.1", "db00007.sql.gz"} < set(found)


@pytest.mark.parametrize(
    "log",
    [
        {"name": "../../backups/whole/db00007.sql.gz"},
        {"name": "manifest.json/.."},
        {"name": ".."},
        {"size": "1"},
    ],
)
def test_logs_elsewhere_are_not_read(storage, log):
    for number, address in enumerate(("a:1", "b:1")):
        one = LogFile(name="binlog.1", size=1, sha256="", closed=1.0)
        BinlogArchive(
            files=storage.files,
            folder=storage.log_folder(address),
            address=address,
            server_id=number,
            logs=(dataclasses.replace(one, **log) if number else one,),
        ).write()
    archives, problems = archives_of(storage)
    assert [one.address for one in archives] == ["a:1"]
    (problem,) = problems
    assert "b-1" in problem.place


def test_the_commands_name_what_is_damaged(tmp_path):
    storage = Storage(tmp_path)
    for name in ("whole", "bad"):
        backup_of(storage, name)
    change(storage, "bad", lambda d: d.update(name="x"))
    for command, status in (("list", 3), ("prune", 3), ("verify", 1)):
        options = ("--keep-last", 1) if command == "prune" else ()
        found = invoke("fleet", "backup", command, tmp_path, *options)
        assert found.exit_code == status, found.output
        assert "manifest of 'x'" in found.output
    assert "whole: 1 databases" in (invoke("fleet", "backup", "list", tmp_path).stdout)


def test_an_interrupted_prune_is_finished_by_the_next(storage, monkeypatch):
    backup_of(storage, HALF)
    backup_of(storage, "later", created=DAY)
    remove = storage.files.remove
    removed = []

    def interrupted(path):
        removed.append(path)
        if path.endswith("manifest.json"):
            remove(path)
        else:
            raise OSError("the disk is away")

    options = {"keep_last": 1, "keep_days": 0.0}
    now = storage.files.changed(storage.file(HALF, "manifest.json").path)
    with monkeypatch.context() as patch:
        patch.setattr(storage.files, "remove", interrupted)
        with pytest.raises(OSError, match="is away"):
            storage.prune(**options, now=now + 10)
    # Its manifest has gone first: it is not listed, though it has files.
    assert removed[0].endswith(f"{HALF}/manifest.json")
    listing = storage.listing()
    assert [one.name for one in listing.backups] == ["later"]
    assert listing.unfinished == [HALF]
    # It could be a backup that is being written.
    assert storage.prune(**options, now=now + 10) == []
    assert storage.prune(**options, now=now + 2 * DAY, dry_run=True) == [HALF]
    assert storage.prune(**options, now=now + 2 * DAY) == [HALF]
    assert storage.listing().unfinished == []
    assert HALF not in storage.files.names("backups")


def test_other_folders_and_files_are_left_alone(storage):
    backup = backup_of(storage, "whole")
    for path in ("backups/lost/a", "backups/.note", "binlogs/note"):
        File(storage.files, path).create().close()
    assert storage.listing() == ([backup], [], [])
    assert archives_of(storage) == ([], [])
    assert storage.prune(keep_last=1, keep_days=0, now=1e12) == []


def test_files_without_a_time_are_not_removed(monkeypatch):
    storage = Storage("memory://without-times")

    def modified(self, path):
        raise NotImplementedError

    monkeypatch.setattr(MemoryFileSystem, "modified", modified)
    write_dump_of(storage, HALF)
    found = storage.prune(keep_last=1, keep_days=0, now=1e12)
    storage.remove(HALF)
    assert found == []


def test_a_file_is_replaced_at_once(storage, monkeypatch):
    storage.files.replace("folder/a", b"old")
    if not isinstance(storage.files, type(files_at("memory://x"))):
        monkeypatch.setattr("pathlib.Path.rename", _failing)
    else:
        monkeypatch.setattr(type(storage.files._fs), "mv", _failing)
    with pytest.raises(OSError, match="in the middle"):
        storage.files.replace("folder/a", b"new")
    with File(storage.files, "folder/a").open() as file:
        assert file.read() == b"old"


def _failing(*args, **options):
    raise OSError("in the middle")


def test_a_local_folder_needs_no_fsspec(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec", None)
    storage = Storage(tmp_path)
    backup = backup_of(storage, "whole")
    assert storage.listing() == ([backup], [], [])
    with pytest.raises(MissingExtraError, match=r"sqla-shard\[fsspec\]"):
        Storage("s3://bucket/x")


def test_urls_that_cannot_be_used():
    with pytest.raises(FleetSetupError, match="nothing://a: "):
        Storage("nothing://a")
    with pytest.raises(FleetSetupError, match="has a password") as found:
        Storage("simplecache::ftp://me:secret@host/a")
    assert "secret" not in str(found.value)
    # It is known to fsspec, but its package is not installed.
    assert "lakefs" in fsspec.available_protocols()
    with pytest.raises(FleetSetupError, match="install lakefs"):
        Storage("lakefs://a/b")
