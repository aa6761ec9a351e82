"""The blueprint, the application of its own, and its server."""

from __future__ import annotations

import ipaddress
import re
import secrets
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from flask import Blueprint, Flask, render_template, request
from flask.typing import ResponseReturnValue
from werkzeug.exceptions import HTTPException, SecurityError
from werkzeug.serving import BaseWSGIServer, make_server, WSGIRequestHandler

from sqla_shard.exc import ExtensionSetupError
from sqla_shard.monitor.dashboard.live import Streams
from sqla_shard.monitor.dashboard.maps import bytes_text, number_text
from sqla_shard.monitor.dashboard.observer import Observer
from sqla_shard.monitor.dashboard.pages import FOLDER, Pages
from sqla_shard.monitor.dashboard.security import add_headers, check_site, form_token
from sqla_shard.util.masking import host_and_port

_MOST_BYTES = 64 * 1024  # of a request
_NAMES = ("127.0.0.1", "localhost", "[::1]")
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^:\[\]]+)(?::[0-9]+)?")


class DashboardBlueprint(Blueprint):
    """The pages, which an application mounts.

    :ivar streams: the open streams of events.
    """

    streams: Streams


def dashboard_blueprint(
    observer: Observer, *, allow_changes: bool = False
) -> DashboardBlueprint:
    """Return the pages, to be mounted by a Flask application.

    The pages have no login of their own; add one::

        blueprint = dashboard_blueprint(Observer(db.cluster))

        @blueprint.before_request
        def only_operators():
            if not current_user.is_operator:
                abort(403)

        app.register_blueprint(blueprint, url_prefix="/shards")

    :param observer: what the pages show.
    :param allow_changes: whether failed jobs may be retried and deleted; the
        application then needs a ``SECRET_KEY``.
    :raises ExtensionSetupError: when it is registered without a secret key,
        although changes are allowed.
    """
    blueprint = DashboardBlueprint(
        FOLDER, __name__, static_folder="static", template_folder="templates"
    )
    blueprint.streams = Streams(observer)
    pages = Pages(observer, blueprint.streams, changes=allow_changes)
    pages.add_to(blueprint)
    blueprint.before_request(check_site)
    blueprint.after_request(add_headers)
    blueprint.register_error_handler(HTTPException, _show_error)
    blueprint.add_app_template_filter(_when, "sqla_shard_when")
    blueprint.add_app_template_filter(_duration, "sqla_shard_duration")
    blueprint.add_app_template_filter(_percent, "sqla_shard_percent")
    blueprint.add_app_template_filter(bytes_text, "sqla_shard_bytes")
    blueprint.add_app_template_filter(number_text, "sqla_shard_number")

    @blueprint.context_processor
    def _values() -> dict[str, Any]:
        return {"form_token": form_token}

    @blueprint.record
    def _check(state: Any) -> None:
        if allow_changes and not state.app.secret_key:
            raise ExtensionSetupError(
                "has no SECRET_KEY, which signs the tokens of forms; set it, "
                "or do not allow changes",
                app=state.app.name,
            )

    return blueprint


def create_app(
    observer: Observer, *, allow_changes: bool = False, hosts: Sequence[str] = _NAMES
) -> Flask:
    """Return an application with the pages only.

    It has no login: serve it on the loopback interface.

    :param hosts: names by which browsers may call it; others are refused,
        since a page elsewhere could have given itself this address.
    """
    return _app_of(dashboard_blueprint(observer, allow_changes=allow_changes), hosts)


def _app_of(blueprint: Blueprint, hosts: Sequence[str]) -> Flask:
    app = Flask(__name__, static_folder=None)
    app.config.update(
        SECRET_KEY=secrets.token_bytes(32),
        MAX_CONTENT_LENGTH=_MOST_BYTES,
        SESSION_COOKIE_NAME="sqla_shard_dashboard",
        SESSION_COOKIE_HTTPONLY=True,
        SESSION_COOKIE_SAMESITE="Strict",
    )
    names = {host.strip("[]").lower() for host in hosts}

    @app.before_request
    def _check_host() -> None:
        # Flask's TRUSTED_HOSTS would refuse each IPv6 address.
        found = _HOST.fullmatch(request.host.lower())
        if found is None or found[1].strip("[]") not in names:
            raise SecurityError(f"Host {request.host!r} is not trusted.")

    app.register_blueprint(blueprint)
    # Of addresses that no page has.
    app.register_error_handler(HTTPException, _show_error)
    app.after_request(add_headers)
    return app


class _Quiet(WSGIRequestHandler):
    """Logs errors only."""

    def log_request(self, code: object = "-", size: object = "-") -> None:
        pass


class DashboardServer:
    """Serves the application on the loopback interface.

    :param host: an address of it.
    :param port: 0 for a free one.
    :raises ExtensionSetupError: if the address is not one of the loopback
        interface.
    :raises OSError: if the port is in use.
    """

    def __init__(
        self,
        observer: Observer,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        allow_changes: bool = False,
    ) -> None:
        if not ipaddress.ip_address(host).is_loopback:
            raise ExtensionSetupError(
                f"would be served at {host} without a login; use an address "
                "of the loopback interface and ssh -L, or mount "
                "dashboard_blueprint() in an application with a login",
                app="sqla-shard dashboard",
            )
        blueprint = dashboard_blueprint(observer, allow_changes=allow_changes)
        self._streams = blueprint.streams
        self.app = _app_of(blueprint, (*_NAMES, host))
        self._server: BaseWSGIServer = make_server(
            host, port, self.app, threaded=True, request_handler=_Quiet
        )
        # A browser that reads slowly must not keep the process alive.
        self._server.daemon_threads = True  # type: ignore[attr-defined]  # of ThreadingMixIn
        shown = host_and_port(host, self._server.server_port)
        self.address = f"http://{shown}"

    def serve(self) -> None:
        """Serve until :meth:`close` is called in another thread."""
        self._server.serve_forever()

    def close(self) -> None:
        """End :meth:`serve`, and all streams."""
        self._streams.close()
        self._server.shutdown()
        self._server.server_close()


def _show_error(error: HTTPException) -> ResponseReturnValue:
    if request.path.endswith("/events") or isinstance(error, SecurityError):
        # A page would have links with the name that was refused.
        return error.get_response()
    page = render_template(f"{FOLDER}/error.html", error=error, page="error")
    return page, error.code or 500


def _when(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S")


def _percent(part: float) -> str:
    """Return a part of 1 in per cent."""
    if 0 < part < 0.00001:
        return "< 0.001 %"
    return f"{100 * part:.3g} %"


def _duration(seconds: float | timedelta | None) -> str:
    """Return a duration in its two largest units."""
    if seconds is None:
        return "–"
    if isinstance(seconds, timedelta):
        seconds = seconds.total_seconds()
    left = int(seconds)
    parts: list[str] = []
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)):
        if left >= size or (unit == "s" and not parts):
            parts.append(f"{left // size} {unit}")
            left %= size
    return " ".join(parts[:2])
