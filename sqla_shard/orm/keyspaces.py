"""Plain models: the keyspace of a class that is not an object class.

A plain SQLAlchemy model lives in the global keyspace, if there is exactly
one; nothing has to be changed in it.  Where there are several, or for a
keyspace of kind ``mod``, the class names its own::

    class Base(KeyspaceMixin, DeclarativeBase): ...

    class Country(Base, keyspace="reference"): ...
"""

from __future__ import annotations

from typing import Any

from sqla_shard.exc import ClassDefinitionError
from sqla_shard.routing import declare
from sqla_shard.routing import TableSpec

__all__ = ["KeyspaceMixin"]


class KeyspaceMixin:
    """Gives plain models the class keyword ``keyspace=``.

    It stands before the declarative base, or before ``DeclarativeBase`` in
    the definition of that base.

    :param keyspace: name of a keyspace of kind ``global``, or of ``kind``.
    :param kind: kind of that keyspace.
    :raises ClassDefinitionError: when the class is not mapped.
    """

    def __init_subclass__(
        cls,
        *,
        keyspace: str | None = None,
        kind: str = "global",
        **kwargs: Any,
    ) -> None:
        super().__init_subclass__(**kwargs)
        if keyspace is None:
            return
        table = cls.__dict__.get("__table__")
        if table is None:
            raise ClassDefinitionError(
                f"keyspace={keyspace!r} belongs to mapped classes with a "
                "table of their own, which this is not; KeyspaceMixin "
                "stands before the declarative base",
                class_name=cls.__name__,
            )
        declare(table, TableSpec(kind=kind, keyspace=keyspace))
