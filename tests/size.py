"""``python -m tests.size`` prints how large the package is, by folder.

A line of code is a line with a token that is neither a comment nor part of a
docstring.  The lines of a function are all from its ``def`` on.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
_BLANK = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_DOCUMENTED = (ast.Module, ast.ClassDef, *_FUNCTIONS)


class Size(NamedTuple):
    """The size of one module."""

    lines: int
    functions: list[int]
    classes: list[str]


def size_of(text: str) -> Size:
    """Return the size of a module with this source."""
    nodes = list(ast.walk(ast.parse(text)))
    code = {
        number
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in _BLANK
        for number in range(token.start[0], token.end[0] + 1)
    }
    for node in nodes:
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node) is not None:
            docstring = node.body[0]
            code -= {*range(docstring.lineno, docstring.end_lineno + 1)}
    functions = [
        node.end_lineno - node.lineno + 1
        for node in nodes
        if isinstance(node, _FUNCTIONS)
    ]
    classes = [node.name for node in nodes if isinstance(node, ast.ClassDef)]
    return Size(len(code), functions, classes)


def table(package: Path) -> Iterator[str]:
    """Yield the lines and modules of each folder, and what is true of all."""
    rooms: dict[str, list[Size]] = {}
    for path in sorted(package.rglob("*.py")):
        folders = path.relative_to(package).parts[:-1]
        room = folders[0] if folders else "front door"
        rooms.setdefault(room, []).append(size_of(path.read_text("utf-8")))
    every = [size for sizes in rooms.values() for size in sizes]
    for name, sizes in [*rooms.items(), ("total", every)]:
        yield f"{name:12}{sum(size.lines for size in sizes):8,}{len(sizes):6}"
    functions = [lines for size in every for lines in size.functions]
    names = Counter(name for size in every for name in size.classes)
    twice = sorted(name for name, times in names.items() if times > 1)
    yield f"folders {len(rooms)}"
    yield f"classes {names.total():,}, {len(twice)} names twice: {' '.join(twice)}"
    yield (
        f"functions {len(functions):,}, median {median(functions):.0f} lines,"
        f" p95 {quantiles(functions, n=20)[-1]:.0f}"
    )


if __name__ == "__main__":
    sys.stdout.writelines(f"{line}\n" for line in table(ROOT / "sqla_shard"))
