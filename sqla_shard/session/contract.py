"""What the parts of the session ask of it, and it of its cluster.

The parts are functions that are handed the session; these Protocols let
them be checked without importing it.
"""

from __future__ import annotations

from typing import Any
from typing import Protocol

from sqlalchemy import Connection

from sqla_shard.engines import Places
from sqla_shard.rendering import Place
from sqla_shard.scattering import Watch
from sqla_shard.session.placement import PlacementPolicy
from sqla_shard.session.transactions import TransactionLog

__all__ = ["INCLUDE_INACTIVE", "Home", "Scope"]

#: Execution option: reads show inactive objects too.
INCLUDE_INACTIVE = "include_inactive"


class Home(Protocol):
    """What a session asks of the cluster that it belongs to."""

    @property
    def places(self) -> Places:
        """Where the shards are now."""
        ...

    @property
    def watch(self) -> Watch | None:
        """What else is done with the statements of its sessions."""
        ...

    @property
    def scatters(self) -> bool:
        """Whether statements may go to all shards, by ``scatter()``."""
        ...

    @property
    def placement(self) -> PlacementPolicy:
        """The policy for new roots."""
        ...


class Scope(Protocol):
    """A session, as its parts see it."""

    cluster: Home
    root_shard_id: int | None
    placed: dict[Any, Place]
    bulk: Place | None
    shows_hidden: bool

    @property
    def identity_map(self) -> Any:
        """The objects of the session, by identity key."""
        ...

    @property
    def new(self) -> Any:
        """Objects to be inserted."""
        ...

    @property
    def dirty(self) -> Any:
        """Objects that may have to be updated."""
        ...

    @property
    def deleted(self) -> Any:
        """Objects to be deleted."""
        ...

    @property
    def places(self) -> Places:
        """Where the shards are, unchanged until the transaction ends."""
        ...

    @property
    def log(self) -> TransactionLog:
        """What the transaction has written."""
        ...

    @property
    def watch(self) -> Watch | None:
        """What else is done with its statements."""
        ...

    def _autoflush(self) -> None: ...

    def root_connection(self, place: Place) -> Connection:
        """Return the session's connection to the server of a shard."""
        ...

    def is_connected(self, place: Place) -> bool:
        """Tell whether :meth:`root_connection` has one already."""
        ...

    def check_process(self) -> None:
        """Refuse a transaction that the parent process has begun."""
        ...

    def is_modified(self, instance: object) -> bool:
        """Tell whether a flush would write an object."""
        ...

    def scalars(self, statement: Any, *args: Any, **kwargs: Any) -> Any:
        """Execute a statement; see ``Session.scalars``."""
        ...
