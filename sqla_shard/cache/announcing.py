"""The tombstones of one transaction, around its COMMIT."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from functools import partial
from time import perf_counter
from typing import TypeVar

from sqla_shard.cache.awaiting import awaited
from sqla_shard.cache.awaiting import submit
from sqla_shard.cache.outbox import note
from sqla_shard.cache.protocol import Tombstones
from sqla_shard.cache.regions import Region
from sqla_shard.cache.tally import Tally
from sqla_shard.rendering import Place
from sqla_shard.session.contract import Scope
from sqla_shard.session.stale import home_of

__all__ = ["Announcement", "announce"]

T = TypeVar("T")


class Announcement:
    """What was announced by a transaction, of all regions.

    :param scope: the session.
    :param put: the tombstones of each region, and who counts for it.
    """

    def __init__(
        self, scope: Scope, put: Sequence[tuple[Tombstones, Tally]]
    ) -> None:
        self._put = put
        self._waits = not scope.places.engines.asynchronous

    def committed(self) -> None:
        """Let values be put there again, and put those that we know."""
        for tombstones, tally in self._put:
            self._do(partial(_timed, tally, tombstones.replace))

    def undone(self) -> None:
        """Let values be put there again."""
        for tombstones, tally in self._put:
            self._do(partial(_timed, tally, tombstones.remove))

    def unknown(self) -> None:
        """Let nothing be put there for some more time.

        The COMMIT may be done yet, and may have taken so long that the
        tombstones have ended, and old values been put there.
        """
        for tombstones, tally in self._put:
            self._do(partial(_timed, tally, tombstones.renew))

    def _do(self, work: Callable[[], object]) -> None:
        if self._waits:
            work()
        else:
            # Nobody waits for it: a task that is cancelled meanwhile would
            # take its COMMIT for one that has failed.
            submit(work)


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
            place = home_of(scope, stale[name, key].place)
            failed.setdefault(place, []).append((name, key))
    announcement = Announcement(scope, put)
    try:
        for place, entries in failed.items():
            note(scope, place, entries)
    except BaseException:
        announcement.undone()
        raise
    return announcement
