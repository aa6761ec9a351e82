"""Keys that could not be taken out of a cache, written down by who wrote.

A transaction whose tombstone could not be put somewhere leaves a row with the
key on the shard that it writes; it is there if, and only if, the transaction
has committed.  The result of a function may depend on all that is written:
its key has a row on each server.  :func:`drain` takes the key out of the cache
when its node answers again, and deletes the row after that.  Until then what
the node has of it may be old, for those who reach the node.

A row that is read is committed: the key is taken out after the COMMIT.  That
does not hold with READ UNCOMMITTED, with which values of the cache could be
those of a transaction that is rolled back, too.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from datetime import timedelta
from functools import partial
from secrets import token_bytes
from typing import Any

from sqlalchemy import and_
from sqlalchemy import bindparam
from sqlalchemy import delete
from sqlalchemy import insert
from sqlalchemy import or_
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from sqla_shard import exc
from sqla_shard.cache.store import check_keys
from sqla_shard.cache.store import Store
from sqla_shard.cache.store import TOKEN_BYTES
from sqla_shard.cache.waiting import by_region
from sqla_shard.cache.waiting import DrainReport
from sqla_shard.cache.waiting import MADE
from sqla_shard.cache.waiting import NONE
from sqla_shard.cache.waiting import outbox_size
from sqla_shard.cache.waiting import Waiting
from sqla_shard.cache.waiting import WHICH
from sqla_shard.dialects.sql import Moment
from sqla_shard.engines import by_server
from sqla_shard.engines.troubles import listed
from sqla_shard.engines.troubles import short
from sqla_shard.engines.troubles import Trouble
from sqla_shard.intents.applying import despite_others
from sqla_shard.intents.applying import transaction
from sqla_shard.intents.intent import Address
from sqla_shard.intents.intent import place_at
from sqla_shard.intents.reading import read_all
from sqla_shard.internal import INTENT_BYTES
from sqla_shard.internal import LONGEST_REGION
from sqla_shard.internal import OUTBOX
from sqla_shard.rendering import Place
from sqla_shard.session import ShardSession
from sqla_shard.session.contract import Home
from sqla_shard.session.contract import Scope
from sqla_shard.types import UTCTimestamp

__all__ = [
    "DrainReport",
    "Waiting",
    "drain",
    "may_wait",
    "note",
    "outbox_size",
]

_log = logging.getLogger(__name__)

_PARALLEL = 8
_BATCH = 500

_INSERT = insert(OUTBOX).values(
    token=bindparam("token"),
    region=bindparam("region"),
    cache_key=bindparam("cache_key"),
    shard_id=bindparam("shard_id"),
    created_at=Moment(),
)


def note(
    session: Scope, place: Place, entries: Iterable[tuple[str, str]]
) -> None:
    """Write keys down in the running transaction.

    It may be called while that is being committed, before the first server
    is told.

    :param place: a shard on whose server the transaction has begun: the one
        that it writes.
    :param entries: names of regions, and keys.
    :raises CacheKeyError: when one cannot be a key.
    :raises CacheOptionError: when one cannot be the name of a region.
    :raises LookupError: when the transaction has not begun there.
    :raises SQLAlchemyError: when it cannot be written: roll back.
    """
    unique = list(dict.fromkeys(entries))
    # Not later: the server would cut off what is too long, or refuse it.
    check_keys(key for _, key in unique)
    for region in {region for region, _ in unique}:
        if not 1 <= len(region) <= LONGEST_REGION:
            raise exc.CacheOptionError(
                f"is not 1 to {LONGEST_REGION} characters",
                option="region",
                value=region,
            )
    rows = [
        {
            "token": token_bytes(INTENT_BYTES),
            "region": region,
            "cache_key": key,
            "shard_id": place.shard_id,
        }
        for region, key in unique
    ]
    if rows:
        session.begun_view(place).execute(_INSERT, rows)


_ANY = select(OUTBOX.c.token).limit(1)


def may_wait(scope: Scope, place: Place) -> bool:
    """Tell whether keys wait on a shard, right after COMMIT.

    It is asked on the connection of the transaction: one more of each of
    those that commit at the same time could be more than the pool has.

    :param place: a shard that the transaction has written.
    :returns: True, too, where the server does not say.
    """
    try:
        connection = scope.begun_view(place)
        found = connection.execute(_ANY).first()
        # Not left to the pool: a task that was cancelled would lose the
        # connection.
        connection.rollback()
    except SQLAlchemyError as error:
        _log.warning(
            "lists of shard %s of %r that were appended to are not put into "
            "the cache, but read anew: %s",
            place.shard_id,
            place.keyspace,
            short(error),
            extra={"action": "cache", "server": place.server},
        )
        return True
    return found is not None


# -- taking them out


def drain(
    home: Home, stores: Mapping[str, Store], *, batch: int = _BATCH
) -> DrainReport:
    """Take the keys that wait out of their caches, once, on all shards.

    Several may do that at the same time: what both take out is taken out
    twice, and deleted once.

    :param home: the cluster.
    :param stores: by the names of their regions.
    :param batch: how many are read, and deleted in a transaction, at most.
    :raises ValueError: when that is no number from 1.
    """
    if type(batch) is not int or batch < 1:
        raise ValueError(f"batch={batch!r}; it is a number, from 1")
    found, troubles = read_all(home, WHICH, WHICH)
    places = home.places
    addresses = {(keyspace, row.shard_id) for keyspace, row in found}
    jobs = [
        partial(_drain_server, home, stores, batch, on_one)
        for on_one in by_server(
            places.place(places.keyspace(keyspace, ""), shard_id)
            for keyspace, shard_id in sorted(addresses)
        )
    ]
    removed = 0
    waiting: list[Waiting] = []
    for done in places.engines.at_once(jobs, "cache", _PARALLEL):
        removed += done.removed
        waiting += done.waiting
        troubles += done.troubles
    sums = by_region(waiting).values()
    return DrainReport(
        removed=removed,
        left=tuple(one for one in sums if one.region in stores),
        unknown=tuple(one for one in sums if one.region not in stores),
        troubles=tuple(listed(troubles)),
    )


@dataclass
class _Done:
    """What was done on one server."""

    removed: int = 0
    #: By region: sums, for there may be millions.
    rows: Counter[str] = field(default_factory=Counter)
    oldest: dict[str, timedelta] = field(default_factory=dict)
    troubles: list[Trouble] = field(default_factory=list)

    def wait_for(self, rows: Iterable[Any]) -> None:
        """Take note of rows that stay."""
        for row in rows:
            region = row.region
            self.rows[region] += 1
            age = row.now - row.made
            if age > self.oldest.get(region, NONE):
                self.oldest[region] = age

    @property
    def waiting(self) -> list[Waiting]:
        """Those that stay, by region."""
        return [
            Waiting(region=name, rows=n, oldest=self.oldest.get(name, NONE))
            for name, n in self.rows.items()
        ]


def _drain_server(
    home: Home,
    stores: Mapping[str, Store],
    batch: int,
    places: Sequence[Place],
) -> _Done:
    done = _Done()
    for number, place in enumerate(places):
        try:
            _drain_shard(home, stores, batch, place.address, done)
        except exc.ServerUnreachableError as error:
            # Each of the others would wait until it gives up, too.
            left = len(places) - number
            done.troubles.append(Trouble(place.server, error, left))
            break
        except SQLAlchemyError as error:
            done.troubles.append(Trouble(place.server, error, 1))
    return done


_PAGE = (
    select(
        OUTBOX.c.token,
        OUTBOX.c.region,
        OUTBOX.c.cache_key,
        MADE.label("made"),
        Moment().label("now"),
    )
    .order_by(OUTBOX.c.created_at, OUTBOX.c.token)
    .limit(bindparam("batch"))
)
_made, _since = MADE, bindparam("the_made", type_=UTCTimestamp())
_NEXT = _PAGE.where(
    # For the index, which neither server finds by what follows.
    _made >= _since,
    or_(
        _made > _since,
        and_(_made == _since, OUTBOX.c.token > bindparam("the_token")),
    ),
)


def _drain_shard(
    home: Home,
    stores: Mapping[str, Store],
    batch: int,
    address: Address,
    done: _Done,
) -> None:
    """Go through all that one shard has.

    Not only through the oldest: those of a node that is down for long would
    be the oldest one day, and keep the others from being read.
    """
    rows = _read(home, address, _PAGE, {"batch": batch})
    # What comes later is for the next pass, or this one might never end.
    until = rows[0].now if rows else None
    while rows:
        gone = _remove(stores, rows)
        if gone:
            delete_them = partial(_delete, home, address, gone)
            done.removed += despite_others(home, delete_them)
        done.wait_for(row for row in rows if row.token not in gone)
        last = rows[-1]
        if len(rows) < batch or last.made > until:
            break
        after = {"the_made": last.made, "the_token": last.token}
        rows = _read(home, address, _NEXT, {"batch": batch, **after})


def _read(
    home: Home, address: Address, statement: Any, values: Mapping[str, Any]
) -> Sequence[Any]:
    with ShardSession(cluster=home) as session:
        at = {"place": place_at(session, address)}
        return session.execute(statement, values, bind_arguments=at).all()


def _remove(stores: Mapping[str, Store], rows: Iterable[Any]) -> set[bytes]:
    """Take keys out of their caches; return the tokens of those gone."""
    by_name: dict[str, dict[bytes, str]] = {}
    for row in rows:
        by_name.setdefault(row.region, {})[row.token] = row.cache_key
    gone: set[bytes] = set()
    for name, keys in by_name.items():
        store = stores.get(name)
        if store is None:
            continue
        failed = _unblock(store, set(keys.values()))
        gone.update(token for token, key in keys.items() if key not in failed)
    return gone


def _unblock(store: Store, keys: Collection[str]) -> set[str]:
    """Take keys out; return those where that was not possible."""
    left = set(keys)
    failed: set[str] = set()
    while left:
        # A token of nobody: tombstones of others stay.
        token = token_bytes(TOKEN_BYTES)
        try:
            # Not removed alone: whoever has taken the value, to put it back
            # with something added, must see that it was not to be.
            lost = store.block(left, token, store.longest)
            return failed | lost | store.unblock(left - lost, token)
        except exc.CacheKeyError as error:
            # Written by something else.  It must not keep the others.
            failed.add(str(error.key))
            left.discard(str(error.key))
    return failed


def _delete(home: Home, address: Address, tokens: Collection[bytes]) -> int:
    """Delete rows; return how many of them were there still."""
    # In one order: two that lock them crosswise stop each other.
    these = delete(OUTBOX).where(OUTBOX.c.token.in_(sorted(tokens)))
    with transaction(home) as session:
        at = {"place": place_at(session, address)}
        result: Any = session.execute(these, bind_arguments=at)
        count: int = result.rowcount
    return count
