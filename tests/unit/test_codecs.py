from __future__ import annotations

import collections.abc
import dataclasses
import datetime as dt
import enum
import json
import typing
import uuid
from decimal import Decimal
from typing import Annotated, Any, Literal, NewType, Optional

import pytest
import typing_extensions
from hypothesis import given, strategies as st
from tracked import repickled

from sqla_shard.exc import BlobValueError, ClassDefinitionError
from sqla_shard.models.field_types import Codec, codec_for, ValueKind

UTC = dt.UTC
EAST = dt.timezone(dt.timedelta(hours=5, minutes=45))


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Mixed(enum.Enum):
    TEXT = "1"
    NUMBER = 1
    HALF = 0.5
    YES = False


class Legacy(str, enum.Enum):  # noqa: UP042  # as older code has it
    NEW = "new"

    @classmethod
    def _missing_(cls, value):
        return cls.NEW if value == "old" else None


class Right(enum.Flag):
    READ = 1
    WRITE = 2


class Empty(enum.Enum):
    pass


class Point(enum.Enum):
    ORIGIN = (0, 0)


class Spoiled(enum.Enum):
    NAN = float("nan")


class Slug(str):
    pass


class Pair(typing.NamedTuple):
    a: int


class Typed(typing.TypedDict):
    a: int


@dataclasses.dataclass
class Place:
    name: str


UserId = NewType("UserId", int)
NestedId = NewType("NestedId", UserId)


def field(annotation, name="Pin.field") -> Codec:
    return codec_for(annotation, field=name)


def through_json(value):
    return json.loads(json.dumps(value))


# -- from annotations to codecs ---------------------------------------------


@pytest.mark.parametrize(
    ("annotation", "kind", "python_type", "native"),
    [
        (str, ValueKind.TEXT, str, True),
        (int, ValueKind.INTEGER, int, True),
        (float, ValueKind.FLOAT, float, False),
        (bool, ValueKind.BOOLEAN, bool, True),
        (Decimal, ValueKind.DECIMAL, Decimal, False),
        (dt.datetime, ValueKind.DATETIME, dt.datetime, False),
        (dt.date, ValueKind.DATE, dt.date, False),
        (uuid.UUID, ValueKind.UUID, uuid.UUID, False),
        (Colour, ValueKind.ENUM, Colour, False),
        (list, ValueKind.JSON, list, True),
        (dict, ValueKind.JSON, dict, True),
        (typing.List, ValueKind.JSON, list, True),  # noqa: UP006 - as users may
        (typing.Dict, ValueKind.JSON, dict, True),  # noqa: UP006 - as users may
        (list[Any], ValueKind.JSON, list, True),
        (dict[str, Any], ValueKind.JSON, dict, True),
        (list[str], ValueKind.JSON, list, True),
        (list[list[int]], ValueKind.JSON, list, True),
        (dict[str, list[bool]], ValueKind.JSON, dict, True),
        (dict[Annotated[str, "x"], str], ValueKind.JSON, dict, True),
        (list[float], ValueKind.JSON, list, False),
        (dict[str, Decimal], ValueKind.JSON, dict, False),
        (list[dict[str, dt.date]], ValueKind.JSON, list, False),
        (Place, ValueKind.JSON, Place, False),
        (list[Place], ValueKind.JSON, list, False),
        (Literal["a", "b"], ValueKind.TEXT, str, True),
        (Literal[1, 2], ValueKind.INTEGER, int, True),
        (Literal[True], ValueKind.BOOLEAN, bool, True),
        (Literal["a", 1], ValueKind.JSON, object, True),
        (UserId, ValueKind.INTEGER, int, True),
        (NestedId, ValueKind.INTEGER, int, True),
        (Annotated[str, "x"], ValueKind.TEXT, str, True),
        (Annotated[UserId, "x"], ValueKind.INTEGER, int, True),
        (list[Annotated[str, "x"]], ValueKind.JSON, list, True),
        (
            typing_extensions.TypeAliasType("Tags", list[str]),
            ValueKind.JSON,
            list,
            True,
        ),
    ],
)
def test_supported_annotations(annotation, kind, python_type, native):
    codec = field(annotation)
    assert codec.kind is kind
    assert codec.python_type is python_type
    assert codec.native is native
    assert codec.nullable is False
    assert codec.field == "Pin.field"
    with pytest.raises(BlobValueError, match=r"^Pin\.field: None is not "):
        codec.encode(None)
    with pytest.raises(BlobValueError, match="stored JSON value None does no"):
        codec.decode(None)
    for optional in (annotation | None, Optional[annotation]):  # noqa: UP045 - as users may
        codec = field(optional)
        assert codec.kind is kind
        assert codec.python_type is python_type
        assert codec.nullable is True
        assert codec.encode(None) is None
        assert codec.decode(None) is None


@pytest.mark.parametrize(
    "annotation",
    [
        Any,
        Any | None,
        Literal["a", None],
        Annotated[str | None, "x"],
        UserId | None,
        typing.Union[None, str],  # noqa: UP007 - as users may
        None | str,
    ],
)
def test_nullable_annotations(annotation):
    codec = field(annotation)
    assert codec.nullable
    assert codec.encode(None) is None
    assert codec.decode(None) is None


@pytest.mark.parametrize(
    ("annotation", "kind"),
    [
        (Colour, ValueKind.TEXT),
        (Level, ValueKind.INTEGER),
        (Right, ValueKind.INTEGER),
        (Mixed, ValueKind.JSON),
        (str, ValueKind.TEXT),
        (Decimal, ValueKind.DECIMAL),
    ],
)
def test_the_json_value(annotation, kind):
    assert field(annotation).stored_kind is kind


@pytest.mark.parametrize(
    ("annotation", "message"),
    [
        (tuple, "tuple cannot be stored in a JSON blob; JSON has no tuples"),
        (tuple[int, ...], "tuple[int, ...] cannot be stored"),
        (set[str], "set[str] cannot be stored in a JSON blob; JSON has no"),
        (frozenset, "frozenset cannot be stored"),
        (bytes, "bytes cannot be stored in a JSON blob; JSON has no bytes"),
        (dt.time, "time cannot be stored in a JSON blob; use str"),
        (dt.timedelta, "timedelta cannot be stored in a JSON blob; use int"),
        (object, "object cannot be stored in a JSON blob; use Any"),
        (int | str, "int | str cannot be stored in a JSON blob; the type"),
        (int | str | None, "int | str | None cannot be stored"),
        (typing.Union[int, str], "int"),  # noqa: UP007 - as users may
        (None, "None cannot be stored"),
        (type(None), "NoneType cannot be stored"),
        (Slug, "Slug cannot be stored in a JSON blob; it would be read as a"),
        (Pair, "Pair cannot be stored in a JSON blob; JSON has no tuples"),
        (Typed, "Typed cannot be stored in a JSON blob; use a dataclass"),
        (collections.OrderedDict, "OrderedDict cannot be stored"),
        (collections.abc.Sequence, "Sequence cannot be stored"),
        (collections.abc.Sequence[str], "Sequence[str] cannot be stored"),
        (collections.abc.Mapping[str, int], "use dict[str, ...]"),
        (dict[int, str], "dict[int, str] cannot be stored in a JSON blob; the"),
        (list[bytes], "bytes cannot be stored"),
        (list[int | str], "int | str cannot be stored"),
        ("Pin", "'Pin' cannot be stored in a JSON blob; it is the name of a"),
        (list["Pin"], "'Pin' cannot be stored"),  # noqa: F821 - the point
        (typing.TypeVar("T"), "~T cannot be stored"),
        (type[int], "type[int] cannot be stored"),
        (Literal[b"a"], "Literal[b'a'] cannot be stored in a JSON blob; b'a'"),
        (Literal[Colour.RED], "<Colour.RED: 'red'> is not a str, int or boo"),
        (Literal[None], "Literal[None] cannot be stored"),
        (Empty, "Empty cannot be stored in a JSON blob; it has no members"),
        (Point, "the value of Point.ORIGIN is (0, 0): an enum is stored by"),
        (Spoiled, "Spoiled.NAN: nan is not a JSON number"),
        (type, "type cannot be stored in a JSON blob; use str, int, float"),
    ],
)
def test_annotations_that_are_refused(annotation, message):
    with pytest.raises(ClassDefinitionError) as caught:
        field(annotation)
    assert str(caught.value).startswith("class Pin: field 'field': ")
    assert message in str(caught.value)
    assert caught.value.class_name == "Pin"


# -- what scalars accept ----------------------------------------------------

NOW = dt.datetime(2024, 5, 6, 7, 8, 9, 1000, tzinfo=UTC)
ID = uuid.UUID("AB7F0A1C-0000-4000-8000-000000000001")


class Stamp(dt.datetime):
    pass


class Tagged(str):
    pass


@pytest.mark.parametrize(
    ("annotation", "value", "stored"),
    [
        (str, "ö\u0000", "ö\u0000"),
        (str, Tagged("a"), "a"),
        (int, -(10**40), "-1" + "0" * 40),
        (int, 2**63 - 1, 2**63 - 1),
        (int, 2**64 - 1, 2**64 - 1),
        (int, 2**64, "18446744073709551616"),
        (int, -(2**63), -(2**63)),
        (int, -(2**63) - 1, "-9223372036854775809"),
        (int, 10**4000, "1" + "0" * 4000),
        (int, Level.LOW, 1),
        (float, 0.1, 0.1),
        (float, 3, 3.0),
        (float, 2**53, 9007199254740992.0),
        (bool, True, True),
        (Decimal, Decimal("1.50"), "1.50"),
        (Decimal, Decimal("1E+3"), "1E+3"),
        (Decimal, Decimal("-0.00"), "-0.00"),
        (Decimal, 10**30, "1" + "0" * 30),
        (dt.datetime, NOW, "2024-05-06T07:08:09.001000+00:00"),
        (dt.datetime, NOW.astimezone(EAST), "2024-05-06T07:08:09.001000+00:00"),
        (dt.datetime, Stamp(33, 1, 1, tzinfo=UTC), "0033-01-01T00:00:00.000000+00:00"),
        (dt.date, dt.date(33, 1, 2), "0033-01-02"),
        (uuid.UUID, ID, "ab7f0a1c-0000-4000-8000-000000000001"),
        (Colour, Colour.RED, "red"),
        (Level, Level.HIGH, 2),
        (Mixed, Mixed.HALF, 0.5),
        (Mixed, Mixed.YES, False),
        (Right, Right.READ | Right.WRITE, 3),
        (Legacy, Legacy.NEW, "new"),
        (Literal["a", 1, False], False, False),
    ],
)
def test_encoding(annotation, value, stored):
    codec = field(annotation)
    encoded = codec.encode(value)
    assert encoded == stored
    assert type(encoded) is type(stored)
    decoded = codec.decode(through_json(encoded))
    assert decoded == value
    assert codec.encode(decoded) == stored


@pytest.mark.parametrize(
    ("annotation", "value", "message"),
    [
        (str, b"a", "b'a' (bytes) is not a str"),
        (str, 1, "1 (int) is not a str"),
        (str, "\ud800", "'\\ud800' has a lone surrogate at position 0"),
        (int, True, "True (bool) is not an int"),
        (int, 1.0, "1.0 (float) is not an int"),
        (int, "1", "'1' (str) is not an int"),
        pytest.param(int, 10**5000, "an int of 16610 bits has", id="huge"),
        (float, True, "True (bool) is not a finite float"),
        (float, float("nan"), "nan is not a JSON number"),
        (float, float("inf"), "inf is not a JSON number"),
        (float, "1", "'1' (str) is not a finite float"),
        (float, 2**53 + 1, "9007199254740993 (int) is not a finite float"),
        (float, 10**400, "an int of 1329 bits (int) is not a finite float"),
        (bool, 1, "1 (int) is not a bool"),
        (Decimal, 0.1, "0.1 (float) is not a finite Decimal"),
        (Decimal, True, "True (bool) is not a finite Decimal"),
        (Decimal, "1", "'1' (str) is not a finite Decimal"),
        (Decimal, Decimal("NaN"), "Decimal('NaN') (Decimal) is not a finite"),
        (Decimal, Decimal("sNaN"), "Decimal('sNaN') (Decimal) is not"),
        (Decimal, Decimal("-Infinity"), "Decimal('-Infinity') (Decimal) is n"),
        (dt.datetime, dt.datetime(2024, 5, 6), "has no time zone, so its"),
        (dt.datetime, dt.date(2024, 5, 6), "(date) is not a datetime with a"),
        (dt.datetime, "2024-05-06", "(str) is not a datetime"),
        (
            dt.datetime,
            dt.datetime.max.replace(tzinfo=dt.timezone(-dt.timedelta(hours=1))),
            "is outside the years 1 to 9999 in UTC",
        ),
        (dt.date, NOW, "(datetime) is not a date (a datetime is not"),
        (dt.date, "2024-05-06", "'2024-05-06' (str) is not a date"),
        (uuid.UUID, str(ID), "(str) is not a UUID"),
        (Colour, "red", "'red' (str) is not a member of Colour: [<Colour.RED"),
        (Level, 1, "1 (int) is not a member of Level"),
        (Literal["a", "b"], "c", "'c' (str) is not one of 'a', 'b'"),
        (Literal[1], True, "True (bool) is not one of 1"),
        (Literal[1], [], "[] (list) is not one of 1"),
        (Literal["a"], None, "None is not one of 'a'. Annotate it as str | N"),
        (Colour, None, "Annotate it as Colour | None if it may be absent"),
        (list, {}, "{} (dict) is not a list"),
        (dict, [], "[] (list) is not a dict"),
        (Any, {1}, "{1} (set) is not a JSON value"),
    ],
)
def test_values_that_are_refused(annotation, value, message):
    for codec in (field(annotation), field(annotation | None)):
        if value is None and codec.nullable:
            continue
        with pytest.raises(BlobValueError) as caught:
            codec.encode(value)
        assert str(caught.value).startswith("Pin.field: ")
        assert message in str(caught.value)
        assert caught.value.field == "Pin.field"
        assert caught.value.value is value or annotation is Any
    assert str(repickled(caught.value)) == str(caught.value)


# -- what scalars read ------------------------------------------------------


@pytest.mark.parametrize(
    ("annotation", "stored", "value"),
    [
        (float, 3, 3.0),
        (Decimal, 3, Decimal(3)),
        (Decimal, "1e-7", Decimal("1E-7")),
        (dt.datetime, "2024-05-06T07:08:09.001Z", NOW),
        (dt.datetime, "2024-05-06 12:53:09.001+05:45", NOW),
        (dt.datetime, "2024-05-06T07:08:09.001000-00:00", NOW),
        (dt.datetime, "2024-05-06T07:08:09Z", NOW.replace(microsecond=0)),
        (uuid.UUID, str(ID).upper(), ID),
        (Legacy, "old", Legacy.NEW),
    ],
)
def test_values_of_other_programs(annotation, stored, value):
    decoded = field(annotation).decode(stored)
    assert decoded == value
    assert type(decoded) is type(value)


@pytest.mark.parametrize(
    ("annotation", "stored"),
    [
        (str, 1),
        (str, []),
        (int, 1.0),
        (int, True),
        (int, "1"),
        (float, "1"),
        (float, True),
        (float, float("nan")),
        (float, float("inf")),
        (float, 2**53 + 1),
        (bool, 1),
        (Decimal, 0.1),
        (Decimal, "x"),
        (Decimal, "NaN"),
        (Decimal, True),
        (dt.datetime, 1715000000),
        (dt.datetime, "2024-05-06"),
        (dt.datetime, "2024-05-06T07:08:09"),
        (dt.datetime, "2024-13-06T07:08:09.000000+00:00"),
        (dt.datetime, "2024-05-06T07:08:09.000000000Z"),
        (dt.datetime, "9999-12-31T23:59:59.999999-01:00"),
        (dt.datetime, "２024-05-06T07:08:09Z"),
        (dt.date, "20240506"),
        (dt.datetime, "2024-W19-1T07:08:09Z"),
        (dt.datetime, "20240506T070809Z"),
        (dt.datetime, "2024-05-06T07:08Z"),
        (dt.date, "2024-W19-1"),
        (dt.date, "2024-05-06T00:00:00"),
        (dt.date, 20240506),
        (uuid.UUID, "ab7f0a1c000040008000000000000001"),
        (uuid.UUID, "{ab7f0a1c-0000-4000-8000-000000000001}"),
        (uuid.UUID, "x"),
        (uuid.UUID, 5),
        (Colour, "green"),
        (Colour, 1),
        (Colour, []),
        (Level, True),
        (Level, 1.0),
        (Mixed, True),
        (Mixed, 0),
        (Right, 8),
        (Legacy, "older"),
        (Literal[1], True),
        (Literal["a"], "b"),
        (Literal["a"], {}),
        (list, {}),
        (dict, []),
        (dict, "x"),
    ],
)
def test_stored_values_that_do_not_fit(annotation, stored):
    for codec in (field(annotation), field(annotation | None)):
        with pytest.raises(BlobValueError) as caught:
            codec.decode(stored)
        message = str(caught.value)
        assert message.startswith("Pin.field: the stored JSON value ")
        assert repr(stored) in message
        assert "does not fit" in message
        assert caught.value.value is stored


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2024-05-06T07:08:09Z", dt.datetime(2024, 5, 6, 7, 8, 9, 0, UTC)),
        ("2024-05-06t07:08:09.12z", dt.datetime(2024, 5, 6, 7, 8, 9, 120_000, UTC)),
        (
            "2024-05-06 07:08:09.1+05:45",
            dt.datetime(2024, 5, 6, 1, 23, 9, 100_000, UTC),
        ),
    ],
)
def test_datetimes_as_other_programs_write_them(text, moment):
    assert field(dt.datetime).decode(text) == moment


# -- round trips ------------------------------------------------------------

# Moments at the ends of the calendar may not exist in UTC.
naive = st.datetimes(dt.datetime(1, 1, 3), dt.datetime(9999, 12, 29))
offsets = st.integers(-1439, 1439).map(
    lambda minutes: dt.timezone(dt.timedelta(minutes=minutes))
)
moments = st.builds(lambda value, zone: value.replace(tzinfo=zone), naive, offsets)
texts = st.text(st.characters(codec="utf-8"))
VALUES = {
    str: texts,
    int: st.integers(),
    float: st.floats(allow_nan=False, allow_infinity=False),
    bool: st.booleans(),
    Decimal: st.decimals(allow_nan=False, allow_infinity=False),
    dt.datetime: moments,
    dt.date: st.dates(),
    uuid.UUID: st.uuids(),
    Colour: st.sampled_from(Colour),
    Level: st.sampled_from(Level),
    Mixed: st.sampled_from(Mixed),
    Literal["a", 1, False]: st.sampled_from(["a", 1, False]),
    Place: st.builds(Place, texts),
}


def with_containers():
    for annotation, values in VALUES.items():
        yield annotation, values
        yield annotation | None, st.none() | values
        yield list[annotation], st.lists(values, max_size=3)
        yield (
            dict[str, list[annotation | None]],
            st.dictionaries(
                texts, st.lists(st.none() | values, max_size=3), max_size=3
            ),
        )


@pytest.mark.parametrize(
    ("annotation", "values"),
    [pytest.param(*pair, id=str(pair[0])) for pair in with_containers()],
)
@given(data=st.data())
def test_round_trips(annotation, values, data):
    codec = field(annotation)
    value = data.draw(values)
    stored = codec.encode(value)
    again = codec.decode(through_json(stored))
    assert again == value
    assert codec.encode(again) == stored
    if annotation is Decimal:
        assert str(again) == str(value)  # the exponent too
    if annotation is float:
        assert repr(again) == repr(value)  # the sign of zero too


@given(naive, st.timezones())
def test_moments_of_any_zone_are_stored_in_utc(value, zone):
    # Not ==: Python calls a local time that occurs twice equal to none.
    value = value.replace(tzinfo=zone)
    codec = field(dt.datetime)
    assert codec.decode(codec.encode(value)) == value.astimezone(UTC)


@given(moments, moments)
def test_stored_datetimes_sort_as_moments(one, two):
    codec = field(dt.datetime)
    stored = codec.encode(one), codec.encode(two)
    assert (stored[0] < stored[1]) == (one < two)
    assert {len(text) for text in stored} == {32}
    assert codec.decode(stored[0]).tzinfo is UTC


@given(st.dates(), st.dates())
def test_stored_dates_sort_as_dates(one, two):
    codec = field(dt.date)
    assert (codec.encode(one) < codec.encode(two)) == (one < two)


class Text(str):
    pass


class Number(int):
    pass


class Real(float):
    pass


class Moment(dt.datetime):
    pass


class Day(dt.date):
    pass


@pytest.mark.parametrize(
    ("annotation", "value", "kind"),
    [
        (str, Text("a"), str),
        (str, Text("\xe9"), str),
        (str | None, None, type(None)),
        (int, Number(1), int),
        (int, Level.LOW, int),
        (int, Number(1 << 64) - 1, int),
        (int, Number(1 << 70), str),
        (float, Real(0.5), float),
        (float, Number(1), float),
        (bool, True, bool),
        (dt.datetime, Moment(2026, 1, 2, tzinfo=EAST), str),
        (dt.date, Day(2026, 1, 2), str),
    ],
)
def test_checked_codecs_return_plain_scalars(annotation, value, kind):
    # The blob stores their result without a check of its own.
    codec = field(annotation)
    assert codec.checked
    assert type(codec.encode(value)) is kind


@pytest.mark.parametrize(
    "annotation", [Colour, Literal["a"], Decimal, uuid.UUID, list[str], Any]
)
def test_values_of_other_codecs_are_checked_by_the_blob(annotation):
    assert not field(annotation).checked


def test_codecs_show_what_they_are():
    assert repr(field(str | None)) == "<TextCodec Pin.field: str | None>"
    assert repr(field(list[int])) == "<ContainerCodec Pin.field: list>"
