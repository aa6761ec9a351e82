"""Proving that a revision sends the same statements to every shard.

The source of the revision is read, not run.  It is static when its function
calls nothing but operations of alembic that send DDL without looking at the
database, with arguments that are written out or made by constructors of
SQLAlchemy that are known, and its module does nothing that changes what
those names mean (:mod:`sqla_shard.schema.running.static_names`).  All else, a
condition or a name included, makes it one that is run on each shard.

What an application has changed in alembic or SQLAlchemy itself, such as a
``before_create`` event of all tables, is not looked for.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path

import sqlalchemy as sa

from sqla_shard.schema.running.static_names import is_written
from sqla_shard.schema.running.static_names import Names
from sqla_shard.schema.running.static_names import NotStaticError
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
#: What is made from its arguments alone, beside column types.
_MADE = (
    sa.CheckConstraint,
    sa.Column,
    sa.Computed,
    sa.FetchedValue,
    sa.ForeignKey,
    sa.ForeignKeyConstraint,
    sa.Identity,
    sa.Index,
    sa.PrimaryKeyConstraint,
    sa.UniqueConstraint,
    sa.false,
    sa.literal_column,
    sa.null,
    sa.text,
    sa.true,
)
_PARSING = (OSError, SyntaxError, ValueError, RecursionError, MemoryError)


def is_static(path: str | None, function: str) -> bool:
    """Tell whether a revision is proven to be static.

    :param path: its file.
    :param function: ``"upgrade"`` or ``"downgrade"``.
    """
    if path is None or not path.endswith(".py"):
        return False
    try:
        # Bytes: it may say itself in which encoding Python is to read it.
        names = Names(ast.parse(Path(path).read_bytes()))
    except NotStaticError:
        return False
    except _PARSING:
        return False  # Loaded from elsewhere; it is run on each shard.
    found = names.function(function)
    return found is not None and all(
        _is_plain(node, names) for node in found.body
    )


def _is_plain(node: ast.stmt, names: Names) -> bool:
    """Tell whether a statement of the function is one operation."""
    if isinstance(node, ast.Pass):
        return True
    if not isinstance(node, ast.Expr):
        return False
    call = node.value
    if isinstance(call, ast.Constant):
        return True
    if not isinstance(call, ast.Call) or not names.is_operation(call.func):
        return False
    assert isinstance(call.func, ast.Attribute)  # noqa: S101 - is_operation()
    if call.func.attr == "execute":
        return _is_ddl(call)
    return call.func.attr in _OPERATIONS and _is_given(call, names)


def _is_ddl(call: ast.Call) -> bool:
    text = _sole_text(call)
    return (
        text is not None
        # A name after a colon would be a parameter.
        and ":" not in text
        and read(text).effect is Effect.TABLES
    )


def _sole_text(call: ast.Call) -> str | None:
    """Return the only argument of a call, if it is a text."""
    if len(call.args) == 1 and not call.keywords:
        (text,) = call.args
        if isinstance(text, ast.Constant) and isinstance(text.value, str):
            return text.value
    return None


def _is_given(call: ast.Call, names: Names) -> bool:
    """Tell whether all arguments of a call are values."""
    arguments = list(call.args)
    last = arguments[-1] if arguments else None
    if isinstance(last, ast.Starred) and isinstance(last.value, ast.List):
        # Alembic writes the columns of very wide tables as *[...].
        arguments[-1:] = last.value.elts
    return _are_values(arguments, names) and all(
        # Those with an underscore are SQLAlchemy's own.
        keyword.arg is not None
        and not keyword.arg.startswith("_")
        and _is_value(keyword.value, names)
        for keyword in call.keywords
    )


def _are_values(nodes: Iterable[ast.expr | None], names: Names) -> bool:
    return all(node is not None and _is_value(node, names) for node in nodes)


def _is_value(node: ast.expr, names: Names) -> bool:
    """Tell whether an argument is written out, or made by SQLAlchemy."""
    if isinstance(node, ast.List | ast.Tuple):
        return _are_values(node.elts, names)
    if isinstance(node, ast.Dict):
        return _are_values([*node.keys, *node.values], names)
    if isinstance(node, ast.Call):
        return _is_made(node, names)
    return is_written(node) or names.is_type(node)


def _is_made(call: ast.Call, names: Names) -> bool:
    """Tell whether a call makes a value from its arguments alone."""
    func = call.func
    if names.is_operation(func):
        assert isinstance(func, ast.Attribute)  # noqa: S101 - is_operation()
        return func.attr == "f" and _sole_text(call) is not None
    if names.is_updated_at(func):
        return not call.args and not call.keywords
    if not _is_given(call, names):
        return False
    if isinstance(func, ast.Attribute):
        if isinstance(func.value, ast.Call):
            return _is_method(func.attr, func.value, call, names)
        if names.meaning(func.value) is sa.func:
            return not func.attr.startswith("_")
    made = names.meaning(func)
    return names.is_type(func) or any(made is one for one in _MADE)


def _is_method(
    name: str, made: ast.Call, call: ast.Call, names: Names
) -> bool:
    if name == "with_variant":
        return _is_made(made, names)
    # The trigger that SQLite needs.
    return (
        name == "execute_if"
        and names.meaning(made.func) is sa.DDL
        and _sole_text(made) is not None
        and not call.args
        and [ast.unparse(one) for one in call.keywords] == ["dialect='sqlite'"]
    )
