"""What happens when a mapping class is created.

:func:`define` runs before SQLAlchemy maps the class: it makes the columns.
:func:`finish` runs when it was mapped: it tells routing about the table.
Classes that are given by name may come later; :func:`link` finds them.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from dataclasses import dataclass
from dataclasses import field
from functools import partial
from typing import Any

from sqlalchemy import Index
from sqlalchemy import inspect
from sqlalchemy.orm import foreign
from sqlalchemy.orm import Mapped
from sqlalchemy.orm import mapped_column
from sqlalchemy.orm import Mapper
from sqlalchemy.orm import relationship
from sqlalchemy.sql.dml import Update

from sqla_shard.exc import ClassDefinitionError
from sqla_shard.exc import KeptMappingError
from sqla_shard.ids import check_type
from sqla_shard.mappings.ordering import MOST_MOVES
from sqla_shard.mappings.ordering import now
from sqla_shard.orm.creation import check_bases
from sqla_shard.orm.creation import check_members
from sqla_shard.orm.creation import check_table
from sqla_shard.orm.creation import class_named
from sqla_shard.orm.creation import first_of_dataclass
from sqla_shard.orm.creation import is_abstract
from sqla_shard.orm.creation import name_of_class
from sqla_shard.orm.creation import of_dataclass
from sqla_shard.orm.creation import own_definition
from sqla_shard.orm.creation import snake
from sqla_shard.orm.creation import type_of_objects
from sqla_shard.orm.uniqueness import check_unique
from sqla_shard.routing import columns_set
from sqla_shard.routing import declare
from sqla_shard.routing import spec_of
from sqla_shard.routing import TableSpec
from sqla_shard.types import ObjectRef
from sqla_shard.types import Sequence38

__all__ = [
    "Definition",
    "End",
    "check_change",
    "check_changed",
    "check_ids",
    "check_statement",
    "define",
    "definition_of",
    "finish",
    "link",
]

_OWN = frozenset({"sequence", "source", "target"})
#: Default of ``narrow_below``, where that is not more than ``respace_to``.
_NARROW = 20

_RESERVED = _OWN | {"metadata", "registry"}


@dataclass
class End:
    """One side of a mapping.

    :ivar given: the class, or its name.
    :ivar column: name of the column with its id.
    :ivar entity: the class, once it is known.
    :ivar type_id: type of its objects, once it is known.
    """

    given: Any
    column: str
    entity: Any = None
    type_id: int | None = None

    @property
    def entity_name(self) -> str:
        """Name of the class, known or not."""
        return str(getattr(self.given, "__name__", self.given))


@dataclass
class Definition:
    """What a mapping class was defined with.

    :ivar narrow_below: gaps that take fewer moves are reported.
    :ivar respace_to: how many moves each gap takes after a re-spacing.
    :ivar inverse: the class that has the reverse rows, or its name.
    :ivar inverse_class: that class, once it is known.
    :ivar kept_by: the class whose reverse rows this one has.
    :ivar callbacks: called for each narrow gap.
    """

    source: End
    target: End
    keyspace: str | None
    narrow_below: int
    respace_to: int
    inverse: Any = None
    inverse_class: Any = None
    kept_by: Any = None
    callbacks: list[Callable[..., Any]] = field(default_factory=list)


def define(
    cls: type[Any],
    mixin: type[Any],
    *,
    source: Any,
    target: Any,
    source_column: str | None,
    target_column: str | None,
    keyspace: str | None,
    narrow_below: int | None,
    respace_to: int,
    inverse: Any,
) -> None:
    """Check a class that is about to be mapped and make its columns.

    :raises ClassDefinitionError: when it could not work.
    """
    if is_abstract(cls):
        if source is not None or target is not None:
            raise ClassDefinitionError(
                "it is abstract, so source and target belong to the classes "
                "that inherit from it",
                class_name=cls.__name__,
            )
        return
    _check_base(cls)
    check_bases(cls)
    if source is None or target is None:
        raise ClassDefinitionError(
            f"say what it maps: class {cls.__name__}(MappingMixin, Base, "
            "source=Board, target=Pin)",
            class_name=cls.__name__,
        )
    respace_to = _moves(cls, "respace_to", respace_to, 1, MOST_MOVES)
    if narrow_below is None:
        narrow_below = min(_NARROW, respace_to)
    definition = Definition(
        source=_end(cls, "source", source, source_column),
        target=_end(cls, "target", target, target_column),
        keyspace=keyspace,
        narrow_below=_moves(cls, "narrow_below", narrow_below, 0, 83),
        respace_to=respace_to,
        inverse=inverse,
    )
    if inverse is not None:
        name_of_class(cls, "inverse", inverse)
    if narrow_below > respace_to:
        raise ClassDefinitionError(
            f"narrow_below={narrow_below} is more than respace_to="
            f"{respace_to}: a gap would be reported as narrow as soon as it "
            "was re-spaced; make respace_to the larger one",
            class_name=cls.__name__,
        )
    if definition.source.column == definition.target.column:
        raise ClassDefinitionError(
            f"source and target would both be in a column "
            f"{definition.source.column!r}; name them, such as "
            "source_column='follower_id', target_column='followee_id'",
            class_name=cls.__name__,
        )
    _check_names(cls, mixin, definition)
    if not any("__tablename__" in base.__dict__ for base in cls.__mro__):
        cls.__tablename__ = snake(cls.__name__)
    _make_columns(cls, definition)
    cls.__sqla_shard_mapping__ = definition


def _check_base(cls: type[Any]) -> None:
    if getattr(cls, "metadata", None) is None:
        raise ClassDefinitionError(
            "MappingMixin stands before a declarative base: class "
            f"{cls.__name__}(MappingMixin, Base, source=..., target=...)",
            class_name=cls.__name__,
        )


def _check_names(
    cls: type[Any], mixin: type[Any], definition: Definition
) -> None:
    """Refuse what would take the place of a column or a method."""
    columns = {definition.source.column, definition.target.column}
    methods = {name for name in vars(mixin) if not name.startswith("_")}
    for name in sorted(columns & methods):
        raise ClassDefinitionError(
            f"a column {name!r} would take the place of the method; give "
            "it another name with source_column or target_column",
            class_name=cls.__name__,
        )
    check_members(cls, mixin, columns | _OWN, "mapping")


def _end(cls: type[Any], role: str, given: Any, named: object) -> End:
    name = name_of_class(cls, role, given)
    column = f"{snake(name)}_id" if named is None else named
    if not (isinstance(column, str) and column.isidentifier()):
        raise ClassDefinitionError(
            f"{role}_column={column!r} is not a name that an attribute can "
            "have; give it one",
            class_name=cls.__name__,
        )
    if column in _RESERVED or column.startswith("__"):
        raise ClassDefinitionError(
            f"{role}_column={column!r} is a name that every mapping class "
            "has already; take another",
            class_name=cls.__name__,
        )
    return End(given, column)


def _moves(
    cls: type[Any], name: str, value: Any, least: int, most: int
) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ClassDefinitionError(
            f"{name}={value!r}; it is a number of moves from {least} to "
            f"{most}",
            class_name=cls.__name__,
        )
    return value


def _make_columns(cls: Any, definition: Definition) -> None:
    ends = (definition.source, definition.target)
    names = [*(end.column for end in ends), "sequence"]
    first_of_dataclass(cls, dict.fromkeys(names, Mapped[int]))
    for end, colocated, order in (
        (definition.source, True, -30),
        (definition.target, False, -20),
    ):
        setattr(
            cls,
            end.column,
            mapped_column(
                ObjectRef(colocated=colocated),
                primary_key=True,
                autoincrement=False,
                sort_order=order,
            ),
        )
    cls.sequence = mapped_column(
        Sequence38(),
        nullable=False,
        insert_default=now,
        sort_order=-10,
        **of_dataclass(
            cls, default_factory=lambda: None, kw_only=True, repr=False
        ),
    )
    cls.source = _relationship(cls, "source", definition.source)
    cls.target = _relationship(cls, "target", definition.target)


def _relationship(cls: Any, role: str, end: End) -> Any:
    """Return a relationship that reads objects on whatever shard."""

    def entity() -> Any:
        link(cls)
        return end.entity

    def condition() -> Any:
        link(cls)
        key = inspect(end.entity).primary_key[0]
        there = inspect(end.entity).get_property_by_column(key).key
        here = getattr(cls, end.column)
        return foreign(here) == getattr(end.entity, there)

    return relationship(
        entity,
        primaryjoin=condition,
        viewonly=True,
        uselist=False,
        lazy="select",
        doc=f"The {role}, an object on any shard.",
    )


def finish(mapper: Mapper[Any], cls: Any) -> None:
    """Tell routing about the table of a class that was mapped.

    :raises ClassDefinitionError: when the class cannot work.
    """
    definition: Definition = cls.__sqla_shard_mapping__
    table: Any = mapper.local_table
    key = [definition.source.column, definition.target.column]
    check_table(cls, table, key)
    check_unique(table)
    source, target = table.primary_key
    Index(None, source, table.c.sequence, target)
    _declare(cls, table, definition)
    for end in (definition.source, definition.target):
        if isinstance(end.given, type):
            _know(cls, end, end.given)
    if definition.source.entity is not None:
        _take_source(cls, definition)


def _declare(cls: Any, table: Any, definition: Definition) -> None:
    declare(
        table,
        TableSpec(
            kind="objects",
            keyspace=definition.keyspace,
            id_index=0,
            type_id=definition.source.type_id,
            commits_late=True,
            guard=partial(check_statement, cls),
        ),
    )


def check_change(cls: Any) -> None:
    """Refuse to change the inverse of another mapping.

    :raises KeptMappingError: when it is one.
    """
    kept_by = definition_of(cls).kept_by
    if kept_by is not None:
        raise KeptMappingError(mapping=cls.__name__, kept_by=kept_by.__name__)


def check_statement(cls: Any, statement: Any) -> None:
    """Refuse what an inverse would not follow.

    :param statement: None for a row of a flush.
    :raises KeptMappingError: when rows come or go, or are those of an
        inverse.
    """
    if isinstance(statement, Update):
        changed = columns_set(statement)
        check_changed(cls, {getattr(c, "name", c) for c in changed})
        return
    check_change(cls)
    if definition_of(cls).inverse is not None:
        raise KeptMappingError(mapping=cls.__name__, kept_by=cls.__name__)


def check_changed(cls: Any, changed: Iterable[str]) -> None:
    """Refuse to change what an inverse would not follow.

    :param changed: names of the columns that get another value.
    :raises KeptMappingError: when one is an id, or the row is that of an
        inverse.
    """
    check_change(cls)
    definition = definition_of(cls)
    ids = {definition.source.column, definition.target.column}
    if definition.inverse is not None and not ids.isdisjoint(changed):
        raise KeptMappingError(mapping=cls.__name__, kept_by=cls.__name__)


def check_ids(mapper: Mapper[Any], connection: Any, row: Any) -> None:
    """Handle ``before_insert``: refuse ids of other classes.

    :raises WrongTypeError: for such an id.
    """
    definition = link(mapper.class_)
    for end in (definition.source, definition.target):
        value = row.__dict__.get(end.column)
        if value is not None:
            name = f"{mapper.class_.__name__}.{end.column}"
            check_type(value, end.type_id, name)


def definition_of(cls: Any) -> Definition:
    """Return the definition of a mapping class, complete or not.

    :raises ClassDefinitionError: when the class is abstract.
    """
    found: Definition = own_definition(cls, "__sqla_shard_mapping__")
    return found


def link(cls: Any) -> Definition:
    """Find the classes that a mapping class was given by name.

    :returns: the definition, complete.
    :raises ClassDefinitionError: when there is no such class.
    """
    definition = definition_of(cls)
    for end in (definition.source, definition.target):
        if end.entity is None:
            _know(cls, end, class_named(cls, end.given))
            if end is definition.source:
                _take_source(cls, definition)
    if definition.inverse is not None and definition.inverse_class is None:
        raise ClassDefinitionError(
            f"inverse={definition.inverse!r} is no mapping class of its "
            "declarative base; define it: class PinInBoards(MappingMixin, "
            "Base, source=Pin, target=Board)",
            class_name=cls.__name__,
        )
    return definition


def _know(cls: Any, end: End, entity: Any) -> None:
    """Take over what the class of an end says of its ids."""
    end.type_id = type_of_objects(cls, end.column, entity, "mapping")
    end.entity = entity


def _take_source(cls: Any, definition: Definition) -> None:
    """Put the table where the sources are."""
    theirs = spec_of(inspect(definition.source.entity).local_table).keyspace
    if definition.keyspace not in (None, theirs):
        raise ClassDefinitionError(
            f"keyspace={definition.keyspace!r}, but its source "
            f"{definition.source.entity.__name__} is in {theirs!r}; the rows "
            "are on the shard of their source, so leave it out",
            class_name=cls.__name__,
        )
    definition.keyspace = theirs
    _declare(cls, inspect(cls).local_table, definition)
