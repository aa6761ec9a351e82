"""Models of a load, and functions that write them through a cluster."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, String, update
from sqlalchemy.orm import DeclarativeBase, mapped_column

from sqla_shard import ObjectMixin
from tests.models.layouts import pack, unpack


class Base(DeclarativeBase):
    pass


class Pin(ObjectMixin, Base, type_id=1):
    __tablename__ = "load_pins"

    # Not unique: that it is there once is for the writers to see to.
    token = mapped_column(String(64), nullable=False, index=True)


class Note(ObjectMixin, Base, type_id=2):
    __tablename__ = "load_notes"

    token = mapped_column(String(64), nullable=False, index=True)
    pin_local = mapped_column(BigInteger, nullable=False)


class Transfer(ObjectMixin, Base, type_id=3):
    __tablename__ = "load_transfers"

    token = mapped_column(String(64), nullable=False)
    amount = mapped_column(BigInteger, nullable=False)


class Balance(ObjectMixin, Base, type_id=4):
    """One row in each virtual shard, with local id 1."""

    __tablename__ = "load_balances"

    amount = mapped_column(BigInteger, nullable=False)


def write_pin(session: Any, shard: int, token: str) -> int:
    """Write a pin and its note; return the local id of the pin."""
    pin = Pin(token=token, shard_id=shard)
    session.add(pin)
    session.flush()
    local_id = unpack(pin.id).local_id
    session.add(Note(token=token, pin_local=local_id, shard_id=shard))
    session.flush()
    return local_id


def write_transfer(session: Any, shard: int, token: str, amount: int) -> int:
    """Write a pin, and move an amount to the shard next to it.

    Shards 0 and 1, 2 and 3, and so on, are next to each other.
    """
    local_id = write_pin(session, shard, token)
    for there, part in ((shard, amount), (shard ^ 1, -amount)):
        session.execute(
            update(Balance)
            .where(Balance.id == pack(there, 4, 1))
            .values(amount=Balance.amount + part)
        )
        session.add(Transfer(token=token, amount=part, shard_id=there))
    session.flush()
    return local_id
