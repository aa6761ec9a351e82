"""What a server computes of merged numbers, such as a sum by another.

Servers have rules of their own for the digits of a quotient, for ``round()``
and for what is true in HAVING.  So the sums and counts of all shards are sent
back to one of them, as constants, and it computes the rest::

    SELECT n, p0 / p1 FROM (SELECT 0 AS n, 7 AS p0, 2 AS p1) AS parts
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from decimal import Decimal
from typing import Any

from sqlalchemy import column
from sqlalchemy import ColumnClause
from sqlalchemy import Connection
from sqlalchemy import literal_column
from sqlalchemy import select
from sqlalchemy import text
from sqlalchemy.util import EMPTY_DICT

from sqla_shard.dialects import Backend
from sqla_shard.dialects.parts import NumberForm
from sqla_shard.exc import ScatterUnsupportedError

__all__ = ["Computation", "Part", "name_of_part", "send_on"]

_NUMBER = "sqla_shard_n"
#: Rows of one statement; each is some 100 characters of SQL.
_BATCH = 1000

#: Returns a value of a group of rows.
Made = Callable[[Any], Any]


def name_of_part(index: int) -> str:
    """Return the name of the column of a part in SQL."""
    return f"sqla_shard_p{index}"


@dataclass(frozen=True)
class Part:
    """A merged number that a server computes with.

    :ivar recipe: makes it of the rows of a group.
    :ivar form: how it is written where all of them are NULL.
    :ivar empty: what it is where no shard has a row.
    """

    recipe: Made
    form: NumberForm
    empty: int | None


@dataclass(frozen=True)
class Computation:
    """What is computed for each group.

    :ivar expressions: of the columns that :func:`name_of_part` names.
    """

    parts: tuple[Part, ...]
    expressions: tuple[Any, ...]

    def values(self, group: Sequence[Any]) -> tuple[Any, ...]:
        """Return the parts of a group; of one without rows, what they are."""
        if not group:
            return tuple(part.empty for part in self.parts)
        return tuple(part.recipe(group) for part in self.parts)

    def run(
        self,
        groups: Sequence[Sequence[Any]],
        backend: Backend,
        send: Callable[[Any], Sequence[Sequence[Any]]],
    ) -> list[tuple[Any, ...]]:
        """Return what the expressions are, for each group.

        :param groups: the parts of each.
        :param send: executes a statement, and returns the driver's rows.
        :raises ScatterUnsupportedError: when a part is no number.
        """
        forms = [
            self._form(part.form, [group[at] for group in groups])
            for at, part in enumerate(self.parts)
        ]
        found: list[tuple[Any, ...]] = []
        for start in range(0, len(groups), _BATCH):
            some = groups[start : start + _BATCH]
            rows = send(self._statement(some, forms, backend))
            found += [tuple(row[1:]) for row in sorted(rows, key=_first)]
        return found

    @staticmethod
    def _form(form: NumberForm, values: Sequence[Any]) -> NumberForm:
        known = [value for value in values if value is not None]
        for value in known:
            if not isinstance(value, (int, float, Decimal)):
                raise ScatterUnsupportedError(
                    f"a computation with aggregates over several shards has "
                    f"found {value!r}, which is no number; select the "
                    "aggregates themselves, and compute in Python",
                    construct="a computation",
                )
        if any(isinstance(value, float) for value in known):
            return replace(form, name="double")
        scales = [
            -int(value.as_tuple().exponent)
            for value in known
            if isinstance(value, Decimal)
        ]
        if scales:
            return NumberForm("decimal", max(scales))
        return replace(form, name="integer") if known else form

    def _statement(
        self,
        groups: Sequence[Sequence[Any]],
        forms: Sequence[NumberForm],
        backend: Backend,
    ) -> Any:
        rows = []
        for number, group in enumerate(groups):
            columns = [f"{number} AS {_NUMBER}"]
            columns += [
                f"{backend.number(value, form)} AS {name_of_part(at)}"
                for at, (value, form) in enumerate(
                    zip(group, forms, strict=True)
                )
            ]
            rows.append(f"SELECT {', '.join(columns)}")
        key: ColumnClause[int] = column(_NUMBER)
        source = text(" UNION ALL ".join(rows)).columns(key)
        # Labelled, or SQLAlchemy would leave out one that is there twice.
        shown = [
            expression.label(f"sqla_shard_c{at}")
            for at, expression in enumerate(self.expressions)
        ]
        made = select(literal_column(_NUMBER), *shown)
        made = made.select_from(source.subquery("sqla_shard_parts"))
        # The expressions may be a class's; this statement loads none.
        made._propagate_attrs = EMPTY_DICT
        return made


def send_on(
    connection: Connection, options: Mapping[str, Any]
) -> Callable[[Any], Sequence[Sequence[Any]]]:
    """Return what executes a statement, and returns the driver's rows.

    :param options: of the execution.
    """

    def send(statement: Any) -> list[Any]:
        # Each has other numbers in it: of no use to the cache.
        result: Any = connection.execute(
            statement,
            execution_options={**options, "compiled_cache": None},
        )
        rows = list(result.cursor.fetchall())
        result.close()
        return rows

    return send


def _first(row: Sequence[Any]) -> Any:
    return row[0]
