"""Metrics of a cluster, and the load of its virtual shards.

``metrics``         the table of metrics; events and states of a cluster
``prometheus``      ``/metrics`` of an application
``fleet_metrics``   the state of the servers, served by ``sqla-shard exporter``
``cached_reading``  values that are read in the background
``load``            samples of the statements of a process; hot shards
``load_stores``     snapshots of several processes
``dashboard/``      pages that show a fleet
"""

from __future__ import annotations

from sqla_shard.monitor.load import (
    LoadMeter,
    LoadReport,
    LoadSnapshot,
    measure_load,
    meter_of,
    report_load,
)
from sqla_shard.monitor.load_stores import (
    LoadCache,
    LoadDirectory,
    LoadPublisher,
    publish_load,
)

__all__ = [
    "LoadCache",
    "LoadDirectory",
    "LoadMeter",
    "LoadPublisher",
    "LoadReport",
    "LoadSnapshot",
    "measure_load",
    "meter_of",
    "publish_load",
    "report_load",
]
