"""Reads a form of statement, as if it were sharded.

The router of :mod:`sqla_shard.planning` reads the statement, and the merge of
:mod:`sqla_shard.planning` is planned, as a session would.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Insert
from sqlalchemy.orm.context import FromStatement
from sqlalchemy.sql.elements import TextClause
from sqlalchemy.sql.lambdas import LambdaElement
from sqlalchemy.sql.selectable import Select, TextualSelect

from sqla_shard.exc import NoShardKeyError, ReferenceWriteError, ShardError
from sqla_shard.migrate.future import Future, FutureTable
from sqla_shard.migrate.locations import ShadowPlaces
from sqla_shard.migrate.verdicts import refused, Verdict
from sqla_shard.planning import (
    check_mergeable,
    plan,
    refusal_of,
    RoutingShape,
    shape_of,
    supposing,
)
from sqla_shard.planning.sources import AllOf, AnyOf, Condition, Equals, Within
from sqla_shard.types import IdType
from sqla_shard.util import sqlalchemy_private as private

#: No OFFSET is too large if scatter(max_offset=) allows it.
_ANY_OFFSET = 1 << 62

SINGLE = Verdict(outcome="single_shard")
_GLOBAL = Verdict(outcome="global")
_ANYWHERE = Verdict(outcome="any_shard")
_INVERSE = Verdict(
    outcome="single_shard",
    reason="the inverse mapping table has these rows by target",
    remedy="Read them from the inverse class.",
)
_SEVERAL = Verdict(
    outcome="several_shards",
    reason="its ids may be on several shards, whose servers are read at the same time",
)
_TEXTUAL = Verdict(
    outcome="textual",
    error="NoShardKeyError",
    reason="textual SQL cannot be planned",
    remedy="Write it with select(), or pass "
    'bind_arguments={"shard_id": n}, and SCHEMA before the names of tables.',
)


@dataclass(frozen=True)
class Ids:
    """A bind parameter with ids.

    :ivar name: its name in ``compiled_parameters``; None if it has none.
    :ivar kind: the type of the ids.
    :ivar is_list: whether it is a list.
    :ivar item: position of the id in the tuples of the list, if it is one of
        tuples.
    :ivar width: the length of these tuples.
    """

    name: str | None
    kind: IdType
    is_list: bool = False
    item: int | None = None
    width: int = 1


@dataclass(frozen=True, kw_only=True)
class Form:
    """A form of statement, for any values.

    :ivar kind: ``select``, ``insert``, ``update``, ``delete`` or ``text``.
    :ivar tables: the names of its tables, at any depth, each once.
    :ivar verdict: the verdict, if its values name one shard.
    :ivar several: the verdict, if its values name several shards.
    :ivar skipping: the verdict of several shards and an OFFSET above 0.
    :ivar shape: how it is routed; None if that is not known.
    :ivar ids: the bind parameters with ids, by position.
    :ivar offset: name of the bind parameter of its OFFSET; None if there is
        none.
    :ivar written: the table that it writes; None for a SELECT.
    """

    kind: str
    tables: tuple[str, ...]
    verdict: Verdict
    several: Verdict | None = None
    skipping: Verdict | None = None
    shape: RoutingShape | None = None
    ids: Mapping[int, Ids] = field(default_factory=dict)
    offset: str | None = None
    written: FutureTable | None = None


class FormReader:
    """Reads forms of statements.

    :param future: the declared tables.
    :param places: the locations of shards.
    """

    def __init__(self, future: Future, places: ShadowPlaces) -> None:
        self._future = future
        self._places = places

    def read(self, statement: Any, compiled: Any) -> Form:
        """Read a form of statement.

        :param statement: the statement.
        :param compiled: the compiled statement; None if there is none.
        """
        if isinstance(statement, LambdaElement):
            statement = private.resolved(statement)
        if _is_textual(statement):
            return Form(kind="text", tables=_shown_tables(statement), verdict=_TEXTUAL)
        if isinstance(statement, Insert):
            return self._insert_form(statement)
        kind = (
            "update"
            if getattr(statement, "is_update", False)
            else "delete"
            if getattr(statement, "is_delete", False)
            else "select"
        )
        written = None
        if kind != "select":
            written = self._future.tables.get(str(statement.table.key))
            if written is not None and written.spec.reference is not None:
                return self._reference_write(kind, written)
        view, verdict, shape, binds = self._view_of(statement)
        several = skipping = None
        if shape is not None and verdict.error is None:
            with supposing(view):
                several = _several(statement, shape, written)
                skipping = _skipping(statement, shape)
        return Form(
            kind=kind,
            tables=_tables_of(shape),
            verdict=verdict,
            several=several,
            skipping=skipping,
            shape=None if verdict.error else shape,
            ids={} if verdict.error else dict(_ids(shape, binds, compiled)),
            offset=_offset(statement, binds, compiled) if skipping else None,
            written=written,
        )

    def _view_of(
        self, statement: Any
    ) -> tuple[Future, Verdict, RoutingShape | None, Any]:
        """Return the verdict of a statement, and how it was read.

        :returns: the future that it is planned with, the verdict, the shape
            if there is one, and the bind parameters.
        """
        read = self._read_as(self._future, statement)
        if read[0].error != "NoShardKeyError":
            return self._future, *read
        for how, view in self._future.views:
            verdict, shape, binds = self._read_as(view, statement)
            if verdict.error is None:
                verdict = _lookup(read[0], shape, view) if how == "lookup" else _INVERSE
                return view, verdict, shape, binds
        return self._future, *read

    def _read_as(
        self, view: Future, statement: Any
    ) -> tuple[Verdict, RoutingShape | None, Any]:
        with supposing(view):
            try:
                binds, shape = shape_of(statement)
            except ShardError as error:
                return refused(error), None, ()
            return self._verdict(view, statement, shape), shape, binds

    def _verdict(self, view: Future, statement: Any, shape: RoutingShape) -> Verdict:
        """Return the verdict of a shape, if its values name one shard."""
        error = refusal_of(shape, self._places)
        if isinstance(error, NoShardKeyError):
            return _scattered(statement, shape, error, view)
        if error is not None:
            return refused(error)
        if shape.constant or not shape.tables:
            return _ANYWHERE
        if all(view.spec_of(t).kind == "global" for t in shape.tables):
            return _GLOBAL
        return SINGLE if shape.groups else _ANYWHERE

    def _insert_form(self, statement: Any) -> Form:
        table = statement.table
        written = self._future.tables.get(str(table.key))
        tables = (str(table.key),)
        if written is None or written.spec.kind == "global":
            return Form(kind="insert", tables=tables, verdict=_GLOBAL, written=written)
        if written.spec.reference is not None:
            return self._reference_write("insert", written)
        if statement.select is not None:
            error = NoShardKeyError(
                f"the shard of INSERT INTO {table.name} .. FROM SELECT cannot "
                "be determined",
                tables=(str(table.name),),
            )
            return Form(
                kind="insert",
                tables=tables,
                verdict=refused(
                    error, remedy="Read the rows, and insert them for each owner."
                ),
                written=written,
            )
        return Form(kind="insert", tables=tables, verdict=SINGLE, written=written)

    def _reference_write(self, kind: str, written: FutureTable) -> Form:
        error = ReferenceWriteError(reference=str(written.spec.reference))
        return Form(
            kind=kind,
            tables=(str(written.table.key),),
            verdict=refused(error),
            written=written,
        )


def _is_textual(statement: Any) -> bool:
    if isinstance(statement, FromStatement):
        statement = statement.element
    return isinstance(statement, (str, TextClause, TextualSelect))


def _shown_tables(statement: Any) -> tuple[str, ...]:
    """Return the tables that the columns of textual SQL are of, if known."""
    shown: Any = private.raw_columns(statement)
    if isinstance(statement, TextualSelect):
        shown = statement.selected_columns
    tables = {
        str(getattr(table, "key", table)): None
        for element in shown
        for table in private.from_objects(element)
        if hasattr(table, "key")
    }
    return tuple(tables)


def _scattered(
    statement: Any, shape: RoutingShape, error: NoShardKeyError, view: Future
) -> Verdict:
    """Return the verdict of a statement that nothing restricts to shards."""
    columns = ", ".join(
        name for table in error.tables for name in _routing_columns(view, table)
    )
    named = f"Name ids in WHERE: {columns}" if columns else "Name ids in WHERE"
    if not getattr(statement, "is_select", False):
        return refused(
            error,
            "cross_shard_write",
            remedy=f"{named}; or write each shard in its own transaction.",
        )
    try:
        check_mergeable(shape)
        plan(statement, {}, shape.spread, max_offset=_ANY_OFFSET)
    except ShardError as worse:
        found = refused(worse, remedy=f"{named}.")
        return Verdict(
            outcome="refused",
            error=type(error).__name__,
            construct=found.construct,
            reason=f"{error}. With scatter(): {found.reason}",
            remedy=found.remedy,
        )
    return refused(
        error,
        "scatter",
        remedy=f"{named}; or add .options(scatter()), which reads all shards.",
    )


def _routing_columns(view: Future, name: str) -> tuple[str, ...]:
    for one in view.tables.values():
        if one.table.name == name:
            return one.routing_columns
    return ()


def _lookup(verdict: Verdict, shape: RoutingShape | None, view: Future) -> Verdict:
    columns = dict.fromkeys(
        f"{one.table.key}.{name}"
        for one in view.tables.values()
        for name in one.lookups
        if shape is not None
        and any(one.table.name in group.names for group in shape.groups)
    )
    return Verdict(
        outcome="lookup",
        error=verdict.error,
        reason=verdict.reason,
        remedy="Read the id from the lookup first, by "
        "Class.resolve(session, key), then the object by its id: "
        f"{', '.join(columns)}.",
    )


def _several(
    statement: Any, shape: RoutingShape, written: FutureTable | None
) -> Verdict | None:
    """Return the verdict of a statement whose values name several shards."""
    if written is not None or not shape.groups:
        return None
    try:
        check_mergeable(shape)
        plan(statement, {}, shape.spread, max_offset=_ANY_OFFSET)
    except ShardError as error:
        return refused(error)
    return _SEVERAL


def _skipping(statement: Any, shape: RoutingShape) -> Verdict | None:
    """Return the verdict of an OFFSET above 0 over several shards."""
    if not isinstance(statement, Select) or private.offset_clause(statement) is None:
        return None
    try:
        plan(statement.offset(1), {}, shape.spread)
    except ShardError as error:
        return refused(
            error,
            "scatter",
            remedy="Read page after page with session.scatter_page(), or add "
            ".options(scatter(max_offset=)).",
        )
    return None


def _tables_of(shape: RoutingShape | None) -> tuple[str, ...]:
    if shape is None:
        return ()
    return tuple(
        dict.fromkeys(str(getattr(table, "key", table.name)) for table in shape.tables)
    )


def _ids(
    shape: RoutingShape | None, binds: Sequence[Any], compiled: Any
) -> Iterator[tuple[int, Ids]]:
    """Yield the positions of bind parameters with ids, and their kinds."""
    names = {bind.key: name for bind, name in compiled.bind_names.items()}
    if compiled.cache_key is not None:
        # The names are those of the statement that was compiled.
        binds = compiled.cache_key.bindparams
    for group in () if shape is None else shape.groups:
        for one in _conditions(group.condition):
            bind = binds[one.index]
            name = names.get(bind.key)
            if isinstance(one, Equals):
                yield one.index, Ids(name, one.kind)
                continue
            width = len(getattr(bind.type, "types", ())) or 1
            yield one.index, Ids(name, one.kind, True, one.item, width)


def _offset(statement: Any, binds: Any, compiled: Any) -> str | None:
    """Return the name of the bind parameter of OFFSET, if there is one."""
    if not isinstance(statement, Select):
        return None
    clause = private.offset_clause(statement)
    names = {bind.key: name for bind, name in compiled.bind_names.items()}
    compiled_binds = binds
    if compiled.cache_key is not None:
        compiled_binds = compiled.cache_key.bindparams
    for bind, other in zip(binds, compiled_binds, strict=True):
        if bind is clause:
            return names.get(other.key)
    return None


def _conditions(condition: Condition | None) -> Iterator[Equals | Within]:
    """Yield the comparisons of a condition."""
    if isinstance(condition, (Equals, Within)):
        yield condition
    elif isinstance(condition, (AllOf, AnyOf)):
        for part in condition.parts:
            yield from _conditions(part)
