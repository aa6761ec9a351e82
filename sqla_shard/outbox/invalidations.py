"""Pending invalidations: keys that a transaction could not invalidate.

A transaction that cannot put a tombstone inserts a row with the key on the
shard that it writes; the row exists if, and only if, the transaction has
committed.  The result of a function may depend on every row that is written:
so a row with its key is inserted on each server.  :func:`drain` invalidates
the key when its node responds again, and deletes the row after that.  Until
then the node may have a stale value, which processes that can connect to it
read.

Only committed rows are read: the key is invalidated after the COMMIT.  This is
not true with READ UNCOMMITTED, with which values of a transaction that is
rolled back could also be cached.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from secrets import token_bytes
from typing import Any, TYPE_CHECKING

from sqlalchemy import and_, bindparam, delete, func, insert, or_, select, type_coerce
from sqlalchemy.exc import SQLAlchemyError

from sqla_shard import exc
from sqla_shard.dialects.sql import ServerTime
from sqla_shard.engine import by_server
from sqla_shard.engine.rendering import Place
from sqla_shard.engine.unreachable import (
    each_once,
    for_each_shard,
    short,
    unreachable_values,
    UnreachableServer,
)
from sqla_shard.outbox.apply import Address, place_at, retried, transaction
from sqla_shard.outbox.scan import check_batch, PARALLEL, read_all
from sqla_shard.outbox.tables import check_keys, LONGEST_REGION, OUTBOX, TOKEN_BYTES
from sqla_shard.session import ShardSession
from sqla_shard.types import UTCTimestamp
from sqla_shard.util.json_values import JsonObject
from sqla_shard.util.logs import careful_log

if TYPE_CHECKING:
    from sqla_shard import Cluster
    from sqla_shard.cache import Store


# -- pending invalidations of all shards


NONE = timedelta(0)
"""The age of a row that is newer than the clock of its server."""


@dataclass(frozen=True, kw_only=True)
class Waiting(JsonObject):
    """Pending invalidations of a region.

    :ivar region: name of the region.
    :ivar rows: the number of pending invalidations.
    :ivar oldest: the age of the oldest one, by the clock of its server.
    :ivar keyspace: keyspace of the shard that has them; None for all shards.
    :ivar shard_id: number of that shard; None for all shards.
    """

    region: str
    rows: int
    oldest: timedelta
    keyspace: str | None = None
    shard_id: int | None = None


#: The time at which a row was written.
MADE = type_coerce(OUTBOX.c.created_at, UTCTimestamp())
_SIZE = select(
    OUTBOX.c.shard_id,
    OUTBOX.c.region,
    func.count().label("rows"),
    type_coerce(func.min(OUTBOX.c.created_at), UTCTimestamp()).label("made"),
    ServerTime().label("now"),
).group_by(OUTBOX.c.shard_id, OUTBOX.c.region)

_one = OUTBOX.alias("one")
#: Selects the number of a shard that has rows, from one row by its primary
#: key: one statement reads hundreds of shards.
WHICH = select(OUTBOX.c.shard_id).where(
    OUTBOX.c.token == select(func.min(_one.c.token)).scalar_subquery()
)


def outbox_size(cluster: Cluster) -> tuple[list[Waiting], list[UnreachableServer]]:
    """Return the numbers of pending invalidations, by shard and region.

    :returns: the numbers, for shards with pending invalidations; and the
        shards that were not read, or do not have the table: on these a
        transaction is rolled back if its cache node does not respond.
    """
    rows, unreachable = read_all(cluster, WHICH, _SIZE, reports_missing=True)
    sizes = [
        Waiting(
            region=row.region,
            rows=row.rows,
            oldest=max(row.now - row.made, NONE),
            keyspace=keyspace,
            shard_id=row.shard_id,
        )
        for keyspace, row in rows
    ]
    sizes.sort(key=lambda one: (one.region, one.keyspace, one.shard_id))
    return sizes, unreachable


def by_region(sizes: Iterable[Waiting]) -> dict[str, Waiting]:
    """Return the sums by region, in the order of their names."""
    sums: dict[str, Waiting] = {}
    for one in sorted(sizes, key=lambda one: one.region):
        before = sums.get(one.region)
        sums[one.region] = Waiting(
            region=one.region,
            rows=one.rows + (before.rows if before else 0),
            oldest=max(one.oldest, before.oldest if before else NONE),
        )
    return sums


@dataclass(frozen=True, kw_only=True)
class DrainReport:
    """The result of one pass.

    :ivar removed: the number of keys that were invalidated.
    :ivar left: pending invalidations of nodes that do not respond, by region.
    :ivar unknown: pending invalidations of regions that are not configured in
        this process.
    :ivar unreachable: servers of which shards could not be read or written.
    """

    removed: int
    left: tuple[Waiting, ...]
    unknown: tuple[Waiting, ...]
    unreachable: tuple[UnreachableServer, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is left, and every server was read."""
        return not (self.left or self.unknown or self.unreachable)

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes as JSON values."""

        def sums(waiting: Sequence[Waiting]) -> list[dict[str, Any]]:
            return [
                {
                    "region": one.region,
                    "rows": one.rows,
                    "oldest": one.oldest.total_seconds(),
                }
                for one in waiting
            ]

        return {
            "removed": self.removed,
            "left": sums(self.left),
            "unknown": sums(self.unknown),
            "unreachable": unreachable_values(self.unreachable),
        }

    def __str__(self) -> str:
        number = sum(one.rows for one in self.left)
        unknown = sum(one.rows for one in self.unknown)
        return f"{self.removed} removed, {number} left, {unknown} of unknown regions"


_log = careful_log(__name__)

_BATCH = 500

_INSERT = insert(OUTBOX).values(
    token=bindparam("token"),
    region=bindparam("region"),
    cache_key=bindparam("cache_key"),
    shard_id=bindparam("shard_id"),
    created_at=ServerTime(),
)


def write_pending(
    session: ShardSession, place: Place, entries: Iterable[tuple[str, str]]
) -> None:
    """Insert pending invalidations in the running transaction.

    It may be called during the commit of the session, before the first COMMIT
    is sent.

    :param place: location of a shard that the transaction writes.
    :param entries: the name of the region and the key of each.
    :raises CacheKeyError: if a key is not valid.
    :raises OptionError: if the name of a region is not valid.
    :raises LookupError: if the transaction has not begun on that server.
    :raises SQLAlchemyError: on server error; roll back the transaction.
    """
    unique = list(dict.fromkeys(entries))
    # Check them before the INSERT: the server would truncate or refuse longer
    # keys.
    check_keys(key for _, key in unique)
    for region in {region for region, _ in unique}:
        if not 1 <= len(region) <= LONGEST_REGION:
            raise exc.OptionError(
                f"is not 1 to {LONGEST_REGION} characters",
                option="region",
                value=region,
            )
    rows = [
        {
            "token": token_bytes(TOKEN_BYTES),
            "region": region,
            "cache_key": key,
            "shard_id": place.shard_id,
        }
        for region, key in unique
    ]
    if rows:
        session._open_view(place).execute(_INSERT, rows)


_ANY = select(OUTBOX.c.token).limit(1)


def has_pending(session: ShardSession, place: Place) -> bool:
    """Return whether a shard has pending invalidations, after a COMMIT.

    It uses the connection of the transaction: second connections for several
    transactions could exhaust the pool.

    :param place: location of a shard that the transaction has written.
    :returns: True also on server error.
    """
    try:
        connection = session._open_view(place)
        row = connection.execute(_ANY).first()
        # Do not leave the ROLLBACK to the pool: a cancelled task would lose
        # the connection.
        connection.rollback()
    except SQLAlchemyError as error:
        _log.warning(
            "lists of shard %s of %r that were appended to are invalidated, "
            "and not filled: %s",
            place.shard_id,
            place.keyspace,
            short(error),
            extra={"action": "cache", "server": place.server},
        )
        return True
    return row is not None


# -- repair


def drain(
    cluster: Cluster, stores: Mapping[str, Store], *, batch: int = _BATCH
) -> DrainReport:
    """Invalidate the pending keys of all shards, once.

    Several processes may run it at the same time: a key that two of them read
    is invalidated twice, and its row deleted once.

    :param stores: the stores, by the names of their regions.
    :param batch: maximum number of rows that one statement reads or deletes.
    :raises ValueError: if the batch is not an integer, 1 or more.
    """
    check_batch(batch)
    rows, unreachable = read_all(cluster, WHICH, WHICH)
    places = cluster.places
    addresses = {(keyspace, row.shard_id) for keyspace, row in rows}
    jobs = [
        partial(_drain_server, cluster, stores, batch, on_one)
        for on_one in by_server(
            places.place(places.keyspace(keyspace, ""), shard_id)
            for keyspace, shard_id in sorted(addresses)
        )
    ]
    removed = 0
    waiting: list[Waiting] = []
    for done in places.engines.in_parallel(jobs, "cache", PARALLEL):
        removed += done.removed
        waiting += done.waiting
        unreachable += done.unreachable
    sums = by_region(waiting).values()
    return DrainReport(
        removed=removed,
        left=tuple(one for one in sums if one.region in stores),
        unknown=tuple(one for one in sums if one.region not in stores),
        unreachable=each_once(unreachable),
    )


@dataclass
class _Done:
    """The result of one server."""

    removed: int = 0
    #: Sums by region: there may be millions of rows.
    rows: Counter[str] = field(default_factory=Counter)
    oldest: dict[str, timedelta] = field(default_factory=dict)
    unreachable: list[UnreachableServer] = field(default_factory=list)

    def add_left(self, rows: Iterable[Any]) -> None:
        """Count rows that were not deleted."""
        for row in rows:
            region = row.region
            self.rows[region] += 1
            age = row.now - row.made
            if age > self.oldest.get(region, NONE):
                self.oldest[region] = age

    @property
    def waiting(self) -> list[Waiting]:
        """The rows that were not deleted, by region."""
        return [
            Waiting(region=name, rows=n, oldest=self.oldest.get(name, NONE))
            for name, n in self.rows.items()
        ]


def _drain_server(
    cluster: Cluster, stores: Mapping[str, Store], batch: int, places: Sequence[Place]
) -> _Done:
    done = _Done()
    done.unreachable = for_each_shard(
        places, lambda place: _drain_shard(cluster, stores, batch, place.address, done)
    )
    return done


_PAGE = (
    select(
        OUTBOX.c.token,
        OUTBOX.c.region,
        OUTBOX.c.cache_key,
        MADE.label("made"),
        ServerTime().label("now"),
    )
    .order_by(OUTBOX.c.created_at, OUTBOX.c.token)
    .limit(bindparam("batch"))
)
_made, _since = MADE, bindparam("the_made", type_=UTCTimestamp())
_NEXT = _PAGE.where(
    # Redundant, but MySQL and SQLite do not use the index for an OR alone.
    _made >= _since,
    or_(_made > _since, and_(_made == _since, OUTBOX.c.token > bindparam("the_token"))),
)


def _drain_shard(
    cluster: Cluster,
    stores: Mapping[str, Store],
    batch: int,
    address: Address,
    done: _Done,
) -> None:
    """Invalidate all pending keys of one shard.

    It reads all keys, and not only a batch of the oldest: the keys of a node
    that is down for long would become the oldest, and the keys of other nodes
    would never be read.
    """
    rows = _read(cluster, address, _PAGE, {"batch": batch})
    # Leave newer rows to the next pass; otherwise this one might never end.
    until = rows[0].now if rows else None
    while rows:
        tokens = _invalidate(stores, rows)
        if tokens:
            delete_rows = partial(_delete, cluster, address, tokens)
            done.removed += retried(cluster, delete_rows)
        done.add_left(row for row in rows if row.token not in tokens)
        last = rows[-1]
        if len(rows) < batch or last.made > until:
            break
        after = {"the_made": last.made, "the_token": last.token}
        rows = _read(cluster, address, _NEXT, {"batch": batch, **after})


def _read(
    cluster: Cluster, address: Address, statement: Any, values: Mapping[str, Any]
) -> Sequence[Any]:
    with ShardSession(cluster=cluster) as session:
        at = {"place": place_at(session, address)}
        return session.execute(statement, values, bind_arguments=at).all()


def _invalidate(stores: Mapping[str, Store], rows: Iterable[Any]) -> set[bytes]:
    """Invalidate keys; return the tokens of the rows to delete."""
    by_name: dict[str, dict[bytes, str]] = {}
    for row in rows:
        by_name.setdefault(row.region, {})[row.token] = row.cache_key
    done: set[bytes] = set()
    for name, keys in by_name.items():
        store = stores.get(name)
        if store is None:
            continue
        failed = _invalidate_keys(store, keys.values())
        done.update(token for token, key in keys.items() if key not in failed)
    return done


def _invalidate_keys(store: Store, keys: Iterable[str]) -> set[str]:
    """Invalidate keys; return those that could not be invalidated."""
    stale = set(keys)
    failed: set[str] = set()
    while stale:
        # Use a new token, so that tombstones of other transactions stay.
        token = token_bytes(TOKEN_BYTES)
        try:
            # Put a tombstone first: a transaction that has taken the value, to
            # fill an edited one, must lose its lease.
            lost = store.block(stale, token, store.longest)
            return failed | lost | store.unblock(stale - lost, token)
        except exc.CacheKeyError as error:
            # Another program has inserted the key; invalidate the others.
            failed.add(str(error.key))
            stale.discard(str(error.key))
    return failed


def _delete(cluster: Cluster, address: Address, tokens: Collection[bytes]) -> int:
    """Delete rows; return the number of rows that still existed."""
    # Delete them in one order; otherwise two processes would deadlock.
    these = delete(OUTBOX).where(OUTBOX.c.token.in_(sorted(tokens)))
    with transaction(cluster) as session:
        at = {"place": place_at(session, address)}
        result: Any = session.execute(these, bind_arguments=at)
        count: int = result.rowcount
    return count
