"""Quotations on pages for operators are in the package and its examples."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest

from sqla_shard.cli.program import program

ROOT = Path(__file__).parents[1]
OPERATE = ROOT / "docs" / "operate"
MESSAGES = (ROOT / "docs" / "errors.rst").read_text("utf-8")
MONITORING = (OPERATE / "monitoring.rst").read_text("utf-8")
ALERTS = (ROOT / "examples" / "monitoring" / "alerts.yml").read_text("utf-8")
#: Separators of the fixed parts of a message, and of two messages.
VALUE, END = "\0", "\1"


@cache
def texts() -> str:
    """Return the texts of the package; values in them are ``VALUE``."""
    found = []
    for path in sorted((ROOT / "sqla_shard").rglob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        found += [_text(node) for node in ast.walk(tree)]
    return END.join(filter(None, found))


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.sub(r"\{[^{}]*\}", VALUE, node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(
            _text(one) if isinstance(one, ast.Constant) else VALUE
            for one in node.values
        )
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return f"{_text(node.left)}{_text(node.right)}"
    return ""


def is_a_message(quoted: str) -> bool:
    fixed = map(re.escape, re.split(r" ?\.\.\. ?", quoted))
    return re.search(f"[^{END}]*".join(fixed), texts()) is not None


def quoted_messages() -> list[str]:
    return re.findall(r"(?<=\n\n)   ``([^`\n]+)``(?=\n\n)", MESSAGES)


@pytest.mark.parametrize("quoted", quoted_messages())
def test_each_message_is_one_of_the_package(quoted: str) -> None:
    assert is_a_message(quoted)


def test_a_message_that_was_changed_would_be_found() -> None:
    assert len(quoted_messages()) > 30
    assert not is_a_message("server ... is readonly; it is fenced")


def commands() -> Iterator[str]:
    for path in [ROOT / "docs" / "errors.rst", *sorted(OPERATE.glob("*.rst"))]:
        text = " ".join(path.read_text("utf-8").split())
        for literal in re.findall(r"``sqla-shard ([^`]+)``", text):
            yield f"{path.name}: {literal}"


@pytest.mark.parametrize("where", sorted(set(commands())))
def test_each_command_exists(where: str) -> None:
    _, _, line = where.partition(": ")
    command: click.Command = program
    context = click.Context(program)
    for word in line.split():
        if not isinstance(command, click.Group) or word.startswith("-"):
            break
        found = command.get_command(context, word)
        assert found is not None, f"there is no command {word!r}"
        command = found
    known = {
        name
        for parameter in [*command.params, *program.params]
        for name in parameter.opts
    }
    options = re.findall(r"--[\w-]+", line)
    assert set(options) <= known


def rules() -> dict[str, tuple[str, str, str]]:
    """Return expression, duration and severity of each alert."""
    found = {}
    for rule in ALERTS.split("- alert: ")[1:]:
        lines = [
            line.strip()
            for line in rule.splitlines()
            if not line.strip().startswith("#")
        ]
        expression = re.search(r"expr: (?:>-)?(.*?) (?:for|labels):", " ".join(lines))
        duration = re.search(r"for: (\w+)", rule)
        severity = re.search(r"severity: (\w+)", rule)
        found[lines[0]] = (
            " ".join(expression[1].split()),
            duration[1] if duration else "at once",
            severity[1],
        )
    return found


@pytest.mark.parametrize("alert", rules())
def test_each_alert_is_listed_with_its_expression(alert: str) -> None:
    text = " ".join(MONITORING.split())
    row, _, _ = text.partition(f"``{alert}``")[2].partition(" * - ``Shard")
    assert row, f"{alert} is not on the page"
    expression, duration, severity = rules()[alert]
    assert f"``{expression}``" in row
    assert f"- {severity}, {duration}" in row
