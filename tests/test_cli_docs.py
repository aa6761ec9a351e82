"""Every command of sqla-shard, and every option, is in the reference."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

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
    expected = {"--help", "--version"} if path == "sqla-shard" else set()
    for parameter in COMMANDS[path].params:
        if isinstance(parameter, click.Option):
            expected |= set(parameter.opts)
        else:
            name = parameter.metavar or parameter.name.upper()
            expected.add(name.replace("...", "").strip("[]"))
    assert documented()[path] == expected
