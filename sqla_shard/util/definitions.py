"""The place where a function is defined, to distinguish two of one name."""

from __future__ import annotations

import inspect
from typing import Any


def definition_of(function: Any) -> str:
    """Return the module and qualified name of a function.

    For a method of an object the object is named, too: two objects of a class
    are two definitions.  A module that is loaded again defines the same.
    """
    path = f"{function.__module__}.{function.__qualname__}"
    if not inspect.ismethod(function):
        return path
    return f"{path} of {function.__self__!r}"
