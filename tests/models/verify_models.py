"""Classes to be verified, clusters that have their tables, and damage."""

from __future__ import annotations

from datetime import datetime, timedelta, UTC
from typing import Any

import pytest
from sqlalchemy import delete, insert
from sqlalchemy.orm import DeclarativeBase, Mapped

from sqla_shard import blob_field, Cluster, LookupMixin, ObjectMixin, ShardSession
from sqla_shard.models import normalization
from sqla_shard.models.lookup_table import shard_of
from tests.models.backends import Clusters
from tests.models.layouts import LAYOUT, pack

ACCOUNT = 5
SHARDS = 4
MODULUS = 4
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
_SOON = timedelta(hours=1)


class Base(DeclarativeBase):
    id_layout = LAYOUT


class Account(ObjectMixin, Base, type_id=ACCOUNT):
    __tablename__ = "accounts"
    email: Mapped[str | None] = blob_field(default=None)
    handle: Mapped[str | None] = blob_field(default=None)
    tags: Mapped[list[str]] = blob_field(default_factory=list)


class AccountEmail(
    LookupMixin, Base, target=Account, normalize=normalization.email, field="email"
):
    pass


class AccountTag(
    LookupMixin,
    Base,
    target="Account",
    normalize=normalization.casefold,
    previous=normalization.exact,
    unique=False,
    field="tags",
):
    """Shared; was exact before."""


class AccountName(LookupMixin, Base, target=Account, normalize=normalization.exact):
    """Knows no field."""


class AccountLogin(
    LookupMixin,
    Base,
    target=Account,
    normalize=normalization.casefold,
    previous=normalization.exact,
):
    """Was exact before, and knows no field."""


class AccountHandle(
    LookupMixin,
    Base,
    target=Account,
    normalize=normalization.exact,
    previous=normalization.casefold,
    field="handle",
):
    """Has become case-sensitive: older keys are in lower case."""


ALL = [AccountEmail, AccountTag, AccountName, AccountLogin, AccountHandle]


def add_account(session: ShardSession, **fields: Any) -> int:
    """Insert an account on some shard; return the id."""
    account = Account(**fields)
    session.add(account)
    session.flush()
    return account.id


def missing_account(number: int = 1) -> int:
    """Return the id of an account that was never inserted."""
    return pack(number % SHARDS, ACCOUNT, 10**9 + number)


def home(key: str) -> int:
    """Return the shard that a key belongs on."""
    return shard_of(key.encode(), MODULUS)


def plant(
    cluster: Cluster,
    cls: Any,
    key: str,
    target_id: int | None,
    *,
    policy: str | None = None,
    shard_id: int | None = None,
    ended: datetime | None = None,
) -> None:
    """Insert a row behind the back of the class.

    :param policy: the present one by default.
    :param shard_id: where the key belongs by default.
    :param ended: the end of a claim; in an hour by default.
    """
    definition = cls.__sqla_shard_lookup__
    row: dict[str, Any] = {
        "key": key,
        definition.column: target_id,
        "policy": policy or definition.labels[0],
    }
    if target_id is None:
        row["claim"] = b"t" * 16
        row["expires_at"] = ended or datetime.now(UTC) + _SOON
    shard_id = home(key) if shard_id is None else shard_id
    with cluster.begin() as session:
        _on(session, "lookup", shard_id).execute(insert(cls.__table__).values(row))


def remove(cluster: Cluster, cls: Any, key: str) -> None:
    """Delete the rows of a key behind the back of the class."""
    table = cls.__table__
    with cluster.begin() as session:
        _on(session, "lookup", home(key)).execute(
            delete(table).where(table.c.key == key)
        )


def everything(cluster: Cluster) -> list[Any]:
    """Return all rows of all lookups with their shards, and all objects."""
    found: list[Any] = []
    with cluster.session() as session:
        for shard_id in range(MODULUS):
            connection = _on(session, "lookup", shard_id)
            for cls in ALL:
                rows = connection.execute(cls.__table__.select()).all()
                name = cls.__name__
                found += [(name, shard_id, *row) for row in rows]
        for shard_id in range(SHARDS):
            connection = _on(session, "objects", shard_id)
            rows = connection.execute(Account.__table__.select()).all()
            found += [("Account", shard_id, *map(str, row)) for row in rows]
    return sorted(found, key=repr)


def clear(cluster: Cluster) -> None:
    """Delete all rows."""
    for shard_id in range(MODULUS):
        with cluster.begin() as session:
            for cls in ALL:
                _on(session, "lookup", shard_id).execute(delete(cls.__table__))
    for shard_id in range(SHARDS):
        with cluster.begin() as session:
            _on(session, "objects", shard_id).execute(delete(Account.__table__))


def _on(session: ShardSession, keyspace: str, shard_id: int) -> Any:
    return session.connection({"keyspace": keyspace, "shard_id": shard_id})


def verified() -> Any:
    """Return fixtures for a module of suites: tables, without rows."""
    options = {"engine_options": {"pool_size": 20}}
    tables = Clusters(
        Base.metadata, SHARDS, lookup=MODULUS, options=options
    ).on_backend()

    @pytest.fixture
    def cluster(tables: Cluster) -> Cluster:
        clear(tables)
        return tables

    return tables, cluster
