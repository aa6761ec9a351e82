"""The short form of a topology: servers, each with a range and two hosts.

Pinterest used this form::

    {
        "sharddb001": {
            "range": (0, 511), "master": "MySQL001A", "slave": "MySQL001B"
        },
        "sharddb002": {
            "range": (512, 1023), "master": "MySQL002A", "slave": "MySQL002B"
        },
    }

It is one keyspace ``objects`` of epoch 0, with databases ``db00000``,
``db00001`` and so on up to the highest shard.  A server is a host,
``host:port``, or a URL.  A topology that changes while processes run needs an
epoch, and so the full form: ``Topology.from_mapping(short).to_mapping()``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from sqla_shard.exc import Problem
from sqla_shard.topology.parse import (
    above,
    brief,
    DocumentTable,
    key_name,
    MISSING,
    parse_ranges,
    ServerDraft,
)

__all__ = ["DEFAULT_URL", "FormPlaces", "expand", "is_short"]

DEFAULT_URL = "mysql://${MYSQL_USER}:${MYSQL_PASSWORD}@{host}"
"""Template for URLs of bare hosts."""

_FULL = {"shards": "range", "primary": "master", "standby": "slave"}
_HOST = re.compile(r"(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]+)?")
_DATABASE = "db{shard:05d}"


def is_short(document: object) -> bool:
    """Return whether a document has the short form."""
    return (
        isinstance(document, Mapping)
        and not document.keys() & {"epoch", "keyspaces"}
        and any(
            isinstance(entry, Mapping) and entry.keys() & set(_FULL.values())
            for entry in document.values()
        )
    )


class FormPlaces:
    """Maps places of the full form to places of the short form."""

    def __init__(self) -> None:
        self._origins: dict[str, str] = {}

    def add(self, full: str, short: str) -> None:
        """Record that ``full`` was created from ``short``."""
        self._origins[full] = short

    def restore(self, problem: Problem) -> Problem:
        """Return the problem with its place in the short form."""
        full = problem.place
        while full:
            if full in self._origins:
                rest = problem.place[len(full) :]
                return Problem(self._origins[full] + rest, problem.message)
            full = above(full)
        return Problem("document", problem.message)


def expand(
    document: Mapping[object, object], *, url: str, problems: list[Problem]
) -> tuple[dict[object, object], FormPlaces]:
    """Return the full form of a document in the short form.

    :param document: the short form.
    :param url: template with ``{host}`` for bare hosts.
    :param problems: list to which problems are appended, with places in the
        short form.
    """
    if url.count("{host}") != 1:
        problems.append(
            Problem(
                "url",
                f"{brief(url)} needs {{host}} exactly once, such as {DEFAULT_URL!r}",
            )
        )
    places = FormPlaces()
    servers: list[object] = []
    highest = 0
    for name, entry in document.items():
        base = f"keyspaces.objects.servers[{len(servers)}]"
        if isinstance(entry, Mapping):
            table = DocumentTable(entry, place=key_name(name), problems=problems)
            for key, short in _FULL.items():
                places.add(f"{base}.{key}", table.place_of(short))
            places.add(f"{base}.name", table.place)
            highest = max(highest, _highest(entry))
            servers.append(_server(table, name, url))
        else:
            servers.append(entry)
        places.add(base, key_name(name))
    keyspace = {
        "kind": "objects",
        "shards": highest + 1,
        "database": _DATABASE,
        "servers": servers,
    }
    return {"epoch": 0, "keyspaces": {"objects": keyspace}}, places


def _server(table: DocumentTable, name: object, url: str) -> dict[str, object]:
    table.refuse_others(_FULL.values())
    server = {"name": name}
    for key, short in _FULL.items():
        value = table.get(short)
        if value is MISSING:
            continue
        if isinstance(value, str) and _HOST.fullmatch(value):
            # str.format() would also replace ${NAME}.
            value = url.replace("{host}", value)
        server[key] = value
    return server


def _highest(entry: Mapping[object, object]) -> int:
    """Return the highest shard of a server; 0 if it has no shards."""
    draft = ServerDraft(place="")
    parse_ranges(
        DocumentTable(entry, place="", problems=[]), "range", draft, is_required=False
    )
    return max((item.last for _, item in draft.ranges), default=0)
