"""Reference tables: small tables with the same rows on every virtual shard.

::

    class Country(ReferenceMixin, Base):
        code: Mapped[str] = mapped_column(String(2), primary_key=True)
        name: Mapped[str] = mapped_column(String(100))

    Country.replace(cluster, [{"code": "de", "name": "Germany"}, ...])

The table, ``country``, is in the database of every shard of a keyspace of
kind ``objects``, so that objects on any shard can be joined with its rows, or
load them by a relationship.  A statement on reference tables only is sent to
one shard.

The application sets the primary key.  Rows are read like the rows of any
class; only :meth:`ReferenceMixin.replace`, :meth:`~ReferenceMixin.upsert` and
:meth:`~ReferenceMixin.delete` write them, and sessions reject changes.

Limits:

* A table has up to 10,000 rows: a change of one row reads and compares all
  of them on each shard.
* Shards are written one after another, and differ in the meantime.  A
  transaction reads reference rows from one shard, except in joins.
* Keys are compared as in Python; two keys that are equal only under the
  collation of the server are rejected.
* Only the primary key is unique, and the table has no foreign keys.  Foreign
  keys of object tables may refer to it; a row that is in use on any shard can
  then not be deleted.
* A shard that was opened later is empty until ``replace()`` or
  :func:`~sqla_shard.models.reference.verify_references` writes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from sqlalchemy import event, MetaData
from sqlalchemy.exc import SQLAlchemyError

from sqla_shard.cluster.cluster import Cluster
from sqla_shard.engine import by_server
from sqla_shard.engine.rendering import Place
from sqla_shard.engine.unread import message_of, unread_lines
from sqla_shard.exc import ShardMissingError
from sqla_shard.exc.base import shortened_list
from sqla_shard.models.reference_rows import (
    Change,
    CopyDifference,
    define,
    finish,
    Key,
    keys_of,
    PARALLEL,
    ReferenceCopies,
    Rows,
    rows_by_key,
    table_of,
    with_retries,
    write,
)
from sqla_shard.routing import spec_of
from sqla_shard.util.json_values import json_value
from sqla_shard.util.tables import sorted_tables

__all__ = [
    "Deviation",
    "ReferenceMixin",
    "ReferencesReport",
    "Unread",
    "verify_references",
]


class ReferenceMixin:
    """Makes a declarative class a reference table; precedes the base.

    :param keyspace: class keyword: name of the keyspace; required if there
        are several of kind ``objects``.
    :raises ClassDefinitionError: if the class is not valid.

    The methods first write the lowest shard, in one transaction, and then make
    every other shard equal to it, each in a separate transaction.  They can be
    repeated, and after two concurrent calls all shards have the same rows.
    They do not take part in the transaction of a session.

    They raise :exc:`~sqla_shard.exc.ReferenceRowsError` and
    :exc:`~sqla_shard.exc.ReferenceSizeError` for invalid rows, and
    :exc:`~sqla_shard.exc.ReferenceIncompleteError` when some shards were not
    written.  An error of the lowest shard, such as a NOT NULL violation, is
    raised unchanged; then nothing is written.
    """

    def __init_subclass__(cls, *, keyspace: str | None = None, **kwargs: Any) -> None:
        define(cls, ReferenceMixin, keyspace=keyspace)
        super().__init_subclass__(**kwargs)

    @classmethod
    def replace(cls, cluster: Cluster, rows: Iterable[Any]) -> None:
        """Replace all rows of the table.

        :param rows: mappings from attributes to values, or objects of the
            class; an omitted column has its default, or NULL.
        """
        write(cls, _change_to_replace(cls, rows), cluster.places)

    @classmethod
    def upsert(cls, cluster: Cluster, rows: Iterable[Any]) -> None:
        """Insert or update rows of the table.

        :param rows: the rows, see :meth:`replace`; all columns are written.
        """
        write(cls, _change_to_upsert(cls, rows), cluster.places)

    @classmethod
    def delete(cls, cluster: Cluster, keys: Iterable[Any]) -> None:
        """Delete the rows with these keys.

        :param keys: values of the primary key, tuples if it has several
            columns; keys without a row are ignored.
        """
        write(cls, _change_to_delete(cls, keys), cluster.places)

    @classmethod
    async def async_replace(cls, cluster: Cluster, rows: Iterable[Any]) -> None:
        """Await :meth:`replace` in an event loop."""
        await cluster.async_call(write, cls, _change_to_replace(cls, rows))

    @classmethod
    async def async_upsert(cls, cluster: Cluster, rows: Iterable[Any]) -> None:
        """Await :meth:`upsert` in an event loop."""
        await cluster.async_call(write, cls, _change_to_upsert(cls, rows))

    @classmethod
    async def async_delete(cls, cluster: Cluster, keys: Iterable[Any]) -> None:
        """Await :meth:`delete` in an event loop."""
        await cluster.async_call(write, cls, _change_to_delete(cls, keys))


def _change_to_replace(cls: Any, rows: Iterable[Any]) -> Change:
    wanted = rows_by_key(cls, rows)
    return lambda there: wanted


def _change_to_upsert(cls: Any, rows: Iterable[Any]) -> Change:
    more = rows_by_key(cls, rows)
    return lambda there: {**there, **more}


def _change_to_delete(cls: Any, keys: Iterable[Any]) -> Change:
    deleted = keys_of(cls, keys)
    return lambda there: {k: r for k, r in there.items() if k not in deleted}


event.listen(ReferenceMixin, "after_mapper_constructed", finish, propagate=True)


#: Maximum number of shards of a table in ``str()``.
_SHOWN = 10


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """A shard whose rows differ from those of the lowest shard.

    Rows are identified by their keys, as tuples.

    :ivar reference: the reference class.
    :ivar shard_id: number of the shard.
    :ivar server: name of the server of the shard.
    :ivar missing: keys of missing rows.
    :ivar extra: keys of additional rows.
    :ivar different: keys of rows with other values.
    :ivar repaired: whether the shard was repaired.
    """

    reference: str
    shard_id: int
    server: str
    missing: tuple[tuple[Any, ...], ...]
    extra: tuple[tuple[Any, ...], ...]
    different: tuple[tuple[Any, ...], ...]
    repaired: bool

    def __str__(self) -> str:
        parts = [
            f"{name} " + shortened_list(["/".join(map(str, key)) for key in keys])
            for name, keys in (
                ("missing", self.missing),
                ("extra", self.extra),
                ("different", self.different),
            )
            if keys
        ]
        end = " (repaired)" if self.repaired else ""
        return f"shard {self.shard_id} on {self.server}: {'; '.join(parts)}{end}"


@dataclass(frozen=True, kw_only=True)
class Unread:
    """A shard that was not compared, or not repaired.

    :ivar reference: the reference class.
    :ivar shard_id: number of the shard.
    :ivar server: name of the server of the shard.
    :ivar reason: the error.
    """

    reference: str
    shard_id: int
    server: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class ReferencesReport:
    """The result of a comparison.

    :ivar rows: number of rows, by the name of the reference class.
    :ivar shards: number of shards, by the name of the reference class.
    :ivar deviations: the shards whose rows were different.
    :ivar unread: the shards that could not be compared.
    """

    rows: Mapping[str, int]
    shards: Mapping[str, int]
    deviations: tuple[Deviation, ...]
    unread: tuple[Unread, ...]

    @property
    def ok(self) -> bool:
        """Whether all shards were compared and are now equal."""
        return not self.unread and all(d.repaired for d in self.deviations)

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes as JSON values; other keys as strings."""
        return {
            "ok": self.ok,
            "references": {
                name: {"rows": count, "shards": self.shards[name]}
                for name, count in self.rows.items()
            },
            "deviations": json_value(self.deviations),
            "unread": json_value(self.unread),
        }

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        for name, count in self.rows.items():
            deviations = [d for d in self.deviations if d.reference == name]
            unread = [u for u in self.unread if u.reference == name]
            yield (
                f"{name}: {count} row(s) on {self.shards[name]} shard(s), "
                f"{len(deviations)} different, {len(unread)} not compared"
            )
            for one in deviations[:_SHOWN]:
                yield f"  {one}"
            if deviations[_SHOWN:]:
                yield f"  and {len(deviations) - _SHOWN} more"
            for line in unread_lines(
                (u.server, u.reason, [("", u.shard_id)]) for u in unread
            ):
                yield f"  {line}"


# -- comparison and repair of the reference tables of all shards
#
# One statement reads up to 256 shards of a server, and all servers are read
# concurrently.  Rows are locked for a repair only.  During a ``replace()`` the
# shards that it has not written yet differ.


#: Maximum number of rows in memory.
_ROWS = 50_000


@dataclass
class _Found:
    deviations: list[Deviation] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)


def verify_references(
    cluster: Cluster, classes: MetaData | Iterable[type[Any]], *, repair: bool = False
) -> ReferencesReport:
    """Compare reference tables on every shard with the lowest one.

    :param classes: reference classes, or a ``MetaData`` that contains the
        tables of the reference classes to compare.
    :param repair: whether to make different shards equal to the lowest, each
        in one transaction.
    :returns: the report; ``str()`` of it is a readable report.
    :raises ServerUnreachableError: if the server of the lowest shard does not
        respond.
    """
    if isinstance(classes, MetaData):
        tables = [
            table
            for table in sorted_tables(classes)
            if spec_of(table).reference is not None
        ]
    else:
        tables = [table_of(cls) for cls in classes]
    places = cluster.places
    rows: dict[str, int] = {}
    shards: dict[str, int] = {}
    whole = _Found()
    for table in tables:
        copies = ReferenceCopies(table, places)
        wanted = with_retries(copies.source, copies.read_source)
        rows[copies.name] = len(wanted)
        shards[copies.name] = copies.keyspace.shards
        jobs = [
            partial(_on_server, copies, wanted, there, repair)
            for there in by_server(copies.others)
        ]
        for part in places.engines.in_parallel(jobs, "verify", PARALLEL):
            whole.deviations += part.deviations
            whole.unread += part.unread
    return ReferencesReport(
        rows=rows,
        shards=shards,
        deviations=tuple(whole.deviations),
        unread=tuple(whole.unread),
    )


def _on_server(
    copies: ReferenceCopies, wanted: Rows, shards: Sequence[Place], repair: bool
) -> _Found:
    found = _Found()
    size = max(_ROWS // max(len(wanted), 1), 1)
    for start in range(0, len(shards), size):
        some = shards[start : start + size]
        for place, outcome in _compare(copies, wanted, some):
            _add_outcome(found, copies, place, outcome, repair)
    return found


def _compare(
    copies: ReferenceCopies, wanted: Rows, shards: Sequence[Place]
) -> Iterator[tuple[Place, CopyDifference | Exception]]:
    """Yield the differences of the shards of a server, or their errors."""

    def read() -> dict[int, Rows]:
        with shards[0].engine.connect() as connection:
            return copies.read_many(connection, shards)

    try:
        rows = with_retries(shards[0], read)
    except ShardMissingError as error:
        if len(shards) == 1:
            yield shards[0], error
            return
        # One of the shards has no such table: read the shards one by one.
        for place in shards:
            yield from _compare(copies, wanted, [place])
    except (SQLAlchemyError, OSError) as error:
        for place in shards:
            yield place, error
    else:
        for place in shards:
            yield place, CopyDifference.between(rows[place.shard_id], wanted)


def _add_outcome(
    found: _Found,
    copies: ReferenceCopies,
    place: Place,
    outcome: CopyDifference | Exception,
    repair: bool,
) -> None:
    if isinstance(outcome, CopyDifference) and outcome and repair:
        try:
            outcome = copies.synchronize(place)
        except (SQLAlchemyError, OSError) as error:
            outcome = error
    if isinstance(outcome, Exception):
        found.unread.append(
            Unread(
                reference=copies.name,
                shard_id=place.shard_id,
                server=place.server,
                reason=message_of(outcome),
            )
        )
    elif outcome:
        found.deviations.append(
            Deviation(
                reference=copies.name,
                shard_id=place.shard_id,
                server=place.server,
                missing=_in_order(outcome.missing),
                extra=_in_order(outcome.extra),
                different=_in_order(outcome.different),
                repaired=repair,
            )
        )


def _in_order(keys: Iterable[Key]) -> tuple[Key, ...]:
    return tuple(sorted(keys, key=str))
