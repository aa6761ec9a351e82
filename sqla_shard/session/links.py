"""What ties the shards of objects together before they are flushed."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import inspect
from sqlalchemy.orm import InstanceState
from sqlalchemy.orm import Mapper
from sqlalchemy.orm import RelationshipDirection
from sqlalchemy.orm.attributes import History

from sqla_shard.routing import routes
from sqla_shard.session.contract import Scope

__all__ = ["Collections", "Links", "changed", "links_of", "mapping_class"]

_UNCHANGED = History((), (), ())


class Collections:
    """Finds the parents of new objects that are in a collection of theirs.

    A child in ``parent.children`` gets the parent's id in the flush, and
    need not know of it before if nothing leads back.
    """

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._parents: dict[tuple[Any, str], Any] | None = None

    def _found(self) -> dict[tuple[Any, str], Any]:
        if self._parents is None:
            self._parents = dict(self._find())
        return self._parents

    def __iter__(self) -> Iterator[tuple[InstanceState[Any], str, Any]]:
        for (child, attribute), parent in self._found().items():
            yield child, attribute, parent

    def parent(self, child: InstanceState[Any], attribute: str) -> Any:
        """Return the object whose id an attribute will hold, or None."""
        return self._found().get((child, attribute))

    def _find(self) -> Iterator[tuple[tuple[Any, str], Any]]:
        for parent in (*self._scope.new, *self._scope.dirty):
            state = inspect(parent)
            for key, filled in links_of(state.mapper).down:
                for child in changed(state, key).added:
                    yield (inspect(child), filled), parent


def changed(state: InstanceState[Any], key: str) -> History:
    """Return the history of a collection, without reading it."""
    if key in state.dict or key in state._pending_mutations:
        return state.attrs[key].history
    return _UNCHANGED


@dataclass(frozen=True)
class Links:
    """What in a class says on which shard its objects are.

    :ivar references: attributes that hold ids of the row's own shard, with
        the type of the objects, None for any.
    :ivar up: relationships to one object whose id the flush puts into such
        an attribute, with the attribute.
    :ivar down: relationships to many objects, with the attribute of theirs.
    :ivar linked: relationships whose flush writes a link table.
    """

    references: tuple[tuple[str, int | None], ...]
    up: tuple[tuple[str, str], ...]
    down: tuple[tuple[str, str], ...]
    linked: tuple[str, ...]


_known: weakref.WeakKeyDictionary[Mapper[Any], Links] = (
    weakref.WeakKeyDictionary()
)


def links_of(mapper: Mapper[Any]) -> Links:
    """Return the links of a class, found out once."""
    found = _known.get(mapper)
    if found is None:
        found = _known[mapper] = Links(
            references=tuple(_references(mapper)),
            up=tuple(
                _filled(mapper, RelationshipDirection.MANYTOONE, here=True)
            ),
            down=tuple(
                _filled(mapper, RelationshipDirection.ONETOMANY, here=False)
            ),
            linked=tuple(
                relation.key
                for relation in mapper.relationships
                if relation.secondary is not None and not relation.viewonly
            ),
        )
    return found


def mapping_class(relation: Any) -> str:
    """Return the code of a mapping class in place of a relationship."""
    source = relation.parent.class_.__name__
    target = relation.mapper.class_.__name__
    words = "".join(word.capitalize() for word in relation.key.split("_"))
    columns = ""
    if source == target:
        # Both columns would have the name of the class.
        name = source.lower()
        columns = (
            f', source_column="{name}_id", target_column="other_{name}_id"'
        )
    return (
        f"class {source}Has{words}(MappingMixin, Base, source={source}, "
        f"target={target}{columns}): ..."
    )


def _references(mapper: Mapper[Any]) -> Iterator[tuple[str, int | None]]:
    for prop in mapper.column_attrs:
        column: Any = prop.columns[0]
        if routes(column) and not column.primary_key:
            yield prop.key, column.type.type_id


def _filled(
    mapper: Mapper[Any], direction: RelationshipDirection, *, here: bool
) -> Iterator[tuple[str, str]]:
    for relation in mapper.relationships:
        if relation.direction is direction and not relation.viewonly:
            child = mapper if here else relation.mapper
            for _, column in relation.synchronize_pairs:
                if routes(column):
                    prop = child.get_property_by_column(column)
                    yield relation.key, prop.key
