"""``sqla-shard exporter``: the metrics of the servers, for Prometheus."""

from __future__ import annotations

import logging
import sys
import threading

import click

from sqla_shard.cli.load_command import load_options, open_load_store
from sqla_shard.cli.options import FiniteRange, pass_settings, Settings
from sqla_shard.cli.output import echo, examples
from sqla_shard.cli.service_loop import log_to_stderr, StopFlag
from sqla_shard.monitor.exporter import Exporter
from sqla_shard.monitor.fleet_metrics import FleetMetrics


@click.command(
    "exporter",
    epilog=examples(
        "sqla-shard exporter",
        "sqla-shard exporter --port 9477 --timeout 5 --cache cache.toml",
    ),
)
@click.option(
    "--host", metavar="ADDRESS", default="127.0.0.1", help="Address to listen on."
)
@click.option(
    "--port",
    metavar="N",
    default=9477,
    type=click.IntRange(0, 65535),
    help="Port to listen on; 0 for any free one.",
)
@click.option(
    "--timeout",
    metavar="S",
    default=3.0,
    type=FiniteRange(least=1, most=60),
    help="Seconds after which a request is answered without the servers "
    "that have not responded.",
)
@click.option(
    "--interval",
    metavar="S",
    default=30.0,
    type=FiniteRange(least=0, most=3600),
    help="Seconds for which operations, invalidations, jobs and revisions "
    "are counted once.",
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
