"""A server's connection, seen from one of its virtual shards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection

from sqla_shard.rendering import Place
from sqla_shard.rendering import TRANSLATE
from sqla_shard.scattering import OPTION
from sqla_shard.scattering import Plan
from sqla_shard.session.contract import Scope
from sqla_shard.types.ids import inserting_on

__all__ = ["ShardView", "bind_to", "bulk_on"]


class ShardView(Connection):
    """The connection of a session to a server, bound to one shard.

    It shares everything with that connection, first of all its
    transaction; only the execution options differ, by which statements
    name the shard's database.  The unit of work writes through such views,
    and ``session.connection(bind_arguments={"shard_id": n})`` returns one.
    """

    __slots__ = ("_shard_id", "_shard_options")

    def __init__(self, root: Connection, place: Place, plan: Plan) -> None:
        # One dictionary for both: SQLAlchemy sets attributes such as the
        # nested transaction on whichever of them a caller has.
        object.__setattr__(self, "__dict__", root.__dict__)
        self._shard_id = place.shard_id
        self._shard_options = {OPTION: plan, "schema_translate_map": TRANSLATE}

    @property
    def _execution_options(self) -> Any:
        return self.__dict__["_execution_options"].union(self._shard_options)

    @_execution_options.setter
    def _execution_options(self, options: Any) -> None:
        self.__dict__["_execution_options"] = options

    def execute(self, *args: Any, **kwargs: Any) -> Any:
        """Execute a statement on the shard; see ``Connection.execute``."""
        with inserting_on(self._shard_id):
            return super().execute(*args, **kwargs)

    def scalar(self, *args: Any, **kwargs: Any) -> Any:
        """Execute a statement on the shard; see ``Connection.scalar``."""
        with inserting_on(self._shard_id):
            return super().scalar(*args, **kwargs)


def bind_to(root: Connection, plan: Plan) -> None:
    """Send what is executed on the connection itself to a shard.

    Statements that are given a plan of their own go where that says.
    """
    root._execution_options = root._execution_options.union(
        {OPTION: plan, "schema_translate_map": TRANSLATE}
    )


@contextmanager
def bulk_on(scope: Scope, place: Place) -> Iterator[None]:
    """Send what the session writes inside the block to one shard.

    SQLAlchemy's bulk INSERT and UPDATE, and its flush of link tables, take
    the connection of the session and pass no execution options on.
    """
    bulk, scope.bulk = scope.bulk, place
    try:
        root = scope.root_connection(place)
        options = root._execution_options
        bind_to(root, Plan((place,), (), scope.log.wrote, watch=scope.watch))
        try:
            with inserting_on(place.shard_id):
                yield
        finally:
            root._execution_options = options
    finally:
        scope.bulk = bulk
