"""Classes and operations for tests of pending operations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import BigInteger, delete, literal, select, String, update
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqla_shard import (
    Cluster,
    LookupMixin,
    ObjectMixin,
    operation,
    scatter,
    ShardSession,
)
from sqla_shard.dialects.sql import ServerTime
from sqla_shard.models import normalization
from sqla_shard.outbox.tables import APPLIED, INTENTS
from tests.models.backends import Clusters
from tests.models.layouts import LAYOUT, unpack

SHARDS = 8
MODULUS = 16


class Base(DeclarativeBase):
    id_layout = LAYOUT


class Account(ObjectMixin, Base, type_id=1):
    __tablename__ = "accounts"
    points: Mapped[int] = mapped_column(BigInteger, default=0)


class Entry(ObjectMixin, Base, type_id=2):
    """Nothing keeps an entry from being there twice."""

    __tablename__ = "entries"
    account_id: Mapped[int] = mapped_column(BigInteger)
    text: Mapped[str] = mapped_column(String(200))


class Email(LookupMixin, Base, target=Account, normalize=normalization.email):
    pass


class Setting(Base):
    __tablename__ = "settings"
    name: Mapped[str] = mapped_column(String(20), primary_key=True)
    value: Mapped[str] = mapped_column(String(50))


@operation("tests.add")
def add(session: ShardSession, account_id: int, n: int) -> None:
    more = update(Account).where(Account.id == account_id)
    session.execute(more.values(points=Account.points + n))


@operation("tests.note")
def note(session: ShardSession, account_id: int, *, text: str) -> None:
    """Write a row that is there twice when this is done twice."""
    there = unpack(account_id).shard_id
    session.add(Entry(account_id=account_id, text=text, shard_id=there))


@operation(
    "tests.hop",
    on=lambda session, ids, text: {
        "mapper": Entry,
        "shard_id": unpack(ids[0]).shard_id,
    },
)
def hop(session: ShardSession, ids: list[int], text: str) -> None:
    """Write a note here, and enqueue notes on the rest, one by one."""
    note(session, ids[0], text=text)
    if ids[1:]:
        hop.intend(session, ids[1:], text)


@operation(
    "tests.register",
    on=lambda session, key, account_id: {
        "mapper": Email,
        "shard_id": Email.shard_of(session, key),
    },
)
def register(session: ShardSession, key: str, account_id: int) -> None:
    Email.claim(session, key, account_id)


@operation("tests.set", on=lambda session, name, value: {"mapper": Setting})
def set_to(session: ShardSession, name: str, value: str) -> None:
    session.merge(Setting(name=name, value=value))


def account(cluster: Cluster, shard_id: int) -> int:
    """Return the id of a new account."""
    with cluster.begin(shard_id=shard_id) as session:
        made = Account()
        session.add(made)
        session.flush()
        return made.id


def first_of_each(cluster: Cluster) -> list[int]:
    """Return a new account on each shard, in order."""
    return [account(cluster, shard_id) for shard_id in range(SHARDS)]


def points(cluster: Cluster, ids: list[int]) -> list[int]:
    with cluster.session() as session:
        found = session.get_many(Account, ids)
    return [one.points for one in found if one is not None]


def entries(cluster: Cluster) -> Counter[tuple[int, str]]:
    """Return accounts and texts of all entries."""
    with cluster.session() as session:
        rows = session.execute(select(Entry.account_id, Entry.text).options(scatter()))
        return Counter((row.account_id, row.text) for row in rows)


def intend(session: ShardSession, home: int, target: int, text: str) -> None:
    """Write an account, and enqueue a note for another."""
    add(session, home, 1)
    assert note.intend(session, target, text=text) is False


@contextmanager
def after_crash() -> Iterator[None]:
    """In the block a process dies right after each COMMIT."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "sqla_shard.session.transaction.TransactionLog.run_after_commit",
            lambda log, session: None,
        )
        yield


def make_due(cluster: Cluster, but: Container[int] = ()) -> None:
    """Advance the clock past the delay of workers for new intents.

    :param but: shards that have no table of them.
    """
    hour_ago = ServerTime(literal(-3_600_000_000, BigInteger()))
    _on_all(cluster, update(INTENTS).values(due_at=hour_ago), but)


def forget_all(cluster: Cluster) -> None:
    """Leave no intent and no token of those that were applied."""
    _on_all(cluster, delete(INTENTS))
    _on_all(cluster, delete(APPLIED))


def _on_all(cluster: Cluster, statement: Any, but: Container[int] = ()) -> None:
    places = cluster.places
    for space in places.topology.keyspaces.values():
        for place in places.all_places(space):
            if place.shard_id in but:
                continue
            with cluster.begin() as session:
                session.execute(statement, bind_arguments={"place": place})


def count_applied(cluster: Cluster) -> int:
    count = 0
    places = cluster.places
    for space in places.topology.keyspaces.values():
        with cluster.session() as session:
            count += len(
                session.execute(
                    select(APPLIED.c.token),
                    bind_arguments={"places": places.all_places(space)},
                ).all()
            )
    return count


#: Clusters with these tables.
OPERATIONS = Clusters(Base.metadata, SHARDS, main=("main",), lookup=MODULUS)
operations_on_sqlite = OPERATIONS.on_sqlite
operations_on_servers = OPERATIONS.on_servers
