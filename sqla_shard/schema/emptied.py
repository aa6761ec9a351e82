"""Databases that have lost their tables, and must not get empty ones.

A virtual shard whose objects are elsewhere, because it was moved or its
database was dropped and created again, looks like a new one.  Tables that
an upgrade makes there would be written by any process that still goes
there: its ids begin with 1 again, and name objects that others have.  So a
database without a revision, where other shards of the keyspace have one, is
changed only if something says that it is new: the mark of provision, its own
ledger, or an option of the command.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqla_shard.engines import Places
from sqla_shard.internal import PREFIX
from sqla_shard.schema.running.ledger import UNDONE
from sqla_shard.schema.selecting import as_ranges
from sqla_shard.schema.selecting import Shard
from sqla_shard.schema.versions import listed
from sqla_shard.schema.versions import Version

__all__ = ["marked", "others_of", "without_tables"]

_ADVICE = (
    "Its objects may be on another server, or lost. Compare the topology of "
    "this command with the published one, and look for the objects; empty "
    "tables here would give their ids again. For a shard that was never in "
    "use say so: sqla-shard schema upgrade --new NUMBERS, or alembic -x "
    "new=NUMBERS; new topologies are opened by: sqla-shard schema provision"
)


def others_of(
    versions: Sequence[Version], shards: Sequence[Shard]
) -> list[Shard]:
    """Return which other shards have to be asked to judge some.

    :param shards: all of the keyspace.
    """
    if not any(_is_blank(version) for version in versions) or any(
        version.heads for version in versions
    ):
        return []
    asked = {version.shard.shard_id for version in versions}
    return [shard for shard in shards if shard.shard_id not in asked]


def marked(
    versions: Sequence[Version],
    others: Sequence[Version],
    new: Sequence[int] = (),
) -> list[Version]:
    """Return versions again, with :attr:`Version.lost` where it is so.

    :param others: other shards of the keyspace, of :func:`others_of`.
    :param new: numbers of shards that are said to be new.
    """
    reason = _reason([*versions, *others])
    if reason is None:
        return list(versions)
    return [
        replace(version, lost=f"it has no revision, and {reason}. {_ADVICE}")
        if _is_blank(version) and version.shard.shard_id not in new
        else version
        for version in versions
    ]


def without_tables(
    places: Places, versions: Sequence[Version]
) -> list[Version]:
    """Return versions again; where there are tables, nothing was lost.

    For ``stamp``, which says of tables that are there what they are.
    """
    found = []
    for version in versions:
        shard = version.shard
        if version.lost is not None:
            with places.engines.visit(shard.place.engine) as connection:
                shard.place.backend.ddl.enter(connection, shard.schema)
                names = shard.place.backend.ddl.names(connection)
            if any(not name.startswith(PREFIX) for name in names):
                version = replace(version, lost=None)
        found.append(version)
    return found


def _is_blank(version: Version) -> bool:
    """Tell whether no revision is there, and nothing says why."""
    if not version.is_known or version.heads or version.open is not None:
        return False
    if version.closed is None:
        return True
    # The mark of provision is an entry, too, older than those of revisions.
    # Once an upgrade has ended a version was there, and was taken away.
    direction, state = version.closed
    return direction == "upgrade" and state != UNDONE


def _reason(versions: Sequence[Version]) -> str | None:
    """Return why a database without a revision is not a new one."""
    for version in versions:
        if version.heads:
            ids = [
                one.shard.shard_id
                for one in versions
                if one.heads == version.heads
            ]
            return (
                f"others are at one: {listed(version.heads)} on shard "
                f"{as_ranges(ids, 4)}"
            )
    silent = [one for one in versions if one.error is not None]
    if silent:
        ids = [one.shard.shard_id for one in silent]
        return (
            "it is not known whether others are at one: shard "
            f"{as_ranges(ids, 4)} could not be asked"
        )
    return None
