"""Object tables: a local id, a JSON blob, and the time of the last change.

::

    class User(ObjectMixin, Base, type_id=3):
        __tablename__ = "users"
        name: Mapped[str] = blob_field()

    class Board(ObjectMixin, Base, type_id=2, colocate_with="user_id"):
        __tablename__ = "boards"
        user_id: Mapped[int] = blob_field(ref=User)
        title: Mapped[str] = blob_field()

The table has three columns, ``local_id``, ``data`` and ``ts``; ordinary
columns may stand beside them.  ``Board.id`` is the whole 64-bit id, known
after the flush.  ``colocate_with`` names the field with the parent's id: a
board lives on its user's shard, for ever, so one transaction can write both.

A flush writes the fields that were changed and no others, see
:mod:`sqla_shard.orm.saving`; and so does ``session.merge()``: of a detached
object it takes what was changed since it was loaded, of a new one with an id
the fields that it was given, see :mod:`sqla_shard.orm.merging`.

``deactivate()`` hides an object from reads and leaves its row in place;
reads that ask for it with ``execution_options(include_inactive=True)``, and
whoever reads the table by other means, still see it.

Prefer an ordinary model in a global keyspace for what is small or needs
unique constraints: nothing here is unique across shards.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any
from typing import TYPE_CHECKING

from sqlalchemy import event
from sqlalchemy import FetchedValue
from sqlalchemy import inspect
from sqlalchemy.orm import declared_attr
from sqlalchemy.orm import FromStatement
from sqlalchemy.orm import Mapped
from sqlalchemy.orm import mapped_column
from sqlalchemy.orm import ORMExecuteState

from sqla_shard.dialects.sql import UpdatedAt
from sqla_shard.exc import ClassDefinitionError
from sqla_shard.exc import PlacementError
from sqla_shard.ids import unpack
from sqla_shard.orm.definition import check_names
from sqla_shard.orm.definition import define
from sqla_shard.orm.definition import Definition
from sqla_shard.orm.definition import finish
from sqla_shard.orm.definition import id_column
from sqla_shard.orm.fields import blob_of
from sqla_shard.orm.fields import no_update
from sqla_shard.orm.hiding import Activity
from sqla_shard.orm.merging import watch_assignments
from sqla_shard.orm.saving import forget_written
from sqla_shard.orm.saving import remember_written
from sqla_shard.orm.saving import show_change
from sqla_shard.orm.saving import write_blob
from sqla_shard.session import ShardSession
from sqla_shard.session.unit_of_work import REQUESTED
from sqla_shard.types import JSONBlob
from sqla_shard.types import UTCTimestamp

__all__ = ["ObjectMixin"]


class ObjectMixin(Activity):
    """Makes a declarative class an object class; it stands before the base.

    Class keywords:

    :param type_id: 1 to 1023, different for each class, never changed.
    :param colocate_with: name of the field that holds the parent's id.
    :param keyspace: name of the keyspace; needed where there are several
        of kind ``objects``.
    :param max_bytes: size of the blob, see :class:`~sqla_shard.JSONBlob`.
    :raises ClassDefinitionError: when the class could not work.
    :raises DuplicateTypeError: when the type id is taken.
    """

    if TYPE_CHECKING:
        id: Mapped[int]
        """The whole id; None until the flush."""
        data: Mapped[dict[str, Any]]
        """The blob itself, with the fields by name."""
        ts: Mapped[datetime]
        """When the row was last changed, in UTC.

        The server keeps it; what is assigned to it is not written.
        """
        __sqla_shard__: Definition
    else:
        # Without annotations, which SQLAlchemy would take for fields of a
        # dataclass.

        @declared_attr
        def id(cls):  # noqa: N805, D102  # declared above
            return id_column(_definition(cls).type_id)

        @declared_attr
        def data(cls):  # noqa: N805, D102  # declared above
            # With active_history the old value of an assignment is read
            # first: the flush must know what it is about to overwrite.
            return mapped_column(
                JSONBlob(_definition(cls).max_bytes),
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
        **kwargs: Any,
    ) -> None:
        define(
            cls,
            ObjectMixin,
            type_id=type_id,
            colocate_with=colocate_with,
            keyspace=keyspace,
            max_bytes=max_bytes,
        )
        super().__init_subclass__(**kwargs)

    @property
    def shard_id(self) -> int | None:
        """The object's virtual shard.

        It can be set until the object is flushed, to choose the shard of a
        root: ``User(name="maker", shard_id=7)``.  None for a new object of
        which nothing is known yet.
        """
        object_id: int | None = self.id
        if object_id is not None:
            return unpack(object_id).shard_id
        requested: int | None = self.__dict__.get(REQUESTED)
        return requested

    @shard_id.setter
    def shard_id(self, shard_id: int | None) -> None:
        object_id: int | None = self.id
        if object_id is not None and self.shard_id != shard_id:
            raise PlacementError(
                f"object {object_id} is on shard {self.shard_id} and stays "
                f"there; to have it on shard {shard_id}, add a copy of it "
                "with shard_id="
            )
        self.__dict__[REQUESTED] = shard_id

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.__dict__.get('id')}>"


def _definition(cls: Any) -> Definition:
    found: Definition | None = cls.__dict__.get("__sqla_shard__")
    if found is None:
        raise ClassDefinitionError(
            "ObjectMixin must stand before the declarative base: class "
            f"{cls.__name__}(ObjectMixin, Base, type_id=...)",
            class_name=cls.__name__,
        )
    return found


def _fill_new(session: ShardSession, context: Any, objects: Any) -> None:
    """Handle ``before_flush``: give new objects their defaults.

    Before the flush rather than in it, so that a missing value leaves
    nothing half written.
    """
    forget_written(session)
    for instance in session.new:
        if isinstance(instance, ObjectMixin):
            _fill(instance)


def _fill(instance: ObjectMixin) -> None:
    data = blob_of(instance)
    fields = instance.__sqla_shard__.fields
    if not fields.keys() <= data.keys():
        for made in fields.values():
            made.fill(data)


def _before_insert(mapper: Any, connection: Any, target: ObjectMixin) -> None:
    # Objects that another listener of the same flush has added.
    _fill(target)
    # What make_transient() left there is the time of another row.
    target.__dict__.pop("ts", None)


def _after_insert(mapper: Any, connection: Any, target: ObjectMixin) -> None:
    data = target.__dict__["data"]
    remember_written(inspect(target))
    data.source = data.sent
    data.from_fields = False


def _before_update(mapper: Any, connection: Any, target: ObjectMixin) -> None:
    state: Any = inspect(target)
    if "ts" in state.committed_state:
        # session.merge() sets it, too.
        state.session.expire(target, ["ts"])


def _check_update(context: ORMExecuteState) -> None:
    """Handle ``do_orm_execute``: refuse what SQLAlchemy would not write.

    Of a row of a bulk UPDATE it takes the columns and drops other keys.

    :raises UnsupportedStatementError: for one that sets a field, or what is
        no attribute at all.
    """
    mapper = context.bind_mapper
    if (
        not context.is_update
        # Refused, as a whole, by the session.
        or isinstance(context.statement, FromStatement)
        or mapper is None
        or not issubclass(mapper.class_, ObjectMixin)
    ):
        return
    in_blob = {"active", *mapper.class_.__sqla_shard__.fields}
    statement: Any = context.statement
    rows: Any = context.parameters
    given = [statement._values or {}]
    if isinstance(rows, list):
        given += rows
    for row in given:
        for name in row:
            if isinstance(name, str) and name in in_blob:
                raise no_update(mapper.class_.__name__, name)
        check_names(mapper, (), row)


event.listen(ObjectMixin, "after_mapper_constructed", finish, propagate=True)
event.listen(
    ObjectMixin, "after_mapper_constructed", watch_assignments, propagate=True
)
event.listen(ObjectMixin, "before_insert", _before_insert, propagate=True)
event.listen(ObjectMixin, "after_insert", _after_insert, propagate=True)
event.listen(ObjectMixin, "before_update", _before_update, propagate=True)
event.listen(ObjectMixin, "before_update", write_blob, propagate=True)
event.listen(ObjectMixin, "after_update", show_change, propagate=True)
event.listen(ShardSession, "before_flush", _fill_new)
event.listen(ShardSession, "after_flush_postexec", forget_written)
# Before the session sends it.
event.listen(ShardSession, "do_orm_execute", _check_update, insert=True)
