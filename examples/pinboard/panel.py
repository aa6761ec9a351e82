"""A page about the cache, for whoever wants to see it work.

What it counts is of this process.  It names no node, and whoever is signed
in may switch: this is a demonstration.
"""

from __future__ import annotations

from flask import abort
from flask import Blueprint
from flask import redirect
from flask import render_template
from flask import request
from flask import url_for
from flask.typing import ResponseReturnValue

from examples.pinboard.database import db
from examples.pinboard.errors import NotFoundError
from examples.pinboard.security import require_user
from sqla_shard.cache import Cache

__all__ = ["blueprint"]

blueprint = Blueprint("panel", __name__)


def _cache() -> Cache:
    require_user()
    cache = db.cluster.cache
    if cache is None:
        raise NotFoundError("Nothing is kept in a cache here.")
    return cache


@blueprint.get("/cache")
def cache() -> ResponseReturnValue:
    """Show what was counted."""
    return render_template("cache.html", regions=_cache().stats())


@blueprint.post("/cache/<name>")
def switch(name: str) -> ResponseReturnValue:
    """Let reads of a class use the cache, or the database."""
    cache = _cache()
    found = {cls.__name__: cls for cls in cache.classes}.get(name)
    if found is None:
        raise NotFoundError("No class of that name is kept.")
    to = request.form.get("to")
    if to == "on":
        cache.enable(found)
    elif to == "off":
        cache.disable(found)
    else:
        abort(400)
    return redirect(url_for("panel.cache", _anchor=name), 303)
