"""Lines that tell how far a run is."""

from __future__ import annotations

from io import StringIO

from sqla_shard.schema.reports import LineProgress
from sqla_shard.schema.reports import Outcome
from sqla_shard.schema.reports import State


def test_shards_with_nothing_to_do_make_a_run_no_quicker():
    outcomes = [
        Outcome(
            shard_id=shard_id,
            server="server1",
            database=f"db{shard_id:05d}",
            state=State.CURRENT,
        )
        for shard_id in range(100)
    ]
    file = StringIO()
    progress = LineProgress(file)
    progress.begin("upgrade", "head", 100, outcomes[:90])
    # Ten seconds ago.
    progress._began -= 10
    progress._shown -= 10
    progress.advance(outcomes[90])
    line = file.getvalue().splitlines()[-1]
    assert line == "91 of 100, 0 failed, 0 a second, 90 s left"
