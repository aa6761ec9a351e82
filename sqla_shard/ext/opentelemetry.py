"""OpenTelemetry: a span and measurements for each statement.

One statement of the application is one span, however many servers have
worked on it; where there were several, each has a span of its own inside.
::

    from sqla_shard.ext.opentelemetry import instrument

    instrument(cluster)

Names follow OpenTelemetry's conventions for database clients.  Spans have
``db.system.name``, ``db.operation.name``, ``db.query.summary``, which is the
name of the span, too, and ``db.query.text``: the statement without values,
databases and literals.  ``db.namespace`` is the database, where there is only
one; ``server.address`` and ``server.port`` are those of the one server.  Ours
are:

``sqla_shard.keyspace``
    name of the keyspace.
``sqla_shard.shard_count``, ``sqla_shard.shards``
    how many virtual shards the statement went to, and the first 100 of them.
``sqla_shard.fan_out``
    how many servers; on SQLite, how many files.
``sqla_shard.scattered``
    whether it went to all shards, by ``scatter()``.
``sqla_shard.server``
    name of the server in the topology.
``sqla_shard.lazy_load``
    what the ORM has loaded of its own accord, such as ``Pin.comments``.

Measured are ``db.client.operation.duration`` (seconds),
``db.client.response.returned_rows``, and ``sqla_shard.fan_out`` (servers).

Of a cache there are the counts of :class:`~sqla_shard.cache.RegionStats`, by
region (``sqla_shard.cache.region``): ``sqla_shard.cache.hits``, ``.misses``,
``.fills``, ``.lease_losses``, ``.blocked``, ``.unfillable``, ``.errors``,
``.unreadable``, ``.waits``, ``.gave_up``, ``.invalidations``, ``.outbox``,
``.bytes_read``, ``.bytes_written`` and ``.seconds``.

A statement that has failed has the class of its error (``error.type``) and the
code of the server (``db.response.status_code``), never its message: that
shows the parameters of the statement, or quotes them.

It is told of a statement when that has ended.  The spans inside begin all at
once, therefore, as the statements on the servers do; on SQLite, where they
run one after another, only their durations are right.  Instrumentation of
SQLAlchemy or of the driver sees the same statements again, one by one.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterable
from functools import lru_cache
from functools import partial
from time import time_ns
from typing import Any

try:
    from opentelemetry import metrics
    from opentelemetry import trace
except ImportError as error:
    from sqla_shard.exc import MissingExtraError

    raise MissingExtraError(
        package="OpenTelemetry", extra="opentelemetry", reason=str(error)
    ) from error

from sqlalchemy import event
from sqlalchemy import make_url

from sqla_shard.cluster import Cluster
from sqla_shard.exc.summaries import code_of
from sqla_shard.keeping import all_caches
from sqla_shard.rendering import SCHEMA
from sqla_shard.scattering import ServerReport
from sqla_shard.scattering import StatementReport

__all__ = ["Instrumentation", "instrument"]

_NAME = "sqla_shard"
_MOST_SHARDS = 100
_MOST_SUMMARY = 255
_DURATIONS = [0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10]
_SERVERS = [1, 2, 4, 8, 16, 32, 64, 128]
#: What is counted of a cache: name, unit, description.
_CACHE = (
    ("hits", "{key}", "Keys that were in the cache."),
    ("misses", "{key}", "Keys for which the database was asked."),
    ("fills", "{value}", "Values that were put into the cache."),
    ("lease_losses", "{value}", "Values that were overtaken by a write."),
    ("blocked", "{key}", "Misses that had a tombstone or a young node."),
    ("unfillable", "{key}", "Misses of transactions that may fill nothing."),
    ("errors", "{key}", "Misses whose node did not answer."),
    ("unreadable", "{value}", "Values of another version or server."),
    ("waits", "{key}", "Misses that somebody else was about to fill."),
    ("gave_up", "{key}", "Those that were not filled in time."),
    ("invalidations", "{key}", "Tombstones that were put."),
    ("outbox", "{key}", "Tombstones that could not be put."),
    ("bytes_read", "By", "Bytes of values that were read."),
    ("bytes_written", "By", "Bytes of values that were written."),
    ("seconds", "s", "Time that was spent on the cache."),
)
_ROWS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000]

_OPERATION = re.compile(r"[\s(]*([A-Za-z]+)")
_TABLE = re.compile(re.escape(SCHEMA) + r"\.[`\"]?(\w+)")
# Numbers inside names and parameters are none.
_NUMBER = r"|(?<![\w.:?$`\"])\.?\d[\w.]*"
# In MySQL a backslash escapes a quote, and double quotes are quotes, too.
_MYSQL_LITERAL = re.compile(
    r"""'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*\"""" + _NUMBER, re.DOTALL
)
_LITERAL = re.compile(r"'(?:[^']|'')*'" + _NUMBER)


def instrument(
    cluster: Cluster | type[Cluster] = Cluster,
    tracer_provider: trace.TracerProvider | None = None,
    meter_provider: metrics.MeterProvider | None = None,
) -> Instrumentation:
    """Make spans and measurements of statements from now on.

    :param cluster: the cluster; the class :class:`~sqla_shard.Cluster` for
        all of the process.
    :param tracer_provider: makes the spans; the global one by default.
    :param meter_provider: takes the measurements; the global one by default.
    :returns: what can end it.
    """
    return Instrumentation(cluster, tracer_provider, meter_provider)


class Instrumentation:
    """Listens to a cluster until it is told to end; see :func:`instrument`.

    :param cluster: as there.
    :param tracer_provider: as there.
    :param meter_provider: as there.
    """

    def __init__(
        self,
        cluster: Cluster | type[Cluster],
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
    ) -> None:
        self._target = cluster
        self._tracer = trace.get_tracer(_NAME, None, tracer_provider)
        meter = metrics.get_meter(_NAME, meter_provider=meter_provider)
        self._duration = meter.create_histogram(
            "db.client.operation.duration",
            unit="s",
            description="Duration of database client operations.",
            explicit_bucket_boundaries_advisory=_DURATIONS,
        )
        self._rows = meter.create_histogram(
            "db.client.response.returned_rows",
            unit="{row}",
            description="Rows that a statement has returned.",
            explicit_bucket_boundaries_advisory=_ROWS,
        )
        self._fan_out = meter.create_histogram(
            "sqla_shard.fan_out",
            unit="{server}",
            description="Servers that a statement went to.",
            explicit_bucket_boundaries_advisory=_SERVERS,
        )
        self._has_ended = False
        # A meter never lets go of a callback, and must not keep a cluster.
        itself = weakref.ref(self)
        for name, unit, description in _CACHE:
            meter.create_observable_counter(
                f"sqla_shard.cache.{name}",
                [partial(_observe, itself, name)],
                unit=unit,
                description=description,
            )
        event.listen(cluster, "after_statement", self._report)

    def uninstrument(self) -> None:
        """Make no more spans and measurements."""
        self._has_ended = True
        if event.contains(self._target, "after_statement", self._report):
            event.remove(self._target, "after_statement", self._report)

    def _observe(self, name: str) -> Iterable[metrics.Observation]:
        """Return what the caches have counted, by region."""
        if self._has_ended:
            return []
        target = self._target
        # Two clusters of a process may have regions of one name.
        sums: dict[str, float] = {}
        for cache in (
            all_caches() if isinstance(target, type) else [target.cache]
        ):
            for stats in () if cache is None else cache.stats():
                known = sums.get(stats.name, 0)
                sums[stats.name] = known + getattr(stats, name)
        return [
            metrics.Observation(count, {"sqla_shard.cache.region": region})
            for region, count in sums.items()
        ]

    def _report(self, cluster: Cluster, report: StatementReport) -> None:
        end = time_ns()
        common = _common(cluster, report)
        self._trace(cluster, report, common, end)
        measured = {**common, **_failure(report.error)}
        measured.pop("db.response.status_code", None)
        self._duration.record(report.seconds, measured)
        self._fan_out.record(report.fan_out, measured)
        if report.rows is not None and not report.writes:
            self._rows.record(report.rows, measured)

    def _trace(
        self,
        cluster: Cluster,
        report: StatementReport,
        common: dict[str, Any],
        end: int,
    ) -> None:
        start = end - int(report.seconds * 1e9)
        summary = common["db.query.summary"]
        several = report.fan_out > 1
        attributes = {
            **common,
            **_of_statement(report, common["db.system.name"]),
        }
        if not several:
            attributes.update(_of_server(cluster, report, report.servers[0]))
        span = self._tracer.start_span(
            summary,
            kind=trace.SpanKind.CLIENT,
            attributes=attributes,
            start_time=start,
        )
        if several and span.is_recording():
            inside = trace.set_span_in_context(span)
            for server in report.servers:
                child = self._tracer.start_span(
                    f"{summary} on {server.server}",
                    context=inside,
                    kind=trace.SpanKind.CLIENT,
                    attributes={
                        **common,
                        **_of_server(cluster, report, server),
                    },
                    start_time=start,
                )
                ended = min(start + int(server.seconds * 1e9), end)
                _end(child, server.error, ended)
        _end(span, report.error, end)


def _observe(
    owner: weakref.ref[Instrumentation],
    name: str,
    options: metrics.CallbackOptions,
) -> Iterable[metrics.Observation]:
    found = owner()
    return [] if found is None else found._observe(name)


def _end(span: trace.Span, error: BaseException | None, end: int) -> None:
    if error is not None:
        found = _failure(error)
        span.set_attributes(found)
        # Not record_exception(): message and stack trace have the values of
        # the statement in them, and servers quote some, too.
        kind = found["error.type"]
        span.add_event("exception", {"exception.type": kind}, timestamp=end)
        code = found.get("db.response.status_code")
        text = kind if code is None else f"{kind}: {code}"
        span.set_status(trace.Status(trace.StatusCode.ERROR, text))
    span.end(end)


def _common(cluster: Cluster, report: StatementReport) -> dict[str, Any]:
    """Return what spans and measurements have alike: few different values."""
    keyspace = cluster.topology.keyspaces.get(report.keyspace)
    system = "other_sql"
    if keyspace is not None:
        system, _, _ = _address(keyspace.servers[0].primary)
    operation, summary, _ = _read(report.statement, system)
    return {
        "db.system.name": system,
        "db.operation.name": operation,
        "db.query.summary": summary,
        "sqla_shard.keyspace": report.keyspace,
        "sqla_shard.scattered": report.scattered,
    }


def _of_statement(report: StatementReport, system: str) -> dict[str, Any]:
    shards = report.shards
    found: dict[str, Any] = {
        "db.query.text": _read(report.statement, system)[2],
        "sqla_shard.shard_count": len(shards),
        "sqla_shard.shards": shards[:_MOST_SHARDS],
        "sqla_shard.fan_out": report.fan_out,
    }
    if report.rows is not None and not report.writes:
        found["db.response.returned_rows"] = report.rows
    if report.loads is not None:
        found["sqla_shard.lazy_load"] = report.loads
    return found


def _of_server(
    cluster: Cluster, report: StatementReport, server: ServerReport
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "sqla_shard.server": server.server,
        "sqla_shard.shard_count": len(server.shards),
        "sqla_shard.shards": server.shards[:_MOST_SHARDS],
    }
    if server.rows is not None and not report.writes:
        found["db.response.returned_rows"] = server.rows
    keyspace = cluster.topology.keyspaces.get(report.keyspace)
    if keyspace is None:
        return found
    if len(server.shards) == 1 and server.shards[0] in keyspace.shard_ids:
        found["db.namespace"] = keyspace.database_for(server.shards[0])
    for known in keyspace.servers:
        # By name: the topology may have changed since the session began.
        if known.name == server.server:
            _, host, port = _address(known.primary)
            if host is not None:
                found["server.address"] = host
            if port is not None:
                found["server.port"] = port
            break
    return found


def _failure(error: BaseException | None) -> dict[str, Any]:
    """Return the attributes of an error."""
    if error is None:
        return {}
    kind = type(error)
    found = {"error.type": f"{kind.__module__}.{kind.__qualname__}"}
    code = code_of(error)
    if code is not None:
        found["db.response.status_code"] = code
    return found


@lru_cache(maxsize=1024)
def _read(statement: str, system: str) -> tuple[str, str, str]:
    """Return operation, summary and text of a statement."""
    literal = _LITERAL if system == "sqlite" else _MYSQL_LITERAL
    match = _OPERATION.match(statement)
    operation = match[1].upper() if match else "SQL"
    tables = dict.fromkeys(_TABLE.findall(statement))
    summary = " ".join([operation, *tables])[:_MOST_SUMMARY]
    text = literal.sub("?", statement.replace(f"{SCHEMA}.", ""))
    return operation, summary, text


@lru_cache(maxsize=1024)
def _address(primary: str) -> tuple[str, str | None, int | None]:
    """Return the kind of a server, its host and its port."""
    url = make_url(primary)
    system = url.get_backend_name()
    if url.host is None:
        return system, None, None
    return system, url.host, url.port or 3306
