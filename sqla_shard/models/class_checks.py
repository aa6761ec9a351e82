"""Checks and defaults of object, mapping, lookup and reference classes.

A rejected class leaves no table or mapper behind, so that it can be corrected
and defined again, as in a notebook.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import is_dataclass
from functools import wraps
from inspect import get_annotations
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, WeakSet

from sqlalchemy import Column, event, Index, inspect, Table, UniqueConstraint
from sqlalchemy.orm import (
    DeclarativeBase,
    DeclarativeBaseNoMeta,
    MappedAsDataclass,
    Mapper,
)

from sqla_shard.exc import ClassDefinitionError, UniquePerShardWarning
from sqla_shard.planning import routes, spec_of, TableSpec
from sqla_shard.util import sqlalchemy_private as private

T = TypeVar("T")

#: A handler of SQLAlchemy's ``after_mapper_constructed``.
Handler = Callable[[Mapper[Any], Any], None]


def is_abstract(cls: type[Any]) -> bool:
    """Return True if only the subclasses of a class are mapped."""
    return bool(cls.__dict__.get("__abstract__")) or not {
        DeclarativeBase,
        DeclarativeBaseNoMeta,
    }.isdisjoint(cls.__bases__)


def check_abstract(cls: type[Any], **given: Any) -> bool:
    """Return whether a class is abstract; reject its class keywords if so.

    :param given: the class keywords; None if not given.
    :raises ClassDefinitionError: if an abstract class has class keywords.
    """
    if not is_abstract(cls):
        return False
    names = [name for name, value in given.items() if value is not None]
    if names:
        raise ClassDefinitionError(
            f"it is abstract; pass {', '.join(names)} to its subclasses",
            class_name=cls.__name__,
        )
    return True


def check_declarative(cls: type[Any], mixin: type[Any], *keywords: str) -> None:
    """Reject a class without a declarative base.

    :param keywords: class keywords of the example in the message.
    :raises ClassDefinitionError: for such a class.
    """
    if getattr(cls, "metadata", None) is None:
        base = f"class {cls.__name__}({mixin.__name__}, Base"
        raise ClassDefinitionError(
            f"it has no declarative base: {', '.join((base, *keywords))}); or, as a "
            f"base of several classes, {base}) with __abstract__ = True",
            class_name=cls.__name__,
        )


def check_first_mapped(cls: type[Any], first: Any = None) -> None:
    """Reject a base that has a table.

    :param first: a class whose table it may share.
    :raises ClassDefinitionError: for a mapped class.
    """
    for base in cls.__mro__[1:]:
        shares = first is not None and (
            issubclass(base, first) or issubclass(first, base)
        )
        if "__mapper__" in base.__dict__ and not shares:
            raise ClassDefinitionError(
                f"its base {base.__name__} is mapped to a table of its own, "
                "and the classes of a hierarchy would share its ids; share "
                "columns, fields and methods through a base with "
                "__abstract__ = True, and give each class a table",
                class_name=cls.__name__,
            )


def check_bases(cls: type[Any], first: Any = None) -> None:
    """Reject mapped bases, and dataclasses that SQLAlchemy does not map.

    :param first: a class whose table it may share.
    :raises ClassDefinitionError: for such a base.
    """
    check_first_mapped(cls, first)
    bases = cls.__mro__
    if issubclass(cls, MappedAsDataclass):
        if bases.index(MappedAsDataclass) > _index_of_mapping(bases):
            raise ClassDefinitionError(
                "MappedAsDataclass must precede the declarative base, or "
                "SQLAlchemy does not make a dataclass of it: class "
                f"{cls.__name__}(MappedAsDataclass, ..., Base)",
                class_name=cls.__name__,
            )
        return
    for base in bases[1:]:
        if is_dataclass(base):
            raise ClassDefinitionError(
                f"its base {base.__name__} is a dataclass, whose __init__ "
                "does not set the attributes that this class adds; make "
                "it an ordinary class, or this one a dataclass too: class "
                f"{cls.__name__}(MappedAsDataclass, ..., Base)",
                class_name=cls.__name__,
            )


def _index_of_mapping(bases: Sequence[type[Any]]) -> int:
    """Return the index of the base in which SQLAlchemy maps the class."""
    return next(
        (
            index
            for index, base in enumerate(bases)
            if base in (DeclarativeBase, DeclarativeBaseNoMeta)
        ),
        len(bases),
    )


def first_of_dataclass(cls: Any, attributes: Mapping[str, Any]) -> None:
    """Put attributes of the package first among the fields of a dataclass.

    A class that is not a ``MappedAsDataclass`` is not changed.

    :param attributes: annotations by attribute name; attributes that the class
        annotates itself keep their position.
    """
    if issubclass(cls, MappedAsDataclass):
        own = get_annotations(cls)
        first = {k: v for k, v in attributes.items() if k not in own}
        cls.__annotations__ = {**first, **own}


def dataclass_options(cls: type[Any], **options: Any) -> dict[str, Any]:
    """Return the options of a dataclass field; empty if not a dataclass."""
    return options if issubclass(cls, MappedAsDataclass) else {}


def check_table(cls: type[Any], table: Any, key: Sequence[str]) -> None:
    """Reject a table that cannot be on a virtual shard.

    :param key: names of the columns of its primary key.
    :raises ClassDefinitionError: for another key, or a schema.
    """
    check_schema(cls, table)
    names = [column.name for column in table.primary_key]
    if names != list(key):
        raise ClassDefinitionError(
            f"its primary key is ({', '.join(names)}), but must be "
            f"({', '.join(key)}), which locates a row; leave out "
            "primary_key=True of other columns",
            class_name=cls.__name__,
        )


def check_schema(cls: type[Any], table: Any) -> None:
    """Reject a table with a schema.

    :raises ClassDefinitionError: for such a table.
    """
    if table.schema is not None:
        raise ClassDefinitionError(
            f"its table is in schema {table.schema!r}; the schema is the "
            "database of the virtual shard, set by the session; leave it out",
            class_name=cls.__name__,
        )


def check_members(
    cls: type[Any], mixin: type[Any], columns: Collection[str], kind: str
) -> None:
    """Reject attributes that override a column or a method of a mixin.

    :param columns: the attributes that the mixin adds.
    :param kind: kind of the class, for the message, such as ``"mapping"``.
    :raises ClassDefinitionError: if the class or a base has such a name.
    """
    methods = {name for name in vars(mixin) if not name.startswith("_")}
    for base in cls.__mro__:
        if base in mixin.__mro__:
            continue
        # Bare annotations of columns are for type checkers.
        overrides = {
            name
            for name, value in base.__dict__.items()
            if name in columns
            or (
                name in methods
                and not isinstance(value, (classmethod, staticmethod))
                and not callable(value)
            )
        }
        overrides |= methods & set(get_annotations(base))
        for name in sorted(overrides | ({"__table__"} & set(base.__dict__))):
            raise ClassDefinitionError(
                f"{base.__name__}.{name} would override an attribute of every "
                f"{kind} class; rename it",
                class_name=cls.__name__,
            )


def snake(name: str) -> str:
    """Return the name of a table or a column for the name of a class."""
    name = re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", name)
    return re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower()


def default_tablename(cls: Any) -> None:
    """Name the table after the class, unless it has a ``__tablename__``."""
    if not any("__tablename__" in base.__dict__ for base in cls.__mro__):
        cls.__tablename__ = snake(cls.__name__)


def id_column_name(
    cls: type[Any],
    mixin: type[Any],
    role: str,
    given: Any,
    named: object,
    reserved: Collection[str],
) -> str:
    """Return the name of the column with the ids of another class.

    :param role: the keyword of the other class, such as ``"target"``.
    :param given: the other class, or its name.
    :param named: the chosen name; None for the default.
    :param reserved: names that the column must not have.
    :raises ClassDefinitionError: if the column cannot have the name.
    """
    name = name_of_class(cls, role, given)
    column = f"{snake(name)}_id" if named is None else named
    if not (isinstance(column, str) and column.isidentifier()):
        problem = f"{role}_column={column!r} is not a valid attribute name"
    elif column in reserved or column.startswith("__"):
        problem = (
            f"{role}_column={column!r} is a reserved name of classes with "
            f"{mixin.__name__}; use another"
        )
    elif column in vars(mixin):
        problem = (
            f"a column {column!r} would override the method; give it another "
            f"name with {role}_column"
        )
    else:
        return column
    raise ClassDefinitionError(problem, class_name=cls.__name__)


def name_of_class(cls: type[Any], role: str, given: Any) -> str:
    """Return the name of a class that is given as a class or by its name.

    :param role: the keyword with which the class is given.
    :raises ClassDefinitionError: if ``given`` is neither.
    """
    if isinstance(given, type):
        return given.__name__
    if isinstance(given, str) and given:
        return given
    raise ClassDefinitionError(
        f"{role}={given!r}; it must be an object class or its name",
        class_name=cls.__name__,
    )


def class_named(cls: Any, name: str) -> Any:
    """Return the class with a name in the declarative base of ``cls``.

    :raises ClassDefinitionError: if there is no such class, or several.
    """
    classes = [
        mapper.class_
        for mapper in cls.registry.mappers
        if mapper.class_.__name__ == name
    ]
    if len(classes) != 1:
        what = "no class" if not classes else "several classes"
        raise ClassDefinitionError(
            f"{what} {name!r} in its declarative base; give the class itself",
            class_name=cls.__name__,
        )
    return classes[0]


def spec_of_objects(cls: Any, column: str, entity: Any, kind: str) -> TableSpec:
    """Return the routing metadata of an object class.

    The type and the layout of its ids are set for a column.

    :param cls: the class that refers to the objects.
    :param column: the column with the ids of the objects.
    :param kind: kind of ``cls``, for the message.
    :raises ClassDefinitionError: if ``entity`` is not an object class.
    """
    mapper = inspect(entity, raiseerr=False)
    spec = None if mapper is None else spec_of(mapper.local_table)
    if (
        spec is None
        or spec.id_index != 0
        or spec.type_id is None
        or len(mapper.primary_key) != 1
    ):
        raise ClassDefinitionError(
            f"{entity.__name__} is not an object class, and a {kind} table "
            f"stores ids of objects; make it one: class {entity.__name__}("
            "ObjectMixin, Base, type_id=n)",
            class_name=cls.__name__,
        )
    holder = inspect(cls).local_table.c[column].type
    holder.type_id, holder.layout = spec.type_id, spec.layout
    return spec


def built_once(cls: Any, build: Callable[[Any], T]) -> T:
    """Return the result of ``build`` for a class, stored in the class."""
    attribute = f"__sqla_shard_{build.__name__.lower()}__"
    value: T | None = cls.__dict__.get(attribute)
    if value is None:
        value = build(cls)
        setattr(cls, attribute, value)
    return value


def own_definition(cls: Any, attribute: str) -> Any:
    """Return the definition of a class.

    :param attribute: the attribute that contains the definition.
    :raises ClassDefinitionError: if the class is abstract.
    """
    definition = cls.__dict__.get(attribute)
    if definition is None:
        raise ClassDefinitionError(
            "it is abstract and has no table; use a subclass", class_name=cls.__name__
        )
    return definition


def whole_or_not_at_all(finish: Handler) -> Handler:
    """Undo the mapping of a class that its handler rejects.

    Otherwise create_all() would create the table, the corrected class could
    not have the same name, and all other mappers would fail while a traceback
    refers to the class.
    """

    @wraps(finish)
    def handler(mapper: Mapper[Any], cls: Any) -> None:
        try:
            finish(mapper, cls)
        except BaseException:
            _forget(mapper)
            raise

    return handler


def _forget(mapper: Mapper[Any]) -> None:
    table: Any = mapper.local_table
    if mapper.inherits is None:
        table.metadata.remove(table)
    private.dispose_mapper(mapper)


# -- unique constraints
#
# Each virtual shard checks its own rows only, so that the creation of a class
# with such a constraint warns (:exc:`~sqla_shard.exc.UniquePerShardWarning`),
# except for a primary key, a constraint with a column that determines the
# shard, and ``info={"unique_per_shard": True}``.


#: Key in the ``info`` of a column, a constraint or an index.
_MEANT = "unique_per_shard"

#: Tables that were checked, with the columns, other than ids, that determine
#: the shard.  Constraints added to them later are checked when added.
_CHECKED: WeakKeyDictionary[Table, tuple[str, ...]] = WeakKeyDictionary()

#: Classes with foreign keys whose type is unknown until another class exists.
_UNRESOLVED: WeakSet[Mapper[Any]] = WeakSet()


def check_unique(table: Table, *key: str) -> None:
    """Warn about constraints that are unique per virtual shard only.

    :param key: names of the columns that determine the shard of a row, in
        addition to columns with ids.
    """
    constraints: list[Any] = [*table.constraints, *table.indexes]
    # Sort the sets: otherwise the first warning, which may be an error, would
    # differ between processes.
    for one in sorted(constraints, key=_described):
        _check(table, one, key)
    _CHECKED[table] = key


def _check(table: Table, one: Any, key: tuple[str, ...]) -> None:
    if not (isinstance(one, UniqueConstraint) or getattr(one, "unique", False)):
        return
    columns = [m for m in _members(one) if isinstance(m, Column)]
    if any(routes(column) or column.name in key for column in columns):
        return
    infos = [one.info]
    if len(_members(one)) == 1:
        infos += [column.info for column in columns]
    if not any(info.get(_MEANT) for info in infos):
        warnings.warn(_warning(table, one), stacklevel=_stacklevel())


def _members(one: Any) -> list[Any]:
    """Return the columns and expressions of a constraint or an index."""
    if not isinstance(one, Index):
        return list(getattr(one, "columns", ()))
    # For example, the column of Index(..., column.desc()).
    return [getattr(m, "element", m) for m in one.expressions]


def _described(one: Any) -> str:
    return ", ".join(m.name if isinstance(m, Column) else str(m) for m in _members(one))


def _warning(table: Table, one: Any) -> UniquePerShardWarning:
    anchors = [
        column.name
        for column in table.columns
        # A constraint that includes the object's own id is always unique.
        if routes(column) and list(table.primary_key) != [column]
    ]
    everywhere = (
        f"add {anchors[0]!r}, the column that determines the shard, to the "
        "constraint; or "
        if anchors
        else ""
    )
    if isinstance(one, Index):
        where = "Index(..., unique=True)"
    else:
        where = "UniqueConstraint(...)"
    if private.is_of_column(one):
        where = "mapped_column(..., unique=True)"
    return UniquePerShardWarning(
        f"({_described(one)}) of table {table.name!r} is unique on each "
        "virtual shard only: a server checks its own rows, and rows on two "
        "shards may have the same value. For uniqueness across all shards: "
        f"{everywhere}make the value the key of a lookup class "
        "(LookupMixin, and sqla_shard.lookup.sign_up()), and leave out the "
        "constraint. If uniqueness per shard is intended, use "
        f'{where[:-1]}, info={{"unique_per_shard": True}})'
    )


def _stacklevel() -> int:
    """Return the level of the statement that created the class or index."""
    level, frame = 2, sys._getframe(2)
    while (above := frame.f_back) is not None and frame.f_globals.get(
        "__name__", ""
    ).startswith(("sqlalchemy.", "sqla_shard.")):
        level, frame = level + 1, above
    return level


# -- classes without a mixin whose rows are on the shard of an object


def _is_plain(mapper: Mapper[Any]) -> bool:
    """Return True for a class with its own table and none of our mixins."""
    return (
        isinstance(mapper.local_table, Table)
        and (
            mapper.inherits is None
            or mapper.inherits.local_table is not mapper.local_table
        )
        and not any(
            base.__module__.startswith("sqla_shard.") for base in mapper.class_.__mro__
        )
    )


def _check_plain(mapper: Mapper[Any]) -> None:
    table: Any = mapper.local_table
    if any(
        routes(column) and (column.primary_key or column.foreign_keys)
        for column in table.columns
    ):
        check_unique(table)


@whole_or_not_at_all
def _on_mapper_constructed(mapper: Mapper[Any], cls: Any) -> None:
    if _is_plain(mapper):
        if any(
            private.is_null_type(column.type) for column in mapper.local_table.columns
        ):
            _UNRESOLVED.add(mapper)
        else:
            _check_plain(mapper)


def _on_mapper_configured(mapper: Mapper[Any], cls: Any) -> None:
    if mapper in _UNRESOLVED:
        _UNRESOLVED.remove(mapper)
        _check_plain(mapper)


def _on_attach(one: Any, table: Any) -> None:
    if table in _CHECKED:
        _check(table, one, _CHECKED[table])


event.listen(Mapper, "after_mapper_constructed", _on_mapper_constructed)
event.listen(Mapper, "mapper_configured", _on_mapper_configured)
event.listen(Index, "after_parent_attach", _on_attach)
event.listen(UniqueConstraint, "after_parent_attach", _on_attach)
