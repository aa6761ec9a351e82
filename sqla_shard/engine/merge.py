"""The merge of the rows of several shards.

Rows are those of the drivers, before SQLAlchemy converts them to values or
objects, so that it processes them as the rows of one database.  Each row
begins with the *hidden* columns that the merge has added to the statement;
they are removed at the end.

A server sorts and limits the rows of its shards, so that Python merges a few
rows of each server.  Sums, averages and groups are few rows as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Protocol

from sqla_shard.dialects import Backend
from sqla_shard.engine.values import (
    added,
    all_digits,
    as_type,
    average,
    check_identities,
    check_places,
    Fraction,
    near,
    Text,
    weigh,
)
from sqla_shard.exc import ScatterLimitError, ScatterUnsupportedError

Row = Sequence[Any]
#: Returns the expressions of each group, which a server computes.
Compute = Callable[["Computation", Sequence[Row]], Sequence[Row]]


class Computation(Protocol):
    """The expressions that a server computes for each group."""

    def values(self, group: Sequence[Any]) -> tuple[Any, ...]:
        """Return the parts of a group, which may have no rows."""
        ...

    def run(
        self,
        groups: Sequence[Sequence[Any]],
        backend: Backend,
        send: Callable[[Any], Sequence[Sequence[Any]]],
    ) -> list[tuple[Any, ...]]:
        """Return the values of the expressions, for each group.

        :param groups: the parts of each group.
        :param send: executes a statement, and returns the driver's rows.
        :raises ScatterUnsupportedError: if a part is not a number.
        """
        ...


class Recipe(Protocol):
    """Computes one value from the rows of a group."""

    def __call__(self, rows: Sequence[Row]) -> Any:
        """Return the value.

        :param rows: one row of each shard that has the group; at least one.
        """
        ...


@dataclass(frozen=True)
class First:
    """The value of a column that is the same in all rows."""

    index: int

    def __call__(self, rows: Sequence[Row]) -> Any:
        """Return the value of the first row."""
        return rows[0][self.index]


@dataclass(frozen=True)
class Constant:
    """One value for any rows."""

    value: Any

    def __call__(self, rows: Sequence[Row]) -> Any:
        """Return the constant."""
        return self.value


@dataclass(frozen=True)
class Total:
    """A sum of counts or of sums; None if all of them are None."""

    index: int

    def __call__(self, rows: Sequence[Row]) -> Any:
        """Return the sum."""
        return added([row[self.index] for row in rows])


@dataclass(frozen=True)
class Extreme:
    """The value of the row with the least or greatest sort value.

    :ivar index: position of the value.
    :ivar sort_index: position of the sort value.
    :ivar longest: of texts, the length in characters that is compared.
    :ivar type_index: position of a value that has the type of the result.
    :ivar tie_index: position of a longer sort value; used as tie-breaker.
    """

    index: int
    sort_index: int
    greatest: bool
    longest: int | None = None
    type_index: int | None = None
    tie_index: int | None = None

    def __call__(self, rows: Sequence[Row]) -> Any:
        """Return the least or greatest value; None if all are NULL.

        :raises ScatterUnsupportedError: if texts are too long to compare.
        """
        known = [row for row in rows if row[self.sort_index] is not None]
        if not known:
            return None
        choose = max if self.greatest else min
        most = choose(row[self.sort_index] for row in known)
        alike = [row for row in known if row[self.sort_index] == most]
        value = alike[0]
        if self.longest is not None:
            self._check_long(alike, self.longest)
        if self.tie_index is not None:
            value = self._break_tie(alike, self.tie_index)
        if self.type_index is None:
            return value[self.index]
        return as_type(value[self.index], value[self.type_index])

    def _break_tie(self, rows: Sequence[Row], more: int) -> Row:
        choose = max if self.greatest else min
        most = choose(row[more] for row in rows)
        alike = [row for row in rows if row[more] == most]
        values = {row[self.index] for row in alike}
        if len(values) > 1:
            construct = "max()" if self.greatest else "min()"
            raise ScatterUnsupportedError(
                f"{construct} in coalesce() over several shards is one of "
                f"{sorted(values)}: they are equal in all digits that can be "
                "compared; select the aggregate and replace None in Python",
                construct=construct,
            )
        return alike[0]

    def _check_long(self, rows: Sequence[Row], longest: int) -> None:
        texts = {row[self.index] for row in rows}
        if len(texts) > 1 and any(len(text) > longest for text in texts):
            raise ScatterUnsupportedError(
                f"{max(texts)[:40]!r}... and another text are equal in the "
                f"first {longest} characters, which are compared over "
                "shards; use min() or max() of func.left() of the column",
                construct="max()" if self.greatest else "min()",
            )


@dataclass(frozen=True)
class Rounded:
    """A sum of numbers that have more digits than servers return.

    :ivar index: position of the sum of each shard, with the decimal places
        that are returned.
    :ivar digits: position of the same sum with all of its digits.
    """

    index: int
    digits: int

    def __call__(self, rows: Sequence[Row]) -> Any:
        """Return the sum; None if all of them are None.

        :raises ScatterUnsupportedError: if digits may be missing.
        """
        return self.typed(rows, _first(rows, self.index))

    def typed(self, rows: Sequence[Row], like: Any) -> Any:
        """Convert the result to the type of another value.

        :param like: the other value; None for no conversion.
        """
        total = all_digits([row[self.digits] for row in rows], "sum()")
        check_places(total, _first(rows, self.index), "sum()")
        return as_type(total, like)


@dataclass(frozen=True)
class Mean:
    """An average, computed from sums and counts.

    :ivar index: position of the average of each shard, with the decimal places
        that are returned.
    :ivar sums: position of the sums, with all of their digits.
    :ivar fraction: the precision of the sum inside a server.
    """

    index: int
    sums: int
    counts: int
    fraction: Fraction = Fraction.EXACT

    def __call__(self, rows: Sequence[Row]) -> Any:
        """Return the average; None if there are no values.

        :raises ScatterUnsupportedError: if not all of its digits are known.
        """
        return self.typed(rows, _first(rows, self.index))

    def typed(self, rows: Sequence[Row], like: Any) -> Any:
        """Convert the result to the type of another value.

        :param like: the other value; None for no conversion.
        """
        quotient = self._divided(rows)
        if isinstance(quotient, tuple):
            total, count, own = quotient
            return average(total, count, own, self.fraction, like)
        return quotient

    def inside(self, rows: Sequence[Row]) -> Any:
        """Return the least and the greatest number that a server may have."""
        quotient = self._divided(rows)
        return near(*quotient) if isinstance(quotient, tuple) else quotient

    def _divided(self, rows: Sequence[Row]) -> Any:
        """Return the average; of decimals the sum, the count and an average."""
        sums = [row[self.sums] for row in rows]
        exact = self.fraction in (Fraction.EXACT, Fraction.MIXED)
        total = added(sums) if exact else all_digits(sums, "avg()")
        count = Total(self.counts)(rows)
        if total is None or not count:
            return None
        own = _first(rows, self.index)
        if not exact:
            check_places(total, own, "avg()")
        if isinstance(own, Decimal) and isinstance(total, Decimal):
            return total, count, own
        return float(total) / count


@dataclass(frozen=True)
class Coalesce:
    """``coalesce()`` of an aggregate.

    :ivar index: position of ``coalesce()`` in the rows.
    :ivar own_index: position of the aggregate; None if the recipe returns the
        type of ``coalesce()``.
    :ivar weighed: whether weights are compared instead of the values, as for
        texts.
    """

    inner: Recipe
    index: int
    own_index: int | None = None
    weighed: bool = False

    def __call__(self, rows: Sequence[Row]) -> Any:
        """Return the aggregate, or its replacement.

        :raises ScatterUnsupportedError: if it is the text of a double.
        """
        inner, own = self.inner, self.own_index
        if own is None:
            value = inner(rows)
            return rows[0][self.index] if value is None else value
        known = [row[self.index] for row in rows if row[own] is not None]
        # On SQLite the type may differ from value to value.
        alike = len(set(map(type, known))) == 1
        like = known[0] if alike else None
        if isinstance(inner, (Rounded, Mean)) and type(like) is not str:
            # A number of another type has digits that are not returned.
            value = inner.typed(rows, like)
        else:
            value = as_type(inner(rows), like)
        return rows[0][self.index] if value is None else value


class RowGroup(list[Row]):
    """The rows of a group.

    :ivar computed: the expressions of the group, computed by a server.
    """

    computed: Sequence[Any] = ()


@dataclass(frozen=True)
class Computed:
    """A value that a server computed.

    :ivar index: index of its expression in the :class:`Computation`.
    """

    index: int

    def __call__(self, rows: Sequence[Row]) -> Any:
        """Return the computed value."""
        assert isinstance(rows, RowGroup)  # noqa: S101  # as it was planned
        return rows.computed[self.index]


@dataclass(frozen=True)
class DistinctCount:
    """The number of distinct values other than NULL.

    :ivar index: position of the identities of the values.
    :ivar texts: whether the values are texts.
    """

    index: int
    texts: bool

    def __call__(self, rows: Sequence[Row]) -> Any:
        """Return the number.

        :raises ScatterUnsupportedError: if texts are too long to compare.
        """
        values = {row[self.index] for row in rows} - {None}
        if self.texts:
            check_identities(values)
        return len(values)


def _first(rows: Sequence[Row], at: int) -> Any:
    return next((row[at] for row in rows if row[at] is not None), None)


@dataclass(frozen=True)
class LimitedCount:
    """The number of rows that LIMIT and OFFSET let through."""

    inner: Recipe
    limit: int | None
    offset: int

    def __call__(self, rows: Sequence[Row]) -> Any:
        """Return the number."""
        number = max(self.inner(rows) - self.offset, 0)
        return number if self.limit is None else min(number, self.limit)


def _compared(recipe: Recipe) -> int | None:
    """Return the position of the values that a recipe compares, or None."""
    if isinstance(recipe, Coalesce):
        return _compared(recipe.inner)
    return recipe.sort_index if isinstance(recipe, Extreme) else None


@dataclass(frozen=True)
class OrderKey:
    """One element of ORDER BY.

    :ivar recipe: returns the value that is compared.
    :ivar descending: whether the greatest value comes first.
    :ivar nulls_last: NULLS LAST or NULLS FIRST; None for the order of
        servers, in which NULL is the least.
    :ivar sorted_by: position of the column that a server sorts by, if Python
        compares another.
    """

    recipe: Recipe
    descending: bool = False
    nulls_last: bool | None = None
    sorted_by: int | None = None

    @property
    def position(self) -> int:
        """Position of the hidden column that a server sorts by."""
        if self.sorted_by is not None:
            return self.sorted_by
        assert isinstance(self.recipe, First)  # noqa: S101  # rows are as read
        return self.recipe.index


@dataclass(frozen=True)
class GroupRule:
    """The rule that combines the groups of several shards.

    :ivar group_columns: positions of the values that identify a group.
    :ivar texts: the group columns that are identities of texts.
    :ivar columns: the recipes of the columns of a row; None to return the
        first row of each group, as for DISTINCT.
    :ivar split: whether shards return several rows of a group.
    :ivar having: the condition on groups; None for all.
    :ivar computation: the expressions that a server computes for each group.
    :ivar empty: the recipes of the row that is returned if no shard has one;
        None to return no row.
    """

    group_columns: tuple[int, ...]
    texts: tuple[int, ...] = ()
    columns: tuple[Recipe, ...] | None = None
    split: bool = False
    having: Recipe | None = None
    computation: Computation | None = None
    empty: tuple[Recipe, ...] | None = None

    @property
    def computes(self) -> bool:
        """Whether a server computes the final values."""
        return self.computation is not None


@dataclass(frozen=True)
class Merge:
    """The merge of the rows of several shards.

    :ivar hidden: number of columns before those of the statement.
    :ivar keys: the sort keys.
    :ivar limit: maximum number of rows.
    :ivar offset: number of rows to skip.
    :ivar counts: whether the result is the number of these rows, instead of
        the rows.
    :ivar combine: the rule for groups; None if rows are not combined.
    :ivar texts: the texts that are compared.
    :ivar steps: descriptions of the steps, in order.
    """

    hidden: int = 0
    keys: tuple[OrderKey, ...] = ()
    limit: int | None = None
    combine: GroupRule | None = None
    offset: int = 0
    counts: bool = False
    texts: tuple[Text, ...] = ()
    steps: tuple[str, ...] = field(default=(), compare=False)

    def compared(self) -> frozenset[int]:
        """Return the positions of the values that Python compares."""
        recipes = [key.recipe for key in self.keys]
        same = [r.index for r in recipes if isinstance(r, First)]
        if self.combine is not None:
            recipes += self.combine.columns or ()
            same += self.combine.group_columns
        indexes = (_compared(recipe) for recipe in recipes)
        return frozenset([*same, *(at for at in indexes if at is not None)])

    @property
    def row_limit(self) -> int | None:
        """Number of rows needed from each shard; None for all."""
        return most_of(self.limit, self.offset)

    @property
    def on_server(self) -> bool:
        """Whether a server can sort and limit the rows of its shards."""
        return self.combine is None or self.combine.columns is None

    def most_read(self, most_rows: int | None) -> int | None:
        """Return the number of rows to read from each shard; None for all.

        :param most_rows: maximum number of rows of the result; one more is
            read, to detect further rows.
        """
        limits = [] if most_rows is None else [most_rows + 1 + self.offset]
        rule = self.combine
        if rule is None or rule.columns is None:
            limits += [] if self.row_limit is None else [self.row_limit]
        elif rule.split or rule.texts or rule.having is not None or self.counts:
            # The result may have fewer rows: MySQL groups some equal texts apart.
            return None
        elif self.limit is not None and self.limit <= (most_rows or 0):
            return None
        return min(limits, default=None)

    def check_values(self, runs: Sequence[list[Row]]) -> None:
        """Refuse texts of expressions that have another type.

        The declared type may be wrong, or the type of one argument of
        ``coalesce()`` only.

        :param runs: rows of servers that have collations.
        :raises ScatterUnsupportedError: if Python would compare a text.
        """
        for at in self.compared():
            for run in runs:
                value = next((row[at] for row in run if row[at] is not None), None)
                if isinstance(value, str):
                    raise ScatterUnsupportedError(
                        "ORDER BY, GROUP BY, min() or max() over several "
                        f"shards returned the text {value[:40]!r} for an "
                        "expression whose type is a number or a time; cast() "
                        "it to its actual type",
                        construct="cast()",
                    )

    def columns_shown(self, description: Any) -> Any:
        """Return the description of the columns that are not hidden.

        :raises ScatterUnsupportedError: if one is missing.
        """
        shown = description[self.hidden :]
        columns = None if self.combine is None else self.combine.columns
        if columns is not None and len(columns) != len(shown):
            # SQLAlchemy has left out a duplicate of a column.
            raise ScatterUnsupportedError(
                "a count or group over several shards has the same column "
                "twice; select it once",
                construct="GROUP BY",
            )
        return shown

    def rows(
        self,
        runs: Sequence[list[Row]],
        formats: Sequence[str | None] = (),
        compute: Compute | None = None,
        most_rows: int | None = None,
    ) -> list[Row]:
        """Return the merged rows.

        :param runs: the rows of each statement, in the order of its ORDER BY.
        :param formats: the format in which a server returns the floats of
            each column, including hidden columns; None for all digits.
        :param compute: lets a server compute the expressions of groups.
        :param most_rows: maximum number of rows, if one more has been read.
        :raises ScatterLimitError: if there are more groups.
        :raises ScatterUnsupportedError: if values cannot be compared.
        """
        combine = self.combine
        if combine is None:
            if len(runs) == 1:
                rows = runs[0]
            else:
                rows = [row for run in weigh(runs, self.texts) for row in run]
                _sort(rows, self.keys, _of_row)
        elif combine.columns is not None:
            groups = _groups(weigh(runs, self.texts), combine)
            if most_rows and combine.having is None and not self.counts:
                # They may have been cut off: other errors would mislead.
                check_rows(len(self._limited(groups)), most_rows)
            return self._combined(combine, combine.columns, groups, formats, compute)
        else:
            weighed = weigh(runs, self.texts)
            groups = _groups(weighed, combine)
            _check_counted(weighed, combine, self.most_read(most_rows))
            rows = [group[0] for group in groups]
            if len(runs) > 1:
                _sort(rows, self.keys, _of_row)
        rows = self._limited(rows)
        return [row[self.hidden :] for row in rows] if self.hidden else rows

    def _combined(
        self,
        combine: GroupRule,
        columns: tuple[Recipe, ...],
        groups: list[RowGroup],
        formats: Sequence[str | None],
        compute: Compute | None,
    ) -> list[Row]:
        """Return one row for each group."""
        if combine.empty is not None and not groups:
            groups, columns = [RowGroup()], combine.empty
        if combine.computation is not None:
            assert compute is not None  # noqa: S101  # as it was planned
            parts = [combine.computation.values(group) for group in groups]
            for group, computed in zip(
                groups, compute(combine.computation, parts), strict=True
            ):
                group.computed = computed
        if combine.having is not None:
            groups = [group for group in groups if combine.having(group)]
        _sort(groups, self.keys, _of_group)
        groups = self._limited(groups)
        if self.counts:
            return [(len(groups),)]
        rows = [[recipe(group) for recipe in columns] for group in groups]
        _round_floats(rows, formats[self.hidden :][: len(columns)])
        return [tuple(row) for row in rows]

    def _limited(self, items: list[Any]) -> list[Any]:
        """Apply LIMIT and OFFSET."""
        return items[self.offset : self.row_limit]


def check_rows(count: int, most: int | None) -> None:
    """Refuse a result of more rows than ``max_rows``.

    :raises ScatterLimitError: if there are more.
    """
    if most is not None and count > most:
        raise ScatterLimitError(limit="max_rows", allowed=most, found=count)


def most_of(limit: int | None, offset: int) -> int | None:
    """Return the number of rows to read for a LIMIT with an OFFSET."""
    # The largest LIMIT of servers.
    return None if limit is None else min(limit + offset, 2**63 - 1)


def _round_floats(rows: Sequence[list[Any]], formats: Sequence[str | None]) -> None:
    for at, form in enumerate(formats):
        if form is not None:
            for row in rows:
                if isinstance(row[at], float):
                    row[at] = float(format(row[at], form))


def _groups(runs: Sequence[list[Row]], combine: GroupRule) -> list[RowGroup]:
    same = combine.group_columns
    groups: dict[tuple[Any, ...], RowGroup] = {}
    for run in runs:
        for row in run:
            key = tuple([row[at] for at in same])
            groups.setdefault(key, RowGroup()).append(row)
    for at in combine.texts:
        index = same.index(at)
        check_identities(key[index] for key in groups)
    return list(groups.values())


def _check_counted(
    runs: Sequence[list[Row]], combine: GroupRule, limit: int | None
) -> None:
    """Refuse rows of DISTINCT that a server has counted more than once.

    MySQL keeps such rows in a temporary table, by a hash.  In collations that
    pad, texts that differ in spaces of Unicode at their ends are equal and
    have different hashes.

    :param limit: of the rows of each run.
    :raises ScatterUnsupportedError: if the LIMIT may have left out others.
    """
    for run in runs:
        if limit is None or len(run) < limit:
            continue
        counted: set[tuple[Any, ...]] = set()
        for row in run:
            key = tuple([row[at] for at in combine.group_columns])
            if key in counted:
                raise ScatterUnsupportedError(
                    "DISTINCT with LIMIT over several shards has found equal "
                    "rows that the server has counted as different ones: "
                    "their texts end in different spaces; use group_by() "
                    "of the same columns, which counts them after the merge",
                    construct="DISTINCT",
                )
            counted.add(key)


def _of_row(key: OrderKey, row: Row) -> Any:
    return key.recipe((row,))


def _of_group(key: OrderKey, group: Sequence[Row]) -> Any:
    return key.recipe(group)


def _sort(
    items: list[Any], keys: Sequence[OrderKey], value: Callable[[OrderKey, Any], Any]
) -> None:
    # From the last key to the first: sorting is stable, and fast for
    # concatenated sorted runs.
    for key in reversed(keys):
        nulls_first = not key.nulls_last
        if key.nulls_last is not None and key.descending:
            nulls_first = key.nulls_last

        def rank(
            item: Any, key: OrderKey = key, nulls_first: bool = nulls_first
        ) -> tuple[bool, Any]:
            shown = value(key, item)
            return (shown is not None) is nulls_first, shown

        try:
            items.sort(key=rank, reverse=key.descending)
        except TypeError as error:
            raise ScatterUnsupportedError(
                f"the values of an ORDER BY cannot be compared: {error}; "
                "type_coerce() or cast() them to one type",
                construct="ORDER BY",
            ) from error
