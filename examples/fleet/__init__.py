"""Six MariaDB servers on this machine, to try ``sqla-shard fleet`` with.

::

    python -m examples.fleet fleet-data

The servers have the configuration and the accounts of the page "From nothing
to the first failover" (docs/howto/fleet-start.rst): ``server.cnf`` and
``accounts.sql``, which are for your own servers, too.  They are empty and
read-only; the page says how they become three pairs.  The directory gets
``topology.json``, with two servers, and ``environment``, with the passwords.
Ctrl-C stops the servers and removes their data.

Needs MariaDB 10.10 or later, PyMySQL, and Linux.
"""

from __future__ import annotations

import configparser
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from contextlib import ExitStack
from pathlib import Path
from string import Template

from sqla_shard.testing import MariaDBServer
from sqla_shard.testing.local_server import in_parallel

__all__ = ["NAMES", "local_servers"]

NAMES = tuple(f"mysql00{pair}{role}" for pair in (1, 2, 3) for role in "ab")
"""Names of the servers on the page: primaries end with a, standbys with b."""

_HERE = Path(__file__).parent
#: Settings that differ between servers.
_OWN = ("server_id", "gtid_domain_id")


@contextmanager
def local_servers(
    directory: Path, *, fast: bool = False
) -> Iterator[dict[str, MariaDBServer]]:
    """Start the servers, and write the files of an operator.

    :param directory: gets ``topology.json`` and ``environment``; created if
        it does not exist.
    :param fast: whether a power failure may lose commits.
    :return: the servers by their names on the page.
    :raises sqla_shard.exc.ServerProcessError: if MariaDB is missing or a
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
    servers = [
        MariaDBServer(
            name,
            fast=fast,
            gtid_domain_id=1 + number // 2,
            options=_options(),
        )
        for number, name in enumerate(NAMES)
    ]
    statements = _statements(passwords)
    with ExitStack() as stack:
        for server in servers:
            stack.callback(server.stop)
        in_parallel(servers, MariaDBServer.start)
        for server in servers:
            with server.root_connect() as connection:
                cursor = connection.cursor()
                for statement in statements:
                    cursor.execute(statement)
        directory.mkdir(parents=True, exist_ok=True)
        _write_files(directory, servers, passwords)
        yield {server.name: server for server in servers}


def _options() -> tuple[str, ...]:
    """Return ``server.cnf`` as arguments of ``mariadbd``."""
    parser = configparser.ConfigParser()
    parser.read_string((_HERE / "server.cnf").read_text("utf-8"))
    return tuple(
        f"--{name.replace('_', '-')}={value}"
        for name, value in parser["mariadb"].items()
        if name not in _OWN
    )


def _statements(passwords: dict[str, str]) -> list[str]:
    """Return ``accounts.sql`` as statements."""
    text = Template((_HERE / "accounts.sql").read_text("utf-8"))
    lines = text.substitute(passwords).splitlines()
    sql = "\n".join(line for line in lines if not line.startswith("--"))
    found = [one.strip() for one in sql.split(";") if one.strip()]
    # The server of the tests has an account of the same name, with more
    # privileges.
    return [found[0], "DROP USER 'app'@'127.0.0.1'", *found[1:]]


def _write_files(
    directory: Path, servers: list[MariaDBServer], passwords: dict[str, str]
) -> None:
    text = (_HERE / "topology.json").read_text("utf-8")
    for server in servers:
        text = text.replace(
            f"@{server.name}:3306", f"@{server.host}:{server.port}"
        )
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
