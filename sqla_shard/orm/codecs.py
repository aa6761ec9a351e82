"""From the annotation of a field to the codec of its values.

:func:`codec_for` is asked once for each field, when its class is created::

    >>> codec = codec_for(list[datetime], field="Pin.seen")
    >>> codec.encode([datetime(2024, 5, 6, tzinfo=timezone.utc)])
    ['2024-05-06T00:00:00.000000+00:00']

Supported are

* ``str``, ``int``, ``float``, ``bool``, ``Decimal``, ``datetime``, ``date``,
  ``UUID``, enums and literals of str, int and bool; see
  :mod:`sqla_shard.orm.scalars` for their JSON;
* ``list[T]`` and ``dict[str, T]`` of these, and ``list``, ``dict`` and
  ``Any`` for free JSON; see :mod:`sqla_shard.orm.containers`;
* dataclasses, also recursive ones; see :mod:`sqla_shard.orm.records`;
* ``T | None``; and ``Annotated``, ``NewType`` and ``type`` aliases, which
  stand for the type that they name.

Everything else is refused by name when the class is created: sets, tuples
and bytes would come back as something else, other unions would leave open
what a stored value is.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import datetime as dt
import decimal
import enum
import types
import typing
import uuid
from collections.abc import Callable
from typing import Any

from sqla_shard.exc import BlobValueError
from sqla_shard.exc import ClassDefinitionError
from sqla_shard.orm.containers import ContainerCodec
from sqla_shard.orm.containers import JsonCodec
from sqla_shard.orm.kinds import Codec
from sqla_shard.orm.kinds import Kind
from sqla_shard.orm.kinds import KIND_OF_SCALAR
from sqla_shard.orm.records import RecordCodec
from sqla_shard.orm.records import RecordType
from sqla_shard.orm.scalars import BooleanCodec
from sqla_shard.orm.scalars import DateCodec
from sqla_shard.orm.scalars import DateTimeCodec
from sqla_shard.orm.scalars import DecimalCodec
from sqla_shard.orm.scalars import EnumCodec
from sqla_shard.orm.scalars import FloatCodec
from sqla_shard.orm.scalars import IntegerCodec
from sqla_shard.orm.scalars import LiteralCodec
from sqla_shard.orm.scalars import TextCodec
from sqla_shard.orm.scalars import UuidCodec
from sqla_shard.types.places import shown
from sqla_shard.types.tracking import track

__all__ = ["Codec", "Kind", "codec_for"]


def codec_for(annotation: Any, *, field: str) -> Codec:
    """Return the codec for the values of a field.

    :param annotation: the type, resolved: not a string.
    :param field: the field as ``Class.field``, for messages.
    :raises ClassDefinitionError: if values of the type cannot be kept.
    """
    return _Maker(field)(annotation, field=field)


_SCALARS: dict[Any, Callable[..., Codec]] = {
    str: TextCodec,
    int: IntegerCodec,
    float: FloatCodec,
    bool: BooleanCodec,
    decimal.Decimal: DecimalCodec,
    dt.datetime: DateTimeCodec,
    dt.date: DateCodec,
    uuid.UUID: UuidCodec,
}

_REMEDIES: dict[Any, str] = {
    tuple: "JSON has no tuples, it would be read as a list: use list[...]",
    set: "JSON has no sets: use list[...]",
    frozenset: "JSON has no sets: use list[...]",
    bytes: "JSON has no bytes: use str, with base64 for instance",
    dt.time: "use str, such as value.isoformat()",
    dt.timedelta: "use int or float, in seconds",
    complex: "use list[float]",
    object: "use Any",
    collections.abc.Sequence: "use list[...]",
    collections.abc.Iterable: "use list[...]",
    collections.abc.Mapping: "use dict[str, ...]",
    collections.abc.MutableMapping: "use dict[str, ...]",
}

_GENERAL = (
    "use str, int, float, bool, Decimal, datetime, date, UUID, an Enum, a "
    "Literal, a dataclass, list[...], dict[str, ...], Any, or one of them "
    "with | None"
)


class _Maker:
    """Makes the codecs of one field.

    :ivar records: dataclasses met so far; one that holds itself is met
        again before it is defined.
    """

    def __init__(self, field: str) -> None:
        self.field = field
        self.class_name, _, self.name = field.rpartition(".")
        self.records: dict[type, RecordType] = {}

    def refuse(self, message: str) -> ClassDefinitionError:
        return ClassDefinitionError(
            f"field {self.name!r}: {message}", class_name=self.class_name
        )

    def unsupported(
        self, annotation: Any, remedy: str, field: str
    ) -> ClassDefinitionError:
        inside = "" if field == self.field else f" (of {field})"
        return self.refuse(
            f"{_named(annotation)}{inside} cannot be kept in a JSON blob; "
            f"{remedy}"
        )

    def __call__(
        self, annotation: Any, *, field: str, nullable: bool = False
    ) -> Codec:
        annotation = _stripped(annotation)
        origin = typing.get_origin(annotation)
        if origin in (typing.Union, types.UnionType):
            return self.union(annotation, field, nullable)
        if origin is typing.Literal:
            return self.literal(annotation, field, nullable)
        if origin in (list, dict):
            return self.container(annotation, origin, field, nullable)
        if annotation is Any:
            return JsonCodec(field)
        if annotation in (list, dict):
            return JsonCodec(field, annotation, nullable=nullable)
        if isinstance(annotation, type) and origin is None:
            return self.plain_class(annotation, field, nullable)
        if isinstance(annotation, (str, typing.ForwardRef)):
            raise self.unsupported(
                annotation,
                "it is the name of a type that was not found: import it at "
                "runtime, not under TYPE_CHECKING",
                field,
            )
        remedy = _REMEDIES.get(origin, _GENERAL)
        raise self.unsupported(annotation, remedy, field)

    def plain_class(self, cls: Any, field: str, nullable: bool) -> Codec:
        if cls in _SCALARS:
            return _SCALARS[cls](field, nullable=nullable)
        if issubclass(cls, enum.Enum):
            self.check_enum(cls, field)
            return EnumCodec(field, cls, nullable=nullable)
        if dataclasses.is_dataclass(cls):
            return RecordCodec(field, self.record(cls), nullable=nullable)
        if issubclass(cls, dict):
            remedy = "use a dataclass, or dict[str, ...] for free keys"
            raise self.unsupported(cls, remedy, field)
        for base in cls.__mro__[:-1] or (object,):
            if base in _SCALARS or base is list:
                remedy = f"it would be read as a {base.__name__}: use that"
                raise self.unsupported(cls, remedy, field)
            if base in _REMEDIES:
                raise self.unsupported(cls, _REMEDIES[base], field)
        raise self.unsupported(cls, _GENERAL, field)

    def record(self, cls: Any) -> RecordType:
        if cls not in self.records:
            self.records[cls] = RecordType(cls)
            self.records[cls].define(self, self.refuse)
        return self.records[cls]

    def union(self, annotation: Any, field: str, nullable: bool) -> Codec:
        args = typing.get_args(annotation)
        rest = [arg for arg in args if arg is not types.NoneType]
        if len(rest) != 1:
            raise self.unsupported(
                annotation,
                "which of its types a stored value is would be a guess: use "
                "one type (with | None), or a dataclass that says which",
                field,
            )
        return self(
            rest[0], field=field, nullable=nullable or len(rest) < len(args)
        )

    def literal(self, annotation: Any, field: str, nullable: bool) -> Codec:
        values = typing.get_args(annotation)
        rest = tuple(value for value in values if value is not None)
        for value in rest:
            if type(value) not in (str, int, bool):
                raise self.unsupported(
                    annotation,
                    f"{value!r} is not a str, int or bool: use an Enum",
                    field,
                )
        if not rest:
            raise self.unsupported(annotation, _GENERAL, field)
        return LiteralCodec(
            field, rest, nullable=nullable or len(rest) < len(values)
        )

    def container(
        self, annotation: Any, origin: Any, field: str, nullable: bool
    ) -> Codec:
        # typing.List and typing.Dict have an origin, but no arguments.
        args = typing.get_args(annotation) or (str, Any)
        if origin is dict and _stripped(args[0]) is not str:
            remedy = "the keys of a JSON object are str: use dict[str, ...]"
            raise self.unsupported(annotation, remedy, field)
        if _stripped(args[-1]) is Any:
            return JsonCodec(field, origin, nullable=nullable)
        element = self(args[-1], field=field)
        return ContainerCodec(field, origin, element, nullable=nullable)

    def check_enum(self, cls: type[enum.Enum], field: str) -> None:
        if not list(cls):
            raise self.unsupported(cls, "it has no members", field)
        for member in cls:
            if type(member.value) not in KIND_OF_SCALAR:
                raise self.unsupported(
                    cls,
                    f"the value of {member} is {shown(member.value)}: an "
                    "enum is stored by value, which has to be a str, int, "
                    "float or bool",
                    field,
                )
            try:
                track(member.value, path=str(member))
            except BlobValueError as error:
                raise self.unsupported(cls, str(error), field) from error


def _stripped(annotation: Any) -> Any:
    """Return what Annotated, NewType and ``type`` aliases stand for."""
    while True:
        if typing.get_origin(annotation) is typing.Annotated:
            annotation = typing.get_args(annotation)[0]
        elif isinstance(annotation, typing.NewType):
            annotation = annotation.__supertype__
        elif hasattr(annotation, "__type_params__") and hasattr(
            annotation, "__value__"
        ):
            annotation = annotation.__value__
        else:
            return annotation


def _named(annotation: Any) -> str:
    if isinstance(annotation, type) and typing.get_origin(annotation) is None:
        return annotation.__qualname__
    return repr(annotation).replace("typing.", "")
