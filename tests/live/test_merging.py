from __future__ import annotations

import itertools
from decimal import Decimal, localcontext

import pytest
from sqlalchemy import func, select, text

from sqla_shard import pack
from sqla_shard.exc import ScatterUnsupportedError
from tests.models.backends import Clusters
from tests.models.merged_models import Base, WARE, Ware

pytestmark = pytest.mark.live

cluster = Clusters(Base.metadata, 32).on_servers("merging")


@pytest.fixture
def kept(cluster):
    """A session whose rows are gone afterwards."""
    with cluster.session(cross_shard="unordered") as session:
        yield session
        session.rollback()


def _wares(session, *rows):
    """Add wares, one after another on shards of three servers."""
    shards = itertools.cycle((0, 17, 31))
    ids = [pack(next(shards), WARE, 50 + k) for k in range(len(rows))]
    for ware, row in zip(ids, rows, strict=True):
        session.add(Ware(id=ware, **row))
    session.flush()
    return Ware.id.in_(ids)


def _on_one_server(session, expression, values):
    """Ask a single server for an aggregate of some literals."""
    rows = " UNION ALL ".join(f"SELECT {value} AS x" for value in values)
    return session.scalar(
        text(f"SELECT {expression} FROM ({rows}) AS t"), bind_arguments={"shard_id": 0}
    )


class TestLongTexts:
    @pytest.mark.parametrize("choose", [min, max])
    def test_extremes_that_agree_in_what_is_compared(self, kept, choose):
        on_server = getattr(func, choose.__name__)
        alike = "x" * 400
        chosen = _wares(kept, {"story": f"{alike}a"}, {"story": f"{alike}b"})
        made = select(on_server(Ware.story)).where(chosen)
        assert kept.scalar(made) == choose(f"{alike}a", f"{alike}b")
        kept.rollback()
        alike = "x" * 30_000
        chosen = _wares(kept, {"story": f"{alike}a"}, {"story": f"{alike}b"})
        made = select(on_server(Ware.story)).where(chosen)
        with pytest.raises(ScatterUnsupportedError, match=r"func\.left"):
            kept.scalar(made)
        left = select(on_server(func.left(Ware.story, 300))).where(chosen)
        assert kept.scalar(left) == alike[:300]

    def test_extremes_that_do_not(self, kept):
        long = "x" * 400
        chosen = _wares(
            kept, {"story": f"{long}a"}, {"story": "y"}, {"story": f"{long}b"}
        )
        assert kept.scalar(select(func.max(Ware.story)).where(chosen)) == "y"


class TestNumbers:
    def test_sums_of_more_than_28_digits(self, kept):
        price = Decimal("99999999999999999999999999.9999")
        ours = _wares(kept, *[{"price": price}] * 9)
        found = kept.scalar(select(func.sum(Ware.price)).where(ours))
        with localcontext() as context:
            context.prec = 60
            assert found == 9 * price
            assert kept.scalar(
                select(func.avg(Ware.price)).where(ours)
            ) == price.quantize(Decimal("1E-8"))

    def test_averages_are_rounded_as_by_one_server(self, kept, rng):
        for count in (2, 3, 7, 11):
            prices = [
                Decimal(rng.randrange(-(10**9), 10**9)).scaleb(-4) for _ in range(count)
            ]
            kept.rollback()
            ours = _wares(kept, *[{"price": price} for price in prices])
            values = [f"CAST({price} AS DECIMAL(30, 4))" for price in prices]
            for name in ("avg", "sum", "min", "max"):
                column = getattr(func, name)(Ware.price)
                found = kept.scalar(select(column).where(ours))
                want = _on_one_server(kept, f"{name}(x)", values)
                assert str(found) == str(want)

    def test_averages_of_quotients_that_temporary_tables_round(self, kept):
        ours = _wares(kept, *[{"number": 2}] * 4)
        made = select(Ware.number).where(ours).group_by(Ware.number)
        made = made.having(func.avg(Ware.number / 3) > Decimal("0.66668"))
        in_table = made.prefix_with("SQL_SMALL_RESULT")
        one = kept.scalars(in_table, bind_arguments={"shard_id": 0}).all()
        assert one == [2]
        with pytest.raises(ScatterUnsupportedError, match=r"avg\(\)"):
            kept.scalars(made)

    def test_floats_are_sorted_by_all_of_their_digits(self, kept):
        sizes = [16777215.0, 16777214.0, 16777213.0, 0.5]
        ours = _wares(kept, *[{"size": size} for size in sizes])
        made = select(Ware.id).where(ours).order_by(Ware.size)
        numbers = [i & 0xFF for i in kept.scalars(made)]
        assert numbers == [53, 52, 51, 50]
        most = func.max(Ware.size)
        made = select(Ware.id).group_by(Ware.id).where(ours).order_by(most)
        assert [i & 0xFF for i in kept.scalars(made)] == numbers


class TestTexts:
    def test_extremes_by_collation(self, kept):
        words = ("Z", "ä", "b", "A ", None)
        ours = _wares(kept, *[{"general": word, "name": word} for word in words])
        for column, least, most in (
            (Ware.general, {"A ", "ä"}, {"Z"}),
            (Ware.name, {"A "}, {"ä"}),
        ):
            made = select(func.min(column), func.max(column)).where(ours)
            found = kept.execute(made).one()
            assert found[0] in least
            assert found[1] in most

    def test_groups_by_collation(self, kept):
        words = ("a", "A", "ä ", "b", "B", "ß", None, None)
        ours = _wares(kept, *[{"general": word, "exact": word} for word in words])
        for column, want in (
            (Ware.general, [1, 2, 2, 3]),
            (Ware.exact, [1, 1, 1, 1, 1, 1, 2]),
        ):
            made = select(func.count()).group_by(column).where(ours)
            assert sorted(kept.scalars(made)) == want
            made = select(column).distinct().where(ours)
            assert len(kept.scalars(made).all()) == len(want)

    def test_long_texts_are_groups_of_their_own(self, kept):
        long = "x" * 340
        ours = _wares(kept, *[{"story": long + end} for end in ("", "", "a", "b ")])
        made = select(Ware.story, func.count()).group_by(Ware.story)
        found = {text.strip(): n for text, n in kept.execute(made.where(ours))}
        assert found == {long: 2, f"{long}a": 1, f"{long}b": 1}
        made = select(Ware.story).distinct().where(ours)
        assert len(kept.scalars(made).all()) == 3

    def test_texts_too_long_to_compare(self, kept):
        long = "x" * 65_534
        story = func.concat(Ware.story, "yz")
        ours = _wares(kept, {"story": long}, {"story": long})
        for made in (select(func.count()).group_by(story), select(story).distinct()):
            with pytest.raises(ScatterUnsupportedError, match=r"func\.left"):
                kept.execute(made.where(ours))
        hashed = func.sha2(story, 256)
        made = select(func.count()).group_by(hashed)
        assert kept.scalars(made.where(ours)).all() == [2]
