"""Fields in SQL: every place where SQLAlchemy takes an expression."""

from __future__ import annotations

from datetime import datetime, UTC
from decimal import Decimal

import pytest
from sqlalchemy import (
    and_,
    case,
    cast,
    delete,
    exists,
    func,
    literal,
    not_,
    or_,
    select,
    String,
    union_all,
    update,
)
from sqlalchemy.orm import aliased, Bundle, with_loader_criteria

from sqla_shard import full_id, scatter
from sqla_shard.exc import (
    BlobValueError,
    InvalidIdError,
    LocalIdsExhaustedError,
    ScatterUnsupportedError,
    UnsupportedStatementError,
    WrongTypeError,
)
from tests.models.objects import Board, Color, Level, Part, Pin, Renamed, Size, Thing
from tests.models.objects_harness import on_servers, raw, set_raw, stored, Suite, thing

UTC = UTC
T0 = datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)
SHARD = 1


class ExpressionSuite(Suite):
    @pytest.fixture(scope="class")
    @classmethod
    def ids(cls, cluster) -> list[int]:
        with cluster.begin() as session:
            things = [
                Thing(shard_id=SHARD, text="Abc", count=3, ratio=0.5),
                Thing(shard_id=SHARD, text="abd", count=5, flag=False),
                Thing(
                    shard_id=SHARD,
                    text="10% of \\ it's",
                    count=-3,
                    note="n",
                    price=Decimal("9.99"),
                    at=T0,
                    color=Color.BLUE,
                    level=Level.HIGH,
                    size=Size(1),
                    tags=["a"],
                    kind="k",
                ),
            ]
            session.add_all(things)
            session.flush()
            return [new.id for new in things]

    def values(self, session, ids, column, *where):
        statement = select(column).where(Thing.id.in_(ids), *where).order_by(Thing.id)
        return list(session.scalars(statement))

    def test_labels(self, session, ids):
        row = session.execute(
            select(
                Thing.text,
                Thing.count.label("n"),
                func.lower(Thing.text).label("low"),
                Thing.tags,
            ).where(Thing.id == ids[0])
        ).one()
        assert row._fields == ("text", "n", "low", "tags")
        assert (row.text, row.n, row.low, row.tags) == ("Abc", 3, "abc", [])

    def test_aliased(self, session, ids):
        one, two = aliased(Thing), aliased(Thing, name="other")
        rows = session.execute(
            select(one.text, two.text)
            .join(two, one.id == two.id)
            .where(one.id.in_(ids), two.count > one.count - 1)
            .order_by(two.count.desc())
        ).all()
        assert rows == [("abd", "abd"), ("Abc", "Abc"), ("10% of \\ it's",) * 2]

    def test_boolean_forms(self, session, ids):
        for condition, expected in (
            (Thing.flag, [3, -3]),
            (~Thing.flag, [5]),
            (not_(Thing.flag), [5]),
            (Thing.flag == True, [3, -3]),  # noqa: E712
            (Thing.flag != True, [5]),  # noqa: E712
            (Thing.flag.is_(True), [3, -3]),
            (Thing.flag.is_(False), [5]),
            (or_(Thing.flag, Thing.count == 5), [3, 5, -3]),
            (and_(~Thing.flag, Thing.count == 3), []),
            (Thing.flag == literal(False), [5]),
        ):
            found = self.values(session, ids, Thing.count, condition)
            assert found == expected, str(condition)
        assert self.values(session, ids, Thing.flag) == [True, False, True]
        assert self.values(session, ids, ~Thing.flag) == [False, True, False]

    def test_arithmetic(self, session, ids):
        for column, expected in (
            (Thing.count + 1, [4, 6, -2]),
            (Thing.count * 2**40, [3 * 2**40, 5 * 2**40, -3 * 2**40]),
            (-Thing.count, [-3, -5, 3]),
            (2 * Thing.count - Thing.count, [3, 5, -3]),
            (Thing.ratio * 2, [1.0, 0.0, 0.0]),
        ):
            found = self.values(session, ids, column)
            assert found == expected
            assert {type(v) for v in found} == {type(expected[0])}
        assert self.values(session, ids, func.abs(Thing.count)) == [3, 5, 3]
        halves = self.values(session, ids, Thing.count / 2)
        assert [float(v) for v in halves] == [1.5, 2.5, -1.5]
        found = self.values(session, ids, Thing.price * 2)
        assert found == [None, None, Decimal("19.98")]

    def test_strings(self, session, ids):
        for column, expected in (
            (Thing.text + "!", ["Abc!", "abd!", "10% of \\ it's!"]),
            (func.lower(Thing.text), ["abc", "abd", "10% of \\ it's"]),
            (func.upper(Thing.text), ["ABC", "ABD", "10% OF \\ IT'S"]),
            (func.length(Thing.text), [3, 3, 13]),
            (func.coalesce(Thing.note, "-"), ["-", "-", "n"]),
            (cast(Thing.count, String(10)), ["3", "5", "-3"]),
            (case((Thing.count > 4, "big"), else_="small"), ["small", "big", "small"]),
        ):
            assert self.values(session, ids, column) == expected
        for condition, expected in (
            (Thing.text.like("%\\%%", escape="\\"), [-3]),
            (Thing.text.like("10!% of %", escape="!"), [-3]),
            (Thing.text.contains("% of \\ it's", autoescape=True), [-3]),
            (Thing.text.ilike("ABC"), [3]),
            (Thing.text.not_like("%b%"), [-3]),
            (func.lower(Thing.text) == "abc", [3]),
            (Thing.text == "abc", []),
            (Thing.text.between("Abc", "abc"), [3]),
            (Thing.text.in_(["Abc", "abd"]), [3, 5]),
            (Thing.note.is_distinct_from("n"), [3, 5]),
            (Thing.note.is_not_distinct_from(None), [3, 5]),
        ):
            found = self.values(session, ids, Thing.count, condition)
            assert found == expected, str(condition)

    def test_coded_values(self, session, ids):
        for condition in (
            Thing.color == Color.BLUE,
            Thing.color.in_([Color.BLUE]),
            Thing.color != Color.RED,
            Thing.level == Level.HIGH,
            Thing.level > Level.LOW,
            Thing.at == T0,
            Thing.at >= T0,
            Thing.at.between(T0, T0),
            Thing.price == Decimal("9.990"),
            Thing.price > 9,
            Thing.size.is_not(None),
        ):
            found = self.values(session, ids, Thing.count, condition)
            assert found == [-3], str(condition)
        with pytest.raises(BlobValueError, match=r"Thing\.color"):
            self.values(session, ids, Thing.count, Thing.color == "blue")
        with pytest.raises(BlobValueError, match=r"Thing\.at"):
            self.values(session, ids, Thing.count, Thing.at > datetime(2024, 1, 1))

    def test_structures_are_not_compared(self, session, ids):
        for make in (
            lambda: Thing.tags == ["a"],
            lambda: Thing.tags != ["a"],
            lambda: Thing.size == Size(1),
            lambda: Thing.tags.contains("a"),
            lambda: Thing.tags.in_([["a"]]),
            lambda: Thing.tags < Thing.sizes,
            lambda: Thing.scores["a"],
            lambda: aliased(Thing).free == 1,
            lambda: Thing.free.like("a"),
        ):
            with pytest.raises(UnsupportedStatementError, match="Thing"):
                make()
        assert self.values(session, ids, Thing.size) == [None, None, Size(1)]
        assert self.values(session, ids, Thing.tags) == [[], [], ["a"]]

    def test_json_functions_of_the_server(self, session, ids, cluster):
        length = func.json_length if on_servers(cluster) else func.json_array_length
        found = self.values(session, ids, Thing.count, length(Thing.tags) == 1)
        assert found == [-3]

    def test_order_and_groups(self, session, ids):
        statement = select(Thing.text).where(Thing.id.in_(ids))
        for order, expected in (
            (Thing.count, [2, 0, 1]),
            (Thing.count.desc(), [1, 0, 2]),
            (func.lower(Thing.text), [2, 0, 1]),
            (Thing.flag.desc(), None),
        ):
            found = session.scalars(statement.order_by(order)).all()
            texts = ["Abc", "abd", "10% of \\ it's"]
            if expected is not None:
                assert found == [texts[i] for i in expected]
        label = Thing.count.label("n")
        found = session.execute(
            select(label).where(Thing.id.in_(ids)).order_by(label.desc())
        )
        assert found.scalars().all() == [5, 3, -3]
        rows = session.execute(
            select(Thing.flag, func.sum(Thing.count), func.max(Thing.text))
            .where(Thing.id.in_(ids))
            .group_by(Thing.flag)
            .having(func.count() > 1)
        ).all()
        assert rows == [(True, 0, "Abc")]

    def test_subqueries(self, session, ids):
        inner = (
            select(Thing.id, Thing.text, Thing.price, Thing.tags)
            .where(Thing.id.in_(ids))
            .subquery()
        )
        rows = session.execute(
            select(inner.c.text, inner.c.price, inner.c.tags).where(inner.c.price > 5)
        ).all()
        assert rows == [("10% of \\ it's", Decimal("9.99"), ["a"])]
        cte = select(Thing.text.label("t")).where(Thing.id.in_(ids)).cte("some")
        assert len(session.scalars(select(cte.c.t)).all()) == 3
        other = aliased(Thing)
        found = session.scalars(
            select(Thing.count).where(
                Thing.id.in_(ids), exists().where(other.id == Thing.id, other.count > 3)
            )
        ).all()
        assert found == [5]

    def test_union(self, session, ids):
        parts = [select(Thing.text).where(Thing.id == object_id) for object_id in ids]
        found = session.scalars(union_all(*parts)).all()
        assert sorted(found) == sorted(["Abc", "abd", "10% of \\ it's"])

    def test_joins(self, cluster, session, ids):
        with cluster.begin() as other:
            thing_ = other.get(Thing, ids[0])
            thing_.parts.append(Part(name="p1"))
            thing_.parts.append(Part(name="p2"))
        rows = session.execute(
            select(Part.name, Thing.text)
            .join(Part.thing)
            .where(Thing.id == ids[0], Part.name != Thing.text)
            .order_by(Part.name.desc())
        ).all()
        assert rows == [("p2", "Abc"), ("p1", "Abc")]
        rows = session.execute(
            select(Thing.text, func.count(Part.name))
            .outerjoin(Thing.parts)
            .where(Thing.id.in_(ids))
            .group_by(Thing.id, Thing.text)
            .order_by(Thing.id)
        ).all()
        assert [count for _, count in rows] == [2, 0, 0]

    def test_bundle(self, session, ids):
        bundle = Bundle("b", Thing.text, Thing.count)
        found = session.scalars(select(bundle).where(Thing.id == ids[0])).one()
        assert (found.text, found.count) == ("Abc", 3)

    def test_ids_in_the_blob(self, cluster, session):
        board = stored(cluster, Board, title="t", shard_id=SHARD)
        pin = stored(cluster, Pin, board_id=board, link="x")
        found = session.scalars(select(Pin.board_id).where(Pin.board_id == board)).all()
        assert found == [board]
        assert session.scalars(
            select(Pin.id).where(Pin.board_id.in_([board]))
        ).all() == [pin]
        assert session.execute(
            select(Pin.board_id, Pin.seen_with).where(Pin.id == pin)
        ).one() == (board, None)
        with pytest.raises(WrongTypeError):
            session.scalars(select(Pin).where(Pin.board_id == pin))
        with pytest.raises(InvalidIdError):
            session.scalars(select(Pin).where(Pin.id == pin, Pin.seen_with == "x"))

    def test_a_union_of_other_types(self, cluster, session):
        board = stored(cluster, Board, title="t", shard_id=SHARD)
        first = select(Board.id).where(Board.id == board)
        others = [
            Board.title,
            literal(Decimal("1e12") + Decimal("0.5")),
            literal(2**40 + 0.5),
        ]
        assert session.scalars(union_all(first, first)).all() == [board] * 2
        for other in others:
            second = select(other).where(Board.id == board)
            with pytest.raises(InvalidIdError, match="each SELECT of a UNION"):
                session.scalars(union_all(first, second)).all()
        # Local ids that have too many bits have another type, too.
        pin = select(literal(stored(cluster, Pin, board_id=board, link="l")))
        with pytest.raises(LocalIdsExhaustedError, match="SELECT of a UNION"):
            session.scalars(union_all(first, pin)).all()
        scalar = select(Pin.id).scalar_subquery()
        for other in (Pin.id, Pin.seen_with, full_id(Pin.id), scalar):
            second = select(other)
            for both in (first.union(second), union_all(first, first, second)):
                with pytest.raises(UnsupportedStatementError, match="there"):
                    session.scalars(both)

    def test_a_union_of_ids_and_numbers_that_are_ids(self, cluster, session):
        board = stored(cluster, Board, title="t", shard_id=SHARD)
        other = stored(cluster, Thing, shard_id=SHARD)
        whole = full_id(Board.id)
        first = select(Board.id).where(Board.id == board)
        for number in (
            func.max(whole),
            func.coalesce(whole, 0),
            func.first_value(whole).over(order_by=Board.id),
            literal(board),
        ):
            second = select(number).where(Board.id == board)
            assert session.scalars(union_all(first, second)).all() == [board] * 2
        # All rows are those of the first SELECT.
        others = select(full_id(Thing.id)).where(Thing.id == other)
        assert session.scalars(first.except_(others)).all() == [board]
        assert session.scalars(first.intersect(others)).all() == []

    def test_defaults_of_older_records(self, cluster, session):
        """SQL takes the default for what Python shows it for."""
        new = thing(cluster, shard_id=SHARD)
        set_raw(cluster, Thing, new, {})
        for condition in (
            Thing.text == "",
            Thing.count == 0,
            Thing.ratio < 1,
            Thing.flag,
            Thing.color == Color.RED,
            Thing.mode == "a",
            Thing.limit == 10,
            Thing.note.is_(None),
            Thing.size.is_(None),
        ):
            assert self.values(session, [new], Thing.count, condition) == [0]
        row = session.execute(
            select(
                Thing.text,
                Thing.count,
                Thing.ratio,
                Thing.flag,
                Thing.color,
                Thing.limit,
                Thing.note,
            ).where(Thing.id == new)
        ).one()
        assert row == ("", 0, 0.0, True, Color.RED, 10, None)
        set_raw(cluster, Thing, new, {"limit": None})
        session.rollback()
        assert self.values(session, [new], Thing.limit) == [None]
        assert self.values(session, [new], Thing.count, Thing.limit == 10) == []

    def test_numbers_of_another_program(self, cluster, session):
        """A whole number in a field of floats."""
        new = thing(cluster, shard_id=SHARD)
        set_raw(cluster, Thing, new, {"ratio": 3, "price": 5})
        row = session.execute(
            select(Thing.ratio, Thing.price).where(Thing.id == new)
        ).one()
        assert (repr(row.ratio), row.price) == ("3.0", Decimal(5))
        found = session.get(Thing, new)
        assert (found.ratio, found.price) == row

    def test_aliases(self, cluster, session):
        board = stored(cluster, Board, title="t", shard_id=SHARD)
        documents = [
            {"title": "now"},
            {"it's 100% \\ `old`?": "first"},
            {"%s :x {0}": "second"},
            {"title": "now", "%s :x {0}": "then"},
            {},
        ]
        ids = [stored(cluster, Renamed, home_id=board) for _ in documents]
        for object_id, document in zip(ids, documents, strict=True):
            set_raw(cluster, Renamed, object_id, {"board": board, **document})
        found = session.scalars(
            select(Renamed.title).where(Renamed.home_id == board).order_by(Renamed.id)
        ).all()
        assert found == ["now", "first", "second", "now", "untitled"]
        found = session.scalars(
            select(Renamed.id).where(
                Renamed.home_id == board, Renamed.title.in_(["second", "untitled"])
            )
        ).all()
        assert sorted(found) == [ids[2], ids[4]]
        sizes = [{"size": 1}, {"größe 😀": 2}, {"size": None, "größe 😀": 3}]
        for object_id, document in zip(ids, sizes, strict=False):
            set_raw(cluster, Renamed, object_id, {"parent id": board, **document})
        session.rollback()
        found = session.scalars(
            select(Renamed.size)
            .where(Renamed.home_id == board, Renamed.id.in_(ids[:3]))
            .order_by(Renamed.id)
        ).all()
        assert found == [1, 2, None]
        things = session.get_many(Renamed, ids[:3])
        assert [t.size for t in things] == [1, 2, None]

    def test_update_of_a_field_is_refused(self, session, ids):
        for values in ({"text": "x"}, {Thing.text: "x"}):
            change = update(Thing).where(Thing.id == ids[0]).values(values)
            with pytest.raises(UnsupportedStatementError, match="text"):
                session.execute(change)
        with pytest.raises(UnsupportedStatementError, match="text"):
            session.execute(update(Thing), [{"id": ids[0], "text": "x"}])

    def test_update_and_delete_by_a_field(self, cluster, session):
        new = [thing(cluster, shard_id=SHARD, text=text) for text in "abc"]
        session.execute(
            update(Thing).where(Thing.id.in_(new), Thing.text == "b").values(kind="k")
        )
        session.execute(delete(Thing).where(Thing.id.in_(new), Thing.text > "b"))
        session.commit()
        assert [t and t.kind for t in session.get_many(Thing, new)] == [None, "k", None]
        assert raw(cluster, Thing, new[2]) is None

    def test_loader_criteria(self, session, ids):
        for criterion in (
            with_loader_criteria(Thing, Thing.count > 3),
            with_loader_criteria(Thing, lambda cls: cls.count > 3),
        ):
            found = session.scalars(
                select(Thing.count).where(Thing.id.in_(ids)).options(criterion)
            ).all()
            assert found == [5]

    def test_one_expression_in_many_places(self, session, ids):
        column = Thing.limit
        statement = (
            select(column, func.max(column + 1))
            .where(Thing.id.in_(ids), column > 5, column < 50)
            .group_by(column)
            .having(func.max(column) != 7)
            .order_by(column)
        )
        for _ in range(2):
            assert session.execute(statement).all() == [(10, 11)]

    def test_cache_does_not_grow_with_values(self, cluster, ids):
        with cluster.session() as session:
            connection = session.connection(bind_arguments={"shard_id": SHARD})
            cache = connection.engine._compiled_cache
            sizes = []
            for number in range(30):
                session.execute(
                    select(Thing.text, Thing.price)
                    .where(
                        Thing.id.in_(ids[: number % 3 + 1]),
                        Thing.count > number,
                        Thing.color.in_(list(Color)[: number % 2 + 1]),
                        Thing.text.like(f"%{number}%"),
                        Thing.at < T0.replace(second=number),
                    )
                    .order_by(Thing.limit)
                )
                sizes.append(len(cache))
        assert sizes[-1] - sizes[0] <= 1

    def test_numbers_that_sqlite_does_not_have(self, cluster, session):
        big = thing(cluster, shard_id=SHARD, count=2**70 + 1)
        condition = Thing.count == 2**70 + 1
        if on_servers(cluster):
            found = self.values(session, [big], Thing.count, condition)
            assert found == [2**70 + 1]
            return
        with pytest.raises(BlobValueError, match="SQLite"):
            self.values(session, [big], Thing.count, condition)
        with pytest.raises(BlobValueError, match="SQLite"):
            self.values(session, [big], Thing.count)
        assert self.values(session, [big], Thing.id, Thing.count > 5) == [big]

    def test_the_text_null_in_free_json(self, cluster, session):
        """MariaDB took it for JSON null."""
        free = ["null", "NULL", None, '"null"', ["null"], "x"]
        ids = [thing(cluster, shard_id=SHARD, free=value) for value in free]
        assert self.values(session, ids, Thing.free) == free
        nothing = self.values(session, ids, Thing.id, Thing.free.is_(None))
        assert nothing == [ids[2]]

    def test_integers_of_64_bits(self, cluster, session):
        """MySQL returned -1 for the greatest one."""
        if not on_servers(cluster):
            pytest.skip("SQLite computes with 63 bits")
        counts = [2**64 - 1, 2**63, 2**63 - 1, -(2**63), 2**70 + 1, 7]
        ids = [
            thing(cluster, shard_id=shard, count=count)
            for shard in (0, SHARD)
            for count in counts
        ]
        assert self.values(session, ids[:6], Thing.count) == counts
        here = Thing.id.in_(ids)
        for order in (Thing.count, Thing.count.desc()):
            made = select(Thing.count).where(here).order_by(order)
            found = session.scalars(made.options(scatter())).all()
            down = order is not Thing.count
            assert found == sorted(counts * 2, reverse=down)
        for count in counts:
            made = select(Thing.id).where(here, Thing.count == count)
            assert len(session.scalars(made).all()) == 2
        functions = func.sum, func.max, func.min, func.count
        numbers = [function(Thing.count) for function in functions]
        row = session.execute(select(*numbers).where(here)).one()
        assert row == (2 * sum(counts), 2**70 + 1, -(2**63), 12)

    def test_numbers_beyond_those_of_the_server(self, cluster, backend, session):
        """MySQL left them out of sums, and sorted them first."""
        if not on_servers(cluster):
            pytest.skip("SQLite has doubles for them")
        big, small = Decimal("1E+40"), Decimal("1E-4000")
        ids = [
            thing(cluster, shard_id=SHARD, count=5, price=Decimal(5)),
            thing(cluster, shard_id=SHARD, count=10**70, price=big),
            thing(cluster, shard_id=SHARD, count=-(10**70), price=-big),
            thing(cluster, shard_id=0, count=-(10**75), price=small),
            thing(cluster, shard_id=0, count=2**70, price=Decimal(7)),
        ]
        here = Thing.id.in_(ids)
        for column, order in (
            (Thing.count, [3, 2, 0, 4, 1]),
            (Thing.price, [2, 3, 0, 4, 1]),
        ):
            made = select(Thing.id).where(here).options(scatter())
            found = session.scalars(made.order_by(column, Thing.id)).all()
            if column is Thing.count:
                # The least numbers are equal for the server.
                assert {*found[:2]} == {ids[3], ids[2]}
                found[:2] = ids[3], ids[2]
            assert found == [ids[place] for place in order]
            for condition, number in ((column > 5, 2), (column < 5, 2)):
                found = session.scalars(made.where(condition)).all()
                assert len(found) == number
                if backend.kind != "mysql":
                    continue  # MariaDB refuses the UPDATE
                on_shard = Thing.id.in_(ids[:3])
                change = update(Thing).where(on_shard, condition)
                assert session.execute(change.values(rank=1)).rowcount == 1
            session.rollback()
            for of in (column, func.max(column), func.sum(column)):
                # The last is that of a sum over several shards.
                refusals = BlobValueError, ScatterUnsupportedError
                with pytest.raises(refusals, match=r"load the|more digits"):
                    session.scalars(select(of).where(here, column > 0)).all()
            inside = select(column).where(Thing.id.in_([ids[0], ids[4]]))
            assert len(session.scalars(inside).all()) == 2
