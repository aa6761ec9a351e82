"""The JSON values of reports."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from datetime import datetime, timedelta, UTC
from typing import Any

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
