"""What happens when a lookup class is created.

:func:`define` runs before SQLAlchemy maps the class: it makes the columns.
:func:`finish` runs when it was mapped: it tells routing about the table.
A target that is given by name may come later; :func:`link` finds it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import LargeBinary
from sqlalchemy import String
from sqlalchemy.dialects import mysql
from sqlalchemy.orm import Mapped
from sqlalchemy.orm import mapped_column
from sqlalchemy.orm import Mapper

from sqla_shard.exc import ClassDefinitionError
from sqla_shard.lookup.normalization import LONGEST_LABEL
from sqla_shard.lookup.normalization import Normalization
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
from sqla_shard.orm.creation import whole_or_not_at_all
from sqla_shard.orm.uniqueness import check_unique
from sqla_shard.routing import declare
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
    :ivar field: attribute of the objects that holds their key; None where
        that is not known.
    :ivar type_id: type of the objects, once their class is known.
    """

    target: Any
    column: str
    policies: tuple[Normalization, ...]
    unique: bool
    keyspace: str | None
    field: str | None = None
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
    field: str | None,
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
        field=field,
    )
    _check_names(cls, mixin, definition)
    if not any("__tablename__" in base.__dict__ for base in cls.__mro__):
        cls.__tablename__ = snake(cls.__name__)
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
    name = name_of_class(cls, "target", target)
    column = f"{snake(name)}_id" if named is None else named
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
    check_members(cls, mixin, _OWN | {definition.column}, "lookup")


def _make_columns(cls: Any, definition: Definition) -> None:
    unique = definition.unique
    annotations = {"key": Mapped[str], definition.column: Mapped[int]}
    first_of_dataclass(cls, annotations)
    # Rows are written by methods, not by adding an object.
    options = of_dataclass(cls, init=False)
    cls.key = mapped_column(
        "key", LookupKey(), primary_key=True, sort_order=-30, **options
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
            **options,
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
    check_unique(table, "key")
    declare(table, TableSpec(kind="mod", keyspace=definition.keyspace))
    if isinstance(definition.target, type):
        _know(cls, definition, definition.target)


def link(cls: Any) -> Definition:
    """Find the class that a lookup class was given by name.

    :returns: the definition, complete.
    :raises ClassDefinitionError: when there is no such class.
    """
    definition: Definition = own_definition(cls, "__sqla_shard_lookup__")
    if definition.type_id is None:
        _know(cls, definition, class_named(cls, definition.target))
    return definition


def _know(cls: Any, definition: Definition, entity: Any) -> None:
    """Take over what the class of the objects says of their ids."""
    definition.type_id = type_of_objects(
        cls, definition.column, entity, "lookup"
    )
    _check_field(cls, definition.field, entity)
    definition.target = entity


def _check_field(cls: Any, field: object, entity: Any) -> None:
    """Refuse a field that no object has: all their rows would seem stale."""
    if field is None:
        return
    if not isinstance(field, str) or not hasattr(entity, field):
        raise ClassDefinitionError(
            f"field={field!r} is no attribute of {entity.__name__}; name the "
            "one that holds the key, or leave it out",
            class_name=cls.__name__,
        )
