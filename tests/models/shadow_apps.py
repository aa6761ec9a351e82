"""Applications on one database, of the kinds that shadow mode has to watch.

An asynchronous API that uses Core only, with natural and composite keys, and a
batch job.  Neither knows anything of shards.
"""

from __future__ import annotations

import uuid
from typing import Any

from sqlalchemy import (
    bindparam,
    Column,
    Connection,
    ForeignKey,
    func,
    insert,
    Integer,
    MetaData,
    select,
    String,
    Table,
    text,
    tuple_,
    update,
    Uuid,
)
from sqlalchemy.ext.asyncio import AsyncEngine

from sqla_shard.migrate import Declaration, Global, Lookup, Owned, Owner, Reference

# -- an API: customers, their orders, and the lines of these

shop = MetaData()
countries = Table(
    "countries",
    shop,
    Column("code", String(2), primary_key=True),
    Column("vat", Integer),
)
customers = Table(
    "customers",
    shop,
    Column("id", Uuid, primary_key=True),
    Column("email", String(100), unique=True),
    Column("country", ForeignKey("countries.code")),
)
orders = Table(
    "orders",
    shop,
    Column("id", Integer, primary_key=True),
    Column("customer_id", ForeignKey("customers.id"), index=True),
    Column("state", String(10)),
)
lines = Table(
    "lines",
    shop,
    Column("order_id", ForeignKey("orders.id"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("sku", ForeignKey("products.sku")),
    Column("amount", Integer),
)
products = Table(
    "products",
    shop,
    Column("sku", String(20), primary_key=True),
    Column("stock", Integer),
)

SHOP = Declaration(
    Owner("customers.id"),
    Lookup("customers.email"),
    Owned("orders", colocate_with="customer_id"),
    Owned("lines", colocate_with="order_id"),
    Reference("countries"),
    Global("products"),
)


class Shop:
    """The calls of the API."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def prepare(self) -> None:
        async with self._engine.begin() as connection:
            await connection.run_sync(shop.create_all)
            await connection.execute(insert(countries), [{"code": "AT", "vat": 20}])
            await connection.execute(insert(products), [{"sku": "tea", "stock": 10}])

    async def join(self, email: str) -> uuid.UUID:
        customer_id = uuid.uuid4()
        async with self._engine.begin() as connection:
            await connection.execute(
                insert(customers).values(id=customer_id, email=email, country="AT")
            )
        return customer_id

    async def order(self, customer_id: uuid.UUID, *skus: str) -> int:
        """Place an order; the stock is in the same transaction."""
        async with self._engine.begin() as connection:
            result = await connection.execute(
                insert(orders).values(customer_id=customer_id, state="new")
            )
            (order_id,) = result.inserted_primary_key
            await connection.execute(
                insert(lines),
                [
                    {"order_id": order_id, "number": number, "sku": sku, "amount": 1}
                    for number, sku in enumerate(skus)
                ],
            )
            await connection.execute(
                update(products)
                .where(products.c.sku.in_(skus))
                .values(stock=products.c.stock - 1)
            )
        return int(order_id)

    async def find(self, email: str) -> Any:
        async with self._engine.connect() as connection:
            found = await connection.execute(
                select(customers.c.id).where(customers.c.email == email)
            )
            return found.scalar_one_or_none()

    async def invoice(self, customer_id: uuid.UUID) -> list[Any]:
        async with self._engine.connect() as connection:
            found = await connection.execute(
                select(orders.c.id, func.sum(lines.c.amount), countries.c.vat)
                .join(lines, lines.c.order_id == orders.c.id)
                .join(customers, customers.c.id == orders.c.customer_id)
                .join(countries, countries.c.code == customers.c.country)
                .where(customers.c.id == customer_id)
                .group_by(orders.c.id, countries.c.vat)
            )
            return list(found)

    async def shown(self, *keys: tuple[int, int]) -> list[Any]:
        """Return lines by order and number."""
        async with self._engine.connect() as connection:
            found = await connection.execute(
                select(lines).where(tuple_(lines.c.order_id, lines.c.number).in_(keys))
            )
            return list(found)

    async def stock(self, order_id: int) -> list[Any]:
        """Return the stock of ordered products: a join of two keyspaces."""
        async with self._engine.connect() as connection:
            found = await connection.execute(
                select(products.c.stock)
                .join(lines, lines.c.sku == products.c.sku)
                .where(lines.c.order_id == order_id)
            )
            return list(found)

    async def cancel(self, customer_id: uuid.UUID, order_id: int) -> None:
        async with self._engine.begin() as connection:
            await connection.execute(
                update(orders)
                .where(orders.c.id == order_id, orders.c.customer_id == customer_id)
                .values(state="cancelled")
            )


# -- a batch job: interest on accounts

bank = MetaData()
accounts = Table(
    "accounts",
    bank,
    Column("id", Integer, primary_key=True),
    Column("balance", Integer),
)
entries = Table(
    "entries",
    bank,
    Column("id", Integer, primary_key=True),
    Column("account_id", ForeignKey("accounts.id")),
    Column("amount", Integer),
)
months = Table("months", bank, Column("name", String(7), primary_key=True))

BANK = Declaration(Owner("accounts.id"), Owned("entries", colocate_with="account_id"))


def close_month(connection: Connection, name: str) -> None:
    """Add the interest of a month, in one transaction."""
    ids = connection.scalars(select(accounts.c.id).order_by(accounts.c.id)).all()
    connection.execute(
        insert(entries), [{"account_id": one, "amount": 1} for one in ids]
    )
    connection.execute(
        update(accounts)
        .where(accounts.c.id == bindparam("account"))
        .values(balance=accounts.c.balance + 1),
        [{"account": one} for one in ids],
    )
    connection.execute(
        insert(entries).from_select(
            ["account_id", "amount"],
            select(accounts.c.id, accounts.c.balance).where(accounts.c.balance > 1000),
        )
    )
    total = connection.scalar(select(func.sum(entries.c.amount)))
    connection.execute(
        text("UPDATE months SET name = name WHERE name = :name"),
        {"name": f"{name}-{total}"},
    )
    connection.execute(insert(months).values(name=name))
