"""Completion of values from the topology, as a shell asks for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest

from sqla_shard.cli.program import program
from tests.servers.command_line import commands, environment, invoke

_TOPOLOGY = """
epoch = 7
[keyspaces.objects]
kind = "objects"
shards = 12
database = "db{shard:05d}"
[[keyspaces.objects.servers]]
name = "alpha"
primary = "mysql://a@one"
shards = [[0, 3], [8, 9]]
[[keyspaces.objects.servers]]
name = "beta"
primary = "mysql://a@two"
shards = [[4, 7], [10, 11]]
[keyspaces.lookup]
kind = "mod"
shards = 2
database = "lookup{shard}"
servers = [{name = "alpha", primary = "mysql://a@one", shards = [0, 1]}]
"""
_INI = """
[alembic]
script_location = m
topology = %(here)s/migrated.toml
keyspace = objects
[second]
script_location = m
topology = migrated.toml
keyspace = lookup
[third]
script_location = m
topology = %(here)s/migrated.toml
sqlalchemy.url = mysql://%(nobody)s
[elsewhere]
script_location = m
keyspace = objects
[broken]
script_location = m
topology = %(here)s/migrated.toml
keyspace = %(nobody)s
"""
#: Modules that a completion must not import, as they take a second.
_SLOW = ("sqlalchemy", "alembic", "pymysql", "MySQLdb", "kazoo")


def completed(directory: Path, line: str, **environ: str) -> tuple[list[str], set[str]]:
    """Return the completions of a line, and the packages imported."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "sqla_shard.cli"],
        cwd=directory,
        env=environment(
            _SQLA_SHARD_COMPLETE="bash_complete",
            COMP_WORDS=line,
            COMP_CWORD=str(len(line.split(" ")) - 1),
            **environ,
        ),
        capture_output=True,
        text=True,
        check=True,
    )
    imported = set()
    for one in done.stderr.splitlines():
        # Nothing else is on standard error.
        assert one.startswith("import time:"), one
        imported.add(one.rpartition("|")[2].strip().partition(".")[0])
    found = done.stdout.split()
    assert all(one.startswith("plain,") for one in found), found
    return [one.removeprefix("plain,") for one in found], imported


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "topology.toml").write_text(_TOPOLOGY)
    (tmp_path / "alembic.ini").write_text(_INI)
    migrated = _TOPOLOGY.replace("beta", "gamma")
    (tmp_path / "migrated.toml").write_text(migrated)
    return tmp_path


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("sqla-shard fleet failover ", ["alpha", "beta"]),
        ("sqla-shard fleet replica rebuild b", ["beta"]),
        ("sqla-shard where --keyspace ", ["objects", "lookup"]),
        ("sqla-shard shell --shard 1", ["1", "10", "11"]),
        (
            "sqla-shard schema upgrade --shards 0-3,",
            ["0-3,0-3", "0-3,8-9", "0-3,4-7", "0-3,10-11"],
        ),
        ("sqla-shard schema status --servers alpha,", ["alpha,alpha", "alpha,gamma"]),
        ("sqla-shard schema -n second downgrade --servers ", ["alpha"]),
        ("sqla-shard schema --name second resolve ", ["0", "1"]),
        ("sqla-shard schema --name lookup resolve ", ["0", "1"]),
        # Two sections have this keyspace.
        ("sqla-shard schema -n objects resolve ", []),
        ("sqla-shard schema -n third upgrade --new 0-1", ["0-1"]),
        ("sqla-shard schema -n elsewhere upgrade --servers ", []),
        ("sqla-shard schema -n broken upgrade --servers ", []),
        ("sqla-shard schema -n missing upgrade --servers ", []),
        ("sqla-shard schema verify --servers b", ["beta"]),
        ("sqla-shard topology rollback --to ", []),
    ],
)
def test_values_are_those_of_the_topology(
    folder: Path, line: str, values: list[str]
) -> None:
    found, imported = completed(folder, line)
    assert found == values
    assert imported.isdisjoint(_SLOW)


def test_the_topology_is_that_of_the_line(folder: Path) -> None:
    (folder / "topology.toml").rename(folder / "other.toml")
    words = "sqla-shard -t other.toml fleet move "
    assert completed(folder, words)[0] == ["alpha", "beta"]
    words = "sqla-shard fleet move "
    found, _ = completed(folder, words, SQLA_SHARD_TOPOLOGY="other.toml")
    assert found == ["alpha", "beta"]
    (folder / "topology.json").write_text(
        '{"old1": {"range": [0, 511], "master": "M1"}}'
    )
    words = "sqla-shard fleet backup create -t topology.json b --server "
    assert completed(folder, words)[0] == ["old1"]


def test_the_topology_of_the_line_precedes_that_of_alembic_ini(folder: Path) -> None:
    words = "sqla-shard schema -n elsewhere upgrade -t topology.toml --servers"
    assert completed(folder, f"{words} ")[0] == ["alpha", "beta"]
    words = "sqla-shard -t topology.toml schema -n second upgrade --servers "
    assert completed(folder, words)[0] == ["alpha"]
    words = "sqla-shard schema status --exit-code --servers alpha --shards 4"
    assert completed(folder, words)[0] == ["4-7"]


def test_alembic_ini_is_that_of_the_line(folder: Path) -> None:
    (folder / "alembic.ini").rename(folder / "other.ini")
    words = "schema upgrade --servers "
    assert completed(folder, f"sqla-shard {words}")[0] == []
    found = completed(folder, f"sqla-shard schema -c other.ini {words[7:]}")
    assert found[0] == ["alpha", "gamma"]
    found = completed(folder, f"sqla-shard {words}", ALEMBIC_CONFIG="other.ini")
    assert found[0] == ["alpha", "gamma"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff[alembic]",
        b"topology = topology.toml",
        b"[alembic]\nscript_location=m\ntopology = gone.toml",
        b"[alembic]\nscript_location=m\ntopology = %(topology)s",
        b"[alembic]\nscript_location=m\ntopology = a\0b",
        b"[alembic\n[alembic]\n[alembic]",
    ],
)
def test_a_broken_alembic_ini_completes_nothing(folder: Path, content: bytes) -> None:
    (folder / "alembic.ini").write_bytes(content)
    found, imported = completed(folder, "sqla-shard schema upgrade --shards ")
    assert found == []
    assert imported.isdisjoint(_SLOW)


@pytest.mark.parametrize(
    ("words", "reads_ini"),
    [
        ("upgrade", True),
        ("downgrade base", True),
        ("status", True),
        ("resolve 0 revision-done", True),
        ("verify", False),
    ],
)
def test_commands_complete_from_alembic_ini_if_they_need_it(
    folder: Path, words: str, reads_ini: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "alembic.ini").unlink()
    monkeypatch.chdir(folder)
    done = invoke("schema", *words.split())
    assert ("alembic.ini not found" in done.stderr) == reads_ini
    name = words.split()[0]
    value = "" if name == "resolve" else "--shards "
    found, _ = completed(folder, f"sqla-shard schema {name} {value}")
    assert (found == []) == reads_ini


@pytest.mark.parametrize(
    "content", [None, b"", b"epoch = [", b"\xff", b"keyspaces = 3", b"epoch = 1"]
)
def test_an_unreadable_source_completes_nothing(
    tmp_path: Path, content: bytes | None
) -> None:
    if content is not None:
        (tmp_path / "topology.toml").write_bytes(content)
    assert completed(tmp_path, "sqla-shard fleet move ")[0] == []


def test_a_zookeeper_that_is_gone_completes_nothing(tmp_path: Path) -> None:
    pytest.importorskip("kazoo")
    location = "zookeeper://127.0.0.1:1/prod"
    for line in ("fleet move ", "topology rollback --to "):
        found, imported = completed(tmp_path, f"sqla-shard -t {location} {line}")
        assert found == []
        assert imported.isdisjoint({*_SLOW} - {"kazoo"})


@pytest.mark.thorough
def test_after_other_words_the_command_itself_completes(folder: Path) -> None:
    found, _ = completed(folder, "sqla-shard fleet failover --drain")
    assert found == ["--drain-timeout"]
    found, _ = completed(folder, "sqla-shard fleet failover --yes ")
    assert found == ["alpha", "beta"]
    found, _ = completed(folder, "sqla-shard fleet restore b objects 1")
    assert found == ["1", "10", "11"]


def test_every_name_of_the_topology_is_completed() -> None:
    wanted = {"server", "keyspace", "shard", "--keyspace", "--server"}
    wanted |= {"--shard", "--shards", "--servers", "--new", "--expect-epoch"}
    # Numbers and kinds of servers and shards, and not names.
    numbers = {
        *(("dev up", name) for name in ("--server", "--servers", "--shards")),
        ("fleet capacity", "--servers"),
        ("init", "--shards"),
    }
    missing = [
        (path, word)
        for path, command in commands(program, "sqla-shard")
        for param in command.params
        for word in wanted.intersection(
            param.opts if isinstance(param, click.Option) else {str(param.name)}
        )
        if (path.removeprefix("sqla-shard "), word) not in numbers
        and not getattr(param, "is_flag", False)
        and param._custom_shell_complete is None
    ]
    assert missing == []
