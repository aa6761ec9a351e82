"""Soft delete: objects that reads leave out unless asked.

Reads are ``get``, ``get_many``, ORM ``select()`` in every form, and loads of
relationships; a statement that asks for inactive objects too passes that on
to its eager loads.  Not so UPDATE and DELETE, textual SQL and statements of
Core: they see every row, and ``.where(Class.active)`` leaves some out.  An
inactive object that a session has can be refreshed and changed like others.

``session.delete()`` reads what it cascades to, so that inactive objects stay;
where they have a foreign key, the server refuses.  Delete them first.
"""

from __future__ import annotations

from typing import Any
from typing import TYPE_CHECKING

from sqlalchemy import event
from sqlalchemy import true
from sqlalchemy.ext.hybrid import hybrid_property
from sqlalchemy.orm import LoaderCriteriaOption
from sqlalchemy.orm import ORMExecuteState
from sqlalchemy.orm import with_loader_criteria

from sqla_shard.dialects.sql import BlobActive
from sqla_shard.exc import BlobValueError
from sqla_shard.orm.fields import blob_of
from sqla_shard.routing import spec_of
from sqla_shard.session import INCLUDE_INACTIVE
from sqla_shard.session import ShardSession

__all__ = ["Activity", "active_only", "write_active"]

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

    @active.inplace.setter
    def _set_active(self, value: bool) -> None:
        write_active(blob_of(self), value)

    @active.inplace.update_expression
    @classmethod
    def _update_active(cls, value: Any) -> Any:
        # The name alone, which says what the statement wants to change.
        return [(_KEY, value)]

    def deactivate(self) -> None:
        """Hide the object from reads, from the next flush on."""
        write_active(blob_of(self), False)

    def restore(self) -> None:
        """Show the object to reads again, from the next flush on."""
        write_active(blob_of(self), True)


def write_active(data: dict[str, Any], value: bool) -> None:
    """Put into a blob whether reads show the object.

    :raises BlobValueError: for what is no bool.
    """
    if type(value) is not bool:
        raise BlobValueError(
            f"expects a bool, not {value!r}", field=_KEY, value=value
        )
    if not value:
        data[_KEY] = False
    elif data.get(_KEY) is False:
        del data[_KEY]


def active_only(cls: Any) -> Any:
    """Return the condition that leaves out inactive objects."""
    data = getattr(cls, "data", None)
    if data is None:
        # SQLAlchemy calls the criterion below for the mixin itself first,
        # to see what it closes over.
        return true()
    return BlobActive(data.__clause_element__())


def _is_active(cls: Any) -> Any:
    # Not a lambda: loaded objects refer to it, and may be pickled.
    return cls.active


_ACTIVE = with_loader_criteria(
    Activity,
    _is_active,
    include_aliases=True,
    # Otherwise joined eager loading would not take part.
    propagate_to_loaders=True,
)


def _leave_out(context: ORMExecuteState) -> None:
    """Handle ``do_orm_execute``: add the condition to every read."""
    if (
        context.is_select
        and context.is_orm_statement
        # An object that the session has stays what it is when it is
        # refreshed; it would seem to be deleted.
        and not context.is_column_load
        # A collection that merge() loads is compared with one that was read
        # without inactive objects: they would seem to be taken out of it.
        and not context.execution_options.get(INCLUDE_INACTIVE)
        and _may_read_objects(context)
    ):
        context.statement = context.statement.options(_ACTIVE)


def _may_read_objects(context: ORMExecuteState) -> bool:
    mapper = context.bind_mapper
    # Statements on a global keyspace cannot read objects as well.
    if mapper is not None and spec_of(mapper.local_table).kind == "global":
        return False
    # Loads of relationships have it from the object they are for.
    options: Any = context.statement
    return not any(
        isinstance(option, LoaderCriteriaOption)
        and option.root_entity is Activity
        for option in options._with_options
    )


event.listen(ShardSession, "do_orm_execute", _leave_out)
