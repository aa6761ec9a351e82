"""One statement for the newest rows of many lists, with a branch for each.

Statements have numbers of branches that are powers of two, so that
SQLAlchemy's compiled cache keeps a few of them only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import bindparam
from sqlalchemy import Integer
from sqlalchemy import Select
from sqlalchemy import select

__all__ = ["BRANCHES", "branch", "sources"]

BRANCHES = 64
"""Lists of one statement, at most."""


def sources(ids: Sequence[int]) -> dict[str, int | None]:
    """Return the parameters that name the lists, one for each branch.

    :param ids: of the sources of the lists, one at least.
    """
    count = 1 << (len(ids) - 1).bit_length()
    # No row has the source NULL.
    padded = [*ids, *[None] * (count - len(ids))]
    return {f"source_{index}": one for index, one in enumerate(padded)}


def branch(
    index: int, rows: Select[Any], source: Any, *order: Any
) -> Select[Any]:
    """Return the branch of one list.

    Its parameters are those of :func:`sources`, and ``number``, of rows.

    :param index: which of the branches it is.
    :param rows: a SELECT of rows of all lists.
    :param source: the column with the source.
    :param order: the columns by which rows are ordered, newest first.
    """
    # Inside a subquery, since SQLite takes no LIMIT in a branch.
    newest = (
        rows.where(source == bindparam(f"source_{index}", type_=source.type))
        .order_by(*(column.desc() for column in order))
        .limit(bindparam("number", type_=Integer()))
        .subquery()
    )
    return select(*newest.c)
