"""Reading a table of ours on every shard.

A server that does not answer keeps nobody from what the others have.  So are
read intents, and the keys that wait for a cache.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from functools import partial
from typing import Any

from sqlalchemy import func
from sqlalchemy import Select
from sqlalchemy import select
from sqlalchemy import Table
from sqlalchemy.exc import SQLAlchemyError

from sqla_shard.engines import by_server
from sqla_shard.engines.troubles import Trouble
from sqla_shard.exc import ShardMissingError
from sqla_shard.rendering import Place
from sqla_shard.session import ShardSession
from sqla_shard.session.contract import Home

__all__ = ["oldest", "read_all"]

_log = logging.getLogger(__name__)

_PARALLEL = 8

#: A keyspace, and a row of one of its shards.
Found = tuple[str, Any]


def read_all(
    home: Home,
    which: Any,
    statement: Any,
    parameters: Mapping[str, Any] | None = None,
    *,
    is_missed: bool = False,
) -> tuple[list[Found], list[Trouble]]:
    """Return the rows of a statement from all shards of all keyspaces.

    :param which: returns the numbers of the shards that have some.  Most have
        none, and unlike a statement with a LIMIT of its own, this one is sent
        for hundreds of them at once.
    :param is_missed: whether a shard of objects without the table was not
        read; otherwise it has never been left anything.
    :returns: the rows; and what was not read, such as a shard without a
        database.
    """
    places = home.places
    look = _Look(home, which, statement, parameters)
    jobs = [
        partial(look.on_server, at)
        for keyspace in places.topology.keyspaces.values()
        for at in by_server(places.all_places(keyspace))
    ]
    found: list[Found] = []
    troubles: list[Trouble] = []
    for answer in places.engines.at_once(jobs, "intents", _PARALLEL):
        if isinstance(answer, Trouble):
            troubles.append(answer)
        else:
            found += answer
    troubles += look.gone
    if is_missed:
        troubles += [
            Trouble(place.server, missing, 1)
            for place, missing in look.missed
            if places.keyspace(place.keyspace, "").kind == "objects"
        ]
    return found, troubles


def oldest(table: Table, moment: str, shard: str) -> Select[Any]:
    """Return the number of a shard whose table has rows.

    It is that of the oldest row, which an index finds.

    :param moment: the column that tells the age.
    :param shard: the column that tells the shard.
    """
    inner = table.alias("oldest")
    first = select(func.min(inner.c[moment])).scalar_subquery()
    return select(table.c[shard]).where(table.c[moment] == first)


@dataclass(frozen=True)
class _Look:
    """What is asked of all servers; see :func:`read_all`."""

    home: Home
    which: Any
    statement: Any
    parameters: Mapping[str, Any] | None
    #: The shards without the table.
    missed: list[tuple[Place, ShardMissingError]] = field(default_factory=list)
    #: Those without a database.
    gone: list[Trouble] = field(default_factory=list)

    def on_server(self, places: Sequence[Place]) -> list[Found] | Trouble:
        """Return the rows of some shards of a server, or what is wrong."""
        try:
            try:
                return self._read(places)
            except ShardMissingError:
                return self._read_each(places)
        except SQLAlchemyError as error:
            return Trouble(places[0].server, error, len(places))

    def _read_each(self, places: Sequence[Place]) -> list[Found]:
        """Return the rows of those shards that have the table."""
        found: list[Found] = []
        keyspace = self.home.places.keyspace(places[0].keyspace, "")
        # MariaDB says of a missing database that it has no table.
        names = places[0].backend.catalogue.databases(places[0].engine)
        for place in places:
            try:
                found += self._read([place])
            except ShardMissingError as missing:
                if keyspace.database_for(place.shard_id) not in names:
                    self.gone.append(Trouble(place.server, missing, 1))
                    continue
                self.missed.append((place, missing))
                _log.info(
                    "shard %d of %s on %s has not all of our tables: %s",
                    place.shard_id,
                    place.keyspace,
                    place.server,
                    missing.orig,
                    extra={"action": "read", "server": place.server},
                )
        return found

    def _read(self, places: Sequence[Place]) -> list[Found]:
        keyspace = places[0].keyspace
        with ShardSession(cluster=self.home) as session:
            numbers = set(self._ask(session, self.which, places).scalars())
            some = [place for place in places if place.shard_id in numbers]
            if not some:
                return []
            rows = self._ask(session, self.statement, some)
            return [(keyspace, row) for row in rows]

    def _ask(
        self, session: ShardSession, statement: Any, places: Sequence[Place]
    ) -> Any:
        return session.execute(
            statement, self.parameters, bind_arguments={"places": places}
        )
