"""An upgrade that says that all is done is right, whatever happens to it."""

from __future__ import annotations

import os
import random
import threading
from collections import Counter
from collections.abc import Callable

import pytest

from sqla_shard import schema
from sqla_shard.schema.environment import TopologyChanges
from tests.models.schema import on_servers, Project, runner_fixture, until
from tests.servers.emptied_chaos import Databases
from tests.workers.schema_runner import Finished, Run

pytestmark = pytest.mark.live
runner = runner_fixture()
project = on_servers("schnewer", shards=4)

SOAK = os.environ.get("SQLA_SHARD_SOAK") == "1"
TIMES = 20 if SOAK else 1

CALL = "run_env(context, MetaData())"
# Without the comparison with the published topology.
WITHOUT_COMPARISON = f"""
from sqla_shard.schema.environment import TopologyChanges

TopologyChanges.has_moved = lambda self, shard_ids: False
TopologyChanges.with_moved_shards = lambda self, report, *, all_shards: report
{CALL}
"""


def revise(project: Project, number: int) -> None:
    """Add a revision whose statements take their time."""
    project.add(
        f"r{number}",
        f"""
import time
op.execute("CREATE TABLE t{number} (n INT)")
time.sleep(0.05)
op.execute("INSERT INTO t{number} VALUES (1)")
""",
    )


def behind(project: Project, number: int) -> list[int]:
    """Return the shards that are not at a revision, where they are now."""
    found = []
    for shard_id in project.shards:
        tables = project.query(
            shard_id,
            "SELECT COUNT(*) FROM information_schema.tables WHERE "
            f"table_schema = '{project.place(shard_id)[1]}' "
            f"AND table_name = 't{number}'",
        )
        if (
            project.heads(shard_id) != [f"r{number}"]
            or tables != [(1,)]
            or project.query(shard_id, f"SELECT * FROM {{db}}t{number}") != [(1,)]
        ):
            found.append(shard_id)
    return found


def begun(project: Project, run: Run, number: int, done: int) -> None:
    """Wait until so many shards are at a revision, or the run has ended."""
    until(
        lambda: (
            run.has_ended()
            or sum(
                project.heads(shard_id) == [f"r{number}"] for shard_id in project.shards
            )
            >= done
        ),
        f"{done} shards at r{number}",
    )


def wrong_claims(
    project: Project,
    rng: random.Random,
    whats: list[str],
    *,
    one_is_enough: bool = False,
) -> tuple[list[list[int]], Counter[str]]:
    """Upgrade again and again, during other events.

    :param whats: the event during each upgrade.
    :param one_is_enough: end when shards were behind.
    :returns: the shards that were behind where all were said to be done; and
        how the runs have ended.
    """
    project.provision()
    revise(project, 0)
    schema.upgrade(project.config())
    wrong: list[list[int]] = []
    ends: Counter[str] = Counter()
    with Databases.of(project) as databases:
        for number, what in enumerate(whats, 1):
            done, left = once(project, databases, rng, number, what)
            ends[f"{what}: {done.returncode}"] += 1
            if done.returncode == 0 and left:
                wrong.append(left)
                if one_is_enough:
                    break
            # The rest is for a run that nothing happens to.
            if left:
                project.alembic("upgrade", "head")
                assert behind(project, number) == []
    return wrong, ends


def once(
    project: Project, databases: Databases, rng: random.Random, number: int, what: str
) -> tuple[Finished, list[int]]:
    """Return how an upgrade has ended, and the shards that it left behind."""
    revise(project, number)
    upgrade = ("-x", "jobs=1", "-x", "wave=2", "upgrade", "head")
    run = project.start(*upgrade)
    begun(project, run, number, rng.randint(1, 2))
    threading.Event().wait(rng.uniform(0, 0.1))
    if what == "kill":
        done = run.kill()
    else:
        if what == "publish":
            # One whose turn comes late, or any.
            databases.copy_and_publish(rng.choice([1, 3, *project.shards]))
        else:
            databases.end_connections()
        done = run.wait()
    return done, behind(project, number)


def test_all_is_all(
    project: Project, rng: random.Random, say: Callable[[str], None]
) -> None:
    whats = TIMES * ["publish", "kill", "end connections"]
    rng.shuffle(whats)
    wrong, ends = wrong_claims(project, rng, whats)
    say(f"{dict(ends)}")
    assert wrong == []


def test_without_looking_at_the_topology_it_is_not(
    project: Project, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    # env.py replaces them in this process, too; they are put back at the end.
    monkeypatch.setattr(TopologyChanges, "has_moved", TopologyChanges.has_moved)
    monkeypatch.setattr(
        TopologyChanges, "with_moved_shards", TopologyChanges.with_moved_shards
    )
    project.replace_in_env(CALL, WITHOUT_COMPARISON)
    # A machine may be so fast that the run has passed the shard each time.
    wrong, _ = wrong_claims(project, rng, 30 * ["publish"], one_is_enough=True)
    assert wrong != []
