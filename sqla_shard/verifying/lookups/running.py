"""Runs over lookups: the calls of an application, and of sqla-shard."""

from __future__ import annotations

import os
from collections.abc import Callable
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from sqla_shard.cluster import Cluster
from sqla_shard.lookup import LookupMixin
from sqla_shard.lookup.definition import link
from sqla_shard.verifying.classes import classes_of
from sqla_shard.verifying.contract import Check
from sqla_shard.verifying.looking import Pace
from sqla_shard.verifying.looking import Run
from sqla_shard.verifying.looking import VerifyProgress
from sqla_shard.verifying.lookups import kinds
from sqla_shard.verifying.lookups.missing import ObjectCheck
from sqla_shard.verifying.lookups.rows import ClaimCheck
from sqla_shard.verifying.lookups.rows import RowCheck
from sqla_shard.verifying.report import VerifyReport

__all__ = ["KEEP", "delete_abandoned", "verify_lookups"]

#: How long claims are left alone after their end.
KEEP = timedelta(days=1)

_NO_FIELD = (
    "not looked for: stale, missing and conflicting keys; the class has no "
    "field="
)


def verify_lookups(
    cluster: Cluster,
    classes: Iterable[type[Any]] | None = None,
    *,
    repair: bool = False,
    rekey: bool = False,
    rate: float | None = None,
    grace: float = 60.0,
    keep: timedelta = KEEP,
    position: str | os.PathLike[str] | None = None,
    batch: int = 500,
    on_progress: Callable[[VerifyProgress], object] | None = None,
) -> VerifyReport:
    """Look whether keys lead to objects, and objects are found by keys.

    It runs beside a live application: it reads primaries, one batch a
    transaction, and what seems wrong is looked at a second time before it
    counts.  Without ``repair`` and ``rekey`` nothing is written.

    :param classes: the lookup classes; by default all that there are in this
        process.
    :param repair: put right what can be put right without asking anybody,
        and delete abandoned claims.
    :param rekey: write the rows of ``previous`` policies anew, under the
        present one.
    :param rate: rows a second at most.
    :param grace: seconds between the two looks; more than it takes to sign
        up, or to change a key.
    :param keep: how long claims are left alone after their end.
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
    found = classes_of(LookupMixin, classes)
    _check_keep(keep)
    checks: list[Check] = []
    for cls in found:
        checks.append(RowCheck(cls, keep))
        if link(cls).field is not None:
            checks.append(ObjectCheck(cls, keep))
    wanted = set(kinds.REPAIRABLE) if repair else set()
    if rekey:
        wanted.add(kinds.OUTDATED.name)
    return Run(
        cluster,
        checks,
        repair=wanted,
        pace=Pace(rate=rate, grace=grace, batch=batch),
        command="lookups",
        position=position,
        on_progress=on_progress,
    ).run({c.__name__: _NO_FIELD for c in found if link(c).field is None})


def delete_abandoned(
    cluster: Cluster,
    classes: Iterable[type[Any]] | None = None,
    *,
    older_than: timedelta = KEEP,
    rate: float | None = None,
    batch: int = 500,
) -> int:
    """Delete claims that ended long ago, and look at nothing else.

    A claim that has ended can still be confirmed as long as it is there:
    let this be longer than anybody may take to confirm one.

    :param classes: the lookup classes; by default all of this process.
    :param older_than: how long ago they ended, by the clocks of the servers.
    :param rate: claims a second at most.
    :param batch: how many one transaction reads at most.
    :returns: how many were deleted.
    :raises ValueError: when an argument makes no sense.
    :raises SQLAlchemyError: when a server cannot be asked; those of the
        others are deleted.
    """
    _check_keep(older_than)
    run = Run(
        cluster,
        [
            ClaimCheck(cls, older_than)
            for cls in classes_of(LookupMixin, classes)
            if link(cls).unique
        ],
        repair={kinds.ABANDONED.name},
        pace=Pace(rate=rate, grace=0.0, batch=batch),
        command="abandoned",
        position=None,
    )
    report = run.run({})
    if report.unread and run.error is not None:
        raise run.error
    return report.repaired(kinds.ABANDONED.name)


def _check_keep(keep: object) -> None:
    if not isinstance(keep, timedelta) or keep < timedelta(0):
        raise ValueError(f"{keep!r}; it is a timedelta, from 0")
