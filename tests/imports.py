"""Finds imports of names that do not exist, in examples and tests.

``python -m tests.imports`` prints them, and fails if there are any.  mypy
checks the package only: a name that has moved would be missed by the first
run of its test, or by users of the examples.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_FOLDERS = ("examples", "tests")
#: The names of an import are on its line, or in brackets.
_IMPORT = re.compile(
    r"""
    ^[ ]*
    (?:
        from[ ](?P<dots>\.*)(?P<module>[\w.]*)
        [ ]import[ ](?:\((?P<block>[^)]*)\)|(?P<line>\w[\w, ]*))
        | import[ ](?P<whole>[\w.]+)
    )
    """,
    re.MULTILINE | re.VERBOSE,
)
_COMMENT = re.compile("#.*")


def missing(root: Path, path: Path) -> Iterator[str]:
    """Yield a message for each import of a name that does not exist.

    Files are searched for lines, which takes a tenth of the time of parsing
    them, and also finds those of programs in strings.

    :param root: directory of the folders ``examples`` and ``tests``.
    :param path: the file that imports, below one of them.
    """
    text = path.read_text("utf-8")
    for found in _IMPORT.finditer(text):
        module = found["module"] or found["whole"] or ""
        if dots := found["dots"]:
            parents = path.relative_to(root).parts[: -len(dots)]
            module = ".".join([*parents, *filter(None, [module])])
        for name in [None] if found["whole"] else _imported(found):
            if not _exists(root, module, name):
                what = module if name is None else f"{name} of {module}"
                line = text.count("\n", 0, found.end()) + 1
                yield f"{path.relative_to(root)}:{line}: no {what}"


def _imported(found: re.Match[str]) -> list[str]:
    """Return the names of an import, each without its alias."""
    names = _COMMENT.sub("", found["line"] or found["block"])
    return [name.split()[0] for name in names.split(",") if name.strip()]


@cache
def _exists(root: Path, module: str, name: str | None) -> bool:
    """Return whether a module, or a name of it, exists."""
    package = module.partition(".")[0]
    if package == "sqla_shard":
        return _is_imported(module, name)
    if package not in _FOLDERS:
        return True  # of another distribution
    path = root.joinpath(*module.split("."))
    file = path.with_suffix(".py")
    if path.is_dir():
        if name is None or _is_module(path / name):
            return True
        file = path / "__init__.py"
    return file.is_file() and (name is None or name in _names(file))


def _is_imported(module: str, name: str | None) -> bool:
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name):
            raise
        return False
    return (
        name is None
        or hasattr(found, name)
        or importlib.util.find_spec(f"{module}.{name}") is not None
    )


def _is_module(path: Path) -> bool:
    return path.is_dir() or path.with_suffix(".py").is_file()


@cache
def _names(file: Path) -> frozenset[str]:
    """Return the names of a module, without importing it."""
    tree = ast.parse(file.read_text("utf-8"), str(file))
    return frozenset(_bound(tree.body))


def _bound(body: list[ast.stmt]) -> Iterator[str]:
    """Yield the names that statements bind, but for those of functions."""
    for one in body:
        if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield one.name
            continue
        if isinstance(one, (ast.Import, ast.ImportFrom)):
            for alias in one.names:
                yield alias.asname or alias.name.partition(".")[0]
        for field in ("targets", "target"):
            found = getattr(one, field, [])
            for target in found if isinstance(found, list) else [found]:
                for node in ast.walk(target):
                    if isinstance(node, ast.Name):
                        yield node.id
        for field in ("body", "orelse", "finalbody"):
            yield from _bound(getattr(one, field, []))
        for handler in getattr(one, "handlers", []):
            yield from _bound(handler.body)


def main() -> int:
    """Print missing names; return the exit status."""
    found = [
        message
        for folder in _FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        for message in missing(ROOT, path)
    ]
    sys.stderr.writelines(f"{message}\n" for message in found)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
