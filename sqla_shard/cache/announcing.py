"""The tombstones of one transaction, around its COMMIT."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from functools import partial
from time import perf_counter
from typing import TypeVar

from sqla_shard.cache.awaiting import awaited
from sqla_shard.cache.awaiting import to_its_end
from sqla_shard.cache.outbox import may_wait
from sqla_shard.cache.outbox import note
from sqla_shard.cache.protocol import Tombstones
from sqla_shard.cache.regions import Region
from sqla_shard.cache.tally import Tally
from sqla_shard.rendering import Place
from sqla_shard.session.contract import Scope
from sqla_shard.session.stale import homes_of

__all__ = ["Announcement", "announce"]

T = TypeVar("T")


class Announcement:
    """What was announced by a transaction, of all regions.

    Its end is waited for, in an event loop too: what is acknowledged is not
    to be read as it was before, and the tombstones may have ended when COMMIT
    took long.

    :param scope: the session.
    :param put: the tombstones of each region, and who counts for it.
    :param edited: shards with keys of which the new values are known.
    """

    def __init__(
        self,
        scope: Scope,
        put: Sequence[tuple[Tombstones, Tally]],
        edited: Collection[Place],
    ) -> None:
        self._scope = scope
        self._put = put
        self._edited = edited

    def committed(self) -> None:
        """Let values be put there again, and put those that we know."""
        cancelled = to_its_end(self._scope, self._replace)
        # Raised when the transaction has ended.
        self._scope.log.cancelled = cancelled

    def undone(self) -> None:
        """Let values be put there again."""
        self._each_to_its_end(Tombstones.remove)

    def unknown(self) -> None:
        """Let nothing be put there for some more time.

        The COMMIT may be done yet, and may have taken so long that the
        tombstones have ended, and old values been put there.
        """
        self._each_to_its_end(Tombstones.renew)

    def _replace(self) -> None:
        # A key that waits may have an old value, of which no new one can be
        # made.  Now, and not before COMMIT: the snapshot of the transaction
        # may be older than the lock of the list.
        old = any(may_wait(self._scope, one) for one in self._edited)
        how = Tombstones.remove if old else Tombstones.replace
        awaited(self._scope, partial(self._each, how))

    def _each_to_its_end(self, how: Callable[[Tombstones], object]) -> None:
        work = partial(self._each, how)
        # The error of the COMMIT is raised in place of a cancellation.
        to_its_end(self._scope, partial(awaited, self._scope, work))

    def _each(self, how: Callable[[Tombstones], object]) -> None:
        for tombstones, tally in self._put:
            _timed(tally, partial(how, tombstones))


def _timed(tally: Tally, work: Callable[[], T]) -> T:
    begun = perf_counter()
    try:
        return work()
    finally:
        tally.add(seconds=perf_counter() - begun)


def announce(
    scope: Scope,
    regions: Mapping[str, Region],
    tallies: Mapping[str, Tally],
) -> Announcement:
    """Put tombstones, and write down those that cannot be put.

    :param regions: by name.
    :param tallies: by the name of the region.
    """
    stale = scope.log.stale
    keys: dict[str, list[str]] = {}
    for name, key in stale:
        keys.setdefault(name, []).append(key)
    put: list[tuple[Tombstones, Tally]] = []
    edited: set[Place] = set()
    failed: dict[Place, list[tuple[str, str]]] = {}
    for name, its in keys.items():
        region, tally = regions[name], tallies[name]
        tombstones = Tombstones(region.store, region.times)
        put.append((tombstones, tally))
        edits = {
            key: stale[name, key].edited
            for key in its
            if stale[name, key].edits
        }
        work = partial(tombstones.put, its, edits)
        lost = awaited(scope, partial(_timed, tally, work))
        tally.add(invalidations=len(its) - len(lost), outbox=len(lost))
        for key in lost:
            for place in homes_of(scope, stale[name, key]):
                failed.setdefault(place, []).append((name, key))
        places = [stale[name, key].place for key in tombstones.edited]
        edited.update(one for one in places if one is not None)
    announcement = Announcement(scope, put, edited)
    try:
        for place, entries in failed.items():
            note(scope, place, entries)
    except BaseException:
        announcement.undone()
        raise
    return announcement
