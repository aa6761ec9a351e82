"""The kind of servers that is measured, see ``--server``."""

from __future__ import annotations

from typing import Any

from sqla_shard.testing.database_server import DatabaseServer
from sqla_shard.testing.server_fleet import ServerFleet
from tests.servers.kinds import KINDS

TITLES = {"mariadb": "MariaDB", "mysql": "MySQL"}
_kind = KINDS["mariadb"]


def choose(name: str) -> None:
    """Have what follows measure a kind of servers.

    :param name: ``mariadb`` or ``mysql``.
    """
    global _kind
    _kind = KINDS[name]


def title() -> str:
    """Return the name of the kind, as it is written."""
    return TITLES[_kind.name]


def new_fleet(*arguments: Any, **options: Any) -> ServerFleet[Any]:
    """Return a fleet; the arguments are those of its class."""
    return _kind.fleet(*arguments, **options)


def new_server(*arguments: Any, **options: Any) -> DatabaseServer:
    """Return a server; the arguments are those of its class."""
    return _kind.server(*arguments, **options)
