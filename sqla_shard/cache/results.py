"""What functions return, from the cache or from the functions.

A function may read whatever it likes: any server, and what its session holds
already.  A result is kept where none of that can be older than its lease.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import contextmanager
from contextlib import nullcontext
from contextlib import suppress
from math import isfinite
from typing import Any
from typing import NamedTuple

from sqla_shard.cache.awaiting import sleep_of
from sqla_shard.cache.awaiting import store_of
from sqla_shard.cache.codec import parse_json
from sqla_shard.cache.functions import KeptFunction
from sqla_shard.cache.protocol import read_through
from sqla_shard.exc import CachedFunctionError
from sqla_shard.session.contract import Scope

__all__ = ["ABSENT", "Prefix", "Prefixes", "Values", "read"]

#: What a function has not returned anything for.
ABSENT: Any = object()

_encode = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), allow_nan=False
).encode


class Prefix(NamedTuple):
    """The first items of a list.

    :ivar items: as the function returns them.
    :ivar is_whole: whether these are all.
    """

    items: list[Any]
    is_whole: bool


def read(scope: Scope, caching: Any, source: _Source) -> dict[Any, Any]:
    """Return what is kept for the ids of a source, or what it loads.

    :param caching: the cache, which may be read.
    """
    kept = source.kept
    region = caching.region(kept.region)
    found: dict[str, Any] = read_through(
        store_of(region.store, scope),
        list(source.ids),
        source,
        region.times,
        leases=_is_fresh(scope),
        tally=caching.tally(kept.region),
        sleep=sleep_of(scope),
        still=lambda: _is_fresh(scope),
    )
    return {source.ids[key]: one for key, one in found.items()}


def _is_fresh(scope: Scope) -> bool:
    """Tell whether all that a function reads from now on is as of now."""
    # An object that the session holds is not read again.
    held = scope.identity_map.all_states()
    return scope.sees_the_present() and all(one.expired for one in held)


@contextmanager
def _from_database(scope: Scope) -> Iterator[None]:
    """Let what is to be kept be made of what is in the database.

    What is kept of rows may be old as long as a key of theirs waits in the
    outbox; what was made of it would be so for longer.
    """
    before, scope.uses_cache = scope.uses_cache, False
    try:
        yield
    finally:
        scope.uses_cache = before


class _Source:
    """What one call asks for; a :class:`~.protocol.Source`."""

    def __init__(
        self,
        kept: KeptFunction,
        scope: Scope,
        caching: Any,
        ids: Sequence[Any],
        ask: Callable[..., Any],
    ) -> None:
        self.kept = kept
        self._scope = scope
        self._ask = ask
        self._expire = kept.expire or caching.region(kept.region).times.expire
        self.ids = {kept.key(caching, one): one for one in ids}
        self._tags = {k: kept.tag(scope, i) for k, i in self.ids.items()}
        self._fresh: set[str] = set()

    def decode(self, values: Mapping[str, bytes]) -> dict[str, Any]:
        found = {}
        for key, value in values.items():
            tag = self._tags[key]
            if value.startswith(tag):
                # What cannot be read is asked of the function.
                with suppress(RecursionError, TypeError, ValueError):
                    found[key] = self._opened(parse_json(value[len(tag) :]))
        return found

    def encode(self, key: str, loaded: Any) -> tuple[bytes, int] | None:
        body = self._closed(loaded) if key in self._fresh else None
        if body is None:
            return None
        return self._tags[key] + self._dumped(key, body), self._expire

    def load(
        self, keys: Sequence[str], leased: Collection[str]
    ) -> Mapping[str, Any]:
        wanted = set(keys)
        # In the order of the caller, whichever nodes they are on.
        ids = {key: one for key, one in self.ids.items() if key in wanted}
        with _from_database(self._scope) if leased else nullcontext():
            loaded = self._load(ids)
        # What it has written itself may be rolled back.
        if self._scope.log.first is None:
            self._fresh.update(keys)
        return loaded

    def _load(self, ids: Mapping[str, Any]) -> Mapping[str, Any]:
        raise NotImplementedError

    def _opened(self, body: Any) -> Any:
        """Return what a value says.

        :raises ValueError: when it is not as :meth:`_closed` has made it.
        """
        raise NotImplementedError

    def _closed(self, loaded: Any) -> Any:
        raise NotImplementedError

    def _dumped(self, key: str, body: Any) -> bytes:
        try:
            return _encode(body).encode("utf-8")
        except (RecursionError, ValueError) as error:
            raise self._wrong(
                f"has returned for {self.ids[key]!r:.100} what JSON cannot "
                f"hold: {error}"
            ) from error

    def _check(self, one: Any, value: Any) -> None:
        """Refuse a result that would be another one when it was kept."""
        try:
            odd = _odd(value)
        except RecursionError:
            odd = "something that contains itself"
        if odd is not None:
            raise self._wrong(
                f"has returned {odd} for {one!r:.100}; what is cached is what "
                "JSON has: None, bool, int, float, str, and list or dict of "
                "these"
            )

    def _wrong(self, message: str) -> CachedFunctionError:
        return CachedFunctionError(message, function=self.kept.name)


def _pair(body: Any) -> tuple[bool, Any]:
    """Return a flag and what comes with it."""
    if type(body) is not list:
        raise ValueError("not a list")
    flag, value = body
    if type(flag) is not int or flag not in (0, 1):
        raise ValueError("neither 0 nor 1")
    return bool(flag), value


def _odd(value: Any) -> str | None:
    """Return what of a value JSON does not have; None where it has all."""
    kind = type(value)
    items: Collection[Any] = ()
    if kind is list:
        items = value
    elif kind is dict:
        for key in value:
            if type(key) is not str:
                return f"a dict with the key {key!r:.100}"
        items = value.values()
    elif kind is float:
        return None if isfinite(value) else f"the float {value}"
    elif value is not None and kind not in (bool, int, str):
        return f"a value of type {kind.__name__}"
    for item in items:
        odd = _odd(item)
        if odd is not None:
            return odd
    return None


class Values(_Source):
    """Values by their ids.

    :ivar is_list: whether the function returns a list, in the order of ids,
        and not a mapping; None where it was not told.
    """

    is_list: bool | None = None

    def _opened(self, body: Any) -> Any:
        is_list, value = _pair(body)
        if value is None:
            raise ValueError("a value that is never kept")
        known = self.is_list
        if known is not None and known is not is_list:
            raise ValueError("another value says otherwise")
        self.is_list = is_list
        return value

    def _closed(self, loaded: Any) -> Any:
        # None is not kept: an object may be inserted whose id nobody knows
        # before, and this would hide it.
        if loaded is None or loaded is ABSENT:
            return None
        return [int(bool(self.is_list)), loaded]

    def _load(self, ids: Mapping[str, Any]) -> Mapping[str, Any]:
        asked = list(ids.values())
        returned = self._ask(asked)
        if isinstance(returned, Mapping):
            self.is_list = False
            known = set(asked)
            strange = [one for one in returned if one not in known]
            if strange:
                raise self._wrong(
                    f"was asked for ids and has returned {strange[0]!r:.100}, "
                    "which is none of them"
                )
            found = {one: returned.get(one, ABSENT) for one in asked}
        elif isinstance(returned, list):
            self.is_list = True
            if len(returned) != len(asked):
                raise self._wrong(
                    f"was asked for {len(asked)} ids and has returned "
                    f"{len(returned)} values; put None where there is none"
                )
            found = dict(zip(asked, returned, strict=True))
        else:
            raise self._wrong(
                f"has returned a {type(returned).__name__}; return a mapping "
                "by id, or a list in the order of the ids"
            )
        for one, value in found.items():
            if value is not ABSENT:
                self._check(one, value)
        return {key: found[one] for key, one in ids.items()}


class Prefixes(_Source):
    """The first items of a list.

    :ivar rows: how many, at most.
    """

    rows = 0

    def _opened(self, body: Any) -> Any:
        is_whole, items = _pair(body)
        if type(items) is not list or len(items) > self.rows:
            raise ValueError("not the items of a list")
        return Prefix(items, is_whole)

    def _closed(self, loaded: Any) -> Any:
        return [int(loaded.is_whole), loaded.items]

    def _load(self, ids: Mapping[str, Any]) -> Mapping[str, Any]:
        found = {}
        for key, one in ids.items():
            items = self._ask(one, 0, self.rows)
            if not isinstance(items, list):
                raise self._wrong(
                    f"has returned a {type(items).__name__}; return a list"
                )
            if len(items) > self.rows:
                raise self._wrong(
                    f"has returned {len(items)} items, with a limit of "
                    f"{self.rows}"
                )
            self._check(one, items)
            found[key] = Prefix(items, len(items) < self.rows)
        return found
