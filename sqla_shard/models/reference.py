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

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias, TypeVar

from sqlalchemy import (
    BigInteger,
    Connection,
    delete,
    event,
    inspect,
    literal,
    MetaData,
    select,
    tuple_,
    UniqueConstraint,
)
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Mapper

from sqla_shard.cluster.cluster import Cluster
from sqla_shard.dialects import retry_conflicts
from sqla_shard.dialects.sql import Upsert
from sqla_shard.engine import by_server, ExecutionPlan, OPTION, Places
from sqla_shard.engine.rendering import Place, TRANSLATE
from sqla_shard.engine.unreachable import (
    each_once,
    unreachable_values,
    UnreachableServer,
)
from sqla_shard.exc import (
    ClassDefinitionError,
    ReferenceIncompleteError,
    ReferenceRowsError,
    ReferenceSizeError,
    ReferenceWriteError,
    ServerFencedError,
    ServerRetiredError,
    ServerUnreachableError,
    ShardMissingError,
    UnknownKeyspaceError,
)
from sqla_shard.exc.base import shortened_list
from sqla_shard.models.class_checks import (
    check_abstract,
    check_declarative,
    check_first_mapped,
    check_members,
    check_schema,
    default_tablename,
    own_definition,
    whole_or_not_at_all,
)
from sqla_shard.models.id_sources import adopt_layout
from sqla_shard.planning import declare, spec_of, TableSpec
from sqla_shard.types import IdType
from sqla_shard.types.shard_bound import ShardNumber
from sqla_shard.util.json_values import json_value
from sqla_shard.util.sqlalchemy_helpers import sorted_tables


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


#: Maximum number of shards of a table in ``str()``.
_SHARDS_SHOWN = 10


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
class ReferencesReport:
    """The result of a comparison.

    :ivar rows: number of rows, by the name of the reference class.
    :ivar shards: number of shards, by the name of the reference class.
    :ivar deviations: the shards whose rows were different.
    :ivar not_compared: the servers of shards that could not be compared, or not
        repaired, by the name of the reference class.
    """

    rows: Mapping[str, int]
    shards: Mapping[str, int]
    deviations: tuple[Deviation, ...]
    not_compared: Mapping[str, tuple[UnreachableServer, ...]]

    @property
    def unreachable(self) -> tuple[UnreachableServer, ...]:
        """The servers of shards that could not be compared, or not repaired."""
        return each_once(
            one for servers in self.not_compared.values() for one in servers
        )

    @property
    def ok(self) -> bool:
        """Whether all shards were compared and are now equal."""
        return not self.unreachable and all(d.repaired for d in self.deviations)

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes as JSON values.

        Keys of rows are numbers and texts, such as ``"2026-01-02T03:04:05"``.
        """
        return {
            "ok": self.ok,
            "references": {
                name: {"rows": count, "shards": self.shards[name]}
                for name, count in self.rows.items()
            },
            "deviations": json_value(self.deviations),
            "unreachable": unreachable_values(self.unreachable),
        }

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        for name, count in self.rows.items():
            deviations = [d for d in self.deviations if d.reference == name]
            unreachable = self.not_compared.get(name, ())
            yield (
                f"{name}: {count} row(s) on {self.shards[name]} shard(s), "
                f"{len(deviations)} different, "
                f"{sum(len(one.addresses) for one in unreachable)} not compared"
            )
            for deviation in deviations[:_SHARDS_SHOWN]:
                yield f"  {deviation}"
            if deviations[_SHARDS_SHOWN:]:
                yield f"  and {len(deviations) - _SHARDS_SHOWN} more"
            yield from (f"  {one}" for one in unreachable)


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
    unreachable: list[UnreachableServer] = field(default_factory=list)


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
    deviations: list[Deviation] = []
    not_compared: dict[str, tuple[UnreachableServer, ...]] = {}
    for table in tables:
        copies = ReferenceCopies(table, places)
        wanted = with_retries(copies.source, copies.read_source)
        rows[copies.name] = len(wanted)
        shards[copies.name] = copies.keyspace.shards
        jobs = [
            partial(_on_server, copies, wanted, there, repair)
            for there in by_server(copies.others)
        ]
        parts = list(places.engines.in_parallel(jobs, "verify", PARALLEL))
        deviations += (one for part in parts for one in part.deviations)
        not_compared[copies.name] = each_once(
            one for part in parts for one in part.unreachable
        )
    return ReferencesReport(
        rows=rows,
        shards=shards,
        deviations=tuple(deviations),
        not_compared=not_compared,
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
        found.unreachable.append(UnreachableServer.of([place], outcome))
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


# -- Rows of reference tables: reading, comparing and changing them.
#
# The lowest shard of the keyspace is the source, every other one a copy.  A copy
# is changed in one transaction that first locks all of its rows, then reads the
# source, and writes the difference.  Of two concurrent changes the second reads
# the source after the first has committed, so the copy ends equal to it.
#
# On the server of the source this is one transaction, whose snapshot is taken
# after the lock, because a locking read takes no snapshot.


# -- creation of reference classes
#
# :func:`define` runs before SQLAlchemy maps the class.  :func:`finish` runs
# after it was mapped, rejects tables that could differ between shards, and
# declares the table to routing.


_TABLE = "__sqla_shard_reference__"


def define(cls: Any, mixin: type[Any], *, keyspace: str | None) -> None:
    """Check a class before it is mapped.

    :raises ClassDefinitionError: if the class is not valid.
    """
    if check_abstract(cls, keyspace=keyspace):
        return
    check_declarative(cls, mixin)
    check_first_mapped(cls)
    check_members(cls, mixin, (), "reference")
    default_tablename(cls)
    cls.__sqla_shard_keyspace_name__ = keyspace


@whole_or_not_at_all
def finish(mapper: Mapper[Any], cls: Any) -> None:
    """Handle ``after_mapper_constructed``: declare the table to routing.

    :raises ClassDefinitionError: if the class is not valid.
    """
    table: Any = mapper.local_table
    check_schema(cls, table)
    for reason in _faults(table):
        raise ClassDefinitionError(reason, class_name=cls.__name__)
    adopt_layout(cls, table)
    keyspace = cls.__sqla_shard_keyspace_name__
    declare(
        table,
        TableSpec(
            kind="objects",
            keyspace=keyspace,
            guard=partial(_refuse, cls.__name__),
            reference=cls.__name__,
        ),
    )
    setattr(cls, _TABLE, table)


def _refuse(name: str, statement: Any) -> None:
    """Reject a statement that writes the table on one shard.

    :raises ReferenceWriteError: always.
    """
    raise ReferenceWriteError(reference=name)


def table_of(cls: Any) -> Any:
    """Return the table of a reference class.

    :raises ClassDefinitionError: if the class is abstract.
    """
    return own_definition(cls, _TABLE)


def _faults(table: Any) -> Iterator[str]:
    """Yield the reasons why rows could differ between shards."""
    generated = table.autoincrement_column
    if generated is not None:
        yield (
            "its keys would be generated on each shard separately: use "
            "mapped_column(primary_key=True, autoincrement=False) for "
            f"{generated.name!r}, and give each row its key"
        )
    for column in table.c:
        if isinstance(column.type, IdType) and column.type.routes:
            yield (
                f"its column {column.name!r} refers to an object of the "
                "row's own shard, and the row is on every shard; use "
                "ObjectRef() without a foreign key"
            )
        default = column.default
        if column.server_default is not None or (
            default is not None and not (default.is_scalar or default.is_callable)
        ):
            # Computed and Identity set server_default as well.
            yield (
                f"the values of its column {column.name!r} would be "
                "generated on each shard separately; use default= with a "
                "value or a function"
            )
    for foreign in table.foreign_keys:
        yield (
            f"its column {foreign.parent.name!r} has a foreign key, but each "
            "table is written separately, and the referenced row may be "
            "written later; leave it out, and give relationship() a "
            "primaryjoin with foreign()"
        )
    if any(isinstance(c, UniqueConstraint) for c in table.constraints) or any(
        index.unique for index in table.indexes
    ):
        yield (
            "it has a unique constraint in addition to its primary key: two "
            "rows that exchange such values could not be written one by one; "
            "check the rows before you write them instead"
        )


# -- rows given by the application


#: Maximum number of rows of a reference table.
_MOST_ROWS = 10_000

#: The values of the primary key.
Key: TypeAlias = "tuple[Any, ...]"
#: The values of all columns, in their order.
Row: TypeAlias = "tuple[Any, ...]"
#: The rows of a table.
Rows: TypeAlias = "dict[Key, Row]"


def rows_by_key(cls: Any, rows: Iterable[Any]) -> Rows:
    """Return the given rows by their keys.

    :param rows: mappings from attributes to values, or objects.
    :raises ReferenceRowsError: if a row is not valid, or two have the same
        key.
    :raises ReferenceSizeError: if there are too many rows.
    """
    table = table_of(cls)
    mapper = inspect(cls)
    names = {mapper.get_property_by_column(c).key: c for c in table.c}
    by_key: Rows = {}
    for row in rows:
        values = _values(cls, row, names)
        key = tuple(
            value
            for column, value in zip(table.c, values, strict=True)
            if column.primary_key
        )
        _check_key(cls, row, key)
        if key in by_key:
            raise ReferenceRowsError(
                reference=cls.__name__,
                row=key,
                reason="two of the rows have this key; leave one out",
            )
        by_key[key] = values
    _check_size(cls.__name__, by_key)
    return by_key


def _check_size(reference: str, rows: Rows) -> None:
    """Reject more rows than a reference table may have.

    :raises ReferenceSizeError: if there are more rows.
    """
    if len(rows) > _MOST_ROWS:
        raise ReferenceSizeError(reference=reference, rows=len(rows), most=_MOST_ROWS)


def _check_not_overwritten(reference: str, wanted: Rows, there: Rows) -> None:
    """Reject rows if one has overwritten another.

    :param there: the rows on the server after they were written.
    :raises ReferenceRowsError: if the server has fewer rows.
    """
    if len(there) < len(wanted):
        raise ReferenceRowsError(
            reference=reference,
            row=next(key for key in wanted if key not in there),
            reason="this key is equal to another under the collation of the "
            "server, which may ignore case and trailing spaces; write each "
            "key as it is in the table",
        )


def keys_of(cls: Any, keys: Iterable[Any]) -> set[Key]:
    """Return keys as tuples.

    :param keys: values, or tuples if the primary key has several columns.
    :raises ReferenceRowsError: if a key is not valid.
    """
    if isinstance(keys, (str, bytes)):
        # Otherwise each character would be treated as a key.
        raise ReferenceRowsError(
            reference=cls.__name__,
            row=keys,
            reason="keys must be a list, even of one key",
        )
    count = len(table_of(cls).primary_key)
    unique = set()
    for one in keys:
        key = tuple(one) if isinstance(one, (tuple, list)) else (one,)
        if len(key) != count:
            raise ReferenceRowsError(
                reference=cls.__name__,
                row=one,
                reason=f"its primary key has {count} column(s)",
            )
        _check_key(cls, one, key)
        unique.add(key)
    return unique


def _values(cls: Any, one: Any, names: Mapping[str, Any]) -> Row:
    """Return the values of a row in the order of the columns."""
    if isinstance(one, cls):
        state = inspect(one)
        # Unset attributes have no value yet; expired ones are loaded.
        known = (
            state.dict
            if state.transient
            else {name: getattr(one, name) for name in names}
        )
    elif isinstance(one, Mapping):
        known = one
        unknown = [name for name in one if name not in names]
        if unknown:
            raise ReferenceRowsError(
                reference=cls.__name__,
                row=one,
                reason=f"{unknown[0]!r} is not one of {', '.join(names)}",
            )
    else:
        raise ReferenceRowsError(
            reference=cls.__name__,
            row=one,
            reason="a row must be a mapping or an object of the class",
        )
    return tuple(
        known[name] if name in known else _default(column)
        for name, column in names.items()
    )


def _default(column: Any) -> Any:
    if column.default is None:
        return None
    if column.default.is_callable:
        return column.default.arg(None)
    return column.default.arg


def _check_key(cls: Any, one: Any, key: Key) -> None:
    if any(value is None for value in key):
        raise ReferenceRowsError(
            reference=cls.__name__, row=one, reason="its key is NULL"
        )


T = TypeVar("T")

#: Number of rows in a statement: more rows do not make it faster, and this is
#: far below max_allowed_packet.
_BATCH = 500
#: Maximum number of attempts after a deadlock or lock timeout.
_ATTEMPTS = 10


@dataclass(frozen=True, kw_only=True)
class CopyDifference:
    """The difference between a copy and the source.

    :ivar missing: rows that the copy lacks.
    :ivar different: rows with other values in the copy.
    :ivar extra: keys that the source lacks.
    """

    missing: Rows
    different: Rows
    extra: tuple[Key, ...]

    @classmethod
    def between(cls, copy_rows: Rows, source_rows: Rows) -> CopyDifference:
        """Return how the rows of a copy differ from the rows of the source."""
        return cls(
            missing={k: row for k, row in source_rows.items() if k not in copy_rows},
            different={
                k: row
                for k, row in source_rows.items()
                if k in copy_rows and copy_rows[k] != row
            },
            extra=tuple(k for k in copy_rows if k not in source_rows),
        )

    def __bool__(self) -> bool:
        return bool(self.missing or self.different or self.extra)


class ReferenceCopies:
    """A reference table and its copies in a cluster.

    :param table: the table of a reference class.
    :raises UnknownKeyspaceError: if its keyspace is not found, or is not of
        kind ``objects``.

    :ivar source: the lowest shard.
    :ivar others: the other shards, which have copies.
    """

    def __init__(self, table: Any, places: Places) -> None:
        spec = spec_of(table)
        self.name: str = str(spec.reference)
        self.keyspace: Any = places.keyspace(spec.keyspace, "objects")
        if self.keyspace.kind != "objects":
            raise UnknownKeyspaceError(
                f"{self.name} is in keyspace {self.keyspace.name!r} of kind "
                f"{self.keyspace.kind!r}; a reference table belongs to one "
                'of kind "objects"',
                keyspace=self.keyspace.name,
                known=tuple(
                    keyspace.name
                    for keyspace in places.topology.keyspaces.values()
                    if keyspace.kind == "objects"
                ),
            )
        self.source: Place
        self.others: list[Place]
        self.source, *self.others = places.all_places(self.keyspace)
        self._table = table
        columns = tuple(table.c)
        self._names = [column.key for column in columns]
        self._key = tuple(index for index, c in enumerate(columns) if c.primary_key)
        self._read = select(*columns)
        self._read_lock = self._read.with_for_update()
        self._read_many = select(literal(ShardNumber(), BigInteger()), *columns)

    def read(self, connection: Connection) -> Rows:
        """Return the rows of the source."""
        return self._rows(_send(connection, self.source, self._read))

    def read_source(self) -> Rows:
        """Return the rows of the source, read with another connection."""
        with self.source.engine.connect() as connection:
            return self.read(connection)

    def lock(self, connection: Connection, place: Place) -> Rows:
        """Begin a transaction; return the rows of a shard, locked."""
        place.backend.begin_locking(connection)
        return self._rows(_send(connection, place, self._read_lock))

    def read_many(
        self, connection: Connection, places: Sequence[Place]
    ) -> dict[int, Rows]:
        """Return the rows of the given shards of a server, by shard."""
        by_shard: dict[int, list[Any]] = {p.shard_id: [] for p in places}
        plan = ExecutionPlan(places, [connection] * len(places))
        rows = connection.execute(self._read_many, execution_options=_options(plan))
        for shard_id, *row in rows:
            by_shard[shard_id].append(row)
        return {shard: self._rows(rows) for shard, rows in by_shard.items()}

    def change(
        self, connection: Connection, place: Place, found: CopyDifference
    ) -> None:
        """Write a difference to a shard."""
        # Delete first: a key that is spelled differently may be equal to a new
        # key on the server.
        for some in _batches(found.extra):
            gone = delete(self._table).where(self._among(some))
            _send(connection, place, gone)
        rows = [*found.missing.values(), *found.different.values()]
        for some in _batches(rows):
            values = [dict(zip(self._names, r, strict=True)) for r in some]
            _send(connection, place, Upsert(self._table), values)

    def synchronize(self, place: Place) -> CopyDifference:
        """Make a copy equal to the source, in one transaction.

        :returns: the difference before the change.
        """
        return with_retries(place, lambda: self._synchronize(place))

    def _synchronize(self, place: Place) -> CopyDifference:
        with place.engine.connect() as connection:
            there = self.lock(connection, place)
            if place.engine is self.source.engine:
                # Reuse this connection: the pool may be exhausted.
                wanted = self.read(connection)
            else:
                wanted = self.read_source()
            difference = CopyDifference.between(there, wanted)
            if difference:
                self.change(connection, place, difference)
                connection.commit()
            return difference

    def _rows(self, rows: Any) -> Rows:
        key = self._key
        return {tuple(row[i] for i in key): tuple(row) for row in rows}

    def _among(self, keys: Sequence[Key]) -> Any:
        columns = list(self._table.primary_key)
        if len(columns) == 1:
            return columns[0].in_([key[0] for key in keys])
        return tuple_(*columns).in_(list(keys))


def _options(plan: ExecutionPlan) -> dict[str, Any]:
    return {OPTION: plan, "schema_translate_map": TRANSLATE}


def _send(
    connection: Connection, place: Place, statement: Any, values: Any = None
) -> Any:
    return connection.execute(
        statement, values, execution_options=_options(ExecutionPlan((place,)))
    )


def _batches(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), _BATCH):
        yield items[start : start + _BATCH]


def with_retries(place: Place, work: Callable[[], T]) -> T:
    """Run a transaction, with retries after a deadlock or lock timeout.

    It is also retried once after a lost connection, which the pool may have
    opened before a restart of the server.  The transaction must be idempotent.
    """
    attempt = partial(
        retry_conflicts, work, lambda: (place.backend,), attempts=_ATTEMPTS
    )
    try:
        return attempt()
    except ServerUnreachableError:
        return attempt()


# -- the same change on every shard, first on the source


#: Returns the wanted rows for the current rows.
Change = Callable[[Rows], Rows]

#: Maximum number of servers that are written in parallel.  The threads also
#: read from the server of the source, whose pool has few connections.
PARALLEL = 8

#: Errors that apply to all shards of a server.
_GONE = (ServerUnreachableError, ServerFencedError, ServerRetiredError)


@dataclass
class _Outcome:
    done: list[int] = field(default_factory=list)
    errors: dict[int, Exception] = field(default_factory=dict)
    not_reached: list[int] = field(default_factory=list)


def write(cls: Any, change: Change, places: Places) -> None:
    """Change a reference table on every shard.

    :raises ReferenceSizeError: if there would be too many rows.
    :raises ReferenceIncompleteError: if some shards were not written.
    """
    copies = ReferenceCopies(table_of(cls), places)
    try:
        with_retries(copies.source, lambda: _write_source(copies, change))
    except ServerUnreachableError as error:
        # The connection may have been lost during COMMIT, so the source may
        # have been written.
        raise _incomplete(
            copies,
            _Outcome(
                errors={copies.source.shard_id: error},
                not_reached=[place.shard_id for place in copies.others],
            ),
        ) from error
    jobs = [
        partial(_write_on_server, copies, shards) for shards in by_server(copies.others)
    ]
    whole = _Outcome(done=[copies.source.shard_id])
    for part in places.engines.in_parallel(jobs, "reference", PARALLEL):
        whole.done += part.done
        whole.errors.update(part.errors)
        whole.not_reached += part.not_reached
    if whole.errors:
        raise _incomplete(copies, whole) from next(iter(whole.errors.values()))


def _write_source(copies: ReferenceCopies, change: Change) -> None:
    place = copies.source
    with place.engine.connect() as connection:
        there = copies.lock(connection, place)
        wanted = change(there)
        _check_size(copies.name, wanted)
        difference = CopyDifference.between(there, wanted)
        copies.change(connection, place, difference)
        if difference.missing:
            _check_not_overwritten(copies.name, wanted, copies.read(connection))
        connection.commit()


def _write_on_server(copies: ReferenceCopies, shards: Sequence[Place]) -> _Outcome:
    outcome = _Outcome()
    for index, place in enumerate(shards, 1):
        try:
            copies.synchronize(place)
        except _GONE as error:
            outcome.errors[place.shard_id] = error
            outcome.not_reached += [p.shard_id for p in shards[index:]]
            break
        except (SQLAlchemyError, OSError) as error:
            outcome.errors[place.shard_id] = error
        else:
            outcome.done.append(place.shard_id)
    return outcome


def _incomplete(copies: ReferenceCopies, outcome: _Outcome) -> ReferenceIncompleteError:
    return ReferenceIncompleteError(
        reference=copies.name,
        keyspace=copies.keyspace.name,
        done=tuple(sorted(outcome.done)),
        errors=dict(sorted(outcome.errors.items())),
        not_reached=tuple(sorted(outcome.not_reached)),
    )


event.listen(ReferenceMixin, "after_mapper_constructed", finish, propagate=True)
