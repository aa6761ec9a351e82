"""SQL functions by the values that they return, for types SQLAlchemy lacks."""

from __future__ import annotations

from typing import Any


def name_of(function: Any) -> str:
    """Return a function's name in lower case; "" for any other element."""
    return str(getattr(function, "name", "")).lower()


#: Aggregate functions whose results on several shards can be combined.
AGGREGATES = frozenset(["avg", "count", "max", "min", "sum"])
#: Functions that return an integer.
WHOLE_NUMBERS = frozenset(
    [
        *("ascii", "bit_length", "char_length", "count", "crc32", "datediff"),
        *("day", "dayofmonth", "dayofweek", "dayofyear", "field"),
        *("find_in_set", "hour", "instr", "isnull", "json_length", "length"),
        *("locate", "microsecond", "minute", "month", "octet_length"),
        *("quarter", "second", "sign", "strcmp", "to_days", "to_seconds"),
        *("unix_timestamp", "week", "weekday", "weekofyear", "year"),
        "yearweek",
    ]
)
#: Functions of integers that may have more digits than MariaDB declares.
NARROW = frozenset(
    [
        *("ascii", "bit_count", "field", "find_in_set", "hour", "interval"),
        *("ord", "period_add", "period_diff", "to_days", "to_seconds"),
        "yearweek",
    ]
)
#: Functions that return a double.
DOUBLES = frozenset(
    [
        *("acos", "asin", "atan", "cos", "exp", "ln", "log", "log10", "log2"),
        *("pow", "power", "rand", "sin", "sqrt", "tan"),
    ]
)
#: Functions that return a number.
NUMBERS = frozenset(
    [
        *WHOLE_NUMBERS,
        *DOUBLES,
        *("abs", "atan2", "avg", "bit_count", "ceil", "ceiling"),
        *("character_length", "cot", "degrees", "floor", "inet_aton"),
        *("interval", "json_depth", "json_valid", "julianday", "mod", "ord"),
        *("period_add", "period_diff", "pi", "position", "radians", "random"),
        *("regexp_instr", "round", "st_distance", "st_distance_sphere"),
        *("st_x", "st_y", "sum", "time_to_sec", "timestampdiff", "truncate"),
        "unicode",
    ]
)
#: Functions that return a date, a time or a datetime.
TIMES = frozenset(
    [
        *("curdate", "date", "from_days", "from_unixtime", "last_day"),
        *("makedate", "maketime", "sec_to_time", "str_to_date", "time"),
        *("timediff", "timestamp", "utc_date", "utc_time", "utc_timestamp"),
    ]
)
#: Functions that return a text.
TEXTS = frozenset(
    [
        *("bin", "char", "concat", "concat_ws", "conv", "date_format"),
        *("dayname", "elt", "format", "hex", "inet_ntoa", "insert"),
        *("json_unquote", "lcase", "left", "lower", "lpad", "ltrim", "md5"),
        *("mid", "monthname", "oct", "quote", "regexp_replace"),
        *("regexp_substr", "repeat", "replace", "reverse", "right", "rpad"),
        *("rtrim", "sha1", "sha2", "space", "strftime", "substr"),
        *("substring", "substring_index", "time_format", "to_base64", "trim"),
        *("typeof", "ucase", "upper"),
    ]
)
#: Functions of one row.  Any other function may read several rows.
ROW_FUNCTIONS = frozenset(
    [
        *(NUMBERS - AGGREGATES),
        *TIMES,
        *TEXTS,
        *("adddate", "addtime", "coalesce", "convert_tz", "current_date"),
        *("current_timestamp", "date_add", "date_sub", "datetime"),
        *("export_set", "extract", "from_base64", "greatest", "if", "ifnull"),
        *("iif", "json_array", "json_contains", "json_extract", "json_keys"),
        *("json_object", "json_quote", "json_type", "json_value", "least"),
        *("localtime", "localtimestamp", "make_set", "now", "nullif"),
        *("printf", "subdate", "subtime", "timestampadd", "unhex"),
    ]
)
