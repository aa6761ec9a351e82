"""Object tables: a local id, a JSON blob, and the time of the last change.

::

    class User(ObjectMixin, Base, type_id=3):
        __tablename__ = "users"
        name: Mapped[str] = blob_field()

    class Board(ObjectMixin, Base, type_id=2, colocate_with="user_id"):
        __tablename__ = "boards"
        user_id: Mapped[int] = blob_field(ref=User)
        title: Mapped[str] = blob_field()

The table has three columns, ``local_id``, ``data`` and ``ts``, and may have
ordinary columns as well.  ``Board.id`` is the whole 64-bit id, which is set
by the flush.  ``colocate_with`` names the field with the parent's id: a board
is always on its user's shard, so one transaction can write both.

A flush writes only the fields that were changed.  ``session.merge()`` copies,
from a detached object, the fields changed since it was loaded; from a new
object with an id, the fields that were set.  See
:mod:`sqla_shard.models.blob_writes`.

``deactivate()`` hides an object from reads and leaves its row in place.
Reads with ``execution_options(include_inactive=True)``, and other programs
that read the table, still see it.

Use an ordinary model in a global keyspace for small tables and for unique
constraints: no constraint of an object table is unique across shards.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, TYPE_CHECKING

from sqlalchemy import event, FetchedValue, inspect
from sqlalchemy.orm import (
    declared_attr,
    FromStatement,
    Mapped,
    mapped_column,
    ORMExecuteState,
)

from sqla_shard.dialects.sql import UpdatedAt
from sqla_shard.exc import ClassDefinitionError, PlacementError
from sqla_shard.models.blob_fields import blob_of, no_update
from sqla_shard.models.blob_writes import (
    choose_dictionary,
    forget_written,
    remember_written,
    show_change,
    watch_assignments,
    write_blob,
)
from sqla_shard.models.object_definition import (
    Activity,
    check_names,
    define,
    finish,
    id_column,
    ObjectDefinition,
)
from sqla_shard.session import ShardSession
from sqla_shard.session.flush import REQUESTED
from sqla_shard.types import JSONBlob, UTCTimestamp
from sqla_shard.util import sqlalchemy_private as private


class ObjectMixin(Activity):
    """Makes a declarative class an object class; precedes the base.

    Class keywords:

    :param type_id: 1 to 1023, different for each class, never changed.
    :param colocate_with: name of the field with the parent's id.
    :param keyspace: name of the keyspace; required if there are several
        of kind ``objects``.
    :param max_bytes: maximum size of the blob, see
        :class:`~sqla_shard.JSONBlob`.
    :param compression: ``"zstd"`` to read and write compressed blobs
        (:doc:`/howto/compress`).
    :param dictionary: name of the dictionary; by default that of the table.
        Tables with similar blobs can share one.
    :raises ClassDefinitionError: if the class is not valid.
    :raises DuplicateTypeError: if another class has the type id.
    """

    if TYPE_CHECKING:
        id: Mapped[int]
        """The 64-bit id; None until the flush."""
        data: Mapped[dict[str, Any]]
        """The blob: its fields by name."""
        ts: Mapped[datetime]
        """Time of the last change of the row, in UTC.

        The server sets it; assigned values are not written.
        """
        __sqla_shard__: ObjectDefinition
    else:
        # SQLAlchemy would treat annotations as fields of a dataclass.

        @declared_attr
        def id(cls):  # noqa: N805, D102  # declared above
            return id_column(_definition(cls))

        @declared_attr
        def data(cls):  # noqa: N805, D102  # declared above
            # active_history loads the old value before an assignment: the
            # flush compares with it.
            definition = _definition(cls)
            return mapped_column(
                JSONBlob(
                    definition.max_bytes,
                    compression=definition.compression,
                    dictionary=definition.dictionary,
                ),
                nullable=False,
                active_history=True,
                sort_order=-20,
            )

        @declared_attr
        def ts(cls):  # noqa: N805, D102  # declared above
            return mapped_column(
                UTCTimestamp(),
                nullable=False,
                server_default=UpdatedAt(),
                server_onupdate=FetchedValue(),
                sort_order=-10,
            )

    def __init_subclass__(
        cls,
        *,
        type_id: int | None = None,
        colocate_with: str | None = None,
        keyspace: str | None = None,
        max_bytes: int | None = None,
        compression: str | None = None,
        dictionary: str | None = None,
        **kwargs: Any,
    ) -> None:
        define(
            cls,
            ObjectMixin,
            type_id=type_id,
            colocate_with=colocate_with,
            keyspace=keyspace,
            max_bytes=max_bytes,
            compression=compression,
            dictionary=dictionary,
        )
        super().__init_subclass__(**kwargs)

    @property
    def shard_id(self) -> int | None:
        """The object's virtual shard; None if it is not chosen yet.

        It can be set until the object is flushed, to choose the shard of an
        object without a parent: ``User(name="maker", shard_id=7)``.
        """
        object_id: int | None = self.id
        if object_id is not None:
            return self.__sqla_shard__.layout.shard_of(object_id)
        requested: int | None = self.__dict__.get(REQUESTED)
        return requested

    @shard_id.setter
    def shard_id(self, shard_id: int | None) -> None:
        object_id: int | None = self.id
        if object_id is not None and self.shard_id != shard_id:
            raise PlacementError(
                f"object {object_id} is on shard {self.shard_id} and cannot "
                f"be moved to shard {shard_id}; add a copy of it with "
                "shard_id="
            )
        self.__dict__[REQUESTED] = shard_id

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.__dict__.get('id')}>"


def _definition(cls: Any) -> ObjectDefinition:
    definition: ObjectDefinition | None = cls.__dict__.get("__sqla_shard__")
    if definition is None:
        raise ClassDefinitionError(
            "ObjectMixin must precede the declarative base: class "
            f"{cls.__name__}(ObjectMixin, Base, type_id=...)",
            class_name=cls.__name__,
        )
    return definition


def _fill_new(session: ShardSession, context: Any, objects: Any) -> None:
    """Handle ``before_flush``: set the defaults of new objects.

    This happens before the flush, so that a missing value does not interrupt
    it.
    """
    forget_written(session)
    for instance in session.new:
        if isinstance(instance, ObjectMixin):
            _fill(instance)


def _fill(instance: ObjectMixin) -> None:
    # Faster than the attribute; a new object with a blob has it there.
    data = instance.__dict__.get("data")
    if data is None:
        data = blob_of(instance)
    definition = instance.__sqla_shard__
    if not definition.keys <= data.keys():
        for field in definition.fields.values():
            field.fill(data)


def _before_insert(mapper: Any, connection: Any, state: Any) -> None:
    target = state.obj()
    # Another before_flush listener may have added the object.
    _fill(target)
    # make_transient() does not remove the time of the former row.
    state.dict.pop("ts", None)
    if target.__sqla_shard__.compression is not None:
        choose_dictionary(mapper, connection, target)


def _after_insert(mapper: Any, connection: Any, state: Any) -> None:
    data = state.dict["data"]
    remember_written(state, data)
    data.source, data.stored = data.sent, data.sent_stored
    data.from_fields = False


def _before_update(mapper: Any, connection: Any, target: ObjectMixin) -> None:
    state: Any = inspect(target)
    if "ts" in state.committed_state:
        # session.merge() sets the attribute.
        state.session.expire(target, ["ts"])


def _check_update(context: ORMExecuteState) -> None:
    """Handle ``do_orm_execute``: reject an UPDATE of fields.

    In a bulk UPDATE, SQLAlchemy ignores keys that are not columns.

    :raises UnsupportedStatementError: if the statement sets a blob field or an
        unknown attribute.
    """
    mapper = context.bind_mapper
    if (
        not context.is_update
        # The session rejects these statements.
        or isinstance(context.statement, FromStatement)
        or mapper is None
        or not issubclass(mapper.class_, ObjectMixin)
    ):
        return
    in_blob = {"active", *mapper.class_.__sqla_shard__.fields}
    statement: Any = context.statement
    rows: Any = context.parameters
    given = [private.values(statement) or {}]
    if isinstance(rows, list):
        given += rows
    for row in given:
        for name in row:
            if isinstance(name, str) and name in in_blob:
                raise no_update(mapper.class_.__name__, name)
        check_names(mapper, (), row)


event.listen(ObjectMixin, "after_mapper_constructed", finish, propagate=True)
event.listen(ObjectMixin, "after_mapper_constructed", watch_assignments, propagate=True)
# With these arguments SQLAlchemy does not wrap the listeners, which it calls
# for each new object.
_UNWRAPPED = {"raw": True, "retval": True, "propagate": True}
event.listen(ObjectMixin, "before_insert", _before_insert, **_UNWRAPPED)
event.listen(ObjectMixin, "after_insert", _after_insert, **_UNWRAPPED)
event.listen(ObjectMixin, "before_update", _before_update, propagate=True)
event.listen(ObjectMixin, "before_update", write_blob, propagate=True)
event.listen(ObjectMixin, "after_update", show_change, propagate=True)
event.listen(ShardSession, "before_flush", _fill_new)
event.listen(ShardSession, "after_flush_postexec", forget_written)
# Run this listener before the session's, which executes the statement.
event.listen(ShardSession, "do_orm_execute", _check_update, insert=True)
