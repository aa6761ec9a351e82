"""Rows, lists and keys of objects: finding them, and deleting them.

All of it is in one order: what leads to an object goes before the object.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy import delete
from sqlalchemy import func
from sqlalchemy import inspect
from sqlalchemy import select
from sqlalchemy import update

from sqla_shard.deleting.calls import Call
from sqla_shard.deleting.calls import call
from sqla_shard.deleting.calls import released
from sqla_shard.deleting.calls import removed
from sqla_shard.deleting.children import Kind
from sqla_shard.deleting.children import READS
from sqla_shard.deleting.plans import Part
from sqla_shard.exc import InvalidKeyError
from sqla_shard.lookup import LookupMixin
from sqla_shard.lookup.definition import link as link_lookup
from sqla_shard.mappings import MappingMixin
from sqla_shard.mappings.definition import link as link_mapping
from sqla_shard.mappings.lists import List
from sqla_shard.rendering import Place
from sqla_shard.scattering import scatter as everywhere
from sqla_shard.session import ShardSession
from sqla_shard.session.contract import OUR_OWN

__all__ = ["Belonging", "Finder"]

Pairs = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Belonging:
    """What is deleted, and how.

    :ivar part: as a plan shows it.
    :ivar work: does it, in the session that has found it.
    """

    part: Part
    work: Callable[[], object]


class Finder:
    """Finds what belongs to objects of one class on one shard.

    :param place: the shard.
    :param scatter: whether all shards are asked where nothing else tells.
    :ivar unseen: names of the classes that were not looked for.
    """

    def __init__(
        self, session: ShardSession, kind: Kind, place: Place, *, scatter: bool
    ) -> None:
        self._session = session
        self._kind = kind
        self._place = place
        self._scatter = scatter
        self.unseen: list[str] = []

    def find(self, ids: Sequence[int]) -> Iterator[Belonging]:
        """Yield what belongs to objects, and the objects themselves last."""
        classes = [
            mapper.class_
            for mapper in inspect(self._kind.entity).registry.mappers
        ]
        classes.sort(key=lambda cls: str(cls.__name__))
        for cls in classes:
            if issubclass(cls, LookupMixin):
                yield from self._keys(cls, ids)
        for cls in classes:
            if issubclass(cls, MappingMixin):
                yield from self._lists(cls, ids)
        yield from self._rows(ids)
        entity = self._kind.entity
        there = self._session.scalars(
            select(self._kind.id).where(self._kind.id.in_(ids)),
            execution_options=READS,
        ).all()
        if there:
            yield self._here(
                "delete",
                entity.__name__,
                len(there),
                delete(entity).where(self._kind.id.in_(there)),
                items=tuple(sorted(there)),
            )

    # -- on the shard itself

    def _here(
        self, action: Any, name: str, count: int, statement: Any, **rest: Any
    ) -> Belonging:
        work = partial(
            self._session.execute,
            statement,
            execution_options={"synchronize_session": False},
        )
        return Belonging(
            Part.on(self._place, action, name, count, **rest), work
        )

    def _rows(self, ids: Sequence[int]) -> Iterator[Belonging]:
        for column in self._kind.rows:
            count = self._count(column, ids)
            if count:
                there = delete(column.table).where(column.in_(ids))
                yield self._here("delete", column.table.name, count, there)
        for column in self._kind.loose:
            count = self._count(column, ids)
            if count:
                loose = update(column.table).where(column.in_(ids))
                yield self._here(
                    "set NULL",
                    str(column),
                    count,
                    loose.values({column: None}),
                )

    def _count(self, column: Any, ids: Sequence[int]) -> int:
        rows = select(func.count()).select_from(column.table)
        return int(self._session.scalar(rows.where(column.in_(ids))) or 0)

    # -- lists

    def _lists(self, cls: Any, ids: Sequence[int]) -> Iterator[Belonging]:
        definition = link_mapping(cls)
        source = getattr(cls, definition.source.column)
        target = getattr(cls, definition.target.column)
        pairs = select(source, target)
        if self._is_kind(definition.source.entity):
            found = self._pairs(pairs.where(source.in_(ids)))
            if found and definition.kept_by is not None:
                yield from self._reverse(cls, definition.kept_by, found)
            elif found:
                yield self._clearing(cls, found)
        if (
            self._is_kind(definition.target.entity)
            # Others are found by their inverse, which is here.
            and definition.inverse is None
            and definition.kept_by is None
        ):
            if self._scatter:
                there = pairs.where(target.in_(ids)).options(everywhere())
                yield from self._removing(cls, self._pairs(there))
            else:
                self.unseen.append(cls.__name__)

    def _is_kind(self, entity: Any) -> bool:
        """Tell whether objects of a class are in the table of these."""
        return issubclass(entity, self._kind.entity)

    def _pairs(self, statement: Any) -> list[tuple[int, int]]:
        return [(one, two) for one, two in self._session.execute(statement)]

    def _clearing(self, cls: Any, pairs: Pairs) -> Belonging:
        sources = _sources(pairs)

        def work() -> None:
            for source_id in sources:
                cls.clear(self._session, source_id)

        part = Part.on(
            self._place, "clear", cls.__name__, len(pairs), items=sources
        )
        return Belonging(part, work)

    def _reverse(
        self, cls: Any, keeper: Any, pairs: Pairs
    ) -> Iterator[Belonging]:
        """Yield entries in the lists of others, and their reverse rows.

        Those are deleted with the object: what would be left of them, until
        the entries are removed, would be on the shard of no object.
        """
        yield from self._removing(keeper, [(two, one) for one, two in pairs])
        sources = _sources(pairs)
        column = getattr(cls, link_mapping(cls).source.column)

        def work() -> None:
            for source_id in sources:
                List(cls, self._session, source_id).note()
            self._session.execute(
                delete(cls).where(column.in_(sources)),
                execution_options={**OUR_OWN, "synchronize_session": False},
            )

        part = Part.on(
            self._place, "delete", cls.__name__, len(pairs), items=sources
        )
        yield Belonging(part, work)

    def _removing(self, cls: Any, pairs: Pairs) -> Iterator[Belonging]:
        for one in removed(self._session, cls, pairs):
            items = tuple(one[2]["pairs"])
            yield self._calling("remove", cls, one, items)

    # -- keys

    def _keys(self, cls: Any, ids: Sequence[int]) -> Iterator[Belonging]:
        definition = link_lookup(cls)
        if not self._is_kind(definition.target):
            return
        held: Iterable[tuple[str, int]] = ()
        if definition.field is not None:
            held = self._of_objects(definition, ids)
        elif self._scatter:
            owner = getattr(cls, definition.column)
            there = select(cls.key, owner).where(owner.in_(ids))
            held = [
                (key, target_id)
                for key, target_id in self._session.execute(
                    there.options(everywhere())
                )
            ]
        else:
            self.unseen.append(cls.__name__)
        for key, target_id in held:
            # What cannot be a key has no row.
            with suppress(InvalidKeyError):
                for one in released(self._session, cls, key, target_id):
                    text = one[2]["text"]
                    yield self._calling("release", cls, one, (text,))

    def _of_objects(
        self, definition: Any, ids: Sequence[int]
    ) -> Iterator[tuple[str, int]]:
        """Yield the keys that objects say they have."""
        objects = self._session.scalars(
            select(definition.target).where(self._kind.id.in_(ids)),
            execution_options=READS,
        )
        for instance in objects.unique().all():
            value = getattr(instance, definition.field)
            for key in [value] if isinstance(value, str) else value or ():
                yield key, instance.id

    # -- on other shards

    def _calling(
        self, action: Any, cls: Any, one: Call, items: tuple[Any, ...]
    ) -> Belonging:
        place = one[1]
        part = Part.on(
            place,
            action,
            cls.__name__,
            len(items),
            items=items,
            is_here=place.address == self._place.address,
        )
        return Belonging(part, partial(call, self._session, self._place, one))


def _sources(pairs: Pairs) -> tuple[int, ...]:
    return tuple(dict.fromkeys(source_id for source_id, _ in pairs))
