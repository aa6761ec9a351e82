"""The state and the sizes of every server, all read at the same time.

A server that does not respond in time has an error instead of a state, and
delays no other.  Each read opens a connection of its own: those of the pools
may all wait for a server that hangs.

Sizes and rows are estimates of the servers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

from sqlalchemy.engine import URL

from sqla_shard.dialects.mysql.catalogue import TABLE_TYPES
from sqla_shard.engine.registry import filled
from sqla_shard.fleet.accounts import Accounts
from sqla_shard.fleet.admin import Admin, SYSTEM
from sqla_shard.fleet.fleet import all_pairs, Pair
from sqla_shard.fleet.replication import replication_of, TableSize
from sqla_shard.fleet.server_states import (
    all_answers,
    read_states,
    reason_of,
    ServerState,
)
from sqla_shard.topology import Topology
from sqla_shard.topology.urls import address_of


@dataclass(frozen=True, kw_only=True)
class PairState:
    """A server of the topology: its primary and its standby.

    :ivar name: its name, with the keyspace if that alone is ambiguous.
    :ivar members: name of keyspace and of the server in it, of each entry.
    :ivar weight: share of new roots of its first entry.
    """

    name: str
    primary: ServerState
    standby: ServerState | None
    members: tuple[tuple[str, str], ...]
    weight: float = 1.0

    @property
    def servers(self) -> tuple[ServerState, ...]:
        """The primary, and the standby if there is one."""
        found = (self.primary, self.standby)
        return tuple(one for one in found if one is not None)

    @property
    def level(self) -> Literal["bad", "warning", "good"]:
        """Severity of the problems of its servers."""
        if self.primary.problems:
            return "bad"
        standby = self.standby
        return "warning" if standby and standby.problems else "good"


@dataclass(frozen=True, kw_only=True)
class DatabaseSize:
    """The tables of one virtual shard together.

    :ivar bytes: of rows and indexes.
    :ivar rows: number of rows; None if it is not known.
    """

    bytes: int
    rows: int | None


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The sizes of the databases of a fleet.

    :ivar databases: by address of the primary and name of the database.
    :ivar unread: why primaries could not be read, by name of the server.
    """

    databases: Mapping[tuple[str, str], DatabaseSize]
    unread: Mapping[str, str] = field(default_factory=dict)

    @property
    def totals(self) -> DatabaseSize:
        """The sums of all databases."""
        known = self.databases.values()
        return DatabaseSize(
            bytes=sum(one.bytes for one in known),
            rows=sum(one.rows or 0 for one in known),
        )


class ServerReader:
    """Reads all servers of a topology.

    :param environ: values of the placeholders in URLs.
    :param accounts: accounts of an operator, who may see the replication of
        standbys; None for the account of the application.
    """

    def __init__(
        self, environ: Mapping[str, str], accounts: Accounts | None = None
    ) -> None:
        self._environ = environ
        self._accounts = accounts

    def states(self, topology: Topology, *, timeout: float) -> tuple[PairState, ...]:
        """Return the state of every server, in the order of the topology.

        :param timeout: seconds for each server.
        """
        pairs = all_pairs(topology)
        states = read_states(pairs, self._url, timeout=timeout)
        return tuple(
            PairState(
                name=pair.name,
                primary=states[pair.name, "primary"],
                standby=states.get((pair.name, "standby")),
                members=tuple(
                    (keyspace.name, server.name) for keyspace, server in pair.members
                ),
                weight=pair.members[0][1].weight,
            )
            for pair in pairs
        )

    def sizes(self, topology: Topology, *, timeout: float) -> Sizes:
        """Return the sizes of the databases on every primary.

        :param timeout: seconds for each server.
        """
        pairs = all_pairs(topology)
        found = all_answers(
            [partial(self._sizes, pair, timeout) for pair in pairs], timeout
        )
        databases: dict[tuple[str, str], DatabaseSize] = {}
        unread: dict[str, str] = {}
        for pair, result in zip(pairs, found, strict=True):
            if isinstance(result, Mapping):
                address = str(address_of(pair.primary))
                for name, size in result.items():
                    databases[address, name] = size
            else:
                unread[pair.name] = reason_of(result)
        return Sizes(databases=databases, unread=unread)

    def tables(self, pair: Pair, database: str, *, timeout: float) -> list[TableSize]:
        """Return the tables of one database of a primary, by name.

        :raises FleetServerError: if the server cannot be read.
        :raises OSError: if the file of SQLite cannot be read.
        """
        url = self._url(pair.primary)
        if url.host is None:
            size = (Path(str(url.database)) / f"{database}.sqlite").stat()
            return [
                TableSize(
                    database=database,
                    table=f"{database}.sqlite",
                    bytes=size.st_size,
                    rows=0,
                )
            ]
        with Admin(url, name=pair.name, timeout=timeout) as admin:
            sizes = replication_of(admin).table_sizes(database)
        return sorted(sizes, key=lambda one: one.table)

    # -- one server -------------------------------------------------------

    def _url(self, text: str) -> URL:
        if self._accounts is None or text.startswith("sqlite"):
            return filled(text, self._environ)
        return self._accounts.url(text)

    def _sizes(self, pair: Pair, timeout: float) -> dict[str, DatabaseSize]:
        url = self._url(pair.primary)
        if url.host is None:
            return {
                path.stem: DatabaseSize(bytes=path.stat().st_size, rows=None)
                for path in Path(str(url.database)).glob("*.sqlite")
            }
        with Admin(url, name=pair.name, timeout=timeout) as admin:
            return {
                name: DatabaseSize(bytes=int(size), rows=int(rows))
                for name, size, rows in admin.rows(
                    "SELECT table_schema,"
                    " SUM(COALESCE(data_length, 0)"
                    " + COALESCE(index_length, 0)),"
                    " SUM(COALESCE(table_rows, 0))"
                    " FROM information_schema.tables"
                    " WHERE table_type IN %s GROUP BY table_schema",
                    TABLE_TYPES,
                )
                if name not in SYSTEM
            }
