r"""Object ids of rows: claimed once, in the table of marks.

An owner gets the shard that the placement policy chooses; an owned row that of
its parent, whose id is claimed first.  The local id is the primary key in the
database, or if an object that was created on the shards has it, the primary
key plus 2\ :sup:`35`.  Each claim is a transaction of one table, so that no
two of them deadlock; the first claim of a row wins.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from sqlalchemy import Connection, Engine, select

from sqla_shard.cluster.cluster import Cluster
from sqla_shard.exc import ConversionError, UnclaimableRowError
from sqla_shard.migrate.copying import Image, one_read, snapshot
from sqla_shard.migrate.links import MovedLinks
from sqla_shard.migrate.mark_tables import Key
from sqla_shard.migrate.rows import Reference
from sqla_shard.migrate.tables import MovedRows, MovedTable

#: Maximum number of ids of a table in memory, about 150 bytes each.
_MOST = 50_000


class IdMap:
    """The map of primary keys and object ids.

    :param tables: the tables of the move, by name.
    :param engine: engine of the database.
    :param cluster: the cluster of the shards.
    :ivar types: the tables whose rows have object ids, by type id.
    """

    def __init__(
        self, tables: Mapping[str, MovedRows], engine: Engine, cluster: Cluster
    ) -> None:
        self.types = {
            one.type_id: one for one in tables.values() if isinstance(one, MovedTable)
        }
        # A claimed id never changes.
        self._known: dict[int, dict[Key, int]] = {i: {} for i in self.types}
        self._engine = engine
        self._cluster = cluster

    def object_ids(self, one: MovedTable, keys: Collection[Key]) -> dict[Key, int]:
        """Return the object ids of rows, and claim those that are missing.

        Rows that do not exist have none.
        """
        known = self._known[one.type_id]
        found = {key: known[key] for key in keys if key in known}
        unknown = [key for key in keys if key not in found]
        if not unknown:
            return found
        with one_read(self._engine) as connection:
            marks = one.marks.marks_of(connection, unknown)
        new = {
            key: mark.object_id
            for key, mark in marks.items()
            if mark.object_id is not None
        }
        missing = self.proposals(one, [k for k in unknown if k not in new])
        if missing:
            with snapshot(self._engine) as connection:
                new.update(one.marks.claim_ids(connection, missing))
        if len(known) > _MOST:
            known.clear()
        known.update(new)
        return {**found, **new}

    def of_references(self, references: Iterable[Reference]) -> dict[Reference, int]:
        """Return the object ids of rows of several tables.

        :raises UnclaimableRowError: if a row does not exist.
        """
        wanted = set(references)
        found = self._existing(wanted)
        for type_id, value in wanted.difference(found):
            raise UnclaimableRowError(table=self.types[type_id].name, key=value)
        return found

    def _existing(self, references: Iterable[Reference]) -> dict[Reference, int]:
        """Return the object ids of the rows that exist, or have existed."""
        wanted: dict[int, set[Key]] = {}
        for type_id, value in references:
            wanted.setdefault(type_id, set()).add((value,))
        return {
            (type_id, key[0]): object_id
            for type_id, keys in wanted.items()
            for key, object_id in self.object_ids(self.types[type_id], keys).items()
        }

    def shard_keys(self, one: MovedRows, images: Mapping[Key, Image]) -> dict[Key, Key]:
        """Return the keys on the shards of rows that are copied.

        Rows that were deleted before they had one are recorded as copied.

        :raises UnclaimableRowError: if a row of an association table refers
            to a row that does not exist.
        """
        if isinstance(one, MovedTable):
            ids = self.own_ids(one, images)
            return {key: (object_id,) for key, object_id in ids.items()}
        assert isinstance(one, MovedLinks)  # noqa: S101  # there are two kinds
        found = self.link_keys(one, images)
        gone = {
            key: image.version
            for key, image in images.items()
            if key not in found and image.row is None
        }
        for key in images.keys() - found.keys() - gone.keys():
            raise UnclaimableRowError(table=one.name, key=key)
        if gone:
            with self._engine.begin() as connection:
                one.marks.set_copied(connection, gone)
        return found

    def link_keys(self, one: MovedLinks, keys: Iterable[Key]) -> dict[Key, Key]:
        """Return keys on the shards by those in the database."""
        ends = {key: one.ends(one.turned(key)) for key in keys}
        ids = self._existing(end for both in ends.values() for end in both)
        return {
            key: (ids[source], ids[target])
            for key, (source, target) in ends.items()
            if source in ids and target in ids
        }

    def own_ids(self, one: MovedTable, images: Mapping[Key, Image]) -> dict[Key, int]:
        """Return the object ids of rows that are copied; claim missing ones.

        Rows that were deleted before they had an id are recorded as copied.
        An image that is older than what is recorded gets no id: the row may
        be one of these.

        :raises ConversionError: if a primary key fits no id.
        :raises UnclaimableRowError: if a parent has no id.
        """
        missing = [key for key in images if images[key].object_id is None]
        for key in missing:
            if images[key].row is not None and not one.fits(key):
                raise ConversionError(
                    column=f"{one.name}.{one.table.primary_key.columns[0].name}",
                    value=repr(key[0]),
                    reason="an object id has room for primary keys from 1 to "
                    f"{one.layout.max_local_id}; give the row another one",
                )
        found = {
            key: image.object_id
            for key, image in images.items()
            if image.object_id is not None
        }
        if not missing:
            return found
        proposed = self.proposals(
            one, [key for key in missing if images[key].row is not None]
        )
        if one.parent_column is not None:
            parent = self._parent(one)
            # One that does not exist, or whose key fits no id.
            self.of_references(
                (parent.type_id, row[one.parent_column])
                for key in missing
                if (row := images[key].row) is not None and key not in proposed
            )
        with snapshot(self._engine) as connection:
            marks = one.marks.marks_of(connection, missing, locking=True)
            wanted, gone = {}, {}
            for key, mark in marks.items():
                if mark.object_id is not None:
                    found[key] = mark.object_id
                elif images[key].row is None:
                    gone[key] = images[key].version
                elif mark.copied < images[key].version and key in proposed:
                    wanted[key] = proposed[key]
            # Their marks are locked, so no other transaction claims them.
            one.marks.set_ids(connection, wanted)
            found.update(wanted)
            one.marks.set_copied(connection, gone)
        return found

    def proposals(self, one: MovedTable, keys: Collection[Key]) -> dict[Key, int]:
        """Return ids that are free now for rows that exist, and fit one."""
        keys = [key for key in keys if one.fits(key)]
        if not keys:
            return {}
        with one_read(self._engine) as connection:
            parents = self._parents(connection, one, keys)
        if one.parent is None:
            shards = {key: self._new_shard(one) for key in parents}
        else:
            parent = self._parent(one)
            ids = self.object_ids(parent, set(parents.values()))
            layout = one.layout
            shards = {
                key: layout.unpack(ids[parent]).shard_id
                for key, parent in parents.items()
                if parent in ids
            }
        return self._packed(one, shards)

    def _parent(self, one: MovedTable) -> MovedTable:
        """Return the table of the parents of rows."""
        (found,) = (other for other in self.types.values() if other.name == one.parent)
        return found

    def _parents(
        self, connection: Connection, one: MovedTable, keys: Collection[Key]
    ) -> dict[Key, Key]:
        """Return the keys of the parents of rows; an owner is its own."""
        (key,) = one.table.primary_key
        parent = key if one.parent_column is None else one.table.c[one.parent_column]
        rows = connection.execute(
            select(key, parent).where(key.in_([value for (value,) in keys]))
        )
        return {(row[0],): (row[1],) for row in rows if row[1] is not None}

    def _new_shard(self, one: MovedTable) -> int:
        keyspace = one.keyspace(self._cluster.places)
        return self._cluster.placement(keyspace=keyspace, cls=one.cls)

    def _packed(self, one: MovedTable, shards: Mapping[Key, int]) -> dict[Key, int]:
        layout = one.layout
        free = {
            key: layout.pack(shard_id, one.type_id, key[0])
            for key, shard_id in shards.items()
        }
        with one_read(self._engine) as connection:
            taken = one.marks.keys_of(connection, free.values())
        offset = (layout.max_local_id + 1) // 2
        return {
            key: object_id + offset if taken.get(object_id, key) != key else object_id
            for key, object_id in free.items()
        }
