"""Shards that are not, or not any more, where a session looks for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import ProgrammingError

from sqla_shard.exc.base import listed
from sqla_shard.exc.base import ShardError

__all__ = [
    "KeyUsedError",
    "ServerFencedError",
    "ShardMissingError",
    "ShardMovedError",
]

# The reader may be about to make empty tables in the place of a shard
# whose objects are elsewhere: the way to find out changes nothing.
_LOOK = (
    "If the published topology has a higher epoch, this process has an old "
    "one, and the shard may have been moved away. If not, ask: sqla-shard "
    "schema status. "
)
_LACKS = {
    "table": "there is no such table, or no database, on {server}. "
    f"{_LOOK}One that is behind: sqla-shard schema upgrade (create_all() in "
    "development). One that was never made: sqla-shard schema provision. One "
    "that has lost its tables: get them back, and make no empty ones",
    "database": f"there is no such database on {{server}}. {_LOOK}One that "
    "was never made: sqla-shard schema provision (create_all() in "
    "development). One that is lost: get it back, and make no empty one",
    "grant": "the user of the application may not do that on {server}. If "
    "the published topology has a higher epoch, this process has an old one, "
    "and the shard may have been moved away. If not: Grant it there",
}


def _original(error: Any) -> Any:
    return getattr(error, "orig", None) or error


def _keep(made: Any, error: Any) -> None:
    """Take over what SQLAlchemy knows of the driver's error."""
    OperationalError.__init__(
        made,
        getattr(error, "statement", None),
        getattr(error, "params", None),
        _original(error),
        hide_parameters=True,
    )


class ServerFencedError(ShardError, OperationalError):
    """Raised when a server is read-only: it is not the primary (any more).

    Nothing of the transaction is there, also when COMMIT raised it.
    Handlers of SQLAlchemy's ``OperationalError`` catch it as well; ``orig``
    is the driver's error.

    :ivar server: its name in the topology, or its names.
    """

    def __init__(self, *, server: str, error: Any) -> None:
        _keep(self, error)
        message = (
            f"server {server} is read-only; it is fenced, or a standby: "
            f"{_original(error)}. Roll back, and repeat the transaction "
            "(cluster.run does)"
        )
        self.args = (message,)
        self.server = server

    def __str__(self) -> str:
        return str(self.args[0])


class ShardMovedError(ShardError, OperationalError, ProgrammingError):
    """Raised when a newer topology has a shard in another place.

    The transaction began with an older one; repeated, it goes to the new
    place.  ``orig`` is the driver's error.

    :ivar keyspace: the keyspace.
    :ivar shards: the numbers of those that have moved.
    :ivar from_server: where the transaction looked.
    :ivar to_server: where the first of them is; None where the newer
        topology does not have it at all.
    :ivar epoch: of the newer topology.
    """

    def __init__(
        self,
        *,
        keyspace: str,
        shards: Sequence[int],
        from_server: str,
        to_server: str | None,
        epoch: int,
        error: Any,
    ) -> None:
        _keep(self, error)
        message = (
            f"shard {listed(shards)} of {keyspace} is not on {from_server} "
            f"any more, but on {to_server or 'no server'} in the topology of "
            f"epoch {epoch}: {_original(error)}. Roll back, and repeat the "
            "transaction (cluster.run does)"
        )
        self.args = (message,)
        self.keyspace = keyspace
        self.shards = tuple(shards)
        self.from_server = from_server
        self.to_server = to_server
        self.epoch = epoch

    def __str__(self) -> str:
        return str(self.args[0])


class ShardMissingError(ShardError, OperationalError, ProgrammingError):
    """Raised when a server lacks what the newest topology says it has.

    A table, a database or a grant is missing; or the shard was moved, or is
    being moved this moment, and the topology that says so is not here yet.
    ``orig`` is
    the driver's error, and handlers of SQLAlchemy's ``ProgrammingError`` and
    ``OperationalError`` catch it as well.

    :ivar keyspace: the keyspace.
    :ivar shards: the numbers of those that the statement was for.
    :ivar server: where they should be.
    :ivar lacks: ``"table"``, ``"database"`` or ``"grant"``.  MariaDB says
        ``"table"`` of a missing database, too.
    :ivar epoch: of the newest topology.
    """

    def __init__(
        self,
        *,
        keyspace: str,
        shards: Sequence[int],
        server: str,
        lacks: str,
        epoch: int,
        error: Any,
    ) -> None:
        _keep(self, error)
        message = (
            f"{_original(error)} - for shard {listed(shards)} of "
            f"{keyspace}, which is on {server} in the newest topology here, "
            f"of epoch {epoch}: {_LACKS[lacks].format(server=server)}. Or "
            "the shard is being moved this moment: then repeat it"
        )
        self.args = (message,)
        self.keyspace = keyspace
        self.shards = tuple(shards)
        self.server = server
        self.lacks = lacks
        self.epoch = epoch

    def __str__(self) -> str:
        return str(self.args[0])


class KeyUsedError(ShardError):
    """Raised when an earlier ``cluster.run(key=...)`` used the same key.

    That one has committed; this one was rolled back.

    :ivar key: the key.
    :ivar shard_id: the shard where it was found.
    :ivar keyspace: its keyspace.
    """

    def __init__(self, *, key: str, shard_id: int, keyspace: str) -> None:
        super().__init__(
            f"the key {key!r} is on shard {shard_id} of {keyspace} already: "
            "an earlier transaction with it has committed. This one was "
            "rolled back; read what that one has written"
        )
        self.key = key
        self.shard_id = shard_id
        self.keyspace = keyspace
