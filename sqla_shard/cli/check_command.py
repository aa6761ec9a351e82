"""``sqla-shard check``: an application's side of its servers, and the advice."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from importlib.metadata import metadata, PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

import click
import sqlalchemy
from sqlalchemy.engine import Engine, make_url
from sqlalchemy.exc import SQLAlchemyError

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
from sqla_shard.engine.registry import Engines
from sqla_shard.exc import LoginFailedError, MissingDriverError
from sqla_shard.exc.base import code_of, shortened_list
from sqla_shard.fleet.doctor import DoctorReport
from sqla_shard.fleet.findings import FleetFinding, SEVERITIES, Severity
from sqla_shard.fleet.setting_checks import CONNECTIONS
from sqla_shard.topology import server_names

#: The place of findings that are not about a server.
_HERE = "application"
_LOCAL = ("127.0.0.1", "::1", "localhost")
#: The oldest versions that the package is written for.
_LEAST = {"MariaDB": (10, 6), "MySQL": (8, 4)}
#: Codes of refused connections: of a server and of an account with too many, and
#: of a host with too many errors.
_TOO_MANY = ("1040", "1203", "1226")
_BLOCKED = "1129"
_SMALLER = "make pool_size + max_overflow smaller, or raise max_connections"
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
    checked by `fleet doctor`.  The pools are those of synchronous sessions; each
    event loop has as many connections of its own.

    The exit status is 1 if there is a critical finding or a warning, and 3 if
    a server did not respond.
    """
    if application is None:
        cluster = settings.cluster()
    else:
        cluster = imported_cluster(application, param_hint="MODULE:NAME")
    try:
        # A server of SQLite has an engine for each keyspace.
        found = list(dict.fromkeys(_findings(cluster, processes, threads, timeout)))
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
    known = server_names(places.topology)
    names: dict[Engine, str] = {}
    try:
        for _, place in places.servers():
            names.setdefault(place.engine, known[place.keyspace, place.server])
    except MissingDriverError as error:
        # Of an asyncio application, which may need no other driver.
        text = f"cannot be checked on its servers: {one_line(error)}"
        names.clear()
        yield _finding("driver", "unknown", text, "install it for this command")
    yield from _packages({one.dialect.driver for one in names})
    yield from _topology(cluster, any(one.url.host for one in names))
    smallest = min(filter(None, map(_most, names)), default=threads)
    if smallest < threads:
        yield _finding(
            "pools",
            "warning",
            f"has {threads} threads, and {smallest} connections to a server: some "
            "threads wait for others",
            "let pool_size + max_overflow be at least the number of threads",
        )
    answers = places.engines.in_parallel(
        [partial(_read, places.engines, engine, timeout) for engine in names], "check"
    )
    silent: set[str] = set()
    for (engine, name), answer in zip(names.items(), answers, strict=True):
        if isinstance(answer, Exception):
            failure = _failure(answer, name)
            # A folder of SQLite lacks the first file of each keyspace.
            if failure.severity != "unknown" or name not in silent:
                yield failure
            if failure.severity == "unknown":
                silent.add(name)
        elif answer is None:
            files = "is a folder of SQLite files: for development and tests"
            yield _finding("versions", "info", files, server=name)
        else:
            yield from _server(answer, _most(engine), name, processes)


@dataclass(frozen=True)
class _Facts:
    """Facts that a server reports of itself.

    :ivar limits: maximum numbers of connections; 0 if there is none.
    :ivar cipher: that of TLS; empty without it.
    """

    version: str
    limits: tuple[int, ...]
    cipher: str
    dialect: Any
    host: str


def _read(
    engines: Engines, engine: Engine, timeout: float
) -> _Facts | Exception | None:
    """Return the facts of a server, or its error; None for SQLite."""
    try:
        own = engines.new_engine(engine, timeout=timeout, translates_errors=True)
        try:
            with own.connect() as connection:
                run = connection.exec_driver_sql
                host = engine.url.host
                if host is None:
                    run("SELECT 1")
                    return None
                version, *limits = run(
                    "SELECT @@version, @@max_connections, @@max_user_connections"
                ).one()
                cipher = run("SHOW STATUS LIKE 'Ssl_cipher'").one()[1]
                return _Facts(version, tuple(limits), cipher, connection.dialect, host)
        finally:
            own.dispose()
    except (SQLAlchemyError, OSError) as error:
        # OSError: SQLite cannot create the directory of its files.
        return error


def _failure(error: Exception, name: str) -> FleetFinding:
    text = one_line(error)
    if code_of(error) in _TOO_MANY:
        return _finding("pools", "critical", f"accepts no more: {text}", _SMALLER, name)
    is_refused = isinstance(error, LoginFailedError) or code_of(error) == _BLOCKED
    return _finding("login", "critical" if is_refused else "unknown", text, server=name)


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
        for url in filter(None, (server.primary, server.standby))
        if "${" not in (make_url(url).password or "${")
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
    facts: _Facts, most: int | None, name: str, processes: int
) -> Iterator[FleetFinding]:
    finding = partial(_finding, server=name)
    cipher, dialect = facts.cipher, facts.dialect
    kind = "MariaDB" if dialect.is_mariadb else "MySQL"
    limit = min(filter(None, facts.limits))
    pools = "any number of" if most is None else f"up to {most}"
    yield finding(
        "versions",
        "info",
        f"is {kind} {facts.version}, {cipher or 'without TLS'}; a process opens "
        f"{pools} connections of {limit:,}",
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
            _SMALLER,
        )
    if not cipher:
        yield finding(
            "tls",
            "info" if facts.host in _LOCAL else "warning",
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
