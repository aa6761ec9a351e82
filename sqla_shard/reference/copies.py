"""The rows of a reference table on one shard: reading, comparing, changing.

The lowest shard of the keyspace is the *truth*; every other one is a copy of
it.  A copy is changed in one transaction that locks all of its rows first,
reads the truth then, and writes what differs.  Of two that do so at the same
time, the second sees what was true when the first had ended; so whatever
their order, the copy ends as the truth does.

On the server of the truth all that is one transaction, whose snapshot begins
after the lock was taken: a locking read makes none.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from typing import TypeVar

from sqlalchemy import BigInteger
from sqlalchemy import Connection
from sqlalchemy import delete
from sqlalchemy import literal
from sqlalchemy import select
from sqlalchemy import tuple_
from sqlalchemy.exc import DBAPIError

from sqla_shard.dialects import Failure
from sqla_shard.dialects.sql import Upsert
from sqla_shard.engines import Places
from sqla_shard.exc import ServerUnreachableError
from sqla_shard.exc import UnknownKeyspaceError
from sqla_shard.ids import SHARD_SHIFT
from sqla_shard.reference.rows import Key
from sqla_shard.reference.rows import Rows
from sqla_shard.rendering import Place
from sqla_shard.rendering import TRANSLATE
from sqla_shard.routing import spec_of
from sqla_shard.scattering import OPTION
from sqla_shard.scattering import Plan
from sqla_shard.types.binds import Prefix

__all__ = ["Copies", "Difference", "in_turn"]

T = TypeVar("T")

#: Rows of one statement: an UPSERT or DELETE of some hundred is as quick as
#: one of more, and far below max_allowed_packet.
_BATCH = 500
#: How often a transaction is begun that loses against others.
_ATTEMPTS = 10


@dataclass(frozen=True, kw_only=True)
class Difference:
    """What a copy has other than the truth.

    :ivar missing: rows that it has not.
    :ivar different: rows of keys that it has with other values.
    :ivar extra: keys that the truth has not.
    """

    missing: Rows
    different: Rows
    extra: tuple[Key, ...]

    @classmethod
    def between(cls, there: Rows, wanted: Rows) -> Difference:
        """Return how rows differ from those that are wanted."""
        return cls(
            missing={k: row for k, row in wanted.items() if k not in there},
            different={
                k: row
                for k, row in wanted.items()
                if k in there and there[k] != row
            },
            extra=tuple(k for k in there if k not in wanted),
        )

    def __bool__(self) -> bool:
        return bool(self.missing or self.different or self.extra)


class Copies:
    """A reference table of a cluster.

    :param table: of a reference class.
    :raises UnknownKeyspaceError: when its keyspace is not there, or of
        another kind.

    :ivar truth: the lowest shard.
    :ivar others: the other shards.
    """

    def __init__(self, table: Any, places: Places) -> None:
        spec = spec_of(table)
        self.name = str(spec.reference)
        self.keyspace = places.keyspace(spec.keyspace, "objects")
        if self.keyspace.kind != "objects":
            raise UnknownKeyspaceError(
                f"{self.name} is in keyspace {self.keyspace.name!r} of kind "
                f"{self.keyspace.kind!r}; a reference table belongs to one "
                'of kind "objects"',
                keyspace=self.keyspace.name,
                known=[
                    one.name
                    for one in places.topology.keyspaces.values()
                    if one.kind == "objects"
                ],
            )
        self.truth, *self.others = places.all_places(self.keyspace)
        self._table = table
        columns = tuple(table.c)
        self._names = [column.key for column in columns]
        self._key = tuple(
            index for index, c in enumerate(columns) if c.primary_key
        )
        self._read = select(*columns)
        self._read_lock = self._read.with_for_update()
        # Behind the prefix of an id stands the number of the shard.
        self._read_many = select(literal(Prefix(0), BigInteger()), *columns)

    def read(self, connection: Connection) -> Rows:
        """Return the truth."""
        return self._rows(_send(connection, self.truth, self._read))

    def lock(self, connection: Connection, place: Place) -> Rows:
        """Begin a transaction; return the rows of a shard, locked."""
        place.backend.begin_locking(connection)
        return self._rows(_send(connection, place, self._read_lock))

    def read_many(
        self, connection: Connection, places: Sequence[Place]
    ) -> dict[int, Rows]:
        """Return the rows of some shards of a server, by shard."""
        found: dict[int, list[Any]] = {p.shard_id: [] for p in places}
        plan = Plan(places, [connection] * len(places))
        rows = connection.execute(
            self._read_many, execution_options=_options(plan)
        )
        for where, *row in rows:
            found[where >> SHARD_SHIFT].append(row)
        return {shard: self._rows(rows) for shard, rows in found.items()}

    def change(
        self, connection: Connection, place: Place, found: Difference
    ) -> None:
        """Write on a shard what it has other than it should."""
        # Before: a key that was written in another way may be equal to the
        # server.
        for some in _batches(found.extra):
            gone = delete(self._table).where(self._among(some))
            _send(connection, place, gone)
        rows = [*found.missing.values(), *found.different.values()]
        for some in _batches(rows):
            values = [dict(zip(self._names, r, strict=True)) for r in some]
            _send(connection, place, Upsert(self._table), values)

    def bring(self, place: Place) -> Difference:
        """Make a copy equal to the truth, in one transaction.

        :returns: how it was different.
        """
        return in_turn(place, lambda: self._bring(place))

    def _bring(self, place: Place) -> Difference:
        with place.engine.connect() as connection:
            there = self.lock(connection, place)
            if place.engine is self.truth.engine:
                # Not another connection: the pool may have no more.
                wanted = self.read(connection)
            else:
                with self.truth.engine.connect() as other:
                    wanted = self.read(other)
            found = Difference.between(there, wanted)
            if found:
                self.change(connection, place, found)
                connection.commit()
            return found

    def _rows(self, rows: Any) -> Rows:
        key = self._key
        return {tuple(row[i] for i in key): tuple(row) for row in rows}

    def _among(self, keys: Sequence[Key]) -> Any:
        columns = list(self._table.primary_key)
        if len(columns) == 1:
            return columns[0].in_([key[0] for key in keys])
        return tuple_(*columns).in_(list(keys))


def _options(plan: Plan) -> dict[str, Any]:
    return {OPTION: plan, "schema_translate_map": TRANSLATE}


def _send(
    connection: Connection, place: Place, statement: Any, values: Any = None
) -> Any:
    return connection.execute(
        statement, values, execution_options=_options(Plan((place,)))
    )


def _batches(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), _BATCH):
        yield items[start : start + _BATCH]


def in_turn(place: Place, work: Callable[[], T]) -> T:
    """Do a transaction, again where it lost against another one.

    Also once more where the connection is gone: the pool may have kept it
    from before the server was started anew.  It must not matter whether the
    first has committed.
    """
    was_lost = False
    for _ in range(_ATTEMPTS - 1):
        try:
            return work()
        except ServerUnreachableError:
            if was_lost:
                raise
            was_lost = True
        except DBAPIError as error:
            original: Any = error.orig
            if place.backend.classify(original) is not Failure.CONFLICT:
                raise
    return work()
