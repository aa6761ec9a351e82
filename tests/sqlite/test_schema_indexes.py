"""The order of the indexes of a table, which SQLAlchemy has in a set."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.models.schema import on_sqlite, Project

# Its projects run alembic in processes of their own.
project = on_sqlite(shards=2)

NAMES = "bdfhjlnprtvxz" + "acegikmoqsuwy"
INDEXED = "\n".join(f'sa.Column("{name}", sa.Integer, index=True),' for name in NAMES)
OF_OPERATIONS = f"""
op.create_table("pins", {INDEXED})
"""
OF_METADATA = f"""
metadata = sa.MetaData()
sa.Table("pins", metadata, {INDEXED})
metadata.create_all(op.get_bind())
"""


@pytest.fixture
def runner():
    """Start no process that has loaded SQLAlchemy for all commands."""


def run(project: Project, seed: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "alembic", "-c", project.ini, *arguments],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def names(lines: list[str]) -> list[str]:
    """Return the names in the statements of indexes, in order."""
    begins = "CREATE INDEX "
    found = [line for line in lines if line.startswith(begins)]
    return [line.removeprefix(begins).split()[0] for line in found]


@pytest.mark.parametrize(
    "upgrade", [OF_OPERATIONS, OF_METADATA], ids=["operations", "metadata"]
)
def test_two_processes_send_indexes_in_the_order_of_names(project, upgrade):
    project.add("0001", upgrade)
    for shard_id, seed in enumerate(("1", "2")):
        only = f"shards={shard_id}"
        run(project, seed, "-x", only, "-x", "new=0-1", "upgrade", "head")
        sent = [one["statement"] for one in project.ledger(shard_id)]
        assert names(sent) == [f"ix_pins_{name}" for name in sorted(NAMES)]
    first, second = (project.ledger(shard_id) for shard_id in (0, 1))
    assert [one["statement"] for one in first] == [one["statement"] for one in second]


def test_the_statements_that_are_printed_have_the_order_too(project):
    project.add("0001", OF_OPERATIONS)
    for seed in ("1", "2"):
        shown = run(project, seed, "upgrade", "head", "--sql").splitlines()
        assert names(shown) == [f"ix_pins_{name}" for name in sorted(NAMES)]
