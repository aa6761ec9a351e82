"""Object ids: 64 bits that locate an object.

======== ===== ================= =======================================
part     bits  values            meaning
======== ===== ================= =======================================
reserved 2     0                 a signed BIGINT stays positive
shard    16    0 .. 65535        the virtual shard that holds the object
type     10    0 .. 1023         the class of the object
local    36    0 .. 2**36 - 1    the row of its table on that shard
======== ===== ================= =======================================

An id never changes, because an object never leaves its virtual shard.  The
server that holds the shard may change; see :mod:`sqla_shard.topology`.  Ids
exceed ``2**53``: pass them to JavaScript as strings.

>>> pack(3429, 1, 7075733)
241294492511762325
>>> unpack(241294492511762325)
ObjectId(shard_id=3429, type_id=1, local_id=7075733)

The layout is Pinterest's ("Sharding Pinterest: How we scaled our MySQL
fleet", 2015).
"""

from __future__ import annotations

from typing import Any
from typing import NamedTuple

from sqla_shard.exc import DuplicateTypeError
from sqla_shard.exc import InvalidIdError
from sqla_shard.exc import WrongTypeError
from sqla_shard.exc.base import shown

__all__ = [
    "LOCAL_BITS",
    "MAX_ID",
    "MAX_LOCAL_ID",
    "MAX_SHARD_ID",
    "MAX_TYPE_ID",
    "SHARD_SHIFT",
    "TYPE_SHIFT",
    "ObjectId",
    "TypeRegistry",
    "check_shard_id",
    "check_type",
    "pack",
    "unpack",
]

LOCAL_BITS = 36
TYPE_SHIFT = LOCAL_BITS
SHARD_SHIFT = TYPE_SHIFT + 10
MAX_LOCAL_ID = (1 << LOCAL_BITS) - 1
MAX_TYPE_ID = (1 << 10) - 1
MAX_SHARD_ID = (1 << 16) - 1
MAX_ID = (1 << 62) - 1


class ObjectId(NamedTuple):
    """The three parts of an object id; ``int()`` of it is the id."""

    shard_id: int
    type_id: int
    local_id: int

    def __int__(self) -> int:
        return pack(*self)


def pack(shard_id: int, type_id: int, local_id: int) -> int:
    """Return the object id of a row.

    :param shard_id: virtual shard, 0 to 65535.
    :param type_id: type of the object, 0 to 1023.
    :param local_id: row of the table, 0 to ``2**36 - 1``.
    :raises InvalidIdError: if a part is not an int or out of range.
    """
    if (
        type(shard_id) is int
        and type(type_id) is int
        and type(local_id) is int
        and 0 <= shard_id <= MAX_SHARD_ID
        and 0 <= type_id <= MAX_TYPE_ID
        and 0 <= local_id <= MAX_LOCAL_ID
    ):
        return shard_id << SHARD_SHIFT | type_id << TYPE_SHIFT | local_id
    return (
        _part("shard_id", shard_id, MAX_SHARD_ID) << SHARD_SHIFT
        | _part("type_id", type_id, MAX_TYPE_ID) << TYPE_SHIFT
        | _part("local_id", local_id, MAX_LOCAL_ID)
    )


def unpack(object_id: int) -> ObjectId:
    """Return the parts of an object id.

    :param object_id: an object id, as returned by :func:`pack`.
    :raises InvalidIdError: if the id is not an int, is negative or longer than
        64 bits, or has one of the two reserved bits set.
    """
    if type(object_id) is int and 0 <= object_id <= MAX_ID:
        return ObjectId(
            object_id >> SHARD_SHIFT,
            object_id >> TYPE_SHIFT & MAX_TYPE_ID,
            object_id & MAX_LOCAL_ID,
        )
    # Subclasses such as an IntEnum are accepted; bool is not.
    given: Any = object_id
    if isinstance(given, int) and type(given) not in (bool, int):
        return unpack(int(given))
    raise _refusal(given)


def check_shard_id(shard_id: int) -> int:
    """Return ``shard_id`` if an id can contain it.

    :raises InvalidIdError: if ``shard_id`` is not an int from 0 to 65535.
    """
    return _part("shard_id", shard_id, MAX_SHARD_ID)


def _part(name: str, value: Any, highest: int) -> int:
    # bool is an int to Python: pack(True, 1, 1) would address shard 1.
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidIdError(
            f"{name} must be an integer from 0 to {highest}, not "
            f"{shown(value)} of type {type(value).__name__}",
            value=value,
        )
    if not 0 <= value <= highest:
        raise InvalidIdError(
            f"{name} must be from 0 to {highest}, not {shown(value)}",
            value=value,
        )
    return int(value)


def _refusal(value: Any) -> InvalidIdError:
    if isinstance(value, str) and value.isascii() and value.isdigit():
        why = "it is a str; convert it with int()"
    elif not isinstance(value, int) or isinstance(value, bool):
        why = f"it is of type {type(value).__name__}; object ids are int"
    elif value < 0:
        why = "it is negative"
    elif value >> 64:
        why = f"it has {value.bit_length()} bits; object ids have 64"
    else:
        why = "its two highest bits are reserved and must be zero"
    return InvalidIdError(
        f"{shown(value)} is not an object id: {why}", value=value
    )


def check_type(object_id: Any, type_id: int | None, name: str) -> ObjectId:
    """Return the parts of an id; check that it belongs to a class.

    :param type_id: type id of the class; None accepts any type.
    :param name: the class, or the column that holds its ids, for the message.
    :raises InvalidIdError: if ``object_id`` is not an id.
    :raises WrongTypeError: if ``object_id`` is an id of another class.
    """
    parts = unpack(object_id)
    if type_id is not None and parts.type_id != type_id:
        if parts.shard_id == parts.type_id == 0:
            what = "a local id, not an object id"
        else:
            what = f"an id of type {parts.type_id}"
        raise WrongTypeError(
            f"{object_id} is {what}; {name} holds ids of type {type_id}",
            value=object_id,
            expected=(type_id,),
        )
    return parts


class TypeRegistry:
    """The type ids of the classes of one declarative base.

    Two classes cannot share a type id, because the class of an id would be
    ambiguous.  Type id 0 is reserved: with it, a local id could be mistaken
    for an object id.
    """

    def __init__(self) -> None:
        self._classes: dict[int, type[Any]] = {}

    def check(self, type_id: int, name: str) -> int:
        """Return ``type_id`` if it is valid and not taken.

        :param name: the class that requests it, for the message.
        :raises InvalidIdError: if ``type_id`` is not an int from 1 to 1023.
        :raises DuplicateTypeError: if another class has the type id.
        """
        value = _part("type_id", type_id, MAX_TYPE_ID)
        if value == 0:
            raise InvalidIdError(
                f"{name}: type_id 0 is reserved, because a local id alone "
                f"would look like an object id; use 1 to {MAX_TYPE_ID}",
                value=type_id,
            )
        holder = self._classes.get(value)
        if holder is not None:
            raise DuplicateTypeError(
                type_id=value, holder=holder.__name__, claimant=name
            )
        return value

    def register(self, type_id: int, cls: type[Any]) -> None:
        """Record that ``cls`` has ``type_id``.

        :raises InvalidIdError: see :meth:`check`.
        :raises DuplicateTypeError: see :meth:`check`.
        """
        self._classes[self.check(type_id, cls.__name__)] = cls

    def lookup(self, type_id: int) -> type[Any] | None:
        """Return the class of a type id, or None if it is not registered."""
        return self._classes.get(type_id)

    def __iter__(self) -> Any:
        return iter(sorted(self._classes.items()))
