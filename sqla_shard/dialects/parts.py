"""Numbers that are sent to a server so that it computes with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from typing import Literal

from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.visitors import InternalTraversal

__all__ = ["Averaged", "NumberForm"]


@dataclass(frozen=True)
class NumberForm:
    """How a number is written in SQL.

    :ivar scale: digits after the point, of a decimal.
    """

    name: Literal["integer", "decimal", "double"]
    scale: int = 0


class Averaged(ColumnElement[Any]):
    """A sum by a count, with the digits that ``avg()`` has.

    NULL where the count is 0.
    """

    __visit_name__ = "sqla_shard_averaged"
    inherit_cache = True
    _traverse_internals = [  # noqa: RUF012  # SQLAlchemy's own protocol
        ("total", InternalTraversal.dp_clauseelement),
        ("count", InternalTraversal.dp_clauseelement),
    ]

    def __init__(self, total: Any, count: Any, type_: Any) -> None:
        self.total = total
        self.count = count
        self.type = type_


@compiles(Averaged, "mysql", "mariadb")
def _averaged_mysql(element: Averaged, compiler: Any, **kw: Any) -> str:
    total = compiler.process(element.total, **kw)
    return f"({total} / {compiler.process(element.count, **kw)})"


@compiles(Averaged)
def _averaged(element: Averaged, compiler: Any, **kw: Any) -> str:
    # Which would cut off the fraction of two whole numbers.
    total = compiler.process(element.total, **kw)
    count = compiler.process(element.count, **kw)
    return f"(CAST({total} AS REAL) / {count})"
