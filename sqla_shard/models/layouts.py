"""The layouts of the ids of mapped classes.

A class has the layout that its attribute ``id_layout`` says, which the
declarative base or an abstract base has::

    class Base(DeclarativeBase):
        id_layout = IdLayout(shard_bits=13, type_bits=10, local_bits=40)

Columns whose type has no layout of its own have that of their class.  The
keyspace has the layout in the topology as well; each use of a class compares
both, because ids that were created with one layout must never be read with
another.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import event, inspect, Table
from sqlalchemy.orm import Mapper

from sqla_shard.exc import ClassDefinitionError
from sqla_shard.ids import DEFAULT_LAYOUT, IdLayout
from sqla_shard.models.id_sources import new_ids_for
from sqla_shard.planning import declare_new_ids, spec_of
from sqla_shard.types import IdType, ShardedId


def layout_of(cls: Any) -> IdLayout:
    """Return the layout of the ids of a class: its attribute ``id_layout``.

    :raises ClassDefinitionError: if the attribute is something else.
    """
    found = getattr(cls, "id_layout", DEFAULT_LAYOUT)
    if isinstance(found, IdLayout):
        return found
    raise ClassDefinitionError(
        f"id_layout is {found!r}; it must be an IdLayout, an attribute of "
        "the declarative base: id_layout = IdLayout(shard_bits=13, "
        "type_bits=10, local_bits=40)",
        class_name=cls.__name__,
    )


def adopt_layout(cls: Any, table: Table) -> None:
    """Let the columns of a class that contain ids use its layout."""
    layout = layout_of(cls)
    for column in table.columns:
        if isinstance(column.type, IdType):
            column.type.adopt(layout)


def check_parent_layout(cls: Any, key: str, theirs: IdLayout) -> None:
    """Reject a parent whose ids have another layout than the class.

    :param key: the field with the parent's id.
    :param theirs: the layout of the parent's ids.
    :raises ClassDefinitionError: for such a parent.
    """
    own = layout_of(cls)
    if theirs != own:
        raise ClassDefinitionError(
            f"colocate_with={key!r} holds {theirs}, and the class has {own}: "
            "the parent is in another keyspace, and an object is on the shard "
            "of a parent of its own keyspace; leave out colocate_with",
            class_name=cls.__name__,
        )


def require_default_layout(cls: Any) -> None:
    """Reject a class whose ids do not have the default layout.

    :raises ClassDefinitionError: for such a class.
    """
    spec = spec_of(inspect(cls).local_table)
    if spec.layout is not None and spec.layout != DEFAULT_LAYOUT:
        raise ClassDefinitionError(
            f"it has {spec.layout}, and follow graphs and feeds support the "
            "default layout only; use a class of a keyspace that has it",
            class_name=cls.__name__,
        )


def _adopt(mapper: Mapper[Any], cls: Any) -> None:
    """Handle ``after_mapper_constructed`` of every mapped class."""
    table = mapper.local_table
    if not isinstance(table, Table):
        return
    if hasattr(cls, "id_layout"):
        adopt_layout(cls, table)
    if mapper.inherits is None and len(table.primary_key) == 1:
        (column,) = table.primary_key
        if isinstance(column.type, ShardedId):
            new_ids = new_ids_for(cls, table.name, column.type)
            if new_ids is not None:
                declare_new_ids(table, new_ids)


# Classes without a mixin of this package may have columns with ids.
event.listen(Mapper, "after_mapper_constructed", _adopt)
