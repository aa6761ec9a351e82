"""The tables of one server, read for comparing."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from dataclasses import field

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import SQLAlchemyError

from sqla_shard.dialects import Backend
from sqla_shard.engines import Engines
from sqla_shard.exc import ServerUnreachableError
from sqla_shard.exc import ShardError
from sqla_shard.internal import OF_TRANSACTIONS
from sqla_shard.schema.drift.report import end_of
from sqla_shard.schema.drift.report import Role
from sqla_shard.topology import Keyspace
from sqla_shard.topology import Server

__all__ = ["Copy", "End", "Reading"]


@dataclass(frozen=True, kw_only=True)
class End:
    """A server of a keyspace: its primary, or its standby.

    :ivar shards: those to read, ascending.
    """

    engines: Engines
    keyspace: Keyspace
    server: Server
    role: Role
    shards: Sequence[int]

    def read(self) -> Reading:
        """Return what is there; also if that is only an error."""
        try:
            return self._read()
        except ShardError as error:
            if not isinstance(error, ServerUnreachableError):
                # Nothing about the server: the cluster is closed, or a
                # driver is missing.
                raise
            return Reading(end=self, error=reason(error))
        except (SQLAlchemyError, OSError) as error:
            return Reading(end=self, error=reason(error))

    def definition(self, shard_id: int, table: str) -> str:
        """Return the definition of a table, or why it cannot be read."""
        database = self.keyspace.database_for(shard_id)
        try:
            engine, schema, backend = self._locate(database)
            with engine.connect() as connection:
                return backend.catalogue.definition(connection, schema, table)
        except (SQLAlchemyError, OSError) as error:
            return f"(it could not be read: {reason(error)})"

    def named(self, shard_id: int) -> str:
        """Return what a shard here is called in a diff."""
        return f"shard {shard_id} on {end_of(self.server.name, self.role)}"

    def _read(self) -> Reading:
        lowest = self.shards[0] if self.shards else 0
        engine, _, backend = self._locate(self.keyspace.database_for(lowest))
        databases = backend.catalogue.databases(engine)
        # Connecting to a file that is not there would make it.
        names = {
            shard: self.keyspace.database_for(shard) for shard in self.shards
        }
        work: dict[Engine, dict[str, int]] = {}
        for shard, name in names.items():
            if name in databases:
                engine, schema, _ = self._locate(name)
                work.setdefault(engine, {})[schema] = shard
        tables = {}
        for engine, schemas in work.items():
            with engine.connect() as connection:
                found = backend.catalogue.digests(connection, schemas)
            for schema, digests in _without_ours(found).items():
                tables[schemas[schema]] = digests
        return Reading(end=self, databases=databases, tables=tables)

    def _locate(self, database: str) -> tuple[Engine, str, Backend]:
        return self.engines.locate(
            self.server, database, standby=self.role == "standby"
        )


def _without_ours(
    found: Mapping[str, Mapping[str, str]],
) -> dict[str, Mapping[str, str]]:
    """Leave out tables of ours, which a shard has when it needs them."""
    # Equal databases share one mapping, and must go on to do so.
    known = {id(digests): digests for digests in found.values()}
    ours = {table.name for table in OF_TRANSACTIONS}
    cut = {
        key: {name: d for name, d in digests.items() if name not in ours}
        for key, digests in known.items()
    }
    return {schema: cut[id(digests)] for schema, digests in found.items()}


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What one server has.

    :ivar databases: the names of all its databases.
    :ivar tables: by shard, the digests of its tables.
    :ivar error: why nothing could be read.
    """

    end: End
    databases: AbstractSet[str] = frozenset()
    tables: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    error: str | None = None

    def copies(self) -> list[Copy]:
        """Return the databases that were read."""
        return [
            Copy(end=self.end, shard=shard, tables=tables)
            for shard, tables in sorted(self.tables.items())
        ]


@dataclass(frozen=True, kw_only=True, eq=False)
class Copy:
    """The database of a virtual shard on one server.

    :ivar tables: the digests of its tables.
    """

    end: End
    shard: int
    tables: Mapping[str, str]


def reason(error: Exception) -> str:
    """Return what is wrong, without the statement that was sent."""
    if isinstance(error, DBAPIError) and not isinstance(error, ShardError):
        return f"{type(error.orig).__name__}: {error.orig}"
    return str(error)
