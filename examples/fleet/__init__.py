"""Six servers on this machine, to try ``sqla-shard fleet`` with.

::

    python -m examples.fleet fleet-data
    python -m examples.fleet fleet-data --server mysql

The servers have the configuration and the accounts of the page "From nothing
to the first failover" (docs/howto/fleet-start.rst): ``server.cnf`` and
``accounts.sql``, of MySQL ``server.mysql.cnf`` and ``accounts.mysql.sql``.
They are for your own servers, too.  The servers are empty and read-only; the
page says how they become three pairs.  The directory gets
``topology.json``, with two servers, and ``environment``, with the passwords.
Ctrl-C stops the servers and removes their data.

Needs MariaDB 10.10 or MySQL 8.4 or later, PyMySQL, and Linux.
"""

from __future__ import annotations

import configparser
import os
import pwd
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, ExitStack
from pathlib import Path
from string import Template

from sqla_shard.testing import MariaDBServer, MySQLServer
from sqla_shard.testing.database_server import DatabaseServer
from sqla_shard.testing.local_server import in_parallel

NAMES = tuple(f"mysql00{pair}{role}" for pair in (1, 2, 3) for role in "ab")
"""Names of the servers on the page: primaries end with a, standbys with b."""

KINDS = ("mariadb", "mysql")
"""Kinds of servers."""

_HERE = Path(__file__).parent
#: Configuration of each kind, and its section.
_FILES = {"mariadb": ("server.cnf", "mariadb"), "mysql": ("server.mysql.cnf", "mysqld")}
#: Settings that differ between servers.
_OWN = ("server_id", "gtid_domain_id")


@contextmanager
def local_servers(
    directory: Path, *, kind: str = "mariadb", fast: bool = False
) -> Iterator[dict[str, DatabaseServer]]:
    """Start the servers, and write the files of an operator.

    :param directory: gets ``topology.json`` and ``environment``; created if
        it does not exist.
    :param kind: kind of the servers, one of :data:`KINDS`.
    :param fast: whether a power failure may lose commits.
    :return: the servers by their names on the page.
    :raises sqla_shard.exc.ServerProcessError: if the program is missing or a
        server does not start.
    """
    passwords = {
        name: secrets.token_urlsafe(12)
        for name in (
            "MYSQL_PASSWORD",
            "SQLA_SHARD_OPERATOR_PASSWORD",
            "SQLA_SHARD_REPLICATION_PASSWORD",
        )
    }
    servers: list[DatabaseServer] = []
    for number, name in enumerate(NAMES):
        if kind == "mysql":
            options = ("--plugin-load-add=auth_socket.so", *options_of(kind))
            servers.append(MySQLServer(name, fast=fast, options=options))
        else:
            server = MariaDBServer(
                name,
                fast=fast,
                gtid_domain_id=1 + number // 2,
                options=options_of(kind),
            )
            servers.append(server)
    if kind == "mysql":
        statements = _statements("accounts.mysql.sql", passwords)
        # As on MariaDB, root is who has started the servers.
        user = pwd.getpwuid(os.geteuid()).pw_name
        statements.append(
            f"ALTER USER 'root'@'localhost' IDENTIFIED WITH auth_socket AS '{user}'"
        )
    else:
        statements = _statements("accounts.sql", passwords)
    with ExitStack() as stack:
        for server in servers:
            stack.callback(server.stop)
        in_parallel(servers, DatabaseServer.start)
        for server in servers:
            with server.root_connect() as connection:
                cursor = connection.cursor()
                for statement in statements:
                    cursor.execute(statement)
        directory.mkdir(parents=True, exist_ok=True)
        _write_files(directory, servers, passwords)
        yield {server.name: server for server in servers}


def options_of(kind: str) -> tuple[str, ...]:
    """Return the configuration of a kind of servers as arguments.

    :param kind: one of :data:`KINDS`.
    """
    file, section = _FILES[kind]
    parser = configparser.ConfigParser()
    parser.read_string((_HERE / file).read_text("utf-8"))
    return tuple(
        f"--{name.replace('_', '-')}={value}"
        for name, value in parser[section].items()
        if name not in _OWN
    )


def _statements(file: str, passwords: dict[str, str]) -> list[str]:
    """Return the accounts of a file as statements."""
    text = Template((_HERE / file).read_text("utf-8"))
    lines = text.substitute(passwords).splitlines()
    sql = "\n".join(line for line in lines if not line.startswith("--"))
    found = [one.strip() for one in sql.split(";") if one.strip()]
    # The server of the tests has an account of the same name, with more
    # privileges.
    return [found[0], "DROP USER 'app'@'127.0.0.1'", *found[1:]]


def _write_files(
    directory: Path, servers: list[DatabaseServer], passwords: dict[str, str]
) -> None:
    text = (_HERE / "topology.json").read_text("utf-8")
    for server in servers:
        text = text.replace(f"@{server.name}:3306", f"@{server.host}:{server.port}")
    topology = directory / "topology.json"
    topology.write_text(text, "utf-8")
    values = {
        "SQLA_SHARD_TOPOLOGY": str(topology.resolve()),
        "MYSQL_USER": "app",
        "SQLA_SHARD_OPERATOR_USER": "operator",
        "SQLA_SHARD_REPLICATION_USER": "replica",
        **passwords,
    }
    environment = directory / "environment"
    environment.touch(mode=0o600)
    environment.write_text(
        "".join(f"export {name}='{value}'\n" for name, value in values.items())
    )
