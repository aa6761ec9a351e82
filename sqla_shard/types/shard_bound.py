"""Bind parameters whose value depends on the shard of the statement.

A statement is compiled once for all shards, and its cache key must not
contain ids.  A shard-dependent value is therefore bound as one of the objects
below; :mod:`sqla_shard.engine.rendering` calls its ``at(shard_id)`` just
before the statement is sent.

``Address``
    one id that is compared with a ``local_id`` column.
``Prefix``
    the number that the server adds to a ``local_id`` to return the full id.
``ShardNumber``
    the number of the shard.
``IdSlot``
    an ``IN`` list in one placeholder; each shard gets its own ids.
``KeySlot``
    an ``IN`` list of lookup keys; each shard gets its own keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqla_shard.ids import IdLayout

# An id that no row has: the IN list of a shard without ids must match nothing.
_NO_ID = "-1"


class ShardBound:
    """Base of the bind parameters that are resolved for each shard."""

    __slots__ = ()

    def at(self, shard_id: int) -> int:
        """Return the value on one shard."""
        raise NotImplementedError

    def shown_at(self, shard_ids: Iterable[int]) -> list[Any]:
        """Return the value on each shard, as it is formatted as SQL."""
        return [self.at(shard_id) for shard_id in shard_ids]

    @property
    def whole(self) -> object:
        """The part of the value that is the same for all shards (hashable)."""
        raise NotImplementedError


class ShardNumber(ShardBound):
    """The number of the shard, to recognize the shard of a row."""

    __slots__ = ()

    def at(self, shard_id: int) -> int:
        """Return the number of the shard."""
        return shard_id

    @property
    def whole(self) -> str:
        """The same for all statements."""
        return "shard"

    def __repr__(self) -> str:
        return "<number of the shard>"


class Prefix(ShardBound):
    """The shard and type bits that the server adds to a local id.

    They are zero if the table stores whole ids.
    """

    __slots__ = ("_layout", "_type_bits")

    def __init__(self, type_id: int, layout: IdLayout) -> None:
        self._layout = layout
        self._type_bits = type_id << layout.type_shift

    def at(self, shard_id: int) -> int:
        """Return the id whose local part is zero."""
        if self._layout.is_whole:
            return 0
        return shard_id << self._layout.shard_shift | self._type_bits

    def shown_at(self, shard_ids: Iterable[int]) -> list[Any]:
        """Return the value on each shard; see :class:`ShardBound`."""
        if self._layout.is_whole:
            return [0 for _ in shard_ids]
        shift, bits = self._layout.shard_shift, self._type_bits
        return [shard_id << shift | bits for shard_id in shard_ids]

    @property
    def whole(self) -> tuple[int, int]:
        """The bits of the type, and the position of the shard."""
        return self._type_bits, self._layout.shard_shift

    def __repr__(self) -> str:
        type_id = self._type_bits >> self._layout.type_shift
        return f"<prefix of type {type_id}>"


class ComparedId(ShardBound):
    """A full id that is compared with the local ids of one type."""

    __slots__ = ("layout", "object_id", "type_id")

    def __init__(self, object_id: int, type_id: int, layout: IdLayout) -> None:
        self.object_id: int = object_id
        self.type_id: int = type_id
        self.layout: IdLayout = layout

    def at(self, shard_id: int) -> int:
        """Return the local id, or a value outside the range of local ids.

        An id of another shard or type becomes -1 or one more than the highest
        local id, whichever preserves the order, so that ``=``, ``<``, ``>``,
        ``IN``, ``OR`` and ``NOT`` have the same result for local ids as for
        full ids.
        """
        layout = self.layout
        if layout.is_whole:
            return self.object_id
        address = self.object_id >> layout.type_shift
        here = shard_id << layout.type_bits | self.type_id
        if address == here:
            return self.object_id & layout.max_local_id
        return -1 if address < here else layout.max_local_id + 1

    @property
    def whole(self) -> int:
        """The id."""
        return self.object_id

    def is_at(self, shard_id: int) -> bool:
        """Return True if the id belongs to this shard and type."""
        layout = self.layout
        if layout.is_whole:
            return layout.shard_of(self.object_id) == shard_id
        return self.object_id >> layout.type_shift == (
            shard_id << layout.type_bits | self.type_id
        )

    def __repr__(self) -> str:
        return str(self.object_id)


class Slotted(tuple[Any, ...]):
    """The one-element list that stands for an ``IN`` list.

    SQLAlchemy expands it to one placeholder.  Its evaluator of ORM UPDATE
    and DELETE uses ``in``, which has to test the ids themselves.
    """

    __slots__ = ()

    def __contains__(self, value: object) -> bool:
        return value in self[0].ids

    @property
    def slot(self) -> IdSlot:
        """The IN list."""
        slot: IdSlot = self[0]
        return slot


class Slot(ShardBound):
    """Base of the ``IN`` lists that are sent in one placeholder."""

    __slots__ = ()

    def text_at(self, shard_id: int) -> str:
        """Return the values of the shard as SQL, separated by commas."""
        raise NotImplementedError

    def shown_at(self, shard_ids: Iterable[int]) -> list[Any]:
        """Return :meth:`text_at` for each shard."""
        return [self.text_at(shard_id) for shard_id in shard_ids]

    def __call__(self) -> Slotted:
        """Return the value of the bind parameter for this list."""
        return Slotted((self,))


class KeySlot(Slot):
    """The lookup keys of an ``IN`` list.

    :param groups: the encoded keys, by shard id.
    """

    __slots__ = ("_groups",)

    def __init__(self, groups: Mapping[int, Sequence[bytes]]) -> None:
        self._groups = groups

    def text_at(self, shard_id: int) -> str:
        """Return the keys of the shard as SQL, separated by commas."""
        # Hexadecimal literals, so that no key can inject SQL.
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

    :param ids: full ids.
    :param type_id: the type of the column; None accepts any type.
    :param layout: the layout of the ids.
    :param whole: whether the column stores full ids; otherwise each shard
        gets the local parts of its ids.
    :ivar other_type_id: the first id of another type; None if all are valid.
    :raises InvalidIdError: if a value is not an id.
    """

    __slots__ = ("_groups", "ids", "layout", "other_type_id", "type_id")

    def __init__(
        self, ids: Iterable[int], type_id: int | None, layout: IdLayout, *, whole: bool
    ) -> None:
        ids = tuple(ids)
        self.ids: tuple[int, ...] = ids
        self.type_id: int | None = type_id
        self.layout: IdLayout = layout
        self.other_type_id: int | None = None
        groups: dict[int, list[int]] = {}
        self._groups = groups
        max_id, shard_shift = layout.max_id, layout.shard_shift
        type_shift, max_type = layout.type_shift, layout.max_type_id
        whole = whole or layout.is_whole
        max_local, max_shard = layout.max_local_id, layout.max_shard_id
        if not layout.names_type:
            type_id = None
        for object_id in ids:
            if type(object_id) is not int or not 0 <= object_id <= max_id:
                # Convert members of an enumeration, whose str() is their name.
                object_id = layout.check(object_id)  # the same id
            if type_id is not None and object_id >> type_shift & max_type != type_id:
                self.other_type_id = self.other_type_id or object_id
                continue
            shard_id = object_id >> shard_shift & max_shard
            value = object_id if whole else object_id & max_local
            if shard_id in groups:
                groups[shard_id].append(value)
            else:
                groups[shard_id] = [value]

    @property
    def shards(self) -> frozenset[int]:
        """The shards of the ids."""
        return frozenset(self._groups)

    def text_at(self, shard_id: int) -> str:
        """Return the ids of the shard as SQL, separated by commas."""
        values = self._groups.get(shard_id)
        return ",".join(map(str, values)) if values else _NO_ID

    def shown_at(self, shard_ids: Iterable[int]) -> list[Any]:
        """Return :meth:`text_at` for each shard."""
        groups = self._groups
        return [
            groups[shard_id][0]
            if shard_id in groups and len(groups[shard_id]) == 1
            else self.text_at(shard_id)
            for shard_id in shard_ids
        ]

    @property
    def whole(self) -> tuple[int, ...]:
        """The ids."""
        return self.ids

    def __repr__(self) -> str:
        shown = ", ".join(map(str, self.ids[:5]))
        return f"[{shown}{', ...' if len(self.ids) > 5 else ''}]"
