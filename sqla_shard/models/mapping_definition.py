"""Creation of mapping classes.

:func:`define` runs before SQLAlchemy maps the class and adds the columns.
:func:`finish` runs after it was mapped and declares the table to routing.
Classes given by name may be defined later; :func:`link` resolves them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from inspect import get_annotations
from typing import Any, get_args, get_origin, TypeVar

from sqlalchemy import BigInteger, Column, Index, inspect, Integer, Table
from sqlalchemy.orm import (
    foreign,
    Mapped,
    mapped_column,
    MappedColumn,
    Mapper,
    relationship,
    synonym,
)
from sqlalchemy.sql.dml import Update

from sqla_shard.dialects.sql import COUNTING
from sqla_shard.engine import Places
from sqla_shard.engine.rendering import Place
from sqla_shard.exc import ClassDefinitionError, KeptMappingError
from sqla_shard.ids import DEFAULT_LAYOUT, IdLayout
from sqla_shard.models.class_checks import (
    check_abstract,
    check_bases,
    check_declarative,
    check_members,
    check_table,
    check_unique,
    class_named,
    dataclass_options,
    default_tablename,
    first_of_dataclass,
    id_column_name,
    name_of_class,
    own_definition,
    spec_of_objects,
)
from sqla_shard.models.id_sources import layout_of
from sqla_shard.models.list_positions import (
    check_pieces,
    MOST_MOVES,
    now,
    piece_of,
    shard_of,
)
from sqla_shard.planning import columns_set, declare, spec_of, TableSpec
from sqla_shard.types import ObjectRef, Sequence38

_OWN = frozenset({"sequence", "source", "target"})
#: Default of ``narrow_below``, unless ``respace_to`` is lower.
_NARROW = 20

_RESERVED = _OWN | {"metadata", "registry"}


@dataclass
class End:
    """One side of a mapping.

    :ivar given: the class, or its name.
    :ivar column: name of the column with the ids of its objects.
    :ivar entity: the class, once it is resolved.
    :ivar type_id: type of its objects, once it is resolved.
    :ivar layout: layout of their ids, once it is resolved.
    """

    given: Any
    column: str
    entity: Any = None
    type_id: int | None = None
    layout: IdLayout = DEFAULT_LAYOUT

    def shard_of(self, cls: Any, object_id: Any) -> int:
        """Return the shard of an object; check its id.

        :param cls: the mapping class.
        :raises InvalidIdError: if it is not an object id.
        :raises WrongTypeError: if it is the id of another class.
        """
        name = f"{cls.__name__}.{self.column}"
        return self.layout.shard_of(object_id, self.type_id, name)

    @property
    def entity_name(self) -> str:
        """Name of the class, resolved or not."""
        return str(getattr(self.given, "__name__", self.given))


@dataclass
class MappingDefinition:
    """The definition of a mapping class.

    :ivar narrow_below: gaps with room for fewer moves are reported.
    :ivar respace_to: room for moves in each gap after a re-spacing.
    :ivar inverse: the class with the reverse rows, or its name.
    :ivar inverse_class: the class with the reverse rows, once it is resolved.
    :ivar inverse_of: the class whose reverse rows this one contains.
    :ivar counted: whether the length of each list is stored.
    :ivar counts: the table with the stored lengths, if any.
    :ivar spread: number of pieces of each list.
    :ivar spread_over: number of shards over which the pieces are spread.
    :ivar spread_before: number of pieces before an increase that is not
        finished; 0 without one.
    :ivar appends_before: whether rows are still appended to those.
    :ivar callbacks: called for each narrow gap.
    """

    source: End
    target: End
    keyspace: str | None
    narrow_below: int
    respace_to: int
    inverse: Any = None
    inverse_class: Any = None
    inverse_of: Any = None
    counted: bool = False
    counts: Any = None
    spread: int = 1
    spread_over: int = 0
    spread_before: int = 0
    appends_before: bool = False
    callbacks: list[Callable[..., Any]] = field(default_factory=list)


def ends_of(cls: Any, mixin: type[Any], source: Any, target: Any) -> tuple[Any, Any]:
    """Return source and target, which may be the type arguments of the mixin.

    :raises ClassDefinitionError: if they are given twice.
    """
    for base in vars(cls).get("__orig_bases__", ()):
        if get_origin(base) is mixin:
            if source is not None or target is not None:
                raise ClassDefinitionError(
                    f"source and target are given twice: leave out source= and "
                    f"target=, or the brackets of {mixin.__name__}",
                    class_name=cls.__name__,
                )
            source, target = (
                None
                if isinstance(one, TypeVar)
                else getattr(one, "__forward_arg__", one)
                for one in get_args(base)
            )
    return source, target


def define(
    cls: Any,
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
    counted: bool,
    spread: int | None,
    spread_over: int | None,
    spread_from: int | None,
    spread_to: int | None,
) -> None:
    """Check a class before it is mapped, and create its columns.

    :raises ClassDefinitionError: if the class is not valid.
    """
    if check_abstract(cls, source=source, target=target):
        return
    check_declarative(cls, mixin, "source=..., target=...")
    check_bases(cls)
    if source is None or target is None:
        raise ClassDefinitionError(
            f"source or target is missing: class {cls.__name__}("
            "MappingMixin, Base, source=Board, target=Pin)",
            class_name=cls.__name__,
        )
    respace_to = _moves(cls, "respace_to", respace_to, 1, MOST_MOVES)
    if narrow_below is None:
        narrow_below = min(_NARROW, respace_to)
    pieces = check_pieces(cls, spread, spread_over, spread_from, spread_to)
    name_of = partial(id_column_name, cls, mixin, reserved=_RESERVED)
    definition = MappingDefinition(
        source=End(
            source, name_of("source", source, source_column), layout=layout_of(cls)
        ),
        target=End(
            target, name_of("target", target, target_column), layout=layout_of(cls)
        ),
        keyspace=keyspace,
        narrow_below=_moves(cls, "narrow_below", narrow_below, 0, 83),
        respace_to=respace_to,
        inverse=inverse,
        # The row with the number of rows of a piece is also its lock.
        counted=bool(counted) or pieces.number > 1,
        spread=pieces.number,
        spread_over=pieces.over,
        spread_before=pieces.before,
        appends_before=pieces.appends_before,
    )
    if inverse is not None:
        name_of_class(cls, "inverse", inverse)
    if narrow_below > respace_to:
        raise ClassDefinitionError(
            f"narrow_below={narrow_below} is more than respace_to="
            f"{respace_to}: a gap would be reported as narrow as soon as it "
            "was re-spaced; increase respace_to",
            class_name=cls.__name__,
        )
    if definition.source.column == definition.target.column:
        raise ClassDefinitionError(
            f"source and target would both be in a column "
            f"{definition.source.column!r}; name them, such as "
            "source_column='follower_id', target_column='followee_id'",
            class_name=cls.__name__,
        )
    columns = {definition.source.column, definition.target.column}
    check_members(cls, mixin, columns | _OWN, "mapping")
    default_tablename(cls)
    _make_columns(cls, definition)
    cls.__sqla_shard_mapping__ = definition


def _moves(cls: type[Any], name: str, value: Any, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ClassDefinitionError(
            f"{name}={value!r}; it must be a number of moves from {least} to {most}",
            class_name=cls.__name__,
        )
    return value


def _make_columns(cls: Any, definition: MappingDefinition) -> None:
    ends = (definition.source, definition.target)
    names = [*(end.column for end in ends), "sequence"]
    first_of_dataclass(cls, dict.fromkeys(names, Mapped[int]))
    for end, colocated, order in (
        (definition.source, definition.spread == 1, -30),
        (definition.target, False, -20),
    ):
        setattr(
            cls,
            end.column,
            mapped_column(
                ObjectRef(colocated=colocated, layout=end.layout),
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
        **dataclass_options(
            cls, default_factory=lambda: None, kw_only=True, repr=False
        ),
    )
    taken = set(names)
    for base in cls.__mro__:
        taken.update(vars(base), get_annotations(base))
        # Otherwise values of a column would be those of the other one.
        taken.update(
            str(value.column.name)
            for value in vars(base).values()
            if isinstance(value, MappedColumn)
        )
    for name, end in (("source_id", ends[0]), ("target_id", ends[1])):
        if name not in taken:
            setattr(cls, name, synonym(end.column))
    cls.source = _relationship(cls, "source", definition.source)
    cls.target = _relationship(cls, "target", definition.target)


def _relationship(cls: Any, role: str, end: End) -> Any:
    """Return a relationship that reads objects of any shard."""

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
    """Declare the table of a mapped class to routing.

    :raises ClassDefinitionError: if the class is not valid.
    """
    definition: MappingDefinition = cls.__sqla_shard_mapping__
    table: Any = mapper.local_table
    key = [definition.source.column, definition.target.column]
    check_table(cls, table, key)
    check_unique(table)
    source, target = table.primary_key
    Index(None, source, table.c.sequence, target)
    _declare(cls, table, definition)
    for end in (definition.source, definition.target):
        if isinstance(end.given, type):
            _resolve_end(cls, end, end.given)
    if definition.source.entity is not None:
        _use_source_keyspace(cls, definition)


def _declare(cls: Any, table: Any, definition: MappingDefinition) -> None:
    declare(
        table,
        TableSpec(
            kind="objects",
            keyspace=definition.keyspace,
            id_index=0 if definition.spread == 1 else None,
            places_of=(None if definition.spread == 1 else partial(_places_of, cls)),
            type_id=definition.source.type_id,
            layout=definition.source.layout,
            commits_late=True,
            guard=partial(check_statement, cls),
        ),
    )
    if definition.counts is not None:
        declare_counts(cls, definition)


def _places_of(cls: Any, places: Places, key: Sequence[int]) -> Sequence[Place]:
    """Return the locations that a row of a spread list may have.

    :param key: source and target.
    :raises InvalidIdError: if one of them is not an object id.
    """
    source_id, target_id = key
    definition = link(cls)
    target_id = definition.target.layout.check(target_id)
    return [
        piece_place(cls, places, source_id, piece)
        for piece in pieces_of(definition, target_id)
    ]


def pieces_of(definition: MappingDefinition, target_id: int) -> tuple[int, ...]:
    """Return the number of the piece of a target.

    :returns: during an increase of the pieces, its number before that as
        well, if it is another one.
    """
    now = piece_of(target_id, definition.spread)
    if not definition.spread_before:
        return (now,)
    before = piece_of(target_id, definition.spread_before)
    return (now,) if before == now else (now, before)


def piece_place(cls: Any, places: Places, source_id: int, piece: int) -> Place:
    """Return the location of a piece of a list.

    :raises UnknownShardError: if the shard is not open.
    :raises ClassDefinitionError: if the list was not spread, and is on none
        of the ``spread_over`` shards.
    """
    definition = link(cls)
    source = definition.source
    shard_id = source.shard_of(cls, source_id)
    keyspace = places.keyspace(definition.keyspace, "objects", source.layout)
    over = definition.spread_over
    if definition.spread_before == 1 and shard_id >= over:
        raise ClassDefinitionError(
            f"spread_over={over}, but the list of {source_id}, which was not "
            f"spread, is on shard {shard_id}; increase spread_over to the "
            "number of shards of the keyspace",
            class_name=cls.__name__,
        )
    return places.place(keyspace, shard_of(shard_id, piece, over))


def check_change(cls: Any) -> None:
    """Reject a change of a class that is the inverse of another.

    :raises KeptMappingError: for such a class.
    """
    forward = definition_of(cls).inverse_of
    if forward is not None:
        raise KeptMappingError(mapping=cls.__name__, kept_by=forward.__name__)


def check_statement(cls: Any, statement: Any) -> None:
    """Reject a statement that would not change the reverse rows or the count.

    :param statement: the statement; None for a row of a flush.
    :raises KeptMappingError: if it inserts or deletes rows of a mapping with
        an inverse or a stored count, or changes rows of an inverse.
    """
    if isinstance(statement, Update):
        changed = columns_set(statement)
        check_changed(cls, {getattr(c, "name", c) for c in changed})
        return
    check_change(cls)
    _check_dependents(cls)


def check_changed(cls: Any, changed: Iterable[str]) -> None:
    """Reject a change of columns that other rows contain.

    :param changed: names of the changed columns.
    :raises KeptMappingError: if one of the columns is an id, the row is a row
        of an inverse, or rows of the class are copied to other shards.
    """
    check_change(cls)
    definition = definition_of(cls)
    if definition.spread_before:
        name = cls.__name__
        raise KeptMappingError(mapping=name, kept_by=name, reason="spread")
    ids = {definition.source.column, definition.target.column}
    if not ids.isdisjoint(changed):
        _check_dependents(cls)


def _check_dependents(cls: Any) -> None:
    """Reject a change of rows on which reverse rows or a count depend."""
    definition = definition_of(cls)
    for reason, depends in (
        ("inverse", definition.inverse is not None),
        ("count", definition.counted),
    ):
        if depends:
            name = cls.__name__
            raise KeptMappingError(mapping=name, kept_by=name, reason=reason)


def check_ids(mapper: Mapper[Any], connection: Any, row: Any) -> None:
    """Handle ``before_insert``: reject ids of other classes.

    :raises WrongTypeError: for such an id.
    """
    definition = link(mapper.class_)
    for end in (definition.source, definition.target):
        value = row.__dict__.get(end.column)
        if value is not None:
            end.shard_of(mapper.class_, value)


def definition_of(cls: Any) -> MappingDefinition:
    """Return the definition of a mapping class, complete or not.

    :raises ClassDefinitionError: if the class is abstract.
    """
    definition: MappingDefinition = own_definition(cls, "__sqla_shard_mapping__")
    return definition


def link(cls: Any) -> MappingDefinition:
    """Resolve the classes that a mapping class was given by name.

    :returns: the definition, complete.
    :raises ClassDefinitionError: if a class is not found.
    """
    definition = definition_of(cls)
    for end in (definition.source, definition.target):
        if end.entity is None:
            _resolve_end(cls, end, class_named(cls, end.given))
            if end is definition.source:
                _use_source_keyspace(cls, definition)
    if definition.inverse is not None and definition.inverse_class is None:
        raise ClassDefinitionError(
            f"inverse={definition.inverse!r} is not a mapping class of its "
            "declarative base; define it: class PinInBoards(MappingMixin, "
            "Base, source=Pin, target=Board)",
            class_name=cls.__name__,
        )
    return definition


def _resolve_end(cls: Any, end: End, entity: Any) -> None:
    """Set the class of an end, and the type of its ids."""
    spec = spec_of_objects(cls, end.column, entity, "mapping")
    assert spec.layout is not None  # noqa: S101  # objects have ids
    end.type_id, end.layout = spec.type_id, spec.layout
    end.entity = entity


def _use_source_keyspace(cls: Any, definition: MappingDefinition) -> None:
    """Put the table into the keyspace of the sources."""
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


def create_counts(cls: Any, table: Any, definition: MappingDefinition) -> None:
    """Create the table with the lengths of the lists of a class.

    :param table: the table of the class.
    """
    column = definition.source.column
    definition.counts = Table(
        f"{table.name}_count",
        table.metadata,
        Column(
            column,
            ObjectRef(colocated=definition.spread == 1),
            primary_key=True,
            autoincrement=False,
        ),
        Column("slot", Integer, primary_key=True, autoincrement=False),
        Column("number", BigInteger, nullable=False),
        info={COUNTING: ((column, "slot"), "number")},
    )
    declare_counts(cls, definition)


def declare_counts(cls: Any, definition: MappingDefinition) -> None:
    """Declare the table of the lengths to routing."""
    layout = definition.source.layout
    kind: Any = definition.counts.columns[0].type
    kind.layout = layout
    declare(
        definition.counts,
        TableSpec(
            kind="objects",
            keyspace=definition.keyspace,
            id_index=0 if definition.spread == 1 else None,
            type_id=definition.source.type_id,
            layout=layout,
            commits_late=True,
            guard=partial(_refuse, cls),
        ),
    )


def _refuse(cls: Any, statement: Any) -> None:
    """Refuse a statement of the application on the lengths.

    :raises KeptMappingError: always.
    """
    name = cls.__name__
    raise KeptMappingError(mapping=name, kept_by=name, reason="count")
