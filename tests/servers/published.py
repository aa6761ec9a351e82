"""A topology file that is replaced while others read it.

Writers that know nothing of :class:`~sqla_shard.Cluster` read it with
:class:`Reader`; the form is that of a topology file.
"""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pymysql

from sqla_shard.dialects.mysql.pymysql_connections import SharedContext

#: URL and database of a virtual shard.
Place = tuple[str, str]


def places(document: Any) -> dict[int, Place]:
    """Return where each virtual shard of ``objects`` is."""
    keyspace = document["keyspaces"]["objects"]
    found = {}
    for server in keyspace["servers"]:
        ranges = server["shards"]
        if isinstance(ranges[0], int):
            ranges = [ranges]
        for first, last in ranges:
            for shard in range(first, last + 1):
                database = keyspace["database"].format(shard=shard)
                found[shard] = server["primary"], database
    return found


def moved(document: Any, *servers: dict[str, Any]) -> dict[str, Any]:
    """Return the next topology: the next epoch, and these servers.

    :param servers: those of ``objects`` from now on; one with the name of
        a server that is there keeps what it does not say.
    """
    new = copy.deepcopy(document)
    new["epoch"] += 1
    keyspace = new["keyspaces"]["objects"]
    known = {server["name"]: server for server in keyspace["servers"]}
    keyspace["servers"] = [
        {**known.get(server["name"], {}), **server} for server in servers
    ]
    return new


#: MySQL wants TLS for passwords.  Otherwise each connection would load all
#: authorities of the system: writers that try again and again would do nothing
#: else.
_connect: Any = type(
    "Connection",
    (SharedContext, pymysql.connections.Connection),
    {"shared_context": None},
)


def publish_to(path: Path, document: Any) -> None:
    """Replace the file atomically; readers see the old one or the new one."""
    draft = path.with_suffix(".draft")
    # It has passwords.
    draft.touch(mode=0o600)
    draft.write_text(json.dumps(document), encoding="utf-8")
    os.replace(draft, path)


class Reader:
    """Knows where shards are, as of the last time that it looked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.look()

    def look(self) -> None:
        """Read the file."""
        document = json.loads(self.path.read_text(encoding="utf-8"))
        self.places = places(document)


def connect_to(url: str, **arguments: Any) -> pymysql.Connection[Any]:
    """Connect as a URL says, with no default database."""
    parts = urlsplit(url)
    connection: pymysql.Connection[Any] = _connect(
        host=parts.hostname,
        port=parts.port or 3306,
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        charset="utf8mb4",
        **arguments,
    )
    return connection
