"""Errors of compressed blobs and their dictionaries."""

from __future__ import annotations

from sqla_shard.exc.base import MessageError
from sqla_shard.exc.definitions import BlobError


class BlobCompressionError(BlobError):
    """Base of the errors of compressed blobs and their dictionaries."""


class UnreadableBlobError(BlobCompressionError):
    """Base of the errors of rows whose blob cannot be read.

    :ivar table: the table; None if the reader does not know it.
    :ivar object_id: id of the object, after a read by id; otherwise None.
    """

    table: str | None = None
    object_id: int | None = None

    def of(self, object_id: int) -> UnreadableBlobError:
        """Return the error with the id of the object."""
        given = {name: getattr(self, name) for name in self._parameters}
        return type(self)(**{**given, "object_id": object_id})

    def _describe(self) -> str:
        return f"{self._row()} cannot be read"

    def _row(self) -> str:
        found = "a compressed blob"
        if self.table is not None:
            found = f"a row of {self.table}"
        if self.object_id is not None:
            found += f", object {self.object_id}"
        return found


class DamagedBlobError(UnreadableBlobError):
    """Raised when a stored blob cannot be decompressed.

    :ivar dictionary_id: id of the dictionary; None if the blob has none.
    :ivar reason: what is wrong.
    """

    dictionary_id: int | None = None
    reason: str

    def _describe(self) -> str:
        dictionary = ""
        if self.dictionary_id is not None:
            dictionary = f" (dictionary {self.dictionary_id:06x})"
        return (
            f"{self._row()}: {self.reason}{dictionary}. Restore the row from "
            "a backup; sqla-shard blobs check lists all such rows"
        )


class DictionaryNotFoundError(UnreadableBlobError):
    """Raised when no virtual shard has the dictionary of a blob.

    :ivar dictionary_id: id of the dictionary.
    :ivar unreachable: servers that could not be read, which may have it.
    """

    dictionary_id: int
    unreachable: tuple[str, ...] = ()

    def _describe(self) -> str:
        remedy = (
            "Restore the rows of sqla_shard_dictionary from a backup of the "
            "shard of the row"
        )
        if self.unreachable:
            remedy = (
                f"Repeat it when {', '.join(self.unreachable)} can be read, which "
                "may have it"
            )
        return (
            f"{self._row()}: no dictionary has the id "
            f"{self.dictionary_id:06x}, with which the blob was compressed. "
            f"{remedy}"
        )


class DictionaryError(BlobCompressionError, MessageError):
    """Raised when a dictionary cannot be trained, stored or used for writing.

    :ivar name: name of the dictionary.
    """

    name: str
    _text = "{name}: {message}"
