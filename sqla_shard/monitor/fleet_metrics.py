"""Metrics of the servers of a fleet, each part within a time limit.

A part that has not ended in time is read further in its thread, and left out;
the next reading does not start it a second time.  So a server that hangs costs
one thread, and delays nothing else.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import monotonic, perf_counter
from typing import Any, NamedTuple

from sqlalchemy import make_url, text as sql
from sqlalchemy.exc import SQLAlchemyError

from sqla_shard.cluster.cluster import Cluster
from sqla_shard.engine.registry import filled, urls_of
from sqla_shard.engine.unreachable import (
    Address,
    Cause,
    driver_cause,
    unreachable_lines,
    UnreachableServer,
)
from sqla_shard.exc import FleetServerError, MissingExtraError, ShardMissingError
from sqla_shard.exc.base import original, summary
from sqla_shard.fleet.accounts import Accounts
from sqla_shard.fleet.fleet import pair_named
from sqla_shard.fleet.server_states import outage, read_state, Role
from sqla_shard.jobs.queues import queue_counts
from sqla_shard.monitor.cached_reading import CachedReading
from sqla_shard.monitor.load import report_load
from sqla_shard.monitor.load_stores import LoadStore
from sqla_shard.monitor.metrics import FLEET, metric, Observation
from sqla_shard.outbox.invalidations import by_region, outbox_size
from sqla_shard.outbox.pending_operations import counts
from sqla_shard.schema.ledger import read_versions
from sqla_shard.schema.selection import shards_of
from sqla_shard.topology import server_names, Topology
from sqla_shard.topology.urls import address_of
from sqla_shard.util.logs import careful_log

DATABASES = "databases"

"""Key of :meth:`FleetMetrics.problems`: shards without a database."""

TABLES = "tables"

"""Key of :meth:`FleetMetrics.problems`: shards without tables."""

GRANTS = "grants"

"""Key of :meth:`FleetMetrics.problems`: shards that must not be read."""

_log = careful_log("sqla_shard.exporter")


class _PartReading(NamedTuple):
    """The result of a part.

    :ivar problems: a line for each problem.
    :ivar databases: servers, and shards of each that have no database there.
    :ivar lacking: shards that lack a table, a database or a grant.
    """

    observed: list[Observation]
    problems: list[str]
    databases: tuple[tuple[str, Address], ...] = ()
    lacking: tuple[UnreachableServer, ...] = ()

    @classmethod
    def of(
        cls, observed: list[Observation], unreachable: Sequence[UnreachableServer]
    ) -> _PartReading:
        """Return a reading of all shards but those that were not read."""
        lacking: list[UnreachableServer] = []
        others: list[UnreachableServer] = []
        for one in unreachable:
            is_lacking = isinstance(one.error, ShardMissingError)
            (lacking if is_lacking else others).append(one)
        return cls(observed, unreachable_lines(others), lacking=tuple(lacking))

    def lines(self) -> list[str]:
        """Return a line for each server and problem, for the log."""
        return [
            *self.problems,
            *_databases(self.databases),
            *unreachable_lines(self.lacking),
        ]


def _databases(missing: Iterable[tuple[str, Address]]) -> list[str]:
    # Servers show no database on which an account has no privilege.
    cause = Cause("no such database, or no privilege on it")
    return unreachable_lines(
        UnreachableServer(server=server, cause=cause, addresses=(address,))
        for server, address in missing
    )


_Read = Callable[[], _PartReading]

_LATE = "no response in time"

_QUEUE_STATES = (*("due", "scheduled", "running", "expired", "failed", "done"),)


class FleetMetrics:
    """The metrics of the servers of a cluster.

    :param cluster: a cluster whose connections have time limits, see
        :meth:`options`.
    :param timeout: seconds after which what was not read is left out.
    :param interval: seconds for which counts of rows are read once.
    :param load: where the processes publish their load; None to leave it out.
    :param environ: values of the placeholders in URLs.
    :param accounts: accounts of an operator, to read standbys with; by
        default they are read with the account of the topology, which may not
        see their replication.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        timeout: float = 3.0,
        interval: float = 30.0,
        load: LoadStore | None = None,
        environ: Mapping[str, str] | None = None,
        accounts: Accounts | None = None,
    ) -> None:
        self._cluster = cluster
        self._accounts = accounts
        self._timeout = timeout
        self._environ = os.environ if environ is None else environ
        self._load = load
        self._lock = threading.Lock()
        self._parts = {
            name: _MetricsPart(name, read, interval)
            for name, read in (
                ("operations", self._operations),
                ("outbox", self._outbox),
                ("queues", self._queues),
                ("schema", self._schema),
            )
        }
        if load is not None:
            self._parts["load"] = _MetricsPart("load", self._shares, 0.0)
        self._servers: dict[tuple[str, str, str], _MetricsPart] = {}

    @staticmethod
    def options(topology: Topology, timeout: float) -> dict[str, Any]:
        """Return the engine options of a cluster with time limits.

        :param timeout: seconds of :class:`FleetMetrics`.
        """
        if not any(url.startswith("mysql") for url in urls_of(topology)):
            # The driver of SQLite has other options, and waits for nothing.
            return {}
        # Less than the whole: what other servers return must come in time.
        limit = max(1, int(timeout * 0.6))
        return {
            "connect_args": {
                "connect_timeout": limit,
                "read_timeout": limit,
                "write_timeout": limit,
            }
        }

    def collect(self) -> list[Observation]:
        """Return the metrics, after ``timeout`` seconds at the latest."""
        end = monotonic() + self._timeout
        # Not while waiting: calls in several threads would add their times.
        with self._lock:
            servers = self._probes()
            parts = (*servers.values(), *self._parts.values())
            numbers = {part: part.start() for part in parts}
        observations = [
            Observation(metric("published.epoch"), self._cluster.topology.epoch)
        ]
        for (name, role, _), part in servers.items():
            observed = part.reading(end, numbers[part]).observed
            up = Observation(metric("server.up"), bool(observed), (name, role))
            observations += [up, *observed]
        for name, part in self._parts.items():
            reading = part.reading(end, numbers[part])
            observations += reading.observed
            is_read = not reading.lines()
            observations.append(Observation(metric("exporter.read"), is_read, (name,)))
        return observations

    def problems(self) -> dict[str, list[str]]:
        """Return why parts were not read, by part, after :meth:`collect`.

        A server is a part, such as ``server1 primary``.  What several parts
        miss is shown once, under :data:`DATABASES`, :data:`TABLES` and
        :data:`GRANTS`.
        """
        parts = (*self._servers.values(), *self._parts.values())
        readings = [(part.name, part.reading()) for part in parts]
        by_part = {name: one.problems for name, one in readings if one.problems}
        missing = [pair for _, reading in readings for pair in reading.databases]
        known = {address for _, address in missing}
        tables: list[UnreachableServer] = []
        grants: list[UnreachableServer] = []
        for one in (one for _, reading in readings for one in reading.lacking):
            addresses = tuple(a for a in one.addresses if a not in known)
            if addresses and isinstance(one.error, ShardMissingError):
                some = grants if one.error.lacks == "grant" else tables
                # Not what to do about it, which is shown once for all.
                cause = driver_cause(original(one.error))
                some.append(replace(one, cause=cause, addresses=addresses))
        for name, lines in (
            (DATABASES, _databases(missing)),
            (TABLES, unreachable_lines(tables)),
            (GRANTS, unreachable_lines(grants)),
        ):
            if lines:
                by_part[name] = lines
        return by_part

    # -- servers

    def _probes(self) -> dict[tuple[str, str, str], _MetricsPart]:
        """Return a part for each server of the topology."""
        topology = self._cluster.topology
        names = server_names(topology)
        wanted: dict[tuple[str, str, str], _MetricsPart] = {}
        for keyspace in topology.keyspaces.values():
            for server in keyspace.servers:
                name = names[keyspace.name, server.name]
                urls: list[tuple[Role, str | None]] = [
                    ("primary", server.primary),
                    ("standby", server.standby),
                ]
                for role, url in urls:
                    if url is None:
                        continue
                    key = name, role, url
                    read = partial(self._server, name, role, url)
                    wanted[key] = self._servers.get(key) or _MetricsPart(
                        f"{name} {role}",
                        read,
                        0.0,
                        late=partial(self._outage, name, role, why=_LATE),
                    )
        self._servers = wanted
        return wanted

    def _server(self, name: str, role: Role, url: str) -> _PartReading:
        """Read the state of a server.

        :raises SQLAlchemyError: if it does not respond.
        """
        if make_url(url).get_backend_name() != "mysql":
            return self._ping(name, role)
        where = filled(url, self._environ)
        if role == "standby" and self._accounts is not None:
            where = self._accounts.url(url)
        try:
            state = read_state(
                where,
                name=name,
                role=role,
                address=str(address_of(url)),
                timeout=self._timeout,
            )
        except FleetServerError as error:
            line = self._outage(name, role, why=error.reason, number=error.number)
            return _PartReading([], [line])
        values = {
            "server.round_trip": state.round_trip,
            "server.read_only": state.read_only,
            "server.connections": state.connected,
            "server.connection_limit": state.most,
        }
        observations = [
            Observation(metric(key), float(value), (name, role))
            for key, value in values.items()
            if value is not None
        ]
        if role == "primary":
            return _PartReading(observations, [])
        if state.unknown is not None:
            why = f"replication of {name}: {state.unknown}"
            return _PartReading(observations, [why])
        runs = state.replication is not None and state.replication.runs
        observations.append(
            Observation(metric("server.replication_runs"), runs, (name,))
        )
        if state.lag is not None:
            observations.append(Observation(metric("server.lag"), state.lag, (name,)))
        return _PartReading(observations, [])

    def _outage(
        self, name: str, role: Role, *, why: str, number: int | None = None
    ) -> str:
        """Return the line of a server that does not respond."""
        pair = pair_named(self._cluster.topology, name)
        return str(outage(pair, role, why=why, number=number))

    def _ping(self, name: str, role: str) -> _PartReading:
        """Time a statement on a SQLite server: a directory of files.

        :raises SQLAlchemyError: if it cannot be read.
        """
        places = self._cluster.places
        names = server_names(places.topology)
        place = next(
            place
            for _, place in places.servers()
            if names[place.keyspace, place.server] == name
        )
        try:
            with place.engine.connect() as connection:
                start = perf_counter()
                connection.execute(sql("SELECT 1"))
                seconds = perf_counter() - start
        except ShardMissingError as error:
            return _PartReading.of([], [UnreachableServer.of([place], error)])
        observed = Observation(metric("server.round_trip"), seconds, (name, role))
        return _PartReading([observed], [])

    # -- counts of rows

    def _operations(self) -> _PartReading:
        operations, unreachable = counts(self._cluster)
        observed = []
        for one in operations:
            labels = (one.operation,)
            age = one.oldest.total_seconds()
            observed += [
                Observation(metric("operation.pending"), one.count, labels),
                Observation(metric("operation.failed"), one.failed, labels),
                Observation(metric("operation.oldest"), age, labels),
            ]
        return _PartReading.of(observed, unreachable)

    def _outbox(self) -> _PartReading:
        sizes, unreachable = outbox_size(self._cluster)
        observed = []
        for region, one in by_region(sizes).items():
            age = one.oldest.total_seconds()
            observed += [
                Observation(metric("outbox.pending"), one.rows, (region,)),
                Observation(metric("outbox.oldest"), age, (region,)),
            ]
        return _PartReading.of(observed, unreachable)

    def _queues(self) -> _PartReading:
        queues, unreachable = queue_counts(self._cluster)
        observed = [Observation(metric("queue.unread_servers"), len(unreachable))]
        for one in queues:
            oldest = 0.0 if one.oldest is None else one.oldest.total_seconds()
            observed.append(Observation(metric("queue.oldest"), oldest, (one.queue,)))
            observed += [
                Observation(
                    metric("queue.jobs"), getattr(one, state), (one.queue, state)
                )
                for state in _QUEUE_STATES
            ]
        return _PartReading.of(observed, unreachable)

    def _schema(self) -> _PartReading:
        places = self._cluster.places
        observed: list[Observation] = []
        unreachable: list[UnreachableServer] = []
        databases: list[tuple[str, Address]] = []
        for keyspace in places.topology.keyspaces.values():
            versions = read_versions(
                places, shards_of(places, keyspace), "alembic_version"
            )
            known = [one for one in versions if one.is_known]
            for one in versions:
                address = keyspace.name, one.shard.shard_id
                if one.cause is not None:
                    unreachable.append(
                        UnreachableServer.of([one.shard.place], one.cause)
                    )
                elif one.is_missing:
                    databases.append((one.shard.server, address))
            shards = Counter(",".join(one.heads) for one in known)
            observed += [
                Observation(metric("schema.shards"), count, (keyspace.name, revision))
                for revision, count in shards.items()
            ]
            unfinished = sum(one.open is not None for one in known)
            observed.append(
                Observation(metric("schema.unfinished"), unfinished, (keyspace.name,))
            )
        return _PartReading(observed, unreachable_lines(unreachable), tuple(databases))

    def _shares(self) -> _PartReading:
        snapshots = () if self._load is None else self._load.snapshots()
        report = report_load(snapshots, self._cluster.topology, top=20)
        observed: list[Observation] = []
        hot: Counter[tuple[str, str]] = Counter()
        for one in report.shards:
            for operation, share, is_hot in (
                ("read", one.read_share, one.hot_reads),
                ("write", one.write_share, one.hot_writes),
            ):
                labels = one.keyspace, str(one.shard_id), operation
                observed.append(Observation(metric("load.share"), share, labels))
                hot[one.keyspace, operation] += is_hot
        observed += [
            Observation(metric("load.hot"), count, labels)
            for labels, count in hot.items()
        ]
        return _PartReading(observed, [])


class _MetricsPart:
    """A part of the metrics, which is read in a thread.

    :param name: name of the part, for the log.
    :param read: reads it.
    :param interval: seconds for which it is read once.
    :param late: returns its problem while a reading has not ended.
    """

    def __init__(
        self,
        name: str,
        read: _Read,
        interval: float,
        *,
        late: Callable[[], str] = lambda: _LATE,
    ) -> None:
        self.name = name
        self._read = read
        self._late = late
        self._logged: list[str] = []
        cached = CachedReading(f"exporter {name}", self._try, fresh=interval, share=1.0)
        self.start = cached.start
        self._last = cached.last

    def _try(self) -> _PartReading:
        """Read the part; log each problem once, as long as it persists."""
        try:
            reading = self._read()
        except (SQLAlchemyError, OSError) as error:
            reading = _PartReading([], [summary(error)])
        lines = reading.lines()
        for line in lines:
            if line not in self._logged:
                _log.warning(
                    "%s is not read: %s", self.name, line, extra={"action": "export"}
                )
        self._logged = lines
        return reading

    def reading(self, end: float = 0.0, number: int | None = None) -> _PartReading:
        """Return the last reading; a problem as long as another has not ended.

        :param end: when to stop waiting for it, by the monotonic clock.
        :param number: what ``start()`` has returned.
        """
        last = self._last(end, number)
        if last.is_late:
            return _PartReading([], [self._late()])
        # An unexpected error must not leave the values of the last reading.
        if last.error is not None:
            return _PartReading([], [last.error])
        return last.value or _PartReading([], [])


try:
    from prometheus_client import (
        CollectorRegistry,
        CONTENT_TYPE_LATEST,
        generate_latest,
    )
    from prometheus_client.core import GaugeMetricFamily
    from prometheus_client.registry import Collector
except ImportError as _error:
    raise MissingExtraError(
        package="prometheus_client", extra="prometheus", reason=str(_error)
    ) from _error

# -- The HTTP server of `sqla-shard exporter`.

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
