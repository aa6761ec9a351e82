"""Creation of object classes, and soft delete of their objects.

:func:`define` runs before SQLAlchemy maps the class: it checks the class and
turns each ``blob_field()`` into an attribute.  :func:`finish` runs after it
was mapped and declares the table to routing.

Several classes can share a table by single-table inheritance::

    class Item(ObjectMixin, Base, type_id=1):
        __tablename__ = "items"
        kind: Mapped[str] = mapped_column(String(10))
        name: Mapped[str] = blob_field()
        __mapper_args__ = {
            "polymorphic_on": "kind", "polymorphic_identity": "item"
        }

    class Book(Item):
        pages: Mapped[int] = blob_field(default=0)
        __mapper_args__ = {"polymorphic_identity": "book"}

The first class, ``Item``, determines the type of the ids and their shards.

Soft delete: reads exclude inactive objects by default.
Reads are ``get``, ``get_many``, ORM ``select()`` in every form, and loads of
relationships; the option ``include_inactive`` of a statement applies to its
eager loads as well.  UPDATE and DELETE, textual SQL and Core statements
include every row; ``.where(Class.active)`` excludes inactive ones.  Inactive
objects in a session can be refreshed and changed as usual.

Cascades of ``session.delete()`` do not include inactive objects; the server
rejects the DELETE if they have a foreign key.  Delete them first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from inspect import get_annotations
from typing import Any, NoReturn, TYPE_CHECKING

from sqlalchemy import Column, event, inspect, true
from sqlalchemy.ext.hybrid import hybrid_property
from sqlalchemy.orm import (
    LoaderCriteriaOption,
    Mapped,
    mapped_column,
    MappedAsDataclass,
    MappedColumn,
    Mapper,
    ORMExecuteState,
    with_loader_criteria,
)

from sqla_shard.dialects.sql import BlobActive, keep_updated
from sqla_shard.exc import (
    BlobValueError,
    ClassDefinitionError,
    UnsupportedStatementError,
)
from sqla_shard.ids import DEFAULT_LAYOUT, IdLayout
from sqla_shard.models.blob_fields import blob_of, BlobField, FieldSettings, MISSING
from sqla_shard.models.blob_writes import choose_for_rows
from sqla_shard.models.class_checks import (
    check_abstract,
    check_bases,
    check_declarative,
    check_table,
    check_unique,
    first_of_dataclass,
    whole_or_not_at_all,
)
from sqla_shard.models.codecs import ValueKind
from sqla_shard.models.field_declarations import (
    check_keys,
    create_field,
    declared_fields,
    discard,
    FieldProperty,
    hide,
    loaded_as,
    type_of,
    types_of,
)
from sqla_shard.models.id_sources import (
    adopt_layout,
    check_parent_layout,
    IdSource,
    layout_of,
    source_of,
)
from sqla_shard.planning import Colocation, declare, routes, spec_of, TableSpec
from sqla_shard.session import INCLUDE_INACTIVE, ShardSession
from sqla_shard.types import Blob, IdType, JSONBlob, ObjectRef, ShardedId
from sqla_shard.types.tracking import plain
from sqla_shard.util import sqlalchemy_private as private

_KEY = "active"


class Activity:
    """Adds ``active``, ``deactivate()`` and ``restore()`` to objects."""

    if TYPE_CHECKING:
        data: Any

    @hybrid_property
    def active(self) -> bool:
        """False after :meth:`deactivate`; stored in the blob."""
        data = self.data
        return data is None or data.get(_KEY) is not False

    @active.inplace.expression
    @classmethod
    def _active(cls) -> Any:
        return _active_only(cls)

    @active.inplace.setter
    def _set_active(self, value: bool) -> None:
        write_active(blob_of(self), value)

    @active.inplace.update_expression
    @classmethod
    def _update_active(cls, value: Any) -> Any:
        # Return the name only: the statement is rejected because of it.
        return [(_KEY, value)]

    def deactivate(self) -> None:
        """Exclude the object from reads, after the next flush."""
        write_active(blob_of(self), False)

    def restore(self) -> None:
        """Include the object in reads again, after the next flush."""
        write_active(blob_of(self), True)


def write_active(data: dict[str, Any], value: bool) -> None:
    """Set ``active`` in a blob.

    :raises BlobValueError: if the value is not a bool.
    """
    if type(value) is not bool:
        raise BlobValueError(f"must be a bool, not {value!r}", field=_KEY, value=value)
    if not value:
        data[_KEY] = False
    elif data.get(_KEY) is False:
        del data[_KEY]


def _active_only(cls: Any) -> Any:
    """Return the condition that excludes inactive objects."""
    data = getattr(cls, "data", None)
    if data is None:
        # SQLAlchemy calls the criterion for the mixin itself first, to find
        # its closure variables.
        return true()
    return BlobActive(data.__clause_element__())


def _is_active(cls: Any) -> Any:
    # Do not use a lambda: loaded objects refer to the function, and may be
    # pickled.
    return cls.active


_ACTIVE = with_loader_criteria(
    Activity,
    _is_active,
    include_aliases=True,
    # Without this, joined eager loading would include inactive objects.
    propagate_to_loaders=True,
)


def _exclude_inactive(context: ORMExecuteState) -> None:
    """Handle ``do_orm_execute``: add the condition to every read."""
    if (
        context.is_select
        and context.is_orm_statement
        # The refresh of an inactive object would not find its row.
        and not context.is_column_load
        # merge() compares the collection that it loads with a collection read
        # without inactive objects, which would seem to be removed.
        and not context.execution_options.get(INCLUDE_INACTIVE)
        and _may_read_objects(context)
    ):
        context.statement = context.statement.options(_ACTIVE)


def _may_read_objects(context: ORMExecuteState) -> bool:
    mapper = context.bind_mapper
    # Statements on a global keyspace cannot read objects as well.
    if mapper is not None and spec_of(mapper.local_table).kind == "global":
        return False
    # Loads of relationships inherit the condition from the object.
    options: Any = context.statement
    return not any(
        isinstance(option, LoaderCriteriaOption) and option.root_entity is Activity
        for option in private.with_options(options)
    )


event.listen(ShardSession, "do_orm_execute", _exclude_inactive)


def _colocation_of(
    mapper: Mapper[Any], name: str | None, fields: dict[str, BlobField]
) -> Colocation | None:
    """Return the colocation of a mapped class with ``colocate_with``.

    :param name: the field or column.
    :param fields: the blob fields of the class.
    :raises ClassDefinitionError: if it does not store object ids.
    """
    if name is None:
        return None
    if name in fields:
        return _by_field(fields[name])
    class_name = mapper.class_.__name__
    # Not column_attrs, which configures all mappers: a relationship to a
    # class that is not defined yet would fail.
    column: Any = mapper.columns.get(name)
    if column is None:
        raise ClassDefinitionError(
            f"colocate_with={name!r} names neither a blob field nor a "
            "column of the class; add the one that holds the parent's id, "
            f"such as {name}: Mapped[int] = blob_field()",
            class_name=class_name,
        )
    kind = column.type
    if not isinstance(kind, IdType) or column.primary_key:
        raise ClassDefinitionError(
            f"the column {name} that colocates is of type {kind!r}; make it "
            f"a blob_field(), or use {name}: Mapped[int] = "
            "mapped_column(ObjectRef(type_id)), or ShardedId(type_id) with "
            "a ForeignKey",
            class_name=class_name,
        )
    if isinstance(kind, ObjectRef):
        kind.colocated = True
    check_parent_layout(mapper.class_, name, kind.layout)
    allowed = () if kind.type_id is None else (kind.type_id,)
    return Colocation(
        field=name,
        read=lambda instance: instance.__dict__.get(name),
        type_ids=lambda: allowed,
    )


def _by_field(attribute: BlobField) -> Colocation:
    def read(instance: Any) -> Any:
        data = instance.__dict__.get("data")
        if data is None:
            return None
        stored = attribute.stored(data)
        return None if stored is MISSING else stored

    assert attribute.refers is not None  # noqa: S101  # a field that colocates has it
    refers = attribute.refers
    return Colocation(
        field=attribute.name, read=read, type_ids=lambda: refers().type_ids
    )


# -- classes that share a table


def _first_class(cls: type[Any]) -> Any:
    """Return the first object class of a shared table, or None."""
    first = None
    for base in cls.__mro__[1:]:
        if "__sqla_shard__" in base.__dict__ and "__mapper__" in base.__dict__:
            first = base
    return first


def _check_root(cls: Any, fields: Collection[str]) -> None:
    """Reject a ``polymorphic_on`` that is not a column.

    :param fields: names of the blob fields.
    :raises ClassDefinitionError: for such a class.
    """
    arguments = getattr(cls, "__mapper_args__", None)
    if not isinstance(arguments, Mapping):
        return
    on = arguments.get("polymorphic_on")
    if on is None or (isinstance(on, (str, Column, MappedColumn)) and on not in fields):
        return
    raise ClassDefinitionError(
        f"polymorphic_on={on!r} is not a column, and SQLAlchemy needs the "
        "class of a row before the blob is read; add one, such as kind: "
        "Mapped[str] = mapped_column(String(20))",
        class_name=cls.__name__,
    )


def _check_subclass(
    cls: Any, first: Any, fields: Collection[str], given: Mapping[str, Any]
) -> None:
    """Check a class that shares the table of another.

    :param first: the class to which the table belongs.
    :param fields: names of the blob fields that the class adds.
    :param given: the class keywords.
    :raises ClassDefinitionError: if it has its own table, a keyword of the
        first class, or a field of another class of the table.
    """
    name = first.__name__
    if inspect(first).polymorphic_on is None:
        _refuse(
            cls,
            f"its base {name} is mapped to a table of its own without "
            f"polymorphic_on, the class of each row: give {name} a column, "
            "such as kind: Mapped[str], and __mapper_args__ = "
            '{"polymorphic_on": "kind", "polymorphic_identity": ...}; or '
            "share columns, fields and methods through a base with "
            "__abstract__ = True, and give each class a table",
        )
    said = [key for key, value in given.items() if value is not None]
    if said:
        _refuse(
            cls,
            f"{', '.join(said)} applies to the whole table and can be set in "
            f"{name} only; leave it out",
        )
    _check_attributes(cls, first)
    # Compare with the fields of siblings as well: in SQL a field of one would
    # be read from the rows of the other.
    for mapper in inspect(first).self_and_descendants:
        for key in fields:
            if mapper.class_ is not cls and mapper.has_property(key):
                _refuse(
                    cls, f"{key} is an attribute of {mapper.class_.__name__}; rename it"
                )


def _check_attributes(cls: Any, first: Any) -> None:
    """Reject a table of the class, and columns that determine its shard."""
    name = first.__name__
    own = [base for base in cls.__mro__ if base not in first.__mro__]
    own = [base for base in own if "__mapper__" not in base.__dict__]
    if any({"__tablename__", "__table__"} & vars(b).keys() for b in own):
        _refuse(
            cls,
            f"it has its own table in addition to that of its base {name}, "
            "but an object is a single row: leave __tablename__ out, and "
            f"its fields are in the blob of {name}; or give it a base with "
            "__abstract__ = True, and a type_id",
        )
    for base in own:
        for key, value in vars(base).items():
            column = getattr(value, "column", value)
            if isinstance(column, Column) and routes(column):
                _refuse(
                    cls,
                    f"{key} refers to objects of its own shard, so that it "
                    f"routes all classes of the table: define it in {name}",
                )


def _refuse(cls: Any, problem: str) -> NoReturn:
    raise ClassDefinitionError(problem, class_name=cls.__name__)


# Attributes that a subclass must not override; it may extend methods.
_OWN = frozenset({"data", "id", "ts", "active", "shard_id"})


@dataclass(kw_only=True)
class ObjectDefinition:
    """The definition of an object class.

    :ivar fields: its blob fields by name, including inherited ones.
    """

    type_id: int
    colocate_with: str | None
    keyspace: str | None
    max_bytes: int
    compression: str | None
    dictionary: str | None
    layout: IdLayout = DEFAULT_LAYOUT
    id_source: IdSource = "server"
    fields: dict[str, BlobField] = field(default_factory=dict)

    def check(self, instance: Any) -> None:
        """Decode the fields of an object without caching the values.

        Fields with dataclasses are left out: creating these would take longer
        than the rest of loading the object.

        :raises BlobValueError: if the stored value of a field has another
            type.
        """
        # Do not read instance.data, which may be deferred.
        data = instance.__dict__.get("data")
        if data is None:
            return
        for key, is_decoded, attribute in self._checked:
            stored = data.get(key, MISSING)
            if type(stored) is is_decoded:
                continue
            if stored is MISSING:
                stored = attribute.stored(data)
            if stored is not MISSING:
                attribute.codec.decode(stored)

    @cached_property
    def keys(self) -> frozenset[str]:
        """The keys of the fields in a blob."""
        return frozenset(attribute.key for attribute in self.fields.values())

    @cached_property
    def _checked(self) -> list[tuple[str, type | None, BlobField]]:
        """The fields to check, and the type whose values are all valid."""
        checked: list[tuple[str, type | None, BlobField]] = []
        for attribute in self.fields.values():
            codec = attribute.codec
            if codec.kind is not ValueKind.JSON or codec.native:
                every = codec.python_type if codec.takes_any else None
                checked.append((attribute.key, every, attribute))
        return checked


def define(
    cls: Any,
    mixin: type[Any],
    *,
    type_id: int | None,
    colocate_with: str | None,
    keyspace: str | None,
    max_bytes: int | None,
    compression: str | None,
    dictionary: str | None,
) -> None:
    """Check a class before it is mapped, and create its fields.

    :raises ClassDefinitionError: if the class is not valid.
    :raises DuplicateTypeError: if the type id belongs to another class.
    :raises InvalidIdError: if the type id is not valid.
    """
    name = cls.__name__
    first = _first_class(cls)
    check_bases(cls, first)
    _check_no_table(cls, mixin)
    given = {
        "type_id": type_id,
        "colocate_with": colocate_with,
        "keyspace": keyspace,
        "max_bytes": max_bytes,
        "compression": compression,
        "dictionary": dictionary,
    }
    if check_abstract(cls, **given):
        if not issubclass(cls, MappedAsDataclass):
            hide(cls)
        return
    declared = declared_fields(cls)
    check_declarative(cls, mixin, f"type_id={'n' if type_id is None else type_id}")
    if first is not None:
        _check_subclass(cls, first, declared, given)
        base = cls.__sqla_shard__
        definition = replace(base, fields=dict(base.fields))
    elif type_id is None:
        raise ClassDefinitionError(
            f"type_id is missing: class {name}({mixin.__name__}, Base, "
            "type_id=n) with n from 1 to 1023, different for each class and "
            "never changed; or __abstract__ = True",
            class_name=name,
        )
    else:
        _check_root(cls, declared)
        layout = layout_of(cls)
        definition = ObjectDefinition(
            type_id=types_of(cls.metadata).check(type_id, name, layout),
            layout=layout,
            id_source=source_of(cls),
            colocate_with=colocate_with,
            keyspace=keyspace,
            max_bytes=_checked_size(cls, max_bytes, compression, dictionary),
            compression=compression,
            dictionary=dictionary,
        )
    for key, settings in declared.items():
        definition.fields[key] = create_field(
            cls, key, settings, colocates=key == definition.colocate_with
        )
    check_keys(cls, definition.fields)
    _check_own(cls, mixin)
    cls.__sqla_shard__ = definition
    if issubclass(cls, MappedAsDataclass):
        _make_dataclass(cls, first, declared)
        return
    for key, settings in declared.items():
        # Add it even if the class itself only has another annotation.
        setattr(cls, key, settings.dataclass_field())
    hide(cls)
    for key in declared:
        # finish() sets the instrumented attribute.
        delattr(cls, key)


def _column_of_id(definition: ObjectDefinition) -> str:
    """Return the name of the column with the ids."""
    return "id" if definition.layout.is_whole else "local_id"


def _counts(definition: ObjectDefinition) -> bool:
    """Return whether the server gives ids to rows."""
    return definition.id_source == "server" and not definition.layout.is_whole


def id_column(definition: ObjectDefinition, **options: Any) -> Any:
    """Return the column with the ids of an object class.

    :param options: options of the dataclass field.
    """
    return mapped_column(
        _column_of_id(definition),
        ShardedId(definition.type_id, definition.layout),
        primary_key=True,
        autoincrement=_counts(definition),
        sort_order=-30,
        **options,
    )


def _make_dataclass(
    cls: Any, first: Any, declared: Mapping[str, FieldSettings]
) -> None:
    """Prepare the annotations from which SQLAlchemy makes a dataclass.

    All of them are put into the class itself, because SQLAlchemy ignores
    bases that are not dataclasses.  ``data`` and ``ts`` are not fields of the
    dataclass: the former has fields of its own, and ``__eq__`` or
    ``__repr__`` would read the latter from the server after each flush.
    """
    mapped: Any = Mapped
    annotations = {
        key: mapped[type_of(cls, key, settings)] for key, settings in declared.items()
    }
    own = {} if first is not None else {"id": Mapped[int]}
    first_of_dataclass(cls, {**own, **annotations})
    cls.__annotations__.update(annotations)
    values = {k: v for k, v in vars(cls).items() if k in cls.__annotations__}
    for key in values:
        delattr(cls, key)
    if first is None:
        # SQLAlchemy uses the order of annotations and attributes.
        definition = cls.__sqla_shard__
        is_given = definition.id_source == "application"
        cls.id = id_column(definition, init=is_given)
    values.update({k: s.dataclass_field() for k, s in declared.items()})
    for key in cls.__annotations__:
        if key in values:
            setattr(cls, key, values[key])


@whole_or_not_at_all
def finish(mapper: Mapper[Any], cls: Any) -> None:
    """Handle ``after_mapper_constructed``: declare the table to routing.

    :raises ClassDefinitionError: if the class is not valid.
    """
    definition: ObjectDefinition = cls.__dict__["__sqla_shard__"]
    table: Any = mapper.local_table
    if mapper.inherits is not None:
        _add_fields(mapper, definition.fields)
        return
    check_table(cls, table, [_column_of_id(definition)])
    _name_dictionary(table)
    adopt_layout(cls, table)
    colocation = _colocation_of(mapper, definition.colocate_with, definition.fields)
    # Check the constraints after the column that colocates is marked as
    # routing.
    check_unique(table)
    types_of(cls.metadata).register(definition.type_id, cls, definition.layout)
    _add_fields(mapper, definition.fields)
    keep_updated(table, "ts")
    # Otherwise SQLite gives the id of a deleted row to the next one, and an
    # old id would lead to another object.
    if _counts(definition):
        table.dialect_options["sqlite"]["autoincrement"] = True
    declare(
        table,
        TableSpec(
            kind="objects",
            keyspace=definition.keyspace,
            id_index=0,
            type_id=definition.type_id,
            layout=definition.layout,
            colocation=colocation,
            encode_row=_encoded_row,
            before_rows=choose_for_rows,
            loaded_as=loaded_as,
            discard=discard,
            is_shown=_is_shown,
            check=definition.check,
        ),
    )


def _name_dictionary(table: Any) -> None:
    """Give the blobs of a table the name of their dictionary."""
    kind: JSONBlob = table.c.data.type
    if kind.compression is not None and kind.dictionary is None:
        kind.dictionary = table.name


def _is_shown(instance: Any) -> bool:
    # Called for each object that is read: avoid the attributes of the class.
    data = instance.__dict__.get("data")
    if data is None:
        return bool(instance.active)
    return data.get("active") is not False


def _add_fields(mapper: Mapper[Any], fields: Mapping[str, BlobField]) -> None:
    cls = mapper.class_
    for key, attribute in fields.items():
        if mapper.inherits is not None and mapper.inherits.has_property(key):
            continue
        if key in cls.__dict__:
            # The default of the field, set by dataclass().
            delattr(cls, key)
        mapper.add_property(key, FieldProperty(attribute))


# -- bases


def _check_no_table(cls: type[Any], mixin: type[Any]) -> None:
    name = cls.__name__
    if "__mapper__" in cls.__dict__ or "__table__" in cls.__dict__:
        raise ClassDefinitionError(
            "it already has a table before its fields are created; "
            f"{mixin.__name__} creates the table, and must precede the "
            f"declarative base: class {name}({mixin.__name__}, Base, "
            "type_id=...) with a __tablename__",
            class_name=name,
        )


def _checked_size(
    cls: type[Any],
    max_bytes: int | None,
    compression: str | None,
    dictionary: str | None,
) -> int:
    size = {} if max_bytes is None else {"max_bytes": max_bytes}
    try:
        kind = JSONBlob(**size, compression=compression, dictionary=dictionary)
    except ValueError as error:
        raise ClassDefinitionError(str(error), class_name=cls.__name__) from error
    return kind.max_bytes


def _check_own(cls: type[Any], mixin: type[Any]) -> None:
    for base in cls.__mro__:
        if base in mixin.__mro__ or "__mapper__" in base.__dict__:
            continue
        names = {*base.__dict__, *get_annotations(base)}
        for name in sorted(_OWN & names):
            raise ClassDefinitionError(
                f"{base.__name__}.{name} would override an attribute of every "
                "object class; rename it",
                class_name=cls.__name__,
            )


# -- rows of INSERT


def _encoded_row(mapper: Mapper[Any], row: dict[str, Any]) -> dict[str, Any]:
    fields = mapper.class_.__sqla_shard__.fields
    row = dict(row)
    active = row.pop("active", True)
    check_names(mapper, fields, row)
    given = row.pop("data", None)
    # Copy the blob: it may belong to an object, or be given for many rows.
    data = Blob.coerce("data", {} if given is None else plain(given))
    for key in [key for key in row if key in fields]:
        fields[key].write(data, row.pop(key))
    for attribute in fields.values():
        attribute.fill(data)
    write_active(data, active)
    row["data"] = data
    return row


def check_names(mapper: Mapper[Any], fields: Iterable[str], row: Iterable[Any]) -> None:
    """Reject unknown names in a row of a bulk statement.

    SQLAlchemy ignores them, so that the value of a mistyped name is lost.

    :param row: names, or the attributes themselves.
    :raises UnsupportedStatementError: for an unknown name.
    """
    for name in row:
        if (
            isinstance(name, str)
            and name not in mapper.attrs
            and name not in mapper.local_table.c
            and name not in fields
        ):
            raise UnsupportedStatementError(
                f"{name!r} is not an attribute of {mapper.class_.__name__}; "
                "correct the name, or leave it out",
                construct=name,
            )
