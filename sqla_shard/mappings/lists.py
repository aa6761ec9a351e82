"""One list: a mapping class, a session and the id of a source."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

from sqlalchemy import inspect

from sqla_shard.ids import check_type
from sqla_shard.mappings.definition import End
from sqla_shard.mappings.statements import Statements
from sqla_shard.mappings.statements import statements_of
from sqla_shard.rendering import Place
from sqla_shard.routing import spec_of
from sqla_shard.session import ShardSession
from sqla_shard.session.stale import note_list

__all__ = ["CHUNK", "List", "chunked"]

#: How many ids a statement names at most.
CHUNK = 1000


class List:
    """What the operations on one list share.

    :ivar statements: those of the mapping class.
    :ivar place: the virtual shard of the source.
    :raises WrongTypeError: when the id is of another class than the source.
    :raises InvalidIdError: when it is none.
    :raises UnknownShardError: when its shard is not open.
    """

    def __init__(
        self, cls: Any, session: ShardSession, source_id: int
    ) -> None:
        self.cls = cls
        self.session = session
        self.source_id = source_id
        self.statements: Statements = statements_of(cls)
        source = self.statements.definition.source
        self.place = place_of(cls, session, source, source_id)

    @property
    def name(self) -> str:
        """Name of the mapping class."""
        return str(self.cls.__name__)

    def checked(self, target_id: int) -> int:
        """Return the id of a target.

        :raises WrongTypeError: when it is the id of another class.
        :raises InvalidIdError: when it is none.
        """
        target = self.statements.definition.target
        check_type(target_id, target.type_id, f"{self.name}.{target.column}")
        return target_id

    def readable(self, target_id: int) -> int:
        """Return the id of a target that is to be in the list.

        One of a shard that is not open could not be read, and neither could
        a page with it.

        :raises WrongTypeError: when it is the id of another class.
        :raises InvalidIdError: when it is none.
        :raises UnknownShardError: when its shard is not open.
        """
        target = self.statements.definition.target
        place_of(self.cls, self.session, target, target_id)
        return target_id

    def execute(self, statement: Any, **parameters: Any) -> Any:
        """Run one of the statements on the list's shard."""
        return self.session.execute(
            statement,
            {"source": self.source_id, **parameters},
            bind_arguments={"place": self.place},
        )

    def locked(self, statement: Any, **parameters: Any) -> Any:
        """Run one of the locking statements; return its parts.

        Changes that the session holds are flushed first, so that they are
        seen, and nothing but the source is locked before the source.
        """
        if self.session.autoflush:
            self.session.flush()
        _, *parts, _ = self.execute(
            statement, owner=self.source_id, **parameters
        ).one()
        return parts

    def note(self) -> None:
        """Tell the cache, if there is one, that the list is changed."""
        table = self.statements.table
        note_list(self.session, self.place, table, self.source_id)

    def note_appended(self, rows: Sequence[tuple[int, int]]) -> None:
        """Tell the cache, if there is one, what was put on top of the list.

        :param rows: target and sequence of each, ascending.
        """
        caching = self.session.cluster.caching
        table = self.statements.table
        if caching is not None and caching.keeps(table):
            caching.appended(self.session, table, self.source_id, rows)

    def key(self, target_id: int) -> Any:
        """Return the identity key of a row."""
        return inspect(self.cls).identity_key_from_primary_key(
            (self.source_id, target_id)
        )

    def forget(self, target_ids: Iterable[int]) -> None:
        """Let rows that the session holds be read again when used."""
        held = self.session.identity_map
        for target_id in target_ids:
            row = held.get(self.key(target_id))
            if row is not None:
                self.session.expire(row, ["sequence"])
                # Without this the rollback of a savepoint, which expires
                # only what was changed in it, would leave the new sequence.
                self.session._register_altered([inspect(row)])


def place_of(
    cls: Any, session: ShardSession, end: End, object_id: int
) -> Place:
    """Return the virtual shard of a source or a target.

    :raises WrongTypeError: when the id is of another class.
    """
    parts = check_type(object_id, end.type_id, f"{cls.__name__}.{end.column}")
    places = session.places
    spec = spec_of(inspect(end.entity).local_table)
    keyspace = places.keyspace(spec.keyspace, "objects")
    return places.place(keyspace, parts.shard_id)


def chunked(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    """Yield ids in numbers that one statement takes."""
    for start in range(0, len(ids), CHUNK):
        yield ids[start : start + CHUNK]
