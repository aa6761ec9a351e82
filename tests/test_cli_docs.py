"""Every command of sqla-shard, and every option, is in the reference."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from sqla_shard.cli.groups import LazyGroup
from sqla_shard.cli.program import program
from tests.servers.command_line import commands

PAGES = Path(__file__).parents[1] / "docs" / "reference"


COMMANDS = dict(commands(program, "sqla-shard"))


def documented() -> dict[str, set[str]]:
    """Return the options of each section that is named as a command is."""
    found: dict[str, set[str]] = {}
    for page in PAGES.glob("*.rst"):
        lines = page.read_text("utf-8").splitlines()
        for line, below in zip(lines, [*lines[1:], ""], strict=True):
            if line.startswith("sqla-shard") and set(below) == {"-"}:
                options = found[line] = set()
            if match := re.fullmatch(r"\.\. option:: (.*)", line):
                options |= {part.split()[0] for part in match[1].split(", ")}
    return found


def test_the_reference_has_every_command_and_no_other():
    assert set(documented()) == set(COMMANDS)


@pytest.mark.parametrize("path", COMMANDS)
def test_the_reference_has_every_option_and_no_other(path):
    expected = set()
    if path == "sqla-shard":
        expected = {"--help", "--version", "--output"}
    for parameter in COMMANDS[path].params:
        if isinstance(parameter, click.Option):
            # On many commands; described once, with the program.
            shared = (["-t", "--topology"], ["--output"])
            if path == "sqla-shard" or parameter.opts not in shared:
                expected |= set(parameter.opts)
        else:
            name = parameter.metavar or parameter.name.upper()
            expected.add(name.replace("...", "").strip("[]"))
    assert documented()[path] == expected


def lines_of_help(
    group: LazyGroup, path: str
) -> Iterator[tuple[str, str, str]]:
    """Yield each command, what its group shows of it, and its own line."""
    context = click.Context(group)
    for name, lazy in group.commands_by_name.items():
        command = group.get_command(context, name)
        assert command is not None
        yield f"{path} {name}", lazy.help, command.get_short_help_str(1_000)
        if isinstance(command, LazyGroup):
            yield from lines_of_help(command, f"{path} {name}")


def test_each_group_shows_the_first_sentence_of_the_help():
    # A group knows it without importing the command.
    lines = list(lines_of_help(program, "sqla-shard"))
    assert len(lines) > 50
    assert [
        line for line in lines if line[1] != line[2].rstrip(".") + "."
    ] == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("fleet", "--help"),
        ("schema", "--help"),
        ("completion", "zsh"),
        ("id", "241294492511762325"),
    ],
)
def test_help_and_completion_import_no_sqlalchemy(arguments):
    code = (
        "import sys\n"
        "from sqla_shard.cli import main\n"
        "try:\n    main()\n"
        "finally:\n    sys.exit('sqlalchemy' in sys.modules)\n"
    )
    subprocess.run(
        [sys.executable, "-c", code, *arguments],
        check=True,
        capture_output=True,
    )


def test_completion_of_names_imports_no_command():
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "sqla_shard.cli"],
        env={
            **os.environ,
            "_SQLA_SHARD_COMPLETE": "zsh_complete",
            "COMP_WORDS": "sqla-shard fleet f",
            "COMP_CWORD": "2",
        },
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.split("\n")[:2] == ["plain", "failover"]
    assert "fleet_failover" not in done.stderr
    assert "sqlalchemy" not in done.stderr
