"""Printing the statements of revisions once, for all shards: ``--sql``."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from functools import wraps
from typing import Any

from alembic.runtime.migration import MigrationStep
from alembic.runtime.migration import RevisionStep

from sqla_shard.exc import SchemaError
from sqla_shard.schema.selecting import Shard

__all__ = ["databases", "printable"]

Steps = Callable[..., Iterable[MigrationStep]]


def printable(fn: Steps) -> Steps:
    """Return steps that name the revision which cannot be printed.

    :param fn: what alembic's command gives as the steps of a database.
    """

    def steps(heads: Any, context: Any) -> Iterator[MigrationStep]:
        for step in fn(heads, context):
            if isinstance(step, RevisionStep):
                step.migration_fn = _named(step)
            yield step

    return steps


def _named(step: RevisionStep) -> Callable[..., None]:
    run = step.migration_fn
    direction = "upgrade" if step.is_upgrade else "downgrade"

    # Alembic prints the name of what it runs.
    @wraps(run)
    def named(**kwargs: Any) -> None:
        try:
            run(**kwargs)
        # What a revision does with the answer that it does not get, which is
        # None, may raise anything.
        except Exception as error:
            raise SchemaError(
                f"{direction} of {step.revision.revision} cannot be printed "
                "by --sql, which asks no database: does it read one? "
                f"{type(error).__name__}: {error}. Print the revisions "
                "before and after it, and write this one by hand"
            ) from error

    return named


def databases(shards: Sequence[Shard]) -> str:
    """Name the databases of shards; who pastes SQL believes the list."""
    runs: list[list[Shard]] = []
    for shard in shards:
        if runs and runs[-1][-1].shard_id + 1 == shard.shard_id:
            runs[-1].append(shard)
        else:
            runs.append([shard])
    return ", ".join(
        run[0].database
        if len(run) == 1
        else f"{run[0].database} to {run[-1].database}"
        for run in runs
    )
