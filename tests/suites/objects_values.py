"""Values of fields: an assigned value is read back, or is refused."""

from __future__ import annotations

import dataclasses
import math
import uuid
from datetime import date, datetime, timedelta, timezone, UTC
from decimal import Decimal

import pytest
from sqlalchemy import event

from sqla_shard.exc import BlobValueError, ColocationError
from tests.models.objects import (
    Board,
    Color,
    Level,
    Mixed,
    Part,
    Pin,
    Point,
    Shape,
    Size,
    Thing,
)
from tests.models.objects_harness import raw, set_raw, stored, Suite, thing

UTC = UTC
AWKWARD = (
    'it\'s "quoted" \\ back\\slash % %s %% %(x)s ? ?? :name {0} \n\r\t',
    "😀 é \u0301 日本語 \U0010ffff \u200b",
    "\x00 nul \x1f \x7f",
    "__sqla_shard__ __sqla_shard__.things",
    " trailing ",
    "",
    "null",
    "'; DROP TABLE things; --",
    "x" * 70_000,
)

ROUND_TRIPS = [
    *(("text", value) for value in AWKWARD),
    *(
        ("count", value)
        for value in (
            *(0, -1, 2**53 + 1, 2**63 - 1, -(2**63), 2**63, 2**64),
            *(-(2**64) - 1, 10**300 + 7),
        )
    ),
    *(
        ("ratio", value)
        for value in (0.1 + 0.2, 1e308, 5e-324, -0.0, math.pi, 1e16, 1.0)
    ),
    ("flag", False),
    ("flag", True),
    *(
        ("price", Decimal(value))
        for value in ("0.1", "1.50", "1E+40", "-0", "1e-30", "9" * 60)
    ),
    ("price", None),
    ("at", datetime(2024, 5, 6, 7, 8, 9, 123456, UTC)),
    ("at", datetime(1, 1, 1, tzinfo=UTC)),
    ("at", datetime.max.replace(tzinfo=UTC)),
    ("at", datetime(2024, 5, 6, 7, 8, tzinfo=timezone(timedelta(hours=-9)))),
    ("day", date(2024, 2, 29)),
    ("uid", uuid.UUID(int=2**128 - 1)),
    ("color", Color.BLUE),
    ("level", Level.HIGH),
    *(("mixed", member) for member in Mixed),
    ("mode", "b"),
    ("size", Size(1)),
    ("point", Point(1.5, labels=["é", "'"])),
    (
        "shape",
        Shape("s", [Size(1), Size(2, 5)], Point(0.1), datetime(2024, 5, 6, tzinfo=UTC)),
    ),
    ("tags", []),
    ("tags", list(AWKWARD[:-1])),
    ("scores", {}),
    ("scores", dict.fromkeys(AWKWARD[:-1], 2**63 - 1)),
    ("times", [datetime(2024, 5, 6, 7, 8, 9, 1, UTC)] * 2),
    ("prices", {"a": Decimal("1.50"), "": Decimal("0")}),
    ("sizes", [Size(1), Size(2)]),
    ("free", {"a": [1, 2.5, True, None, {"b": 2**70}]}),
    ("free", 2**64),
    ("free", [[[[]]]]),
    ("tree", {"__sqla_shard__": {"?": "%s"}}),
]


def identical(one, other) -> bool:
    """Equal, and of the same types at every depth."""
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(
            identical(one[key], other[key]) for key in one
        )
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(identical, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.copysign(1, one) == math.copysign(1, other) and (one == other)
    if isinstance(one, Decimal) and isinstance(other, Decimal):
        return one.as_tuple() == other.as_tuple()
    if dataclasses.is_dataclass(one):
        return one.__class__ is other.__class__ and identical(
            [getattr(one, f.name) for f in dataclasses.fields(one)],
            [getattr(other, f.name) for f in dataclasses.fields(one)],
        )
    return type(one) is type(other) and one == other


class ValueSuite(Suite):
    @pytest.mark.parametrize(("field", "value"), ROUND_TRIPS)
    def test_round_trip(self, cluster, field, value):
        inserted = thing(cluster, **{field: value})
        updated = thing(cluster)
        with cluster.begin() as session:
            setattr(session.get(Thing, updated), field, value)
        with cluster.session() as session:
            for object_id in (inserted, updated):
                found = getattr(session.get(Thing, object_id), field)
                assert identical(found, value)

    def test_a_datetime_comes_back_in_utc(self, cluster, session):
        zone = timezone(timedelta(hours=5, minutes=30))
        new = thing(cluster, at=datetime(2024, 1, 1, 3, tzinfo=zone))
        found = session.get(Thing, new).at
        assert found == datetime(2023, 12, 31, 21, 30, tzinfo=UTC)
        assert found.tzinfo is UTC

    def test_the_blob_has_a_key_for_each_field(self, cluster):
        document = raw(cluster, Thing, thing(cluster, text="x"))
        assert document["text"] == "x"
        assert document["color"] == "red"
        assert document["tags"] == []
        assert set(document) == set(Thing.__sqla_shard__.fields)

    def test_defaults_of_an_object_that_is_not_flushed(self):
        new = Thing()
        assert (new.text, new.count, new.color) == ("", 0, Color.RED)
        assert (new.note, new.limit, new.tags) == (None, 10, [])
        assert new.tags is new.tags

    def test_defaults_are_not_shared(self):
        one, other = Thing(), Thing()
        one.tags.append("a")
        one.tree["a"] = 1
        assert (other.tags, other.tree) == ([], {})
        assert (one.tags, one.tree) == (["a"], {"a": 1})

    def test_record_from_before_the_fields_existed(self, cluster, session):
        old = thing(cluster)
        set_raw(cluster, Thing, old, {"text": "old"})
        found = session.get(Thing, old)
        assert (found.text, found.note, found.count) == ("old", None, 0)
        assert (found.flag, found.color, found.limit) == (True, Color.RED, 10)
        assert (found.tags, found.scores, found.times) == ([], {}, [])
        assert found.shape is None
        found.count = 5
        session.commit()
        # Reading defaults has not written them.
        assert raw(cluster, Thing, old) == {"text": "old", "count": 5}

    def test_unknown_keys_stay_on_rewrite(self, cluster, session):
        old = thing(cluster)
        newer = {
            "text": "x",
            "added later": [1, {"a": None}],
            "size": {"w": 1, "h": 2, "depth": 9},
        }
        set_raw(cluster, Thing, old, newer)
        found = session.get(Thing, old)
        found.text = "y"
        found.size.w = 5
        session.commit()
        assert raw(cluster, Thing, old) == {
            "text": "y",
            "added later": [1, {"a": None}],
            "size": {"w": 5, "h": 2, "depth": 9},
        }

    def test_required_fields(self, cluster, log):
        with (
            pytest.raises(BlobValueError, match=r"Board\.title: has no value"),
            cluster.begin() as session,
        ):
            session.add(Board())
        assert not [s for s in log.statements if "INSERT" in s]
        board = stored(cluster, Board, title="t")
        with cluster.begin() as session:
            found = session.get(Board, board)
            with pytest.raises(BlobValueError, match=r"title: cannot be del"):
                del found.title
            assert found.title == "t"

    def test_missing_value_leaves_nothing_half_written(self, cluster, log):
        with cluster.session() as session:
            session.add(Thing(parts=[Part()]))
            with pytest.raises(BlobValueError, match=r"Part\.name"):
                session.flush()
        assert not [s for s in log.statements if "INSERT" in s]

    def test_required_field_of_an_object_added_during_the_flush(self, cluster):
        with cluster.session() as session:

            @event.listens_for(session, "before_flush")
            def add(session, context, objects):
                session.add(Board())

            session.add(Board(title="t"))
            with pytest.raises(BlobValueError, match="title: has no value"):
                session.flush()

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            *(("text", value) for value in (5, None, b"x", "\ud800", ["a"])),
            *(("count", value) for value in ("5", 5.0, True, None)),
            *(("ratio", v) for v in ("1", math.nan, math.inf, 2**53 + 1)),
            *(("flag", value) for value in (1, 0, "true", None)),
            *(("price", value) for value in (1.5, "1.5", Decimal("NaN"))),
            *(("at", value) for value in ("2024", datetime(2024, 1, 1))),
            *(("day", v) for v in (datetime(2024, 1, 1, tzinfo=UTC), "x")),
            ("uid", "00000000-0000-0000-0000-000000000000"),
            *(("color", value) for value in ("red", Level.LOW, None)),
            ("mode", "c"),
            *(("size", value) for value in ({"w": 1}, Size("1"), Point(1.0))),
            *(("tags", v) for v in ("ab", [1], ["a", None], {"a"}, None)),
            *(("scores", value) for value in ({1: 1}, {"a": "1"}, [1])),
            ("times", [datetime(2024, 1, 1)]),
            ("prices", {"a": 0.5}),
            ("sizes", [Size(1), None]),
            *(("free", value) for value in ({1, 2}, math.nan, {1: 2}, Size)),
            ("tree", [1]),
        ],
    )
    def test_values_that_a_field_cannot_hold(self, field, value):
        new = Thing()
        before = dict(new.data or {})
        with pytest.raises(BlobValueError) as caught:
            setattr(new, field, value)
        assert caught.value.field.startswith(f"Thing.{field}")
        assert f"Thing.{field}" in str(caught.value)
        assert dict(new.data) == before
        with pytest.raises(BlobValueError, match=f"Thing.{field}"):
            Thing(**{field: value})

    @pytest.mark.parametrize(
        ("change", "place"),
        [
            (lambda t: t.tags.append(5), "Thing.tags[0]"),
            (lambda t: t.scores.update(a="x"), 'Thing.scores["a"]'),
            (lambda t: t.times.append(3), "Thing.times[0]"),
            (lambda t: setattr(t.size, "w", "x"), "Thing.size.w"),
            (lambda t: t.sizes.append({"w": 1}), "Thing.sizes[0]"),
            (lambda t: t.tree.update(a={1}), 'Thing.tree["a"]'),
        ],
    )
    @pytest.mark.parametrize("is_stored", [True, False])
    def test_values_that_cannot_be_added_in_place(
        self, cluster, session, change, place, is_stored
    ):
        new = Thing(size=Size(1))
        if is_stored:
            new = session.get(Thing, thing(cluster, size=Size(1)))
        with pytest.raises(BlobValueError) as caught:
            change(new)
        assert caught.value.field == place
        assert (new.tags, new.scores, new.times, new.sizes) == ([], {}, [], [])

    @pytest.mark.parametrize(
        ("document", "field"),
        [
            ({"count": "5"}, "count"),
            ({"text": 5}, "text"),
            ({"text": None}, "text"),
            ({"tags": ["a", 5]}, "tags"),
            ({"size": {"h": 5}}, "size"),
            ({"at": "yesterday"}, "at"),
            ({"color": "green"}, "color"),
        ],
    )
    def test_stored_by_another_definition(self, cluster, session, document, field):
        old = thing(cluster)
        set_raw(cluster, Thing, old, {"note": "n", **document})
        found = session.get(Thing, old)
        with pytest.raises(BlobValueError, match=f"{field}.*stored JSON"):
            getattr(found, field)
        # The others are not lost, and the field can be repaired.
        assert found.note == "n"
        setattr(found, field, getattr(Thing(size=Size(1)), field))
        session.commit()
        assert getattr(found, field) == getattr(Thing(size=Size(1)), field)

    def test_no_json_in_the_row(self, cluster, session):
        old = thing(cluster)
        set_raw(cluster, Thing, old, '{"ratio": NaN}')
        with pytest.raises(BlobValueError, match="not JSON"):
            session.get(Thing, old)

    def test_no_id_of_a_parent(self, cluster):
        board = stored(cluster, Board, title="t")
        pin = stored(cluster, Pin, board_id=board, link="x")
        for value in (None, pin, str(board), True, 5.0, -1, 2**64):
            with pytest.raises(ColocationError) as caught:
                Pin(board_id=value)
            assert caught.value.field == "board_id"
            assert str(caught.value).startswith("Pin.board_id: ")
        for value in (board, "x", 1.0, -1):
            with pytest.raises(BlobValueError, match=r"^Pin\.seen_with: "):
                Pin(seen_with=value)
        assert Pin(seen_with=None).seen_with is None
        assert Pin(seen_with=pin).seen_with == pin
