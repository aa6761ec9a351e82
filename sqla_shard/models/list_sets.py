"""Operations on many lists: their common targets, and removal from all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, TYPE_CHECKING

from sqlalchemy import select

from sqla_shard.engine import scatter as everywhere
from sqla_shard.models.mapping_definition import link
from sqla_shard.models.mapping_list import List, statements_of
from sqla_shard.models.spread_list import is_moving, list_of
from sqla_shard.session import ShardSession

if TYPE_CHECKING:
    from sqla_shard import Cluster


def intersect(one: List, other: List, descending: bool, batch: int) -> Iterator[int]:
    """Return an iterator of the targets that are in both lists.

    :raises ValueError: if their targets are of different classes.
    """
    ours, theirs = (rows.statements.definition.target for rows in (one, other))
    if (ours.type_id, ours.layout) != (theirs.type_id, theirs.layout):
        raise ValueError(
            f"other={other.name} has targets of {theirs.entity_name}, and "
            f"{one.name} of {ours.entity_name}: they have no common ids"
        )
    return _common(one, other, descending, batch)


def _common(one: List, other: List, descending: bool, batch: int) -> Iterator[int]:
    nearest, step = (max, -1) if descending else (min, 1)
    highest = one.statements.definition.target.layout.max_id
    at: int | None = highest if descending else 0
    while at is not None:
        ours = _ids(one, at, descending, batch)
        if not ours:
            return
        theirs = _ids(other, ours[0], descending, batch)
        if not theirs:
            return
        present = set(theirs)
        yield from (i for i in ours if i in present)
        ends = ours[-1], theirs[-1]
        end = nearest(ends)
        is_last = any(
            len(found) < batch and found[-1] == end for found in (ours, theirs)
        )
        at = None if is_last else end + step
        if nearest(ours[-1], theirs[0]) == ours[-1] != theirs[0]:
            # No id of the second list is before its first one.
            at = None if len(ours) < batch else theirs[0]


def _ids(rows: List, at: int, descending: bool, number: int) -> list[int]:
    """Return targets from an id on, by id."""
    statement = rows.statements.ids[descending]
    found = rows.execute(statement, at=at, number=rows.most(number))
    return list(dict.fromkeys(found.scalars()))[:number]


def clear_target(
    cls: Any, cluster: Cluster, target_id: int, scatter: bool, batch: int
) -> int:
    """Remove a target from all lists; return the number of lists."""
    definition = link(cls)
    if definition.inverse_class is not None:
        chunks = _holders(definition.inverse_class, cluster, target_id, batch)
    elif scatter:
        chunks = _scattered(cls, cluster, target_id, batch)
    else:
        raise ValueError(
            f"scatter=False, and {cls.__name__} has no inverse, in which the "
            "lists with a target are found; pass scatter=True to read all "
            "shards"
        )
    return sum(
        cluster.run(partial(_remove, cls, target_id, part))
        for chunk in chunks
        for part in _by_place(cls, cluster, target_id, chunk)
    )


def _remove(
    cls: Any, target_id: int, source_ids: Sequence[int], session: ShardSession
) -> int:
    return sum(cls.remove(session, i, target_id) for i in source_ids)


def _holders(
    inverse: Any, cluster: Cluster, target_id: int, batch: int
) -> Iterator[list[int]]:
    """Yield the sources of the lists with a target, by id.

    A reverse row may exist until its operation is applied, so each chunk
    begins after the one before.
    """
    at = 0
    while True:
        with cluster.session() as session:
            found = _ids(list_of(inverse, session, target_id), at, False, batch)
        if found:
            yield found
        if len(found) < batch:
            return
        at = found[-1] + 1


def _scattered(
    cls: Any, cluster: Cluster, target_id: int, batch: int
) -> Iterator[list[int]]:
    statements = statements_of(cls)
    there = (
        select(statements.source)
        .where(statements.target == target_id)
        .order_by(statements.source)
        .options(everywhere())
    )
    with cluster.session() as session:
        found = list(session.scalars(there))
    for start in range(0, len(found), batch):
        yield found[start : start + batch]


def _by_place(
    cls: Any, cluster: Cluster, target_id: int, source_ids: Sequence[int]
) -> Iterator[list[int]]:
    """Yield the sources whose rows are on one shard."""
    grouped: dict[Any, list[int]] = {}
    with cluster.session() as session:
        for source_id in source_ids:
            part = list_of(cls, session, source_id).part_of(target_id)
            # Of moving rows, two lists may be written on different shards.
            key = source_id if is_moving(cls) else part.place
            grouped.setdefault(key, []).append(source_id)
    yield from grouped.values()
