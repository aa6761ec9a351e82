"""A source of plain values, for tests of what reads through a store."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from sqla_shard.cache.protocol import Times

_NOTHING = b"-"


class Plain:
    """Bytes, and None where there is nothing.

    :param load: reads keys from the database.
    """

    def __init__(
        self, load: Callable[[Sequence[str]], Mapping[str, bytes | None]], times: Times
    ) -> None:
        self._load = load
        self._times = times

    def load(
        self, keys: Sequence[str], leased: Collection[str]
    ) -> Mapping[str, bytes | None]:
        rows = self._load(keys)
        return {key: rows.get(key) for key in keys}

    def encode(self, key: str, loaded: bytes | None) -> tuple[bytes, int]:
        if loaded is None:
            return _NOTHING, self._times.expire_nothing
        return b"+" + loaded, self._times.expire

    def decode(self, values: Mapping[str, bytes]) -> dict[str, bytes | None]:
        return {
            key: None if value == _NOTHING else value[1:]
            for key, value in values.items()
        }
