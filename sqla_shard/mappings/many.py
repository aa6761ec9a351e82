"""The first page of many lists, with one statement for each shard.

A statement has one branch for each list; see :mod:`sqla_shard.branching`.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any

from sqlalchemy import inspect
from sqlalchemy import select
from sqlalchemy import union_all
from sqlalchemy.orm import aliased

from sqla_shard.branching import branch
from sqla_shard.branching import BRANCHES
from sqla_shard.branching import sources
from sqla_shard.mappings.bookmarks import Key
from sqla_shard.mappings.kept import kept_rows
from sqla_shard.mappings.lists import List
from sqla_shard.mappings.pages import bookmarks_of
from sqla_shard.mappings.pages import first_page_of
from sqla_shard.mappings.pages import Found
from sqla_shard.mappings.pages import page_of
from sqla_shard.mappings.statements import statements_of
from sqla_shard.paging import check_limit
from sqla_shard.paging import Page
from sqla_shard.session import ShardSession

__all__ = ["first_pages"]

_BUILT = "__sqla_shard_branches__"


def first_pages(
    cls: Any, session: ShardSession, source_ids: Iterable[int], limit: int
) -> dict[int, Page[Any]]:
    """Return the newest rows of each list."""
    check_limit(limit)
    lists = {
        source_id: List(cls, session, source_id) for source_id in source_ids
    }
    pages: dict[int, Page[Any]] = {}
    for source_id, one in kept_rows(lists.values()).items():
        page = first_page_of(lists[source_id], one, limit)
        if page is not None:
            pages[source_id] = page
    left = {i: rows for i, rows in lists.items() if i not in pages}
    by_shard: dict[Any, list[List]] = {}
    for rows in left.values():
        by_shard.setdefault(rows.place, []).append(rows)
    found: dict[int, list[Found]] = {source_id: [] for source_id in left}
    for group in by_shard.values():
        for start in range(0, len(group), BRANCHES):
            _read(group[start : start + BRANCHES], limit + 1, found)
    for source_id, rows in left.items():
        own = sorted(found[source_id], key=lambda f: f.key, reverse=True)
        pages[source_id] = page_of(own, limit, (), bookmarks_of(rows))
    return {source_id: pages[source_id] for source_id in lists}


def _read(
    lists: Sequence[List], number: int, found: dict[int, list[Found]]
) -> None:
    """Read some lists of one shard."""
    first = lists[0]
    parameters = sources([rows.source_id for rows in lists])
    statement = _statement(first.cls, len(parameters))
    result = first.execute(statement, number=number, **parameters)
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
        table: Any = inspect(cls).local_table.alias()
        source, target, sequence = (table.c[name] for name in names)
        rows = select(*table.c)
        parts.append(branch(index, rows, source, sequence, target))
    entity = aliased(cls, union_all(*parts).subquery())
    keys = (getattr(entity, name) for name in names)
    return select(entity, *(key.label(f"the_{key.key}") for key in keys))
