"""``/metrics`` of an application, with prometheus_client.

::

    from sqla_shard.monitor.prometheus import PrometheusMetrics

    metrics = PrometheusMetrics(cluster)
    app = Starlette(routes=[Mount("/metrics", metrics.asgi_app)])

With several worker processes any of them responds to a request, and has to
have the numbers of all.  That is the multiprocess mode of prometheus_client:
set ``PROMETHEUS_MULTIPROC_DIR`` to an empty directory before Python starts,
and call ``prometheus_client.multiprocess.mark_process_dead(pid)`` when a
worker has ended.  Epoch and age of the topology then have a label ``pid``.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from sqla_shard.exc import MissingExtraError, OptionError

try:
    import prometheus_client
    from prometheus_client import CollectorRegistry, multiprocess
    from prometheus_client.registry import Collector
except ImportError as _error:
    raise MissingExtraError(
        package="prometheus_client", extra="prometheus", reason=str(_error)
    ) from _error

from sqla_shard.cluster.cluster import Cluster
from sqla_shard.monitor.metrics import (
    APPLICATION,
    Metric,
    metric,
    observations,
    Recorder,
    Totals,
)
from sqla_shard.session.commit import OUTCOMES
from sqla_shard.util.processes import in_children

CONTENT_TYPE = prometheus_client.CONTENT_TYPE_LATEST
"""The media type of :meth:`PrometheusMetrics.render`."""

DIRECTORY = "PROMETHEUS_MULTIPROC_DIR"
"""Environment variable of the multiprocess mode."""

#: Seconds between two readings of the gauges in multiprocess mode.
_INTERVAL = 5.0

_Receive = Callable[[], Awaitable[Any]]
_Send = Callable[[dict[str, Any]], Awaitable[None]]


class PrometheusMetrics:
    """The metrics of a cluster in this process, in a registry.

    :param cluster: the cluster.
    :param registry: the registry; by default a new one, which has nothing
        else.  ``prometheus_client.REGISTRY`` has the metrics of Python, too.
    :raises OptionError: if the registry has the metrics of a cluster.
    """

    def __init__(
        self, cluster: Cluster, registry: CollectorRegistry | None = None
    ) -> None:
        self._cluster = cluster
        if registry is None:
            registry = CollectorRegistry()
        self._registry = registry
        self._shares = DIRECTORY in os.environ
        self._totals = Totals()
        self._gauges: set[tuple[str, tuple[str, ...]]] = set()
        try:
            # Gauges are read just before the registry is collected.
            self._before = _Before(self)
            registry.register(self._before)
            self._instruments = {
                one.name: _instrument(one, registry) for one in APPLICATION
            }
        except ValueError as error:
            raise OptionError(
                "has the metrics of a cluster already; stop() them, or pass "
                "registry=CollectorRegistry()",
                option="registry",
                value=registry,
            ) from error
        for outcome in OUTCOMES:
            # A counter that begins with 1 does not increase in Prometheus.
            self.add(metric("transaction.commits"), 0, outcome)
        self._recorder = Recorder(cluster, self)
        self._ended = threading.Event()
        if self._shares:
            self._start()
        in_children(self)

    def after_fork(self) -> None:
        """Begin to share the metrics of a child process."""
        self._totals.after_fork()
        if self._shares and not self._ended.is_set():
            self._ended = threading.Event()
            self._start()

    def _start(self) -> None:
        threading.Thread(
            target=self._refresh_often,
            args=(self._ended,),
            name="sqla-shard-metrics",
            daemon=True,
        ).start()

    def _refresh_often(self, ended: threading.Event) -> None:
        while True:
            self.refresh()
            if ended.wait(_INTERVAL):
                return

    def stop(self) -> None:
        """Stop recording, and remove the metrics from the registry."""
        self._ended.set()
        self._recorder.stop()
        for one in (self._before, *self._instruments.values()):
            self._registry.unregister(one)

    def add(self, one: Metric, amount: float, *labels: str) -> None:
        """Increase a counter; see :class:`.Sink`."""
        self._of(one, labels).inc(amount)

    def record(self, one: Metric, value: float, *labels: str) -> None:
        """Add a value to a histogram; see :class:`.Sink`."""
        self._of(one, labels).observe(value)

    def _of(self, one: Metric, labels: tuple[str, ...]) -> Any:
        instrument = self._instruments[one.name]
        return instrument.labels(*labels) if one.labels else instrument

    def refresh(self) -> None:
        """Read the pools, the state of the topology and the cache."""
        gauges = set()
        for one in observations(self._cluster):
            if one.metric.kind == "counter":
                self.add(one.metric, self._totals.increase(one), *one.labels)
            else:
                self._of(one.metric, one.labels).set(one.value)
                gauges.add((one.metric.name, one.labels))
        # A server that has left the topology has no connections.
        for name, labels in self._gauges - gauges:
            self._instruments[name].labels(*labels).set(0)
        self._gauges |= gauges

    def render(self) -> bytes:
        """Return the metrics in the text format of Prometheus.

        In multiprocess mode they are those of all processes.
        """
        registry = self._registry
        if self._shares:
            self.refresh()
            registry = CollectorRegistry()
            multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]  # has no annotations
        return prometheus_client.generate_latest(registry)

    async def asgi_app(
        self, scope: Mapping[str, Any], receive: _Receive, send: _Send
    ) -> None:
        """Respond to a request of ASGI, for Starlette's ``Mount``.

        Only GET and HEAD are allowed.
        """
        if scope["type"] != "http":
            raise OptionError(
                "is not a request of HTTP; mount asgi_app at a path",
                option="scope.type",
                value=scope["type"],
            )
        is_allowed = scope["method"] in ("GET", "HEAD")
        body = self.render() if is_allowed else b""
        await send(
            {
                "type": "http.response.start",
                "status": 200 if is_allowed else 405,
                "headers": [
                    (b"content-type", CONTENT_TYPE.encode()),
                    (b"cache-control", b"no-store"),
                ],
            }
        )
        await send(
            {
                "type": "http.response.body",
                "body": b"" if scope["method"] == "HEAD" else body,
            }
        )


class _Before(Collector):
    """Refreshes the gauges when a registry is collected."""

    def __init__(self, metrics: PrometheusMetrics) -> None:
        self._metrics = metrics

    def describe(self) -> Iterable[Any]:
        """Return nothing; otherwise the registry would collect it now."""
        return ()

    def collect(self) -> Iterable[Any]:
        """Refresh the gauges, which the registry has, and return nothing."""
        self._metrics.refresh()
        return ()


def _instrument(one: Metric, registry: CollectorRegistry) -> Any:
    """Return a new instrument of prometheus_client."""
    options: dict[str, Any] = {}
    name = one.prometheus_name.removesuffix("_total")
    kind: Any = {
        "counter": prometheus_client.Counter,
        "gauge": prometheus_client.Gauge,
        "histogram": prometheus_client.Histogram,
    }[one.kind]
    if one.kind == "histogram":
        options["buckets"] = one.buckets
    if one.kind == "gauge":
        # The connections of all workers; epoch and age of each.
        options["multiprocess_mode"] = "livesum" if one.labels else "liveall"
    return kind(name, one.help, one.labels, registry=registry, **options)
