"""Merged answers against those of one database: never different.

Where a LIMIT cuts rows that are equal in all of its ORDER BY, any of them is
right.  The one database tells which those are, by ``dense_rank()``, and the
answer is compared as far as it is determined.
"""

from __future__ import annotations

import datetime as dt
import enum
import math
import os
import random
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import (
    Enum,
    func,
    inspect,
    literal,
    literal_column,
    select,
    String,
    text,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session
from sqlalchemy.sql.elements import UnaryExpression

from sqla_shard import Cluster, scatter
from sqla_shard.engine import Scatter
from sqla_shard.exc import ShardError
from sqla_shard.planning.clauses import unlabelled
from sqla_shard.util import sqlalchemy_private as private
from tests.models.clusters import PINS, plain_engine
from tests.models.collations import collation_on
from tests.models.merged_data import make_rows, Rows, SAMPLES, store
from tests.models.merged_free import FreeGrammar
from tests.models.merged_grammar import Grammar, Made
from tests.models.merged_models import charset_of, COLLATIONS, PLAIN, SHARDED

#: How many times as many statements in a run of hours.
_MANY = 100 if os.environ.get("SQLA_SHARD_SOAK") == "1" else 1

#: Two of one server, and one each of two others.
_SHARDS = (0, 1, 17, 31)


def compared_rows() -> Any:
    """Return a fixture: the cluster, the plain database, and their rows.

    The test module has fixtures ``cluster`` and ``plain_engine``.
    """

    @pytest.fixture(scope="module")
    def compared(request: Any, cluster: Cluster, plain_engine: Any) -> Any:
        seed = request.config.getoption("hypothesis_seed")
        rows = make_rows(random.Random(f"merged {seed}"), _SHARDS)
        cluster.create_all(SHARDED.base.metadata)
        with cluster.begin(cross_shard="unordered") as session:
            store(rows, SHARDED, session)
        PLAIN.base.metadata.create_all(plain_engine)
        with Session(plain_engine) as plain:
            store(rows, PLAIN, plain)
            plain.commit()
            yield Compared(cluster, plain, rows)
            plain.rollback()

    return compared


class Compared:
    """Both databases, and properties of their rows."""

    def __init__(self, cluster: Cluster, plain: Session, rows: Rows) -> None:
        self.cluster = cluster
        self.plain = plain
        self.rows = rows
        dialect = plain.get_bind().dialect
        self.dialect = dialect.name
        self.is_mysql = self.dialect == "mysql" and not getattr(
            dialect, "is_mariadb", False
        )
        self._weights: dict[tuple[str, str], Any] = {}

    def weight(self, value: str, collation: str) -> Any:
        """Return what is the same for texts that are equal to a server."""
        key = (value, collation)
        if key not in self._weights:
            name = collation_on(self.plain.get_bind().dialect, collation)
            # Padding would take a text for one that ends in NUL.
            is_padded = "nopad" not in name and "0900" not in name
            collated = f"CONVERT({{}} USING {charset_of(collation)})"
            collated += f" COLLATE {name}"
            value_of = f"WEIGHT_STRING({collated.format(':t')})"
            if is_padded:
                # A text of combining marks is padded to fewer weights.
                space = f"WEIGHT_STRING({collated.format(repr(' '))})"
                whole = f"{value_of[:-1]} AS CHAR(4000))"
                value_of = f"TRIM(TRAILING {space} FROM {whole})"
            found = self.plain.scalar(
                text(f"SELECT SHA2({value_of}, 256)"), {"t": value}
            )
            self._weights[key] = ("equal to", found)
        return self._weights[key]


class MergedDifferential:
    """Compares answers; ``compared`` comes from the test module."""

    statements = 400
    free = 400

    def test_answers_are_equal(self, compared, rng, say):
        counts: Counter[str] = Counter()
        for _ in range(self.statements * _MANY):
            seed = rng.randrange(1 << 48)
            counts[compare(compared, Grammar, seed)] += 1
        report(type(self).__name__, counts, say)
        assert counts["equal"] > self.statements * 0.6

    @pytest.mark.thorough
    def test_free_answers_are_equal_or_refused(self, compared, rng, say):
        counts: Counter[str] = Counter()
        for _ in range(self.free * _MANY):
            seed = rng.randrange(1 << 48)
            counts[compare(compared, FreeGrammar, seed)] += 1
        report(f"{type(self).__name__}, free", counts, say)
        assert counts["equal"] > self.free * 0.15

    def test_spaces_that_are_equal_are_counted_once(self, compared):
        """MySQL has them apart in temporary tables, on shards and elsewhere."""
        if compared.dialect == "sqlite":
            pytest.skip("it has no such collation")
        spaces = [compared.rows.tables["Ware"][at] for at in (0, 1, -1)]
        ids = [row["id"] for row in spaces]
        keys = [key for key in COLLATIONS if spaces[-1].get(key) == "\u3000"]
        assert len(keys) > 10
        for key in keys:
            texts = {compared.weight(row[key], COLLATIONS[key]) for row in spaces}
            for models in (PLAIN, SHARDED):
                column = getattr(models.Ware, key)
                rows = select(column).where(models.Ware.id.in_(ids))
                alike = [rows.distinct(), rows.group_by(column)]
                found = [_counted(compared, one, models) for one in alike]
                found.append(_counted(compared, rows, models, column.distinct()))
                assert found == [len(texts)] * 3, (key, models.plain)


def _counted(compared: Compared, inner: Any, models: Any, *of: Any) -> Any:
    """Return the number of rows of a SELECT, or of values."""
    if of:
        counted = inner.with_only_columns(func.count(*of))
        made = Made(counted)
    else:
        counted = select(func.count()).select_from(inner.subquery())
        made = Made(counted, counted=inner)
    if models.plain:
        (((found,),),) = _wanted(compared, made)
        return found
    with compared.cluster.session() as session:
        return session.scalar(counted.options(scatter()))


def report(name: str, counts: Counter[str], say: Any) -> None:
    total = sum(counts.values()) - counts["no SQL"]
    answered = counts["equal"] + counts["equal and empty"]
    listed = ", ".join(f"{key} {count}" for key, count in counts.most_common())
    refused = 100 * (total - answered) // total
    say(f"{name}: {total} statements, {refused}% refused; {listed}")


def compare(compared: Compared, grammar: Any, seed: int) -> str:
    """Compare the answers to the statement of a seed.

    :returns: how that went; a refusal by the name of its construct.
    """
    wanted = made_by(grammar, seed, PLAIN, compared)
    try:
        classes = _wanted(compared, wanted)
    except DBAPIError:
        compared.plain.rollback()
        if grammar is Grammar:
            raise
        return "no SQL"  # the generated statement is invalid
    made = made_by(grammar, seed, SHARDED, compared)
    case = f"seed {seed}: {wanted.statement}"
    try:
        got = _got(compared, made, random.Random(seed))
    except ShardError as error:
        if grammar is Grammar and not _counts_apart(compared, made, error):
            raise AssertionError(f"{case}\nis refused: {error}") from error
        return _refused(error)
    try:
        _check(got, classes, made, case)
    except AssertionError:
        if compared.dialect == "sqlite":
            raise
        classes = _wanted(compared, wanted, sorts_nul=False, splits_groups=wanted.keyed)
        _check(got, classes, made, case)
    return "equal" if classes else "equal and empty"


def _counts_apart(compared: Compared, made: Made, error: ShardError) -> bool:
    """Return whether MySQL has told rows of DISTINCT apart that are equal."""
    construct = getattr(error, "construct", None)
    return compared.is_mysql and made.distinct and construct == "DISTINCT"


def _refused(error: ShardError) -> str:
    """Return the refused construct, without its columns."""
    name = str(getattr(error, "construct", type(error).__name__))
    if name.startswith("a combination"):
        return "tables apart"
    computed = "(" in name and not name.endswith("()")
    return "computed aggregates" if computed else name


def made_by(grammar: Any, seed: int, models: Any, compared: Compared) -> Made:
    rng = random.Random(seed)
    maker = grammar(rng, models, compared.rows, compared.dialect)
    made = maker.make()
    assert isinstance(made, Made)
    made.maker = maker
    return made


def _wanted(
    compared: Compared,
    made: Made,
    *,
    sorts_nul: bool = True,
    splits_groups: bool = False,
) -> list[list[Any]]:
    """Return all rows in order, those together that are equal in it.

    :param sorts_nul: whether NUL at the end of a text makes a difference.
    :param splits_groups: whether groups are as MySQL has them in temporary
        tables.
    """
    if made.unique:
        # With a rank the rows that unique() drops would differ.
        return _distinct_objects(compared, made)
    statement = made.statement.order_by(None)
    keys = made.keys
    sorts = compared.is_mysql and not splits_groups
    if sorts and made.counted is not None:
        counted, _ = _grouped_by_sorting(made.counted, [])
        statement = select(func.count()).select_from(counted.subquery())
    elif sorts and (made.distinct or private.group_by_clauses(statement)):
        statement, keys = _grouped_by_sorting(statement, keys)
    elif made.distinct:
        # With a window function MariaDB treats different texts as equal.
        inner = statement.subquery()
        columns = list(inner.c)
        statement = select(*columns)
        keys = [directed(columns[at]) for at, directed in made.order]
    if not sorts_nul:
        keys = list(map(_without_nul, keys))
    rank: Any = literal(1)
    if keys:
        rank = func.dense_rank().over(order_by=keys)
    statement = statement.add_columns(rank)
    options = [o for o in made.options if not isinstance(o, Scatter)]
    compared.plain.expunge_all()
    classes: dict[int, list[Any]] = {}
    for *values, at in compared.plain.execute(statement.options(*options)):
        row = _normal(compared, made, values)
        classes.setdefault(at, []).append(row)
    return [classes[at] for at in sorted(classes)]


def _grouped_by_sorting(statement: Any, keys: Sequence[Any]) -> tuple[Any, list[Any]]:
    """Return a SELECT whose groups MySQL finds by comparing, and its keys.

    In a temporary table it looks for texts by a hash, which differs for some
    that are equal: "a" and "a\u3000" in collations that pad.
    """
    shown = list(statement.selected_columns)
    if private.distinct(statement):
        statement = private.copy_with(statement, distinct=False)
        statement = statement.group_by(*map(unlabelled, shown))
    sorted_by = [_undirected(key).label(f"key_{at}") for at, key in enumerate(keys)]
    # Values that are counted once each leave it no other way.
    counted = func.count(literal_column("1").distinct()).label("counted")
    columns = list(statement.add_columns(*sorted_by, counted).subquery().c)
    found = columns[len(shown) : -1]
    return select(*columns[: len(shown)]), list(map(_directed, keys, found))


def _undirected(key: Any) -> Any:
    if isinstance(key, UnaryExpression) and key.modifier is not None:
        return _undirected(key.element)
    return unlabelled(key)


def _directed(key: Any, column: Any) -> Any:
    """Return a column that is sorted as another expression is."""
    if isinstance(key, UnaryExpression) and key.modifier is not None:
        inner = _directed(key.element, column)
        return UnaryExpression(inner, modifier=key.modifier)
    return column


def _without_nul(key: Any) -> Any:
    """Return a key of ORDER BY that says of texts what servers sort by.

    Where a collation does not pad, they pad what they sort with NUL: "a" and
    "a\\0" come in any order then, though they differ.
    """
    if isinstance(key, UnaryExpression) and key.modifier is not None:
        return UnaryExpression(_without_nul(key.element), modifier=key.modifier)
    if not isinstance(key.type, String) or isinstance(key.type, Enum):
        return key
    cut = func.regexp_replace(key, "\\x00+$", "", type_=key.type)
    unpadded = func.collation(key).like("%nopad_bin")
    return func.if_(unpadded, cut, key, type_=key.type)


def _distinct_objects(compared: Compared, made: Made) -> list[list[Any]]:
    options = [o for o in made.options if not isinstance(o, Scatter)]
    compared.plain.expunge_all()
    result = compared.plain.execute(made.statement.options(*options))
    rows = [_normal(compared, made, row) for row in result.unique()]
    # Either in no order, or in one that tells all of them apart.
    return [[row] for row in rows] if made.keys else [rows]


def _got(compared: Compared, made: Made, rng: random.Random) -> list[tuple[Any, ...]]:
    statement = made.statement
    if made.limit is not None:
        statement = statement.limit(made.limit)
    if made.offset:
        statement = statement.offset(made.offset)
        made.options.append(scatter(max_offset=made.offset))
    with compared.cluster.session() as session:
        rows = _read(session, statement.options(*made.options), made, rng)
        return [_normal(compared, made, row) for row in rows]


def _read(
    session: Any, statement: Any, made: Made, rng: random.Random
) -> Sequence[Any]:
    """Read all rows in one of the ways that there are."""
    how = rng.randrange(8)
    if made.unique:
        found = session.execute(statement).unique()
        if how == 0:
            return [row for part in found.partitions(2) for row in part]
        rows: Sequence[Any] = found.all()
        return rows
    if how == 0 and not made.objects:
        streamed = session.execute(statement, execution_options={"yield_per": 2})
        return list(streamed)
    result = session.execute(statement)
    if how == 1:
        return [row for part in result.partitions(2) for row in part]
    if how == 2:
        return [tuple(row.values()) for row in result.mappings()]
    if how == 3:
        return list(result.freeze()())
    if how == 4:
        return [*result.fetchmany(2), *result.fetchall()]
    if how == 5:
        names = list(result.keys())
        assert not any("sqla_shard" in name for name in names)
    if how == 6 and len(statement.selected_columns) == 1:
        return [(value,) for value in result.scalars()]
    return result.all()


def _normal(compared: Compared, made: Made, values: Sequence[Any]) -> tuple[Any, ...]:
    """Return a row as it is compared."""
    normal = tuple(_plain(value, 3) for value in values)
    if compared.dialect == "sqlite" or not made.collations:
        return normal
    return tuple(
        compared.weight(value, made.collations[at])
        if isinstance(value, str) and at in made.collations
        else value
        for at, value in enumerate(normal)
    )


def _plain(value: Any, depth: int) -> Any:
    """Return a value, or an object with its loaded attributes."""
    state = inspect(value, raiseerr=False)
    if state is not None and hasattr(state, "mapper"):
        name = state.mapper.class_.__name__.removeprefix("Plain")
        if depth == 0:
            return name, *map(_scalar, state.identity)
        relations = [one.key for one in state.mapper.relationships]
        loaded = [
            (key, _members(getattr(value, key), depth - 1))
            for key in relations
            if key not in state.unloaded and (key != "shop" or depth == 3)
        ]
        shown = [
            (key, _scalar(getattr(value, key))) for key in _KEYS if hasattr(value, key)
        ]
        return name, tuple(shown), tuple(sorted(loaded))
    return _scalar(value)


_KEYS = ("id", "ware_id", "shop_id", "name", "number", "general", "word")
_KEYS += ("kind", "depth", "lustre")


def _members(value: Any, depth: int) -> Any:
    if isinstance(value, list):
        return tuple(_plain(one, depth) for one in value)
    return _plain(value, depth)


def _scalar(value: Any) -> Any:
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return value.astimezone(dt.UTC).replace(tzinfo=None)
    if isinstance(value, enum.Enum) and isinstance(value.value, int):
        return value.value
    return value


def _check(got: list[Any], classes: list[list[Any]], made: Made, case: str) -> None:
    """Compare rows with those of one database, as far as they are defined."""
    skipped = made.offset
    count = max(sum(map(len, classes)) - skipped, 0)
    if made.limit is not None:
        count = min(made.limit, count)
    assert len(got) == count, f"{case}\nhas {len(got)} rows, not {count}"
    left = list(got)
    for rows in classes:
        taken = max(len(rows) - skipped, 0)
        skipped -= len(rows) - taken
        part, left = left[:taken], left[taken:]
        others = list(rows)
        for row in part:
            found = next((at for at, o in enumerate(others) if _same(row, o)), None)
            assert found is not None, (
                f"{case}\nhas the row {row}, in place of one of {others}; "
                f"all: {got}\nwanted: {classes}"
            )
            del others[found]  # not one that is merely equal, as 0 to 0.0
        if not left:
            return


def same_rows(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Tell whether two answers are equal, in values and their types."""
    return _same(tuple(map(tuple, one)), tuple(map(tuple, other)))


def _shown(number: Any) -> Any:
    """Return the value of a FLOAT column as it is displayed, in six digits.

    MySQL displays the extreme of a FLOAT column of a subquery with all of its
    digits, but where it executes the same statement with a LIMIT, with six.
    """
    return float(f"{number:.6g}") if number in SAMPLES["size"] else number


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if one == other and {type(one), type(other)} == {int, Decimal}:
        return True  # SQLite has no decimals, and 0 is an integer there
    if one == other == 0 and {type(one), type(other)} == {int, float}:
        # coalesce(..., 0) of a blob field is of the field's type; of a column
        # it is what SQLite makes of it.
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, (float, Decimal)):
        # Sums of floats, which are all that SQLite has, depend on the order.
        return (
            math.isclose(one, other, rel_tol=1e-12, abs_tol=1e-9)
            or _shown(one) == other
            or one == _shown(other)
        )
    return bool(one == other)


cluster = PINS.on_backend()
compared = compared_rows()
plain_engine = plain_engine()
