"""Commands beside the application, and a cache that does not answer.

What could not be told to a node is in the outbox, so it was to be told.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sqla_shard import Cluster
from sqla_shard.testing import sqlite_topology
from tests.shared import command_line
from tests.shared.command_line import invoke
from tests.shared.memcached import no_node
from tests.shared.outbox import rows
from tests.shared.told import each_write
from tests.shared.told import MODELS
from tests.shared.told import write_settings
from tests.shared.verify_relations import Base
from tests.shared.verify_relations import Board
from tests.shared.verify_relations import new
from tests.shared.verify_relations import SHARDS

write = each_write()

COMMANDS = {
    "repair": ["repair", "--once"],
    "lookups": ["verify", "lookups", "--models", "tests.shared.verify_models"],
    "relations": ["verify", "relations", "--models", MODELS],
    "references": [
        *("verify", "references"),
        *("--models", "tests.shared.reference_models"),
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


@pytest.mark.parametrize("told", [True, False], ids=["told", "not told"])
def test_what_is_written_is_told(topology, plain, file, write, told):
    options = ["--cache", file] if told else []
    done = invoke("-t", topology, *write.command, *options)
    assert done.exit_code == 0, done.output
    table = write.cls.__table__.name
    keys = {("lists", f"told:{table}:{write.source}")} if told else set()
    found = {(region, key) for _, region, key in rows(plain)}
    assert keys <= found
    assert bool(found) is told


@each_command
@pytest.mark.parametrize("how", ["option", "environment"])
def test_memory_is_refused(topology, plain, file, command, how):
    text = file.read_text("utf-8").replace(
        '"sqla_shard.memcached"', '"dogpile.cache.memory"'
    )
    file.write_text(text, "utf-8")
    told = ["--cache", file] if how == "option" else []
    env = {"SQLA_SHARD_CACHE": str(file)} if how == "environment" else {}
    done = invoke("-t", topology, *command, *told, env=env)
    assert (done.exit_code, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(
        f"sqla-shard: error: {file}: regions.lists.backend: "
        "'dogpile.cache.memory' is in the memory of each process: "
    )


@each_command
@pytest.mark.parametrize(
    ("old", "text", "said"),
    [
        ('prefix = "told"', "", "prefix: is missing; write prefix ="),
        ("[classes]", "[class]", "class: is not known; "),
        (MODELS, "no.such", "classes.no.such:BoardHasPins: the module "),
        ('"sqla_shard.memcached"', '"no.such"', "regions: backend='no.such'"),
    ],
    ids=["prefix", "key", "module", "backend"],
)
def test_a_file_that_is_wrong(topology, plain, file, command, old, text, said):
    file.write_text(file.read_text("utf-8").replace(old, text), "utf-8")
    done = invoke("-t", topology, *command, "--cache", file)
    assert (done.exit_code, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"sqla-shard: error: {file}: {said}")


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
        *("-t", topology, "shell", "--shard", 1, "--cache", file),
        *("-c", program),
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
    assert "--cache: nothing is written on a standby" in done.stderr


def test_a_client_has_no_cache(topology, plain, file):
    plain.run(new, Board, 1)
    command = ["-t", topology, "shell", "--shard", 1, "-e", "SELECT 6 * 7"]
    done = invoke(*command, "--cache", file)
    assert done.exit_code == 2
    assert "--cache: it is for --python and -c" in done.stderr
    done = command_line.run(
        command_line.ROOT, *command, SQLA_SHARD_CACHE=str(file)
    )
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
