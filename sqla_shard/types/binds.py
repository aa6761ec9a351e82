"""Parameters whose value depends on the shard that a statement runs on.

A statement is compiled once for all shards, and its cache key must hold no
id.  What depends on the shard therefore reaches the driver's parameters as
one of the objects below, and :mod:`sqla_shard.rendering` asks it for its
value ``at(shard_id)`` just before the text is sent.

``Address``
    one id compared with a ``local_id`` column.
``Prefix``
    what the server adds to a ``local_id`` to show the whole id.
``IdSlot``
    a whole ``IN`` list behind one placeholder; each shard gets its own ids.
``KeySlot``
    the same for keys of lookups.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from sqla_shard.ids import MAX_ID
from sqla_shard.ids import MAX_LOCAL_ID
from sqla_shard.ids import MAX_TYPE_ID
from sqla_shard.ids import SHARD_SHIFT
from sqla_shard.ids import TYPE_SHIFT
from sqla_shard.ids import unpack

__all__ = [
    "Address",
    "IdSlot",
    "KeySlot",
    "Prefix",
    "ShardBound",
    "Slot",
    "Slotted",
]

_NOBODY = "-1"  # an id that no row has, where a shard has no id of a list


class ShardBound:
    """Base of the parameters that are resolved for each shard."""

    __slots__ = ()

    def at(self, shard_id: int) -> int:
        """Return the value on one shard."""
        raise NotImplementedError

    @property
    def whole(self) -> object:
        """What it stands for on all shards, in numbers and bytes."""
        raise NotImplementedError


class Prefix(ShardBound):
    """Shard and type bits, to be added to a local id."""

    __slots__ = ("_type_bits",)

    def __init__(self, type_id: int) -> None:
        self._type_bits = type_id << TYPE_SHIFT

    def at(self, shard_id: int) -> int:
        """Return the id whose local part is zero."""
        return shard_id << SHARD_SHIFT | self._type_bits

    @property
    def whole(self) -> int:
        """The bits of the type."""
        return self._type_bits

    def __repr__(self) -> str:
        return f"<prefix of type {self._type_bits >> TYPE_SHIFT}>"


class Address(ShardBound):
    """A whole id, compared with the local ids of one type."""

    __slots__ = ("object_id", "type_id")

    def __init__(self, object_id: int, type_id: int) -> None:
        self.object_id = object_id
        self.type_id = type_id

    def at(self, shard_id: int) -> int:
        """Return the local id, or a value beyond all of them.

        An id of another shard or type becomes -1 or ``2**36``, whichever
        keeps its order: then ``=``, ``<``, ``>``, ``IN``, ``OR`` and
        ``NOT`` say of local ids what they say of whole ids.
        """
        address = self.object_id >> TYPE_SHIFT
        here = shard_id << (SHARD_SHIFT - TYPE_SHIFT) | self.type_id
        if address == here:
            return self.object_id & MAX_LOCAL_ID
        return -1 if address < here else MAX_LOCAL_ID + 1

    @property
    def whole(self) -> int:
        """The id."""
        return self.object_id

    def is_at(self, shard_id: int) -> bool:
        """Tell whether the id belongs to this shard and type."""
        return self.object_id >> TYPE_SHIFT == (
            shard_id << (SHARD_SHIFT - TYPE_SHIFT) | self.type_id
        )

    def __repr__(self) -> str:
        return str(self.object_id)


class Slotted(tuple[Any, ...]):
    """The one-element list that stands for an ``IN`` list.

    SQLAlchemy expands it to one placeholder; its evaluator of ORM UPDATE
    and DELETE asks ``in``, which must look at the ids themselves.
    """

    __slots__ = ()

    def __contains__(self, value: object) -> bool:
        return value in self[0].ids

    @property
    def slot(self) -> IdSlot:
        """The list itself."""
        slot: IdSlot = self[0]
        return slot


class Slot(ShardBound):
    """Base of the lists that stand behind one placeholder."""

    __slots__ = ()

    def text_at(self, shard_id: int) -> str:
        """Return the shard's own values as SQL, between commas."""
        raise NotImplementedError

    def __call__(self) -> Slotted:
        """Return the value of the parameter that holds this list."""
        return Slotted((self,))


class KeySlot(Slot):
    """The keys of lookups in an ``IN`` list.

    :param groups: the keys, by shard.
    """

    __slots__ = ("_groups",)

    def __init__(self, groups: Mapping[int, Sequence[bytes]]) -> None:
        self._groups = groups

    def text_at(self, shard_id: int) -> str:
        """Return the shard's own keys as SQL, between commas."""
        # In hexadecimal, which no key can break out of.
        values = self._groups.get(shard_id)
        if not values:
            return "NULL"
        return ",".join(f"X'{value.hex()}'" for value in values)

    @property
    def whole(self) -> list[bytes]:
        """The keys."""
        return sorted(key for keys in self._groups.values() for key in keys)

    def __repr__(self) -> str:
        return f"<keys of {len(self._groups)} shards>"


class IdSlot(Slot):
    """The ids of an ``IN`` list, grouped by shard.

    :param ids: whole ids.
    :param type_id: the only type that can match; None for any.
    :param whole: whether the column stores whole ids: each shard gets
        those that name it, instead of the local parts.
    :raises InvalidIdError: when one is not an id.
    """

    __slots__ = ("_groups", "ids", "stranger")

    def __init__(
        self, ids: Iterable[int], type_id: int | None, *, whole: bool
    ) -> None:
        self.ids = ids = tuple(ids)
        #: The first id of another type; None where there is none.
        self.stranger: int | None = None
        groups: dict[int, list[int]] = {}
        self._groups = groups
        for object_id in ids:
            if type(object_id) is not int or not 0 <= object_id <= MAX_ID:
                unpack(object_id)
                # str() of a member of an enumeration is its name.
                object_id = int(object_id)  # the same id
            if (
                type_id is not None
                and object_id >> TYPE_SHIFT & MAX_TYPE_ID != type_id
            ):
                self.stranger = self.stranger or object_id
                continue
            shard_id = object_id >> SHARD_SHIFT
            value = object_id if whole else object_id & MAX_LOCAL_ID
            if shard_id in groups:
                groups[shard_id].append(value)
            else:
                groups[shard_id] = [value]

    @property
    def shards(self) -> frozenset[int]:
        """The shards that have at least one of the ids."""
        return frozenset(self._groups)

    def text_at(self, shard_id: int) -> str:
        """Return the shard's own ids as SQL, between commas."""
        values = self._groups.get(shard_id)
        return ",".join(map(str, values)) if values else _NOBODY

    @property
    def whole(self) -> tuple[int, ...]:
        """The ids."""
        return self.ids

    def __repr__(self) -> str:
        shown = ", ".join(map(str, self.ids[:5]))
        return f"[{shown}{', ...' if len(self.ids) > 5 else ''}]"
