"""A no-op task of Celery, RQ, dramatiq or Huey.

It is imported by workers, too.  The environment variables ``QUEUE_NAME`` and
``QUEUE_URL`` have the name of the library and the address of Redis.  It needs
only that library, so that an environment of its own suffices.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from time import perf_counter
from typing import Any

NAME = os.environ["QUEUE_NAME"]
URL = os.environ["QUEUE_URL"]

app: Any
enqueue: Callable[[], object]


def noop() -> None:
    """Do nothing."""


if NAME == "celery":
    from celery import Celery

    app = Celery("queue_program", broker=URL)
    app.conf.task_ignore_result = True
    enqueue = app.task(name="noop", acks_late=True)(noop).delay
elif NAME == "rq":
    from redis import Redis
    from rq import Queue

    app = Queue(connection=Redis.from_url(URL))

    def enqueue() -> object:
        """Enqueue one job."""
        return app.enqueue("queue_program.noop", result_ttl=0)

elif NAME == "dramatiq":
    import dramatiq
    from dramatiq.brokers.redis import RedisBroker

    app = RedisBroker(url=URL)
    dramatiq.set_broker(app)
    enqueue = dramatiq.actor(noop).send
else:
    from huey import RedisHuey

    app = RedisHuey("bench", url=URL, results=False)
    enqueue = app.task()(noop)


def fill(number: int) -> None:
    """Enqueue jobs, and print the seconds that it took."""
    begin = perf_counter()
    for _ in range(number):
        enqueue()
    print(perf_counter() - begin)  # the benchmark reads it
