"""No id is given twice, whatever becomes of databases during upgrades."""

from __future__ import annotations

import os
import random

import pytest

from sqla_shard import Cluster, schema
from sqla_shard.schema import environment
from sqla_shard.schema.applier import Applier
from tests.models.schema import on_servers, Project, runner_fixture
from tests.servers.emptied_chaos import Databases, PINS, rounds, twice, writing

pytestmark = pytest.mark.live
runner = runner_fixture()
project = on_servers("schchaos")

SOAK = os.environ.get("SQLA_SHARD_SOAK") == "1"
TIMES = 15 if SOAK else 1

# Prevents an upgrade from creating tables where others were.
GUARD = "run_env(context, MetaData())"
WITHOUT_GUARD = f"""
from sqla_shard.schema import environment
from sqla_shard.schema.applier import Applier

environment.mark_lost = lambda versions, *more: list(versions)
stepping = Applier._steps_with_journal


def unguarded(self, heads, context):
    self._expected = tuple(sorted(heads))
    return stepping(self, heads, context)


Applier._steps_with_journal = unguarded
{GUARD}
"""


def chaos(project: Project, rng: random.Random) -> list[int]:
    """Return the ids that were given twice."""
    project.add("r0", PINS)
    schema.upgrade(project.config())
    old = project.document
    with (
        Databases.of(project) as databases,
        writing(Cluster.from_topology(old), Cluster.from_topology(old)) as writers,
    ):
        current = writers[1].cluster
        rounds(writers)
        # In an order by chance, and each as often as the others.
        events = TIMES * [
            databases.drop,
            databases.drop_and_create,
            databases.set_aside,
            databases.move,
        ]
        rng.shuffle(events)
        for number, event in enumerate(events, 1):
            # Alembic's topology is the old one, or the newest.
            project.write_topology(rng.choice([old, databases.document]))
            if rng.random() < 0.5:
                project.add(f"r{number}")
            upgrade = ("-x", "continue_on_error=yes", "upgrade", "head")
            begun = rng.random() < 0.5 and project.start(*upgrade)
            shard_id = rng.choice(project.shards)
            if not databases.is_last:
                event(shard_id)
            if databases.topology != current.topology:
                current.update_topology(databases.topology)
            if begun:
                begun.wait()
            project.alembic(*upgrade, status=None)
            rounds(writers)
    return twice(writers)


def test_no_id_is_given_twice(project: Project, rng: random.Random) -> None:
    assert chaos(project, rng) == []


def test_without_the_guard_they_are(
    project: Project, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    # env.py replaces them in this process, too; they are put back at the end.
    monkeypatch.setattr(environment, "mark_lost", environment.mark_lost)
    monkeypatch.setattr(Applier, "_steps_with_journal", Applier._steps_with_journal)
    project.replace_in_env(GUARD, WITHOUT_GUARD)
    assert chaos(project, rng) != []
