"""Compressed transactions in binary logs of MySQL."""

from __future__ import annotations

from sqla_shard.types.compression import require_zstd

_END, _SIZE, _COMPRESSION = 0, 1, 2
_ZSTD = 0
#: Bytes of the numbers that begin with these bytes.
_NUMBERS = {252: 2, 253: 3, 254: 8}


def payload_of(body: bytes) -> bytes:
    """Return the events of a transaction, which have no checksums.

    :param body: the event of the transaction, after its header.
    :raises MissingExtraError: if the extra ``zstd`` is not installed.
    :raises ValueError: if it cannot be decompressed.
    """
    found: dict[int, int] = {}
    place = 0
    while True:
        field, place = _number(body, place)
        if field == _END:
            break
        length, place = _number(body, place)
        found[field], _ = _number(body, place)
        place += length
    payload = body[place : place + found.get(_SIZE, 0)]
    if found.get(_COMPRESSION) != _ZSTD:
        return payload
    zstd = require_zstd()
    try:
        data: bytes = zstd.decompress(payload)
    except zstd.ZstdError as error:
        raise ValueError(str(error)) from error
    return data


def _number(data: bytes, place: int) -> tuple[int, int]:
    """Return a number of one to nine bytes, and the place after it."""
    first = data[place]
    place += 1
    if first not in _NUMBERS:
        return first, place
    end = place + _NUMBERS[first]
    return int.from_bytes(data[place:end], "little"), end
