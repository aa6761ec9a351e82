"""What happens when an object class is created.

:func:`define` runs before SQLAlchemy maps the class: it checks the class and
turns each ``blob_field()`` into an attribute.  :func:`finish` runs when the
class was mapped: it tells routing about the table.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from typing import Any

from sqlalchemy.orm import Mapped
from sqlalchemy.orm import mapped_column
from sqlalchemy.orm import MappedAsDataclass
from sqlalchemy.orm import Mapper

from sqla_shard.dialects.sql import keep_updated
from sqla_shard.exc import BlobValueError
from sqla_shard.exc import ClassDefinitionError
from sqla_shard.exc import UnsupportedStatementError
from sqla_shard.orm.annotations import field_type
from sqla_shard.orm.annotations import hide
from sqla_shard.orm.attributes import FieldProperty
from sqla_shard.orm.attributes import loaded_as
from sqla_shard.orm.codecs import codec_for
from sqla_shard.orm.creation import check_bases
from sqla_shard.orm.creation import check_table
from sqla_shard.orm.creation import first_of_dataclass
from sqla_shard.orm.creation import is_abstract
from sqla_shard.orm.creation import whole_or_not_at_all
from sqla_shard.orm.fields import BlobField
from sqla_shard.orm.fields import declared_in
from sqla_shard.orm.fields import FieldSettings
from sqla_shard.orm.fields import MISSING
from sqla_shard.orm.hiding import write_active
from sqla_shard.orm.hierarchies import check_root
from sqla_shard.orm.hierarchies import check_subclass
from sqla_shard.orm.hierarchies import first_class
from sqla_shard.orm.kinds import Kind
from sqla_shard.orm.references import any_type
from sqla_shard.orm.references import colocation_of
from sqla_shard.orm.references import referred
from sqla_shard.orm.references import types_of
from sqla_shard.orm.uniqueness import check_unique
from sqla_shard.rendering import SCHEMA
from sqla_shard.routing import declare
from sqla_shard.routing import TableSpec
from sqla_shard.types import Blob
from sqla_shard.types import JSONBlob
from sqla_shard.types import ShardedId
from sqla_shard.types.tracking import plain

__all__ = ["Definition", "check_names", "define", "finish", "id_column"]

#: Names that an object class has already, or that SQLAlchemy takes.
RESERVED = frozenset(
    {"data", "id", "ts", "active", "metadata", "registry", "shard_id"}
    | {"deactivate", "restore"}
)
# Those that a subclass could break by defining them anew; it may well extend
# a method.
_OWN = frozenset({"data", "id", "ts", "active", "shard_id"})


@dataclass(kw_only=True)
class Definition:
    """What an object class was defined with.

    :ivar fields: its blob fields by name, inherited ones too.
    """

    type_id: int
    colocate_with: str | None
    keyspace: str | None
    max_bytes: int
    fields: dict[str, BlobField] = field(default_factory=dict)

    def check(self, instance: Any) -> None:
        """Read the fields of an object, which keeps nothing of that.

        Not those with dataclasses, which take longer to make than all else
        that is done to load an object.

        :raises BlobValueError: when one is of another type.
        """
        # Not instance.data, which may be deferred.
        data = vars(instance).get("data")
        if data is None:
            return
        for made in self.fields.values():
            codec = made.codec
            if codec.kind is Kind.JSON and not codec.native:
                continue
            stored = made.stored(data)
            if stored is not MISSING:
                codec.decode(stored)


def define(
    cls: type[Any],
    mixin: type[Any],
    *,
    type_id: int | None,
    colocate_with: str | None,
    keyspace: str | None,
    max_bytes: int | None,
) -> None:
    """Check a class that is about to be mapped and make its fields.

    :raises ClassDefinitionError: when it could not work.
    :raises DuplicateTypeError: when the type id is taken.
    :raises InvalidIdError: when it is none.
    """
    name = cls.__name__
    first = first_class(cls)
    check_bases(cls, first)
    _check_no_table(cls, mixin)
    if is_abstract(cls):
        _check_abstract(cls, type_id, colocate_with, keyspace, max_bytes)
        if not issubclass(cls, MappedAsDataclass):
            hide(cls)
        return
    declared = _declared(cls)
    metadata = getattr(cls, "metadata", None)
    if metadata is None:
        raise ClassDefinitionError(
            f"{mixin.__name__} needs a declarative base after it: class "
            f"{name}({mixin.__name__}, Base, type_id={type_id})",
            class_name=name,
        )
    if first is not None:
        given = {
            "type_id": type_id,
            "colocate_with": colocate_with,
            "keyspace": keyspace,
            "max_bytes": max_bytes,
        }
        check_subclass(cls, first, declared, given)
        base = cls.__sqla_shard__
        definition = replace(base, fields=dict(base.fields))
    elif type_id is None:
        raise ClassDefinitionError(
            f"say its type: class {name}({mixin.__name__}, Base, type_id=n) "
            "with n from 1 to 1023, different for each class and never "
            "changed; or __abstract__ = True",
            class_name=name,
        )
    else:
        check_root(cls, declared)
        definition = Definition(
            type_id=types_of(metadata).check(type_id, name),
            colocate_with=colocate_with,
            keyspace=keyspace,
            max_bytes=_checked_size(cls, max_bytes),
        )
    for key, settings in declared.items():
        definition.fields[key] = _field(cls, key, settings, definition)
    _check_keys(cls, definition)
    _check_own(cls, mixin)
    cls.__sqla_shard__ = definition
    if issubclass(cls, MappedAsDataclass):
        _make_dataclass(cls, first, declared)
        return
    for key, settings in declared.items():
        # Also where the class itself has no more than another annotation.
        setattr(cls, key, settings.dataclass_field())
    hide(cls)
    for key in declared:
        # finish() puts the attribute in its place.
        delattr(cls, key)


def id_column(type_id: int, **options: Any) -> Any:
    """Return the column with the ids of an object class.

    :param options: what ``dataclass()`` is told of it.
    """
    return mapped_column(
        "local_id",
        ShardedId(type_id),
        primary_key=True,
        autoincrement=True,
        sort_order=-30,
        **options,
    )


def _make_dataclass(
    cls: Any, first: Any, declared: Mapping[str, FieldSettings]
) -> None:
    """Give a class what SQLAlchemy is to make a dataclass of.

    All of it is put into the class itself, because SQLAlchemy takes fields
    from no base that is not a dataclass.  ``data`` and ``ts`` are none: what
    is in the one has fields of its own, and to compare or show the other
    would read it from the server after each flush.
    """
    mapped: Any = Mapped
    annotations = {
        key: mapped[_type_of(cls, key, settings)]
        for key, settings in declared.items()
    }
    own = {} if first is not None else {"id": Mapped[int]}
    first_of_dataclass(cls, {**own, **annotations})
    cls.__annotations__.update(annotations)
    values = {k: v for k, v in vars(cls).items() if k in cls.__annotations__}
    for key in values:
        delattr(cls, key)
    if first is None:
        # SQLAlchemy goes by the order of both.
        cls.id = id_column(cls.__sqla_shard__.type_id, init=False)
    values.update({k: s.dataclass_field() for k, s in declared.items()})
    for key in cls.__annotations__:
        if key in values:
            setattr(cls, key, values[key])


@whole_or_not_at_all
def finish(mapper: Mapper[Any], cls: Any) -> None:
    """Handle ``after_mapper_constructed``: tell routing about the table.

    :raises ClassDefinitionError: when the class cannot work.
    """
    definition: Definition = cls.__dict__["__sqla_shard__"]
    table: Any = mapper.local_table
    if mapper.inherits is not None:
        _add_fields(mapper, definition.fields)
        return
    check_table(cls, table, ["local_id"])
    colocation = colocation_of(
        mapper, definition.colocate_with, definition.fields
    )
    # Not before the column that colocates is known to tell the shard.
    check_unique(table)
    types_of(cls.metadata).register(definition.type_id, cls)
    _add_fields(mapper, definition.fields)
    keep_updated(table, "ts")
    # Without it SQLite gives the id of a deleted row to the next one, and
    # whoever kept the old id would find another object.
    table.dialect_options["sqlite"]["autoincrement"] = True
    declare(
        table,
        TableSpec(
            kind="objects",
            keyspace=definition.keyspace,
            id_index=0,
            type_id=definition.type_id,
            colocation=colocation,
            encode_row=_encoded_row,
            loaded_as=loaded_as,
            is_shown=lambda instance: bool(instance.active),
            check=definition.check,
        ),
    )


def _add_fields(mapper: Mapper[Any], fields: Mapping[str, BlobField]) -> None:
    cls = mapper.class_
    for key, made in fields.items():
        if mapper.inherits is not None and mapper.inherits.has_property(key):
            continue
        if key in cls.__dict__:
            # What dataclass() has put there for a field with a default.
            delattr(cls, key)
        mapper.add_property(key, FieldProperty(made))


# -- bases


def _check_no_table(cls: type[Any], mixin: type[Any]) -> None:
    name = cls.__name__
    if "__mapper__" in cls.__dict__ or "__table__" in cls.__dict__:
        raise ClassDefinitionError(
            "it has a table already when its fields are made; "
            f"{mixin.__name__} makes the table, and stands before the "
            f"declarative base: class {name}({mixin.__name__}, Base, "
            "type_id=...) with a __tablename__",
            class_name=name,
        )


def _check_abstract(cls: type[Any], *given: Any) -> None:
    if any(value is not None for value in given):
        raise ClassDefinitionError(
            "it is abstract, so type_id, colocate_with, keyspace and "
            "max_bytes belong to the classes that inherit from it",
            class_name=cls.__name__,
        )


def _checked_size(cls: type[Any], max_bytes: int | None) -> int:
    try:
        kind = JSONBlob() if max_bytes is None else JSONBlob(max_bytes)
    except ValueError as error:
        raise ClassDefinitionError(
            str(error), class_name=cls.__name__
        ) from error
    return kind.max_bytes


def _check_own(cls: type[Any], mixin: type[Any]) -> None:
    for base in cls.__mro__:
        if base in mixin.__mro__ or "__mapper__" in base.__dict__:
            continue
        names = {*base.__dict__, *inspect.get_annotations(base)}
        for name in sorted(_OWN & names):
            raise ClassDefinitionError(
                f"{base.__name__}.{name} would take the place of what every "
                f"object class has; call it something else",
                class_name=cls.__name__,
            )


# -- fields


def _declared(cls: type[Any]) -> dict[str, FieldSettings]:
    """Return the fields of a class and its bases, in order of definition."""
    found: dict[str, FieldSettings] = {}
    for base in reversed(cls.__mro__):
        own = declared_in(base)
        for key in found.keys() & base.__dict__.keys() - own.keys():
            del found[key]  # the class has something else in its place
        found.update(own)
    for key in found:
        if key in RESERVED:
            raise ClassDefinitionError(
                f"a blob field cannot be called {key!r}, which every object "
                "class has or SQLAlchemy reserves; rename it",
                class_name=cls.__name__,
            )
    return found


def _field(
    cls: type[Any], key: str, settings: FieldSettings, definition: Definition
) -> BlobField:
    name = cls.__name__
    _check_settings(cls, key, settings)
    codec = codec_for(_type_of(cls, key, settings), field=f"{name}.{key}")
    colocates = key == definition.colocate_with
    refers = None
    if settings.ref is not None:
        refers = referred(cls, key, settings.ref)
    elif colocates:
        refers = any_type(cls.metadata)
    if refers is not None and codec.kind is not Kind.INTEGER:
        raise ClassDefinitionError(
            f"{key} holds an id, which is an int: write {key}: Mapped[int]",
            class_name=name,
        )
    made = BlobField(
        name, key, codec, settings, refers=refers, colocates=colocates
    )
    try:
        made.check_default()
    except BlobValueError as error:
        raise ClassDefinitionError(
            f"the default of {error}", class_name=name
        ) from error
    return made


def _type_of(cls: type[Any], key: str, settings: FieldSettings) -> Any:
    return field_type(cls, key) if settings.type_ is None else settings.type_


def _check_settings(cls: type[Any], key: str, settings: FieldSettings) -> None:
    problem = None
    aliases = settings.aliases
    factory: Any = settings.default_factory
    if not isinstance(aliases, (tuple, list)) or not all(
        isinstance(alias, str) for alias in aliases
    ):
        problem = f"aliases of {key} is a tuple of str, not {aliases!r}"
    elif settings.default is not MISSING and factory is not None:
        problem = f"{key} has default and default_factory; give one"
    elif factory is not None and not callable(factory):
        problem = f"default_factory of {key} is not callable: {factory!r}"
    elif isinstance(settings.default, (list, dict, set)):
        problem = (
            f"the default of {key} would be shared by all objects; say "
            f"default_factory={type(settings.default).__name__}"
        )
    elif settings.options and not issubclass(cls, MappedAsDataclass):
        problem = (
            f"{key} has {', '.join(settings.options)}, which are for "
            "dataclasses; leave them out, or make the class one: class "
            f"{cls.__name__}(MappedAsDataclass, ObjectMixin, Base, ...)"
        )
    if problem is not None:
        raise ClassDefinitionError(problem, class_name=cls.__name__)


def _check_keys(cls: type[Any], definition: Definition) -> None:
    """Refuse keys that two fields would share, or SQL could not name."""
    keys = {"active": "soft delete"}
    for made in definition.fields.values():
        for key in (made.name, *made.aliases):
            problem = None
            if key in keys:
                problem = f"belongs to {keys[key]} already"
            elif SCHEMA in key:
                problem = f"contains {SCHEMA}, which stands for the database"
            elif '"' in key or not key.isprintable():
                # SQLite compares a path with the escaped text.
                problem = (
                    "has a double quote or an unprintable character, which "
                    "JSON paths cannot name on every server"
                )
            if problem is not None:
                raise ClassDefinitionError(
                    f"the key {key!r} of {made.name} {problem}; give it "
                    "another name",
                    class_name=cls.__name__,
                )
            keys[key] = made.name


# -- rows of INSERT


def _encoded_row(mapper: Mapper[Any], row: dict[str, Any]) -> dict[str, Any]:
    fields = mapper.class_.__sqla_shard__.fields
    row = dict(row)
    active = row.pop("active", True)
    check_names(mapper, fields, row)
    given = row.pop("data", None)
    # A copy: it may be the blob of an object, or given for many rows.
    data = Blob.coerce("data", {} if given is None else plain(given))
    for key in [key for key in row if key in fields]:
        fields[key].write(data, row.pop(key))
    for made in fields.values():
        made.fill(data)
    write_active(data, active)
    row["data"] = data
    return row


def check_names(
    mapper: Mapper[Any], fields: Iterable[str], row: Iterable[Any]
) -> None:
    """Refuse, in a row of a bulk statement, what is no attribute.

    SQLAlchemy drops such keys, and with them what a mistyped one is for.

    :param row: names, or the attributes themselves.
    :raises UnsupportedStatementError: for a name that is not known.
    """
    for name in row:
        if (
            isinstance(name, str)
            and name not in mapper.attrs
            and name not in mapper.local_table.c
            and name not in fields
        ):
            raise UnsupportedStatementError(
                f"{name!r} is no attribute of {mapper.class_.__name__}; "
                "correct the name, or leave it out",
                construct=name,
            )
