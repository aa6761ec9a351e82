"""Sets of GTIDs of MySQL, compared with sets of Python."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from sqla_shard.fleet.binlog_events import GtidSet

A = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
B = "5b8f9d2e-0c1a-11ee-be56-0242ac120002"

GTIDS = st.lists(st.tuples(st.sampled_from([A, B]), st.integers(1, 30)))


def set_of(gtids):
    found = GtidSet()
    for gtid in gtids:
        found.add(gtid)
    return found


def expanded(gtids):
    return {
        (origin, number)
        for origin, first, last in gtids
        for number in range(first, last + 1)
    }


@given(GTIDS, GTIDS)
def test_operations_are_those_of_sets(one, other):
    first, second = set_of(one), set_of(other)
    assert expanded(first) == set(one)
    assert expanded(first - second) == set(one) - set(other)
    assert expanded(first | second) == set(one) | set(other)
    assert len(first) == len(set(one))
    assert bool(first) is bool(one)
    assert all((gtid in first) is (gtid in one) for gtid in other)
    assert first.lasts() == {
        (origin, max(n for o, n in one if o == origin))
        for origin in {origin for origin, _ in one}
    }
    assert expanded(GtidSet.parsed(str(first))) == set(one)


def test_texts_of_a_server():
    text = f"{A}:1-5:9,\n{B.upper()}:3"
    assert str(GtidSet.parsed(text)) == f"{A}:1-5:9,{B}:3"
    assert str(GtidSet.parsed("")) == ""


@pytest.mark.parametrize(
    "text", ["0-1-42", A, f"{A}:", f"{A}:0", f"{A}:tag:1", "x:1", f"{A}:1-"]
)
def test_what_is_no_set_is_refused(text):
    with pytest.raises(ValueError, match="is not"):
        GtidSet.parsed(text)
