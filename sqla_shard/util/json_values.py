"""JSON and TOML: strict decoding, and conversion of reports to JSON values.

:func:`decode_json` uses orjson if it is installed (the extra ``fast``), where
it returns what the standard parser would return.  Texts are always written
by the standard library: a flush compares the text of a blob with the text in
the row, and orjson writes some floats in another form.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from enum import Enum
from functools import cache, partial
from itertools import repeat
from types import UnionType
from typing import (
    Any,
    ClassVar,
    get_args,
    get_origin,
    get_type_hints,
    Self,
    TypeVar,
    Union,
)

T = TypeVar("T")


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text:.40} is out of range for a double")
    return value


def strict_decoder(
    object_hook: Callable[[dict[str, Any]], Any] | None = None,
) -> Callable[[str], Any]:
    """Return a decoder that rejects NaN, infinity and floats above a double.

    :param object_hook: as for :class:`json.JSONDecoder`.
    """
    return json.JSONDecoder(
        object_hook=object_hook, parse_constant=_no_constant, parse_float=_finite
    ).decode


_decode = strict_decoder()
_loads: Callable[[str | bytes], Any] | None = None
with suppress(ImportError):
    from orjson import loads as _loads

# Types without a value that orjson decodes in another way.
_exact_kinds = frozenset((str, int, bool, type(None))).issuperset
_LONG_NUMBER = re.compile(r"[0-9]{19}")
_HALF = re.compile("[\ud800-\udfff]")


def decode_json(text: str) -> Any:
    r"""Return the value of a JSON text.

    Integers of any size are exact.  A lone surrogate such as ``\ud800`` may
    be an error, or part of a string.

    :raises ValueError: if it is not JSON, or has a number that Python does
        not read.
    :raises RecursionError: if it is nested too deeply.
    """
    if _LONG_NUMBER.search(text) is None:
        # It rejects a few valid texts, such as a lone surrogate.
        with suppress(ValueError):
            return decode_roughly(text)
    return _decode(text)


def decode_roughly(data: str | bytes) -> Any:
    """Return the value of JSON, with floats for integers above 64 bits.

    :param data: text, or UTF-8.
    :raises ValueError: if :func:`decode_json` has to decode it.
    """
    if _loads is None:
        raise ValueError("orjson is not installed")
    return _loads(data)


def decode_flat(text: str) -> dict[str, Any] | None:
    """Return a JSON object of strings, integers, booleans and nulls.

    :returns: None for another text; :func:`decode_json` may decode it.
    """
    if _loads is None:
        return None
    try:
        value = _loads(text)
    except ValueError:
        return None
    if type(value) is dict and _exact_kinds(map(type, value.values())):
        return value
    return None


def json_value(value: Any) -> Any:
    """Convert a value, recursively, to types that JSON supports.

    A dataclass becomes an object with its fields, a tuple an array, a time a
    text, a duration a number of seconds, a member of an enumeration its text,
    or its name in small letters.  A value of any other type, even a float that
    is infinite, becomes a string.
    """
    if hasattr(value, "as_dict"):
        return value.as_dict()
    if is_dataclass(value):
        return {one.name: json_value(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, Mapping):
        return {key: json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    if isinstance(value, Enum):
        return value.value if isinstance(value.value, str) else value.name.lower()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, timedelta):
        return value.total_seconds()
    return value.isoformat() if isinstance(value, datetime) else str(value)


class JsonObject:
    """A dataclass, such as a report, whose attributes have JSON values.

    :cvar derived: names of properties that are part of them.
    """

    derived: ClassVar[tuple[str, ...]] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes as JSON values."""
        own: Any = fields(self)  # type: ignore[arg-type]
        names = (*(one.name for one in own), *self.derived)
        return {name: json_value(getattr(self, name)) for name in names}

    @classmethod
    def from_dict(cls, document: Any) -> Self:
        """Return the object of a document of :meth:`as_dict`.

        :raises ValueError: if a value has another type.
        :raises TypeError: if a value is missing, or has an unknown name.
        """
        return record_of(cls, document)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def record_of(kind: type[T], document: Any) -> T:
    """Return a dataclass of JSON values, whose types are checked.

    :param kind: a dataclass; its attributes may be dataclasses, too.
    :param document: a value for each of its attributes, and no other.
    :raises ValueError: if a value has another type.
    :raises TypeError: if a value is missing, or has an unknown name.
    """
    if not isinstance(document, Mapping):
        raise ValueError(f"{document!r} is not an object")
    hints = _hints(kind)  # type: ignore[arg-type]  # a class
    values = {
        name: _typed(value, hints.get(name, Any), name)
        for name, value in document.items()
    }
    return kind(**values)


def _typed(value: Any, kind: Any, name: str) -> Any:
    """Return a JSON value as a type: an array as a tuple, an object as a dataclass."""
    base: Any = get_origin(kind) or kind
    args = get_args(kind)
    if base in (Union, UnionType):
        # The other one of its two types is None.
        return value if value is None else _typed(value, args[0], name)
    if is_dataclass(base) and not isinstance(value, kind):
        return getattr(base, "from_dict", partial(record_of, kind))(value)
    fits: bool
    if not isinstance(base, type):
        # A Literal.
        fits = value in args
    elif isinstance(value, tuple | list) and issubclass(base, tuple | list):
        kinds = args if base is tuple and args[-1] is not ... else args[:1] * len(value)
        make = getattr(base, "_make", base)
        if make is not base:
            kinds = tuple(_hints(base).values())
        if fits := len(kinds) == len(value):
            value = make(map(_typed, value, kinds, repeat(name)))
    elif base in (int, float):
        fits = type(value) in (int, base)
    elif isinstance(value, dict) and args:
        make = base if issubclass(base, dict) else dict
        # A Counter names the type of its keys alone.
        each = args[1] if len(args) > 1 else int
        value = make({key: _typed(one, each, name) for key, one in value.items()})
        fits = issubclass(base, Mapping)
    else:
        fits = kind is Any or isinstance(value, base)
    if not fits:
        raise ValueError(f"{name} is {value!r}, not {getattr(kind, '__name__', kind)}")
    return value


_DEEP = "it is nested too deeply"


def parsed_json(
    data: bytes | str,
    object_pairs_hook: Callable[[list[tuple[str, Any]]], Any] | None = None,
) -> Any:
    """Return the value of a JSON document that others may have written.

    :param object_pairs_hook: as for :func:`json.loads`.
    :raises ValueError: if it is not JSON, or nested too deeply to be parsed.
    """
    try:
        return json.loads(data, object_pairs_hook=object_pairs_hook)
    except RecursionError as error:
        raise ValueError(_DEEP) from error


def parsed_toml(text: str) -> dict[str, Any]:
    """Return the value of a TOML document that others may have written.

    :raises ValueError: if it is not TOML, or nested too deeply to be parsed.
    """
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ValueError(_DEEP) from error


def parsed_object(data: bytes, most: int) -> dict[str, Any]:
    """Return a JSON object that others may have written.

    :param most: its maximum length, in bytes.
    :raises ValueError: if it is longer, or is not a JSON object.
    """
    if len(data) > most:
        raise ValueError(f"it has {len(data):,} bytes")
    document = parsed_json(data)
    if not isinstance(document, dict):
        raise ValueError("it is not a JSON object")
    return document


#: Limits of what every process can read, whatever the limits of its
#: interpreter: sys.set_int_max_str_digits() accepts none below 640 digits.
_MOST_LEVELS = 100
_MOST_BITS = 2048


#: What :func:`is_json` accepts, for messages.
JSON_VALUE = (
    "a JSON value: None, bool, an int of at most 2,048 bits, finite float, str, a "
    "list of such or a dict with str keys, nested at most 100 levels"
)


def is_json(value: Any) -> bool:
    """Return whether a value is the same after it is converted to JSON.

    Not one that another process may be unable to read: of more than 100 levels
    of lists and dicts, or with an integer of more than 2,048 bits.
    """
    try:
        text = json.dumps(value, allow_nan=False)
        return _same(value, json.loads(text), _MOST_LEVELS)
    except (TypeError, ValueError, RecursionError):
        return False


def _same(value: Any, other: Any, levels: int) -> bool:
    """Compare two values.

    :param levels: the number of levels that they may have.
    """
    if type(value) is not type(other) and not isinstance(value, dict | list):
        return False
    if isinstance(value, dict):
        pairs: Any = zip(value.items(), other.items(), strict=True)
        return bool(levels) and all(
            key == its and _same(one, two, levels - 1)
            for (key, one), (its, two) in pairs
        )
    if isinstance(value, list):
        pairs = zip(value, other, strict=True)
        return bool(levels) and all(_same(one, two, levels - 1) for one, two in pairs)
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        return False
    return bool(value == other)


def compact_json(value: Any) -> str:
    """Return a value as JSON without spaces, in few bytes."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    if text.isascii() or not _HALF.search(text):
        return text
    # No server stores half of a pair, as in the name of a file.
    return json.dumps(value, separators=(",", ":"))
