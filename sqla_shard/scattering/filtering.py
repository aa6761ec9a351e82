"""HAVING: which of the groups that were made of several shards are shown.

As on a server, a condition is true, false or, with NULL, neither.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from sqla_shard.exc import ScatterUnsupportedError
from sqla_shard.scattering.merge import Recipe
from sqla_shard.scattering.merge import Row

__all__ = ["AllOf", "AnyOf", "Compared", "IsNull", "Negated"]

_NUMBERS = (int, float, Decimal)


@dataclass(frozen=True)
class Compared:
    """A comparison of two numbers."""

    one: Recipe
    other: Recipe
    operator: Callable[[Any, Any], Any]

    def __call__(self, rows: Sequence[Row]) -> bool | None:
        """Return what it is; None where one of them is NULL.

        :raises ScatterUnsupportedError: when they are no numbers.
        """
        one, other = self.one(rows), self.other(rows)
        if one is None or other is None:
            return None
        for value in (one, other):
            if not isinstance(value, _NUMBERS):
                raise ScatterUnsupportedError(
                    f"HAVING over several shards compares numbers, and not "
                    f"{value!r}; read the groups and filter them in Python",
                    construct="HAVING",
                )
        if isinstance(one, float) or isinstance(other, float):
            # As servers do; to Python, 0.1 is not Decimal("0.1").
            one, other = float(one), float(other)
        return bool(self.operator(one, other))


@dataclass(frozen=True)
class IsNull:
    """Whether there is no value."""

    of: Recipe

    def __call__(self, rows: Sequence[Row]) -> bool | None:
        """Return whether there is none."""
        return self.of(rows) is None


@dataclass(frozen=True)
class Negated:
    """NOT of a condition."""

    of: Recipe

    def __call__(self, rows: Sequence[Row]) -> bool | None:
        """Return it; None where the condition is neither."""
        value = self.of(rows)
        return None if value is None else not value


@dataclass(frozen=True)
class AllOf:
    """Conditions with AND."""

    parts: tuple[Recipe, ...]

    def __call__(self, rows: Sequence[Row]) -> bool | None:
        """Return what they are together."""
        values = [part(rows) for part in self.parts]
        if any(value is not None and not value for value in values):
            return False
        return None if None in values else True


@dataclass(frozen=True)
class AnyOf:
    """Conditions with OR."""

    parts: tuple[Recipe, ...]

    def __call__(self, rows: Sequence[Row]) -> bool | None:
        """Return what they are together."""
        values = [part(rows) for part in self.parts]
        if any(values):
            return True
        return None if None in values else False
