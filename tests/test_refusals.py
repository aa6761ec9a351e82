"""Refused constructs are on the page about refusals.

The names of constructs are read from the source: every new refusal has to be
in docs/explanation/refusals.rst, with the wrong answer that it prevents.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "explanation" / "refusals.rst"

#: Where statements are refused.
_FOLDERS = ("dialects", "engine", "models", "planning", "session", "types")

#: Callables that take the name of a construct as their first argument.
_CALLS = {"Cut", "Problem", "_refuse", "_refused"}


def constructs() -> Iterator[str]:
    """Yield the names of refused constructs that are literals."""
    package = ROOT / "sqla_shard"
    for path in (p for f in _FOLDERS for p in (package / f).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call):
                yield from _of_call(node)
            elif isinstance(node, ast.For):
                yield from _of_loop(node)


def _of_call(node: ast.Call) -> Iterator[str]:
    name = getattr(node.func, "id", None) or getattr(node.func, "attr", None)
    given = [k.value for k in node.keywords if k.arg == "construct"]
    if name in _CALLS:
        given += node.args[:1]
    if name == "append" and ast.unparse(node.func).endswith("single.append"):
        given += node.args
    for value in given:
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield value.value


def _of_loop(node: ast.For) -> Iterator[str]:
    """Read ``for name, used in (("LIMIT", ...), ...)``."""
    if ast.unparse(node.target).endswith("used)") and isinstance(node.iter, ast.Tuple):
        for item in node.iter.elts:
            first: Any = item.elts[0]  # type: ignore[attr-defined]  # a tuple, or the loop could not unpack it
            yield first.value


# Not while tests are collected: that is done by each process.
@pytest.fixture(scope="module")
def names() -> set[str]:
    return set(constructs())


def test_names_are_found(names: set[str]) -> None:
    # One of each way in which they are written.
    assert {"HAVING", "OFFSET", "UNION", "COLLATE", "FULL OUTER JOIN"} <= names


def test_each_construct_is_on_the_page(names: set[str]) -> None:
    page = " ".join(PAGE.read_text("utf-8").split())
    missing = [
        name
        for name in sorted(names)
        if not re.search(rf"(?<!\w){re.escape(name)}(?!\w)", page)
    ]
    assert not missing
