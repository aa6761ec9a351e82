"""Conversion of reports to values that JSON supports, and parsing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from dataclasses import is_dataclass
from typing import Any

__all__ = ["json_value", "parsed_json"]


def json_value(value: Any) -> Any:
    """Convert a value, recursively, to types that JSON supports.

    A dataclass becomes an object with its fields, a tuple an array.  A value
    of any other type, even a float, which may be infinite, becomes a string.
    """
    if is_dataclass(value):
        return {
            one.name: json_value(getattr(value, one.name))
            for one in fields(value)
        }
    if isinstance(value, Mapping):
        return {key: json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    if value is None or isinstance(value, bool | int | str):
        return value
    return str(value)


def parsed_json(data: bytes | str) -> Any:
    """Return the value of a JSON document that others may have written.

    :raises ValueError: if it is not JSON, or nested too deeply to be parsed.
    """
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError(str(error)) from error
