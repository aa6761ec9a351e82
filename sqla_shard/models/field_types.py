"""Codecs and SQL types of fields, by their annotations.

:func:`codec_for` is called once per field, when its class is created::

    >>> codec = codec_for(list[datetime], field="Pin.seen")
    >>> codec.encode([datetime(2024, 5, 6, tzinfo=timezone.utc)])
    ['2024-05-06T00:00:00.000000+00:00']

Supported are

* ``str``, ``int``, ``float``, ``bool``, ``Decimal``, ``datetime``, ``date``,
  ``UUID``, enums and literals of str, int and bool; see
  :mod:`sqla_shard.models.codecs` for their JSON;
* ``list[T]`` and ``dict[str, T]`` of these, and ``list``, ``dict`` and ``Any``
  for free JSON; see :mod:`sqla_shard.models.container_codecs`;
* dataclasses, including recursive ones; see
  :mod:`sqla_shard.models.container_codecs`;
* ``T | None``; and ``Annotated``, ``NewType`` and ``type`` aliases, which
  stand for the type that they name.

The creation of the class rejects all other types: sets, tuples and bytes would
be read as other types, and the type of a value in other unions would be
ambiguous.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import datetime as dt
import decimal
import enum
import json
import math
import types
import typing
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from sqlalchemy import BigInteger, Boolean, Float, Numeric, String
from sqlalchemy.engine import Dialect
from sqlalchemy.sql import operators
from sqlalchemy.sql.elements import ColumnElement, Null
from sqlalchemy.sql.operators import OperatorType
from sqlalchemy.types import TypeDecorator, TypeEngine

from sqla_shard.exc import BlobValueError, ClassDefinitionError
from sqla_shard.exc.base import shown
from sqla_shard.models.codecs import (
    BooleanCodec,
    Codec,
    DateCodec,
    DateTimeCodec,
    DecimalCodec,
    EnumCodec,
    FloatCodec,
    IntegerCodec,
    KIND_OF_SCALAR,
    LEAST,
    LiteralCodec,
    MOST,
    TextCodec,
    UuidCodec,
    ValueKind,
)
from sqla_shard.models.container_codecs import (
    ContainerCodec,
    JsonCodec,
    RecordCodec,
    RecordType,
)
from sqla_shard.types.blob import decode_json
from sqla_shard.types.columns import Encoded
from sqla_shard.types.tracking import track


def codec_for(annotation: Any, *, field: str) -> Codec:
    """Return the codec for the values of a field.

    :param annotation: the resolved type, not a string.
    :param field: the field as ``Class.field``, for messages.
    :raises ClassDefinitionError: if values of the type cannot be stored.
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
    """Creates the codecs of one field.

    :ivar records: dataclasses found so far; a recursive one is found again
        before it is defined.
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
            f"{_named(annotation)}{inside} cannot be stored in a JSON blob; {remedy}"
        )

    def __call__(self, annotation: Any, *, field: str, nullable: bool = False) -> Codec:
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
                "the type of a stored value would be ambiguous: use one "
                "type (with | None), or a dataclass with a field for it",
                field,
            )
        return self(rest[0], field=field, nullable=nullable or len(rest) < len(args))

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
            self.check_bits(value, annotation, field)
        if not rest:
            raise self.unsupported(annotation, _GENERAL, field)
        return LiteralCodec(field, rest, nullable=nullable or len(rest) < len(values))

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

    def check_bits(self, value: Any, annotation: Any, field: str) -> None:
        if isinstance(value, int) and not LEAST <= value <= MOST:
            raise self.unsupported(
                annotation,
                f"{shown(value)} has more than 64 bits, and MySQL would "
                "round it: use a str",
                field,
            )

    def check_exponent(self, value: float, cls: Any, field: str) -> None:
        if value and not 1e-4 <= abs(value) < 1e15:
            raise self.unsupported(
                cls,
                f"{value!r} is beside values of other types, and MySQL "
                "writes its exponent differently: use values of one type",
                field,
            )

    def check_enum(self, cls: type[enum.Enum], field: str) -> None:
        if not list(cls):
            raise self.unsupported(cls, "it has no members", field)
        # Their JSON is compared as text.
        mixed = len({type(member.value) for member in cls}) > 1
        for member in cls:
            if type(member.value) not in KIND_OF_SCALAR:
                raise self.unsupported(
                    cls,
                    f"the value of {member} is {shown(member.value)}: an "
                    "enum is stored by value, which must be a str, int, "
                    "float or bool",
                    field,
                )
            self.check_bits(member.value, cls, field)
            if mixed and isinstance(member.value, float):
                self.check_exponent(member.value, cls, field)
            try:
                track(member.value, path=str(member))
            except BlobValueError as error:
                raise self.unsupported(cls, str(error), field) from error


def _stripped(annotation: Any) -> Any:
    """Return the type of an Annotated, NewType or ``type`` alias."""
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


# -- SQL types of blob fields
#
# A result has the type of the field.  Lists, dicts and dataclasses are JSON
# text, which servers reformat: they can be selected and tested for NULL, but
# not compared.
#
# On SQLite, which computes with 64 bits, decimals are floats, integers of more
# than 64 bits are rejected, and text ends at a NUL character.
#
# A number beyond a DECIMAL is the least or greatest one in SQL, and so is, on
# MySQL, a JSON number of more than 64 bits in an int field.  It is rejected
# when it is returned, even with smaller numbers added.


_TOO_BIG = 1 << 63
_MOST_DECIMAL = 10**65
_LIMIT_WHOLE = 10**65 - 10**55
_LIMIT_EXACT = 10**35 - 10**25


def sql_type_of(codec: Codec) -> tuple[str, TypeEngine[Any]]:
    """Return the form of a field in SQL, and its SQL type."""
    plain = _PLAIN.get(codec.kind)
    if plain is not None:
        return plain
    if codec.kind is ValueKind.JSON:
        return "json", Structure(codec)
    return _FORMS[codec.stored_kind], Coded(codec)


class Coded(Encoded, TypeDecorator[Any]):
    """A field whose JSON value differs from its Python value."""

    impl: TypeEngine[Any] | type[TypeEngine[Any]] = String
    cache_ok: bool | None = True

    def __init__(self, codec: Codec) -> None:
        super().__init__()
        self.codec = codec
        # This type is used for sorting and arithmetic; values of an enum may
        # be numbers.
        plain = _PLAIN.get(codec.stored_kind)
        if plain is not None:
            self.impl = plain[1]

    @property
    def python_type(self) -> type[Any]:
        """The type of the field's values."""
        return self.codec.python_type

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Return the type of the JSON values."""
        kind = _PLAIN.get(self.codec.stored_kind)
        return dialect.type_descriptor(String() if kind is None else kind[1])

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        """Return the JSON value.

        :raises BlobValueError: if the field cannot contain the value.
        """
        if value is None:
            return None
        code = self.codec.encode(value)
        return json.dumps(code, ensure_ascii=False) if self._is_json else code

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        """Return the Python value.

        :raises BlobValueError: if the server has rounded a number in it.
        """
        if value is None:
            return None
        if self._is_json:
            value = decode_json(value)
            if not getattr(dialect, "is_mariadb", dialect.name != "mysql"):
                _check_rounding(value, self.codec)
        return self.codec.decode(value)

    @property
    def _is_json(self) -> bool:
        return self.codec.stored_kind is ValueKind.JSON

    @property
    def label(self) -> str:  # type: ignore[override]  # read-only here
        """The field as ``Class.field``."""
        return self.codec.field

    @property
    def takes_plain(self) -> bool:  # type: ignore[override]  # read-only here
        """Whether texts and numbers may be JSON values already."""
        return not self._is_json

    def encodes(self, value: Any, *, is_own: bool) -> bool:
        """Return whether a value beside the field is one in Python."""
        is_plain = type(value) in KIND_OF_SCALAR
        if is_own:
            return value is not None and (self._is_json or not is_plain)
        kind: Any = self.codec.python_type
        if kind is dt.date and isinstance(value, dt.datetime):
            # It has a time, which the field would drop.
            return False
        return not is_plain and isinstance(
            value, (list, dict) if kind is object else kind
        )


def _check_rounding(value: Any, codec: Codec) -> None:
    """Reject a float that may be an integer which MySQL has rounded.

    Its JSON has integers of 64 bits; the text of a blob has all digits.
    """
    if isinstance(value, float):
        is_ours = -_TOO_BIG < value < 2 * _TOO_BIG
        if is_ours or not isinstance(codec, (IntegerCodec, JsonCodec)):
            return
        raise BlobValueError(
            f"MySQL returns an integer of more than 64 bits as {value!r}, "
            "like such a float; load the object instead, whose field is exact",
            field=codec.field,
            value=value,
        )
    if isinstance(value, dict):
        for key, item in value.items():
            _check_rounding(item, _inside(codec, key))
    elif isinstance(value, list):
        for item in value:
            _check_rounding(item, _inside(codec, None))


def _inside(codec: Codec, key: str | None) -> Codec:
    """Return the codec of an element; that of free JSON is its own."""
    if isinstance(codec, ContainerCodec):
        return codec.element
    if isinstance(codec, RecordCodec) and key is not None:
        return codec.record.fields.get(key) or JsonCodec(codec.field)
    return codec


class Structure(Coded):
    """A field with a list, a dict, a dataclass or any JSON."""

    cache_ok: bool | None = True
    is_compared = False

    class Comparator(TypeDecorator.Comparator[Any]):
        """Comparison with NULL only."""

        def operate(
            self, op: OperatorType, *other: Any, **kwargs: Any
        ) -> ColumnElement[Any]:
            """Reject comparisons of JSON text.

            :raises UnsupportedStatementError: for every operator but
                ``is_(None)`` and ``is_not(None)``.
            """
            kind: Any = self.type
            if op not in _ABSENCE or not (
                other[0] is None or isinstance(other[0], Null)
            ):
                raise kind.refusal(getattr(op, "__name__", str(op)))
            return super().operate(op, *other, **kwargs)

    comparator_factory = Comparator


_ABSENCE = frozenset({operators.is_, operators.is_not, operators.eq, operators.ne})


class FiniteFloat(Float[Any]):
    """A double; SQLite returns infinity for a number that is too large."""

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:
        """Reject infinity, which JSON does not have."""
        if dialect.name != "sqlite":
            return super().result_processor(dialect, coltype)  # type: ignore[no-untyped-call]  # SQLAlchemy's
        return lambda value: None if value is None else _as_float(value)


def _as_float(value: Any) -> float:
    try:
        number = float(value)
    except (OverflowError, ValueError):
        number = math.inf
    if not math.isfinite(number):
        raise BlobValueError(
            f"{shown(value)} is not a finite float", field="float", value=value
        )
    return number


class ExactInteger(BigInteger):
    """An integer of any size."""

    def bind_processor(self, dialect: Dialect) -> Any:
        """Reject integers that the server cannot compare."""
        least, most = 1 - _MOST_DECIMAL, _MOST_DECIMAL - 1
        limit = "65 digits, which the server cannot compare"
        if dialect.name == "sqlite":
            least, most = -_TOO_BIG, _TOO_BIG - 1
            limit = "64 bits, which SQLite cannot compare; MySQL and MariaDB can"

        def checked(value: Any) -> Any:
            if isinstance(value, int) and not least <= value <= most:
                raise BlobValueError(
                    f"{shown(value)} has more than {limit}",
                    field="integer",
                    value=value,
                )
            return value

        return checked

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:
        """Convert a decimal that the server computed to an int."""
        return _as_integer


def _as_integer(value: Any) -> Any:
    if isinstance(value, Decimal):
        whole = int(value)
        if not -_LIMIT_WHOLE < whole < _LIMIT_WHOLE:
            raise BlobValueError(
                "the server has an integer beyond its 65 digits, or on MySQL "
                "a JSON number of more than 64 bits, which it rounds; load "
                "the object instead, whose field is exact",
                field="integer",
                value=value,
            )
        return whole if whole == value else value
    if isinstance(value, float) and abs(value) >= _TOO_BIG:
        raise BlobValueError(
            f"SQLite returns an integer of more than 64 bits as {value!r}; "
            "load the object instead, whose field is exact",
            field="integer",
            value=value,
        )
    return value


class ExactNumber(TypeDecorator[Any]):
    """A decimal field as a number, for comparison and sorting.

    MySQL and MariaDB have 35 digits before and 30 after the point.  SQLite
    has no exact decimals: there it is a float.
    """

    impl: Any = Numeric(65, 30)
    cache_ok: bool | None = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Return DECIMAL, or a float on SQLite."""
        if dialect.name == "sqlite":
            return dialect.type_descriptor(Float())
        return dialect.type_descriptor(Numeric(65, 30))

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        """Return a float for SQLite.

        :raises BlobValueError: for a number that is not finite.
        """
        if dialect.name == "sqlite":
            return None if value is None else _as_float(value)
        if isinstance(value, (int, float, Decimal)):
            _as_float(value)
        return value

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        """Return a Decimal without the trailing zeros of the scale."""
        if isinstance(value, float):
            return Decimal(repr(_as_float(value)))
        if not isinstance(value, Decimal):
            return value
        if not -_LIMIT_EXACT < value < _LIMIT_EXACT:
            raise BlobValueError(
                "the server has a decimal beyond its 35 digits before the "
                "point; load the object instead, whose field is exact",
                field="decimal",
                value=value,
            )
        text = format(value, "f")
        return Decimal(text.rstrip("0").rstrip(".") if "." in text else text)


_PLAIN: dict[ValueKind, tuple[str, TypeEngine[Any]]] = {
    ValueKind.TEXT: ("text", String()),
    ValueKind.INTEGER: ("integer", ExactInteger()),
    ValueKind.FLOAT: ("float", FiniteFloat(53)),
    ValueKind.BOOLEAN: ("boolean", Boolean()),
    ValueKind.DECIMAL: ("decimal", ExactNumber()),
}
_FORMS = {
    ValueKind.TEXT: "text",
    ValueKind.INTEGER: "integer",
    ValueKind.FLOAT: "float",
    ValueKind.BOOLEAN: "boolean",
    ValueKind.DATETIME: "text",
    ValueKind.DATE: "text",
    ValueKind.UUID: "text",
    ValueKind.JSON: "json",
}
