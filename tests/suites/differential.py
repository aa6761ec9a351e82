"""The same statements on shards and in one plain database.

The plain database has the same rows, with whole ids as plain integers.  For
each random statement the cluster gives the same answer, or it refuses with
an error of its own; a different answer is what the whole package must never
give.  How many were refused is printed: a router that refuses everything
would pass.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from typing import Any

import pytest
from sqlalchemy import delete, func, select, text, update
from sqlalchemy.exc import (
    DBAPIError,
    IntegrityError,
    InvalidRequestError,
    OperationalError,
)
from sqlalchemy.orm import Session

from sqla_shard import Cluster
from sqla_shard.exc import ShardError
from tests.models.clusters import PINS, plain_engine
from tests.models.data import make_rows, store
from tests.models.models import PLAIN, PlainBase, SHARDED
from tests.models.statements import Maker

#: How many times as many statements in a run of hours.
_MANY = 50 if os.environ.get("SQLA_SHARD_SOAK") == "1" else 1
#: Neighbours and strangers, shard 0, and both servers.
_SHARDS = (0, 1, 17, 31)
#: Of a UNION or a comparison of texts, on MariaDB.
_MIXED_COLLATIONS = 1267
_NOT_GROUPED = 1055


def _are_alike(got: list[Any], want: list[Any], ordered: bool) -> bool:
    return got == want if ordered else Counter(got) == Counter(want)


def _is_mysql(plain: Session) -> bool:
    dialect = plain.get_bind().dialect
    return dialect.name == "mysql" and not getattr(dialect, "is_mariadb", False)


def _without_semijoins(plain: Session, statement: Any) -> list[Any]:
    """Return the rows that MySQL finds without its semijoins.

    With them, 9.7 ignores WHERE of a correlated IN (SELECT .. LEFT JOIN ..) in ON:
    it joins rows that the subquery does not have.
    """
    plain.execute(text("SET optimizer_switch = 'semijoin=off'"))
    try:
        return [tuple(row) for row in plain.execute(statement)]
    finally:
        plain.execute(text("SET optimizer_switch = DEFAULT"))


def comparison() -> Any:
    """Return a fixture: the cluster, the plain database, and their rows.

    The test module has fixtures ``cluster`` and ``plain_engine``.
    """

    @pytest.fixture(scope="module")
    def compared(request: Any, cluster: Cluster, plain_engine: Any) -> Any:
        # The run's seed, under which hypothesis has it.
        seed = request.config.getoption("hypothesis_seed")
        rows = make_rows(random.Random(f"rows {seed}"), _SHARDS)
        store(rows, SHARDED, cluster)
        PlainBase.metadata.create_all(plain_engine)
        with Session(plain_engine) as session:
            store(rows, PLAIN, session)
            session.commit()
            yield cluster, session, rows
            session.rollback()

    return compared


class Differential:
    """Compares answers; ``compared`` comes from the test module."""

    selects = 600
    changes = 100

    def test_every_row_is_there(self, compared):
        filled, plain, rows = compared
        assert contents(filled, None) == contents(None, plain)
        assert all(rows.tables.values())

    def test_answers_are_equal_or_refused(self, compared, rng, say):
        counts = Counter()
        for _ in range(self.selects * _MANY):
            seed = rng.randrange(1 << 48)
            counts[self._compare(*compared, seed)] += 1
        self._report(counts, say)

    def _compare(self, filled, plain, rows, seed):
        try:
            wanted = Maker(random.Random(seed), PLAIN, rows).select()
            want = [tuple(row) for row in plain.execute(wanted)]
        except (DBAPIError, InvalidRequestError):
            plain.rollback()
            return "no SQL"  # the generated statement is invalid
        statement = Maker(random.Random(seed), SHARDED, rows).select()
        try:
            with filled.session() as session:
                got = [tuple(row) for row in session.execute(statement)]
        except ShardError as error:
            return type(error).__name__
        except OperationalError as error:
            return _on_shards_alone(error)
        ordered = bool(getattr(statement, "_order_by_clauses", ()))
        if not _are_alike(got, want, ordered) and _is_mysql(plain):
            want = _without_semijoins(plain, wanted)
        assert _are_alike(got, want, ordered), (
            f"seed {seed}: the shards say {got}, one database {want}\n"
            f"{wanted}\n{wanted.compile().params}"
        )
        return "equal" if want else "equal and empty"

    def test_changes_are_equal_or_refused(self, compared, rng, say):
        counts = Counter()
        for _ in range(self.changes * _MANY):
            seed = rng.randrange(1 << 48)
            counts[self._change(*compared, seed)] += 1
        self._report(counts, say)

    def _change(self, filled, plain, rows, seed):
        wanted = changed(Maker(random.Random(seed), PLAIN, rows))
        try:
            want = plain.execute(wanted, execution_options=_UNSYNCED).rowcount
            there = contents(None, plain)
        except (DBAPIError, InvalidRequestError):
            return "no SQL"
        finally:
            plain.rollback()
        statement = changed(Maker(random.Random(seed), SHARDED, rows))
        with filled.session(cross_shard="unordered") as session:
            try:
                got = session.execute(statement, execution_options=_UNSYNCED).rowcount
            except ShardError as error:
                return type(error).__name__
            except IntegrityError:
                return "no SQL"  # only the shards have foreign keys
            except OperationalError as error:
                return _on_shards_alone(error)
            here = contents(session, None)
            session.rollback()
        for name, found in here.items():
            assert found == there[name], f"seed {seed}: {name} by {wanted}"
        assert got == want, f"seed {seed}: {wanted}"
        return "equal" if want else "equal and empty"

    def _report(self, counts, say):
        total = sum(counts.values()) - counts["no SQL"]
        equal = counts["equal"] + counts["equal and empty"]
        say(
            f"{type(self).__name__}: {total} statements, "
            f"{100 * (total - equal) // total}% refused; "
            + ", ".join(f"{k} {n}" for k, n in counts.most_common())
        )
        assert counts["equal"] > total / 8
        assert counts["NoShardKeyError"] < total * 0.7


_UNSYNCED = {"synchronize_session": False}


def _on_shards_alone(error: OperationalError) -> str:
    """Return why servers refuse the SQL of shards; raise any other error."""
    code = error.orig.args[0] if error.orig else None
    # In a blob a text has another collation than in a column; the one
    # database has columns alone.
    if code == _MIXED_COLLATIONS:
        return "collations"
    # MySQL compares a correlated IN in the HAVING of its SELECT, and takes
    # the field there for another expression than GROUP BY has.
    if code == _NOT_GROUPED:
        return "GROUP BY"
    raise error


def contents(sharded: Any, plain: Any) -> dict[str, list[Any]]:
    """Return all rows, by table, of shards or of the plain database."""
    found: dict[str, list[Any]] = {}
    models = PLAIN if sharded is None else SHARDED
    for name in ("Board", "Pin", "Comment", "Tag", "Note"):
        entity = getattr(models, name)
        columns = [
            getattr(entity, key)
            for key in ("id", "pin_id", "n", "title", "board_id", "name")
            if hasattr(entity, key)
        ]
        statement = select(*columns)
        if sharded is None:
            rows = plain.execute(statement).all()
        elif isinstance(sharded, Cluster):
            with sharded.session() as session:
                rows = _everywhere(session, statement)
        else:
            rows = _everywhere(sharded, statement)
        found[name] = sorted(map(tuple, rows), key=repr)
    return found


def _everywhere(session: Any, statement: Any) -> list[Any]:
    return [
        row
        for shard_id in _SHARDS
        for row in session.execute(statement, bind_arguments={"shard_id": shard_id})
    ]


def changed(maker: Maker) -> Any:
    """Return a random UPDATE or DELETE."""
    models, rng = maker.models, maker.rng
    # SQLite's driver begins no transaction before WITH .. UPDATE.
    maker.ctes = False
    name = rng.choice(["Pin", "Comment", "Board", "Tag"])
    entity = getattr(models, name)
    source = maker.described(name, entity)
    wheres = [maker.pin([source])] if maker.chance(85) else []
    if maker.chance(60):
        wheres.append(maker.condition([source], rng.choice([0, 1, 2])))
    if name != "Pin" and maker.chance(40):
        return delete(entity).where(*wheres)
    value: Any = rng.randint(0, 9)
    kind = rng.randrange(4)
    if kind == 0:
        value = entity.n + 1
    elif kind == 1:
        inner = maker.subselect([source], 1, lambda found: [func.count()])
        value = inner.scalar_subquery()
    return update(entity).where(*wheres).values(n=value)


# Some of the statements have a cartesian product, and mean it.
_OPTIONS = {"enable_from_linting": False}
cluster = PINS.on_backend(engine_options=_OPTIONS)
compared = comparison()
plain_engine = plain_engine(**_OPTIONS)
