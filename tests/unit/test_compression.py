"""The form of compressed blobs, which rows keep for ever."""

from __future__ import annotations

import base64
import sys

import pytest

from sqla_shard.exc import MissingExtraError
from sqla_shard.types.compression import (
    Dictionary,
    MARKER,
    PREFIX_BYTES,
    require_zstd,
    train_dictionary,
)

TEXT = '{"title":"Boats 5","link":"https://example.com/98765","tags":["é","3"]}'

# By the package zstandard 0.25, with which versions before wrote them.
OLD_DICTIONARY = base64.b64decode(
    "N6Qw7PsLwV4ZEOAKlQ7/////6xpcn9tbEiml5NHFo7XWWiMAAAAAGLziLAAAAAQAAAMAAI"
    "CGAQAAgAQAPVg1iYFiQhAAAIMBQE4DAAAAAAAAAAAApCuJtQYAAAAAAAAAAAAAAAAAAAEA"
    "AAAEAAAACAAAAG0vNTQiLCJ0YWdzIjpbInNlYSIsbGUuY29tLzUyNCIsInRhZ3MiOlsic2"
    "VhIiwiNiJdfXsidGl0bGUiOiJCb2F0cyA0MCJsZS5jb20vNDIzIiwidGFncyI6WyJzZWEi"
    "LCIzIl19eyJ0aXRsZSI6IkJvYXRzIDM2ImxlLmNvbS8zODkiLCJ0YWdzIjpbInNlYSIsIj"
    "QiXX17InRpdGxlIjoiQm9hdHMgMiIsbGUuY29tLzI5NiIsInRhZ3MiOlsic2VhIiwiMiJd"
    "fXsidGk="
)
OLD_TEXT = (
    '{"title":"Boats 5","link":"https://example.com/98765","tags":["sea","é","3"]}'
)
OLD_BLOB = bytes.fromhex(
    "fd04c126244ea50100640235222c226c696e6b223a2268747470733a2f2f6578616d70"
    "3938373635c3a9222c2233225d7d03fc5002fc0380773668ad0a7160b2ed"
)


@pytest.fixture(scope="module")
def dictionary() -> Dictionary:
    texts = [
        f'{{"title":"Boats {i % 97}","link":"https://example.com/{i}"}}'
        for i in range(1000)
    ]
    return Dictionary(train_dictionary([t.encode() for t in texts], 1024))


def test_blobs_of_older_versions_are_read() -> None:
    old = Dictionary(OLD_DICTIONARY)
    assert OLD_BLOB.startswith(old.prefix)
    assert old.unpack(OLD_BLOB, 100) == OLD_TEXT


def test_the_form_is_that_of_older_versions(dictionary: Dictionary) -> None:
    packed = dictionary.pack(TEXT)
    assert packed is not None
    assert packed.startswith(MARKER + dictionary.id.to_bytes(3, "big"))
    # The header of the frame: of one segment, with its size and a checksum,
    # without the id of the dictionary.
    assert packed[PREFIX_BYTES] == 0b0010_0100
    assert packed[PREFIX_BYTES + 1] == len(TEXT.encode())
    old = Dictionary(OLD_DICTIONARY).pack(OLD_TEXT)
    assert old is not None
    assert old[: PREFIX_BYTES + 2] == OLD_BLOB[: PREFIX_BYTES + 2]


@pytest.mark.parametrize("text", [TEXT, "0" * 1000, "é" * 40_000, TEXT * 30_000])
def test_texts_come_back(dictionary: Dictionary, text: str) -> None:
    size = len(text.encode())
    for _ in range(3):  # with the same compressor
        packed = dictionary.pack(text)
        assert packed is not None
        assert dictionary.unpack(packed, size) == text
    with pytest.raises(ValueError, match=rf"have {size:,} bytes, and the lim"):
        dictionary.unpack(packed, size - 1)


def test_what_would_not_be_smaller_is_not_compressed(dictionary) -> None:
    assert dictionary.pack("{}") is None


def test_every_damage_is_noticed(dictionary: Dictionary) -> None:
    packed = dictionary.pack(TEXT)
    assert packed is not None
    ends = [packed[:length] for length in range(PREFIX_BYTES, len(packed))]
    flips = [
        packed[:at] + bytes([packed[at] ^ 1 << bit]) + packed[at + 1 :]
        for at in range(PREFIX_BYTES, len(packed))
        for bit in range(8)
    ]
    read = []
    for damaged in [*ends, *flips, packed + b"x", packed + packed]:
        try:
            read.append(dictionary.unpack(damaged, 10_000))
        except ValueError:
            continue
    # A bit of the header says nothing about the text.
    assert set(read) <= {TEXT}
    assert len(read) < 5


def test_a_frame_with_more_than_it_says(dictionary: Dictionary) -> None:
    """It has 100 MB in a few kilobytes, and 1,000 in its header."""
    packed = dictionary.pack("0" * 100_000_000)
    assert packed is not None
    size = slice(PREFIX_BYTES + 2, PREFIX_BYTES + 6)
    assert int.from_bytes(packed[size], "little") == 100_000_000
    lying = packed[: size.start] + bytes([232, 3, 0, 0]) + packed[size.stop :]
    with pytest.raises(ValueError, match="cannot be decompressed"):
        dictionary.unpack(lying, 100_000)


@pytest.mark.parametrize("content", [b"", b"x", b"x" * 1000, OLD_DICTIONARY[:100]])
def test_no_dictionary(content: bytes) -> None:
    with pytest.raises(ValueError, match="not a dictionary of zstd"):
        Dictionary(content)


@pytest.mark.parametrize(
    ("samples", "size"), [([], 1024), ([b"x"], 1024), ([b"a" * 99] * 9, 0)]
)
def test_samples_that_are_too_few(samples: list[bytes], size: int) -> None:
    with pytest.raises(ValueError, match=r"."):
        train_dictionary(samples, size)


def test_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "compression" if sys.version_info >= (3, 14) else "backports"
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match=r"sqla-shard\[zstd\]") as e:
        require_zstd()
    assert e.value.package == f"{name}.zstd"
