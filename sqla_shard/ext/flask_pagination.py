"""Numbered pages of a select, as those of Flask-SQLAlchemy.

They count all rows and skip those of the pages before, so a far page is slow,
and rows that come or go meanwhile shift the others.  For a list that users
scroll, take keyset pages: ``session.scatter_page()`` and the ``page()`` of a
mapping class.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import ceil
from typing import Any
from typing import Generic
from typing import TypeVar

from flask import abort
from flask import has_request_context
from flask import request
from sqlalchemy import func
from sqlalchemy import Select
from sqlalchemy import select

from sqla_shard.exc import ScatterLimitError
from sqla_shard.paging import MOST_ROWS
from sqla_shard.session import ShardSession

__all__ = ["Pagination", "paginate"]

T = TypeVar("T")

_NUMBER = re.compile("[0-9]{1,10}")


class Pagination(Generic[T]):
    """One of several numbered pages.

    :ivar items: the rows of this page.
    :ivar page: its number, from 1.
    :ivar per_page: how many rows a page has at most.
    :ivar total: how many rows there are on all pages; None where they were
        not counted.
    """

    def __init__(
        self, items: list[T], page: int, per_page: int, total: int | None
    ) -> None:
        self.items = items
        self.page = page
        self.per_page = per_page
        self.total = total

    @property
    def pages(self) -> int:
        """How many pages there are; 0 where rows were not counted."""
        return ceil((self.total or 0) / self.per_page)

    @property
    def has_prev(self) -> bool:
        """Whether there is a page before."""
        return self.page > 1

    @property
    def prev_num(self) -> int | None:
        """Number of the page before."""
        return self.page - 1 if self.has_prev else None

    @property
    def has_next(self) -> bool:
        """Whether there is a page after this one."""
        return self.page < self.pages

    @property
    def next_num(self) -> int | None:
        """Number of the page after this one."""
        return self.page + 1 if self.has_next else None

    @property
    def first(self) -> int:
        """Number of the first row of this page, from 1; 0 for none."""
        return (self.page - 1) * self.per_page + 1 if self.items else 0

    @property
    def last(self) -> int:
        """Number of the last row of this page; 0 for none."""
        return self.first + len(self.items) - 1 if self.items else 0

    def iter_pages(
        self,
        *,
        left_edge: int = 2,
        left_current: int = 2,
        right_current: int = 4,
        right_edge: int = 2,
    ) -> Iterator[int | None]:
        """Yield the numbers of pages to link to, and None for a gap.

        :param left_edge: how many from the first page on.
        :param left_current: how many before this page.
        :param right_current: how many after it.
        :param right_edge: how many up to the last page.
        """
        every = range(1, self.pages + 1)
        first = self.page - left_current
        # Not page by page: a client may ask for pages of one row.
        shown = {
            *every[: max(left_edge, 0)],
            *every[max(first - 1, 0) : max(self.page + right_current, 0)],
            *every[max(len(every) - right_edge, 0) :],
        }
        before = 0
        for number in sorted(shown):
            if number > before + 1:
                yield None
            yield number
            before = number

    def __iter__(self) -> Iterator[T]:
        return iter(self.items)


def paginate(
    session: ShardSession,
    statement: Select[Any],
    *,
    page: int | None = None,
    per_page: int | None = None,
    max_per_page: int = 100,
    error_out: bool = True,
    count: bool = True,
) -> Pagination[Any]:
    """Return a numbered page; see :meth:`.FlaskCluster.paginate`."""
    page = _number("page", page, 1, error_out)
    per_page = min(_number("per_page", per_page, 20, error_out), max_per_page)
    offset = (page - 1) * per_page
    try:
        items = list(
            session.scalars(statement.limit(per_page).offset(offset)).unique()
        )
    except ScatterLimitError as error:
        if error.limit != "max_offset" or not error_out:
            raise
        abort(404)
    if not items and page > 1 and error_out:
        abort(404)
    total = _total(session, statement) if count else None
    return Pagination(items, page, per_page, total)


def _number(
    name: str, given: int | None, default: int, error_out: bool
) -> int:
    """Return an argument, or else that of the request."""
    number = given
    if number is None and has_request_context():
        said = request.args.get(name)
        if said is not None:
            # int() reads other forms, too, and takes long for long ones.
            number = int(said) if _NUMBER.fullmatch(said) else 0
    if number is None:
        return default
    if 1 <= number <= MOST_ROWS:
        return number
    if error_out:
        abort(404)
    return default


def _total(session: ShardSession, statement: Select[Any]) -> int:
    """Return how many rows a statement has without LIMIT."""
    inner = statement.order_by(None).limit(None).offset(None)
    counted = select(func.count()).select_from(inner.subquery())
    return session.scalar(counted) or 0
