"""Semantics of the id column, for ids of every shard.

The 49 checks of the research that the column type came from.  Each passes,
or is refused with a typed error; :data:`REFUSED` is the list of those.
"""

from __future__ import annotations

import operator
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.orm import aliased

from sqla_shard import Cluster
from sqla_shard.exc import NoShardKeyError
from tests.models.clusters import at, PINS
from tests.models.layouts import pack
from tests.models.models import Board, Comment, PIN, Pin
from tests.suites.id_checks import CHECKS, on, REFUSED

#: Shard 0 works like any other.
_SHARDS = (0, 1, 2, 17)

_OPERATORS = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "!=": operator.ne,
    "==": operator.eq,
}


def sample() -> Any:
    """Return a fixture: pins of each shard, and their ids in order."""

    @pytest.fixture(scope="module")
    def data(cluster: Cluster) -> Any:
        with cluster.begin(cross_shard="unordered") as session:
            boards = [at(i, Board(name=f"b{i}")) for i in (3, 18)]
            session.add_all(boards)
            session.flush()
            pins = [
                at(i, Pin(title=f"p{i}_{k}", board_id=boards[(i + k) % 2].id))
                for i in _SHARDS
                for k in range(3)
            ]
            session.add_all(pins)
            session.flush()
            for pin in pins:
                pin.comments = [Comment(body="x"), Comment(body="y")]
            session.flush()
            return SimpleNamespace(
                ids=sorted(pin.id for pin in pins),
                titles={pin.id: pin.title for pin in pins},
                boards=[board.id for board in boards],
            )

    return data


class Semantics:
    """The test module has fixtures ``cluster`` and ``data``."""

    @pytest.mark.parametrize("name", CHECKS)
    def test_check(self, cluster: Cluster, data: Any, name: str) -> None:
        with cluster.session() as session:
            if name in REFUSED:
                with pytest.raises(REFUSED[name]) as caught:
                    CHECKS[name](session, data)
                assert type(caught.value) is REFUSED[name]
            else:
                got, want = CHECKS[name](session, data)
                assert got == want

    def test_every_refusal_is_a_check(self):
        assert set(CHECKS) >= set(REFUSED)
        assert len(CHECKS) >= 49

    @pytest.mark.parametrize("symbol", _OPERATORS)
    def test_operator_means_what_it_means_for_ints(self, cluster, data, symbol):
        compare, ids = _OPERATORS[symbol], data.ids
        others = [pack(0, PIN, 0), pack(5, PIN, 1), pack(31, PIN, 999)]
        with cluster.session() as session:
            for value in [*ids, *others]:
                want = [i for i in ids if compare(i, value)]
                made = select(Pin.id).where(compare(Pin.id, value))
                # One shard at a time, and all that have pins at once.
                results = [session.scalars(made, **on(i)) for i in _SHARDS]
                assert sorted(i for found in results for i in found) == want
                named = made.where(Pin.id.in_(ids))
                assert sorted(session.scalars(named)) == want

    @pytest.mark.parametrize("symbol", sorted(set(_OPERATORS) - {"=="}))
    def test_operator_that_names_no_shard_is_refused(self, cluster, data, symbol):
        made = select(Pin.id).where(_OPERATORS[symbol](Pin.id, data.ids[0]))
        with cluster.session() as session:
            with pytest.raises(NoShardKeyError) as caught:
                session.scalars(made)
            assert caught.value.tables == ("pins",)

    def test_operators_between_columns(self, cluster, data):
        a, b = aliased(Pin), aliased(Pin)
        ids = data.ids[:3]
        with cluster.session() as session:
            for compare in _OPERATORS.values():
                made = select(a.id, b.id).where(
                    compare(a.id, b.id), a.id.in_(ids), b.id.in_(ids)
                )
                assert sorted(map(tuple, session.execute(made))) == [
                    (x, y) for x in ids for y in ids if compare(x, y)
                ]


cluster = PINS.on_backend()
data = sample()
