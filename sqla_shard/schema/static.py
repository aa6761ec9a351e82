"""Proving that a revision sends the same statements to every shard.

The source of the revision is read, not run.  It is static when its module
has nothing but imports of alembic and SQLAlchemy, constants and functions,
and the function calls nothing but operations of alembic that send DDL
without looking at the database, with arguments that are written out.  All
else, a condition or a name included, makes it one that is run on each shard.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path

from sqla_shard.schema.statements import Effect
from sqla_shard.schema.statements import read

__all__ = ["is_static"]

_OPERATIONS = frozenset(
    {
        "add_column",
        "alter_column",
        "create_check_constraint",
        "create_foreign_key",
        "create_index",
        "create_primary_key",
        "create_table",
        "create_table_comment",
        "create_unique_constraint",
        "drop_column",
        "drop_constraint",
        "drop_index",
        "drop_table",
        "drop_table_comment",
        "rename_table",
    }
)
_MODULES = frozenset({"sqlalchemy", "sqlalchemy.dialects", "sqlalchemy.sql"})
# Of annotations, which are not evaluated in a way that matters.
_HARMLESS = frozenset({"__future__", "typing", "collections.abc"})
#: Names of SQLAlchemy that may look at a database, or run something.
_LOOKS = frozenset({"inspect", "create_engine", "event", "engine_from_config"})


def is_static(path: str | None, function: str) -> bool:
    """Tell whether a revision is proven to be static.

    :param path: its file.
    :param function: ``"upgrade"`` or ``"downgrade"``.
    """
    if path is None or not path.endswith(".py"):
        return False
    try:
        module = ast.parse(Path(path).read_text("utf-8"))
    except (OSError, SyntaxError, UnicodeDecodeError):
        return False  # Loaded from elsewhere; it is run on each shard.
    names: set[str] = set()
    found: ast.FunctionDef | None = None
    for node in module.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            bound = _imported(node)
            if bound is None:
                return False
            names |= bound
        elif isinstance(node, ast.FunctionDef):
            found = node if node.name == function else found
        elif not _is_constant(node):
            return False
    return (
        found is not None
        and not _is_rebound(module, names)
        and not found.decorator_list
        and not ast.unparse(found.args)
        and all(_is_plain(node, names) for node in found.body)
    )


def _imported(node: ast.Import | ast.ImportFrom) -> set[str] | None:
    """Return the names of SQLAlchemy that are bound, None for others."""
    bound = set()
    for alias in node.names:
        source = alias.name
        if isinstance(node, ast.ImportFrom):
            source = str(node.module)
            if source in _HARMLESS:
                continue
            if source == "alembic" and alias.name == "op":
                if alias.asname is not None:
                    return None
                continue
            if alias.name in _LOOKS:
                return None
        if source not in _MODULES and not source.startswith(
            "sqlalchemy.dialects."
        ):
            return None
        bound.add(alias.asname or alias.name.partition(".")[0])
    return bound


def _is_rebound(module: ast.Module, names: Iterable[str]) -> bool:
    """Tell whether a name of SQLAlchemy, or ``op``, gets another meaning."""
    known = {*names, "op"}
    return any(
        isinstance(node, ast.Name)
        and isinstance(node.ctx, ast.Store)
        and node.id in known
        for node in ast.walk(module)
    ) or any(
        isinstance(node, ast.FunctionDef) and node.name in known
        for node in module.body
    )


def _is_constant(node: ast.stmt) -> bool:
    """Tell whether a statement of the module only names a constant."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    if isinstance(node, ast.Assign | ast.AnnAssign):
        return node.value is not None and _is_literal(node.value)
    return False


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except ValueError:
        return False
    return True


def _is_plain(node: ast.stmt, names: set[str]) -> bool:
    """Tell whether a statement of the function is one operation."""
    if isinstance(node, ast.Pass):
        return True
    if not isinstance(node, ast.Expr):
        return False
    call = node.value
    if isinstance(call, ast.Constant):
        return True
    if not (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and isinstance(call.func.value, ast.Name)
        and call.func.value.id == "op"
    ):
        return False
    if call.func.attr == "execute":
        return _is_ddl(call)
    return call.func.attr in _OPERATIONS and _has_plain_arguments(call, names)


def _is_ddl(call: ast.Call) -> bool:
    if len(call.args) != 1 or call.keywords:
        return False
    text = call.args[0]
    return (
        isinstance(text, ast.Constant)
        and isinstance(text.value, str)
        # A name after a colon would be a parameter.
        and ":" not in text.value
        and read(text.value).effect is Effect.TABLES
    )


def _has_plain_arguments(call: ast.Call, names: set[str]) -> bool:
    return all(
        _is_value(value, names)
        for value in [*call.args, *(k.value for k in call.keywords)]
    ) and all(keyword.arg is not None for keyword in call.keywords)


def _is_value(node: ast.expr, names: set[str]) -> bool:
    """Tell whether an argument is written out, or made by SQLAlchemy."""
    if isinstance(node, ast.List | ast.Tuple):
        return all(_is_value(item, names) for item in node.elts)
    if isinstance(node, ast.Dict):
        return all(
            key is not None and _is_value(key, names) for key in node.keys
        ) and all(_is_value(value, names) for value in node.values)
    if isinstance(node, ast.Call):
        return _is_made(node.func, names) and _has_plain_arguments(node, names)
    return _is_literal(node)


def _is_made(func: ast.expr, names: set[str]) -> bool:
    """Tell whether what is called is of SQLAlchemy, or ``op.f``."""
    while isinstance(func, ast.Attribute):
        if func.attr in _LOOKS:
            return False
        if isinstance(func.value, ast.Name) and func.value.id == "op":
            return func.attr == "f"
        if isinstance(func.value, ast.Call):
            # Such as sa.Text().with_variant(...).
            return _is_value(func.value, names)
        func = func.value
    return isinstance(func, ast.Name) and func.id in names
