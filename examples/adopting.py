"""Start with an existing database: old models and new objects together.

::

    python -m examples.adopting

There is an application with plain SQLAlchemy models and one database.  Its
database becomes the global keyspace, and nothing else changes.  Then one
table that grows becomes an object class: its rows are copied to ids that are
computed from the old ones, so no lookup is needed, and the copy can
be repeated.  ``docs/howto/adopt.rst`` explains the steps.

Limits: one statement reads one keyspace, so there are no joins between old
and new.  One transaction writes one virtual shard, and the global keyspace
counts as one.

SQLite in a temporary directory; nothing has to be installed, and nothing
stays.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from sqlalchemy import create_engine, ForeignKey, func, Index, select, String, update
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship, Session

from sqla_shard import blob_field, Cluster, ObjectMixin, pack, ShardedId, ShardSession
from sqla_shard.exc import CrossShardWriteError, KeyspaceMismatchError, ShardError
from sqla_shard.testing import sqlite_topology

CUSTOMERS = 40
BATCH = 10
SHARDS = 16
"""The number of open shards at the copy.  Never change it: ids contain it."""


# -- the existing application -----------------------------------------------


class Base(DeclarativeBase):
    """The old models.  Nothing about them is changed."""


class Customer(Base):
    """A row of the old database."""

    __tablename__ = "customers"

    id: Mapped[int] = mapped_column(primary_key=True)
    email: Mapped[str] = mapped_column(String(200), unique=True)
    name: Mapped[str] = mapped_column(String(100))
    invoices: Mapped[list[Invoice]] = relationship(back_populates="customer")


class Invoice(Base):
    """Another, with a foreign key."""

    __tablename__ = "invoices"

    id: Mapped[int] = mapped_column(primary_key=True)
    customer_id: Mapped[int] = mapped_column(ForeignKey("customers.id"))
    cents: Mapped[int]
    customer: Mapped[Customer] = relationship(back_populates="invoices")


def fill_old_database(directory: Path) -> None:
    """Fill and read the old database, with plain SQLAlchemy."""
    directory.mkdir(parents=True, exist_ok=True)
    engine = create_engine(f"sqlite:///{directory / 'shop.sqlite'}")
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        for number in range(1, CUSTOMERS + 1):
            customer = Customer(
                email=f"{number}@example.com", name=f"Customer {number}"
            )
            customer.invoices = [Invoice(cents=100 * number + n) for n in range(2)]
            session.add(customer)
    engine.dispose()


# -- the new classes --------------------------------------------------------


class Objects(DeclarativeBase):
    """A base of their own, so that alembic leaves the old database alone."""


class Profile(ObjectMixin, Objects, type_id=1):
    """The object that replaces a customer.

    ``tier`` and ``visits`` are ordinary columns: one can be filtered by and
    has an index, the other is counted up in SQL.  The rest is in the JSON
    document and costs no migration.
    """

    __tablename__ = "profiles"

    name: Mapped[str] = blob_field()
    about: Mapped[str] = blob_field(default="")
    tier: Mapped[str] = mapped_column(String(10), default="free")
    visits: Mapped[int] = mapped_column(default=0)

    __table_args__ = (Index("profiles_by_tier", "tier"),)


class Visit(ObjectMixin, Objects, type_id=2, colocate_with="profile_id"):
    """Lives on the shard of its profile, with a foreign key to it."""

    __tablename__ = "visits"

    profile_id: Mapped[int] = mapped_column(
        ShardedId(1), ForeignKey("profiles.local_id")
    )
    page: Mapped[str] = blob_field()
    profile: Mapped[Profile] = relationship()


def profile_id(customer_id: int) -> int:
    """Compute the new id from the old one; no lookup is needed."""
    return pack(customer_id % SHARDS, 1, customer_id)


# -- the migration ----------------------------------------------------------


def show_old_models(cluster: Cluster) -> None:
    """Use the old models through the cluster, as through any session."""
    with cluster.begin() as session:
        seven = select(Customer).where(Customer.email == "7@example.com")
        session.scalars(seven).one().name = "Seven"

    with cluster.session() as session:
        best = (
            select(Customer.name, func.sum(Invoice.cents))
            .join(Customer.invoices)
            .group_by(Customer.id)
            .order_by(func.sum(Invoice.cents).desc())
            .limit(2)
        )
        rows = session.execute(best).all()
        customer = session.get(Customer, 7)
        assert customer is not None
        assert (customer.name, len(customer.invoices)) == ("Seven", 2)
    print("The old models, through the cluster; joins and sums as before:")
    for name, cents in rows:
        print(f"  {name}: {cents / 100:.2f}")
    assert [name for name, _ in rows] == ["Customer 40", "Customer 39"]


def copy(session: ShardSession, customer_id: int, name: str) -> None:
    """Write the profile of a customer, or bring it up to date."""
    found = session.get(Profile, profile_id(customer_id))
    if found is None:
        session.add(Profile(id=profile_id(customer_id), name=name))
    else:
        found.name = name


def copy_all(cluster: Cluster) -> int:
    """Copy every customer, a batch at a time, and return how many."""
    last = copied = 0
    while True:
        with cluster.session() as session:
            batch = session.execute(
                select(Customer.id, Customer.name)
                .where(Customer.id > last)
                .order_by(Customer.id)
                .limit(BATCH)
            ).all()
        if not batch:
            return copied
        for customer_id, name in batch:
            # One transaction each: every profile has a shard of its own.
            cluster.run(copy, customer_id, name)
        last = batch[-1].id
        copied += len(batch)


def differences(cluster: Cluster) -> list[int]:
    """Return the customers whose profile is missing or different."""
    with cluster.session() as session:
        customers = session.scalars(select(Customer)).all()
        profiles = session.get_many(
            Profile, [profile_id(customer.id) for customer in customers]
        )
        return [
            customer.id
            for customer, profile in zip(customers, profiles, strict=True)
            if profile is None or profile.name != customer.name
        ]


def show_copy(cluster: Cluster) -> None:
    """Copy, verify after a write by an old process, and copy again."""
    assert len(differences(cluster)) == CUSTOMERS
    copied = copy_all(cluster)
    with cluster.begin() as session:
        customer = session.get(Customer, 9)
        assert customer is not None
        customer.name = "Nine"  # by an old process, without profiles
    different = differences(cluster)
    assert (copied, different) == (CUSTOMERS, [9])
    print(f"\n{copied} customers copied; changed meanwhile: {different}.")
    copy_all(cluster)
    assert differences(cluster) == []
    print("Copied again: no difference.")
    where = cluster.explain(profile_id(9))
    print(textwrap.indent(str(where), "  "))
    assert where.shards == (9,)


def show_columns(cluster: Cluster) -> None:
    """Use ordinary columns and a foreign key on the new objects."""
    nine = profile_id(9)
    with cluster.begin() as session:
        session.add(Visit(profile_id=nine, page="/prices"))
        session.execute(
            update(Profile)
            .where(Profile.id == nine)
            .values(visits=Profile.visits + 1, tier="paid")
        )
    with cluster.session() as session:
        # An index serves this within a shard; the id names the shard.
        visit = session.scalars(select(Visit).where(Visit.profile_id == nine)).one()
        profile = visit.profile
        assert (profile.name, profile.visits, profile.tier) == ("Nine", 1, "paid")
        print("\nBeside the document, ordinary columns:")
        print(f"  {profile.name}: {profile.tier}, {profile.visits} visit")


def refusal(cluster: Cluster, attempt: Callable[[ShardSession], object]) -> ShardError:
    """Return the error of a call that must not succeed."""
    try:
        cluster.run(attempt)
    except ShardError as error:
        text = f"{type(error).__name__}: {error}"
        lines = textwrap.fill(text, 74, break_on_hyphens=False)
        print(textwrap.indent(lines, "  "))
        return error
    raise AssertionError("it was not refused")


def show_refusals(cluster: Cluster) -> None:
    """Show the limits: joins and transactions of old and new together."""

    def join(session: ShardSession) -> object:
        both = select(Customer, Profile).where(
            Customer.name == "Nine", Profile.id == profile_id(9)
        )
        return session.execute(both).all()

    def write_both(session: ShardSession) -> None:
        customer = session.get(Customer, 9)
        profile = session.get(Profile, profile_id(9))
        assert customer is not None
        assert profile is not None
        customer.name = profile.name = "nobody"

    print("\nRefused, since old and new may be on different servers:")
    assert isinstance(refusal(cluster, join), KeyspaceMismatchError)
    assert isinstance(refusal(cluster, write_both), CrossShardWriteError)
    assert differences(cluster) == []
    print("So write both, the old row first, in two transactions: a crash")
    print("between them leaves a difference, which the copy repairs.")


def main() -> None:
    """Run the example on SQLite: the old database and 16 virtual shards."""
    with TemporaryDirectory() as name:
        directory = Path(name)
        # The global keyspace is the existing database.
        topology = sqlite_topology(directory, servers=2, shards=SHARDS, main="shop")
        fill_old_database(directory / "server1")
        with Cluster.from_topology(topology) as cluster:
            cluster.create_all(Objects.metadata)
            show_old_models(cluster)
            show_copy(cluster)
            show_columns(cluster)
            show_refusals(cluster)


if __name__ == "__main__":
    main()
