"""The URLs of servers, as the topology has them and as engines do."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import make_url
from sqlalchemy.engine import URL

from sqla_shard.topology import fill
from sqla_shard.topology import Topology

__all__ = ["filled", "urls_of"]


def urls_of(topology: Topology) -> set[str]:
    """Return the URLs of all servers, as the topology has them."""
    return {
        text
        for keyspace in topology.keyspaces.values()
        for server in keyspace.servers
        for text in (server.primary, server.standby)
        if text is not None
    }


def filled(text: str, environ: Mapping[str, str]) -> URL:
    """Return the URL of a server with its secrets.

    :param environ: values of the placeholders.
    :raises TopologyError: when one has none.
    """
    url = make_url(text)
    return url.set(
        username=_filled(url.username, environ),
        password=_filled(url.password, environ),
    )


def _filled(text: str | None, environ: Mapping[str, str]) -> str | None:
    return None if text is None else fill(text, environ)
