"""Pages of rows of several shards, against all rows of one database."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import case, cast, desc, func, Row, select, String
from sqlalchemy.orm import aliased, Bundle, joinedload, load_only, selectinload

from sqla_shard.exc import ScatterUnsupportedError
from tests.models.clusters import PINS, plain_engine
from tests.models.merged_models import PLAIN, SHARDED
from tests.suites.merged import compared_rows

_Case = Callable[[Any], tuple[Any, tuple[Any, ...]]]

_WARE_FIELDS = (
    *("sold", "number", "big", "price", "weight", "size", "day", "moment"),
    *("hour", "spelled", "shop_id", "general", "unicode", "swedish", "uca"),
    *("accents", "nopad", "latin", "german", "cased", "three", "nick"),
)
_GEM_FIELDS = (
    *("word", "number", "price", "weight", "sold", "day", "moment", "colour"),
    *("rank", "ware_id"),
)


def _field(name: str, key: str, *, descending: bool) -> _Case:
    def made(m: Any) -> tuple[Any, tuple[Any, ...]]:
        cls = getattr(m, name)
        field = getattr(cls, key)
        if descending:
            return select(cls.id).order_by(field.desc()), (cls.id.desc(),)
        return select(cls.id).order_by(field), (cls.id,)

    return made


_FIELDS: dict[str, _Case] = {
    f"{name}.{key}{' DESC' if descending else ''}": _field(
        name, key, descending=descending
    )
    for name, keys in (("Ware", _WARE_FIELDS), ("Gem", _GEM_FIELDS))
    for key in keys
    for descending in (False, True)
}


def _wares(order: Callable[[Any], Any]) -> _Case:
    return lambda m: (
        select(m.Ware.id).order_by(order(m.Ware)),
        (m.Ware.id.desc() if _descends(order(m.Ware)) else m.Ware.id,),
    )


def _descends(order: Any) -> bool:
    return getattr(order, "modifier", None) is not None


_EXPRESSIONS: dict[str, _Case] = {
    "a comparison": _wares(lambda w: w.number == 1),
    "IS NULL": _wares(lambda w: w.number.is_(None).desc()),
    "CASE": _wares(lambda w: case((w.number == 1, 0), else_=2).desc()),
    "a function": _wares(lambda w: func.lower(w.uca)),
    "a cast": _wares(lambda w: cast(w.number, String(20))),
    "a quotient": _wares(lambda w: (w.number / 3).desc()),
    "a product": _wares(lambda w: (w.price * w.price).desc()),
    "a date": _wares(lambda w: func.date(w.moment).desc()),
    "a time": _wares(lambda w: func.time(w.moment).desc()),
    "coalesce()": _wares(lambda w: func.coalesce(w.number, 0).desc()),
    "a subquery": lambda m: (
        select(
            m.Shop.id,
            select(func.count(m.Ware.id))
            .where(m.Ware.shop_id == m.Shop.id)
            .scalar_subquery()
            .label("c"),
        ).order_by(desc("c")),
        (m.Shop.id.desc(),),
    ),
    "a label": lambda m: (
        select(m.Ware.id, (-m.Ware.number).label("x")).order_by("x"),
        (m.Ware.id,),
    ),
}


def _aliases(m: Any) -> tuple[Any, tuple[Any, ...]]:
    one, other = aliased(m.Ware), aliased(m.Ware)
    made = select(one.id, other.id).select_from(one)
    made = made.join(other, one.shop_id == other.shop_id)
    return made.order_by(other.id), (one.id,)


def _outer(order: Callable[[Any], Any]) -> _Case:
    """Order wares, or shops that have none, by a column of wares."""

    def made(m: Any) -> tuple[Any, tuple[Any, ...]]:
        shown = select(m.Shop.id, m.Ware.id).outerjoin(m.Shop.wares)
        by = order(m.Ware)
        ties = [m.Shop.id, m.Ware.id]
        if _descends(by):
            ties = [tie.desc() for tie in ties]
        return shown.order_by(by), tuple(ties)

    return made


_SHAPES: dict[str, _Case] = {
    "no order": lambda m: (select(m.Ware.id), (m.Ware.id,)),
    "aliases": _aliases,
    "LEFT JOIN": _outer(lambda ware: ware.number),
    "LEFT JOIN DESC": _outer(lambda ware: ware.number.desc()),
    "LEFT JOIN by id": _outer(lambda ware: ware.id),
    "LEFT JOIN by id DESC": _outer(lambda ware: ware.id.desc()),
    "LEFT JOIN, two keys": lambda m: (
        select(m.Ware.id, m.Mark.name)
        .outerjoin(m.Ware.marks)
        .order_by(m.Ware.number.desc(), m.Mark.name.desc()),
        (m.Ware.id.desc(), m.Mark.ware_id.desc()),
    ),
    "a composite key": lambda m: (
        select(m.Mark).order_by(m.Mark.general.desc()),
        (m.Mark.ware_id.desc(), m.Mark.name.desc()),
    ),
    "eager loads": lambda m: (
        select(m.Ware)
        .order_by(m.Ware.general)
        .options(joinedload(m.Ware.shop), selectinload(m.Ware.marks)),
        (m.Ware.id,),
    ),
    "load_only": lambda m: (
        select(m.Ware).options(load_only(m.Ware.id)).order_by(m.Ware.uca),
        (m.Ware.id,),
    ),
    "two entities": lambda m: (
        select(m.Ware, m.Shop)
        .join(m.Shop, m.Ware.shop_id == m.Shop.id)
        .order_by(m.Shop.general.desc(), m.Ware.general),
        (m.Ware.id, m.Shop.id),
    ),
    "a bundle": lambda m: (
        select(Bundle("b", m.Ware.id, m.Ware.number)).order_by(m.Ware.number),
        (m.Ware.id,),
    ),
    "a table": lambda m: (
        select(m.Mark.__table__.c.name, m.Mark.__table__.c.number)
        .where(m.Mark.__table__.c.number > 0)
        .order_by(m.Mark.__table__.c.number),
        (m.Mark.__table__.c.ware_id, m.Mark.__table__.c.name),
    ),
}

_CASES = {**_FIELDS, **_EXPRESSIONS, **_SHAPES}


class MergedPages:
    """``compared`` comes from the test module."""

    #: Rows of a page.
    size = 5

    @pytest.mark.parametrize("name", _CASES)
    def test_pages_are_all_rows_in_order(self, compared, name):
        made, ties = _CASES[name](PLAIN)
        compared.plain.expunge_all()
        want = compared.plain.execute(made.order_by(*ties))
        made, _ = _CASES[name](SHARDED)
        wanted = [_shown(row) for row in want]
        size = self.size
        pages = []
        after = None
        with compared.cluster.session() as session:
            while True:
                page = session.scatter_page(made, size, after)
                pages.append(page)
                after = page.next
                if after is None:
                    break
                assert len(page) == size
            found = [_shown(item) for page in pages for item in page]
            assert found == wanted
            assert pages[0].previous is None
            # And back again, turning round once on the way.
            after = pages.pop().previous
            while after is not None:
                page = session.scatter_page(made, size, after)
                there = pages.pop()
                assert list(map(_shown, page)) == list(map(_shown, there))
                again = session.scatter_page(made, size, page.next)
                start = size * (len(pages) + 1)
                want_again = wanted[start : start + size]
                assert list(map(_shown, again)) == want_again
                after = page.previous
            assert not pages

    def test_an_enum_of_the_server_has_no_pages(self, compared):
        made = select(SHARDED.Ware).order_by(SHARDED.Ware.colour)
        with (
            compared.cluster.session() as session,
            pytest.raises(ScatterUnsupportedError, match="Enum"),
        ):
            session.scatter_page(made, 3)


def _shown(item: Any) -> Any:
    """Return an item of a page, objects by their keys."""
    if isinstance(item, (Row, tuple)):
        shown = tuple(_shown(value) for value in item)
        return shown[0] if len(shown) == 1 else shown
    if hasattr(item, "ware_id") and hasattr(item, "name"):
        return item.ware_id, item.name
    return getattr(item, "id", item)


cluster = PINS.on_backend()
compared = compared_rows()
plain_engine = plain_engine()
