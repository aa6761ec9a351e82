"""Metrics of a cluster, and the load of its virtual shards.

``definitions``    the table of metrics
``recorder``       events and states of a cluster, for a library of metrics
``prometheus``     ``/metrics`` of an application
``fleet_metrics``  the state of the servers, within a time limit
``exporter``       the HTTP server of ``sqla-shard exporter``
``load``           data of samples, and the report of hot shards
``load_meter``     samples of the statements of this process
``load_stores``    snapshots of several processes
``dashboard/``     pages that show a fleet
"""

from __future__ import annotations

from sqla_shard.monitor.load import LoadReport, LoadSnapshot, report_load
from sqla_shard.monitor.load_meter import LoadMeter, measure_load, meter_of
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
