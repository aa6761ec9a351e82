"""What a transaction makes old in the cache.

Every write is noted before its COMMIT: the rows of a flush after it; those of
an INSERT, and those that an UPDATE or DELETE of the session is going to
change, before it is sent.  Which these are, a locking read tells, with the
same WHERE: nobody can change them, or what WHERE says of them, in between.

What is not seen: textual SQL, and what the server does on its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from secrets import choice
from typing import Any

from sqlalchemy import Connection
from sqlalchemy import select
from sqlalchemy import Table
from sqlalchemy.sql import visitors
from sqlalchemy.sql.dml import Insert

from sqla_shard.exc import CachedWriteError
from sqla_shard.rendering import Place
from sqla_shard.routing import columns_set
from sqla_shard.routing import has_objects
from sqla_shard.routing import routing_column
from sqla_shard.routing import spec_of
from sqla_shard.session.autocommit import refuse_autocommit
from sqla_shard.session.contract import Announced
from sqla_shard.session.contract import Caching
from sqla_shard.session.contract import INCLUDE_INACTIVE
from sqla_shard.session.contract import Scope
from sqla_shard.session.inserting import ids_of
from sqla_shard.session.noted import Stale
from sqla_shard.session.unit_of_work import place_of

__all__ = [
    "announce",
    "check_count",
    "check_matching",
    "homes_of",
    "note_bulk",
    "note_flush",
    "note_list",
    "note_matching",
    "reads_the_present",
    "refuse_unseen",
    "settle",
]

_PRESENT = ("AUTOCOMMIT", "READ COMMITTED")


def announce(scope: Scope) -> Announced | None:
    """Announce the COMMIT of what was noted; None where that is nothing."""
    caching = scope.cluster.caching
    if caching is None or not scope.log.stale:
        return None
    return caching.announce(scope)


def settle(session: Any) -> None:
    """Handle ``before_commit``: see that there is a COMMIT to announce.

    A transaction that only makes known what others have written, or what
    the session has not seen, has begun on no server: nothing would be done
    at its end, and nothing could be written down.
    """
    # The log is not there where nothing was asked of it.
    log = session._log
    if log is None or log.first is not None or not log.stale:
        return
    # A savepoint is none of the servers' COMMITs.
    if session.cluster.caching is None or session.in_nested_transaction():
        return
    session.flush()
    if not log.homes_of(None) and _connected(session) is None:
        known = [one.place for one in log.stale.values() if one.place]
        # Any of them: whoever tries again may find one that answers.
        place = known[0] if known else choice(_of_servers(session))
        session.root_connection(place)


def homes_of(scope: Scope, stale: Stale) -> list[Place]:
    """Return where to write down that a key could not be taken out.

    A row is as new as its shard.  What a function has made of rows of
    several servers is old as soon as one of them has committed, and that may
    be all that ever commits.

    :returns: shards on different servers.
    :raises LookupError: when the transaction has begun nowhere.
    """
    # Not where it has only read, if it has written somewhere: that COMMIT
    # may fail without harm, as it seems.
    for place in (None if stale.is_made else stale.place, None):
        # Of what was to be written there, nothing may have been sent.
        written = scope.log.homes_of(place)
        homes = [one for one in written if scope.is_connected(one)]
        if homes:
            return homes
    home = _connected(scope)
    if home is None:
        raise LookupError("the transaction has begun on no server")
    return [home]


def _connected(scope: Scope) -> Place | None:
    """Return a shard of a server that the transaction has begun on."""
    for one in scope.log.stale.values():
        if one.place is not None and scope.is_connected(one.place):
            return one.place
    for place in _of_servers(scope):
        if scope.is_connected(place):
            return place
    return None


def _of_servers(scope: Scope) -> list[Place]:
    return [place for _, place in scope.places.servers()]


def reads_the_present(connection: Connection) -> bool:
    """Tell whether each statement sees what was committed before it."""
    options = connection.get_execution_options()
    level = (
        options.get("isolation_level") or connection.default_isolation_level
    )
    return level in _PRESENT


def refuse_unseen(
    scope: Scope, place: Place, table: Any, *, is_seen: bool
) -> None:
    """Refuse a write that is sent past the session, or with AUTOCOMMIT.

    :param is_seen: whether the session sends it.
    :raises CachedWriteError: when rows of the table are kept.
    """
    caching = scope.cluster.caching
    if is_seen:
        refuse_autocommit(scope, place, table)
    elif caching is not None and caching.keeps(table):
        raise CachedWriteError(
            "a statement that is sent on a connection does not tell which of "
            "them it writes; use session.execute()",
            table=table.name,
        )


def note_list(scope: Scope, place: Place, table: Any, source_id: int) -> None:
    """Take note of a list that is about to be changed.

    :raises CachedWriteError: with AUTOCOMMIT.
    """
    caching = scope.cluster.caching
    if caching is not None and caching.keeps(table):
        refuse_autocommit(scope, place, table)
        caching.written(scope, table, source_id)


def note_flush(scope: Scope, context: Any) -> None:
    """Handle ``after_flush``."""
    caching = scope.cluster.caching
    if caching is None:
        return
    for state, (_, listed_only) in context.states.items():
        table = state.mapper.local_table
        if listed_only or not caching.keeps(table):
            continue
        if state.key is not None:
            row_id = state.key[1][spec_of(table).id_index]
            caching.written(scope, table, row_id)
        column = routing_column(table)
        attribute = state.mapper.get_property_by_column(column).key
        row_id = state.dict.get(attribute)
        if has_objects(table):
            if state.key is None:
                place = place_of(scope, state.mapper, state.obj())
                caching.inserted(scope, table, place, [row_id])
        elif row_id is not None:
            # The row of a list may be new, or be another list's now.
            caching.written(scope, table, row_id)


def note_bulk(scope: Scope, statement: Any, rows: Mapping[Place, Any]) -> None:
    """Take note of the rows of an INSERT, or of an UPDATE by their ids.

    :param rows: the parameters, by place.
    :raises CachedWriteError: when it cannot be told which rows they are.
    """
    caching = scope.cluster.caching
    table = statement.table
    if caching is None or not caching.keeps(table):
        return
    for place in rows:
        refuse_autocommit(scope, place, table)
    is_insert = isinstance(statement, Insert)
    if is_insert and has_objects(table):
        if statement._post_values_clause is not None:
            raise CachedWriteError(
                "an INSERT that may change rows does not tell which; use "
                "INSERT and UPDATE",
                table=table.name,
            )
        for place, parameters in rows.items():
            ids = ids_of(statement, parameters)
            caching.inserted(scope, table, place, ids)
        return
    if not is_insert:
        _check_columns(caching, statement)
    for parameters in rows.values():
        for row_id in ids_of(statement, parameters):
            if row_id is None:
                raise CachedWriteError(
                    "INSERT .. FROM SELECT does not tell which lists it "
                    "writes; use session.execute(insert(Class), rows)",
                    table=table.name,
                )
            caching.written(scope, table, row_id)


def note_matching(
    scope: Scope, statement: Any, parameters: Any, places: Sequence[Place]
) -> int:
    """Take note of the rows that an UPDATE or DELETE is going to write.

    Where :func:`check_matching` says that some of them are kept.

    :param parameters: one set of them.
    :param places: where it is sent.
    :returns: how many rows these are.
    :raises CachedWriteError: with AUTOCOMMIT.
    """
    caching = scope.cluster.caching
    assert caching is not None  # noqa: S101  # check_matching() was asked
    table = statement.table
    for place in places:
        refuse_autocommit(scope, place, table)
    found = scope.scalars(
        select(routing_column(table))
        .where(*statement._where_criteria)
        .with_for_update(),
        parameters,
        bind_arguments={"places": list(places)},
        execution_options={INCLUDE_INACTIVE: True},
    ).all()
    for row_id in dict.fromkeys(found):
        caching.written(scope, table, row_id)
    return len(found)


def check_matching(scope: Scope, statement: Any) -> bool:
    """Tell whether rows are kept of those that an UPDATE or DELETE writes.

    :raises CachedWriteError: when it cannot be told which rows they are.
    """
    caching = scope.cluster.caching
    if caching is None:
        return False
    table = statement.table
    _check_columns(caching, statement)
    if not isinstance(table, Table):
        _refuse_joined(caching, table)
    if not caching.keeps(table):
        return False
    if any(option.endswith("_limit") for option in statement.kwargs):
        raise CachedWriteError(
            "a LIMIT does not tell which of them are written; name their ids",
            table=table.name,
        )
    return True


def _refuse_joined(caching: Caching, tables: Any) -> None:
    """Refuse an UPDATE of several tables.

    :raises CachedWriteError: when rows of one of them are kept.
    """
    for table in visitors.iterate(tables):
        if isinstance(table, Table) and caching.keeps(table):
            raise CachedWriteError(
                "an UPDATE of a join does not tell which of them it writes; "
                "use an UPDATE for each table",
                table=table.name,
            )


def _check_columns(caching: Caching, statement: Any) -> None:
    """Refuse what would change a row that was not looked for.

    :raises CachedWriteError: when it sets columns of another table that is
        kept, or moves rows of one list to another.
    """
    table = statement.table
    for column in columns_set(statement):
        other = getattr(column, "table", table)
        # Not the same object: the ORM's has annotations.
        if other.fullname != table.fullname and caching.keeps(other):
            raise CachedWriteError(
                f"an UPDATE of {table.name!r} that sets their columns, too, "
                "does not tell which; use an UPDATE for each table",
                table=other.name,
            )
        if caching.keeps(table) and column in _names(table):
            raise CachedWriteError(
                "an UPDATE that gives rows to another list does not tell "
                "which; remove them, and append them there",
                table=table.name,
            )


def _names(table: Any) -> Iterable[Any]:
    column = routing_column(table)
    return column, column.name, column.key


def check_count(statement: Any, result: Any, noted: int) -> None:
    """Refuse to go on where more was written than was noted.

    With READ COMMITTED a row may come to match after the rows were locked.

    :raises CachedWriteError: when there were more.
    """
    if result.rowcount > noted:
        raise CachedWriteError(
            f"{result.rowcount - noted} more of them were written than WHERE "
            "has found a moment before; roll back and repeat the "
            "transaction, or use REPEATABLE READ",
            table=statement.table.name,
        )
