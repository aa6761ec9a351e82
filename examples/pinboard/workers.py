r"""The worker of the command: a thread that runs the jobs of all queues.

Elsewhere workers are processes of their own::

    flask --app examples.pinboard.wsgi shard worker --deliver \
        --queues lists,titles,imports
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from examples.pinboard import import_jobs, models, titles
from sqla_shard import Cluster
from sqla_shard.jobs import RunReport, Worker

QUEUES = (models.LISTS, titles.QUEUE, import_jobs.QUEUE)
_STOP = 5.0
"""Seconds that running jobs have at the end; others run at the next start."""

_log = logging.getLogger(__name__)


@contextmanager
def working(cluster: Cluster) -> Iterator[None]:
    """Run jobs until the end of the context, in a thread of this process.

    An error that ends the worker is logged, and raised at the end.
    """
    worker = Worker(cluster, QUEUES, concurrency=2)
    with ThreadPoolExecutor(1, "pinboard-worker") as executor:
        running = executor.submit(worker.run)
        running.add_done_callback(_log_error)
        try:
            yield
        finally:
            worker.stop(_STOP)
        running.result()


def _log_error(running: Future[RunReport]) -> None:
    # Logged at once: the pages still work, and the jobs of users wait.
    error = running.exception()
    if error is not None:
        _log.error("no more jobs are run: %s", error)
