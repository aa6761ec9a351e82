"""Decoding with orjson returns the same as the standard parser."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import example, given, HealthCheck, settings, strategies as st

from sqla_shard.cache.columns import dump, parse, parse_many
from sqla_shard.exc import BlobValueError
from sqla_shard.types.blob import decode_blob, decode_json
from sqla_shard.util import json_values


@pytest.fixture(autouse=True)
def _installed() -> None:
    assert json_values._loads is not None


SURROGATES = ('{"a": "\\ud83d\\ude00"}', '{"a": "\\ud800"}', '["\\uDFFF\\ud800"]')

TEXTS = (
    *SURROGATES,
    '{"a": 1, "b": 2, "a": 3}',
    '{"a": [1], "a": "x"}',
    "",
    "{}",
    " {} \n",
    "\ufeff{}",
    "[]",
    "null",
    '{"a": NaN}',
    '{"a": -Infinity}',
    '{"a": 1e999}',
    '{"a": 1e-999, "b": -0, "c": -0.0, "d": 1E5, "e": 1e16}',
    '{"a": 0.1, "b": 2.2250738585072011e-308, "c": 1.7976931348623157e308}',
    '{"a": 9007199254740993.0, "b": 0.500000000000000166533453693773481063}',
    '{"a": 01}',
    '{"a": 1.}',
    '{"a": .5}',
    '{"a": +1}',
    "{'a': 1}",
    '{"a": 1,}',
    '{"a": "\t"}',
    '{"a": "\x7f\\u0000\\/"}',
    '{"a": "\\x41"}',
    '{"a": 1} x',
    '{"a": tru}',
    "[" * 99 + "]" * 99,
    "[" * 101 + "]" * 101,
    "[" * 5000 + "]" * 5000,
    '{"a": ' + "9" * 5000 + "}",
    '{"a": "' + "9" * 5000 + '"}',
    *(
        f'{{"a": {sign}{number}}}'
        for sign in ("", "-")
        for number in (
            2**53 + 1,
            2**63 - 1,
            2**63,
            2**63 + 1,
            2**64 - 1,
            2**64,
            10**18,
            10**19,
            10**38,
            10**400,
        )
    ),
)


def _values() -> st.SearchStrategy[Any]:
    leaves = (
        st.none()
        | st.booleans()
        | st.integers()
        | st.integers(-(2**66), 2**66)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text()
    )
    return st.recursive(
        leaves,
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(st.text(max_size=5), inner, max_size=4)
        ),
        max_leaves=12,
    )


def _texts() -> st.SearchStrategy[str]:
    """Return JSON of several writers, valid or with a changed character."""
    written = st.builds(
        lambda value, ascii_only, indent: json.dumps(
            value, ensure_ascii=ascii_only, indent=indent
        ),
        st.dictionaries(st.text(max_size=5), _values(), max_size=5) | _values(),
        st.booleans(),
        st.none() | st.just(1),
    )

    def changed(text: str, at: int, what: str) -> str:
        at %= len(text) + 1
        return text[:at] + what + text[at + 1 :]

    wrong = st.builds(
        changed,
        written,
        st.integers(0, 500),
        st.sampled_from([*'0123456789.-+eE"\\u{}[],: dD', "\\ud8", "NaN"]),
    )
    return written | wrong


def _exactly(value: Any) -> Any:
    """Return a value that is equal only if the types are, at any depth."""
    if isinstance(value, dict):
        return [(key, _exactly(item)) for key, item in value.items()]
    if isinstance(value, list):
        return [list, *map(_exactly, value)]
    if isinstance(value, float):
        return float, value, math.copysign(1, value)
    return type(value), value


def _outcome(decode: Callable[[Any], Any], data: Any) -> Any:
    try:
        return _exactly(decode(data))
    except (ValueError, BlobValueError, RecursionError):
        return "refused"


def _both(decode: Callable[[Any], Any], data: Any) -> Iterator[Any]:
    """Yield the outcome with orjson, and without it."""
    yield _outcome(decode, data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_values, "_loads", None)
        yield _outcome(decode, data)


@pytest.mark.parametrize("decode", [decode_blob, decode_json])
@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_each_corner(decode: Callable[[Any], Any], text: str) -> None:
    fast, standard = _both(decode, text)
    assert fast == standard


@settings(max_examples=8 * settings().max_examples, deadline=None)
@given(_texts())
def test_blobs(text: str) -> None:
    for decode in (decode_blob, decode_json, json_values.decode_json):
        fast, standard = _both(decode, text)
        assert fast == standard


def test_orjson_decodes_what_is_usual() -> None:
    usual = '{"title": "boats", "n": 1, "is_new": true, "of": null}'
    assert json_values.decode_flat(usual) == json.loads(usual)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_values, "_decode", None)
        assert decode_json('{"a": [1, 2.5, {"b": []}]}')["a"][1] == 2.5


_CELLS = (
    st.none()
    | st.integers(-(2**66), 2**66)
    | st.floats()
    | st.text()
    | st.binary()
    | st.datetimes()
    | st.dates()
    | st.timedeltas()
    | st.decimals(allow_nan=False)
)


@settings(
    max_examples=4 * settings().max_examples,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(st.lists(st.lists(_CELLS, max_size=4), max_size=4))
@example([[0.0, 2.0**63, 2**64]])
def test_rows_of_the_cache(rows: list[Any]) -> None:
    try:
        data = dump(rows)
    except ValueError:
        return  # NaN, or half a surrogate pair
    fast, standard = _both(parse, data)
    assert fast == standard == _exactly(rows)


@settings(max_examples=6 * settings().max_examples, deadline=None)
@given(st.lists(_texts(), min_size=1, max_size=3))
@example(['{"t": "2026-01-01"}', '{"t": {"n": "1"}}', "[1, 2]"])
@example(['[{"i": [1, {"n": "2"}, 3]}]', "[18446744073709551616]"])
def test_damaged_rows_of_the_cache(texts: list[str]) -> None:
    data = {
        number: f"[{number}, {text}]".encode(errors="replace")
        for number, text in enumerate(texts)
    }
    fast, standard = _both(parse_many, data)
    if fast == "refused":
        assert standard == "refused"
        return
    # Both read the same values; values that a driver would not return, such
    # as a list, are refused by the checks of rows, whatever they contain.
    assert [key for key, _ in fast] == [key for key, _ in standard]
    for (_, one), (_, other) in zip(fast, standard, strict=True):
        if not any(isinstance(cell, list) for cell in other[2:]):
            assert one == other


@pytest.mark.parametrize(
    ("parsed", "text"),
    [
        (json_values.parsed_json, "[" * 200_000),
        (json_values.parsed_json, b'{"a":' * 200_000),
        (json_values.parsed_toml, "a = " + "[" * 200_000),
    ],
)
def test_deep_documents_are_no_json_and_no_toml(
    parsed: Callable[[Any], Any], text: Any
) -> None:
    with pytest.raises(ValueError, match=r"^it is nested too deeply$"):
        parsed(text)
