"""``sqla-shard load`` and ``exporter``: what the servers are doing."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import click

from sqla_shard.cache.regions import open_region, read, regions_of
from sqla_shard.cli.application_options import IN_MEMORY
from sqla_shard.cli.options import FiniteRange, pass_settings, Settings
from sqla_shard.cli.output import (
    command,
    data_option,
    echo,
    end,
    option,
    print_report,
    with_options,
)
from sqla_shard.cli.service_loop import log_to_stderr, StopFlag
from sqla_shard.exc import CacheConfigError, OptionError
from sqla_shard.monitor.fleet_metrics import FleetMetrics
from sqla_shard.monitor.load import report_load
from sqla_shard.monitor.load_stores import LoadCache, LoadDirectory, LoadStore

_PUBLISH = "call publish_load(measure_load(cluster), ...) in the application"

load_options = with_options(
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
    settings: Settings,
    directory: str | None,
    cache: str | None,
    region: str | None,
    top: int,
    as_data: bool,
) -> None:
    """Show the shards, objects and lists with the highest load.

    The processes of the application publish samples of their statements, in
    a directory or in their cache.  The numbers are those of the last 30
    seconds, unless the application has set another window.  The status is 1
    if a shard is hot: it has more than three times its fair share.
    """
    with open_load_store(directory, cache, region) as store:
        if store is None:
            raise click.UsageError(
                "name the place in which the processes publish their "
                "samples: --directory PATH or --cache FILE"
            )
        try:
            snapshots = store.snapshots()
        except FileNotFoundError as error:
            raise click.ClickException(
                f"no process has published its load in {directory!r}, which "
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
    host: str,
    port: int,
    timeout: float,
    interval: float,
    directory: str | None,
    cache: str | None,
    region: str | None,
) -> None:
    """Serve the metrics of the servers at /metrics, until SIGTERM or Ctrl-C.

    The metrics have the names of servers; others than this machine can read
    them only if --host permits it.
    """
    from sqla_shard.monitor.fleet_metrics import Exporter

    with (
        log_to_stderr(logging.WARNING),
        StopFlag() as until,
        open_load_store(directory, cache, region) as load,
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
