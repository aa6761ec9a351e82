"""The type ids of classes."""

from __future__ import annotations

from typing import Any

from sqla_shard.ids.layout import (
    DEFAULT_LAYOUT,
    IdLayout,
    invalid_id_error,
    MAX_TYPE_ID,
    part_of,
)


class TypeRegistry:
    """The type ids of the classes of one declarative base.

    Two classes cannot share a type id, because the class of an id would be
    ambiguous.  Type id 0 is reserved: with it, a local id could be mistaken
    for an object id.
    """

    def __init__(self) -> None:
        self._classes: dict[int, type[Any]] = {}

    def check(self, type_id: int, name: str, layout: IdLayout = DEFAULT_LAYOUT) -> int:
        """Return ``type_id`` if it is valid and not taken.

        :param name: the class that requests it, for the message.
        :param layout: layout of the ids of the class.
        :raises InvalidIdError: if ``type_id`` is not an int from 1 to the
            highest type id of the layout.
        :raises DuplicateTypeError: if another class has the type id.
        """
        highest = layout.max_type_id or MAX_TYPE_ID
        value = part_of("type_id", type_id, highest)
        if value == 0:
            raise invalid_id_error(
                f"{name}: type_id {{}} is reserved, because a local id alone "
                f"would look like an object id; use 1 to {highest}",
                type_id,
            )
        holder = self._classes.get(value)
        if holder is not None:
            from sqla_shard.exc import DuplicateTypeError

            raise DuplicateTypeError(
                type_id=value, holder=holder.__name__, claimant=name
            )
        return value

    def register(
        self, type_id: int, cls: type[Any], layout: IdLayout = DEFAULT_LAYOUT
    ) -> None:
        """Record that ``cls`` has ``type_id``.

        :raises InvalidIdError: see :meth:`check`.
        :raises DuplicateTypeError: see :meth:`check`.
        """
        self._classes[self.check(type_id, cls.__name__, layout)] = cls

    def lookup(self, type_id: int) -> type[Any] | None:
        """Return the class of a type id, or None if it is not registered."""
        return self._classes.get(type_id)

    def __iter__(self) -> Any:
        return iter(sorted(self._classes.items()))
