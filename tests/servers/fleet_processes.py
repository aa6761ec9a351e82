"""A fleet operation in a process of its own, which kills itself.

::

    apply_until(fleet, plan, step="fence", state="done")

The process applies a plan and ends with SIGKILL at an event of a step, as
``kill -9`` would end it.  It is a fork: a new interpreter would need seconds
for its imports on a machine that is busy with writers.
"""

from __future__ import annotations

import multiprocessing
import os
import signal

from sqla_shard.fleet import apply, Fleet, FleetPlan
from sqla_shard.fleet.operation import StepEvent

_PATIENCE = 120.0


def apply_until(fleet: Fleet, plan: FleetPlan, *, step: str, state: str) -> None:
    """Apply a plan in another process until it kills itself.

    :param step: name of the step at which it is killed.
    :param state: ``"begin"`` or ``"done"``.
    :raises AssertionError: if it ends in any other way.
    """

    def progress(event: StepEvent) -> None:
        if (event.step, event.state) == (step, state):
            os.kill(os.getpid(), signal.SIGKILL)

    process = multiprocessing.get_context("fork").Process(
        target=apply, args=(fleet, plan), kwargs={"progress": progress}
    )
    process.start()
    process.join(_PATIENCE)
    if process.exitcode is None:
        process.kill()
        process.join()
    if process.exitcode != -signal.SIGKILL:
        raise AssertionError(f"it ended with {process.exitcode}")
    process.close()
