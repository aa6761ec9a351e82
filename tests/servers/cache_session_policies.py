"""Ways to cache reads of sessions: ours, others, and broken ones.

===============  ============================================================
ours             the cache of the cluster
plain            get, set, delete
dogpile          ``get_or_create``, and delete
no-tombstones    ours, but nothing is announced
early            ours, but tombstones are removed before COMMIT
no-absence       ours, but objects that are inserted are not announced
old-snapshots    ours, but a session keeps what it sees, however old
no-generation    ours, but values do not say from which primary they are
one-outbox       ours, but a key waits only where is committed last
unawaited        ours, but event loops do not wait for the end of tombstones
adding-to-old    ours, but lists are put back while their keys wait
===============  ============================================================
"""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any, Protocol

from dogpile.cache.api import NO_VALUE

import sqla_shard.cache.lists
import sqla_shard.cache.rows
from sqla_shard import Cluster, unpack
from sqla_shard.cache import cache
from sqla_shard.cache.cache import Announcement
from sqla_shard.cache.protocol import Tombstones
from sqla_shard.cache.regions import open_region
from sqla_shard.cache.rows import ReadPart
from sqla_shard.session.commit import Commits
from tests.models.cache_session_models import cached_classes, REGION
from tests.servers.cache_processes import Delays, Slow
from tests.servers.cache_session_work import Change, look, Subject, sum_of

BROKEN = ("no-tombstones", "early", "no-absence", "old-snapshots")
TOMBSTONE = 8
_EARLY = 0.05
#: How often a writer, of those that are killed, dies right after its COMMIT.
_DIES = 0.1
#: How often a COMMIT takes long, where some do.
_SLOW = 0.5


def region_of(
    servers: list[str], timeout: float, tombstone: int = TOMBSTONE
) -> dict[str, Any]:
    """Return the configuration of the region."""
    return {
        "backend": "sqla_shard.memcached",
        "arguments": {
            "servers": servers,
            "timeout": timeout,
            "retry": 0.2,
            "longest": TOMBSTONE,
        },
        "expiration_time": 600,
        "lease": 2,
        "tombstone": tombstone,
        "wait": 0.02,
    }


class Policy(Protocol):
    """A way to cache values that were read.

    :ivar has_cache: whether its sessions look into that of the cluster.
    :ivar txn: the transaction that is being made.
    """

    has_cache: bool
    txn: str

    @property
    def hits(self) -> int:
        """The number of reads without the database."""

    def look(self, session: Any, subject: Subject, ids: list[int]) -> dict[str, Any]:
        """Read a subject; return what an event has of it."""

    def after(self, subject: Subject, done: Change) -> None:
        """Report that a change is committed."""


def policy_of(settings: Any, cluster: Cluster, rng: random.Random, note: Any) -> Policy:
    """Return the policy of a process."""
    delays = Delays(rng, settings.delay)
    if settings.policy in ("plain", "dogpile"):
        return Theirs(settings, rng, delays)
    return Ours(settings, cluster, rng, delays, note)


# -- ours -----------------------------------------------------------------


class Watched:
    """A store that reports the keys that it could not block.

    :param slow: the store.
    :param broken: how it is broken; the name of a policy.
    """

    def __init__(
        self, slow: Any, broken: str, lost: Callable[[Collection[str]], None]
    ) -> None:
        self._slow = slow
        self._broken = broken
        self._lost = lost
        #: Called before tombstones are removed.
        self.over: Callable[[], None] = lambda: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._slow, name)

    def block(self, keys: Collection[str], token: bytes, expire: int) -> Any:
        if self._broken == "no-tombstones":
            return set()
        if self._broken == "no-absence":
            keys = [key for key in keys if ":none:" not in key]
        lost = self._slow.block(keys, token, expire)
        if lost:
            self._lost(lost)
        if self._broken == "early":
            self._slow.unblock(keys, token)
            # As long as it takes to read a row and keep it, and COMMIT is
            # not sent.
            threading.Event().wait(_EARLY)
        return lost

    def unblock(self, keys: Collection[str], token: bytes) -> Any:
        self.over()
        if self._broken in ("no-tombstones", "early"):
            return set()
        if self._broken == "no-absence":
            keys = [key for key in keys if ":none:" not in key]
        return self._slow.unblock(keys, token)


class Ours:
    """The cache of the cluster; broken, if so wanted."""

    has_cache = True

    def __init__(
        self,
        settings: Any,
        cluster: Cluster,
        rng: random.Random,
        delays: Delays,
        note: Any,
    ) -> None:
        self._rng = rng
        self._note = note
        self._dies = _DIES if settings.life else 0.0
        self.txn = ""
        region = region_of(settings.servers, settings.timeout, settings.tombstone)
        self._cache = cluster.configure_cache(
            {REGION: region}, classes=cached_classes(), prefix=settings.prefix
        )
        opened = self._cache.region(REGION)
        store = Watched(Slow(opened.store, delays), settings.policy, self._lost)
        store.over = self._over
        object.__setattr__(opened, "store", store)
        if settings.slow:
            _commit_slowly(rng, settings.slow)
        _break(settings.policy)

    @property
    def hits(self) -> int:
        return self._cache.stats()[0].hits

    def look(self, session: Any, subject: Subject, ids: list[int]) -> dict[str, Any]:
        return look(session, subject, ids, self._rng)

    def after(self, subject: Subject, done: Change) -> None:
        """Do nothing: the session has done it."""

    def _lost(self, keys: Collection[str]) -> None:
        for subject in {_subject_of(key) for key in keys}:
            # The next write of the shard's items is one of other keys.
            ids = [] if subject.kind == "items" else None
            self._note("exempt", subject, txn=self.txn, ids=ids)

    def _over(self) -> None:
        if self.txn and self._rng.random() < self._dies:
            os.kill(os.getpid(), signal.SIGKILL)


def _break(policy: str) -> None:
    """Leave out a part, for the whole process."""
    if policy == "old-snapshots":
        for module in (sqla_shard.cache.lists, sqla_shard.cache.rows):
            vars(module)["split_by_reader"] = _always_new
    elif policy == "no-generation":
        vars(sqla_shard.cache.rows)["generation_of"] = _always_the_same
    elif policy == "one-outbox":
        outbox_places = cache.outbox_places
        vars(cache)["outbox_places"] = lambda *of: outbox_places(*of)[-1:]
    elif policy == "unawaited":
        Announcement.after_commit = _committed_unawaited
    elif policy == "adding-to-old":
        vars(cache)["has_pending"] = lambda *of: False


def _committed_unawaited(announcement: Any) -> None:
    replace = partial(announcement._each, Tombstones.replace)
    threading.Thread(target=replace).start()


def _commit_slowly(rng: random.Random, seconds: float) -> None:
    """Let some COMMITs be sent late, after they were announced."""
    before = Commits._commit_all

    def commit_all(commits: Any, written: Any) -> None:
        if rng.random() < _SLOW:
            threading.Event().wait(seconds)
        before(commits, written)

    Commits._commit_all = commit_all


def _always_the_same(places: Any, place: Any) -> str:
    return "same"


def _always_new(scope: Any, places: Mapping[int, Any]) -> Iterator[Any]:
    # In the session's own transaction, whatever that has seen.
    yield ReadPart(places, scope, is_separate=False, leases=True)


def _subject_of(key: str) -> Subject:
    """Return what an item of our cache belongs to."""
    _, table, *_, last = key.split(":")
    if table == "f":
        first, second = last.split(",")
        return sum_of(int(first), int(second))
    number = int(last)
    if table == "cache_items":
        shard_id = number if ":none:" in key else unpack(number).shard_id
        return Subject(kind="items", number=shard_id)
    kinds = {"cache_pins": "pin", "cache_bags": "bag", "cache_marks": "marks"}
    return Subject(kind=kinds[table], number=number)


# -- others ---------------------------------------------------------------


class Theirs:
    """``get_or_create``, or its parts: get, set and delete."""

    has_cache = False

    def __init__(self, settings: Any, rng: random.Random, delays: Delays) -> None:
        self._rng = rng
        self._delays = delays
        self._plain = settings.policy == "plain"
        self._prefix = settings.prefix
        self.hits = 0
        self.txn = ""
        self._region = open_region(
            REGION, region_of(settings.servers, settings.timeout)
        ).region

    def look(self, session: Any, subject: Subject, ids: list[int]) -> dict[str, Any]:
        if subject.kind == "items":
            ids = ids[:3]
            seen = [
                self._kept(session, subject, f"{subject}:{one}", [one]) for one in ids
            ]
            there = [one for found in seen for one in found["ids"]]
            return {"ids": there, "asked": ids}
        return self._kept(session, subject, str(subject), [])

    def _kept(
        self, session: Any, subject: Subject, key: str, ids: list[int]
    ) -> dict[str, Any]:
        is_loaded = False

        def create() -> dict[str, Any]:
            nonlocal is_loaded
            is_loaded = True
            self._delays()
            found = look(session, subject, ids, self._rng)
            self._delays()
            return found

        key = f"{self._prefix}:{key}"
        if not self._plain:
            found = self._region.get_or_create(key, create)
        else:
            found = self._region.get(key)
            if found is NO_VALUE:
                found = create()
                self._region.set(key, found)
        self.hits += not is_loaded
        result: dict[str, Any] = found
        return result

    def after(self, subject: Subject, done: Change) -> None:
        self._delays()
        keys = [str(subject)]
        if subject.kind == "items":
            keys = [f"{subject}:{one}" for one in (*done.came, *done.went)]
        self._region.delete_multi([f"{self._prefix}:{key}" for key in keys])
