"""What the creation of every kind of class on virtual shards has in common.

A class that is refused leaves nothing behind, so that it can be corrected
and defined again, as in a notebook.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import is_dataclass
from functools import wraps
from inspect import get_annotations
from typing import Any

from sqlalchemy import inspect
from sqlalchemy.orm import DeclarativeBase
from sqlalchemy.orm import DeclarativeBaseNoMeta
from sqlalchemy.orm import MappedAsDataclass
from sqlalchemy.orm import Mapper

from sqla_shard.exc import ClassDefinitionError
from sqla_shard.routing import spec_of

__all__ = [
    "check_bases",
    "check_first_mapped",
    "check_members",
    "check_schema",
    "check_table",
    "class_named",
    "first_of_dataclass",
    "is_abstract",
    "name_of_class",
    "of_dataclass",
    "own_definition",
    "snake",
    "type_of_objects",
    "whole_or_not_at_all",
]

#: A handler of SQLAlchemy's ``after_mapper_constructed``.
Handler = Callable[[Mapper[Any], Any], None]


def is_abstract(cls: type[Any]) -> bool:
    """Tell whether a class is mapped by its subclasses only."""
    return bool(cls.__dict__.get("__abstract__")) or not {
        DeclarativeBase,
        DeclarativeBaseNoMeta,
    }.isdisjoint(cls.__bases__)


def check_first_mapped(cls: type[Any], first: Any = None) -> None:
    """Refuse a base that has a table.

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
    """Refuse bases that a class cannot have.

    :param first: a class whose table it may share.
    :raises ClassDefinitionError: for a mapped class, or a dataclass that
        SQLAlchemy does not know of.
    """
    check_first_mapped(cls, first)
    bases = cls.__mro__
    if issubclass(cls, MappedAsDataclass):
        if bases.index(MappedAsDataclass) > _index_of_mapping(bases):
            raise ClassDefinitionError(
                "SQLAlchemy makes a dataclass of it only where "
                "MappedAsDataclass stands before the declarative base: class "
                f"{cls.__name__}(MappedAsDataclass, ..., Base)",
                class_name=cls.__name__,
            )
        return
    for base in bases[1:]:
        if is_dataclass(base):
            raise ClassDefinitionError(
                f"its base {base.__name__} is a dataclass, whose __init__ "
                "knows nothing of the attributes that this class gets; make "
                "it an ordinary class, or this one a dataclass too: class "
                f"{cls.__name__}(MappedAsDataclass, ..., Base)",
                class_name=cls.__name__,
            )


def _index_of_mapping(bases: Sequence[type[Any]]) -> int:
    """Return where, among the bases of a class, SQLAlchemy maps it."""
    return next(
        (
            index
            for index, base in enumerate(bases)
            if base in (DeclarativeBase, DeclarativeBaseNoMeta)
        ),
        len(bases),
    )


def first_of_dataclass(cls: Any, attributes: Mapping[str, Any]) -> None:
    """Let what a dataclass gets from the package be its first fields.

    Of a class that is no ``MappedAsDataclass``, nothing is changed.

    :param attributes: names and annotations; those that the class annotates
        itself stay where they are.
    """
    if issubclass(cls, MappedAsDataclass):
        own = get_annotations(cls)
        first = {k: v for k, v in attributes.items() if k not in own}
        cls.__annotations__ = {**first, **own}


def of_dataclass(cls: type[Any], **options: Any) -> dict[str, Any]:
    """Return what a column is told of its dataclass, where it is of one."""
    return options if issubclass(cls, MappedAsDataclass) else {}


def check_table(cls: type[Any], table: Any, key: Sequence[str]) -> None:
    """Refuse a table that could not be on a virtual shard.

    :param key: names of the columns that are its primary key.
    :raises ClassDefinitionError: for another key, or a schema.
    """
    check_schema(cls, table)
    names = [column.name for column in table.primary_key]
    if names != list(key):
        raise ClassDefinitionError(
            f"its primary key is ({', '.join(names)}), and the place of a row "
            f"is told by ({', '.join(key)}) alone; leave out primary_key=True "
            "of other columns",
            class_name=cls.__name__,
        )


def check_schema(cls: type[Any], table: Any) -> None:
    """Refuse a table with a schema.

    :raises ClassDefinitionError: for one.
    """
    if table.schema is not None:
        raise ClassDefinitionError(
            f"its table is in schema {table.schema!r}; the schema is the "
            "database of the virtual shard, which the session finds; leave it "
            "out",
            class_name=cls.__name__,
        )


def check_members(
    cls: type[Any], mixin: type[Any], columns: Collection[str], kind: str
) -> None:
    """Refuse what would take the place of a column or a method of a mixin.

    :param columns: the attributes that the class gets.
    :param kind: of the class, for the message, such as ``"mapping"``.
    :raises ClassDefinitionError: when it, or a base, has such a name.
    """
    methods = {name for name in vars(mixin) if not name.startswith("_")}
    for base in cls.__mro__:
        if base in mixin.__mro__:
            continue
        # Bare annotations of columns are for type checkers.
        made = {
            name
            for name, value in base.__dict__.items()
            if name in columns or (name in methods and not _is_method(value))
        }
        made |= methods & set(get_annotations(base))
        for name in sorted(made | ({"__table__"} & set(base.__dict__))):
            raise ClassDefinitionError(
                f"{base.__name__}.{name} would take the place of what every "
                f"{kind} class has; call it something else",
                class_name=cls.__name__,
            )


def _is_method(value: object) -> bool:
    return callable(value) or isinstance(value, (classmethod, staticmethod))


def snake(name: str) -> str:
    """Return the name of a class as that of a table or a column."""
    name = re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", name)
    return re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower()


def name_of_class(cls: type[Any], role: str, given: Any) -> str:
    """Return the name of a class that is given as it is, or by its name.

    :param role: the keyword that it is given with.
    :raises ClassDefinitionError: when it is neither.
    """
    if isinstance(given, type):
        return given.__name__
    if isinstance(given, str) and given:
        return given
    raise ClassDefinitionError(
        f"{role}={given!r}; it takes an object class, or its name",
        class_name=cls.__name__,
    )


def class_named(cls: Any, name: str) -> Any:
    """Return the class of a name, in the declarative base of another.

    :raises ClassDefinitionError: when there is none, or several.
    """
    found = [
        mapper.class_
        for mapper in cls.registry.mappers
        if mapper.class_.__name__ == name
    ]
    if len(found) != 1:
        what = "no class" if not found else "several classes"
        raise ClassDefinitionError(
            f"{what} {name!r} in its declarative base; give the class itself",
            class_name=cls.__name__,
        )
    return found[0]


def type_of_objects(cls: Any, column: str, entity: Any, kind: str) -> int:
    """Return the type of a class's objects, and have a column take no other.

    :param cls: the class that refers to them.
    :param column: the one with their ids.
    :param kind: of the class, for the message.
    :raises ClassDefinitionError: when it is no object class.
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
            f"{entity.__name__} is no object class, and a {kind} table holds "
            f"ids of objects; make it one: class {entity.__name__}("
            "ObjectMixin, Base, type_id=n)",
            class_name=cls.__name__,
        )
    inspect(cls).local_table.c[column].type.type_id = spec.type_id
    return spec.type_id


def own_definition(cls: Any, attribute: str) -> Any:
    """Return what a class was defined with.

    :param attribute: where the class keeps it.
    :raises ClassDefinitionError: when the class is abstract.
    """
    found = cls.__dict__.get(attribute)
    if found is None:
        raise ClassDefinitionError(
            "it is abstract and has no table; use a class that inherits from "
            "it",
            class_name=cls.__name__,
        )
    return found


def whole_or_not_at_all(finish: Handler) -> Handler:
    """Undo the mapping of a class when its handler refuses it.

    Otherwise create_all() would create the table, the corrected class could
    not have the name, and as long as a traceback holds the class, all other
    mappers would fail with it.
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
    manager = mapper.class_manager
    # What registry.dispose() does, which has no form for a single class.
    mapper.registry._managers.pop(manager, None)
    mapper.registry._dispose_manager_and_mapper(manager)
