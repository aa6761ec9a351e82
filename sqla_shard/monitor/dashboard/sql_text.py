"""SQL as text, as servers log it: where it runs, by the databases it names.

The package does not parse SQL: a session refuses ``text()`` without a shard,
because only the application knows it.  A statement of a server's log or
process list has the name of a database before each table, and each database is
a virtual shard::

    SELECT ... FROM db03429.pins WHERE pins.local_id = 7075733

Nothing is sent to a server, and no class has to be known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from sqlalchemy import text as sql_text

from sqla_shard.cluster.cluster import Cluster
from sqla_shard.cluster.explain import Explanation, target_of
from sqla_shard.engine.rendering import Place
from sqla_shard.exc import StatementTextError
from sqla_shard.fleet.binlog_statements import qualifiers
from sqla_shard.topology.databases import Template

# A Python expression has a bracket after the name of a function.  Comments are
# possessive: their parts would be tried in all ways, for hours.
_SQL = re.compile(
    r"\s*+(?:/\*.*?\*/\s*)*+(?:SELECT|INSERT|UPDATE|DELETE|REPLACE|WITH)"
    r"\s+[^\s(]",
    re.I | re.S,
)


def is_sql(statement: str) -> bool:
    """Return whether a text is SQL, and not an expression of SQLAlchemy."""
    return _SQL.match(statement) is not None


def explain_sql(cluster: Cluster, statement: str) -> Explanation:
    """Return where a statement runs; runs nothing.

    :returns: the shards whose databases it names; without any, what a session
        does with it: its refusal, with the remedy.
    :raises StatementTextError: if it names databases of several keyspaces.
    :raises UnknownShardError: if it names the database of a shard that is not
        open.
    """
    places = list(dict.fromkeys(_places(cluster, statement)))
    if not places:
        # A colon would be a parameter.
        return cluster.explain(sql_text(statement.replace(":", r"\:")))
    keyspaces = sorted({place.keyspace for place in places})
    if len(keyspaces) > 1:
        raise StatementTextError(
            f"names databases of the keyspaces {', '.join(keyspaces)}, and "
            "is not one that a session sends; paste a part of it",
            statement=statement,
        )
    why = "the databases that it names"
    return Explanation(
        object_id=None,
        keyspace=keyspaces[0],
        targets=tuple(
            target_of(place, why)
            for place in sorted(places, key=lambda place: place.shard_id)
        ),
        why=why,
        refusal=None,
    )


def _places(cluster: Cluster, statement: str) -> Iterator[Place]:
    names = set(qualifiers(statement))
    places = cluster.places
    for keyspace in cluster.topology.keyspaces.values():
        template = Template.parse(keyspace.database, sharded=keyspace.kind != "global")
        # The topology was checked when it was read.
        assert isinstance(template, Template)  # noqa: S101
        for name in names:
            shard_id = template.shard_of(name)
            if shard_id is not None:
                yield places.place(keyspace, shard_id)
