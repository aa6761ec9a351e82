"""Python from the command line, and the names that it can use.

It is run as it is, like that of ``python -c``: whoever may start the program
may do whatever it does.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from collections.abc import Iterable
from types import ModuleType
from typing import Any
from typing import TypeVar

import click
import sqlalchemy
import sqlalchemy.orm

import sqla_shard

__all__ = ["evaluate", "find_here", "models_option", "names"]

F = TypeVar("F", bound=Callable[..., Any])


def models_option(command: F) -> F:
    """Give a command the option ``--models``, as its argument ``models``."""
    return click.option(
        "--models",
        metavar="MODULE",
        multiple=True,
        help="A module, such as shop.models, whose names can be used; "
        "repeatable.",
    )(command)


def names(modules: Iterable[str]) -> dict[str, Any]:
    """Return what Python of the command line can use.

    That is the public names of SQLAlchemy, its ORM and this package, and of
    some modules, which are looked for in the current directory as well.

    :param modules: their names; later ones take precedence.
    :raises click.BadParameter: when one cannot be found.
    """
    found: dict[str, Any] = {}
    for module in (sqlalchemy.orm, sqlalchemy, sqla_shard):
        found.update(_public(module))
    find_here()
    for name in modules:
        found.update(_public(_imported(name)))
    return found


def find_here() -> None:
    """Let modules be looked for in the current directory as well."""
    if "" not in sys.path:
        # A program that pip has installed does not look there.
        sys.path.insert(0, "")


def _public(module: ModuleType) -> dict[str, Any]:
    listed = getattr(module, "__all__", None)
    if listed is None:
        listed = [name for name in vars(module) if not name.startswith("_")]
    return {name: getattr(module, name) for name in listed}


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (ImportError, TypeError, ValueError) as error:
        raise click.BadParameter(
            f"the module {name!r} cannot be imported: {error}",
            param_hint="--models",
        ) from error


def evaluate(text: str, scope: dict[str, Any]) -> Any:
    """Return the value of a Python expression.

    :param text: the expression.
    :param scope: the names that it can use.
    :raises click.UsageError: when it is none, or fails.
    """
    try:
        return eval(text, scope)  # noqa: S307  # of whoever started us
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        NameError,
        SyntaxError,
        TypeError,
        ValueError,
    ) as error:
        advice = ""
        if isinstance(error, NameError):
            advice = "; --models MODULE brings the names of a module"
        raise click.UsageError(
            f"{text!r} is not what Python can evaluate: "
            f"{type(error).__name__}: {error}{advice}"
        ) from error
