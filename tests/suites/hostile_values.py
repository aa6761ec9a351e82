"""Values that are no values: numbers without end, halves of characters."""

from __future__ import annotations

from contextlib import suppress
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import bindparam, func, insert, literal, select, String, text, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.horizontal_shard import set_shard_id
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqla_shard import blob_field, Cluster, ObjectMixin, scatter, SCHEMA
from sqla_shard.exc import (
    BlobValueError,
    InvalidIdError,
    ParameterValueError,
    ShardError,
    UnsupportedStatementError,
)
from tests.models.backends import Clusters
from tests.models.layouts import LAYOUT, pack, unpack

HUGE = 10**5000
DIGITS = "1" * 5000
HALF = "\ud800"


class ItemBase(DeclarativeBase):
    id_layout = LAYOUT


class Item(ObjectMixin, ItemBase, type_id=77):
    __tablename__ = "items"
    n: Mapped[int | None]
    name: Mapped[str | None] = mapped_column(String(30))
    whole: Mapped[int | None] = blob_field(default=None)
    exact: Mapped[Decimal | None] = blob_field(default=None)
    double: Mapped[float | None] = blob_field(default=None)
    title: Mapped[str | None] = blob_field(default=None)
    tags: Mapped[list[str] | None] = blob_field(default=None)
    free: Mapped[dict[str, Any] | None] = blob_field(default=None)


FIELDS = ("whole", "exact", "double", "title", "tags", "free")


def store(session: Any, item_id: int, document: str) -> None:
    """Put a text into the column of a blob, as another program does."""
    session.execute(
        text(f"UPDATE {SCHEMA}.items SET data = :data WHERE local_id = :local"),
        {"data": document, "local": unpack(item_id).local_id},
        bind_arguments={"shard_id": unpack(item_id).shard_id},
    )


def nested(levels: int) -> str:
    return '{"free": {"a": ' + "[" * levels + "]" * levels + "}}"


#: Contents of blobs that another program may have written.
STORED = [
    f'{{"whole": {DIGITS}}}',
    f'{{"free": {{"a": {DIGITS}}}}}',
    '{"double": 1e400}',
    '{"free": {"a": -1e400}}',
    '{"free": {"a": NaN}}',
    '{"free": {"a": Infinity}}',
    '{"title": "\\ud800"}',
    '{"free": {"\\ud800": 1}}',
    '{"tags": ["a", "\\udfff"]}',
    f'{{"exact": "{DIGITS}"}}',
    '{"exact": "1e999999999"}',
    '{"exact": "-1e-999999999"}',
    '{"exact": "0e999999999"}',
    '{"exact": "\\u0661"}',
    '{"exact": "1_0"}',
    '{"exact": " 1"}',
    '{"exact": "NaN"}',
    nested(50_000),
    nested(900),
    nested(99),
    '{"free":' + '{"a":' * 50_000,
]


#: Texts that MySQL does not parse, and what Python reads as ``title``.
UNPARSED = [
    (f'{{"title": "other", "free": {{"a": {"1" * 400}}}}}', "other"),
    (f'{{"free": {{"a": -{"1" * 4000}}}, "title": "other"}}', "other"),
    ('{"title": "other", "double": 1e400}', None),
    ('{"title": "other", "free": {"a": "\\ud800"}}', None),
    ('{"title": "other", "free": {"a": NaN}}', None),
    ('{"title": "other"', None),
    ("{'title': 'other'}", None),
    ('{"title": "oth\ter"}', None),
    ('{"title": "other"} {}', None),
    ("", None),
    ("other", None),
]


def _kind(value: object) -> str:
    # pytest would write the values themselves.
    return type(value).__name__


def _read(session: Any, item_id: int) -> None:
    found = session.get(Item, item_id)
    for field in FIELDS:
        getattr(found, field)


def _add(session: Any, item: Item) -> None:
    session.add(item)
    session.flush()


#: Invalid numbers of shards.
NO_SHARDS = [True, 1.0, Decimal(1), "1", [1], {1: 2}, {1}, HUGE, -HUGE, -1]


class HostileValues:
    """The test module has a fixture ``cluster`` of at least two shards."""

    @pytest.fixture
    def item(self, cluster: Cluster) -> int:
        with cluster.begin() as session:
            item = Item(shard_id=1, name="a")
            session.add(item)
            session.flush()
            return item.id

    @pytest.mark.parametrize("document", STORED, ids=lambda d: d[:30])
    def test_stored_blobs(self, cluster, item, document):
        with cluster.session() as session:
            store(session, item, document)
            with pytest.raises(BlobValueError) as caught:
                _read(session, item)
            assert len(str(caught.value)) < 700

    def test_stored_blobs_that_are_fine(self, cluster, item):
        with cluster.session() as session:
            store(session, item, nested(98))
            assert session.get(Item, item).free["a"] == [*_inside(97)]
        with cluster.session() as session:
            store(
                session,
                item,
                '{"title": "\\ud83d\\ude00", "exact": "1e6144", '
                f'"double": 1e308, "whole": {"9" * 4300}}}',
            )
            found = session.get(Item, item)
            assert found.title == "😀"
            assert found.exact == Decimal("1e6144")
            assert found.double == 1e308
            assert found.whole == 10**4300 - 1

    def test_structures_that_are_selected(self, cluster, item):
        for document in (
            f'{{"free": {{"a": {DIGITS}}}}}',
            '{"free": {"a": 1e400}}',
            '{"free": {"a": "\\ud800"}}',
        ):
            with cluster.session() as session:
                store(session, item, document)
                found = select(Item.free).where(Item.id == item)
                try:
                    value = session.scalar(found)
                except BlobValueError:
                    continue
                # MariaDB may show NULL for what it does not read.
                assert value is None, (document[:40], value)

    @pytest.mark.parametrize(("document", "title"), UNPARSED, ids=lambda d: str(d)[:30])
    def test_rows_beside_one_that_is_not_parsed(
        self, cluster, backend, document, title
    ):
        """MySQL refused each statement that read a field or ``active``."""
        if not backend.live:
            pytest.skip("SQLite refuses statements that read such a row")
        values = {"whole": 2**64 - 1, "exact": Decimal("1.5"), "double": 0.5}
        values |= {"title": "mine", "tags": ["a"]}
        with cluster.session() as session:
            items = [Item(shard_id=1, **values) for _ in range(3)]
            items[1].deactivate()
            session.add_all(items)
            session.flush()
            mine, hidden, other = ids = [item.id for item in items]
            session.expunge_all()
            store(session, other, document)
            here = Item.id.in_(ids)
            assert set(session.scalars(select(Item.id).where(here))) == {mine, other}
            conditions = [
                Item.title == "mine",
                Item.whole == 2**64 - 1,
                Item.exact == Decimal("1.5"),
                Item.double == 0.5,
                Item.tags.is_not(None),
            ]
            for condition in conditions:
                found = select(Item.id).where(here, condition)
                assert session.scalars(found).all() == [mine]
                everywhere = (
                    select(Item.id, Item.title, func.sum(Item.whole))
                    .where(here, condition)
                    .group_by(Item.id, Item.title)
                    .order_by(Item.title, Item.exact)
                    .options(scatter())
                )
                assert session.execute(everywhere).all() == [(mine, "mine", 2**64 - 1)]
            # MariaDB refuses an UPDATE by the others.
            for condition in conditions[:3]:
                change = update(Item).where(here, condition).values(n=1)
                assert session.execute(change).rowcount == 2
            assert hidden
            if title is not None:
                assert session.get(Item, other).title == title

    def test_integers_that_are_no_numbers_of_64_bits(self, cluster, backend, item):
        """A field has text for them; MySQL rounds such numbers in JSON."""
        big = 2**70 + 1
        for document, whole in (
            (f'{{"whole": {big}, "free": {{"a": {big}}}}}', big),
            (f'{{"whole": -{big}, "free": [-{big}]}}', -big),
        ):
            with cluster.session() as session:
                store(session, item, document)
                found = session.get(Item, item)
                assert found.whole == whole
                is_less = select(Item.id).where(Item.id == item, Item.whole < 5)
                assert session.scalars(is_less).all() == [item] * (whole < 0)
                value = select(Item.whole).where(Item.id == item)
                free = select(Item.free).where(Item.id == item)
                most = select(func.max(Item.whole)).where(Item.id == item)
                if backend.kind.startswith("mariadb"):
                    assert session.scalar(value) == whole
                    assert session.scalar(most) == whole
                for made in (value, most):
                    if not backend.kind.startswith("mariadb"):
                        with pytest.raises(BlobValueError, match="64 bits"):
                            session.scalar(made)
                if backend.kind != "mysql" and whole > 0:
                    assert session.scalar(free) == {"a": big}
                elif whole > 0:
                    with pytest.raises(BlobValueError, match="64 bits"):
                        session.scalar(free)

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("whole", HUGE),
            ("exact", HUGE),
            ("exact", Decimal("1e999999999")),
            ("exact", Decimal("1e-999999999")),
            ("exact", Decimal(DIGITS)),
            ("exact", Decimal("Infinity")),
            ("double", HUGE),
            ("double", float("nan")),
            ("title", HALF),
            ("tags", [HALF]),
            ("free", {"a": HUGE}),
            ("free", {"a": [10**309]}),
            ("free", {"a": -(10**309)}),
            ("free", {"a": float("inf")}),
            ("free", {HALF: 1}),
        ],
        ids=_kind,
    )
    def test_fields_that_are_written(self, cluster, item, field, value):
        with pytest.raises(BlobValueError) as caught:
            Item(**{field: value})
        assert len(str(caught.value)) < 700
        with cluster.session() as session:
            found = session.get(Item, item)
            with pytest.raises(BlobValueError):
                setattr(found, field, value)

    @pytest.mark.parametrize(
        "condition",
        [
            lambda: Item.whole == HUGE,
            lambda: Item.exact == HUGE,
            lambda: Item.exact > Decimal("1e999999999"),
            lambda: Item.exact > Decimal("NaN"),
            lambda: Item.name == HALF,
            lambda: Item.name.in_(["a", HALF]),
            lambda: Item.title == HALF,
            lambda: Item.n == HUGE,
        ],
    )
    def test_conditions(self, cluster, item, condition):
        for one in (
            select(Item.id).where(Item.id == item, condition()),
            select(Item.id).where(condition()).options(scatter()),
        ):
            with cluster.session() as session, pytest.raises(ShardError) as e:
                session.execute(one).all()
            assert isinstance(e.value, (BlobValueError, ParameterValueError))
            assert len(str(e.value)) < 700
            # The session and its connection are fit for use.
            with cluster.session() as session:
                assert session.get(Item, item).name == "a"

    def test_decimals_that_a_driver_would_write_with_all_zeros(self, cluster, item):
        """PyMySQL took gigabytes; for SQLite they are doubles."""
        place = cluster.places.place(cluster.topology.sole("objects"), 1)
        is_sqlite = place.engine.dialect.name == "sqlite"
        for condition in (
            Item.n == Decimal("1e999999999"),
            Item.n == Decimal("-1e-999999999"),
            Item.n.in_([Decimal(1), Decimal("0e999999999")]),
        ):
            made = select(Item.id).where(Item.id == item, condition)
            with cluster.session() as session:
                if is_sqlite:
                    assert not session.execute(made).all()
                    continue
                with pytest.raises(ParameterValueError, match="exponent"):
                    session.execute(made)

    def test_columns_that_are_written(self, cluster, item):
        for values in ({"n": HUGE}, {"name": HALF}):
            with cluster.session() as session:
                session.add(Item(shard_id=1, **values))
                with pytest.raises(ParameterValueError):
                    session.flush()
            with cluster.session() as session:
                change = update(Item).where(Item.id == item).values(**values)
                with pytest.raises(ParameterValueError):
                    session.execute(change)

    def test_a_list_is_one_value(self, cluster, item):
        """As the first one it was taken for a row of several."""
        for value in (["a"], ("a",)):
            change = update(Item).where(Item.id == item).values(name=value)
            # PyMySQL writes it between parentheses, others refuse it.
            with cluster.session() as session, suppress(DBAPIError):
                assert session.execute(change).rowcount < 2

    @pytest.mark.parametrize("shard_id", NO_SHARDS, ids=_kind)
    def test_numbers_of_shards(self, cluster, item, shard_id):
        """Also where the place is known already, by 1."""
        one = {"shard_id": 1}
        on_shard = {"shard_id": shard_id}
        everything = select(Item)

        def refused(run: Any) -> None:
            with cluster.session() as session, pytest.raises(InvalidIdError) as caught:
                run(session)
            assert len(str(caught.value)) < 300

        with cluster.session() as session:
            assert session.execute(everything, bind_arguments=one).all()
        refused(lambda s: s.execute(everything, bind_arguments=on_shard))
        refused(lambda s: s.execute(text("SELECT 1"), bind_arguments=on_shard))
        refused(lambda s: s.connection(bind_arguments=on_shard))
        refused(lambda s: s.execute(everything.options(set_shard_id(shard_id))))
        refused(lambda s: s.execute(insert(Item).values(n=1), bind_arguments=on_shard))
        refused(lambda s: _add(s, Item(shard_id=shard_id)))
        with cluster.session(shard_id=shard_id) as session:
            item = Item()
            with pytest.raises(InvalidIdError):
                _add(session, item)
        with pytest.raises(InvalidIdError):
            pack(shard_id, 1, 1)

    @pytest.mark.parametrize("wrong", [HUGE, -HUGE, HALF, [HUGE], 10**40], ids=_kind)
    def test_ids(self, cluster, wrong):
        for run in (
            lambda s: s.get(Item, wrong),
            lambda s: s.get_many(Item, [wrong]),
            lambda s: s.scalars(select(Item).where(Item.id == wrong)),
            lambda s: s.scalars(select(Item).where(Item.id.in_([wrong]))),
            lambda s: unpack(wrong),
            lambda s: cluster.explain(wrong),
        ):
            with cluster.session() as session, pytest.raises(InvalidIdError) as caught:
                run(session)
            assert len(str(caught.value)) < 400

    @pytest.mark.parametrize(
        "value", [SCHEMA, f"a {SCHEMA}.b", "__[SCHEMA__none]", "__[SCHEMA_x]"]
    )
    def test_values_in_the_text_of_statements(self, cluster, item, value):
        """They were changed without a word, to the name of a database."""
        shown = literal(value, literal_execute=True)
        given = bindparam("some", expanding=True, literal_execute=True)
        here = select(Item.id, shown).where(Item.id == item)
        with cluster.session() as session:
            for statement, parameters in (
                (here, {}),
                (select(Item.id, shown).options(scatter()), {}),
                (select(Item.id).where(Item.id == item, shown != "a"), {}),
                (
                    select(Item.id).where(Item.id == item, Item.name.in_(given)),
                    {"some": ["a", value]},
                ),
            ):
                if statement is not here and value == "__[SCHEMA_x]" and (parameters):
                    continue
                with pytest.raises(UnsupportedStatementError) as caught:
                    session.execute(statement, parameters)
                assert caught.value.construct == "literal_execute"
            # As a parameter it is unchanged.
            made = select(literal(value)).where(Item.id == item)
            assert session.scalar(made) == value
            fine = literal("__[schema]", literal_execute=True)
            made = select(fine).where(Item.id == item)
            assert session.scalar(made) == "__[schema]"


def _inside(levels: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(levels):
        found = [found]
    return found


cluster = Clusters(ItemBase.metadata, 4).on_backend()
