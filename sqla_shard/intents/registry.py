"""Functions by name, for the intents that name them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqla_shard.exc import OperationDefinitionError
from sqla_shard.exc import UnknownOperationError

__all__ = ["is_known", "known", "named", "register"]

_functions: dict[str, Callable[..., Any]] = {}


def register(name: str, function: Callable[..., Any]) -> None:
    """Give a function a name.

    :raises OperationDefinitionError: when another has it.
    """
    before = _functions.get(name)
    if before is not None and _path(before) != _path(function):
        raise OperationDefinitionError(
            f"{'.'.join(_path(before))} has that name already",
            operation=name,
        )
    _functions[name] = function


def _path(function: Any) -> tuple[str, str]:
    # The same again is that of a module that was loaded again.
    return function.__module__, function.__qualname__


def is_known(name: str) -> bool:
    """Tell whether a function has a name."""
    return name in _functions


def known() -> list[str]:
    """Return the names that functions have."""
    return list(_functions)


def named(name: str) -> Callable[..., Any]:
    """Return the function of a name.

    :raises UnknownOperationError: when this process has none.
    """
    found = _functions.get(name)
    if found is None:
        raise UnknownOperationError(operation=name)
    return found
