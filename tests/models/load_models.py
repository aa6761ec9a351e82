"""What the writers of a load write through a cluster."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger
from sqlalchemy import String
from sqlalchemy.orm import DeclarativeBase
from sqlalchemy.orm import mapped_column

from sqla_shard import ObjectMixin
from sqla_shard import unpack

__all__ = ["Base", "Note", "Pin", "write_pin"]


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


def write_pin(session: Any, shard: int, token: str) -> int:
    """Write a pin and its note; return the local id of the pin."""
    pin = Pin(token=token, shard_id=shard)
    session.add(pin)
    session.flush()
    local_id = unpack(pin.id).local_id
    session.add(Note(token=token, pin_local=local_id, shard_id=shard))
    session.flush()
    return local_id
