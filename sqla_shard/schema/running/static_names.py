"""What the names in the source of a revision mean.

Nothing of the revision is run.  The module must be imports of alembic's
``op`` and of SQLAlchemy, constants and plain functions, and give no name two
meanings: then a name means in a function what it means here.  A call, a
default argument, a decorator or a condition of the module could change what
alembic or SQLAlchemy do, so none is taken.

The class that portable revisions bring is known by its source.
"""

from __future__ import annotations

import ast
import importlib
from copy import deepcopy
from types import ModuleType
from typing import Any

import sqlalchemy
from alembic import op
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.types import TypeEngine

from sqla_shard.schema.revisions.portable import UPDATED_AT

__all__ = ["Names", "NotStaticError", "is_written"]

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
# Of annotations, which are not evaluated in a way that matters.
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
_MEANINGLESS = object()


class NotStaticError(Exception):
    """Raised for what keeps a revision from being proven."""


class Names:
    """The names of the module of a revision.

    :param module: its source.
    :raises NotStaticError: when a name could mean something else.
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
        """Return what a name of SQLAlchemy or alembic stands for.

        :returns: the module, class or function; for other expressions
            something that is none of these.
        """
        if isinstance(node, ast.Name):
            return self._meanings.get(node.id, _MEANINGLESS)
        if isinstance(node, ast.Attribute):
            parent = self.meaning(node.value)
            if _is_module(parent) and not node.attr.startswith("_"):
                return getattr(parent, node.attr, _MEANINGLESS)
        return _MEANINGLESS

    def is_operation(self, func: ast.expr) -> bool:
        """Tell whether what is called is ``op.NAME``."""
        return (
            isinstance(func, ast.Attribute)
            and isinstance(func.value, ast.Name)
            and self.meaning(func.value) is op
        )

    def is_type(self, node: ast.expr) -> bool:
        """Tell whether a name is that of a column type of SQLAlchemy."""
        found = self.meaning(node)
        return (
            isinstance(found, type)
            and issubclass(found, TypeEngine)
            and found.__module__.startswith("sqlalchemy.")
        )

    def is_updated_at(self, node: ast.expr) -> bool:
        """Tell whether a name is that of the class we write."""
        return isinstance(self.meaning(node), ast.ClassDef)

    # -- the module

    def _bind(self, name: str, meaning: Any) -> None:
        known = self._meanings.setdefault(name, meaning)
        if known is not meaning or name.startswith("__"):
            raise NotStaticError(name)

    def _read(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Import):
            self._import(node)
        elif isinstance(node, ast.ImportFrom):
            self._import_from(node)
        elif isinstance(node, ast.ClassDef | ast.FunctionDef):
            self._define(node)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            self._assign(node)
        elif not (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        ):
            raise NotStaticError(ast.dump(node))

    def _import(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.name not in _MODULES:
                raise NotStaticError(alias.name)
            found = importlib.import_module(alias.name)
            if alias.asname is None:
                self._bind("sqlalchemy", sqlalchemy)
            else:
                self._bind(alias.asname, found)

    def _import_from(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            if node.level or alias.name == "*":
                raise NotStaticError(alias.name)
            source, name = str(node.module), alias.asname or alias.name
            if source in _HARMLESS:
                self._bind(name, alias)
            elif (source, alias.name, name) == ("alembic", "op", "op"):
                self._bind(name, op)
            elif (source, alias.name, name) == _COMPILES:
                # For the class of portable revisions; nothing else calls it.
                self._bind(name, compiles)
            elif source in _MODULES:
                module = importlib.import_module(source)
                self._bind(name, getattr(module, alias.name, alias))
            else:
                raise NotStaticError(source)

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
            raise NotStaticError(node.name)
        of = node.args
        given = [*of.posonlyargs, *of.args, *of.kwonlyargs]
        given += [one for one in (of.vararg, of.kwarg) if one is not None]
        for annotation in [node.returns, *(one.annotation for one in given)]:
            _check_annotation(annotation)
        for default in [*of.defaults, *of.kw_defaults]:
            if default is not None and not is_written(default):
                raise NotStaticError(node.name)

    def _check_known(self, node: ast.ClassDef | ast.FunctionDef) -> None:
        get = self._meanings.get
        is_ours = get("sa") is sqlalchemy and get("compiles") is compiles
        if not is_ours or not isinstance(get("UpdatedAt"), ast.ClassDef):
            raise NotStaticError(node.name)

    def _assign(self, node: ast.Assign | ast.AnnAssign) -> None:
        if isinstance(node, ast.Assign):
            targets = node.targets
        else:
            targets = [node.target]
            _check_annotation(node.annotation)
        for target in targets:
            if not isinstance(target, ast.Name):
                raise NotStaticError(ast.dump(target))
            self._bind(target.id, node)
        if node.value is None or not is_written(node.value):
            raise NotStaticError(ast.dump(node))


def is_written(node: ast.expr) -> bool:
    """Tell whether a value is written out, with no name in it."""
    if isinstance(node, ast.List | ast.Tuple):
        return all(is_written(item) for item in node.elts)
    if isinstance(node, ast.Dict):
        keys = [key for key in node.keys if key is not None]
        return len(keys) == len(node.keys) and all(
            is_written(item) for item in [*keys, *node.values]
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
        raise NotStaticError(ast.dump(node))


def _is_module(found: object) -> bool:
    return isinstance(found, ModuleType) and found.__name__ in _MODULES


def _shape(node: ast.AST) -> str:
    """Return a definition but for the texts that it returns."""
    node = deepcopy(node)
    for part in ast.walk(node):
        if isinstance(part, ast.Return) and isinstance(
            part.value, ast.Constant
        ):
            part.value = None
    return ast.dump(node)


_KNOWN = frozenset(
    _shape(node)
    for node in ast.parse(UPDATED_AT).body
    if isinstance(node, ast.ClassDef | ast.FunctionDef)
)
