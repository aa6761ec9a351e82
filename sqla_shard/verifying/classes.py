"""The classes whose rows are looked through."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

from sqlalchemy import inspect

__all__ = ["classes_of"]


def classes_of(
    mixin: type[Any], classes: Iterable[Any] | None
) -> list[type[Any]]:
    """Return the mapped classes of a mixin, each once.

    :param classes: only these; None for all of this process.
    :raises ValueError: when one is none, or two have one name.
    """
    found: list[Any] = list(
        dict.fromkeys(_all(mixin) if classes is None else classes)
    )
    names: set[str] = set()
    for cls in found:
        if not (isinstance(cls, type) and _is_mapped(mixin, cls)):
            raise ValueError(
                f"classes: {cls!r} is no class with {mixin.__name__}"
            )
        if cls.__name__ in names:
            raise ValueError(
                f"classes: two are called {cls.__name__}; look through them "
                "one after the other"
            )
        names.add(cls.__name__)
    return found


def _is_mapped(mixin: type[Any], cls: type[Any]) -> bool:
    return issubclass(cls, mixin) and (
        inspect(cls, raiseerr=False) is not None
    )


def _all(mixin: type[Any]) -> Iterator[type[Any]]:
    waiting = list(mixin.__subclasses__())
    while waiting:
        cls = waiting.pop(0)
        waiting += cls.__subclasses__()
        if _is_mapped(mixin, cls):
            yield cls
