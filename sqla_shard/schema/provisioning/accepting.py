"""Comparing databases that were made with one that is in use."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import replace
from difflib import unified_diff
from functools import partial

from sqlalchemy import Connection
from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from sqla_shard.dialects.catalogue import DATABASE
from sqla_shard.engines import Places
from sqla_shard.exc import ServerUnreachableError
from sqla_shard.internal import PREFIX
from sqla_shard.rendering import Place
from sqla_shard.schema.provisioning.marking import finish_mark
from sqla_shard.schema.reports import Outcome
from sqla_shard.schema.reports import State
from sqla_shard.schema.selecting import Shard
from sqla_shard.schema.versions import read_versions
from sqla_shard.schema.versions import Version

__all__ = ["by_engine", "compared"]

#: How many tables, and lines of each, a message shows.
_TABLES = 3
_LINES = 8


def by_engine(shards: Sequence[Shard]) -> list[list[Shard]]:
    """Return the shards in groups that share an engine."""
    found: dict[Engine, list[Shard]] = {}
    for shard in shards:
        found.setdefault(shard.place.engine, []).append(shard)
    return list(found.values())


def compared(
    places: Places,
    shards: Sequence[Shard],
    outcomes: Sequence[Outcome],
    reference: Shard,
    version_table: str,
) -> list[Outcome]:
    """Return outcomes again, those failed that are not as the reference.

    The marks of the others are finished.

    :param outcomes: one for each shard, all of them good.
    :param reference: what they must be like.
    :param version_table: the name of alembic's table.
    """
    # By itself: in the topology before, another server may have its name.
    [wanted] = read_versions(places, [reference], version_table)
    errors: dict[int, tuple[State, str]] = {}
    alike = []
    for version in read_versions(places, shards, version_table):
        error = _revision_error(version, wanted)
        if error is None:
            alike.append(version.shard)
        else:
            errors[version.shard.shard_id] = State.FAILED, error
    work = partial(_on_engine, places, reference, version_table)
    for found in places.engines.at_once(
        [partial(work, some) for some in by_engine(alike)], "compare", 8
    ):
        errors.update(found)
    return [
        replace(
            outcome,
            state=errors[outcome.shard_id][0],
            error=errors[outcome.shard_id][1],
        )
        if outcome.shard_id in errors
        else outcome
        for outcome in outcomes
    ]


def _revision_error(version: Version, wanted: Version) -> str | None:
    for one in (version, wanted):
        if not one.is_known:
            return f"{one.shard}: {one.error or 'no such database'}"
        if one.open is not None:
            return f"{one.open.step} has not ended on {one.shard}"
    if set(version.heads) != set(wanted.heads):
        return (
            f"it is at {', '.join(version.heads) or 'no revision'}, and "
            f"{wanted.shard} is at {', '.join(wanted.heads)} by now; "
            "run provision again"
        )
    return None


def _read(
    connection: Connection, shards: Sequence[Shard]
) -> dict[str, dict[str, str]]:
    catalogue = shards[0].place.backend.catalogue
    found = catalogue.digests(connection, [shard.schema for shard in shards])
    return {
        # Those of this package are upgraded with the next revision only.
        schema: {
            name: digest
            for name, digest in tables.items()
            if not name.startswith(PREFIX)
        }
        for schema, tables in found.items()
    }


def _on_engine(
    places: Places,
    reference: Shard,
    version_table: str,
    shards: Sequence[Shard],
) -> dict[int, tuple[State, str]]:
    try:
        with reference.place.engine.connect() as connection:
            wanted = _read(connection, [reference]).get(reference.schema, {})
        with shards[0].place.engine.connect() as connection:
            digests = _read(connection, shards)
        errors = {}
        alike = {}
        for shard in shards:
            found = digests.get(shard.schema, {})
            if found == wanted:
                alike[shard] = [name for name in found if name != DATABASE]
                continue
            text = "\n".join(_differences(shard, reference, found, wanted))
            errors[shard.shard_id] = State.FAILED, text
        _finish(places, alike, version_table)
    except (DBAPIError, ServerUnreachableError, OSError) as error:
        return {
            shard.shard_id: (State.UNREACHABLE, str(error)) for shard in shards
        }
    return errors


def _finish(
    places: Places, tables: Mapping[Shard, Collection[str]], version_table: str
) -> None:
    if not tables:
        return
    first = next(iter(tables)).place
    with places.engines.visit(first.engine) as connection:
        for shard, names in tables.items():
            first.backend.ddl.enter(connection, shard.schema)
            finish_mark(connection, names, version_table)
            connection.commit()


def _differences(
    shard: Shard,
    reference: Shard,
    found: Mapping[str, str],
    wanted: Mapping[str, str],
) -> Iterator[str]:
    yield f"its definitions are not those of {reference}:"
    names = sorted(
        name
        for name in {*found, *wanted}
        if found.get(name) != wanted.get(name)
    )
    for name in names[:_TABLES]:
        shown = f"table {name}"
        if name == DATABASE:
            shown = "defaults of the database"
        if name not in found:
            yield f"{shown}: not here"
        elif name not in wanted:
            yield f"{shown}: not there"
        else:
            yield f"{shown}: there (-), and here (+)"
            lines = unified_diff(
                _definition(reference.place, reference, name),
                _definition(shard.place, shard, name),
                lineterm="",
                n=0,
            )
            kept = [ln for ln in lines if ln[:2] not in ("--", "++", "@@")]
            yield from kept[:_LINES]
    if len(names) > _TABLES:
        yield f"and {len(names) - _TABLES} other tables"


def _definition(place: Place, shard: Shard, name: str) -> list[str]:
    with place.engine.connect() as connection:
        text = place.backend.catalogue.definition(
            connection, shard.schema, name
        )
    return text.splitlines()
