"""At which revision every virtual shard is: one or few reads per server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from functools import partial
from typing import Any

from sqlalchemy.exc import DBAPIError

from sqla_shard.engines import Places
from sqla_shard.exc import ServerUnreachableError
from sqla_shard.internal import LEDGER
from sqla_shard.schema.internal import VERSION_TABLE
from sqla_shard.schema.selecting import Shard

__all__ = ["Open", "Version", "listed", "read_versions", "without_ledger"]


@dataclass(frozen=True, kw_only=True)
class Open:
    """A revision that has begun on a shard and has not ended.

    :ivar number: position of the last statement that was begun.
    """

    direction: str
    revision: str
    number: int

    @property
    def step(self) -> str:
        """The revision, as messages name it."""
        return f"{self.direction} of {self.revision}"


@dataclass(frozen=True, kw_only=True)
class Version:
    """What a virtual shard says of itself.

    :ivar heads: the revisions that it is at; none for one without tables.
    :ivar internal: the revision of this package's own tables, or None.
    :ivar open: the revision that was interrupted there, or None.
    :ivar closed: direction and state of the last entry of its ledger that
        is closed, for one without revisions; None where there is none.
    :ivar has_ledger: whether that is there, where tables of this package
        are.
    :ivar is_missing: whether its server has no such database.
    :ivar lost: why it is taken for one that has lost its tables, or None.
    :ivar error: why its server could not be asked, or None.
    :ivar cause: the exception that says so, or None.
    """

    shard: Shard
    heads: tuple[str, ...] = ()
    internal: str | None = None
    open: Open | None = None
    closed: tuple[str, str] | None = None
    has_ledger: bool = True
    is_missing: bool = False
    lost: str | None = None
    error: str | None = None
    cause: Exception | None = None

    @property
    def is_known(self) -> bool:
        """Whether the database is there and has answered."""
        return not self.is_missing and self.error is None


def without_ledger(version: Version) -> str:
    """Return what is the matter where the ledger is gone."""
    return (
        f"{version.shard.database} has lost its table {LEDGER.name}, so it "
        "is not known whether a revision is unfinished there. Compare its "
        "tables with those of others (sqla-shard schema verify), and put "
        f"them right; then DROP TABLE {VERSION_TABLE} there, and the next "
        "upgrade makes the ledger again"
    )


def listed(heads: Sequence[str]) -> str:
    """Return the revisions of a shard, as messages name them."""
    return ", ".join(heads) or "no revision"


def read_versions(
    places: Places, shards: Sequence[Shard], version_table: str
) -> list[Version]:
    """Return the version of every shard, in the order given.

    All servers are asked at the same time; one that does not answer is told
    of in the versions of its shards.

    :param version_table: the name of alembic's table.
    """
    servers: dict[str, list[Shard]] = {}
    for shard in shards:
        servers.setdefault(shard.server, []).append(shard)
    answers = places.engines.at_once(
        [
            partial(_on_server, on_one, version_table)
            for on_one in servers.values()
        ],
        "versions",
    )
    found = {
        version.shard.shard_id: version
        for versions in answers
        for version in versions
    }
    return [found[shard.shard_id] for shard in shards]


def _on_server(shards: Sequence[Shard], version_table: str) -> list[Version]:
    try:
        return _asked(shards, version_table)
    except (DBAPIError, ServerUnreachableError, OSError) as error:
        # OSError where the directory of SQLite files cannot be read.
        return [
            Version(shard=shard, error=str(error), cause=error)
            for shard in shards
        ]


def _asked(shards: Sequence[Shard], version_table: str) -> list[Version]:
    place = shards[0].place
    names = place.backend.catalogue.databases(place.engine)
    versions = {
        shard.shard_id: Version(
            shard=shard, is_missing=shard.database not in names
        )
        for shard in shards
    }
    there = [v.shard for v in versions.values() if not v.is_missing]
    by_engine: dict[Any, list[Shard]] = {}
    for shard in there:
        by_engine.setdefault(shard.place.engine, []).append(shard)
    for on_one in by_engine.values():
        for version in _read(on_one, versions, version_table):
            versions[version.shard.shard_id] = version
    return list(versions.values())


def _read(
    shards: Sequence[Shard],
    versions: dict[int, Version],
    version_table: str,
) -> list[Version]:
    engine, ddl = shards[0].place.engine, shards[0].place.backend.ddl
    schemas = [shard.schema for shard in shards]
    heads = ddl.rows(engine, schemas, version_table, ["version_num"])
    internal = ddl.rows(engine, schemas, VERSION_TABLE, ["version_num"])
    columns = list(Open.__dataclass_fields__)
    opened = ddl.rows(
        engine,
        [schema for schema in schemas if internal.get(schema)],
        LEDGER.name,
        columns,
        "is_open",
    )
    without = [s for s in schemas if not heads.get(s) and internal.get(s)]
    closed: dict[str, list[tuple[Any, ...]]] = {}
    if without:
        names = ["id", "direction", "state"]
        closed = ddl.rows(engine, without, LEDGER.name, names, "NOT is_open")
    return [
        replace(
            versions[shard.shard_id],
            closed=_newest(closed.get(shard.schema, ())),
            heads=tuple(sorted(row[0] for row in heads.get(shard.schema, ()))),
            internal=next(
                (row[0] for row in internal.get(shard.schema, ())), None
            ),
            has_ledger=(
                shard.schema in opened or not internal.get(shard.schema)
            ),
            open=_last(opened.get(shard.schema, ()), columns),
        )
        for shard in shards
    ]


def _last(rows: Sequence[tuple[Any, ...]], columns: list[str]) -> Open | None:
    found = [Open(**dict(zip(columns, row, strict=True))) for row in rows]
    return max(found, key=lambda one: one.number, default=None)


def _newest(rows: Sequence[tuple[Any, ...]]) -> tuple[str, str] | None:
    if not rows:
        return None
    _, direction, state = max(rows)
    return direction, state
