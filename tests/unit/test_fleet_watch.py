"""What watchers conclude from what they see, and what may be lost."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("kazoo")

from sqla_shard.fleet.dead_failover import loss_of
from sqla_shard.fleet.dead_failover import SemiSyncProbe
from sqla_shard.fleet.watch_votes import doubt
from sqla_shard.fleet.watch_votes import probe_of
from sqla_shard.fleet.watch_votes import Sight

LOST = Sight(
    lost_for=5.0, seen_ago=5.5, semi_sync=True, timeout=10.0, standbys=1
)
SEEN = replace(LOST, lost_for=None, seen_ago=0.1)


@pytest.mark.parametrize(
    ("sights", "reason"),
    [
        ([LOST, LOST, LOST], None),
        ([LOST, LOST], None),
        ([LOST], "no majority"),
        ([], "no majority"),
        ([LOST, LOST, SEEN], "1 of 3 watchers still see it"),
        ([LOST, replace(LOST, lost_for=2.0)], "1 of 3 watchers have not"),
    ],
)
def test_doubt(sights, reason):
    found = doubt(sights, watchers=3, dead_after=3.0)
    assert found is None if reason is None else reason in found


def test_of_four_watchers_three_must_agree():
    assert doubt([LOST, LOST], watchers=4, dead_after=3.0) is not None
    assert doubt([LOST] * 3, watchers=4, dead_after=3.0) is None


def test_the_last_look_of_any_watcher_counts():
    last = replace(LOST, seen_ago=5.2, lost_for=4.0, semi_sync=False)
    probe = probe_of([LOST, last], 100.0)
    assert probe == SemiSyncProbe(
        seen=94.8, lost=96.0, on=False, timeout=10.0, standbys=1
    )
    assert probe_of([replace(LOST, seen_ago=None)], 100.0) is None


PROBE = SemiSyncProbe(seen=10.0, lost=10.5, on=True, timeout=1.0, standbys=1)


@pytest.mark.parametrize(
    ("probe", "loss"),
    [
        (PROBE, "none: semi-sync was on at the last probe, 0.5 s before"),
        (None, "unknown: nobody has looked"),
        (replace(PROBE, on=False), "unknown: semi-sync was off"),
        (replace(PROBE, lost=11.0), "unknown: semi-sync was on"),
        (replace(PROBE, standbys=2), "but 2 standbys acknowledged"),
        (replace(PROBE, standbys=0), "but 0 standbys acknowledged"),
    ],
)
def test_loss(probe, loss):
    assert loss in loss_of(probe)
