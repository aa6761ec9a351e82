"""``sqla-shard dashboard``: pages that show the fleet."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from sqlalchemy import inspect
from sqlalchemy.exc import NoInspectionAvailable

from sqla_shard.cli.monitor_commands import open_load_store
from sqla_shard.cli.options import (
    cache_of_option,
    FiniteRange,
    models_option,
    names,
    pass_settings,
    Settings,
)
from sqla_shard.cli.output import command, echo, option
from sqla_shard.cli.schema_commands import configurations
from sqla_shard.cli.service_loop import log_to_stderr, StopFlag
from sqla_shard.cluster.cluster import Cluster
from sqla_shard.exc import ExtensionSetupError
from sqla_shard.fleet import Account, Accounts, Fleet
from sqla_shard.monitor.dashboard import DashboardServer, Observer
from sqla_shard.topology.follow import is_zookeeper

_PORT = 8417


@command(
    "dashboard",
    "sqla-shard dashboard",
    "sqla-shard -t zookeeper://zk1,zk2,zk3/prod dashboard \\",
    "    --models shop.models --config alembic.ini --cache cache.toml",
    "ssh -L 8417:127.0.0.1:8417 operator@host  # to look from elsewhere",
)
@option("--host ADDRESS", "Address of the loopback interface.", default="127.0.0.1")
@option("--port", "Port; 0 for a free one.", click.IntRange(0, 65_535), default=_PORT)
@models_option
@option(
    "-c --config FILE",
    "alembic.ini, to compare the revisions of shards with the newest.",
    click.Path(exists=True, dir_okay=False),
)
@option(
    "--cache FILE",
    "TOML file of the application's cache, to show its nodes.",
    click.Path(exists=True, dir_okay=False),
    envvar="SQLA_SHARD_CACHE",
    show_envvar=True,
)
@option(
    "--load-directory PATH",
    "Directory in which the processes of this machine publish their load.",
)
@option(
    "--load-region NAME", "Region of --cache in which the processes publish their load."
)
@option(
    "--timeout SECONDS",
    "Seconds to wait for the state of a server.",
    FiniteRange(0.1, 60.0),
    default=2.0,
)
@option("--allow-changes", "Add buttons that retry and delete jobs.")
@pass_settings
def dashboard_command(
    settings: Settings,
    host: str,
    port: int,
    models: tuple[str, ...],
    config: str | None,
    cache: str | None,
    load_directory: str | None,
    load_region: str | None,
    timeout: float,
    allow_changes: bool,
) -> None:
    """Serve pages that show the fleet, until Ctrl-C or SIGTERM.

    They show servers, shards, schema revisions, jobs, the cache and
    operations, and change nothing.  They have no login, and are served on the
    loopback interface only.

    The servers are read with the account of the application; if
    SQLA_SHARD_OPERATOR_USER is set, with that of the operator, who may see the
    replication of standbys.
    """
    accounts = Accounts.if_set(os.environ)
    with (
        log_to_stderr(),
        StopFlag() as until,
        _cluster(settings, cache, timeout) as cluster,
        open_load_store(
            load_directory, cache if load_region else None, load_region
        ) as load,
    ):
        observer = Observer(
            cluster,
            fleet=_fleet(settings),
            location=settings.location,
            models=_mapped(names(models)) if models else (),
            alembic=[*configurations(config).values()] if config else [],
            load=load,
            accounts=accounts,
            placeholders=settings.placeholders,
            timeout=timeout,
        )
        try:
            server = DashboardServer(
                observer, host=host, port=port, allow_changes=allow_changes
            )
        except (ExtensionSetupError, ValueError) as error:
            raise click.BadParameter(str(error), param_hint="--host") from (error)
        thread = threading.Thread(target=server.serve, daemon=True)
        thread.start()
        echo(server.address)
        try:
            until.wait()
        finally:
            server.close()
            thread.join()


@contextmanager
def _cluster(
    settings: Settings, cache: str | None, timeout: float
) -> Iterator[Cluster]:
    """Open the cluster, whose connections wait no longer than a page may."""
    limits = {
        "connect_timeout": max(1, round(timeout)),
        "read_timeout": max(1, round(3 * timeout)),
    }
    with Cluster.from_location(
        settings.location,
        placeholders=settings.placeholders,
        # A snapshot may be outdated.
        snapshot=False,
        engine_options=_engine_options(settings, limits),
    ) as cluster:
        cache_of_option(cache).configure(cluster)
        yield cluster


def _engine_options(settings: Settings, limits: dict[str, int]) -> dict[str, Any]:
    """Return the time limits, which the driver of SQLite does not know."""
    schemes = {
        server.primary.partition(":")[0]
        for keyspace in settings.topology().keyspaces.values()
        for server in keyspace.servers
    }
    return {} if "sqlite" in schemes else {"connect_args": limits}


def _fleet(settings: Settings) -> Fleet | None:
    """Return the fleet, whose journal is read; TOML files have none."""
    location = settings.location
    if not is_zookeeper(location) and Path(location).suffix != ".json":
        return None
    return Fleet(
        location,
        # The journal needs no account.
        accounts=Accounts(operator=Account(user="", password="")),
        placeholders=settings.placeholders,
    )


def _mapped(found: dict[str, Any]) -> list[type]:
    """Return the mapped classes of a namespace."""
    classes = dict.fromkeys(v for v in found.values() if isinstance(v, type))
    return [cls for cls in classes if _is_mapped(cls)]


def _is_mapped(cls: type) -> bool:
    try:
        return bool(inspect(cls).is_mapper)
    except (AttributeError, NoInspectionAvailable):
        return False
