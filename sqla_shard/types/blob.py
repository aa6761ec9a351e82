"""JSON documents in a text column.

:class:`JSONBlob` stores a JSON object as text that people and the server's
JSON functions can read.  In Python it is a :class:`Blob`, a ``dict`` that
detects in-place changes at any depth::

    class Pin(Base):
        data: Mapped[dict[str, Any]] = mapped_column(JSONBlob())

    pin.data["tags"].append("boats")      # the next flush writes it

A container that was read before the object was refreshed is detached from it;
so is a container of an object that was garbage collected.  Changing a
detached container raises an error, because the change would not be written.

The column is text and not the server's JSON type, because a flush compares
the text that was read with the text in the row, and MySQL's JSON type rewrites
a document when it is stored.

Integers of any size and floats are stored exactly.  NaN and infinity, which
JSON does not have, are rejected.

With ``compression="zstd"`` the column is binary, and contains JSON or
compressed JSON; see :mod:`sqla_shard.types.compression`.
"""

from __future__ import annotations

import json
import re
from typing import Any

from sqlalchemy import event, Text
from sqlalchemy.dialects import mysql
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.mutable import Mutable
from sqlalchemy.orm.attributes import flag_modified
from sqlalchemy.types import TypeDecorator, TypeEngine
from sqlalchemy.util import memoized_property

from sqla_shard.exc import BlobError, BlobTooLargeError, BlobValueError
from sqla_shard.exc.base import shown
from sqla_shard.types.compression import Dictionary, require_zstd, unpack
from sqla_shard.types.tracking import plain, TrackedDict
from sqla_shard.util import json_values, sqlalchemy_private as private
from sqla_shard.util.sqlalchemy_helpers import is_mysql

_TEXT_BYTES = 65_535
_MEDIUM_BYTES = 16_777_215
_LONG_BYTES = 4_294_967_295


#: Nesting depth; MySQL's JSON functions do not read deeper documents.
_MOST_LEVELS = 100
_NAME = re.compile(r"[!-~]{1,64}")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")

_encode = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":")
).encode


class Blob(TrackedDict, Mutable):
    """The value of a :class:`JSONBlob` column.

    :ivar source: the text that was last read or written; None for a blob
        that was never in the database.  A flush compares it with the row.
    :ivar stored: the value of a binary column, which a flush compares with
        the row instead of the text; None if it is the text.
    :ivar sent: the text that was last bound to a statement, which is not
        necessarily an INSERT and may have failed.
    :ivar sent_stored: the value of a binary column that was bound then.
    :ivar dictionary: the dictionary for the next write; None to write JSON.
    :ivar from_fields: whether the blob was created by setting fields of a new
        object, so that it is not a complete document.
    :ivar holder: the object, once one of its containers was returned.  The
        identity map holds weak references only.
    :ivar released: whether another blob was assigned instead.
    """

    source: str | None = None
    stored: bytes | None = None
    sent: str | None = None
    sent_stored: bytes | None = None
    dictionary: Dictionary | None = None
    from_fields: bool = False
    holder: object = None
    released: bool = False

    @property
    def decoded(self) -> dict[str, Any]:
        """Decoded values that fields have returned, by field name."""
        values: dict[str, Any] | None = self.__dict__.get("_decoded")
        if values is None:
            values = self.__dict__["_decoded"] = {}
        return values

    @property
    def has_decoded(self) -> bool:
        """Whether fields have returned decoded values."""
        return "_decoded" in self.__dict__

    @property
    def is_as_read(self) -> bool:
        """Whether a flush has nothing to write: each change was taken back."""
        return self.source is not None and _encode(self) == self.source

    def _changed(self) -> None:
        parents = self.__dict__.get("_parents")
        if not parents or self.released:
            return  # the blob is not the value of an object
        # Do not call Mutable.changed(), which does the same in twice the time.
        is_held = False
        for state, key in list(parents.items()):
            holder = state.obj()
            if holder is None:
                continue
            is_held = True
            if state.dict.get(key) is not self:
                raise BlobError(
                    "the change would not be written: this container is "
                    f"detached, because {state.class_.__name__}.{key} was "
                    "refreshed after the container was read. Read it from "
                    "the object again and change that one"
                )
            # A new object was flagged when it got the blob.
            if not (self.from_fields and key in state.committed_state):
                flag_modified(holder, key)
        if not is_held:
            raise BlobError(
                "the change would not be written: the object of this "
                "container was garbage collected. Keep a reference to the "
                "object, or copy the container"
            )

    @memoized_property
    def _parents(self) -> dict[Any, str]:  # type: ignore[override]  # weak there
        """The attribute that holds the blob, by the state of its object.

        A state has a weak reference to its object; so a plain dictionary is
        sufficient, which takes a tenth of the time of one with weak keys.
        """
        return {}

    @property
    def holders(self) -> list[Any]:
        """The states of the objects that hold the blob."""
        return [parent for parent in self._parents if parent.obj() is not None]

    @classmethod
    def coerce(cls, key: str, value: Any) -> Any:
        """Convert an assigned dict to a blob.

        :raises BlobValueError: if the value is not a dict, or not valid JSON.
        """
        if value is None or isinstance(value, cls):
            return value
        if isinstance(value, dict):
            return cls(value)
        raise BlobValueError(
            f"must be a dict, not {shown(value)} of type {type(value).__name__}",
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
            include_key=True,
        )
        # As there, but the values that are loaded are not coerced again.
        private.track_mutable(cls, attribute, coerce=False)

    def __reduce__(self) -> Any:
        return _restored, (plain(self), self.source, self.from_fields, self.stored)


def _restored(
    values: dict[str, Any],
    source: str | None,
    from_fields: bool,
    stored: bytes | None = None,
) -> Blob:
    blob = Blob._trusted(values)
    blob.source = source
    blob.stored = stored
    blob.from_fields = from_fields
    return blob


def _before_set(state: Any, value: Any, old: Any, initiator: Any) -> Any:
    """Handle an assignment to a blob attribute."""
    if not isinstance(value, Blob):
        value = Blob.coerce(initiator.key, value)
    elif value is old:
        return value
    elif value or value._parents or value.released or value.source is not None:
        # A blob with values may be that of another object, which a shared one
        # would flag too.
        value = Blob(plain(value))
    if isinstance(old, Blob):
        old.released = True
        if value is not None:
            # Compare with the replaced document, which the database still
            # has.
            value.source = old.source
            value.stored = old.stored
    return value


class JSONBlob(TypeDecorator[dict[str, Any]]):
    """A JSON object in a text column.

    :param max_bytes: maximum size of the encoded text in bytes.  A larger blob
        is rejected before it is sent, because MySQL without strict mode would
        truncate it.  The size determines the type on MySQL: TEXT up to 65,535,
        MEDIUMTEXT up to 16,777,215 (the default), LONGTEXT above.
    :param compression: ``"zstd"`` to read and write compressed blobs, for the
        class keyword of the same name (:doc:`/howto/compress`).  The type on
        MySQL is then BLOB, MEDIUMBLOB or LONGBLOB; SQLite stores both in a
        column of any type.
    :param dictionary: name of the dictionary; by default that of the table.
    :raises ValueError: if an argument is not valid.
    :raises MissingExtraError: if the extra ``zstd`` is not installed.
    """

    impl: TypeEngine[Any] | type[TypeEngine[Any]] = Text
    cache_ok: bool | None = True

    def __init__(
        self,
        max_bytes: int = _MEDIUM_BYTES,
        *,
        compression: str | None = None,
        dictionary: str | None = None,
    ) -> None:
        super().__init__()
        if compression not in (None, "zstd"):
            raise ValueError(f'compression must be "zstd" or None, not {compression!r}')
        if dictionary is not None and (
            compression is None or not _NAME.fullmatch(dictionary)
        ):
            raise ValueError(
                "dictionary must be a name of 1 to 64 printable ASCII "
                'characters without spaces, with compression="zstd", not '
                f"{dictionary!r}"
            )
        if compression is not None:
            require_zstd()
        self.compression = compression
        self.dictionary = dictionary
        if type(max_bytes) is not int or not 2 <= max_bytes <= _LONG_BYTES:
            raise ValueError(
                f"max_bytes must be an integer from 2 to {_LONG_BYTES}, not "
                f"{max_bytes!r}"
            )
        self.max_bytes = max_bytes

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Return the text type of the server."""
        if not is_mysql(dialect):
            return dialect.type_descriptor(Text())
        if self.compression is not None:
            return dialect.type_descriptor(self._binary_type())
        kind: Any = mysql.LONGTEXT
        if self.max_bytes <= _TEXT_BYTES:
            kind = mysql.TEXT
        elif self.max_bytes <= _MEDIUM_BYTES:
            kind = mysql.MEDIUMTEXT
        # With utf8mb4_bin "a" and "a " are equal, even in fields.  MySQL has a
        # collation without padding under another name, which the expressions
        # of fields use.
        exact = getattr(dialect, "is_mariadb", False)
        collation = "utf8mb4_nopad_bin" if exact else "utf8mb4_bin"
        return dialect.type_descriptor(kind(charset="utf8mb4", collation=collation))

    def _binary_type(self) -> TypeEngine[Any]:
        if self.max_bytes <= _TEXT_BYTES:
            return mysql.BLOB()
        if self.max_bytes <= _MEDIUM_BYTES:
            return mysql.MEDIUMBLOB()
        return mysql.LONGBLOB()

    def bind_processor(self, dialect: Dialect) -> Any:
        """Return the function that encodes a blob."""
        if self.compression is None:
            return super().bind_processor(dialect)
        # That of a binary type accepts no str.
        return lambda value: self.process_bind_param(value, dialect)

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        """Encode a blob.

        :raises BlobValueError: if it is not valid JSON.
        :raises BlobTooLargeError: if it has more than ``max_bytes``.
        """
        if value is None:
            return None
        blob = value if isinstance(value, dict) else Blob.coerce("", value)
        text = encode_blob(blob, self.max_bytes)
        if not isinstance(value, Blob):
            return text
        value.sent = text
        if self.compression is None:
            return text
        value.sent_stored = pack_blob(value, text)
        return text if value.sent_stored is None else value.sent_stored

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:
        """Return the function that decodes a blob.

        Drivers return a str, or bytes from a binary column, which a column
        without compression is for a while when it is no longer compressed.
        """
        return self._decode

    @property
    def limit(self) -> int:
        """Maximum size of a decompressed blob in bytes.

        Rows that were written before ``max_bytes`` was lowered can be read.
        """
        return max(self.max_bytes, _MEDIUM_BYTES)

    def _decode(self, value: str | bytes | None) -> Blob | None:
        if value is None:
            return None
        if type(value) is str:
            return decode_blob(value)
        return decode_stored(value, self)


def encode_blob(blob: dict[str, Any], max_bytes: int) -> str:
    """Return a blob as text.

    :raises BlobValueError: if it is not valid JSON.
    :raises BlobTooLargeError: if it has more than ``max_bytes``.
    """
    if not isinstance(blob, TrackedDict):
        blob = TrackedDict(blob)  # reject values that json accepts
    text: str = _encode(blob)
    # A character has at most four bytes in UTF-8, so that most blobs need
    # not be encoded to be measured.
    if len(text) * 4 > max_bytes:
        size = len(text.encode())
        if size > max_bytes:
            raise BlobTooLargeError(size=size, limit=max_bytes)
    return text


def decode_blob(text: str) -> Blob:
    """Decode a stored text to a blob.

    :raises BlobValueError: if it is not a JSON object.
    """
    values = json_values.decode_flat(text)
    if values is None:
        values = decode_json(text)
        if type(values) is not dict:
            raise BlobValueError(
                "the stored JSON is not an object", field="data", value=text
            )
        blob = Blob._trusted(values)
    else:
        blob = Blob.__new__(Blob)
        dict.update(blob, values)
    blob.source = text
    blob._parents = {}
    return blob


def decode_stored(value: str | bytes, kind: JSONBlob) -> Blob:
    """Decode the value of a column, text or binary.

    :param kind: the type of the column.
    :raises BlobValueError: if it is not a JSON object.
    :raises BlobCompressionError: if it cannot be decompressed.
    """
    if isinstance(value, str):
        return decode_blob(value)
    stored = bytes(value)
    blob = decode_blob(unpack(stored, kind.limit, kind.dictionary))
    blob.stored = stored
    return blob


def pack_blob(blob: Blob, text: str) -> bytes | None:
    """Return the compressed text of a blob; None to write the text.

    Inactive objects are not compressed, so that the server can exclude them.
    """
    if blob.dictionary is None or blob.get("active") is False:
        return None
    return blob.dictionary.pack(text)


def decode_json(text: str) -> Any:
    """Decode a stored text to a JSON value.

    :raises BlobValueError: if it is not JSON, or has a number that Python
        does not read, a lone surrogate, or more than 100 levels of nesting.
    """
    try:
        value = json_values.decode_json(text)
        _check_levels(text, value)
        # Only an escape can be a lone surrogate; two may be a valid pair.
        if "\\u" in text and _SURROGATE.search(text):
            _encode(value).encode()
    except (ValueError, RecursionError) as error:
        raise BlobValueError(
            f"the stored text is not valid JSON: {error}", field="data", value=text
        ) from error
    return value


def _check_levels(text: str, value: Any) -> None:
    # The text has too few brackets to be nested deeper.
    if text.count("[") + text.count("{") <= _MOST_LEVELS:
        return
    level = [value]
    for _ in range(_MOST_LEVELS):
        level = [
            item
            for holder in level
            for item in (holder.values() if isinstance(holder, dict) else holder)
            if isinstance(item, (dict, list))
        ]
        if not level:
            return
    raise ValueError(f"more than {_MOST_LEVELS} levels of nesting")


Blob.associate_with(JSONBlob)
