"""Functions by name, for the intents that name them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqla_shard.exc import OperationDefinitionError
from sqla_shard.exc import UnknownOperationError

__all__ = [
    "is_known",
    "known",
    "name_of",
    "named",
    "register",
    "register_for",
]

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


def name_of(verb: str, cls: type[Any]) -> str:
    """Return the name of an operation of a class."""
    return f"{verb}:{cls.__module__}.{cls.__qualname__}"


def register_for(
    verb: str, cls: type[Any], function: Callable[..., Any]
) -> None:
    """Give a class an operation, by :func:`name_of`.

    :param function: takes the class, the session and the arguments.
    """

    def bound(session: Any, **arguments: Any) -> Any:
        return function(cls, session=session, **arguments)

    # A class that is defined again, as in a module that was loaded again,
    # takes the place of the one before.
    bound.__module__ = cls.__module__
    bound.__qualname__ = f"{cls.__qualname__}.{verb}"
    register(name_of(verb, cls), bound)


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
