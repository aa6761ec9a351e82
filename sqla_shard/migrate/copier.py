"""Copies between the database and the shards, in both directions.

Forward, the object ids of the rows and of those that they refer to are
claimed before.  Backward, an object that was created on the shards gets the
primary key that the database chooses, in the transaction that inserts it: a
second copy at the same time fails by the unique object id, and is repeated.
An object that was deleted before it was copied leaves a mark of a key below
zero, so that a late copy does not insert it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError

from sqla_shard.cluster.cluster import Cluster
from sqla_shard.dialects import backend_for
from sqla_shard.dialects.base import Failure
from sqla_shard.engine.unread import reason
from sqla_shard.exc import UnclaimableRowError
from sqla_shard.migrate.copying import (
    apply_images,
    Image,
    one_read,
    read_images,
    record_images,
    Row,
)
from sqla_shard.migrate.ids import IdMap
from sqla_shard.migrate.links import MovedLinks
from sqla_shard.migrate.mark_tables import Key
from sqla_shard.migrate.tables import MovedRows, MovedTable, ShardObjects
from sqla_shard.migrate.waiting import grouped, Waiting
from sqla_shard.models.lookup_definition import link

log = logging.getLogger(__name__)

#: Attempts of a copy that loses against another transaction.
_ATTEMPTS = 4


class Copier:
    """Copies rows.

    :param tables: the tables of the move by name, parents first.
    :param engine: engine of the database.
    :param cluster: the cluster of the shards.
    """

    def __init__(
        self, tables: Mapping[str, MovedRows], engine: Engine, cluster: Cluster
    ) -> None:
        self.ids = IdMap(tables, engine, cluster)
        self._engine = engine
        self._cluster = cluster

    # -- forward

    def forward(self, one: MovedRows, keys: Collection[Key], *, number: int) -> int:
        """Copy rows that wait from the database to the shards.

        :param number: the round.
        :returns: the number of rows that were written.
        """
        legacy = one.legacy(self._engine)
        images = {
            key: image
            for key, image in read_images(legacy, keys).items()
            if image.waits
        }
        keys_there = self.ids.shard_keys(one, images)
        images = {key: images[key] for key in images if key in keys_there}
        converted = self.converted(one, images, keys_there)
        written = 0
        for shard_id, some in grouped(one, converted).items():
            on_shard = {key: converted[key] for key in some}
            part = one.on(self._cluster, shard_id)
            written += apply_images(part, on_shard, number=number)
            if isinstance(part, ShardObjects) and isinstance(one, MovedTable):
                for attribute, lookup in one.lookups.items():
                    self._write_keys(lookup, attribute, on_shard, part.former)
        record_images(legacy, images)
        return written

    def _write_keys(
        self,
        lookup: Any,
        attribute: str,
        images: Mapping[Key, Image],
        former: Mapping[Key, Row],
    ) -> None:
        """Give objects their keys, and release the former ones.

        The rows wait until it is done.  A process that dies before it has
        released a former key leaves that one; ``sqla-shard verify lookups``
        finds it.

        :raises KeyTakenError: if a key belongs to another object.
        """
        wanted = {
            key: image.row[attribute]
            for key, image in images.items()
            if image.row is not None and image.row[attribute] is not None
        }
        run = self._cluster.run
        for key, row in former.items():
            if row[attribute] not in (None, wanted.get(key)):
                run(lookup.release, row[attribute], key[0])
        if not link(lookup).unique:
            for (object_id,), text in wanted.items():
                run(lookup.add, text, object_id)
            return
        with self._cluster.session(cache=False) as session:
            known = lookup.resolve_many(session, wanted.values())
        for (object_id,), text in wanted.items():
            if known.get(text) != object_id:
                run(lookup.claim, text, object_id)

    def converted(
        self, one: MovedRows, images: Mapping[Key, Image], keys_there: Mapping[Key, Key]
    ) -> dict[Key, Image]:
        """Return images of rows as they are on the shards.

        :param keys_there: the keys on the shards.
        """
        conversion = one.conversion
        references = self.ids.of_references(
            reference
            for image in images.values()
            if image.row is not None
            for reference in conversion.references(image.row)
        )
        return {
            keys_there[key]: Image(
                version=image.version,
                copied=image.copied,
                row=None
                if image.row is None
                else conversion.values(image.row, references),
            )
            for key, image in images.items()
        }

    # -- backward

    def back(
        self, one: MovedRows, shard_id: int, keys: Collection[Key], *, number: int
    ) -> int:
        """Copy rows from a shard to the database.

        :param keys: keys on the shard.
        :param number: the round.
        :returns: the number of rows that were written.
        """
        images = read_images(one.on(self._cluster, shard_id), keys)
        if isinstance(one, MovedLinks):
            references = self._keys_of(
                (end for key in images for end in one.ends(key)), number=number
            )
            written = self._apply_links_back(one, images, references, number)
        else:
            assert isinstance(one, MovedTable)  # noqa: S101  # two kinds
            written = self._objects_back(one, images, number)
        record_images(one.on(self._cluster, shard_id), images)
        return written

    def _objects_back(
        self, one: MovedTable, images: Mapping[Key, Image], number: int
    ) -> int:
        references = self._keys_of(
            (
                reference
                for image in images.values()
                if image.row is not None
                for reference in one.conversion.object_references(image.row)
            ),
            number=number,
        )
        try:
            return self._apply_back(one, images, references, number)
        except IntegrityError:
            # Another process has inserted one of them.
            return self._apply_back(one, images, references, number)

    def _apply_links_back(
        self,
        one: MovedLinks,
        images: Mapping[Key, Image],
        references: Mapping[tuple[int, int], Any],
        number: int,
    ) -> int:
        legacy = one.legacy(self._engine)
        keys = {
            key: one.turned(tuple(references[end] for end in one.ends(key)))
            for key in images
        }
        with legacy.begin() as connection:
            newer = one.marks.receive(
                connection,
                {keys[key]: image.version for key, image in images.items()},
                number=number,
                there={keys[key] for key, one in images.items() if one.copied},
            )
            legacy.write(
                connection,
                {
                    keys[key]: None
                    if image.row is None
                    else one.conversion.row(image.row)
                    for key, image in images.items()
                    if keys[key] in newer
                },
            )
        return len(newer)

    def keys_of(self, one: MovedTable, object_ids: Collection[int]) -> dict[int, Key]:
        """Return the primary keys of objects that have one."""
        with one_read(self._engine) as connection:
            return one.marks.keys_of(connection, object_ids)

    def _keys_of(
        self, references: Iterable[tuple[int, int]], *, number: int
    ) -> dict[tuple[int, int], Any]:
        """Return the keys of objects; copy those that have none before.

        :param references: type ids and object ids.
        """
        wanted: dict[int, set[int]] = {}
        for type_id, object_id in references:
            wanted.setdefault(type_id, set()).add(object_id)
        found = {}
        for type_id, object_ids in wanted.items():
            other = self.ids.types[type_id]
            keys = self.keys_of(other, object_ids)
            new = [(i,) for i in object_ids if i not in keys]
            for shard_id, some in grouped(other, new).items():
                self.back(other, shard_id, some, number=number)
            if new:
                keys = self.keys_of(other, object_ids)
            for object_id in object_ids:
                if object_id not in keys:
                    raise UnclaimableRowError(table=other.name, key=object_id)
                found[type_id, object_id] = keys[object_id][0]
        return found

    def existing_keys(self, one: MovedRows, keys: Collection[Key]) -> dict[Key, Key]:
        """Return the keys in the database, by those on the shards."""
        if isinstance(one, MovedTable):
            found = self.keys_of(one, [object_id for (object_id,) in keys])
            return {(object_id,): key for object_id, key in found.items()}
        assert isinstance(one, MovedLinks)  # noqa: S101  # two kinds
        wanted: dict[int, set[int]] = {}
        for key in keys:
            for type_id, object_id in one.ends(key):
                wanted.setdefault(type_id, set()).add(object_id)
        ends = {
            (type_id, object_id): key[0]
            for type_id, object_ids in wanted.items()
            for object_id, key in self.keys_of(
                self.ids.types[type_id], object_ids
            ).items()
        }
        return {
            key: one.turned(tuple(ends[end] for end in one.ends(key)))
            for key in keys
            if all(end in ends for end in one.ends(key))
        }

    def _apply_back(
        self,
        one: MovedTable,
        images: Mapping[Key, Image],
        references: Mapping[tuple[int, int], Any],
        number: int,
    ) -> int:
        legacy = one.legacy(self._engine)
        conversion = one.conversion
        rows = {
            object_id: None
            if image.row is None
            else conversion.row(image.row, references)
            for (object_id,), image in images.items()
        }
        with legacy.begin() as connection:
            known = one.marks.keys_of(connection, rows)
            new = {}
            for object_id in rows.keys() - known.keys():
                image, row = images[object_id,], rows[object_id]
                key: Key = (-object_id,)
                if row is not None and image.row is not None:
                    left = conversion.left_behind(image.row)
                    key = legacy.insert(connection, {**left, **row})
                new[key] = object_id
            one.marks.claim_ids(connection, new, number=number)
            keys = {**known, **{i: key for key, i in new.items()}}
            newer = one.marks.receive(
                connection,
                {keys[i]: images[i,].version for i in rows},
                number=number,
                there=set(keys.values()),
            )
            legacy.write(
                connection,
                {
                    keys[i]: rows[i]
                    for i in sorted(rows)
                    if keys[i] in newer and keys[i] not in new
                },
            )
        return len(newer)

    # -- in the direction of the rows that wait

    def copy(self, waiting: Waiting, *, number: int) -> int:
        """Copy rows that wait; return the number of written rows."""
        one, shard_id, keys = waiting
        if shard_id is None:
            return self.forward(one, keys, number=number)
        return self.back(one, shard_id, keys, number=number)

    def copy_or_log(self, waiting: Waiting, *, number: int) -> int:
        """Copy rows, in halves if together they fail.

        A deadlock is repeated.  Rows that cannot be copied are logged, and
        wait; if a server does not respond, all of them, without a further
        attempt.

        :returns: the number of rows that could not be copied.
        """
        one, shard_id, keys = waiting
        try:
            self._copy_again(waiting, number)
        except SQLAlchemyError as error:
            if len(keys) > 1 and reason(error) is None:
                half = len(keys) // 2
                return sum(
                    self.copy_or_log((one, shard_id, some), number=number)
                    for some in (keys[:half], keys[half:])
                )
            log.warning(
                "%s %s was not copied and waits: %s",
                one.name,
                ", ".join(map(str, keys[0]))
                if len(keys) == 1
                else f"({len(keys)} rows)",
                error,
            )
            return len(keys)
        return 0

    def _copy_again(self, waiting: Waiting, number: int) -> None:
        for left in reversed(range(_ATTEMPTS)):
            try:
                self.copy(waiting, number=number)
            except DBAPIError as error:
                if not left or not self._is_conflict(error):
                    raise
            else:
                return

    def _is_conflict(self, error: DBAPIError) -> bool:
        dialect = self._engine.dialect
        backends = {
            backend_for(dialect.name, driver=dialect.driver),
            *self._cluster.places.engines.backends(),
        }
        original = error.orig
        return original is not None and any(
            backend.classify(original) is Failure.CONFLICT for backend in backends
        )
