"""Every command that a message or a page names exists, with its options.

Read are the string literals of the package, and the documentation.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from sqla_shard.cli.program import program
from tests.servers.command_line import ROOT

#: A command ends with its line, its quotes, or a part of the sentence.
_NAMED = re.compile(
    r"sqla-shard(?![\w-])"
    r"((?:\\\n|[^\n`;,:()\"'#$&>]|(?<=[-/\w]):(?=[-/\w]))*)"
)
_QUOTED = re.compile(r"``[^`]+``")
#: A word that is a command, if it is one at all.
_WORD = re.compile(r"[a-z][a-z-]*")
#: Words after the name of a group that are those of a sentence.
_PROSE = frozenset(
    ("and", "as", "asks", "can", "does", "for", "has", "is", "needs", "or")
)


def literals(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and value of each string, with ``{}`` for what differs.

    Of modules that may name commands only.
    """
    source = path.read_text("utf-8")
    if "sqla-" not in source:
        return  # it would take most of the time, and name no command
    tree = ast.parse(source)
    parts = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in node.values
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            text = "".join(
                str(part.value) if isinstance(part, ast.Constant) else "{}"
                for part in node.values
            )
            yield node.lineno, text
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in parts
        ):
            yield node.lineno, node.value


def problems_of(text: str) -> Iterator[str]:
    """Yield the commands and options of a text that do not exist."""
    text = _QUOTED.sub(lambda found: found[0].replace("\n", " "), text)
    for found in _NAMED.finditer(text):
        words = found[1].replace("\\\n", " ").split()
        yield from _problems(words, found[0].strip())


def _problems(words: list[str], shown: str) -> Iterator[str]:
    command: click.Command = program
    known: dict[str, click.Option] = {}
    is_value = False
    for word in words:
        known |= {
            name: option
            for option in command.params
            if isinstance(option, click.Option)
            for name in (*option.opts, *option.secondary_opts, "--help")
        }
        if is_value:
            is_value = False
        elif word.startswith("-") and _WORD.search(word):
            name = word.partition("=")[0].rstrip(".")
            if name not in known:
                yield f"no option {name}: {shown}"
                return
            is_value = "=" not in word and not (
                known[name].is_flag or known[name].count or name == "--help"
            )
        elif isinstance(command, click.Group):
            names = word.rstrip(".").split("|")
            if not all(map(_WORD.fullmatch, names)) or names[0] in _PROSE:
                return
            context = click.Context(command)
            inner = [command.get_command(context, name) for name in names]
            if None in inner:
                yield f"no command {word}: {shown}"
                return
            command = inner[0] or command
            if len(inner) > 1:
                return


SOURCES = sorted((ROOT / "sqla_shard").rglob("*.py"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.rst"))]


def test_every_command_of_a_message_exists() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {problem}"
        for path in SOURCES
        for line, text in literals(path)
        for problem in problems_of(text)
    ]
    assert found == []


def test_every_command_of_a_page_exists() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {problem}"
        for path in PAGES
        for problem in problems_of(path.read_text("utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize(
    "text",
    [
        "run: sqla-shard schema drift",
        "sqla-shard topology publish FILE",
        "sqla-shard -t x.json fleet failover s1 --deadly",
        "sqla-shard fleet backup create|delete",
        "sqla-shard fleet split s1 \\\n    --shard 1",
    ],
)
def test_missing_names_are_reported(text: str) -> None:
    assert list(problems_of(text))


@pytest.mark.parametrize(
    "text",
    [
        "``sqla-shard fleet`` changes",
        "sqla-shard --topology topology.toml \\\n    schema upgrade",
        "sqla-shard fleet failover {} --dead --yes",
        "sqla-shard fleet backup create|list /backups",
        "sqla-shard fleet verify s1 --against mysql://10.0.0.1:3306 --json",
    ],
)
def test_existing_names_are_not_reported(text: str) -> None:
    assert not list(problems_of(text))
