"""Soft delete: inactive objects, which reads exclude by default.

Reads are ``get``, ``get_many``, ORM ``select()`` in every form, and loads of
relationships; the option ``include_inactive`` of a statement applies to its
eager loads as well.  UPDATE and DELETE, textual SQL and Core statements
include every row; ``.where(Class.active)`` excludes inactive ones.  Inactive
objects in a session can be refreshed and changed as usual.

Cascades of ``session.delete()`` do not include inactive objects; the server
rejects the DELETE if they have a foreign key.  Delete them first.
"""

from __future__ import annotations

from typing import Any, TYPE_CHECKING

from sqlalchemy import event, true
from sqlalchemy.ext.hybrid import hybrid_property
from sqlalchemy.orm import LoaderCriteriaOption, ORMExecuteState, with_loader_criteria

from sqla_shard.dialects.sql import BlobActive
from sqla_shard.exc import BlobValueError
from sqla_shard.models.blob_fields import blob_of
from sqla_shard.planning import spec_of
from sqla_shard.session import INCLUDE_INACTIVE, ShardSession
from sqla_shard.util import sqlalchemy_private as private

_KEY = "active"


class Activity:
    """Adds ``active``, ``deactivate()`` and ``restore()`` to objects."""

    if TYPE_CHECKING:
        data: Any

    @hybrid_property
    def active(self) -> bool:
        """False after :meth:`deactivate`; stored in the blob."""
        data = self.data
        return data is None or data.get(_KEY) is not False

    @active.inplace.expression
    @classmethod
    def _active(cls) -> Any:
        return _active_only(cls)

    @active.inplace.setter
    def _set_active(self, value: bool) -> None:
        write_active(blob_of(self), value)

    @active.inplace.update_expression
    @classmethod
    def _update_active(cls, value: Any) -> Any:
        # Return the name only: the statement is rejected because of it.
        return [(_KEY, value)]

    def deactivate(self) -> None:
        """Exclude the object from reads, after the next flush."""
        write_active(blob_of(self), False)

    def restore(self) -> None:
        """Include the object in reads again, after the next flush."""
        write_active(blob_of(self), True)


def write_active(data: dict[str, Any], value: bool) -> None:
    """Set ``active`` in a blob.

    :raises BlobValueError: if the value is not a bool.
    """
    if type(value) is not bool:
        raise BlobValueError(f"must be a bool, not {value!r}", field=_KEY, value=value)
    if not value:
        data[_KEY] = False
    elif data.get(_KEY) is False:
        del data[_KEY]


def _active_only(cls: Any) -> Any:
    """Return the condition that excludes inactive objects."""
    data = getattr(cls, "data", None)
    if data is None:
        # SQLAlchemy calls the criterion for the mixin itself first, to find
        # its closure variables.
        return true()
    return BlobActive(data.__clause_element__())


def _is_active(cls: Any) -> Any:
    # Do not use a lambda: loaded objects refer to the function, and may be
    # pickled.
    return cls.active


_ACTIVE = with_loader_criteria(
    Activity,
    _is_active,
    include_aliases=True,
    # Without this, joined eager loading would include inactive objects.
    propagate_to_loaders=True,
)


def _exclude_inactive(context: ORMExecuteState) -> None:
    """Handle ``do_orm_execute``: add the condition to every read."""
    if (
        context.is_select
        and context.is_orm_statement
        # The refresh of an inactive object would not find its row.
        and not context.is_column_load
        # merge() compares the collection that it loads with a collection read
        # without inactive objects, which would seem to be removed.
        and not context.execution_options.get(INCLUDE_INACTIVE)
        and _may_read_objects(context)
    ):
        context.statement = context.statement.options(_ACTIVE)


def _may_read_objects(context: ORMExecuteState) -> bool:
    mapper = context.bind_mapper
    # Statements on a global keyspace cannot read objects as well.
    if mapper is not None and spec_of(mapper.local_table).kind == "global":
        return False
    # Loads of relationships inherit the condition from the object.
    options: Any = context.statement
    return not any(
        isinstance(option, LoaderCriteriaOption) and option.root_entity is Activity
        for option in private.with_options(options)
    )


event.listen(ShardSession, "do_orm_execute", _exclude_inactive)
