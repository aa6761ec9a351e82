"""Layouts of object ids: a shard, a type and a local id in one integer.

The types are classes, which are registered with their type ids.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, TYPE_CHECKING

# Errors are imported where they are raised: SQLAlchemy, from which they
# descend, takes most of the time of `sqla-shard id`.
if TYPE_CHECKING:
    from sqla_shard.exc import IdLayoutError, InvalidIdError, WrongTypeError

#: Bits of a signed BIGINT that an id may use.
_ID_BITS = 63
#: Lowest and highest number of bits of each part.
_WIDTHS = {"shard_bits": (1, 16), "type_bits": (1, 16), "local_bits": (32, 52)}


class ObjectId(NamedTuple):
    """The three parts of an object id; ``int()`` of it is the id."""

    shard_id: int
    type_id: int
    local_id: int

    def __int__(self) -> int:
        return DEFAULT_LAYOUT.pack(*self)

    def describe(self) -> str:
        """Return the parts as text."""
        return DEFAULT_LAYOUT.describe(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class IdLayout:
    """The number of bits of each part of the ids of a keyspace.

    From the highest bit: reserved bits, which are zero, then the shard, the
    type and the local id.  Layouts are compared by their widths.

    :param shard_bits: 1 to 16.
    :param type_bits: 1 to 16.
    :param local_bits: 32 to 52; a table has up to ``2**local_bits`` rows on
        each shard.
    :raises IdLayoutError: if a width is out of range, or the sum is more
        than 63, the bits of a positive BIGINT.
    :ivar type_shift: position of the type in an id.
    :ivar shard_shift: position of the shard in an id.
    :ivar max_shard_id: the highest shard.
    :ivar max_type_id: the highest type id.
    :ivar max_local_id: the highest local id.
    :ivar max_id: the highest id.
    :ivar names_type: whether an id contains the type of its object.
    :ivar is_whole: whether tables store whole ids instead of local ids.
    """

    is_whole: ClassVar[bool] = False

    shard_bits: int = 16
    type_bits: int = 10
    local_bits: int = 36
    type_shift: int = field(init=False, repr=False, compare=False)
    shard_shift: int = field(init=False, repr=False, compare=False)
    max_shard_id: int = field(init=False, repr=False, compare=False)
    max_type_id: int = field(init=False, repr=False, compare=False)
    max_local_id: int = field(init=False, repr=False, compare=False)
    max_id: int = field(init=False, repr=False, compare=False)
    names_type: bool = field(init=False, repr=False, compare=False)
    _parts: type[ObjectId] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, (lowest, highest) in _WIDTHS.items():
            value = getattr(self, name)
            if type(value) is not int or not lowest <= value <= highest:
                raise layout_error(
                    f"{name}={{}} must be an integer from {lowest} to {highest}", value
                )
        bits = self.shard_bits + self.type_bits + self.local_bits
        if bits > _ID_BITS:
            raise layout_error(
                f"{self} have {{}} bits, and a positive BIGINT has "
                f"{_ID_BITS}; make a part narrower",
                bits,
            )
        found = {
            "type_shift": self.local_bits,
            "shard_shift": self.local_bits + self.type_bits,
            "max_shard_id": (1 << self.shard_bits) - 1,
            "max_type_id": (1 << self.type_bits) - 1,
            "max_local_id": (1 << self.local_bits) - 1,
            "max_id": (1 << bits) - 1,
            "names_type": self.type_bits > 0,
            "_parts": parts_of(self),
        }
        for name, value in found.items():
            object.__setattr__(self, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        return _layout, (self.shard_bits, self.type_bits, self.local_bits)

    def __str__(self) -> str:
        return (
            f"ids of {self.shard_bits} shard, {self.type_bits} type and "
            f"{self.local_bits} local bits"
        )

    @property
    def is_default(self) -> bool:
        """Whether the widths are those of :data:`DEFAULT_LAYOUT`."""
        return self == DEFAULT_LAYOUT

    def to_mapping(self) -> dict[str, int]:
        """Return the widths, as a topology document has them."""
        return {name: getattr(self, name) for name in _WIDTHS}

    def describe(self, parts: ObjectId) -> str:
        """Return the parts of an id as text."""
        return (
            f"shard {parts.shard_id}, type {parts.type_id}, local id {parts.local_id}"
        )

    def pack(self, shard_id: int, type_id: int, local_id: int) -> int:
        """Return the object id of a row; see :func:`pack`.

        :raises InvalidIdError: if a part is not an int or out of range.
        """
        if (
            type(shard_id) is int
            and type(type_id) is int
            and type(local_id) is int
            and 0 <= shard_id <= self.max_shard_id
            and 0 <= type_id <= self.max_type_id
            and 0 <= local_id <= self.max_local_id
        ):
            return shard_id << self.shard_shift | type_id << self.type_shift | local_id
        return (
            part_of("shard_id", shard_id, self.max_shard_id) << self.shard_shift
            | part_of("type_id", type_id, self.max_type_id) << self.type_shift
            | part_of("local_id", local_id, self.max_local_id)
        )

    def unpack(self, object_id: int) -> ObjectId:
        """Return the parts of an object id; see :func:`unpack`.

        :raises InvalidIdError: if it is not an id of the layout.
        """
        if type(object_id) is not int or not 0 <= object_id <= self.max_id:
            object_id = self._converted(object_id)
        return self._parts(
            object_id >> self.shard_shift,
            object_id >> self.type_shift & self.max_type_id,
            object_id & self.max_local_id,
        )

    def check(self, object_id: Any) -> int:
        """Return an object id as an int.

        :raises InvalidIdError: if it is not an id of the layout.
        """
        if type(object_id) is int and 0 <= object_id <= self.max_id:
            return object_id
        return self._converted(object_id)

    def shard_of(
        self, object_id: Any, type_id: int | None = None, name: str = ""
    ) -> int:
        """Return the shard of an id; check that it belongs to a class.

        :param type_id: type id of the class; None accepts any that a class has.
        :param name: the class, or the column that holds its ids, for the
            message.
        :raises InvalidIdError: if ``object_id`` is not an id of the layout.
        :raises WrongTypeError: if ``object_id`` is an id of another class.
        """
        if type(object_id) is not int or not 0 <= object_id <= self.max_id:
            object_id = self._converted(object_id)
        found = object_id >> self.type_shift & self.max_type_id
        # No class has the type 0: a number of a shard, or a local id.
        if found != type_id and (type_id is not None or not found):
            raise self._wrong_type_error(object_id, type_id, name)
        shard_id: int = object_id >> self.shard_shift
        return shard_id

    def check_type(self, object_id: Any, type_id: int | None, name: str) -> ObjectId:
        """Return the parts of an id; see :meth:`shard_of`."""
        self.shard_of(object_id, type_id, name)
        return self.unpack(object_id)

    def _wrong_type_error(
        self, object_id: int, type_id: int | None, name: str
    ) -> WrongTypeError:
        from sqla_shard.exc import WrongTypeError

        parts = self.unpack(object_id)
        if parts.shard_id == parts.type_id == 0:
            what = "a local id, not an object id"
        else:
            what = f"an id of type {parts.type_id}"
        if type_id is None:
            why = "no class has the type 0"
        else:
            why = f"{name} holds ids of type {type_id}"
        return WrongTypeError(
            f"{object_id} is {what}; {why}",
            value=object_id,
            expected=() if type_id is None else (type_id,),
        )

    def _converted(self, value: Any) -> int:
        # Subclasses such as an IntEnum are accepted; bool is not.
        if isinstance(value, int) and type(value) not in (bool, int):
            return self.check(int(value))
        raise self._refusal(value)

    def _refusal(self, value: Any) -> InvalidIdError:
        if isinstance(value, str) and value.isascii() and value.isdigit():
            why = "it is a str; convert it with int()"
        elif not isinstance(value, int) or isinstance(value, bool):
            why = f"it is of type {type(value).__name__}; object ids are int"
        elif value < 0:
            why = "it is negative"
        elif value >> 64:
            why = f"it has {value.bit_length()} bits; object ids have 64"
        elif self.is_default:
            why = "its two highest bits are reserved and must be zero"
        else:
            why = (
                f"{self} have {self.max_id.bit_length()} bits, and it has "
                f"{value.bit_length()}"
            )
        return invalid_id_error(f"{{}} is not an object id: {why}", value)


def _layout(shard_bits: int, type_bits: int, local_bits: int) -> IdLayout:
    """Return the layout that was pickled."""
    return IdLayout(shard_bits=shard_bits, type_bits=type_bits, local_bits=local_bits)


def _unpickled(layout: IdLayout, parts: tuple[int, int, int]) -> ObjectId:
    return layout._parts(*parts)


def parts_of(layout: IdLayout) -> type[ObjectId]:
    """Return the class of the parts of an id of a layout.

    ``int()`` of the parts must use their layout.
    """
    bits = layout.shard_bits, layout.type_bits, layout.local_bits
    if bits == (16, 10, 36):
        return ObjectId

    class LayoutObjectId(ObjectId):
        __slots__ = ()

        def __int__(self) -> int:
            return layout.pack(*self)

        def describe(self) -> str:
            return layout.describe(self)

        def __reduce__(self) -> tuple[Any, ...]:
            return _unpickled, (layout, tuple(self))

    LayoutObjectId.__name__ = LayoutObjectId.__qualname__ = "ObjectId"
    return LayoutObjectId


DEFAULT_LAYOUT = IdLayout()
"""2 reserved, 16 shard, 10 type and 36 local bits."""

LOCAL_BITS = DEFAULT_LAYOUT.local_bits
TYPE_SHIFT = DEFAULT_LAYOUT.type_shift
SHARD_SHIFT = DEFAULT_LAYOUT.shard_shift
MAX_LOCAL_ID = DEFAULT_LAYOUT.max_local_id
MAX_TYPE_ID = DEFAULT_LAYOUT.max_type_id
MAX_SHARD_ID = DEFAULT_LAYOUT.max_shard_id
MAX_ID = DEFAULT_LAYOUT.max_id


def pack(shard_id: int, type_id: int, local_id: int) -> int:
    """Return the object id of a row, in the default layout.

    :param shard_id: virtual shard, 0 to 65535.
    :param type_id: type of the object, 0 to 1023.
    :param local_id: row of the table, 0 to ``2**36 - 1``.
    :raises InvalidIdError: if a part is not an int or out of range.
    """
    return DEFAULT_LAYOUT.pack(shard_id, type_id, local_id)


def unpack(object_id: int) -> ObjectId:
    """Return the parts of an object id of the default layout.

    :param object_id: an object id, as returned by :func:`pack`.
    :raises InvalidIdError: if the id is not an int, is negative or longer than
        64 bits, or has one of the two reserved bits set.
    """
    return DEFAULT_LAYOUT.unpack(object_id)


def check_shard_id(shard_id: int) -> int:
    """Return ``shard_id`` if it can be the number of a shard.

    :raises InvalidIdError: if ``shard_id`` is not an int from 0 to 65535.
    """
    return part_of("shard_id", shard_id, MAX_SHARD_ID)


def part_of(name: str, value: Any, highest: int) -> int:
    """Return a part of an id that is given.

    :raises InvalidIdError: if it is not an int from 0 to ``highest``.
    """
    # bool is an int to Python: pack(True, 1, 1) would address shard 1.
    if not isinstance(value, int) or isinstance(value, bool):
        raise invalid_id_error(
            f"{name} must be an integer from 0 to {highest}, not {{}} of type "
            f"{type(value).__name__}",
            value,
        )
    if not 0 <= value <= highest:
        raise invalid_id_error(f"{name} must be from 0 to {highest}, not {{}}", value)
    return int(value)


def ids_in(name: str, ids: Any) -> list[Any]:
    """Return the ids that a function is given, which are not checked.

    :raises InvalidIdError: for a single value instead of a list.
    """
    if isinstance(ids, (str, bytes)) or not hasattr(ids, "__iter__"):
        raise invalid_id_error(f"{name} takes a list of ids, not {{}}", ids)
    return list(ids)


def invalid_id_error(text: str, value: Any) -> InvalidIdError:
    """Return an error; ``{}`` in the text is the value."""
    from sqla_shard.exc import InvalidIdError
    from sqla_shard.exc.base import shown

    return InvalidIdError(text.format(shown(value)), value=value)


def layout_error(text: str, value: Any) -> IdLayoutError:
    """Return an error; ``{}`` in the text is the value."""
    from sqla_shard.exc import IdLayoutError
    from sqla_shard.exc.base import shown

    return IdLayoutError(text.format(shown(value)), value=value)


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
