"""Soft delete: objects that reads leave out unless asked."""

from __future__ import annotations

from typing import Any
from typing import TYPE_CHECKING

from sqlalchemy import event
from sqlalchemy import true
from sqlalchemy.ext.hybrid import hybrid_property
from sqlalchemy.orm import ORMExecuteState
from sqlalchemy.orm import with_loader_criteria

from sqla_shard.dialects.sql import BlobActive
from sqla_shard.session import INCLUDE_INACTIVE
from sqla_shard.session import ShardSession

__all__ = ["Activity", "active_only"]

_KEY = "active"


class Activity:
    """Adds ``active``, ``deactivate()`` and ``restore()`` to objects."""

    if TYPE_CHECKING:
        data: Any

    @hybrid_property
    def active(self) -> bool:
        """False after :meth:`deactivate`; kept in the blob."""
        data = self.data
        return data is None or data.get(_KEY) is not False

    @active.inplace.expression
    @classmethod
    def _active(cls) -> Any:
        return active_only(cls)

    def deactivate(self) -> None:
        """Hide the object from reads, from the next flush on."""
        self.data[_KEY] = False

    def restore(self) -> None:
        """Show the object to reads again, from the next flush on."""
        if self.data.get(_KEY) is False:
            del self.data[_KEY]


def active_only(cls: Any) -> Any:
    """Return the condition that leaves out inactive objects."""
    data = getattr(cls, "data", None)
    if data is None:
        # SQLAlchemy calls the criterion below for the mixin itself first,
        # to see what it closes over.
        return true()
    return BlobActive(data.__clause_element__())


_ACTIVE = with_loader_criteria(
    Activity,
    lambda cls: cls.active,
    include_aliases=True,
    # Each load of a relationship passes through the listener itself.
    propagate_to_loaders=False,
)


def _leave_out(context: ORMExecuteState) -> None:
    """Handle ``do_orm_execute``: add the condition to every read."""
    if (
        context.is_select
        and context.is_orm_statement
        # An object that the session has stays what it is when it is
        # refreshed; it would seem to be deleted.
        and not context.is_column_load
        and not context.execution_options.get(INCLUDE_INACTIVE)
        and not context.session.shows_hidden  # type: ignore[attr-defined]  # a ShardSession
    ):
        context.statement = context.statement.options(_ACTIVE)


event.listen(ShardSession, "do_orm_execute", _leave_out)
