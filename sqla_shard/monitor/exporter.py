"""The HTTP server of ``sqla-shard exporter``."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from sqla_shard.exc import MissingExtraError

try:
    from prometheus_client import (
        CollectorRegistry,
        CONTENT_TYPE_LATEST,
        generate_latest,
    )
    from prometheus_client.core import GaugeMetricFamily
    from prometheus_client.registry import Collector
except ImportError as error:
    raise MissingExtraError(
        package="prometheus_client", extra="prometheus", reason=str(error)
    ) from error

from sqla_shard.monitor.definitions import FLEET
from sqla_shard.monitor.fleet_metrics import FleetMetrics

_log = logging.getLogger("sqla_shard.exporter")

_PATH = "/metrics"


class _Fleet(Collector):
    """The metrics of a fleet, for a registry of prometheus_client."""

    def __init__(self, metrics: FleetMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Any]:
        """Return the families, each with the values of its labels."""
        families = {
            one.name: GaugeMetricFamily(
                one.prometheus_name, one.help, labels=one.labels
            )
            for one in FLEET
        }
        for one in self._metrics.collect():
            family = families[one.metric.name]
            family.add_metric(one.labels, float(one.value))
        return [family for family in families.values() if family.samples]


def render(metrics: FleetMetrics) -> bytes:
    """Return the metrics of a fleet in the text format of Prometheus."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Fleet(metrics))
    return generate_latest(registry)


class Exporter(ThreadingHTTPServer):
    """Serves the metrics of a fleet at ``/metrics``.

    :param metrics: the metrics.
    :param host: address to listen on.
    :param port: port to listen on; 0 for any free one.
    :raises OSError: if it cannot listen there.
    """

    daemon_threads = True

    def __init__(self, metrics: FleetMetrics, host: str, port: int) -> None:
        self.metrics = metrics
        super().__init__((host, port), partial(_Handler, metrics))

    @property
    def url(self) -> str:
        """URL of the metrics."""
        host, port = self.server_address[:2]
        name = str(host)
        return f"http://{f'[{name}]' if ':' in name else name}:{port}{_PATH}"


class _Handler(BaseHTTPRequestHandler):
    """Responds to GET /metrics."""

    #: Seconds to wait for a request; a client must not hold a thread.
    timeout = 30

    def __init__(self, metrics: FleetMetrics, *arguments: Any) -> None:
        self._metrics = metrics
        super().__init__(*arguments)

    def do_GET(self) -> None:  # the name of http.server
        """Respond with the metrics."""
        if self.path.partition("?")[0] != _PATH:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        body = render(self._metrics)
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", CONTENT_TYPE_LATEST)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Log a request, at the level of debugging."""
        _log.debug(format, *args, extra={"action": "export"})
