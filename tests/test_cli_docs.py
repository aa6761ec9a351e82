"""Every command of sqla-shard is in the reference, with its help."""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from sqla_shard.cli.catalogue import LazyGroup
from sqla_shard.cli.output import end, FAILED, NOT_READ, print_found
from sqla_shard.cli.program import program
from tests.servers.command_line import commands

PAGES = Path(__file__).parents[1] / "docs" / "reference"


COMMANDS = dict(commands(program, "sqla-shard"))


def test_the_reference_has_every_command_and_no_other():
    # A directive takes the help and the options from the command.
    page = (PAGES / "cli.rst").read_text("utf-8")
    documented = re.findall(r"^\.\. command:: (.*)$", page, re.MULTILINE)
    assert sorted(documented) == sorted(COMMANDS)


@pytest.mark.parametrize("path", COMMANDS)
def test_every_option_has_a_help(path):
    options = [
        parameter
        for parameter in COMMANDS[path].params
        if isinstance(parameter, click.Option)
    ]
    assert [one.opts for one in options if not one.help] == []


def lines_of_help(group: LazyGroup, path: str) -> Iterator[tuple[str, str, str]]:
    """Yield each command, its line in the group, and its own line."""
    context = click.Context(group)
    for name, line in group.lines_of_help().items():
        command = group.get_command(context, name)
        assert command is not None
        yield f"{path} {name}", line, command.get_short_help_str(1_000)
        if isinstance(command, LazyGroup):
            yield from lines_of_help(command, f"{path} {name}")


def test_each_group_shows_the_first_sentence_of_the_help():
    # A group knows it without importing the command.
    lines = list(lines_of_help(program, "sqla-shard"))
    assert len(lines) > 50
    assert [line for line in lines if line[1] != line[2].rstrip(".") + "."] == []


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
        [sys.executable, "-c", code, *arguments], check=True, capture_output=True
    )


def test_help_without_docstrings():
    command = [sys.executable, "-OO", "-m", "sqla_shard.cli", "--help"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "\n  schema " in done.stdout


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
    assert "fleet_operations" not in done.stderr
    assert "sqlalchemy" not in done.stderr


# -- exit statuses


def documented_statuses() -> dict[str, set[int]]:
    """Return the statuses of each command that the table has a reason for."""
    page = (PAGES / "cli.rst").read_text("utf-8")
    table = page.partition("Exit statuses\n----")[2].partition("\nAll ")[0]
    found = {}
    for row in table.split("   * - ")[2:]:
        names, failed, unread = re.split(r"\n     -", row)
        reasons = {FAILED: failed.strip(), NOT_READ: unread.strip()}
        for name in re.findall(r"``(.+?)``", names):
            found[f"sqla-shard {name}"] = {n for n in reasons if reasons[n]}
    return found


def own_statuses(command: click.Command) -> set[int]:
    """Return the statuses that the code of a command exits with itself.

    It may do so in any function of the command line that it calls.
    """
    found: set[int] = set()
    todo = [inspect.unwrap(command.callback)]
    seen = set()
    while todo:
        function = todo.pop()
        if function in seen or function in (end, print_found):
            continue
        seen.add(function)
        source = textwrap.dedent(inspect.getsource(function))
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call):
                found |= exits(node)
            if isinstance(node, ast.Name):
                called = function.__globals__.get(node.id)
                module = getattr(called, "__module__", None) or ""
                if inspect.isfunction(called) and "sqla_shard.cli" in module:
                    todo.append(inspect.unwrap(called))
    return found


def exits(call: ast.Call) -> set[int]:
    """Return the statuses with which a call may end the program."""
    name = ast.unparse(call.func)
    if name in ("sys.exit", "ctx.exit"):
        words = {"FAILED": FAILED, "NOT_READ": NOT_READ, "1": FAILED}
        return {
            status
            for word, status in words.items()
            if word in ast.unparse(call.args[0]).split()
        }
    if name not in ("end", "print_found"):
        return set()
    given = {one.arg: ast.unparse(one.value) for one in call.keywords}
    if name == "print_found":
        given["is_read"] = "not unreachable"
    return {
        status
        for status, argument in ((FAILED, "is_good"), (NOT_READ, "is_read"))
        if given[argument] != "True"
    }


def test_the_table_of_exit_statuses_is_that_of_the_code():
    # It makes passes as others do, but ends with a signal only.
    apart = "sqla-shard fleet watch"
    assert documented_statuses() == {
        path: found
        for path, command in COMMANDS.items()
        if not isinstance(command, click.Group)
        and path != apart
        and (found := own_statuses(command))
    }
