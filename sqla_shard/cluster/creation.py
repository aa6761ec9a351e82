"""Databases and tables of every virtual shard, for development and tests.

In production the tables of thousands of databases are changed by alembic.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from sqlalchemy import Connection, Engine, MetaData, Table

from sqla_shard.engine import ExecutionPlan, OPTION, Places
from sqla_shard.engine.rendering import Place, TRANSLATE
from sqla_shard.outbox.tables import OF_TRANSACTIONS
from sqla_shard.planning import name_of, spec_of
from sqla_shard.topology import Keyspace
from sqla_shard.util.sqlalchemy_helpers import sorted_tables

_PARALLEL = 8


def create_all(metadata: MetaData, places: Places, keyspace: str | None = None) -> None:
    """Create the missing tables on every shard.

    The tables of transaction keys, operations and invalidations are also
    created.  All servers work at the same time.  Existing tables are not
    changed.

    :param keyspace: create only the tables of this keyspace.
    :raises UnknownKeyspaceError: if a table's keyspace is not in the
        topology.
    """
    tables: dict[str, tuple[Keyspace, list[Table]]] = {}
    if keyspace:
        places.topology.keyspace(keyspace)  # raises UnknownKeyspaceError
    for table in sorted_tables(metadata):
        spec = spec_of(table)
        if keyspace and name_of(spec, places.topology) != keyspace:
            continue  # the keyspace of the table may be in another topology
        home = places.keyspace(spec.keyspace, spec.kind, spec.layout)
        tables.setdefault(home.name, (home, []))[1].append(table)
    work: dict[Engine, list[tuple[Place, Sequence[Table]]]] = {}
    for space, wanted in tables.values():
        for place in places.all_places(space):
            work.setdefault(place.engine, []).append((place, wanted))
    jobs = [partial(_on_server, *on_one) for on_one in work.items()]
    if not keyspace:
        # SQLite: the file of a keyspace without tables; without it the
        # server would be reported as down.
        empty = {
            place.engine: place.backend
            for space in places.topology.keyspaces.values()
            for place in places.all_places(space)
            if place.engine not in work
        }
        jobs += [partial(b.create_file, engine) for engine, b in empty.items()]
    places.engines.in_parallel(jobs, "create", _PARALLEL)


def _on_server(engine: Engine, work: Sequence[tuple[Place, Sequence[Table]]]) -> None:
    work[0][0].backend.create_file(engine)
    with engine.connect() as connection:
        existing = _existing(connection, [place for place, _ in work])
        for place, tables in work:
            here = existing[place.schema]
            for wanted in (tables, OF_TRANSACTIONS):
                missing = [one for one in wanted if one.name not in here]
                _create(connection, place, missing)
        connection.commit()


def _existing(connection: Connection, places: Iterable[Place]) -> dict[str, set[str]]:
    by_schema = {place.schema: place for place in places}
    for schema, place in by_schema.items():
        place.backend.create_database(connection, schema)
    backend = next(iter(by_schema.values())).backend
    return backend.tables(connection, by_schema)


def _create(connection: Connection, place: Place, tables: Sequence[Table]) -> None:
    if not tables:
        return
    on_shard = connection.execution_options(
        **{OPTION: ExecutionPlan((place,)), "schema_translate_map": TRANSLATE}
    )
    metadata = tables[0].metadata
    metadata.create_all(on_shard, tables=list(tables), checkfirst=False)
