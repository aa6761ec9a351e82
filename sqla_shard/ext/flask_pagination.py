"""Numbered pages of a select, like those of Flask-SQLAlchemy.

They count all rows and skip the rows of earlier pages, so later pages are
slow, and rows that are inserted or deleted in between shift the other rows.
For lists that users scroll, use keyset pagination: ``session.scatter_page()``,
and ``page()`` of mapping classes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import ceil
from typing import Any, Generic, TypeVar

from flask import abort, has_request_context, request
from sqlalchemy import func, Select, select

from sqla_shard.session import ShardSession
from sqla_shard.session.paging import MOST_ROWS

__all__ = ["Pagination", "count_rows", "page_argument"]

T = TypeVar("T")

_NUMBER = re.compile("[0-9]{1,10}")


class Pagination(Generic[T]):
    """A numbered page.

    :ivar items: the rows of this page.
    :ivar page: number of the page, from 1.
    :ivar per_page: maximum number of rows per page.
    :ivar total: number of rows on all pages; None if they were not counted.
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
        """Number of pages; 0 if the rows were not counted."""
        return ceil((self.total or 0) / self.per_page)

    @property
    def has_prev(self) -> bool:
        """Whether there is a previous page."""
        return self.page > 1

    @property
    def prev_num(self) -> int | None:
        """Number of the previous page, or None."""
        return self.page - 1 if self.has_prev else None

    @property
    def has_next(self) -> bool:
        """Whether there is a next page."""
        return self.page < self.pages

    @property
    def next_num(self) -> int | None:
        """Number of the next page, or None."""
        return self.page + 1 if self.has_next else None

    @property
    def first(self) -> int:
        """Number of the first row of this page, from 1; 0 if it is empty."""
        return (self.page - 1) * self.per_page + 1 if self.items else 0

    @property
    def last(self) -> int:
        """Number of the last row of this page; 0 if it is empty."""
        return self.first + len(self.items) - 1 if self.items else 0

    def iter_pages(
        self,
        *,
        left_edge: int = 2,
        left_current: int = 2,
        right_current: int = 4,
        right_edge: int = 2,
    ) -> Iterator[int | None]:
        """Yield the numbers of pages to link to, and None for each gap.

        :param left_edge: number of links to the first pages.
        :param left_current: number of links before this page.
        :param right_current: number of links after this page.
        :param right_edge: number of links to the last pages.
        """
        every = range(1, self.pages + 1)
        first = self.page - left_current
        # No loop over all pages: a client can request pages of one row.
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


def page_argument(name: str, given: int | None, default: int, error_out: bool) -> int:
    """Return an argument of :meth:`.FlaskCluster.paginate`.

    :param given: value of the argument; None to use that of the request.
    """
    number = given
    if number is None and has_request_context():
        text = request.args.get(name)
        if text is not None:
            # int() accepts other forms as well, and is slow for long ones.
            number = int(text) if _NUMBER.fullmatch(text) else 0
    if number is None:
        return default
    if 1 <= number <= MOST_ROWS:
        return number
    if error_out:
        abort(404)
    return default


def count_rows(session: ShardSession, statement: Select[Any]) -> int:
    """Return the number of rows of a statement without LIMIT."""
    inner = statement.order_by(None).limit(None).offset(None)
    counted = select(func.count()).select_from(inner.subquery())
    return session.scalar(counted) or 0
