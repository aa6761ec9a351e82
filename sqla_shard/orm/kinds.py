"""What a field of a blob can hold, and what translates it.

The codecs themselves are in :mod:`sqla_shard.orm.scalars` and
:mod:`sqla_shard.orm.records`; :func:`sqla_shard.orm.codecs.codec_for` chooses
one for an annotation.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

from sqla_shard.exc import BlobValueError
from sqla_shard.types.nodes import Node
from sqla_shard.types.places import Path
from sqla_shard.types.places import refused
from sqla_shard.types.places import shown

__all__ = ["KIND_OF_SCALAR", "Codec", "Kind"]


class Kind(enum.Enum):
    """What a field holds; the SQL type of its expression follows from it."""

    TEXT = "text"
    INTEGER = "integer"
    FLOAT = "float"
    BOOLEAN = "boolean"
    DECIMAL = "decimal"
    DATETIME = "datetime"
    DATE = "date"
    UUID = "uuid"
    ENUM = "enum"
    JSON = "json"


KIND_OF_SCALAR = {
    str: Kind.TEXT,
    int: Kind.INTEGER,
    float: Kind.FLOAT,
    bool: Kind.BOOLEAN,
}
"""The kind of a field by the type of its JSON value."""


class Codec:
    """Translates the values of one field to JSON and back.

    :param field: the field as ``Class.field``, for messages.
    :param nullable: whether None is a value.
    :ivar kind: what it holds.
    :ivar stored_kind: what its JSON is; differs from ``kind`` for an enum.
    :ivar python_type: the class of its values; ``object`` if several.
    :ivar native: whether the JSON value is the Python value.
    """

    kind: Kind
    python_type: type
    native = False
    _expects = "a value"

    def __init__(self, field: str, *, nullable: bool = False) -> None:
        self.field = field
        self.nullable = nullable

    def __repr__(self) -> str:
        null = " | None" if self.nullable else ""
        name = self.python_type.__name__
        return f"<{type(self).__name__} {self.field}: {name}{null}>"

    @property
    def stored_kind(self) -> Kind:
        """Return what the JSON value is."""
        return self.kind

    def encode(self, value: Any, path: Path | None = None) -> Any:
        """Return the JSON value to store.

        :param path: the place inside the field, for messages.
        :raises BlobValueError: if the field cannot hold the value.
        """
        raise NotImplementedError

    def decode(
        self,
        stored: Any,
        *,
        on_change: Callable[[], object] | None = None,
        path: Path | None = None,
    ) -> Any:
        """Return the Python value of a stored JSON value.

        :param on_change: called without arguments after each change made
            in place, at any depth, of a container that is returned.
        :param path: the place inside the field, for messages.
        :raises BlobValueError: if the stored value is of another type.
        """
        raise NotImplementedError

    def accept(self, value: Any, path: Path) -> Any:
        """Return the value as it would be read back.

        :raises BlobValueError: if the field cannot hold the value.
        """
        return self.decode(self.encode(value, path), path=path)

    def check_stored(self, stored: Any, path: Path) -> None:
        """Check a JSON value that stays where it is.

        :raises BlobValueError: as ``decode`` would.
        """
        self.decode(stored, path=path)

    def made(self, node: Node) -> bool:
        """Tell whether a container is one of this codec's."""
        return False

    def _none(self, value: Any, path: Path | None) -> Any:
        """Return None where it is allowed, refuse all other values."""
        if value is not None or not self.nullable:
            raise self._unfit(value, path)

    def _stored_none(self, stored: Any, path: Path | None) -> Any:
        if stored is not None or not self.nullable:
            raise self._misfit(stored, path)

    def _unfit(self, value: Any, path: Path | None) -> BlobValueError:
        if value is None:
            message = (
                f"None is not {self._expects}. Annotate it as "
                f"{self.python_type.__name__} | None if it may be absent"
            )
        else:
            name = type(value).__name__
            message = f"{shown(value)} ({name}) is not {self._expects}"
        return refused(message, path or self.field, value)

    def _misfit(self, stored: Any, path: Path | None) -> BlobValueError:
        return refused(
            f"the stored JSON value {shown(stored)} does not fit: it is not "
            f"that of {self._expects}. It was written with another "
            "definition of the field, or by another program",
            path or self.field,
            stored,
        )
