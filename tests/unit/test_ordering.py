"""Arithmetic of positions."""

from __future__ import annotations

import time
from bisect import bisect_left, insort
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from sqla_shard.models import list_positions
from sqla_shard.models.list_positions import (
    middle,
    MOST_MOVES,
    moves_in,
    next_on_top,
    now,
    push_up,
    reach,
    STEP,
    windows,
)
from sqla_shard.types.columns import MAX_SEQUENCE

POSITIONS = st.integers(0, MAX_SEQUENCE) | st.integers(
    1_700_000_000_000 * STEP, 1_700_000_000_001 * STEP
)
MOVES = st.integers(1, MOST_MOVES)


def test_now_is_milliseconds_and_25_zeros():
    before = time.time_ns() // 1_000_000
    found = now()
    assert found % 10**25 == 0
    assert before <= found // 10**25 <= time.time_ns() // 1_000_000
    assert len(str(found)) == 38


def test_a_millisecond_takes_83_moves():
    gap = STEP
    moves = 0
    while (at := middle(0, gap)) is not None:
        gap = at
        moves += 1
    assert moves == 83 == moves_in(STEP)
    assert 2**83 < STEP < 2**84


@given(gap=st.integers(0, 10**26), up=st.booleans())
def test_a_gap_takes_as_many_moves_as_it_says(gap, up):
    low, high = 5, 5 + gap
    moves = 0
    while (at := middle(low, high)) is not None:
        low, high = (at, high) if up else (low, at)
        moves += 1
    assert moves_in(gap) <= moves <= moves_in(gap) + 1
    if not up:
        assert moves == moves_in(gap)


@given(low=POSITIONS, high=POSITIONS)
def test_middle(low, high):
    at = middle(low, high)
    if at is None:
        assert high - low < 2
    else:
        assert low < at < high


@given(at=POSITIONS)
def test_the_ends(at):
    above = middle(at, None)
    assert above is None if at == MAX_SEQUENCE else at < above <= MAX_SEQUENCE
    below = middle(None, at)
    assert below is None if at == 0 else 0 <= below < at
    if at < MAX_SEQUENCE - 2 * STEP:
        assert above == at + STEP
    if at >= 2 * STEP:
        assert below == at - STEP


def test_an_empty_list_has_room():
    assert 0 <= middle(None, None) <= MAX_SEQUENCE


@given(top=st.none() | POSITIONS, clock=st.integers(0, 9_999_999_999_999))
def test_next_on_top(top, clock):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(list_positions, "now", lambda: clock * STEP)
        found = next_on_top(top)
    assert found % STEP == 0
    assert found >= clock * STEP
    assert top is None or found > top


@given(center=POSITIONS, moves=MOVES)
def test_windows(center, moves):
    found = list(windows(center, moves))
    assert len(found) > 1
    for window in found:
        assert 0 <= window.low <= center <= window.high <= MAX_SEQUENCE
        assert window.high - window.low < reach(moves)
    for one, other in pairwise(found):
        assert other.low <= one.low
        assert other.high >= one.high
        assert other.capacity >= one.capacity


@given(center=POSITIONS, moves=MOVES, level=st.integers(0, 5), data=st.data())
def test_rows_of_a_window_have_room(center, moves, level, data):
    window = list(windows(center, moves))[level]
    count = data.draw(st.integers(0, max(window.capacity, 0)))
    found = window.spread(count)
    assert len(found) == count
    edges = [window.low, *found, window.high]
    assert all(b - a >= 1 << moves for a, b in pairwise(edges)) or not count
    assert all(0 <= at <= MAX_SEQUENCE for at in found)


def test_windows_at_the_ends_hold_rows():
    for center in (0, MAX_SEQUENCE):
        for moves in (1, 20, MOST_MOVES):
            assert max(w.capacity for w in windows(center, moves)) > 1000


@given(positions=st.lists(st.integers(0, 2**20) | POSITIONS).map(sorted), moves=MOVES)
def test_push_up(positions, moves):
    found = list(push_up(positions, moves))
    assert len(found) == len(positions)
    assert all(b - a >= 1 << moves for a, b in pairwise(found))
    assert all(new >= old for old, new in zip(positions, found, strict=True))
    # Each no further than it has to go.
    least = 0
    for old, new in zip(positions, found, strict=True):
        assert new == max(old, least)
        least = new + (1 << moves)
    assert list(push_up(found, moves)) == found


@pytest.mark.parametrize("moves", [2, 10, 40, MOST_MOVES])
@pytest.mark.parametrize("way", ["up", "down", "random"])
def test_the_work_of_respacing(moves, way, rng, say):
    low, high = 1_700_000_000_000 * STEP, 1_700_000_000_001 * STEP
    rows = [low, high]
    sizes = []
    at = 0
    for _ in range(15_000):
        if way == "random":
            at = rng.randrange(len(rows) - 1)
        below, above = rows[at], rows[at + 1]
        new = middle(below, above)
        if new is None:
            new, size, rows = respaced(rows, above, moves)
            sizes.append(size)
        else:
            insort(rows, new)
        if way == "up":
            at = bisect_left(rows, new)
            at = min(at, len(rows) - 2)
        elif way == "down":
            at = bisect_left(rows, new) - 1
    assert len(set(rows)) == 15_002
    total = sum(sizes)
    say(
        f"respace_to={moves}, {way}: 15000 moves, {len(sizes)} "
        f"re-spacings of {total} rows, {max(sizes, default=0)} at most, "
        f"{total / 15_000:.2f} for each move"
    )
    assert total <= 40 * 15_000
    assert max(sizes, default=0) <= 4**7


def respaced(rows, above, moves):
    """Make room below a row as a move does; return the new one's place."""
    for window in windows(above, moves):
        first = bisect_left(rows, window.low)
        last = bisect_left(rows, window.high + 1)
        count = last - first + 1
        if count <= window.capacity:
            break
    else:
        raise AssertionError("no window is large enough")
    found = window.spread(count)
    new = found[bisect_left(rows, above) - first]
    return new, count, [*rows[:first], *found, *rows[last:]]
