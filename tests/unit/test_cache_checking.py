"""The checker of cached reads finds stale reads."""

from __future__ import annotations

import pytest

from tests.servers.cache_checking import check
from tests.servers.cache_events import Event, events_of, line_of


def event(kind, start, end, version=0, key="a", **more):
    times = {"start": start, "end": end}
    return Event(kind=kind, key=key, version=version, **times, **more)


WRITE, STALE = event("write", 1, 2, 5), event("read", 3, 4, 4)


@pytest.mark.parametrize(
    ("events", "stale"),
    [
        ([event("write", 1, 2, 5), event("read", 3, 4, 5)], 0),
        ([event("write", 1, 2, 5), event("read", 3, 4, 6)], 0),
        ([event("write", 1, 2, 5), event("read", 3, 4, 4)], 1),
        # It began before the write was acknowledged.
        ([event("write", 1, 3, 5), event("read", 2, 9, 4)], 0),
        # Another has seen it before.
        ([event("read", 1, 2, 5), event("read", 3, 4, 4)], 1),
        ([event("read", 1, 4, 5), event("read", 3, 5, 4)], 0),
        # Another key.
        ([event("write", 1, 2, 5, "b"), event("read", 3, 4, 4)], 0),
        # Two rows more.
        ([event("add", 1, 2), event("add", 1, 3), event("read", 4, 5, 2)], 0),
        ([event("add", 1, 2), event("add", 1, 3), event("read", 4, 5, 1)], 1),
        ([event("add", 1, 2), event("add", 1, 5), event("read", 4, 6, 1)], 0),
        # Nothing was promised from then on; before it was.
        ([event("exempt", 1, 1), WRITE, STALE], 0),
        ([WRITE, STALE, event("exempt", 9, 9)], 1),
        # In any order of the notes.
        ([event("read", 3, 4, 4), event("write", 1, 2, 5)], 1),
    ],
)
def test_reads_that_are_stale(events, stale):
    report = check(events)
    assert len(report.stale) == stale
    for one in report.stale:
        assert one.read.version < one.known
        assert one.than.end < one.read.start


def test_counts():
    events = [event("write", 1, 2, 5), event("read", 3, 4, 5)]
    cached = Event(kind="read", key="a", start=1, end=2, version=5, cached=True)
    report = check([*events, cached, event("exempt", 5, 5, key="b")])
    assert report.counts == {"write": 1, "read": 2, "exempt": 1, "cached": 1}
    assert report.exempt == {"b"}


def test_a_truncated_line_is_ignored(tmp_path):
    whole = event("write", 1.5, 2.25, 5)
    (tmp_path / "log").write_bytes(line_of(whole) + line_of(whole)[:20])
    assert events_of([tmp_path / "log"]) == [whole]


def ids_of(kind, start, end, *ids, **more):
    return Event(kind=kind, key="a", start=start, end=end, ids=ids, **more)


ADDED = [ids_of("adding", 1, 1, 7, 8), ids_of("add", 1, 2, 7, 8)]
LEAVING = ids_of("removing", 3, 3, 7)
GONE = [LEAVING, ids_of("remove", 3, 4, 7)]


def counted(start, end, count):
    return Event(kind="read", key="a", start=start, end=end, count=count)


@pytest.mark.parametrize(
    ("events", "wrong"),
    [
        ([*ADDED, ids_of("read", 3, 4, 7, 8)], None),
        ([*ADDED, ids_of("read", 3, 4, 8)], {7}),
        ([*ADDED, ids_of("read", 3, 4, 8, asked=(8, 9))], None),
        ([*ADDED, ids_of("read", 3, 4, asked=(8, 9))], {8}),
        # Before they were acknowledged.
        ([*ADDED, ids_of("read", 1, 4)], None),
        # It was never added.
        ([*ADDED, ids_of("read", 3, 4, 7, 8, 9)], {9}),
        # It is leaving, or gone.
        ([*ADDED, LEAVING, ids_of("read", 2, 4, 8)], None),
        ([*ADDED, LEAVING, ids_of("read", 4, 5, 7, 8)], None),
        ([*ADDED, *GONE, ids_of("read", 5, 6, 8)], None),
        ([*ADDED, *GONE, ids_of("read", 5, 6, 7, 8)], {7}),
        ([*ADDED, *GONE, ids_of("read", 3.5, 6, 7, 8)], None),
        # Another read has seen that it is there, or gone.
        ([ADDED[0], ids_of("read", 2, 3, 7), ids_of("read", 4, 5)], {7}),
        (
            [
                *(*ADDED, LEAVING),
                *(ids_of("read", 4, 5, 8), ids_of("read", 6, 7, 7, 8)),
            ],
            {7},
        ),
        # The length alone.
        ([*ADDED, counted(3, 4, 2)], None),
        ([*ADDED, counted(3, 4, 1)], {7, 8, -1}),
        ([*ADDED, counted(3, 4, 3)], {7, 8, -1}),
        ([*ADDED, LEAVING, counted(2, 4, 1)], None),
        # The next life of the data does not know them.
        ([*ADDED, ids_of("read", 3, 4, life=2)], None),
        ([*ADDED, ids_of("read", 3, 4, 7, life=2)], {7}),
    ],
)
def test_reads_of_sets_that_are_stale(events, wrong):
    found = [set(one.ids) for one in check(events).stale]
    assert found == ([] if wrong is None else [wrong])


def test_a_version_that_was_never_written_is_wrong():
    tried = event("trying", 2, 2, 5)
    early = event("read", 0, 1, 5)
    assert check([tried, early]).stale
    assert not check([tried, event("read", 1, 3, 5)]).stale


EXEMPT = Event(kind="exempt", key="a", start=2, end=2, txn="x")
OVER = Event(kind="over", key="", start=5, end=5, txn="x")


def drained(start, end):
    return Event(kind="drained", key="", start=start, end=end)


def written(start, end, txn):
    return event("write", start, end, 5, txn=txn)


def test_versions_that_were_only_read_may_be_unknown_to_others():
    found = [event("read", 1, 2, 5), event("read", 3, 4, 4)]
    assert check(found).stale
    assert not check(found, reads_tell=False).stale
    sets = [ids_of("adding", 0, 0, 7), ids_of("read", 1, 2, 7)]
    sets.append(ids_of("read", 3, 4))
    assert check(sets).stale
    assert not check(sets, reads_tell=False).stale


@pytest.mark.parametrize(
    ("events", "stale"),
    [
        ([EXEMPT, OVER], 0),
        # The pass started too early.
        ([EXEMPT, OVER, drained(4, 6)], 0),
        ([EXEMPT, drained(6, 7)], 0),
        ([EXEMPT, OVER, drained(6, 7)], 1),
        ([EXEMPT, OVER, drained(6, 9)], 0),
        ([drained(0, 1)], 1),
        # A later write has reached the node, and removed the value.
        ([EXEMPT, OVER, written(5, 7, "y")], 1),
        ([EXEMPT, OVER, written(4, 7, "y")], 0),
        ([EXEMPT, written(5, 7, "y")], 0),
        ([EXEMPT, OVER, written(5, 7, "x")], 0),
    ],
)
def test_keys_in_an_outbox_may_be_stale_until_it_is_drained(events, stale):
    read = event("read", 8, 10, 4)
    report = check([WRITE, *events, read])
    assert len(report.stale) == stale


@pytest.mark.parametrize(
    ("events", "wrong"),
    [
        ([OVER], None),
        # A write of other members removes no cached value of this one.
        ([OVER, ids_of("add", 5, 7, 9, txn="y")], None),
        ([OVER, drained(6, 7)], {7}),
    ],
)
def test_a_member_in_an_outbox_may_be_stale_until_it_is_drained(events, wrong):
    exempt = ids_of("exempt", 3, 3, txn="x")
    read = ids_of("read", 8, 10, 7, 8)
    report = check([*ADDED, *GONE, exempt, *events, read])
    found = [set(one.ids) for one in report.stale]
    assert found == ([] if wrong is None else [wrong])
