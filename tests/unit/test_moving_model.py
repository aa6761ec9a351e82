"""Every order of the steps of a move, with processes that lag and die."""

from __future__ import annotations

import os

import pytest

from tests.models.moving_model import Model, Rules, ViolationError

FORWARD = (*("marking", "copying", "reading", "closing", "switched", "detached"),)
THERE_AND_BACK = (*FORWARD[:5], "returning", "reading")
#: Back to the start, with writes without marks, and then all over again.
TWICE = ("marking", "copying", "marking", "legacy", *FORWARD[:5])
#: Writes were to stop, and did not have to.
REOPENED = (*FORWARD[:4], "reading", *FORWARD[3:5], "returning", "switched")

_IS_LONG = os.environ.get("SQLA_SHARD_SOAK") == "1"


@pytest.mark.parametrize("path", [FORWARD, THERE_AND_BACK, REOPENED])
def test_two_writers(path):
    kills = 1 if _IS_LONG else 0
    states, ends = Model(*path, writes=(1, 1), kills=kills).explore()
    assert states > 10_000
    assert ends


@pytest.mark.parametrize("path", [FORWARD, THERE_AND_BACK, REOPENED])
def test_a_writer_and_a_killed_process(path):
    writes = (3,) if _IS_LONG else (2,)
    states, _ = Model(*path, writes=writes, kills=1).explore()
    assert states > 5_000


def test_going_back_to_the_start_and_moving_again():
    writes = (1, 1) if _IS_LONG else (2,)
    states, _ = Model(*TWICE, writes=writes, kills=0).explore()
    assert states > 10_000


@pytest.mark.parametrize(
    ("rules", "path", "problem"),
    [
        # A process that has read the stage, and does not look again.
        (Rules(fenced=False), FORWARD, "acknowledged"),
        # The lock ends before the transaction does.
        (Rules(held=False), FORWARD, "acknowledged"),
        # A copy that was on its way for long replaces a newer one.
        (Rules(versions=False), FORWARD, "acknowledged"),
        # The sides change before the last rows are copied.
        (Rules(conditions=False), FORWARD, "acknowledged"),
        # Some database is two stages behind.
        (Rules(waits=False), FORWARD, "both sides accept writes"),
    ],
    ids=lambda value: repr(value) if isinstance(value, Rules) else "",
)
def test_without_a_rule_a_write_is_lost(rules, path, problem):
    with pytest.raises(ViolationError, match=problem):
        Model(*path, rules=rules, writes=(2,), kills=0).explore()


def test_marks_of_the_first_attempt_do_not_count_in_the_second():
    # Otherwise only a pass over all rows finds what was written in between.
    model = Model(*TWICE, rules=Rules(rounds=False), writes=(2,), kills=0)
    assert "tool: repair" in model.labels()


def test_a_pass_finds_and_repairs_a_write_that_bypasses_the_session():
    rules = Rules(bypass=True)
    model = Model(*FORWARD[:3], rules=rules, writes=(1,), kills=0)
    labels = model.labels()
    assert "writer 0: write that bypasses the session" in labels
    assert "tool: repair" in labels
    model.explore()
    # After the last pass no fence stops it, and the switch loses it.
    lost = Model(*FORWARD, rules=rules, writes=(1,), kills=0)
    with pytest.raises(ViolationError, match="1 writes were acknowledged"):
        lost.explore()
