"""Forms of statements that web applications use.

``python -m tests.suites.web_forms`` writes the table of
docs/reference/forms.rst; the suite runs each form on shards and on one
database, and compares what becomes of it with what the table says.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import orm, text
from sqlalchemy.dialects import mysql
from sqlalchemy.sql.base import Executable

from sqla_shard import scatter
from sqla_shard.exc import ShardError
from tests.models.clusters import PINS, plain_engine
from tests.models.layouts import pack
from tests.models.merged_models import Colour, PLAIN, SHARDED, SHOP
from tests.suites.merged import compared_rows, same_rows

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "forms.rst"


@dataclass(frozen=True)
class Form:
    """One form.

    :ivar code: an expression: a statement, or its answer.
    :ivar verdict: ``S``, ``M`` or ``R``.
    :ivar also: a remark on it; for ``R`` the expression that gives the
        answer instead, if there is one.
    :ivar limits: of ``scatter()``, where it needs some.
    :ivar only: the one dialect that has it.
    """

    code: str
    verdict: str
    also: str = ""
    limits: str = ""
    only: str = ""


S, M, R = "S", "M", "R"
_COUNT = "select(func.count()).select_from"

FORMS: dict[str, list[Form]] = {
    "One object, or one parent": [
        Form("session.get(Ware, ware_id)", S),
        Form("select(Ware).where(Ware.id == ware_id)", S),
        Form("select(Ware).where(Ware.id.in_(ids))", M, "the ids determine the shards"),
        Form("session.get(Ware, ware_id).shop", S),
        Form(
            "select(Ware).where(Ware.shop_id == shop_id)"
            ".order_by(Ware.number, Ware.id)",
            S,
        ),
        Form(
            "select(Ware).where(Ware.shop_id == shop_id)"
            ".order_by(Ware.id).limit(2).offset(1)",
            S,
        ),
        Form(f"{_COUNT}(Ware).where(Ware.shop_id == shop_id)", S),
        Form(
            "select(Ware.id, func.row_number().over(order_by=Ware.id))"
            ".where(Ware.shop_id == shop_id)",
            S,
        ),
        Form(
            "select(Ware.number).where(Ware.shop_id == shop_id, Ware.sold)"
            ".union(select(Ware.number)"
            ".where(Ware.shop_id == shop_id, Ware.number > 1))",
            S,
        ),
        Form(
            "select(func.group_concat(Ware.number))"
            ".where(Ware.shop_id == shop_id, Ware.number == 1)",
            S,
        ),
    ],
    "Filters and search": [
        Form("select(Shop).filter_by(number=1)", M),
        Form("select(Ware).where(Ware.number > 1, Ware.sold)", M),
        Form("select(Ware).where(or_(Ware.number.is_(None), Ware.price > 1))", M),
        Form('select(Ware).where(Ware.exact.like("a%"))', M),
        Form('select(Ware).where(Ware.exact.icontains("B"))', M),
        Form("select(Ware).where(Ware.number.in_([1, 2]))", M),
        Form("select(Ware).where(Ware.number.between(0, 2))", M),
        Form("select(Ware).where(Ware.moment >= dt.datetime(2024, 5, 1))", M),
        Form("select(Ware).where(Ware.colour == Colour.RED)", M),
        Form("select(Ware.number).distinct()", M),
    ],
    "Order and pages": [
        Form("select(Ware).order_by(Ware.moment.desc(), Ware.id).limit(5)", M),
        Form(
            "session.scalars(select(Ware).order_by(Ware.id)"
            ".options(scatter())).first()",
            M,
        ),
        Form(
            "select(Ware).order_by(Ware.number, Ware.id).limit(3).offset(4)",
            M,
            "with ``scatter(max_offset=100)``; ``scatter_page()`` costs less",
            limits="max_offset=100",
        ),
        Form(f"{_COUNT}(select(Ware).where(Ware.number > 0).subquery())", M),
        Form(f"{_COUNT}(select(Ware.number).distinct().subquery())", M),
        Form(
            "select(Ware).where(tuple_(Ware.number, Ware.id) > (1, ware_id))"
            ".order_by(Ware.number, Ware.id).limit(3)",
            M,
        ),
        Form(
            "select(Ware.id, Shop.number).join(Ware.shop)"
            ".order_by(Shop.number, Ware.id).limit(4)",
            M,
        ),
        Form(
            "len(session.scalars(select(Ware).order_by(func.random())"
            ".limit(2).options(scatter())).all())",
            M,
        ),
        Form(
            "select(Ware.id).order_by(case((Ware.sold, 0), else_=1), Ware.id).limit(4)",
            M,
        ),
    ],
    "Counts, sums and groups": [
        Form(f"{_COUNT}(Ware)", M),
        Form("select(func.count(distinct(Ware.number)))", M),
        Form("select(exists().where(Ware.number == 1))", M),
        Form(
            "select(func.sum(Ware.number), func.avg(Ware.weight),"
            " func.min(Ware.day), func.max(Ware.exact))",
            M,
        ),
        Form("select(func.coalesce(func.sum(Ware.weight), 0))", M),
        Form("select(func.round(func.avg(Ware.weight), 2))", M),
        Form("select(func.sum(Ware.weight) / func.count(Ware.number))", M),
        Form("select(func.sum(case((Ware.sold, 1), else_=0)), func.count())", M),
        Form("select(Ware.number, func.count()).group_by(Ware.number)", M),
        Form(
            "select(func.date(Ware.moment), func.count())"
            ".group_by(func.date(Ware.moment))",
            M,
        ),
        Form(
            "select(Ware.number, func.count()).group_by(Ware.number)"
            ".order_by(func.count().desc(), Ware.number).limit(2)",
            M,
        ),
        Form(
            "select(Ware.number).group_by(Ware.number)"
            ".having(func.avg(Ware.weight) > 1)",
            M,
        ),
        Form(
            "select(Ware.sold, func.count()).group_by(Ware.sold).distinct()",
            R,
            "set(session.execute(select(Ware.sold, func.count())"
            ".group_by(Ware.sold).options(scatter())))",
        ),
        Form(
            "select(func.sum(distinct(Ware.number)))",
            R,
            "sum(n for n in session.scalars(select(Ware.number).distinct()"
            ".options(scatter())) if n is not None)",
        ),
        Form(
            "select(func.group_concat(Shop.number))",
            R,
            "select the rows, and join them in Python",
        ),
    ],
    "Joins, eager loads and subqueries": [
        Form("select(Ware, Shop).join(Ware.shop)", M),
        Form(
            "select(Shop.id, func.count(Ware.id)).outerjoin(Shop.wares)"
            ".group_by(Shop.id)",
            M,
        ),
        Form("select(Shop).where(Shop.wares.any(Ware.sold))", M),
        Form("select(Ware).where(Ware.shop.has(Shop.number > 0))", M),
        Form(
            "select(Shop).where(Shop.id.in_(select(Ware.shop_id).where(Ware.sold)))", M
        ),
        Form(
            "select(Shop.id, select(func.count(Ware.id))"
            ".where(Ware.shop_id == Shop.id).scalar_subquery())",
            M,
        ),
        Form("select(Shop).options(orm.selectinload(Shop.wares))", M),
        Form("select(Ware).options(orm.joinedload(Ware.shop)).limit(99)", M),
        Form(
            "session.scalars(select(Shop).options(scatter(),"
            " orm.joinedload(Shop.wares)).order_by(Shop.id).limit(2))"
            ".unique().all()",
            R,
            "session.scalars(select(Shop).options(scatter(),"
            " orm.selectinload(Shop.wares)).order_by(Shop.id).limit(2)).all()",
        ),
        Form(
            "select(Ware.id).where(Ware.weight >"
            " select(func.avg(Ware.weight)).scalar_subquery())",
            R,
            "session.execute(select(Ware.id).where(Ware.weight >"
            " session.scalar(select(func.avg(Ware.weight))"
            ".options(scatter()))).options(scatter())).all()",
        ),
        Form(
            "select(Ware.id, Shop.id).join(Shop, Ware.number == Shop.number)",
            R,
            "one statement for each table, joined in Python; or a mapping table",
        ),
        Form(
            "select(Ware.id, func.row_number().over(order_by=Ware.id))",
            R,
            "[(i, n) for n, i in enumerate(session.scalars(select(Ware.id)"
            ".order_by(Ware.id).options(scatter())), 1)]",
        ),
        Form(
            "select(Mark.name, func.count().over(partition_by=Mark.ware_id))",
            M,
            "PARTITION BY an id",
        ),
        Form(
            "select(Ware.number).where(Ware.sold)"
            ".union(select(Ware.number).where(Ware.number > 1))",
            R,
            "session.execute(select(Ware.number)"
            ".where(or_(Ware.sold, Ware.number > 1)).distinct()"
            ".options(scatter())).all()",
        ),
    ],
    "Writes and locks": [
        Form(
            "session.execute(update(Ware).where(Ware.id == ware_id)"
            ".values(number=9)).rowcount",
            S,
        ),
        Form(
            "session.execute(update(Ware).where(Ware.id == ware_id)"
            ".values(number=func.coalesce(Ware.number, 0) + 1)).rowcount",
            S,
        ),
        Form(
            "session.execute(delete(Mark).where(Mark.ware_id == ware_id)).rowcount", S
        ),
        Form(
            "session.execute(update(Ware).where(Ware.number == 1)"
            ".values(number=2).options(scatter())).rowcount",
            M,
            'in a transaction with ``cross_shard="ordered"`` or "unordered"',
        ),
        Form(
            "session.execute(delete(Mark).where(Mark.number == 1)"
            ".options(scatter())).rowcount",
            M,
            "the same",
        ),
        Form(
            "session.get(Shop, new_id)"
            " or session.merge(Shop(id=new_id, number=5)).number",
            S,
            "get or create; by another key: :doc:`/howto/lookups`",
        ),
        Form(
            "session.execute(mysql.insert(Shop)"
            ".values(id=shop_id, number=5).on_duplicate_key_update(number=6))"
            " and session.scalar(select(Shop.number)"
            ".where(Shop.id == shop_id))",
            S,
            only="mysql",
        ),
        Form("select(Ware).where(Ware.id == ware_id).with_for_update()", S),
        Form(
            "select(Ware).where(Ware.shop_id == shop_id).order_by(Ware.id)"
            ".limit(2).with_for_update(skip_locked=True)",
            S,
        ),
        Form("select(Ware).where(Ware.number == 1).with_for_update()", M),
        Form(
            "select(Ware).order_by(Ware.id).limit(2).with_for_update(skip_locked=True)",
            R,
            "one shard at a time (:doc:`/howto/scatter`)",
        ),
        Form(
            "session.execute(insert(Shop).from_select("
            '["local_id", "number"], select(Ware.id, Ware.number)))',
            R,
            "read, then session.execute(insert(Shop), rows)",
        ),
        Form('session.execute(text("SELECT 1")).scalar()', S, "any shard"),
        Form(
            'session.execute(text("SELECT count(*) FROM wares")).scalar()',
            R,
            "session.scalar(select(func.count()).select_from(Ware).options(scatter()))",
        ),
    ],
}


def _cells(form: Form) -> Iterator[str]:
    yield f"``{form.code}``"
    yield form.verdict
    is_code = form.verdict == R and "session." in form.also
    yield f"``{form.also}``" if is_code else form.also


def table() -> str:
    """Return the table of the page."""
    out = []
    for title, forms in FORMS.items():
        out += [title, "-" * len(title), "", ".. list-table::"]
        out += ["   :widths: 60 6 34", ""]
        for form in forms:
            first, *others = _cells(form)
            out.append(f"   * - {first}")
            out += [f"     - {other}".rstrip() for other in others]
        out.append("")
    return "\n".join(out)


def _shown(value: Any) -> Any:
    """Return an answer with objects by their ids."""
    if isinstance(value, (list, tuple, sqlalchemy.Row)):
        return tuple(_shown(one) for one in value)
    if isinstance(value, (set, frozenset)):
        return tuple(sorted(map(_shown, value), key=repr))
    name = type(value).__name__.removeprefix("Plain")
    if name in ("Shop", "Ware", "Crate"):
        wares = getattr(value, "__dict__", {}).get("wares")
        return name, value.id, None if wares is None else _shown(wares)
    return value


def _as_rows(answer: Any) -> tuple[Any, ...]:
    """Return an answer, of one value or of rows, in one order."""
    if not isinstance(answer, tuple):
        return ((answer,),)
    return tuple(sorted(answer, key=repr))


class WebForms:
    """``compared`` comes from the test module."""

    @pytest.mark.parametrize(
        "form", [pytest.param(f, id=f.code[:70]) for fs in FORMS.values() for f in fs]
    )
    def test_is_as_the_table_says(self, compared, form):
        if form.only and form.only != compared.dialect:
            pytest.skip(f"only {form.only} has it")
        want = self._answer(compared, compared.plain, PLAIN, form.code)
        compared.plain.rollback()
        compared.plain.expunge_all()
        limits = eval(f"scatter({form.limits})")  # noqa: S307  # ours
        given = None if form.verdict == S else limits
        with compared.cluster.session(cross_shard="unordered") as session:
            if form.verdict != R:
                got = self._answer(compared, session, SHARDED, form.code, given)
            else:
                with pytest.raises(ShardError):
                    self._answer(compared, session, SHARDED, form.code, given)
                session.rollback()
                if "session." not in form.also or "rows)" in form.also:
                    return
                got = self._answer(compared, session, SHARDED, form.also)
                got, want = _as_rows(got), _as_rows(want)
            session.rollback()
        assert same_rows([(got,)], [(want,)]), f"{got}\n{want}"

    def test_the_page_has_the_table(self):
        # Else: python -m tests.suites.web_forms
        assert table() in PAGE.read_text("utf-8")
        assert sum(map(len, FORMS.values())) >= 60

    def test_one_shard_is_queried(self, compared):
        names = self._names(compared, SHARDED, None)
        for form in (f for fs in FORMS.values() for f in fs):
            if form.verdict == S and form.code.startswith("select("):
                made = eval(form.code, names)  # noqa: S307  # ours
                assert len(compared.cluster.explain(made).shards) == 1

    def _answer(self, compared, session, models, code, limits=None):
        made = eval(code, self._names(compared, models, session))  # noqa: S307  # ours
        if not isinstance(made, Executable):
            return _shown(made)
        ordered = bool(made._order_by_clauses)
        if limits is not None and hasattr(made, "options"):
            made = made.options(limits)
        rows = _shown(session.execute(made).all())
        return rows if ordered else tuple(sorted(rows, key=repr))

    def _names(self, compared, models, session):
        wares = compared.rows.tables["Ware"]
        owned = next(row for row in wares if row["shop_id"] is not None)
        return {
            **{name: getattr(sqlalchemy, name) for name in _WORDS},
            "Shop": models.Shop,
            "Ware": models.Ware,
            "Mark": models.Mark,
            "Colour": Colour,
            "session": session,
            "scatter": scatter,
            "orm": orm,
            "mysql": mysql,
            "text": text,
            "dt": dt,
            "ware_id": owned["id"],
            "shop_id": owned["shop_id"],
            "ids": [row["id"] for row in wares[::5]],
            "new_id": pack(9, SHOP, 777),
        }


_WORDS = (
    *("select", "func", "or_", "case", "distinct", "exists", "tuple_"),
    *("update", "delete", "insert"),
)


if __name__ == "__main__":
    head, _ = PAGE.read_text("utf-8").split(next(iter(FORMS)), 1)
    PAGE.write_text(head + table(), "utf-8")


cluster = PINS.on_backend()
compared = compared_rows()
plain_engine = plain_engine()
