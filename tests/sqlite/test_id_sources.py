"""Ids that the application gives to new rows, or that a service issues."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, insert, select
from sqlalchemy.dialects import mysql, sqlite
from sqlalchemy.orm import DeclarativeBase, Mapped, MappedAsDataclass
from sqlalchemy.schema import CreateTable

from sqla_shard import (
    blob_field,
    Cluster,
    exc,
    MappingMixin,
    ObjectMixin,
    pack,
    scatter,
    TimeLayout,
    unpack,
)
from sqla_shard.models.tickets import TicketServers
from sqla_shard.session import placement
from sqla_shard.session.placement import lacks_issued_id
from sqla_shard.testing import sqlite_topology


class Base(DeclarativeBase):
    pass


class Given(Base):
    __abstract__ = True
    id_source = "application"


class Issued(Base):
    __abstract__ = True
    id_source = "service"


class Invoice(ObjectMixin, Given, type_id=1):
    __tablename__ = "invoices"
    title: Mapped[str] = blob_field(default="")


class Line(ObjectMixin, Given, type_id=2, colocate_with="invoice_id"):
    __tablename__ = "lines"
    invoice_id: Mapped[int] = blob_field(ref=Invoice)


class Coupon(ObjectMixin, Issued, type_id=3):
    __tablename__ = "coupons"
    title: Mapped[str] = blob_field(default="")


class Plain(ObjectMixin, Base, type_id=4):
    __tablename__ = "plain"


class CouponHasInvoices(MappingMixin, Base, source=Coupon, target=Invoice):
    pass


class DataclassBase(MappedAsDataclass, DeclarativeBase):
    id_source = "application"


class Receipt(ObjectMixin, DataclassBase, type_id=5):
    __tablename__ = "receipts"
    title: Mapped[str] = blob_field()


class Numbers:
    """A service that issues the ids of a test."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = list(numbers)

    def issue(self, table: str, count: int) -> Sequence[int]:
        return [self.numbers.pop(0) for _ in range(min(count, 2))]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster.from_topology(sqlite_topology(tmp_path, 2, 8)) as cluster:
        cluster.create_all(Base.metadata)
        cluster.create_all(DataclassBase.metadata)
        yield cluster


@pytest.fixture
def tickets(tmp_path: Path, cluster: Cluster) -> Iterator[TicketServers]:
    found = TicketServers([f"sqlite:///{tmp_path / name}" for name in ("one", "two")])
    found.create(["coupons"])
    cluster.id_service = found
    yield found
    found.dispose()


def rows(cluster: Cluster, cls: Any) -> int:
    with cluster.session() as session:
        statement = select(func.count(cls.id)).options(scatter())
        return int(session.scalar(statement) or 0)


def test_given_ids_are_used_by_every_insert(cluster: Cluster) -> None:
    ids = [pack(5, 1, n) for n in (7, 70, 700, 7000, 9)]
    with cluster.begin() as session:
        session.add(Invoice(id=ids[0], title="0"))
    with cluster.begin() as session:
        session.execute(insert(Invoice), [{"id": ids[1]}, {"id": ids[2], "title": "2"}])
        session.execute(insert(Invoice).values(id=ids[3]))
        session.execute(insert(Invoice.__table__), {"local_id": ids[4], "data": {}})
        child = pack(5, 2, 3)
        session.add(Line(id=child, invoice_id=ids[0]))
    with cluster.session() as session:
        assert None not in session.get_many(Invoice, ids)
        assert session.get_one(Line, child).invoice_id == ids[0]
    with cluster.session() as session:
        session.add(Line(id=pack(4, 2, 3), invoice_id=ids[0]))
        with pytest.raises(exc.ColocationError):
            session.flush()


def test_a_flush_asks_once_for_each_class(
    cluster: Cluster, tickets: TicketServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def lacks(table: Any) -> bool:
        asked.append(table.name)
        return lacks_issued_id(table)

    monkeypatch.setattr(placement, "lacks_issued_id", lacks)
    with cluster.begin(shard_id=3) as session:
        added = [cls() for cls in (Coupon, Plain) for _ in range(9)]
        session.add_all(added)
        session.flush()
        assert sorted(asked) == ["coupons", "plain"]
        assert {unpack(one.id).shard_id for one in added} == {3}


def test_a_row_without_id_is_refused(cluster: Cluster) -> None:
    given = pack(5, 1, 7)

    def flushed(session: Any) -> None:
        session.add(Invoice(title="no id"))
        session.flush()

    for write in (
        flushed,
        lambda s: s.execute(insert(Invoice).values(title="a")),
        lambda s: s.execute(insert(Invoice), [{"title": "a"}]),
        lambda s: s.execute(insert(Invoice), [{"id": None}]),
        lambda s: s.execute(insert(Invoice), [{"id": given}, {"title": ""}]),
        lambda s: s.execute(insert(Invoice.__table__), {"data": {}}),
    ):
        with (
            cluster.session(shard_id=5) as session,
            pytest.raises(exc.MissingIdError) as caught,
        ):
            write(session)
        assert "Set it: Invoice(id=...)" in str(caught.value)
        assert caught.value.table == "invoices"
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    with (
        cluster.session(shard_id=5) as session,
        pytest.raises(exc.UnsupportedStatementError, match="FROM SELECT"),
    ):
        session.execute(
            insert(Invoice).from_select(["data"], select(Invoice.data)),
            bind_arguments={"shard_id": 5},
        )
    assert rows(cluster, Invoice) == 0


@pytest.mark.parametrize(
    ("cls", "counts"), [(Invoice, False), (Coupon, False), (Plain, True)]
)
def test_whether_the_server_counts(cls: Any, counts: bool) -> None:
    for dialect, word in (
        (mysql.dialect(), "AUTO_INCREMENT"),
        (sqlite.dialect(), "AUTOINCREMENT"),
    ):
        statement = str(CreateTable(cls.__table__).compile(dialect=dialect))
        assert (word in statement) == counts


def test_a_dataclass_takes_the_id_first(cluster: Cluster) -> None:
    given = pack(6, 5, 1)
    with cluster.begin() as session:
        session.add(Receipt(given, title="a"))
    with pytest.raises(TypeError):
        Receipt(title="b")
    with cluster.session() as session:
        assert session.get_one(Receipt, given).title == "a"


def test_issued_ids(cluster: Cluster, tickets: TicketServers) -> None:
    with cluster.begin(shard_id=3) as session:
        new = [Coupon(title=str(n)) for n in range(3)]
        session.add_all(new)
        session.flush()
        ids = [one.id for one in new]
        session.add(given := Coupon(id=pack(3, 3, 1000)))
        ids.append(given.id)
        ids += session.scalars(
            insert(Coupon).returning(Coupon.id), [{"title": "x"}] * 2
        )
    assert [tuple(unpack(one)) for one in ids] == [
        (3, 3, n) for n in (1, 3, 5, 1000, 2, 4)
    ]
    with cluster.session() as session:
        assert None not in session.get_many(Coupon, ids)
        assert cluster.explain(ids[0]).shards == (3,)
        page = session.scatter_page(
            select(Coupon).where(Coupon.id >= 0).order_by(Coupon.id.desc()), 2
        )
        assert [unpack(one.id).local_id for one in page.items] == [1000, 5]
    with cluster.begin() as session:
        CouponHasInvoices.append(session, ids[0], pack(1, 1, 7))
    with cluster.session() as session:
        (row,) = CouponHasInvoices.page(session, ids[0]).items
        assert row.invoice_id == pack(1, 1, 7)


@pytest.mark.parametrize(
    ("numbers", "error", "message"),
    [
        ([], exc.MissingIdError, "Set cluster.id_service"),
        ([7, 7], exc.IdServiceError, "1 differ"),
        ([1, 2], exc.IdServiceError, "has issued 2"),
        ([1, 2**36], exc.LocalIdsExhaustedError, "36 bits"),
        ([1, -1], exc.InvalidIdError, "local_id"),
        ([1, "2"], exc.InvalidIdError, "local_id"),
    ],
)
def test_a_service_that_does_not_do_its_work(
    cluster: Cluster, numbers: list[Any], error: type, message: str
) -> None:
    if numbers:
        cluster.id_service = Numbers(*numbers)
    count = 3 if numbers == [1, 2] else 2
    with cluster.session(shard_id=3) as session:
        session.add_all(Coupon() for _ in range(count))
        with pytest.raises(error, match=message):
            session.flush()
    assert rows(cluster, Coupon) == 0


def test_a_service_for_ids_that_begin_with_the_time(tmp_path: Path) -> None:
    class Times(DeclarativeBase):
        id_layout = TimeLayout(epoch_ms=1_600_000_000_000)
        id_source = "service"

    class Shot(ObjectMixin, Times, type_id=6):
        __tablename__ = "shots"

    document = sqlite_topology(tmp_path, 1, 8)
    document["keyspaces"]["objects"]["id_layout"] = Times.id_layout.to_mapping()
    local_id = 1_000 << 10 | 7
    with Cluster.from_topology(document) as cluster:
        cluster.create_all(Times.metadata)
        cluster.id_service = Numbers(local_id)
        with cluster.begin(shard_id=3) as session:
            session.add(new := Shot())
            session.flush()
            assert new.id == Shot.id_layout.pack_time(1_600_000_001_000, 3, 7)


def test_invalid_sources() -> None:
    class Other(DeclarativeBase):
        id_source = "aplication"

    with pytest.raises(exc.ClassDefinitionError, match="'application'"):

        class Typo(ObjectMixin, Other, type_id=1):
            __tablename__ = "typos"


def test_servers_that_are_not_valid(tmp_path: Path) -> None:
    for urls in ([], ["sqlite:///a", "sqlite:///a"]):
        with pytest.raises(exc.IdServiceError, match="each server once"):
            TicketServers(urls)
    # create() was not called.
    missing = TicketServers([f"sqlite:///{tmp_path / 'none'}"])
    with pytest.raises(exc.IdServiceError, match="none"):
        missing.issue("coupons", 1)
    missing.dispose()
