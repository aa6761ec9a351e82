"""Proof that a revision sends the same statements to every shard.

The source of the revision is parsed, not executed.  A revision is static if
its function only calls alembic operations that send DDL without querying the
database, with arguments that are literals or calls of known SQLAlchemy
constructors.  Any other revision, for example with a condition or a variable,
is run on each shard.

The module may contain imports of alembic's ``op`` and of SQLAlchemy, constants
and functions, and must bind each name once: then a name has the same value in
a function as at module level.  A call, a computed default argument, a
decorator or a condition could change alembic or SQLAlchemy, so a module with
one of these is not static.  The classes ``UpdatedAt`` and ``BlobText`` of
portable revisions are recognized by their source.

Changes of an application to alembic or SQLAlchemy itself, such as a
``before_create`` listener on all tables, are not detected.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterable
from copy import deepcopy
from pathlib import Path
from types import ModuleType
from typing import Any

import sqlalchemy
import sqlalchemy as sa
from alembic import op
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.types import TypeEngine

from sqla_shard.schema.effects import Effect, read
from sqla_shard.schema.revisions.types import BLOB_TEXT, UPDATED_AT

__all__ = ["is_static"]


_MODULES = frozenset(
    {
        "sqlalchemy",
        "sqlalchemy.dialects",
        "sqlalchemy.dialects.mariadb",
        "sqlalchemy.dialects.mysql",
        "sqlalchemy.dialects.sqlite",
        "sqlalchemy.schema",
        "sqlalchemy.sql",
        "sqlalchemy.types",
    }
)
# Modules for annotations, whose evaluation has no side effects.
_HARMLESS = frozenset({"__future__", "typing", "collections.abc"})
_ANNOTATION = (
    ast.BinOp,
    ast.BitOr,
    ast.Constant,
    ast.expr_context,
    ast.List,
    ast.Name,
    ast.Subscript,
    ast.Tuple,
)
_COMPILES = ("sqlalchemy.ext.compiler", "compiles", "compiles")
_UNRESOLVED = object()


class _NotStaticError(Exception):
    """Raised if a revision cannot be proven to be static."""


class _Names:
    """The names that the module of a revision binds.

    :param module: the syntax tree of the module.
    :raises _NotStaticError: if a name could be bound to something else.
    """

    def __init__(self, module: ast.Module) -> None:
        self._meanings: dict[str, Any] = {}
        for node in module.body:
            self._read(node)

    def function(self, name: str) -> ast.FunctionDef | None:
        """Return a function of the module, if it takes no arguments."""
        found = self._meanings.get(name)
        if isinstance(found, ast.FunctionDef) and not ast.unparse(found.args):
            return found
        return None

    def meaning(self, node: ast.expr) -> Any:
        """Return the object of SQLAlchemy or alembic that a name refers to.

        :returns: the module, class or function; for other expressions
            an object that is identical to none of these.
        """
        if isinstance(node, ast.Name):
            return self._meanings.get(node.id, _UNRESOLVED)
        if isinstance(node, ast.Attribute):
            parent = self.meaning(node.value)
            if _is_module(parent) and not node.attr.startswith("_"):
                return getattr(parent, node.attr, _UNRESOLVED)
        return _UNRESOLVED

    def is_operation(self, func: ast.expr) -> bool:
        """Return whether the called function is ``op.NAME``."""
        return (
            isinstance(func, ast.Attribute)
            and isinstance(func.value, ast.Name)
            and self.meaning(func.value) is op
        )

    def is_type(self, node: ast.expr) -> bool:
        """Return whether a name refers to a column type of SQLAlchemy."""
        found = self.meaning(node)
        return (
            isinstance(found, type)
            and issubclass(found, TypeEngine)
            and found.__module__.startswith("sqlalchemy.")
        )

    def own_class(self, node: ast.expr) -> str | None:
        """Return the name of a class of portable revisions, or None."""
        found = self.meaning(node)
        return found.name if isinstance(found, ast.ClassDef) else None

    def _bind(self, name: str, meaning: Any) -> None:
        known = self._meanings.setdefault(name, meaning)
        if known is not meaning or name.startswith("__"):
            raise _NotStaticError(name)

    def _read(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Import):
            self._import(node)
        elif isinstance(node, ast.ImportFrom):
            self._import_from(node)
        elif isinstance(node, ast.ClassDef | ast.FunctionDef):
            self._define(node)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            self._assign(node)
        elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            raise _NotStaticError(ast.dump(node))

    def _import(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.name not in _MODULES:
                raise _NotStaticError(alias.name)
            found = importlib.import_module(alias.name)
            if alias.asname is None:
                self._bind("sqlalchemy", sqlalchemy)
            else:
                self._bind(alias.asname, found)

    def _import_from(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            if node.level or alias.name == "*":
                raise _NotStaticError(alias.name)
            source, name = str(node.module), alias.asname or alias.name
            if source in _HARMLESS:
                self._bind(name, alias)
            elif (source, alias.name, name) == ("alembic", "op", "op"):
                self._bind(name, op)
            elif (source, alias.name, name) == _COMPILES:
                # Only the classes of portable revisions use it.
                self._bind(name, compiles)
            elif source in _MODULES:
                module = importlib.import_module(source)
                self._bind(name, getattr(module, alias.name, alias))
            else:
                raise _NotStaticError(source)

    def _define(self, node: ast.ClassDef | ast.FunctionDef) -> None:
        self._bind(node.name, node)
        if _shape(node) in _KNOWN:
            self._check_known(node)
            return
        if (
            isinstance(node, ast.ClassDef)
            or node.decorator_list
            or getattr(node, "type_params", None)
        ):
            raise _NotStaticError(node.name)
        of = node.args
        given = [*of.posonlyargs, *of.args, *of.kwonlyargs]
        given += [one for one in (of.vararg, of.kwarg) if one is not None]
        for annotation in [node.returns, *(one.annotation for one in given)]:
            _check_annotation(annotation)
        for default in [*of.defaults, *of.kw_defaults]:
            if default is not None and not _is_literal(default):
                raise _NotStaticError(node.name)

    def _check_known(self, node: ast.ClassDef | ast.FunctionDef) -> None:
        get = self._meanings.get
        is_ours = get("sa") is sqlalchemy and get("compiles") is compiles
        if isinstance(node, ast.FunctionDef):
            # It compiles a class of the same revision.
            (decorator,) = node.decorator_list
            assert isinstance(decorator, ast.Call)  # noqa: S101 - of _KNOWN
            is_ours &= self.own_class(decorator.args[0]) is not None
        if not is_ours:
            raise _NotStaticError(node.name)

    def _assign(self, node: ast.Assign | ast.AnnAssign) -> None:
        if isinstance(node, ast.Assign):
            targets = node.targets
        else:
            targets = [node.target]
            _check_annotation(node.annotation)
        for target in targets:
            if not isinstance(target, ast.Name):
                raise _NotStaticError(ast.dump(target))
            self._bind(target.id, node)
        if node.value is None or not _is_literal(node.value):
            raise _NotStaticError(ast.dump(node))


def _is_literal(node: ast.expr) -> bool:
    """Return whether an expression is a literal, without names."""
    if isinstance(node, ast.List | ast.Tuple):
        return all(_is_literal(item) for item in node.elts)
    if isinstance(node, ast.Dict):
        keys = [key for key in node.keys if key is not None]
        return len(keys) == len(node.keys) and all(
            _is_literal(item) for item in [*keys, *node.values]
        )
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.USub | ast.UAdd) and isinstance(
            node.operand, ast.Constant
        )
    return isinstance(node, ast.Constant)


def _check_annotation(node: ast.expr | None) -> None:
    if node is not None and not all(
        isinstance(part, _ANNOTATION) for part in ast.walk(node)
    ):
        raise _NotStaticError(ast.dump(node))


def _is_module(found: object) -> bool:
    return isinstance(found, ModuleType) and found.__name__ in _MODULES


def _shape(node: ast.AST) -> str:
    """Return the dump of a definition without the strings it returns."""
    node = deepcopy(node)
    for part in ast.walk(node):
        if isinstance(part, ast.Return) and isinstance(part.value, ast.Constant):
            part.value = None
    return ast.dump(node)


_KNOWN = frozenset(
    _shape(node)
    for source in (UPDATED_AT, BLOB_TEXT)
    for node in ast.parse(source).body
    if isinstance(node, ast.ClassDef | ast.FunctionDef)
)


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
#: Column types, and constructors that depend on their arguments only.
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
    """Return whether a revision is proven to be static.

    :param path: path of the file of the revision.
    :param function: ``"upgrade"`` or ``"downgrade"``.
    """
    if path is None or not path.endswith(".py"):
        return False
    try:
        # Parse bytes, since the file may declare its encoding.
        names = _Names(ast.parse(Path(path).read_bytes()))
    except _NotStaticError:
        return False
    except _PARSING:
        return False  # Alembic has loaded another version.
    found = names.function(function)
    return found is not None and all(
        _is_static_statement(node, names) for node in found.body
    )


def _is_static_statement(node: ast.stmt, names: _Names) -> bool:
    """Return whether a statement of the function is one operation."""
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
    return call.func.attr in _OPERATIONS and _has_static_arguments(call, names)


def _is_ddl(call: ast.Call) -> bool:
    text = _sole_text(call)
    return (
        text is not None
        # A name after a colon would be a bind parameter.
        and ":" not in text
        and read(text).effect is Effect.TABLES
    )


def _sole_text(call: ast.Call) -> str | None:
    """Return the only argument of a call if it is a string literal."""
    if len(call.args) == 1 and not call.keywords:
        (text,) = call.args
        if isinstance(text, ast.Constant) and isinstance(text.value, str):
            return text.value
    return None


def _has_static_arguments(call: ast.Call, names: _Names) -> bool:
    """Return whether all arguments of a call are values."""
    arguments = list(call.args)
    last = arguments[-1] if arguments else None
    if isinstance(last, ast.Starred) and isinstance(last.value, ast.List):
        # Alembic writes the columns of very wide tables as *[...].
        arguments[-1:] = last.value.elts
    return _are_values(arguments, names) and all(
        # Keywords with an underscore are private to SQLAlchemy.
        keyword.arg is not None
        and not keyword.arg.startswith("_")
        and _is_value(keyword.value, names)
        for keyword in call.keywords
    )


def _are_values(nodes: Iterable[ast.expr | None], names: _Names) -> bool:
    return all(node is not None and _is_value(node, names) for node in nodes)


def _is_value(node: ast.expr, names: _Names) -> bool:
    """Return whether an argument is a literal or a known constructor."""
    if isinstance(node, ast.List | ast.Tuple):
        return _are_values(node.elts, names)
    if isinstance(node, ast.Dict):
        return _are_values([*node.keys, *node.values], names)
    if isinstance(node, ast.Call):
        return _is_made(node, names)
    return _is_literal(node) or names.is_type(node)


def _is_made(call: ast.Call, names: _Names) -> bool:
    """Return whether the result of a call depends on its arguments only."""
    func = call.func
    if names.is_operation(func):
        assert isinstance(func, ast.Attribute)  # noqa: S101 - is_operation()
        return func.attr == "f" and _sole_text(call) is not None
    own = names.own_class(func)
    if own == "UpdatedAt":
        return not call.args and not call.keywords
    if own is not None:
        return _sole_text(call) is not None
    if not _has_static_arguments(call, names):
        return False
    if isinstance(func, ast.Attribute):
        if isinstance(func.value, ast.Call):
            return _is_method(func.attr, func.value, call, names)
        if names.meaning(func.value) is sa.func:
            return not func.attr.startswith("_")
    made = names.meaning(func)
    return names.is_type(func) or any(made is one for one in _MADE)


def _is_method(name: str, made: ast.Call, call: ast.Call, names: _Names) -> bool:
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
