"""The checks of a load see everything that can go wrong, and nothing else."""

from __future__ import annotations

import pytest

from tests.servers.load_checks import check, only_old, pauses, Rows
from tests.servers.load_log import Attempt, line_of, LogReader


def attempt(token, outcome, local_id=None, *, shard=1, t0=0.0, t1=1.0):
    return Attempt(
        token=token, shard=shard, t0=t0, t1=t1, outcome=outcome, local_id=local_id
    )


def rows(*pins, notes=None):
    return Rows(pins=frozenset(pins), notes=pins if notes is None else notes)


ACKED = attempt("a", "acked", 7)
HOME = rows((7, "a"))


@pytest.mark.parametrize(
    ("attempts", "there"),
    [
        ([ACKED], {0: rows(), 1: HOME}),
        # Told twice, or with no id the second time.
        ([attempt("a", "unknown"), ACKED], {1: HOME}),
        ([attempt("a", "unknown"), attempt("a", "already")], {1: HOME}),
        # Unknown is either.
        ([ACKED, attempt("b", "unknown")], {1: HOME}),
        ([ACKED, attempt("b", "unknown")], {1: rows((7, "a"), (8, "b"))}),
        ([ACKED, attempt("b", "failed")], {1: HOME}),
    ],
)
def test_nothing_is_wrong(attempts, there):
    assert check(attempts, there) == []


@pytest.mark.parametrize(
    ("attempts", "there", "problems"),
    [
        ([], {1: rows()}, ["nothing was acknowledged"]),
        ([ACKED], {1: rows()}, ["a: acknowledged as 1/{7}, and lost"]),
        ([attempt("a", "already")], {1: rows()}, ["a: acknowledged as 1/?, and lost"]),
        (
            [ACKED],
            {1: rows((7, "a"), (8, "a"))},
            ["a: is there 2 times: [", "a: acknowledged as {7}, but found as ["],
        ),
        (
            [ACKED],
            {1: rows((9, "a"))},
            ["a: acknowledged as {7}, but found as [(1, 9)]"],
        ),
        # The id that was acknowledged names another object now.
        (
            [ACKED, attempt("b", "unknown")],
            {1: rows((7, "b"))},
            ["a: acknowledged as 1/{7}, and lost"],
        ),
        ([ACKED], {0: HOME, 1: rows()}, ["a: is in shard 0, not in 1"]),
        (
            [ACKED],
            {1: rows((7, "a"), notes=())},
            ["a: half a transaction: pins [(1, 7)], notes []"],
        ),
        (
            [ACKED, attempt("b", "unknown")],
            {1: rows((7, "a"), notes=((7, "a"), (8, "b")))},
            ["b: half a transaction: pins [], notes [(1, 8)]"],
        ),
        (
            [ACKED],
            {1: rows((7, "a"), notes=((7, "a"), (7, "a")))},
            ["a: half a transaction: "],
        ),
        (
            [ACKED, attempt("b", "failed")],
            {1: rows((7, "a"), (8, "b"))},
            ["b: is there, but all attempts have failed"],
        ),
        ([ACKED], {1: rows((7, "a"), (8, "b"))}, ["b: nobody wrote it"]),
        (
            [ACKED, attempt("a", "acked", 8)],
            {1: HOME},
            ["a: acknowledged as {8, 7}, but found as [(1, 7)]"],
        ),
    ],
)
def test_each_problem_is_reported(attempts, there, problems):
    found = check(attempts, there)
    assert len(found) == len(problems), found
    for line, begin in zip(found, problems, strict=True):
        assert line.startswith(begin)


def test_only_the_old_home_has_it():
    new = {0: rows((1, "x")), 1: rows((7, "a"), (8, "b"))}
    assert only_old({1: HOME}, new) == []
    assert only_old({1: rows((7, "c"))}, new) == [
        "c: pin 1/7 only on the old",
        "c: note of 1/7 only there",
    ]
    assert only_old({1: rows(notes=((8, "a"),))}, new) == ["a: note of 1/8 only there"]


def test_pauses_are_measured():
    attempts = [
        attempt("a", "acked", 1, t0=0.0, t1=0.1),
        attempt("b", "failed", t0=0.1, t1=0.2),
        attempt("c", "acked", 2, shard=2, t0=0.3, t1=0.5),
        attempt("b", "acked", 3, t0=0.9, t1=1.1),
        attempt("d", "unknown", t0=1.1, t1=9.0),
    ]
    found = pauses(reversed(attempts))
    assert found.acknowledged == 3
    assert found.gap == pytest.approx(0.6)
    assert (found.worst, found.worst_token) == (pytest.approx(1.0), "b")
    assert pauses(attempts, shards=[1]).gap == pytest.approx(1.0)
    assert pauses(attempts, shards=[2]).acknowledged == 1
    assert pauses([]).acknowledged == 0


def test_a_log_is_read_up_to_its_last_whole_line(tmp_path):
    path = tmp_path / "log"
    reader = LogReader(path)
    assert list(reader.more()) == []
    line = line_of(ACKED)
    path.write_text(line + line[:20])
    assert list(reader.more()) == [ACKED]
    assert list(reader.more()) == []
    path.write_text(line + line + line)
    assert list(reader.more()) == [ACKED, ACKED]
    assert list(LogReader(path).more()) == [ACKED] * 3


def transfer(balance, *transfers, pins=((7, "a"),)):
    return Rows(
        pins=frozenset(pins),
        notes=tuple(pins),
        transfers=frozenset(transfers),
        balance=balance,
    )


@pytest.mark.parametrize(
    ("there", "problems"),
    [
        ([transfer(3, (3, "a")), transfer(-3, (-3, "a"), pins=())], []),
        ([transfer(3, (3, "a")), transfer(0, pins=())], ["a: half a transfer: [3]"]),
        (
            [transfer(0, (3, "a")), transfer(-3, (-3, "a"), pins=())],
            ["shard 1: transfers of 3, but a balance of 0"],
        ),
        (
            [transfer(3, (3, "b")), transfer(-3, (-3, "b"), pins=())],
            ["b: a transfer without its pin"],
        ),
    ],
)
def test_transfers_are_whole_and_add_up(there, problems):
    assert check([ACKED], dict(enumerate(there, 1))) == problems


def test_a_pin_that_was_read_in_vain_is_a_problem():
    read = attempt("b", "missing")
    assert check([ACKED, read], {1: HOME}) == ["b: None"]
