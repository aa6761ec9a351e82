"""Reads of tables of the library on all virtual shards.

A server that does not respond is returned as unreachable, along with the rows of
the other servers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, TYPE_CHECKING, TypeVar

from sqlalchemy import Engine, func, Select, select, Table
from sqlalchemy.exc import SQLAlchemyError

from sqla_shard.engine import by_server
from sqla_shard.engine.rendering import MOST_BRANCHES, Place
from sqla_shard.engine.unreachable import for_each_shard, UnreachableServer
from sqla_shard.exc import ShardMissingError
from sqla_shard.session import ShardSession
from sqla_shard.util.logs import careful_log

if TYPE_CHECKING:
    from sqla_shard import Cluster

T = TypeVar("T")

#: Maximum number of servers that are read in parallel.
PARALLEL = 8

#: Reads the given shards of one server, in a transaction.
Read = Callable[[ShardSession, Sequence[Place]], list[T]]
#: Returns whether a shard with a missing table or database has no rows.
IsEmpty = Callable[[Place, ShardMissingError], bool]

_log = careful_log(__name__)


def scan(
    cluster: Cluster,
    read: Read[T],
    is_empty: IsEmpty = lambda place, error: False,
    *,
    purpose: str = "outbox",
    kinds: Collection[str] | None = None,
) -> tuple[list[T], list[UnreachableServer]]:
    """Read all shards of all keyspaces, several servers in parallel.

    :param read: called with up to :data:`MOST_BRANCHES` shards of a server, and
        again without those that lack a table or database.
    :param is_empty: called for a shard whose table or database is missing.
    :param purpose: part of the names of the threads.
    :param kinds: the kinds of keyspaces that are read; None for all.
    :returns: the rows, and the shards that were not read.
    """
    places = cluster.places
    jobs = [
        partial(_on_server, cluster, read, is_empty, group)
        for keyspace in places.topology.keyspaces.values()
        if kinds is None or keyspace.kind in kinds
        for group in by_server(places.all_places(keyspace))
    ]
    rows: list[T] = []
    unreachable: list[UnreachableServer] = []
    for answers, missed in places.engines.in_parallel(jobs, purpose, PARALLEL):
        rows += answers
        unreachable += missed
    return rows, unreachable


def _on_server(
    cluster: Cluster, read: Read[T], is_empty: IsEmpty, group: Sequence[Place]
) -> tuple[list[T], list[UnreachableServer]]:
    unreachable: list[UnreachableServer] = []
    lacking = group
    while group and lacking:
        try:
            try:
                return _in_parts(cluster, read, group), unreachable
            except ShardMissingError as error:
                # The others may have rows.  The server, which is asked again,
                # may be lost by now.
                lacking = _lacking(cluster, group, error)
                missed = [place for place in lacking if not is_empty(place, error)]
                if missed:
                    unreachable.append(UnreachableServer.of(missed, error))
                gone = {place.address for place in lacking}
                group = [place for place in group if place.address not in gone]
        except SQLAlchemyError as error:
            return [], [*unreachable, UnreachableServer.of(group, error)]
    rows: list[T] = []

    def read_one(place: Place) -> None:
        try:
            rows.extend(_in_parts(cluster, read, [place]))
        except ShardMissingError as error:
            if not is_empty(place, error):
                raise

    return rows, [*unreachable, *for_each_shard(group, read_one)]


def _in_parts(cluster: Cluster, read: Read[T], group: Sequence[Place]) -> list[T]:
    """Return the rows of shards of one server, read in several transactions.

    A transaction keeps a lock on each table that it has read, and MariaDB searches
    them one by one for each further table.
    """
    rows: list[T] = []
    for start in range(0, len(group), MOST_BRANCHES):
        with ShardSession(cluster=cluster, autoflush=False) as session:
            rows += read(session, group[start : start + MOST_BRANCHES])
    return rows


def _lacking(
    cluster: Cluster, group: Sequence[Place], error: ShardMissingError
) -> Sequence[Place]:
    """Return the shards without the table or database of an error.

    All of a fleet may lack it: one statement, in place of one for each shard.

    :returns: none if they are not known.
    """
    first = group[0]
    names = first.backend.catalogue.having(first.engine, error.orig)
    if names is None:
        return ()
    keyspace = cluster.places.keyspace(first.keyspace, "")
    return [one for one in group if keyspace.database_for(one.shard_id) not in names]


def read_all(
    cluster: Cluster,
    which: Any,
    statement: Any,
    parameters: Mapping[str, Any] | None = None,
    *,
    reports_missing: bool = False,
) -> tuple[list[tuple[str, Any]], list[UnreachableServer]]:
    """Return the rows of a statement from all shards of all keyspaces.

    :param which: selects the numbers of shards that have rows.  Most have
        none, and unlike a statement with a LIMIT, one statement can read
        hundreds of them.
    :param reports_missing: whether shards of objects without the table are
        returned as unreachable; by default they are treated as empty.
    :returns: the name of the keyspace and the row, for each row; and the
        shards that were not read, such as one without a database.
    """

    def read(session: ShardSession, places: Sequence[Place]) -> list[tuple[str, Any]]:
        def rows_of(query: Any, shards: Sequence[Place]) -> Any:
            return session.execute(query, parameters, bind_arguments={"places": shards})

        numbers = set(rows_of(which, places).scalars())
        shards = [place for place in places if place.shard_id in numbers]
        rows = rows_of(statement, shards) if shards else ()
        return [(places[0].keyspace, row) for row in rows]

    databases: dict[Engine, Collection[str]] = {}

    def has_no_table(place: Place, error: ShardMissingError) -> bool:
        keyspace = cluster.places.keyspace(place.keyspace, "")
        if reports_missing and keyspace.kind == "objects":
            return False
        if error.lacks == "grant":
            # There may be rows that this account must not read.
            return False
        # MariaDB reports a missing database as a missing table.
        names = databases.get(place.engine)
        if names is None:
            names = place.backend.catalogue.databases(place.engine)
            databases[place.engine] = names
        if keyspace.database_for(place.shard_id) not in names:
            return False
        _log.info(
            "shard %d of %s on %s has no table of the outbox: %s",
            place.shard_id,
            place.keyspace,
            place.server,
            error.orig,
            extra={"action": "read", "server": place.server},
        )
        return True

    return scan(cluster, read, has_no_table)


def oldest(table: Table, moment: str, shard: str) -> Select[Any]:
    """Return a SELECT of the shard number of the oldest row.

    The SELECT uses an index.

    :param moment: the column with the age.
    :param shard: the column with the shard number.
    """
    inner = table.alias("oldest")
    first = select(func.min(inner.c[moment])).scalar_subquery()
    return select(table.c[shard]).where(table.c[moment] == first)


def check_age(name: str, age: object) -> None:
    """Check the minimum age of rows.

    :raises ValueError: if it is not a timedelta, or negative.
    """
    if not isinstance(age, timedelta) or age < timedelta(0):
        raise ValueError(f"{name}={age!r} must be a timedelta, 0 or more")


def check_batch(batch: object) -> None:
    """Check the maximum number of rows of a batch.

    :raises ValueError: if it is not an integer, 1 or more.
    """
    if type(batch) is not int or batch < 1:
        raise ValueError(f"batch={batch!r} must be an integer, 1 or more")
