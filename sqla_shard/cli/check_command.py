"""``sqla-shard check``: an application's side of its servers, and the advice."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from importlib.metadata import metadata, PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

import click
import sqlalchemy
from sqlalchemy.engine import Engine, make_url

from sqla_shard import Cluster
from sqla_shard.cli.failures import one_line
from sqla_shard.cli.fleet_reports import end_of_report, fail_on_option
from sqla_shard.cli.options import (
    FiniteRange,
    imported_cluster,
    pass_settings,
    Settings,
)
from sqla_shard.cli.output import command, data_option, option
from sqla_shard.engine.pools import CountedPool
from sqla_shard.exc import LoginFailedError
from sqla_shard.exc.base import shortened_list
from sqla_shard.fleet.doctor import DoctorReport
from sqla_shard.fleet.findings import FleetFinding, SEVERITIES, Severity
from sqla_shard.fleet.setting_checks import CONNECTIONS
from sqla_shard.topology import server_names

#: The place of findings that are not about a server.
_HERE = "application"
_LOCAL = ("127.0.0.1", "::1", "localhost")
#: The oldest versions that the package is written for.
_LEAST = {"MariaDB": (10, 6), "MySQL": (8, 4)}
#: Drivers that need a package, or TLS, for MySQL's default plugin.
_PURE = ("pymysql", "asyncmy")


@command(
    "check",
    "sqla-shard check",
    "sqla-shard check shop.app:cluster --processes 40 --threads 8",
)
@click.argument("application", metavar="[MODULE:NAME]", required=False)
@option(
    "--processes N",
    "Number of processes of the application, on all machines.",
    click.IntRange(min=1),
    default=1,
)
@option(
    "--threads N",
    "Number of threads of each process.",
    click.IntRange(min=1),
    default=1,
)
@option(
    "--timeout S", "Seconds to wait for the servers.", FiniteRange(1, 60), default=5.0
)
@fail_on_option
@data_option
@pass_settings
def check_command(
    settings: Settings,
    application: str | None,
    processes: int,
    threads: int,
    timeout: float,
    least: str,
    as_data: bool,
) -> None:
    """Check versions, drivers, logins, TLS and pools of an application.

    MODULE:NAME is the Cluster of the application; by default one is opened for
    the topology, with the defaults of each option.  The servers themselves are
    checked by `fleet doctor`.

    The exit status is 1 if there is a critical finding or a warning, and 3 if
    a server did not respond.
    """
    if application is None:
        cluster = settings.cluster()
    else:
        cluster = imported_cluster(application, param_hint="MODULE:NAME")
    try:
        found = list(_findings(cluster, processes, threads, timeout))
    finally:
        if application is None:
            cluster.close()
    report = DoctorReport(
        epoch=cluster.topology.epoch,
        servers=len({*server_names(cluster.topology).values()}),
        findings=tuple(sorted(found, key=lambda one: SEVERITIES.index(one.severity))),
    )
    end_of_report(report, least, as_data)


def _finding(
    check: str, severity: Severity, what: str, remedy: str = "", server: str = _HERE
) -> FleetFinding:
    return FleetFinding(
        check=check, severity=severity, server=server, what=what, remedy=remedy
    )


def _findings(
    cluster: Cluster, processes: int, threads: int, timeout: float
) -> Iterator[FleetFinding]:
    places = cluster.places
    names = server_names(places.topology)
    engines: dict[str, Engine] = {}
    for _, place in places.servers():
        engines.setdefault(names[place.keyspace, place.server], place.engine)
    answers = places.check(timeout)
    yield from _packages({one.dialect.driver for one in engines.values()})
    yield from _topology(cluster, any(one.url.host for one in engines.values()))
    smallest = min(filter(None, map(_most, engines.values())), default=threads)
    if smallest < threads:
        yield _finding(
            "pools",
            "warning",
            f"has {threads} threads, and {smallest} connections to a server: some "
            "threads wait for others",
            "let pool_size + max_overflow be at least the number of threads",
        )
    for name, engine in engines.items():
        error = answers[name]
        if error is not None:
            is_refused = isinstance(error, LoginFailedError)
            severity: Severity = "critical" if is_refused else "unknown"
            yield _finding("login", severity, one_line(error), server=name)
        elif engine.url.host is None:
            files = "is a folder of SQLite files: for development and tests"
            yield _finding("versions", "info", files, server=name)
        else:
            yield from _server(cluster, engine, name, processes)


def _packages(drivers: set[str]) -> Iterator[FleetFinding]:
    finding = partial(_finding, "versions")
    found = [f"Python {sys.version.split()[0]}", f"SQLAlchemy {sqlalchemy.__version__}"]
    for package in sorted({"sqla-shard", *drivers} - {"pysqlite"}):
        # The driver mysqldb is of the package mysqlclient.
        name = {"mysqldb": "mysqlclient"}.get(package, package)
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"{name} without a version")
    yield finding("info", f"runs on {', '.join(found)}")
    minor = ".".join(map(str, sys.version_info[:2]))
    known = metadata("sqla-shard").get_all("Classifier") or []
    if f"Programming Language :: Python :: {minor}" not in known:
        yield finding(
            "warning",
            f"runs on Python {minor}, on which this version was not tested",
            "see the table of versions in the documentation",
        )
    if "pymysql" in drivers:
        yield _finding(
            "driver",
            "info",
            "uses PyMySQL; mysqlclient takes half its time",
            "pip install 'sqla-shard[mysqlclient]', and Cluster(driver='mysqldb')",
        )
    if find_spec("orjson") is None:
        yield _finding(
            "driver",
            "info",
            "reads JSON without orjson",
            "pip install 'sqla-shard[fast]'",
        )


def _topology(cluster: Cluster, has_servers: bool) -> Iterator[FleetFinding]:
    finding = partial(_finding, "topology")
    report = cluster.source_report()
    if report.last_error is not None:
        yield finding(
            "warning",
            f"cannot read its topology from {report.source}, and uses that of "
            f"{report.age:,.0f} s ago: {report.last_error}",
        )
    elif report.state == "fixed" and has_servers:
        yield finding(
            "warning",
            "does not follow its topology: after a failover or a move it uses the "
            "former server until it is restarted",
            "open it with Cluster.from_file() or Cluster.from_zookeeper()",
        )
    else:
        yield finding("info", f"has its topology from {report.source}")
    names = server_names(cluster.topology)
    clear = {
        names[keyspace.name, server.name]
        for keyspace in cluster.topology.keyspaces.values()
        for server in keyspace.servers
        if "${" not in (make_url(server.primary).password or "${")
    }
    if clear:
        yield finding(
            "warning",
            f"has passwords in the URLs of {shortened_list(sorted(clear), 5)}",
            "write ${MYSQL_PASSWORD} there, and set that variable",
        )


def _most(engine: Engine) -> int | None:
    """Return the most connections of a pool; None if it has no limit."""
    return engine.pool.most if isinstance(engine.pool, CountedPool) else None


def _server(
    cluster: Cluster, engine: Engine, name: str, processes: int
) -> Iterator[FleetFinding]:
    finding = partial(_finding, server=name)
    with cluster.places.engines.visit(engine) as connection:
        text, *limits = connection.exec_driver_sql(
            "SELECT @@version, @@max_connections, @@max_user_connections"
        ).one()
        cipher = connection.exec_driver_sql("SHOW STATUS LIKE 'Ssl_cipher'").one()[1]
        dialect: Any = connection.dialect
    kind = "MariaDB" if dialect.is_mariadb else "MySQL"
    limit = min(filter(None, limits))
    most = _most(engine)
    pools = "any number of" if most is None else f"up to {most}"
    yield finding(
        "versions",
        "info",
        f"is {kind} {text}, {cipher or 'without TLS'}; a process opens {pools} "
        f"connections of {limit:,}",
    )
    if dialect.server_version_info < _LEAST[kind]:
        yield finding(
            "versions",
            "warning",
            f"is older than {kind} {'.'.join(map(str, _LEAST[kind]))}, which this "
            "package is written for",
            "upgrade the server",
        )
    if most is None or most * processes > limit * CONNECTIONS:
        need = "any number of" if most is None else f"{most * processes:,}"
        yield finding(
            "pools",
            "warning",
            f"takes {limit:,} connections of the account; with --processes "
            f"{processes} the pools open up to {need}",
            "make pool_size + max_overflow smaller, or raise max_connections",
        )
    if not cipher:
        yield finding(
            "tls",
            "info" if engine.url.host in _LOCAL else "warning",
            "is sent statements and rows in clear text",
            "set ssl_ca=FILE in its URL, and offer TLS on the server",
        )
    needs_package = kind == "MySQL" and dialect.driver in _PURE
    if not cipher and needs_package and find_spec("cryptography") is None:
        yield finding(
            "login",
            "warning",
            "is logged in to from its cache of caching_sha2_password: not after it "
            "was restarted",
            "use TLS, or pip install cryptography",
        )
