"""Random objects: a filter in SQL finds the same rows as in Python."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone, UTC
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import aliased

from tests.models.layouts import pack
from tests.models.objects import Color, Level, Mixed, Size, THING, Thing
from tests.models.objects_harness import on_servers, set_raws, Suite
from tests.suites.objects_values import identical

UTC = UTC
T0 = datetime(2024, 2, 29, 23, 59, 59, 999999, UTC)

#: Few values each, so that filters meet; those that are easily confused.
POOLS: dict[str, list[Any]] = {
    "text": [
        *("", "a", "A", "a ", "á", "a%b", "a_b", "it's", 'say "x"', "ab"),
        *("b\\n", "b\n", "😀", "null", "1", "x" * 1000, "Straße"),
    ],
    "note": [None, "", "a", "None", "null", " a", "%", "?", "__sqla_shard__"],
    "count": [0, 1, -1, 10, 9, 2**53 + 1, 2**53, 2**63 - 1, -(2**63)],
    "ratio": [0.0, 0.1, 0.1 + 0.2, 0.3, -1.5, 1e300, 5e-324, 2.0, 10.0],
    "flag": [True, False],
    "price": [
        None,
        *map(Decimal, ("0", "1.5", "1.50", "10", "9.99", "-3", "1E+3")),
        Decimal("0.000001"),
    ],
    "at": [
        None,
        T0,
        T0 + timedelta(microseconds=1),
        T0.astimezone(timezone(timedelta(hours=-8))),
        datetime(999, 1, 1, tzinfo=UTC),
    ],
    "day": [None, date(2024, 2, 29), date(2024, 3, 1), date(999, 1, 1)],
    "uid": [None, UUID(int=0), UUID(int=2**127)],
    "color": list(Color),
    "level": [None, *Level],
    "mixed": [None, *Mixed],
    "mode": ["a", "b"],
    "limit": [None, 10, 0, 7],
    "size": [None, Size(1), Size(2, 2)],
    "free": [None, 1, True, 1.5, "x", [], {"a": 2**64 - 1}, 0.1 + 0.2],
}
#: SQLite ends text at NUL, and has neither these integers nor decimals.
ON_SERVERS: dict[str, list[Any]] = {
    "text": ["a\0", "a\0b"],
    "count": [2**63, 2**64, 2**70 + 1, -(2**64), 10**50],
    "price": [
        Decimal("0.1234567890123456789"),
        Decimal("0.1234567890123456788"),
        Decimal("9" * 30 + ".5"),
    ],
}
SCALARS = [name for name in POOLS if name not in ("size", "free", "mixed")]
COMPARED = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


class RandomFilterSuite(Suite):
    """Also with records from before a field existed, and with JSON null."""

    @pytest.fixture(scope="class")
    @classmethod
    def pools(cls, cluster) -> dict[str, list[Any]]:
        extra = ON_SERVERS if on_servers(cluster) else {}
        return {name: [*pool, *extra.get(name, ())] for name, pool in POOLS.items()}

    @pytest.fixture
    def ids(self, cluster, pools, rng) -> list[int]:
        with cluster.begin() as session:
            first = _random_things(rng, pools)
            session.add_all(first)
            session.flush()
            ids = [new.id for new in first]
        _make_older(cluster, rng, rng.sample(ids, 8))
        return ids

    def check(
        self,
        session,
        ids: list[int],
        in_sql: Callable[[Any], Any],
        in_python: Callable[[Any], bool],
    ) -> None:
        things = session.get_many(Thing, ids)
        expected = [t.id for t in things if in_python(t)]
        for entity in (Thing, aliased(Thing)):
            statement = select(entity.id).where(entity.id.in_(ids), in_sql(entity))
            found = session.scalars(statement).all()
            assert sorted(found) == expected, str(statement)

    @pytest.mark.parametrize(
        ("field", "name"),
        [
            (field, name)
            for field in SCALARS
            for name in COMPARED
            if name in ("==", "!=") or field not in ("flag", "color", "mode")
        ],
    )
    def test_comparisons(self, session, ids, pools, rng, field, name):
        compare = COMPARED[name]
        values = [v for v in pools[field] if v is not None]
        for value in rng.sample(values, min(4, len(values))):
            self.check(
                session,
                ids,
                lambda e, value=value: compare(getattr(e, field), value),
                lambda t, value=value: (
                    getattr(t, field) is not None and compare(getattr(t, field), value)
                ),
            )

    @pytest.mark.parametrize("field", [*SCALARS, "mixed"])
    def test_in(self, session, ids, pools, rng, field):
        values = [v for v in pools[field] if v is not None]
        wanted = rng.sample(values, min(len(values), rng.randint(1, 3)))

        def among(t):
            # The type, too: for an enum, 1 is not True.
            return any(
                getattr(t, field) == value
                and isinstance(getattr(t, field), type(value))
                for value in wanted
            )

        self.check(session, ids, lambda e: getattr(e, field).in_(wanted), among)
        self.check(
            session,
            ids,
            lambda e: getattr(e, field).not_in(wanted),
            lambda t: getattr(t, field) is not None and not among(t),
        )
        self.check(session, ids, lambda e: getattr(e, field).in_([]), lambda t: False)

    @pytest.mark.parametrize("field", POOLS)
    def test_null(self, session, ids, field):
        """A missing key and JSON null are both what Python shows."""
        for in_sql in (
            lambda e: getattr(e, field).is_(None),
            lambda e: getattr(e, field) == None,  # noqa: E711
        ):
            self.check(session, ids, in_sql, lambda t: getattr(t, field) is None)
        self.check(
            session,
            ids,
            lambda e: getattr(e, field).is_not(None),
            lambda t: getattr(t, field) is not None,
        )

    @pytest.mark.parametrize("field", ["text", "note", "mode"])
    def test_patterns(self, session, ids, field, rng):
        def text(t):
            return getattr(t, field) or ""

        def present(t):
            return getattr(t, field) is not None

        for part in ("a", "%", "_", "'", '"', "\\", "?", "😀", "null"):
            self.check(
                session,
                ids,
                lambda e, p=part: getattr(e, field).contains(p, autoescape=True),
                # LIKE of SQLite does not tell A from a.
                lambda t, p=part: (
                    present(t)
                    and (
                        p in text(t)
                        or (not _tells_case(session) and p.lower() in text(t).lower())
                    )
                ),
            )
        self.check(
            session,
            ids,
            lambda e: getattr(e, field).startswith("%", autoescape=True),
            lambda t: present(t) and text(t).startswith("%"),
        )
        self.check(
            session,
            ids,
            lambda e: getattr(e, field).endswith("\n"),
            lambda t: present(t) and text(t).endswith("\n"),
        )

    @pytest.mark.parametrize("field", SCALARS)
    def test_order(self, session, ids, field):
        things = session.get_many(Thing, ids)

        def key(t):
            value = getattr(t, field)
            value = getattr(value, "value", value)
            if isinstance(value, UUID):
                value = str(value)
            return (value is not None, value, t.id)

        for turn in (1, -1):
            column = getattr(Thing, field)
            statement = select(Thing.id).where(Thing.id.in_(ids))
            order = (
                (column, Thing.id) if turn == 1 else (column.desc(), Thing.id.desc())
            )
            found = session.scalars(statement.order_by(*order)).all()
            assert found == [t.id for t in sorted(things, key=key, reverse=turn == -1)]

    @pytest.mark.parametrize("field", POOLS)
    def test_values(self, session, ids, field):
        """A selected column has the value and the type of the field."""
        things = session.get_many(Thing, ids)
        expected = {t.id: getattr(t, field) for t in things}
        column = getattr(Thing, field)
        rows = session.execute(select(Thing.id, column).where(Thing.id.in_(ids))).all()
        assert len(rows) == len(ids)
        for row in rows:
            value = getattr(row, field)
            if field == "price" and value is not None:
                assert value == expected[row.id]
                assert isinstance(value, Decimal)
            else:
                assert identical(value, expected[row.id])

    @pytest.mark.parametrize("field", SCALARS)
    def test_groups(self, session, ids, field):
        things = session.get_many(Thing, ids)
        column = getattr(Thing, field)
        rows = session.execute(
            select(column, func.count()).where(Thing.id.in_(ids)).group_by(column)
        ).all()
        assert {tuple(row) for row in rows} == set(
            Counter(getattr(t, field) for t in things).items()
        )
        assert len(rows) == len({getattr(t, field) for t in things})
        found = session.scalars(
            select(column).where(Thing.id.in_(ids)).distinct()
        ).all()
        assert Counter(found) == Counter({getattr(t, field) for t in things})

    @pytest.mark.parametrize("field", ["count", "ratio", "price", "limit"])
    def test_totals(self, session, ids, field):
        values = [
            getattr(t, field)
            for t in session.get_many(Thing, ids)
            if getattr(t, field) is not None
        ]
        column = getattr(Thing, field)
        statement = select(func.max(column), func.min(column)).where(Thing.id.in_(ids))
        row = session.execute(statement).one()
        assert row == (max(values), min(values))
        assert {type(value) for value in row} == {type(values[0])}
        if field == "limit":
            total = session.scalar(select(func.sum(column)).where(Thing.id.in_(ids)))
            assert total == sum(values)
            assert type(total) is int


def _tells_case(session) -> bool:
    return on_servers(session.cluster)


def _random_things(rng: random.Random, pools) -> list[Thing]:
    return [
        Thing(
            shard_id=1,
            **{
                field: rng.choice(pool)
                for field, pool in pools.items()
                if rng.random() < 0.8
            },
        )
        for _ in range(25)
    ]


def _make_older(cluster, rng: random.Random, ids: list[int]) -> None:
    """Remove keys, as from before the fields existed; add explicit nulls."""
    with cluster.session() as session:
        documents = {one.id: dict(one.data) for one in session.get_many(Thing, ids)}
    for document in documents.values():
        for key in [key for key in document if rng.random() < 0.5]:
            if Thing.__sqla_shard__.fields[key].codec.nullable and (rng.random() < 0.5):
                document[key] = None
            else:
                del document[key]
    assert all(one >= pack(1, THING, 0) for one in ids)
    set_raws(cluster, Thing, documents)
