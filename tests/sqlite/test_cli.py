"""sqla-shard as a program: how it starts, finds its topology, and ends."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tomllib
from importlib.metadata import version

import click
import pytest

from sqla_shard import cli
from sqla_shard.cli.catalogue import topology_command
from sqla_shard.cli.program import program
from sqla_shard.exc import MissingExtraError
from sqla_shard.testing import sqlite_topology
from tests.servers.command_line import COMMAND, environment, invoke, ROOT, run, write

SEVEN = "351912440365063"  # shard 5, type 1, local id 7


def commands(group=program, path=()):
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        yield (*path, name)


@pytest.fixture
def topology(tmp_path):
    return write(tmp_path, sqlite_topology(tmp_path / "data", 2, 8))


def test_the_entry_point_is_main():
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    name = tomllib.loads(text)["project"]["scripts"]["sqla-shard"]
    assert name == f"{cli.main.__module__}:{cli.main.__name__}"


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (("provsion",), "'schema provision'"),
        (("resume",), "'fleet resume' or 'queue resume'"),
        (("statu",), "'status'"),
        (("statsu",), "'status'"),
        (("statys",), "'status'"),
        (("stats",), "'cache stats' or 'queue stats'"),
        (("failove",), "'fleet failover'"),
        (("fleet", "rebuild"), "'replica rebuild'"),
    ],
)
def test_commands_of_groups_are_named_in_full(arguments, meant):
    done = invoke(*arguments)
    assert done.exit_code == 2
    assert f"No such command {arguments[-1]!r}; did you mean {meant}?" in done.output


def test_version(tmp_path):
    done = run(tmp_path, "--version")
    assert done.stdout == f"sqla-shard {version('sqla-shard')}\n"
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("path", [(), *commands()], ids=" ".join)
def test_help_is_complete(path):
    done = invoke(*path, "--help")
    assert done.exit_code == 0
    assert done.output.startswith(" ".join(["Usage: sqla-shard", *path]))
    command = program
    for name in path:
        command = command.commands[name]
    if not path or not isinstance(command, click.Group):
        assert "  Examples:\n    " in done.output
        shown = done.output.partition("Examples:")[2]
        assert " ".join(path) in shown
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.opts
            assert parameter.help.split()[0] in done.output


def test_the_command_is_named_in_order():
    listed = invoke("--help").output.partition("Ids and routes:")[2]
    assert listed.index("  id ") < listed.index("  where ")
    assert listed.index("  where ") < listed.index("  shell ")


def test_a_topology_is_named_by_option_variable_or_place(
    tmp_path, topology, monkeypatch
):
    place = {"SQLA_SHARD_TOPOLOGY": str(topology)}
    monkeypatch.chdir(tmp_path)
    asked = [
        invoke("--topology", topology, "where", SEVEN),
        invoke("-t", topology, "where", SEVEN),
        invoke("where", SEVEN, "-t", topology),
        invoke("-t", "none.toml", "where", "--topology", topology, SEVEN),
        invoke("where", SEVEN, env=place),
    ]
    (tmp_path / "topology.toml").write_text(
        'epoch=1\n[keyspaces.objects]\nkind="objects"\nshards=8\n'
        'database="db{shard:05d}"\n[[keyspaces.objects.servers]]\n'
        'name="here"\nprimary="sqlite:///here"\nshards=[0, 7]\n'
    )
    for done in asked:
        assert done.exit_code == 0
        assert "db00005 on server2, sqlite:///" in done.output
    assert "on here" in invoke("where", SEVEN).output
    # The option is stronger than the variable, and that than the place.
    other = {"SQLA_SHARD_TOPOLOGY": str(tmp_path / "none.toml")}
    assert "server2" in invoke("-t", topology, "where", SEVEN, env=other).output
    assert invoke("where", SEVEN, env=other).exit_code == 1


def test_no_topology(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = invoke("where", SEVEN)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    names = "topology.toml or topology.json"
    assert done.stderr.startswith(f"sqla-shard: error: {names} not found")
    assert "--topology PATH or SQLA_SHARD_TOPOLOGY=" in done.stderr


def test_the_topology_of_the_directory(tmp_path, monkeypatch, topology):
    """The tool looks for the file that it writes itself, with dev up."""
    folder = tmp_path / "here"
    folder.mkdir()
    shutil.copy(topology, folder / "topology.json")
    monkeypatch.chdir(folder)
    assert "server2" in invoke("where", SEVEN).output


def test_more_placeholders(tmp_path):
    document = sqlite_topology(tmp_path, 1, 8)
    server = document["keyspaces"]["objects"]["servers"][0]
    server["primary"] = "mysql://app:${SHOP_PW}@db1"
    path = write(tmp_path, document)
    refused = invoke("-t", path, "where", SEVEN)
    assert refused.exit_code == 1
    assert "${SHOP_PW} is not a placeholder" in refused.stderr
    done = invoke("--placeholder", "SHOP_PW", "-t", path, "where", SEVEN)
    assert done.exit_code == 0
    assert "mysql://app:${SHOP_PW}@db1" in done.output


def test_errors_are_one_line(tmp_path, topology):
    missing = tmp_path / "none.toml"
    for arguments, message in [
        (("-t", missing, "where", SEVEN), "cannot be read"),
        (("-t", topology, "where", 1 << 60), "is not open in keyspace"),
        (("id", 1 << 63), "is not an object id"),
    ]:
        done = invoke(*arguments)
        assert (done.exit_code, done.stdout) == (1, "")
        assert done.stderr.startswith("sqla-shard: error: ")
        assert message in done.stderr
        assert done.stderr.count("\n") == 1


def test_several_problems_are_one_line_and_validate_is_named(tmp_path):
    path = write(tmp_path, {"epoch": -1, "keyspaces": {}})
    done = invoke("-t", path, "where", SEVEN)
    assert done.exit_code == 1
    assert "2 problems" in done.stderr
    assert "sqla-shard topology validate" in done.stderr
    assert done.stderr.count("\n") == 1


def test_wrong_usage_has_a_status_of_its_own():
    for arguments in (["nothing"], ["id", "boats"], ["where"], ["-x"]):
        done = invoke(*arguments)
        assert (done.exit_code, done.stdout) == (2, "")
        assert done.stderr.startswith("sqla-shard: error: ")


@pytest.mark.thorough
def test_a_worker_removes_no_file_but_its_own(tmp_path, topology):
    left = tmp_path / "killed"
    left.touch()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    worker = ("-t", topology, "worker", "--once", "--ready-file")
    for path in (pipe, topology):
        done = invoke(*worker, path)
        assert done.exit_code == 2
        assert "is not an empty file" in done.stderr
        assert path.exists()
    assert invoke(*worker, left).exit_code != 2
    assert not left.exists()


def test_a_closed_pipe_is_quiet(tmp_path):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as out:
        done = subprocess.run(
            [*COMMAND, "id", *["7"] * 5000],
            stdout=out,
            stderr=subprocess.PIPE,
            env=environment(),
            cwd=tmp_path,
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, b"")


def test_the_status_is_that_of_the_process(tmp_path):
    done = run(tmp_path, "id", 1 << 63)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("sqla-shard: error: 9223372036854775808 is")


def test_ctrl_c(tmp_path, topology):
    # One wait without an end would go on if the signal came just before it.
    program = "import time\nprint('ready', flush=True)\nwhile 1: time.sleep(0.1)"
    process = subprocess.Popen(
        [*COMMAND, "-t", str(topology), "shell", SEVEN, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err.strip()) == (130, "", "")


@pytest.mark.parametrize("package", ["click", "rich"])
def test_without_the_extra(tmp_path, package):
    code = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "from sqla_shard.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "--version"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    reason = f"import of {package} halted; None in sys.modules"
    error = MissingExtraError(package=package, extra="cli", reason=reason)
    assert done.stderr == f"sqla-shard: error: {error}\n"
    assert "sqla-shard[cli]" in done.stderr
    assert (done.returncode, done.stdout) == (1, "")


def without(package, tmp_path, *arguments):
    code = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "from sqla_shard.cli import main; main()"
    )
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )


def test_help_without_alembic(tmp_path):
    done = without("alembic", tmp_path, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "  schema  " in done.stdout
    assert "  topology  " in done.stdout


@pytest.mark.parametrize(
    "arguments", [("status",), ("upgrade",), ("-n", "main", "downgrade", "-5")]
)
def test_schema_without_alembic(tmp_path, arguments):
    done = without("alembic", tmp_path, "schema", *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("sqla-shard: error: alembic cannot be")
    assert done.stderr.endswith("pip install 'sqla-shard[cli]'\n")


@pytest.mark.parametrize(
    ("package", "extra", "command"),
    [
        ("prometheus_client", "prometheus", ["exporter"]),
        ("flask", "dashboard", ["dashboard"]),
        ("pymysql", "testing", ["dev", "up"]),
    ],
)
def test_each_command_names_its_extra(tmp_path, package, extra, command):
    done = without(package, tmp_path, *command)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"sqla-shard: error: {package} cannot be")
    assert done.stderr.endswith(f"pip install 'sqla-shard[{extra}]'\n")
    assert done.stderr.count("cannot be imported") == 1


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell):
    done = invoke("completion", shell)
    assert done.exit_code == 0
    assert "_SQLA_SHARD_COMPLETE" in done.stdout


def test_requests_of_completion(tmp_path):
    done = run(
        tmp_path,
        _SQLA_SHARD_COMPLETE="bash_complete",
        COMP_WORDS="sqla-shard topology ",
        COMP_CWORD="2",
    )
    names = {f"plain,{name}" for name in topology_command.modules}
    assert {"plain,show", "plain,push", "plain,agent"} <= names
    assert set(done.stdout.split()) == names


def test_completion_of_an_unknown_shell():
    assert invoke("completion", "tcsh").exit_code == 2
