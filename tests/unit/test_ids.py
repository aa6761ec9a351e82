"""Object ids."""

from __future__ import annotations

import enum
from typing import Any

import pytest
from hypothesis import given, strategies as st

from sqla_shard.exc import DuplicateTypeError, InvalidIdError, WrongTypeError
from sqla_shard.ids import DEFAULT_LAYOUT, MAX_ID, ObjectId, pack, TypeRegistry, unpack

SHARDS = st.integers(0, 2**16 - 1)
TYPES = st.integers(0, 2**10 - 1)
LOCALS = st.integers(0, 2**36 - 1)


def test_the_published_example() -> None:
    assert pack(3429, 1, 7075733) == 241294492511762325
    assert unpack(241294492511762325) == ObjectId(3429, 1, 7075733)


@given(SHARDS, TYPES, LOCALS)
def test_round_trip(shard_id: int, type_id: int, local_id: int) -> None:
    packed = pack(shard_id, type_id, local_id)
    assert 0 <= packed <= MAX_ID < 2**62
    assert unpack(packed) == (shard_id, type_id, local_id)
    assert int(unpack(packed)) == packed


@given(st.integers(0, MAX_ID))
def test_every_id_is_that_of_its_parts(object_id: int) -> None:
    assert pack(*unpack(object_id)) == object_id


@given(st.tuples(SHARDS, TYPES, LOCALS), st.tuples(SHARDS, TYPES, LOCALS))
def test_order_is_by_shard_type_and_row(
    one: tuple[int, int, int], other: tuple[int, int, int]
) -> None:
    assert (pack(*one) < pack(*other)) == (one < other)


NO_INT = [True, False, 1.0, "1", None, b"1", [1]]


@pytest.mark.parametrize("value", NO_INT, ids=repr)
@pytest.mark.parametrize("part", range(3))
def test_parts_must_be_int(part: int, value: Any) -> None:
    parts: list[Any] = [1, 1, 1]
    parts[part] = value
    with pytest.raises(InvalidIdError) as caught:
        pack(*parts)
    assert caught.value.value is value
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize(
    "parts",
    [(-1, 1, 1), (2**16, 1, 1), (1, -1, 1), (1, 2**10, 1), (1, 1, -1), (1, 1, 2**36)],
)
def test_parts_out_of_range(parts: tuple[int, int, int]) -> None:
    with pytest.raises(InvalidIdError, match="must be from 0 to"):
        pack(*parts)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (-1, "negative"),
        (2**62, "reserved"),
        (2**63, "reserved"),
        (2**64, "65 bits"),
        (True, "bool"),
        (1.0, "float"),
        ("241294492511762325", "int\\(\\)"),
        ("x", "str"),
        (None, "NoneType"),
    ],
    ids=repr,
)
def test_invalid_ids(value: Any, why: str) -> None:
    with pytest.raises(InvalidIdError, match=why) as caught:
        unpack(value)
    assert caught.value.value is value
    assert isinstance(caught.value, ValueError)


def test_int_enums_are_ints() -> None:
    class Type(enum.IntEnum):
        PIN = 1

    packed = pack(7, Type.PIN, 9)
    assert type(packed) is int
    assert unpack(packed).type_id is not Type.PIN
    assert type(unpack(enum.IntEnum("Id", {"ONE": packed}).ONE).type_id) is int


def test_ids_of_another_type() -> None:
    assert DEFAULT_LAYOUT.check_type(pack(1, 2, 3), 2, "Board") == (1, 2, 3)
    assert DEFAULT_LAYOUT.check_type(pack(1, 2, 3), None, "anything").type_id == 2
    with pytest.raises(WrongTypeError, match="an id of type 2; Pin") as caught:
        DEFAULT_LAYOUT.check_type(pack(1, 2, 3), 1, "Pin")
    assert caught.value.expected == (1,)
    with pytest.raises(WrongTypeError, match="a local id"):
        DEFAULT_LAYOUT.check_type(5, 1, "Pin")


def test_the_registry_refuses_a_type_id_twice() -> None:
    class Pin:
        pass

    class Board:
        pass

    registry = TypeRegistry()
    registry.register(1, Pin)
    assert registry.lookup(1) is Pin
    assert registry.lookup(2) is None
    with pytest.raises(DuplicateTypeError) as caught:
        registry.register(1, Board)
    assert caught.value.names == ("Pin", "Board")
    assert registry.lookup(1) is Pin
    registry.register(2, Board)
    assert list(registry) == [(1, Pin), (2, Board)]


@pytest.mark.parametrize("type_id", [0, -1, 1024, True, "1", None], ids=repr)
def test_impossible_type_ids(type_id: Any) -> None:
    with pytest.raises(InvalidIdError):
        TypeRegistry().register(type_id, int)
