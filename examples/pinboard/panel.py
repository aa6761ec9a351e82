"""Pages that show how the row cache works, and the queues of jobs.

The cache has the counters of this process, and no node.  Every signed-in user
may use the switches: this is a demonstration.
"""

from __future__ import annotations

from flask import abort, Blueprint, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue

from examples.pinboard.database import db
from examples.pinboard.errors import NotFoundError
from examples.pinboard.security import require_user
from sqla_shard.cache import Cache
from sqla_shard.jobs import count_queues, jobs_of, JobState

#: Maximum number of failed jobs of a queue that are listed.
_SHOWN = 10

blueprint = Blueprint("panel", __name__)


def _cache() -> Cache:
    require_user()
    cache = db.cluster.cache
    if cache is None:
        raise NotFoundError("The row cache is not configured.")
    return cache


@blueprint.get("/cache")
def cache() -> ResponseReturnValue:
    """Show the counters of the cache."""
    return render_template("cache.html", regions=_cache().stats())


@blueprint.post("/cache/<name>")
def switch(name: str) -> ResponseReturnValue:
    """Let reads of a class use the cache, or the database."""
    cache = _cache()
    found = {cls.__name__: cls for cls in cache.classes}.get(name)
    if found is None:
        raise NotFoundError("No class of that name is cached.")
    to = request.form.get("to")
    if to == "on":
        cache.enable(found)
    elif to == "off":
        cache.disable(found)
    else:
        abort(400)
    return redirect(url_for("panel.cache", _anchor=name), 303)


@blueprint.get("/queues")
def queues() -> ResponseReturnValue:
    """Show the queues and the jobs that have failed."""
    require_user()
    counts = count_queues(db.cluster)
    failed = {
        one.queue: jobs_of(db.cluster, one.queue, [JobState.FAILED], limit=_SHOWN).jobs
        for one in counts
        if one.failed
    }
    return render_template("queues.html", queues=counts, failed=failed)
