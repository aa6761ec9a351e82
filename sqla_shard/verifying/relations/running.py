"""A run over mappings: the call of an application, and of sqla-shard."""

from __future__ import annotations

import os
from collections.abc import Callable
from collections.abc import Iterable
from typing import Any

from sqla_shard.cluster import Cluster
from sqla_shard.mappings import MappingMixin
from sqla_shard.verifying.classes import classes_of
from sqla_shard.verifying.looking import Pace
from sqla_shard.verifying.looking import Run
from sqla_shard.verifying.looking import VerifyProgress
from sqla_shard.verifying.relations.rows import DANGLING
from sqla_shard.verifying.relations.rows import MappingCheck
from sqla_shard.verifying.relations.rows import ONE_SIDED
from sqla_shard.verifying.report import VerifyReport

__all__ = ["verify_relations"]

#: What ``repair=True`` puts right.
_REPAIRABLE = frozenset({DANGLING.name, ONE_SIDED.name})


def verify_relations(
    cluster: Cluster,
    classes: Iterable[type[Any]] | None = None,
    *,
    repair: bool = False,
    rate: float | None = None,
    grace: float = 60.0,
    position: str | os.PathLike[str] | None = None,
    batch: int = 500,
    on_progress: Callable[[VerifyProgress], object] | None = None,
) -> VerifyReport:
    """Look whether the objects of mappings are there, and both directions.

    It runs beside a live application, as
    :func:`~sqla_shard.verifying.verify_lookups` does.  A reverse row that is
    still to be written by an intent is reported as one-sided, and repairing
    it does no harm.

    :param classes: the mapping classes; by default all that there are in
        this process.  Of one with an inverse give both.
    :param repair: delete rows whose source or target is not there, and
        write inverses as their mappings have it.
    :param rate: rows a second at most.
    :param grace: seconds between the two looks at what seems wrong.
    :param position: a file that has how far the run is.  One that was
        interrupted goes on from there, one that could not read all reads the
        rest; when it is over the file is removed.
    :param batch: rows that one transaction reads at most.
    :param on_progress: called after each batch.
    :returns: data; ``str()`` of it is for reading.  What a server kept from
        being read is in ``unread``.
    :raises VerifyPositionError: when the file is that of another run.
    :raises ValueError: when an argument makes no sense.
    """
    checks = [MappingCheck(cls) for cls in classes_of(MappingMixin, classes)]
    wanted = _REPAIRABLE if repair else frozenset()
    return Run(
        cluster,
        checks,
        repair=wanted,
        pace=Pace(rate=rate, grace=grace, batch=batch),
        command="relations",
        position=position,
        on_progress=on_progress,
    ).run({})
