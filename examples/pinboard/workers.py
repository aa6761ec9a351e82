r"""The worker of the command: a thread that runs the jobs of all queues.

Elsewhere workers are processes of their own::

    sqla-shard worker --models examples.pinboard.workers --deliver \
        --queues lists,titles,imports
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from examples.pinboard import import_jobs
from examples.pinboard import models
from examples.pinboard import titles
from sqla_shard import Cluster
from sqla_shard.jobs import Worker

__all__ = ["QUEUES", "working"]

QUEUES = (models.LISTS, titles.QUEUE, import_jobs.QUEUE)
_STOP = 5.0
"""Seconds that running jobs have at the end; others are run at the next
start."""


@contextmanager
def working(cluster: Cluster) -> Iterator[None]:
    """Run jobs until the end of the context, in a thread of this process.

    Errors that have ended the worker are raised at the end.
    """
    worker = Worker(cluster, QUEUES, concurrency=2)
    with ThreadPoolExecutor(1, "pinboard-worker") as executor:
        running = executor.submit(worker.run)
        try:
            yield
        finally:
            worker.stop(_STOP)
        running.result()
