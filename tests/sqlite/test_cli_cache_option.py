"""The option ``--cache`` of commands that write rows.

The cache node does not answer, so pending invalidations are in the outbox.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sqla_shard import Cluster
from sqla_shard.testing import sqlite_topology
from tests.servers import command_line
from tests.servers.command_line import invoke
from tests.servers.command_writes import each_write, MODELS, write_settings
from tests.servers.memcached import no_node
from tests.suites.outbox import rows
from tests.suites.verify_relations import Base, Board, new, SHARDS

write = each_write()

COMMANDS = {
    "repair": ["repair", "--once"],
    "lookups": ["verify", "lookups", "--models", "tests.models.verify_models"],
    "relations": ["verify", "relations", "--models", MODELS],
    "references": [
        *("verify", "references"),
        *("--models", "tests.models.reference_models"),
    ],
    "shell": ["shell", "--shard", 1, "-c", "pass"],
}
each_command = pytest.mark.parametrize(
    "command", list(COMMANDS.values()), ids=list(COMMANDS)
)


@pytest.fixture
def topology(tmp_path: Path) -> Path:
    document = sqlite_topology(tmp_path, 2, SHARDS)
    for server in document["keyspaces"]["objects"]["servers"]:
        server["standby"] = f"sqlite:///{tmp_path}/standby"
    return command_line.write(tmp_path, document)


@pytest.fixture
def plain(topology: Path) -> Iterator[Cluster]:
    with Cluster.from_file(topology, watch=False) as cluster:
        cluster.create_all(Base.metadata)
        yield cluster


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    with no_node() as node:
        yield write_settings(tmp_path / "cache.toml", [node])


@pytest.mark.parametrize("given", [True, False], ids=["given", "omitted"])
def test_writes_are_invalidated(topology, plain, file, write, given):
    options = ["--cache", file] if given else []
    done = invoke("-t", topology, *write.command, *options)
    assert done.exit_code == 0, done.output
    table = write.cls.__table__.name
    keys = {("lists", f"shop:{table}:{write.source}")} if given else set()
    found = {(region, key) for _, region, key in rows(plain)}
    assert keys <= found
    assert bool(found) is given


@each_command
@pytest.mark.parametrize("how", ["option", "environment"])
def test_memory_is_refused(topology, plain, file, command, how):
    text = file.read_text("utf-8").replace(
        '"sqla_shard.memcached"', '"dogpile.cache.memory"'
    )
    file.write_text(text, "utf-8")
    options = ["--cache", file] if how == "option" else []
    env = {"SQLA_SHARD_CACHE": str(file)} if how == "environment" else {}
    done = invoke("-t", topology, *command, *options, env=env)
    assert (done.exit_code, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(
        f"sqla-shard: error: {file}: regions.lists.backend: "
        "'dogpile.cache.memory' is in the memory of each process, "
    )


@each_command
@pytest.mark.parametrize(
    ("old", "text", "message"),
    [
        ('prefix = "shop"', "", "prefix: is missing; write prefix ="),
        ("[classes]", "[class]", "class: is not a valid key; "),
        (MODELS, "no.such", "classes.no.such:BoardHasPins: the module "),
        ('"sqla_shard.memcached"', '"no.such"', "regions: backend='no.such'"),
    ],
    ids=["prefix", "key", "module", "backend"],
)
def test_an_invalid_file(topology, plain, file, command, old, text, message):
    file.write_text(file.read_text("utf-8").replace(old, text), "utf-8")
    done = invoke("-t", topology, *command, "--cache", file)
    assert (done.exit_code, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"sqla-shard: error: {file}: {message}")


def test_modules_of_the_current_directory(topology, plain, file, tmp_path):
    (tmp_path / "shop.py").write_text(f"from {MODELS} import BoardHasPins\n")
    text = file.read_text("utf-8")
    name = f"{MODELS}:BoardHasPins"
    file.write_text(text.replace(name, "shop:BoardHasPins"), "utf-8")
    done = command_line.run(
        *(tmp_path, "-t", topology, "shell", "--shard", 1, "--cache", file),
        *("-c", "print(len(cluster.cache.classes))"),
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "3\n", "")


def test_the_session_of_the_shell_reads_the_shard(topology, plain, file):
    program = "print(session.uses_cache, cluster.session().uses_cache)"
    done = invoke(
        *("-t", topology, "shell", "--shard", 1, "--cache", file), *("-c", program)
    )
    assert done.stdout == "False True\n"


def test_a_standby_has_no_cache(topology, plain, file):
    command = [
        *("-t", topology, "shell", "--shard", 1, "--standby"),
        *("-c", "print(cluster.cache)"),
    ]
    done = invoke(*command, env={"SQLA_SHARD_CACHE": str(file)})
    assert done.stdout == "None\n"
    done = invoke(*command, "--cache", file)
    assert done.exit_code == 2
    assert "--cache cannot be used here: a standby is read-only" in done.stderr


def test_a_client_has_no_cache(topology, plain, file):
    plain.run(new, Board, 1)
    command = ["-t", topology, "shell", "--shard", 1, "-e", "SELECT 6 * 7"]
    done = invoke(*command, "--cache", file)
    assert done.exit_code == 2
    assert "--cache cannot be used here: the SQL client does not" in done.stderr
    done = command_line.run(command_line.ROOT, *command, SQLA_SHARD_CACHE=str(file))
    assert "42" in done.stdout or "sqlite3" in done.stderr


@pytest.mark.parametrize("command", ["repair", "stats"])
def test_the_environment_names_the_file_of_cache_commands(
    topology, plain, file, command
):
    more = ["--once"] if command == "repair" else []
    env = {"SQLA_SHARD_CACHE": str(file)}
    done = invoke("-t", topology, "cache", command, *more, env=env)
    assert done.stderr == ""
    done = invoke("-t", topology, "cache", command, *more)
    assert done.exit_code == 2
    assert "SQLA_SHARD_CACHE" in done.stderr
