"""The JSON values of reports."""

from __future__ import annotations

import enum
import json
import re
from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta, UTC
from typing import Any, Literal, NamedTuple

import pytest

from sqla_shard.engine.unreachable import Cause, ShardsReport, UnreachableServer
from sqla_shard.util.json_values import JsonObject


class Colour(enum.Enum):
    """With a text and without."""

    RED = "deep red"
    BLUE = 2


@dataclass
class Part(JsonObject):
    """A part with a form of its own."""

    number: int

    def as_dict(self) -> dict[str, Any]:
        """Return the number as text."""
        return {"number": str(self.number)}


@dataclass(frozen=True, kw_only=True)
class Whole(ShardsReport):
    """All kinds of values."""

    values: tuple[Any, ...]
    parts: dict[str, Part]
    unreachable: tuple[UnreachableServer, ...] = ()

    derived = ("ok",)

    @property
    def ok(self) -> bool:
        """Whether everything was read."""
        return not self.unreachable


def test_each_kind_of_value():
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    kinds = (1.5, float("inf"), moment, timedelta(minutes=1), *Colour, None)
    found = Whole(values=kinds, parts={"a": Part(2**60)}).as_dict()
    assert json.loads(json.dumps(found)) == {
        "values": [1.5, "inf", moment.isoformat(), 60, "deep red", "blue", None],
        "parts": {"a": {"number": str(2**60)}},
        "unreachable": [],
        "ok": True,
    }


def test_a_server_is_reported_once():
    cause = Cause("timed out", responds=False)
    each = [
        UnreachableServer(server="s1", cause=cause, addresses=(("main", number),))
        for number in range(3)
    ]
    found = Whole(values=(), parts={}, unreachable=tuple(each)).as_dict()
    assert [one["shards"] for one in found["unreachable"]] == [{"main": "0-2"}]


class Pair(NamedTuple):
    """Two values of their own types."""

    name: str
    number: int | None


@dataclass(frozen=True, kw_only=True)
class Inner(JsonObject):
    """A part of a document."""

    numbers: tuple[int, ...]
    pair: Pair
    ends: tuple[str, int]


@dataclass(frozen=True, kw_only=True)
class Outer(JsonObject):
    """A document with each kind of type."""

    inner: dict[str, Inner]
    state: Literal["on", "off"]
    counts: Counter[str]
    ratio: float
    anything: Any
    flag: bool = False
    text: str | None = None


OUTER = Outer(
    inner={"a": Inner(numbers=(1, 2), pair=Pair("x", None), ends=("b", 3))},
    state="on",
    counts=Counter(found=2),
    ratio=1,
    anything=[1, {"b": None}],
    text="t",
)
INNER: dict[str, Any] = OUTER.as_dict()["inner"]["a"]


def test_a_document_is_read():
    found = Outer.from_dict(json.loads(json.dumps(OUTER.as_dict())))
    assert found == OUTER
    assert type(found.counts) is Counter


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"state": "other"}, "state is 'other'"),
        ({"state": ["on"]}, "state is"),
        ({"ratio": True}, "ratio is True, not float"),
        ({"flag": 1}, "flag is 1, not bool"),
        ({"text": 5}, "text is 5, not str"),
        ({"counts": [1]}, "counts is"),
        ({"counts": {"a": "1"}}, "counts is '1', not int"),
        ({"inner": {"a": None}}, "None is not an object"),
        ({"inner": {"a": {**INNER, "numbers": [1, "2"]}}}, "numbers is '2', not int"),
        ({"inner": {"a": {**INNER, "numbers": [1, False]}}}, "numbers is False"),
        ({"inner": {"a": {**INNER, "numbers": "12"}}}, "numbers is '12'"),
        ({"inner": {"a": {**INNER, "pair": ["x"]}}}, "pair is"),
        ({"inner": {"a": {**INNER, "pair": ["x", 1.5]}}}, "pair is 1.5, not int"),
        ({"inner": {"a": {**INNER, "ends": ["b", 3, 3]}}}, "ends is"),
        ({"inner": {"a": {**INNER, "ends": {}}}}, "ends is"),
    ],
    ids=str,
)
def test_a_document_with_another_type(changes, reason):
    with pytest.raises(ValueError, match=re.escape(reason)):
        Outer.from_dict({**OUTER.as_dict(), **changes})


def test_a_document_with_other_names():
    for wrong in ({**OUTER.as_dict(), "more": 1}, {"state": "on"}):
        with pytest.raises(TypeError, match=r"more|missing"):
            Outer.from_dict(wrong)
