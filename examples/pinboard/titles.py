"""Pins without a title get that of their page, by a job.

The page is fetched outside of any transaction.  One transaction then writes
the title and acknowledges the job, if the pin still has the same link and no
title.  Until then, and if the page has none, the host of the link is shown.
"""

from __future__ import annotations

import os

from examples.pinboard.fetching import page_title
from examples.pinboard.inputs import MAX_TITLE, shorten
from examples.pinboard.models import Pin
from sqla_shard import ShardSession
from sqla_shard.jobs import current_job, Exponential, Linear, RunningJob, task

ALLOWED = "PINBOARD_TITLE_SERVERS"
"""Environment variable with the internal servers whose pages are fetched, as
``host:port`` with commas; none by default."""
QUEUE = "titles"


@task(
    "pinboard.fetch_title",
    queue=QUEUE,
    in_transaction=False,
    retry=Linear(2).then(Exponential(2)),
)
def fetch_title(pin_id: int) -> None:
    """Set the title of a pin to that of its page."""
    job = current_job()
    with job.cluster.session() as session:
        pin = session.get(Pin, pin_id)
        link = None if pin is None or pin.title else pin.link
    if link is None:
        return  # removed, or it has got a title
    allowed = os.environ.get(ALLOWED, "").split(",")
    title = shorten(page_title(link, allowed), MAX_TITLE).strip()
    job.cluster.run(_write, job, pin_id, link, title)


def _write(
    session: ShardSession, job: RunningJob, pin_id: int, link: str, title: str
) -> None:
    pin = session.get(Pin, pin_id, with_for_update=True)
    # If the link was changed meanwhile, the job runs again.
    if pin is not None and pin.link == link and not pin.title:
        pin.title = title
    job.ack_with(session)


def enqueue_title(session: ShardSession, pin: Pin) -> None:
    """Enqueue a job that fetches the title of a pin without one.

    :param pin: has its id; the transaction of the session writes it.
    """
    if not pin.title:
        fetch_title.enqueue(session, pin.id, near=pin.id, unique_key=f"title {pin.id}")
