"""The first page of many lists, with one statement for each shard.

A statement has one branch for each list, and numbers of branches that are
powers of two, so that SQLAlchemy's compiled cache keeps a few of them only.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any

from sqlalchemy import bindparam
from sqlalchemy import inspect
from sqlalchemy import Integer
from sqlalchemy import select
from sqlalchemy import union_all
from sqlalchemy.orm import aliased

from sqla_shard.mappings.lists import List
from sqla_shard.mappings.pages import about_first
from sqla_shard.mappings.pages import Found
from sqla_shard.mappings.pages import Key
from sqla_shard.mappings.pages import page_of
from sqla_shard.mappings.statements import statements_of
from sqla_shard.paging import check_limit
from sqla_shard.paging import Page
from sqla_shard.session import ShardSession

__all__ = ["first_pages"]

_BRANCHES = 64
_BUILT = "__sqla_shard_branches__"


def first_pages(
    cls: Any, session: ShardSession, source_ids: Iterable[int], limit: int
) -> dict[int, Page[Any]]:
    """Return the newest rows of each list."""
    check_limit(limit)
    lists = {
        source_id: List(cls, session, source_id) for source_id in source_ids
    }
    by_shard: dict[Any, list[List]] = {}
    for rows in lists.values():
        by_shard.setdefault(rows.place, []).append(rows)
    found: dict[int, list[Found]] = {source_id: [] for source_id in lists}
    for group in by_shard.values():
        for start in range(0, len(group), _BRANCHES):
            _read(group[start : start + _BRANCHES], limit + 1, found)
    pages = {}
    for source_id, rows in lists.items():
        own = sorted(found[source_id], key=lambda f: f.key, reverse=True)
        pages[source_id] = page_of(own, limit, (), about_first(rows))
    return pages


def _read(
    lists: Sequence[List], number: int, found: dict[int, list[Found]]
) -> None:
    """Read some lists of one shard."""
    first = lists[0]
    branches = 1 << (len(lists) - 1).bit_length()
    # No row has the source NULL.
    ids = [rows.source_id for rows in lists]
    padded = ids + [None] * (branches - len(ids))
    parameters = {f"source_{i}": value for i, value in enumerate(padded)}
    result = first.execute(
        _statement(first.cls, branches), number=number, **parameters
    )
    for row, source_id, target_id, sequence in result:
        found[source_id].append(Found(row, Key(sequence, target_id)))


def _statement(cls: Any, branches: int) -> Any:
    """Return the statement for a number of lists, built once."""
    known: dict[int, Any] = cls.__dict__.get(_BUILT) or {}
    if branches not in known:
        # Another dict each time, for those who read it meanwhile.
        known = {**known, branches: _built(cls, branches)}
        setattr(cls, _BUILT, known)
    return known[branches]


def _built(cls: Any, branches: int) -> Any:
    definition = statements_of(cls).definition
    names = definition.source.column, definition.target.column, "sequence"
    parts = []
    for index in range(branches):
        # Inside a subquery, since SQLite takes no LIMIT in a branch.
        table: Any = inspect(cls).local_table.alias()
        source, target, sequence = (table.c[name] for name in names)
        newest = (
            select(*table.c)
            .where(source == bindparam(f"source_{index}", type_=source.type))
            .order_by(sequence.desc(), target.desc())
            .limit(bindparam("number", type_=Integer()))
            .subquery()
        )
        parts.append(select(*newest.c))
    entity = aliased(cls, union_all(*parts).subquery())
    keys = (getattr(entity, name) for name in names)
    return select(entity, *(key.label(f"the_{key.key}") for key in keys))
