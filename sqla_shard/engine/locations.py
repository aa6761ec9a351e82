"""The locations of the virtual shards of a topology."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import partial

from sqlalchemy import Engine
from sqlalchemy.sql.compiler import IdentifierPreparer

from sqla_shard.dialects import Backend
from sqla_shard.engine.pools import Answer, warm
from sqla_shard.engine.registry import Engines
from sqla_shard.engine.rendering import Place
from sqla_shard.exc import ClusterClosedError, IdLayoutMismatchError, ServerRetiredError
from sqla_shard.ids import check_shard_id, IdLayout
from sqla_shard.topology import Keyspace, Server, server_names, Topology

#: Maximum number of places in memory; each takes about 230 bytes.
_MOST = 8192

_PLAIN = re.compile(r"[a-z_][a-z0-9_]*")


class Places:
    """The locations of the virtual shards of one topology.

    Places are created on first use; a few thousand of them stay in memory.
    """

    def __init__(self, topology: Topology, engines: Engines) -> None:
        self.topology = topology
        self.engines = engines
        #: Generations of shards by address, for sqla_shard.cache; valid for
        #: this topology only.
        self.generations: dict[tuple[str, int], str] = {}
        self._places: dict[tuple[str, int], Place] = {}
        #: Engines that serve all databases of a server, by its name and URL,
        #: since an engine has all names of its server.
        self._shared: dict[tuple[str, str], tuple[Engine, Backend]] = {}
        self._keyspaces: dict[tuple[str | None, str], Keyspace] = {}

    def keyspace(
        self, name: str | None, kind: str, layout: IdLayout | None = None
    ) -> Keyspace:
        """Return a keyspace by name, or the only one of its kind.

        :param layout: layout of the ids that a class has; None to not compare
            it with that of the keyspace.
        :raises UnknownKeyspaceError: if there is no such keyspace, or several.
        :raises IdLayoutMismatchError: if the keyspace has another layout.
        """
        found = self._keyspaces.get((name, kind))
        if found is None:
            if name is None:
                found = self.topology.sole(kind)  # type: ignore[arg-type]  # checked there
            else:
                found = self.topology.keyspace(name)
            self._keyspaces[name, kind] = found
        if layout is not found.id_layout and layout is not None:
            check_layout(found, layout)
        return found

    def place(self, keyspace: Keyspace, shard_id: int) -> Place:
        """Return the location of a virtual shard.

        :raises UnknownShardError: if the shard is not open.
        :raises InvalidIdError: if ``shard_id`` is not an int from 0 to 65535.
        """
        if type(shard_id) is not int:
            # True and 1.0 are equal to 1, and a list is not hashable.
            shard_id = check_shard_id(shard_id)
        key = keyspace.name, shard_id
        place = self._places.get(key)
        if place is None:
            if len(self._places) >= _MOST:
                # 65,536 places would take most of the memory of a topology;
                # places in use are created again.
                self._places.clear()
            server = keyspace.server_for(check_shard_id(shard_id))
            place = self.place_on(keyspace, server, shard_id)
            self._places[key] = place
            if place.engine.url.database is not None:
                self.engines.only_places[place.engine.url] = place
        return place

    def several(self, keyspace: Keyspace, shard_ids: Iterable[int]) -> list[Place]:
        """Return the locations of shards, in their order; see :meth:`place`.

        :param shard_ids: numbers of shards, which are not checked.
        """
        # Statements may be for all shards: avoid a call for each of them.
        name, known = keyspace.name, self._places.get
        return [
            known((name, shard_id)) or self.place(keyspace, shard_id)
            for shard_id in shard_ids
        ]

    def place_on(self, keyspace: Keyspace, server: Server, shard_id: int) -> Place:
        """Return where a shard would be if the given server had it."""
        engine, schema, backend = self._locate(server, keyspace.database_for(shard_id))
        return Place(
            keyspace=keyspace.name,
            shard_id=shard_id,
            server=server.name,
            schema=_quoted(schema, engine.dialect.identifier_preparer),
            engine=engine,
            backend=backend,
        )

    def _locate(self, server: Server, database: str) -> tuple[Engine, str, Backend]:
        """Return the engine of a server, as :meth:`Engines.locate` does."""
        key = server.name, server.primary
        # A server of a replaced topology may have been removed.
        if self.engines.topology is self.topology:
            shared = self._shared.get(key)
            if shared is not None:
                return shared[0], database, shared[1]
        engine, schema, backend = self.engines.locate(server, database)
        if engine.url.database is None:
            self._shared[key] = engine, backend
        return engine, schema, backend

    def all_places(self, keyspace: Keyspace) -> list[Place]:
        """Return the places of every open shard, in order."""
        return [self.place(keyspace, i) for i in range(keyspace.shards)]

    def servers(self) -> Iterator[tuple[str, Place]]:
        """Yield the servers by name, with the first shard of each."""
        for keyspace in self.topology.keyspaces.values():
            for server in keyspace.servers:
                lowest = server.shards[0].first if server.shards else 0
                yield server.name, self.place(keyspace, lowest)

    def check(self, timeout: float) -> dict[str, Answer]:
        """Probe all servers at the same time.

        :param timeout: seconds.
        :returns: by name of the server, see :func:`.server_names`: None, or
            the error.
        :raises ServerRetiredError: if a newer topology has removed a server.
        """
        known = server_names(self.topology)
        # A server of several keyspaces is probed only once.
        names: dict[Engine, str] = {}
        try:
            for _, place in self.servers():
                name = known[place.keyspace, place.server]
                names.setdefault(place.engine, name)
        except ClusterClosedError as error:
            return dict.fromkeys(known.values(), error)
        found: dict[str, Answer] = {}
        answers = self.engines.ask(list(names), timeout)
        for answer in answers:
            if isinstance(answer, ServerRetiredError):
                raise answer
        # The keyspaces of a server of SQLite have engines of their own.
        for name, answer in zip(names.values(), answers, strict=True):
            found[name] = found.get(name) or answer
        return found

    def warm(self, connections: int) -> None:
        """Open connections to every server of the topology, in parallel.

        :param connections: number of connections to each server.
        """
        engines = {place.engine for _, place in self.servers()}
        self.engines.in_parallel(
            [partial(warm, engine, connections) for engine in engines], "warm"
        )


def check_layout(keyspace: Keyspace, layout: IdLayout) -> None:
    """Check that a class has the id layout of its keyspace.

    :raises IdLayoutMismatchError: if it has another layout.
    """
    if keyspace.kind == "objects" and layout != keyspace.id_layout:
        raise IdLayoutMismatchError(
            keyspace=keyspace.name,
            keyspace_layout=str(keyspace.id_layout),
            class_layout=str(layout),
        )


def by_server(places: Iterable[Place]) -> list[list[Place]]:
    """Return places grouped by engine, in their order."""
    found: dict[Engine, list[Place]] = {}
    for place in places:
        found.setdefault(place.engine, []).append(place)
    return list(found.values())


def _quoted(name: str, preparer: IdentifierPreparer) -> str:
    """Return the quoted name for SQL statements.

    ``quote()`` of the preparer would store each name in memory while the
    engine exists: for 65,536 shards, more than all other data.
    """
    if _PLAIN.fullmatch(name) and name not in preparer.reserved_words:
        return name
    return preparer.quote_identifier(name)
