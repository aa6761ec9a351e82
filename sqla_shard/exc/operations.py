"""Errors of servers, moved shards and schema changes."""

from __future__ import annotations

from typing import Any

from sqlalchemy.exc import ProgrammingError

from sqla_shard.exc.base import (
    bullets,
    DriverError,
    field,
    MessageError,
    ShardError,
    shortened_list,
)
from sqla_shard.exc.topologies import Problem

# The reader may be about to create empty tables in the place of a shard
# whose objects are on another server: the way to find out changes nothing.
_CHECK = (
    "If the published topology has a higher epoch, this process has an old "
    "one, and the shard may have been moved. If not, run: sqla-shard schema "
    "status. "
)
_LACKS = {
    "table": "the table or its database does not exist on {server}. "
    f"{_CHECK}If the schema is behind: sqla-shard schema upgrade "
    "(create_all() in development). If it was never provisioned: sqla-shard "
    "schema provision. If its tables were lost: restore them, and do not "
    "create empty ones",
    "database": "the database does not exist on {server}. "
    f"{_CHECK}If it was never provisioned: sqla-shard schema provision "
    "(create_all() in development). If it was lost: restore it, and do not "
    "create an empty one",
    "grant": "the user of the application lacks a privilege on {server}. If "
    "the published topology has a higher epoch, this process has an old one, "
    "and the shard may have been moved. If not, grant it there",
}


class ServerFencedError(DriverError):
    """Raised when a server is read-only: it is fenced, or a standby.

    Nothing of the transaction was written, even if COMMIT raised the error.
    Handlers of SQLAlchemy's ``OperationalError`` catch it as well; ``orig``
    is the driver's error.

    :ivar server: its name in the topology, or its names.
    """

    server: str
    _text = (
        "server {server} is read-only; it is fenced, or a standby: {orig}. "
        "Roll back, and repeat the transaction (cluster.run does)"
    )


class ShardMovedError(DriverError, ProgrammingError):
    """Raised when a shard is on another server in a newer topology.

    The transaction began with an older one; repeated, it uses the new
    server.  ``orig`` is the driver's error.

    :ivar keyspace: the keyspace.
    :ivar shards: the numbers of the shards that have moved.
    :ivar from_server: the server that the transaction used.
    :ivar to_server: the new server of the first of these shards; None if the
        newer topology does not have the shard.
    :ivar epoch: epoch of the newer topology.
    """

    keyspace: str
    shards: tuple[int, ...]
    from_server: str
    to_server: str | None
    epoch: int

    def _describe(self, error: Any) -> str:
        return (
            f"shard {shortened_list(self.shards)} of {self.keyspace} has "
            f"moved from {self.from_server} to "
            f"{self.to_server or 'no server'} in the topology of "
            f"epoch {self.epoch}: {self.orig}. Roll back, and repeat the "
            "transaction (cluster.run does)"
        )


class ShardMissingError(DriverError, ProgrammingError):
    """Raised when a server lacks what the newest topology assigns to it.

    A table, a database or a grant is missing; or the shard was moved, or is
    being moved, and this process does not have that topology yet.  ``orig``
    is the driver's error, and handlers of SQLAlchemy's ``ProgrammingError``
    and ``OperationalError`` catch it as well.

    :ivar keyspace: the keyspace.
    :ivar shards: the numbers of the shards that the statement was for.
    :ivar server: the server that should have these shards.
    :ivar lacks: ``"table"``, ``"database"`` or ``"grant"``.  MariaDB reports
        ``"table"`` for a missing database, MySQL ``"database"``.
    :ivar epoch: epoch of the newest topology.
    """

    keyspace: str
    shards: tuple[int, ...]
    server: str
    lacks: str
    epoch: int

    @property
    def explanation(self) -> str:
        """The shards, their server, and what to do."""
        return (
            f"for shard {shortened_list(self.shards)} of {self.keyspace}, "
            f"which is on {self.server} in the newest "
            f"topology of this process, of epoch {self.epoch}: "
            f"{_LACKS[self.lacks].format(server=self.server)}. If the shard "
            "is being moved right now, repeat the transaction"
        )

    def _describe(self, error: Any) -> str:
        return f"{self.orig} - {self.explanation}"


class KeyUsedError(ShardError):
    """Raised when an earlier ``cluster.run(key=...)`` used the same key.

    The earlier transaction has committed; this one was rolled back.

    :ivar key: the key.
    :ivar shard_id: the shard where it was found.
    :ivar keyspace: keyspace of the shard.
    """

    key: str
    shard_id: int
    keyspace: str
    _text = (
        "the key {key!r} is already on shard {shard_id} of {keyspace}: an "
        "earlier transaction with it has committed. This one was rolled "
        "back; read what the earlier one has written"
    )


# -- Topology sources and publishing.


# -- Schema commands.


class SchemaError(ShardError):
    """Base of the errors of schema changes."""


class SchemaOptionError(SchemaError, MessageError, ValueError):
    """Raised when an option of a schema command cannot be used.

    :ivar option: name of the option.
    :ivar value: the value that was given.
    """

    option: str
    value: str
    _text = "{option}={value}: {message}"


class DivergedRevisionsError(SchemaError):
    """Raised for a relative target if shards are at several revisions.

    :ivar target: the target, such as ``"+1"``.
    :ivar heads: the shards at each revision, in readable form.
    """

    target: str
    heads: dict[str, str]

    def _describe(self) -> str:
        where = "; ".join(f"{at} on {on}" for at, on in self.heads.items())
        return (
            f"{self.target!r} means another revision on each of these: "
            f"{where}. Give the revision itself, or select shards that are "
            "at the same one with shards=..."
        )


class InDoubtError(SchemaError, MessageError):
    """Raised when the effect of an interrupted revision is in doubt.

    Inspect the database, correct it, and record the result with
    ``sqla-shard schema resolve``.

    :ivar statement: the statement whose effect is unknown.
    """

    statement: str
    _text = (
        "{message}. Inspect the database, then record the result with: "
        "sqla-shard schema resolve"
    )


class MigrationFailedError(SchemaError, MessageError):
    """Raised when a command failed on some virtual shards.

    :ivar report: the outcome on every shard, as
        :meth:`~sqla_shard.schema.RunReport.as_dict` returns it.
    :ivar shards: the shards that failed.
    """

    report: dict[str, Any]
    shards: tuple[int, ...]


class ProvisionError(SchemaError):
    """Raised before any database is created, if not all can be created.

    The message shows only the first problems.

    :ivar keyspace: the keyspace whose virtual shards were to be created.
    :ivar epoch: epoch of the topology that was to be provisioned.
    :ivar problems: all problems.
    :ivar unreachable: the servers that could not be read.
    """

    keyspace: str
    epoch: int
    problems: tuple[Problem, ...] = field(kw_only=False)
    unreachable: tuple[str, ...] = ()

    def _describe(self) -> str:
        count = len(self.problems)
        return (
            f"keyspace {self.keyspace!r} is not provisioned for the topology "
            f"of epoch {self.epoch}, and nothing was created: {count} problem"
            f"{'' if count == 1 else 's'}{bullets(self.problems, 20)}"
        )


class ReservedNameError(SchemaError):
    """Raised when a table has a name that is reserved for the package.

    :ivar table: name of the table.
    """

    table: str
    _text = (
        "a table cannot be called {table!r}: alembic_version and names that "
        "begin with sqla_shard_ are reserved for the state of upgrades, "
        "which no revision contains. Choose another name"
    )


class VerifyPositionError(ShardError):
    """Raised when a run cannot be resumed from a position file.

    The file belongs to another run: of other classes, of keyspaces with
    another number of shards, or with other repairs; a pass of a move also if
    the stage has changed, or the database is another one.  Or it is not a
    position file.

    :ivar path: the file.
    :ivar reason: why it cannot be used.
    """

    path: str
    reason: str
    _text = (
        "{path}: the run cannot be resumed from it: {reason}. Name another "
        "file, or remove this one to start over"
    )
