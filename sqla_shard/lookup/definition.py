"""What happens when a lookup class is created.

:func:`define` runs before SQLAlchemy maps the class: it makes the columns.
:func:`finish` runs when it was mapped: it tells routing about the table.
A target that is given by name may come later; :func:`link` finds it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from inspect import get_annotations
from typing import Any

from sqlalchemy import inspect
from sqlalchemy import LargeBinary
from sqlalchemy import String
from sqlalchemy.dialects import mysql
from sqlalchemy.orm import mapped_column
from sqlalchemy.orm import Mapper

from sqla_shard.exc import ClassDefinitionError
from sqla_shard.lookup.normalization import LONGEST_LABEL
from sqla_shard.lookup.normalization import Normalization
from sqla_shard.orm.creation import check_bases
from sqla_shard.orm.creation import check_table
from sqla_shard.orm.creation import is_abstract
from sqla_shard.orm.creation import whole_or_not_at_all
from sqla_shard.routing import declare
from sqla_shard.routing import spec_of
from sqla_shard.routing import TableSpec
from sqla_shard.types import LookupKey
from sqla_shard.types import ObjectRef
from sqla_shard.types import UTCTimestamp

__all__ = ["TOKEN_BYTES", "Definition", "define", "finish", "link"]

#: Bytes of the token of a claim.
TOKEN_BYTES = 16

_OWN = frozenset({"key", "policy", "token", "expires_at"})
_RESERVED = _OWN | {"metadata", "registry"}


@dataclass
class Definition:
    """What a lookup class was defined with.

    :ivar target: the class of the objects, or its name.
    :ivar column: name of the column with their ids.
    :ivar policies: how keys are normalised; what rows may have been
        written under before comes after the first.
    :ivar unique: whether a key belongs to one object.
    :ivar keyspace: name of the keyspace; None for the only one of kind mod.
    :ivar type_id: type of the objects, once their class is known.
    """

    target: Any
    column: str
    policies: tuple[Normalization, ...]
    unique: bool
    keyspace: str | None
    type_id: int | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        """``name/version`` of each policy."""
        return tuple(policy.label for policy in self.policies)


def define(
    cls: type[Any],
    mixin: type[Any],
    *,
    target: Any,
    normalize: Any,
    previous: Any,
    unique: bool,
    target_column: str | None,
    keyspace: str | None,
) -> None:
    """Check a class that is about to be mapped and make its columns.

    :raises ClassDefinitionError: when it could not work.
    """
    if is_abstract(cls):
        if target is not None:
            raise ClassDefinitionError(
                "it is abstract, so target belongs to the classes that "
                "inherit from it",
                class_name=cls.__name__,
            )
        return
    if getattr(cls, "metadata", None) is None or target is None:
        raise ClassDefinitionError(
            "say what it finds, before a declarative base: class "
            f"{cls.__name__}(LookupMixin, Base, target=User, "
            "normalize=normalization.email)",
            class_name=cls.__name__,
        )
    check_bases(cls)
    definition = Definition(
        target=target,
        column=_column(cls, target, target_column),
        policies=_policies(cls, normalize, previous),
        unique=bool(unique),
        keyspace=keyspace,
    )
    _check_names(cls, mixin, definition)
    if not any("__tablename__" in base.__dict__ for base in cls.__mro__):
        cls.__tablename__ = _snake(cls.__name__)
    _make_columns(cls, definition)
    cls.__sqla_shard_lookup__ = definition


def _policies(
    cls: type[Any], normalize: Any, previous: Any
) -> tuple[Normalization, ...]:
    if isinstance(previous, Normalization):
        previous = (previous,)
    policies = (normalize, *previous)
    for policy in policies:
        if not isinstance(policy, Normalization):
            raise ClassDefinitionError(
                f"{policy!r} is no policy: say which keys are equal, by "
                "normalize=normalization.exact, .casefold, .email or one of "
                "your own, and in previous= what it was before",
                class_name=cls.__name__,
            )
    labels = [policy.label for policy in policies]
    if len(set(labels)) < len(labels):
        raise ClassDefinitionError(
            f"two of its policies are called the same: {', '.join(labels)}; "
            "give the newer one another version",
            class_name=cls.__name__,
        )
    return policies


def _column(cls: type[Any], target: Any, named: object) -> str:
    if isinstance(target, type):
        name = target.__name__
    elif isinstance(target, str) and target:
        name = target
    else:
        raise ClassDefinitionError(
            f"target={target!r}; it takes an object class, or its name",
            class_name=cls.__name__,
        )
    column = f"{_snake(name)}_id" if named is None else named
    if (
        not isinstance(column, str)
        or not column.isidentifier()
        or column in _RESERVED
        or column.startswith("__")
    ):
        raise ClassDefinitionError(
            f"target_column={column!r} is no name, or one that every lookup "
            "class has already; take another",
            class_name=cls.__name__,
        )
    return column


def _check_names(
    cls: type[Any], mixin: type[Any], definition: Definition
) -> None:
    """Refuse what would take the place of a column or a method."""
    methods = {name for name in vars(mixin) if not name.startswith("_")}
    if definition.column in methods:
        raise ClassDefinitionError(
            f"a column {definition.column!r} would take the place of the "
            "method; give it another name with target_column",
            class_name=cls.__name__,
        )
    columns = _OWN | {definition.column}
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
                "lookup class has; call it something else",
                class_name=cls.__name__,
            )


def _is_method(value: object) -> bool:
    return callable(value) or isinstance(value, (classmethod, staticmethod))


def _snake(name: str) -> str:
    name = re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", name)
    return re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower()


def _make_columns(cls: Any, definition: Definition) -> None:
    unique = definition.unique
    cls.key = mapped_column(
        "key", LookupKey(), primary_key=True, sort_order=-30
    )
    setattr(
        cls,
        definition.column,
        mapped_column(
            ObjectRef(),
            primary_key=not unique,
            nullable=unique,
            autoincrement=False,
            sort_order=-20,
        ),
    )
    cls.policy = mapped_column(
        "policy", String(LONGEST_LABEL), nullable=False, sort_order=-19
    )
    if unique:
        token = LargeBinary(TOKEN_BYTES).with_variant(
            mysql.VARBINARY(TOKEN_BYTES), "mysql", "mariadb"
        )
        # The method has the name of the column.
        cls.token = mapped_column(
            "claim", token, nullable=True, sort_order=-18
        )
        cls.expires_at = mapped_column(
            "expires_at", UTCTimestamp(), nullable=True, sort_order=-17
        )


@whole_or_not_at_all
def finish(mapper: Mapper[Any], cls: Any) -> None:
    """Handle ``after_mapper_constructed``: tell routing about the table.

    :raises ClassDefinitionError: when the class cannot work.
    """
    definition: Definition = cls.__sqla_shard_lookup__
    table: Any = mapper.local_table
    key = ["key"] if definition.unique else ["key", definition.column]
    check_table(cls, table, key)
    declare(table, TableSpec(kind="mod", keyspace=definition.keyspace))
    if isinstance(definition.target, type):
        _know(cls, definition, definition.target)


def link(cls: Any) -> Definition:
    """Find the class that a lookup class was given by name.

    :returns: the definition, complete.
    :raises ClassDefinitionError: when there is no such class.
    """
    definition: Definition | None = cls.__dict__.get("__sqla_shard_lookup__")
    if definition is None:
        raise ClassDefinitionError(
            "it is abstract and has no table; use a class that inherits from "
            "it",
            class_name=cls.__name__,
        )
    if definition.type_id is None:
        _know(cls, definition, _named(cls, definition.target))
    return definition


def _named(cls: Any, name: str) -> Any:
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


def _know(cls: Any, definition: Definition, entity: Any) -> None:
    """Take over what the class of the objects says of their ids."""
    mapper = inspect(entity, raiseerr=False)
    spec = None if mapper is None else spec_of(mapper.local_table)
    if (
        spec is None
        or spec.id_index != 0
        or spec.type_id is None
        or len(mapper.primary_key) != 1
    ):
        raise ClassDefinitionError(
            f"{entity.__name__} is no object class; a lookup table holds ids "
            "of objects",
            class_name=cls.__name__,
        )
    column = inspect(cls).local_table.c[definition.column]
    column.type.type_id = spec.type_id
    definition.target = entity
    definition.type_id = spec.type_id
