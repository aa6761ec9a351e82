"""Object ids: 64 bits that say where an object lives.

======== ===== ================= =======================================
part     bits  values            meaning
======== ===== ================= =======================================
reserved 2     0                 keeps ids positive in a signed BIGINT
shard    16    0 .. 65535        the virtual shard that holds the object
type     10    0 .. 1023         the class of the object
local    36    0 .. 2**36 - 1    the row of its table on that shard
======== ===== ================= =======================================

An id never changes, because an object never changes its virtual shard;
what changes is the server that holds the shard, and that is the business of
:mod:`sqla_shard.topology`.  Ids exceed ``2**53``: hand them to JavaScript as
strings.

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
    :raises InvalidIdError: when a part is not an int or out of range.
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

    :param object_id: an id as :func:`pack` returns it.
    :raises InvalidIdError: when it is not an int, negative, longer than 64
        bits, or has one of the two reserved bits set.
    """
    if type(object_id) is int and 0 <= object_id <= MAX_ID:
        return ObjectId(
            object_id >> SHARD_SHIFT,
            object_id >> TYPE_SHIFT & MAX_TYPE_ID,
            object_id & MAX_LOCAL_ID,
        )
    # An IntEnum member or numpy's int is an id like any other; bool is not.
    given: Any = object_id
    if isinstance(given, int) and type(given) not in (bool, int):
        return unpack(int(given))
    raise _refused(given)


def check_shard_id(shard_id: int) -> int:
    """Return ``shard_id`` if ids can name it.

    :raises InvalidIdError: when it is not an int from 0 to 65535.
    """
    return _part("shard_id", shard_id, MAX_SHARD_ID)


def _part(name: str, value: Any, highest: int) -> int:
    # bool is an int to Python: pack(True, 1, 1) would address shard 1.
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidIdError(
            f"{name} must be an int from 0 to {highest}, not "
            f"{shown(value)} of type {type(value).__name__}",
            value=value,
        )
    if not 0 <= value <= highest:
        raise InvalidIdError(
            f"{name} must be from 0 to {highest}, not {shown(value)}",
            value=value,
        )
    return int(value)


def _refused(value: Any) -> InvalidIdError:
    if isinstance(value, str) and value.isascii() and value.isdigit():
        why = "a str; convert it with int() where it enters the program"
    elif not isinstance(value, int) or isinstance(value, bool):
        why = f"of type {type(value).__name__}; ids are int"
    elif value < 0:
        why = "negative; ids are positive"
    elif value >> 64:
        why = f"{value.bit_length()} bits long; ids have 64"
    else:
        why = "not one of ours: its two highest bits are reserved and zero"
    return InvalidIdError(
        f"{shown(value)} is not an object id: it is {why}", value=value
    )


def check_type(object_id: Any, type_id: int | None, name: str) -> ObjectId:
    """Return the parts of an id that must be one of a class.

    :param type_id: of the class; None for any.
    :param name: the class, or the column that holds such ids.
    :raises InvalidIdError: when it is not an id.
    :raises WrongTypeError: when it is an id of another class.
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
    """Which class has which type id; one for each declarative base.

    It refuses two classes with one type id, because their ids could not be
    told apart, and type id 0, because then a bare local id could pass for
    an object id.
    """

    def __init__(self) -> None:
        self._classes: dict[int, type[Any]] = {}

    def check(self, type_id: int, name: str) -> int:
        """Return ``type_id`` if a class called ``name`` may have it.

        :raises InvalidIdError: when it is not an int from 1 to 1023.
        :raises DuplicateTypeError: when another class has it.
        """
        value = _part("type_id", type_id, MAX_TYPE_ID)
        if value == 0:
            raise InvalidIdError(
                "type_id 0 is reserved, so that a bare local id is never "
                f"taken for an object id; give {name} one from 1 to "
                f"{MAX_TYPE_ID}",
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
        """Return the class of a type id; None where there is none."""
        return self._classes.get(type_id)

    def __iter__(self) -> Any:
        return iter(sorted(self._classes.items()))
