"""Every command of sqla-shard where SQLite files are missing."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from sqla_shard.cli.output import FAILED, NOT_READ
from sqla_shard.testing import sqlite_topology
from tests.models.unread_models import MODULUS, SHARDS
from tests.servers.command_line import write
from tests.suites import unread


def scene_of(directory):
    document = sqlite_topology(directory / "data", 2, SHARDS, lookup=MODULUS)
    project, ids = unread.prepared(directory, document)
    new = sqlite_topology(directory / "data", 2, SHARDS + 2, lookup=MODULUS, epoch=2)
    servers = document["keyspaces"]["objects"]["servers"]
    new["keyspaces"]["objects"]["servers"] = [
        servers[0],
        {**servers[1], "shards": [4, 9]},
    ]
    write(directory, new, "new.json")
    return unread.Scene(
        project=project,
        ids=ids,
        reasons=[
            "there is no file /",
            "no such database",
            "no database",
            "database not found",
        ],
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return scene_of(tmp_path_factory.mktemp("unread"))


class TestWithoutFiles(unread.Unread):
    OTHERWISE: ClassVar[dict[str, dict[str, Any]]] = {
        # It looks for missing databases.
        "schema verify": {"status": FAILED, "most": 0},
        # It creates files in addition to the missing ones.
        "schema -c {dir}/alembic.ini provision --topology {dir}/new.json": {
            "status": FAILED,
            "most": 0,
            "makes": True,
        },
        # There is nothing to be read that could be missing.
        "schema -c {dir}/alembic.ini resolve 7 statement-done": {"status": FAILED},
    }

    @pytest.fixture
    def scene(self, whole):
        there = whole.directory / "data" / "server2"
        aside = whole.directory.parent / "aside"
        aside.mkdir()
        for path in there.glob("*.sqlite"):
            path.rename(aside / path.name)
        yield whole
        for path in aside.iterdir():
            path.rename(there / path.name)
        aside.rmdir()


#: Commands that read all servers, and whose document has those that were not.
_READERS = ("repair", "halves", "key", "cache", "queue", "spread", "verify", "blobs")
READING = [
    case
    for path, cases in unread.CASES.items()
    for case in cases
    if case.status == NOT_READ
    and path.split()[1] in _READERS
    and not case.arguments.startswith(("repair --discard", "queue show"))
]


@pytest.mark.parametrize("case", READING, ids=lambda case: case.arguments[:60])
def test_documents_have_one_key_for_servers_that_were_not_read(
    without_directory, case, monkeypatch
):
    case = replace(case, arguments=f"{case.arguments} --json", says="")
    shown = unread.check(without_directory, case, monkeypatch)
    document = json.loads(shown[shown.index("{") :])
    (lost,) = document["unreachable"]
    assert lost.keys() == {"server", "role", "reason", "code", "responds", "shards"}
    assert (lost["server"], lost["role"]) == ("server2", "primary")


@pytest.fixture
def without_directory(whole):
    there = whole.directory / "data" / "server2"
    aside = whole.directory.parent / "server2"
    there.rename(aside)
    yield whole
    aside.rename(there)


@pytest.mark.parametrize(
    "command", ["schema status", "repair", "halves", "cache stats", "verify relations"]
)
def test_their_directory_is_not_there_either(without_directory, command, monkeypatch):
    for case in unread.CASES[f"sqla-shard {command}"]:
        unread.check(without_directory, case, monkeypatch)


def test_nothing_is_provisioned_if_a_database_is_missing(whole, monkeypatch):
    lost = whole.directory / "data" / "server1" / "db00000.sqlite"
    aside = lost.rename(whole.directory.parent / "aside.sqlite")
    (case,) = unread.CASES["sqla-shard schema provision"]
    case = replace(case, says="server1", most=0)
    unread.check(whole, case, monkeypatch)
    aside.rename(lost)
