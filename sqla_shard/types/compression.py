"""Compressed blobs: their format, and the dictionaries of a process.

A compressed blob begins with the byte ``FD``, which UTF-8 never contains, so
that it differs from JSON in its first byte.  The next three bytes are the id
of its dictionary, and the rest is a zstd frame without its four magic bytes,
with the size and a checksum of the text.  The checksum detects a damaged blob,
and a blob that is decompressed with another dictionary.

The id of a dictionary is the start of the SHA-256 of its content.  So it is
the same in every database and cluster, a database can be moved or restored
anywhere, and a process needs each dictionary once.  Dictionaries are loaded on
demand from the databases, by the sources that clusters register.
"""

from __future__ import annotations

import hashlib
import sys
import threading
import weakref
from collections.abc import Sequence
from time import monotonic
from typing import Any, Protocol

from sqla_shard.exc import DamagedBlobError, DictionaryNotFoundError, MissingExtraError
from sqla_shard.util.processes import in_children

#: First byte of a compressed blob.
MARKER = b"\xfd"
#: Length of the marker and the id of the dictionary.
PREFIX_BYTES = 4

#: The level of zstd, 4 us for a blob of 240 bytes.  Level 9 takes four times
#: as long for blobs that are up to 5 % smaller.
LEVEL = 3

_MAGIC = b"\x28\xb5\x2f\xfd"
#: Seconds in which a dictionary that was not found is not searched again: a
#: search reads all shards.
_MISSING = 30.0


def require_zstd() -> Any:
    """Return ``compression.zstd`` of Python 3.14, or its backport.

    :raises MissingExtraError: if it is not installed.
    """
    package = "backports.zstd"
    try:
        if sys.version_info >= (3, 14):
            package = "compression.zstd"
            from compression import zstd
        else:
            from backports import zstd
    except ImportError as error:
        raise MissingExtraError(
            package=package, extra="zstd", reason=str(error)
        ) from error
    return zstd


def dictionary_id_of(content: bytes) -> int:
    """Return the id of a dictionary, an integer of 24 bits."""
    return int.from_bytes(hashlib.sha256(content).digest()[:3], "big")


class Dictionary:
    """A dictionary; may be used in several threads.

    :param content: the dictionary, in the format of zstd.
    :raises MissingExtraError: if the extra ``zstd`` is not installed.
    :raises ValueError: if it is not a dictionary.
    """

    def __init__(self, content: bytes) -> None:
        zstd = self._zstd = require_zstd()
        self.content = content
        self.id: int = dictionary_id_of(content)
        #: The first bytes of all blobs that are compressed with it.
        self.prefix: bytes = MARKER + self.id.to_bytes(PREFIX_BYTES - 1, "big")
        try:
            self._digested = zstd.ZstdDict(content).as_digested_dict
            zstd.ZstdDecompressor(self._digested)  # reads all of it
        except (ValueError, zstd.ZstdError) as error:
            raise ValueError(f"not a dictionary of zstd: {error}") from error
        # Threads would wait for one compressor, and a process that is forked
        # meanwhile for ever.
        self._local = threading.local()

    def pack(self, text: str) -> bytes | None:
        """Return a text compressed; None if it would not be smaller."""
        compressor = getattr(self._local, "compressor", None)
        if compressor is None:
            compressor = self._local.compressor = self._zstd.ZstdCompressor(
                options={
                    self._zstd.CompressionParameter.compression_level: LEVEL,
                    self._zstd.CompressionParameter.checksum_flag: True,
                    self._zstd.CompressionParameter.dict_id_flag: False,
                },
                zstd_dict=self._digested,
            )
        data = text.encode()
        frame: bytes = compressor.compress(data, compressor.FLUSH_FRAME)
        packed = self.prefix + frame[len(_MAGIC) :]
        return packed if len(packed) < len(data) else None

    def unpack(self, packed: bytes, limit: int) -> str:
        """Return the text of a compressed blob.

        :param limit: maximum size of the text in bytes.
        :raises ValueError: if the blob is damaged, or its text is larger.
        """
        frame = _MAGIC + packed[PREFIX_BYTES:]
        decompressor = self._zstd.ZstdDecompressor(self._digested)
        try:
            # None if it was not written here.
            size = self._zstd.get_frame_info(frame).decompressed_size or 0
            if not 0 < size <= limit:
                raise ValueError(
                    f"its text would have {size:,} bytes, and the limit is {limit:,}"
                )
            # A damaged frame can have more.
            data: bytes = decompressor.decompress(frame, limit + 1)
        except self._zstd.ZstdError as error:
            raise ValueError(f"it cannot be decompressed: {error}") from error
        if not decompressor.eof or decompressor.unused_data:
            raise ValueError("it cannot be decompressed: its end is damaged")
        return data.decode()

    def __repr__(self) -> str:
        return f"<Dictionary {self.id:06x}, {len(self.content):,} bytes>"


class DictionarySource(Protocol):
    """Reads dictionaries from databases; a cluster is one."""

    def load_dictionary(self, dictionary_id: int) -> tuple[bytes | None, Sequence[str]]:
        """Return the content of a dictionary.

        :returns: the content, None if it is not found; and the servers that
            could not be read.
        """
        ...


class Dictionaries:
    """The dictionaries of a process, by id."""

    def __init__(self) -> None:
        self._known: dict[int, Dictionary] = {}
        self._missing: dict[int, tuple[float, tuple[str, ...]]] = {}
        # Other threads open clusters while a WeakSet is iterated, which then
        # raises an error.
        self._sources: weakref.WeakKeyDictionary[DictionarySource, None] = (
            weakref.WeakKeyDictionary()
        )
        self._lock = threading.Lock()
        in_children(self)

    def after_fork(self) -> None:
        """Replace the lock, which a thread of the parent may hold."""
        self._lock = threading.Lock()

    def add_source(self, source: DictionarySource) -> None:
        """Search dictionaries in a source from now on, while it exists."""
        self._sources[source] = None

    def remove_source(self, source: DictionarySource) -> None:
        """Search no dictionaries in a source that is closed."""
        self._sources.pop(source, None)

    def add(self, content: bytes) -> Dictionary:
        """Add a dictionary, and return it.

        :raises ValueError: if it is not a dictionary, or another one has the
            same id.
        """
        dictionary = Dictionary(content)
        known = self._known.setdefault(dictionary.id, dictionary)
        if known.content != content:
            raise ValueError(f"another dictionary has the id {dictionary.id:06x}")
        return known

    def known(self, dictionary_id: int) -> Dictionary | None:
        """Return a dictionary of this process; None if it is not loaded."""
        return self._known.get(dictionary_id)

    def find(self, dictionary_id: int) -> Dictionary:
        """Return a dictionary, which is loaded from a database if needed.

        :raises DictionaryNotFoundError: if no database has it.
        """
        dictionary = self._known.get(dictionary_id)
        if dictionary is not None:
            return dictionary
        with self._lock:
            dictionary = self._known.get(dictionary_id)
            return dictionary or self._load(dictionary_id)

    def _load(self, dictionary_id: int) -> Dictionary:
        since, unreachable = self._missing.get(dictionary_id, (None, ()))
        if since is None or monotonic() - since > _MISSING:
            unreachable = ()
            sources = [found() for found in self._sources.keyrefs()]
            for source in sources:
                if source is None:
                    continue
                content, failed = source.load_dictionary(dictionary_id)
                if content is not None:
                    self._missing.pop(dictionary_id, None)
                    return self.add(content)
                unreachable += tuple(failed)
            if not unreachable:
                # Random ids of damaged rows must not fill the memory.
                if len(self._missing) >= 1000:
                    self._missing.clear()
                self._missing[dictionary_id] = monotonic(), unreachable
        raise DictionaryNotFoundError(
            dictionary_id=dictionary_id, unreachable=unreachable
        )


DICTIONARIES = Dictionaries()


def unpack(packed: bytes, limit: int, table: str | None = None) -> str:
    """Return the text of a blob from a binary column.

    :param packed: JSON in UTF-8, or a compressed blob.
    :param limit: maximum size of the text in bytes.
    :param table: the table, for messages.
    :raises DamagedBlobError: if it cannot be decompressed, or its text would
        be larger than the limit.
    :raises DictionaryNotFoundError: if no shard has its dictionary.
    :raises MissingExtraError: if the extra ``zstd`` is not installed.
    """
    dictionary_id = None
    try:
        if packed[:1] != MARKER:
            return packed.decode()
        if len(packed) <= PREFIX_BYTES:
            raise ValueError(f"it has only {len(packed)} bytes")
        dictionary_id = int.from_bytes(packed[1:PREFIX_BYTES], "big")
        return DICTIONARIES.find(dictionary_id).unpack(packed, limit)
    except ValueError as error:
        raise DamagedBlobError(
            table=table, dictionary_id=dictionary_id, reason=str(error)
        ) from error
    except DictionaryNotFoundError as error:
        if error.table is None and table is not None:
            raise DictionaryNotFoundError(
                table=table,
                dictionary_id=error.dictionary_id,
                unreachable=error.unreachable,
            ) from error
        raise


def train_dictionary(samples: Sequence[bytes], size: int) -> bytes:
    """Return a dictionary that is trained from samples.

    :param samples: the texts of blobs.
    :param size: maximum size of the dictionary in bytes.
    :raises ValueError: if the samples are too few or too small.
    :raises MissingExtraError: if the extra ``zstd`` is not installed.
    """
    zstd = require_zstd()
    try:
        content: bytes = zstd.train_dict(samples, size).dict_content
    except zstd.ZstdError as error:
        raise ValueError(str(error)) from error
    return content
