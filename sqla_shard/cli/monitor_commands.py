"""``sqla-shard load``, ``exporter`` and ``status``: what the servers are doing."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import click

from sqla_shard.cache.regions import open_region, read, regions_of
from sqla_shard.cli.options import FiniteRange, IN_MEMORY, pass_settings, Settings
from sqla_shard.cli.output import (
    command,
    data_option,
    Decorator,
    echo,
    end,
    option,
    print_data,
    print_report,
    print_table,
    with_options,
)
from sqla_shard.cli.service_loop import log_to_stderr, StopFlag
from sqla_shard.exc import CacheConfigError, OptionError
from sqla_shard.fleet import Accounts
from sqla_shard.fleet.server_states import HIDDEN
from sqla_shard.monitor.fleet_metrics import DATABASES, FleetMetrics, GRANTS, TABLES
from sqla_shard.monitor.load import report_load
from sqla_shard.monitor.load_stores import LoadCache, LoadDirectory, LoadStore
from sqla_shard.monitor.metrics import Observation
from sqla_shard.topology import server_names, Topology
from sqla_shard.topology.urls import address_of
from sqla_shard.util.json_values import JsonObject

_PUBLISH = "call publish_load(measure_load(cluster), ...) in the application"

load_options: Decorator = with_options(
    option(
        "--directory PATH", "Directory in which the processes of this machine publish."
    ),
    option("--cache FILE", "TOML file of the cache in which the processes publish."),
    option("--region NAME", "Region of the cache; by default the first in the file."),
)


@contextmanager
def open_load_store(
    directory: str | None, cache: str | None, region: str | None
) -> Iterator[LoadStore | None]:
    """Open the store of the options ``--directory`` and ``--cache``.

    :returns: None if neither is given.
    :raises click.UsageError: if both are given, or ``--region`` alone.
    :raises CacheConfigError: if the file is not valid.
    """
    if directory is not None and cache is not None:
        raise click.UsageError("--directory and --cache exclude each other")
    if region is not None and cache is None:
        raise click.UsageError("--region is a region of --cache FILE")
    if cache is None:
        yield None if directory is None else LoadDirectory(directory)
        return
    document = read(cache)
    regions = {
        name: config
        for name, config in regions_of(cache, document).items()
        if not config["backend"].startswith(IN_MEMORY) and region in (None, name)
    }
    prefix = document.get("prefix")
    if not regions or not isinstance(prefix, str):
        what = "prefix" if regions else "regions"
        raise CacheConfigError(
            "is missing; processes publish their load under the prefix of "
            "the application, in a region that is not in memory",
            path=cache,
            key=what if region is None else f"regions.{region}",
        )
    name, config = next(iter(regions.items()))
    try:
        store = open_region(name, config).store
    except OptionError as error:
        raise CacheConfigError(str(error), path=cache, key=f"regions.{name}") from error
    try:
        yield LoadCache(store, prefix)
    finally:
        if (close := getattr(store, "close", None)) is not None:
            close()


@command(
    "load",
    "sqla-shard load --directory /run/pinboard/load",
    "sqla-shard load --cache cache.toml --top 3 --json",
)
@load_options
@option("--top N", "Number of shards to show.", click.IntRange(1, 1000), default=10)
@data_option
@pass_settings
def load_command(
    settings: Settings, /, top: int, as_data: bool, **place: str | None
) -> None:
    """Show the shards, objects and lists with the highest load.

    The processes of the application publish samples of their statements, in
    a directory or in their cache.  The numbers are those of the last 30
    seconds, unless the application has set another window.  The status is 1
    if a shard is hot: it has more than three times its fair share.
    """
    with open_load_store(**place) as store:
        if store is None:
            raise click.UsageError(
                "name the place in which the processes publish their "
                "samples: --directory PATH or --cache FILE"
            )
        try:
            snapshots = store.snapshots()
        except FileNotFoundError as error:
            raise click.ClickException(
                f"no process has published its load in {place['directory']!r}, which "
                f"does not exist; {_PUBLISH}"
            ) from error
    if not snapshots:
        raise click.ClickException(
            f"no process has published its load in the last 10 seconds; {_PUBLISH}"
        )
    report = report_load(snapshots, settings.topology(), top=top)
    print_report(report, as_data)
    end(is_good=not report.hot, is_read=True)


@command(
    "exporter",
    "sqla-shard exporter",
    "sqla-shard exporter --port 9477 --timeout 5 --cache cache.toml",
)
@option("--host ADDRESS", "Address to listen on.", default="127.0.0.1")
@option(
    "--port N",
    "Port to listen on; 0 for any free one.",
    click.IntRange(0, 65535),
    default=9477,
)
@option(
    "--timeout S",
    "Seconds after which a request is answered without the servers "
    "that have not responded.",
    FiniteRange(1, 60),
    default=3.0,
)
@option(
    "--interval S",
    "Seconds for which operations, invalidations, jobs and revisions are counted once.",
    FiniteRange(0, 3600),
    default=30.0,
)
@load_options
@pass_settings
def exporter_command(
    settings: Settings,
    /,
    host: str,
    port: int,
    timeout: float,
    interval: float,
    **place: str | None,
) -> None:
    """Serve the metrics of the servers at /metrics, until SIGTERM or Ctrl-C.

    The metrics have the names of servers; others than this machine can read
    them only if --host permits it.
    """
    from sqla_shard.monitor.fleet_metrics import Exporter

    with (
        log_to_stderr(logging.WARNING),
        StopFlag() as until,
        open_load_store(**place) as load,
        settings.cluster(
            engine_options=FleetMetrics.options(settings.topology(), timeout)
        ) as cluster,
    ):
        metrics = FleetMetrics(cluster, timeout=timeout, interval=interval, load=load)
        with Exporter(metrics, host, port) as exporter:
            thread = threading.Thread(target=exporter.serve_forever)
            thread.start()
            try:
                echo(f"serving {exporter.url}")
                sys.stdout.flush()
                until.wait()
            finally:
                exporter.shutdown()
                thread.join()


# -- The servers, and what is pending on them


#: Characters of a problem; --json has all of them.
_MOST = 160

#: What to do about shards that lack databases, tables or privileges.
_REMEDIES = {
    DATABASES: "if they are new: sqla-shard schema provision (--initial "
    "before the first use); if they were lost, restore them",
    TABLES: "if they are new: sqla-shard schema upgrade (create_all() in "
    "development); if they were lost, restore them",
    GRANTS: "grant the privilege to the account of the topology, unless the "
    "shards were moved: see sqla-shard topology show",
}


@dataclass(frozen=True, kw_only=True)
class ServerStatus:
    """A server, as ``sqla-shard status`` shows it.

    :ivar name: name of the server in the topology.
    :ivar role: ``primary`` or ``standby``.
    :ivar address: host and port, or the directory of SQLite files.
    :ivar shards: its virtual shards, such as ``objects 0-31``.
    :ivar is_up: whether it has responded in time.
    :ivar round_trip: seconds of a statement; None if unknown, as all below.
    :ivar is_read_only: whether it refuses writes.
    :ivar connections: connections of all clients.
    :ivar connection_limit: the highest number of connections.
    :ivar lag: seconds by which a standby is behind.
    :ivar problem: why it is not up, or not all of it is known.
    """

    name: str
    role: str
    address: str
    shards: str
    is_up: bool
    round_trip: float | None
    is_read_only: bool | None
    connections: int | None
    connection_limit: int | None
    lag: float | None
    problem: str | None

    def cells(self) -> list[str]:
        """Return the values of the columns of the table."""
        closed = {None: "", True: "yes", False: "no"}[self.is_read_only]
        used = "" if self.connections is None else str(self.connections)
        if self.connection_limit is not None:
            used += f" of {self.connection_limit}"
        return [
            self.name,
            self.role,
            self.address,
            self.shards,
            "up" if self.is_up else "DOWN",
            _seconds(self.round_trip),
            closed,
            used,
            _seconds(self.lag),
        ]

    def line(self) -> str:
        """Return the line that is shown without a table."""
        name, role, address, shards, state, *cells = self.cells()
        more = [
            f"{title} {cell}"
            for title, cell in zip(_COLUMNS[5:], cells, strict=True)
            if cell
        ]
        where = f"{name} {role} {address} ({shards}): {state}"
        return ", ".join([where, *more])


_COLUMNS = (
    *("server", "role", "address", "shards", "state"),
    *("round trip", "read-only", "connections", "lag"),
)


@dataclass(frozen=True, kw_only=True)
class ClusterStatus(JsonObject):
    """The servers of a topology, and what is pending on them.

    :ivar epoch: epoch of the topology.
    :ivar servers: the servers.
    :ivar pending: a line for the schema, the operations, the invalidations
        and the jobs each.
    :ivar problems: a line for each part that was not read, and for each
        server whose shards lack databases, tables or privileges.
    :ivar remedies: what to do about these.
    """

    epoch: int
    servers: tuple[ServerStatus, ...]
    pending: tuple[str, ...]
    problems: tuple[str, ...]
    remedies: tuple[str, ...] = ()

    @property
    def is_read(self) -> bool:
        """Whether all servers have responded."""
        return all(one.is_up for one in self.servers) and not self.problems

    def lines(self) -> Iterator[str]:
        """Yield the lines that are shown below the servers."""
        yield from self.pending
        yield from map(_cut, self._problem_lines())
        hidden = [one.name for one in self.servers if _is_hidden(one)]
        if hidden:
            yield (
                f"lag of {', '.join(hidden)}: not shown without the privilege SLAVE "
                "MONITOR (REPLICATION CLIENT on MySQL); grant it to the "
                "account of the topology, or set SQLA_SHARD_OPERATOR_USER and "
                "SQLA_SHARD_OPERATOR_PASSWORD"
            )
        yield from self.remedies

    def _problem_lines(self) -> Iterator[str]:
        """Yield a line for each server that is down, and each other part."""
        for one in self.servers:
            if one.problem is not None and not _is_hidden(one):
                yield one.problem
        lost = tuple(
            f"{one.name} unreachable "
            for one in self.servers
            if one.role == "primary" and not one.is_up
        )
        for problem in self.problems:
            # An outage is one line, not one for each part.
            if not problem.partition(": ")[2].startswith(lost):
                yield problem


def _is_hidden(server: ServerStatus) -> bool:
    """Return whether the account may not see the lag of a server."""
    return server.problem is not None and server.problem.endswith(HIDDEN)


@command(
    "status",
    "sqla-shard status",
    "sqla-shard -t zookeeper://zk1,zk2,zk3/prod status --watch 5",
)
@option(
    "--timeout S", "Seconds to wait for the servers.", FiniteRange(1, 60), default=5.0
)
@option(
    "--watch S", "Show it again every S seconds, until Ctrl-C.", FiniteRange(1, 3600)
)
@data_option
@pass_settings
def status_command(
    settings: Settings, timeout: float, watch: float | None, as_data: bool
) -> None:
    """Show the servers, and what is pending on them.

    The account of the topology is used; if SQLA_SHARD_OPERATOR_USER is set,
    standbys are read with that of the operator.  A standby needs the privilege
    SLAVE MONITOR to show its lag.  The exit status is 3 if a server does not
    respond.
    """
    # What is not read is in the output.
    logging.getLogger("sqla_shard.exporter").setLevel(logging.CRITICAL)
    options = FleetMetrics.options(settings.topology(), timeout)
    with settings.cluster(engine_options=options) as cluster, StopFlag() as until:
        metrics = FleetMetrics(
            cluster, timeout=timeout, interval=0.0, accounts=Accounts.if_set(os.environ)
        )
        while True:
            found = status_of(cluster.topology, metrics.collect(), metrics.problems())
            _show(found, as_data=as_data, clears=watch is not None)
            if watch is None or until.wait(watch):
                break
    end(is_good=True, is_read=found.is_read)


def status_of(
    topology: Topology,
    observations: Iterable[Observation],
    problems: dict[str, list[str]],
) -> ClusterStatus:
    """Return the status of a cluster.

    :param observations: what :meth:`FleetMetrics.collect` has returned.
    :param problems: what :meth:`FleetMetrics.problems` has returned.
    """
    values = {
        (one.metric.name.partition(".")[2], one.labels): one.value
        for one in observations
    }
    problems = dict(problems)
    servers = tuple(_servers(topology, values, problems))
    return ClusterStatus(
        epoch=topology.epoch,
        servers=servers,
        pending=tuple(_pending(values)),
        problems=tuple(
            line if part in _REMEDIES else f"{part}: {line}"
            for part, lines in problems.items()
            for line in lines
        ),
        remedies=tuple(
            remedy for part, remedy in _REMEDIES.items() if part in problems
        ),
    )


_Values = dict[tuple[str, tuple[str, ...]], float]


def _servers(
    topology: Topology, values: _Values, problems: dict[str, list[str]]
) -> Iterator[ServerStatus]:
    """Yield the servers; their problems are removed from ``problems``."""
    names = server_names(topology)
    shards: dict[tuple[str, str, str], list[str]] = {}
    for keyspace in topology.keyspaces.values():
        for server in keyspace.servers:
            name = names[keyspace.name, server.name]
            ranges = ", ".join(one.numbers for one in server.shards)
            for role, url in (("primary", server.primary), ("standby", server.standby)):
                if url is not None:
                    held = shards.setdefault((name, role, url), [])
                    held.append(f"{keyspace.name} {ranges}".strip())
    for (name, role, url), held in shards.items():

        def value(
            key: str, *labels: str, of: tuple[str, str] = (name, role)
        ) -> float | None:
            return values.get((f"server.{key}", labels or of))

        lines = problems.pop(f"{name} {role}", [])
        closed = value("read_only")
        yield ServerStatus(
            name=name,
            role=role,
            address=str(address_of(url)),
            shards="; ".join(held),
            is_up=bool(value("up")),
            round_trip=value("round_trip"),
            is_read_only=None if closed is None else bool(closed),
            connections=_whole(value("connections")),
            connection_limit=_whole(value("connection_limit")),
            lag=value("lag", name) if role == "standby" else None,
            problem="; ".join(lines) or None,
        )


def _pending(values: _Values) -> Iterator[str]:
    """Yield a line for each kind of pending rows."""
    revisions: dict[str, list[str]] = {}
    for (_, (keyspace, revision)), count in _labelled(values, "schema.shards"):
        named = revision or "no revision"
        revisions.setdefault(keyspace, []).append(f"{count:.0f} at {named}")
    for keyspace, parts in revisions.items():
        yield f"shards of {keyspace}: " + ", ".join(parts)
    for title, part, counted in (
        ("operations", "operations", "operation"),
        ("invalidations", "outbox", "outbox"),
    ):
        found = [
            f"{count:.0f} {name}, oldest " + _age(values[f"{counted}.oldest", (name,)])
            for (_, (name,)), count in _labelled(values, f"{counted}.pending")
        ]
        is_read = values["exporter.read", (part,)]
        nothing = "none" if is_read else "not read"
        yield f"pending {title}: " + ("; ".join(found) or nothing)
    jobs: dict[str, list[str]] = {}
    for (_, (queue, state)), count in _labelled(values, "queue.jobs"):
        if count:
            jobs.setdefault(queue, []).append(f"{count:.0f} {state}")
    for queue, counts in jobs.items():
        yield f"queue {queue}: " + ", ".join(counts)


def _labelled(values: _Values, name: str) -> list[Any]:
    return [item for item in values.items() if item[0][0] == name]


def _cut(line: str) -> str:
    # What a server says of a missing table comes with all remedies.
    return line if len(line) <= _MOST else f"{line[:_MOST]}..."


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _seconds(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value * 1000:.1f} ms" if value < 1 else _age(value)


def _age(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


def _show(found: ClusterStatus, *, as_data: bool, clears: bool) -> None:
    if as_data:
        print_data(found.as_dict())
    else:
        if clears and sys.stdout.isatty():
            click.clear()
        echo(f"epoch {found.epoch}")
        down = {n for n, one in enumerate(found.servers) if not one.is_up}
        rows = [one.cells() for one in found.servers]
        if not print_table(_COLUMNS, rows, failed=down):
            echo("\n".join(one.line() for one in found.servers))
        for line in found.lines():
            echo(line)
    sys.stdout.flush()
