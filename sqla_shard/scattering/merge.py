"""Making one answer of the rows of several shards.

Rows are the drivers' own, before SQLAlchemy has made values or objects of
them, so whatever it would do with the rows of one database it does with
these.  Each row begins with the *hidden* columns that the merge has added to
the statement; they are cut off at the end.

A server sorts and limits the rows of its shards, so what is left for Python
is a few rows of each server; and sums, averages and groups, which are never
many.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from decimal import Decimal
from typing import Any
from typing import Protocol

from sqla_shard.exc import ScatterUnsupportedError
from sqla_shard.scattering.computing import Computation
from sqla_shard.scattering.decimals import added
from sqla_shard.scattering.decimals import all_digits
from sqla_shard.scattering.decimals import as_type
from sqla_shard.scattering.decimals import average
from sqla_shard.scattering.decimals import check_places
from sqla_shard.scattering.decimals import Fraction
from sqla_shard.scattering.texts import check_identities
from sqla_shard.scattering.texts import Text
from sqla_shard.scattering.texts import weigh

__all__ = [
    "Combine",
    "Computed",
    "Constant",
    "Different",
    "Extreme",
    "First",
    "Key",
    "Mean",
    "Merge",
    "Otherwise",
    "Rounded",
    "Total",
    "Within",
    "check_weighed",
    "columns_shown",
    "merge_rows",
    "most_of",
]

Row = Sequence[Any]
#: Returns what a server computes of the parts of each group.
Compute = Callable[[Computation, Sequence[Row]], Sequence[Row]]


class Recipe(Protocol):
    """How one value is made of the rows of a group."""

    def __call__(self, rows: Sequence[Row]) -> Any:
        """Return the value.

        :param rows: one of each shard that has any, at least one.
        """
        ...


@dataclass(frozen=True)
class First:
    """The same in all rows; ``at`` is its position."""

    at: int

    def __call__(self, rows: Sequence[Row]) -> Any:
        """Return that of any row."""
        return rows[0][self.at]


@dataclass(frozen=True)
class Constant:
    """One value, whatever the rows are."""

    value: Any

    def __call__(self, rows: Sequence[Row]) -> Any:
        """Return it."""
        return self.value


@dataclass(frozen=True)
class Total:
    """A sum of counts or of sums; None where all of them are."""

    at: int

    def __call__(self, rows: Sequence[Row]) -> Any:
        """Return the sum."""
        return added([row[self.at] for row in rows])


@dataclass(frozen=True)
class Extreme:
    """The value of the row whose other value is the least or greatest.

    :ivar at: position of the value.
    :ivar by: position of what is compared.
    :ivar longest: of texts, up to how many characters that tells all.
    :ivar like: position of a value in whose type the other is returned.
    :ivar more: position of what is compared of those that are equal.
    """

    at: int
    by: int
    greatest: bool
    longest: int | None = None
    like: int | None = None
    more: int | None = None

    def __call__(self, rows: Sequence[Row]) -> Any:
        """Return it; None where there is none but NULL.

        :raises ScatterUnsupportedError: when texts are too long to tell.
        """
        known = [row for row in rows if row[self.by] is not None]
        if not known:
            return None
        choose = max if self.greatest else min
        most = choose(row[self.by] for row in known)
        alike = [row for row in known if row[self.by] == most]
        found = alike[0]
        if self.longest is not None:
            self._check_long(alike, self.longest)
        if self.more is not None:
            found = self._by_more(alike, self.more)
        if self.like is None:
            return found[self.at]
        return as_type(found[self.at], found[self.like])

    def _by_more(self, rows: Sequence[Row], more: int) -> Row:
        choose = max if self.greatest else min
        most = choose(row[more] for row in rows)
        alike = [row for row in rows if row[more] == most]
        values = {row[self.at] for row in alike}
        if len(values) > 1:
            construct = "max()" if self.greatest else "min()"
            raise ScatterUnsupportedError(
                f"{construct} in coalesce() over several shards is one of "
                f"{sorted(values)}: they agree in all digits that can be "
                "compared; select the aggregate and replace None in Python",
                construct=construct,
            )
        return alike[0]

    def _check_long(self, rows: Sequence[Row], longest: int) -> None:
        texts = {row[self.at] for row in rows}
        if len(texts) > 1 and any(len(text) > longest for text in texts):
            raise ScatterUnsupportedError(
                f"{max(texts)[:40]!r}... and another text agree in as much as "
                f"is compared over shards, {longest} characters; use "
                "min() or max() of func.left() of the column",
                construct="max()" if self.greatest else "min()",
            )


@dataclass(frozen=True)
class Rounded:
    """A sum of numbers that have more digits than servers show.

    :ivar at: position of each shard's own sum, which tells how many decimal
        places are shown.
    :ivar digits: position of the same sum with all of its digits.
    """

    at: int
    digits: int

    def __call__(self, rows: Sequence[Row]) -> Any:
        """Return the sum; None where all of them are.

        :raises ScatterUnsupportedError: when digits may be missing.
        """
        return self.typed(rows, _first(rows, self.at))

    def typed(self, rows: Sequence[Row], like: Any) -> Any:
        """Return it in the type of another value, None as it is."""
        total = all_digits([row[self.digits] for row in rows], "sum()")
        check_places(total, _first(rows, self.at), "sum()")
        return as_type(total, like)


@dataclass(frozen=True)
class Mean:
    """An average, made of sums and counts.

    :ivar at: position of each shard's own average, which tells how many
        decimal places it has.
    :ivar sums: position of the sums, with all of their digits.
    :ivar fraction: what is known of the decimal places of the sum inside of
        a server.
    """

    at: int
    sums: int
    counts: int
    fraction: Fraction = Fraction.EXACT

    def __call__(self, rows: Sequence[Row]) -> Any:
        """Return it; None where there is nothing to average.

        :raises ScatterUnsupportedError: when a digit of it cannot be told.
        """
        return self.typed(rows, _first(rows, self.at))

    def typed(self, rows: Sequence[Row], like: Any) -> Any:
        """Return it in the type of another value, None as it is."""
        sums = [row[self.sums] for row in rows]
        exact = self.fraction in (Fraction.EXACT, Fraction.MIXED)
        total = added(sums) if exact else all_digits(sums, "avg()")
        count = Total(self.counts)(rows)
        if total is None or not count:
            return None
        own = _first(rows, self.at)
        if not exact:
            check_places(total, own, "avg()")
        if isinstance(own, Decimal) and isinstance(total, Decimal):
            return average(total, count, own, self.fraction, like)
        return float(total) / count


@dataclass(frozen=True)
class Otherwise:
    """``coalesce()`` of an aggregate.

    :ivar at: position of it in each shard's own answer.
    :ivar own: position of the aggregate there; None where what is made of
        it is of the type that ``coalesce()`` returns already.
    :ivar weighed: whether its values are not what is compared, as of texts.
    """

    inner: Recipe
    at: int
    own: int | None = None
    weighed: bool = False

    def __call__(self, rows: Sequence[Row]) -> Any:
        """Return the aggregate, or what stands in its place.

        :raises ScatterUnsupportedError: when it is a text of a double.
        """
        inner, own = self.inner, self.own
        if own is None:
            value = inner(rows)
            return rows[0][self.at] if value is None else value
        known = [row[self.at] for row in rows if row[own] is not None]
        # On SQLite each value has a type of its own.
        alike = len(set(map(type, known))) == 1
        like = known[0] if alike else None
        if isinstance(inner, (Rounded, Mean)) and type(like) is not str:
            # A number of another type has digits that are not shown.
            value = inner.typed(rows, like)
        else:
            value = as_type(inner(rows), like)
        return rows[0][self.at] if value is None else value


class Group(list[Row]):
    """The rows of a group.

    :ivar computed: what a server has computed of what they make.
    """

    computed: Sequence[Any] = ()


@dataclass(frozen=True)
class Computed:
    """What a server has computed; ``index`` is which of the expressions."""

    index: int

    def __call__(self, rows: Sequence[Row]) -> Any:
        """Return it."""
        assert isinstance(rows, Group)  # noqa: S101  # others have none
        return rows.computed[self.index]


@dataclass(frozen=True)
class Different:
    """How many different values there are but NULL.

    :ivar at: position of what is equal for equal values.
    :ivar texts: whether they are texts.
    """

    at: int
    texts: bool

    def __call__(self, rows: Sequence[Row]) -> Any:
        """Return the number.

        :raises ScatterUnsupportedError: when texts are too long to tell.
        """
        values = {row[self.at] for row in rows} - {None}
        if self.texts:
            check_identities(values)
        return len(values)


def _first(rows: Sequence[Row], at: int) -> Any:
    return next((row[at] for row in rows if row[at] is not None), None)


@dataclass(frozen=True)
class Within:
    """How many of a number of rows a LIMIT with an OFFSET leaves."""

    inner: Recipe
    limit: int | None
    offset: int

    def __call__(self, rows: Sequence[Row]) -> Any:
        """Return the number."""
        found = max(self.inner(rows) - self.offset, 0)
        return found if self.limit is None else min(found, self.limit)


def _compared(recipe: Recipe) -> int | None:
    """Return the position of what a recipe compares, if it does."""
    if isinstance(recipe, Otherwise):
        return _compared(recipe.inner)
    return recipe.by if isinstance(recipe, Extreme) else None


@dataclass(frozen=True)
class Key:
    """One element of ORDER BY.

    :ivar recipe: what is compared.
    :ivar descending: the greatest first.
    :ivar nulls_last: where NULL goes; None for what servers do, which is
        to take it for the least.
    :ivar sorted_by: position of what a server sorts by, where that is not
        what Python compares.
    """

    recipe: Recipe
    descending: bool = False
    nulls_last: bool | None = None
    sorted_by: int | None = None


@dataclass(frozen=True)
class Combine:
    """How rows are made of the groups that shards have made.

    :ivar same: positions of what tells groups apart.
    :ivar texts: those of them that stand for texts.
    :ivar columns: what the row consists of, for each column; None where
        the first row of a group is taken as it is, as for DISTINCT.
    :ivar having: what is true for groups that are shown; None for all.
    :ivar computation: what a server computes for each group.
    :ivar empty: the columns where no shard has a row, and there is one all
        the same; None where there is none.
    """

    same: tuple[int, ...]
    texts: tuple[int, ...] = ()
    columns: tuple[Recipe, ...] | None = None
    having: Recipe | None = None
    computation: Computation | None = None
    empty: tuple[Recipe, ...] | None = None

    @property
    def computes(self) -> bool:
        """Whether a server computes something in the end."""
        return self.computation is not None


@dataclass(frozen=True)
class Merge:
    """What makes one answer of the rows of several shards.

    :ivar hidden: number of columns ahead of those of the statement.
    :ivar keys: by what they are sorted.
    :ivar limit: how many there are at most.
    :ivar offset: how many of the first ones are skipped.
    :ivar counts: whether the answer is the number of these rows, instead
        of the rows.
    :ivar combine: None where each row stands for itself.
    :ivar texts: those that are sorted by, or chosen from.
    :ivar steps: for people: what is done, in order.
    """

    hidden: int = 0
    keys: tuple[Key, ...] = ()
    limit: int | None = None
    combine: Combine | None = None
    offset: int = 0
    counts: bool = False
    texts: tuple[Text, ...] = ()
    steps: tuple[str, ...] = field(default=(), compare=False)

    def compared(self) -> frozenset[int]:
        """Return the positions of what Python compares."""
        recipes = [key.recipe for key in self.keys]
        same = [r.at for r in recipes if isinstance(r, First)]
        if self.combine is not None:
            recipes += self.combine.columns or ()
            same += self.combine.same
        found = (_compared(recipe) for recipe in recipes)
        return frozenset([*same, *(at for at in found if at is not None)])

    @property
    def most(self) -> int | None:
        """How many rows of each shard are needed; None for all."""
        return most_of(self.limit, self.offset)

    @property
    def on_server(self) -> bool:
        """Whether a server can sort and limit the rows of its shards."""
        return self.combine is None or self.combine.columns is None


def most_of(limit: int | None, offset: int) -> int | None:
    """Return how many rows are read for a LIMIT with an OFFSET."""
    # Servers take no more for a LIMIT.
    return None if limit is None else min(limit + offset, 2**63 - 1)


def check_weighed(runs: Sequence[list[Row]], merge: Merge) -> None:
    """Refuse to compare texts that were thought to be something else.

    What an expression returns is not always what its type says: the type
    may be wrong, or one of several that ``coalesce()`` has been given.

    :param runs: answers of servers that have collations.
    :raises ScatterUnsupportedError: when Python would have to.
    """
    for at in merge.compared():
        for run in runs:
            value = next((row[at] for row in run if row[at] is not None), None)
            if isinstance(value, str):
                raise ScatterUnsupportedError(
                    f"ORDER BY, GROUP BY, min() or max() over several shards "
                    f"has found the text {value[:40]!r} where the types of "
                    "the statement tell of a number or a time; cast() it to "
                    "what it is",
                    construct="cast()",
                )


def columns_shown(description: Any, merge: Merge | None) -> Any:
    """Return the description of the columns that are not hidden.

    :raises ScatterUnsupportedError: when one is missing.
    """
    if merge is None:
        return description
    shown = description[merge.hidden :]
    columns = None if merge.combine is None else merge.combine.columns
    if columns is not None and len(columns) != len(shown):
        # SQLAlchemy has left out a column that it takes for another.
        raise ScatterUnsupportedError(
            "a count or group over several shards shows one column twice; "
            "select it once",
            construct="GROUP BY",
        )
    return shown


def merge_rows(
    runs: Sequence[list[Row]],
    merge: Merge,
    places: Sequence[int | None] = (),
    compute: Compute | None = None,
) -> list[Row]:
    """Return the rows of the answer.

    :param runs: the rows of each statement, in the order of its ORDER BY.
    :param places: how many decimal places a server shows of the doubles of
        each column, the hidden ones included; None for all.
    :param compute: lets a server compute, where there is something.
    :raises ScatterUnsupportedError: when values cannot be compared.
    """
    combine = merge.combine
    if combine is None:
        if len(runs) == 1:
            rows = runs[0]
        else:
            rows = [row for run in weigh(runs, merge.texts) for row in run]
            _sort(rows, merge.keys, _of_row)
    else:
        runs = weigh(runs, merge.texts)
        groups = _groups(runs, combine)
        columns = combine.columns
        if combine.empty is not None and not groups:
            groups, columns = [Group()], combine.empty
        if combine.computation is not None:
            assert compute is not None  # noqa: S101  # as it was planned
            parts = [combine.computation.values(group) for group in groups]
            for group, computed in zip(
                groups, compute(combine.computation, parts), strict=True
            ):
                group.computed = computed
        if columns is not None:
            if combine.having is not None:
                groups = [group for group in groups if combine.having(group)]
            _sort(groups, merge.keys, _of_group)
            groups = _shown(groups, merge)
            if merge.counts:
                return [(len(groups),)]
            made = [[recipe(group) for recipe in columns] for group in groups]
            _round_doubles(made, places[merge.hidden :][: len(columns)])
            return [tuple(row) for row in made]
        rows = [group[0] for group in groups]
        if len(runs) > 1:
            _sort(rows, merge.keys, _of_row)
    rows = _shown(rows, merge)
    return [row[merge.hidden :] for row in rows] if merge.hidden else rows


def _shown(items: list[Any], merge: Merge) -> list[Any]:
    """Return what LIMIT and OFFSET leave."""
    return items[merge.offset : merge.most]


def _round_doubles(
    rows: Sequence[list[Any]], places: Sequence[int | None]
) -> None:
    for at, count in enumerate(places):
        if count is not None:
            for row in rows:
                if isinstance(row[at], float):
                    row[at] = float(f"{row[at]:.{count}f}")


def _groups(runs: Sequence[list[Row]], combine: Combine) -> list[Group]:
    same = combine.same
    found: dict[tuple[Any, ...], Group] = {}
    for run in runs:
        for row in run:
            key = tuple([row[at] for at in same])
            found.setdefault(key, Group()).append(row)
    for at in combine.texts:
        which = same.index(at)
        check_identities(key[which] for key in found)
    return list(found.values())


def _of_row(key: Key, row: Row) -> Any:
    return key.recipe((row,))


def _of_group(key: Key, group: Sequence[Row]) -> Any:
    return key.recipe(group)


def _sort(
    items: list[Any], keys: Sequence[Key], value: Callable[[Key, Any], Any]
) -> None:
    # From the last key to the first: each sort keeps the order of what it
    # takes for equal.  Sorted runs one after another cost it little.
    for key in reversed(keys):
        nulls_first = not key.nulls_last
        if key.nulls_last is not None and key.descending:
            nulls_first = key.nulls_last

        def rank(
            item: Any, key: Key = key, nulls_first: bool = nulls_first
        ) -> tuple[bool, Any]:
            found = value(key, item)
            return (found is not None) is nulls_first, found

        try:
            items.sort(key=rank, reverse=key.descending)
        except TypeError as error:
            raise ScatterUnsupportedError(
                f"the values of an ORDER BY cannot be compared: {error}; "
                "type_coerce() or cast() them to one type",
                construct="ORDER BY",
            ) from error
