"""The pages of the lab, on the loopback interface only.

There is no sign-in here.  Changes are made by forms with the CSRF token of the
application, as everywhere else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flask import (
    abort,
    Blueprint,
    current_app,
    redirect,
    render_template,
    request,
    url_for,
)
from flask.typing import ResponseReturnValue

from examples.pinboard.database import db
from examples.pinboard.errors import ConflictError, NotFoundError
from examples.pinboard.lab import tour
from examples.pinboard.lab.bench import SLOW
from examples.pinboard.lab.newest import newest_pins, refusal
from examples.pinboard.lab.writers import SECONDS, WRITERS

if TYPE_CHECKING:
    from examples.pinboard.lab.lab import Lab

_LOOPBACK = ("127.0.0.1", "::1")

blueprint = Blueprint(
    "lab",
    __name__,
    url_prefix="/lab",
    template_folder="templates",
    static_folder="static",
)


@blueprint.before_request
def refuse_others() -> None:
    """Serve this machine only, whatever address the server listens on."""
    if request.remote_addr not in _LOOPBACK:
        abort(403)


def _lab() -> Lab:
    lab: Lab = current_app.extensions["pinboard-lab"]
    return lab


@blueprint.get("/")
def page() -> ResponseReturnValue:
    """Show the controls for faults, growth and load."""
    lab = _lab()
    objects = lab.cluster.topology.sole("objects")
    is_growing = lab.bench.growth is not None and lab.bench.growth.status is None
    return render_template(
        "lab/page.html",
        servers=objects.servers,
        states=lab.bench.states(),
        slow=SLOW,
        is_growing=is_growing,
        # The page is updated without JavaScript, too.
        refresh=is_growing or (lab.run is not None and lab.run.is_running),
        writers=WRITERS,
        seconds=SECONDS,
    )


@blueprint.get("/newest")
def newest() -> ResponseReturnValue:
    """Show the newest pins of all users, and the time of each server."""
    lab = _lab()
    found = newest_pins(db.session)
    # The first statement of this page.
    asked = lab.trace.statements[0] if lab.trace.statements else None
    return render_template(
        "lab/newest.html", newest=found, asked=asked, refused=refusal(db.session)
    )


@blueprint.post("/servers/<name>")
def change_server(name: str) -> ResponseReturnValue:
    """Stop, start, slow down or speed up a server."""
    to = request.form.get("to")
    if to not in ("up", "slow", "stopped"):
        abort(400)
    bench = _lab().bench
    if not bench.can_stop:
        raise ConflictError(bench.why)
    try:
        bench.change(name, to)
    except KeyError:
        raise NotFoundError("There is no such server.") from None
    return redirect(url_for(".page", _anchor="break"), 303)


@blueprint.post("/cache")
def switch_cache() -> ResponseReturnValue:
    """Switch the cache on or off."""
    to = request.form.get("to")
    if to not in ("on", "off"):
        abort(400)
    lab = _lab()
    lab.bench.switch_cache(lab.cluster, on=to == "on")
    return redirect(url_for(".page", _anchor="break"), 303)


@blueprint.post("/grow")
def grow() -> ResponseReturnValue:
    """Start a third server, and move shards to it."""
    lab = _lab()
    if not lab.bench.can_stop:
        raise ConflictError(lab.bench.why)
    lab.bench.grow(lab.cluster)
    return redirect(url_for(".page", _anchor="grow"), 303)


@blueprint.post("/writers")
def start_writers() -> ResponseReturnValue:
    """Start a run of 200 writers."""
    lab = _lab()
    if not lab.bench.may_write:
        raise ConflictError(lab.bench.why)
    lab.start_writers()
    return redirect(url_for(".page", _anchor="writers"), 303)


@blueprint.post("/tour")
def go_to() -> ResponseReturnValue:
    """Go to a step of the tour, and to its page."""
    number = request.form.get("step", type=int) or 0
    tour.go_to(number)
    step = tour.step()
    if step is None:
        return redirect(url_for("pages.users"), 303)
    return redirect(url_for(step.endpoint, _anchor=step.anchor), 303)
