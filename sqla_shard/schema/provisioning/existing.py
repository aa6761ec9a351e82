"""Databases of new virtual shards that are there before they are made.

One that an interrupted provision has begun is gone on with.  Any other may
hold the objects of the shard, and is not touched.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence
from functools import partial

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from sqla_shard.engines import Engines
from sqla_shard.exc import Problem
from sqla_shard.exc import SchemaError
from sqla_shard.internal import PREFIX
from sqla_shard.schema.provisioning.accepting import by_engine
from sqla_shard.schema.provisioning.marking import Mark
from sqla_shard.schema.provisioning.marking import read_marks
from sqla_shard.schema.provisioning.marking import written_since
from sqla_shard.schema.selecting import Shard

__all__ = ["check_unused", "in_the_way"]

_SHOWN = 5


def in_the_way(
    engines: Engines, shards: Sequence[Shard], version_table: str
) -> list[Problem]:
    """Return which databases no provision has made, or are in use since.

    :param shards: those whose databases are there.
    :param version_table: the name of alembic's table.
    """
    work = partial(_on_engine, engines, version_table)
    found = engines.at_once(
        [partial(work, some) for some in by_engine(shards)], "look", 8
    )
    return [problem for problems in found for problem in problems]


def check_unused(connection: Connection, shard: Shard) -> None:
    """Refuse a database with tables that no provision has made.

    :param connection: on the database, with its lock.
    :raises SchemaError: when it is one.
    """
    reason = _strange(shard.place.backend.ddl.names(connection))
    if reason is not None and not read_marks([shard]):
        raise SchemaError(f"{shard.database} {reason}")


def _on_engine(
    engines: Engines, version_table: str, shards: Sequence[Shard]
) -> list[Problem]:
    try:
        with engines.visit(shards[0].place.engine) as connection:
            return _asked(connection, version_table, shards)
    except (DBAPIError, OSError) as error:
        return [Problem(shards[0].server, f"cannot be asked: {error}")]


def _asked(
    connection: Connection, version_table: str, shards: Sequence[Shard]
) -> list[Problem]:
    ddl = shards[0].place.backend.ddl
    names = {}
    for shard in shards:
        ddl.enter(connection, shard.schema)
        names[shard.shard_id] = ddl.names(connection)
    # After the names: a table that another run of provision makes meanwhile
    # has a mark before it.
    marks = read_marks(shards)
    problems = []
    for shard in shards:
        mark = marks.get(shard.shard_id)
        tables = names[shard.shard_id]
        if mark is None:
            reason = _strange(tables)
        elif mark.rows is None:
            reason = None
        else:
            ddl.enter(connection, shard.schema)
            written = written_since(
                connection, tables, mark.rows, version_table
            )
            reason = _used(mark, written)
        if reason is not None:
            where = f"{shard.database} on {shard.server}"
            problems.append(Problem(where, reason))
    return problems


def _strange(names: Collection[str]) -> str | None:
    tables = sorted(one for one in names if not one.startswith(PREFIX))
    if not tables:
        return None
    return (
        f"is there already, with tables that no provision has made: "
        f"{_listed(tables)}. It may hold the objects of the shard; look at "
        "it, then rename it or drop it"
    )


def _used(mark: Mark, tables: Sequence[str]) -> str | None:
    if not tables:
        return None
    return (
        f"was provisioned for {mark.epoch}, and has rows since then that no "
        f"revision has written, in {_listed(tables)}; it may be in use"
    )


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (
        f" and {more} more" if more > 0 else ""
    )
