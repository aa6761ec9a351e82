"""Creation of lookup classes.

:func:`define` runs before SQLAlchemy maps the class and adds the columns.
:func:`finish` runs after it was mapped and declares the table to routing.
A target given by name may be defined later; :func:`link` resolves it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import LargeBinary, String
from sqlalchemy.dialects import mysql
from sqlalchemy.orm import Mapped, mapped_column, Mapper

from sqla_shard.exc import ClassDefinitionError
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
    own_definition,
    spec_of_objects,
    whole_or_not_at_all,
)
from sqla_shard.models.layouts import layout_of
from sqla_shard.models.normalization import LONGEST_LABEL, Normalization
from sqla_shard.planning import declare, TableSpec
from sqla_shard.types import LookupKey, ObjectRef, UTCTimestamp

#: Bytes of the token of a claim.
TOKEN_BYTES = 16

_OWN = frozenset({"key", "policy", "token", "expires_at"})
_RESERVED = _OWN | {"metadata", "registry"}


@dataclass
class LookupDefinition:
    """The definition of a lookup class.

    :ivar target: the class of the objects, or its name.
    :ivar column: name of the column with the ids of the objects.
    :ivar policies: the policy of new rows, then the policies of older rows.
    :ivar unique: whether a key belongs to one object only.
    :ivar keyspace: name of the keyspace; None for the only one of kind mod.
    :ivar field: attribute of the objects that contains their key, or None.
    :ivar type_id: type of the objects, once their class is resolved.
    :ivar layout: layout of their ids, once their class is resolved.
    """

    target: Any
    column: str
    policies: tuple[Normalization, ...]
    unique: bool
    keyspace: str | None
    field: str | None = None
    type_id: int | None = None
    layout: IdLayout = DEFAULT_LAYOUT

    def shard_of(self, cls: Any, object_id: Any) -> int:
        """Return the shard of an object; check its id.

        :param cls: the lookup class.
        :raises InvalidIdError: if it is not an object id.
        :raises WrongTypeError: if it is the id of another class.
        """
        name = f"{cls.__name__}.{self.column}"
        return self.layout.shard_of(object_id, self.type_id, name)

    @property
    def labels(self) -> tuple[str, ...]:
        """``name/version`` of each policy."""
        return tuple(policy.label for policy in self.policies)


def define(
    cls: Any,
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
    """Check a class before it is mapped, and create its columns.

    :raises ClassDefinitionError: if the class is not valid.
    """
    if check_abstract(cls, target=target):
        return
    example = "target=User, normalize=normalization.email"
    check_declarative(cls, mixin, example)
    if target is None:
        raise ClassDefinitionError(
            f"target is missing: class {cls.__name__}(LookupMixin, Base, {example})",
            class_name=cls.__name__,
        )
    check_bases(cls)
    definition = LookupDefinition(
        target=target,
        column=id_column_name(cls, mixin, "target", target, target_column, _RESERVED),
        policies=_policies(cls, normalize, previous),
        unique=bool(unique),
        keyspace=keyspace,
        field=field,
        layout=layout_of(cls),
    )
    check_members(cls, mixin, _OWN | {definition.column}, "lookup")
    default_tablename(cls)
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
                f"{policy!r} is not a Normalization: use "
                "normalize=normalization.exact, .casefold, .email or one of "
                "your own, and previous= for the policies of older rows",
                class_name=cls.__name__,
            )
    labels = [policy.label for policy in policies]
    if len(set(labels)) < len(labels):
        raise ClassDefinitionError(
            f"two of its policies have the same label: {', '.join(labels)}; "
            "give the newer one another version",
            class_name=cls.__name__,
        )
    return policies


def _make_columns(cls: Any, definition: LookupDefinition) -> None:
    unique = definition.unique
    annotations = {"key": Mapped[str], definition.column: Mapped[int]}
    first_of_dataclass(cls, annotations)
    # Rows are written by methods, not by adding an object.
    options = dataclass_options(cls, init=False)
    cls.key = mapped_column(
        "key", LookupKey(), primary_key=True, sort_order=-30, **options
    )
    setattr(
        cls,
        definition.column,
        mapped_column(
            ObjectRef(layout=definition.layout),
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
        # The method ``claim`` has the name of the column.
        cls.token = mapped_column("claim", token, nullable=True, sort_order=-18)
        cls.expires_at = mapped_column(
            "expires_at", UTCTimestamp(), nullable=True, sort_order=-17
        )


@whole_or_not_at_all
def finish(mapper: Mapper[Any], cls: Any) -> None:
    """Handle ``after_mapper_constructed``: declare the table to routing.

    :raises ClassDefinitionError: if the class is not valid.
    """
    definition: LookupDefinition = cls.__sqla_shard_lookup__
    table: Any = mapper.local_table
    key = ["key"] if definition.unique else ["key", definition.column]
    check_table(cls, table, key)
    check_unique(table, "key")
    declare(table, TableSpec(kind="mod", keyspace=definition.keyspace))
    if isinstance(definition.target, type):
        _resolve_target(cls, definition, definition.target)


def link(cls: Any) -> LookupDefinition:
    """Resolve the class that a lookup class was given by name.

    :returns: the definition, complete.
    :raises ClassDefinitionError: if the class is not found.
    """
    definition: LookupDefinition = own_definition(cls, "__sqla_shard_lookup__")
    if definition.type_id is None:
        _resolve_target(cls, definition, class_named(cls, definition.target))
    return definition


def _resolve_target(cls: Any, definition: LookupDefinition, entity: Any) -> None:
    """Set the class of the objects, and the type of their ids."""
    spec = spec_of_objects(cls, definition.column, entity, "lookup")
    assert spec.layout is not None  # noqa: S101  # objects have ids
    definition.type_id, definition.layout = spec.type_id, spec.layout
    _check_field(cls, definition.field, entity)
    definition.target = entity


def _check_field(cls: Any, field: object, entity: Any) -> None:
    """Reject an unknown field: a check would report all rows as stale."""
    if field is None:
        return
    if not isinstance(field, str) or not hasattr(entity, field):
        raise ClassDefinitionError(
            f"field={field!r} is not an attribute of {entity.__name__}; name "
            "the one that holds the key, or leave it out",
            class_name=cls.__name__,
        )
