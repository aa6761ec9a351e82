"""JSON documents in a text column.

:class:`JSONBlob` stores a JSON object as text that both people and the
server's JSON functions can read, and gives it to Python as a :class:`Blob`, a
``dict`` that notices changes made in place at any depth::

    class Pin(Base):
        data: Mapped[dict[str, Any]] = mapped_column(JSONBlob())

    pin.data["tags"].append("boats")      # the next flush writes it

A container that was read before the object was refreshed is no longer part
of it, and neither is that of an object which nobody refers to any more;
changing such a one is an error rather than a change that is never written.

The column is text rather than the server's JSON type, because the flush
compares the text that it has read with the text that is there: MySQL's type
rewrites a document, so that what was sent never equals what is stored.

Numbers: integers of any size and floats survive the round trip exactly; NaN
and infinity, which JSON does not have, are refused.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from sqlalchemy import event
from sqlalchemy import Text
from sqlalchemy.dialects import mysql
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.mutable import Mutable
from sqlalchemy.orm.attributes import flag_modified
from sqlalchemy.types import TypeDecorator
from sqlalchemy.types import TypeEngine

from sqla_shard.exc import BlobError
from sqla_shard.exc import BlobTooLargeError
from sqla_shard.exc import BlobValueError
from sqla_shard.types.places import shown
from sqla_shard.types.tracking import plain
from sqla_shard.types.tracking import TrackedDict

__all__ = ["Blob", "JSONBlob", "decode_blob", "decode_json", "encode_blob"]

_TEXT_BYTES = 65_535
_MEDIUM_BYTES = 16_777_215
_LONG_BYTES = 4_294_967_295


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text:.40} is larger than a double can be")
    return value


#: Containers inside each other; MySQL's JSON functions read no more.
_MOST_LEVELS = 100
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")

_encode = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":")
).encode
_decode = json.JSONDecoder(
    parse_constant=_no_constant, parse_float=_finite
).decode


class Blob(TrackedDict, Mutable):
    """The value of a :class:`JSONBlob` column.

    :ivar source: the text in the database that this was made from, or was
        last written as; None where it was never there.  A flush compares
        it with what is there then.
    :ivar sent: the text of the last statement that this was bound to, which
        may be no INSERT, and may have failed.
    :ivar from_fields: whether it belongs to a new object and was made by
        setting fields, so that it says nothing of other keys.
    :ivar holder: the object itself, once a container of it was given out: a
        session forgets objects that nobody refers to.
    :ivar released: whether another blob was assigned in its place.
    """

    source: str | None = None
    sent: str | None = None
    from_fields: bool = False
    holder: object = None
    released: bool = False

    @property
    def decoded(self) -> dict[str, Any]:
        """What fields have given out, by name; see :mod:`sqla_shard.orm`."""
        found: dict[str, Any] | None = self.__dict__.get("_decoded")
        if found is None:
            found = self.__dict__["_decoded"] = {}
        return found

    def _changed(self) -> None:
        parents = self.__dict__.get("_parents")
        if parents is None or self.released:
            return  # of no object, or not any more
        # As Mutable.changed() does, which takes twice as long.
        states = [state for ref in parents.keyrefs() if (state := ref())]
        for state in states:
            key = parents[state]
            if state.dict.get(key) is not self:
                raise BlobError(
                    "the change would never be written: this container is "
                    f"of an earlier state of {state.class_.__name__}.{key}, "
                    "which was read again since. Take the container from "
                    "the object again, and change that"
                )
            flag_modified(state.obj(), key)
        if not states:
            raise BlobError(
                "the change would never be written: nobody refers to the "
                "object that this container is of, so its session has "
                "forgotten it. Keep the object, or copy the container"
            )

    @classmethod
    def coerce(cls, key: str, value: Any) -> Any:
        """Make a blob of a plain dictionary that is assigned.

        :raises BlobValueError: for anything else, or what JSON cannot hold.
        """
        if value is None or isinstance(value, cls):
            return value
        if isinstance(value, dict):
            return cls(value)
        raise BlobValueError(
            f"a blob is a dict, not {shown(value)} of type "
            f"{type(value).__name__}",
            field=key,
            value=value,
        )

    @classmethod
    def associate_with_attribute(cls, attribute: Any) -> None:
        """Track an attribute; see :class:`sqlalchemy.ext.mutable.Mutable`."""
        event.listen(
            attribute,
            "set",
            _before_set,
            raw=True,
            retval=True,
            propagate=True,
        )
        super().associate_with_attribute(attribute)

    def __reduce__(self) -> Any:
        return _restored, (plain(self), self.source, self.from_fields)


def _restored(
    values: dict[str, Any], source: str | None, from_fields: bool
) -> Blob:
    blob = Blob._trusted(values)
    blob.source = source
    blob.from_fields = from_fields
    return blob


def _before_set(state: Any, value: Any, old: Any, initiator: Any) -> Any:
    """Handle an assignment to a blob attribute."""
    if isinstance(value, Blob):
        if value is old:
            return value
        # The blob of another object: sharing it would tie the two.
        value = plain(value)
    value = Blob.coerce(initiator.key, value)
    if isinstance(old, Blob):
        old.released = True
    if value is not None:
        # What is overwritten is still what the database holds.
        value.source = old.source if isinstance(old, Blob) else None
    return value


class JSONBlob(TypeDecorator[dict[str, Any]]):
    """A JSON object in a text column.

    :param max_bytes: of the encoded text; a larger blob is refused before
        it is sent, since MySQL outside strict mode would cut it off.  It
        chooses the type on MySQL: TEXT up to 65,535, MEDIUMTEXT up to
        16,777,215 (the default), LONGTEXT above.
    :raises ValueError: when it is not an int from 2 to 4,294,967,295.
    """

    impl = Text
    cache_ok = True

    def __init__(self, max_bytes: int = _MEDIUM_BYTES) -> None:
        super().__init__()
        if type(max_bytes) is not int or not 2 <= max_bytes <= _LONG_BYTES:
            raise ValueError(
                f"max_bytes must be an int from 2 to {_LONG_BYTES}, not "
                f"{max_bytes!r}"
            )
        self.max_bytes = max_bytes

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Return the text type of the server."""
        if dialect.name not in ("mysql", "mariadb"):
            return dialect.type_descriptor(Text())
        kind: Any = mysql.LONGTEXT
        if self.max_bytes <= _TEXT_BYTES:
            kind = mysql.TEXT
        elif self.max_bytes <= _MEDIUM_BYTES:
            kind = mysql.MEDIUMTEXT
        # The other one takes "a" and "a " for equal, of fields too; MySQL
        # has it under another name, which the expressions of fields use.
        exact = getattr(dialect, "is_mariadb", False)
        collation = "utf8mb4_nopad_bin" if exact else "utf8mb4_bin"
        return dialect.type_descriptor(
            kind(charset="utf8mb4", collation=collation)
        )

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        """Encode a blob.

        :raises BlobValueError: when it holds what JSON cannot.
        :raises BlobTooLargeError: when it does not fit.
        """
        if value is None:
            return None
        blob = value if isinstance(value, dict) else Blob.coerce("", value)
        text = encode_blob(blob, self.max_bytes)
        if isinstance(value, Blob):
            value.sent = text
        return text

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        """Decode a blob."""
        return None if value is None else decode_blob(value)


def encode_blob(blob: dict[str, Any], max_bytes: int) -> str:
    """Return a blob as text.

    :raises BlobValueError: when it holds what JSON cannot.
    :raises BlobTooLargeError: when it has more than ``max_bytes``.
    """
    if not isinstance(blob, TrackedDict):
        blob = TrackedDict(blob)  # checks what json would let pass
    text: str = _encode(blob)
    # No character has more than four bytes; most blobs are far too small
    # to have to be encoded just to be counted.
    if len(text) * 4 > max_bytes:
        size = len(text.encode())
        if size > max_bytes:
            raise BlobTooLargeError(size=size, limit=max_bytes)
    return text


def decode_blob(text: str) -> Blob:
    """Return the blob of a text in the database.

    :raises BlobValueError: when it is not a JSON object.
    """
    values = decode_json(text)
    if type(values) is not dict:
        raise BlobValueError(
            "the stored JSON is not an object", field="data", value=text
        )
    blob = Blob._trusted(values)
    blob.source = text
    return blob


def decode_json(text: str) -> Any:
    """Return the value of a text in the database.

    :raises BlobValueError: when it is not JSON, or holds what could not be
        written: numbers that Python does not read, lone surrogates, or more
        than 100 containers inside each other.
    """
    try:
        value = _decode(text)
        _check_levels(text, value)
        # The text itself has none; those that are written as escapes may be
        # halves of a pair.
        if _SURROGATE.search(text):
            _encode(value).encode()
    except (ValueError, RecursionError) as error:
        raise BlobValueError(
            f"the stored text is not JSON: {error}", field="data", value=text
        ) from error
    return value


def _check_levels(text: str, value: Any) -> None:
    # Less than that are no more levels, wherever they are.
    if text.count("[") + text.count("{") <= _MOST_LEVELS:
        return
    level = [value]
    for _ in range(_MOST_LEVELS):
        level = [
            item
            for holder in level
            for item in (
                holder.values() if isinstance(holder, dict) else holder
            )
            if isinstance(item, (dict, list))
        ]
        if not level:
            return
    raise ValueError(f"more than {_MOST_LEVELS} containers inside each other")


Blob.associate_with(JSONBlob)
