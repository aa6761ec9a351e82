"""The order in which a worker claims jobs of many shards."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

from sqla_shard.jobs.claims import JobState
from sqla_shard.jobs.survey import DueGroup, Schedule

SHARDS = 500

PLACES: Any = SimpleNamespace(topology=SimpleNamespace(keyspaces={}))


def group(shard_id: int, queue: str, priority: int) -> DueGroup:
    return DueGroup(
        keyspace="objects",
        shard_id=shard_id,
        state=JobState.PENDING,
        queue=queue,
        priority=priority,
    )


def surveyed(*others: DueGroup, seed: int = 1) -> Schedule:
    """Return the schedule of a worker with a backlog on each shard."""
    schedule = Schedule(random.Random(seed))
    backlog = [group(number, "bulk", 3) for number in range(SHARDS)]
    schedule.surveyed([*backlog, *others], PLACES)
    return schedule


def claims_until(schedule: Schedule, wanted: DueGroup) -> int:
    """Return how many claims precede the one that begins with some jobs."""
    for number in range(10 * SHARDS):
        groups = schedule.next_groups()
        if groups[0] == wanted:
            return number
        # More jobs are due than one claim takes.
        schedule.emptied(groups[0].address, ())
    raise AssertionError(wanted)


def test_an_urgent_job_does_not_wait_for_a_backlog_on_each_shard() -> None:
    urgent = group(7, "bulk", 1)
    waited = [claims_until(surveyed(urgent, seed=n), urgent) for n in range(30)]
    assert max(waited) < 10, waited


def test_a_queue_does_not_wait_for_the_backlog_of_another() -> None:
    other = group(7, "other", 3)
    waited = [claims_until(surveyed(other, seed=n), other) for n in range(30)]
    assert max(waited) < 20, waited


def test_a_backlog_of_urgent_jobs_leaves_a_part_to_the_others() -> None:
    urgent = [group(number, "bulk", 1) for number in range(SHARDS // 2)]
    schedule = surveyed(*urgent)
    claimed = []
    for _ in range(1000):
        first, *_rest = schedule.next_groups()
        claimed.append(first.priority)
        schedule.emptied(first.address, ())
    assert 850 < claimed.count(1) < 950


def test_each_shard_has_its_turn() -> None:
    schedule = surveyed()
    claimed = []
    for _ in range(2 * SHARDS):
        (found,) = schedule.next_groups()
        claimed.append(found.shard_id)
        schedule.emptied(found.address, ())
    assert sorted(claimed[:SHARDS]) == list(range(SHARDS))
    assert claimed[:SHARDS] == claimed[SHARDS:]


def test_a_claim_has_all_groups_of_its_shard_until_they_are_empty() -> None:
    others = group(7, "other", 1), group(7, "bulk", 2)
    schedule = surveyed(*others)
    schedule.drop(("objects", 7))
    schedule.add([*others, group(7, "bulk", 3)])
    for _ in range(3):
        while True:
            groups = schedule.next_groups()
            if groups[0].shard_id == 7:
                break
            schedule.emptied(groups[0].address, groups)
        assert set(groups) >= {group(7, "bulk", 3)}
        assert len(groups) == len(set(groups))
        assert [one.priority for one in groups[1:]] == sorted(
            one.priority for one in groups[1:]
        )
        schedule.emptied(groups[0].address, [one for one in groups if one in others])
    schedule.drop(("objects", 7))
    assert (None, 7) not in {(None, one.shard_id) for one in schedule.next_groups()}
